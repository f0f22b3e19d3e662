"""KL (Paananen 2019): how far the predictive distribution moves as a feature is moved a little."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..metrics import each_moved
from .gaussian import ARD
from .method import Method


class KL(Method):
    """Relevances sqrt(KL(p(y|x) || p(y|x + delta e_l)))/delta of an ARD-GPR, the mean of both directions.

    KL of normals with means m, m' and variances v, v': ((m - m')^2/v' + v/v' - 1 - log(v/v'))/2.
    """

    weights_are_contributions = True
    signed = False

    def __init__(self, model: Any = None, delta: float = 1e-3, n_jobs: int | None = None, random_state: Any = None) -> None:
        self.model = model
        self.delta = delta
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, Z: Any = None) -> KL:
        """Fits an ARD, unless a fitted one was given."""
        self.model_ = self.model or ARD(n_jobs=self.n_jobs, random_state=self.random_state).fit(X, y)
        self.n_features_in_ = self.model_.n_features_in_
        return self

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        return self.model_.predict(X)

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        X = np.asarray(X, dtype=float)
        mean, std = self.model_.predict(X, return_std=True)
        found = np.zeros(X.shape)
        for delta in (-self.delta, self.delta):
            for rows, _, moved in each_moved(X, partial(np.add, delta)):
                moved_mean, moved_std = (part.reshape(-1, X.shape[1]) for part in self.model_.predict(moved, return_std=True))
                found[rows] += 0.5 * np.sqrt(_divergence(mean[rows, None], std[rows, None], moved_mean, moved_std))
        return found / abs(self.delta)


def _divergence(mean: np.ndarray, std: np.ndarray, other: np.ndarray, other_std: np.ndarray) -> np.ndarray:
    """KL of normals, without the cancellation of v/v' - 1."""
    excess = (std - other_std) * (std + other_std) / other_std**2
    return np.maximum(0.5 * (((mean - other) / other_std) ** 2 + excess - np.log1p(excess)), 0.0)
