"""The event loop answers promptly while the model decodes beside it on the same cores."""

import asyncio
import statistics
from collections.abc import Callable

import pytest

from streamgen.config import EngineConfig
from streamgen.engine.async_engine import AsyncEngine
from streamgen.engine.loading import load_engine
from streamgen.types import SamplingParams

LIMIT = 0.020
INTERVAL = 0.002
STREAMS = 4
TOKENS = 64


class LagMeter:
    """Asks the loop to be woken at a time, again and again, and notes how late that happened."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lags: list[float] = []
        self._loop = loop
        self._due = loop.time() + INTERVAL
        self._timer = loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        self.lags.append(now - self._due)
        self._due = now + INTERVAL
        self._timer = self._loop.call_at(self._due, self._tick)

    def stop(self) -> list[float]:
        self._timer.cancel()
        return self.lags


async def read(engine: AsyncEngine, prompt: list[int]) -> int:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    return sum([len(delta.token_ids) async for delta in engine.generate(prompt, params)])


async def lags_while_decoding() -> list[float]:
    engine, _ = await load_engine(EngineConfig())
    try:
        # What happens once, such as torch's own set-up, is not what is measured.
        await read(engine, [1, 2, 3])
        meter = LagMeter(asyncio.get_running_loop())
        prompts = [[11 + stream, *range(100, 116)] for stream in range(STREAMS)]
        counts = await asyncio.gather(*(read(engine, prompt) for prompt in prompts))
        lags = meter.stop()
    finally:
        await engine.shutdown()
    assert counts == [TOKENS] * STREAMS
    return lags


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    return uvloop.new_event_loop


@pytest.mark.slow
def test_the_loop_lags_less_than_20_ms_while_the_model_decodes(record_property: Callable[[str, object], None]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        lags = runner.run(lags_while_decoding())
    assert len(lags) > 100
    percentiles = statistics.quantiles(lags, n=100)
    record_property("lag_ms_p50", percentiles[49] * 1000)
    record_property("lag_ms_p99", percentiles[98] * 1000)
    assert percentiles[98] < LIMIT
