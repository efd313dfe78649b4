"""What is imported is declared, and what is declared is pinned to a version that was tested."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = {"streamgen", "streamgen_kernels", "tests", "scripts"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def names(requirements: list[str]) -> set[str]:
    return {normalized(re.split(r"[\s<>=!~;\[]", requirement)[0]) for requirement in requirements}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(*folders: str) -> set[str]:
    """Distributions behind the top-level modules that are imported, as packages of the environment know them."""
    modules: set[str] = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    modules |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    modules.add(node.module.partition(".")[0])
    known = packages_distributions()
    third_party = modules - OURS - set(sys.stdlib_module_names)
    return {normalized(known.get(module, [module])[0]) for module in third_party}


def test_the_packages_import_only_what_they_declare() -> None:
    assert imported("streamgen", "kernels") - names(PROJECT["dependencies"]) == set()


def test_the_tests_import_only_what_is_declared_for_them() -> None:
    declared = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["dev"])
    assert imported("tests", "scripts") - declared == set()


def test_each_declared_package_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = names([line for line in lines if line and not line.startswith("#")])
    declared = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["dev"])
    assert declared - pinned == set()
