"""The exact solver: one n^2 buffer, an in-place Cholesky, the evidence with its analytic gradient, and the posterior.

The buffer is C-ordered with C in its lower triangle; to LAPACK, which counts columns first, that is the upper triangle of
its transpose: C = U^T U with U = buffer.T, L = U^T. n^3 flops an evaluation (potrf n^3/3, potri 2 n^3/3).

float32 halves the buffer and the time of the factor. The factor then serves as a preconditioner: alpha and every other
solve are iterated against float64 tiles to a true residual, so only the log-determinant and the trace keep float32's digits.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs

from ...data.inputs import TrainingRows
from ...data.row_source import MemoryRows, RowSource
from ...errors import JitterWarning, SolverUnavailable
from ...linalg.covariance import TiledCovariance
from ...linalg.covariance_factor import CholeskyFactor
from ...model.hyperparameters import Hyperparameters
from ...optimize.objective import Optimum
from ...optimize.search import Search
from ...runtime.memory import format_bytes
from ...runtime.parallel import threads
from ...runtime.session import Session
from ..contract import EXACT_ROWS, Evidence, Plan, Problem, Solver, SolverSetup
from ..posterior import Posterior
from .posterior import ExactPosterior

FLOAT64_ROWS = 15_000  # beyond, a float32 factor takes half the time and memory
LAPACK_ROWS = 46_340  # LAPACK counts entries in 32 bits.
SUBSET_TOLERANCE_NATS_PER_ROW = (
    1e-4  # The optimum of a subset is that of all rows to many nats only.
)


class ExactSolver(Solver):
    """Evidence and posterior of at most n rows in one n^2 buffer, which every call overwrites."""

    name = "exact"
    keeps_rows = True
    capabilities = ExactPosterior.capabilities
    posterior_class = ExactPosterior

    def __init__(self, n: int, dtype: Any, session: Session) -> None:
        self._buffer = np.empty(n * n, dtype)
        self._session = session

    # planning

    @classmethod
    def reason_to_prefer(cls, problem: Problem) -> str | None:
        if problem.stream or problem.n > EXACT_ROWS:
            return None
        return (
            f"n <= {EXACT_ROWS}: everything exact, for n^3 flops an evaluation and one n^2 buffer"
        )

    @classmethod
    def plan(cls, problem: Problem, reason: str) -> Plan:
        n, limit, dtype = problem.n, problem.memory_limit, problem.options.dtype
        if n > LAPACK_ROWS:
            raise SolverUnavailable(
                f"n = {n}: LAPACK counts the entries of a matrix in 32 bits, which end at {LAPACK_ROWS} rows; use solver='cg'"
            )
        sizes = {
            name: problem.exact_bytes(n, np.dtype(name).itemsize, problem.gram)
            for name in ("float64", "float32")
        }
        if dtype != "auto":
            chosen, why = dtype, "dtype as asked"
        elif n <= FLOAT64_ROWS and sizes["float64"] <= limit:
            chosen, why = (
                "float64",
                f"float64: {format_bytes(sizes['float64'])}, within memory_limit",
            )
        else:
            chosen = "float32"
            short = (
                f"float64 needs {format_bytes(sizes['float64'])}"
                if n <= FLOAT64_ROWS
                else f"n > {FLOAT64_ROWS}"
            )
            why = f"float32 factor, solves refined in float64: {short}"
        what = f"the exact solver ({chosen}, n = {n})"
        problem.require(sizes[chosen], what, "solver='cg' (n^2 numbers are not kept)")
        return problem.planned(cls.name, np.dtype(chosen).type, sizes[chosen], [reason, why])

    @classmethod
    def work(cls, plan: Plan) -> float:
        """Return the flops of a product of matrices that would take as long: five evaluations of all rows, more on subsets."""
        n, wide = float(plan.n), (plan.d + plan.p) / 20.0
        return 12.0 * n**3 + 900.0 * n**2 * (1.0 + wide)

    @classmethod
    def create(cls, plan: Plan, setup: SolverSetup, known: Posterior | None = None) -> ExactSolver:
        return cls(plan.n, plan.dtype, setup.session)

    # evaluations

    def search(self, search: Search) -> Optimum:
        return search.maximise(self.evaluate, warm=search.warm)

    def _factorise(self, data: TrainingRows, hyperparameters: Hyperparameters) -> CholeskyFactor:
        n = len(data)
        return CholeskyFactor.of(
            TiledCovariance(data, hyperparameters, self._session),
            self._buffer[: n * n].reshape(n, n),
        )

    def evaluate(
        self,
        rows: RowSource,
        hyperparameters: Hyperparameters,
        *,
        gradient: bool = True,
        information: bool = False,
    ) -> Evidence:
        """Return log p(y), its gradient by the logarithms of the parameters, and their average information if asked for."""
        data = rows.load()
        factor = self._factorise(data, hyperparameters)
        alpha = factor.solve(data.y[:, None])[:, 0]
        value = _log_density(data.y, alpha, factor)
        slope = inverse_diagonal = metric = None
        if gradient:
            inverse = factor.inverse_in_place()
            inverse_diagonal = inverse.diagonal().astype(float)
            slope = 0.5 * factor.covariance.contract_inverse(alpha, inverse)
            if information:
                metric = _average_information(factor.covariance, alpha, inverse)
        return Evidence(value, slope, len(data), alpha, inverse_diagonal, metric)

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> ExactPosterior:
        """Return the posterior, which owns the buffer from now on: this is the solver's last call."""
        data = rows.load()
        factor = self._factorise(data, hyperparameters)
        alpha = factor.solve(data.y[:, None])[:, 0]
        if factor.jitter:
            warnings.warn(
                f"the covariance is singular to rounding: its diagonal was raised by {factor.jitter:.0e} of itself. "
                "Duplicate rows with little noise cause this: raise sigma_y or drop duplicates",
                JitterWarning,
                stacklevel=3,
            )
        evidence = _log_density(data.y, alpha, factor)
        return ExactPosterior(
            hyperparameters, data, alpha, factor.buffer, factor.jitter, evidence, factor.condition
        )


def exact_subset_optimum(
    search: Search, some: TrainingRows, first: Hyperparameters, warm: bool = False
) -> Optimum:
    """Return the exact optimum of some rows."""
    solver = ExactSolver(len(some), np.float64, search.session)
    on = search.on(MemoryRows(some)).starting_at(first)
    return on.maximise(
        solver.evaluate, warm=warm, phase=f"{len(some)} rows", tol=SUBSET_TOLERANCE_NATS_PER_ROW
    )


def _average_information(
    covariance: TiledCovariance, alpha: np.ndarray, inverse: np.ndarray
) -> np.ndarray:
    """1/2 (dC_s alpha)^T C^-1 (dC_t alpha), the mean of observed and expected information;  (t, t), never indefinite.

    n^2 kernel values and 2 n^2 t flops, little beside the n^3 of an evaluation.
    """
    U = np.asfortranarray(covariance.tangents(alpha), inverse.dtype)
    (symm,) = get_blas_funcs(("symm",), (inverse,))
    with threads(1):  # Several threads would make the last digits depend on their number.
        return 0.5 * (U.T @ symm(1.0, inverse.T, U, lower=0)).astype(float)


def _log_density(y: np.ndarray, alpha: np.ndarray, factor: CholeskyFactor) -> float:
    return (
        -0.5 * float(y @ alpha)
        - factor.half_log_determinant()
        - 0.5 * len(y) * float(np.log(2 * np.pi))
    )
