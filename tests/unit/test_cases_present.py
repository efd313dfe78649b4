"""The cases that this server must withstand each have a test under their name, and none is skipped."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CASES = """
    A1 A2 A4 A5 A6 A8 A9 A12 A13
    B1 B2 B3 B4 B6 B7 B8 B11
    C1 C3 C4 C6 C9
    D1 D3 D5
    E1 E3
    F2 F3 F5 F6 F8 F9 F10 F14 F17
    G2 G3 G5 G6 G9 G11
"""
NAME = re.compile(r"test_([A-G]\d+)_[a-z0-9]")
SKIPPING = {"skip", "skipif", "xfail", "importorskip"}


@cache
def functions() -> list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [
        (path, node)
        for path in sorted(TESTS.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


@pytest.mark.parametrize("case", CASES.split())
def test_the_case_has_a_test(case: str) -> None:
    found = {match[1] for _, node in functions() if (match := NAME.match(node.name))}
    assert case in found, f"no test is called test_{case}_..."


def test_nothing_is_skipped() -> None:
    """Neither by a decorator nor by a call: a test that cannot run here must fail and say why."""
    offenders = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in SKIPPING
        and isinstance(node.value, ast.Name | ast.Attribute)
        and (node.value.id if isinstance(node.value, ast.Name) else node.value.attr) in {"pytest", "mark"}
    ]
    assert offenders == []
