"""Answers about one row: what a change of its values would do, and which rows it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..numbers_as_text import as_text, decimals, significant
from .explanation import Explanation
from .groups import by_groups
from .intervals import Interval, between, dense

# A contribution has changed if it differs by more than this share of the largest number involved.
CHANGED_SHARE = 1e-12
# The name of the part of a change that is in the prediction at the baseline.
BASE_VALUE = "base value"


@dataclass(frozen=True)
class WhatIf:
    """The change of a prediction if some values of a row were others.

    Attributes
    ----------
    before, after : float
        The predictions for the row as it is and with the changes.
    change : float
        What the change adds to the prediction.
    change_std : float
        The standard deviation of the change, without noise, from the joint posterior distribution
        of both predictions. They err alike, so it is smaller than those of the predictions.
    contributions : dict of str to float
        By how much each contribution changes, the largest change first. Contributions that stay
        are left out. With weights that vary, a feature may contribute more or less although its
        own value stays, and the base value may change, too. They add up to the change.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
    >>> answer = model.what_if(X[100:101], {"bmi": 25.0})
    >>> answer.change == answer.after - answer.before
    True
    >>> lower, upper = answer.interval(0.95)
    >>> bool(lower < answer.change < upper)
    True
    """

    before: float
    after: float
    change: float
    change_std: float
    contributions: dict[str, float]

    def interval(self, level: float = 0.95) -> Interval:
        """Return the interval in which the change lies with a given probability.

        Parameters
        ----------
        level : float, default=0.95
            The probability.

        Returns
        -------
        interval : Interval
            The lower and upper bound.

        Examples
        --------
        >>> from gpx_scale.explanation import WhatIf
        >>> lower, upper = WhatIf(10.0, 12.0, 2.0, 0.5, {"bmi": 2.0}).interval(0.95)
        >>> round(lower, 2), round(upper, 2)
        (1.02, 2.98)
        """
        lower, upper = between(np.array([self.change]), np.array([self.change_std]), level)
        return Interval(float(lower[0]), float(upper[0]))

    def __repr__(self) -> str:
        digits = decimals(self.change_std, 2) if self.change_std else 4
        said = ", ".join(f"{name} {as_text(by, '+.4g')}" for name, by in self.contributions.items())
        return (
            f"WhatIf({significant(self.before)} → {significant(self.after)}, "
            f"change {as_text(self.change, f'+.{digits}f')} ± "
            f"{as_text(self.change_std, f'.{digits}f')}: {said or 'nothing'})"
        )


def comparison(both: Explanation, change_std: float) -> WhatIf:
    """Return the comparison of two explained rows, before and after a change."""
    before, after = (float(mean) for mean in both.prediction)
    view = by_groups(both)
    moved = np.append(np.diff(dense(view.contributions), axis=0)[0], np.diff(view.base_values))
    names = [*view.feature_names, BASE_VALUE]
    least = CHANGED_SHARE * max(np.abs(both.prediction).max(), np.abs(moved).max())
    order = np.argsort(-np.abs(moved), kind="stable")
    changed = {names[at]: float(moved[at]) for at in order if abs(moved[at]) > least}
    return WhatIf(before, after, after - before, change_std, changed)


class SupportingRow(NamedTuple):
    """A training row that a prediction rests on.

    Attributes
    ----------
    row : int
        The number of the training row, counted from 0 in the order of `fit`.
    weight : float
        Its weight in the prediction, by which the difference between its y and the mean of y is
        multiplied.
    y : float
        Its y, in the units of the data.

    Examples
    --------
    >>> from gpx_scale.explanation import SupportingRow
    >>> SupportingRow(row=12, weight=0.25, y=151.0).weight
    0.25
    """

    row: int
    weight: float
    y: float
