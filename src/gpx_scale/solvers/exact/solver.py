"""The exact solver: one n^2 buffer, an in-place Cholesky, evidence with its analytic gradient, and the posterior's parts.

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
from ...errors import JitterWarning
from ...linalg.cholesky import CholeskyFactor
from ...linalg.covariance import Covariance
from ...model.hyperparameters import Hyperparameters
from ...runtime.parallel import Executor, FactorisationThreads
from ..contract import Evidence
from .posterior import ExactParts


class ExactSolver:
    """Evidence and posterior of at most n rows in one n^2 buffer, which every call overwrites."""

    def __init__(self, n: int, dtype: Any, executor: Executor) -> None:
        self._buffer = np.empty(n * n, dtype)
        self._executor = executor
        self._watch = FactorisationThreads(executor.n_jobs, self._buffer.itemsize)

    def _factorise(self, data: TrainingRows, params: Hyperparameters) -> CholeskyFactor:
        n = len(data)
        return CholeskyFactor.of(Covariance(data, params, self._executor), self._buffer[: n * n].reshape(n, n))

    def evaluate(
        self, data: TrainingRows, params: Hyperparameters, *, gradient: bool = True, information: bool = False
    ) -> Evidence:
        """log p(y), its gradient by the logs of the parameters, and their average information if asked for."""
        n = len(data)
        with self._watch.over(n, n**3 if gradient else 0):
            return self._evaluate(data, params, gradient, information)

    def _evaluate(self, data: TrainingRows, params: Hyperparameters, gradient: bool, information: bool) -> Evidence:
        factor = self._factorise(data, params)
        alpha = factor.solve(data.y[:, None])[:, 0]
        value = _log_density(data.y, alpha, factor)
        slope = inverse_diagonal = metric = None
        if gradient:
            inverse = factor.inverse_in_place()
            inverse_diagonal = inverse.diagonal().astype(float)
            slope = 0.5 * factor.covariance.contract(alpha, inverse)
            if information:
                metric = _average_information(factor.covariance, alpha, inverse)
        return Evidence(value, slope, alpha, len(data), inverse_diagonal, metric)

    def condition(self, data: TrainingRows, params: Hyperparameters) -> ExactParts:
        """The posterior's parts; they keep the buffer, so this is the solver's last call."""
        with self._watch.over(len(data)):
            factor = self._factorise(data, params)
            alpha = factor.solve(data.y[:, None])[:, 0]
        if factor.jitter:
            warnings.warn(
                f"the covariance is singular to rounding: its diagonal was raised by {factor.jitter:.0e} of itself. "
                "Duplicate rows with little noise cause this: raise sigma_y or drop duplicates",
                JitterWarning,
                stacklevel=3,
            )
        evidence = _log_density(data.y, alpha, factor)
        return ExactParts(data, params, alpha, factor.buffer, factor.jitter, evidence, factor.condition)


def _average_information(covariance: Covariance, alpha: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """1/2 (dC_s alpha)^T C^-1 (dC_t alpha), the mean of observed and expected information;  (t, t), never indefinite.

    n^2 kernel values and 2 n^2 t flops, little beside the n^3 of an evaluation.
    """
    U = np.asfortranarray(covariance.tangents(alpha), inverse.dtype)
    (symm,) = get_blas_funcs(("symm",), (inverse,))
    return 0.5 * (U.T @ symm(1.0, inverse.T, U, lower=0)).astype(float)


def _log_density(y: np.ndarray, alpha: np.ndarray, factor: CholeskyFactor) -> float:
    return -0.5 * float(y @ alpha) - factor.half_log_determinant() - 0.5 * len(y) * float(np.log(2 * np.pi))
