"""What every solver hands to the posterior: E[w*] = k(x*, X) diag(alpha) Z, and the prior.

Where points or functions stand for the rows, `data` are those, and alpha is their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from .covariance import cross
from .errors import NotPositiveDefinite
from .factoring import worthwhile_threads
from .features import Features
from .params import Params
from .runtime import Executor
from .words import Queries, Reduce, moments_at


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
    params: Params
    alpha: np.ndarray

    keeps_rows = True  # `data` are the training rows, not points that stand for them
    never_below = True  # deviations are exact, or more

    def __len__(self) -> int:
        return len(self.data)

    @property
    def d(self) -> int:
        """Weights."""
        return self.data.Z.shape[1]

    def answers_for(self, params: Params) -> bool:
        """Whether the evidence at these parameters can be had from the parts alone."""
        return self.keeps_rows

    def cross(self, x: Any, executor: Executor, own: slice | None = None) -> np.ndarray:
        """Cov of g(x*) (or of the row's own w) with g(x_i) as y_i sees it;  (m, n)."""
        kernel = self.params.kernel
        K = cross(kernel, kernel.points(x), kernel.points(self.data.x), executor)
        if own is not None:
            K[np.arange(len(K)), np.arange(own.start, own.stop)] += self.params.sigma_w**2
        return K

    def prior(self, x: Any) -> np.ndarray:
        """k(x*, x*);  (m,)."""
        kernel = self.params.kernel
        return kernel.diagonal(kernel.points(x))

    def mean(self, K: np.ndarray, executor: Executor) -> np.ndarray:
        """E[w*] = K diag(alpha) Z;  (m, n) -> (m, d)."""
        return self.data.Z.scaled(self.alpha).combine(K, executor)

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
        points = kernel.points(x)
        joint = cross(kernel, points, points, executor, (A, A))
        joint[np.diag_indices(len(joint))] = kernel.diagonal(points) * A.squared()
        return joint


@dataclass(frozen=True)
class JointPrior:
    """k of training points and queries together, factorised to draw from, and k(x*, X) (q, m) of it."""

    L: np.ndarray
    K_query: np.ndarray

    @classmethod
    def of(cls, kernel: Any, x_train: Any, x_query: Any, nugget: float, executor: Executor) -> JointPrior:
        """With `nugget` on the diagonal, and the least jitter that helps: without one, K is singular to rounding."""
        train, query = kernel.points(x_train), kernel.points(x_query)
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
