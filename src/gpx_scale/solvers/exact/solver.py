"""The exact solver: log p(y), its gradient and the posterior from the Cholesky factor of C.

C is factorised in place, in one n^2 buffer. The buffer is C-ordered, with C in its lower triangle.
To LAPACK, which expects columns first, it is the upper triangle of the transpose: C = U^T U with
U = buffer.T and L = U^T. An evaluation takes n^3 flops (potrf n^3/3, potri 2 n^3/3).

float32 halves the size of the buffer and the time of the factorisation. The factor is then a
preconditioner: alpha and every other solution are refined against float64 tiles down to a small
true residual. Only the log-determinant and the trace of the gradient have the accuracy of float32.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ...data.inputs import TrainingRows
from ...data.row_source import MemoryRows, RowSource
from ...errors import JitterWarning, NotConverged, NotPositiveDefinite
from ...linalg.covariance import TiledCovariance
from ...linalg.covariance_factor import CholeskyFactor
from ...linalg.lower_tiles import LowerTiles, longest_buffer
from ...model.hyperparameters import Hyperparameters
from ...optimize.objective import Optimum
from ...optimize.search import SUBSET_TOLERANCE_NATS_PER_ROW, Search
from ...runtime.session import Session
from ..contract import Evidence, Plan, Problem, Solver, SolverSetup
from ..posterior import Posterior
from ..rates import Rates
from .posterior import ExactPosterior

# A search begins on a subset of at most this many rows, for the prediction of its time.
SEARCH_ROWS = 5_000
# A search takes as long as this many evaluations of its largest subset.
SEARCHES_OF_SUBSET = 9.0
# Steps of a search on all rows after that on the subset, including the last factorisation.
STEPS_ON_ALL_ROWS = 3.0


class ExactSolver(Solver):
    """The solver by a Cholesky factor of C, in packed tiles that every call overwrites."""

    name = "exact"
    keeps_rows = True
    capabilities = ExactPosterior.capabilities
    posterior_class = ExactPosterior

    def __init__(self, n: int, dtype: type, session: Session) -> None:
        self._buffer: np.ndarray = np.empty(longest_buffer(n), dtype)
        self._session = session
        # The factor of the last evaluation that kept it, from which the posterior can be made.
        self._last: tuple[CholeskyFactor, np.ndarray] | None = None
        # The random signs of estimated gradients are the same in a whole fit.
        self._signs: np.ndarray | None = None

    # Planning.

    @classmethod
    def variants(cls, problem: Problem) -> list[Problem]:
        """Return the problem in float64, and in float32, which takes half the time and memory."""
        if problem.options.dtype != "auto":
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
            dtype = "float64" if sizes["float64"] <= limit else "float32"
        reasons = ["The Cholesky factor of C is computed, so all results are exact."]
        if dtype == "float32":
            reasons.append("The factor is in float32, and solutions are refined in float64.")
        what = f"the exact solver ({dtype}, n = {n})"
        problem.require(sizes[dtype], what, "solver='cg' (n^2 numbers are not kept)")
        subset = min(n, SEARCH_ROWS) if problem.options.searched else 0
        kind = np.dtype(dtype).type
        return problem.planned(cls.name, kind, sizes[dtype], reasons, subset=subset)

    @classmethod
    def seconds(cls, plan: Plan, rates: Rates) -> float:
        """Return the predicted time: a search on a subset, and steps on all rows.

        Each step forms and factorises C, and contracts its derivatives.
        """
        n, wide = float(plan.n), 0.5 + (plan.d + plan.p) / 40.0
        is_double = plan.dtype == np.float64
        factor = n**3 / 3.0 / (rates.flops64 if is_double else rates.flops32)
        # float32 refines its solutions with products in float64, which form C again.
        forming = (1.0 if is_double else 6.0) * 0.5 * n**2 * wide / rates.entries64
        if not plan.subset:
            return rates.startup + factor + forming
        m = float(plan.subset)
        searching = m**3 / rates.flops64 + 2.0 * m**2 * wide / rates.entries64
        steps = STEPS_ON_ALL_ROWS if plan.n > plan.subset else 0.0
        return rates.startup + SEARCHES_OF_SUBSET * searching + steps * (factor + 2.0 * forming)

    @classmethod
    def create(
        cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None
    ) -> ExactSolver:
        return cls(plan.n, plan.dtype, setup.session)

    # Evaluations.

    def search(self, search: Search) -> Optimum:
        limited = search.limited()
        optimum = limited.maximise(self.evaluate, warm=search.warm, estimates=True)
        return optimum if limited is search else replace(optimum, evidence=None)

    def _solve(
        self, data: TrainingRows, hyperparameters: Hyperparameters
    ) -> tuple[CholeskyFactor, np.ndarray]:
        """Return the Cholesky factor of C, in the buffer, and alpha;  n^3/3 flops.

        If float32 is not enough, the fit goes on in float64, if memory allows: C has no float32
        factor without jitter, or the factor is no help for alpha.
        """
        self._last = None
        covariance = TiledCovariance(data, hyperparameters, self._session)

        def attempt() -> tuple[CholeskyFactor, np.ndarray]:
            n_jobs = self._session.executor.n_jobs
            tiles = LowerTiles.pack_into(self._buffer, len(data), n_jobs)
            factor = CholeskyFactor.of(covariance, tiles)
            return factor, factor.solve(data.y[:, None])[:, 0]

        if not self._can_widen():
            return attempt()
        with suppress(NotPositiveDefinite, NotConverged):
            factor, alpha = attempt()
            if not factor.jitter:
                return factor, alpha
        self._widen()
        return attempt()

    def _can_widen(self) -> bool:
        """Return whether the buffer is float32, and memory allows one in float64."""
        twice = 2 * self._buffer.nbytes
        return self._buffer.dtype == np.float32 and twice < self._session.memory_limit

    def _widen(self) -> None:
        """Replace the buffer by one in float64, and say so."""
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
        """
        data = rows.load()
        factor, alpha = self._solve(data, hyperparameters)
        value = _log_density(data.y, alpha, factor)
        slope = inverse_diagonal = metric = None
        if not gradient or probes:
            self._last = factor, alpha
        if gradient and information:
            metric = _average_information(factor, alpha)
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
        return ExactPosterior(
            hyperparameters, data, alpha, factor.tiles, factor.jitter, evidence, factor.condition
        )

    def _kept_factor(
        self, data: TrainingRows, hyperparameters: Hyperparameters
    ) -> tuple[CholeskyFactor, np.ndarray]:
        """Return the factor of C and alpha, those of the last evaluation if it had the same C."""
        if self._last is not None:
            C = self._last[0].covariance
            same = np.array_equal(C.hyperparameters.theta, hyperparameters.theta)
            if same and C.rows is data:
                return self._last
        return self._solve(data, hyperparameters)


def exact_subset_optimum(
    search: Search, some: TrainingRows, first: Hyperparameters, warm: bool = False
) -> Optimum:
    """Return the optimum of some rows, found by the exact solver."""
    solver = ExactSolver(len(some), np.float64, search.session)
    on = search.on(MemoryRows(some)).starting_at(first)
    return on.maximise(solver.evaluate, warm=warm, tol=SUBSET_TOLERANCE_NATS_PER_ROW)


def _average_information(factor: CholeskyFactor, alpha: np.ndarray) -> np.ndarray:
    """Return the average information, 1/2 (dC_s alpha)^T C^-1 (dC_t alpha);  (t, t).

    It is the mean of observed and expected information, and never indefinite. It takes n^2 kernel
    values and n^2 t flops, which are few beside the n^3 of an evaluation.
    """
    U = np.array(factor.covariance.tangents(alpha).T, factor.tiles.dtype, order="C")
    factor.tiles.half_solve(U)
    information: np.ndarray = 0.5 * (U @ U.T).astype(float)
    return information


def _log_density(y: np.ndarray, alpha: np.ndarray, factor: CholeskyFactor) -> float:
    """Return log p(y) = -y.alpha/2 - log|C|/2 - n/2 log(2 pi);  O(n)."""
    return (
        -0.5 * float(y @ alpha)
        - factor.half_log_determinant()
        - 0.5 * len(y) * float(np.log(2 * np.pi))
    )
