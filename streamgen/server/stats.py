"""GET /stats: a glance at the engine as JSON, for the panel of the chat page and for whoever likes no Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from streamgen.server.chunks import dump_json
from streamgen.server.state import ServerState


class StatsEndpoint:
    """Counts since start, and `seconds` on a clock that never jumps: the difference of two answers gives rates."""

    def __init__(self, state: ServerState, *, clock: Callable[[], float] = monotonic) -> None:
        self._state = state
        self._clock = clock

    async def stats(self, _request: Request) -> Response:
        """Raises NotReadyError (503) while the model loads, and EngineDeadError (503) when the engine is dead."""
        model = self._state.model()
        self._state.check_alive()
        assert self._state.engine is not None, "engine and model are attached together"
        answer = {
            "model": model.names[0],
            "max_model_len": model.max_model_len,
            "seconds": self._clock(),
            **msgspec.structs.asdict(self._state.engine.stats()),
        }
        return Response(dump_json(answer), headers={"Cache-Control": "no-store"}, media_type="application/json")
