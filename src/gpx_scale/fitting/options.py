"""The options of a fit, which are checked once: those of the inputs, the solver and the search."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..data.frame_encoder import ERROR, INDICATOR
from ..data.inputs import InputOptions
from ..errors import InputError
from ..kernels.kernel import Kernel
from ..likelihoods import Likelihood
from ..model.hyperparameters import Hyperparameters
from ..model.weight_prior import WeightPrior
from ..plan import checked_options
from ..runtime.arguments import flag, moderate, one_of, whole
from ..solvers.contract import SolverOptions
from ..solvers.inducing.point_selection import number_of_points
from .checkpoint import checked_path
from .model_choice import ModelChoice, OpenModel
from .weight_options import WeightOptions

# Fewer rows than this do not determine the hyperparameters of even the simplest model.
LEAST_SEARCH_ROWS = 10


@dataclass(frozen=True)
class SearchLimits:
    """The start values of a search for hyperparameters, and its limits.

    `wanted` is false with `optimizer=None`: there is no search then. The kernel does not read the
    `unused_columns` of X.
    """

    wanted: bool
    optimizer: str
    search_rows: int | str
    max_iter: int
    tol: float
    n_restarts: int
    ard: bool
    sigma_w: float
    likelihood: Likelihood
    unused_columns: tuple[int, ...] = ()
    checkpoint: Any = None

    def hyperparameters(self, kernel: Kernel) -> Hyperparameters:
        """Return the model at its start values, in which all weights share this kernel."""
        return Hyperparameters(WeightPrior.of(kernel, self.sigma_w), self.likelihood)


@dataclass(frozen=True)
class FitOptions:
    """The kernel with its start values, and all other options of a fit.

    Where the user leaves the kernel, ARD, the intercept or the priors of the weights open, they
    are the usual ones, and `open_model` has all that are possible.
    """

    kernel: Kernel
    inputs: InputOptions
    solver: SolverOptions
    search: SearchLimits
    open_model: OpenModel
    weights: WeightOptions = field(default_factory=WeightOptions)

    @classmethod
    def checked(cls, estimator: Any, solver: str | None = None) -> FitOptions:
        """Return the options of an estimator; `solver` replaces the estimator's own.

        The first option that cannot be used raises an InputError that names it.
        """
        one_of(estimator.optimizer, ("auto", "lbfgs", None), "optimizer")
        one_of(estimator.optimize_inducing, (True, False, "auto"), "optimize_inducing")
        for name in ("standardize", "warm_start"):
            flag(getattr(estimator, name), name)
        weights, open_model = WeightOptions.checked(estimator), OpenModel.of(estimator)
        if weights.wants_intercept(estimator.fit_intercept):
            open_model = replace(open_model, fit_intercept=(True,))
        usual, likelihood = open_model.usual, estimator._starting_likelihood()
        search = SearchLimits(
            wanted=estimator.optimizer is not None,
            optimizer=estimator.optimizer or "auto",
            search_rows=_search_rows(estimator.search_rows),
            sigma_w=moderate(estimator.sigma_w, "sigma_w", zero=True),
            likelihood=likelihood,
            tol=moderate(estimator.tol, "tol", zero=True),
            max_iter=whole(estimator.max_iter, "max_iter", least=1),
            n_restarts=whole(estimator.n_restarts, "n_restarts", least=0),
            ard=usual.ard,
            checkpoint=estimator.checkpoint,
        )
        if estimator.checkpoint is not None:
            checked_path(estimator.checkpoint)
        inputs = InputOptions(
            estimator.x_transformer,
            estimator.z_transformer,
            bool(estimator.standardize),
            usual.fit_intercept,
            likelihood.standardizes_target,
            encode=one_of(estimator.encode, ("auto", None), "encode") is not None,
            missing=one_of(estimator.missing, (INDICATOR, ERROR), "missing"),
        )
        solvers = solver_options(estimator, solver)
        return cls(usual.kernel, inputs, solvers, search, open_model, weights)

    def with_model(self, choice: ModelChoice) -> FitOptions:
        """Return the options of a fit of one model, in which nothing is open."""
        return replace(
            self,
            kernel=choice.kernel,
            inputs=replace(self.inputs, fit_intercept=choice.fit_intercept),
            search=replace(self.search, ard=choice.ard, unused_columns=choice.unused_columns),
            weights=self.weights.of_kind(choice.weights or self.weights.kind),
        )


def _search_rows(value: Any) -> int | str:
    """Return a checked `search_rows`, which is "auto", "all" or a number of rows."""
    if isinstance(value, str) and value in ("auto", "all"):
        return value
    try:
        return whole(value, "search_rows", least=LEAST_SEARCH_ROWS)
    except InputError:
        raise InputError(
            f"search_rows={value!r} is not valid. Give 'auto', 'all', or a whole number of at "
            f"least {LEAST_SEARCH_ROWS}."
        ) from None


def solver_options(estimator: Any, solver: str | None = None) -> SolverOptions:
    """Return the options of an estimator for solvers; `solver` replaces the estimator's own."""
    return checked_options(
        solver=estimator.solver if solver is None else solver,
        dtype=estimator.dtype,
        rank=estimator.preconditioner_rank,
        n_inducing=number_of_points(estimator.inducing_points, estimator.n_inducing),
        n_basis=estimator.n_basis,
        inducing_points=estimator.inducing_points,
        optimize_inducing=estimator.optimize_inducing,
        search_rows=None if estimator.optimizer is None else _search_rows(estimator.search_rows),
        n_neighbors=estimator.n_neighbors,
        n_shared=estimator.n_shared,
    )
