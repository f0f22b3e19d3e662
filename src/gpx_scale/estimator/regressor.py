"""GPXRegressor, a scikit-learn estimator. There is no algebra here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.metaestimators import available_if

from ..data.chunks import source_of, transforms_for
from ..data.inputs import Preprocessor, TrainingRows, fit_preprocessor, name_of, remember_columns
from ..data.row_source import MemoryRows, RowSource, blocks_of
from ..data.stream import StreamRows, SurveyedRows, SurveyOptions, chunks_through
from ..errors import InputError, SolverUnavailable
from ..fitting.options import FitOptions, solver_options
from ..fitting.procedure import fit_model, problem_of
from ..fitting.starting_point import KnownOptimum
from ..persistence.model_file import check_model, read_state
from ..plan import Plan, plan_for, streamed_from
from ..runtime.journal import undone_on_failure
from ..runtime.session import Session
from ..solvers import registry
from ..solvers.contract import Capability, Problem, SolverSetup
from ..solvers.inducing.solver import sample_rows
from ..solvers.low_dimensional import InputResolution
from ..solvers.posterior import Posterior
from .fitted_model import FittedModel
from .prediction import PredictionMixin


def _can_add_rows(estimator: GPXRegressor) -> bool:
    """Return True, or raise the error that scikit-learn's AttributeError then names as its cause."""
    registry.require(estimator.solver, Capability.ADD_ROWS)
    return True


class GPXRegressor(PredictionMixin, RegressorMixin, BaseEstimator):
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
    >>> import numpy as np
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
    _known: KnownOptimum | None = None

    def fit(self, X: Any, y: Any = None, Z: Any = None) -> GPXRegressor:
        """Estimate the hyperparameters and condition on the data.

        X : (n, p) table or sparse matrix, list of objects, Gram matrix or `XZ` pair; y : (n,); Z : (n, d) readable features,
        dense or sparse, default X. Or a stream, which never is in memory as a whole: a memory map, a function that yields
        (X, y) or (X, y, Z) chunks at every call, or a folder of npz (arrays X, y, Z), CSV or Parquet files (y: the target's
        name).

        Ctrl-C while hyperparameters are searched ends the search: the model is fitted at the best ones found, and then
        KeyboardInterrupt is raised. A fit that fails, or is interrupted otherwise, leaves the estimator as it was.
        """
        return self._fit(X, y, Z)

    def plan(self, X: Any, y: Any = None, Z: Any = None) -> Plan:
        """What `fit` would do with these, and why: solver, precision, memory. Data are checked, and nothing is fitted to them;
        `print` it."""
        options = FitOptions.checked(self)
        with Session.open(self.n_jobs, self.memory_limit, self.random_state) as session:
            preprocessor, rows = copy(self)._open_rows(X, y, Z, options, session)
            return plan_for(
                problem_of(
                    rows, preprocessor, options.kernel, options.solver, session, options.search.ard
                )
            )

    @available_if(_can_add_rows)
    def partial_fit(self, X: Any, y: Any = None, Z: Any = None) -> GPXRegressor:
        """Add rows to a model of inducing points or basis functions, at its hyperparameters, points (or box) and scaling; the
        first call fits one. A model that `auto` fitted otherwise is made one of inducing points first, out of the rows that it
        keeps."""
        if not hasattr(self, "posterior_"):
            return self._fit(X, y, Z, registry.that_adds_rows(self.solver))
        model = self._model
        if model.kernel.input_kind == "gram":
            raise SolverUnavailable(
                "rows cannot be added to a given Gram matrix: fit again with the whole of it"
            )
        with undone_on_failure(self), self._session() as session:
            plan, posterior = self._without_rows(model, session)
            more = self._sum_over(X, y, Z, posterior.statistics_task(), session)
            if more is None:
                raise InputError("there are no rows to add")
            posterior = posterior.with_statistics(more, session)
            model = replace(model, plan=replace(plan, n=posterior.n_rows), posterior=posterior)
            report = self.fit_report_.after_more_rows(model.plan, model.log_evidence, posterior)
            self._rows = None
            self._remember(replace(model, report=report))
        return self

    def _without_rows(self, model: FittedModel, session: Session) -> tuple[Plan, Posterior[Any]]:
        """Return plan and posterior of a model that rows can be added to: of inducing points, if this one keeps its rows."""
        kept = model.posterior.training_rows
        if kept is None:
            return model.plan, model.posterior
        options = solver_options(self, registry.that_adds_rows("auto"))
        rows = MemoryRows(kept)
        problem = problem_of(
            rows, model.preprocessor, model.kernel, options, session, bool(self.ard)
        )
        plan = plan_for(problem)
        setup = SolverSetup(
            session, model.kernel, options, model.preprocessor, self._compare_columns
        )
        sliceable = MemoryRows(replace(kept, x=model.kernel.sliceable(kept.x)))
        return plan, registry.create(plan, setup).condition(sliceable, model.hyperparameters)

    def _sum_over(self, X: Any, y: Any, Z: Any, task: Any, session: Session) -> Any:
        """Return the sum of a task over further rows, for a model that stands; None without rows."""
        kernel, preprocessor = self._model.kernel, self._preprocessor
        source = source_of(X, y, Z, input_kind=kernel.input_kind)
        if source is None:
            self._compare_columns(X)
            found = preprocessor.transform(X, Z)
            target = preprocessor.scaled_target(y, len(found))
            chunks = iter([TrainingRows(kernel.sliceable(found.x), found.Z, target)])
        else:
            chunks = chunks_through(preprocessor, source, self._compare_columns)
        return session.executor.sum_over(task, blocks_of(chunks))

    def _fit(self, X: Any, y: Any, Z: Any, solver: str | None = None) -> GPXRegressor:
        options = FitOptions.checked(self, solver)
        limits = (self.n_jobs, self.memory_limit, self.random_state, self.verbose, self.callbacks)
        with undone_on_failure(self), Session.open(*limits) as session:
            preprocessor, rows = self._open_rows(X, y, Z, options, session)
            check = partial(remember_columns, self, reset=False)
            setup = SolverSetup(session, options.kernel, options.solver, preprocessor, check)
            known = self._known if self.warm_start else None
            model, rows = fit_model(
                preprocessor, rows, options, setup, known, self._remember_optimum
            )
            self._rows = None if model.posterior.training_rows is not None else rows
            self.n_iter_ = sum(model.report.evaluations.values())
            self._remember(replace(model, target_name=name_of(y)))
        if session.journal.was_interrupted:
            raise KeyboardInterrupt(
                "the search was interrupted; the model is fitted at the best parameters found"
            )
        return self

    def _open_rows(
        self, X: Any, y: Any, Z: Any, options: FitOptions, session: Session
    ) -> tuple[Preprocessor, RowSource]:
        """Return the way of inputs, and rows in memory or elsewhere."""
        kind, inputs, journal = options.kernel.input_kind, options.inputs, session.journal
        survey = self._survey(X, y, Z, options)
        if survey is None:
            remember_columns(self, X, reset=True)
            preprocessor, data = fit_preprocessor(X, y, Z, input_kind=kind, options=inputs)
            return preprocessor, MemoryRows(data)
        plan_for(  # What cannot be fitted is refused before anything is read.
            Problem(
                1,
                1,
                1,
                session.memory_limit,
                1,
                options.solver,
                stream=True,
                resolution=InputResolution(),
            )
        )
        transforms = transforms_for(kind, inputs.x_transformer, inputs.z_transformer)
        with journal.phase("survey of the rows"):
            keep, seed = sample_rows(options.solver.n_inducing), session.draw_seed()
            how = SurveyOptions(keep, seed, inputs.standardize, inputs.fit_intercept)
            rows = survey(transforms, how, journal.passed)
        remember_columns(self, rows.survey.first.X, reset=True)
        return rows.preprocessor, rows

    def _survey(
        self, X: Any, y: Any, Z: Any, options: FitOptions
    ) -> Callable[..., SurveyedRows] | None:
        """Return how rows that are not in memory are surveyed; None where they are."""
        source = source_of(X, y, Z, streamed_from(options.solver.solver), options.kernel.input_kind)
        return None if source is None else partial(StreamRows.open, source)

    def _remember_optimum(self, known: KnownOptimum) -> None:
        self._known = known

    def _remember(self, model: FittedModel) -> None:
        self._preprocessor, self._plan = model.preprocessor, model.plan
        self.posterior_, self.fit_report_ = model.posterior, model.report
        self.target_name_, self.solver_ = model.target_name, model.plan.solver
        self.theta_ = model.hyperparameters.theta
        self.hyperparameters_ = model.hyperparameters.as_dict()
        self.log_marginal_likelihood_value_ = model.log_evidence

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows, which stay with the fit."""
        return (
            {**super().__getstate__(), "_rows": None}
            if "_rows" in self.__dict__
            else super().__getstate__()
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        kernel = self.kernel
        tags.input_tags.pairwise = (
            kernel == "precomputed"
            if isinstance(kernel, str)
            else getattr(kernel, "input_kind", "") == "gram"
        )
        return tags


def load(path: Any) -> GPXRegressor:
    """A model that `GPXRegressor.save` wrote. Nothing in the file is run: it names classes of gpx_scale and of scikit-learn's
    transformers, and brings numbers for them. A file of a later format, or a damaged one, is refused."""
    model, state = GPXRegressor(), read_state(path)
    check_model(state, set(model.get_params(deep=False)), path)
    model.__dict__.update(state)
    return model
