"""Predictive y and w: moments in chunks of queries, joint covariance, joint samples. One form for every solver.

In the engine's units. A solver's *parts* answer for g(x*): cross, prior, mean, reduction; the noise is added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .params import Params
from .plan import within
from .runtime import Executor, slices


@dataclass(frozen=True)
class Moments:
    """Of each query's w: mean (m, d), and as asked variance (m, d), covariance (m, d, d), variances along vectors (m,)."""

    mean: np.ndarray
    var: np.ndarray | None
    cov: np.ndarray | None
    along: list[np.ndarray]


@dataclass(frozen=True)
class Posterior:
    """p(w(x*), y* | D) from a solver's parts."""

    parts: Any
    params: Params

    def moments(
        self,
        x: Any,
        executor: Executor,
        chunk_bytes: int = 2**28,
        *,
        var: bool = False,
        cov: bool = False,
        along: Sequence[np.ndarray] = (),
        own: slice | None = None,
    ) -> Moments:
        """Moments of w at each query, sigma_w included; what is not asked for is not computed.

        `own` = slice(0, n): the queries are the training rows, asking for their own w_i.
        """
        m, d = len(x), self.parts.data.Z.shape[1]
        rows = (d if var or cov else 0) + len(along)
        # Enough rows for BLAS, few enough for the allocator to reuse the same pages from chunk to chunk.
        at_once = min(chunk_bytes // self.parts.bytes_per_row, max(512, 2**26 // self.parts.bytes_per_row))
        pieces = [
            self._chunk(x[i], executor, var, cov, [A[i] for A in along], None if own is None else i)
            for i in slices(m, max(1, at_once // max(1, rows)))
        ]
        return Moments(
            np.concatenate([piece.mean for piece in pieces]),
            np.concatenate([piece.var for piece in pieces]) if var else None,
            np.concatenate([piece.cov for piece in pieces]) if cov else None,
            [np.concatenate(column) for column in zip(*(piece.along for piece in pieces), strict=True)],
        )

    def certified_moments(
        self, x: Any, executor: Executor, chunk_bytes: int = 2**28, *, along: Sequence[np.ndarray] = ()
    ) -> Moments:
        """The same with upper bounds of the weights' variances, by low-rank queries; sums `along` stay exact. A solver whose
        variances are bounds already gives those."""
        if not hasattr(self.parts, "variance_bound"):
            return self.moments(x, executor, chunk_bytes, var=True, along=along)
        exact = self.moments(x, executor, chunk_bytes, along=along)
        bound = self.parts.variance_bound(x, executor, chunk_bytes)
        return replace(exact, var=bound + self.params.sigma_w**2)

    def _chunk(self, x: Any, executor: Executor, var: bool, cov: bool, along: list[np.ndarray], own: slice | None) -> Moments:
        parts, sigma_w_var = self.parts, self.params.sigma_w**2
        K = parts.cross(x, executor, own)
        mean = parts.mean(K, executor)
        if not (var or cov or along):
            return Moments(mean, None, None, [])
        prior = parts.prior(x) + (0.0 if own is None else sigma_w_var)
        floor = sigma_w_var if own is None else 0.0  # a training row's own noise is in its prior and its reduction
        squared = [np.einsum("ij,ij->i", A, A) for A in along]
        asked = [k for k, size in enumerate(squared) if size.any()]  # the usual baseline is 0
        reduced = parts.reductions(K, executor, var=var, cov=cov, along=[along[k] for k in asked])
        variance = covariance = None
        if cov:
            covariance = prior[:, None, None] * np.eye(mean.shape[1]) - reduced.cov
            diagonal = np.einsum("ijj->ij", covariance)
            diagonal[...] = np.maximum(diagonal, 0.0) + floor
        if var:
            variance = np.maximum(prior[:, None] - reduced.var, 0.0) + floor
        variances_along = [np.zeros_like(size) for size in squared]
        for k, reduction in zip(asked, reduced.along, strict=True):
            variances_along[k] = np.maximum(prior * squared[k] - reduction, 0.0) + floor * squared[k]
        return Moments(mean, variance, covariance, variances_along)

    def sampled_moments(
        self,
        x: Any,
        executor: Executor,
        chunk_bytes: int,
        memory_limit: int,
        *,
        var: bool = False,
        along: Sequence[np.ndarray] = (),
    ) -> Moments:
        """The same with variances from paths of the posterior, inflated so that they do not under-report."""
        within(self.parts.sample_bytes(1, self.parts.sampled_paths), memory_limit, "solving for posterior samples")
        exact = self.moments(x, executor, chunk_bytes)
        row = 2 * self.parts.bytes_per_row + 24 * self.parts.sampled_paths * exact.mean.shape[1]
        rows = slices(len(x), max(1, chunk_bytes // row))
        pieces = [self.parts.sampled_variance(x[i], [A[i] for A in along], executor) for i in rows]
        sigma_w_var = self.params.sigma_w**2
        sums = [np.concatenate(column) for column in zip(*(piece[1] for piece in pieces), strict=True)]
        return replace(
            exact,
            var=np.concatenate([piece[0] for piece in pieces]) + sigma_w_var if var else None,
            along=[s + sigma_w_var * np.einsum("ij,ij->i", A, A) for s, A in zip(sums, along, strict=True)],
        )

    def joint(self, x: Any, A: np.ndarray, executor: Executor, memory_limit: int) -> np.ndarray:
        """Cov of a_i . w(x_i*) + noise between all queries, i.e. of new y where A = Z*;  (m, d) -> (m, m)."""
        m = len(x)
        within(self.parts.joint_bytes(m), memory_limit, f"the joint covariance of {m} queries")
        K = self.parts.cross(x, executor)
        joint = self.parts.prior_joint(x, A, executor) - self.parts.reduction_joint(K, A, executor)
        at = np.diag_indices(m)
        joint[at] = np.maximum(joint[at], 0.0) + self.params.noise(np.einsum("ij,ij->i", A, A))
        return joint

    def sample_weights(
        self, x: Any, n_samples: int, random: np.random.RandomState, executor: Executor, memory_limit: int
    ) -> np.ndarray:
        """Joint draws of w at all queries;  (m, d, n_samples)."""
        within(self.parts.sample_bytes(len(x), n_samples), memory_limit, f"sampling {len(x)} queries jointly")
        return self.parts.sample(x, n_samples, random, executor)

    def sample_y(
        self,
        x: Any,
        A: np.ndarray,
        n_samples: int,
        random: np.random.RandomState,
        executor: Executor,
        memory_limit: int,
    ) -> np.ndarray:
        """Joint draws of new y: those of `sample_weights` with the same random state, times A, plus noise;  (m, n_samples)."""
        W = self.sample_weights(x, n_samples, random, executor, memory_limit)
        noise = self.params.sigma_y * random.standard_normal((len(x), n_samples))
        return np.einsum("mds,md->ms", W, A) + noise
