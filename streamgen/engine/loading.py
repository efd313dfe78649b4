"""From a configuration to a running engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from streamgen.config import EngineConfig
from streamgen.engine.admission import Limits
from streamgen.engine.async_engine import AsyncEngine
from streamgen.engine.device_errors import described, memory_ran_out
from streamgen.engine.gpu_thread import GpuThread
from streamgen.errors import ModelLoadError

if TYPE_CHECKING:
    from streamgen.loader.checkpoint import Checkpoint
    from streamgen.runtime.model_runner import ModelRunner

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called, from the thread that loads, with (what is done, how much of it is done, how much there is)."""


class LoadedEngine(NamedTuple):
    engine: AsyncEngine
    checkpoint: Checkpoint
    """Closed: its weights are in the engine. Config, tokenizer and generation defaults remain."""


async def load_engine(
    config: EngineConfig, *, progress: Progress | None = None, stream_buffer_bytes: int = 2**20
) -> LoadedEngine:
    """Open the checkpoint, build the runner on the thread that will own the device, start the engine.

    Raises SetupError. Cancelled, it leaves the thread to itself, which ends when the model is loaded: that cannot be
    interrupted.
    """
    thread = GpuThread(asyncio.get_running_loop(), depth=config.steps_in_flight)
    try:
        checkpoint, runner = await thread.call(lambda: _build(config, progress or _silent))
    except BaseException as error:
        thread.close(timeout=0)
        if memory_ran_out(error):
            raise ModelLoadError(
                f"The model and its KV cache do not fit the memory that is free: {described(error)}. "
                "--max-model-len, --gpu-memory-utilization and --kv-cache-memory-bytes say how much the cache takes."
            ) from error
        raise
    engine = AsyncEngine(
        runner,
        Limits(
            max_model_len=runner.max_model_len,
            vocab_size=checkpoint.decoder.vocab_size,
            num_blocks=runner.num_blocks,
            block_size=config.cache.block_size,
            max_num_batched_tokens=_step_tokens(config, on_cpu=runner.on_cpu),
            end_token_ids=checkpoint.decoder.eos_token_ids,
        ),
        config.scheduler,
        tokenizer=checkpoint.tokenizer,
        thread=thread,
        steps_in_flight=config.steps_in_flight,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        stream_buffer_bytes=stream_buffer_bytes,
        seed=config.model.seed,
    )
    await engine.start()
    return LoadedEngine(engine, checkpoint)


def _build(config: EngineConfig, progress: Progress) -> tuple[Checkpoint, ModelRunner]:
    # Here and not above: torch comes in with these, and a server binds its port before.
    from streamgen.loader import open_checkpoint

    checkpoint = open_checkpoint(config.model, progress=progress)
    try:
        progress("Starting torch", 0, 1)
        from streamgen.runtime import build_runner

        progress("Starting torch", 1, 1)
        return checkpoint, build_runner(config, checkpoint, progress=progress)
    finally:
        checkpoint.close()


def _step_tokens(config: EngineConfig, *, on_cpu: bool) -> int:
    """A step's token budget. On a CPU a step of 2048 tokens would hold all other streams up for seconds."""
    asked = config.scheduler.max_num_batched_tokens
    return asked if asked is not None else max(256 if on_cpu else 2048, config.scheduler.max_num_seqs)


def _silent(_what: str, _done: int, _total: int) -> None:
    pass
