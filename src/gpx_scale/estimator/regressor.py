"""The front door: GPXRegressor, a scikit-learn estimator. No algebra here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if

from ..data.features import Features, SparseFeatures
from ..data.inputs import InputRows, Preprocessor, TrainingRows, name_of, open_door, remember_columns
from ..data.row_source import MemoryRows, RowSource, blocks_of
from ..data.stream import StreamRows, SurveyedRows, chunks_through, gate_for, source_of
from ..errors import InputError, SolverUnavailable
from ..fitting.checkpoint import checked_path
from ..fitting.searches import Search, make_solver
from ..kernels import as_kernel
from ..model.hyperparameters import Hyperparameters
from ..optimize.search import Optimum
from ..persistence.model_file import check_model, read_state
from ..plan import BY_PASSES, INDUCING, Plan, make_plan, sample_rows, streamed_from
from ..runtime.arguments import flag, moderate, one_of, whole
from ..runtime.journal import FitReport, Journal, undone_on_failure
from ..runtime.parallel import Executor
from ..solvers.inducing.point_selection import PointSelection, count_of
from ..solvers.low_dimensional import InputResolution
from ..solvers.posterior import Posterior
from .fitted_model import FittedModel


class GPXRegressor(FittedModel, RegressorMixin, BaseEstimator):
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
        "auto" (exact up to 10,000 rows; X of up to 3 columns: "basis" above 5,000 rows, and "grid" where length scales are too
        short for that; else "cg" up to 100,000 rows and of a sparse Z on the pairs of rows that share a feature, if fewer than
        half do; "inducing" beyond, for other streams, and where `cg` does not fit), "exact", "cg", "inducing" (or "nystrom"),
        "basis", "grid".
    theta1, theta2, sigma_w, sigma_y : float
        Where the hyperparameters start, or stay with `optimizer=None`: ``k(x, x') = theta1 exp(-|x - x'|^2 / theta2)``;
        `theta2="median"` is the median squared distance. `sigma_w=0` is held at 0.
    optimizer : "lbfgs" or None
    max_iter, tol : int, float
        Of each search (L-BFGS on a subset, quasi-Newton on all rows); `tol`: a change of the evidence, in nats a row, that is
        not worth a step (`cg` stops at 5e-5 nats a row, 2 at most, `inducing` at 1e-4, or at `tol` if that is more).
    n_restarts : int, default=0
        Further starts, drawn around the given one.
    x_transformer, z_transformer : estimator, callable or list of columns, optional
        Make x and z of what `fit` is given; None keeps it.
    fit_intercept : bool, default=False
        Give every sample a local intercept: a further z of 1, reported in `base_values`.
    standardize : bool, default=True
        Centre and scale y, X and Z; a constant Z column is divided by its value instead. Sparse X and Z stay as they are.
    n_inducing : int, default=1000
        Points of `inducing`, which stand for all rows. Time grows with its square; more: closer to exact.
    inducing_points : "rpcholesky", "kmeans", array or `XZ`
        Where they start: rows that explain most of the prior covariance, centres of clusters, or given points in the units
        of X and Z.
    optimize_inducing : bool or "auto"
        Move them to where the bound is largest, on a sample of the rows; "auto" does so unless they are given, for dense X
        and Z.
    n_basis : int or "auto"
        Functions of `basis`, or points of `grid`, for each column of X; "auto": as many as the length scales ask for.
    preconditioner_rank : int or "auto"
        Of `cg`: pivots of the low-rank preconditioner (of a dense Z they carry its variances too; of a sparse one, "auto" may
        take none). More: fewer iterations.
    checkpoint : path, optional
        A file that holds the best parameters (and inducing points) of a running fit. A fit that finds one of the same data
        goes on from there.
    dtype : "auto", "float64" or "float32"
        Of the exact solver's factor, whose solves are refined to float64, or of `cg`'s tiles, whose residuals are float64.
    memory_limit : int or str, optional
        Bytes, or a text such as "8GiB"; None is 80% of what is available. More is refused before it is allocated.
    n_jobs : int, optional
        Threads; None is all usable cores, one inside a joblib or Dask worker.
    warm_start : bool, default=False
        Start `fit` at the hyperparameters (and inducing points) of the last one.
    callbacks : list of callables, optional
        Called with a dict after each evaluation of the evidence (in standardised units); one that returns True ends the
        optimisation.
    random_state : int, RandomState or None
        Of the subset that the optimisation starts on, and of restarts; of `cg`'s pivots, probes and posterior paths; of the
        sample that inducing points come from (None: always the same).
    verbose : int, default=0
        1: lines on stderr, and a bar with phase, iteration, residual (or rows) and time left while `cg` solves and `inducing`
        reads rows.

    Attributes
    ----------
    hyperparameters_ : dict
        theta1, theta2, sigma_w, sigma_y in standardised units.
    theta_ : ndarray
        Their logarithms, in this order.
    log_marginal_likelihood_value_ : float
        Evidence in the units of y, without prior; of inducing points, a lower bound of it.
    solver_ : str
    fit_report_ : FitReport
        What the fit did; print it.
    posterior_ : Posterior
    n_iter_ : int
        Evaluations of the evidence, on subsets too.
    target_name_ : str or None
        The name that y came with (a pandas Series, a column of files).
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
        inducing_points: Any = "rpcholesky",
        optimize_inducing: bool | str = "auto",
        n_basis: int | str = "auto",
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
        self.inducing_points = inducing_points
        self.optimize_inducing = optimize_inducing
        self.n_basis = n_basis
        self.preconditioner_rank = preconditioner_rank
        self.dtype = dtype
        self.memory_limit = memory_limit
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    _rows: RowSource | None = None

    def fit(self, X: Any, y: Any = None, Z: Any = None) -> GPXRegressor:
        """Estimate the hyperparameters and condition on the data.

        X : (n, p) table or sparse matrix, list of objects, Gram matrix or `XZ` pair; y : (n,); Z : (n, d) readable features,
        dense or sparse, default X. Or a stream, which never is in memory as a whole: a memory map, a function that yields
        (X, y) or (X, y, Z) chunks at every call, or a folder of npz (arrays X, y, Z), CSV or Parquet files (y: the target's
        name).

        Ctrl-C while hyperparameters are searched ends the search: the model is fitted at the best ones found, and then
        KeyboardInterrupt is raised. A fit that fails, or is interrupted otherwise, leaves the estimator as it was.
        """
        return self._fit(X, y, Z, self.solver)

    def plan(self, X: Any, y: Any = None, Z: Any = None) -> Plan:
        """What `fit` would do with these, and why: solver, precision, memory. Data are checked, and nothing is fitted to them;
        `print` it."""
        self._check_arguments()
        kernel, random = as_kernel(self.kernel, self.theta1, self.theta2), check_random_state(self.random_state)
        return copy(self)._receive(X, y, Z, kernel, self.solver, random, Journal())[2]

    @available_if(lambda self: self.solver in ("auto", "basis", *INDUCING))
    def partial_fit(self, X: Any, y: Any = None, Z: Any = None) -> GPXRegressor:
        """Add rows to a model of inducing points or basis functions, at its hyperparameters, points (or box) and scaling; the
        first call fits one. A model that `auto` fitted otherwise is made one of inducing points first, out of the rows that it
        keeps."""
        if not hasattr(self, "posterior_"):
            return self._fit(X, y, Z, "basis" if self.solver == "basis" else "inducing")
        if self._params.kernel.input_kind == "gram":
            raise SolverUnavailable("rows cannot be added to a given Gram matrix: fit again with the whole of it")
        with undone_on_failure(self), self._engine() as (executor, _):
            parts = self._points_of(self.posterior_.parts, executor)
            more = self._more(X, y, Z, parts.task, executor)
            if more is None:
                raise InputError("there are no rows to add")
            parts = parts.with_more(more, executor)
            self._rows, self.solver_ = None, self._plan.solver
            self._plan = replace(self._plan, n=parts.rows)
            self.posterior_ = Posterior(parts, self._params)
            self.log_marginal_likelihood_value_ = parts.evidence - parts.rows * np.log(self._door.scaling.y_scale)
            self.fit_report_ = self.fit_report_.after_more_rows(self._plan, self.log_marginal_likelihood_value_, parts)
        return self

    def _points_of(self, parts: Any, executor: Executor) -> Any:
        """Inducing points of a model that keeps its rows, at its hyperparameters; others have theirs."""
        if not parts.keeps_rows:
            return parts
        self._plan = self._plan_for(self._door, parts.data, self._params.kernel, "inducing")
        choice = self._choice(self._plan, self._door, self._params.kernel)
        rows = MemoryRows(replace(parts.data, x=self._params.kernel.sliceable(parts.data.x)))
        return make_solver(self._plan, executor, None, Journal(), choice).condition(rows, self._params)

    def _more(self, X: Any, y: Any, Z: Any, task: Any, executor: Executor) -> Any:
        """The sum of a task over rows, for a model that stands; None without rows."""
        kernel, door = self._params.kernel, self._door
        source = source_of(X, y, Z, input_kind=kernel.input_kind)
        if source is None:
            self._compare_columns(X)
            x, features, _ = door.enter(X, Z)
            chunks = iter([TrainingRows(kernel.sliceable(x), features, door.scaled_target(y, len(features)))])
        else:
            chunks = chunks_through(door, source, self._compare_columns)
        return executor.sum_over(task, blocks_of(chunks))

    def _fit(self, X: Any, y: Any, Z: Any, solver: str) -> GPXRegressor:
        self._check_arguments()
        journal = Journal(self.verbose, self.callbacks)
        with undone_on_failure(self), self._engine() as (executor, _):
            kernel = as_kernel(self.kernel, self.theta1, self.theta2)
            random = check_random_state(self.random_state)
            door, data, plan = self._receive(X, y, Z, kernel, solver, random, journal)
            self.target_name_ = name_of(y)
            journal.say(str(plan))
            self._learn(door, data, plan, kernel, random, executor, journal)
        if journal.was_interrupted:
            raise KeyboardInterrupt("the search was interrupted; the model is fitted at the best parameters found")
        return self

    def _receive(
        self, X: Any, y: Any, Z: Any, kernel: Any, solver: str, random: np.random.RandomState, journal: Journal
    ) -> tuple[Preprocessor, Any, Plan]:
        """Data behind the door: Inputs, or for inducing points Rows, which may be elsewhere."""
        scale = {"standardize": self.standardize, "fit_intercept": self.fit_intercept}
        survey = self._elsewhere(X, y, Z, solver, kernel)
        if survey is not None:
            count = whole(count_of(self.inducing_points, self.n_inducing), "n_inducing", least=1)
            make_plan(1, 1, 1, solver=solver, dtype=self.dtype, stream=True)  # refused before anything is read
            gate = gate_for(kernel.input_kind, self.x_transformer, self.z_transformer)
            with journal.phase("survey of the rows"):
                rows = survey(gate, keep=sample_rows(count), seed=self._seed(random), tell=journal.passed, **scale)
            remember_columns(self, rows.survey.first.X, reset=True)
            return rows.door, rows, self._plan_for(rows.door, rows, kernel, solver)
        remember_columns(self, X, reset=True)
        how = {"x_transformer": self.x_transformer, "z_transformer": self.z_transformer}
        door, data = open_door(X, y, Z, input_kind=kernel.input_kind, **how, **scale)
        plan = self._plan_for(door, data, kernel, solver)
        if plan.solver in BY_PASSES:
            return door, MemoryRows(replace(data, x=kernel.sliceable(data.x)), self._seed(random)), plan
        return door, data, plan

    def _seed(self, random: np.random.RandomState) -> int:
        """Of the sample of rows; a checkpoint must find the same one again."""
        return 0 if self.random_state is None else random.randint(2**31)

    def _elsewhere(self, X: Any, y: Any, Z: Any, solver: str, kernel: Any) -> Callable[..., SurveyedRows] | None:
        """How rows that are not in memory are surveyed; None where they are."""
        source = source_of(X, y, Z, streamed_from(solver), kernel.input_kind)
        return None if source is None else partial(StreamRows.open, source)

    def _plan_for(self, door: Preprocessor, data: Any, kernel: Any, solver: str) -> Plan:
        elsewhere = isinstance(data, SurveyedRows)
        some = data.subset(1024) if elsewhere else getattr(data, "data", data)
        return make_plan(
            len(data),
            some.x.width if isinstance(some.x, SparseFeatures) else door.scaling.x_shift.size,
            some.Z.width,
            solver=solver,
            dtype=self.dtype,
            memory_limit=self.memory_limit,
            n_jobs=self.n_jobs,
            gram=kernel.input_kind != "vectors",
            rank=self.preconditioner_rank,
            density=None if elsewhere else _density(some.Z, solver),
            radial=kernel.is_radial and not self.ard,
            n_inducing=count_of(self.inducing_points, self.n_inducing),
            stream=elsewhere,
            n_basis=self.n_basis,
            low=InputResolution.of(kernel, some),
        )

    def _learn(
        self,
        door: Preprocessor,
        data: Any,
        plan: Plan,
        kernel: Any,
        random: np.random.RandomState,
        executor: Executor,
        journal: Journal,
    ) -> None:
        """Hyperparameters, then the posterior."""
        x = data.subset(plan.subset).x if isinstance(data, RowSource) else data.x
        choice = self._choice(plan, door, kernel)
        if not isinstance(data, RowSource):
            data = replace(data, x=kernel.training_input(x))
        start = Hyperparameters(kernel.resolved(x, self.ard), float(self.sigma_w), float(self.sigma_y))
        search, points = self._search(random), count_of(self.inducing_points, self.n_inducing)
        origin = search.origin(data, start, choice, journal, most_points=min(plan.n, points))
        if plan.provisional:
            origin, plan, data = search.pilot(origin, plan, data, start, executor, journal)
            choice = self._choice(plan, door, kernel)
            journal.say(str(plan))
        solver = make_solver(plan, executor, random, journal, choice)
        optimum = Optimum(start, None, None, "hyperparameters as given", [])
        if self.optimizer is not None:
            optimum = search.run(solver, plan, data, start, origin, executor, journal)
            # for a warm start, should the rest be interrupted
            self._found = optimum.params, getattr(solver, "places", None)
        with journal.phase("posterior"):
            parts = solver.condition(data, optimum.params)
        self._rows = data if isinstance(data, RowSource) else None
        self._remember(door, plan, optimum, parts, journal)

    def _choice(self, plan: Plan, door: Preprocessor, kernel: Any) -> PointSelection | None:
        """How the inducing points are found; given ones come through the door. None for other solvers."""
        if plan.solver != "inducing":
            return None
        way, places = self.inducing_points, None
        if not isinstance(way, str):
            try:
                if kernel.input_kind == "vectors":
                    remember_columns(self, way, reset=False)
                x, features, _ = door.enter(way, None)
            except ValueError as error:
                raise InputError(f"inducing_points: {error}") from None
            places = InputRows(kernel.sliceable(x), features)
        searched = self.optimizer is not None
        return PointSelection.asked(way, self.optimize_inducing, searched, plan.points, plan.sample, places)

    def _remember(self, door: Preprocessor, plan: Plan, optimum: Optimum, parts: Any, journal: Journal) -> None:
        self._door, self._params, self._plan = door, optimum.params, plan
        self.posterior_ = Posterior(parts, optimum.params)
        self.solver_ = plan.solver
        self.theta_ = optimum.params.theta
        self.n_iter_ = sum(journal.report.evaluations.values())
        self.hyperparameters_ = optimum.params.as_dict()
        self.log_marginal_likelihood_value_ = parts.evidence - plan.n * np.log(door.scaling.y_scale)
        self.fit_report_ = self._report(journal, plan, optimum)

    def _check_arguments(self) -> None:
        one_of(self.optimizer, ("lbfgs", None), "optimizer")
        one_of(self.optimize_inducing, (True, False, "auto"), "optimize_inducing")
        for name in ("ard", "fit_intercept", "standardize", "warm_start"):
            flag(getattr(self, name), name)
        moderate(self.sigma_w, "sigma_w", zero=True)
        moderate(self.sigma_y, "sigma_y")
        moderate(self.tol, "tol", zero=True)
        whole(self.max_iter, "max_iter", least=1)
        whole(self.n_restarts, "n_restarts", least=0)
        if self.checkpoint is not None:
            checked_path(self.checkpoint)

    def _search(self, random: np.random.RandomState) -> Search:
        known = getattr(self, "_found", None) if self.warm_start else None
        limits = int(self.max_iter), float(self.tol), int(self.n_restarts)
        return Search(*limits, random, known, self.checkpoint, wanted=self.optimizer is not None)

    def _report(self, journal: Journal, plan: Plan, optimum: Optimum) -> FitReport:
        report, parts, scaling = journal.close(), self.posterior_.parts, self._door.scaling
        report.solver, report.reasons = plan.solver, list(plan.reasons)
        report.n_samples, report.n_features = plan.n, self._door.n_z
        report.dtype, report.n_jobs, report.standardized = np.dtype(plan.dtype).name, plan.n_jobs, bool(self.standardize)
        report.hyperparameters = self.hyperparameters_
        report.evidence = self.log_marginal_likelihood_value_
        report.converged, report.message, report.at_bound = optimum.converged, optimum.message, optimum.at_bound
        report.jitter, report.condition = parts.jitter, parts.condition
        report.memory_planned = plan.bytes_needed
        report.variances = parts.variances
        report.evidence_deviation, report.solution = parts.evidence_deviation, parts.solution
        if optimum.evidence is not None:
            residuals = optimum.evidence.leave_one_out()
            report.leave_one_out_rmse = scaling.y_scale * float(np.sqrt(np.mean(residuals**2)))
        return report

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows, which stay with the fit."""
        return {**super().__getstate__(), "_rows": None} if "_rows" in self.__dict__ else super().__getstate__()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        kernel = self.kernel
        tags.input_tags.pairwise = (
            kernel == "precomputed" if isinstance(kernel, str) else getattr(kernel, "takes", "") == "gram"
        )
        return tags


def load(path: Any) -> GPXRegressor:
    """A model that `GPXRegressor.save` wrote. Nothing in the file is run: it names classes of gpx_scale and of scikit-learn's
    transformers, and brings numbers for them. A file of a later format, or a damaged one, is refused."""
    model, state = GPXRegressor(), read_state(path)
    check_model(state, set(model.get_params(deep=False)), path)
    model.__dict__.update(state)
    return model


def _density(Z: Features, solver: str) -> float | None:
    return Z.pair_density if isinstance(Z, SparseFeatures) and solver in ("auto", "cg") else None
