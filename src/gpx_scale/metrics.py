"""How good predictions are: error, and how much of the truth their intervals hold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .explanation import between


class Accuracy(NamedTuple):
    """Of predictions: their RMSE, R^2 (NaN where y does not vary), and the share of true values within their intervals."""

    rmse: float
    r2: float
    within: float

    @classmethod
    def of(cls, y: np.ndarray, mean: np.ndarray, std: np.ndarray | None, level: float = 0.95) -> Accuracy:
        """`within` is NaN without deviations."""
        scale = max(float(np.abs(y).max()), float(np.abs(mean).max()), float(np.finfo(float).tiny))  # squares stay finite
        squared, spread = np.mean(((y - mean) / scale) ** 2), np.var(y / scale)
        r2 = 1.0 - squared / spread if np.ptp(y) > 0 else np.nan
        within = np.nan
        if std is not None:
            lower, upper = between(mean, std, level)
            within = np.mean((lower <= y) & (y <= upper))
        return cls(scale * float(np.sqrt(squared)), float(r2), float(within))
