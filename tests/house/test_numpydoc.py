"""Every public class, function and method has a numpydoc docstring with an example.

A docstring begins with a sentence. Its Parameters section has the parameters of the signature, and
no others. A function that returns something has a Returns (or Yields) section, one with a `raise`
statement has a Raises section, and all have an example with `>>>`, which runs as a doctest.
"""

import ast
import inspect
import pkgutil
import re
import textwrap
from functools import cached_property
from pathlib import Path

import pytest

API = Path(__file__).resolve().parents[2] / "docs" / "api.md"
DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (\S+)\n((?:   :.*\n)*)", re.MULTILINE)
SECTION = re.compile(r"^(\w[\w ]*)\n(-{3,})$", re.MULTILINE)
# The types of errors need no example: a sentence says when each is raised.
WITHOUT_EXAMPLE = (Exception,)


def public_things():
    """Yield (dotted name, object, owner or None) for everything that docs/api.md shows."""
    for kind, path, options in DIRECTIVE.findall(API.read_text()):
        if path.startswith("gpx_scale.distributed"):
            try:
                thing = pkgutil.resolve_name(path)
            except ImportError:
                continue
        else:
            thing = pkgutil.resolve_name(path)
        if kind == "data":
            continue
        if kind == "module":
            defined = [n for n, v in vars(thing).items() if getattr(v, "__module__", "") == path]
            for name in getattr(thing, "__all__", defined):
                one = getattr(thing, name)
                if callable(one) and getattr(one, "__module__", "").startswith("gpx_scale"):
                    yield f"{path}.{name}", one, None
                    yield from public_methods(f"{path}.{name}", one)
            continue
        yield path, thing, None
        listed = re.search(r" :members: (.+)\n", options)
        for name in listed[1].split(", ") if listed else []:
            yield f"{path}.{name}", inspect.getattr_static(thing, name), thing


def public_methods(path, cls):
    """Yield the methods that a class of a public module defines itself.

    Methods of kernels are left out: solvers call them, users do not.
    """
    if not inspect.isclass(cls) or path.startswith("gpx_scale.kernels"):
        return
    for name, value in vars(cls).items():
        is_method = inspect.isfunction(value) or isinstance(value, (property, classmethod))
        if is_method and not name.startswith("_") and not name.endswith("_request"):
            yield f"{path}.{name}", value, cls


class Docstring:
    """The sections of a docstring, by title; what comes before the first one is "Summary"."""

    def __init__(self, text):
        self.text = text
        found = list(SECTION.finditer(text))
        ends = [*(match.start() for match in found), len(text)][1:]
        self.sections = {"Summary": text[: found[0].start()] if found else text}
        for match, end in zip(found, ends, strict=True):
            assert len(match[1]) == len(match[2]), f"the line below {match[1]} has another length"
            self.sections[match[1]] = text[match.end() : end]

    @cached_property
    def parameters(self):
        """Return the names that the entries of the Parameters section begin with."""
        lines = self.sections.get("Parameters", "").splitlines()
        entries = [line.split(" : ")[0] for line in lines if line and not line.startswith(" ")]
        return [name.strip().lstrip("*") for entry in entries for name in entry.split(",")]


def function_of(thing):
    """Return the function of a property, a class method or a method that `available_if` wraps."""
    if isinstance(thing, property):
        return thing.fget
    if isinstance(thing, (classmethod, staticmethod)):
        return thing.__func__
    return getattr(thing, "fn", thing)


def signature_names(thing):
    """Return the names of the parameters, without self."""
    target = thing if inspect.isclass(thing) else function_of(thing)
    try:
        names = list(inspect.signature(target).parameters)
    except ValueError:
        return []
    return [name for name in names if name not in ("self", "cls")]


def returns_something(function):
    """Return whether the annotation says that the function returns something."""
    return inspect.signature(function).return_annotation not in (
        None,
        "None",
        inspect.Signature.empty,
    )


def raises_something(function):
    """Return whether the body has a raise statement."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


THINGS = list(public_things())


@pytest.mark.parametrize(("path", "thing", "owner"), THINGS, ids=[path for path, *_ in THINGS])
def test_the_docstring_is_whole(path, thing, owner):
    text = inspect.getdoc(thing if inspect.isclass(thing) else function_of(thing))
    assert text, "there is no docstring"
    doc = Docstring(text)
    first = doc.sections["Summary"].strip().split("\n\n")[0]
    assert re.search(r"[.:)]$", first), f"the first paragraph is no sentence: {first!r}"
    assert first[0].isupper(), f"the first sentence begins with {first[:20]!r}"
    if inspect.isclass(thing) and issubclass(thing, WITHOUT_EXAMPLE):
        return
    if not isinstance(thing, property):
        described = doc.parameters or attributes_of(doc)
        for base in thing.__bases__ if inspect.isclass(thing) and not doc.parameters else ():
            described += attributes_of(Docstring(inspect.getdoc(base) or ""))
        assert set(described) >= set(signature_names(thing)), "a parameter is not described"
        assert not set(doc.parameters) - set(signature_names(thing)), "a parameter is not there"
    if not inspect.isclass(thing):
        function = function_of(thing)
        if returns_something(function) and not isinstance(thing, property):
            assert {"Returns", "Yields"} & doc.sections.keys(), "it does not say what is returned"
        if raises_something(function):
            assert "Raises" in doc.sections, "it does not say what is raised"
    assert ">>>" in doc.sections.get("Examples", ""), "there is no example"


def attributes_of(doc):
    """Return the names in the Attributes section, by which a record describes its fields."""
    lines = doc.sections.get("Attributes", "").splitlines()
    entries = [line.split(" : ")[0] for line in lines if line and not line.startswith(" ")]
    return [name.strip() for entry in entries for name in entry.split(",")]


def test_there_is_something_to_check():
    assert len(THINGS) > 100
