"""From argv to a command. Flags, help and type errors are tyro's, made from the dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from streamgen.commands.arguments import canonical
from streamgen.commands.flags import flags_of
from streamgen.commands.options import COMMANDS, Command
from streamgen.errors import ConfigError

_STYLE = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.UseAppendAction,
    tyro.conf.DisallowNone,
)


def parse(argv: Sequence[str]) -> Command:
    """The command that `argv` (without the program's name) asks for.

    Raises ConfigError; SystemExit(0) after printing help, and SystemExit(2) after tyro explained what is wrong.
    """
    if not argv or argv[0] in {"-h", "--help"}:
        tyro.cli(_all_commands(), prog="streamgen", args=["--help"], config=_STYLE)
    name, *rest = argv
    if name in {"-V", "--version"}:
        name = "version"
    command = COMMANDS.get(name)
    if command is None:
        raise ConfigError(f"There is no command {name!r}; there are {', '.join(COMMANDS)}.")
    if "-h" in rest or "--help" in rest:
        arguments = ["--help"]
    else:
        arguments = canonical(rest, flags_of(command), command.positionals)
    return tyro.cli(command, prog=f"streamgen {name}", args=arguments, config=_STYLE)


def _all_commands() -> Any:
    union: Any = None
    command: Any
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").partition("\n")[0]
        one: Any = Annotated[command, tyro.conf.subcommand(name, description=summary)]
        union = one if union is None else union | one
    return union
