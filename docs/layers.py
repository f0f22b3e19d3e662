"""Draw docs/layers.svg, the six layers of the package, from `LAYERS` of test_layers.py.

Usage: python docs/layers.py
"""

from __future__ import annotations

import ast
import textwrap
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURE = REPOSITORY / "docs" / "layers.svg"
PURPOSES = {
    "applications": "use the package as a user would: terminal, cluster, pictures, reports, "
    "comparisons",
    "estimator": "plans a fit, runs it, keeps the fitted model and answers in the user's units",
    "solvers": "turn rows and hyperparameters into a marginal likelihood and a posterior",
    "numerics": "has the forms of C, its factor and preconditioner, and the search for an optimum",
    "problem": "states the model: checked rows, kernels, likelihoods, the prior of the weights",
    "runtime": "knows no kernel and no solver: threads, memory, progress, errors, compiled loops",
}
# Sizes are in pixels: the width of the picture, the left edge and the width of the boxes, the left
# edge of the text, the top margin, the height of a line, and the gap between boxes.
WIDTH = 740
LEFT = 12
BOX = 652
TEXT = 28
TOP = 12
LINE = 18
GAP = 10
# A character of 13 pixel monospace is 7.8 pixels wide, so that 80 of them fit into a box.
CHARACTERS = 80


def layers() -> dict[str, tuple[str, ...]]:
    """Return the packages and modules of each layer, the lowest layer first."""
    (listed,) = (REPOSITORY / "tests").rglob("test_layers.py")
    for node in ast.parse(listed.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            return eval(compile(ast.Expression(node.value), "LAYERS", "eval"), {"__builtins__": {}})
    raise SystemExit(f"{listed} has no LAYERS. Restore that constant, from which this is drawn.")


def contents(name: str, members: tuple[str, ...]) -> str:
    """Return the members of a layer, or what is in its package if it has only one."""
    if members != (name,):
        return "  ".join(members)
    inside = [
        path
        for path in sorted((REPOSITORY / "src" / "gpx_scale" / name).iterdir())
        if path.name[0] not in "._"
    ]
    packages = [path.name for path in inside if (path / "__init__.py").is_file()]
    return "  ".join([*packages, *(path.stem for path in inside if path.suffix == ".py")])


def text(x: int, y: int, words: str, style: str = "") -> str:
    """Return one line of text as an SVG element."""
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'


def drawn() -> str:
    """Return the picture as SVG."""
    out, y, count = [], TOP, len(PURPOSES)
    for level, (name, members) in enumerate(reversed(layers().items())):
        lines = textwrap.wrap(contents(name, members), CHARACTERS, break_on_hyphens=False)
        height = 50 + LINE * len(lines)
        out.append(
            f'<rect x="{LEFT}" y="{y}" width="{BOX}" height="{height}" rx="6" fill="#eaf2f8" '
            'stroke="#0072b2"/>'
        )
        out.append(
            text(TEXT, y + 22, f"{count - level}  {name}", 'font-size="16" font-weight="bold"')
        )
        out.append(text(TEXT, y + 41, PURPOSES[name], 'font-size="13.5"'))
        for line, packages in enumerate(lines):
            style = 'font-size="13" font-family="monospace" fill="#004c77" xml:space="preserve"'
            out.append(text(TEXT, y + 60 + LINE * line, packages, style))
        y += height + GAP
    arrow, end = LEFT + BOX + 26, y - GAP
    out.append(f'<path d="M{arrow} {TOP + 4}V{end - 14}" stroke="#1a1a1a" stroke-width="2"/>')
    out.append(f'<path d="M{arrow - 7} {end - 15}h14l-7 14z" fill="#1a1a1a"/>')
    middle = (TOP + end) // 2
    turned = f'font-size="15" text-anchor="middle" transform="rotate(90 {arrow + 16} {middle})"'
    out.append(text(arrow + 16, middle, "imports point down", turned))
    height = y - GAP + TOP
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" fill="#1a1a1a">',
        "<title>The six layers of gpx_scale; a module imports its own layer and those below it"
        "</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *out, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn())
