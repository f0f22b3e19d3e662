"""Deviations of many queries' weights by low-rank queries: faster than exact, and never below it.

With g~ = E[g | g(U)], U a subset of the queries, g = g~ + h. Cov(g~(x*), g(x_i)) is the Nystrom k~(x*, x_i), so the
posterior deviation of g~ is exact with k~ in the place of k, and by the triangle inequality

    sd[g(x*)] <= sqrt(k~** - B~^T C^-1 B~) + sqrt(k** - k~**)

k~ alone would under-estimate. d (n^2 r + n r^2 + m r^2) flops for r = |U| instead of d n^2 m.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from .runtime import Executor, slices

RESIDUAL = 1e-5  # mean of (k** - k~**) / k** at which more pivots add less than 1% to a deviation
QUERIES = 4096  # pivots are shared by this many queries at most


def latent_deviation_bound(parts: Any, x: Any, executor: Executor) -> np.ndarray:
    """Upper bound of sd[g_l(x*)], (m, d); the exact value where a query is a pivot."""
    return np.concatenate([_bound(parts, x[i], executor) for i in slices(len(x), QUERIES)])


def _bound(parts: Any, x: Any, executor: Executor) -> np.ndarray:
    kernel, Z = parts.params.kernel, parts.data.Z
    prior = parts.prior(x)
    F, pivots, left = _pivoted_cholesky(kernel, kernel.points(x), prior)
    T = solve_triangular(F[pivots], parts.cross(_rows(x, pivots), executor), lower=True)  # k~(x*, X) = F T
    reduced = np.empty((len(F), Z.shape[1]))
    for l in range(Z.shape[1]):
        G = parts.reduction_between(T * Z.column(l), executor)  # (r, r): T diag(z_l) C^-1 diag(z_l) T^T
        reduced[:, l] = np.einsum("ij,ij->i", executor.matmul(F, G), F)
    inside = np.maximum((prior - left)[:, None] - reduced, 0.0)
    return np.minimum(np.sqrt(inside) + np.sqrt(left)[:, None], np.sqrt(prior)[:, None])


def _pivoted_cholesky(kernel: Any, query: Any, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Greedy K** ~ F F^T: F (m, r), the pivots (r,), and what is left of the diagonal (m,);  m r^2 flops."""
    left, pivots = prior.copy(), []
    F = np.zeros((len(prior), 64))
    while len(pivots) < len(prior) and left.mean() > RESIDUAL * prior.mean():
        at, r = int(left.argmax()), len(pivots)
        if r == F.shape[1]:
            F = np.concatenate([F, np.zeros_like(F)], axis=1)
        column = kernel.tile(query, query[at : at + 1])[:, 0] - F[:, :r] @ F[at, :r]
        column[pivots] = 0.0  # exactly: what is left of a pivot is nothing
        F[:, r] = column / np.sqrt(left[at])
        F[at, r] = np.sqrt(left[at])
        left = np.maximum(left - F[:, r] ** 2, 0.0)
        left[at] = 0.0
        pivots.append(at)
    return F[:, : len(pivots)].copy(), np.array(pivots), left


def _rows(x: Any, index: np.ndarray) -> Any:
    return [x[i] for i in index] if isinstance(x, list) else x[index]
