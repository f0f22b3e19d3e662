"""The plot of an effect: what the values of a feature contribute, with its band."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..explanation import Explanation
from ..numbers_as_text import percent
from ..palette import BLUE, PRINT
from .style import axes_of, contribution_to, label_of


def plot_effect(
    explanation: Explanation,
    feature: str | int,
    *,
    ax: Any = None,
    level: float = 0.95,
    points: int = 20,
) -> Any:
    """Draw the effect of a feature: its mean contribution at each of its values, centred.

    The band is that of `Explanation.effect`. Small lines at the lower edge are the values of
    the points of the curve. The levels of a category are points with error bars.

    Parameters
    ----------
    explanation : Explanation
        The samples.
    feature : str or int
        The feature by its name or number, or a group of features by its name.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on; by default those of a new figure.
    level : float, default=0.95
        The probability with which the effect is inside of the band.
    points : int, default=20
        The largest number of values of the curve.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.plots import plot_effect
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> model = GPXRegressor("rbf", optimizer=None, weights="shared").fit(X, y)
    >>> plot_effect(model.explain(X[:100]), "bmi", ax=Figure().subplots()).get_title()
    'effect of bmi'
    """
    effect = explanation.effect(feature, points=points)
    ax = axes_of(ax, 5.2, 3.6)
    bounds = None if effect.std is None else effect.interval(level)
    if effect.is_category:
        places = np.arange(len(effect))
        reach = None if bounds is None else bounds.upper - effect.mean
        look = {"color": BLUE, "fmt": "o", "capsize": 3, "elinewidth": 1.2}
        ax.errorbar(places, effect.mean, yerr=reach, **look)
        ax.set_xticks(places, [label_of(value, 16) for value in effect.values])
    else:
        values = effect.values.astype(float)
        if bounds is not None:
            ax.fill_between(values, bounds.lower, bounds.upper, color=BLUE, alpha=0.2, linewidth=0)
        marker = "o" if len(effect) < 3 else None
        ax.plot(values, effect.mean, color=BLUE, linewidth=2, marker=marker)
        marks = ax.get_xaxis_transform()
        ax.plot(values, np.zeros(len(values)), "|", color=PRINT.quiet, transform=marks)
    ax.axhline(0.0, color=PRINT.quiet, linewidth=0.8, zorder=1)
    band = f"\n(band: {percent(level)})" if bounds is not None else ""
    ax.set_xlabel(label_of(effect.feature))
    ax.set_ylabel(f"{contribution_to(explanation)}, centred{band}")
    ax.set_title(f"effect of {label_of(effect.feature)}")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
