"""Where compiled code is kept between runs."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from numba.core import config


@contextmanager
def kept_code() -> Iterator[None]:
    """Functions that are made inside keep their code in our folder; what else numba compiles is not touched."""
    before = config.CACHE_DIR
    config.CACHE_DIR = before or _folder()
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _folder() -> str:
    """A folder for this very source, since numba looks for changes in one file of it only.

    It is under the user's own cache, for what lies there is run. Where nothing can be written, code lasts for this
    process.
    """
    source = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        source.update(file.read_bytes())
    root = os.environ.get("XDG_CACHE_HOME", "")
    try:
        cache_root = Path(root) if os.path.isabs(root) else Path.home() / ".cache"  # noqa: PTH117
        folder = cache_root / "streamgen" / f"compiled-{source.hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except (OSError, RuntimeError):
        return tempfile.mkdtemp(prefix="streamgen-")
