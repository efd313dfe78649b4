from __future__ import annotations

import os


def prepare_threads() -> None:
    """Let torch's idle threads sleep. Must be called before torch is imported, whose OpenMP looks once.

    By default they spin between two products, and so take the very core that the event loop, or another program, has
    to run on for the step to go on: on two busy cores a decode step then takes ten times as long. A user's own
    setting stands.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
