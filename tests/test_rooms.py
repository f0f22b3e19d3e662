"""The rooms: imports point one way, and no room is too long."""

import ast
from pathlib import Path

import gpx_scale

PACKAGE = Path(gpx_scale.__file__).parent
ORDER = [
    *(
        "errors",
        "files",
        "table_files",
        "runtime",
        "factoring",
        "progress",
        "params",
        "jit",
        "jit_sparse",
        "features",
        "scaling",
        "checks",
        "inputs",
        "kernels",
        "blocks",
        "rows",
        "box",
    ),
    *("covariance", "pairs", "preconditioner", "solution", "krylov", "words", "parts", "local", "paths", "pilots"),
    *(
        "certified",
        "exact",
        "iterated",
        "cg",
        "grid",
        "bound",
        "placing",
        "inducing",
        "settling",
        "sums",
        "whitened",
        "basis",
        "lowdim",
        "plan",
        "stream",
        "evidence",
        "checkpoint",
    ),
    *(
        "solvers",
        "posterior",
        "explanation",
        "assembly",
        "metrics",
        "text",
        "plots",
        "report",
        "datasets",
        "model_checks",
        "persistence",
        "answers",
        "estimator",
        "compare",
        "partition_tasks",
        "distributed",
    ),
    *("tables", "recipes", "timing", "validation", "demos", "__init__", "cli"),
]
# Methods of an Explanation that call rooms below it, which import it at the top.
INSIDE_FUNCTIONS = {("explanation", "plots"), ("explanation", "report")}

FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path):
    """A room is a file of the package, or a folder of it."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_of(path):
    """(room, whether at the top of the file) for every import of another room."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            for name in names:
                yield ("__init__" if name == "__version__" else name), id(node) in top


def test_a_room_imports_only_rooms_above_it():
    assert {room_of(path) for path in FILES} == set(ORDER)
    for path in FILES:
        room = room_of(path)
        for other, at_top in imports_of(path):
            if at_top:
                assert ORDER.index(other) < ORDER.index(room), f"{room} imports {other}"
            else:
                assert (room, other) in INSIDE_FUNCTIONS, f"{room} imports {other} inside a function"


def test_no_room_imports_the_package_by_its_name():
    """Which `imports_of` would not see. Doctests may: they are a user's."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert not any(name.split(".")[0] == PACKAGE.name for name in names), f"{path}:{node.lineno}"


def test_rooms_are_one_idea_long():
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in FILES}
    assert max(lengths.values()) <= 450, lengths
