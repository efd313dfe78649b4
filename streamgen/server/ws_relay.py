"""One request of a WebSocket: from its chunks to frames on whichever socket reads it at the moment.

A relay has one task, and the task belongs to one attachment: a new reader, or none, means that the task is cancelled
wherever it waits and another one started. That is safe because every frame enters the replay buffer before it is
sent, and because `ChunkStream.get` loses nothing when it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import structlog

from streamgen.errors import StreamgenError
from streamgen.server.error_responses import unforeseen
from streamgen.server.kind import Kind
from streamgen.server.ws_protocol import Create, RequestFrames
from streamgen.server.ws_replay import ReplayBuffer
from streamgen.types import FinishReason, Usage

log = structlog.get_logger(__name__)


class ChunkStream(Protocol):
    """A request that the engine has taken, seen as the chunk objects that its client gets."""

    async def get(self) -> list[bytes]:
        """JSON of the chunks since the last call; empty once all is said. Raises EngineError if the request failed.

        Cancelling it loses no chunk: the next call returns them.
        """

    def abort(self) -> None:
        """Stop generating. The remaining chunks, the last ones with finish_reason "abort", can still be read."""

    async def close(self) -> None:
        """Leave nothing running, whatever happened."""

    @property
    def usage(self) -> Usage: ...

    @property
    def finish_reason(self) -> str:
        """Once `get` has returned an empty list: "abort" if any choice was aborted, else why the first ended."""


class Backend(Protocol):
    """What turns a body into a ChunkStream: the same validation and rendering as over HTTP."""

    async def start(self, kind: Kind, body: bytes, *, tenant: str, correlation_id: str) -> ChunkStream:
        """Raises StreamgenError if the request is refused."""


class Sink(Protocol):
    """A socket, as a relay sees it."""

    async def send(self, frame: str) -> None:
        """Raises OSError if the socket is gone. Waits while its reader lags."""

    async def ended(self, request_id: str, error: StreamgenError | None) -> None:
        """The request's last frame has been sent. `error` is what it ended with, if it failed."""


class Relay:
    """Owned by the event loop. `on_end` is called once, when the last frame is known.

    `replay` is None for a request that ends with its socket.
    """

    def __init__(
        self,
        create: Create,
        backend: Backend,
        *,
        tenant: str,
        correlation_id: str,
        replay: ReplayBuffer | None,
        on_end: Callable[[Relay], None],
    ) -> None:
        self.id = create.id
        self.kind = create.kind
        self.tenant = tenant
        self.correlation_id = correlation_id
        self.replay = replay
        self.sink: Sink | None = None
        self.ended = False
        self.on_growth: Callable[[int], None] | None = None
        """Told of the bytes by which `replay` has grown, while the request is kept for whoever comes back."""
        self._on_end = on_end
        self._frames = RequestFrames(create.kind, create.id)
        self._stream: ChunkStream | None = None
        self._seq = 0
        self._cancelled = False
        self._error: StreamgenError | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._start = asyncio.ensure_future(
            backend.start(create.kind, create.body, tenant=tenant, correlation_id=correlation_id)
        )
        self._start.add_done_callback(self._started)

    @property
    def usage(self) -> Usage:
        return self._stream.usage if self._stream is not None else Usage(prompt_tokens=0, completion_tokens=0)

    @property
    def outcome(self) -> str:
        """Once it has ended: its finish reason, or the code of the error it ended with."""
        if self._error is not None:
            return self._error.code or self._error.type
        return self._stream.finish_reason if self._stream is not None else FinishReason.ABORT

    def attach(self, sink: Sink, after: int = 0) -> None:
        """Let `sink` read from the frame behind `after` on. Another reader, if there is one, gets nothing more.

        The caller has checked that the replay buffer still holds those frames.
        """
        backlog = self.replay.after(after) if self.replay is not None else []
        assert backlog is not None, "the frames were dropped"
        self._run(sink, backlog)

    def detach(self) -> None:
        """The reader's socket is gone. A request without replay is aborted."""
        if self.replay is None:
            self.abandon()
        elif self.ended:
            self._stop()
        else:
            self._run(None, [])

    def forget(self) -> None:
        """It can be resumed no more: from now on it ends with its socket, if that is not gone already."""
        self.on_growth = None
        if self.sink is None:
            self.abandon()
        self.replay = None

    def cancel(self) -> None:
        """The client has had enough: the frames end with `done`, its finish_reason "abort"."""
        self._cancelled = True
        if self._stream is not None:
            self._stream.abort()

    def abandon(self) -> None:
        """Nobody will read this: stop the engine's work, and send nothing more."""
        self.cancel()
        self._start.cancel()
        self._stop()
        if self._stream is not None and self._closing is None:
            self._closing = asyncio.ensure_future(self._stream.close())
        self._end()

    async def fail(self, error: StreamgenError) -> None:
        """End it with an error of the server's, such as a shutdown."""
        self.cancel()
        sink = self.sink
        self._stop()
        self.sink = sink
        if not self.ended:
            await self._fail(error)

    def _run(self, sink: Sink | None, backlog: list[str]) -> None:
        self._stop()
        self.sink = sink
        self._task = asyncio.ensure_future(self._relay(backlog))

    def _stop(self) -> None:
        self.sink = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _started(self, start: asyncio.Future[ChunkStream]) -> None:
        # The request may have been given up while its body was still being prepared.
        if start.cancelled() or start.exception() is not None:
            return
        self._stream = start.result()
        if self._cancelled:
            self._stream.abort()

    async def _relay(self, backlog: list[str]) -> None:
        for frame in backlog:
            await self._send(frame)
        if self.ended:
            await self._tell_sink()
            return
        try:
            await self._finish(await self._chunks())
        except StreamgenError as error:
            await self._fail(error)
        except Exception:
            log.exception("websocket_request_failed", id=self.id)
            await self._fail(unforeseen())

    async def _chunks(self) -> str:
        """Relay all chunks, and return the frame that ends them."""
        # Shielded: a change of readers must not undo the preparation of the request.
        stream = self._stream = await asyncio.shield(self._start)
        while chunks := await stream.get():
            frames = []
            for chunk in chunks:
                self._seq += 1
                frames.append(self._frames.chunk(self._seq, chunk))
            # All of them are kept before the first is sent: sending may be cancelled.
            for frame in frames:
                self._keep(frame)
            for frame in frames:
                await self._send(frame)
        return self._frames.done(self._seq + 1, stream.finish_reason, stream.usage)

    async def _fail(self, error: StreamgenError) -> None:
        # Other choices of the request may still run.
        if self._stream is not None:
            await self._stream.close()
        await self._finish(self._frames.error(error), error)

    async def _finish(self, frame: str, error: StreamgenError | None = None) -> None:
        self._keep(frame)
        self._error = error
        # Ended from here on: if the sending is cancelled, the frame waits in the replay buffer.
        self._end()
        await self._send(frame)
        await self._tell_sink()

    def _keep(self, frame: str) -> None:
        replay = self.replay
        if replay is None:
            return
        oldest, before = replay.first, replay.num_bytes
        replay.append(frame)
        if self.on_growth is not None:
            self.on_growth(replay.num_bytes - before)
        if self.sink is None and replay.first > oldest and not self._cancelled:
            # What nobody has read was dropped, so that nobody can go on with it.
            log.info("websocket_replay_overflow", id=self.id)
            self.cancel()

    async def _send(self, frame: str) -> None:
        if self.sink is None:
            return
        try:
            await self.sink.send(frame)
        except OSError:
            # The socket's own reader learns of it too, and detaches; until then nothing goes to it.
            self.sink = None
            if self.replay is None:
                self.cancel()

    async def _tell_sink(self) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            with suppress(OSError):
                await sink.ended(self.id, self._error)

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self._on_end(self)
