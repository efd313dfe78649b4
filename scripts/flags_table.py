"""The README's table of flags, made from the configuration: `python scripts/flags_table.py` writes it there."""

import ast
import inspect
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from streamgen.commands.flags import Flag, flags_of
from streamgen.commands.options import Serve

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- flags -->\n", "<!-- /flags -->"


def table() -> str:
    """Flag, default and meaning of every flag of `streamgen serve`, as Markdown."""
    meanings = _meanings(Serve)
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    for name, flag in flags_of(Serve).items():
        meaning = meanings[name.replace("-", "_")].replace("|", "\\|").replace("\n", " ")
        if flag.repeatable:
            meaning += " May be given several times."
        rows.append(f"| `{_shown(flag)}` | {_default(flag)} | {meaning} |")
    return "\n".join(rows) + "\n"


def with_table(readme: str) -> str:
    """The README's text with the table as it is now."""
    before, _, rest = readme.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def _shown(flag: Flag) -> str:
    if flag.switch:
        return f"--{'no-' if flag.default else ''}{flag.name}"
    value = ",".join(flag.choices)
    return f"--{flag.name} {f'{{{value}}}' if value else flag.type.__name__.upper()}"


def _default(flag: Flag) -> str:
    if flag.switch:
        return "on" if flag.default else "off"
    if flag.default in {None, ()} or flag.default == "":
        return ""
    return f"`{flag.default}`"


def _meanings(owner: Any) -> dict[str, str]:
    """The docstring behind each field, of nested dataclasses too."""
    found: dict[str, str] = {}
    body = ast.parse(inspect.getsource(owner)).body[0].body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[statement.target.id] = inspect.cleandoc(following.value.value)
    hints = get_type_hints(owner)
    for item in fields(owner):
        if is_dataclass(hints[item.name]):
            found |= _meanings(hints[item.name])
    return found


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
