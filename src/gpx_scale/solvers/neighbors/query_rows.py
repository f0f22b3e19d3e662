"""The rows that each query is conditioned on, besides those that all queries share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...data.features import Features
from ...linalg.neighbor_search import Neighbors
from ...model.term import VARYING


@dataclass(frozen=True)
class QueryTerm:
    """The kernel values of a term between queries and the rows that they are conditioned on.

    near (b, k) and shared (b, m) are k_t(x*, x_j). `weight_variances` are those of the term, None
    if all are 1. The noise of a training row's own weights is a term without variances, too.
    `summed` (b, d, c) are sum_j k_t(x*, x_j) z_jl G_j, for the weighted sums of y if there are any.
    """

    near: np.ndarray
    shared: np.ndarray
    weight_variances: np.ndarray | None = None
    part: str = VARYING
    summed: np.ndarray | None = None

    def scaled(self, A: Features) -> Features:
        """Return A Lambda_t;  (b, d)."""
        return A if self.weight_variances is None else A.scale_columns(self.weight_variances)


@dataclass(frozen=True)
class QueryRows:
    """The rows that each of b queries is conditioned on, besides the shared ones.

    Attributes
    ----------
    near : Neighbors
        The rows near each query.
    terms : tuple of QueryTerm
        Their kernel values and those of the shared rows, for each term. If all weights share their
        prior, the noise of a training row's own weights is added to those of the row itself.
    """

    near: Neighbors
    terms: tuple[QueryTerm, ...]

    def __len__(self) -> int:
        return len(self.near)

    def of_part(self, part: str) -> QueryRows:
        """Return what one part of the weights has in common with these rows."""
        terms = tuple(term for term in self.terms if term.part == part)
        return replace(self, terms=terms)


def with_own(near: Neighbors, own: np.ndarray, is_added: np.ndarray) -> Neighbors:
    """Return near rows with the own row of each query added where `is_added`;  (b,), (b,)."""
    rows = np.hstack([near.rows, np.zeros((len(near), 1), np.int64)])
    keys = np.hstack([near.keys, np.full((len(near), 1), np.inf)])
    at = np.flatnonzero(is_added)
    rows[at, near.counts[at]] = own[at]
    return Neighbors(rows, near.counts + is_added, keys)


def dense_rows(Z: Features, near: Neighbors) -> np.ndarray:
    """Return z of the rows near each query as a dense array;  (b, k, d)."""
    found = Z[near.rows.ravel()].to_dense()
    return found.reshape(*near.rows.shape, Z.shape[1])
