"""The tokenizer of a model, from a Hugging Face folder, a tokenizer.json or a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from streamgen.errors import ModelLoadError
from streamgen.loader.chat_templates import find_chat_templates
from streamgen.loader.gguf_file import GGUFFile
from streamgen.loader.gguf_tokenizer import load_gguf_tokenizer
from streamgen.loader.json_file import read_json_object
from streamgen.text.tokenizer import Tokenizer

TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
OLDER_FILES = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tekken.json")
"""What tokenizers were kept in before there was tokenizer.json; transformers turns them into one."""


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a folder, or in a file. Its `eos_token_ids` are its own; a model may know more.

    Raises ModelLoadError if there is none or it cannot be used.
    """
    if path.is_file() and path.suffix == ".gguf":
        file = GGUFFile(path)
        try:
            return load_gguf_tokenizer(file)
        finally:
            file.close()
    folder = path if path.is_dir() else path.parent
    config = _optional(folder / TOKENIZER_CONFIG)
    backend = _from_file(path) if path.is_file() else _backend(folder)
    _add_missing_tokens(backend, config, folder / TOKENIZER_CONFIG)
    if isinstance(config.get("add_bos_token"), bool) or isinstance(config.get("add_eos_token"), bool):
        # Said in so many words, this overrides what tokenizer.json's post-processor adds, as it does in transformers.
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    special = _special_tokens(config, _optional(folder / SPECIAL_TOKENS_MAP))
    bos, eos = (backend.token_to_id(special[name]) if name in special else None for name in ("bos_token", "eos_token"))
    return Tokenizer(
        backend,
        bos_token_id=bos,
        eos_token_ids=() if eos is None else (eos,),
        chat_template=find_chat_templates(folder, config),
        special_tokens=special,
        add_bos=config.get("add_bos_token") is True,
        add_eos=config.get("add_eos_token") is True,
    )


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (TOKENIZER_JSON, *OLDER_FILES))


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _backend(folder: Path) -> tokenizers.Tokenizer:
    if (folder / TOKENIZER_JSON).is_file():
        return _from_file(folder / TOKENIZER_JSON)
    if not has_tokenizer(folder):
        raise ModelLoadError(f"{folder} has no tokenizer ({TOKENIZER_JSON}); name one with --tokenizer.")
    return _through_transformers(folder)


def _from_file(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise ModelLoadError(f"{path} is not a tokenizer that can be used: {error}.") from error


def _through_transformers(folder: Path) -> tokenizers.Tokenizer:
    """Only for older folders: the import takes seconds. Code that a model brings along is never run."""
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever its many converters raise
        raise ModelLoadError(f"The tokenizer in {folder} cannot be converted: {error}") from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelLoadError(
            f"The tokenizer in {folder} cannot be converted to a {TOKENIZER_JSON}; name another with --tokenizer."
        )
    return backend


def _add_missing_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any], source: Path) -> None:
    """Tokens that only tokenizer_config.json knows are added in the order of their ids, as transformers does."""
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise ModelLoadError(f"{source}: added_tokens_decoder is no object.")
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    try:
        entries = sorted((int(token_id), entry) for token_id, entry in decoder.items())
        for _, entry in entries:
            if entry["content"] not in present:
                options = {name: bool(entry[name]) for name in _TOKEN_OPTIONS if name in entry}
                add = backend.add_special_tokens if entry.get("special") else backend.add_tokens
                add([AddedToken(entry["content"], **options)])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelLoadError(f"{source}: added_tokens_decoder has an entry that is no token.") from error


_TOKEN_OPTIONS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _special_tokens(config: dict[str, Any], fallback: dict[str, Any]) -> dict[str, str]:
    """Texts by name (`bos_token`, …) for chat templates. A token may be given as text or as an object."""
    special = {}
    for source in (fallback, config):
        for name, value in source.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and not name.startswith("add_") and isinstance(text, str):
                special[name] = text
    return special
