"""KL: relevances by how far the predictive distribution moves when a feature moves a little."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..metrics import each_moved
from ..runtime.arguments import positive
from .gaussian_process import ARD
from .method import Method, asked, fitted, training


class KL(Method):
    """Relevances of features by the Kullback-Leibler divergence (Paananen 2019).

    The relevance of feature l is sqrt(KL(p(y|x) || p(y|x + delta e_l))) / delta, the mean of both
    signs of delta, where p is the predictive distribution of Gaussian process regression with
    automatic relevance determination. This follows the code of the authors; their article uses
    sqrt(2 KL), and the constant factor changes neither ranks nor correlations. For normal
    distributions with means m, m' and variances v, v', KL is
    ((m - m')^2 / v' + v / v' - 1 - log(v / v')) / 2.

    Parameters
    ----------
    model : object, default=None
        A model whose `predict` takes `return_std`. It is fitted if it is an estimator that is not
        fitted yet. None fits an `ARD`.
    delta : float, default=1e-3
        The distance by which a feature is moved.
    n_jobs : int or None, default=None
        The number of threads, as in `GPXRegressor`.
    random_state : int, RandomState or None, default=None
        The source of randomness.

    Attributes
    ----------
    model_ : object
        The fitted model.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> relevances = compare.KL(compare.GPR(random_state=0)).fit(X, y).weights(X[:5])
    >>> relevances.shape, bool((relevances >= 0).all())
    ((5, 3), True)
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

    def fit(self, X: Any, y: Any, Z: Any = None) -> Self:
        """Fit the model whose predictions are explained, unless it is fitted already.

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
        self : KL
            The fitted method.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.KL(compare.GPR(random_state=0)).fit(X, y).n_features_in_
        3
        """
        positive(self.delta, "delta")
        X, y, _ = training(X, y, None)
        self.model_ = fitted(
            self.model, ARD(n_jobs=self.n_jobs, random_state=self.random_state), X, y
        )
        self._remember(X, X)
        return self

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the predictions of the model that is explained.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like, default=None
            It is not used.

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
        >>> compare.KL(compare.GPR(random_state=0)).fit(X, y).predict(X[:5]).shape
        (5,)
        """
        check_is_fitted(self, "model_")
        mean: np.ndarray = self.model_.predict(X)
        return mean

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the relevance of each feature for each row.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like, default=None
            It is not used.

        Returns
        -------
        weights : ndarray of shape (m, d)
            The relevances, which are not negative.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.KL(compare.GPR(random_state=0)).fit(X, y).weights(X[:5]).shape
        (5, 3)
        """
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
    """Return KL of normal distributions, without the cancellation of v / v' - 1."""
    excess = (std - other_std) * (std + other_std) / other_std**2
    found: np.ndarray = ((mean - other) / other_std) ** 2 + excess - np.log1p(excess)
    return np.maximum(0.5 * found, 0.0)
