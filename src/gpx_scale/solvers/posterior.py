"""Predictive y and w: moments in chunks of queries, joint covariance, joint samples. One form for every solver.

In the engine's units. A solver's *parts* answer for g(x*): cross, prior, means, reductions; the noise is added here. Of a
sparse Z, moments are at the entries of the queries' own pattern, (entries,) in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from ..data.features import Features, SparseFeatures, full_pattern
from ..errors import NotPositiveDefinite, SolverUnavailable
from ..model.hyperparameters import Hyperparameters
from ..model.weight_prior import cross
from ..runtime.memory import within
from ..runtime.parallel import Executor, slices, worthwhile_threads
from .sparse_weights import Queries, Reduce, moments_at


@dataclass(frozen=True)
class Moments:
    """Of each query's w: mean (m, d), and as asked variance (m, d), covariance (m, d, d), variances along vectors (m,). At the
    entries of a sparse pattern: mean and variance (entries,)."""

    mean: np.ndarray
    var: np.ndarray | None
    cov: np.ndarray | None
    along: list[np.ndarray]

    def reshaped(self, shape: tuple[int, int]) -> Moments:
        """Moments at every entry of a full pattern, as (m, d)."""
        return replace(self, mean=self.mean.reshape(shape), var=None if self.var is None else self.var.reshape(shape))


@dataclass(frozen=True)
class MomentRequest:
    """What is asked for. std: "certified" and "samples" are ways to it, of the sums `along` and, with `weights`, of each one;
    `own`: of the training rows' own w_i; `dense`: of a sparse Z, all d weights."""

    std: bool | str = False
    cov: bool = False
    own: bool = False
    dense: bool = False
    weights: bool = True


@dataclass(frozen=True)
class Posterior:
    """p(w(x*), y* | D) from a solver's parts."""

    parts: Any
    params: Hyperparameters

    def answer(
        self,
        x: Any,
        z: Features,
        ask: MomentRequest,
        along: Sequence[Features],
        executor: Executor,
        chunk_bytes: int,
        memory_limit: int,
    ) -> Moments:
        """Moments as asked; of a sparse z, at its entries unless all d weights are asked for."""
        var = bool(ask.std) and ask.weights
        if ask.std == "certified" and not self.parts.never_below:
            raise SolverUnavailable("deviations of this solver are not bounds: use std=True, or solver='cg' or 'exact'")
        if ask.std == "samples":
            if isinstance(z, SparseFeatures) or not hasattr(self.parts, "sampled_variance"):
                raise SolverUnavailable("deviations from samples are for solver='cg' and a dense Z; use std=True")
            return self.sampled_moments(x, executor, chunk_bytes, memory_limit, var=var, along=along)
        if isinstance(z, SparseFeatures) and not ask.cov:
            queries = Queries(x, full_pattern(z.shape) if ask.dense else z, ask.own)
            moments = self.moments_at(queries, executor, chunk_bytes, memory_limit, var=var, along=along)
            return moments.reshaped(z.shape) if ask.dense else moments
        if ask.std == "certified":
            return self.certified_moments(x, executor, chunk_bytes, along=along)
        rows = slice(0, len(x)) if ask.own else None
        return self.moments(x, executor, chunk_bytes, var=var, cov=ask.cov, along=along, own=rows)

    def moments(
        self,
        x: Any,
        executor: Executor,
        chunk_bytes: int = 2**28,
        *,
        var: bool = False,
        cov: bool = False,
        along: Sequence[Features] = (),
        own: slice | None = None,
        mean: bool = True,
    ) -> Moments:
        """Moments of w at each query, sigma_w included; what is not asked for is not computed.

        `own` = slice(0, n): the queries are the training rows, asking for their own w_i.
        """
        rows = (self.parts.d if var or cov else 0) + len(along)
        pieces = [
            self._chunk(x[i], executor, mean, var, cov, [A[i] for A in along], None if own is None else i)
            for i in self._chunks(len(x), rows, chunk_bytes)
        ]
        return Moments(
            np.concatenate([piece.mean for piece in pieces]),
            np.concatenate([piece.var for piece in pieces]) if var else None,
            np.concatenate([piece.cov for piece in pieces]) if cov else None,
            [np.concatenate(column) for column in zip(*(piece.along for piece in pieces), strict=True)],
        )

    def moments_at(
        self,
        queries: Queries,
        executor: Executor,
        chunk_bytes: int,
        memory_limit: int,
        *,
        var: bool = False,
        along: Sequence[Features] = (),
    ) -> Moments:
        """The same at the entries of a sparse pattern, feature by feature."""
        parts, x, own = self.parts, queries.x, queries.own
        mean, reduced = parts.moments_at(queries, var, executor, chunk_bytes, memory_limit)
        variance = None
        if var:
            prior, floor = self._prior(x, own)
            variance = np.maximum(prior[queries.at.entry_rows] - reduced, 0.0) + floor
        if not along:
            return Moments(mean, variance, None, [])
        rows = slice(0, len(x)) if own else None
        return replace(self.moments(x, executor, chunk_bytes, along=along, own=rows, mean=False), mean=mean, var=variance)

    def _chunks(self, m: int, rows: int, chunk_bytes: int) -> list[slice]:
        """Slices of queries with `rows` right-hand sides each: enough for BLAS, few enough for the allocator to reuse the same
        pages from chunk to chunk."""
        at_once = min(chunk_bytes // self.parts.bytes_per_row, max(512, 2**26 // self.parts.bytes_per_row))
        return slices(m, max(1, at_once // max(1, rows)))

    def _prior(self, x: Any, own: bool) -> tuple[np.ndarray, float]:
        """Prior variance of what the data speak of, and what is added after; a training row's own noise is in the former."""
        sigma_w_var = self.params.sigma_w**2
        return self.parts.prior(x) + own * sigma_w_var, (not own) * sigma_w_var

    def certified_moments(
        self, x: Any, executor: Executor, chunk_bytes: int = 2**28, *, along: Sequence[Features] = ()
    ) -> Moments:
        """The same with upper bounds of the weights' variances, by low-rank queries; sums `along` stay exact. A solver whose
        variances are bounds already gives those."""
        if not hasattr(self.parts, "variance_bound"):
            return self.moments(x, executor, chunk_bytes, var=True, along=along)
        exact = self.moments(x, executor, chunk_bytes, along=along)
        bound = self.parts.variance_bound(x, executor, chunk_bytes)
        return replace(exact, var=bound + self.params.sigma_w**2)

    def _chunk(
        self, x: Any, executor: Executor, mean: bool, var: bool, cov: bool, along: list[Features], own: slice | None
    ) -> Moments:
        parts = self.parts
        K = parts.cross(x, executor, own) if var or cov or along else None
        means = parts.means(x, K, executor, own) if mean else np.empty((len(x), 0))
        if K is None:
            return Moments(means, None, None, [])
        prior, floor = self._prior(x, own is not None)
        asked = [A for A in along if A.squared_norms().any()]  # the usual baseline is 0
        reduced = parts.reductions(K, executor, var=var, cov=cov, along=asked)
        variance = covariance = None
        if cov:
            covariance = prior[:, None, None] * np.eye(means.shape[1]) - reduced.cov
            diagonal = np.einsum("ijj->ij", covariance)
            diagonal[...] = np.maximum(diagonal, 0.0) + floor
        if var:
            variance = np.maximum(prior[:, None] - reduced.var, 0.0) + floor
        less, sums = iter(reduced.along), []
        for A in along:
            size = A.squared_norms()
            sums.append(np.maximum(prior * size - next(less), 0.0) + floor * size if size.any() else np.zeros_like(size))
        return Moments(means, variance, covariance, sums)

    def sampled_moments(
        self,
        x: Any,
        executor: Executor,
        chunk_bytes: int,
        memory_limit: int,
        *,
        var: bool = False,
        along: Sequence[Features] = (),
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
            along=[s + sigma_w_var * A.squared_norms() for s, A in zip(sums, along, strict=True)],
        )

    def joint(self, x: Any, A: Features, executor: Executor, memory_limit: int) -> np.ndarray:
        """Cov of a_i . w(x_i*) + noise between all queries, i.e. of new y where A = Z*;  (m, d) -> (m, m)."""
        m = len(x)
        within(self.parts.joint_bytes(m), memory_limit, f"the joint covariance of {m} queries")
        K = self.parts.cross(x, executor)
        joint = self.parts.prior_joint(x, A, executor) - self.parts.reduction_joint(K, A, executor)
        at = np.diag_indices(m)
        joint[at] = np.maximum(joint[at], 0.0) + self.params.noise(A.squared_norms())
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
        A: Features,
        n_samples: int,
        random: np.random.RandomState,
        executor: Executor,
        memory_limit: int,
    ) -> np.ndarray:
        """Joint draws of new y: those of `sample_weights` with the same random state, times A, plus noise;  (m, n_samples)."""
        W = self.sample_weights(x, n_samples, random, executor, memory_limit)
        noise = self.params.sigma_y * random.standard_normal((len(x), n_samples))
        for s in range(n_samples):
            noise[:, s] += A.row_dots(W[:, :, s])
        return noise


@dataclass(frozen=True)
class Reductions:
    """What the data take off the prior covariance of each query's g(x*), as asked: of each weight (m, d), the whole
    (m, d, d), along vectors (m,) each."""

    var: np.ndarray | None
    cov: np.ndarray | None
    along: list[np.ndarray]


@dataclass(frozen=True)
class Parts:
    """Queries come as x, with the executor of the call. `own`: the queries are training rows, these ones, and ask for
    their own w_i = g(x_i) + e_i."""

    data: Any
    params: Hyperparameters
    alpha: np.ndarray

    keeps_rows = True  # `data` are the training rows, not points that stand for them
    never_below = True  # deviations are exact, or more

    def __len__(self) -> int:
        return len(self.data)

    @property
    def d(self) -> int:
        """Weights."""
        return self.data.Z.shape[1]

    def answers_for(self, params: Hyperparameters) -> bool:
        """Whether the evidence at these parameters can be had from the parts alone."""
        return self.keeps_rows

    def cross(self, x: Any, executor: Executor, own: slice | None = None) -> np.ndarray:
        """Cov of g(x*) (or of the row's own w) with g(x_i) as y_i sees it;  (m, n)."""
        kernel = self.params.kernel
        K = cross(kernel, kernel.prepare(x), kernel.prepare(self.data.x), executor)
        if own is not None:
            K[np.arange(len(K)), np.arange(own.start, own.stop)] += self.params.sigma_w**2
        return K

    def prior(self, x: Any) -> np.ndarray:
        """k(x*, x*);  (m,)."""
        kernel = self.params.kernel
        return kernel.diagonal(kernel.prepare(x))

    def mean(self, K: np.ndarray, executor: Executor) -> np.ndarray:
        """E[w*] = K diag(alpha) Z;  (m, n) -> (m, d)."""
        return self.data.Z.scale_rows(self.alpha).left_multiply(K, executor)

    def means(self, x: Any, K: np.ndarray | None, executor: Executor, own: slice | None = None) -> np.ndarray:
        """E[w*], with K where it is there already;  (m, d)."""
        return self.mean(self.cross(x, executor, own) if K is None else K, executor)

    def word_reduce(self, entries: int, executor: Executor, memory_limit: int) -> Reduce:
        """What is known of (C^-1)_RR, for that many weights of a sparse Z."""
        raise NotImplementedError

    def moments_at(
        self, queries: Queries, var: bool, executor: Executor, chunk_bytes: int, memory_limit: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """E[w_l(x*)], and what the data take off its variance, at the entries of a sparse pattern;  (entries,) x 2."""
        reduce = self.word_reduce(queries.at.indices[queries.at.span].size, executor, memory_limit) if var else None
        return moments_at(self, queries, reduce, executor, chunk_bytes)

    def prior_joint(self, x: Any, A: Features, executor: Executor) -> np.ndarray:
        """k(x_i*, x_j*) <a_i, a_j>;  (m, m)."""
        kernel = self.params.kernel
        points = kernel.prepare(x)
        joint = cross(kernel, points, points, executor, (A, A))
        joint[np.diag_indices(len(joint))] = kernel.diagonal(points) * A.squared_norms()
        return joint


@dataclass(frozen=True)
class JointPrior:
    """k of training points and queries together, factorised to draw from, and k(x*, X) (q, m) of it."""

    L: np.ndarray
    K_query: np.ndarray

    @classmethod
    def of(cls, kernel: Any, x_train: Any, x_query: Any, nugget: float, executor: Executor) -> JointPrior:
        """With `nugget` on the diagonal, and the least jitter that helps: without one, K is singular to rounding."""
        train, query = kernel.prepare(x_train), kernel.prepare(x_query)
        n = len(train)
        K_query = cross(kernel, query, train, executor)
        joint = np.empty((n + len(query), n + len(query)))
        joint[:n, :n] = cross(kernel, train, train, executor)
        joint[n:, :n] = K_query
        joint[n:, n:] = cross(kernel, query, query, executor)
        own = np.concatenate([kernel.diagonal(train), kernel.diagonal(query)])
        (potrf,) = get_lapack_funcs(("potrf",), (joint,))
        lower = np.tril(joint, -1)
        for jitter in (0.0, 1e-12, 1e-10, 1e-8):
            joint[...] = lower
            joint[np.diag_indices(len(joint))] = own * (1 + jitter) + nugget
            with worthwhile_threads(len(joint)):
                _, info = potrf(joint.T, lower=0, overwrite_a=1, clean=0)
            if info == 0:
                return cls(joint, K_query)
        raise NotPositiveDefinite("the kernel matrix of training rows and queries has no Cholesky factor to sample by")

    def draw(self, d: int, random: np.random.RandomState) -> np.ndarray:
        """d functions at all points;  (m + q, d)."""
        (trmm,) = get_blas_funcs(("trmm",), (self.L,))
        return trmm(1.0, self.L.T, random.standard_normal((d, len(self.L))).T, lower=0, trans_a=1, overwrite_b=1)


def symmetric_part(A: np.ndarray) -> np.ndarray:
    return 0.5 * (A + np.swapaxes(A, -1, -2))
