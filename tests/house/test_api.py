"""Everything public has a docstring, and stands on the page docs/api.md."""

import ast
import inspect
import pkgutil
import re
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

import gpx_scale
from gpx_scale import PAPER, GPXRegressor
from problems import make_problem

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODULES = [
    "kernels",
    "blocks",
    "metrics",
    "datasets",
    "compare",
    "plots",
    "report",
    "text",
    "validation",
    "distributed",
]
CONSTANTS = (dict, list, tuple, set, frozenset, str, bytes, int, float)
DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (\S+)\n((?:   :.*\n)*)", re.MULTILINE)


def found_at(path):
    """Return the object of a dotted name."""
    if path.startswith("gpx_scale.distributed"):
        pytest.importorskip("distributed")
    return pkgutil.resolve_name(path)


def directives():
    """Yield (kind, object, listed members, excluded members) of everything that the page shows."""
    for kind, path, options in DIRECTIVE.findall((DOCS / "api.md").read_text()):
        listed, left_out = (
            re.search(rf" :{option}: (.+)\n", options) for option in ("members", "exclude-members")
        )
        yield (
            kind,
            found_at(path),
            *(found[1].split(", ") if found else [] for found in (listed, left_out)),
        )


def shown():
    """Return the ids of the objects on the page.

    A module shows its `__all__`, or everything that is defined in it.
    """
    ids = set()
    for kind, thing, listed, left_out in directives():
        ids.add(id(thing))
        if kind == "module":
            assert not listed, "a module's public names are those of its __all__"
            defined = [
                name
                for name, value in vars(thing).items()
                if getattr(value, "__module__", "") == thing.__name__
            ]
            ids |= {
                id(getattr(thing, name))
                for name in getattr(thing, "__all__", defined)
                if name not in left_out
            }
    return ids


def described(thing):
    """Return whether somebody wrote its docstring.

    A dataclass or NamedTuple without a docstring has its signature in the place of one.
    """
    return bool(thing.__doc__) and not thing.__doc__.startswith(f"{thing.__name__}(")


def described_constants(room):
    """Return the names of constants with a string below their assignment, where Sphinx finds it.

    The `__doc__` of a dict or a number is that of its class, and an import has no place for one.
    """
    body = ast.parse(inspect.getsource(room)).body
    for statement, after in pairwise(body):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("path", ["gpx_scale", *(f"gpx_scale.{name}" for name in MODULES)])
def test_public_names_are_documented_and_on_the_page(path):
    room, on_page = found_at(path), shown()
    assert id(room) in on_page or path in ("gpx_scale", "gpx_scale.distributed")
    for name in room.__all__:
        thing = getattr(room, name)
        if isinstance(thing, CONSTANTS):
            assert name in described_constants(room), f"{path}.{name} has no string below it"
        else:
            assert described(thing), f"{path}.{name} has no docstring"
        assert id(thing) in on_page, f"{path}.{name} is not in docs/api.md"


def test_every_error_is_documented_and_on_the_page():
    on_page = shown()
    for name, thing in vars(gpx_scale.errors).items():
        if isinstance(thing, type):
            assert described(thing), name
            assert id(thing) in on_page, name


def test_the_page_lists_every_method_of_its_classes():
    on_page = shown()
    for kind, cls, names, _ in directives():
        if kind == "class" and names:
            alone = takewhile(
                lambda parent, cls=cls: parent is cls or id(parent) not in on_page, cls.__mro__
            )
            methods = {
                name
                for parent in alone
                if parent.__module__.startswith("gpx_scale")
                for name, value in vars(parent).items()
                if not name.startswith("_")
                and hasattr(value, "__get__")
                and not name.endswith("_request")  # scikit-learn's
            }
            assert methods <= set(names), cls
            for name in names:
                assert inspect.getdoc(getattr(cls, name)), f"{cls.__name__}.{name} has no docstring"


def test_the_paper_s_model_is_one_of_the_regressor():
    assert set(PAPER) <= set(inspect.signature(GPXRegressor).parameters)
    assert GPXRegressor(**PAPER).get_params().items() >= PAPER.items()


def names_in(section, cls):
    """Return the names that the entries of a numpydoc section of a docstring begin with."""
    text = inspect.getdoc(cls)
    body = re.search(rf"^{section}\n-+\n(.*?)(?=\n\n\w+\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL)[
        1
    ]
    entries = [
        line.split(" : ")[0] for line in body.splitlines() if line and not line.startswith(" ")
    ]
    return {name.strip() for entry in entries for name in entry.split(",")}


def test_every_parameter_and_attribute_of_the_regressor_is_described():
    assert names_in("Parameters", GPXRegressor) == set(inspect.signature(GPXRegressor).parameters)
    fitted = {
        name
        for name in vars(make_problem().fitted())
        if name.endswith("_") and not name.startswith("_")
    }
    assert fitted <= names_in("Attributes", GPXRegressor)
