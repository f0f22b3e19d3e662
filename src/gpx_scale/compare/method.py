"""What every method can do: fit, predict, weights; contributions follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError


class Method(RegressorMixin, BaseEstimator):
    """Predicts by X (n, p) and explains by Z (n, d), which is X unless given; both standardised by the caller, and y too, so
    that 0 stands for a feature that is absent.

    Subclasses give `fit(X, y, Z=None)`, `predict(X, Z=None)` (m,) and `weights(X, Z=None)` (m, d). What a weight is, is the
    method's own affair: a slope, or, where `weights_are_contributions`, what a feature adds to the prediction (or how relevant
    it is).
    """

    weights_are_contributions = False
    signed = True  # False: weights say how much a feature matters, not which way

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        """Of each feature for each row;  (m, d)."""
        raise InputError(f"{type(self).__name__} predicts and does not explain: it has no weights")

    def contributions(self, X: Any, Z: Any = None) -> np.ndarray:
        """Weights times z, or weights that are contributions already;  (m, d)."""
        W = self.weights(X, Z)
        return W if self.weights_are_contributions else W * readable(X, Z)


def readable(X: Any, Z: Any) -> np.ndarray:
    """The features that explain, dense;  (m, d)."""
    Z = X if Z is None else Z
    return Z.toarray() if sp.issparse(Z) else np.asarray(Z, dtype=float)


def training(X: Any, y: Any, Z: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, y, Z of a fit, checked: finite, and of as many rows each."""
    X, y, Z = np.asarray(X, dtype=float), np.asarray(y, dtype=float), readable(X, Z)
    if X.ndim != 2 or y.ndim != 1 or Z.ndim != 2 or not len(X) == len(y) == len(Z):
        raise InputError(f"X, y, Z need as many rows each, got shapes {X.shape}, {y.shape}, {Z.shape}")
    if not (np.isfinite(X).all() and np.isfinite(y).all() and np.isfinite(Z).all()):
        raise InputError("X, y and Z need to be finite: impute or drop rows with NaN or infinity")
    return X, y, Z


def asked(method: Method, X: Any, Z: Any) -> tuple[np.ndarray, np.ndarray]:
    """X and Z of a query to a fitted method, with the columns of its fit."""
    check_is_fitted(method, "n_features_in_")
    X, Z = np.asarray(X, dtype=float), readable(X, Z)
    wanted = method.n_features_in_, method.n_readable_
    if X.ndim != 2 or Z.ndim != 2 or len(X) != len(Z) or (X.shape[1], Z.shape[1]) != wanted:
        raise InputError(f"X and Z need {wanted[0]} and {wanted[1]} columns and as many rows each, got {X.shape}, {Z.shape}")
    return X, Z
