"""Plots of all samples: contributions by feature, a weight along a column of X."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..data.input_pair import take, unpack
from ..errors import InputError
from ..explanation import Explanation, between, by_groups
from ..numbers_as_text import percent
from ..palette import BLUE, PRINT, SIZES
from ..runtime.memory import counted
from ..runtime.parallel import evenly_spaced
from .style import (
    axes_of,
    column_of,
    contribution_to,
    label_of,
    position_of,
    pyplot,
    range_of,
    unit_of,
)

# More error bars per feature of a summary would hide each other.
MAX_ERROR_BARS = 200
# The multiples of the golden ratio are evenly spread modulo 1.
GOLDEN_RATIO = 0.618033988749895
# A dependence plot marks at most this many values of the column.
MAX_MARKS = 500


def plot_summary(
    explanation: Explanation, *, k: int = 12, ax: Any = None, groups: Any = None
) -> Any:
    """Draw the contributions of the k most important features, with a point for each sample.

    Each feature has a line of points, coloured by the value of the feature and spread by their
    density. Thin lines are 95% intervals, for at most 200 samples per feature.
    For sparse features, a sample has a point if it has the feature.

    Parameters
    ----------
    explanation : Explanation
        The samples.
    k : int, default=12
        The number of features.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on; by default those of a new figure.
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
    >>> from gpx_scale.plots import plot_summary
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = GPXRegressor(optimizer=None).fit(X, y)
    >>> plot_summary(model.explain(X[:50]), ax=Figure().subplots()).get_title()
    '10 features, 50 samples'
    """
    plt, explanation = pyplot(), by_groups(explanation, groups)
    order = np.argsort(-explanation.importance(), kind="stable")[:k]
    found = {int(feature): column_of(explanation.contributions, feature)[1] for feature in order}
    columns = {feature: column for feature, column in found.items() if column.size}
    sparse = sp.issparse(explanation.contributions)
    ax = axes_of(ax, 7.2, 1.5 + 0.45 * max(1, len(columns)))
    most, lines, coloured = max(map(len, columns.values()), default=0), 0, False
    look = {
        "s": 14 if most <= 500 else 7 if most <= 5_000 else 3,
        "linewidths": 0,
        "zorder": 3,
        "rasterized": most > 2_000,
    }
    for line, (feature, column) in enumerate(columns.items()):
        heights = line + _spread(column)
        shades = _low_to_high(column_of(explanation.data, feature)[1])
        if shades is None:
            ax.scatter(column, heights, color=PRINT.quiet, **look)
        else:
            ax.scatter(column, heights, c=shades, cmap=SIZES, vmin=0.0, vmax=1.0, **look)
            coloured = True
        if explanation.contributions_std is not None:
            some = np.argsort(column, kind="stable")[evenly_spaced(MAX_ERROR_BARS, column.size)]
            deviations = column_of(explanation.contributions_std, feature)[1][some]
            bounds = between(column[some], deviations, 0.95)
            ax.hlines(
                heights[some], *bounds, color=PRINT.quiet, alpha=0.25, linewidth=0.7, zorder=2
            )
            lines = max(lines, some.size)
    names = explanation.feature_names
    labels = [
        label_of(names[feature]) + f" ({column.size})" * sparse
        for feature, column in columns.items()
    ]
    ax.set_yticks(np.arange(len(labels)), labels)
    ax.set_ylim(max(len(labels), 1) - 0.4, -0.6)
    ax.axvline(0.0, color=PRINT.quiet, linewidth=0.8, zorder=1)
    of = f", for {lines} samples of each feature" if lines < most else ""
    meaning = f"\n(lines: 95% intervals{of})" if lines else ""
    ax.set_xlabel(f"{contribution_to(explanation)}{meaning}")
    ax.set_ylabel("feature (samples that have it)" if sparse else "feature")
    kept = f"the {len(labels)} most important of " if len(labels) < len(names) else ""
    ax.set_title(f"{kept}{counted(len(names), 'feature')}, {counted(len(explanation), 'sample')}")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    if coloured:
        shown = plt.cm.ScalarMappable(plt.Normalize(0.0, 1.0), SIZES)
        bar = ax.figure.colorbar(shown, ax=ax, ticks=[0.0, 1.0], pad=0.02, aspect=30)
        bar.set_label("value of the feature", labelpad=-18)
        bar.ax.set_yticklabels(["low", "high"])
        bar.outline.set_visible(False)
    return ax


def _spread(values: np.ndarray) -> np.ndarray:
    """Return heights within 0.4 of a line, spread the more the denser the points are;  (m,).

    The heights are not random: the same values have the same heights.
    """
    low, high = values.min(), values.max()
    bins = np.zeros(values.size, dtype=int)
    if high > low:
        bins = np.minimum((40 * (values - low) / (high - low)).astype(int), 39)
    counts = np.bincount(bins, minlength=40)
    density = np.convolve(counts, [0.25, 0.5, 0.25], mode="same")
    reach = 0.05 + 0.35 * density / density.max()
    ranks = np.empty(values.size)
    ranks[np.argsort(values, kind="stable")] = np.arange(values.size)
    heights: np.ndarray = reach[bins] * (2.0 * ((0.5 + ranks * GOLDEN_RATIO) % 1.0) - 1.0)
    return heights


def _low_to_high(values: np.ndarray) -> np.ndarray | None:
    """Return values scaled to 0 at their 5% quantile and 1 at their 95% one; None if constant."""
    if np.isnan(values).any() or values.min() == values.max():
        return None
    low, high = range_of(values, 0.05)
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def plot_dependence(
    model: Any,
    X: Any,
    feature: str | int,
    on: str | int,
    *,
    Z: Any = None,
    ax: Any = None,
    level: float = 0.95,
    points: int = 100,
) -> Any:
    """Draw how the weight of a feature of Z depends on one column of X.

    The other columns of X are at their medians, or at their most frequent value if they are not
    numbers. The column goes from its 1% quantile to its 99% quantile.

    Parameters
    ----------
    model : GPXRegressor
        A fitted model.
    X : array-like or dataframe of shape (n, p)
        Rows such as the model was fitted to.
    feature : str or int
        The feature of Z, by name or number.
    on : str or int
        The column of X, by name or number.
    Z : array-like or dataframe of shape (n, d), optional
        The readable features, if the model was fitted with a separate Z.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on; by default those of a new figure.
    level : float, default=0.95
        The probability with which the weight is inside of the band.
    points : int, default=100
        The number of values of the column at which the weight is computed.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.plots import plot_dependence
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = GPXRegressor(optimizer=None).fit(X, y)
    >>> plot_dependence(model, X, 2, on=3, ax=Figure().subplots(), points=20).get_title()
    'weight of x2'
    """
    X, Z = unpack(X, Z)
    column, typical = (_frame_line if hasattr(X, "columns") else _array_line)(model, X, on)
    low, high = range_of(column)
    line = np.linspace(low, high, points)
    table, name = typical(line)
    some = None if Z is None else take(Z, np.zeros(points, dtype=int))
    explanation = model.explain(table, some, dense=True)
    l = position_of(explanation.feature_names, feature, "feature")
    lower, upper = (bound[:, l] for bound in explanation.weights_interval(level))
    ax = axes_of(ax, 6.0, 4.0)
    ax.fill_between(
        line, lower, upper, color=BLUE, alpha=0.2, linewidth=0, label=f"{percent(level)} interval"
    )
    ax.plot(line, explanation.weights[:, l], color=BLUE, label="weight")
    seen = np.sort(column[(low <= column) & (column <= high)])
    marks = seen[evenly_spaced(MAX_MARKS, seen.size)]
    style = {
        "color": PRINT.quiet,
        "alpha": 0.5,
        "markersize": 8,
        "linestyle": "none",
        "label": "data",
    }
    ax.plot(marks, np.full(marks.size, 0.02), "|", transform=ax.get_xaxis_transform(), **style)
    bottom, top = ax.get_ylim()
    if bottom <= 0.0 <= top:
        ax.axhline(0.0, color=PRINT.quiet, linewidth=0.8, linestyle="--")
    rest = " (other columns of X at their medians)" if np.shape(table)[1] > 1 else ""
    ax.set(
        xlim=(low, high),
        xlabel=f"{label_of(name)}{rest}",
        ylabel=unit_of(explanation, explanation.feature_names[l]),
    )
    ax.set_title(f"weight of {label_of(explanation.feature_names[l])}", pad=24.0)
    ax.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.99))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


# A column, and a function that returns typical rows along given values of it, and its name.
Line = tuple[np.ndarray, Callable[[np.ndarray], tuple[Any, Any]]]


def _frame_line(model: Any, X: Any, on: str | int) -> Line:
    """Return a column of a dataframe, and rows along it.

    The other columns are at their medians, or at their most frequent value if not numbers.
    """
    name = list(X.columns)[position_of([str(column) for column in X.columns], on, "on")]
    if X[name].dtype.kind not in "biuf":
        raise InputError(
            f"Column {name!r} of X does not have numbers. Give another column as `on`."
        )

    def typical(line: np.ndarray) -> tuple[Any, Any]:
        usual = {
            other: X[other].median() if X[other].dtype.kind in "biuf" else X[other].mode().iloc[0]
            for other in X.columns
        }
        return type(X)(
            {**{other: [value] * len(line) for other, value in usual.items()}, name: line}
        ), name

    return X[name].to_numpy(dtype=float), typical


def _array_line(model: Any, X: Any, on: str | int) -> Line:
    """Return a column of an array, and rows along it with the other columns at their medians."""
    try:
        if sp.issparse(X) or getattr(model, "kernel", None) == "precomputed":
            raise ValueError
        numbers = np.asarray(X, dtype=float)
        names = [f"x{k}" for k in range(numbers.shape[1])]
    except (TypeError, ValueError, IndexError):
        raise InputError(
            "A dependence is drawn along a column of X. Give X as a dense table of numbers."
        ) from None
    at = position_of(names, on, "on")

    def typical(line: np.ndarray) -> tuple[Any, Any]:
        grid = np.repeat(np.median(numbers, axis=0)[None], len(line), axis=0)
        grid[:, at] = line
        return grid, names[at]

    return numbers[:, at], typical
