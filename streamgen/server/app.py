"""The ASGI app: routes, and the middleware around them.

    Exchanges          id, path, count, log line
      CORS             only if other sites' pages are let in
        ErrorResponses whatever is raised, as OpenAI's JSON
          Gate         host, origin and key
            Router     the routes

All of it is pure ASGI: Starlette's BaseHTTPMiddleware would hide from a stream that its client has left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from streamgen.config import ServerConfig
from streamgen.engine.client import EngineClient
from streamgen.errors import NotFoundError
from streamgen.server.error_responses import ErrorResponses
from streamgen.server.exchange import Exchanges, printable
from streamgen.server.gate import Gate
from streamgen.server.generate import GenerateEndpoint
from streamgen.server.health import HealthEndpoints
from streamgen.server.kind import Kind
from streamgen.server.models import ModelEndpoints
from streamgen.server.resume import ResumeEndpoint
from streamgen.server.serving import ServingModel
from streamgen.server.state import ServerMetrics, ServerState
from streamgen.server.static_files import Assets, page, static_folder
from streamgen.server.stats import StatsEndpoint
from streamgen.server.tokenization import TokenizationEndpoints
from streamgen.server.websocket import WebSocketEndpoint, upgrade_required
from streamgen.server.ws_connection import HELD
from streamgen.server.ws_refusal import refuse_socket


class App:
    """What `create_app` returns. `server` is the state that whoever starts the server may change; routes find it
    as `request.app.state.server`.
    """

    def __init__(self, server: ServerState, routes: Sequence[BaseRoute], sockets: WebSocketEndpoint) -> None:
        self.server = server
        self.sockets = sockets
        self.state = State({"server": server})
        self.routes = list(routes)
        self._stack = self._around(
            Router(self.routes, redirect_slashes=False, default=_nothing_here, lifespan=self._lifespan)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._stack(scope, receive, send)

    async def drain(self, timeout: float) -> None:
        """Refuse new work and end the WebSockets, within `timeout` seconds. Responses end with their connections, so
        that waiting for those is the HTTP server's part.
        """
        self.server.draining = True
        self.server.bodies.drain()
        self.server.streams.clear()
        await self.sockets.drain(timeout)

    def _around(self, app: ASGIApp) -> ASGIApp:
        server = self.server
        app = ErrorResponses(Gate(app, server))
        if server.config.allowed_origins:
            app = CORSMiddleware(
                app,
                allow_origins=[origin.rstrip("/") for origin in server.config.allowed_origins],
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "Retry-After"],
            )
        return Exchanges(
            app,
            owner=self,
            root_path=server.config.root_path,
            metrics=server.metrics,
            access_log=not server.config.disable_access_log,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Any) -> AsyncIterator[dict[str, Any]]:
        yield {HELD: self.server.held}
        await self.server.streams.close()
        self.server.workers.close()


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "websocket":
        raise HTTPException(404)
    await receive()
    await refuse_socket(
        NotFoundError(f"There is no WebSocket at {printable(scope['path'], 128)}."), scope, receive, send
    )


def create_app(
    engine: EngineClient | None,
    serving: ServingModel | None,
    config: ServerConfig,
    *,
    metrics: ServerMetrics | None = None,
    clock: Callable[[], float] = time.time,
    extra_routes: Sequence[BaseRoute] = (),
) -> App:
    """An app of its own state: two of them in one process know nothing of each other.

    `engine` and `serving` may come later, by `app.server.attach(engine, serving)`; until then /health is 200,
    /ready and all that needs the model 503.
    """
    state = ServerState(engine, serving, config, metrics=metrics, clock=clock)
    models, health, tokens = ModelEndpoints(state), HealthEndpoints(state), TokenizationEndpoints(state)
    sockets = WebSocketEndpoint(state)
    routes: list[BaseRoute] = [
        Route("/v1/chat/completions", GenerateEndpoint(state, Kind.CHAT), methods=["POST"], name="chat"),
        Route("/v1/completions", GenerateEndpoint(state, Kind.COMPLETION), methods=["POST"], name="completion"),
        Route("/v1/streams/{stream}", ResumeEndpoint(state), methods=["GET"], name="resume"),
        Route("/v1/models", models.list),
        Route("/v1/models/{model:path}", models.retrieve),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/health", health.health),
        Route("/ready", health.ready),
        Route("/metrics", health.metrics),
        Route("/stats", StatsEndpoint(state).stats),
        WebSocketRoute("/v1/ws", sockets, name="websocket"),
        Route("/v1/ws", upgrade_required),
        *extra_routes,
        *_page_routes(),
    ]
    return App(state, routes, sockets)


def _page_routes() -> list[BaseRoute]:
    folder = static_folder()

    async def index(_request: Request) -> Response:
        if folder is None:
            raise NotFoundError("The chat page is not installed.")
        return page(folder)

    routes: list[BaseRoute] = [Route("/", index)]
    if folder is not None:
        routes.append(Mount("/static", Assets(directory=folder)))
    return routes
