"""Checkpoints: Hugging Face folders, safetensors and GGUF files, the default model, dummies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamgen.config import ModelConfig

if TYPE_CHECKING:
    from streamgen.loader.checkpoint import Checkpoint, Progress


def open_checkpoint(config: ModelConfig, *, progress: Progress | None = None) -> Checkpoint:
    """Find the model, fetch it if need be, and read its config and tokenizer: `streamgen.loader.checkpoint`."""
    # Imported when called, so that fetching the default model ahead of time needs none of the readers.
    from streamgen.loader import checkpoint

    return checkpoint.open_checkpoint(config, progress=progress)
