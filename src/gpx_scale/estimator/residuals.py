"""Residuals of rows on the scale of their likelihood, and how much outliers count."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.checks import target_of
from ..errors import InputError
from ..likelihoods import Observed
from .prediction import PredictionMixin


class ResidualsMixin(PredictionMixin):
    """Methods of a fitted estimator that compare given y with their predictions."""

    def deviance_residuals(
        self, X: Any, y: Any, Z: Any = None, *, offset: Any = None, trials: Any = None
    ) -> np.ndarray:
        """Return the deviance residuals of rows: how unlikely each y is, with a sign.

        The square of a residual is twice the difference between the largest log-likelihood that
        any f gives to y, and that of the predicted f. Its sign is that of y minus its prediction.
        If the likelihood is right, about 95 of 100 are between -2 and 2. With Gaussian noise, it is
        the difference over sigma_y.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        y : array-like of shape (m,)
            The true values.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        offset : array-like of shape (m,), default=None
            The part of each row's latent function that is known, as in `predict`.
        trials : array-like of shape (m,), default=None
            The number of trials of each row, for `likelihood="binomial"`.

        Returns
        -------
        residuals : ndarray of shape (m,)
            The residuals.

        Raises
        ------
        InputError
            If y cannot be of the likelihood.

        Examples
        --------
        >>> from gpx_scale import GPXRegressor
        >>> X = np.linspace(-1.0, 1.0, 60)[:, None]
        >>> y = np.random.RandomState(0).poisson(np.exp(1.0 + X[:, 0]))
        >>> model = GPXRegressor("rbf", likelihood="poisson", fit_intercept=False).fit(X, y)
        >>> residuals = model.deviance_residuals(X, y)
        >>> residuals.shape, bool((abs(residuals) < 5).all())
        ((60,), True)
        """
        observed, f = self._observed(X, y, Z, offset, trials)
        likelihood = self._model.hyperparameters.likelihood
        best = likelihood.best(observed)
        gap = likelihood.slopes(observed, best).value - likelihood.slopes(observed, f).value
        residuals: np.ndarray = np.sign(best - f) * np.sqrt(2.0 * np.maximum(gap, 0.0))
        return residuals

    def outlier_weights(self, X: Any, y: Any, Z: Any = None, *, offset: Any = None) -> np.ndarray:
        """Return how much rows count for a model of heavy tails: 1, or less for outliers.

        A row that is r away from its prediction counts 1 / (1 + r^2 / (nu sigma_y^2)) times as much
        as one that is on it. A model with `likelihood="student"` treats rows far below 1/2 as
        outliers.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        y : array-like of shape (m,)
            The true values.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        offset : array-like of shape (m,), default=None
            The part of each row's prediction that is known, as in `predict`.

        Returns
        -------
        weights : ndarray of shape (m,)
            The weights, between 0 and 1.

        Raises
        ------
        InputError
            If the likelihood is another one.

        Examples
        --------
        >>> from gpx_scale import GPXRegressor
        >>> X = np.linspace(-1.0, 1.0, 60)[:, None]
        >>> y = X[:, 0] + 0.1 * np.random.RandomState(0).standard_normal(60)
        >>> y[30] = 5.0
        >>> model = GPXRegressor("rbf", likelihood="student", fit_intercept=False).fit(X, y)
        >>> int(model.outlier_weights(X, y).argmin())
        30
        """
        observed, f = self._observed(X, y, Z, offset, None)
        likelihood = self._model.hyperparameters.likelihood
        known = likelihood.as_dict()
        if "nu" not in known:
            raise InputError(
                f"With likelihood={likelihood.name!r}, all rows count the same. Fit the model with "
                "likelihood='student'."
            )
        scale = known["nu"] * known["sigma_y"] ** 2
        weights: np.ndarray = 1.0 / (1.0 + np.square(observed.y - f) / scale)
        return weights

    def _observed(
        self, X: Any, y: Any, Z: Any, offset: Any, trials: Any
    ) -> tuple[Observed, np.ndarray]:
        """Return checked y, and the predicted f, on the scale of the likelihood;  (m,)."""
        model, queries = self._model, self._query(X, Z, offset, trials)
        likelihood, scaling = model.hyperparameters.likelihood, model.preprocessor.scaling
        target = target_of(y)
        if len(target) != len(queries):
            raise InputError(
                f"X and y have inconsistent numbers of samples: {len(queries)} and {len(target)}. "
                "Give one y per row of X."
            )
        shift = 0.0 if queries.columns.offset is None else queries.columns.offset
        with self._session() as session:
            f, _ = model.latent(queries, False, session)
        if likelihood.standardizes_target:
            return Observed(scaling.y(target - shift)), f
        observed = Observed.of(target, queries.columns)
        reason = likelihood.reason_against(observed)
        if reason is not None:
            raise InputError(reason)
        return observed, scaling.prediction(f) + shift
