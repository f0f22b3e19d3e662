"""Methods on `GPXRegressor`: the paper's model (GPX), and Gaussian process regression (GPR, ARD).

GPR and ARD are GPX with z = 1.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..data.input_pair import count_rows
from ..estimator.paper import PAPER
from ..estimator.regressor import GPXRegressor
from .method import Method, asked


class GPX(Method):
    """The paper's model: `GPXRegressor` with the arguments `PAPER`, on inputs as they are.

    Parameters
    ----------
    n_jobs : int or None, default=None
        The number of threads, as in `GPXRegressor`.
    random_state : int, RandomState or None, default=None
        The source of randomness.
    model : dict or None, default=None
        The arguments of `GPXRegressor` in place of `PAPER`. An empty one takes its defaults, which
        choose the kernel.

    Attributes
    ----------
    model_ : GPXRegressor
        The fitted model.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> compare.GPX(random_state=0).fit(X, y).weights(X[:5]).shape
    (5, 3)
    """

    def __init__(
        self,
        n_jobs: int | None = None,
        random_state: Any = None,
        model: dict[str, Any] | None = None,
    ) -> None:
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.model = model

    def fit(self, X: Any, y: Any, Z: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, p)
            The inputs, standardised.
        y : array-like of shape (n,)
            The target, standardised.
        Z : array-like of shape (n, d), default=None
            The readable features. None takes X.

        Returns
        -------
        self : GPX
            The fitted method.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.GPX(random_state=0).fit(X, y).model_.solver_
        'exact'
        """
        options = {"standardize": False, "n_jobs": self.n_jobs, "random_state": self.random_state}
        arguments = PAPER if self.model is None else self.model
        self.model_ = GPXRegressor(**arguments | options).fit(X, y, Z)
        self.n_features_in_ = self.model_.n_features_in_
        return self

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        """Predict y for new rows.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like of shape (m, d), default=None
            The readable features. None takes X.

        Returns
        -------
        mean : ndarray of shape (m,)
            The predictions.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.GPX(random_state=0).fit(X, y).predict(X[:5]).shape
        (5,)
        """
        check_is_fitted(self, "model_")
        return self.model_.predict(X, Z)

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the posterior means of the weights of each row.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like of shape (m, d), default=None
            The readable features. None takes X.

        Returns
        -------
        weights : ndarray of shape (m, d)
            The weights, which are slopes.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.GPX(random_state=0).fit(X, y).weights(X[:5]).shape
        (5, 3)
        """
        check_is_fitted(self, "model_")
        found: np.ndarray = self.model_.explain(X, Z, std=False, dense=True).weights
        return found


class GPR(Method):
    """Gaussian process regression, which predicts and does not explain.

    The kernel is ``k(x, x') = theta1 exp(-|x - x'|^2 / theta2)``, and sigma_y is the standard
    deviation of the noise. Inputs are not standardised.

    Parameters
    ----------
    n_jobs : int or None, default=None
        The number of threads, as in `GPXRegressor`.
    random_state : int, RandomState or None, default=None
        The source of randomness.

    Attributes
    ----------
    model_ : GPXRegressor
        The fitted model with z = 1.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> compare.GPR(random_state=0).fit(X, y).predict(X[:5]).shape
    (5,)
    """

    ard = False

    def __init__(self, n_jobs: int | None = None, random_state: Any = None) -> None:
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, Z: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, p)
            The inputs, standardised.
        y : array-like of shape (n,)
            The target, standardised.
        Z : array-like, default=None
            It is not used.

        Returns
        -------
        self : GPR
            The fitted method.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.GPR(random_state=0).fit(X, y).model_.solver_
        'exact'
        """
        options = {
            "sigma_w": 0.0,
            "standardize": False,
            "n_jobs": self.n_jobs,
            "random_state": self.random_state,
        }
        return self._with(GPXRegressor(**PAPER | {"ard": self.ard}, **options).fit(X, y, _ones(X)))

    @classmethod
    def of(cls, model: GPXRegressor) -> Self:
        """Return a fitted method with a given model.

        Parameters
        ----------
        model : GPXRegressor
            A model that was fitted to X with z = 1. Its hyperparameters may have been found in any
            way.

        Returns
        -------
        method : GPR
            The fitted method.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> from gpx_scale import GPXRegressor
        >>> options = {"sigma_w": 0.0, "standardize": False, "optimizer": None}
        >>> model = GPXRegressor(**options).fit(X, y, X[:, :1] ** 0)
        >>> compare.GPR.of(model).predict(X[:5]).shape
        (5,)
        """
        return cls()._with(model)

    def _with(self, model: GPXRegressor) -> Self:
        """Take a fitted model as the result of a fit."""
        self.model_ = model
        self.n_features_in_ = self.n_readable_ = model.n_features_in_
        return self

    def predict(
        self, X: Any, Z: Any = None, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict y for new rows.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like, default=None
            It is not used.
        return_std : bool, default=False
            Whether standard deviations are returned too.

        Returns
        -------
        mean : ndarray of shape (m,)
            The predictions.
        std : ndarray of shape (m,)
            The standard deviations of new y, noise included. Only with `return_std`.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> mean, std = compare.GPR(random_state=0).fit(X, y).predict(X[:5], return_std=True)
        >>> mean.shape, std.shape
        ((5,), (5,))
        """
        check_is_fitted(self, "model_")
        found: np.ndarray | tuple[np.ndarray, np.ndarray]
        found = self.model_.predict(X, _ones(X), return_std=return_std)
        return found


class ARD(GPR):
    """Gaussian process regression with automatic relevance determination.

    Every feature has a length scale of its own. The weights are relevances 1 / theta2_k, the same
    for all rows.

    Parameters
    ----------
    n_jobs : int or None, default=None
        The number of threads, as in `GPXRegressor`.
    random_state : int, RandomState or None, default=None
        The source of randomness.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> relevances = compare.ARD(random_state=0).fit(X, y).weights(X[:5])
    >>> relevances.shape, bool((relevances > 0).all())
    ((5, 3), True)
    """

    weights_are_contributions = True
    signed = False
    ard = True

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the relevance 1 / theta2_k of each feature, the same for each row.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like, default=None
            It is not used.

        Returns
        -------
        weights : ndarray of shape (m, d)
            The relevances.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.ARD(random_state=0).fit(X, y).weights(X[:5]).shape
        (5, 3)
        """
        X, _ = asked(self, X, None)
        return np.tile(1.0 / np.atleast_1d(self.model_.hyperparameters_["theta2"]), (len(X), 1))


def _ones(X: Any) -> np.ndarray:
    """Return z = 1 for every row of X;  (n, 1)."""
    return np.ones((count_rows(X), 1))
