"""A report in one HTML file: a verdict, the important features, and the reasons of each sample.

The page is `report.html`, a jinja2 template (extra `[report]`), and needs no network. The template
escapes all names and texts of users; samples are JSON, which its script shows as text. Its
Content-Security-Policy allows that script and that style, by their hashes, and nothing else.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import ndtri

from ..errors import InputError
from ..explanation import Explanation, Importance, Reason, by_groups
from ..numbers_as_text import decimals, percent, significant
from ..palette import ADDS_NAME, BLUE, DARK, LIGHT, PRINT, TAKES_NAME, VERMILION, Scheme, rgb
from ..runtime.arguments import probability, whole
from ..runtime.files import atomic_write, import_optional
from ..runtime.journal import Journal
from ..runtime.memory import counted
from ..runtime.parallel import evenly_spaced
from ..text import pieces_of, shade
from .effects import effect_pictures, parts_in_words
from .held_out import HeldOut, calibration, coverage_tables, held_out_predictions, seconds_of
from .model_card import model_card
from .verdict import figures, spread_of, verdict

__all__ = ["Section", "write_report"]

TEMPLATE = Path(__file__).with_name("report.html")
# The table of overall importance has at most this many features.
MAX_IMPORTANT_FEATURES = 20
# The share of samples in which a sign is sure is shown if it differs between features by this much.
LEAST_DIFFERENCE_OF_SURE_SHARES = 0.05
# The plot of predicted and true values has at most this many dots, so that single ones can be seen.
MAX_DOTS = 400
# This quantile of the absolute values has the deepest shade, so that an outlier does not make all
# others pale.
DEEPEST_SHADE_QUANTILE = 0.995
# The numbers of a reason are written to this many significant digits.
SIGNIFICANT_DIGITS = {
    "value": 7,
    "weight": 4,
    "weight_std": 3,
    "contribution": 6,
    "contribution_std": 3,
}


@dataclass(frozen=True, eq=False)
class Section:
    """A section of a report: the explanations of m samples, and how they are shown.

    Parameters
    ----------
    title : str
        The title of the section.
    explanation : Explanation
        The explanations of the samples.
    y : array-like of shape (m,), optional
        The true values. With them the report has the errors and the coverage of the intervals.
    about : str, default=""
        A sentence about the data.
    seen : int, optional
        How many of the samples the model was fitted on. It counts only where the report cannot find
        that out, as for a copy of an explanation, or if the model is gone.
    image_shape : tuple of two int, optional
        The numbers of rows and columns of an image, if features are pixels. The samples are then
        drawn, with their weights and contributions.
    documents : sequence of m str, optional
        The texts whose words are the features. They are shown with these words shaded.
    sample_names : sequence of m str, optional
        The names by which samples are listed and searched. By default, these are the index of the
        data frame that was explained.
    k : int, default=30
        The number of reasons that are shown per sample, the largest ones; the others are summed up.
    samples : int, default=2000
        The largest number of samples that are listed, evenly spread. Figures are of all samples.
    level : float, default=0.95
        The probability of the intervals.
    by : array-like of m labels, optional
        Groups of samples, for which the coverage of the intervals is shown apart.
    times : array-like of m dates or numbers, optional
        When the samples were taken. The coverage is shown over time.
    units : mapping of str to str, optional
        The units of features, by their names. By default those of the explanation.
    target_units : str, optional
        The units of y. By default those of the explanation.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.report import Section
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = GPXRegressor(optimizer=None).fit(X[:400], y[:400])
    >>> section = Section("Diabetes", model.explain(X[400:]), y=y[400:], seen=0)
    >>> len(section.explanation)
    42
    """

    title: str
    explanation: Explanation
    y: Any = None
    about: str = ""
    seen: int | None = None
    image_shape: tuple[int, int] | None = None
    documents: Sequence[str] | None = None
    sample_names: Sequence[str] | None = None
    k: int = 30
    samples: int = 2000
    level: float = 0.95
    by: Any = None
    times: Any = None
    units: Mapping[str, str] | None = None
    target_units: str | None = None

    def __post_init__(self) -> None:
        m, d = self.explanation.weights.shape
        if m == 0:
            raise InputError(f"The section {self.title!r} has no samples. Explain at least one.")
        for name in ("y", "documents", "sample_names", "by", "times"):
            given = getattr(self, name)
            if given is not None and len(given) != m:
                raise InputError(
                    f"{name} has {len(given)} entries for {m} explanations. Give one for each."
                )
        if self.y is not None and not (
            np.ndim(self.y) == 1 and np.isfinite(np.asarray(self.y, dtype=float)).all()
        ):
            raise InputError(f"y must have {m} finite numbers, one per explanation.")
        if self.y is not None and self.explanation.is_latent:
            raise InputError(
                "Explanations of classes are on the scale of the latent function, to which y "
                "cannot be compared. Leave y out, and give sklearn.metrics.log_loss the "
                "probabilities."
            )
        if self.image_shape is not None and (
            len(self.image_shape) != 2 or math.prod(self.image_shape) != d
        ):
            raise InputError(
                f"image_shape={self.image_shape!r}: Give (rows, columns) of an image of {d} pixels."
            )
        probability(self.level, "level")
        whole(self.k, "k", least=1)
        whole(self.samples, "samples", least=1)
        if self.times is not None:
            seconds_of(self.times)
        named = self.explanation.with_units(self.units, self.target_units)
        object.__setattr__(self, "explanation", named)


def write_report(
    path: Any,
    sections: Sequence[Section] | Section,
    title: str = "GPX report",
    verbose: int = 0,
) -> Path:
    """Write a report of one or more sections into one HTML file, which needs no network.

    The file is written whole or not at all. This needs the extra `[report]`.

    Parameters
    ----------
    path : str or path
        The file to write.
    sections : Section or sequence of Section
        The sections of the report.
    title : str, default="GPX report"
        The title of the page.
    verbose : int, default=0
        Whether a bar shows how many samples are written.

    Returns
    -------
    pathlib.Path
        The path of the file.

    Raises
    ------
    InputError
        If there are no sections, or if the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.report import Section, write_report
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = GPXRegressor(optimizer=None).fit(X[:400], y[:400])
    >>> section = Section("Diabetes", model.explain(X[400:]), y=y[400:], seen=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_report(Path(folder) / "report.html", section)
    ...     path.name, path.stat().st_size > 0
    ('report.html', True)
    """
    jinja2 = import_optional("jinja2", "report")
    sections = [sections] if isinstance(sections, Section) else list(sections)
    if not sections:
        raise InputError("A report needs at least one section. Give a Section.")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    with atomic_write(path) as beside:
        template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
        colours = _colours()
        context = template.new_context({"colours": colours})
        sources = {
            name: "".join(template.blocks[name](context)).encode() for name in ("style", "script")
        }
        hashes = {
            name: f"sha256-{b64encode(sha256(source).digest()).decode()}"
            for name, source in sources.items()
        }
        journal = Journal(verbose)
        with journal.bar("writing the report"):
            contents = [
                _content(section, name, journal)
                for section, name in zip(sections, _identifiers(sections), strict=True)
            ]
        page = template.render(title=title, colours=colours, hashes=hashes, sections=contents)
        beside.write_text(page, encoding="utf-8", errors="replace", newline="\n")
    return Path(path)


def _colours() -> dict[str, Any]:
    """Return the colours of the template: CSS declarations, and lists of red, green and blue."""
    return {
        "light": _declarations(LIGHT),
        "dark": _declarations(DARK),
        "print": _declarations(PRINT),
        "adds": rgb(VERMILION),
        "takes": rgb(BLUE),
        "adds_name": ADDS_NAME,
        "takes_name": TAKES_NAME,
        "pixel_ink": rgb(PRINT.ink),
        "pixel_paper": PRINT.paper,
    }


def _declarations(scheme: Scheme) -> str:
    """Return a CSS variable for each colour of a scheme."""
    colours = scheme._asdict().items()
    return " ".join(f"--{name.replace('_', '-')}: {colour};" for name, colour in colours)


def _identifiers(sections: Sequence[Section]) -> list[str]:
    """Return the names of sections in addresses: the words of their titles, made different."""
    names = [
        re.sub(r"\W+", "-", section.title.lower()).strip("-") or "section" for section in sections
    ]
    return [f"{name}.{at}" if name in names[:at] else name for at, name in enumerate(names)]


def _content(section: Section, identifier: str, journal: Journal) -> dict[str, Any]:
    """Return what the template shows of a section.

    Pixels and the words of texts stay by themselves, as they are shown in their places.
    """
    in_place = section.image_shape is not None or section.documents is not None
    if not in_place:
        grouped = by_groups(section.explanation)
        section = replace(section, explanation=grouped, units=None, target_units=None)
    explanation, fit = section.explanation, section.explanation.fit_report
    m, d = explanation.weights.shape
    kept = np.unique(np.linspace(0, m - 1, min(m, section.samples)).round().astype(int))
    importance, features = explanation.importance(), counted(d, "feature")
    spread = max(spread_of(explanation.prediction), float(importance.max()))
    # Numbers are shown to three digits of the differences between samples.
    shown = decimals(spread, 3)
    found = None
    if section.y is not None:
        y = np.asarray(section.y, dtype=float)
        found = held_out_predictions(explanation, y, section.seen)
    return {
        "id": identifier,
        "given": section,
        "verdict": verdict(explanation, found, importance, section.level),
        "fitted": "" if fit is None else f"{counted(fit.n_samples, 'sample')} fitted",
        "explained": f"{counted(m, 'sample')} explained here, {features}",
        "far": _far(explanation),
        "fit": None if fit is None else model_card(fit),
        "checked": found,
        "figures": [] if found is None else figures(explanation, found, section.level),
        "coverage": []
        if found is None or not found.is_fair
        else coverage_tables(found, section.by, section.times, section.level),
        "level": percent(section.level),
        "shown": f"the {MAX_IMPORTANT_FEATURES} largest of {features}"
        if d > MAX_IMPORTANT_FEATURES
        else features,
        "importance": _importance(explanation, importance, section.level),
        "parts": parts_in_words(explanation.part_shares()),
        "effects": [] if in_place else effect_pictures(explanation, importance, section.level),
        "sparse": sp.issparse(explanation.weights),
        "listed": (len(kept), m),
        "samples": _json(
            _samples(section, kept, found, journal)
            | {"id": identifier, "decimals": shown, "plots": _plots(found)}
        ),
    }


def _plots(found: HeldOut | None) -> dict[str, Any]:
    """Return the numbers of the plots of predictions and of calibration, for the script.

    They are evenly spread predictions [number of the sample or null, mean, sd, y], and the
    calibration.
    """
    if found is None:
        return {"dots": [], "calibration": []}
    dots = []
    for at in evenly_spaced(MAX_DOTS, len(found.y)).tolist():
        std = None if found.std is None else _rounded(found.std[at], 4)
        sample = None if found.samples is None else int(found.samples[at])
        dots.append([sample, _rounded(found.mean[at], 6), std, _rounded(found.y[at], 6)])
    shares = calibration(found) if found.is_fair else []
    return {
        "dots": dots,
        "calibration": [[round(p, 2), round(share, 4)] for p, share in shares],
        "count": len(found.y),
    }


def _far(explanation: Explanation) -> str:
    """Return a sentence about samples that the data say nothing about, empty if there are none."""
    far = np.flatnonzero(explanation.is_far)
    if not far.size:
        return ""
    return (
        f"The data say nothing about {far.size:,} of {counted(len(explanation), 'sample')}, the "
        f"first of which is number {far[0] + 1:,}: far from all training rows, weights are 0, and "
        "their standard deviations are those before any data."
    )


def _importance(explanation: Explanation, importance: Importance, level: float) -> dict[str, Any]:
    """Return the table of the most important features: `rows`, and whether `sure` informs.

    A row has the mean absolute contribution, how far it may be off at most, its parts that add and
    take away, in % of the largest, and the share of samples in which the sign is sure, because the
    interval does not contain 0. For sparse features, that is the share of those samples that have
    the feature. These shares inform if they differ between features.
    """
    entries, most = explanation.entries(), float(importance.max()) or 1.0
    bounds = importance.uncertainty
    contributions, d = entries["contribution"], len(importance)
    added = np.bincount(entries["feature"], np.maximum(contributions, 0.0), minlength=d) / len(
        explanation
    )
    reach = float(ndtri(0.5 + 0.5 * level))
    sure = np.abs(contributions) > reach * entries.get("contribution_std", np.inf)
    having, surely = (
        np.bincount(entries["feature"], weights, minlength=d) for weights in (None, sure)
    )
    order = np.argsort(-importance, kind="stable")[:MAX_IMPORTANT_FEATURES]
    share = surely / np.maximum(having, 1)
    rows = [
        {
            "name": explanation.feature_names[l],
            "size": significant(float(importance[l])),
            "reach": "" if bounds is None else f"± {significant(float(reach * bounds[l]), 2)}",
            "parts": [
                f"{100 * part / most:.2f}%"
                for part in (added[l], max(importance[l] - added[l], 0.0))
            ],
            "having": f"{having[l]:,}",
            "sure": f"{share[l]:.0%}",
        }
        for l in order.tolist()
        if importance[l] > 0 or l == order[0]
    ]
    return {"rows": rows, "sure": bool(np.ptp(share[order]) >= LEAST_DIFFERENCE_OF_SURE_SHARES)}


def _names_of_samples(section: Section) -> list[str] | None:
    """Return the names of a section's samples: given ones, or the index of their data frame.

    An index that only counts the samples is no name.
    """
    if section.sample_names is not None:
        return list(section.sample_names)
    index = section.explanation.index
    if index is None or index.tolist() == list(range(len(index))):
        return None
    return [str(label) for label in index.tolist()]


def _samples(
    section: Section, kept: np.ndarray, found: HeldOut | None, journal: Journal
) -> dict[str, Any]:
    """Return the kept samples for the script of the page.

    A reason is [feature, value, weight, its std, contribution, its std]. A value may be a text, the
    level of a category; the value and the weight of a group may be None. A sample that the model
    was fitted on has `left`, its prediction [mean, std] by a model without it, or null if there is
    none.
    """
    explanation, names = section.explanation, section.explanation.feature_names
    numbers = {
        "base": explanation.base_values,
        "base_sd": explanation.base_values_std,
        "prediction": explanation.prediction,
        "sd": explanation.prediction_std,
        "y": None if section.y is None else np.asarray(section.y, dtype=float),
    }
    labels, documents = (
        None if texts is None else list(texts)
        for texts in (_names_of_samples(section), section.documents)
    )
    # A group of several features has no value, which is NaN.
    values = explanation.data if sp.issparse(explanation.data) else np.nan_to_num(explanation.data)
    ranges = {"value": (values.min(), values.max())}
    ranges |= {
        name: _deepest(getattr(explanation, f"{name}s")) for name in ("weight", "contribution")
    }
    samples: list[dict[str, Any]] = []
    places, left = dict[int, int](), _left_out(found, kept)
    for i in kept.tolist():
        journal.passed(len(samples), len(kept), "samples")
        entries, levels = explanation[i].entries(), explanation[i].values()
        order = np.argsort(-np.abs(entries["contribution"]), kind="stable")
        top, rest = order[: section.k], order[section.k :]
        reasons: list[Any] = [
            [places.setdefault(l, len(places)) for l in entries["feature"][top].tolist()]
        ]
        for name, digits in SIGNIFICANT_DIGITS.items():
            known = levels if name == "value" else entries.get(name, [None] * len(levels))
            reasons.append([_shown(known[e], digits) for e in top])
        sample: dict[str, Any] = {
            name: _rounded(values[i], 10) for name, values in numbers.items() if values is not None
        }
        others = [len(rest), _rounded(entries["contribution"][rest].sum(), 6)]
        sample |= {"i": i, "reasons": list(zip(*reasons, strict=True)), "others": others}
        if i in left:
            sample["left"] = left[i]
        if labels is not None:
            sample["name"] = str(labels[i])
        if section.image_shape is not None:
            sample["image"] = [
                _picture(entries, name, *bounds, len(names)) for name, bounds in ranges.items()
            ]
        if documents is not None:
            sample["text"] = _shaded(str(documents[i]), names, entries, ranges["contribution"][1])
        samples.append(sample)
    return {
        "level": percent(section.level),
        "reach": float(ndtri(0.5 + 0.5 * section.level)),
        "features": [names[l] for l in places],
        "units": [(explanation.units or {}).get(names[l], "") for l in places],
        "target_units": explanation.target_units or "",
        "image": section.image_shape
        and {"shape": [int(side) for side in section.image_shape], "pixels": list(places)},
        "ranges": {
            name: [_rounded(bound, 4) for bound in bounds] for name, bounds in ranges.items()
        },
        "samples": samples,
    }


def _left_out(found: HeldOut | None, kept: np.ndarray) -> dict[int, list[float] | None]:
    """Return the predictions by models without them, of those kept samples that need one.

    They are None for samples whose own predictions are not to be compared with their true values.
    """
    if found is None:
        return {}
    if not found.is_fair or found.samples is None:
        return dict.fromkeys(kept.tolist())
    without = np.setdiff1d(kept, found.samples).tolist()
    left: dict[int, list[float] | None] = dict.fromkeys(without)
    for at in np.flatnonzero(found.replaced & np.isin(found.samples, kept)).tolist():
        numbers = [found.mean[at]] + ([] if found.std is None else [found.std[at]])
        left[int(found.samples[at])] = [_rounded(value, 10) for value in numbers]
    return left


def _shaded(
    document: str, names: list[str], entries: dict[str, np.ndarray], deepest: float
) -> list[Any]:
    """Return a document in pieces, shaded as by `text.highlight`.

    A piece is a text, or [word, opacity, sure, title]; a negative opacity takes away.
    """
    sd = entries.get("contribution_std", [None] * len(entries["feature"]))
    columns = (entries[name] for name in ("feature", "value", "weight", "contribution"))
    reasons = [Reason(names[l], *numbers) for l, *numbers in zip(*columns, sd, strict=True)]
    shaded: list[Any] = []
    for piece in pieces_of(document, reasons):
        if piece.reasons:
            strength = piece.contribution / (deepest or 1.0)
            opacity = math.copysign(round(shade(strength)[3], 2), strength)
            shaded.append([piece.text, opacity, int(piece.sure), piece.title])
        elif piece.text:
            shaded.append(piece.text)
    return shaded


def _picture(entries: dict[str, np.ndarray], name: str, low: float, high: float, size: int) -> str:
    """Return the pixels of a sample as base64 of bytes, 0 at `low` and 255 at `high`."""
    row = np.zeros(size)
    row[entries["feature"]] = entries[name]
    share = np.clip((row - low) / ((high - low) or 1.0), 0.0, 1.0)
    return b64encode(np.round(255 * share).astype(np.uint8).tobytes()).decode()


def _deepest(A: Any) -> tuple[float, float]:
    """Return the values of the deepest shades of weights or contributions."""
    sizes = np.nan_to_num(np.abs(A.data if sp.issparse(A) else A))
    most = float(np.quantile(sizes[sizes > 0], DEEPEST_SHADE_QUANTILE)) if sizes.any() else 1.0
    return -most, most


def _json(value: Any) -> str:
    """Return JSON without characters that mean something to HTML, for a script element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def _shown(value: Any, digits: int) -> float | int | str | None:
    """Return a number rounded to significant digits, a text as it is, and None for NaN."""
    if value is None or isinstance(value, str):
        return value
    return None if math.isnan(value) else _rounded(value, digits)


def _rounded(value: float, digits: int) -> float | int:
    """Return a number rounded to significant digits, as an int if it is whole."""
    number = float(f"{value:.{digits}g}")
    return int(number) if abs(number) < 1e15 and number.is_integer() else number
