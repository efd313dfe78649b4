"""Whatever goes wrong becomes a response in OpenAI's shape."""

from __future__ import annotations

import asyncio

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from streamgen.errors import (
    DrainingError,
    EngineError,
    MethodNotAllowedError,
    NotFoundError,
    RequestError,
    RequestTimeoutError,
    RequestTooLargeError,
    StreamgenError,
)
from streamgen.server.body import ClientGoneError
from streamgen.server.chunks import dump_json
from streamgen.server.exchange import of, printable

log = structlog.get_logger(__name__)


def error_response(error: StreamgenError) -> Response:
    headers = error.headers()
    if isinstance(error, (RequestTooLargeError, RequestTimeoutError, DrainingError)):
        # The rest of the body will not be read, or no more requests.
        headers["Connection"] = "close"
    return Response(dump_json(error.body()), error.status, headers, "application/json")


class InternalError(EngineError):
    """What a client is told of an exception that nobody foresaw. The details are for the log."""

    code = "internal_error"


def unforeseen() -> InternalError:
    return InternalError("The server failed to serve this request.")


class ErrorResponses:
    """Middleware, inside of CORS so that pages may read the errors, and outside of keys and routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = of(scope)
        try:
            await self._app(scope, receive, send)
        except ClientGoneError:
            return
        except StreamgenError as error:
            if exchange.status:
                raise
            response = error_response(error)
        except asyncio.CancelledError:
            # The server's time to shut down is over. A client that had not sent all of its request can still be told.
            if exchange.status:
                raise
            response = error_response(DrainingError("The server is shutting down."))
        except HTTPException as error:
            response = error_response(_named(error, scope))
            response.headers.update(error.headers or {})
        except Exception:
            log.exception("request_failed", request_id=exchange.request_id)
            if exchange.status:
                # Only a broken connection can still tell the client that its answer is not whole.
                raise
            response = error_response(unforeseen())
        else:
            return
        await response(scope, receive, send)


def _named(error: HTTPException, scope: Scope) -> StreamgenError:
    """Starlette's exception as one of ours."""
    what = f"{printable(scope['method'], 16)} {printable(scope['path'], 128)}"
    if error.status_code == 404:
        return NotFoundError(f"There is nothing at {what}.")
    if error.status_code == 405:
        return MethodNotAllowedError(f"{what} is not served; other methods of this path are.")
    return RequestError(error.detail) if error.status_code < 500 else EngineError(error.detail)
