"""The chat page in a browser, over an engine that says what a test tells it to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from streamgen.config import ServerConfig
from streamgen.server.app import App
from streamgen.types import FinishReason
from tests.e2e.cdp import Browser, Page
from tests.server.fake_engine import FakeEngine, FakeStream
from tests.server.world import TOKENIZER, app_on, listening

# Keeps the page's sockets where a test can break them, which looks to the page like a network that fails.
RECORD_SOCKETS = """
window.sockets = [];
window.WebSocket = class extends WebSocket {
  constructor(...args) { super(...args); window.sockets.push(this); }
};
"""


class Chat:
    """One tab with the page, and the engine behind it."""

    def __init__(self, page: Page, engine: FakeEngine, app: App, base: str) -> None:
        self.page = page
        self.engine = engine
        self.app = app
        self.base = base

    async def connected(self) -> None:
        await self.page.until("document.getElementById('connection').dataset.state === 'open'")

    async def ask(self, text: str) -> FakeStream:
        """Type a message and send it; the request that arrives at the engine."""
        await self.page.until("!document.getElementById('send').hasAttribute('data-stop')")
        await self.page.run("document.getElementById('prompt').focus()")
        await self.page.type(text)
        await self.page.press("Enter")
        return await self.engine.next_stream()

    async def answered(self, text: str, *answer: str) -> FakeStream:
        """Ask, and have it answered to the end."""
        stream = await self.ask(text)
        stream.say(*(answer or ("Fine.",)))
        stream.end(FinishReason.STOP)
        await self.written()
        return stream

    async def written(self) -> None:
        await self.page.until("!document.querySelector('[data-writing]')")

    async def until_shown(self, text: str) -> None:
        await self.page.until(f"document.getElementById('messages').innerText.includes({json.dumps(text)})")

    async def messages(self) -> list[list[str]]:
        """[role, text] of each."""
        shown: list[list[str]] = await self.page.run(
            "[...document.querySelectorAll('.message')]"
            ".map((m) => [m.dataset.role, m.querySelector('.body').innerText.trim()])"
        )
        return shown

    async def conversations(self) -> list[str]:
        titles: list[str] = await self.page.run(
            "[...document.querySelectorAll('#conversations .open')].map((b) => b.innerText)"
        )
        return titles

    async def break_connection(self) -> None:
        await self.page.run("sockets.at(-1).close()")

    async def lose_connection(self) -> None:
        """Break it, and let none be made until `find_connection`."""
        await self.page.run("window.RealSocket = WebSocket; window.WebSocket = class { constructor() { throw 1; } }")
        await self.break_connection()
        await self.page.until("document.getElementById('model').innerText.startsWith('Connection lost')")

    async def find_connection(self) -> None:
        await self.page.run("window.WebSocket = RealSocket; dispatchEvent(new Event('online'))")

    async def beside(self) -> Chat:
        """A second tab."""
        page = await self.page.beside(self.base + "/")
        chat = Chat(page, self.engine, self.app, self.base)
        await chat.connected()
        return chat


def turns(stream: FakeStream) -> list[tuple[str, str]]:
    """The messages behind a request's prompt, by its template."""
    prompt = TOKENIZER.decode(stream.prompt_token_ids, skip_special_tokens=False)
    parts = [part.removesuffix("<|im_end|>\n") for part in prompt.split("<|im_start|>")[1:]]
    assert parts.pop() == "assistant\n"
    return [(role, text) for role, _, text in (part.partition("\n") for part in parts)]


@contextlib.asynccontextmanager
async def chatting(
    browser: Browser, config: ServerConfig | None = None, *, script: str = "", connect: bool = True, **viewport: Any
) -> AsyncIterator[Chat]:
    """The page, just opened, with nothing stored. What it complains about fails the test."""
    engine = FakeEngine(max_model_len=4096)
    engine.manual = True
    app = app_on(engine, config)
    async with listening(app) as base:
        page = await browser.open(base + "/", script=RECORD_SOCKETS + script, **viewport)
        chat = Chat(page, engine, app, base)
        if connect:
            await chat.connected()
        yield chat
        assert chat.page.complaints == []
        await page.close()
