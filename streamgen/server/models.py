"""GET /v1/models: what is served."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from streamgen.errors import ModelNotFoundError
from streamgen.server.chunks import dump_json
from streamgen.server.serving import ServingModel
from streamgen.server.state import ServerState


class ModelEndpoints:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def list(self, _request: Request) -> Response:
        serving = self._state.model()
        models = {"object": "list", "data": [_model_json(serving, name) for name in serving.names]}
        return Response(dump_json(models), media_type="application/json")

    async def retrieve(self, request: Request) -> Response:
        serving = self._state.model()
        name = request.path_params["model"]
        if name not in serving.names:
            raise ModelNotFoundError(name)
        return Response(dump_json(_model_json(serving, name)), media_type="application/json")


def _model_json(serving: ServingModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "streamgen",
        "root": serving.names[0],
        "parent": None,
        "max_model_len": serving.max_model_len,
    }
