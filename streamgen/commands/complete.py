"""`streamgen complete`: one text, gone on with."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from streamgen.commands.open_source import open_source
from streamgen.commands.options import Complete
from streamgen.commands.source import body_of
from streamgen.errors import ConfigError
from streamgen.server.kind import Kind


def complete(command: Complete) -> int:
    """Print what follows the prompt, as it comes."""
    prompt = _from_input() if command.prompt == "-" else command.prompt
    if not prompt:
        raise ConfigError("The prompt is empty.")
    asyncio.run(_complete(command, prompt))
    return 0


def _from_input() -> str:
    """The text on standard input, less one last line end: that is the shell's, and a model would go on behind it."""
    if sys.stdin.isatty():
        print("Type the text, then Ctrl-D.", file=sys.stderr)
    return sys.stdin.read().removesuffix("\n").removesuffix("\r")


async def _complete(command: Complete, prompt: str) -> None:
    answer = command.answer
    body = body_of({"prompt": prompt}, temperature=answer.temperature, top_p=answer.top_p, max_tokens=answer.max_tokens)
    source = await open_source(command.url, command.api_key, command.engine)
    try:
        async with contextlib.aclosing(source.stream(Kind.COMPLETION, body)) as pieces:
            async for text in pieces:
                print(text, end="", flush=True)
        print()
    finally:
        await source.close()
