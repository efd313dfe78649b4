"""Messages, templates, and what a client may not send with them."""

import pytest

from streamgen.server import tokenization
from streamgen.text.chat import ChatTemplate
from tests.server.fake_engine import FakeEngine
from tests.server.test_validation import CHAT, COMPLETIONS, refused, taken
from tests.server.world import TOKENIZER, app_on, chat_body, completion_body, error_of, in_process


def said(role, content):
    return {"role": role, "content": content}


def prompt_of(engine):
    return TOKENIZER.decode(engine.streams[-1].prompt_token_ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "messages, words",
    [
        ([said("user", "a"), said("user", "b")], "Conversation roles must alternate"),
        ([said("user", "a"), said("system", "b")], "The system message must come first."),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_A13_what_the_template_refuses_is_a_400_in_its_words(client, engine, messages, words, stream):
    error = await refused(client, engine, CHAT, chat_body(messages=messages, stream=stream), param="messages")
    assert words in error["message"]


async def test_A13_no_messages(client, engine):
    await refused(client, engine, CHAT, chat_body(messages=[]), param="messages")
    await refused(client, engine, "/tokenize", {"messages": []}, param="messages")


async def test_A12_the_template_writes_the_special_tokens_and_nobody_else(client, engine):
    await taken(client, CHAT, chat_body(messages=[said("system", "S"), said("user", "Hi")]))
    text = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_of(engine) == text


async def test_a_developer_is_the_system_by_another_name(client, engine):
    await taken(client, CHAT, chat_body(messages=[said("developer", "S"), said("user", "Hi")]))
    assert prompt_of(engine).startswith("<|im_start|>system\nS<|im_end|>")


@pytest.mark.parametrize(
    "message, param",
    [
        ({"content": "x"}, "messages[0].role"),
        (said("wizard", "x"), "messages[0].role"),
        (said(None, "x"), "messages[0].role"),
        (said("user", 5), "messages[0].content"),
        (said("user", {}), "messages[0].content"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": "x", "name": 5}, "messages[0].name"),
        ({"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls"),
        ("hi", "messages[0]"),
        (None, "messages[0]"),
    ],
)
async def test_messages_of_another_shape(client, engine, message, param):
    await refused(client, engine, CHAT, chat_body(messages=[message]), param=param)


async def test_text_parts_and_fields_that_mean_nothing(client, engine):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]
    await taken(client, CHAT, chat_body(messages=[{"role": "user", "content": parts, "name": None, "x": 1}]))
    assert "a" in prompt_of(engine)
    assert "b" in prompt_of(engine)
    messages = [
        said("user", "a"),
        {"role": "assistant", "content": "b", "tool_calls": None, "refusal": None},
        said("user", "c"),
    ]
    await taken(client, CHAT, chat_body(messages=messages))


async def test_continuing_the_last_message(client, engine):
    messages = [said("user", "Hi"), said("assistant", "OK!\n")]
    await taken(client, CHAT, chat_body(messages=messages, continue_final_message=True))
    assert prompt_of(engine).endswith("<|im_start|>assistant\nOK!\n")
    both = chat_body(messages=messages, continue_final_message=True, add_generation_prompt=True)
    await refused(client, engine, CHAT, both, param="continue_final_message")
    await refused(client, engine, CHAT, chat_body(continue_final_message=True), param="continue_final_message")
    await taken(client, CHAT, chat_body(add_generation_prompt=False))
    assert prompt_of(engine).endswith("Hi<|im_end|>\n")


@pytest.mark.parametrize("template", ["{{ messages }}", "", {"default": "x"}, [], False])
async def test_F6_a_template_of_the_clients(client, engine, template):
    await refused(client, engine, CHAT, chat_body(chat_template=template), param="chat_template")
    tokenize = {"messages": [said("user", "a")], "chat_template": template}
    await refused(client, engine, "/tokenize", tokenize, param="chat_template")


@pytest.mark.parametrize(
    "kwargs",
    [
        {"tokenize": False},
        {"chat_template": "x"},
        {"messages": []},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"tools": []},
        {"documents": []},
        {"bos_token": "x"},
        {"raise_exception": "x"},
        {"__class__": "x"},
        {"enable_thinking": {"a": 1}},
        {"enable_thinking": "x" * 10_000},
        {"enable_thinking": [1]},
        {"Ž\u2028": 1},
    ],
)
async def test_F6_template_arguments_that_reach_too_far(client, engine, kwargs):
    await refused(client, engine, CHAT, chat_body(chat_template_kwargs=kwargs), param="chat_template_kwargs")
    tokenize = {"messages": [said("user", "a")], "chat_template_kwargs": kwargs}
    await refused(client, engine, "/tokenize", tokenize, param="chat_template_kwargs")


async def test_F6_template_arguments_that_are_let_through():
    engine = FakeEngine()
    chat = ChatTemplate("{{ messages[0].content }}{% if enable_thinking %} think{% endif %}", {})
    async with in_process(app_on(engine, chat=chat)) as client:
        for kwargs, text in (({"enable_thinking": True}, "Hi think"), ({"enable_thinking": False}, "Hi"), (None, "Hi")):
            await taken(client, CHAT, chat_body(chat_template_kwargs=kwargs))
            assert prompt_of(engine) == text


@pytest.mark.parametrize("value", ["gASV", ["gASV"], {}, [], "", 0, False])
async def test_F9_tensors_of_the_clients(client, engine, value):
    await refused(client, engine, COMPLETIONS, completion_body(prompt_embeds=value), param="prompt_embeds")
    await refused(client, engine, COMPLETIONS, {"model": "tiny", "prompt": "x", "prompt_embeds": value})
    await refused(client, engine, CHAT, chat_body(prompt_embeds=value), param="prompt_embeds")
    parts = [{"type": "image_embeds", "image_embeds": value}]
    await refused(client, engine, CHAT, chat_body(messages=[said("user", parts)]), param="messages[0].content[0].type")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": "http://127.0.0.1:1/redirect"},
        {"type": "video_url", "video_url": {"url": "http://localhost"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "refusal", "refusal": "no"},
        {"type": ""},
        {"type": "TEXT", "text": "x"},
    ],
)
async def test_F10_parts_that_are_no_text(client, engine, part, monkeypatch):
    def no_connection(*_args, **_kwargs):
        raise AssertionError("an outbound connection")

    monkeypatch.setattr("socket.socket.connect", no_connection)
    monkeypatch.setattr("socket.getaddrinfo", no_connection)
    messages = [said("user", [{"type": "text", "text": "What is this?"}, part])]
    error = await refused(client, engine, CHAT, chat_body(messages=messages), param="messages[0].content[1].type")
    assert "text only" in error["message"]


async def test_F10_a_text_part_without_text(client, engine):
    for part in (
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "text", "text": 5},
        {"text": "x"},
        "x",
        None,
    ):
        await refused(client, engine, CHAT, chat_body(messages=[said("user", [part])]))


async def test_G11_without_a_template_chats_are_refused_and_completions_work():
    engine = FakeEngine()
    for chat in (None, ChatTemplate(None, {}), ChatTemplate("{% broken", {})):
        async with in_process(app_on(engine, chat=chat)) as client:
            error = await refused(client, engine, CHAT, chat_body(), param="messages")
            assert "chat template" in error["message"].lower()
            await taken(client, COMPLETIONS, completion_body())


async def test_without_a_tokenizer_prompts_of_token_ids_work():
    engine = FakeEngine()
    async with in_process(app_on(engine, tokenizer=None, vocab_size=10)) as client:
        await taken(client, COMPLETIONS, completion_body(prompt=[1, 9]))
        await refused(client, engine, COMPLETIONS, completion_body(), param="prompt")
        await refused(client, engine, CHAT, chat_body(), param="messages")
        response = await client.post("/detokenize", json={"tokens": [1]})
        assert response.status_code == 400
        error_of(response)


async def test_a_chat_without_a_tokenizer_is_not_told_of_a_template():
    engine = FakeEngine()
    async with in_process(app_on(engine, tokenizer=None, chat=None, vocab_size=10)) as client:
        error = await refused(client, engine, CHAT, chat_body(), param="messages")
        assert "no tokenizer" in error["message"]


async def test_tokenize_and_back(client):
    answer = (await client.post("/tokenize", json={"prompt": "Hi ž"})).json()
    assert answer["count"] == 5
    assert answer["max_model_len"] == 64
    assert (await client.post("/detokenize", json={"tokens": answer["tokens"]})).json() == {"prompt": "Hi ž"}
    chat = (await client.post("/tokenize", json={"messages": [said("user", "Hi")], "return_token_strs": True})).json()
    assert "".join(chat["token_strs"]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    text = (await client.post("/detokenize", json={"model": "tiny", "tokens": chat["tokens"]})).json()["prompt"]
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "body", [{}, {"prompt": None}, {"prompt": "a", "messages": []}, {"prompt": 5}, {"prompt": "a", "model": "b"}]
)
async def test_tokenize_refuses(client, body):
    response = await client.post("/tokenize", json=body)
    assert response.status_code in {400, 404}
    error_of(response)


async def test_C7_ids_without_end_are_not_detokenized(client, monkeypatch):
    monkeypatch.setattr(tokenization, "MIN_TOKENS", 100)
    assert (await client.post("/detokenize", json={"tokens": [97] * 100})).status_code == 200
    response = await client.post("/detokenize", json={"tokens": [97] * 101})
    assert response.status_code == 400
    assert error_of(response)["param"] == "tokens"


async def test_C7_a_text_without_end_is_not_tokenized(client, monkeypatch):
    monkeypatch.setattr(tokenization, "MIN_CHARS", 2000)
    longest = await client.post("/tokenize", json={"prompt": "a" * 2000})
    assert longest.json()["count"] == 2000
    for more in ("a" * 2001, "é" * 2001):
        response = await client.post("/tokenize", json={"prompt": more})
        assert response.status_code == 400
        assert error_of(response)["param"] == "prompt"
