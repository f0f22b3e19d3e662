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
from ...runtime.session import Session
from ..contract import EXACT_ROWS, Evidence, Plan, Problem, Solver, SolverSetup
from ..posterior import Posterior
from .posterior import ExactPosterior

# With more rows, dtype="auto" takes float32, as the factor then takes half the time and memory.
MAX_FLOAT64_ROWS = 15_000
# LAPACK counts the entries of a matrix in 32 bits: this is the root of 2^31, rounded down.
MAX_LAPACK_ROWS = 46_340
# A search on a subset stops early: its optimum is many nats away from that of all rows.
SUBSET_TOLERANCE_NATS_PER_ROW = 1e-4


class ExactSolver(Solver):
    """The solver by a Cholesky factor of C, in one n^2 buffer that every call overwrites."""

    name = "exact"
    keeps_rows = True
    capabilities = ExactPosterior.capabilities
    posterior_class = ExactPosterior

    def __init__(self, n: int, dtype: type, session: Session) -> None:
        self._buffer: np.ndarray = np.empty(n * n, dtype)
        self._session = session

    # Planning.

    @classmethod
    def reason_to_prefer(cls, problem: Problem) -> str | None:
        if problem.stream or problem.n > EXACT_ROWS:
            return None
        return f"n <= {EXACT_ROWS}: all results are exact, for n^3 flops per evaluation."

    @classmethod
    def plan(cls, problem: Problem, reason: str) -> Plan:
        n, limit, dtype = problem.n, problem.memory_limit, problem.options.dtype
        if n > MAX_LAPACK_ROWS:
            raise SolverUnavailable(
                f"solver='exact' takes at most {MAX_LAPACK_ROWS} rows, and there are {n}: LAPACK "
                "counts the entries of a matrix in 32 bits. Use solver='cg'."
            )
        sizes = {
            name: problem.exact_bytes(n, np.dtype(name).itemsize, problem.gram)
            for name in ("float64", "float32")
        }
        if dtype != "auto":
            chosen, why = dtype, f"The user asked for {dtype}."
        elif n <= MAX_FLOAT64_ROWS and sizes["float64"] <= limit:
            chosen = "float64"
            why = f"float64 needs {format_bytes(sizes['float64'])}, which is within memory_limit."
        else:
            chosen = "float32"
            short = (
                f"float64 needs {format_bytes(sizes['float64'])}"
                if n <= MAX_FLOAT64_ROWS
                else f"n > {MAX_FLOAT64_ROWS}"
            )
            why = f"{short}: the factor is in float32, and solutions are refined in float64."
        what = f"the exact solver ({chosen}, n = {n})"
        problem.require(sizes[chosen], what, "solver='cg' (n^2 numbers are not kept)")
        return problem.planned(cls.name, np.dtype(chosen).type, sizes[chosen], [reason, why])

    @classmethod
    def work(cls, plan: Plan) -> float:
        """Return the expected time of the fit, in flops of matrix multiplication.

        A fit takes five evaluations of all rows, and some more on subsets. The coefficients were
        adjusted to measured times.
        """
        n, wide = float(plan.n), (plan.d + plan.p) / 20.0
        return 12.0 * n**3 + 900.0 * n**2 * (1.0 + wide)

    @classmethod
    def create(
        cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None
    ) -> ExactSolver:
        return cls(plan.n, plan.dtype, setup.session)

    # Evaluations.

    def search(self, search: Search) -> Optimum:
        return search.maximise(self.evaluate, warm=search.warm)

    def _factorise(self, data: TrainingRows, hyperparameters: Hyperparameters) -> CholeskyFactor:
        """Return the Cholesky factor of C, in the buffer;  n^3/3 flops."""
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
        """Return log p(y), with its gradient and the average information if they are asked for.

        This takes n^3 flops, or n^3/3 without gradient.
        """
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
        """Return the posterior, which owns the buffer afterwards;  n^3/3 flops."""
        data = rows.load()
        factor = self._factorise(data, hyperparameters)
        alpha = factor.solve(data.y[:, None])[:, 0]
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
            hyperparameters, data, alpha, factor.buffer, factor.jitter, evidence, factor.condition
        )


def exact_subset_optimum(
    search: Search, some: TrainingRows, first: Hyperparameters, warm: bool = False
) -> Optimum:
    """Return the optimum of some rows, found by the exact solver."""
    solver = ExactSolver(len(some), np.float64, search.session)
    on = search.on(MemoryRows(some)).starting_at(first)
    return on.maximise(
        solver.evaluate, warm=warm, phase=f"{len(some)} rows", tol=SUBSET_TOLERANCE_NATS_PER_ROW
    )


def _average_information(
    covariance: TiledCovariance, alpha: np.ndarray, inverse: np.ndarray
) -> np.ndarray:
    """Return the average information, 1/2 (dC_s alpha)^T C^-1 (dC_t alpha);  (t, t).

    It is the mean of observed and expected information, and never indefinite. It takes n^2 kernel
    values and 2 n^2 t flops, which are few beside the n^3 of an evaluation.
    """
    U = np.asfortranarray(covariance.tangents(alpha), inverse.dtype)
    (symm,) = get_blas_funcs(("symm",), (inverse,))
    information: np.ndarray = 0.5 * (U.T @ symm(1.0, inverse.T, U, lower=0)).astype(float)
    return information


def _log_density(y: np.ndarray, alpha: np.ndarray, factor: CholeskyFactor) -> float:
    """Return log p(y) = -y.alpha/2 - log|C|/2 - n/2 log(2 pi);  O(n)."""
    return (
        -0.5 * float(y @ alpha)
        - factor.half_log_determinant()
        - 0.5 * len(y) * float(np.log(2 * np.pi))
    )
