"""Where a command's text comes from: a running server, or a model in this process. Both take the API's own bodies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

import httpx
import msgspec

from streamgen.errors import SetupError, StreamgenError
from streamgen.server.kind import Kind
from streamgen.server.launch import Loaded
from streamgen.server.prepare import prepare

CONNECT_SECONDS = 5.0
_PATHS = {Kind.CHAT: "/v1/chat/completions", Kind.COMPLETION: "/v1/completions"}


class Source(Protocol):
    def stream(self, kind: Kind, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        """The pieces of an answer as they come. Closing the iterator aborts the request. Raises StreamgenError."""

    async def close(self) -> None: ...


class ServerSource:
    """A server's HTTP API. `url` may end with /v1 or not."""

    def __init__(self, url: str, api_key: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        if not self._url.startswith(("http://", "https://")):
            raise SetupError(f"--url must begin with http:// or https://; it was {url}.")
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            # How long a model thinks is its own affair.
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            transport=transport,
        )

    async def stream(self, kind: Kind, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        try:
            async with self._client.stream("POST", self._url + _PATHS[kind], json={**body, "stream": True}) as response:
                if response.status_code != httpx.codes.OK:
                    raise StreamgenError(_refusal(response.status_code, await response.aread()))
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _text(kind, msgspec.json.decode(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise StreamgenError(f"{self._url} cannot be reached, or broke off: {why}") from error

    async def close(self) -> None:
        await self._client.aclose()


class LocalSource:
    """An engine in this process."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    async def stream(self, kind: Kind, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        prepared = prepare(kind, msgspec.json.encode({**body, "stream": True}), self._loaded.serving)
        (prompt,) = prepared.prompts
        stream = self._loaded.engine.add(prompt, prepared.params_for(prompt))
        try:
            while deltas := await stream.get():
                for delta in deltas:
                    yield delta.text
        finally:
            stream.abort()

    async def close(self) -> None:
        await self._loaded.engine.shutdown()


def _text(kind: Kind, chunk: Any) -> str:
    if "error" in chunk:
        raise StreamgenError(str(chunk["error"].get("message", "The server failed the request.")))
    if not chunk.get("choices"):
        return ""
    choice = chunk["choices"][0]
    text = choice.get("delta", {}).get("content") if kind is Kind.CHAT else choice.get("text")
    return text or ""


def _refusal(status: int, content: bytes) -> str:
    if status == httpx.codes.UNAUTHORIZED:
        return "The server wants an API key, and not this one or none: give it with --api-key."
    try:
        return str(msgspec.json.decode(content)["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return f"The server answered with status {status}."


def body_of(
    model_input: Mapping[str, Any], *, temperature: float | None, top_p: float | None, max_tokens: int | None
) -> dict[str, Any]:
    """A request body; what is None is left to the model's defaults."""
    options = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    return {**model_input, **{name: value for name, value in options.items() if value is not None}}
