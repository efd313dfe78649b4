"""Models of the Hugging Face hub: from the local cache if they are there in full, else fetched.

Nothing but safetensors, tokenizer and JSON files is ever fetched: no pickles, no code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from streamgen.errors import ModelLoadError

TIMEOUT = 5.0
"""Seconds within which the hub must answer at all."""

CONFIG_FILES = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
WEIGHT_FILES = ("*.safetensors",)
UNWANTED = ("*/*.json", "*/*.safetensors", "consolidated*", "training_args*", "optimizer*")


def fetch_snapshot(repo_id: str, *, weights: bool) -> Path:
    """The folder of a model, with its config and tokenizer and, if asked for, its weights.

    Raises ModelLoadError, within seconds, if the hub cannot be reached or has no such model. HF_HUB_OFFLINE is
    respected.
    """
    import huggingface_hub

    patterns = [*CONFIG_FILES, *(WEIGHT_FILES if weights else ())]
    cached = _cached_snapshot(repo_id, patterns)
    if cached is not None and _is_complete(cached, weights=weights):
        return cached
    _check_reachable(repo_id)
    try:
        folder = huggingface_hub.snapshot_download(
            repo_id, allow_patterns=patterns, ignore_patterns=list(UNWANTED), etag_timeout=TIMEOUT
        )
    except Exception as error:
        raise _unfetched(repo_id, error) from error
    return Path(folder)


def fetch_file(repo_id: str, name: str) -> Path:
    """One file of a repository. Raises ModelLoadError as `fetch_snapshot` does."""
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(repo_id, name, local_files_only=True))
    except Exception:  # noqa: BLE001, S110  not in the cache, in whatever way; the hub is asked next
        pass
    _check_reachable(repo_id)
    try:
        return Path(huggingface_hub.hf_hub_download(repo_id, name, etag_timeout=TIMEOUT))
    except Exception as error:
        raise _unfetched(f"{repo_id}/{name}", error) from error


def _cached_snapshot(repo_id: str, patterns: list[str]) -> Path | None:
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo_id, allow_patterns=patterns, ignore_patterns=list(UNWANTED), local_files_only=True
            )
        )
    except Exception:  # noqa: BLE001  not in the cache, in whatever way; the hub is asked next
        return None


def _is_complete(folder: Path, *, weights: bool) -> bool:
    """Whether an interrupted download left nothing out that is needed."""
    if not (folder / "config.json").is_file():
        return False
    if not weights:
        return True
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        names: Any = json.loads(index.read_bytes())["weight_map"].values()
        return all((folder / name).is_file() for name in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _check_reachable(repo_id: str) -> None:
    """Ask one small question first: the download itself retries for a long time before it says that nobody answers."""
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES"):
        raise ModelLoadError(
            f"The model {repo_id!r} is not in the local cache, and HF_HUB_OFFLINE forbids fetching it. "
            "If a local folder was meant, there is none of that name."
        )
    try:
        huggingface_hub.HfApi().model_info(repo_id, timeout=TIMEOUT)
    except Exception as error:
        raise _unfetched(repo_id, error) from error


def _unfetched(repo_id: str, error: Exception) -> ModelLoadError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        why = "its owner grants access on request; ask for it on its page, and set HF_TOKEN"
    elif isinstance(error, errors.RepositoryNotFoundError):
        why = "the hub has no such model, or it is private (set HF_TOKEN)"
    elif isinstance(error, errors.EntryNotFoundError):
        why = "the repository has no such file"
    elif isinstance(error, errors.HFValidationError):
        why = "it is no valid Hugging Face id"
    elif isinstance(error, errors.HfHubHTTPError):
        why = f"the hub answered: {' '.join(str(error).split())[:300]}"
    else:
        reason = " ".join(str(error).split())[:300]
        why = f"the Hugging Face hub cannot be reached ({type(error).__name__}: {reason})"
    return ModelLoadError(
        f"The model {repo_id!r} is neither a local folder nor in the local cache, and it cannot be fetched: {why}."
    )
