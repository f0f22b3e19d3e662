"""What loops over formed tiles of S compute, by numpy: the peers of bench/test_tiles.py."""

from __future__ import annotations

import numpy as np

from gpx_scale.linalg.lower_tiles import tile_size
from gpx_scale.runtime.parallel import slices

# Peers work on strips of so many rows of a tile, which stay in a core's cache.
STRIP_ROWS = 128


class Formed:
    """The lower tiles of S, for an RBF with theta1 = 1, and their exponents.

    They are formed strip by strip, and each strip is used once.
    """

    def __init__(self, profile, Z, jobs):
        self.profile, self.Z, self.jobs = profile, Z, jobs
        tiles = slices(len(Z), tile_size(len(Z)))
        self.strips = [
            (slice(i.start + rows.start, i.start + rows.stop), j)
            for place, i in enumerate(tiles)
            for rows in slices(i.stop - i.start, STRIP_ROWS)
            for j in tiles[: place + 1]
        ]

    def over(self, executor, use):
        """Call use(worker, rows, cols, E, S) with every strip, each worker with its own share.

        Strips of diagonal tiles have both triangles.
        """

        def share(worker):
            for rows, cols in self.strips[worker :: self.jobs]:
                E = self.profile.left[rows] @ self.profile.right[cols].T
                S = self.Z[rows] @ self.Z[cols].T
                S *= np.exp(E)
                use(worker, rows, cols, E, S)

        executor.map(share, range(self.jobs))


def multiply(out, V):
    """Return a function that adds S V to out[worker];  (n, c)."""

    def use(worker, rows, cols, E, S):
        out[worker, rows] += S @ V[cols]
        if cols.stop <= rows.start:
            out[worker, cols] += S.T @ V[rows]

    return use


def contract(out, V):
    """Return a function that adds the sums of V V^T o S and of V V^T o S o E to out[worker]."""

    def use(worker, rows, cols, E, S):
        weighed = S * (V[rows] @ V[cols].T)
        twice = 1 + (cols.stop <= rows.start)
        out[worker, 0] += twice * weighed.sum()
        out[worker, 1] += twice * np.einsum("ij,ij->", weighed, E)

    return use


def tangents(out, V):
    """Return a function that adds S v and (S o E) v to out[worker], v being V's first column."""

    def use(worker, rows, cols, E, S):
        for k, A in enumerate((S, S * E)):
            out[worker, rows, k] += A @ V[cols, 0]
            if cols.stop <= rows.start:
                out[worker, cols, k] += A.T @ V[rows, 0]

    return use
