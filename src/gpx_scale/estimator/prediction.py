"""The methods of a fitted estimator: predictions, explanations, samples, likelihood, saving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..data.frame_columns import index_of_rows
from ..data.input_pair import unpack
from ..data.inputs import Preprocessor, Queries, remember_columns
from ..data.row_source import RowSource
from ..errors import InputError
from ..explanation import Explanation, SupportingRow, WhatIf, explanation_of_counts
from ..persistence.model_file import write_state
from ..runtime.arguments import flag, one_of, real_array, whole
from ..runtime.journal import FitReport
from ..runtime.session import Session
from ..solvers.contract import Plan
from ..solvers.posterior import Posterior
from .changed_rows import one_row, with_changes
from .explain import baseline_vector
from .fitted_model import FittedModel
from .left_out import TrainingRecord
from .outcomes import columns_of, must_have_rows

# Attributes that `save` leaves out: functions, paths and connections that belong to the process or
# the machine, the rows of a stream, and the index of the training rows.
NOT_SAVED = ("callbacks", "checkpoint", "_rows", "_index", "client")


class PredictionMixin:
    """The methods of a fitted estimator, which has the attributes that are declared here."""

    _preprocessor: Preprocessor
    _plan: Plan
    _rows: RowSource | None
    _others: tuple[Posterior[Any], ...]
    _index: np.ndarray | None
    posterior_: Posterior[Any]
    fit_report_: FitReport
    target_name_: str | None
    log_marginal_likelihood_value_: float
    random_state: Any
    memory_limit: Any
    n_jobs: int | None
    verbose: int

    @property
    def _model(self) -> FittedModel:
        """The fitted model, made of the attributes of the estimator."""
        check_is_fitted(self)
        known = self._preprocessor, self._plan, self.posterior_, self.fit_report_
        return FittedModel(*known, self.target_name_, self._others)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Open a session with the threads and limits of one call."""
        given = self.n_jobs, self.memory_limit, self.random_state, self.verbose
        with Session.open(*given) as session:
            yield session

    @overload
    def predict(
        self,
        X: Any,
        Z: Any = None,
        return_std: Literal[False] = False,
        return_cov: Literal[False] = False,
        *,
        quantiles: None = None,
        offset: Any = None,
        trials: Any = None,
    ) -> np.ndarray: ...

    @overload
    def predict(
        self,
        X: Any,
        Z: Any = None,
        return_std: bool | str = False,
        return_cov: bool = False,
        *,
        quantiles: Any = None,
        offset: Any = None,
        trials: Any = None,
    ) -> Any: ...

    def predict(
        self,
        X: Any,
        Z: Any = None,
        return_std: bool | str = False,
        return_cov: bool = False,
        *,
        quantiles: Any = None,
        offset: Any = None,
        trials: Any = None,
    ) -> Any:
        """Predict y for new rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel. With `kernel="precomputed"`, X has the kernel values between
            the m new rows and the n training rows.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        return_std : bool or "samples", default=False
            Whether the standard deviations of new y are returned too. With "samples" they are
            estimated from posterior samples (solvers "cg" and "grid", dense Z), and enlarged so
            that they are not too small.
        return_cov : bool, default=False
            Whether the joint covariance matrix of new y is returned too.
        quantiles : list of float, default=None
            Probabilities between 0 and 1, such as [0.05, 0.95] for an interval. The quantiles of
            new y are returned too.
        offset : array-like of shape (m,), default=None
            The part of each row's latent function that is known, as in `fit`. None is 0.
        trials : array-like of shape (m,), default=None
            The number of trials of each row, for `likelihood="binomial"`. None is one each.

        Returns
        -------
        mean : ndarray of shape (m,)
            The predictions, which are the posterior means of y.
        std : ndarray of shape (m,)
            The standard deviations of new y, noise included. Only with `return_std`.
        cov : ndarray of shape (m, m)
            The covariance matrix of new y, noise included. Only with `return_cov`.
        quantiles : ndarray of shape (m, n_quantiles)
            The quantiles of new y, noise included. Only with `quantiles`.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        InputError
            If X or Z cannot be used, or if both `return_std` and `return_cov` are asked for.
        SolverUnavailable
            If the solver of the model has no "samples".

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> mean, std = model.predict(X[100:], return_std=True)
        >>> mean.shape, std.shape, bool((std > 0).all())
        ((342,), (342,), True)
        >>> mean, cov = model.predict(X[100:105], return_cov=True)
        >>> cov.shape
        (5, 5)
        """
        return_std, return_cov = (
            one_of(return_std, (True, False, "samples"), "return_std"),
            flag(return_cov, "return_cov"),
        )
        if return_std and return_cov:
            raise InputError(
                "return_std and return_cov were both asked for. Ask for return_cov alone: the "
                "standard deviations are the square roots of the diagonal."
            )
        levels = [] if quantiles is None else _levels(quantiles)
        model, queries = self._model, self._query(X, Z, offset, trials)
        with self._session() as session:
            # A solver without joint covariances says so before any work is done.
            cov = model.joint_covariance(queries, session) if return_cov else None
            found = model.predict(queries, return_std, session, levels)
        parts = [found.mean, *([found.std] if return_std else []), *([] if cov is None else [cov])]
        if levels:
            parts.append(np.column_stack(found.quantiles))
        return tuple(parts) if len(parts) > 1 else found.mean

    def score(self, X: Any, y: Any, Z: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R^2 of the predictions.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        y : array-like of shape (m,)
            The true values.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        sample_weight : array-like of shape (m,), default=None
            The weights of the rows in the score.

        Returns
        -------
        score : float
            R^2, which is 1 for perfect predictions and 0 for predictions by the mean of y.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(theta2=100.0, sigma_y=0.7, optimizer=None).fit(X[:300], y[:300])
        >>> model.score(X[300:], y[300:]) > 0.3
        True
        """
        return float(r2_score(y, self.predict(X, Z), sample_weight=sample_weight))

    def explain(
        self,
        X: Any,
        Z: Any = None,
        std: bool | str = True,
        cov: bool = False,
        baseline: Any = "mean",
        feature_names: Sequence[str] | None = None,
        dense: bool = False,
        groups: Mapping[str, Sequence[Any]] | None = None,
        units: Mapping[str, str] | None = None,
        target_units: str | None = None,
        offset: Any = None,
    ) -> Explanation:
        """Explain the predictions of new rows by weights and contributions of their features.

        The contribution of a feature is its weight times the difference between its value and the
        baseline. The contributions of a row and its base value add up to its prediction. Rows of
        the training data are explained as if they were new; `training_explanation` gives the
        posterior of their own weights. Rows are explained in batches, and with `verbose=1` a bar
        shows how many are done.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        std : bool, "surface", "certified" or "samples", default=True
            Whether standard deviations are computed, and which ones. The weights of a new row are
            g(x) plus deviations of that row's own, of standard deviation sigma_w, which True
            includes. "surface" leaves them out: the standard deviations of weights, contributions
            and base values (and `weights_cov`) are those of g(x), for maps and curves of the
            weights, and those of predictions stay the same. "certified" gives upper bounds of
            the standard deviations of the weights (solvers "exact" and "cg"), which the exact
            solver computes faster for many rows; with a sparse Z it is the same as True.
            "samples" estimates standard deviations from posterior samples (solvers "cg" and
            "grid", dense Z), and enlarges them so that they are not too small.
        cov : bool, default=False
            Whether the (d, d) covariance matrix of the weights of each row is computed too.
        baseline : {"mean", "zero"} or array-like of shape (d,), default="mean"
            The z to which contributions are relative. "mean" is the mean of the training rows, or
            zero for a sparse Z or with `standardize=False`.
        feature_names : sequence of str, default=None
            The names of the d features. None takes the names that `fit` found.
        dense : bool, default=False
            For a sparse Z, whether the weights of all d features are computed, as dense arrays.
            Otherwise a row has weights only for the features that are stored in Z, and arrays of
            shape (m, d) are `csr_array`.
        groups : dict of str to list, default=None
            Features that are one reason: for the name of each group, the names or numbers of its
            features. All other features are the group "others". The contributions of groups, with
            their standard deviations, are what `grouped`, plots and reports show. None takes
            the columns that encode one column of a table, and {} has no groups.
        units : mapping of str to str, default=None
            The units of features, by their names, which plots, reports and sentences write.
        target_units : str, default=None
            The units of y.
        offset : array-like of shape (m,), default=None
            The part of each row's latent function that is known, as in `predict`.

        Returns
        -------
        explanation : Explanation
            The explanations of all rows, in the units of the data. For counts, it is a
            `LatentExplanation`, on the scale of the latent function.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        InputError
            If X, Z or an argument cannot be used.
        MemoryLimitError
            If the explanation needs more memory than `memory_limit`.
        SolverUnavailable
            If the solver of the model cannot compute `std` in the given way.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> explanation.weights.shape, explanation.weights_std.shape
        ((342, 10), (342, 10))
        >>> explanation.feature_names[:4]
        ['age', 'sex', 'bmi', 'bp']
        >>> total = explanation.base_values + explanation.contributions.sum(axis=1)
        >>> bool(np.allclose(total, model.predict(X[100:])))
        True
        >>> surface = model.explain(X[100:], std="surface")
        >>> bool((surface.weights_std < explanation.weights_std).all())
        True
        >>> blood = {"blood": ["s1", "s2", "s3", "s4", "s5", "s6"], "body": ["age", "sex", "bmi"]}
        >>> grouped = model.explain(X[100:], groups=blood).grouped()
        >>> grouped.feature_names, grouped.contributions_std.shape
        (['blood', 'body', 'others'], (342, 3))
        """
        queries = self._query(X, Z, offset)
        found = self._explain(queries, std, cov, baseline, feature_names, dense, groups)
        found = replace(found, index=index_of_rows(unpack(X, Z)[0]))
        return found.with_units(units, target_units)

    def training_explanation(
        self,
        std: bool = True,
        cov: bool = False,
        baseline: Any = "mean",
        feature_names: Sequence[str] | None = None,
        dense: bool = False,
        groups: Mapping[str, Sequence[Any]] | None = None,
    ) -> Explanation:
        """Explain the training rows by the posterior of their own weights.

        These are the weights w_i of row i, whose posterior is p(W | D) in the paper. They contain
        the noise of that row's weights, whereas `explain` describes new rows at the same x. Models
        of the solvers "exact", "cg", "neighbors" and "grid" have them. With "neighbors", each row
        is conditioned on itself, on its neighbours and on the shared rows.

        Parameters
        ----------
        std : bool, default=True
            Whether standard deviations are computed.
        cov : bool, default=False
            Whether the (d, d) covariance matrix of the weights of each row is computed too.
        baseline : {"mean", "zero"} or array-like of shape (d,), default="mean"
            The z to which contributions are relative, as in `explain`.
        feature_names : sequence of str, default=None
            The names of the d features. None takes the names that `fit` found.
        dense : bool, default=False
            For a sparse Z, whether the weights of all d features are computed, as in `explain`.
        groups : dict of str to list, default=None
            Features that are one reason, as in `explain`.

        Returns
        -------
        explanation : Explanation
            The explanations of the n training rows.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> model.training_explanation()
        Explanation(100 samples, 10 features, with uncertainty)
        """
        with self._session() as session:
            queries = self._model.training_queries(session)
        found = self._explain(queries, std, cov, baseline, feature_names, dense, groups)
        return replace(found, index=self._index)

    def what_if(
        self,
        row: Any,
        changes: Mapping[Any, Any],
        *,
        groups: Mapping[str, Sequence[Any]] | None = None,
    ) -> WhatIf:
        """Return what changes of some values of a row would do to its prediction.

        The row is predicted as it is and with the changes. The standard deviation of the
        difference comes from the joint posterior distribution of both predictions. With the solver
        "neighbors", both are conditioned on the union of their neighbours, so they may differ a
        little from what `predict` gives for each of them.

        Parameters
        ----------
        row : array-like of shape (p,) or (1, p), dataframe, series or XZ
            The row. If the model was fitted with a separate Z, give an `XZ` pair of one row.
        changes : dict
            The new values of some columns, by their names or, without a separate Z, their numbers.
        groups : dict of str to list, default=None
            Features that are one reason, as in `explain`.

        Returns
        -------
        answer : WhatIf
            The predictions before and after, the change with its standard deviation (without
            noise), and the contributions that change.

        Raises
        ------
        InputError
            If the row or a change cannot be used.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor("rbf", optimizer=None, weights="shared").fit(X[:100], y[:100])
        >>> answer = model.what_if(X[100:101], {"bmi": 25.0})
        >>> before, after = model.predict(X[100:101].assign(bmi=[25.0])), model.predict(X[100:101])
        >>> bool(abs(answer.change - (before - after)[0]) < 1e-9)
        True
        >>> next(iter(answer.contributions))
        'bmi'
        """
        if self._model.kernel.input_kind == "gram":
            raise InputError(
                'With kernel="precomputed", X has no values that could change. Give both rows to '
                "predict, with return_cov=True."
            )
        names, given = self._column_names()
        both = self._query(*with_changes(row, changes, names, given))
        with self._session() as session:
            return self._model.what_if(both, groups, session)

    def supporting_rows(self, row: Any, k: int = 5) -> list[SupportingRow]:
        """Return the training rows that the prediction for a row rests on.

        A prediction is the mean of y plus a weighted sum of the differences between the y of all
        training rows and this mean. These are the rows with the largest absolute weights. Models of
        the solvers "exact", "cg", "neighbors" and "grid" keep the training rows.

        Parameters
        ----------
        row : array-like of shape (p,) or (1, p), dataframe, series or XZ
            The row. If the model was fitted with a separate Z, give an `XZ` pair of one row.
        k : int, default=5
            The largest number of training rows.

        Returns
        -------
        rows : list of SupportingRow
            The number, the weight and the y of each training row, the largest weight first.

        Raises
        ------
        SolverUnavailable
            If the solver of the model does not keep the training rows.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor("rbf", optimizer=None, weights="shared").fit(X[:100], y[:100])
        >>> rows = model.supporting_rows(X[100:101], k=3)
        >>> len(rows), bool(abs(rows[0].y - y[rows[0].row]) < 1e-9)
        (3, True)
        """
        given = one_row(row)
        query = self._query(given, None)
        with self._session() as session:
            return self._model.supporting_rows(query, whole(k, "k", least=0), session)

    def _column_names(self) -> tuple[list[str], list[str]]:
        """Return the names of the columns of X and of a separate Z, x0 and z0 if they have none."""
        known, preprocessor = getattr(self, "feature_names_in_", None), self._preprocessor
        if known is None:
            known = [f"x{column}" for column in range(getattr(self, "n_features_in_", 0))]
        given = preprocessor.z_columns
        if given is None:
            given = [f"z{column}" for column in range(preprocessor.n_z)]
        return [str(name) for name in known], [str(name) for name in given]

    def _explain(
        self,
        queries: Queries,
        std: Any,
        cov: Any,
        baseline: Any,
        names: Sequence[str] | None,
        dense: Any,
        groups: Any,
    ) -> Explanation:
        """Check the arguments and return the explanations of the queries."""
        std = one_of(std, (True, False, "surface", "certified", "samples"), "std")
        cov, dense = flag(cov, "cov"), flag(dense, "dense")
        asked = {
            "std": std,
            "cov": cov,
            "baseline": baseline,
            "names": names,
            "all_features": dense,
            "groups": groups,
        }
        model, offset = self._model, queries.columns.offset
        likelihood = model.hyperparameters.likelihood
        with self._session() as session:
            found = model.explain(queries, session, **asked)
            if offset is not None:
                base_values, prediction = found.base_values + offset, found.prediction + offset
                found = replace(found, base_values=base_values, prediction=prediction)
            if not likelihood.standardizes_target:
                _, variance = model.latent(queries, True, session)
                assert variance is not None
                found = explanation_of_counts(found, variance, likelihood)
        if not likelihood.is_gaussian:
            return found
        return replace(found, training_record=TrainingRecord(self))

    @property
    def baseline_(self) -> np.ndarray:
        """The z to which contributions are relative by default, in the units of the data.

        It has shape (d,): the column means of Z, or zeros for a sparse Z or with
        `standardize=False`.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> bool(abs(model.baseline_ - X[:100].mean(axis=0)).max() < 1e-6)
        True
        """
        check_is_fitted(self, "posterior_")
        return baseline_vector("mean", self._preprocessor.scaling)

    @overload
    def log_marginal_likelihood(
        self, theta: Any = None, eval_gradient: Literal[False] = False
    ) -> float: ...

    @overload
    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any: ...

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """Return the log marginal likelihood log p(y), for y in the units of the data.

        With inducing points it is a lower bound, for which the rows of `fit` are read again. With a
        basis it comes from sums over the rows, and from the rows themselves if the length scales
        leave the box of the basis. The rows are not kept in a copy or a file of such a model, nor
        after `partial_fit`.

        Parameters
        ----------
        theta : array-like of shape (n_hyperparameters,), default=None
            The logarithms of the hyperparameters, in the order of `theta_`. None takes `theta_`.
        eval_gradient : bool, default=False
            Whether the gradient by `theta` is returned too.

        Returns
        -------
        value : float
            The log marginal likelihood in nats.
        gradient : ndarray of shape (n_hyperparameters,)
            The gradient. Only with `eval_gradient`.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> value, gradient = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
        >>> abs(value - model.log_marginal_likelihood_value_) < 1e-6, gradient.shape
        (True, (4,))
        """
        check_is_fitted(self)
        eval_gradient = flag(eval_gradient, "eval_gradient")
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_value_
        with self._session() as session:
            value, gradient = self._model.log_marginal_likelihood(
                theta, eval_gradient, self._rows, session
            )
        return (value, gradient) if eval_gradient else value

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return leave-one-out residuals of the training rows, and their standard deviations.

        The residual of row i is y_i minus its prediction from all other rows, at the fitted
        hyperparameters. Models of the solvers "exact" and "neighbors" have them; the latter
        predict each row from its shared rows and neighbours.

        Returns
        -------
        residuals : ndarray of shape (n,)
            The residuals, in the units of y.
        std : ndarray of shape (n,)
            The standard deviations of these predictions, noise included.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> residuals, std = model.leave_one_out()
        >>> residuals.shape, std.shape
        ((100,), (100,))
        """
        model = self._model
        with self._session() as session:
            return model.leave_one_out(session)

    def sample_y(
        self, X: Any, Z: Any = None, n_samples: int = 1, random_state: Any = None
    ) -> np.ndarray:
        """Draw samples of new y from the joint posterior distribution, noise included.

        Models of the solver "neighbors" have no joint distribution of several rows: their samples
        are drawn for one row at a time, and are independent between rows. With the same integer
        `random_state`, `sample_weights` draws the weights that these samples of y are made of.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        n_samples : int, default=1
            The number of samples.
        random_state : int, RandomState or None, default=None
            The source of randomness.

        Returns
        -------
        samples : ndarray of shape (m, n_samples)
            The samples, in the units of y.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> model.sample_y(X[100:105], n_samples=3, random_state=0).shape
        (5, 3)
        """
        n_samples = whole(n_samples, "n_samples", least=0)
        queries, random = self._query(X, Z), check_random_state(random_state)
        with self._session() as session:
            return self._model.sample_y(queries, n_samples, random, session)

    def sample_weights(
        self, X: Any, Z: Any = None, n_samples: int = 1, random_state: Any = None
    ) -> np.ndarray:
        """Draw samples of the weights of new rows from their joint posterior distribution.

        With the solver "neighbors", the weights of one row are drawn jointly, and those of
        different rows are independent.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        n_samples : int, default=1
            The number of samples.
        random_state : int, RandomState or None, default=None
            The source of randomness.

        Returns
        -------
        samples : ndarray of shape (m, d, n_samples)
            The samples, in units of y per unit of z.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> model.sample_weights(X[100:105], n_samples=3, random_state=0).shape
        (5, 10, 3)
        """
        n_samples = whole(n_samples, "n_samples", least=0)
        queries, random = self._query(X, Z), check_random_state(random_state)
        with self._session() as session:
            return self._model.sample_weights(queries, n_samples, random, session)

    def save(self, path: Any) -> None:
        """Write the fitted model to a file, which `gpx_scale.load` reads.

        The file has arrays and JSON, no pickle and no code. It is written completely or not at
        all. It contains what predictions need: the solvers "exact", "cg", "neighbors" and "grid"
        need the training rows, "inducing" and "basis" do not. `callbacks` and `checkpoint` are not
        saved. An object of a subclass is loaded as a `GPXRegressor`.

        Parameters
        ----------
        path : str or path-like
            The file. An existing one is replaced.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        InputError
            If the model has a part that cannot be written without code, such as a function.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor, load
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(Path(folder) / "model.gpx")
        ...     loaded = load(Path(folder) / "model.gpx")
        >>> loaded.solver_
        'exact'
        """
        check_is_fitted(self)
        write_state(
            path, {name: value for name, value in vars(self).items() if name not in NOT_SAVED}
        )

    def _compare_columns(self, X: Any) -> None:
        """Raise an error unless names and number of the columns of X are those of `fit`."""
        if self.posterior_.hyperparameters.kernel.input_kind == "vectors":
            remember_columns(self, X, reset=False)

    def _query(self, X: Any, Z: Any, offset: Any = None, trials: Any = None) -> Queries:
        """Return checked queries in standardised units, with their offset and trials."""
        model = self._model
        self._compare_columns(X)
        queries = model.queries(X, Z)
        columns = columns_of(model.hyperparameters.likelihood, offset, trials)
        must_have_rows(columns, len(queries))
        return replace(queries, columns=columns)


def _levels(quantiles: Any) -> list[float]:
    """Return probabilities between 0 and 1, or raise an InputError."""
    levels = real_array(quantiles)
    if levels.ndim != 1 or not levels.size or not ((levels > 0) & (levels < 1)).all():
        raise InputError(
            f"quantiles={quantiles!r} is not valid. Give a list of probabilities between 0 and 1."
        )
    return [float(level) for level in levels]
