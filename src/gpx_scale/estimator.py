"""The front door: GPXRegressor, a scikit-learn estimator. No algebra here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .errors import InputError, SolverUnavailable
from .evidence import Optimum
from .explanation import Explanation, assemble, assemble_sparse, baseline_vector
from .features import Features, SparseFeatures, repeated
from .inputs import Door, Inputs, open_door, remember_columns
from .kernels import as_kernel
from .params import Params, positive, whole
from .plan import Plan, chunk_bytes, make_plan, within
from .posterior import Ask, Moments, Posterior
from .progress import FitReport, Journal
from .runtime import Executor, parse_memory, threads
from .solution import Evidence
from .solvers import Search, make_solver


class GPXRegressor(RegressorMixin, BaseEstimator):
    """Gaussian process regression with local explanation: y = w(x) . z + noise, every w_l(x) drawn from a GP over x.

    One locally linear model gives the prediction and its explanation, both with uncertainty. Hyperparameters maximise
    the marginal likelihood (with weak priors on their logs). They, and the start values given here, are in standardised
    units; everything else is in the units of the data.

    Parameters
    ----------
    kernel : str, kernel or callable, default="rbf"
        "rbf", "matern12", "matern32", "matern52", "rq", "precomputed" (X is a Gram matrix), a `gpx_scale.kernels` object
        (whose own parameters are then the start), or a callable on two lists of objects.
    ard : bool, default=False
        One theta2 for each column of X.
    solver : str, default="auto"
        "auto" (exact up to 10,000 rows, then "cg": of a sparse Z on the pairs of rows that share a feature, if fewer than half
        do), "exact", "cg".
    theta1, theta2, sigma_w, sigma_y : float
        Where the hyperparameters start, or stay with `optimizer=None`: ``k(x, x') = theta1 exp(-|x - x'|^2 / theta2)``;
        `theta2="median"` is the median squared distance. `sigma_w=0` is held at 0.
    optimizer : "lbfgs" or None
    max_iter, tol : int, float
        Of each search (L-BFGS on a subset, quasi-Newton on all rows); `tol`: a change of the evidence, in nats a row, that is
        not worth a step (`cg` stops at 5e-5 nats a row, 2 at most, or at `tol` if that is more).
    n_restarts : int, default=0
        Further starts, drawn around the given one.
    x_transformer, z_transformer : estimator, callable or list of columns, optional
        Make x and z of what `fit` is given; None keeps it.
    fit_intercept : bool, default=False
        Give every sample a local intercept: a further z of 1, reported in `base_values`.
    standardize : bool, default=True
        Centre and scale y, X and Z; a constant Z column is divided by its value instead. Sparse X and Z stay as they are.
    n_inducing : int
        For solvers that this version does not have yet.
    preconditioner_rank : int or "auto"
        Of `cg`: pivots of the low-rank preconditioner (of a dense Z they carry its variances too; of a sparse one, "auto" may
        take none). More: fewer iterations.
    checkpoint : path, optional
        A file that holds the best parameters of a running fit. A fit that finds one of the same data goes on from there.
    dtype : "auto", "float64" or "float32"
        Of the exact solver's factor, whose solves are refined to float64, or of `cg`'s tiles, whose residuals are float64.
    memory_limit : int or str, optional
        Bytes, or a text such as "8GiB"; None is 80% of what is available. More is refused before it is allocated.
    n_jobs : int, optional
        Threads; None is all usable cores, one inside a joblib or Dask worker.
    warm_start : bool, default=False
        Start `fit` at the hyperparameters of the last one.
    callbacks : list of callables, optional
        Called with a dict after each evaluation of the evidence (in standardised units); one that returns True ends the
        optimisation.
    random_state : int, RandomState or None
        Of the subset that the optimisation starts on, and of restarts; of `cg`'s pivots, probes and posterior paths.
    verbose : int, default=0
        1: lines on stderr, and a bar with phase, iteration, residual and time left while `cg` solves.

    Attributes
    ----------
    hyperparameters_ : dict
        theta1, theta2, sigma_w, sigma_y in standardised units.
    theta_ : ndarray
        Their logarithms, in this order.
    log_marginal_likelihood_value_ : float
        Evidence in the units of y, without prior.
    solver_ : str
    fit_report_ : FitReport
        What the fit did; print it.
    posterior_ : Posterior
    n_iter_ : int
        Evaluations of the evidence, on subsets too.
    n_features_in_, feature_names_in_

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    >>> model = GPXRegressor(random_state=0).fit(X[:300], y[:300])
    >>> explanation = model.explain(X[300:])
    >>> explanation
    Explanation(142 samples, 10 features, with uncertainty)
    >>> [reason.feature for reason in explanation.top(0, k=2)]
    ['bmi', 's5']
    >>> bool(np.allclose(explanation.base_values + explanation.contributions.sum(axis=1), model.predict(X[300:])))
    True
    """

    def __init__(
        self,
        kernel: Any = "rbf",
        *,
        ard: bool = False,
        solver: str = "auto",
        theta1: float = 1.0,
        theta2: Any = "median",
        sigma_w: float = 0.1,
        sigma_y: float = 0.1,
        optimizer: str | None = "lbfgs",
        max_iter: int = 100,
        tol: float = 1e-5,
        n_restarts: int = 0,
        x_transformer: Any = None,
        z_transformer: Any = None,
        fit_intercept: bool = False,
        standardize: bool = True,
        n_inducing: int = 1000,
        preconditioner_rank: int | str = "auto",
        dtype: Any = "auto",
        memory_limit: int | float | str | None = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Sequence[Any] | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.ard = ard
        self.solver = solver
        self.theta1 = theta1
        self.theta2 = theta2
        self.sigma_w = sigma_w
        self.sigma_y = sigma_y
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.n_restarts = n_restarts
        self.x_transformer = x_transformer
        self.z_transformer = z_transformer
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.n_inducing = n_inducing
        self.preconditioner_rank = preconditioner_rank
        self.dtype = dtype
        self.memory_limit = memory_limit
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    # ---------------------------------------------------------------------------------------------------------- fit

    def fit(self, X: Any, y: Any, Z: Any = None) -> GPXRegressor:
        """Estimate the hyperparameters and condition on the data.

        X : (n, p) table or sparse matrix, list of objects, Gram matrix or `XZ` pair; y : (n,); Z : (n, d) readable features,
        dense or sparse, default X.

        Ctrl-C while hyperparameters are searched ends the search: the model is fitted at the best ones found, and then
        KeyboardInterrupt is raised. A fit that fails, or is interrupted otherwise, leaves the estimator as it was.
        """
        self._check_arguments(X)
        journal = Journal(self.verbose, self.callbacks)
        with _undone_on_failure(self):
            remember_columns(self, X, reset=True)
            kernel = as_kernel(self.kernel, self.theta1, self.theta2)
            door, x, features, target = self._open(X, y, Z, kernel)
            plan = self._plan_for(door, x, features, kernel)
            journal.say(str(plan))
            with threads(self.n_jobs), Executor(self.n_jobs) as executor:
                data = Inputs(kernel.training(x), features, target)
                start = Params(kernel.started(x, self.ard), float(self.sigma_w), float(self.sigma_y))
                random = check_random_state(self.random_state)
                solver = make_solver(plan, executor, random, journal)
                optimum = Optimum(start, None, None, "hyperparameters as given", [])
                if self.optimizer is not None:
                    optimum = self._search(random).run(solver, plan, data, start, executor, journal)
                    self._found = optimum.params  # for a warm start, should the rest be interrupted
                with journal.phase("posterior"):
                    parts = solver.condition(data, optimum.params)
            self._remember(door, plan, optimum, parts, journal)
        if journal.was_interrupted:
            raise KeyboardInterrupt("the search was interrupted; the model is fitted at the best parameters found")
        return self

    def _open(self, X: Any, y: Any, Z: Any, kernel: Any) -> tuple[Door, Any, Features, np.ndarray]:
        return open_door(
            X,
            y,
            Z,
            takes=kernel.takes,
            x_transformer=self.x_transformer,
            z_transformer=self.z_transformer,
            standardize=self.standardize,
            fit_intercept=self.fit_intercept,
        )

    def _plan_for(self, door: Door, x: Any, features: Features, kernel: Any) -> Plan:
        return make_plan(
            len(features),
            x.width if isinstance(x, SparseFeatures) else door.scaling.x_shift.size,
            features.width,
            solver=self.solver,
            dtype=self.dtype,
            memory_limit=self.memory_limit,
            n_jobs=self.n_jobs,
            gram=kernel.takes != "vectors",
            rank=self.preconditioner_rank,
            density=features.density if isinstance(features, SparseFeatures) else None,
            radial=kernel.radial and not self.ard,
        )

    def _remember(self, door: Door, plan: Plan, optimum: Optimum, parts: Any, journal: Journal) -> None:
        self._door, self._params, self._plan = door, optimum.params, plan
        self.posterior_ = Posterior(parts, optimum.params)
        self.solver_ = plan.solver
        self.theta_ = optimum.params.theta
        self.n_iter_ = sum(journal.report.evaluations.values())
        self.hyperparameters_ = optimum.params.as_dict()
        self.log_marginal_likelihood_value_ = parts.evidence - plan.n * np.log(door.scaling.y_scale)
        self.fit_report_ = self._report(journal, plan, optimum)

    def _check_arguments(self, X: Any) -> None:
        if callable(X):
            raise SolverUnavailable("fit on a stream of chunks is not in this version")
        if self.optimizer not in ("lbfgs", None):
            raise InputError(f'optimizer={self.optimizer!r}: give "lbfgs" or None')
        positive(self.sigma_w, "sigma_w", zero=True)
        positive(self.sigma_y, "sigma_y")
        positive(self.tol, "tol", zero=True)
        whole(self.max_iter, "max_iter", least=1)
        whole(self.n_restarts, "n_restarts", least=0)

    def _search(self, random: np.random.RandomState) -> Search:
        known = getattr(self, "_found", None) if self.warm_start else None
        return Search(int(self.max_iter), float(self.tol), int(self.n_restarts), random, known, self.checkpoint)

    def _report(self, journal: Journal, plan: Plan, optimum: Optimum) -> FitReport:
        report, parts, scaling = journal.close(), self.posterior_.parts, self._door.scaling
        report.solver, report.reasons = plan.solver, list(plan.reasons)
        report.n_samples, report.n_features = plan.n, self._door.n_z
        report.dtype, report.n_jobs = np.dtype(plan.dtype).name, plan.n_jobs
        report.hyperparameters = self.hyperparameters_
        report.evidence = self.log_marginal_likelihood_value_
        report.converged, report.message, report.at_bound = optimum.converged, optimum.message, optimum.at_bound
        report.jitter, report.condition = parts.jitter, parts.condition
        report.memory_planned = plan.bytes_needed
        report.variances = parts.variances
        report.evidence_deviation, report.solution = parts.evidence_deviation, parts.solution
        if optimum.evidence is not None:
            residuals = scaling.y_scale * optimum.evidence.leave_one_out()
            report.leave_one_out_rmse = float(np.sqrt(np.mean(residuals**2)))
        return report

    # ------------------------------------------------------------------------------------------------------ predict

    def predict(self, X: Any, Z: Any = None, return_std: bool | str = False, return_cov: bool = False) -> Any:
        """Mean of y at X, (m,); with its standard deviation (m,), noise included, or the joint covariance (m, m).

        return_std="samples" (`cg`): from posterior samples, inflated so that they do not under-report.
        """
        if return_std not in (True, False, "samples"):
            raise InputError(f'return_std={return_std!r}: give True, False or "samples"')
        if return_std and return_cov:
            raise InputError("return_std and return_cov exclude each other: the deviations are the covariance's diagonal")
        x, features, _ = self._query(X, Z)
        scale = self._door.scaling.y_scale
        moments = self._answer(x, features, Ask(return_std, weights=False), [features] if return_std else [])
        mean = self._door.scaling.prediction(features.row_dot(moments.mean))
        if return_cov:
            with self._engine() as (executor, _):
                joint = self.posterior_.joint(x, features, executor, parse_memory(self.memory_limit))
            return mean, scale * (scale * joint)
        if return_std:
            return mean, scale * np.sqrt(moments.along[0] + self._params.sigma_y**2)
        return mean

    def score(self, X: Any, y: Any, Z: Any = None, sample_weight: Any = None) -> float:
        """R^2 of the predictions."""
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
    ) -> Explanation:
        """Weights and contributions of every feature for every row of X, each taken as new.

        std : True, False, "certified" (upper bounds of the weights' deviations, faster for many queries; of a sparse Z the
        same as True) or, with `cg` and a dense Z, "samples" (from posterior samples, inflated so as not to under-report).
        cov : the full (d, d) covariance of each row's weights as well.
        baseline : "mean" (of a sparse Z: zero), "zero" or (d,): contributions are weight times (z - baseline).
        dense : of a sparse Z, the weights of all d features, as arrays; else those that each row has, as `csr_array`.
        """
        x, features, raw = self._query(X, Z)
        return self._explain(x, features, raw, Ask(std, cov, dense=dense), baseline, feature_names)

    def training_explanation(
        self,
        std: bool = True,
        cov: bool = False,
        baseline: Any = "mean",
        feature_names: Sequence[str] | None = None,
        dense: bool = False,
    ) -> Explanation:
        """The posterior of the training rows' own weights w_i (the paper's p(W | D)), not of new rows at the same x."""
        check_is_fitted(self)
        data = self.posterior_.parts.data
        raw = self._door.scaling.raw_z(data.Z)
        return self._explain(data.x, data.Z, raw, Ask(std, cov, own=True, dense=dense), baseline, feature_names)

    def _explain(
        self, x: Any, features: Features, raw: Any, ask: Ask, baseline: Any, names: Sequence[str] | None
    ) -> Explanation:
        if ask.std not in (True, False, "certified", "samples"):
            raise InputError(f'std={ask.std!r}: give True, False, "certified" or "samples"')
        if isinstance(ask.std, str) and (ask.cov or ask.own):
            raise InputError(f"std={ask.std!r} is for the deviations of new rows: give std=True")
        scaling, names = self._door.scaling, self._door.z_names if names is None else names
        base = baseline_vector(baseline, scaling)
        sparse = isinstance(features, SparseFeatures)
        if sparse and not ask.dense and (ask.cov or base.any()):
            raise InputError("covariances, and a baseline other than 0, are of all features of a sparse Z: give dense=True")
        m, d = features.shape
        if ask.dense or not sparse:
            needed = (72 if sparse else 24) * m * d * (d if ask.cov else 1)
            within(needed, parse_memory(self.memory_limit), f"explaining {m} rows by {d} weights each")
        along = [features, repeated(scaling.z_row(base), features)] if ask.std else []
        moments = self._answer(x, features, ask, along)
        if isinstance(features, SparseFeatures) and not ask.dense:
            return assemble_sparse(moments, features, scaling, self._params, names)
        return assemble(moments, raw.toarray() if sp.issparse(raw) else raw, base, scaling, self._params, names)

    def _answer(self, x: Any, features: Features, ask: Ask, along: Sequence[Features]) -> Moments:
        with self._engine() as (executor, chunk):
            return self.posterior_.answer(x, features, ask, along, executor, chunk, parse_memory(self.memory_limit))

    # ------------------------------------------------------------------------------------------------------- samples

    def sample_y(self, X: Any, Z: Any = None, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Joint draws of new y, noise included;  (m, n_samples). With the same integer `random_state` they are made of
        the very weights that `sample_weights` draws."""
        n_samples = whole(n_samples, "n_samples", least=0)
        x, features, _ = self._query(X, Z)
        random, limit = check_random_state(random_state), parse_memory(self.memory_limit)
        with self._engine() as (executor, _):
            latent = self.posterior_.sample_y(x, features, n_samples, random, executor, limit)
        return self._door.scaling.prediction(latent)

    def sample_weights(self, X: Any, Z: Any = None, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Joint draws of the weights at X;  (m, d, n_samples)."""
        n_samples = whole(n_samples, "n_samples", least=0)
        x, _, _ = self._query(X, Z)
        random, limit = check_random_state(random_state), parse_memory(self.memory_limit)
        with self._engine() as (executor, _):
            draws = self.posterior_.sample_weights(x, n_samples, random, executor, limit)
        return np.swapaxes(self._door.scaling.weights(np.swapaxes(draws, 1, 2)), 1, 2)

    # ------------------------------------------------------------------------------------------------------ evidence

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """log p(y) in the units of y at the logs `theta` (as in `theta_`; None: the fitted ones), and its gradient."""
        check_is_fitted(self)
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_value_
        params = self._params if theta is None else self._params.with_theta(theta)
        found = self._evaluate(params, eval_gradient)
        value = found.value - len(found.alpha) * np.log(self._door.scaling.y_scale)
        return (value, found.gradient) if eval_gradient else value

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """y_i minus its prediction from all other rows, and that prediction's deviation, noise included;  (n,), (n,)."""
        check_is_fitted(self)
        if self.solver_ != "exact":
            raise SolverUnavailable("leave-one-out needs the diagonal of C^-1, which only solver='exact' has")
        found, scale = self._evaluate(self._params, True), self._door.scaling.y_scale
        return scale * found.leave_one_out(), scale * found.leave_one_out_std()

    def _evaluate(self, params: Params, gradient: bool) -> Evidence:
        data, plan = self.posterior_.parts.data, self._plan
        within(plan.bytes_needed, parse_memory(self.memory_limit), "evaluating the evidence")
        with self._engine() as (executor, _):
            solver = make_solver(plan, executor, check_random_state(self.random_state), Journal())
            return solver.evaluate(data, params, gradient=gradient)

    # ------------------------------------------------------------------------------------------------------ plumbing

    def _query(self, X: Any, Z: Any) -> tuple[Any, Features, Any]:
        check_is_fitted(self)
        if self._params.kernel.takes == "vectors":
            remember_columns(self, X, reset=False)
        x, features, raw = self._door.enter(X, Z)
        return self._params.kernel.queries(x, len(self.posterior_.parts)), features, raw

    @contextmanager
    def _engine(self) -> Iterator[tuple[Executor, int]]:
        """Threads, workers, and the memory for one chunk of queries."""
        with threads(self.n_jobs), Executor(self.n_jobs) as executor:
            yield executor, chunk_bytes(parse_memory(self.memory_limit))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        kernel = self.kernel
        tags.input_tags.pairwise = (
            kernel == "precomputed" if isinstance(kernel, str) else getattr(kernel, "takes", "") == "gram"
        )
        return tags


@contextmanager
def _undone_on_failure(estimator: GPXRegressor) -> Iterator[None]:
    """Ctrl-C or an error inside leaves the estimator's attributes as they were before, but for parameters that were found."""
    before = dict(estimator.__dict__)
    try:
        yield
    except BaseException:
        found = {name: value for name, value in estimator.__dict__.items() if name == "_found"}
        estimator.__dict__.clear()
        estimator.__dict__.update(before | found)
        raise
