"""Documents as HTML in which words are shaded by their contributions.

Words that add to the prediction are vermilion, words that take away are blue. A word is underlined
if the 95% interval of its contribution does not contain 0.
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

# A contribution is sure if its 95% interval, which reaches so many standard deviations to either
# side, does not contain 0.
SURE_STDS = 1.959964
# The deepest shade has this opacity. Text on it can still be read.
DEEPEST_OPACITY = 0.75


class Piece(NamedTuple):
    """A word with its reasons and its share of their contributions, or the text between such words.

    Text between words has no reasons, and a contribution of 0.
    """

    text: str
    reasons: list[Reason]
    contribution: float

    @property
    def sure(self) -> bool:
        """Whether one of its contributions is surely not 0."""
        return any(
            reason.contribution_std
            and abs(reason.contribution) > SURE_STDS * reason.contribution_std
            for reason in self.reasons
        )

    @property
    def title(self) -> str:
        """The contributions of its reasons with halves of their 95% intervals, as text."""
        return "; ".join(
            (f"{reason.feature}: " if " " in reason.feature else "")
            + f"{reason.contribution:+.3g}"
            + _half(reason.contribution_std)
            for reason in self.reasons
        )


def _half(std: float | None) -> str:
    """Return half of the 95% interval as text, which is empty if the deviation is not known."""
    return "" if std is None else f" ± {SURE_STDS * std:.2g}"


def pieces_of(document: str, reasons: Iterable[Reason]) -> list[Piece]:
    """Return a document cut into pieces, in their order, with words matched as in `highlight`."""
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
    """Return the contribution that gets the deepest shade: `strongest`, or the largest one."""
    return strongest or max((abs(piece.contribution) for piece in pieces), default=0.0) or 1.0


def shade(strength: float) -> tuple[int, int, int, float]:
    """Return red, green, blue (up to 255) and opacity, for a share of the deepest contribution."""
    return *rgb(VERMILION if strength >= 0 else BLUE), DEEPEST_OPACITY * min(abs(strength), 1.0)


def highlight(document: str, reasons: Iterable[Reason], *, strongest: float | None = None) -> str:
    """Return a document as HTML, each word shaded by its contribution.

    The contribution of a phrase is shared equally by its words. A word is underlined if its
    contribution has a 95% interval without 0, and its title has the contribution and half of this
    interval. The text is escaped.

    Parameters
    ----------
    document : str
        The text.
    reasons : iterable of Reason
        The contributions, as `Explanation.top` returns them. Features are words, or phrases of
        words next to each other (with no stop word between them). They are matched as they are
        written or, if that fails, without regard to case.
    strongest : float or None, default=None
        The contribution that gets the deepest shade. None takes the largest of this document.

    Returns
    -------
    html : str
        The text with a `mark` element around each word that has a contribution.

    Examples
    --------
    >>> from gpx_scale.explanation import Reason
    >>> from gpx_scale.text import highlight
    >>> print(highlight("A warm & honest film.", [Reason("warm", 1.0, 0.8, 0.8, 0.2)]))
    A <mark class="gpx" style="background:rgba(213,94,0,0.75);border-bottom:2px solid currentColor"
    title="+0.8 ± 0.39">warm</mark> &amp; honest film.
    """
    pieces = pieces_of(document, reasons)
    most = deepest(pieces, strongest)
    return "".join(
        _mark(piece, piece.contribution / most) if piece.reasons else escape(piece.text)
        for piece in pieces
    )


def _mark(piece: Piece, strength: float) -> str:
    """Return the HTML of a shaded word."""
    red, green, blue, opacity = shade(strength)
    line = "2px solid currentColor" if piece.sure else "none"
    style = f"background:rgba({red},{green},{blue},{opacity:.2f});border-bottom:{line}"
    title, text = escape(piece.title), escape(piece.text)
    return f'<mark class="gpx" style="{style}" title="{title}">{text}</mark>'


def highlighted_page(
    explanation: Explanation, documents: Iterable[str], title: str = "Explained texts"
) -> str:
    """Return an HTML page with all documents and their predictions, words shaded on one scale.

    The page has a legend and needs no other file.

    Parameters
    ----------
    explanation : Explanation
        The explanations of the documents, whose features are words or phrases.
    documents : iterable of str
        The m documents.
    title : str, default="Explained texts"
        The title of the page.

    Returns
    -------
    page : str
        The HTML document.

    Raises
    ------
    InputError
        If there is not one document for each explanation.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.text import highlighted_page
    >>> texts = ["a good film", "a bad film", "good and long", "bad and long"]
    >>> words = CountVectorizer(binary=True)
    >>> vectors = words.fit_transform(texts)
    >>> model = GPXRegressor(optimizer=None).fit(vectors, [1.0, -1.0, 1.0, -1.0])
    >>> names = words.get_feature_names_out().tolist()
    >>> page = highlighted_page(model.explain(vectors, feature_names=names), texts)
    >>> page.startswith("<!doctype html>"), page.count('<mark class="gpx"') > 4
    (True, True)
    """
    documents = list(documents)
    if len(documents) != len(explanation):
        raise InputError(
            f"There are {len(documents)} documents for {len(explanation)} explanations. Give one "
            "document for each explanation."
        )
    reasons = [explanation.top(i, k=len(explanation.feature_names)) for i in range(len(documents))]
    most = max((abs(reason.contribution) for some in reasons for reason in some), default=1.0)
    items = []
    for i, (document, some) in enumerate(zip(documents, reasons, strict=True)):
        std = explanation.prediction_std
        spread = _half(None if std is None else float(std[i]))
        shaded = highlight(document, some, strongest=most)
        items.append(f"<p><b>{explanation.prediction[i]:.3g}{spread}</b> &nbsp; {shaded}</p>")
    kinds = ((VERMILION, "adds"), (BLUE, "takes away"))
    shades = " ".join(
        f'<mark style="background:rgba{(*rgb(colour), DEEPEST_OPACITY)}">{what}</mark>'
        for colour, what in kinds
    )
    underlined = "underlined: the 95% interval does not contain 0; ±: half of such an interval."
    legend = f"<p>{shades} deepest: {most:.2g}; {underlined}</p>"
    style = (
        "body{font:16px/1.7 sans-serif;max-width:46em;margin:2em auto;padding:0 1em}"
        "mark{color:inherit;padding:0 2px}"
    )
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    body = f"<h1>{escape(title)}</h1>{legend}{''.join(items)}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'
