"""Every error that streamgen raises on purpose.

    StreamgenError
    ├── RequestError                     the client is at fault, or must wait; never reaches the engine
    │   ├── InvalidRequestError          400  a value that cannot be served
    │   │   └── ContextLengthError       400  prompt + max_tokens exceed the model's length
    │   ├── AuthenticationError          401
    │   ├── PermissionDeniedError        403
    │   ├── NotFoundError                404  no such path
    │   │   └── ModelNotFoundError       404  no such model
    │   ├── MethodNotAllowedError        405
    │   ├── ReplayGoneError              409  a stream cannot be resumed: its frames are no longer kept
    │   ├── ResumedElsewhereError        409  another reader goes on with the stream
    │   ├── RequestTimeoutError          408  the body did not arrive in time
    │   ├── RequestTooLargeError         413
    │   │   └── HeadTooLargeError        431  too many bytes around the body
    │   └── QueueFullError               429  with Retry-After
    ├── EngineError                      the server is at fault
    │   ├── StepError                    500  an exception in a step; the engine goes on
    │   ├── CorruptedRowError            500  NaN logits; only this request failed
    │   ├── SlowReaderError              500  the reader lagged past its bound and was cut off
    │   ├── EngineDeadError              503  the engine cannot go on
    │   ├── NotReadyError                503  the model is still being loaded
    │   └── DrainingError                503  the server is shutting down
    └── SetupError                       raised before the server is ready; the command exits with its text
        ├── ConfigError                  flags or files that contradict each other or mean nothing here
        ├── ModelLoadError               weights, config or tokenizer that cannot be used
        └── PortInUseError

`status`, `type` and `code` of a class are what OpenAI's clients see; `ws_code` is the code a WebSocket is closed
with when the error concerns the whole connection.
"""

from __future__ import annotations

from typing import Any, ClassVar


class StreamgenError(Exception):
    """Root of the tree. `message` is meant for the person who reads it and never carries secrets."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    ws_code: ClassVar[int] = 1011

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def body(self) -> dict[str, Any]:
        """The error as OpenAI's JSON: `{"error": {"message", "type", "param", "code"}}`."""
        param = getattr(self, "param", None)
        return {"error": {"message": self.message, "type": self.type, "param": param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Response headers that belong to the error, such as `Retry-After`."""
        return {}


class RequestError(StreamgenError):
    """The request cannot be served as it is. `param` names the field at fault, if one is."""

    status = 400
    type = "invalid_request_error"
    ws_code = 1008

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(RequestError):
    """A field has a wrong type or value, or asks for something that is not supported."""


class ContextLengthError(InvalidRequestError):
    """The prompt, or the prompt and the tokens asked for, do not fit the model."""

    code = "context_length_exceeded"

    def __init__(
        self, limit: int, prompt_tokens: int, max_tokens: int | None, param: str, limit_is: str = "model's"
    ) -> None:
        wanted = (
            f"{prompt_tokens} in the prompt"
            if max_tokens is None
            else f"{prompt_tokens} in the prompt and {max_tokens} to generate, {prompt_tokens + max_tokens} in all"
        )
        super().__init__(
            f"This {limit_is} maximum context length is {limit} tokens, but the request needs more: {wanted}.", param
        )


class AuthenticationError(RequestError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class PermissionDeniedError(RequestError):
    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFoundError(RequestError):
    status = 404
    code = "not_found"


class ModelNotFoundError(NotFoundError):
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model {model!r} does not exist or is not served here.", "model")


class MethodNotAllowedError(RequestError):
    status = 405
    code = "method_not_allowed"


class ReplayGoneError(RequestError):
    """The part of a stream that a reader missed has been dropped."""

    status = 409
    code = "replay_gone"


class ResumedElsewhereError(RequestError):
    status = 409
    code = "resumed_elsewhere"


class RequestTimeoutError(RequestError):
    status = 408
    code = "request_timeout"


class RequestTooLargeError(RequestError):
    status = 413
    code = "request_too_large"
    ws_code = 1009


class HeadTooLargeError(RequestTooLargeError):
    status = 431


class QueueFullError(RequestError):
    """Too many requests or tokens wait already. `retry_after` is in seconds."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after)}


class EngineError(StreamgenError):
    """The request was right, and the server failed it."""

    code = "engine_error"


class StepError(EngineError):
    code = "step_failed"


class CorruptedRowError(EngineError):
    code = "corrupted_logits"


class SlowReaderError(EngineError):
    code = "slow_reader"
    ws_code = 1008


class EngineDeadError(EngineError):
    status = 503
    code = "engine_dead"


class NotReadyError(EngineError):
    status = 503
    type = "service_unavailable"
    code = "not_ready"

    def headers(self) -> dict[str, str]:
        return {"Retry-After": "2"}


class DrainingError(EngineError):
    status = 503
    type = "service_unavailable"
    code = "draining"
    ws_code = 1001

    def headers(self) -> dict[str, str]:
        return {"Retry-After": "5"}


class SetupError(StreamgenError):
    """The server cannot start. The command line prints the message, without a traceback, and exits with 1."""


class ConfigError(SetupError):
    pass


class ModelLoadError(SetupError):
    pass


class PortInUseError(SetupError):
    pass
