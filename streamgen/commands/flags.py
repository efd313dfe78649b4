"""The flags of a command, read off its dataclass: one a field, nested dataclasses flattened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Flag:
    """One flag. `name` is without the leading dashes; `default` is the dataclass's."""

    name: str
    type: Any
    default: Any
    optional: bool
    """None is a value: the flag may be "auto" or, in YAML, null."""
    repeatable: bool

    @property
    def switch(self) -> bool:
        """Takes no value; `--no-NAME` is its opposite."""
        return self.type is bool

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.type) if get_origin(self.type) is Literal else ()


def flags_of(command: type) -> dict[str, Flag]:
    """All flags of a command's dataclass by name, in the order of its fields. Two of one name are our own mistake."""
    found: dict[str, Flag] = {}
    for flag in _walk(command):
        assert flag.name not in found, f"{command.__name__} has two flags --{flag.name}"
        found[flag.name] = flag
    return found


def _walk(owner: type) -> Iterator[Flag]:
    hints = get_type_hints(owner, include_extras=False)
    for item in fields(owner):
        kind = hints[item.name]
        if is_dataclass(kind):
            yield from _walk(kind)  # type: ignore[arg-type] # is_dataclass says nothing of classes to mypy
        else:
            yield _flag(item, kind)


def _flag(item: Field[Any], kind: Any) -> Flag:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    optional = get_origin(kind) in {Union, UnionType} and NoneType in get_args(kind)
    if optional:
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    repeatable = get_origin(kind) is tuple
    if repeatable:
        kind = get_args(kind)[0]
    default = item.default if item.default_factory is MISSING else item.default_factory()
    return Flag(item.name.replace("_", "-"), kind, default, optional, repeatable)
