"""Weighted sums of y over many rows, by which constant weights are known as well as rows allow.

A query that is conditioned on some rows learns little of a weight that is the same everywhere: all
rows tell of it. Sums t = G^T y are conditioned on in addition, as if they were further rows:

    Cov[t, y_j] = (C G)_j,        Cov[w_l*, t] = sum_t variance_tl sum_j k_t(x*, x_j) z_jl G_j

As these covariances are exact, no standard deviation is below the one from all rows, whatever G is.
With all columns of C^-1 Z, nothing would be lost of constant weights. C is replaced by what it is
given the shared rows U, without the covariances between other rows:

    G_j = (z_j - Z_U^T C_UU^-1 S_Uj) / (C_jj - |F_j|^2)        over rows that are not shared
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..linalg.neighbor_search import NeighborSearch
from ..model.weight_prior import WeightPrior, kernel_matrix
from ..runtime.parallel import slices
from ..runtime.session import Session

# The kernel values that are formed at once take at most this many bytes.
BLOCK_BYTES = 2**26


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
        more = self._products(search, slice(known, len(search.rows)), session)
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

    def _products(self, search: NeighborSearch, index: slice, session: Session) -> np.ndarray:
        """Return S between some rows and those of the sums, times G;  (r, c)."""
        prior, G = search.hyperparameters.weight_prior, self.coefficients
        a, b = search.prepared_rows[index], search.prepared_rows[self.rows]
        total = np.zeros((len(a), self.count))
        for term, own, other in zip(prior.active, a.of_terms, b.of_terms, strict=True):
            if term.kernel.is_constant:
                total += own.Z.right_multiply(other.Z.to_dense().T @ G)
                continue
            for some in slices(len(a), max(1, BLOCK_BYTES // (8 * len(b)))):
                features = own.Z[some], other.Z
                S = kernel_matrix(term.kernel, own.points[some], other.points, session, features)
                total[some] += session.executor.matmul(S, G)
        return total


def constant_columns(prior: WeightPrior) -> np.ndarray:
    """Return the columns of Z whose weights have a constant part."""
    if prior.is_shared:
        return np.empty(0, np.int64)
    terms = [term for term in prior.active if term.kernel.is_constant and term.is_active]
    return np.concatenate([np.empty(0, np.int64), *(term.columns for term in terms)])
