"""The exact solver: one n^2 buffer, an in-place Cholesky, evidence with its analytic gradient, and the posterior's parts.

The buffer is C-ordered with C in its lower triangle; to LAPACK, which counts columns first, that is the upper triangle of
its transpose: C = U^T U with U = buffer.T, L = U^T. n^3 flops an evaluation (potrf n^3/3, potri 2 n^3/3).

float32 halves the buffer and the time of the factor. The factor then serves as a preconditioner: alpha and every other
solve are iterated against float64 tiles to a true residual, so only the log-determinant and the trace keep float32's digits.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from .certified import latent_variance_bound
from .covariance import Covariance
from .errors import JitterWarning, NotConverged, NotPositiveDefinite
from .factoring import Watch, worthwhile_threads
from .features import Features
from .inputs import Inputs
from .params import Params
from .parts import JointPrior, Parts, Reductions, symmetric_part
from .runtime import Executor, slices
from .solution import Evidence
from .words import InverseWords, Reduce, SolvedWords

INVERTIBLE = 1e-10  # relative rounding of b.C^-1 b up to which the explicit inverse serves for variances
REFINED, ACCEPTED = 1e-12, 1e-8  # relative residual of the float32 factor's solves: aimed at, and the worst to go on with


@dataclass(frozen=True)
class Factor:
    """C + jitter diag(C) = L L^T, L in the lower triangle of `buffer`, and what solves with it."""

    covariance: Covariance
    buffer: np.ndarray
    jitter: float

    @classmethod
    def of(cls, covariance: Covariance, buffer: np.ndarray) -> Factor:
        """Fill and factorise in place; where C is singular to rounding, with the least jitter of a ladder that helps.

        Jitter and the test of pivots are relative to each row's own C_ii, so rows of very different |z| do not matter.
        """
        eps = np.finfo(buffer.dtype).eps
        diagonal = covariance.diagonal
        (potrf,) = get_lapack_funcs(("potrf",), (buffer,))
        for jitter in (0.0, *(step * eps for step in (1e1, 1e3, 1e5, 1e7, 1e9) if step * eps < 0.02)):
            covariance.fill_lower(buffer, jitter)
            _, info = potrf(buffer.T, lower=0, overwrite_a=1, clean=0)
            # A pivot below the rounding of its diagonal entry is noise that happened to be positive.
            if info == 0 and (np.square(buffer.diagonal(), dtype=float) > eps * diagonal).all():
                return cls(covariance, buffer, float(jitter))
        raise NotPositiveDefinite(
            f"the covariance of {len(covariance)} rows has no {buffer.dtype} Cholesky factor, even with jitter of "
            f"{jitter:.0e} of its diagonal: is the kernel positive definite? Raise sigma_y, drop duplicate rows"
            + (', or use dtype="float64"' if buffer.dtype == np.float32 else "")
        )

    def multiply(self, X: np.ndarray) -> np.ndarray:
        """(C + jitter diag(C)) X in float64, by tiles;  (n, c) -> (n, c)."""
        product = self.covariance.matmul(X)
        if self.jitter:
            product += self.jitter * self.covariance.diagonal[:, None] * X
        return product

    @property
    def refined(self) -> bool:
        return self.buffer.dtype == np.float32

    @property
    def condition(self) -> float:
        """(max L_ii / min L_ii)^2: a lower bound of the condition number of C."""
        diagonal = self.buffer.diagonal().astype(float)
        return float((diagonal.max() / diagonal.min()) ** 2)

    def half_log_determinant(self) -> float:
        return float(np.log(self.buffer.diagonal().astype(float)).sum())

    def _apply_inverse(self, B: np.ndarray) -> np.ndarray:
        """(L L^T)^-1 B in the factor's dtype;  (n, c) -> (n, c)."""
        (potrs,) = get_lapack_funcs(("potrs",), (self.buffer,))
        X, _ = potrs(self.buffer.T, np.asfortranarray(B, self.buffer.dtype), lower=0)
        return X

    def solve(self, B: np.ndarray) -> np.ndarray:
        """C^-1 B;  (n, c) -> (n, c). With a float32 factor: conjugate gradients in float64, preconditioned by it."""
        if not self.refined:
            return self._apply_inverse(B)
        size = np.abs(B).max(axis=0, initial=0.0)
        size[size == 0] = 1.0  # columns of size 1: float32 has neither 1e-98 nor 1e98
        return size * self._refine(B / size)

    def _refine(self, B: np.ndarray) -> np.ndarray:
        X = self._apply_inverse(B).astype(float)
        scale = np.linalg.norm(B, axis=0)
        scale[scale == 0] = 1.0
        R = B - self.multiply(X)
        P = H = self._apply_inverse(R).astype(float)
        energy = np.einsum("ij,ij->j", R, H)
        for _ in range(50):
            if (np.linalg.norm(R, axis=0) / scale).max(initial=0.0) <= REFINED:
                break
            CP = self.multiply(P)
            curvature = np.einsum("ij,ij->j", P, CP)
            step = np.divide(energy, curvature, out=np.zeros_like(energy), where=curvature > 0)
            X += step * P
            R -= step * CP
            H = self._apply_inverse(R).astype(float)
            before, energy = energy, np.einsum("ij,ij->j", R, H)
            P = H + np.divide(energy, before, out=np.zeros_like(energy), where=before > 0) * P
        worst = (np.linalg.norm(B - self.multiply(X), axis=0) / scale).max(
            initial=0.0
        )  # the true one: the recurrence may drift
        if not worst <= ACCEPTED:  # also catches NaN
            raise NotConverged(
                f"refining the float32 factor's solve stopped at a residual of {worst:.1e} (needed {ACCEPTED:.0e}): "
                'raise sigma_y, or use dtype="float64"'
            )
        return X

    def inverse_in_place(self) -> np.ndarray:
        """C^-1 in the lower triangle of the buffer, in the place of the factor, which is gone;  2 n^3/3 flops."""
        (potri,) = get_lapack_funcs(("potri",), (self.buffer,))
        potri(self.buffer.T, lower=0, overwrite_c=1)
        return self.buffer

    def halves(self, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P, Q (c, n) with P Q^T = B C^-1 B^T for rows B (c, n), which are overwritten.

        float64: both are B L^-T;  n^2 c flops. float32: the refined X = C^-1 B and 2 B - C X, whose product 2 B.X - X C X is
        exact to the second order of what is left, and never above B C^-1 B: no variance computed with it is too small.
        """
        if self.refined:
            X = self.solve(B.T)
            Q = self.multiply(X)
            np.subtract(2.0 * B.T, Q, out=Q)
            return X.T, Q.T
        (trsm,) = get_blas_funcs(("trsm",), (self.buffer,))
        V = trsm(1.0, self.buffer.T, B.T, lower=0, trans_a=1, overwrite_b=1).T
        return V, V


class ExactSolver:
    """Evidence and posterior of at most n rows in one n^2 buffer, which every call overwrites."""

    def __init__(self, n: int, dtype: Any, executor: Executor) -> None:
        self._buffer = np.empty(n * n, dtype)
        self._executor = executor
        self._watch = Watch(executor.n_jobs, self._buffer.itemsize)

    def _factorise(self, data: Inputs, params: Params) -> Factor:
        n = len(data)
        return Factor.of(Covariance(data, params, self._executor), self._buffer[: n * n].reshape(n, n))

    def evaluate(self, data: Inputs, params: Params, *, gradient: bool = True, information: bool = False) -> Evidence:
        """log p(y), its gradient by the logs of the parameters, and their average information if asked for."""
        n = len(data)
        with self._watch.over(n, n**3 if gradient else 0):
            return self._evaluate(data, params, gradient, information)

    def _evaluate(self, data: Inputs, params: Params, gradient: bool, information: bool) -> Evidence:
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

    def condition(self, data: Inputs, params: Params) -> ExactParts:
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


def _log_density(y: np.ndarray, alpha: np.ndarray, factor: Factor) -> float:
    return -0.5 * float(y @ alpha) - factor.half_log_determinant() - 0.5 * len(y) * float(np.log(2 * np.pi))


# posterior's parts


@dataclass(frozen=True)
class ExactParts(Parts):
    """What the posterior asks of the exact solver."""

    buffer: np.ndarray
    jitter: float
    evidence: float
    condition: float

    evidence_deviation = 0.0
    solution = ""

    @property
    def variances(self) -> str:
        return "exact" if self.buffer.dtype == np.float64 else "refined against float64 tiles, never below exact"

    @property
    def bytes_per_row(self) -> int:
        """Working memory for one row of `halves`: the row, its result, an operand more; float32 keeps copies in float64."""
        return (3 if self.buffer.dtype == np.float64 else 6) * 8 * len(self)

    def factor(self, executor: Executor) -> Factor:
        return Factor(Covariance(self.data, self.params, executor), self.buffer, self.jitter)

    def reductions(
        self, K: np.ndarray, executor: Executor, *, var: bool = False, cov: bool = False, along: Any = ()
    ) -> Reductions:
        full = self.reduction_full(K, executor) if cov else None
        each = None
        if var:
            each = self.reduction(K, executor) if full is None else np.einsum("ijj->ij", full)
        return Reductions(each, full, [self.reduction_along(K, A, executor) for A in along])

    def reduction(self, K: np.ndarray, executor: Executor) -> np.ndarray:
        """diag(B^T C^-1 B) of each query, B = diag(k*) Z;  (m, n) -> (m, d);  n^2 m d flops."""
        P, Q = self._halves(self.data.Z.spread(K), executor)
        return np.concatenate(executor.map(lambda i: np.einsum("ijk,ijk->ij", P[i], Q[i]), slices(len(P), 8)))

    def reduction_full(self, K: np.ndarray, executor: Executor) -> np.ndarray:
        """B^T C^-1 B of each query;  (m, n) -> (m, d, d)."""
        P, Q = self._halves(self.data.Z.spread(K), executor)
        return symmetric_part(np.concatenate(executor.map(lambda i: P[i] @ Q[i].swapaxes(1, 2), slices(len(P), 8))))

    def reduction_along(self, K: np.ndarray, A: Features, executor: Executor) -> np.ndarray:
        """a^T B^T C^-1 B a of each query;  (m, n), (m, d) -> (m,);  n^2 m flops."""
        return self._quadratic(K * A.inner(self.data.Z), executor)

    def reduction_joint(self, K: np.ndarray, A: Features, executor: Executor) -> np.ndarray:
        """a_i^T B_i^T C^-1 B_j a_j for all pairs of queries;  (m, n), (m, d) -> (m, m)."""
        return self.reduction_between(K * A.inner(self.data.Z), executor)

    def reduction_between(self, B: np.ndarray, executor: Executor) -> np.ndarray:
        """B C^-1 B^T for rows B, which are overwritten;  (c, n) -> (c, c)."""
        P, Q = self._halves(B, executor)
        return symmetric_part(executor.matmul(P, Q.T))

    def word_reduce(self, entries: int, executor: Executor, memory_limit: int) -> Reduce:
        """(C^-1)_RR by the inverse where that is fewer flops than a triangular solve for every entry, fits, and has digits:
        b.C^-1 b from an explicit inverse is off by its condition number times eps, at most trace(C) / min(D) eps."""
        n = len(self)
        covariance = self.factor(executor).covariance
        rounding = np.finfo(float).eps * covariance.diagonal.sum() / covariance.noise.min()
        if self.buffer.dtype == np.float64 and 3 * entries > 2 * n and 9 * n * n < memory_limit and rounding < INVERTIBLE:
            with worthwhile_threads(n, self.buffer.itemsize):
                inverse = replace(self.factor(executor), buffer=self.buffer.copy()).inverse_in_place()
            return InverseWords(inverse, 1.0 - rounding)
        return SolvedWords(n, partial(self._quadratic, executor=executor))

    def _quadratic(self, B: np.ndarray, executor: Executor) -> np.ndarray:
        """b.C^-1 b of rows B, which are overwritten;  (c, n) -> (c,)."""
        P, Q = self._halves(B, executor)
        return np.einsum("ij,ij->i", P, Q)

    def variance_bound(self, x: Any, executor: Executor, chunk_bytes: int) -> np.ndarray:
        """Upper bound of Var[g_l(x*)], faster for many queries;  (m, d)."""
        return latent_variance_bound(self, x, executor, chunk_bytes)

    def solve_rows(self, B: np.ndarray, executor: Executor) -> np.ndarray:
        """B C^-1 along the last axis;  (..., n) -> (..., n);  2 n^2 flops a row."""
        return self.factor(executor).solve(B.reshape(-1, len(self)).T).T.reshape(B.shape)

    def _halves(self, B: np.ndarray, executor: Executor) -> tuple[np.ndarray, np.ndarray]:
        """P, Q of B's shape (..., n) with P Q^T = B C^-1 B^T along the last axis; B is overwritten."""
        with worthwhile_threads(len(self), self.buffer.itemsize):
            P, Q = self.factor(executor).halves(B.reshape(-1, len(self)))
        return P.reshape(B.shape), Q.reshape(B.shape)

    def sample(self, x: Any, n_samples: int, random: np.random.RandomState, executor: Executor) -> np.ndarray:
        """Joint draws of w at all queries;  -> (m, d, n_samples);  (n + m)^3/3 + (n + m)^2 d n_samples flops.

        Matheron's rule: a prior draw of w at training rows and queries together, moved by what its y misses of ours.
        """
        n, m, d = len(self), len(x), self.data.Z.shape[1]
        prior = JointPrior.of(self.params.kernel, self.data.x, x, self.params.sigma_w**2, executor)
        draws, missed = np.empty((m, d, n_samples)), np.empty((n, n_samples))
        for s in range(n_samples):
            W = prior.draw(d, random)
            noise = self.params.sigma_y * random.standard_normal(n)
            missed[:, s] = self.data.y - self.data.Z.row_dot(W[:n]) - noise
            draws[:, :, s] = W[n:]
        for s, correction in enumerate(self.factor(executor).solve(missed).T):
            draws[:, :, s] += self.data.Z.scaled(correction).combine(prior.K_query, executor)
        return draws

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_row + 24 * m * m

    def sample_bytes(self, m: int, n_samples: int) -> int:
        n, d = self.data.Z.shape
        return 8 * (3 * (n + m) ** 2 + m * n + (m * d + 3 * n) * n_samples + 3 * (n + m) * d)
