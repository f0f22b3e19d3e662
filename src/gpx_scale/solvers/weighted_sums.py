"""Weighted sums of y over many rows, by which constant weights are known as well as rows allow.

A query that is conditioned on some rows learns little of a weight that is the same everywhere: all
rows tell of it. Sums t = G^T y are conditioned on in addition, as if they were further rows:

    Cov[t, y_j] = (C G)_j,        Cov[w_l*, t] = sum_t variance_tl sum_j k_t(x*, x_j) z_jl G_j

As these covariances are exact, no standard deviation is below the one from all rows, whatever G is.
With G = C_rr|U^-1 z_r|U, of the rows r that are not shared and their z given the shared rows U,
nothing is lost of constant weights. A few steps of conjugate gradients come close to that:

    z_r|U = z_r - F_r^T L^-1 Z_U,      C_rr|U = C_rr - F_r^T F_r,      with its diagonal as P
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..linalg.neighbor_search import NeighborSearch
from ..linalg.preconditioner import right_solve
from ..model.weight_prior import WeightPrior, kernel_matrix
from ..runtime.parallel import slices
from ..runtime.session import Session

if TYPE_CHECKING:
    from .neighborhood import SharedRows

# The kernel values that are formed at once take at most this many bytes.
BLOCK_BYTES = 2**26
# Sums are over so many rows that their kernel values with all rows are at most so many: all rows up
# to 60,000 for one kernel.
SUMMED_PAIRS = 4e9
# Steps of conjugate gradients take at most so many kernel values, and there are at most so many. On
# 1,500 rows with short length scales, standard deviations of constant weights were 1.09 times the
# exact ones with 8 steps and no shared rows, 1.05 times with 20 shared rows, and 2.0 without steps.
STEP_PAIRS = 1e10
MOST_STEPS = 8
# A column of Z is 0 but for rounding if it is no larger than this, in standard deviations.
NO_FEATURE = 1e-7


@dataclass(frozen=True)
class WeightedSums:
    """Sums t = G^T y over some rows.

    Attributes
    ----------
    rows : ndarray of shape (s,)
        The numbers of the rows.
    coefficients : ndarray of shape (s, c)
        G.
    covariances : ndarray of shape (n, c)
        Cov[y_j, t] of all rows j.
    """

    rows: np.ndarray
    coefficients: np.ndarray
    covariances: np.ndarray

    @classmethod
    def over(
        cls, search: NeighborSearch, rows: np.ndarray, coefficients: np.ndarray, session: Session
    ) -> WeightedSums:
        """Return sums over these rows, of all that are searched;  n s kernel values per term."""
        made = cls(rows, coefficients, np.empty((0, coefficients.shape[1])))
        return made.with_rows(search, session)

    def with_rows(self, search: NeighborSearch, session: Session) -> WeightedSums:
        """Return the same sums among more rows, which begin with those that are known."""
        known = len(self.covariances)
        index = np.arange(known, len(search.rows))
        more = products(search, index, self.rows, self.coefficients, session)
        noise = search.hyperparameters.noise(search.rows[self.rows])
        is_new = self.rows >= known
        more[self.rows[is_new] - known] += noise[is_new, None] * self.coefficients[is_new]
        return replace(self, covariances=np.concatenate([self.covariances, more]))

    @property
    def count(self) -> int:
        """Return the number of sums, c."""
        return int(self.coefficients.shape[1])

    def of_rows(self, index: np.ndarray) -> np.ndarray:
        """Return the coefficients of given rows, 0 for rows that are in no sum;  (b,) -> (b, c)."""
        found = np.zeros((index.size, self.count))
        place = np.minimum(np.searchsorted(self.rows, index), self.rows.size - 1)
        is_in = self.rows[place] == index
        found[is_in] = self.coefficients[place[is_in]]
        return found


def products(
    search: NeighborSearch, index: np.ndarray, rows: np.ndarray, V: np.ndarray, session: Session
) -> np.ndarray:
    """Return S between rows `index` and `rows`, times V;  (r,), (s,), (s, c) -> (r, c).

    One kernel value per entry and term.
    """
    prior = search.hyperparameters.weight_prior
    a, b = search.prepared_rows[index], search.prepared_rows[rows]
    total = np.zeros((index.size, V.shape[1]))
    for term, own, other in zip(prior.active, a.of_terms, b.of_terms, strict=True):
        if term.kernel.is_constant:
            total += own.Z.right_multiply(other.Z.to_dense().T @ V)
            continue
        for some in slices(index.size, max(1, BLOCK_BYTES // (8 * rows.size))):
            features = own.Z[some], other.Z
            S = kernel_matrix(term.kernel, own.points[some], other.points, session, features)
            total[some] += session.executor.matmul(S, V)
    return total


def steps_for(rows: int, kernels: int) -> int:
    """Return how many steps of conjugate gradients kernel values between so many rows allow.

    A single step would only scale the vectors that it starts from, so that none is taken then.
    """
    steps = int(min(MOST_STEPS, STEP_PAIRS / (rows**2 * max(1, kernels))))
    return steps if steps > 1 else 0


def informative_coefficients(
    known: SharedRows, summed: np.ndarray, columns: np.ndarray, session: Session
) -> np.ndarray:
    """Return the coefficients of sums over rows `summed`, for some columns of Z;  (s, c).

    `known` are the shared rows, without sums. n s kernel values per term and step.
    """
    Z, noise = known.search.rows.Z, known.noise[summed, None]
    half = right_solve(known.L, Z[known.shared].to_dense()[:, columns].T.copy(), session)
    z, left = Z[summed].to_dense()[:, columns], known.diagonal[summed]
    for some, F in known.factor_blocks(summed, session):
        z[some] -= F @ half.T
        left[some] -= np.einsum("ij,ij->i", F, F)

    def product(V: np.ndarray) -> np.ndarray:
        """Return C_rr|U V;  (s, c) -> (s, c)."""
        total = products(known.search, summed, summed, V, session)
        total += noise * V
        along = np.zeros((known.shared.size, V.shape[1]))
        for some, F in known.factor_blocks(summed, session):
            along += F.T @ V[some]
        for some, F in known.factor_blocks(summed, session):
            total[some] -= F @ along
        return total

    active = known.search.hyperparameters.weight_prior.active
    kernels = sum(not term.kernel.is_constant for term in active)
    diagonal = np.maximum(left[:, None], noise)
    return _solved(z, diagonal, product, steps_for(summed.size, kernels))


def _solved(
    z: np.ndarray, diagonal: np.ndarray, product: Callable[[np.ndarray], np.ndarray], steps: int
) -> np.ndarray:
    """Return G close to C^-1 z, its columns scaled to length 1;  (s, c) -> (s, c).

    `product` returns C V, and `diagonal` (s, 1) is that of C. Columns of z that are 0 but for
    rounding are 0 in G. One product per step of conjugate gradients.
    """
    residual, along = z.copy(), z / diagonal
    G, size = np.zeros_like(z), (z * along).sum(axis=0)
    for _ in range(steps):
        moved = product(along)
        length = _ratio(size, (along * moved).sum(axis=0))
        G += along * length
        residual -= moved * length
        steepest = residual / diagonal
        before, size = size, (residual * steepest).sum(axis=0)
        along = steepest + along * _ratio(size, before)
    G = G if steps else along
    has_feature = np.square(z).mean(axis=0) > NO_FEATURE**2
    norms = np.sqrt(np.square(G).sum(axis=0))
    scaled = G * _ratio(has_feature.astype(float), norms)
    return np.asarray(scaled)


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b, and 0 where b is not positive;  (c,)."""
    found: np.ndarray = np.divide(a, b, out=np.zeros_like(a), where=b > 0.0)
    return found


def constant_columns(prior: WeightPrior) -> np.ndarray:
    """Return the columns of Z whose weights have a constant part."""
    if prior.is_shared:
        return np.empty(0, np.int64)
    terms = [term for term in prior.active if term.kernel.is_constant and term.is_active]
    return np.concatenate([np.empty(0, np.int64), *(term.columns for term in terms)])
