"""The middleware through which every request comes before it reaches a route: host, origin and key, deny by default."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from streamgen.errors import RequestError
from streamgen.server.auth import check_host, check_key, check_origin, is_public
from streamgen.server.exchange import of
from streamgen.server.state import ServerState
from streamgen.server.ws_refusal import refuse_socket

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods by which a page of another site changes nothing here."""


class Gate:
    """Refuses with 401 and 403; a WebSocket is closed with 1008 before it is accepted, which HTTP shows as 403.

    Notes the tenant in the Exchange.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._check(scope, changes=scope["method"] not in _SAFE, method=scope["method"])
        elif scope["type"] == "websocket":
            try:
                self._check(scope, changes=True, method="WEBSOCKET")
            except RequestError as error:
                await receive()
                await refuse_socket(error, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, *, changes: bool, method: str) -> None:
        state = self._state
        # For public paths too: what a page must not read of this machine's server includes that there is one.
        check_host(scope["headers"], state.origins)
        if changes:
            check_origin(scope["headers"], state.origins)
        if is_public(method, scope["path"], public_metrics=state.config.public_metrics):
            return
        of(scope).tenant = check_key(scope["headers"], state.keys)
