"""The exact solver: log p(y), its gradient and the posterior from the Cholesky factor of C.

C is factorised in place, in packed tiles of its lower triangle, which take n^2/2 numbers. An
evaluation takes n^3 flops: n^3/3 for the factor, and 2 n^3/3 for C^-1, which the exact gradient
needs. An estimated gradient needs the factor alone.

float32 halves the memory and the time of a factorisation. The factor is then a preconditioner:
alpha and every other solution are refined against float64 tiles down to a small true residual. Only
the log-determinant and the trace of the gradient have the accuracy of float32. Steps of a search
with estimated gradients always use it.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ...data.inputs import TrainingRows
from ...data.row_source import MemoryRows, RowSource
from ...errors import JitterWarning, NotConverged, NotPositiveDefinite, SolverUnavailable
from ...linalg.covariance import TiledCovariance
from ...linalg.covariance_factor import DRAFT_RESIDUAL, REFINED_RESIDUAL, CholeskyFactor
from ...linalg.lower_tiles import LowerTiles, longest_buffer
from ...model.hyperparameters import Hyperparameters
from ...optimize.objective import Optimum
from ...optimize.search import (
    ESTIMATED_FROM_ROWS,
    MIDDLE_STAGE_FROM,
    SUBSET_TOLERANCE_NATS_PER_ROW,
    Search,
)
from ...runtime.session import Session
from ..contract import Evidence, Plan, Problem, Solver, SolverSetup
from ..posterior import Posterior
from ..rates import Rates
from .latent import LatentEvaluator
from .posterior import ExactPosterior

# A search begins on a subset of at most this many rows, for the prediction of its time.
SEARCH_ROWS = 5_000
# A search has so many steps with estimated gradients on a subset,
STEPS_ON_SUBSET = 5.0
# so many on all rows if there are more,
STEPS_ON_ALL_ROWS = 2.0
# or so many with exact gradients if there are not,
EXACT_STEPS = 4.0
# and so many if rows are too few for estimated ones.
EXACT_STEPS_ON_FEW_ROWS = 9.0
# A search for weights with priors of their own takes so many times as long: it has more parameters,
# begins at two length scales, and tests the weights. At n = 2,000 with 30 variances it is 3.5.
WEIGHT_TERMS_FACTOR = 4.0
# A likelihood that is not Gaussian takes so many times as long, for each of its latent functions.
NEWTON_FACTOR = 5.0
# Estimated gradients refine alpha by products in float64, which form C so many times.
FORMING_PER_STEP = 6.0


class ExactSolver(Solver):
    """The solver by a Cholesky factor of C, in packed tiles that every call overwrites."""

    name = "exact"
    keeps_rows = True
    capabilities = ExactPosterior.capabilities
    posterior_class = ExactPosterior

    def __init__(self, n: int, dtype: type, session: Session) -> None:
        self._buffer: np.ndarray = np.empty(longest_buffer(n), dtype)
        self._session = session
        # Newton's method, for likelihoods that are not Gaussian.
        self._latent = LatentEvaluator(session)
        # The factor of the last evaluation that kept it, from which the posterior can be made.
        self._last: tuple[CholeskyFactor, np.ndarray] | None = None
        # The random signs of estimated gradients are the same in a whole fit.
        self._signs: np.ndarray | None = None

    # Planning.

    @classmethod
    def variants(cls, problem: Problem) -> list[Problem]:
        """Return the problem in float64, and in float32, which takes half the time and memory."""
        if problem.options.dtype != "auto" or problem.is_latent:
            return [problem]
        options = [replace(problem.options, dtype=dtype) for dtype in ("float64", "float32")]
        return [replace(problem, options=option) for option in options]

    @classmethod
    def plan(cls, problem: Problem) -> Plan:
        n, limit, dtype = problem.n, problem.memory_limit, problem.options.dtype
        sizes = {
            name: problem.exact_bytes(n, np.dtype(name).itemsize, problem.gram)
            for name in ("float64", "float32")
        }
        if dtype == "auto":
            fits = sizes["float64"] <= limit or problem.is_latent
            dtype = "float64" if fits else "float32"
        reasons = ["The Cholesky factor of C is computed, so all results are exact."]
        if dtype == "float32":
            reasons.append("The factor is in float32, and solutions are refined in float64.")
        if problem.is_latent:
            reasons = ["Each step of Newton's method has a Cholesky factor of its own."]
        if problem.weight_terms:
            reasons.append("Weights have priors of their own, so the search takes longer.")
        what = f"the exact solver ({dtype}, n = {n})"
        problem.require(sizes[dtype], what, "solver='cg' (n^2 numbers are not kept)")
        subset = min(n, SEARCH_ROWS) if problem.options.searched else 0
        kind = np.dtype(dtype).type
        return problem.planned(cls.name, kind, sizes[dtype], reasons, subset=subset)

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        super().refuse(problem)
        if problem.is_latent and problem.options.dtype == "float32":
            raise SolverUnavailable(
                "Newton's method for classes and counts needs float64. Give dtype='auto'."
            )

    @classmethod
    def seconds(cls, plan: Plan, rates: Rates) -> float:
        """Return the predicted time: a search on subsets, steps on all rows, and the posterior.

        Each step forms and factorises C in float32, and contracts its derivatives. A float64
        posterior takes a further factorisation.
        """
        if plan.latent_functions:
            gaussian = cls.seconds(replace(plan, latent_functions=0), rates)
            return NEWTON_FACTOR * plan.latent_functions * gaussian
        if plan.weight_kernels:
            alone = cls.seconds(replace(plan, weight_kernels=0, search_rows=None), rates)
            whole = cls.seconds(replace(plan, weight_kernels=0), rates)
            forming = plan.weight_kernels * forming_seconds(plan, plan.n, rates)
            return alone + WEIGHT_TERMS_FACTOR * (whole - alone + forming)
        n, is_double = plan.n, plan.dtype == np.float64
        forming, step = forming_seconds(plan, n, rates), _step_seconds(plan, n, rates)
        posterior = n**3 / 3.0 / rates.flops64 + forming if is_double else step
        if plan.search_rows is None:
            return rates.startup + posterior
        if isinstance(plan.search_rows, int):
            return (
                rates.startup + optimum_seconds(plan, min(n, plan.search_rows), rates) + posterior
            )
        if plan.n == plan.subset:
            return rates.startup + optimum_seconds(plan, n, rates)
        middle = int(np.sqrt(plan.subset * n)) if n >= MIDDLE_STAGE_FROM * plan.subset else 0
        steps = subset_search_seconds(plan, middle, rates) + STEPS_ON_ALL_ROWS * step
        if plan.search_rows == "all":
            steps += EXACT_STEPS * _exact_step_seconds(plan, n, rates)
        return rates.startup + steps + (posterior if is_double else 0.0)

    @classmethod
    def create(
        cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None
    ) -> ExactSolver:
        return cls(plan.n, plan.dtype, setup.session)

    # Evaluations.

    def search(self, search: Search) -> Optimum:
        """Return the optimum of all rows, or one that is near to it, to save time.

        Estimated gradients come from a float32 factor. If the posterior has one in float64, which
        is computed afterwards in any case, the search takes its last step without an evaluation.
        """
        limited, is_double = search.limited(), self._buffer.dtype == np.float64
        is_gaussian = search.start.likelihood.is_gaussian
        optimum = limited.maximise(
            self.evaluate, warm=search.warm, estimates=is_gaussian, unseen_step=is_double
        )
        return optimum if limited is search else replace(optimum, evidence=None)

    def _solve(
        self, data: TrainingRows, hyperparameters: Hyperparameters, draft: bool = False
    ) -> tuple[CholeskyFactor, np.ndarray]:
        """Return the Cholesky factor of C, in the buffer, and alpha;  n^3/3 flops.

        A `draft` is in float32 whatever the buffer is. If float32 is not enough, float64 is used,
        if memory allows: C has no float32 factor without jitter, or the factor is no help for
        alpha.
        """
        self._last = None
        covariance = TiledCovariance(data, hyperparameters, self._session)

        def attempt(dtype: Any) -> tuple[CholeskyFactor, np.ndarray]:
            n_jobs = self._session.executor.n_jobs
            tiles = LowerTiles.pack_into(self._buffer.view(dtype), len(data), n_jobs)
            factor = CholeskyFactor.of(covariance, tiles)
            residual = DRAFT_RESIDUAL if draft else REFINED_RESIDUAL
            return factor, factor.solve(data.y[:, None], residual)[:, 0]

        in_single = draft or self._buffer.dtype == np.float32
        if in_single and self._can_widen():
            with suppress(NotPositiveDefinite, NotConverged):
                factor, alpha = attempt(np.float32)
                if not factor.jitter:
                    return factor, alpha
            self._widen()
        return attempt(self._buffer.dtype)

    def _can_widen(self) -> bool:
        """Return whether the buffer is float64, or memory allows one in float64."""
        is_double = self._buffer.dtype == np.float64
        return is_double or 2 * self._buffer.nbytes < self._session.memory_limit

    def _widen(self) -> None:
        """Replace a float32 buffer by one in float64, and say so."""
        if self._buffer.dtype == np.float64:
            return
        count, self._buffer = self._buffer.size, np.empty(0)
        self._buffer = np.empty(count)
        self._session.journal.say("C has no float32 factor. The fit goes on in float64.")

    def evaluate(
        self,
        rows: RowSource,
        hyperparameters: Hyperparameters,
        *,
        gradient: bool = True,
        information: bool = False,
        probes: int = 0,
    ) -> Evidence:
        """Return log p(y), with its gradient and the average information if they are asked for.

        This takes n^3 flops, or n^3/3 without gradient. With s > 0 `probes`, the gradient is
        estimated from as many random signs E (n, s), which takes n^3/3 + O(s n^2) flops:

            alpha alpha^T - C^-1  ~  alpha alpha^T - W W^T / s,     W = L^-T E

        The factor is then in float32, whose rounding is far below the error of the gradient.
        """
        data = rows.load()
        if not hyperparameters.likelihood.is_gaussian:
            given = data, hyperparameters, self._buffer
            return self._latent.evaluate(*given, gradient, information)
        with_inverse = gradient and not probes
        self._session.journal.begins(len(data) ** 3 / (1.0 if with_inverse else 3.0))
        factor, alpha = self._solve(data, hyperparameters, draft=probes > 0)
        value = _log_density(data.y, alpha, factor)
        slope = inverse_diagonal = metric = None
        if (not gradient or probes) and factor.tiles.dtype == self._buffer.dtype:
            self._last = factor, alpha
        if gradient and information:
            metric = factor.average_information(alpha)
        if gradient and probes:
            signs = self._random_signs(len(data), probes)
            W = np.array(signs.T, factor.tiles.dtype, order="C")
            factor.tiles.back_solve(W)
            U, V = np.column_stack([alpha, -W.T / probes]), np.column_stack([alpha, W.T])
            slope = 0.5 * factor.covariance.contract(U, V)
        elif gradient:
            along, inverse_diagonal = factor.covariance.contract_inverse(alpha, factor.tiles)
            slope = 0.5 * along
        return Evidence(
            value,
            slope,
            len(data),
            alpha,
            inverse_diagonal,
            metric,
            probes=probes if gradient else 0,
        )

    def _random_signs(self, n: int, count: int) -> np.ndarray:
        """Return random signs, the same ones in every evaluation of a fit;  (n, count)."""
        if self._signs is None or self._signs.shape != (n, count):
            draws = self._session.random.uniform(size=(n, count))
            self._signs = np.where(draws < 0.5, -1.0, 1.0)
        return self._signs

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> ExactPosterior:
        """Return the posterior, which owns the buffer afterwards.

        This takes n^3/3 flops, or none if the last evaluation was at the same hyperparameters and
        has left its factor.
        """
        if not hyperparameters.likelihood.is_gaussian:
            return self.condition_each(rows, hyperparameters)[0]
        data = rows.load()
        factor, alpha = self._kept_factor(data, hyperparameters)
        if factor.jitter:
            warnings.warn(
                "The covariance matrix is singular to rounding, so its diagonal was raised by "
                f"{factor.jitter:.0e} of itself. Duplicate rows with little noise cause this. "
                "Raise sigma_y, or drop duplicate rows.",
                JitterWarning,
                stacklevel=3,
            )
        evidence = _log_density(data.y, alpha, factor)
        known = factor.tiles, factor.jitter, evidence, factor.condition
        return ExactPosterior(hyperparameters, data, alpha, *known)

    def condition_each(
        self, rows: RowSource, hyperparameters: Hyperparameters
    ) -> list[ExactPosterior]:
        if hyperparameters.likelihood.is_gaussian:
            return [self.condition(rows, hyperparameters)]
        return self._latent.condition(rows.load(), hyperparameters, self._buffer)

    def _kept_factor(
        self, data: TrainingRows, hyperparameters: Hyperparameters
    ) -> tuple[CholeskyFactor, np.ndarray]:
        """Return the factor of C and alpha, those of the last evaluation if it had the same C."""
        if self._last is not None:
            C = self._last[0].covariance
            same = np.array_equal(C.hyperparameters.theta, hyperparameters.theta)
            if same and C.rows is data:
                factor, alpha = self._last
                return factor, factor.solve(data.y[:, None])[:, 0] if factor.refined else alpha
        self._session.journal.begins(len(data) ** 3 / 3.0)
        return self._solve(data, hyperparameters)


def subset_search_seconds(plan: Plan, middle: int, rates: Rates) -> float:
    """Return the predicted time of a search on `plan.subset` rows, and then on `middle` ones.

    There is no stage in the middle if that is 0.
    """
    first = STEPS_ON_SUBSET * _step_seconds(plan, plan.subset, rates)
    return first + STEPS_ON_ALL_ROWS * _step_seconds(plan, middle, rates)


def forming_seconds(plan: Plan, n: int, rates: Rates) -> float:
    """Return the predicted time of forming C of n rows."""
    return 0.5 * n**2 * (0.5 + (plan.d + plan.p) / 40.0) / rates.entries64


def _step_seconds(plan: Plan, n: int, rates: Rates) -> float:
    """Return the predicted time of a step with an estimated gradient on n rows."""
    return n**3 / 3.0 / rates.flops32 + FORMING_PER_STEP * forming_seconds(plan, n, rates)


def _exact_step_seconds(plan: Plan, n: int, rates: Rates) -> float:
    """Return the predicted time of a step with an exact gradient on n rows."""
    return n**3 / rates.flops64 + 4.0 * forming_seconds(plan, n, rates)


def optimum_seconds(plan: Plan, n: int, rates: Rates) -> float:
    """Return the predicted time of a search to the optimum of n rows."""
    exact = _exact_step_seconds(plan, n, rates)
    if n < ESTIMATED_FROM_ROWS:
        return EXACT_STEPS_ON_FEW_ROWS * exact
    return STEPS_ON_SUBSET * _step_seconds(plan, n, rates) + EXACT_STEPS * exact


def exact_subset_optimum(
    search: Search, some: TrainingRows, first: Hyperparameters, warm: bool = False
) -> Optimum:
    """Return the optimum of some rows, found by the exact solver."""
    solver = ExactSolver(len(some), np.float64, search.session)
    on = search.on(MemoryRows(some)).starting_at(first)
    return on.maximise(solver.evaluate, warm=warm, tol=SUBSET_TOLERANCE_NATS_PER_ROW)


def _log_density(y: np.ndarray, alpha: np.ndarray, factor: CholeskyFactor) -> float:
    """Return log p(y) = -y.alpha/2 - log|C|/2 - n/2 log(2 pi);  O(n)."""
    return (
        -0.5 * float(y @ alpha)
        - factor.half_log_determinant()
        - 0.5 * len(y) * float(np.log(2 * np.pi))
    )
