"""The chat page and its assets: found beside a checkout's `streamgen/`, or inside an installed package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing inline and nothing from elsewhere: what a model writes can neither run nor call home.

The last two forbid the page itself to turn a string into HTML or script; it never does.
"""

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Kept, but asked for each time: an update shows at once.
    "Cache-Control": "no-cache",
}


def static_folder() -> Path | None:
    """The folder with index.html, or None if the page was not installed."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "static", package.parent / "static"):
        if (folder / "index.html").is_file():
            return folder
    return None


class Assets(StaticFiles):
    """Files below /static, with the headers that the page's safety rests on."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, *args: Any, **kwargs: Any
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, *args, **kwargs)
        response.headers.update(_HEADERS)
        return response


def page(folder: Path) -> Response:
    return FileResponse(folder / "index.html", headers=_HEADERS, media_type="text/html; charset=utf-8")
