"""Where compiled code is kept between runs."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from numba.core import config
from numba.core.caching import NullCache
from numba.core.registry import cpu_target

_PREFIX = "compiled-"
_KEPT_SECONDS = 30 * 86400
logger = logging.getLogger(__name__)
_kept: list[Any] = []


def keep(function: Any, make: Any) -> Any:
    """Compile a function by `make(function, cache=True)`, with its code in our folder."""
    with _numba_folder():
        _kept.append(make(function, cache=True))
    return _kept[-1]


def keep_no_longer() -> None:
    """Drop what is on disk, and keep nothing more of this process: for code that is damaged or a disk that is full."""
    shutil.rmtree(_folder(), ignore_errors=True)
    for function in _kept:
        function._cache = NullCache()  # noqa: SLF001 - numba has no public way to turn it off again


@contextmanager
def _numba_folder() -> Iterator[None]:
    """What else numba compiles is not touched."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _folder() -> Path:
    """A folder for this very source and processor: of the source, numba looks at one file only.

    What lies there is run, so that nobody else may write to it. Where there is no such place, code lasts for the
    process.
    """
    try:
        root = Path(config.CACHE_DIR) if config.CACHE_DIR else _user_cache() / "streamgen"
        folder = root / f"{_PREFIX}{_version()}"
        root.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        reason = _refusal(folder)
        if reason is None:
            _drop_others(folder)
            return folder
    except (OSError, RuntimeError) as error:
        reason = str(error)
    logger.warning("Kernels are compiled at every start, since their code cannot be kept: %s", reason)
    temporary = Path(tempfile.mkdtemp(prefix="streamgen-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base) if os.path.isabs(base) else Path.home() / ".cache"  # noqa: PTH117


def _version() -> str:
    content = hashlib.sha256(repr(cpu_target.target_context.codegen().magic_tuple()).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        content.update(file.read_bytes())
    return content.hexdigest()[:16]


def _refusal(folder: Path) -> str | None:
    """Why code must not be kept in a folder, or None. Raises OSError where nothing can be written."""
    state = folder.lstat()
    if hasattr(os, "getuid") and (state.st_uid != os.getuid() or state.st_mode & 0o022):
        return f"others may write to {folder}"
    with tempfile.TemporaryFile(dir=folder):
        return None


def _drop_others(folder: Path) -> None:
    """Code of earlier versions, unless another installation may still use it."""
    for other in folder.parent.glob(f"{_PREFIX}*"):
        if other != folder and time.time() - other.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
