"""Lasso and Ridge of scikit-learn, with the paper's grids: one weight vector for all rows."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from sklearn.linear_model import LassoCV, RidgeCV

from .method import Method, asked, training


class _Linear(Method):
    def fit(self, X: Any, y: Any, Z: Any = None) -> _Linear:
        X, y, Z = training(X, y, Z)
        self.model_ = self._search().fit(Z, y)
        self._remember(X, Z)
        return self

    @abc.abstractmethod
    def _search(self) -> Any:
        """Return the estimator that finds the penalty by cross-validation."""

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        X, Z = asked(self, X, Z)
        return self.model_.predict(Z)

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        X, _ = asked(self, X, Z)
        return np.tile(self.model_.coef_, (len(X), 1))


class Lasso(_Linear):
    """LassoCV as it comes: 100 penalties down to 0.001 of the largest, five folds."""

    def _search(self) -> Any:
        return LassoCV()


class Ridge(_Linear):
    """RidgeCV over penalties of 0.1, 1 and 10, by leave-one-out."""

    def _search(self) -> Any:
        return RidgeCV(alphas=(0.1, 1.0, 10.0))
