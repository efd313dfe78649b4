"""A real Chromium, driven over the DevTools protocol: a WebSocket and JSON, nothing to install but the browser."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)
PATIENCE = 45.0
"""Seconds that anything may take before the test fails."""


class BrowserMissingError(Exception):
    pass


class ScriptError(Exception):
    """JavaScript that was evaluated threw."""


def executable() -> str:
    for name in (os.environ.get("CHROMIUM"), *NAMES):
        if name and (path := shutil.which(name)):
            return path
    raise BrowserMissingError(
        "These tests drive the chat page in a real browser, and found none: install Chromium "
        "(apt-get install chromium), or name it in the environment variable CHROMIUM."
    )


class Browser:
    """One browser process. Every page has a context, and so a storage, of its own unless it shares another's."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._connection:
            frame = json.loads(message)
            if "id" in frame:
                answer = self._answers.pop(frame["id"])
                if not answer.done():
                    answer.set_result(frame)
            elif page := self._pages.get(frame.get("sessionId", "")):
                page.happened(frame["method"], frame["params"])

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        frame = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        await self._connection.send(json.dumps(frame))
        async with asyncio.timeout(PATIENCE):
            answer = await self._answers[number]
        if "error" in answer:
            raise ScriptError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str, *, beside: Page | None = None, script: str = "", **viewport: Any) -> Page:
        """A new page; `beside` another one in the same context, as a second tab. `script` runs before its own."""
        context = beside.context if beside else (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Page(self, session, context, target)
        self._pages[session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        if script:
            await page.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        await page.view(**viewport)
        await page.goto(url)
        return page

    async def close(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader


class Page:
    """One tab. What goes wrong in it is collected in `complaints`."""

    def __init__(self, browser: Browser, session: str, context: str, target: str) -> None:
        self.context = context
        self._target = target
        self.complaints: list[str] = []
        """Exceptions, errors on the console, violations of the content security policy."""
        self.requested: list[str] = []
        """Addresses that the page asked for."""
        self._browser = browser
        self._session = session

    def happened(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str([argument.get("value") for argument in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **params)

    async def beside(self, url: str, **options: Any) -> Page:
        """A second tab."""
        return await self._browser.open(url, beside=self, **options)

    async def close(self) -> None:
        await self._browser.call("Target.closeTarget", targetId=self._target)

    async def view(self, width: int = 1280, height: int = 800, *, dark: bool = False, mobile: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if mobile else 1,
            mobile=mobile,
        )
        await self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def goto(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def reload(self) -> None:
        await self.run("window.old = true")
        await self.call("Page.reload")
        await self.until("document.readyState === 'complete' && !window.old")

    async def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise ScriptError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Wait for an expression to become true in the page; its value."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    # A navigation in between destroys the promise; then it is asked again.
                    with contextlib.suppress(ScriptError):
                        return await self.run(
                            "new Promise((resolve) => { const look = () => { let value; "
                            f"try {{ value = ({condition}); }} catch {{ value = null; }} "
                            "if (value) resolve(value); else setTimeout(look, 10); }; look(); })"
                        )
        except TimeoutError:
            text = await self.run("document.body.innerText")
            raise AssertionError(f"never true: {condition}\ncomplaints: {self.complaints}\npage:\n{text}") from None

    async def type(self, text: str) -> None:
        """Into whatever has the focus."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, *, modifiers: int = 0) -> None:
        """A key by its DOM name. Modifiers: 1 Alt, 2 Ctrl, 4 Meta, 8 Shift."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "Backspace": 8}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        common = {"key": key, "code": key, "modifiers": modifiers, "windowsVirtualKeyCode": codes.get(key, 0)}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        await self.call("Input.dispatchKeyEvent", **down, **common)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def click(self, selector: str) -> None:
        """With the mouse, in the middle of the element, which must be there to be hit."""
        element = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"{element}?.getClientRects().length")
        where = await self.run(
            f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'nearest'}}); "
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    async def offline(self, is_offline: bool) -> None:
        await self.call(
            "Network.emulateNetworkConditions",
            offline=is_offline,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )

    async def screenshot(self, path: Path) -> None:
        answer = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser with an empty profile. Raises BrowserMissingError if there is none on this machine."""
    path = executable()
    # Chromium may still write its last files while the folder is removed.
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            path,
            *FLAGS,
            f"--user-data-dir={profile}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stderr is not None
        drain: asyncio.Task[bytes] | None = None
        try:
            url = ""
            async with asyncio.timeout(PATIENCE):
                while not url:
                    line = (await process.stderr.readline()).decode(errors="replace")
                    if not line:
                        raise BrowserMissingError(f"{path} ended before it could be driven.")
                    if "DevTools listening on " in line:
                        url = line.split("DevTools listening on ")[1].strip()
            drain = asyncio.create_task(process.stderr.read())
            async with connect(url, proxy=None, compression=None, max_size=None, ping_interval=None) as connection:
                browser = Browser(connection)
                try:
                    yield browser
                finally:
                    await browser.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if drain is not None:
                await drain
