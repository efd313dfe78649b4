"""Command lines and YAML files in vLLM's manner, turned into the one form that the flags' parser reads.

Underscores become dashes, the bare words become flags, `--config FILE.yaml` is spliced in where no flag overrides it,
numbers may be written 4k or 4K, and vLLM's other flags are accepted or refused. What is left is a list of
`--name=value` and `--[no-]switch`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from streamgen.commands.flags import Flag
from streamgen.commands.foreign import ALIASES, FOREIGN
from streamgen.errors import ConfigError

_NUMBER = re.compile(r"-?\d+(\.\d+)?([kKmMgGtT])")
_EXPONENTS = {"k": 1, "m": 2, "g": 3, "t": 4}

Values = dict[str, list[str]]
"""Values of each flag, in order; a switch's are "true" and "false"."""


def canonical(argv: Sequence[str], flags: Mapping[str, Flag], positionals: Sequence[str] = ()) -> list[str]:
    """The command's arguments as `--name=value` and `--[no-]switch`, in the order of `flags`.

    `positionals` names the flags that bare words stand for. Raises ConfigError for an unknown or refused flag, a
    missing value, a word too many, and for whatever is wrong with the YAML file.
    """
    reader = _Reader(flags, positionals)
    values, config = reader.read(argv)
    if config is not None:
        for name, given in _from_yaml(Path(config), flags).items():
            values.setdefault(name, given)
    return [text for name, flag in flags.items() for text in _render(flag, values.get(name, []))]


class _Reader:
    """Reads one command line."""

    def __init__(self, flags: Mapping[str, Flag], positionals: Sequence[str]) -> None:
        self._flags = flags
        self._positionals = list(positionals)
        self._by_position: dict[str, str] = {}
        self._values: Values = {}
        self._open: str | None = None
        """The repeatable flag whose value was the last word: more of its values may follow."""
        self._config: str | None = None

    def read(self, argv: Sequence[str]) -> tuple[Values, str | None]:
        """The values by flag, and the YAML file's name if one is given."""
        words = list(argv)
        while words:
            word = words.pop(0)
            if word == "--":
                self._open = None
                for rest in words:
                    self._bare(rest)
                break
            if word.startswith("-") and word != "-":
                self._flag(word, words)
            else:
                self._bare(word)
        return self._values, self._config

    def _bare(self, word: str) -> None:
        if not self._positionals and self._open is not None:
            self._add(self._open, word)
            return
        if not self._positionals:
            raise ConfigError(f"Unexpected argument {word!r}.")
        self._open = None
        name = self._positionals.pop(0)
        self._by_position[name] = word
        self._add(name, word)

    def _flag(self, word: str, rest: list[str]) -> None:
        self._open = None
        head, equals, value = word.partition("=")
        head = ALIASES.get(head, head)
        name = head.lstrip("-").replace("_", "-")
        if not head.startswith("--") or not name:
            raise ConfigError(f"Unknown flag {word}.")
        positive = name.removeprefix("no-")
        if name == "config":
            if self._config is not None:
                raise ConfigError("--config may be given once.")
            self._config = value if equals else _take(name, rest)
        elif (flag := self._flags.get(name)) is not None and not flag.switch:
            self._add(name, value if equals else _take(name, rest))
            self._open = name if flag.repeatable and not equals else None
        elif (flag := self._flags.get(positive)) is not None and flag.switch:
            if equals:
                raise ConfigError(f"--{name} takes no value; its opposite is {_opposite(name)}.")
            self._values[positive] = ["true" if name == positive else "false"]
        elif (foreign := FOREIGN.get(name)) is not None and not foreign.switch:
            foreign.check(name, value if equals else _take(name, rest), "")
        elif (foreign := FOREIGN.get(positive)) is not None and foreign.switch:
            foreign.check(positive, "true" if name == positive else "false", "")
        else:
            raise ConfigError(f"Unknown flag --{name}.{_suggestion(name, self._flags)}")

    def _add(self, name: str, value: str) -> None:
        if name in self._positionals:
            self._positionals.remove(name)
        if (word := self._by_position.get(name, value)) != value:
            raise ConfigError(f"The {name} is given twice: {word!r} and --{name} {value!r}.")
        if self._flags[name].repeatable:
            self._values.setdefault(name, []).extend(_several(value))
        else:
            self._values[name] = [value]  # the last one counts, as everywhere


def _take(name: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise ConfigError(f"--{name} needs a value.")
    return rest.pop(0)


def _opposite(name: str) -> str:
    return f"--{name.removeprefix('no-')}" if name.startswith("no-") else f"--no-{name}"


def _several(value: str) -> list[str]:
    """VLLM's lists may be written as JSON: `--allowed-origins '["*"]'`."""
    if not value.startswith("["):
        return [value]
    try:
        return msgspec.json.decode(value.encode(), type=list[str])
    except msgspec.DecodeError:
        return [value]


def _suggestion(name: str, flags: Mapping[str, Flag]) -> str:
    near = difflib.get_close_matches(name, [*flags, *FOREIGN], n=1)
    return f" Did you mean --{near[0]}?" if near else ""


def _render(flag: Flag, values: list[str]) -> list[str]:
    if flag.switch:
        return [f"--{flag.name}" if value == "true" else f"--no-{flag.name}" for value in values[-1:]]
    if flag.optional and values[-1:] == ["auto"] and "auto" not in flag.choices:
        return []
    return [f"--{flag.name}={_whole_number(value) if flag.type is int else value}" for value in values]


def _whole_number(text: str) -> str:
    """As vLLM reads them: 4k is 4000 and 4K is 4096; 25.6k is 25600. Any other text is left as it is."""
    if not _NUMBER.fullmatch(text):
        return text
    unit = text[-1]
    base = 1000 if unit.islower() else 1024
    number = float(text[:-1]) * base ** _EXPONENTS[unit.lower()]
    if not number.is_integer():
        raise ConfigError(f"{text} is no whole number.")
    return str(int(number))


def _from_yaml(path: Path, flags: Mapping[str, Flag]) -> Values:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}.") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold flags and their values, such as `port: 8000`.")
    found: Values = {}
    for key, value in document.items():
        name = str(key).replace("_", "-")
        source = f"{path}: "
        if name in flags:
            given = _yaml_values(flags[name], value, source)
            if name in found:
                raise ConfigError(f"{source}{name} is given twice.")
            if given is not None:
                found[name] = given
        elif (foreign := FOREIGN.get(name)) is not None:
            if value is not None:
                foreign.check(name, _yaml_text(value), source)
        else:
            raise ConfigError(f"{source}unknown key {key!r}.{_suggestion(name, flags).replace('--', '')}")
    return found


def _yaml_values(flag: Flag, value: Any, source: str) -> list[str] | None:
    if value is None:
        return None
    if flag.switch:
        if not isinstance(value, bool):
            raise ConfigError(f"{source}{flag.name} must be true or false, not {value!r}.")
        return [_yaml_text(value)]
    items = value if isinstance(value, list) and flag.repeatable else [value]
    for item in items:
        if isinstance(item, (bool, dict, list)) or item is None:
            raise ConfigError(f"{source}{flag.name} cannot be {item!r}.")
    return [str(item) for item in items]


def _yaml_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
