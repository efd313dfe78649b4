"""The unmodified OpenAI SDK against the app on a real socket."""

import openai
import pytest

from streamgen.config import ServerConfig
from streamgen.errors import QueueFullError
from streamgen.types import FinishReason
from tests.server.fake_engine import FakeEngine
from tests.server.world import app_on, listening

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def engine():
    return FakeEngine(max_model_len=256)


@pytest.fixture
async def sdk(engine):
    async with (
        listening(app_on(engine, ServerConfig(api_key=("secret",)))) as base,
        openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="secret", max_retries=0) as client,
    ):
        yield client


async def test_a_chat_in_one_piece(sdk):
    answer = await sdk.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=20, seed=1)
    assert answer.choices[0].message.content == "Paris is it."
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 3
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_a_chat_as_a_stream(sdk, engine):
    engine.reason = FinishReason.LENGTH
    stream = await sdk.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, n=2, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in choices) == "Paris is it."
        assert choices[0].delta.role == "assistant"
        assert [choice.finish_reason for choice in choices] == [None, None, None, "length"]
    assert chunks[-1].usage.completion_tokens == 6


async def test_the_sdks_own_accumulation_of_a_stream(sdk):
    async with sdk.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == "Paris is it."
    assert final.choices[0].finish_reason == "stop"


async def test_completions(sdk):
    answer = await sdk.completions.create(model="tiny", prompt=["a", "b"], max_tokens=5)
    assert [choice.text for choice in answer.choices] == ["Paris is it."] * 2
    stream = await sdk.completions.create(model="tiny", prompt=[1, 2, 3], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Paris is it."


async def test_models(sdk):
    assert [model.id async for model in sdk.models.list()] == ["tiny", "org/tiny-alias"]
    assert (await sdk.models.retrieve("tiny")).owned_by == "streamgen"
    assert (await sdk.models.retrieve("org/tiny-alias")).id == "org/tiny-alias"


async def test_errors_are_the_sdks_own_exceptions(sdk, engine):
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.chat.completions.create(model="tiny", messages=MESSAGES, temperature=9)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.completions.create(model="tiny", prompt="x" * 300)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as refused:
        await sdk.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        await sdk.with_options(api_key="wrong").models.list()
    engine.refusal = QueueFullError("Full.")
    with pytest.raises(openai.RateLimitError):
        await sdk.chat.completions.create(model="tiny", messages=MESSAGES)


async def test_closing_a_stream_aborts_the_request(sdk, engine):
    engine.manual = True
    stream = await sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    request = await engine.next_stream()
    request.say("Par")
    assert (await anext(stream)).choices[0].delta.content == "Par"
    await stream.close()
    await request.aborted.wait()
