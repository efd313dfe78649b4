"""GET /health, /ready and /metrics: what orchestrators and dashboards ask."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from streamgen.errors import NotFoundError
from streamgen.server.chunks import dump_json
from streamgen.server.state import ServerState

_NOT_STORED = {"Cache-Control": "no-store"}


class HealthEndpoints:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def health(self, _request: Request) -> Response:
        """200 while the process is alive and its engine, if it is loaded yet, steps; else 503: restart it."""
        self._state.check_alive()
        return Response(dump_json({"status": "ok"}), headers=_NOT_STORED, media_type="application/json")

    async def ready(self, _request: Request) -> Response:
        """200 while requests are taken; 503 while the model loads, and at shutdown: send them elsewhere."""
        self._state.backend()
        return Response(dump_json({"status": "ready"}), headers=_NOT_STORED, media_type="application/json")

    async def metrics(self, _request: Request) -> Response:
        if self._state.metrics is None:
            raise NotFoundError("This server keeps no metrics.")
        body, content_type = self._state.metrics.render()
        return Response(body, headers={**_NOT_STORED, "Content-Type": content_type})
