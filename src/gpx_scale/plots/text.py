"""A document as flowing text, its words shaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..explanation import Reason
from ..palette import PRINT
from ..text import Piece, deepest, pieces_of, shade
from .style import axes_of, pyplot

LETTERS, LEADING = 11.0, 19.0  # points: size of the letters, distance of the lines


def plot_text(
    document: str, reasons: Iterable[Reason], *, ax: Any = None, strongest: float | None = None
) -> Any:
    """The document as flowing text, its words shaded and underlined as `text.highlight` does it; returns the axes.

    reasons, strongest : as there. Lines are as wide as `ax` is when this is called.
    """
    plt = pyplot()
    from matplotlib.transforms import Affine2D, ScaledTranslation

    wide = 445.0 if ax is None else 72.0 * ax.get_window_extent().width / ax.figure.dpi
    pieces = pieces_of(document, reasons)
    most, placed = deepest(pieces, strongest), list(_flow(pieces, wide))
    tall = LEADING * (1 + max((line for _, line, *_ in placed), default=0))
    ax = axes_of(ax, 6.4, (tall + 30.0) / 72.0)
    ax.set_axis_off()
    points = (
        Affine2D().scale(1.0 / 72.0)
        + ax.figure.dpi_scale_trans
        + ScaledTranslation(0.0, 1.0, ax.transAxes)
    )
    free = {
        "transform": points,
        "clip_on": False,
        "in_layout": False,
    }  # in points from the upper left corner, which stays
    for x, line, width, word, piece in placed:
        y = -LEADING * (line + 0.7)
        if piece.reasons:
            colour = _rgba(piece.contribution / most)
            ax.add_patch(
                plt.Rectangle(
                    (x - 1.0, y - 4.0),
                    width + 2.0,
                    LETTERS + 4.0,
                    color=colour,
                    linewidth=0,
                    **free,
                )
            )
            if piece.sure:
                ax.plot(
                    [x, x + width],
                    [y - 3.2] * 2,
                    color=PRINT.ink,
                    linewidth=1.4,
                    solid_capstyle="butt",
                    **free,
                )
        ax.text(x, y, word, fontsize=LETTERS, va="baseline", parse_math=False, **free)
    kinds = ((1.0, f"adds (deepest: {most:.2g})"), (-1.0, "takes away"))
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=_rgba(sign), linewidth=0, label=what)
        for sign, what in kinds
    ]
    handles.append(
        plt.Line2D(
            [], [], color=PRINT.ink, linewidth=1.4, label="more than two standard deviations from 0"
        )
    )
    columns = 3 if wide > 400.0 else 1
    below = {
        "loc": "upper left",
        "bbox_to_anchor": (0.0, -tall),
        "bbox_transform": points,
        "columnspacing": 1.2,
    }
    legend = ax.legend(
        handles=handles,
        ncols=columns,
        frameon=False,
        fontsize=9,
        borderpad=0.0,
        borderaxespad=0.5,
        **below,
    )
    legend.set_in_layout(False)
    return ax


def _flow(pieces: Iterable[Piece], wide: float) -> Iterator[tuple[float, int, float, str, Piece]]:
    """Pieces in lines of a width in points, cut at spaces (or where one alone is too wide): x, line, width, text, piece."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font, paths = FontProperties(size=LETTERS), TextToPath()

    def width(text: str) -> float:
        return float(paths.get_text_width_height_descent(text, font, ismath=False)[0])

    runs: list[list[tuple[str, float, Piece]]] = [[]]
    for piece in pieces:
        for part in re.findall(r"\s+|\S{1,40}", piece.text):
            if part.isspace():
                runs.append([])
            else:
                runs[-1].append((part, width(part), piece))
    x, line, space = 0.0, 0, width(" ")
    for run in filter(None, runs):
        if x > 0.0 and x + sum(size for _, size, _ in run) > wide:
            x, line = 0.0, line + 1
        for part, size, piece in run:
            if x > 0.0 and x + size > wide:
                x, line = 0.0, line + 1
            yield x, line, size, part, piece
            x += size
        x += space


def _rgba(strength: float) -> tuple[float, ...]:
    red, green, blue, opacity = shade(strength)
    return red / 255.0, green / 255.0, blue / 255.0, opacity
