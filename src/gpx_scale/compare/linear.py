"""Lasso and Ridge of scikit-learn, with the paper's grids. All rows have the same weights."""

from __future__ import annotations

import abc
from typing import Any, Self

import numpy as np
from sklearn.linear_model import LassoCV, RidgeCV

from .method import Method, asked, training


class _Linear(Method):
    """A linear model of Z, whose penalty is found by cross-validation."""

    def fit(self, X: Any, y: Any, Z: Any = None) -> Self:
        """Fit the linear model to Z (n, d), or to X if Z is None."""
        X, y, Z = training(X, y, Z)
        self.model_ = self._search().fit(Z, y)
        self._remember(X, Z)
        return self

    @abc.abstractmethod
    def _search(self) -> Any:
        """Return the estimator that finds the penalty by cross-validation."""

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the predictions;  (m,)."""
        _, Z = asked(self, X, Z)
        mean: np.ndarray = self.model_.predict(Z)
        return mean

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the coefficients of the model, the same for each row;  (m, d)."""
        X, _ = asked(self, X, Z)
        return np.tile(self.model_.coef_, (len(X), 1))


class Lasso(_Linear):
    """Linear regression with an L1 penalty, by `sklearn.linear_model.LassoCV`.

    The penalty is chosen by cross-validation with five folds, among 100 values down to 0.001 of the
    largest. All rows have the same weights.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> compare.Lasso().fit(X, y).weights(X[:5]).shape
    (5, 3)
    """

    def _search(self) -> Any:
        """Return the estimator that finds the penalty by cross-validation."""
        return LassoCV()


class Ridge(_Linear):
    """Linear regression with an L2 penalty, by `sklearn.linear_model.RidgeCV`.

    The penalty is chosen by leave-one-out among 0.1, 1 and 10. All rows have the same weights.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> compare.Ridge().fit(X, y).weights(X[:5]).shape
    (5, 3)
    """

    def _search(self) -> Any:
        """Return the estimator that finds the penalty by cross-validation."""
        return RidgeCV(alphas=(0.1, 1.0, 10.0))
