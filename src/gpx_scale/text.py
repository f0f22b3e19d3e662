"""Words shaded where they stand: vermilion adds to the prediction, blue takes away, underlined where it is sure.

>>> from gpx_scale.explanation import Reason
>>> print(highlight("A warm & honest film.", [Reason("warm", 1.0, 0.8, 0.8, 0.2), Reason("film", 1.0, -0.1, -0.1, 0.3)]))
A <mark class="gpx" style="background:rgba(213,94,0,0.75);border-bottom:2px solid currentColor" title="+0.8 ± 0.2">warm</mark>
&amp; honest <mark class="gpx" style="background:rgba(0,114,178,0.09);border-bottom:none" title="-0.1 ± 0.3">film</mark>.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from .errors import InputError
from .explanation import Explanation, Reason
from .palette import BLUE, VERMILION, rgb

__all__ = ["highlight", "highlighted_page"]

SURE = 2.0  # deviations from 0
STRONGEST = 0.75  # opacity


class Piece(NamedTuple):
    """A word and its reasons, with its share of their contributions; or, without reasons, what stands between such words."""

    text: str
    reasons: list[Reason]
    contribution: float

    @property
    def sure(self) -> bool:
        return any(
            reason.contribution_std and abs(reason.contribution) > SURE * reason.contribution_std
            for reason in self.reasons
        )

    @property
    def title(self) -> str:
        """The numbers of its reasons."""
        return "; ".join(
            (f"{reason.feature}: " if " " in reason.feature else "")
            + f"{reason.contribution:+.3g}"
            + (f" ± {reason.contribution_std:.2g}" if reason.contribution_std is not None else "")
            for reason in self.reasons
        )


def pieces_of(document: str, reasons: Iterable[Reason]) -> list[Piece]:
    """The whole document in its order, words matched to reasons as `highlight` says."""
    named = {}
    for reason in reasons:
        named[reason.feature] = reason
        named.setdefault(reason.feature.lower(), reason)
    words = list(re.finditer(r"\w+", document))
    longest = max((len(name.split()) for name in named), default=1)
    found: list[list[Reason]] = [[] for _ in words]
    for size in range(1, longest + 1):
        for at in range(len(words) - size + 1):
            phrase = " ".join(word.group() for word in words[at : at + size])
            matched = named.get(phrase) or named.get(phrase.lower())
            if matched is not None:
                for k in range(at, at + size):
                    found[k].append(matched)
    pieces, end = [], 0
    for word, some in zip(words, found, strict=True):
        if some:
            total = sum(reason.contribution / len(reason.feature.split()) for reason in some)
            pieces += [
                Piece(document[end : word.start()], [], 0.0),
                Piece(word.group(), some, total),
            ]
            end = word.end()
    return [*pieces, Piece(document[end:], [], 0.0)]


def deepest(pieces: Iterable[Piece], strongest: float | None = None) -> float:
    """The contribution of the deepest shade: the one given, or the largest."""
    return strongest or max((abs(piece.contribution) for piece in pieces), default=0.0) or 1.0


def shade(strength: float) -> tuple[int, int, int, float]:
    """Red, green, blue (to 255) and opacity, of a contribution as a share of the deepest."""
    return *rgb(VERMILION if strength >= 0 else BLUE), STRONGEST * min(abs(strength), 1.0)


def highlight(document: str, reasons: Iterable[Reason], *, strongest: float | None = None) -> str:
    """The document as HTML, escaped, each word shaded by its contribution; a phrase's is shared by its words.

    reasons : as `explanation.top(i, k)` gives them. Features are words, or phrases of words next to each other (not with a
    stop word between), matched as they are written or, failing that, without regard to case.
    strongest : the contribution of the deepest shade; the largest of these, by default.
    A word that is more than two deviations from 0 is underlined; the title of each holds the numbers.
    """
    pieces = pieces_of(document, reasons)
    most = deepest(pieces, strongest)
    return "".join(
        _mark(piece, piece.contribution / most) if piece.reasons else escape(piece.text)
        for piece in pieces
    )


def _mark(piece: Piece, strength: float) -> str:
    red, green, blue, opacity = shade(strength)
    line = "2px solid currentColor" if piece.sure else "none"
    style = f"background:rgba({red},{green},{blue},{opacity:.2f});border-bottom:{line}"
    return f'<mark class="gpx" style="{style}" title="{escape(piece.title)}">{escape(piece.text)}</mark>'


def highlighted_page(
    explanation: Explanation, documents: Iterable[str], title: str = "Explained texts"
) -> str:
    """A self-contained HTML page: every document with its prediction, words shaded on one common scale, and a legend."""
    documents = list(documents)
    if len(documents) != len(explanation):
        raise InputError(f"{len(documents)} documents for {len(explanation)} explanations")
    reasons = [explanation.top(i, k=len(explanation.feature_names)) for i in range(len(documents))]
    most = max((abs(reason.contribution) for some in reasons for reason in some), default=1.0)
    items = []
    for i, (document, some) in enumerate(zip(documents, reasons, strict=True)):
        spread = (
            "" if explanation.prediction_std is None else f" ± {explanation.prediction_std[i]:.2g}"
        )
        shaded = highlight(document, some, strongest=most)
        items.append(f"<p><b>{explanation.prediction[i]:.3g}{spread}</b> &nbsp; {shaded}</p>")
    kinds = ((VERMILION, "adds"), (BLUE, "takes away"))
    shades = " ".join(
        f'<mark style="background:rgba{(*rgb(colour), STRONGEST)}">{what}</mark>'
        for colour, what in kinds
    )
    legend = f"<p>{shades} deepest: {most:.2g}; underlined: more than two standard deviations from 0.</p>"
    style = "body{font:16px/1.7 sans-serif;max-width:46em;margin:2em auto;padding:0 1em}mark{color:inherit;padding:0 2px}"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    body = f"<h1>{escape(title)}</h1>{legend}{''.join(items)}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'
