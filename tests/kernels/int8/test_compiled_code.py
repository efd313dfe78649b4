"""Where compiled code is kept, tried in a process of its own with a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamgen_kernels.int8 import compiled_code

RUN = """
import logging, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
from streamgen_kernels.int8 import compiled_code
from streamgen_kernels.int8.native import compiled

@compiled(kept=True)
def double(x):
    return x * 2

print(double(21), compiled_code._folder())
"""


def start(tmp_path, code=RUN, **environment):
    """Lines that a program prints, run from a file: numba keeps no code of what it was given on the command line."""
    program = tmp_path / "program.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip().splitlines()


def test_code_is_kept_in_the_users_cache_for_this_source(tmp_path):
    cache = tmp_path / "cache"
    first = start(tmp_path, XDG_CACHE_HOME=str(cache))
    (folder,) = (cache / "streamgen").iterdir()
    assert first == [f"42 {folder}"]
    assert folder.name == f"compiled-{compiled_code._version()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbi"))
    assert start(tmp_path, XDG_CACHE_HOME=str(cache)) == first


def test_numbas_own_setting_is_the_root_and_not_the_folder(tmp_path):
    lines = start(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "numba"))
    assert lines == [f"42 {tmp_path / 'numba' / f'compiled-{compiled_code._version()}'}"]


@pytest.mark.parametrize("state", ["others may write", "a file"])
def test_a_place_that_cannot_be_trusted_is_not_used(tmp_path, state):
    place = tmp_path / "numba" / f"compiled-{compiled_code._version()}"
    place.parent.mkdir()
    if state == "a file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o777)
    warning, result = start(tmp_path, NUMBA_CACHE_DIR=str(place.parent))
    assert "compiled at every start" in warning
    assert result.startswith("42 ")
    folder = result.split()[1]
    assert str(place) != folder
    assert not Path(folder).exists(), "what is kept for a process goes with it"


@pytest.mark.slow
def test_damaged_code_is_dropped_and_made_anew(tmp_path):
    code = RUN.split("@compiled", maxsplit=1)[0]
    code += "from streamgen_kernels.int8.decoder import compile_kernels\ncompile_kernels()\n"
    assert start(tmp_path, code, NUMBA_CACHE_DIR=str(tmp_path / "numba")) == []
    index, *data = sorted([*tmp_path.rglob("*.nbi"), *tmp_path.rglob("*.nbc")], key=lambda file: file.suffix != ".nbi")
    index.write_bytes(b"")
    for file in data:
        file.write_bytes(b"\x80\x04garbage")
    (warning,) = start(tmp_path, code, NUMBA_CACHE_DIR=str(tmp_path / "numba"))
    assert "cannot be used and is dropped" in warning
