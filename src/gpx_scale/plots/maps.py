"""Maps of the weight of a feature, with the places where it cannot be told from 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from ..errors import InputError
from ..explanation import Explanation
from ..numbers_as_text import percent
from ..palette import DEVIATIONS, PRINT, SIGNED, SIZES
from ..runtime.arguments import probability
from .style import colour_map, column_of, label_of, position_of, pyplot, unit_of

# A map has at most one stroke of its hatching in each cell of a lattice of this many cells a side,
# so that strokes can be told apart however many samples there are.
HATCHING_CELLS = 36
# The names of axes if none are given.
DEFAULT_NAMES = ("x", "y")
# Names of columns that have degrees.
LONGITUDES = {"lon", "lng", "long", "longitude"}
LATITUDES = {"lat", "latitude"}
# Places without such names count as degrees only between these latitudes, where equal steps to the
# east and to the north differ by 3% at least and a factor of 4 at most.
RECOGNISED_LATITUDES = (15.0, 75.0)


class Places(NamedTuple):
    """Places on a map, and how long a step up is in steps to the right."""

    across: np.ndarray
    up: np.ndarray
    names: tuple[str, str]
    aspect: float


def plot_map(
    explanation: Explanation,
    feature: str | int,
    coordinates: Any,
    *,
    figure: Any = None,
    names: Sequence[str] | None = None,
    level: float = 0.95,
    degrees: bool | None = None,
) -> Any:
    """Draw a map of the weight of a feature at the samples, and one of its uncertainty.

    Both show the surface g(x) of the weights, without the deviations of single samples (sigma_w).
    The map is hatched where the interval of the surface contains 0.

    Parameters
    ----------
    explanation : Explanation
        The samples.
    feature : str or int
        The feature, by name or number.
    coordinates : array-like or dataframe of shape (m, 2)
        The places of the samples, to the right and up. Columns that are named latitude and
        longitude may be in any order.
    figure : matplotlib.figure.Figure, optional
        The figure to draw on; by default a new one.
    names : sequence of two str, optional
        The labels of the axes; by default the names of the columns, or "x" and "y".
    level : float, default=0.95
        The probability of the intervals.
    degrees : bool, optional
        Whether coordinates are degrees of longitude and latitude. A degree to the east is then
        drawn shorter than one to the north, as it is on the ground. By default degrees are
        recognised by the names, or by numbers such as -122.3 and 47.6.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    InputError
        If the coordinates are not two finite numbers per sample, or cannot be degrees.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.datasets import synth2
    >>> from gpx_scale.plots import plot_map
    >>> X, y, Z, names, _ = synth2(200)
    >>> explanation = GPXRegressor(optimizer=None).fit(X, y, Z).explain(X, Z, feature_names=names)
    >>> figure = plot_map(explanation, "z1", X, figure=Figure())
    >>> figure.axes[0].get_title().splitlines()[0]
    'coefficient of z1'
    """
    places = places_of(coordinates, len(explanation), names, degrees)
    l = position_of(explanation.feature_names, feature, "feature")
    rows, weights = column_of(explanation.weights, l)
    across, up = places.across[rows], places.up[rows]
    # Markers of this area, in points^2, suit two maps in the width of a page.
    size = float(np.clip(40_000 / max(rows.size, 1), 2.0, 50.0))
    reach = float(ndtri(0.5 + 0.5 * probability(level, "level")))
    deviations = surface_deviations(explanation, l)
    known = deviations is not None
    if figure is None:
        wide = np.ptp(across) if rows.size else 0.0
        shape = places.aspect * np.ptp(up) / wide if wide > 0 else 1.0
        height = float(np.clip(1.2 + 3.3 * shape, 2.8, 8.0))
        figure = pyplot().figure(figsize=(9.6 if known else 5.2, height), layout="constrained")
    axes = figure.subplots(1, 1 + known, sharex=True, sharey=True, squeeze=False)[0]
    low, high = weights.min(initial=np.inf), weights.max(initial=-np.inf)
    if low < 0.0 < high:
        low, high = -max(high, -low), max(high, -low)
    scale = {"cmap": colour_map(SIGNED if low == -high else SIZES), "vmin": low, "vmax": high}
    look = {"s": size, "linewidths": 0, "rasterized": True}
    drawn = axes[0].scatter(across, up, c=weights, **look, **scale)
    title, hatched = f"coefficient of {label_of(explanation.feature_names[l])}", ""
    panels = [(axes[0], drawn, title)]
    if deviations is not None:
        unsure = np.abs(weights) <= reach * deviations
        if unsure.any():
            _hatch(axes[0], across, up, unsure)
            share = f"{np.mean(unsure):.0%}"
            hatched = f"hatched: {percent(level)} interval contains 0 ({share})"
        drawn = axes[1].scatter(across, up, c=reach * deviations, cmap=DEVIATIONS, **look)
        panels.append((axes[1], drawn, f"half of its {percent(level)} interval"))
    for (ax, points, said), more in zip(panels, (hatched, ""), strict=False):
        ax.set(
            aspect=places.aspect,
            xlabel=label_of(places.names[0]),
            ylabel=label_of(places.names[1]),
            facecolor=PRINT.faint,
        )
        ax.set_title(f"{said}\n{more}", fontsize=10)
        # Degrees have many digits, which are written side by side.
        ax.locator_params(axis="x", nbins=5)
        unit = unit_of(explanation, explanation.feature_names[l])
        figure.colorbar(points, ax=ax, shrink=0.85, label=unit)
        ax.label_outer()
    return figure


def surface_deviations(explanation: Explanation, feature: int) -> np.ndarray | None:
    """Return the standard deviations of the surface of a weight, None without uncertainty.

    The noise of the weights (sigma_w) is taken out of their variances, if they contain it.
    """
    if explanation.weights_std is None:
        return None
    deviations = column_of(explanation.weights_std, feature)[1]
    if explanation.weights_noise is None:
        return deviations
    noise = float(explanation.weights_noise[feature])
    left: np.ndarray = np.sqrt(np.maximum((deviations - noise) * (deviations + noise), 0.0))
    return left


def _hatch(ax: Any, across: np.ndarray, up: np.ndarray, unsure: np.ndarray) -> None:
    """Draw a stroke in each cell of a lattice of which at least half of the samples are unsure."""
    cells = np.zeros(across.size, dtype=int)
    for place in (across, up):
        span = float(np.ptp(place)) or 1.0
        at = np.minimum(HATCHING_CELLS * (place - place.min()) / span, HATCHING_CELLS - 1)
        cells = HATCHING_CELLS * cells + at.astype(int)
    _, cell, counts = np.unique(cells, return_inverse=True, return_counts=True)
    found = np.bincount(cell, unsure)
    kept = found >= 0.5 * counts
    middle = [np.bincount(cell, place * unsure)[kept] / found[kept] for place in (across, up)]
    # A line through the middle of the marker, from the lower left to the upper right.
    stroke = {"marker": (2, 2, -45), "s": 40, "linewidths": 0.8, "rasterized": True}
    ax.scatter(*middle, color=PRINT.ink, **stroke)


def places_of(
    coordinates: Any, m: int, names: Sequence[str] | None, degrees: bool | None
) -> Places:
    """Return checked places with the names of their axes, and the aspect of a map of them."""
    if names is None:
        columns = getattr(coordinates, "columns", None)
        names = DEFAULT_NAMES if columns is None else [str(column) for column in columns]
    try:
        found = np.asarray(coordinates, dtype=float)
    except (TypeError, ValueError):
        raise InputError(
            "coordinates are not numbers. Give two numbers per sample, to the right and up."
        ) from None
    if found.shape != (m, 2) or len(names) != 2 or not np.isfinite(found).all():
        raise InputError(
            f"coordinates have the shape {found.shape} for {m} samples. Give two finite numbers "
            "per sample, to the right and up."
        )
    across, up = found.T
    first, second = (str(name).strip().lower() for name in names)
    if first in LATITUDES and second in LONGITUDES:
        across, up, names = up, across, (names[1], names[0])
    named = {first, second} & LATITUDES and {first, second} & LONGITUDES
    if degrees is None:
        degrees = bool(named) or _look_like_degrees(across, up)
    if not degrees:
        return Places(across, up, (names[0], names[1]), 1.0)
    if not (np.abs(across) <= 360.0).all() or not (np.abs(up) <= 90.0).all():
        raise InputError(
            f"Coordinates that are named {names[0]!r} and {names[1]!r} are not degrees: these go "
            "to 180 to the east and to 90 to the north. Give the longitude first, or other names."
        )
    if m and np.ptp(across) > 180.0 and np.ptp(across % 360.0) < np.ptp(across):
        # The places lie on both sides of the 180th meridian.
        across = across % 360.0
    middle = 0.5 * (up.min() + up.max()) if m else 0.0
    aspect = 1.0 / max(math.cos(math.radians(middle)), 0.1)
    if tuple(names) == DEFAULT_NAMES:
        names = ("longitude", "latitude")
    ends = [name if "°" in name else f"{name} (°)" for name in map(str, names)]
    return Places(across, up, (ends[0], ends[1]), aspect)


def _look_like_degrees(across: np.ndarray, up: np.ndarray) -> bool:
    """Return whether numbers are those of a region of the Earth, far from the origin."""
    if not across.size or (np.abs(across) > 180.0).any() or (np.abs(up) > 90.0).any():
        return False
    least, most = RECOGNISED_LATITUDES
    middles = abs(float(np.mean(across))), abs(float(np.mean(up)))
    are_far = middles[0] > np.ptp(across) and middles[1] > np.ptp(up)
    are_whole = bool((across == np.round(across)).all() and (up == np.round(up)).all())
    return bool(are_far and least <= middles[1] <= most and not are_whole)
