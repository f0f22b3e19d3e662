"""All samples at once: contributions by feature, a weight along a column of X, a coefficient on a map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..data.inputs import take, unpack
from ..errors import InputError
from ..explanation import Explanation
from ..numbers_as_text import percent
from ..palette import BLUE, DEVIATIONS, PRINT, SIGNED, SIZES
from ..runtime.memory import counted
from ..runtime.parallel import evenly_spaced
from ..text import SURE_STDS
from .style import (
    axes_of,
    colour_map,
    column_of,
    contribution_to,
    label_of,
    position_of,
    pyplot,
    range_of,
    unit_of,
)

LINES = 200  # error bars that a line of a summary shows at most
GOLDEN = 0.618033988749895  # its multiples are evenly spread modulo 1


def plot_summary(explanation: Explanation, *, k: int = 12, ax: Any = None) -> Any:
    """A point for each sample at its contribution, in a line for each of the k most important features; returns the axes.

    Coloured by the feature's value, spread by density; thin lines are one deviation either way, of 200 samples at most. Of
    a sparse Z: points of the samples that have the feature.
    """
    plt = pyplot()
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
            some = np.argsort(column, kind="stable")[evenly_spaced(LINES, column.size)]
            deviations = column_of(explanation.contributions_std, feature)[1][some]
            bounds = column[some] - deviations, column[some] + deviations
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
    meaning = f"\n(lines: one standard deviation either way{of})" if lines else ""
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
    """Heights within 0.4 of a line, the more the denser the points are there; always the same;  (m,)."""
    low, high = values.min(), values.max()
    bins = np.zeros(values.size, dtype=int)
    if high > low:
        bins = np.minimum((40 * (values - low) / (high - low)).astype(int), 39)
    counts = np.bincount(bins, minlength=40)
    density = np.convolve(counts, [0.25, 0.5, 0.25], mode="same")
    reach = 0.05 + 0.35 * density / density.max()
    ranks = np.empty(values.size)
    ranks[np.argsort(values, kind="stable")] = np.arange(values.size)
    return reach[bins] * (2.0 * ((0.5 + ranks * GOLDEN) % 1.0) - 1.0)


def _low_to_high(values: np.ndarray) -> np.ndarray | None:
    """From 0 at the 5% quantile to 1 at the 95% one; None of a constant."""
    low, high = range_of(values, 0.05)
    if values.min() == values.max():
        return None
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
    """How the weight of a feature (of Z) depends on one column of X, the others at their medians, or at what is most frequent
    where they are no numbers; returns the axes.

    X, Z : rows such as the model was fitted to, as arrays or frames. Features and columns by name or number.
    The band is where the weight is with probability `level`; `on` goes from its 1% to its 99% quantile.
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
    marks = seen[evenly_spaced(500, seen.size)]
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
    ax.set(xlim=(low, high), xlabel=f"{label_of(name)}{rest}", ylabel=unit_of(explanation))
    ax.set_title(f"weight of {label_of(explanation.feature_names[l])}", pad=24.0)
    ax.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.99))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


Line = tuple[
    np.ndarray, Callable[[np.ndarray], tuple[Any, Any]]
]  # a column, and rows along it with its name


def _frame_line(model: Any, X: Any, on: str | int) -> Line:
    """Of a frame: numbers at their medians, all else at what is most frequent."""
    name = list(X.columns)[position_of([str(column) for column in X.columns], on, "on")]
    if X[name].dtype.kind not in "biuf":
        raise InputError(f"column {name!r} of X is not of numbers: there is no line along it")

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
    try:
        if sp.issparse(X) or getattr(model, "kernel", None) == "precomputed":
            raise ValueError
        numbers = np.asarray(X, dtype=float)
        names = [f"x{k}" for k in range(numbers.shape[1])]
    except (TypeError, ValueError, IndexError):
        raise InputError(
            "a dependence is along a column of X: give a dense table of numbers"
        ) from None
    at = position_of(names, on, "on")

    def typical(line: np.ndarray) -> tuple[Any, Any]:
        grid = np.repeat(np.median(numbers, axis=0)[None], len(line), axis=0)
        grid[:, at] = line
        return grid, names[at]

    return numbers[:, at], typical


def plot_map(
    explanation: Explanation,
    feature: str | int,
    coordinates: Any,
    *,
    figure: Any = None,
    names: Sequence[str] = ("x", "y"),
) -> Any:
    """Two maps: a feature's coefficient at the samples' coordinates (m, 2), and its deviation; returns the figure.

    Coefficients within two deviations of 0 are small and grey.
    """
    places = np.asarray(coordinates, dtype=float)
    if places.shape != (len(explanation), 2):
        raise InputError(
            f"coordinates of shape {places.shape} for {len(explanation)} samples: one east and one north each"
        )
    l = position_of(explanation.feature_names, feature, "feature")
    rows, weights = column_of(explanation.weights, l)
    across, up = places[rows].T
    size = float(
        np.clip(40_000 / max(rows.size, 1), 2.0, 50.0)
    )  # points^2, of two maps in a page's width
    known = explanation.weights_std is not None
    deviations = column_of(explanation.weights_std, l)[1] if known else np.zeros_like(weights)
    sure = np.abs(weights) > SURE_STDS * deviations if known else np.full(weights.shape, True)
    if figure is None:
        shape = np.ptp(up) / np.ptp(across) if rows.size and np.ptp(across) > 0 else 1.0
        height = float(np.clip(1.2 + 3.3 * shape, 2.8, 8.0))
        figure = pyplot().figure(figsize=(9.6 if known else 5.2, height), layout="constrained")
    axes = figure.subplots(1, 1 + known, sharex=True, sharey=True, squeeze=False)[0]
    low, high = weights.min(initial=np.inf), weights.max(initial=-np.inf)
    if low < 0.0 < high:
        low, high = -max(high, -low), max(high, -low)
    scale = {"cmap": colour_map(SIGNED if low == -high else SIZES), "vmin": low, "vmax": high}
    look = {"linewidths": 0, "rasterized": True}
    axes[0].scatter(across[~sure], up[~sure], s=0.3 * size, color=PRINT.quiet, **look)
    drawn = axes[0].scatter(across[sure], up[sure], s=size, c=weights[sure], **(look | scale))
    grey = (
        f"grey: within two standard deviations of 0 ({np.mean(~sure):.0%})"
        if not sure.all()
        else ""
    )
    panels = [(axes[0], drawn, f"coefficient of {label_of(explanation.feature_names[l])}", grey)]
    if known:
        drawn = axes[1].scatter(across, up, s=size, c=deviations, cmap=DEVIATIONS, **look)
        panels.append((axes[1], drawn, "its standard deviation", ""))
    for ax, points, title, more in panels:
        ax.set(
            aspect="equal",
            xlabel=label_of(names[0]),
            ylabel=label_of(names[1]),
            facecolor=PRINT.faint,
        )
        ax.set_title(f"{title}\n{more}", fontsize=10)
        figure.colorbar(points, ax=ax, shrink=0.85, label=unit_of(explanation))
        ax.label_outer()
    return figure
