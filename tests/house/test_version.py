"""The version and the minimum versions of dependencies agree wherever they are written."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import gpx_scale

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
# The extras that the test suite installs. Those for benchmarks and tools of developers have no
# oldest version.
TESTED_EXTRAS = ("plot", "report", "cli", "files", "dask", "test")


def test_the_installed_package_has_the_version_of_the_source():
    assert version("gpx-scale") == gpx_scale.__version__
    assert "version" not in PROJECT


def test_the_citation_has_the_version_of_the_source():
    citation = (REPOSITORY / "CITATION.cff").read_text()
    assert re.findall(r"^version: (\S+)$", citation, re.MULTILINE) == [gpx_scale.__version__]


def test_the_oldest_dependencies_are_the_minimum_versions():
    requirements = [*PROJECT["dependencies"]]
    for extra in TESTED_EXTRAS:
        requirements += PROJECT["optional-dependencies"][extra]
    minimum = dict(
        re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", one).groups()
        for one in requirements
        if not one.startswith("gpx-scale[")
    )
    lines = (REPOSITORY / ".ci" / "oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert {name: _numbers(pinned[name]) for name in minimum} == {
        name: _numbers(value) for name, value in minimum.items()
    }


def _numbers(text):
    """Return a version as numbers without zeros at its end: 1.26 and 1.26.0 are equal."""
    numbers = [int(part) for part in text.split(".")]
    while numbers[-1] == 0:
        numbers.pop()
    return numbers
