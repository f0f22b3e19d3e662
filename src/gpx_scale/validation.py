"""How well a model predicts what it has not seen: error, and how much of it its intervals hold, part by part."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold

from .explanation import Explanation, between, joined


class Measures(NamedTuple):
    """Of predictions: their RMSE, R^2, and the share of true values within the intervals."""

    rmse: float
    r2: float
    within: float

    @classmethod
    def of(cls, y: np.ndarray, mean: np.ndarray, std: np.ndarray, level: float) -> Measures:
        """R^2 is NaN where y does not vary."""
        lower, upper = between(mean, std, level)
        scale = max(float(np.abs(y).max()), float(np.abs(mean).max()), float(np.finfo(float).tiny))  # squares stay finite
        squared, spread = np.mean(((y - mean) / scale) ** 2), np.var(y / scale)
        r2 = 1.0 - squared / spread if np.ptp(y) > 0 else np.nan
        return cls(scale * float(np.sqrt(squared)), float(r2), float(np.mean((lower <= y) & (y <= upper))))


class Validation(NamedTuple):
    """Measures of each part (with its rows), and where asked for every row explained by the model that had not seen it."""

    folds: list[tuple[int, Measures]]
    explanation: Explanation | None

    def mean(self) -> Measures:
        return Measures(*(float(np.mean(column)) for column in self._columns()))

    def deviation(self) -> Measures:
        scales = [float(np.abs(column).max()) or 1.0 for column in self._columns()]
        return Measures(
            *(scale * float(np.std(column / scale)) for scale, column in zip(scales, self._columns(), strict=True))
        )

    def _columns(self) -> list[np.ndarray]:
        """Each measure of the parts that have it."""
        columns = np.array([measures for _, measures in self.folds]).T
        return [column[np.isfinite(column)] if np.isfinite(column).any() else column for column in columns]


def cross_validate(
    model: Any, X: Any, y: Any, *, folds: int = 5, level: float = 0.95, seed: int = 0, explain: bool = False
) -> Validation:
    """Predict each of `folds` random parts of a table, X and y pandas objects, by a model of the others."""
    found, explained, order = [], [], []
    for rest, part in KFold(folds, shuffle=True, random_state=seed).split(X):
        fitted = clone(model).fit(X.iloc[rest], y.iloc[rest])
        if explain:
            explained.append(fitted.explain(X.iloc[part]))
            order.append(part)
            mean, std = explained[-1].prediction, explained[-1].prediction_std
        else:
            mean, std = fitted.predict(X.iloc[part], return_std=True)
        found.append((len(part), Measures.of(y.iloc[part].to_numpy(dtype=float), mean, std, level)))
    return Validation(found, joined(explained)[np.argsort(np.concatenate(order))] if explain else None)
