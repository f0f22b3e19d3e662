"""Install the wheel of dist/ into an empty environment, and run the suite outside of the
source tree.

Nothing is imported from src, so a file that the wheel lacks fails a test here:

    python .ci/test_installed.py [--constraint .ci/oldest.txt]

The Python that runs this script makes the environment. `make wheel` builds the wheel.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Tests read these, and the examples in pages are tests themselves.
FOLDERS = ("tests", "docs", "bench", ".ci")
FILES = (
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Makefile",
    "pyproject.toml",
)
MADE = shutil.ignore_patterns("__pycache__", "_build", "auto_gallery")


def wheel() -> Path:
    """Return the one wheel of dist/."""
    found = list((ROOT / "dist").glob("*.whl"))
    if len(found) != 1:
        sys.exit(f"dist/ has {len(found)} wheels, and one is needed. Run make wheel.")
    return found[0]


def make_environment(folder: Path, constraint: Path | None) -> Path:
    """Return the Python of a new environment that has the wheel and what the tests need."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if constraint is not None:
        command += ["--constraint", constraint.resolve()]
    subprocess.run([*command, f"{wheel()}[test]"], check=True)
    return python


def copy_tests(tree: Path) -> None:
    """Copy to `tree` everything that the suite reads, without the package."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=MADE)
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--constraint", type=Path, help="file of versions for pip")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder, "environment"), arguments.constraint)
        tree = Path(folder, "tree")
        copy_tests(tree)
        # --pyargs runs the examples in the docstrings of the installed package.
        suite = ["tests", "README.md", "docs", "--pyargs", "gpx_scale"]
        command = [python, "-m", "pytest", "-m", "not slow and not soak", *suite]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(
            [python, "-c", "import gpx_scale; print('testing', gpx_scale.__file__)"],
            cwd=tree,
            env=environment,
            check=True,
        )
        return subprocess.run(command, cwd=tree, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
