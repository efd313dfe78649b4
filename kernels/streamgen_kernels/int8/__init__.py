"""A decoder's whole step on CPUs, compiled: 8-bit weights and activations, exact integer sums, one call a step.

`decoder` is the front. `rows`, `product` and `attention` are the work, `team` shares it among threads, and what
Python has no words for is written in LLVM's language: `vectors`, `product_tile` and `attention_tile`, with the words
of `native`. numba compiles it all once a machine and keeps the result on disk.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from numba.core import config


def _cache_folder() -> str:
    """Where compiled code is kept: a folder for this very source, since numba looks at one file of it only."""
    source = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        source.update(file.read_bytes())
    return str(Path.home() / ".cache" / "streamgen" / f"compiled-{source.hexdigest()[:16]}")


if not config.CACHE_DIR:
    config.CACHE_DIR = _cache_folder()
