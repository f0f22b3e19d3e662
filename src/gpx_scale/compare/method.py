"""What every method can do: fit, predict, weights; contributions follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError
from ..runtime.arguments import real_array


class Method(RegressorMixin, BaseEstimator):
    """Predicts by X (n, p) and explains by Z (n, d), which is X unless given; both standardised by the caller, and y too, so
    that 0 stands for a feature that is absent.

    Subclasses give `fit(X, y, Z=None)`, `predict(X, Z=None)` (m,) and `weights(X, Z=None)` (m, d). What a weight is, is the
    method's own affair: a slope, or, where `weights_are_contributions`, what a feature adds to the prediction (or how relevant
    it is).
    """

    weights_are_contributions = False
    signed = True  # False: weights say how much a feature matters, not which way
    n_features_in_: int
    n_readable_: int

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        """Of each feature for each row;  (m, d)."""
        raise InputError(f"{type(self).__name__} predicts and does not explain: it has no weights")

    def contributions(self, X: Any, Z: Any = None, baseline: Any = 0.0) -> np.ndarray:
        """Weights times (z - baseline), or weights that are contributions already and know no baseline;  (m, d)."""
        W = self.weights(X, Z)
        return (
            W
            if self.weights_are_contributions
            else W * (dense(X if Z is None else Z) - np.asarray(baseline, dtype=float))
        )

    def _remember(self, X: np.ndarray, Z: np.ndarray) -> None:
        self.n_features_in_, self.n_readable_ = X.shape[1], Z.shape[1]


def dense(A: Any) -> np.ndarray:
    """Numbers as a dense array of floats; empty where there are none."""
    return real_array(A.toarray() if sp.issparse(A) else A)


def training(X: Any, y: Any, Z: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, y, Z of a fit, checked: finite, and of as many rows each."""
    X, y, Z = dense(X), dense(y), dense(X if Z is None else Z)
    if (
        X.ndim != 2
        or y.ndim != 1
        or Z.ndim != 2
        or not len(X) == len(y) == len(Z)
        or not X.size
        or not Z.size
    ):
        raise InputError(
            f"X, y, Z need as many rows each, and columns, got shapes {X.shape}, {y.shape}, {Z.shape}"
        )
    with np.errstate(over="ignore"):
        fine = all(np.isfinite(np.square(A).sum()) for A in (X, y, Z))  # squares, too
    if not fine:
        raise InputError(
            "X, y and Z need to be finite, and not so large that squares are not: impute, drop or scale rows"
        )
    return X, y, Z


def asked(method: Method, X: Any, Z: Any) -> tuple[np.ndarray, np.ndarray]:
    """X and Z of a query to a fitted method, with the columns of its fit."""
    check_is_fitted(method, "n_features_in_")
    X, Z = dense(X), dense(X if Z is None else Z)
    wanted = method.n_features_in_, method.n_readable_
    if X.ndim != 2 or Z.ndim != 2 or len(X) != len(Z) or (X.shape[1], Z.shape[1]) != wanted:
        raise InputError(
            f"X and Z need {wanted[0]} and {wanted[1]} columns and as many rows each, got {X.shape}, {Z.shape}"
        )
    if not (np.isfinite(X).all() and np.isfinite(Z).all()):
        raise InputError("X and Z need to be finite: impute or drop rows with NaN or infinity")
    return X, Z


def fitted(given: Any, default: Method, X: np.ndarray, y: np.ndarray) -> Any:
    """The given model, fitted here (a copy of it) unless it is already; without one, `default`."""
    if given is None:
        return default.fit(X, y)
    try:
        check_is_fitted(given)
    except NotFittedError:
        return clone(given).fit(X, y)
    except TypeError:  # not an estimator: something that predicts
        return given
    return given
