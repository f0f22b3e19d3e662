"""The estimator `GPXRegressor`.

This module plans fits, runs them and remembers their results. It contains no linear algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ..data.checks import target_of
from ..data.chunks import is_indexed, source_of, transforms_for
from ..data.frame_columns import index_of_rows
from ..data.input_pair import unpack
from ..data.inputs import Preprocessor, TrainingRows, fit_preprocessor, name_of, remember_columns
from ..data.row_columns import NO_COLUMNS, RowColumns
from ..data.row_source import MemoryRows, RowSource, blocks_of
from ..data.stream import StreamRows, SurveyedRows, SurveyOptions, chunks_through
from ..errors import InputError, SolverUnavailable
from ..fitting.options import FitOptions, solver_options
from ..fitting.procedure import fit_model, problem_for, problem_of
from ..fitting.starting_point import KnownOptimum
from ..likelihoods import INFERENCE, LIKELIHOOD_NAMES, Likelihood, likelihood_named
from ..persistence.model_file import reason_not_to_save
from ..plan import Plan, plan_for, streamed_from
from ..runtime.arguments import moderate, one_of
from ..runtime.journal import undone_on_failure
from ..runtime.model_table import as_frame
from ..runtime.session import Session
from ..runtime.weight_table import weight_frame
from ..solvers import registry
from ..solvers.contract import Capability, Problem, SolverSetup
from ..solvers.inducing.solver import sample_rows
from ..solvers.low_dimensional import InputResolution
from ..solvers.posterior import Posterior
from .fitted_model import FittedModel
from .outcomes import columns_of, must_have_rows, with_columns
from .prediction import NOT_SAVED
from .residuals import ResidualsMixin


def _can_add_rows(estimator: GPXRegressor) -> bool:
    """Return True if the solver can add rows to a fitted model, and raise an error otherwise.

    scikit-learn turns the error into an AttributeError, which names it as its cause.
    """
    registry.require(estimator.solver, Capability.ADD_ROWS)
    if not estimator._adds_rows or estimator.likelihood != "gaussian":
        raise SolverUnavailable(
            "Rows cannot be added to a model of classes, counts or outliers. Fit all rows again."
        )
    return True


class GPXRegressor(ResidualsMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian process regression with local explanation (GPX).

    The model is locally linear: y = w(x) . z + noise, and every weight w_l(x) is drawn from a
    Gaussian process over x. So every row has weights of its own, which are the explanation of its
    prediction. The posterior distribution gives predictions and weights, both with standard
    deviations. By default z = x, that is, a prediction is explained by the columns of X. With
    z = 1, the model is ordinary Gaussian process regression.

    `fit` searches for the hyperparameters that maximise the log marginal likelihood, together with
    weak Gaussian priors on their logarithms. (The log marginal likelihood is the logarithm of the
    probability density of y, given X, Z and the hyperparameters.) Hyperparameters are in
    standardised units, see `standardize`. Predictions, weights and contributions are in the units
    of the data.

    Parameters
    ----------
    kernel : str, kernel or callable, default="auto"
        The covariance function of the weights, k(x, x').

        - "auto" compares the `candidates`, each with one length scale and with one for each column,
          and takes the one that the evidence prefers. `kernel_table_` has the comparison. Without
          an optimizer, it is "rbf".
        - "rbf", "matern12", "matern32", "matern52" or "rq" (rational quadratic) names a kernel of
          `gpx_scale.kernels`, which starts at `theta1` and `theta2`.
        - "precomputed" means that X is a Gram matrix: (n, n) in `fit`, (m, n) in `predict`, and
          (m, n + 1) with k(x*, x*) in the last column for standard deviations.
        - An object of `gpx_scale.kernels` starts at its own parameters.
        - A callable gets two lists of objects and returns the matrix of their kernel values.
    ard : bool, "auto" or None, default=None
        Whether every column of X has a `theta2` of its own (automatic relevance determination).
        "auto" takes what the evidence prefers, for a named kernel too. None is "auto" with
        `kernel="auto"`, and False with any other kernel.
    candidates : list of str or kernels, default=None
        The kernels that `kernel="auto"` compares: names, or objects of `gpx_scale.kernels`. None
        takes "rbf", "matern52", "matern32" and "rq".
    solver : {"auto", "exact", "cg", "neighbors", "inducing", "basis", "grid"}, default="auto"
        The algorithm. "auto" chooses one from the numbers of rows and columns and from
        `memory_limit`; the method `plan` tells which one, and why.

        - "exact" factorises the covariance matrix of y. "auto" takes it if that is predicted to
          take at most ten minutes, to about 56,000 rows on two cores.
        - "cg" solves by conjugate gradients. Predictions are accurate to a stated tolerance, and
          standard deviations are never below the exact ones. "auto" takes it for more
          rows, and if Z is sparse and few pairs of rows share a feature.
        - "neighbors" conditions each query on its nearest rows and on rows that all queries share.
          Standard deviations are never below the exact ones. There is no joint distribution of
          several queries. "auto" takes it where "cg" needs too much time or memory, and for rows
          in memory maps and folders of files.
        - "inducing" (or "nystrom") approximates the model by inducing points. "auto" takes it for
          streams that can be read only in their order.
        - "basis" approximates the kernel by functions on a box. It needs dense X and Z, and X has 1
          to 3 columns. "auto" prefers it for such an X, also in a stream, if that is much
          faster and the kernel is an RBF, or if "exact" takes too long.
        - "grid" interpolates the kernel on a grid. It needs dense X and Z, and X has 1 to 3
          columns. "auto" takes it if length scales are too short for "basis".
    theta1 : float, default=1.0
        The start value of the variance of the kernel, ``k(x, x') = theta1 exp(-|x - x'|^2 /
        theta2)`` for "rbf". With `optimizer=None`, this and the next three are the values that
        are used.
    theta2 : float, array-like of shape (p,) or "median", default="median"
        The start value of the squared length scale of the kernel. An array has one value for each
        column of X. "median" is the median squared distance between rows.
    sigma_w : float, default=0.1
        The start value of the standard deviation of the weights' noise, by which the weights of a
        row differ from those of other rows at the same x. A value of 0 is kept.
    sigma_y : float, default=0.1
        The start value of the standard deviation of the noise of y.
    optimizer : {"auto", "lbfgs"} or None, default="auto"
        The method of the search for hyperparameters. "auto" takes Newton steps with the average
        information. "lbfgs" takes L-BFGS, except on all rows of "cg" and "grid". None keeps the
        hyperparameters at their start values.
    search_rows : {"auto", "all"} or int, default="auto"
        The rows of the search for hyperparameters. Every search begins on subsets, of up to 5,000
        rows.

        - "auto" goes on with all rows, as long as a further step promises more than 0.002 nats per
          row (a nat is the unit of natural logarithms). Up to 5,000 rows, and for "basis", it is
          the same as "all".
        - "all" goes on to the optimum of all rows.
        - A number of rows, at least 10, is that of a random subset whose optimum is taken. A number
          above n means all rows. Of a stream, at most its sample is taken, 10,000 rows or more.

        `fit_report_` says how many rows were used, and the promised gain that was left.
    max_iter : int, default=100
        The largest number of iterations of a search. A fit has several searches, on subsets of the
        rows and on all rows.
    tol : float, default=1e-5
        A search ends where less than `tol` nats per row are left to be gained: when a Newton step
        promises a tenth of that, or when a step of L-BFGS has gained less. "cg" ends at 5e-5 nats
        per row, 2 nats at most, and "inducing" at 1e-4 nats per row, unless `tol` is larger.
    n_restarts : int, default=0
        The number of further searches, whose start values are drawn around the given ones.
    x_transformer, z_transformer : estimator, callable or list of columns, optional
        How x and z are made from the X (or the Z) that is given to `fit` and `predict`. None
        takes all columns, encoded if it is a data frame.
    encode : "auto" or None, default="auto"
        Whether pandas data frames are encoded as numbers, if the transformer is None or a list of
        columns. Arrays and streams are not.

        - Numbers and booleans stay as they are.
        - Texts and categories have a column of 0 and 1 for each level. A level that is new in
          `predict` is 0 everywhere.
        - Dates, also texts such as 2024-05-31, become days since the first one, and a sine and a
          cosine of each cycle (year, week, day) that they go through. Durations become seconds,
          and times of day hours.
        - The geometry of a GeoDataFrame becomes the coordinates of its centre.
        - Constant columns are left out, and `fit_report_` names them. In a separate Z, a constant
          number stays: it is an intercept.
    missing : {"indicator", "error"}, default="indicator"
        What becomes of missing values in encoded data frames. "indicator" takes the median of the
        column (no level of a category) and adds a column, with a weight of its own, that says where
        values are missing, if some were in `fit`. "error" refuses them, and names row and column.
    fit_intercept : bool or "auto", default="auto"
        Whether every row has a local intercept, the weight of a further z that is 1. It is part of
        `Explanation.base_values`. "auto" takes what the evidence prefers, and has none if Z is
        sparse or has a constant column.
    likelihood : {"gaussian", "poisson", "negbinomial", "binomial", "student"}, default="gaussian"
        The distribution of y, given the latent function f = w(x) . z.

        - "gaussian": y is f plus noise of standard deviation sigma_y.
        - "poisson": y are counts with mean exp(f). "negbinomial": with the variance m + m^2 / r,
          where m is the mean and r is estimated; counts mostly spread more than Poisson ones.
        - "binomial": y are successes of a number of `trials`, each with probability
          1 / (1 + exp(-f)).
        - "student": y is f plus noise with heavy tails, so that outliers move f little.

        All but the first need the solver "exact" and rows in memory.
    inference : {"auto", "vi", "laplace"}, default="auto"
        How the posterior of f is approximated for counts: "vi", which "auto" takes, is variational
        inference, and "laplace" Laplace's approximation. Heavy tails always take the latter.
    weights : {"shared", "relevance", "semi", "multiscale", "additive", "auto"}, default="auto"
        The priors of the weights.

        - "shared": all weights have the same prior, as in the paper.
        - "relevance": the weight of each feature has a variance of its own.
        - "semi": each weight is a constant plus a part that varies with x, and both have variances
          of their own.
        - "multiscale": as "semi", and each weight that varies has a kernel of its own, with its own
          length scales. The search starts from the result of "semi".
        - "additive": as "semi", and each weight may also be a curve of its own feature. A local
          intercept has a kernel of its own; it is left out with `fit_intercept=False`. Z is X.
        - "auto": of "shared", "relevance", "semi" and (if Z is X) "additive" the one with the
          largest integrated evidence on up to 1,500 rows, or a simpler one within 1.35 nats of it.
          `prior_table_` has the comparison. It is "shared" if Z is sparse or has more than 100
          columns, if the solver takes no others or they take it much longer, and with
          `optimizer=None`; `fit_report_` says so. "additive" has an intercept where that is open.

        No solver but "grid" refuses these priors; "basis" refuses "additive". A sparse Z takes
        "relevance" and "semi" with the solvers "exact" and "cg", and up to 200 columns or groups of
        columns. `weight_table_` has the decision about each weight.
    groups : dict of str to list, default=None
        Columns of Z, by name or number, whose weights have the same variances, such as the columns
        of one category. Each group has a name, and no column is in two groups. A column that is in
        none has variances of its own. With "multiscale", a group has one kernel. It is for all but
        "shared".
    prune : bool, default=True
        Whether parts of weights that earn less than 1.35 nats of log marginal likelihood are
        removed, and the other hyperparameters searched again. A weight without parts is zero. The
        constant part of a weight that varies stays. It is for all but "shared".
    standardize : bool, default=True
        Whether y, X and Z are centred and scaled to a standard deviation of 1. A constant column of
        Z is divided by its value instead, and not centred. Sparse X and Z are not changed.
    n_inducing : int, default=1000
        The number of inducing points of "inducing". The result gets closer to the exact one with
        more points, and the time grows with the square of their number.
    inducing_points : {"rpcholesky", "kmeans"}, array or `XZ`, default="rpcholesky"
        Where the inducing points start: at rows that explain most of the prior covariance (chosen
        by a randomly pivoted Cholesky factorisation), at centres of clusters, or at given points
        in the units of X and Z.
    optimize_inducing : bool or "auto", default="auto"
        Whether the inducing points are moved to where the lower bound of the log marginal
        likelihood is largest, on a sample of the rows. "auto" moves them if X and Z are dense and
        the points are not given.
    n_basis : int or "auto", default="auto"
        The number of functions of "basis", or of points of "grid", for each column of X. "auto"
        derives it from the length scales.
    n_neighbors : int or "auto", default="auto"
        The number of nearest rows that "neighbors" conditions each query on. With "auto", it is the
        smallest of several whose log-likelihood of held-out rows is within 0.01 nats per row of the
        best. A number above n means all rows.
    n_shared : int or "auto", default="auto"
        The number of rows that "neighbors" conditions all queries on, chosen in the same way.
    preconditioner_rank : int or "auto", default="auto"
        The largest rank of the preconditioner of "cg". A larger rank needs fewer iterations and
        more memory. With a dense Z, the rows of the preconditioner are used for variances too.
        With a sparse Z, "auto" may choose a diagonal preconditioner.
    dtype : {"auto", "float64", "float32"}, default="auto"
        The precision of the Cholesky factor of "exact", whose solutions are refined to float64,
        or of the stored kernel values of "cg", whose residuals are computed in float64.
    memory_limit : int, float, str or None, default=None
        The largest memory that a call may use, in bytes or as a text such as "8GiB". None is 80% of
        the available memory. A call that needs more raises an error before it allocates anything.
    n_jobs : int or None, default=None
        The number of threads. None is all usable cores, or one inside a joblib or Dask worker; -1
        is always all cores. More than the usable cores count as all of them.
    warm_start : bool, default=False
        Whether `fit` starts at the hyperparameters and inducing points of the previous fit.
    checkpoint : path or None, default=None
        A file to which a running fit writes its best hyperparameters and inducing points. A fit
        that finds such a file of the same data and model continues from there.
    callbacks : list of callables or None, default=None
        Functions that are called after each evaluation of the log marginal likelihood, with a
        dict that has the keys "phase", "evaluation", "evidence" (the log marginal likelihood in
        standardised units), "hyperparameters" and "seconds". If one returns True, the search ends.
    random_state : int, RandomState or None, default=None
        Determines the subsets of the rows on which a search starts, the start values of restarts,
        the random vectors and rows that "cg" and estimated gradients draw, and the sample from
        which inducing points are chosen. With None, that sample is always the same.
    verbose : int, default=0
        If not 0, a fit writes its progress to stderr, with a bar while "cg" solves and while
        "inducing" reads the rows.

    Attributes
    ----------
    hyperparameters_ : dict
        The hyperparameters in standardised units, by name: those of the kernel, sigma_w, sigma_y.
    theta_ : ndarray of shape (n_hyperparameters,)
        The logarithms of the hyperparameters, in the same order.
    log_marginal_likelihood_value_ : float
        The log marginal likelihood at `theta_` in nats, for y in the units of the data and without
        the priors on the hyperparameters. With inducing points, it is a lower bound.
    solver_ : str
        The solver that was used.
    fit_report_ : FitReport
        A record of the fit: solver, reasons, time, memory, convergence. It can be printed.
    posterior_ : Posterior
        The posterior distribution of the weights, in standardised units.
    n_iter_ : int
        The number of evaluations of the log marginal likelihood, on all rows and on subsets.
    target_name_ : str or None
        The name of y, if it was a pandas Series or a column of a file.
    kernel_table_ : DataFrame
        The models that were compared, if kernel, ARD or intercept were left to the evidence: their
        names, log evidence, integrated evidence, seconds, and which one was chosen. It needs
        pandas; `fit_report_.kernel_table` has the same without.
    prior_table_ : DataFrame
        The priors of the weights that were compared, if weights="auto", in the form of
        `kernel_table_`. It needs pandas; `fit_report_.prior_table` has the same without.
    weight_table_ : DataFrame
        What was decided about the weight of each feature or group, unless they share their prior:
        decision (zero, constant, own curve or varying), earned nats, share of the variance, length
        scale, mean and standard deviation. It needs pandas; `fit_report_.weight_table` has the same
        without.
    z_groups_ : dict of str to list of str
        The features that come from one column of a data frame, such as the levels of a category, by
        the name of that column.
    parameter_names_ : list of str
        A name for each entry of `theta_`, with the names of features.
    baseline_ : ndarray of shape (d,)
        The z to which contributions are relative by default.
    n_features_in_ : int
        The number of columns of X.
    feature_names_in_ : ndarray of shape (p,)
        The names of the columns of X, if X had names that are all strings.

    See Also
    --------
    gpx_scale.Explanation : The result of `explain`.
    gpx_scale.make_plan : Predicts solver and memory from the numbers of rows and columns.
    gpx_scale.distributed.DaskGPXRegressor : The estimator for data on a Dask cluster.

    References
    ----------
    Yuya Yoshikawa and Tomoharu Iwata, "Gaussian Process Regression With Local Explanation".

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    >>> model = GPXRegressor(random_state=0).fit(X[:300], y[:300])
    >>> mean, std = model.predict(X[300:], return_std=True)
    >>> mean.shape, std.shape
    ((142,), (142,))

    These two features have the largest contributions to the first prediction:

    >>> explanation = model.explain(X[300:])
    >>> explanation
    Explanation(142 samples, 10 features, with uncertainty)
    >>> [reason.feature for reason in explanation.top(0, k=2)]
    ['bmi', 's5']

    Base value and contributions add up to the prediction:

    >>> total = explanation.base_values + explanation.contributions.sum(axis=1)
    >>> bool(np.allclose(total, mean))
    True
    """

    def __init__(
        self,
        kernel: Any = "auto",
        *,
        ard: bool | str | None = None,
        candidates: Any = None,
        solver: str = "auto",
        theta1: float = 1.0,
        theta2: Any = "median",
        sigma_w: float = 0.1,
        sigma_y: float = 0.1,
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
        likelihood: str = "gaussian",
        inference: str = "auto",
        weights: str = "auto",
        groups: Any = None,
        prune: bool = True,
        standardize: bool = True,
        n_inducing: int = 1000,
        inducing_points: Any = "rpcholesky",
        optimize_inducing: bool | str = "auto",
        n_basis: int | str = "auto",
        n_neighbors: int | str = "auto",
        n_shared: int | str = "auto",
        preconditioner_rank: int | str = "auto",
        dtype: Any = "auto",
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
        self.solver = solver
        self.theta1 = theta1
        self.theta2 = theta2
        self.sigma_w = sigma_w
        self.sigma_y = sigma_y
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
        self.likelihood = likelihood
        self.inference = inference
        self.weights = weights
        self.groups = groups
        self.prune = prune
        self.standardize = standardize
        self.n_inducing = n_inducing
        self.inducing_points = inducing_points
        self.optimize_inducing = optimize_inducing
        self.n_basis = n_basis
        self.n_neighbors = n_neighbors
        self.n_shared = n_shared
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
    _others: tuple[Posterior[Any], ...] = ()
    _adds_rows = True
    _index: np.ndarray | None = None
    _known: KnownOptimum | None = None

    def fit(
        self, X: Any, y: Any = None, Z: Any = None, *, offset: Any = None, trials: Any = None
    ) -> Self:
        """Estimate the hyperparameters and condition the model on the data.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), list, XZ, callable or path
            The inputs of the kernel.

            - A table or a sparse matrix has one row for each sample.
            - A list has any objects, if the kernel is a function of objects.
            - With `kernel="precomputed"`, X is the (n, n) Gram matrix.
            - An `XZ` is a pair of X and Z.
            - A stream is read chunk by chunk, several times, and is never in memory as a whole. It
              is a numpy memory map, a function that returns an iterator of chunks (X, y) or
              (X, y, Z) at every call, or the path of a folder of files: npz (with arrays X, y and,
              optionally, Z), CSV, TSV or Parquet.
        y : array-like of shape (n,), str or None
            The target. For a folder of CSV, TSV or Parquet files, y is the name of the target
            column. Functions and npz files bring their own y, and y is None.
        Z : array-like or sparse matrix of shape (n, d), default=None
            The readable features, by which predictions are explained. None takes X.
        offset : array-like of shape (n,), default=None
            The part of each row's latent function f that is known. For counts, it is the logarithm
            of the exposure, such as the number of people or days; otherwise it is in units of y.
        trials : array-like of shape (n,), default=None
            The number of trials of each row, of which y are the successes, for
            `likelihood="binomial"`. None is one trial each.

        Returns
        -------
        self : GPXRegressor
            The fitted estimator.

        Raises
        ------
        InputError
            If the data or an argument cannot be used. The message says what to change.
        MemoryLimitError
            If the fit needs more memory than `memory_limit`. Nothing is allocated then.
        SolverUnavailable
            If the chosen solver cannot fit such data or such a kernel.
        NotPositiveDefinite
            If the covariance matrix of y has no Cholesky factor.
        NotConverged
            If an iterative solver does not reach its tolerance.
        KeyboardInterrupt
            After Ctrl-C during the search for hyperparameters. The model is fitted at the best
            ones that were found.

        Notes
        -----
        If a fit fails, or is interrupted at any other time, the estimator stays as it was.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> GPXRegressor(optimizer=None).fit(X[:100], y[:100]).solver_
        'exact'

        The kernel gets all columns, and predictions are explained by three of them:

        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100], Z=X[:100, :3])
        >>> model.explain(X[100:], X[100:, :3]).weights.shape
        (342, 3)
        """
        likelihood = self._starting_likelihood()
        columns = columns_of(likelihood, offset, trials)
        if columns and source_of(X, y, Z) is not None:
            raise SolverUnavailable("Rows that come in chunks have no offset and no trials.")
        if likelihood.standardizes_target and columns.offset is not None:
            target = target_of(y)
            must_have_rows(columns, len(target))
            self._fit(X, target - columns.offset, Z)
            self.target_name_ = name_of(y)
            return self
        return self._fit(X, y, Z, columns=columns)

    def plan(self, X: Any, y: Any = None, Z: Any = None) -> Plan:
        """Return what `fit` would do with these data: solver, precision and memory, with reasons.

        The data are checked, and nothing is fitted to them.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), list, XZ, callable or path
            The inputs of the kernel, as in `fit`.
        y : array-like of shape (n,), str or None
            The target, as in `fit`.
        Z : array-like or sparse matrix of shape (n, d), default=None
            The readable features. None takes X.

        Returns
        -------
        plan : Plan
            The plan. `print(plan)` shows it with its reasons.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> plan = GPXRegressor().plan(X, y)
        >>> plan.solver, plan.n, plan.d
        ('exact', 442, 10)
        """
        options = FitOptions.checked(self)
        with Session.open(self.n_jobs, self.memory_limit, self.random_state) as session:
            preprocessor, rows = copy(self)._open_rows(X, y, Z, options, session)
            options.weights.must_suit(preprocessor)
            return plan_for(problem_of(rows, preprocessor, options, session))

    @property
    def kernel_table_(self) -> Any:
        """The models that were compared, as a pandas data frame, the chosen one first.

        `integrated` is the log evidence, integrated over the hyperparameters, and `behind` how much
        less it is than that of the chosen model.

        Raises
        ------
        AttributeError
            If the last fit compared no models.
        ImportError
            If pandas is not installed. `fit_report_.kernel_table` needs no pandas.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(candidates=["rbf", "matern32"], weights="shared")
        >>> model = model.fit(X[:100, :2], y[:100])
        >>> list(model.kernel_table_.columns)[:4]
        ['kernel', 'ard', 'fit_intercept', 'log_evidence']
        """
        report = self.__dict__.get("fit_report_")
        if report is None or not report.kernel_table:
            raise AttributeError(
                "kernel_table_ is there after a fit that compared models, as with kernel='auto'."
            )
        return as_frame(report.kernel_table)

    @property
    def prior_table_(self) -> Any:
        """The priors of the weights that were compared, as a pandas data frame, the best one first.

        It has the columns of `kernel_table_`, and `weights`. The one that was chosen may be simpler
        than the best one, if it is within 1.35 nats of that.

        Raises
        ------
        AttributeError
            If the last fit compared no priors.
        ImportError
            If pandas is not installed. `fit_report_.prior_table` needs no pandas.

        Examples
        --------
        >>> from gpx_scale import GPXRegressor, datasets
        >>> data = datasets.synth_semi(300, random_state=0)
        >>> model = GPXRegressor("rbf", weights="auto", fit_intercept=False)
        >>> table = model.fit(data.X, data.y, data.Z).prior_table_
        >>> table.loc[table.chosen, "weights"].tolist()
        ['semi']
        """
        report = self.__dict__.get("fit_report_")
        if report is None or not report.prior_table:
            raise AttributeError(
                "prior_table_ is there after a fit that compared priors of the weights, as with "
                "weights='auto'."
            )
        return as_frame(report.prior_table)

    @property
    def weight_table_(self) -> Any:
        """What was decided about each weight, as a pandas data frame in the order of Z.

        `decision` is "zero", "constant", "own curve" or "varying". `nats` is how much log marginal
        likelihood the decision earns, `share` the share of the variance of all contributions,
        `length_scale` that of a varying weight in the units of X, and `mean` and `std` describe the
        weight over the training rows, in units of y per unit of the feature.

        Raises
        ------
        AttributeError
            If the last fit had weights that share their prior.
        ImportError
            If pandas is not installed. `fit_report_.weight_table` needs no pandas.

        Examples
        --------
        >>> import numpy as np
        >>> from gpx_scale import GPXRegressor
        >>> X = np.random.RandomState(0).uniform(-1, 1, (150, 3))
        >>> y = np.sin(3 * X[:, 0]) * X[:, 0] + X[:, 1]
        >>> model = GPXRegressor("rbf", weights="semi", fit_intercept=False).fit(X, y)
        >>> list(model.weight_table_.columns)
        ['feature', 'decision', 'nats', 'share', 'length_scale', 'mean', 'std']
        """
        report = self.__dict__.get("fit_report_")
        if report is None or not report.weight_table:
            raise AttributeError(
                "weight_table_ is there after a fit whose weights have priors of their own, as "
                "with weights='semi'."
            )
        return weight_frame(report.weight_table)

    @property
    def parameter_names_(self) -> list[str]:
        """The name of each entry of `theta_`, with the names of features.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> GPXRegressor(optimizer=None).fit(X[:100], y[:100]).parameter_names_
        ['theta1', 'theta2', 'sigma_w', 'sigma_y']
        """
        check_is_fitted(self, "posterior_")
        return list(self.fit_report_.parameter_names) or self.posterior_.hyperparameters.names

    @property
    def z_groups_(self) -> dict[str, list[str]]:
        """The features that come from one column of a data frame, by the name of that column.

        These are the levels of a category, the parts of a date, and the indicator of missing
        values. A column that makes one feature is not among them.

        Examples
        --------
        >>> import pandas as pd
        >>> from gpx_scale import GPXRegressor
        >>> frame = pd.DataFrame({"size": [50, 60, 70], "city": ["Rome", "Oslo", "Rome"]})
        >>> model = GPXRegressor(optimizer=None).fit(frame, [1.0, 2.0, 3.0])
        >>> model.z_groups_
        {'city': ['city_Oslo', 'city_Rome']}
        """
        check_is_fitted(self, "posterior_")
        names = self._preprocessor.z_names
        groups = self._preprocessor.z_groups
        return {name: [names[column] for column in groups[name]] for name in groups}

    @available_if(_can_add_rows)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, Z: Any = None) -> Self:
        """Add rows to a fitted model of neighbours, inducing points or basis functions.

        Hyperparameters, scaling, and shared rows, inducing points or the box of the basis stay as
        they are. With "neighbors", new rows are kept in memory, and are neighbours at once. The
        first call fits the model, with inducing points if `solver="auto"`. If "auto" has already
        fitted a model with another solver that keeps its rows, that model is first replaced by one
        of inducing points, from the rows that it keeps. The method exists for the solvers "auto",
        "neighbors", "inducing" and "basis".

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), list, XZ, callable or path
            The inputs of the kernel, as in `fit`.
        y : array-like of shape (n,), str or None
            The target, as in `fit`.
        Z : array-like or sparse matrix of shape (n, d), default=None
            The readable features, if the model was fitted with a separate Z.

        Returns
        -------
        self : GPXRegressor
            The estimator with the posterior of all rows.

        Raises
        ------
        InputError
            If there are no rows, or if they do not match the rows of the first call.
        SolverUnavailable
            If the kernel is a precomputed Gram matrix.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(solver="inducing", n_inducing=20, optimizer=None)
        >>> model = model.partial_fit(X[:200], y[:200]).partial_fit(X[200:], y[200:])
        >>> model.fit_report_.n_samples
        442
        """
        if not hasattr(self, "posterior_"):
            return self._fit(X, y, Z, registry.that_adds_rows(self.solver))
        model = self._model
        if model.kernel.input_kind == "gram":
            raise SolverUnavailable(
                "Rows cannot be added to a model of a precomputed Gram matrix. Call fit with the "
                "Gram matrix of all rows."
            )
        with undone_on_failure(self), self._session() as session:
            plan, posterior = self._without_rows(model, session)
            more = self._sum_over(X, y, Z, posterior.statistics_task(), session)
            if more is None:
                raise InputError("X has no rows that could be added. Give at least one row.")
            posterior = posterior.with_statistics(more, session)
            model = replace(model, plan=replace(plan, n=posterior.n_rows), posterior=posterior)
            report = self.fit_report_.after_more_rows(model.plan, model.log_evidence, posterior)
            self._rows = self._index = None
            self._remember(replace(model, report=report))
        return self

    def _without_rows(self, model: FittedModel, session: Session) -> tuple[Plan, Posterior[Any]]:
        """Return the plan and the posterior of a model to which rows can be added.

        If the model keeps its training rows, it is replaced by one of inducing points.
        """
        kept = model.posterior.training_rows
        if kept is None or Capability.ADD_ROWS in model.posterior.capabilities:
            return model.plan, model.posterior
        prior = model.hyperparameters.weight_prior
        options = solver_options(self, registry.that_adds_rows("auto"))
        rows = MemoryRows(kept)
        given = rows, model.preprocessor, model.kernel, options, session
        kernels = 0 if prior.is_shared else len(prior.terms)
        problem = problem_for(*given, not model.kernel.is_radial, kernels)
        plan = plan_for(problem)
        setup = SolverSetup(
            session, model.kernel, options, model.preprocessor, self._compare_columns
        )
        sliceable = MemoryRows(replace(kept, x=model.kernel.sliceable(kept.x)))
        return plan, registry.create(plan, setup).condition(sliceable, model.hyperparameters)

    def _sum_over(self, X: Any, y: Any, Z: Any, task: Any, session: Session) -> Any:
        """Return the sum of a task over further rows of a fitted model, or None without rows."""
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

    def _starting_likelihood(self) -> Likelihood:
        """Return the likelihood at its start values, or raise an InputError."""
        name = one_of(self.likelihood, LIKELIHOOD_NAMES, "likelihood")
        inference = INFERENCE[one_of(self.inference, tuple(INFERENCE), "inference")]
        return likelihood_named(name, moderate(self.sigma_y, "sigma_y"), inference)

    def _fit(
        self,
        X: Any,
        y: Any,
        Z: Any,
        solver: str | None = None,
        columns: RowColumns = NO_COLUMNS,
    ) -> Self:
        """Fit the model by `solver` or, if that is None, by the solver that the user named.

        `columns` has what else is known of the rows, which are in memory then.
        """
        options = FitOptions.checked(self, solver)
        limits = (self.n_jobs, self.memory_limit, self.random_state, self.verbose, self.callbacks)
        with undone_on_failure(self), Session.open(*limits) as session:
            preprocessor, rows = self._open_rows(X, y, Z, options, session)
            likelihood = options.search.likelihood
            preprocessor, rows = with_columns(preprocessor, rows, columns, likelihood)
            unsaved = self._reason_not_to_save(preprocessor)
            for reason in unsaved:
                session.journal.say(reason)
            check = partial(remember_columns, self, reset=False)
            setup = SolverSetup(session, options.kernel, options.solver, preprocessor, check)
            known = self._known if self.warm_start else None
            model, rows = fit_model(
                preprocessor, rows, options, setup, known, self._remember_optimum
            )
            self._rows = None if model.posterior.row_source is not None else rows
            self._index = index_of_rows(unpack(X, Z)[0])
            self.n_iter_ = sum(model.report.evaluations.values())
            model.report.notes += unsaved
            self._remember(replace(model, target_name=name_of(y)))
        if session.journal.was_interrupted:
            raise KeyboardInterrupt(
                "The search was interrupted. The model is fitted at the best hyperparameters found."
            )
        return self

    def _reason_not_to_save(self, preprocessor: Preprocessor) -> list[str]:
        """Return why `save` will refuse the model that is about to be fitted, if it will."""
        parts = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in NOT_SAVED
        }
        reason = reason_not_to_save(**parts, transformers=preprocessor.transforms)
        return [] if reason is None else [f"save will refuse this model: {reason}"]

    def _open_rows(
        self, X: Any, y: Any, Z: Any, options: FitOptions, session: Session
    ) -> tuple[Preprocessor, RowSource]:
        """Return the preprocessor of the inputs, and the training rows that it made of them."""
        kind, inputs, journal = options.kernel.input_kind, options.inputs, session.journal
        found = self._survey(X, y, Z, options)
        if found is None:
            remember_columns(self, X, reset=True)
            preprocessor, data = fit_preprocessor(X, y, Z, input_kind=kind, options=inputs)
            return preprocessor, MemoryRows(data)
        # A solver that cannot fit a stream is refused before any row is read. The sizes of 1 stand
        # for numbers that are not known yet.
        memory, resolution = session.memory_limit, InputResolution()
        survey, indexed = found
        known: dict[str, Any] = {
            "stream": True,
            "resolution": resolution,
            "indexed": indexed,
            "weight_kernels": int(not options.weights.shared),
            "latent_functions": options.search.likelihood.latent_functions,
        }
        plan_for(Problem(1, 1, 1, memory, 1, options.solver, **known))
        transforms = transforms_for(kind, inputs.x_transformer, inputs.z_transformer)
        with journal.phase("survey of the rows"):
            keep, seed = sample_rows(options.solver.n_inducing), session.draw_seed()
            how = SurveyOptions(keep, seed, inputs.standardize, inputs.fit_intercept)
            rows = survey(transforms, how, journal.passed)
        remember_columns(self, rows.survey.first.X, reset=True)
        return rows.preprocessor, rows

    def _survey(
        self, X: Any, y: Any, Z: Any, options: FitOptions
    ) -> tuple[Callable[..., SurveyedRows], bool] | None:
        """Return the function that surveys a stream in one pass, or None for rows in memory.

        With it comes whether given rows can be read by their numbers.
        """
        source = source_of(X, y, Z, streamed_from(options.solver.solver), options.kernel.input_kind)
        if source is None:
            return None
        return partial(StreamRows.open, source), is_indexed(source)

    def _remember_optimum(self, known: KnownOptimum) -> None:
        """Keep an optimum as soon as it is found, for the warm start of a later fit."""
        self._known = known

    def _remember(self, model: FittedModel) -> None:
        """Set the attributes of a fitted estimator."""
        self._preprocessor, self._plan = model.preprocessor, model.plan
        self.posterior_, self.fit_report_ = model.posterior, model.report
        self._others = model.others
        self.target_name_, self.solver_ = model.target_name, model.plan.solver
        self.theta_ = model.hyperparameters.theta
        self.hyperparameters_ = model.hyperparameters.as_dict()
        self.log_marginal_likelihood_value_ = model.log_evidence

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, which does not keep the rows of a stream."""
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_rows": None} if "_rows" in state else state

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's description of the inputs: sparse ones, and Gram matrices."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        kernel = self.kernel
        tags.input_tags.pairwise = (
            kernel == "precomputed"
            if isinstance(kernel, str)
            else getattr(kernel, "input_kind", "") == "gram"
        )
        return tags
