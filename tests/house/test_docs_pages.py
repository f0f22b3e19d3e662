"""The pages of docs/ agree with the source tree.

This holds for the picture of the layers, the table of modules, and the names and files that pages
cite.
"""

import re
from pathlib import Path

import pytest
from test_layers import LAYERS, LEVEL

import gpx_scale

PACKAGE = Path(gpx_scale.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
CONTRIBUTING = REPOSITORY / "CONTRIBUTING.md"
PAGES = [REPOSITORY / "README.md", CONTRIBUTING, *sorted(DOCS.glob("*.md"))]
ARCHITECTURE = (DOCS / "architecture.md").read_text()
# Pages must not use these words, because nothing in the source has such a name. `doors` is a
# benchmark.
OLD_WORDS = re.compile(
    r"\brooms?\b|(?<!CASE=)(?<!`)\bdoors?\b|\bpilots?\b|posterior\.parts|runtime\.py|solvers\.py",
    re.I,
)
# Files that pages cite as examples of what one might add.
TO_BE_WRITTEN = {"solver.py", "posterior.py", "poisson.py", "likelihoods/poisson.py"}
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SPANS = re.compile(r"`([^`\n]+)`")


def code_spans(text):
    """Return what stands between backticks in the prose and the tables of a page."""
    return SPANS.findall(FENCED.sub("", text))


def listed_packages():
    """Return the list of packages: for each name, what it owns and the names of its modules."""
    listing = ARCHITECTURE.partition("## What is where")[2].partition("\n## ")[0]
    entries = re.split(r"^- ", listing, flags=re.MULTILINE)[1:]
    found = {}
    for entry in entries:
        name, owns = re.match(r"\*\*`([\w/]+)`\*\*: (.+)", entry).groups()
        found[name] = owns, re.findall(r"^  - `(\w+)`: ", entry, re.MULTILINE)
    return found


def modules_of(package):
    """Return the modules of a package, without those of packages in it."""
    return {path.stem for path in (PACKAGE / package).glob("*.py") if path.stem != "__init__"}


@pytest.mark.skipif(
    not (REPOSITORY / "src").is_dir(), reason="The script reads the source tree, which is not here."
)
def test_the_picture_is_what_the_script_draws():
    layers = {"__name__": "layers", "__file__": str(DOCS / "layers.py")}
    exec(compile((DOCS / "layers.py").read_text(), "layers.py", "exec"), layers)
    assert layers["layers"]() == LAYERS
    assert (DOCS / "layers.svg").read_text() == layers["drawn"](), "run: python docs/layers.py"


def test_the_list_has_every_package_and_module():
    packages = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py")} - {
        "."
    }
    rows = listed_packages()
    assert set(rows) == packages | modules_of(".")
    assert {name.split("/")[0] for name in rows} == set(LEVEL)
    for name, (owns, listed) in rows.items():
        assert owns
        assert listed == sorted(listed), name
        assert set(listed) == (modules_of(name) if name in packages else set()), name


def test_the_page_names_every_layer_from_the_lowest():
    assert re.findall(r"^\d\. \*\*(\w+)\*\*", ARCHITECTURE, re.MULTILINE) == list(LAYERS)


def test_names_of_the_code_are_in_the_code():
    """A name that a page cites, and that was changed since, is found here."""
    sources = [
        path
        for folder in (PACKAGE, REPOSITORY / "tests")
        for path in folder.rglob("*.py")
        if path != Path(__file__)
    ]
    known = {
        word
        for path in sources
        for word in [*re.findall(r"\w+", path.read_text()), *path.parts, path.stem]
    }
    how_to = CONTRIBUTING.read_text().partition("## How to add a solver")[2]
    names = [
        span
        for span in code_spans(ARCHITECTURE + how_to)
        if "/" not in span and not span.endswith(".py")
    ]
    cited = {word for span in names for word in re.findall(r"[A-Za-z_]\w+", span)} - {
        "load_",
        "prange",
    }
    assert cited - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_that_a_page_cites_are_there(page):
    # The suite may run where the package is installed and its source tree is not there.
    cited = {
        path.removeprefix("src/gpx_scale/")
        for span in code_spans(page.read_text())
        for path in re.findall(r"[\w/.]+\.py\b", span)
    }
    folders = REPOSITORY, PACKAGE, PACKAGE / "datasets"
    assert {
        path
        for path in cited - TO_BE_WRITTEN
        if not any((folder / path).is_file() for folder in folders)
    } == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_have_no_words_of_an_earlier_arrangement(page):
    found = [line for line in page.read_text().splitlines() if OLD_WORDS.search(line)]
    assert not found, "\n".join(found)
