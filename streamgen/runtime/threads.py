from __future__ import annotations

import os

SPIN_COUNT = 100_000


def prepare_threads() -> None:
    """Bound how long torch's idle threads spin. Must be called before torch is imported: OpenMP looks once.

    A step is some 150 short products with gaps between them. Threads that sleep in each gap (OMP_WAIT_POLICY=PASSIVE)
    make a decode step half as long again; threads that spin without a bound take the core that the event loop, or
    another program, has to run on. A user's own setting stands.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
