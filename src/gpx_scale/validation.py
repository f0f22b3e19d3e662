"""How well a model predicts what it has not seen: error, and how much of it its intervals hold, part by part."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold

from .explanation import Explanation, joined
from .metrics import Accuracy

__all__ = ["Validation", "cross_validate"]


class Validation(NamedTuple):
    """The accuracy of each part (with its rows), and where asked for every row explained by the model that had not seen it."""

    folds: list[tuple[int, Accuracy]]
    explanation: Explanation | None

    def mean(self) -> Accuracy:
        return Accuracy(*(float(np.mean(column)) for column in self._columns()))

    def deviation(self) -> Accuracy:
        scales = [float(np.abs(column).max()) or 1.0 for column in self._columns()]
        return Accuracy(
            *(
                scale * float(np.std(column / scale))
                for scale, column in zip(scales, self._columns(), strict=True)
            )
        )

    def _columns(self) -> list[np.ndarray]:
        """Each measure of the parts that have it."""
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
        found.append((len(part), Accuracy.of(y.iloc[part].to_numpy(dtype=float), mean, std, level)))
    return Validation(
        found, joined(explained)[np.argsort(np.concatenate(order))] if explain else None
    )
