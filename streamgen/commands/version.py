"""`streamgen version`."""

from __future__ import annotations

import platform
from importlib import metadata

DISTRIBUTION = "streamgen-server"
SHOWN = ("torch", "triton", "transformers", "starlette", "uvicorn", "websockets")


def version() -> int:
    """Print versions as pip knows them, without importing any of it."""
    print(f"streamgen {metadata.version(DISTRIBUTION)}")
    print(f"python {platform.python_version()}")
    for name in SHOWN:
        try:
            print(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"{name} is not installed")
    return 0
