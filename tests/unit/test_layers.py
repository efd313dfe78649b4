"""What the layers are for: starting quickly, and pure folders that stay pure. import-linter checks the arrows."""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import streamgen

HEAVY = ("torch", "triton", "transformers")
PURE = ("streamgen.scheduling", "streamgen.text", "streamgen.grammar")


def imported_by(*modules: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after importing `modules`."""
    code = f"import json, sys; import {', '.join(modules)}; print(json.dumps([m for m in sys.modules if '.' not in m]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    return set(json.loads(done.stdout))


def modules_of(package: str) -> list[str]:
    """The package and all modules below it, by name, without importing them here."""
    paths = [str(Path(root, *package.split(".")[1:])) for root in streamgen.__path__]
    return [package, *(module.name for module in pkgutil.walk_packages(paths, f"{package}."))]


@pytest.mark.parametrize("package", PURE)
def test_pure_folders_load_no_tensors_and_no_event_loop(package: str) -> None:
    loaded = imported_by(*modules_of(package))
    assert loaded & {*HEAVY, "starlette", "uvicorn", "asyncio"} == set()


def test_the_server_loads_no_tensors() -> None:
    """The port is bound, and /health answers, before torch is imported."""
    assert imported_by("streamgen.cli", *modules_of("streamgen.server")) & set(HEAVY) == set()


def test_the_vocabulary_is_light() -> None:
    loaded = imported_by("streamgen.types", "streamgen.errors", "streamgen.config")
    assert loaded & {*HEAVY, "starlette", "uvicorn", "asyncio", "numpy", "transformers"} == set()
