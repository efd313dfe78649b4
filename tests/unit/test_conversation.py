"""What a line typed into the chat means."""

import pytest

from streamgen.commands.conversation import Conversation, Next


def test_turns_follow_each_other() -> None:
    talk = Conversation(system="Be brief.")
    assert talk.take("  Hello ") == (Next.ANSWER, "")
    talk.answered("Hi.")
    talk.take("Bye")
    assert talk.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye"},
    ]


def test_a_question_without_an_answer_is_taken_back() -> None:
    talk = Conversation()
    talk.take("Hello")
    talk.answered("")
    assert talk.messages == []


@pytest.mark.parametrize("line", ["", "   ", "\n"])
def test_an_empty_line_asks_nothing(line: str) -> None:
    talk = Conversation()
    assert talk.take(line) == (Next.READ, "")
    assert talk.turns == []


@pytest.mark.parametrize("line", ["/exit", "/quit", " /exit "])
def test_leaving(line: str) -> None:
    assert Conversation().take(line)[0] is Next.LEAVE


def test_clear_keeps_the_system_prompt_and_system_replaces_it() -> None:
    talk = Conversation(system="a")
    talk.take("x")
    assert talk.take("/clear")[0] is Next.READ
    assert talk.messages == [{"role": "system", "content": "a"}]
    talk.take("/system b c")
    assert talk.messages == [{"role": "system", "content": "b c"}]
    talk.take("/system")
    assert talk.messages == []


@pytest.mark.parametrize("line,following", [("/help", Next.READ), ("/sytem", Next.READ), ("/etc/hosts", Next.ANSWER)])
def test_what_looks_like_a_command(line: str, following: Next) -> None:
    assert Conversation().take(line)[0] is following
