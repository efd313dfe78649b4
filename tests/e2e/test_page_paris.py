"""The default model, on this machine, answers in the browser."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.cdp import Browser
from tests.e2e.server_process import ServerProcess, serving

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving() as server:
        yield server


@pytest.mark.parametrize("viewport", [{"dark": False}, {"dark": True, "width": 375, "height": 812, "mobile": True}])
async def test_the_page_answers_paris(server: ServerProcess, browser: Browser, viewport: dict[str, int]) -> None:
    page = await browser.open(server.url + "/", **viewport)
    settings = json.dumps(json.dumps({"temperature": 0, "max_tokens": 32}))
    await page.run(f"localStorage.setItem('streamgen.settings', {settings})")
    await page.reload()
    await page.until("document.getElementById('model').innerText.includes('SmolLM2-135M-Instruct')")
    await page.click("#starters button")
    await page.until("document.querySelector('.message[data-role=assistant] .body')?.innerText.includes('Paris')")
    await page.until("!document.querySelector('[data-writing]')")
    stats = await page.run("document.querySelector('[data-role=assistant] .stats').innerText")
    assert "tokens/s" in stats
    assert "first token after" in stats
    assert page.complaints == []
    await page.close()
