"""The interface of all methods, and the checks of their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError
from ..runtime.arguments import real_array


class Method(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A regression method that predicts from X and explains by Z.

    The caller standardises X, Z and y, so that 0 stands for a feature that is absent. Subclasses
    have `fit(X, y, Z=None)`, `predict(X, Z=None)` of shape (m,) and, if they explain,
    `weights(X, Z=None)` of shape (m, d). By default a weight is a slope.

    Attributes
    ----------
    weights_are_contributions : bool
        Whether weights are not slopes, but contributions of features to the prediction, or
        relevances.
    signed : bool
        Whether weights have a sign. Relevances have none: they say how much a feature matters, and
        not in which direction.
    n_features_in_ : int
        The number of columns of X.
    n_readable_ : int
        The number of columns of Z.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> [name for name in compare.__all__ if issubclass(getattr(compare, name), compare.Method)][:4]
    ['ARD', 'GPR', 'GPX', 'KL']
    >>> compare.Ridge().fit(X, y).contributions(X).shape
    (60, 3)
    """

    weights_are_contributions = False
    signed = True
    n_features_in_: int
    n_readable_: int

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the weight of each feature for each row.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like of shape (m, d), default=None
            The readable features. None takes X.

        Returns
        -------
        weights : ndarray of shape (m, d)
            The weights.

        Raises
        ------
        InputError
            If the method does not explain.

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
        raise InputError(
            f"{type(self).__name__} predicts and does not explain, so it has no weights. Use a "
            "method that explains, such as GPX."
        )

    def contributions(self, X: Any, Z: Any = None, baseline: Any = 0.0) -> np.ndarray:
        """Return the contribution of each feature to each prediction.

        It is the weight times (z - baseline), or the weight itself if `weights_are_contributions`.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like of shape (m, d), default=None
            The readable features. None takes X.
        baseline : float or array-like of shape (d,), default=0.0
            The z to which contributions are relative.

        Returns
        -------
        contributions : ndarray of shape (m, d)
            The contributions.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.Ridge().fit(X, y).contributions(X[:5]).shape
        (5, 3)
        """
        W = self.weights(X, Z)
        return (
            W
            if self.weights_are_contributions
            else W * (dense(X if Z is None else Z) - np.asarray(baseline, dtype=float))
        )

    def _remember(self, X: np.ndarray, Z: np.ndarray) -> None:
        """Keep the numbers of columns of a fit."""
        self.n_features_in_, self.n_readable_ = X.shape[1], Z.shape[1]


def dense(A: Any) -> np.ndarray:
    """Return numbers as a dense array of floats; an empty one for anything else."""
    return real_array(A.toarray() if sp.issparse(A) else A)


def training(X: Any, y: Any, Z: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y and Z of a fit as dense arrays: finite, and with the same number of rows."""
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
            f"X, y and Z have the shapes {X.shape}, {y.shape} and {Z.shape}. Give as many rows of "
            "each, and at least one column of X and Z."
        )
    with np.errstate(over="ignore"):
        fine = all(np.isfinite(np.square(A).sum()) for A in (X, y, Z))
    if not fine:
        raise InputError(
            "X, y or Z has values that are not finite, or so large that their squares are not. "
            "Impute, drop or scale rows."
        )
    return X, y, Z


def asked(method: Method, X: Any, Z: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return X and Z of a query to a fitted method as dense arrays, with the columns of its fit."""
    check_is_fitted(method, "n_features_in_")
    X, Z = dense(X), dense(X if Z is None else Z)
    wanted = method.n_features_in_, method.n_readable_
    if X.ndim != 2 or Z.ndim != 2 or len(X) != len(Z) or (X.shape[1], Z.shape[1]) != wanted:
        raise InputError(
            f"X and Z have the shapes {X.shape} and {Z.shape}. Give {wanted[0]} and {wanted[1]} "
            "columns, as in fit, and as many rows of each."
        )
    if not (np.isfinite(X).all() and np.isfinite(Z).all()):
        raise InputError(
            "X or Z has values that are not finite. Impute or drop rows with NaN or infinity."
        )
    return X, Z


def fitted(given: Any, default: Method, X: np.ndarray, y: np.ndarray) -> Any:
    """Return a model that predicts, fitted to X and y.

    A given model is returned as it is if it is fitted, or is no estimator; otherwise a clone of it
    is fitted. Without one, `default` is fitted.
    """
    if given is None:
        return default.fit(X, y)
    try:
        check_is_fitted(given)
    except NotFittedError:
        return clone(given).fit(X, y)
    except TypeError:
        # It is not an estimator, but another object that predicts.
        return given
    return given
