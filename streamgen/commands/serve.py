"""`streamgen serve`: the port first, then everything else."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import metadata

from streamgen.commands.version import DISTRIBUTION
from streamgen.config import EngineConfig, ServerConfig
from streamgen.server.listen import listen, url


def serve(engine: EngineConfig, server: ServerConfig) -> int:
    """Serve until a signal. Returns 0 after a drain; raises SetupError, EngineDeadError."""
    sockets = listen(server.host, server.port)
    address = url(sockets, server.host)
    print(f"streamgen {metadata.version(DISTRIBUTION)} listens on {address} and loads the model.", flush=True)

    from streamgen.observability.logging import configure_logging

    configure_logging(level=server.log_level)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(sockets, address, engine, server))
    _leave_loading_behind()
    return 0


async def _serve(sockets: Sequence[socket.socket], address: str, engine: EngineConfig, server: ServerConfig) -> None:
    from streamgen.server.app import create_app
    from streamgen.server.launch import Launch, Loaded
    from streamgen.server.loading import load
    from streamgen.server.progress import LoadProgress
    from streamgen.server.serving import ServingModel

    app = create_app(None, None, server)

    async def load_with_progress() -> Loaded:
        with LoadProgress() as progress:
            return await load(engine, progress=progress)

    def announce(serving: ServingModel) -> None:
        print(banner(address, serving), flush=True)

    await Launch(app, sockets, load_with_progress, server, when_ready=announce).run()


def banner(address: str, serving: object) -> str:
    return address + str(serving)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def _leave_loading_behind() -> None:
    """A thread that still loads a model cannot be stopped, and Python would tear libraries down under it."""
    if any(thread.name == "load" for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(0)
