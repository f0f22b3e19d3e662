"""Upper bounds of the weights' variances at many queries, from a low rank.

Any coefficients a (n,) give an estimate a.y of g_l(x*), and its mean squared error is at least the
posterior variance:

    Var[g_l(x*)] <= k** - 2 a.b + a.C a,      b = diag(k*) z_l,      equal at a = C^-1 b

We use a = C^-1 b~. b~ is b with k* replaced by its projection k~* = F T on r directions that many
queries share. Then C a = b~ and

    Var[g_l(x*)] <= k** - a.diag(2 k* - k~*) z_l,      excess = (b - b~).C^-1 (b - b~) <= k** - k~**

The excess is of second order. This takes 2 d r (n^2 + m n) flops instead of d n^2 m. Variances of
predictions have such a bound too, but they are so much smaller than those of weights that it
exceeds them by tens of per cent. They stay exact, for n^2 m flops.

The triangle inequality sd <= sqrt(k~** - b~.C^-1 b~) + sqrt(k** - k~**) needs one triangular solve
less, but its excess is of first order. With 1,000 queries of `synth10`, an excess of 2% takes rank
60 in the form above, and rank 700 to 800 by the triangle inequality.
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

# Standard deviations may exceed the exact ones by this share, in the median of the checked queries.
MEDIAN_EXCESS_SHARE = 0.02
# The variances of this many queries are computed exactly, to choose the rank.
CHECKED_QUERIES = 4
# There are at most this many directions, and at most a quarter as many as queries, which saves half
# of the flops at least.
MAX_RANK = 512
# At most this many queries share directions: their own kernel matrix is formed.
MAX_QUERIES_PER_GROUP = 4096
# The other numbers were chosen by hand. A group has at least this many queries, even if memory is
# short.
MIN_QUERIES_PER_GROUP = 64
# If there could be fewer directions than this, variances are exact.
MIN_DIRECTIONS = 8
# Directions whose eigenvalue is below this share of the largest one are dropped as rounding errors.
NEGLIGIBLE_EIGENVALUE_SHARE = 1e-10
# Exact variances are computed for at most this many right-hand sides at once.
EXACT_RIGHT_HAND_SIDES = 512
# A task computes the bounds of this many queries.
QUERIES_PER_TASK = 64
# This many ranks are tried, from the smallest one to the number of directions, in equal ratios.
TRIED_RANKS = 16
SMALLEST_TRIED_RANK = 4


def latent_variance_bound(posterior: ExactPosterior, x: Any, session: Session) -> np.ndarray:
    """Return upper bounds of Var[g_l(x*)], or exact values if a low rank does not pay;  (m, d)."""
    affordable = session.chunk_bytes // (3 * 8 * len(posterior))
    group = min(MAX_QUERIES_PER_GROUP, max(MIN_QUERIES_PER_GROUP, affordable))
    return np.concatenate([_bound(posterior, x[i], session) for i in slices(len(x), group)])


def _bound(posterior: ExactPosterior, x: Any, session: Session) -> np.ndarray:
    """Return the upper bounds of one group of queries;  (m, d)."""
    prior, cross = posterior.hyperparameters.weight_prior.variance(x), posterior.cross(x, session)
    K, Z = cross.K, cross.Z
    rank = min(len(K) // 4, MAX_RANK)
    F, T = K[:, :0], K[:0]
    if rank >= MIN_DIRECTIONS:
        F, T = _directions(posterior, x, K, rank, session)
    rank = _sufficient_rank(posterior, prior, cross, F, T, session)
    if not rank:
        affordable = session.chunk_bytes // posterior.bytes_per_query
        size = max(1, min(EXACT_RIGHT_HAND_SIDES, affordable) // Z.shape[1])
        chunks = [posterior.weight_reduction(cross[i], session) for i in slices(len(K), size)]
        exact: np.ndarray = np.maximum(prior[:, None] - np.concatenate(chunks), 0.0)
        return exact
    F, T = np.ascontiguousarray(F[:, :rank]), T[:rank]
    K *= 2.0
    K -= session.executor.matmul(F, T)
    reduced = np.empty((len(K), Z.shape[1]))
    for features in slices(
        Z.shape[1], max(1, session.chunk_bytes // (posterior.bytes_per_query * rank))
    ):
        z = Z.columns(features).T
        # The coefficients are a = F Y, with Y (features, r, n).
        Y = posterior.solve_rows(T * z[:, None, :], session)

        def reduce(
            rows: slice, features: slice = features, z: np.ndarray = z, Y: np.ndarray = Y
        ) -> None:
            """Write a.diag(2 k* - k~*) z_l of some queries and these features."""
            for l, z_l, Y_l in zip(range(features.start, features.stop), z, Y, strict=True):
                a = F[rows] @ Y_l
                a *= K[rows]
                reduced[rows, l] = a @ z_l

        session.executor.map(reduce, slices(len(K), QUERIES_PER_TASK))
    return np.clip(prior[:, None] - reduced, 0.0, prior[:, None])


def _directions(
    posterior: ExactPosterior, x: Any, K: np.ndarray, rank: int, session: Session
) -> tuple[np.ndarray, np.ndarray]:
    """Return F (m, r) and T (r, n) with k~(x*, X) = F T.

    The directions come from a randomised subspace iteration on the queries' own kernel matrix. The
    best come first, and any number of leading ones is a projection too. This takes about
    8 m^2 r + 2 m n r flops.
    """
    kernel, executor = posterior.hyperparameters.kernel, session.executor
    points = kernel.prepare(x)
    own = kernel_matrix(kernel, points, points, session)
    sketch = np.random.RandomState(0).standard_normal((len(own), rank))
    basis, _ = qr(
        executor.matmul(own, executor.matmul(own, sketch)), mode="economic", check_finite=False
    )
    values, vectors = eigh(basis.T @ executor.matmul(own, basis), check_finite=False)
    keep = values[::-1] > NEGLIGIBLE_EIGENVALUE_SHARE * values[-1]
    basis = basis @ vectors[:, ::-1][:, keep]
    image = executor.matmul(own, basis)
    R = cholesky(basis.T @ image, check_finite=False)
    F = solve_triangular(R, image.T, trans="T", check_finite=False).T
    return F, solve_triangular(R, executor.matmul(basis.T, K), trans="T", check_finite=False)


def _sufficient_rank(
    posterior: ExactPosterior,
    prior: np.ndarray,
    cross: CrossCovariance,
    F: np.ndarray,
    T: np.ndarray,
    session: Session,
) -> int:
    """Return the least of some ranks that is accurate enough for a few queries, 0 if none is.

    Accurate enough means that upper bounds of standard deviations exceed the exact ones by at most
    MEDIAN_EXCESS_SHARE in the median.
    """
    K = cross.K
    at = evenly_spaced(CHECKED_QUERIES, len(K))
    reduction = posterior.weight_reduction(cross[at], session)
    exact = prior[at, None] - reduction + posterior.hyperparameters.sigma_w**2

    def suffices(rank: int) -> bool:
        rest = replace(cross[at], K=K[at] - F[at, :rank] @ T[:rank])
        excess = posterior.weight_reduction(rest, session) / (2.0 * exact)
        return bool(np.median(excess) <= MEDIAN_EXCESS_SHARE)

    ranks: list[int] = []
    if F.shape[1]:
        tried = np.geomspace(SMALLEST_TRIED_RANK, F.shape[1], TRIED_RANKS)
        ranks = np.unique(tried.astype(int)).tolist()
    # The excess falls with the rank, so bisection finds the first rank that suffices.
    first = bisect_left(ranks, True, key=suffices)
    return ranks[first] if first < len(ranks) else 0
