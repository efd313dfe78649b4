"""The README says what is."""

import re
from pathlib import Path

from scripts.flags_table import README, with_table

ROOT = README.parent


def test_the_table_of_flags_is_the_configurations() -> None:
    """If this fails, run `python scripts/flags_table.py`."""
    text = README.read_text(encoding="utf-8")
    assert with_table(text) == text


def test_files_that_the_pages_name_are_there() -> None:
    for page in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page} names {target}"


def test_every_folder_has_a_line_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = [f"{path.name}/" for path in (ROOT / "streamgen").iterdir() if (path / "__init__.py").exists()]
    others = ("static", "loadtest", "benchmarks", "scripts", "tests")
    folders += [f"{name}/" for name in others if Path(ROOT, name).is_dir()]
    assert [folder for folder in folders if f"{folder}`" not in text] == []
