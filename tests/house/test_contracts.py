"""Contracts are declared and used.

No code tests the types of our own objects, asks for a solver by its name, or calls a method that a
contract does not have.
"""

import ast
import inspect
from pathlib import Path

import pytest

import gpx_scale
from gpx_scale.data.features import Features
from gpx_scale.data.row_source import RowSource
from gpx_scale.kernels import Kernel
from gpx_scale.likelihoods import Likelihood
from gpx_scale.linalg.covariance import Covariance
from gpx_scale.linalg.preconditioner import Preconditioner
from gpx_scale.solvers import registry
from gpx_scale.solvers.contract import Solver
from gpx_scale.solvers.posterior import Posterior

PACKAGE = Path(gpx_scale.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
CONTRACTS = [Covariance, Features, Kernel, Likelihood, Posterior, Preconditioner, RowSource, Solver]

# Type tests of our own objects outside of their package, each with its reason.
JUSTIFIED = {
    # x of a kernel of vectors is an array, or sparse rows: the kernel's own packages ask which.
    ("kernels", "Features"),
    ("kernels", "SparseFeatures"),
    ("linalg", "SparseFeatures"),
    ("solvers.cg", "Features"),
    ("solvers.inducing", "Features"),
    # What a user gives: an object of ours, or anything else.
    ("estimator", "XZ"),
    ("kernels", "Kernel"),
    ("metrics", "Explanation"),
    ("plots", "Explanation"),
    ("report", "Explanation"),
    ("text", "Explanation"),
    ("compare", "XZ"),
    # What a file holds may be anything.
    ("persistence", "*"),
}


def package_of(path):
    """Return the package of a module; a solver is a package of its own."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts[0] == "solvers" and len(parts) > 2:
        return ".".join(parts[:2])
    return parts[0]


def classes_of_ours():
    """Return where each class of the package is defined."""
    return {
        node.name: package_of(path)
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }


def names_in(node):
    return [
        name.id if isinstance(name, ast.Name) else name.attr
        for name in ast.walk(node)
        if hasattr(name, "id") or hasattr(name, "attr")
    ]


def test_objects_of_other_packages_are_asked_and_not_tested_for_their_type():
    where, found = classes_of_ours(), []
    errors = set(vars(gpx_scale.errors))
    for path in FILES:
        tree = ast.parse(path.read_text())
        # An assertion tells the type checker what is known, and decides nothing. A file may
        # hold anything.
        passed_over = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Assert) or getattr(node, "name", "") == "must_fit"
        ]
        narrowing = {id(call) for node in passed_over for call in ast.walk(node)}
        for node in ast.walk(tree):
            if (
                not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance")
                or id(node) in narrowing
            ):
                continue
            for name in names_in(node.args[1]):
                mine = package_of(path)
                elsewhere = name in where and name not in errors and where[name] != mine
                if elsewhere and not {(mine, name), (mine, "*")} & JUSTIFIED:
                    found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} asks for {name}")
    assert not found, "\n".join(found)


def test_no_module_but_the_registry_compares_the_name_of_a_solver():
    names, found = {*registry.NAMES, "auto"}, []
    for path in FILES:
        if path == PACKAGE / "solvers" / "registry.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            constants = {
                c.value
                for side in sides
                for c in ast.walk(side)
                if isinstance(c, ast.Constant) and isinstance(c.value, str)
            }
            asked = any("solver" in name for side in sides for name in names_in(side))
            if asked and constants & (names - {"auto"}):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not found, "\n".join(found)


def test_no_bare_not_implemented_error():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and node.exc is not None:
                assert "NotImplementedError" not in names_in(node.exc), f"{path}:{node.lineno}"


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda one: one.__name__)
def test_every_method_of_a_contract_says_what_it_does(contract):
    for name, member in vars(contract).items():
        member = getattr(member, "__func__", getattr(member, "fget", member))
        if inspect.isfunction(member) and not name.startswith("_"):
            assert inspect.getdoc(member), f"{contract.__name__}.{name}"


@pytest.mark.parametrize("solver", registry.SOLVERS, ids=lambda one: one.name)
def test_every_solver_implements_the_contract(solver):
    assert not inspect.isabstract(solver)
    assert solver.capabilities
    assert registry.find(solver.name) is solver
    for alias in solver.aliases:
        assert registry.find(alias) is solver
