"""The rows that each query is conditioned on, besides those that all queries share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...data.features import Features
from ...linalg.neighbor_search import Neighbors


@dataclass(frozen=True)
class QueryRows:
    """The rows that each of b queries is conditioned on, besides the shared ones.

    Attributes
    ----------
    near : Neighbors
        The rows near each query.
    K_near, K_shared : ndarray of shape (b, k), (b, m)
        k(x*, x_j) of these rows and of the shared ones. For the own weights of a training row, that
        of the row itself has sigma_w^2 added.
    """

    near: Neighbors
    K_near: np.ndarray
    K_shared: np.ndarray

    def __len__(self) -> int:
        return len(self.near)


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
