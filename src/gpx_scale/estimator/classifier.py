"""The estimator `GPXClassifier`: classes, with probabilities and explanations of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from ..data.frame_columns import index_of_rows
from ..data.input_pair import count_rows, take, unpack
from ..data.inputs import Queries, name_of
from ..data.row_columns import NO_COLUMNS, RowColumns
from ..errors import InputError, SolverUnavailable
from ..explanation import ClassExplanation, explanation_of_class, in_order
from ..likelihoods import (
    INFERENCE,
    BernoulliLikelihood,
    LogitLikelihood,
    Observed,
    ProbitLikelihood,
)
from ..plan import Plan
from ..runtime.arguments import flag, one_of, real_array
from .regressor import GPXRegressor

LINKS: dict[str, type[BernoulliLikelihood]] = {
    "logit": LogitLikelihood,
    "probit": ProbitLikelihood,
}


class GPXClassifier(ClassifierMixin, GPXRegressor):  # type: ignore[misc]
    """Classification with local explanation (GPX).

    The probability of a class is that of a latent function f = w(x) . z, whose weights vary with x
    as those of `GPXRegressor` do: p = 1 / (1 + exp(-f)) with the logit link. So a weight is the
    change of the log-odds per unit of a feature, and every row has weights of its own. They come
    with standard deviations, and so does f. Probabilities take the uncertainty of f into account.

    With more than two classes, each has a latent function, for this class against all others. They
    share the hyperparameters, and the probabilities are divided by their sum.

    The posterior of f is not Gaussian, and is approximated by the Gaussian with the largest lower
    bound of log p(y) (variational inference), or by the curvature at its mode (Laplace's
    approximation). Hyperparameters maximise this bound or approximation, together with weak priors.

    Parameters
    ----------
    kernel : str, kernel or callable, default="auto"
        The covariance function of the weights, as in `GPXRegressor`.
    ard : bool, "auto" or None, default=None
        Whether every column of X has a length scale of its own, as in `GPXRegressor`.
    candidates : list of str or kernels, default=None
        The kernels that `kernel="auto"` compares, as in `GPXRegressor`.
    link : {"logit", "probit"}, default="logit"
        The function that makes f of a probability. The latent function of "logit" is the logarithm
        of the odds; that of "probit" is the quantile of a normal distribution.
    inference : {"auto", "vi", "laplace"}, default="auto"
        How the posterior of f is approximated. "vi", which "auto" takes, is variational inference;
        "laplace" takes about half the time, and its probabilities are a little too close to 1/2.
    class_weight : dict, "balanced" or None, default=None
        The weights of the classes: how many times each row of a class counts. "balanced" gives all
        classes the same sum.
    solver : {"auto", "exact"}, default="auto"
        The algorithm. The exact solver factorises an (n, n) matrix in each step of Newton's method.
        It is the only one that takes classes.
    theta1 : float, default=1.0
        The start value of the variance of the kernel. With `optimizer=None`, this and the next two
        are the values that are used.
    theta2 : float, array-like of shape (p,) or "median", default="median"
        The start value of the squared length scale of the kernel.
    sigma_w : float, default=0.1
        The start value of the standard deviation of the weights' noise, by which the weights of a
        row differ from those of other rows at the same x. A value of 0 is kept.
    optimizer : {"auto", "lbfgs"} or None, default="auto"
        The method of the search for hyperparameters. None keeps them at their start values.
    search_rows : {"auto", "all"} or int, default="auto"
        The rows of the search for hyperparameters, as in `GPXRegressor`.
    max_iter : int, default=100
        The largest number of iterations of a search.
    tol : float, default=1e-5
        A search ends where less than `tol` nats per row are left to be gained.
    n_restarts : int, default=0
        The number of further searches, whose start values are drawn around the given ones.
    x_transformer, z_transformer : estimator, callable or list of columns, optional
        How x and z are made from the X (or the Z) that is given to `fit` and `predict`.
    encode : "auto" or None, default="auto"
        Whether the columns of a data frame are encoded as numbers, as in `GPXRegressor`.
    missing : {"indicator", "error"}, default="indicator"
        What becomes of missing values in a data frame that is encoded, as in `GPXRegressor`.
    fit_intercept : bool or "auto", default="auto"
        Whether every row has a local intercept. Without one, the probability at the baseline is
        1/2. "auto" takes what the evidence prefers, and has none if Z is sparse or has a constant
        column.
    weights : {"shared", "relevance", "semi", "multiscale", "additive", "auto"}, default="shared"
        The priors of the weights, as in `GPXRegressor`.
    groups : dict of str to list, default=None
        Columns of Z whose weights have the same variances, as in `GPXRegressor`.
    prune : bool, default=True
        Whether parts of weights that earn too little are removed, as in `GPXRegressor`.
    standardize : bool, default=True
        Whether X and Z are centred and scaled to a standard deviation of 1.
    memory_limit : int, float, str or None, default=None
        The largest memory that a call may use, in bytes or as a text such as "8GiB".
    n_jobs : int or None, default=None
        The number of threads. None is all usable cores, or one inside a joblib or Dask worker.
    warm_start : bool, default=False
        Whether `fit` starts at the hyperparameters of the previous fit.
    checkpoint : path or None, default=None
        A file to which a running fit writes its best hyperparameters, as in `GPXRegressor`.
    callbacks : list of callables or None, default=None
        Functions that are called after each evaluation, as in `GPXRegressor`.
    random_state : int, RandomState or None, default=None
        Determines the subsets of the rows on which a search starts, and the restarts.
    verbose : int, default=0
        If not 0, a fit writes its progress to stderr.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    hyperparameters_ : dict
        The hyperparameters by name: those of the kernel, and sigma_w.
    theta_ : ndarray of shape (n_hyperparameters,)
        The logarithms of the hyperparameters, in the same order.
    log_marginal_likelihood_value_ : float
        The lower bound of log p(y), or Laplace's approximation of it, at `theta_` in nats, summed
        over the latent functions.
    solver_ : str
        The solver that was used.
    fit_report_ : FitReport
        A record of the fit: solver, reasons, time, memory, convergence. It can be printed.
    posterior_ : Posterior
        The posterior distribution of the weights, of the first class if there are more than two.
    n_iter_ : int
        The number of evaluations of the log marginal likelihood.
    n_features_in_ : int
        The number of columns of X.
    feature_names_in_ : ndarray of shape (p,)
        The names of the columns of X, if X had names that are all strings.

    See Also
    --------
    gpx_scale.GPXRegressor : The estimator for numbers.
    gpx_scale.explanation.ClassExplanation : The result of `explain`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from gpx_scale import GPXClassifier
    >>> X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    >>> X = X[["mean radius", "mean texture", "mean smoothness"]]
    >>> model = GPXClassifier("rbf", fit_intercept=True, random_state=0).fit(X[:300], y[:300])
    >>> bool(model.score(X[300:], y[300:]) > 0.9)
    True
    >>> model.predict_proba(X[300:]).shape
    (269, 2)

    Contributions are in log-odds, and add up to the latent function:

    >>> explanation = model.explain(X[300:])
    >>> total = explanation.base_values + explanation.contributions.sum(axis=1)
    >>> bool(np.allclose(total, model.decision_function(X[300:])))
    True
    >>> explanation.odds_factors.shape
    (269, 3)
    """

    # Options of solvers that take no classes.
    sigma_y = 1.0
    likelihood = "gaussian"
    n_inducing = 1000
    inducing_points = "rpcholesky"
    optimize_inducing = "auto"
    n_basis = "auto"
    n_neighbors = "auto"
    n_shared = "auto"
    preconditioner_rank = "auto"
    dtype = "auto"

    def __init__(
        self,
        kernel: Any = "auto",
        *,
        ard: bool | str | None = None,
        candidates: Any = None,
        link: str = "logit",
        inference: str = "auto",
        class_weight: Any = None,
        solver: str = "auto",
        theta1: float = 1.0,
        theta2: Any = "median",
        sigma_w: float = 0.1,
        optimizer: str | None = "auto",
        search_rows: int | str = "auto",
        max_iter: int = 100,
        tol: float = 1e-5,
        n_restarts: int = 0,
        x_transformer: Any = None,
        z_transformer: Any = None,
        encode: str | None = "auto",
        missing: str = "indicator",
        fit_intercept: bool | str = "auto",
        weights: str = "shared",
        groups: Any = None,
        prune: bool = True,
        standardize: bool = True,
        memory_limit: int | float | str | None = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.ard = ard
        self.candidates = candidates
        self.link = link
        self.inference = inference
        self.class_weight = class_weight
        self.solver = solver
        self.theta1 = theta1
        self.theta2 = theta2
        self.sigma_w = sigma_w
        self.optimizer = optimizer
        self.search_rows = search_rows
        self.max_iter = max_iter
        self.tol = tol
        self.n_restarts = n_restarts
        self.x_transformer = x_transformer
        self.z_transformer = z_transformer
        self.encode = encode
        self.missing = missing
        self.fit_intercept = fit_intercept
        self.weights = weights
        self.groups = groups
        self.prune = prune
        self.standardize = standardize
        self.memory_limit = memory_limit
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    classes_: np.ndarray
    _adds_rows = False

    def fit(  # type: ignore[override]
        self, X: Any, y: Any = None, Z: Any = None, *, sample_weight: Any = None
    ) -> Self:
        """Estimate the hyperparameters and condition the model on the data.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), list or XZ
            The inputs of the kernel, as in `GPXRegressor`. All rows are in memory.
        y : array-like of shape (n,)
            The labels: numbers, texts or booleans. There are at least two different ones.
        Z : array-like or sparse matrix of shape (n, d), default=None
            The readable features, by which predictions are explained. None takes X.
        sample_weight : array-like of shape (n,), default=None
            How many times each row counts: its log-likelihood is multiplied by its weight. Rows
            with a weight of 0 are left out.

        Returns
        -------
        self : GPXClassifier
            The fitted estimator.

        Raises
        ------
        InputError
            If the data or an argument cannot be used. The message says what to change.
        MemoryLimitError
            If the fit needs more memory than `memory_limit`. Nothing is allocated then.
        SolverUnavailable
            If the solver takes no classes.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> GPXClassifier("rbf", fit_intercept=True, optimizer=None).fit(X, y).classes_.tolist()
        [0, 1, 2]
        """
        classes, X, codes, Z, weights = self._encoded(X, y, Z, sample_weight)
        columns = NO_COLUMNS if weights is None else RowColumns(sample_weight=weights)
        with self._with_classes(classes):
            self._fit(X, codes, Z, columns=columns)
        self.target_name_ = name_of(y)
        return self

    @contextmanager
    def _with_classes(self, classes: np.ndarray) -> Iterator[None]:
        """Set the classes, and restore the former ones unless a model is fitted meanwhile."""
        known = self.__dict__
        before: dict[str, Any] = {
            name: known[name] for name in ("classes_", "fit_report_") if name in known
        }
        self.classes_ = classes
        try:
            yield
        finally:
            if known.get("fit_report_") is before.get("fit_report_"):
                del self.classes_
                known.update(before)

    def plan(self, X: Any, y: Any = None, Z: Any = None) -> Plan:
        """Return what `fit` would do with these data: memory and time, with reasons.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), list or XZ
            The inputs of the kernel, as in `fit`.
        y : array-like of shape (n,)
            The labels.
        Z : array-like or sparse matrix of shape (n, d), default=None
            The readable features. None takes X.

        Returns
        -------
        plan : Plan
            The plan. `print(plan)` shows it with its reasons.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> GPXClassifier().plan(X, y).latent_functions
        3
        """
        classes, X, codes, Z, _ = self._encoded(X, y, Z, None)
        with self._with_classes(classes):
            return super().plan(X, codes, Z)

    def _encoded(
        self, X: Any, y: Any, Z: Any, sample_weight: Any
    ) -> tuple[np.ndarray, Any, np.ndarray, Any, np.ndarray | None]:
        """Return the classes, and X, numbers of classes, Z and weights of the rows that count.

        The weights are None if all rows count once.
        """
        X, Z = unpack(X, Z)
        if callable(X) or isinstance(X, str | Path):
            raise SolverUnavailable(
                "No solver takes classes whose rows come in chunks. Give rows in memory."
            )
        if y is None:
            raise InputError("GPXClassifier requires y to be passed, but the target y is None.")
        labels = _labels_of(y)
        weights = _weights_of(sample_weight, len(labels))
        if self.class_weight is not None:
            each = _class_weights(self.class_weight, labels)
            weights = each if weights is None else weights * each
        if weights is not None and not weights.all():
            X, Z, labels, weights = self._counting(X, Z, labels, weights)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"y has only one class, {classes.tolist()!r}, among the rows that count. Give rows "
                "of at least two classes."
            )
        if weights is not None and (weights == 1.0).all():
            weights = None
        return classes, X, codes.astype(float), Z, weights

    def _counting(
        self, X: Any, Z: Any, labels: np.ndarray, weights: np.ndarray
    ) -> tuple[Any, Any, np.ndarray, np.ndarray]:
        """Return X, Z, labels and weights without the rows whose weight is 0."""
        rows = np.flatnonzero(weights)
        if self.__sklearn_tags__().input_tags.pairwise:
            raise InputError(
                "Rows of a Gram matrix cannot have a weight of 0. Leave their rows and columns out."
            )
        if not rows.size:
            raise InputError("All rows have a weight of zero. Give some a positive one.")
        if count_rows(X) != len(labels):  # The fit says which lengths there are.
            return X, Z, labels, weights
        others = None if Z is None else take(Z, rows)
        return take(X, rows), others, labels[rows], weights[rows]

    def _starting_likelihood(self) -> BernoulliLikelihood:
        kind = LINKS[one_of(self.link, tuple(LINKS), "link")]
        inference = INFERENCE[one_of(self.inference, tuple(INFERENCE), "inference")]
        return kind(len(self.classes_), inference=inference)

    @property
    def _likelihood(self) -> BernoulliLikelihood:
        """Return the likelihood of the fitted model."""
        check_is_fitted(self, "posterior_")
        found = self.posterior_.hyperparameters.likelihood
        assert isinstance(found, BernoulliLikelihood)
        return found

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:  # type: ignore[override]
        """Predict the labels of new rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.

        Returns
        -------
        labels : ndarray of shape (m,)
            The classes with the largest probabilities.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GPXClassifier("rbf", fit_intercept=True, optimizer=None).fit(X, y)
        >>> model.predict(X[:3]).tolist()
        [0, 0, 0]
        """
        best = np.argmax(self.predict_proba(X, Z), axis=1)
        labels: np.ndarray = self.classes_[best]
        return labels

    def predict_proba(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the probability of each class for new rows.

        They are expectations over the posterior of f, and closer to 1/2 where f is uncertain.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.

        Returns
        -------
        probability : ndarray of shape (m, n_classes)
            The probabilities, in the order of `classes_`. Each row adds up to 1.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GPXClassifier("rbf", fit_intercept=True, optimizer=None).fit(X, y)
        >>> bool(np.allclose(model.predict_proba(X).sum(axis=1), 1.0))
        True
        """
        mean, variance = self._latent(X, Z, True)
        assert variance is not None
        if mean.shape[1] == 1:
            both = np.column_stack([-mean, mean])
            variance = np.column_stack([variance, variance])
        else:
            both = mean
        flat, _ = self._likelihood.predict(both.ravel(), variance.ravel())
        probability: np.ndarray = flat.reshape(both.shape)
        # With several classes, all of them may be impossible to rounding, far from the data.
        total = probability.sum(axis=1, keepdims=True)
        even = np.full_like(probability, 1.0 / probability.shape[1])
        shares: np.ndarray = np.divide(probability, total, out=even, where=total > 0)
        return shares

    def predict_log_proba(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the logarithms of `predict_proba`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.

        Returns
        -------
        log_probability : ndarray of shape (m, n_classes)
            The logarithms of the probabilities, in the order of `classes_`.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GPXClassifier("rbf", fit_intercept=True, optimizer=None).fit(X, y)
        >>> bool((model.predict_log_proba(X) <= 0.0).all())
        True
        """
        with np.errstate(divide="ignore"):
            logs: np.ndarray = np.log(self.predict_proba(X, Z))
        return logs

    def decision_function(self, X: Any, Z: Any = None, return_std: bool = False) -> Any:
        """Return the posterior mean of the latent function f of each class.

        With two classes it is that of the second one, which is predicted where f is positive.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        return_std : bool, default=False
            Whether the standard deviations of f are returned too.

        Returns
        -------
        f : ndarray of shape (m,) or (m, n_classes)
            The means.
        std : ndarray of shape (m,) or (m, n_classes)
            The standard deviations. Only with `return_std`.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GPXClassifier("rbf", fit_intercept=True, optimizer=None).fit(X, y)
        >>> f, std = model.decision_function(X, return_std=True)
        >>> f.shape, bool((std > 0).all())
        ((150, 3), True)
        """
        return_std = flag(return_std, "return_std")
        mean, variance = self._latent(X, Z, return_std)
        mean = mean[:, 0] if mean.shape[1] == 1 else mean
        return mean if variance is None else (mean, np.sqrt(variance).reshape(mean.shape))

    def _latent(self, X: Any, Z: Any, with_variance: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return means and variances of the latent functions;  (m, k), (m, k)."""
        model, queries = self._model, self._query(X, Z)
        with self._session() as session:
            found = [one.latent(queries, with_variance, session) for one in model.latent_functions]
        means, variances = zip(*found, strict=True)
        return np.column_stack(means), np.column_stack(variances) if with_variance else None

    def score(self, X: Any, y: Any, Z: Any = None, *, sample_weight: Any = None) -> float:  # type: ignore[override]
        """Return the share of rows whose labels are predicted.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        y : array-like of shape (m,)
            The true labels. One that `fit` has not seen counts as predicted wrongly.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        sample_weight : array-like of shape (m,), default=None
            The weights of the rows in the score.

        Returns
        -------
        score : float
            The accuracy.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GPXClassifier("rbf", fit_intercept=True, optimizer=None).fit(X, y)
        >>> bool(model.score(X, y) > 0.9)
        True
        """
        labels = _labels_of(y)
        return float(accuracy_score(labels, self.predict(X, Z), sample_weight=sample_weight))

    def explain(  # type: ignore[override]
        self,
        X: Any,
        Z: Any = None,
        class_: Any = None,
        std: bool | str = True,
        cov: bool = False,
        baseline: Any = "mean",
        feature_names: Sequence[str] | None = None,
        dense: bool = False,
        groups: Mapping[str, Sequence[Any]] | None = None,
        units: Mapping[str, str] | None = None,
        target_units: str | None = None,
    ) -> ClassExplanation:
        """Explain a class of new rows by weights and contributions of their features.

        They are on the scale of the latent function f, where they add up. `odds_factors` and
        `probability_changes` of the result say what they do to odds and probabilities.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, p), list or XZ
            The inputs of the kernel.
        Z : array-like or sparse matrix of shape (m, d), default=None
            The readable features, if the model was fitted with a separate Z.
        class_ : label, default=None
            The class that is explained, one of `classes_`. None is the second one of two, and of
            more than two, the class that is predicted for each row.
        std : bool, "surface" or "certified", default=True
            Whether standard deviations are computed, and which ones, as in `GPXRegressor`.
        cov : bool, default=False
            Whether the (d, d) covariance matrix of the weights of each row is computed too.
        baseline : {"mean", "zero"} or array-like of shape (d,), default="mean"
            The z to which contributions are relative.
        feature_names : sequence of str, default=None
            The names of the d features. None takes the names that `fit` found.
        dense : bool, default=False
            For a sparse Z, whether the weights of all d features are computed, as dense arrays.
        groups : dict of str to list, default=None
            Features that are one reason, as in `GPXRegressor`.
        units : mapping of str to str, default=None
            The units of features, by their names.
        target_units : str, default=None
            The units of f, such as "log-odds".

        Returns
        -------
        explanation : ClassExplanation
            The explanations of all rows.

        Raises
        ------
        InputError
            If an argument cannot be used, or `class_` is not among the classes.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GPXClassifier("rbf", fit_intercept=True, optimizer=None).fit(X, y)
        >>> explanation = model.explain(X, class_=2)
        >>> total = explanation.base_values + explanation.contributions.sum(axis=1)
        >>> bool(np.allclose(total, model.decision_function(X)[:, 2]))
        True
        """
        check_is_fitted(self, "posterior_")
        queries = self._query(X, Z)
        asked = std, cov, baseline, feature_names, dense, groups
        if class_ is None and len(self.classes_) == 2:
            class_ = self.classes_[1]
        if class_ is not None:
            found = self._explain_class(queries, self._number_of(class_), asked)
        else:
            predicted = np.searchsorted(self.classes_, self.predict(X, Z))
            rows = [np.flatnonzero(predicted == k) for k in range(len(self.classes_))]
            parts = [
                self._explain_class(_some(queries, at), k, asked)
                for k, at in enumerate(rows)
                if at.size
            ]
            found = in_order(parts, [at for at in rows if at.size])
        found = replace(found, index=index_of_rows(unpack(X, Z)[0]))
        with_units: ClassExplanation = found.with_units(units, target_units)  # type: ignore[assignment]
        return with_units

    def _number_of(self, class_: Any) -> int:
        """Return the number of a class, or raise an InputError."""
        known: list[Any] = self.classes_.tolist()
        if class_ not in known:
            raise InputError(f"class_={class_!r} is not a class of the model. Give one of {known}.")
        return known.index(class_)

    def _explain_class(self, queries: Queries, k: int, asked: tuple[Any, ...]) -> ClassExplanation:
        """Return the explanation of the class with this number."""
        std, cov, baseline, names, dense, groups = asked
        functions = self._model.latent_functions
        model, is_other = functions[0 if len(functions) == 1 else k], len(functions) == 1 and k == 0
        std = one_of(std, (True, False, "surface", "certified"), "std")
        given = {"std": std, "cov": flag(cov, "cov"), "baseline": baseline, "names": names}
        given |= {"groups": groups, "all_features": flag(dense, "dense")}
        with self._session() as session:
            found = model.explain(queries, session, **given)
            spread = found.prediction_std
            variance = None if spread is None else np.square(spread)
            if variance is None:
                _, variance = model.latent(queries, True, session)
        assert variance is not None
        about = self._likelihood, self.classes_[k], is_other
        return explanation_of_class(found, variance, *about)

    def training_explanation(  # type: ignore[override]
        self,
        class_: Any = None,
        std: bool = True,
        cov: bool = False,
        baseline: Any = "mean",
        feature_names: Sequence[str] | None = None,
        dense: bool = False,
    ) -> ClassExplanation:
        """Explain the training rows by the posterior of their own weights.

        Parameters
        ----------
        class_ : label, default=None
            The class that is explained. None is the second one of two; of more than two, one has to
            be named.
        std : bool, default=True
            Whether standard deviations are computed.
        cov : bool, default=False
            Whether the (d, d) covariance matrix of the weights of each row is computed too.
        baseline : {"mean", "zero"} or array-like of shape (d,), default="mean"
            The z to which contributions are relative.
        feature_names : sequence of str, default=None
            The names of the d features. None takes the names that `fit` found.
        dense : bool, default=False
            For a sparse Z, whether the weights of all d features are computed.

        Returns
        -------
        explanation : ClassExplanation
            The explanations of the n training rows.

        Raises
        ------
        InputError
            If there are more than two classes and none is named, or an argument cannot be used.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GPXClassifier("rbf", fit_intercept=True, optimizer=None).fit(X, y)
        >>> len(model.training_explanation(class_=0))
        150
        """
        check_is_fitted(self, "posterior_")
        if class_ is None and len(self.classes_) > 2:
            raise InputError(f"Give class_=, one of {self.classes_.tolist()}.")
        number = 1 if class_ is None else self._number_of(class_)
        with self._session() as session:
            queries = self._model.training_queries(session)
        asked = std, cov, baseline, feature_names, dense, None
        return replace(self._explain_class(queries, number, asked), index=self._index)

    def _observed(
        self, X: Any, y: Any, Z: Any, offset: Any, trials: Any
    ) -> tuple[Observed, np.ndarray]:
        raise SolverUnavailable(
            "A model of classes has no residuals. Compare labels with predict_proba."
        )


def _some(queries: Queries, rows: np.ndarray) -> Queries:
    """Return some of the queries."""
    return Queries(take(queries.x, rows), queries.Z[rows], raw_Z=take(queries.raw_Z, rows))


def _labels_of(y: Any) -> np.ndarray:
    """Return labels as a flat array, or raise an InputError if they are no labels."""
    labels = np.asarray(column_or_1d(y, warn=True))
    if labels.dtype == object:
        labels = _of_one_type(labels)
    if labels.dtype == object and any(one is None or one != one for one in labels):
        raise InputError("Input y contains NaN or None. Drop these rows, or name a class for them.")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError("Input y contains NaN or infinity. Drop these rows.")
    try:
        check_classification_targets(labels)
        np.unique(labels)
    except (TypeError, ValueError) as error:
        what = str(error).removesuffix(".")
        raise InputError(f"y has no labels that can be used: {what}.") from error
    return labels


def _of_one_type(labels: np.ndarray) -> np.ndarray:
    """Return Python objects as an array of their type, if all have the same one."""
    kinds = {type(one) for one in labels}
    return np.array(labels.tolist()) if len(kinds) == 1 else labels


def _weights_of(sample_weight: Any, n: int) -> np.ndarray | None:
    """Return checked weights of n rows, None if none are given."""
    if sample_weight is None:
        return None
    weights = real_array(np.asarray(sample_weight))
    if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise InputError(
            f"sample_weight has the shape {weights.shape}, or negative or infinite numbers. Give "
            f"{n} numbers of at least 0."
        )
    return weights


def _class_weights(class_weight: Any, labels: np.ndarray) -> np.ndarray:
    """Return the weight of each row by its class;  (n,)."""
    classes, codes = np.unique(labels, return_inverse=True)
    try:
        each = real_array(compute_class_weight(class_weight, classes=classes, y=labels))
    except (TypeError, ValueError) as error:
        what = str(error).removesuffix(".")
        raise InputError(f"class_weight={class_weight!r} cannot be used: {what}.") from error
    if not np.isfinite(each).all() or (each < 0).any():
        raise InputError(
            f"class_weight={class_weight!r} has a weight that is negative or infinite."
        )
    found: np.ndarray = each[codes]
    return found
