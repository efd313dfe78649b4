"""What computes steps: the model on its device, the persistent batch, the KV tensors, the sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamgen.config import EngineConfig
    from streamgen.loader.checkpoint import Checkpoint
    from streamgen.runtime.model_runner import ModelRunner


def build_runner(
    config: EngineConfig, checkpoint: Checkpoint, *, progress: Callable[[str, int, int], None] | None = None
) -> ModelRunner:
    """See `streamgen.runtime.build`, which is imported only now: the fake runner beside it needs no torch."""
    from streamgen.runtime.threads import prepare_threads

    prepare_threads()
    from streamgen.runtime import build

    return build.build_runner(config, checkpoint, progress=progress)
