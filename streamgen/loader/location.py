"""What `--model` names: a folder, a file, a model of the hub, or nothing, which is the default model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from streamgen.errors import ModelLoadError
from streamgen.loader import default_model, hub
from streamgen.loader.safetensors_files import refuse_pickles

_HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Location:
    """A model on this machine: a folder, a GGUF file, or (for a dummy) a config.json."""

    name: str
    path: Path


def locate_model(model: str, *, weights: bool) -> Location:
    """Find a model, and fetch it if it is the default one or one of the hub. Without `weights`, all but those.

    `owner/name/file.gguf` is one GGUF file of a hub repository. Raises ModelLoadError if there is no such model, or
    if it cannot be fetched.
    """
    if not model:
        return Location(default_model.NAME, default_model.fetch())
    path = Path(model).expanduser()
    if path.exists():
        return _local(path)
    if model == default_model.NAME:
        return Location(model, default_model.fetch())
    if model.startswith((".", "/", "~")) or "\\" in model:
        raise ModelLoadError(f"There is no file or folder {model}.")
    owner_and_name, _, file = _split_gguf(model)
    if _HUB_ID.fullmatch(owner_and_name) is None:
        raise ModelLoadError(f"There is no file or folder {model}, and it is no Hugging Face id.")
    if file:
        return Location(Path(file).stem, hub.fetch_file(owner_and_name, file))
    return Location(model, hub.fetch_snapshot(owner_and_name, weights=weights))


def locate_tokenizer(tokenizer: str) -> Path:
    """A folder, a tokenizer.json, a GGUF file or a hub id. Raises ModelLoadError."""
    path = Path(tokenizer).expanduser()
    if path.is_file() and path.suffix not in (".json", ".gguf"):
        raise ModelLoadError(f"--tokenizer {tokenizer} is neither a folder nor a tokenizer.json nor a GGUF file.")
    return path if path.exists() else locate_model(tokenizer, weights=False).path


def gguf_in(folder: Path) -> Path | None:
    """The one GGUF file of a folder that has no other weights; raises ModelLoadError if there are several."""
    files = sorted(folder.glob("*.gguf"))
    if not files or any(folder.glob("*.safetensors")):
        return None
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelLoadError(f"{folder} has several GGUF files; name one of them: {names}.")
    return files[0]


def _local(path: Path) -> Location:
    resolved = path.resolve()
    if path.is_dir():
        return Location(resolved.name, path)
    if path.suffix == ".gguf":
        return Location(path.stem, path)
    if path.name == "config.json":
        return Location(resolved.parent.name, path)
    refuse_pickles(path)
    if path.suffix == ".safetensors":
        raise ModelLoadError(f"{path} holds weights alone; name its folder, which has the config and tokenizer too.")
    raise ModelLoadError(f"{path} is neither a folder nor a GGUF file.")


def _split_gguf(model: str) -> tuple[str, str, str]:
    parts = model.split("/")
    if len(parts) > 2 and model.endswith(".gguf") and ".." not in parts:
        return "/".join(parts[:2]), "/", "/".join(parts[2:])
    return model, "", ""
