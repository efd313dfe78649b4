"""Bad input of any kind is a 4xx in OpenAI's shape, before anything reaches the engine."""

import json
import re

import pytest
import tokenizers
from tokenizers import models

from streamgen.models.config import GenerationDefaults
from streamgen.server import schema
from streamgen.text.tokenizer import Tokenizer
from tests.server.fake_engine import FakeEngine
from tests.server.world import app_on, chat_body, completion_body, error_of, events, in_process, joined

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BOTH = pytest.mark.parametrize("path, body", [(CHAT, chat_body), (COMPLETIONS, completion_body)], ids=["chat", "text"])
JSON = {"content-type": "application/json"}


async def refused(client, engine, path, body, *, status=400, param=None):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    before = len(engine.streams)
    response = await client.post(path, content=content, headers=JSON)
    assert response.status_code == status, response.text
    error = error_of(response)
    if param is not None:
        assert error["param"] == param, error
    assert len(engine.streams) == before
    return error


async def taken(client, path, body):
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@BOTH
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 10**9, 2**31, 2**63, 10**30, 1e9, 1.5, 1.0, "5", True, [5], {}])
async def test_B1_max_tokens_that_make_no_sense(client, engine, path, body, name, value):
    error = await refused(client, engine, path, body(**{name: value}))
    assert error["param"] in {name, "max_tokens", "messages", "prompt"}


@BOTH
@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": None}])
async def test_B1_absent_max_tokens_leave_it_to_the_room(client, engine, path, body, fields):
    await taken(client, path, body(**fields))
    assert engine.streams[0].params.max_tokens is None


async def test_B1_zero_tokens_with_echo_give_the_prompt_back(client, engine):
    for prompt, texts in (("Hi", ["Hi"]), (["a", "bc"], ["a", "bc"]), ([72, 72], None)):
        body = completion_body(prompt=prompt, max_tokens=0, echo=True)
        whole = await taken(client, COMPLETIONS, body)
        if texts is not None:
            assert [choice["text"] for choice in whole["choices"]] == texts
        assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
        assert whole["usage"]["completion_tokens"] == 0
        assert whole["usage"]["prompt_tokens"] > 0
        chunks = events((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
        assert [joined(chunks, choice["index"]) for choice in whole["choices"]] == [c["text"] for c in whole["choices"]]
    assert engine.streams == []
    await refused(client, engine, COMPLETIONS, completion_body(max_tokens=0, echo=False), param="max_tokens")
    await refused(client, engine, COMPLETIONS, completion_body(max_tokens=-1, echo=True), param="max_tokens")
    await refused(client, engine, COMPLETIONS, completion_body(prompt="", max_tokens=0, echo=True), param="prompt")
    await refused(
        client, engine, COMPLETIONS, completion_body(prompt="x" * 65, max_tokens=0, echo=True), param="prompt"
    )


async def test_B1_two_names_that_contradict(client, engine):
    await refused(client, engine, CHAT, chat_body(max_tokens=3, max_completion_tokens=4), param="max_completion_tokens")
    await taken(client, CHAT, chat_body(max_tokens=4, max_completion_tokens=4))
    await taken(client, CHAT, chat_body(max_tokens=None, max_completion_tokens=5))
    assert [stream.params.max_tokens for stream in engine.streams] == [4, 5]


@pytest.mark.parametrize("as_ids", [False, True])
async def test_B2_a_prompt_up_to_the_limit_and_past_it(client, engine, as_ids):
    """The limit is 64 tokens, and a text's token is a byte."""

    def prompt(length):
        return [1] * length if as_ids else "x" * length

    await taken(client, COMPLETIONS, completion_body(prompt=prompt(63)))
    await taken(client, COMPLETIONS, completion_body(prompt=prompt(60), max_tokens=4))
    for length, max_tokens, numbers in (
        (64, None, {"64", "1", "65"}),
        (65, None, {"64", "65"}),
        (1000, None, {"64", "1000"}),
        (60, 5, {"64", "60", "5", "65"}),
        (64, 1, {"64", "1", "65"}),
        (65, 1, {"64", "65"}),
        (1, 64, {"64", "1", "65"}),
    ):
        fields = {} if max_tokens is None else {"max_tokens": max_tokens}
        error = await refused(
            client, engine, COMPLETIONS, completion_body(prompt=prompt(length), **fields), param="prompt"
        )
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"

        assert set(re.findall(r"-?\d+", error["message"])) == numbers, error["message"]
    assert [len(stream.prompt_token_ids) for stream in engine.streams] == [63, 60]


async def test_B2_one_prompt_of_several_and_a_chat(client, engine):
    error = await refused(client, engine, COMPLETIONS, completion_body(prompt=["a", "x" * 70]), param="prompt")
    assert error["code"] == "context_length_exceeded"
    long = chat_body(messages=[{"role": "user", "content": "x" * 70}])
    error = await refused(client, engine, CHAT, long, param="messages")
    assert error["code"] == "context_length_exceeded"
    await refused(client, engine, COMPLETIONS, completion_body(prompt="x" * 60, min_tokens=5), param="min_tokens")


async def test_B2_an_absurdly_long_text_is_refused_without_encoding_all_of_it(client, engine, monkeypatch):
    longest = 0
    encode = Tokenizer.encode

    def noting_encode(self, text, **options):
        nonlocal longest
        longest = max(longest, len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", noting_encode)
    for body in (completion_body(prompt="x" * 10**6), completion_body(prompt=["a", "x" * 10**6])):
        error = await refused(client, engine, COMPLETIONS, body, param="prompt")
        assert error["code"] == "context_length_exceeded"
        assert set(re.findall(r"\d+", error["message"])) == {"64", "1000000"}
    long = chat_body(messages=[{"role": "user", "content": "x" * 10**6}])
    assert (await refused(client, engine, CHAT, long, param="messages"))["code"] == "context_length_exceeded"
    assert longest < 10**4


async def test_B2_a_long_text_of_few_tokens_is_no_long_prompt():
    """A token may stand for very many characters."""
    engine = FakeEngine()
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer = Tokenizer(
        backend,
        bos_token_id=None,
        eos_token_ids=(),
        chat_template=None,
        special_tokens={},
        add_bos=False,
        add_eos=False,
    )
    async with in_process(app_on(engine, tokenizer=tokenizer)) as client:
        await taken(client, COMPLETIONS, completion_body(prompt="x" * 10**6))
    assert engine.streams[0].prompt_token_ids == (1,)


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [[1], []]])
async def test_B3_an_empty_prompt(client, engine, prompt):
    await refused(client, engine, COMPLETIONS, completion_body(prompt=prompt), param="prompt")


async def test_B3_the_neighbours_of_an_empty_prompt(client, engine):
    for body in (
        {"model": "tiny"},
        completion_body(prompt=None),
        completion_body(prompt={}),
        completion_body(prompt=1),
    ):
        await refused(client, engine, COMPLETIONS, body, param="prompt")
    await refused(client, engine, CHAT, {"model": "tiny"}, param="messages")
    for content in (None, []):
        messages = [{"role": "user", "content": content}]
        await refused(client, engine, CHAT, chat_body(messages=messages), param="messages[0].content")
    await taken(client, CHAT, chat_body(messages=[{"role": "user", "content": ""}]))


async def test_B3_a_tokenizer_that_writes_a_bos_makes_an_empty_text_a_prompt():
    engine = FakeEngine()
    backend = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "a": 1}, unk_token="a"))
    tokenizer = Tokenizer(
        backend,
        bos_token_id=0,
        eos_token_ids=(),
        chat_template=None,
        special_tokens={},
        add_bos=True,
        add_eos=False,
    )
    async with in_process(app_on(engine, tokenizer=tokenizer)) as client:
        await taken(client, COMPLETIONS, completion_body(prompt=""))
        await refused(client, engine, COMPLETIONS, completion_body(prompt="", add_special_tokens=False), param="prompt")
    assert engine.streams[0].prompt_token_ids == (0,)


@pytest.mark.parametrize(
    "prompt, where",
    [
        ([258], "prompt[0]"),
        ([1, 2, -1], "prompt[2]"),
        ([1, 2**63], "prompt[1]"),
        ([2**64], "prompt[0]"),
        ([-(2**70)], "prompt[0]"),
        ([[1], [2, 999]], "prompt[1][1]"),
        ([True], "prompt[0]"),
        ([[1, False]], "prompt[0][1]"),
        ([1, 1.0], "prompt[1]"),
        ([[1], [None]], "prompt[1][0]"),
        ([[[1]]], "prompt[0][0]"),
        ([1, None], "prompt[1]"),
    ],
)
async def test_B4_a_token_id_that_does_not_exist(client, engine, prompt, where):
    error = await refused(client, engine, COMPLETIONS, completion_body(prompt=prompt))
    assert where in error["message"]


async def test_B4_mixed_lists_and_the_last_id_that_exists(client, engine):
    for prompt in ([1, "a"], ["a", 1], ["a", [1]], [[1], 1], [[1], "a"]):
        await refused(client, engine, COMPLETIONS, completion_body(prompt=prompt), param="prompt")
    await taken(client, COMPLETIONS, completion_body(prompt=[0, 257]))
    for bad in (258, -1, 2**64):
        await refused(client, engine, COMPLETIONS, completion_body(stop_token_ids=[1, bad]), param="stop_token_ids")
        await refused(client, engine, "/detokenize", {"tokens": [bad]}, param="tokens")
    await taken(client, COMPLETIONS, completion_body(stop_token_ids=[257]))


async def test_B4_ids_are_those_of_the_model_where_it_has_more_than_the_tokenizer():
    engine = FakeEngine()
    async with in_process(app_on(engine, vocab_size=300)) as client:
        await taken(client, COMPLETIONS, completion_body(prompt=[299]))
        await refused(client, engine, COMPLETIONS, completion_body(prompt=[300]), param="prompt")


@BOTH
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "nan", "1e999", "-1e999"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "unknown_field"])
async def test_B6_numbers_that_are_not_finite(client, engine, path, body, number, name):
    raw = json.dumps(body()).rstrip("}") + f', "{name}": {number}}}'
    if name == "unknown_field" and "e" in number:
        return
    await refused(client, engine, path, raw.encode())


@BOTH
@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", []),
        ("top_p", 0),
        ("top_p", -1),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", 2**31),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("min_tokens", -1),
        ("min_tokens", 10**6),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 1.5),
        ("seed", "42"),
        ("n", 0),
        ("n", -1),
        ("n", 10**6),
        ("n", 1.0),
        ("stream", 1),
        ("stream", "true"),
        ("ignore_eos", "yes"),
        ("stop_token_ids", {}),
        ("stop_token_ids", "5"),
        ("priority", 2**40),
        ("model", 5),
    ],
)
async def test_B6_values_out_of_range_or_of_another_type(client, engine, path, body, name, value):
    await refused(client, engine, path, body(**{name: value}), param=name)


@BOTH
@pytest.mark.parametrize("value", [10**400, -(10**400), 10**4000], ids=["1e400", "-1e400", "1e4000"])
@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "seed", "n", "priority"]
)
async def test_B6_integers_that_no_float_holds(client, engine, path, body, name, value):
    error = await refused(client, engine, path, body(**{name: value}))
    assert error["message"]


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1e-12},
        {"temperature": 2},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 10**6},
        {"min_p": 1},
        {"min_p": 0},
        {"top_p": 1},
        {"top_p": 1e-9},
        {"seed": -1},
        {"seed": 2**63 - 1},
        {"n": 3},
        {"min_tokens": 3, "max_tokens": 3},
        {"unknown": {"deep": [1, {"er": None}]}},
    ],
)
async def test_B6_values_at_the_edge_are_taken(client, engine, path, body, fields):
    await taken(client, path, body(**fields))
    for name, value in fields.items():
        if name != "unknown":
            assert getattr(engine.streams[0].params, name) == value


async def test_B7_errors_of_every_kind_have_one_shape(client, engine):
    error = await refused(client, engine, CHAT, chat_body(model="gpt-4"), status=404, param="model")
    assert error["code"] == "model_not_found"
    assert "gpt-4" in error["message"]
    await refused(client, engine, COMPLETIONS, completion_body(model="tin"), status=404)
    for method, path, status, code in (
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/nothing", 404, "model_not_found"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/org/tiny-alias/", 404, "model_not_found"),
        ("GET", "/v1/chat/completions/", 404, "not_found"),
        ("GET", "/static/none.js", 404, "not_found"),
        ("GET", "/static/../app.py", 404, "not_found"),
    ):
        response = await client.request(method, path)
        assert response.status_code == status, (method, path, response.text)
        assert error_of(response)["code"] == code
        assert response.headers["content-type"] == "application/json"
    assert "POST" in (await client.get("/v1/completions")).headers["allow"]


async def test_B7_names_that_are_no_text_and_no_model(client, engine):
    await refused(client, engine, CHAT, b'{"model":"\\ud800\\udc00\xf0\x9f\x98\x80","messages":[]}', status=404)
    await refused(client, engine, CHAT, b'{"model":"\\ud800","messages":[]}')
    for model in (None, ""):
        await taken(client, CHAT, chat_body(model=model))
    answer = await taken(client, CHAT, chat_body(model="org/tiny-alias"))
    assert answer["model"] == "org/tiny-alias"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"true",
        b"{",
        b"{}x",
        b"{'a': 1}",
        b'{"model": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'{"prompt": "a\nb"}',
        b'{"unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"unknown": ' + b'{"a":' * 100_000,
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"{}",
    ],
)
async def test_B8_bodies_that_are_no_request(client, engine, path, raw):
    await refused(client, engine, path, raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"prompt": [' + b",".join([b"[1]"] * 300_000) + b"]}",
        b'{"prompt": "a", "tools": [' + b",".join([b"{}"] * 300_000) + b"]}",
        b'{"prompt": "\\\\", "unknown": ["\\"", ' + b",".join([b'{"a":"]"}'] * 300_000) + b"]}",
        b'{"prompt": "a", "logit_bias": {' + b",".join(b'"%d":1' % i for i in range(300_000)) + b"}}",
        b'{"prompt": [' + b",".join([b'""'] * 300_000) + b"]}",
        b'{"prompt": [' + b",".join([b'":\\"["'] * 300_000) + b"]}",
        b'{"prompt": [' + b",".join([b"1"] * (2**21 + 2)) + b"]}",
        b'{"prompt": "\\\\", "unknown": [' + b",".join([b"0"] * (2**21 + 2)) + b"]}",
    ],
    ids=["lists", "objects", "unknown", "fields", "strings", "strings with marks", "integers", "unknown items"],
)
async def test_B8_a_body_of_nothing_but_parts_is_refused_before_it_is_decoded(client, engine, raw):
    """Decoding makes an object of each in one go, during which no other stream gets a token."""
    error = await refused(client, engine, COMPLETIONS, raw)
    assert "262144 lists, objects, fields and strings" in error["message"]


async def test_B8_brackets_in_a_text_are_text(client, engine):
    for text in ('\\"[{:' * 200_000, '"' * 600_000, "\\" * 600_001, "," * (2**21 + 2)):
        raw = json.dumps({"prompt": text}).encode()
        assert (await refused(client, engine, COMPLETIONS, raw, param="prompt"))["code"] == "context_length_exceeded"


async def test_C7_a_chat_has_so_many_messages_and_content_parts_and_no_more(engine):
    messages = [{"role": role, "content": "Hi"} for role in ("user", "assistant")] * 2049
    parts = [{"type": "text", "text": "a"}] * 10_000
    engine.max_model_len = 10**6
    async with in_process(app_on(engine)) as client:
        for path in (CHAT, "/tokenize"):
            error = await refused(client, engine, path, chat_body(messages=messages), param="messages")
            assert error["message"] == "messages holds 4098 messages; at most 4096 are taken."
            body = chat_body(messages=[{"role": role, "content": parts} for role in ("user", "assistant")])
            error = await refused(client, engine, path, body, param="messages")
            assert error["message"] == "messages holds 20000 content parts; at most 16384 are taken."
        await taken(client, CHAT, chat_body(messages=messages[:4096]))


@pytest.mark.parametrize(
    "value",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": {}}},
        {"type": "json_object"},
        {"type": "text", "more": 1},
        {},
        [],
        "text",
        1,
    ],
)
@BOTH
async def test_B8_response_formats_that_are_not_served(client, engine, path, body, value):
    await refused(client, engine, path, body(response_format=value), param="response_format")


@BOTH
@pytest.mark.parametrize(
    "stop",
    ["", [""], ["a", ""], [None], ["a", "b", "c", "d", "e"], ["x" * 2**20], "x" * 2**20, ["x"] * 100_000, [1], 5, {}],
    ids=range(11),
)
async def test_B11_stop_strings_out_of_bounds(client, engine, path, body, stop):
    error = await refused(client, engine, path, body(stop=stop))
    assert error["param"].startswith("stop")


@BOTH
@pytest.mark.parametrize(
    "stop, meant", [(None, ()), ([], ()), ("a", ("a",)), (["a", "b", "č", "d"], ("a", "b", "č", "d"))]
)
async def test_B11_stop_strings_that_are_taken(client, engine, path, body, stop, meant):
    await taken(client, path, body(stop=stop))
    assert engine.streams[0].params.stop == meant


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -1},
        {"repetition_penalty": 1.1},
        {"repetition_penalty": 0},
        {"logit_bias": {"5": -100}},
        {"best_of": 2},
        {"best_of": 1, "n": 2},
        {"logprobs": True},
        {"prompt_logprobs": 0},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a+"},
        {"bad_words": ["x"]},
        {"allowed_token_ids": [1]},
        {"skip_special_tokens": False},
        {"cache_salt": "mine"},
        {"truncate_prompt_tokens": 5},
    ],
)
async def test_known_parameters_that_are_not_served_are_refused(client, engine, path, body, fields):
    error = await refused(client, engine, path, body(**fields))
    assert error["param"].split(".")[0] in fields


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True, "top_logprobs": 2},
        {"top_logprobs": 3},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "required"},
        {"functions": [{"name": "f"}]},
        {"modalities": ["text", "audio"]},
        {"reasoning_effort": "high"},
        {"store": True},
        {"service_tier": "priority"},
        {"echo": True},
    ],
)
async def test_chat_parameters_that_are_not_served_are_refused(client, engine, fields):
    await refused(client, engine, CHAT, chat_body(**fields))


@pytest.mark.parametrize("fields", [{"logprobs": 0}, {"logprobs": 5}, {"suffix": "end"}])
async def test_completion_parameters_that_are_not_served_are_refused(client, engine, fields):
    await refused(client, engine, COMPLETIONS, completion_body(**fields), param=next(iter(fields)))


NEUTRAL = {
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "logit_bias": {},
    "best_of": 1,
    "n": 1,
    "use_beam_search": False,
    "response_format": {"type": "text"},
    "skip_special_tokens": True,
    "user": "u\r\nser",
    "metadata": {"a": "b"},
}


@BOTH
async def test_values_that_ask_for_nothing_are_taken(client, engine, path, body):
    await taken(client, path, body(**NEUTRAL))
    await taken(client, path, body(**dict.fromkeys(NEUTRAL)))
    if path == CHAT:
        more = {"logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
        await taken(client, path, body(**more, store=False, service_tier="auto", modalities=["text"]))
    else:
        await taken(client, path, body(logprobs=None, suffix=None, echo=False))


async def test_every_optional_field_may_be_null(client):

    for decoder, path, body in (
        (schema.CHAT_DECODER, CHAT, chat_body),
        (schema.COMPLETION_DECODER, COMPLETIONS, completion_body),
    ):
        fields = {name: None for name in decoder.type.__struct_fields__ if name not in {"messages", "prompt"}}
        await taken(client, path, body(**fields))


async def test_defaults_are_those_of_the_model():
    engine = FakeEngine()
    defaults = GenerationDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.05, max_tokens=7)
    async with in_process(app_on(engine, generation=defaults)) as client:
        await taken(client, CHAT, chat_body())
        await taken(client, CHAT, chat_body(temperature=0, top_p=1, top_k=0, min_p=0, max_tokens=9))
    own, sent = (stream.params for stream in engine.streams)
    assert (own.temperature, own.top_p, own.top_k, own.min_p, own.max_tokens) == (0.6, 0.95, 20, 0.05, 7)
    assert (sent.temperature, sent.top_p, sent.top_k, sent.min_p, sent.max_tokens) == (0, 1, 0, 0, 9)


@BOTH
async def test_the_models_default_length_gives_way_to_the_context(path, body):
    """The limit is 64 tokens. Nobody asked for 60, so that a prompt of 10 or 20 is no reason to refuse."""
    engine = FakeEngine()
    async with in_process(app_on(engine, generation=GenerationDefaults(max_tokens=60))) as client:
        await taken(client, COMPLETIONS, completion_body(prompt=["x" * 20, "x"]))
        await taken(client, path, body())
        await refused(client, engine, path, body(max_tokens=64))
        await refused(client, engine, COMPLETIONS, completion_body(prompt="x" * 64), param="prompt")
    assert [stream.params.max_tokens for stream in engine.streams[:2]] == [44, 60]
    last = engine.streams[2]
    assert last.params.max_tokens == min(60, 64 - len(last.prompt_token_ids))


async def test_too_many_choices(client, engine):
    await refused(client, engine, COMPLETIONS, completion_body(prompt=["a"] * 100, n=100), param="n")
    await refused(client, engine, COMPLETIONS, completion_body(prompt=["a"] * 2000), param="prompt")
