"""From a configuration to a running engine and what the server says about its model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from streamgen.config import EngineConfig
from streamgen.engine.loading import load_engine
from streamgen.errors import ConfigError
from streamgen.server.launch import Loaded
from streamgen.server.progress import LoadProgress
from streamgen.server.serving import ServingModel

if TYPE_CHECKING:
    from streamgen.loader.checkpoint import Checkpoint
    from streamgen.observability.metrics import Metrics


async def load(
    config: EngineConfig,
    *,
    progress: LoadProgress,
    metrics: Metrics | None = None,
    stream_buffer_bytes: int = 2**20,
) -> Loaded:
    """Open the checkpoint, build the runner on the thread that will own the device, start the engine.

    Raises SetupError. Cancelled, it leaves the thread to itself: loading cannot be interrupted.
    """
    engine, checkpoint = await load_engine(config, progress=progress, stream_buffer_bytes=stream_buffer_bytes)
    serving = serving_model(config, checkpoint, engine.max_model_len)
    if config.model.chat_template is not None and serving.chat is not None and serving.chat.error is not None:
        await engine.shutdown()
        raise ConfigError(serving.chat.error)
    if metrics is not None:
        engine.metrics = metrics
        metrics.attach(
            engine.stats,
            model_name=serving.names[0],
            max_model_len=serving.max_model_len,
            cache={
                "block_size": config.cache.block_size,
                "num_gpu_blocks": engine.limits.num_blocks,
                "enable_prefix_caching": config.cache.enable_prefix_caching,
            },
        )
    return Loaded(engine, serving)


def serving_model(config: EngineConfig, checkpoint: Checkpoint, max_model_len: int) -> ServingModel:
    """What clients may know and use of a checkpoint."""
    from streamgen.text.chat import ChatTemplate

    tokenizer = checkpoint.tokenizer
    return ServingModel(
        names=config.model.served_model_name or (checkpoint.name,),
        max_model_len=max_model_len,
        created=int(time.time()),
        tokenizer=tokenizer,
        chat=None if tokenizer is None else ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens),
        generation=checkpoint.generation,
        vocab_size=checkpoint.decoder.vocab_size,
    )
