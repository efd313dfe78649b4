"""An engine on a fake runner, a real loop and a real GPU thread, and what a reader of its streams does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from streamgen.config import SchedulerConfig
from streamgen.engine.admission import Limits
from streamgen.engine.async_engine import AsyncEngine
from streamgen.runtime.fake import FakeModelRunner, Script
from streamgen.types import Delta, SamplingParams, StepPlan
from tests.unit.text.tokenizers_for_tests import byte_level_backend, wrap

EOS = 5
TOKENIZER = wrap(byte_level_backend())
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@asynccontextmanager
async def running(
    script: Script,
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 128,
    before_step: Callable[[StepPlan], None] | None = None,
    text: bool = False,
    clock: Callable[[], float] = time.monotonic,
    options: dict[str, Any] | None = None,
    **config: int,
) -> AsyncIterator[AsyncEngine]:
    scheduler = SchedulerConfig(**{"max_num_seqs": 8, **config})
    limits = Limits(
        max_model_len=max_model_len,
        vocab_size=100_000,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=64,
        end_token_ids=(EOS,),
    )
    runner = FakeModelRunner(script, num_blocks=num_blocks, block_size=block_size, before_step=before_step)
    engine = AsyncEngine(
        runner,
        limits,
        scheduler,
        tokenizer=TOKENIZER if text else None,
        stream_buffer_bytes=4096,
        clock=clock,
        **(options or {}),
    )
    await engine.start()
    try:
        yield engine
        engine.scheduler.check()
        assert engine.kv.pool.num_in_use == 0, "requests hold blocks after their end"
    finally:
        await engine.shutdown()


async def collect(stream: object) -> list[Delta]:
    deltas = []
    async with asyncio.timeout(20):
        while news := await stream.get():
            deltas.extend(news)
    return deltas


def joined(deltas: list[Delta], index: int = 0) -> list[int]:
    return [token for delta in deltas if delta.index == index for token in delta.token_ids]
