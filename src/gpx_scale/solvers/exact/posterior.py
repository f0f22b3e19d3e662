"""The posterior of the exact solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...data.features import Features
from ...linalg.cholesky import INVERTIBLE, CholeskyFactor
from ...linalg.covariance import Covariance
from ...runtime.parallel import Executor, slices, worthwhile_threads
from ..posterior import JointPrior, Parts, Reductions, symmetric_part
from ..sparse_weights import InverseWords, Reduce, SolvedWords
from .variance_bound import latent_variance_bound


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

    def factor(self, executor: Executor) -> CholeskyFactor:
        return CholeskyFactor(Covariance(self.data, self.params, executor), self.buffer, self.jitter)

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
        P, Q = self._halves(self.data.Z.columns_times(K), executor)
        return np.concatenate(executor.map(lambda i: np.einsum("ijk,ijk->ij", P[i], Q[i]), slices(len(P), 8)))

    def reduction_full(self, K: np.ndarray, executor: Executor) -> np.ndarray:
        """B^T C^-1 B of each query;  (m, n) -> (m, d, d)."""
        P, Q = self._halves(self.data.Z.columns_times(K), executor)
        return symmetric_part(np.concatenate(executor.map(lambda i: P[i] @ Q[i].swapaxes(1, 2), slices(len(P), 8))))

    def reduction_along(self, K: np.ndarray, A: Features, executor: Executor) -> np.ndarray:
        """a^T B^T C^-1 B a of each query;  (m, n), (m, d) -> (m,);  n^2 m flops."""
        return self._quadratic(K * A.inner_products(self.data.Z), executor)

    def reduction_joint(self, K: np.ndarray, A: Features, executor: Executor) -> np.ndarray:
        """a_i^T B_i^T C^-1 B_j a_j for all pairs of queries;  (m, n), (m, d) -> (m, m)."""
        return self.reduction_between(K * A.inner_products(self.data.Z), executor)

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
            missed[:, s] = self.data.y - self.data.Z.row_dots(W[:n]) - noise
            draws[:, :, s] = W[n:]
        for s, correction in enumerate(self.factor(executor).solve(missed).T):
            draws[:, :, s] += self.data.Z.scale_rows(correction).left_multiply(prior.K_query, executor)
        return draws

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_row + 24 * m * m

    def sample_bytes(self, m: int, n_samples: int) -> int:
        n, d = self.data.Z.shape
        return 8 * (3 * (n + m) ** 2 + m * n + (m * d + 3 * n) * n_samples + 3 * (n + m) * d)
