"""What the server's tests stand on: a byte tokenizer, a template, an app over a FakeEngine, a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import tokenizers
import uvicorn
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from streamgen.config import ServerConfig
from streamgen.models.config import GenerationDefaults
from streamgen.server.app import App, create_app
from streamgen.server.http_protocol import HttpProtocol
from streamgen.server.serving import ServingModel
from streamgen.server.ws_connection import WebSocketConnection
from streamgen.text.chat import ChatTemplate
from streamgen.text.tokenizer import Tokenizer
from tests.server.fake_engine import FakeEngine

CHATML = (
    "{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('The system message must come first.') }}{% endif %}"
    "{% if message.role == 'user' and loop.previtem is defined and loop.previtem.role == 'user' %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant.') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token a byte, and two special ones behind them; no BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    return Tokenizer(
        backend,
        bos_token_id=None,
        eos_token_ids=(257,),
        chat_template=CHATML,
        special_tokens={"eos_token": "<|im_end|>"},
        add_bos=False,
        add_eos=False,
    )


TOKENIZER = byte_tokenizer()


def serving_model(max_model_len: int = 64, **changes: Any) -> ServingModel:
    fields: dict[str, Any] = {
        "names": ("tiny", "org/tiny-alias"),
        "max_model_len": max_model_len,
        "created": 1_700_000_000,
        "tokenizer": TOKENIZER,
        "chat": ChatTemplate(CHATML, {"eos_token": "<|im_end|>"}),
        "generation": GenerationDefaults(),
    }
    return ServingModel(**{**fields, **changes})


def app_on(engine: FakeEngine, config: ServerConfig | None = None, **changes: Any) -> App:
    return create_app(engine, serving_model(engine.max_model_len, **changes), config or ServerConfig())


def in_process(app: App, **options: Any) -> httpx.AsyncClient:
    """A client that calls the app without a socket; answers come whole."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", **options)


@asynccontextmanager
async def listening(app: App, http: type[asyncio.Protocol] | str = HttpProtocol) -> AsyncIterator[str]:
    """The app behind uvicorn on a real socket; its base URL."""
    server_socket = socket.socket()
    server_socket.bind(("127.0.0.1", 0))
    # Connections queue from here on, so that nobody has to wait for the server to be up.
    server_socket.listen(64)
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=http, log_config=None, access_log=False, timeout_graceful_shutdown=1, ws=WebSocketConnection
        )
    )
    serving = asyncio.create_task(server._serve([server_socket]))
    try:
        yield f"http://127.0.0.1:{server_socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        server_socket.close()


def events(text: str) -> list[Any]:
    """The events of a stream that ended as it should, JSON decoded, without the [DONE]."""
    assert text.endswith("data: [DONE]\n\n"), text[-200:]
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def joined(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a stream."""
    text = ""
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return text


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, whose shape is checked."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}


def completion_body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Hi", **fields}
