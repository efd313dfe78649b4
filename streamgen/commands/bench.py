"""`streamgen bench`: how fast the engine is on this machine, with nothing between it and the measurement."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from streamgen.commands.options import Bench
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.server.launch import Loaded
from streamgen.types import SamplingParams

Clock = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    """One request, in seconds since it was added."""

    first_token: float
    end: float
    gaps: tuple[float, ...]
    """Between tokens; tokens that came together have 0 between them."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is printed, as JSON. Times in milliseconds, rates in tokens a second."""

    mode: str
    model: str
    requests: int
    input_len: int
    output_len: int
    seconds: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    itl_ms_p50: float
    itl_ms_p99: float
    e2e_ms_p50: float


def bench(command: Bench) -> int:
    """Load the model, measure, print one line of JSON; progress goes to standard error. Raises ConfigError."""
    check(command)
    asyncio.run(_bench(command))
    return 0


async def _bench(command: Bench) -> None:
    from streamgen.observability.logging import configure_logging
    from streamgen.server.loading import load
    from streamgen.server.progress import LoadProgress

    configure_logging("warning")
    with LoadProgress() as progress:
        loaded = await load(with_room(command), progress=progress)
    try:
        report = await measure(command, loaded, lambda text: print(text, file=sys.stderr, flush=True))
    finally:
        await loaded.engine.shutdown()
    print(msgspec.json.encode(asdict(report)).decode())


def check(command: Bench) -> None:
    """What can be known before a model is loaded. Raises ConfigError."""
    if min(command.input_len, command.output_len) < 1:
        raise ConfigError("--input-len and --output-len must be at least 1.")
    if min(command.batch_size, command.num_iters, command.num_prompts) < 1:
        raise ConfigError("--batch-size, --num-iters and --num-prompts must be at least 1.")


def with_room(command: Bench) -> EngineConfig:
    """The engine's configuration, with a queue that takes all requests of a round at once."""
    scheduler, size = command.engine.scheduler, max(command.num_prompts, command.batch_size)
    return replace(
        command.engine,
        scheduler=replace(
            scheduler,
            max_num_queued_reqs=max(scheduler.max_num_queued_reqs, size),
            max_num_queued_tokens=max(scheduler.max_num_queued_tokens, size * command.input_len),
        ),
    )


async def measure(
    command: Bench, loaded: Loaded, say: Callable[[str], Any], *, clock: Clock = time.perf_counter
) -> Report:
    """Run the benchmark. The first batch, or a single request, warms everything up and is not counted.

    Prompts are random token ids, and no two are alike, so that the prefix cache has nothing to give.
    """
    room = loaded.serving.max_model_len
    if command.input_len + command.output_len > room:
        raise ConfigError(
            f"--input-len ({command.input_len}) and --output-len ({command.output_len}) must fit the model's {room} "
            "tokens together."
        )
    latency = command.mode == "latency"
    rng = random.Random(command.engine.model.seed)
    size = command.batch_size if latency else command.num_prompts
    rounds = command.num_iters if latency else 1
    say("Warming up.")
    await _round(command, loaded, rng, command.batch_size if latency else 1, clock)
    timings: list[Timing] = []
    seconds = 0.0
    for number in range(rounds):
        say(f"Round {number + 1} of {rounds}: {size} requests.")
        started = clock()
        timings += await _round(command, loaded, rng, size, clock)
        seconds += clock() - started
    return _report(command, loaded.serving.names[0], timings, seconds)


async def _round(command: Bench, loaded: Loaded, rng: random.Random, size: int, clock: Clock) -> list[Timing]:
    params = SamplingParams(temperature=0.0, max_tokens=command.output_len, ignore_eos=True)
    vocabulary = loaded.serving.num_ids
    prompts = [[rng.randrange(vocabulary) for _ in range(command.input_len)] for _ in range(size)]
    return await asyncio.gather(*(_request(loaded, prompt, params, clock) for prompt in prompts))


async def _request(loaded: Loaded, prompt: Sequence[int], params: SamplingParams, clock: Clock) -> Timing:
    added = clock()
    stream = loaded.engine.add(prompt, params)
    times: list[float] = []
    while deltas := await stream.get():
        now = clock()
        times += [now] * sum(len(delta.token_ids) for delta in deltas)
    gaps = tuple(later - earlier for earlier, later in itertools.pairwise(times))
    return Timing(times[0] - added, times[-1] - added, gaps)


def _report(command: Bench, model: str, timings: Sequence[Timing], seconds: float) -> Report:
    outputs = len(timings) * command.output_len
    gaps = [gap for timing in timings for gap in timing.gaps] or [0.0]
    first = [timing.first_token for timing in timings]
    return Report(
        mode=command.mode,
        model=model,
        requests=len(timings),
        input_len=command.input_len,
        output_len=command.output_len,
        seconds=round(seconds, 3),
        output_tokens_per_second=round(outputs / seconds, 1),
        total_tokens_per_second=round((outputs + len(timings) * command.input_len) / seconds, 1),
        ttft_ms_p50=_milliseconds(first, 50),
        ttft_ms_p99=_milliseconds(first, 99),
        itl_ms_p50=_milliseconds(gaps, 50),
        itl_ms_p99=_milliseconds(gaps, 99),
        e2e_ms_p50=_milliseconds([timing.end for timing in timings], 50),
    )


def _milliseconds(seconds: Sequence[float], percentile: int) -> float:
    if len(seconds) == 1:
        return round(seconds[0] * 1000, 3)
    return round(statistics.quantiles(seconds, n=100, method="inclusive")[percentile - 1] * 1000, 3)
