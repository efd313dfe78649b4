"""`streamgen serve`: the port first, then everything else."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from streamgen.commands.version import DISTRIBUTION
from streamgen.config import EngineConfig, ServerConfig
from streamgen.errors import EngineDeadError
from streamgen.server.auth import is_loopback
from streamgen.server.listen import listen, url

if TYPE_CHECKING:
    from streamgen.server.serving import ServingModel

GPU_THREAD = "streamgen-gpu"
"""Name of the thread that loads the model and then owns the device."""

SWITCH_SECONDS = 0.0005
"""After how long a thread that runs Python must let another one run. Beside one that does nothing else, the event loop
wakes up 5.4 ms late (median) with Python's default of 5 ms, and 0.8 ms late with this."""


def serve(engine: EngineConfig, server: ServerConfig) -> int:
    """Serve until a signal. Returns 0 after a drain; raises SetupError, and EngineDeadError whenever the engine failed.

    A thread that hangs in the device is left behind, and the process then ends here.
    """
    sockets = listen(server.host, server.port)
    address = url(sockets, server.host)
    print(f"streamgen {metadata.version(DISTRIBUTION)} listens on {address} and loads the model.", flush=True)
    if not server.api_key and not is_loopback(server.host):
        print(f"Whoever reaches {server.host} may use it: there is no --api-key.", file=sys.stderr, flush=True)

    from streamgen.observability.logging import configure_logging

    sys.setswitchinterval(SWITCH_SECONDS)
    configure_logging(server.log_level, secrets=server.api_key)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(sockets, address, engine, server))
    except EngineDeadError as error:
        _leave_thread_behind(1, f"streamgen: {error.message}")
        raise
    print("Stopped.", flush=True)
    _leave_thread_behind(0)
    return 0


async def _serve(sockets: Sequence[socket.socket], address: str, engine: EngineConfig, server: ServerConfig) -> None:
    from streamgen.observability.metrics import Metrics
    from streamgen.server.app import create_app
    from streamgen.server.launch import Launch, Loaded
    from streamgen.server.loading import load
    from streamgen.server.progress import LoadProgress

    loaded: Loaded | None = None
    metrics = Metrics()
    app = create_app(None, None, server, metrics=metrics)

    async def load_with_progress() -> Loaded:
        nonlocal loaded
        with LoadProgress() as progress:
            loaded = await load(
                engine, progress=progress, metrics=metrics, stream_buffer_bytes=server.stream_buffer_bytes
            )
        return loaded

    def announce(serving: ServingModel) -> None:
        print(banner(address + server.root_path, serving), flush=True)

    await Launch(app, sockets, load_with_progress, server, when_ready=announce, when_draining=_announce_drain).run()
    # A drain has its own end, whatever becomes of the engine meanwhile; whoever started the server must still be told.
    if loaded is not None and loaded.engine.failure is not None:
        raise EngineDeadError(f"The engine failed while the server shut down: {loaded.engine.failure}")


def banner(address: str, serving: ServingModel) -> str:
    """What a person needs to know once the server is ready."""
    return (
        f"\n  {serving.names[0]} is ready, with a context of {serving.max_model_len} tokens.\n\n"
        f"  Chat    {address}/\n"
        f"  API     {address}/v1\n\n"
        f"  Ctrl-C stops the server.\n"
    )


def _announce_drain(responses: int, seconds: float) -> None:
    if responses and seconds:
        what = "1 response is" if responses == 1 else f"{responses} responses are"
        print(f"Stopping: {what} still being sent, for up to {seconds:g} s. Ctrl-C again stops at once.", flush=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def _leave_thread_behind(status: int, last_words: str = "") -> None:
    """A thread that still loads, or hangs in the device, cannot be stopped, and must not see Python taken down."""
    if any(thread.name == GPU_THREAD for thread in threading.enumerate()):
        if last_words:
            print(last_words, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
