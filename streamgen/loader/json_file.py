"""JSON files of a model, read with errors that name the file and the key."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamgen.errors import ModelLoadError

MAX_JSON_BYTES = 256 * 2**20
"""Tokenizers of large vocabularies take 35 MB."""


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that the file holds. Raises ModelLoadError if it is unreadable, no JSON, or no object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelLoadError(f"{path} has more than {MAX_JSON_BYTES >> 20} MiB, which no such file needs.")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} holds a JSON {type(value).__name__}, not an object.")
    return value


class Fields:
    """Typed, bounded access to an object's values. Null counts as absent, as in Hugging Face's configs."""

    def __init__(self, values: Mapping[str, Any], source: object) -> None:
        self.values = values
        self.source = source

    def error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.source}: {what}.")

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1) -> int:
        """The integer `name`; required if there is no default."""
        value = self._number(name, default)
        if not float(value).is_integer() or not low <= value <= high:
            raise self.error(f"{name} must be a whole number from {low} to {high}; it is {reprlib.repr(value)}")
        return int(value)

    def number(self, name: str, default: float | None = None, *, low: float = 0.0, high: float = 1e12) -> float:
        """The finite number `name`, from `low` to `high`; required if there is no default."""
        value = self._number(name, default)
        if not low <= value <= high:
            raise self.error(f"{name} must be a number from {low:g} to {high:g}; it is {reprlib.repr(value)}")
        return float(value)

    def optional_number(self, name: str, *, low: float = 0.0, high: float = 1e12) -> float | None:
        return self.number(name, low=low, high=high) if self.has(name) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false; it is {reprlib.repr(value)}")
        return value

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{name} must be a string; it is {reprlib.repr(value)}")
        return value

    def section(self, name: str) -> Fields | None:
        """The object `name` within this one."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{name} must be an object; it is {reprlib.repr(value)}")
        return Fields(value, f"{self.source}: {name}")

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Ids given as a number, a list of numbers, or not at all."""
        value = self.values.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 2**31:
                raise self.error(f"{name} must be a token id or a list of them; it is {reprlib.repr(value)}")
        return tuple(dict.fromkeys(ids))

    def _number(self, name: str, default: float | None) -> float:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{name} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or math.isnan(value):
            raise self.error(f"{name} must be a finite number; it is {reprlib.repr(value)}")
        return value
