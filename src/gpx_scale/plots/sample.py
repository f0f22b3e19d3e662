"""One sample, or some beside each other: bars and images of contributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..explanation import Explanation, dense
from ..numbers_as_text import as_text, percent
from ..palette import ADDS_NAME, CERTAINTY, PIXELS, PRINT, SIGNED, TAKES_NAME
from ..runtime.memory import counted
from .style import (
    axes_of,
    colour_map,
    contribution_to,
    label_of,
    prediction_of,
    pyplot,
    row_of,
)


def plot_contributions(
    explanation: Explanation, i: int = 0, *, ax: Any = None, k: int = 20, level: float | None = None
) -> Any:
    """The paper's figure 1: the k largest contributions to sample i as bars, feature values in labels; returns the axes.

    The last bar sums up the others, so that all add up to the prediction minus the base value; it has no error bar, since that
    of a sum needs covariances. Error bars: one deviation, or bounds of probability `level`.
    """
    one = explanation[i]
    contributions, values = row_of(one.contributions), row_of(one.data)
    features = (
        one.contributions.indices
        if sp.issparse(one.contributions)
        else np.arange(contributions.size)
    )
    order = np.argsort(-np.abs(contributions), kind="stable")
    shown, others = order[:k], order[k:]
    reach, meaning = None, ""
    if level is not None:
        reach, meaning = (
            row_of(one.interval(level).upper) - contributions,
            f";\nerror bars: {percent(level)} interval",
        )
    elif one.contributions_std is not None:
        reach, meaning = row_of(one.contributions_std), ";\nerror bars: one standard deviation"
    labels = [f"{label_of(one.feature_names[features[e]])} = {as_text(values[e])}" for e in shown]
    if others.size:
        labels.append(counted(others.size, "other"))
    ax = axes_of(ax, 4.6 + 0.075 * max(24, *map(len, labels), 0), 1.55 + 0.28 * max(1, len(labels)))
    widths, bars = contributions[shown], {"ecolor": PRINT.ink, "elinewidth": 1.2, "capsize": 2.5}
    colours = np.where(widths >= 0, PRINT.adds, PRINT.takes)
    ax.barh(
        np.arange(len(shown)),
        widths,
        xerr=None if reach is None else reach[shown],
        color=colours,
        error_kw=bars,
    )
    if others.size:
        ax.barh(len(shown), contributions[others].sum(), color=PRINT.rule)
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
    mean, base = prediction_of(one, 0)
    gap = " " if len(target) <= 24 else "\n"
    ax.set_title(f"{target}{gap}{mean}, base value {base}")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


IMAGES = {  # colour map, label of a line, what is measured
    "data": (PIXELS, "input", "value"),
    "weights": (SIGNED, "weight", "per unit of value"),
    "contributions": (SIGNED, "contribution", "part of prediction"),
    "certainty": (CERTAINTY, "certainty", "|mean| / deviation"),
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
    """Sample i as an image; returns the axes. On axes of its own it has a colour bar.

    what : "contributions", "weights", "data" or "certainty" (how many deviations the weights are from 0).
    limit : the value of the strongest colour; the largest in the image, by default.
    """
    values = _pixels(explanation, [i], shape, what)
    low, high = _scale(values, what, limit)
    alone, ax = ax is None, axes_of(ax, 4.4, 3.6)
    image = ax.imshow(values[0], cmap=colour_map(IMAGES[what][0]), vmin=low, vmax=high)
    ax.set(xticks=[], yticks=[])
    if alone:
        ax.figure.colorbar(image, ax=ax, label=f"{IMAGES[what][1]} ({IMAGES[what][2]})")
        ax.set_title(f"prediction {prediction_of(explanation, i)[0]}")
    return ax


def plot_images(
    explanation: Explanation,
    rows: Sequence[int],
    shape: tuple[int, int],
    *,
    titles: Sequence[str] | None = None,
    figure: Any = None,
) -> Any:
    """Samples side by side: input, weights, contributions and how many deviations these are from 0; returns the figure.

    Each line has one scale of colours. titles : of the samples, above their predictions.
    """
    rows = list(rows)
    if not rows:
        raise InputError("there are no samples to draw")
    if titles is not None and len(titles) != len(rows):
        raise InputError(f"{len(titles)} titles for {len(rows)} samples")
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
    return figure


def _pixels(
    explanation: Explanation, rows: Sequence[int], shape: tuple[int, int], what: str
) -> np.ndarray:
    """Images of samples;  (rows, *shape)."""
    if what not in IMAGES:
        raise InputError(f"what={what!r}: give one of {', '.join(map(repr, IMAGES))}")
    some = explanation[np.asarray(rows)]
    values = dense(some.weights if what == "certainty" else getattr(some, what))
    if what == "certainty":
        if some.weights_std is None:
            raise InputError("these explanations have no deviations: explain(..., std=True)")
        deviations = dense(some.weights_std)
        values = np.divide(
            np.abs(values), deviations, out=np.zeros_like(values), where=deviations > 0
        )
    if len(shape) != 2 or shape[0] * shape[1] != values.shape[1]:
        raise InputError(
            f"shape={shape!r} for {values.shape[1]} features: give rows and columns of an image"
        )
    return values.reshape(-1, *shape)


def _scale(values: np.ndarray, what: str, limit: float | None = None) -> tuple[float, float]:
    """Values of the first and the last colour."""
    high = (float(np.abs(values).max()) if limit is None else limit) or 1.0
    if IMAGES[what][0] == SIGNED:
        return -high, high
    return min(float(values.min()), 0.0), high
