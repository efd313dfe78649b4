"""The commands that generate text, on an engine that says what it is told."""

import asyncio
import itertools

import httpx
import pytest

from streamgen.commands.bench import measure, with_room
from streamgen.commands.options import Bench
from streamgen.commands.source import LocalSource, ServerSource, body_of
from streamgen.config import EngineConfig, ServerConfig
from streamgen.errors import ConfigError, SetupError, StreamgenError
from streamgen.server.kind import Kind
from streamgen.server.launch import Loaded
from streamgen.types import Delta, FinishReason
from tests.server.fake_engine import FakeEngine
from tests.server.world import app_on, serving_model

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


class Stoppable(FakeEngine):
    on_death = None
    stopped = False

    async def shutdown(self) -> None:
        self.stopped = True


async def test_a_server_with_keys_is_answered_with_the_flag_that_gives_one() -> None:
    app = app_on(FakeEngine(), ServerConfig(api_key=("secret",)))
    source = ServerSource("http://localhost", "", transport=httpx.ASGITransport(app))
    with pytest.raises(StreamgenError, match="give it with --api-key"):
        await anext(source.stream(Kind.COMPLETION, {"prompt": "x"}))
    await source.close()


def server_source(engine: FakeEngine, url: str = "http://localhost/v1/") -> ServerSource:
    return ServerSource(url, "", transport=httpx.ASGITransport(app_on(engine)))


@pytest.mark.parametrize("kind,body", [(Kind.CHAT, CHAT), (Kind.COMPLETION, {"prompt": "Hi"})])
async def test_a_server_and_a_model_in_process_say_the_same(kind: Kind, body: dict) -> None:
    engine = Stoppable()
    for source in (server_source(engine), LocalSource(Loaded(engine, serving_model()))):
        assert "".join([text async for text in source.stream(kind, body)]) == "Paris is it."
        await source.close()
    assert engine.stopped


async def test_options_reach_the_engine_and_defaults_are_left_to_the_model() -> None:
    engine = Stoppable()
    body = body_of(CHAT, temperature=0.5, top_p=None, max_tokens=7)
    assert body == {**CHAT, "temperature": 0.5, "max_tokens": 7}
    _ = [text async for text in LocalSource(Loaded(engine, serving_model())).stream(Kind.CHAT, body)]
    assert (engine.streams[0].params.temperature, engine.streams[0].params.max_tokens) == (0.5, 7)


async def test_an_answer_that_is_left_is_aborted() -> None:
    engine = Stoppable()
    engine.manual = True
    pieces = LocalSource(Loaded(engine, serving_model())).stream(Kind.CHAT, CHAT)
    first = asyncio.ensure_future(anext(pieces))
    stream = await engine.next_stream()
    stream.say("Par")
    assert await first == "Par"
    await pieces.aclose()
    assert stream.aborted.is_set()


async def test_refusals_come_with_the_servers_words() -> None:
    body = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}
    with pytest.raises(StreamgenError, match="alternate"):
        _ = [text async for text in server_source(FakeEngine()).stream(Kind.CHAT, body)]


async def test_a_stream_that_fails_is_an_error_not_an_end() -> None:
    engine = FakeEngine()
    engine.manual = True
    answer = asyncio.ensure_future(anext(server_source(engine).stream(Kind.CHAT, CHAT)))
    (await engine.next_stream()).fail(StreamgenError("The step failed."))
    with pytest.raises(StreamgenError, match="The step failed"):
        await answer


async def test_a_server_that_is_not_there_is_one_clear_line() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused", request=request)

    source = ServerSource("http://127.0.0.1:1", "", transport=httpx.MockTransport(refuse))
    with pytest.raises(StreamgenError, match=r"127\.0\.0\.1:1 cannot be reached.*Connection refused"):
        _ = [text async for text in source.stream(Kind.CHAT, CHAT)]
    with pytest.raises(SetupError, match="must begin with http"):
        ServerSource("localhost:8000", "")


class CountingEngine(Stoppable):
    """Says as many tokens as it is asked for, one a Delta."""

    def add(self, prompt_token_ids, params, **asked):
        self.manual = True
        stream = super().add(prompt_token_ids, params, **asked)
        for number in range(params.max_tokens):
            last = number == params.max_tokens - 1
            stream.push(Delta(0, "x", (number,), FinishReason.LENGTH if last else None))
        return stream


@pytest.mark.parametrize("mode,requests,rounds", [("latency", 6, 3), ("throughput", 5, 1)])
async def test_bench_counts_what_it_measured(mode: str, requests: int, rounds: int) -> None:
    engine = CountingEngine()
    command = Bench(mode=mode, input_len=8, output_len=4, batch_size=2, num_iters=3, num_prompts=5)
    said: list[str] = []
    ticks = itertools.count()
    report = await measure(command, Loaded(engine, serving_model()), said.append, clock=lambda: float(next(ticks)))
    assert (report.requests, report.mode, report.model) == (requests, mode, "tiny")
    assert report.output_tokens_per_second == pytest.approx(requests * 4 / report.seconds, abs=0.06)
    assert report.total_tokens_per_second == pytest.approx(requests * 12 / report.seconds, abs=0.06)
    assert len(said) == 1 + rounds
    assert len(engine.streams) == requests + (2 if mode == "latency" else 1)
    assert len({stream.prompt_token_ids for stream in engine.streams}) == len(engine.streams)
    assert all(stream.params.ignore_eos and stream.params.greedy for stream in engine.streams)


def test_a_bench_is_not_refused_by_its_own_queue() -> None:
    config = with_room(Bench(mode="throughput", num_prompts=5000, input_len=1024))
    assert config.scheduler.max_num_queued_reqs == 5000
    assert config.scheduler.max_num_queued_tokens == 5000 * 1024
    assert with_room(Bench(mode="latency")) == EngineConfig()


async def test_bench_refuses_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="fit the model's 64 tokens"):
        await measure(Bench(mode="latency"), Loaded(CountingEngine(), serving_model()), print)
