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
from typing import Any

import numpy as np
from scipy.linalg import cholesky, eigh, qr, solve_triangular

from ...model.weight_prior import cross
from ...runtime.parallel import Executor, evenly_spaced, slices

EXCESS = 0.02  # of a deviation, in the median of the pilots
PILOTS = 4  # queries computed exactly, to choose the rank
LARGEST_RANK, LARGEST_GROUP = 512, 4096


def latent_variance_bound(parts: Any, x: Any, executor: Executor, chunk_bytes: int) -> np.ndarray:
    """Upper bound of Var[g_l(x*)], (m, d); the exact value where a low rank does not pay."""
    group = min(LARGEST_GROUP, max(64, chunk_bytes // (3 * 8 * len(parts))))
    return np.concatenate([_bound(parts, x[i], executor, chunk_bytes) for i in slices(len(x), group)])


def _bound(parts: Any, x: Any, executor: Executor, chunk_bytes: int) -> np.ndarray:
    prior, K, Z = parts.prior(x), parts.cross(x, executor), parts.data.Z
    rank = min(len(K) // 4, LARGEST_RANK)
    F, T = _directions(parts, x, K, rank, executor) if rank >= 8 else (K[:, :0], K[:0])
    rank = _enough(parts, prior, K, F, T, executor)
    if not rank:
        size = max(1, min(512, chunk_bytes // parts.bytes_per_row) // Z.shape[1])
        chunks = [parts.reduction(K[i], executor) for i in slices(len(K), size)]
        return np.maximum(prior[:, None] - np.concatenate(chunks), 0.0)
    F, T = np.ascontiguousarray(F[:, :rank]), T[:rank]
    K *= 2.0
    K -= executor.matmul(F, T)
    reduced = np.empty((len(K), Z.shape[1]))
    for features in slices(Z.shape[1], max(1, chunk_bytes // (parts.bytes_per_row * rank))):
        z = Z.columns(features).T
        Y = parts.solve_rows(T * z[:, None, :], executor)  # (features, r, n): a = F Y

        def reduce(rows: slice, features: slice = features, z: np.ndarray = z, Y: np.ndarray = Y) -> None:
            for l, z_l, Y_l in zip(range(features.start, features.stop), z, Y, strict=True):
                a = F[rows] @ Y_l
                a *= K[rows]
                reduced[rows, l] = a @ z_l

        executor.map(reduce, slices(len(K), 64))
    return np.clip(prior[:, None] - reduced, 0.0, prior[:, None])


def _directions(parts: Any, x: Any, K: np.ndarray, rank: int, executor: Executor) -> tuple[np.ndarray, np.ndarray]:
    """F (m, r), T (r, n) with k~(x*, X) = F T, best directions first: any leading ones are a projection of their own.

    Randomised subspace iteration on the queries' own kernel matrix.
    """
    kernel = parts.params.kernel
    points = kernel.prepare(x)
    own = cross(kernel, points, points, executor)
    sketch = np.random.RandomState(0).standard_normal((len(own), rank))
    basis, _ = qr(executor.matmul(own, executor.matmul(own, sketch)), mode="economic", check_finite=False)
    values, vectors = eigh(basis.T @ executor.matmul(own, basis), check_finite=False)
    keep = values[::-1] > 1e-10 * values[-1]
    basis = basis @ vectors[:, ::-1][:, keep]
    image = executor.matmul(own, basis)
    R = cholesky(basis.T @ image, check_finite=False)
    F = solve_triangular(R, image.T, trans="T", check_finite=False).T
    return F, solve_triangular(R, executor.matmul(basis.T, K), trans="T", check_finite=False)


def _enough(parts: Any, prior: np.ndarray, K: np.ndarray, F: np.ndarray, T: np.ndarray, executor: Executor) -> int:
    """The least of some ranks whose bound exceeds the pilots' deviations by at most EXCESS in the median; 0 if none does."""
    at = evenly_spaced(PILOTS, len(K))
    exact = prior[at, None] - parts.reduction(K[at], executor) + parts.params.sigma_w**2

    def suffices(rank: int) -> bool:
        excess = parts.reduction(K[at] - F[at, :rank] @ T[:rank], executor)
        return bool(np.median(excess / (2.0 * exact)) <= EXCESS)

    ranks = np.unique(np.geomspace(4, F.shape[1], 16).astype(int)).tolist() if F.shape[1] else []
    first = bisect_left(ranks, True, key=suffices)  # the excess falls with the rank
    return ranks[first] if first < len(ranks) else 0
