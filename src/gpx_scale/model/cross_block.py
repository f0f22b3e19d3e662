"""A rectangular block of S, or of a kernel matrix, as compiled loops form it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compiled import cross_blocks as loops
from ..data.features import Features
from ..kernels.kernel import Kernel, Prepared, Profile
from ..runtime.parallel import slices
from ..runtime.tile_loops import TileLoop, tile_threads

# Entries of a block that each worker forms in one call: less than a second of a slow core, so that
# Ctrl-C is noticed in time.
CALL_ENTRIES = 5e7
# Flops of a worker in one call, for the same reason.
CALL_FLOPS = 1e10


@dataclass(frozen=True)
class CrossBlock:
    """The block k(a_i, b_j) <z_i, z'_j> between rows a and b, or k(a_i, b_j) if Z is None.

    Z are the features of both, (a, d) and (b, d). Loops use `n_jobs` threads, which do not change
    a result.
    """

    kernel: Kernel
    a: Profile
    b: Profile
    Z: tuple[np.ndarray, np.ndarray] | None
    n_jobs: int

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        a: Prepared,
        b: Prepared,
        Z: tuple[Features, Features] | None,
        n_jobs: int,
    ) -> CrossBlock | None:
        """Return the block of prepared rows; None if the kernel or Z has no compiled form."""
        if Z is not None and (Z[0].is_sparse or Z[1].is_sparse):
            return None
        first, second = kernel.profile(a), kernel.profile(b)
        if first is None or second is None:
            return None
        real = first.left.dtype
        dense = None
        if Z is not None:
            dense = (
                np.ascontiguousarray(Z[0].to_dense(), real),
                np.ascontiguousarray(Z[1].to_dense(), real),
            )
        return cls(kernel, first, second, dense, n_jobs)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns."""
        return len(self.a.left), len(self.b.left)

    def fill(self, out: np.ndarray) -> None:
        """Write the block to `out`, rounded to its dtype;  (a, b);  one kernel value per entry."""
        without = np.empty((0, 0), self.a.left.dtype)
        Z = (without, without) if self.Z is None else self.Z
        kernel = self.a.family, self.a.shape, self.a.scale, self._near
        with tile_threads(self.n_jobs) as threads:
            for rows in self._calls(CALL_ENTRIES):
                arrays = *self._points, self.Z is not None, *Z, rows.start, rows.stop, out
                threads.run(loops.fill_block, *kernel, *arrays)

    def contract(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sum_j W_ij dS_ij/dtheta for each row i, and the row sums of W o S.

        (a, b) -> (a, t), (a,);  one kernel value per entry.
        """
        return self._contract(loops.contract_block, CALL_ENTRIES, self._contiguous(W))

    def contract_product(self, U: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `contract` does for W = U V^T, which is not stored;  (a, c), (b, c).

        U may have another precision: workers convert the rows that they use.
        """
        entries = min(CALL_ENTRIES, CALL_FLOPS / (2.0 * max(1, V.shape[1])))
        weights = np.ascontiguousarray(U), self._contiguous(V)
        return self._contract(loops.contract_product, entries, *weights)

    def _contract(
        self, loop: TileLoop, entries: float, *weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of `contract` by a loop that takes these weights."""
        assert self.Z is not None
        sums = np.zeros((self.shape[0], 3 + self.a.points.shape[1]))
        kernel = self.a.family, self.a.shape, self._near, self.a.by_column
        with tile_threads(self.n_jobs) as threads:
            for rows in self._calls(entries):
                arrays = *self._points, *self.Z, rows.start, rows.stop, *weights, sums
                threads.run(loop, *kernel, *arrays)
        return self.kernel.gradient_of_sums(sums.T).T, float(self.a.scale) * sums[:, 0]

    def _contiguous(self, A: np.ndarray) -> np.ndarray:
        """Return A in the one form that loops are compiled for: C-ordered, in their precision."""
        return np.ascontiguousarray(A, self.a.left.dtype)

    @property
    def _points(self) -> tuple[np.ndarray, ...]:
        """Return the points of both, as all loops take them."""
        return self.a.left, self.b.right, self.a.points, self.b.points

    @property
    def _near(self) -> float | np.floating[Any]:
        """Return the s below which pairs are computed from differences."""
        return max(self.a.near, self.b.near, key=float)

    def _calls(self, entries: float) -> list[slice]:
        """Return the rows of each call, which has about so many entries per worker."""
        rows, columns = self.shape
        chunks = max(1, int(entries / (loops.CHUNK_ROWS * max(1, columns))))
        return slices(rows, chunks * loops.CHUNK_ROWS * self.n_jobs)
