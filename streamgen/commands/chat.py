"""`streamgen chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from streamgen.commands.conversation import HELP, Conversation, Next
from streamgen.commands.open_source import open_source
from streamgen.commands.options import AnswerConfig, Chat
from streamgen.commands.source import Source, body_of
from streamgen.errors import ConfigError, StreamgenError
from streamgen.server.kind import Kind


def chat(command: Chat) -> int:
    """Talk until /exit or the end of input. What comes from a pipe is one message, and only its answer is printed."""
    conversation = Conversation(system=command.system)
    # Before the model is loaded, which takes a while for nothing if there is nothing to say.
    piped = None if sys.stdin.isatty() else sys.stdin.read()
    if piped is not None and not piped.strip():
        raise ConfigError("There is no message on standard input.")
    with asyncio.Runner() as runner:
        source = runner.run(open_source(command.url, command.api_key, command.engine))
        try:
            if piped is None:
                _talk(runner, source, conversation, command.answer)
            elif conversation.take(piped)[0] is Next.ANSWER:
                runner.run(_answer(source, conversation, command.answer))
        finally:
            runner.run(source.close())
    return 0


def _talk(runner: asyncio.Runner, source: Source, conversation: Conversation, options: AnswerConfig) -> None:
    with contextlib.suppress(ImportError):  # Windows has none, and edits lines by itself
        import readline  # noqa: F401  input() edits lines and remembers them

    print(HELP)
    talking = True
    while talking:
        try:
            talking = _turn(runner, source, conversation, options)
        except KeyboardInterrupt:
            # Also one that comes a moment after an answer has ended, and was meant to stop it.
            print("\nCtrl-D or /exit leaves.")


def _turn(runner: asyncio.Runner, source: Source, conversation: Conversation, options: AnswerConfig) -> bool:
    """Read a line and do what it says. Whether the conversation goes on. Raises KeyboardInterrupt."""
    try:
        following, say = conversation.take(input("\n> "))
    except EOFError:
        print()
        return False
    if say:
        print(say)
    if following is Next.ANSWER:
        try:
            runner.run(_answer(source, conversation, options))
        except KeyboardInterrupt:
            print(" [stopped]")
        except StreamgenError as error:
            print(f"\n{error.message}", file=sys.stderr)
    return following is not Next.LEAVE


async def _answer(source: Source, conversation: Conversation, options: AnswerConfig) -> None:
    """Print an answer as it comes, and keep what was printed, however it ended."""
    body = body_of(
        {"messages": conversation.messages},
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
    )
    pieces: list[str] = []
    try:
        async with contextlib.aclosing(source.stream(Kind.CHAT, body)) as answer:
            async for text in answer:
                pieces.append(text)
                print(text, end="", flush=True)
        print()
    finally:
        conversation.answered("".join(pieces))
