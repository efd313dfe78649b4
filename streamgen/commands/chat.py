"""`streamgen chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from streamgen.commands.conversation import HELP, Conversation, Next
from streamgen.commands.open_source import open_source
from streamgen.commands.options import AnswerConfig, Chat
from streamgen.commands.source import Source, body_of
from streamgen.errors import StreamgenError
from streamgen.server.kind import Kind


def chat(command: Chat) -> int:
    """Talk until /exit or the end of input. What comes from a pipe is one message, and only its answer is printed."""
    conversation = Conversation(system=command.system)
    with asyncio.Runner() as runner:
        source = runner.run(open_source(command.url, command.api_key, command.engine))
        try:
            if sys.stdin.isatty():
                _talk(runner, source, conversation, command.answer)
            elif conversation.take(sys.stdin.read())[0] is Next.ANSWER:
                runner.run(_answer(source, conversation, command.answer))
        finally:
            runner.run(source.close())
    return 0


def _talk(runner: asyncio.Runner, source: Source, conversation: Conversation, options: AnswerConfig) -> None:
    with contextlib.suppress(ImportError):  # Windows has none, and edits lines by itself
        import readline  # noqa: F401  input() edits lines and remembers them

    print(HELP)
    while True:
        try:
            following, say = conversation.take(input("\n> "))
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\nCtrl-D or /exit leaves.")
            continue
        if say:
            print(say)
        if following is Next.LEAVE:
            return
        if following is Next.ANSWER:
            try:
                runner.run(_answer(source, conversation, options))
            except KeyboardInterrupt:
                print(" [stopped]")
            except StreamgenError as error:
                print(f"\n{error.message}", file=sys.stderr)


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
