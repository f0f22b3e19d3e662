"""A plot of a document as flowing text, with its words shaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..explanation import Reason
from ..palette import PRINT
from ..text import Piece, deepest, pieces_of, shade
from .style import axes_of, pyplot

# The size of the letters.
FONT_POINTS = 11.0
# The distance of the lines.
LINE_POINTS = 19.0
# The width of the text in a new figure, which is 6.4 inches wide.
DEFAULT_WIDTH_POINTS = 445.0


def plot_text(
    document: str, reasons: Iterable[Reason], *, ax: Any = None, strongest: float | None = None
) -> Any:
    """Draw a document as flowing text, with its words shaded and underlined.

    As in `text.highlight`, the shade of a word shows its contribution, and a word is underlined if
    the 95% interval of its contribution does not contain 0.

    Parameters
    ----------
    document : str
        The text.
    reasons : iterable of Reason
        The contributions of words, such as `explanation.top(i, k)`.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on; by default those of a new figure. Lines are as wide as the axes are
        when this is called.
    strongest : float, optional
        The contribution that has the deepest shade; by default the largest one.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from gpx_scale.explanation import Reason
    >>> from gpx_scale.plots import plot_text
    >>> reasons = [Reason("warm", 1.0, 0.8, 0.8, 0.2), Reason("film", 1.0, -0.1, -0.1, 0.3)]
    >>> ax = plot_text("A warm film.", reasons, ax=Figure().subplots())
    >>> [text.get_text() for text in ax.texts]
    ['A', 'warm', 'film', '.']
    """
    plt = pyplot()
    from matplotlib.transforms import Affine2D, ScaledTranslation

    wide = DEFAULT_WIDTH_POINTS
    if ax is not None:
        wide = 72.0 * ax.get_window_extent().width / ax.figure.dpi
    pieces = pieces_of(document, reasons)
    most, placed = deepest(pieces, strongest), list(_flow(pieces, wide))
    tall = LINE_POINTS * (1 + max((line for _, line, *_ in placed), default=0))
    ax = axes_of(ax, 6.4, (tall + 30.0) / 72.0)
    ax.set_axis_off()
    points = (
        Affine2D().scale(1.0 / 72.0)
        + ax.figure.dpi_scale_trans
        + ScaledTranslation(0.0, 1.0, ax.transAxes)
    )
    # Positions are in points from the upper left corner, which stays where it is.
    free = {"transform": points, "clip_on": False, "in_layout": False}
    for x, line, width, word, piece in placed:
        y = -LINE_POINTS * (line + 0.7)
        if piece.reasons:
            colour = _rgba(piece.contribution / most)
            ax.add_patch(
                plt.Rectangle(
                    (x - 1.0, y - 4.0),
                    width + 2.0,
                    FONT_POINTS + 4.0,
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
        ax.text(x, y, word, fontsize=FONT_POINTS, va="baseline", parse_math=False, **free)
    kinds = ((1.0, f"adds (deepest: {most:.2g})"), (-1.0, "takes away"))
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=_rgba(sign), linewidth=0, label=what)
        for sign, what in kinds
    ]
    handles.append(
        plt.Line2D(
            [], [], color=PRINT.ink, linewidth=1.4, label="its 95% interval does not contain 0"
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
    """Yield (x, line, width, text, piece) of words set in lines of a width in points.

    Lines are cut at spaces, or inside of a word that is wider than a line.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font, paths = FontProperties(size=FONT_POINTS), TextToPath()

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
    """Return the shade of a contribution, from -1 to 1, as matplotlib takes colours."""
    red, green, blue, opacity = shade(strength)
    return red / 255.0, green / 255.0, blue / 255.0, opacity
