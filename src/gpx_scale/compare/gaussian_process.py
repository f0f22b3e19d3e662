"""Gaussian processes on our own engine: GPX itself, and with z = 1 plain regression (GPR), with relevances too (ARD)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..data.inputs import count_rows
from ..estimator.paper import PAPER
from ..estimator.regressor import GPXRegressor
from .method import Method, asked


class GPX(Method):
    """The paper's model: its weights are those of its predictions. Inputs are taken as they are scaled."""

    def __init__(self, n_jobs: int | None = None, random_state: Any = None) -> None:
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, Z: Any = None) -> GPX:
        engine = {"standardize": False, "n_jobs": self.n_jobs, "random_state": self.random_state}
        self.model_ = GPXRegressor(**PAPER, **engine).fit(X, y, Z)
        self.n_features_in_ = self.model_.n_features_in_
        return self

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        check_is_fitted(self, "model_")
        return self.model_.predict(X, Z)

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        check_is_fitted(self, "model_")
        return self.model_.explain(X, Z, std=False, dense=True).weights


class GPR(Method):
    """Gaussian process regression: ``k(x, x') = theta1 exp(-|x - x'|^2/theta2)``, noise sigma_y. It does not explain."""

    ard = False

    def __init__(self, n_jobs: int | None = None, random_state: Any = None) -> None:
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, Z: Any = None) -> Self:
        engine = {
            "sigma_w": 0.0,
            "standardize": False,
            "n_jobs": self.n_jobs,
            "random_state": self.random_state,
        }
        return self._with(GPXRegressor(**PAPER | {"ard": self.ard}, **engine).fit(X, y, _ones(X)))

    @classmethod
    def of(cls, model: GPXRegressor) -> Self:
        """One whose model is there already: fitted on the same X with z = 1, its hyperparameters found in another way."""
        return cls()._with(model)

    def _with(self, model: GPXRegressor) -> Self:
        self.model_, self.n_features_in_, self.n_readable_ = (
            model,
            model.n_features_in_,
            model.n_features_in_,
        )
        return self

    def predict(self, X: Any, Z: Any = None, return_std: bool = False) -> Any:
        """Mean of y, and its deviation with noise;  Z says nothing to it."""
        check_is_fitted(self, "model_")
        return self.model_.predict(X, _ones(X), return_std=return_std)


class ARD(GPR):
    """GPR with a length scale for each feature. Its weights, the same for all rows, are relevances 1/theta2_k."""

    weights_are_contributions = True
    signed = False
    ard = True

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        X, _ = asked(self, X, None)
        return np.tile(1.0 / np.atleast_1d(self.model_.hyperparameters_["theta2"]), (len(X), 1))


def _ones(X: Any) -> np.ndarray:
    return np.ones((count_rows(X), 1))
