"""KL (Paananen 2019): how far the predictive distribution moves as a feature is moved a little."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..metrics import each_moved
from ..runtime.arguments import positive
from .gaussian_process import ARD
from .method import Method, asked, fitted, training


class KL(Method):
    """Relevances sqrt(KL(p(y|x) || p(y|x + delta e_l)))/delta of an ARD-GPR, the mean of both directions (the authors' code;
    their article has 2 KL, which changes no order and no correlation).

    KL of normals with means m, m' and variances v, v': ((m - m')^2/v' + v/v' - 1 - log(v/v'))/2.
    """

    weights_are_contributions = True
    signed = False

    def __init__(
        self,
        model: Any = None,
        delta: float = 1e-3,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.delta = delta
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, Z: Any = None) -> KL:
        """Fits an ARD, unless a fitted one was given."""
        positive(self.delta, "delta")
        X, y, _ = training(X, y, None)
        self.model_ = fitted(
            self.model, ARD(n_jobs=self.n_jobs, random_state=self.random_state), X, y
        )
        self._remember(X, X)
        return self

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        check_is_fitted(self, "model_")
        return self.model_.predict(X)

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        X, _ = asked(self, X, None)
        mean, std = self.model_.predict(X, return_std=True)
        found = np.zeros(X.shape)
        for delta in (-self.delta, self.delta):
            for rows, _, moved in each_moved(X, partial(np.add, delta)):
                moved_mean, moved_std = (
                    part.reshape(-1, X.shape[1])
                    for part in self.model_.predict(moved, return_std=True)
                )
                found[rows] += 0.5 * np.sqrt(
                    _divergence(mean[rows, None], std[rows, None], moved_mean, moved_std)
                )
        return found / self.delta


def _divergence(
    mean: np.ndarray, std: np.ndarray, other: np.ndarray, other_std: np.ndarray
) -> np.ndarray:
    """KL of normals, without the cancellation of v/v' - 1."""
    excess = (std - other_std) * (std + other_std) / other_std**2
    return np.maximum(0.5 * (((mean - other) / other_std) ** 2 + excess - np.log1p(excess)), 0.0)
