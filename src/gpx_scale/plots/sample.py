"""Plots of one sample, or of a few side by side: bars and images of contributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..explanation import Explanation, by_groups, dense
from ..numbers_as_text import percent
from ..palette import ADDS_NAME, CERTAINTY, PIXELS, PRINT, SIGNED, TAKES_NAME
from ..runtime.memory import counted
from .style import (
    axes_of,
    colour_map,
    contribution_to,
    label_of,
    label_with_value,
    prediction_of,
    pyplot,
    row_of,
)


def plot_contributions(
    explanation: Explanation,
    i: int = 0,
    *,
    ax: Any = None,
    k: int = 20,
    level: float = 0.95,
    groups: Any = None,
) -> Any:
    """Draw the k largest contributions to the prediction of sample i as bars.

    This is figure 1 of the paper. The labels have the values of the features. The last bar is
    the sum of the other contributions, so that all bars add up to the prediction minus the base
    value. It has no error bar, because that of a sum needs covariances.

    Parameters
    ----------
    explanation : Explanation
        The samples.
    i : int, default=0
        The number of the sample.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on; by default those of a new figure.
    k : int, default=20
        The number of features that have a bar of their own.
    level : float, default=0.95
        The probability of the intervals that the error bars and the number after ± show.
    groups : dict of str to list, bool or None, default=None
        The groups of features that are shown as one, as in `Explanation.grouped`. None takes those
        of the explanation, if it has some, and False shows each feature by itself.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.plots import plot_contributions
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = GPXRegressor(optimizer=None).fit(X, y)
    >>> ax = plot_contributions(model.explain(X[:5]), 0, ax=Figure().subplots(), k=4)
    >>> [label.get_text() for label in ax.get_yticklabels()][-1]
    '6 others'
    """
    one = by_groups(explanation[i], groups)
    contributions, values = row_of(one.contributions), one.values()
    features = (
        one.contributions.indices
        if sp.issparse(one.contributions)
        else np.arange(contributions.size)
    )
    order = np.argsort(-np.abs(contributions), kind="stable")
    drawn, others = order[:k], order[k:]
    reach, meaning = None, ""
    if one.contributions_std is not None:
        reach = row_of(one.interval(level).upper) - contributions
        meaning = f";\nerror bars and ±: {percent(level)} interval"
    labels = [label_with_value(one.feature_names[features[e]], values[e], one.units) for e in drawn]
    if others.size:
        labels.append(counted(others.size, "other"))
    ax = axes_of(ax, 4.6 + 0.075 * max(24, *map(len, labels), 0), 1.55 + 0.28 * max(1, len(labels)))
    widths, bars = contributions[drawn], {"ecolor": PRINT.ink, "elinewidth": 1.2, "capsize": 2.5}
    colours = np.where(widths >= 0, PRINT.adds, PRINT.takes)
    ax.barh(
        np.arange(len(drawn)),
        widths,
        xerr=None if reach is None else reach[drawn],
        color=colours,
        error_kw=bars,
    )
    if others.size:
        ax.barh(len(drawn), contributions[others].sum(), color=PRINT.rule)
    if not labels:
        ax.text(
            0.5,
            0.5,
            "none of the features is in this sample",
            transform=ax.transAxes,
            ha="center",
            va="center",
        )
    ax.set_yticks(np.arange(len(labels)), labels)
    ax.set_ylim(max(len(labels), 1) - 0.4, -0.6)
    ax.axvline(0.0, color=PRINT.quiet, linewidth=0.8)
    ax.set_xlabel(f"{contribution_to(one)}\n({ADDS_NAME} adds, {TAKES_NAME} takes away{meaning})")
    target = f"predicted {label_of(one.target_name)}" if one.target_name else "prediction"
    mean, base = prediction_of(one, 0, level)
    gap = " " if len(target) <= 24 else "\n"
    ax.set_title(f"{target}{gap}{mean}, base value {base}")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


# For each kind of image: its colour map, the label of its line, and the unit of its colour bar.
IMAGES = {
    "data": (PIXELS, "input", "value"),
    "weights": (SIGNED, "weight", "per unit of value"),
    "contributions": (SIGNED, "contribution", "part of prediction"),
    "certainty": (CERTAINTY, "certainty", "|mean| / std"),
}


def plot_image(
    explanation: Explanation,
    i: int,
    shape: tuple[int, int],
    *,
    ax: Any = None,
    what: str = "contributions",
    limit: float | None = None,
) -> Any:
    """Draw sample i as an image, one pixel per feature.

    Parameters
    ----------
    explanation : Explanation
        The samples.
    i : int
        The number of the sample.
    shape : tuple of two int
        The numbers of rows and columns of the image.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on; by default those of a new figure, with a colour bar.
    what : {"contributions", "weights", "data", "certainty"}, default="contributions"
        The numbers that are drawn. "certainty" is how many standard deviations the weights are
        from 0.
    limit : float, optional
        The value of the strongest colour; by default the largest in the image.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.datasets import load_digits
    >>> from gpx_scale.plots import plot_image
    >>> X, y, _ = load_digits()
    >>> model = GPXRegressor(optimizer=None).fit(X[:200], y[:200])
    >>> ax = plot_image(model.explain(X[:5]), 0, (8, 8), ax=Figure().subplots())
    >>> ax.images[0].get_array().shape
    (8, 8)
    """
    values = _pixels(explanation, [i], shape, what)
    low, high = _scale(values, what, limit)
    alone, ax = ax is None, axes_of(ax, 4.4, 3.6)
    image = ax.imshow(values[0], cmap=colour_map(IMAGES[what][0]), vmin=low, vmax=high)
    ax.set(xticks=[], yticks=[])
    if alone:
        ax.figure.colorbar(image, ax=ax, label=f"{IMAGES[what][1]} ({IMAGES[what][2]})")
        ax.set_title(f"prediction {prediction_of(explanation, i)[0]}{_meaning(explanation)}")
    return ax


def plot_images(
    explanation: Explanation,
    rows: Sequence[int],
    shape: tuple[int, int],
    *,
    titles: Sequence[str] | None = None,
    figure: Any = None,
) -> Any:
    """Draw samples as columns of images: input, weights, contributions and certainty.

    The certainty is how many standard deviations the weights are from 0. Each line of images
    has one scale of colours.

    Parameters
    ----------
    explanation : Explanation
        The samples.
    rows : sequence of int
        The numbers of the samples to draw.
    shape : tuple of two int
        The numbers of rows and columns of an image.
    titles : sequence of str, optional
        The titles of the samples, which stand above their predictions.
    figure : matplotlib.figure.Figure, optional
        The figure to draw on; by default a new one.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    InputError
        If there are no samples, or not as many titles as samples.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.datasets import load_digits
    >>> from gpx_scale.plots import plot_images
    >>> X, y, _ = load_digits()
    >>> model = GPXRegressor(optimizer=None).fit(X[:200], y[:200])
    >>> figure = plot_images(model.explain(X[:5]), [0, 1], (8, 8), figure=Figure())
    >>> len([ax for ax in figure.axes if ax.images])
    8
    """
    rows = list(rows)
    if not rows:
        raise InputError("rows=[] has no samples to draw. Give the numbers of some samples.")
    if titles is not None and len(titles) != len(rows):
        raise InputError(
            f"There are {len(titles)} titles for {len(rows)} samples. Give one per sample."
        )
    lines = [what for what in IMAGES if what != "certainty" or explanation.weights_std is not None]
    if figure is None:
        figure = pyplot().figure(
            figsize=(1.6 + 1.05 * len(rows), 0.6 + 1.12 * len(lines)), layout="constrained"
        )
    axes = figure.subplots(len(lines), len(rows), squeeze=False)
    for line, what in zip(axes, lines, strict=True):
        colours, label, measured = IMAGES[what]
        values = _pixels(explanation, rows, shape, what)
        low, high = _scale(values, what)
        for ax, image in zip(line, values, strict=True):
            drawn = ax.imshow(image, cmap=colour_map(colours), vmin=low, vmax=high)
            ax.set(xticks=[], yticks=[])
        line[0].set_ylabel(label)
        bar = figure.colorbar(drawn, ax=list(line), pad=0.01, aspect=12)
        bar.set_label(measured, fontsize=8)
        bar.ax.tick_params(labelsize=8)
    for at, (ax, i) in enumerate(zip(axes[0], rows, strict=True)):
        above = "" if titles is None else f"{label_of(titles[at])}\n"
        ax.set_title(f"{above}{prediction_of(explanation, i)[0]}", fontsize=9)
    if explanation.prediction_std is not None:
        figure.supxlabel("± after a prediction: its 95% interval", fontsize=9)
    return figure


def _meaning(explanation: Explanation) -> str:
    """Return what the number after ± is, if there is one."""
    return "" if explanation.prediction_std is None else " (95%)"


def _pixels(
    explanation: Explanation, rows: Sequence[int], shape: tuple[int, int], what: str
) -> np.ndarray:
    """Return the images of samples;  (len(rows), *shape)."""
    if what not in IMAGES:
        raise InputError(f"what={what!r}: Give one of {', '.join(map(repr, IMAGES))}.")
    some = explanation[np.asarray(rows)]
    values = dense(some.weights if what == "certainty" else getattr(some, what))
    if what == "certainty":
        if some.weights_std is None:
            raise InputError(
                "These explanations have no standard deviations. Use explain(..., std=True)."
            )
        deviations = dense(some.weights_std)
        values = np.divide(
            np.abs(values), deviations, out=np.zeros_like(values), where=deviations > 0
        )
    if len(shape) != 2 or shape[0] * shape[1] != values.shape[1]:
        raise InputError(
            f"shape={shape!r} does not fit {values.shape[1]} features. Give the numbers of rows "
            "and columns of an image."
        )
    return values.reshape(-1, *shape)


def _scale(values: np.ndarray, what: str, limit: float | None = None) -> tuple[float, float]:
    """Return the values of the first and the last colour."""
    high = (float(np.abs(values).max()) if limit is None else limit) or 1.0
    if IMAGES[what][0] == SIGNED:
        return -high, high
    return min(float(values.min()), 0.0), high
