"""Cross-validation: the errors of predictions, and the coverage of their intervals, by fold."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold

from .explanation import Explanation, joined
from .metrics import Accuracy

__all__ = ["Validation", "cross_validate"]


class Validation(NamedTuple):
    """The result of a cross-validation.

    Attributes
    ----------
    folds : list of (int, Accuracy)
        For each fold, the number of its rows and the accuracy of their predictions.
    explanation : Explanation or None
        If asked for, the explanations of all rows in their order, each by the model that was not
        fitted to it.

    Examples
    --------
    >>> from gpx_scale.metrics import Accuracy
    >>> from gpx_scale.validation import Validation
    >>> folds = [(50, Accuracy(1.0, 0.5, 0.9)), (50, Accuracy(3.0, 0.7, 1.0))]
    >>> Validation(folds, None).mean().rmse
    2.0
    """

    folds: list[tuple[int, Accuracy]]
    explanation: Explanation | None

    def mean(self) -> Accuracy:
        """Return the mean of each measure over the folds.

        Returns
        -------
        accuracy : Accuracy
            The means over the folds that have a measure.

        Examples
        --------
        >>> from gpx_scale.metrics import Accuracy
        >>> from gpx_scale.validation import Validation
        >>> folds = [(50, Accuracy(1.0, 0.5, 0.9)), (50, Accuracy(3.0, 0.7, 1.0))]
        >>> Validation(folds, None).mean().rmse
        2.0
        """
        return Accuracy(*(float(np.mean(column)) for column in self._columns()))

    def deviation(self) -> Accuracy:
        """Return the standard deviation of each measure between the folds.

        Returns
        -------
        accuracy : Accuracy
            The standard deviations between the folds that have a measure.

        Examples
        --------
        >>> from gpx_scale.metrics import Accuracy
        >>> from gpx_scale.validation import Validation
        >>> folds = [(50, Accuracy(1.0, 0.5, 0.9)), (50, Accuracy(3.0, 0.7, 1.0))]
        >>> Validation(folds, None).deviation().rmse
        1.0
        """
        # Numbers are divided by the largest one, so that their squares stay finite.
        scales = [float(np.abs(column).max()) or 1.0 for column in self._columns()]
        return Accuracy(
            *(
                scale * float(np.std(column / scale))
                for scale, column in zip(scales, self._columns(), strict=True)
            )
        )

    def _columns(self) -> list[np.ndarray]:
        """Return the values of each measure, of the folds in which it is finite (or of all)."""
        columns = np.array([accuracy for _, accuracy in self.folds]).T
        return [
            column[np.isfinite(column)] if np.isfinite(column).any() else column
            for column in columns
        ]


def cross_validate(
    model: Any,
    X: Any,
    y: Any,
    *,
    folds: int = 5,
    level: float = 0.95,
    seed: int = 0,
    explain: bool = False,
) -> Validation:
    """Predict each fold of a table by a model that is fitted to the other folds.

    Parameters
    ----------
    model : GPXRegressor
        The estimator. It is cloned for every fold and stays as it is.
    X : pandas.DataFrame of shape (n, p)
        The inputs.
    y : pandas.Series of shape (n,)
        The target.
    folds : int, default=5
        The number of folds, to which rows are assigned at random.
    level : float, default=0.95
        The probability of the intervals whose coverage is measured.
    seed : int, default=0
        The seed of the random assignment.
    explain : bool, default=False
        Whether all rows are explained too.

    Returns
    -------
    validation : Validation
        The accuracy of each fold and, with `explain`, the explanations of all rows.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> from gpx_scale.validation import cross_validate
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> model = GPXRegressor(theta2=100.0, sigma_y=0.7, optimizer=None)
    >>> found = cross_validate(model, X[:200], y[:200], folds=3)
    >>> [rows for rows, _ in found.folds], found.mean().r2 > 0.3
    ([67, 67, 66], True)
    """
    found, explained, order = [], [], []
    for rest, part in KFold(folds, shuffle=True, random_state=seed).split(X):
        fitted = clone(model).fit(X.iloc[rest], y.iloc[rest])
        if explain:
            explained.append(fitted.explain(X.iloc[part]))
            order.append(part)
            mean, std = explained[-1].prediction, explained[-1].prediction_std
        else:
            mean, std = fitted.predict(X.iloc[part], return_std=True)
        found.append((len(part), Accuracy.of(y.iloc[part].to_numpy(dtype=float), mean, std, level)))
    return Validation(
        found, joined(explained)[np.argsort(np.concatenate(order))] if explain else None
    )
