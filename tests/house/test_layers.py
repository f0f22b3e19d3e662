"""The layers: a module imports its own layer and the layers below it, and no module is too long."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

import gpx_scale

PACKAGE = Path(gpx_scale.__file__).parent
LAYERS = {
    "runtime": ("errors", "numbers_as_text", "runtime", "compiled"),
    "problem": ("data", "kernels", "likelihoods", "model", "blocks"),
    "numerics": ("linalg", "optimize"),
    "solvers": ("solvers",),
    "estimator": ("plan", "fitting", "estimator", "persistence", "explanation", "progress"),
    "applications": (
        *(
            "cli",
            "distributed",
            "report",
            "plots",
            "text",
            "metrics",
            "validation",
            "compare",
            "datasets",
        ),
        "palette",
    ),
}
LEVEL = {part: level for level, parts in enumerate(LAYERS.values()) for part in parts}
# Methods of an Explanation that draw or write a page. They keep matplotlib and jinja2 optional.
UPWARDS_INSIDE_FUNCTIONS = {("explanation", "plots"), ("explanation", "report")}
# Every solver starts from the exact optimum of a subset; a grid is solved by conjugate gradients.
SOLVERS_MAY_IMPORT = {
    "exact": set(),
    "cg": {"exact"},
    "grid": {"cg", "exact"},
    "inducing": {"exact"},
    "basis": {"exact"},
    "neighbors": {"exact"},
}
# Lines of code, without blank lines, comments and docstrings. A longer module is usually two ideas.
LONGEST_MODULE_LINES = 400
# Types of tokens that do not make a line one of code.
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path):
    """Return the parts of a module's name below the package, without `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports_of(path):
    """Yield (parts of the imported module, whether it is at the top of the file).

    Only imports of our own package are considered.
    """
    tree = ast.parse(path.read_text())
    checking = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    top = {id(node) for body in (tree.body, *(node.body for node in checking)) for node in body}
    folder = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - (node.level - 1)]
            named = tuple(node.module.split(".")) if node.module else ()
            if base + named:
                yield base + named, id(node) in top
            else:  # from .. import name: the name is a module, or __version__
                for alias in node.names:
                    yield (alias.name,), id(node) in top


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(module_of(path)) or "__init__")
def test_a_module_imports_its_own_layer_and_those_below(path):
    module = module_of(path)
    if not module:
        return
    for other, at_top in imports_of(path):
        if other == ("__version__",):
            continue
        if LEVEL[other[0]] > LEVEL[module[0]]:
            assert not at_top, f"{'.'.join(module)} imports {'.'.join(other)} from a layer above it"
            assert (module[0], other[0]) in UPWARDS_INSIDE_FUNCTIONS
        elif not at_top:
            assert other[0] == module[0] == "cli", (
                f"{'.'.join(module)} imports {'.'.join(other)} inside a function"
            )


def test_solvers_meet_only_where_they_may():
    for path in FILES:
        module = module_of(path)
        if module[:1] == ("solvers",) and len(module) > 1 and module[1] in SOLVERS_MAY_IMPORT:
            allowed = SOLVERS_MAY_IMPORT[module[1]] | {module[1]}
            for other, _ in imports_of(path):
                if other[:1] == ("solvers",) and len(other) > 1 and other[1] in SOLVERS_MAY_IMPORT:
                    assert other[1] in allowed, f"{'.'.join(module)} imports {'.'.join(other)}"


def test_every_part_of_the_package_has_a_layer():
    assert {module_of(path)[0] for path in FILES if module_of(path)} <= set(LEVEL)


def test_no_module_imports_the_package_by_its_name():
    """`imports_of` would not see such an import. Doctests may have them, as users do."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert not any(name.split(".")[0] == PACKAGE.name for name in names), (
                f"{path}:{node.lineno}"
            )


def code_lines(text):
    """Return how many lines of a module have code on them, and not only comment or docstring."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings |= set(range(node.lineno, node.end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def test_lines_of_code_are_counted_without_prose():
    text = '''"""A module.

It has a docstring.
"""

# A comment.
X = 1  # Another one.


def f(a):
    """Return a."""
    return """
    {}
    """.format(
        a
    )
'''
    assert code_lines(text) == 7


def test_a_module_is_one_idea_long():
    lengths = {str(path.relative_to(PACKAGE)): code_lines(path.read_text()) for path in FILES}
    longest = max(lengths, key=lengths.get)
    assert lengths[longest] <= LONGEST_MODULE_LINES, f"{longest}: {lengths[longest]} lines of code"
