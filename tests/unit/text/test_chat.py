import itertools
from datetime import UTC, datetime

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from streamgen.errors import InvalidRequestError
from streamgen.text.chat import ChatTemplate
from tests.unit.text import chat_templates
from tests.unit.text.tokenizers_for_tests import byte_level_backend, with_bos, wrap

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def now():
    return datetime(2026, 11, 30, tzinfo=UTC)


def template(source, **kwargs) -> ChatTemplate:
    return ChatTemplate(source, SPECIAL, now=now, **kwargs)


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **fields):
    return {"role": "assistant", "content": text, **fields}


def system(text):
    return {"role": "system", "content": text}


CALL = {"type": "function", "id": "1", "function": {"name": "add", "arguments": {"x": 1, "name": "é<&"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "a & b, é", "parameters": {"x": {}}}}]
CONVERSATIONS = [
    [user("hi")],
    [system(" be brief "), user(" hi\n")],
    [user("a"), assistant("<think>x</think>\n\nb"), user("c")],
    [user("a"), assistant("", tool_calls=[CALL]), {"role": "tool", "content": "3"}],
    [user("a"), {"role": "note", "content": "n"}, assistant("b")],
]


@pytest.mark.parametrize("name", chat_templates.ALL)
def test_renders_as_transformers_does(name):
    source = chat_templates.ALL[name]
    chat = template(source)
    seen = set()
    for messages, tools, prompt, thinking in itertools.product(
        CONVERSATIONS, (None, TOOLS), (True, False), ({}, {"enable_thinking": False})
    ):
        variables = {"date_string": "1 Jan 2026", **thinking}
        expected, refusal = reference(source, messages, tools=tools, add_generation_prompt=prompt, **variables)
        try:
            text = chat.render(messages, tools=tools, add_generation_prompt=prompt, **variables)
        except InvalidRequestError as error:
            assert refusal is not None and refusal in error.message  # noqa: PT017, PT018
        else:
            assert text == expected
            seen.add(text)
    assert len(seen) >= 2


def reference(source, messages, **kwargs):
    """What transformers renders, or why it does not."""
    try:
        return render_jinja_template([messages], chat_template=source, **SPECIAL, **kwargs)[0][0], None
    except TemplateError as error:
        return None, str(error)


def test_A12_the_bos_of_the_template_is_the_only_one():
    tokenizer = wrap(with_bos(byte_level_backend()), add_bos=True)
    text = ChatTemplate(chat_templates.HEADERS, tokenizer.special_tokens).render([user("hi")])
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    # The same text as a prompt of /v1/completions.
    assert tokenizer.encode(text) == ids


@pytest.mark.parametrize(
    "messages, words",
    [
        ([user("a"), user("b")], "Conversation roles must alternate user/assistant/user/assistant/..."),
        ([system("s"), user("a")], "System role not supported"),
        ([user("a"), {"role": "tool", "content": "x"}], "Only user and assistant roles are supported!"),
    ],
)
def test_A13_a_refusal_is_the_templates_own_text(messages, words):
    with pytest.raises(InvalidRequestError) as caught:
        template(chat_templates.ALTERNATING).render(messages)
    assert (caught.value.message, caught.value.param, caught.value.status) == (words, "messages", 400)


@pytest.mark.parametrize(
    "source, messages",
    [
        (chat_templates.CHATML, []),
        ("{{ messages[7].content }}", [user("a")]),
        ("{{ messages[0].content + 1 }}", [user("a")]),
        ("{{ messages[0].content.__class__.__mro__ }}", [user("a")]),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", [user("a")]),
        (chat_templates.CHATML, [{"role": "user", "content": 3}]),
        (chat_templates.CHATML, [{"content": "no role"}]),
    ],
)
def test_A13_whatever_a_template_raises_is_a_400_about_the_messages(source, messages):
    with pytest.raises(InvalidRequestError) as caught:
        template(source).render(messages)
    assert caught.value.param == "messages"
    assert caught.value.message


def test_A15_a_continued_message_ends_with_the_exact_prefix():
    for source in (chat_templates.CHATML, chat_templates.HEADERS, chat_templates.THINKING, chat_templates.PARTS):
        for prefix in ("OK!", "OK!\n", " OK! ", "", "\n"):
            text = template(source).render(
                [user("hi"), assistant(prefix)], add_generation_prompt=False, continue_final_message=True
            )
            assert text.endswith(prefix)
            opening = template(source).render([user("hi"), assistant("X")], add_generation_prompt=False)
            assert text == opening[: opening.rindex("X")] + prefix


def test_A15_what_cannot_be_continued_is_refused():
    chat = template(chat_templates.CHATML)
    for messages, kwargs in (
        ([user("a"), assistant("b")], {"add_generation_prompt": True}),
        ([user("a"), assistant("", tool_calls=[CALL])], {"add_generation_prompt": False}),
    ):
        with pytest.raises(InvalidRequestError):
            chat.render(messages, continue_final_message=True, **kwargs)
    with pytest.raises(InvalidRequestError, match="drops"):
        template("{{ messages[0].content }}").render(
            [user("a"), assistant("b")], add_generation_prompt=False, continue_final_message=True
        )


def test_G11_no_template_is_a_clear_400():
    for source in (None, "", {}, []):
        chat = template(source)
        with pytest.raises(InvalidRequestError, match=r"no chat template.*--chat-template") as caught:
            chat.render([user("a")])
        assert (caught.value.param, chat.error) == ("messages", caught.value.message)


def test_G11_a_template_with_an_unknown_tag_starts_and_says_so_when_used():
    chat = template("{% for m in messages %}{% training %}{{ m.content }}{% endtraining %}{% endfor %}")
    with pytest.raises(InvalidRequestError, match="cannot be used: Encountered unknown tag 'training'"):
        chat.render([user("a")])


def test_G11_the_generation_tag_marks_text_and_changes_nothing():
    assert template("{% generation %}a{{ messages[0].content }}{% endgeneration %}b").render([user("x")]) == "axb"


def test_G11_named_templates_by_mapping_and_by_list():
    named = {"default": "plain", "tool_use": "tools: {{ tools | length }}"}
    for source in (named, [{"name": name, "template": text} for name, text in named.items()]):
        assert template(source).render([user("a")]) == "plain"
        assert template(source).render([user("a")], tools=TOOLS) == "tools: 1"
    assert template({"rag": "only one"}).render([user("a")]) == "only one"
    with pytest.raises(InvalidRequestError, match="several"):
        template({"rag": "x", "other": "y"}).render([user("a")])


def test_content_parts_are_joined_for_templates_that_want_a_string():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo" in template(chat_templates.CHATML).render([user(parts)])
    assert template(chat_templates.PARTS).render([user(parts)]) == "user:one\ntwo|"
    assert template(chat_templates.PARTS).render([user("plain")]) == "user:plain|"


@pytest.mark.parametrize(
    "part",
    [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}, {"text": "x"}, 3, {"type": ["text"]}],
)
def test_content_that_is_not_text_is_refused(part):
    with pytest.raises(InvalidRequestError, match=r"messages\[0\].content\[0\] is not a text part"):
        template(chat_templates.CHATML).render([user([part])])


def test_null_fields_and_json_arguments_are_as_templates_expect():
    call = {"type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    messages = [user("a"), {"role": "assistant", "content": None, "name": None, "tool_calls": [call]}]
    assert "[call]add:x=1[end]" in template(chat_templates.HEADERS).render(messages)
    assert call["function"]["arguments"] == '{"x": 1}'


def test_the_date_comes_from_the_clock_unless_given():
    chat = template(chat_templates.HEADERS)
    assert "Today: 30 Nov 2026" in chat.render([user("a")])
    assert "Today: then" in chat.render([user("a")], date_string="then")


def test_F6_variables_of_the_server_cannot_be_set_and_others_do_nothing():
    chat = template(chat_templates.THINKING)
    assert chat.variables == {"enable_thinking"}
    for name in ("tools", "documents", "bos_token", "tokenize", "chat_template"):
        with pytest.raises(InvalidRequestError) as caught:
            chat.settable({name: "x"})
        assert caught.value.param == "chat_template_kwargs"
    assert chat.render([user("a")], raise_exception=1, strftime_now=2, other=3) == chat.render([user("a")])


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100001) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * ['a'] }}",
        "{{ 9 ** 999999999 }}",
        "{% for i in range(9999) %}{{ 'aaaaaaaaaaaaaaaa' }}{% endfor %}",
    ],
)
def test_runaway_templates_end(source, monkeypatch):
    monkeypatch.setattr("streamgen.text.template_environment.MAX_ROUNDS", 20_000)
    with pytest.raises(InvalidRequestError, match="cannot render"):
        template("{% if messages | length == 2 %}" + source + "{% endif %}", max_chars=100_000).render(
            [user("a"), user("b")]
        )
