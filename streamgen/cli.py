"""The command line: `streamgen serve | chat | complete | bench | version`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from streamgen.commands.options import Bench, Chat, Command, Complete, Serve
from streamgen.commands.parse import parse
from streamgen.errors import StreamgenError

INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit status: 0, 1 with one line on standard error, 2 for wrong flags, 130."""
    try:
        return run(parse(sys.argv[1:] if argv is None else argv))
    except StreamgenError as error:
        print(f"streamgen: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has left, `head` for one. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def run(command: Command) -> int:
    """Carry out a command. Each is imported when it is asked for: most never need torch."""
    if isinstance(command, Serve):
        from streamgen.commands.serve import serve

        return serve(command.engine, command.server)
    if isinstance(command, Chat):
        from streamgen.commands.chat import chat

        return chat(command)
    if isinstance(command, Complete):
        from streamgen.commands.complete import complete

        return complete(command)
    if isinstance(command, Bench):
        from streamgen.commands.bench import bench

        return bench(command)
    from streamgen.commands.version import version

    return version()


if __name__ == "__main__":
    sys.exit(main())
