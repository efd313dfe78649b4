"""The Jinja environment that chat templates are written for, in a sandbox, with an end to runaway ones.

Set up as transformers documents it for template authors: blocks trimmed, loop controls, `tojson` that does not escape
HTML, `raise_exception`, `strftime_now`, and a `generation` block, which marks text for training and does nothing here.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_ROUNDS = 5_000_000
"""Most loop rounds and macro calls of one rendering: the sandbox bounds each range, but not loops within loops."""
MAX_REPEATED = 2**20
"""Longest string or list that a multiplication may make."""
_TICK = "__streamgen_tick"


class TemplateRefusalError(jinja2.TemplateError):
    """What `raise_exception` in a template raises: its message is meant for the client."""


class TemplateBoundsError(jinja2.TemplateError):
    """A template that would run, or grow, without bounds."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`: renders its body and nothing else."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates whose loops and macros count their rounds. `now` is the clock of `strftime_now`."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda layout: now().strftime(layout)
        # Prose on demand, of any length: no chat template needs it.
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        repeating = [node for kind in (nodes.For, nodes.Macro, nodes.CallBlock) for node in template.find_all(kind)]
        for node in repeating:
            body: list[nodes.Node] = node.body  # type: ignore[attr-defined]
            tick = nodes.ExprStmt(nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None))
            body.insert(0, tick.set_lineno(node.lineno).set_environment(self))
        return template

    def call_binop(self, context: jinja2.runtime.Context, operator_: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        if operator_ == "**":
            if abs(right) > 64 or abs(left) > 2**32:
                raise TemplateBoundsError("a power is too large")
            return left**right
        for sequence, count in ((left, right), (right, left)):
            if (
                isinstance(sequence, str | list | tuple)
                and isinstance(count, int)
                and len(sequence) * count > MAX_REPEATED
            ):
                raise TemplateBoundsError("a repeated string or list is too long")
        return operator.mul(left, right)


def render_bounded(template: jinja2.Template, variables: dict[str, Any], max_chars: int) -> str:
    """The rendered text. Raises TemplateBoundsError past `max_chars` or MAX_ROUNDS, and what the template raises."""
    rounds = 0

    def tick() -> None:
        nonlocal rounds
        rounds += 1
        if rounds > MAX_ROUNDS:
            raise TemplateBoundsError(f"it ran for more than {MAX_ROUNDS} rounds")

    parts = []
    room = max_chars
    for part in template.generate({**variables, _TICK: tick}):
        room -= len(part)
        if room < 0:
            raise TemplateBoundsError(f"it wrote more than {max_chars} characters")
        parts.append(part)
    return "".join(parts)


def _raise_exception(message: str) -> None:
    raise TemplateRefusalError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
