"""The safetensors files of a Hugging Face folder: which they are, and what they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from streamgen.errors import ModelLoadError
from streamgen.loader.json_file import read_json_object

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = ("F64", "F32", "F16", "BF16")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


class SafetensorsWeights:
    """The tensors of a folder's safetensors files, mapped and not copied.

    Raises ModelLoadError when made, not when read, if a file or tensor is missing, surplus or unusable: every header
    is read and checked against its file then.
    """

    def __init__(self, folder: Path) -> None:
        index = folder / INDEX
        named = _weight_map(index) if index.is_file() else None
        names = sorted(set(named.values())) if named else _files_without_index(folder)
        self._files: dict[Path, list[str]] = {}
        seen: dict[str, str] = {}
        for name in names:
            keys = _keys(folder / name)
            for key in keys:
                if key in seen:
                    raise ModelLoadError(f"{folder}: the tensor {key} is both in {seen[key]} and in {name}.")
                seen[key] = name
            self._files[folder / name] = keys
        if named is not None and named != seen:
            wrong = min(key for key in named.keys() | seen.keys() if named.get(key) != seen.get(key))
            raise ModelLoadError(
                f"{index} has the tensor {wrong} in {named.get(wrong, 'no file')}, "
                f"but it is in {seen.get(wrong, 'no file')}."
            )

    def __len__(self) -> int:
        return sum(len(keys) for keys in self._files.values())

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path, keys in self._files.items():
            try:
                with safe_open(path, framework="pt") as file:
                    for key in keys:
                        yield key, file.get_tensor(key)
            except (SafetensorError, OSError) as error:
                raise _unreadable(path, error) from error

    def close(self) -> None:
        """Nothing stays open between two reads."""


def refuse_pickles(path: Path) -> None:
    """Raises ModelLoadError if `path` is a pickle file, or a folder whose only weights are pickles."""
    found = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    pickles = [file.name for file in found if file.suffix in PICKLES]
    if pickles:
        folder = path if path.is_dir() else path.parent
        raise ModelLoadError(
            f"{path} has its weights as pickle ({pickles[0]}), which is never read here: unpickling runs whatever "
            "code is in the file. Take the model's safetensors files or, if you trust the file, convert it where its "
            'code can do no harm: python -c "from transformers import AutoModelForCausalLM as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\", and copy the tokenizer's files."
        )


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor → file of a model.safetensors.index.json, each file a plain relative path within the folder."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index} has no weight_map.")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _stays_inside(name) or not name.endswith(".safetensors"):
            raise ModelLoadError(
                f"{index} has the tensor {tensor} in {name!r}, which is no safetensors file beside it."
            )
    return weight_map


def _stays_inside(name: str) -> bool:
    # Not resolved on disk: the hub's cache is made of links to files elsewhere. The name itself must not lead out.
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    rooted = posix.is_absolute() or bool(windows.drive) or bool(windows.root)
    return not rooted and ".." not in windows.parts and "\0" not in name


def _files_without_index(folder: Path) -> list[str]:
    if (folder / SINGLE).is_file():
        return [SINGLE]
    names = sorted(file.name for file in folder.glob("*.safetensors") if file.name != "adapter_model.safetensors")
    names = [name for name in names if not name.startswith("consolidated")] or names
    for name in names:
        if (part := _PART.fullmatch(name)) is not None:
            stem, _, total = part.groups()
            for number in range(1, min(int(total), 10_000) + 1):
                if (expected := f"{stem}-{number:05}-of-{total}.safetensors") not in names:
                    raise ModelLoadError(f"{folder} lacks {expected}; was it downloaded in full?")
    if not names:
        refuse_pickles(folder)
        if (folder / "adapter_model.safetensors").exists():
            raise ModelLoadError(f"{folder} holds an adapter, not a model.")
        raise ModelLoadError(f"{folder} has no weights: no *.safetensors and no *.gguf file.")
    return names


def _keys(path: Path) -> list[str]:
    """The names in a file's header, in the order of their bytes."""
    if not path.is_file():
        raise ModelLoadError(f"{path} is missing; was the model downloaded in full?")
    try:
        with safe_open(path, framework="numpy") as file:
            keys = list(file.offset_keys())
            for key in keys:
                dtype = file.get_slice(key).get_dtype()
                if dtype not in DTYPES:
                    raise ModelLoadError(
                        f"{path}: tensor {key} is of type {dtype}, which is not supported. "
                        f"Supported types: {', '.join(DTYPES)}."
                    )
            return keys
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ModelLoadError:
    return ModelLoadError(f"{path} is not a safetensors file that can be used: {error}. It may have been cut off.")
