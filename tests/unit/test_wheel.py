"""What `pip install` puts on a machine: both packages, the page with its assets, and nothing of the tests."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_the_packages_and_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("streamgen_server-")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"streamgen/cli.py", "streamgen/py.typed", "streamgen_kernels/operators.py"} <= names
    page = [path for path in (ROOT / "static").rglob("*") if path.is_file()]
    assert ROOT / "static" / "index.html" in page
    assert {f"streamgen/static/{path.relative_to(ROOT / 'static')}" for path in page} <= names
    assert {name.partition("/")[0] for name in names} == {
        "streamgen",
        "streamgen_kernels",
        f"{wheel.name.partition('-py3')[0]}.dist-info",
    }
    assert not [name for name in names if "/tests/" in name or name.endswith(".pyc")]
