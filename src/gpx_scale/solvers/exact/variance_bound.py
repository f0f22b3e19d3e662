"""Deviations of many queries' weights by low-rank queries: faster than exact, and never below it.

Any weights a of the data give an estimate a.y of g_l(x*), whose mean squared error is no less than the posterior variance:

    Var[g_l(x*)] <= k** - 2 a.b + a.C a,      b = diag(k*) z_l,      equal at a = C^-1 b

We take a = C^-1 b~ with k* replaced by a projection k~* = F T on r directions shared by many queries. Then C a = b~ and

    Var[g_l(x*)] <= k** - a.diag(2 k* - k~*) z_l,      too much by (b - b~).C^-1 (b - b~) <= k** - k~**

which is of second order. 2 d r (n^2 + m n) flops instead of d n^2 m. (Predictions have the same bound, but their variance
is so much smaller than the weights' that it is loose by tens of percent: they stay exact, for n^2 m flops.)

The triangle inequality sd <= sqrt(k~** - b~.C^-1 b~) + sqrt(k** - k~**) needs one triangular solve less, but its excess is
of first order: for the 2% that this form reaches with rank 60 on `synth10`, it needs 700-800 of 1,000 queries.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import cholesky, eigh, qr, solve_triangular

from ...model.weight_prior import CrossCovariance, kernel_matrix
from ...runtime.parallel import evenly_spaced, slices
from ...runtime.session import Session

if TYPE_CHECKING:
    from .posterior import ExactPosterior

EXCESS = 0.02  # of a deviation, in the median of the checked queries
CHECKED_QUERIES = 4  # computed exactly, to choose the rank
LARGEST_RANK, LARGEST_GROUP = 512, 4096


def latent_variance_bound(posterior: ExactPosterior, x: Any, session: Session) -> np.ndarray:
    """Return upper bounds of Var[g_l(x*)], (m, d); the exact value where a low rank does not pay."""
    group = min(LARGEST_GROUP, max(64, session.chunk_bytes // (3 * 8 * len(posterior))))
    return np.concatenate([_bound(posterior, x[i], session) for i in slices(len(x), group)])


def _bound(posterior: ExactPosterior, x: Any, session: Session) -> np.ndarray:
    prior, cross = posterior.hyperparameters.weight_prior.variance(x), posterior.cross(x, session)
    K, Z = cross.K, cross.Z
    rank = min(len(K) // 4, LARGEST_RANK)
    F, T = _directions(posterior, x, K, rank, session) if rank >= 8 else (K[:, :0], K[:0])
    rank = _enough(posterior, prior, cross, F, T, session)
    if not rank:
        size = max(1, min(512, session.chunk_bytes // posterior.bytes_per_query) // Z.shape[1])
        chunks = [posterior.weight_reduction(cross[i], session) for i in slices(len(K), size)]
        return np.maximum(prior[:, None] - np.concatenate(chunks), 0.0)
    F, T = np.ascontiguousarray(F[:, :rank]), T[:rank]
    K *= 2.0
    K -= session.executor.matmul(F, T)
    reduced = np.empty((len(K), Z.shape[1]))
    for features in slices(
        Z.shape[1], max(1, session.chunk_bytes // (posterior.bytes_per_query * rank))
    ):
        z = Z.columns(features).T
        Y = posterior.solve_rows(T * z[:, None, :], session)  # (features, r, n): a = F Y

        def reduce(
            rows: slice, features: slice = features, z: np.ndarray = z, Y: np.ndarray = Y
        ) -> None:
            for l, z_l, Y_l in zip(range(features.start, features.stop), z, Y, strict=True):
                a = F[rows] @ Y_l
                a *= K[rows]
                reduced[rows, l] = a @ z_l

        session.executor.map(reduce, slices(len(K), 64))
    return np.clip(prior[:, None] - reduced, 0.0, prior[:, None])


def _directions(
    posterior: ExactPosterior, x: Any, K: np.ndarray, rank: int, session: Session
) -> tuple[np.ndarray, np.ndarray]:
    """Return F (m, r), T (r, n) with k~(x*, X) = F T, best directions first: any leading ones are a projection too.

    Randomised subspace iteration on the queries' own kernel matrix.
    """
    kernel, executor = posterior.hyperparameters.kernel, session.executor
    points = kernel.prepare(x)
    own = kernel_matrix(kernel, points, points, session)
    sketch = np.random.RandomState(0).standard_normal((len(own), rank))
    basis, _ = qr(
        executor.matmul(own, executor.matmul(own, sketch)), mode="economic", check_finite=False
    )
    values, vectors = eigh(basis.T @ executor.matmul(own, basis), check_finite=False)
    keep = values[::-1] > 1e-10 * values[-1]
    basis = basis @ vectors[:, ::-1][:, keep]
    image = executor.matmul(own, basis)
    R = cholesky(basis.T @ image, check_finite=False)
    F = solve_triangular(R, image.T, trans="T", check_finite=False).T
    return F, solve_triangular(R, executor.matmul(basis.T, K), trans="T", check_finite=False)


def _enough(
    posterior: ExactPosterior,
    prior: np.ndarray,
    cross: CrossCovariance,
    F: np.ndarray,
    T: np.ndarray,
    session: Session,
) -> int:
    """Return the least of some ranks whose bound exceeds the exact deviations of a few queries by at most EXCESS in the
    median; 0 if none does."""
    K = cross.K
    at = evenly_spaced(CHECKED_QUERIES, len(K))
    reduction = posterior.weight_reduction(replace(cross, K=K[at]), session)
    exact = prior[at, None] - reduction + posterior.hyperparameters.sigma_w**2

    def suffices(rank: int) -> bool:
        rest = replace(cross, K=K[at] - F[at, :rank] @ T[:rank])
        return bool(np.median(posterior.weight_reduction(rest, session) / (2.0 * exact)) <= EXCESS)

    ranks = np.unique(np.geomspace(4, F.shape[1], 16).astype(int)).tolist() if F.shape[1] else []
    first = bisect_left(ranks, True, key=suffices)  # the excess falls with the rank
    return ranks[first] if first < len(ranks) else 0
