"""A symmetric matrix or its Cholesky factor in lower tiles: factorisation, solves and inverse, in parallel.

Every operation is a sequence of parallel loops over tiles (`compiled.tiles`), with BLAS at one thread in each worker. The
order of all sums is that of the tiles, so results have the same bits for any number of threads. Python
runs between the loops, and Ctrl-C is noticed there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..compiled import tiles as loops
from ..kernels.kernel import Profile
from ..runtime.tile_loops import tile_threads

# Rows and columns of a tile: the factorisation is at its fastest from 384 to 512 for n = 2,000 and
# 4,000, in float64 and float32, with one thread and with two. A matrix of one tile runs serially.
TILE_ROWS = 512
# Right-hand sides of one chunk. A tile of the factor is read once for all of them, and from 64 on BLAS is
# near its full speed; chunks are what several threads share.
CHUNK_RIGHT_HAND_SIDES = 64
# Flops of one call that updates tiles: less than a second of one slow core, so that Ctrl-C is
# noticed in time.
CALL_FLOPS = 1e10
# Entries of C that one call forms, for the same reason.
CALL_ENTRIES = 1e8


def factor_in_tiles(A: np.ndarray, n_jobs: int) -> np.ndarray:
    """Return A with L in its lower triangle; what is above the diagonal is undefined.

    (n, n), C-ordered;  n^3/3 flops and no further memory. If A is not positive definite, A is lost, and LinAlgError
    is raised.
    """
    LowerTiles.of(A, n_jobs).factor()
    return A


@dataclass(frozen=True)
class LowerTiles:
    """The lower triangle of an (n, n) matrix in a one-dimensional buffer, in tiles.

    A `packed` buffer holds one tile after the other, n^2/2 numbers and a strip; otherwise it is a row-major (n, n) matrix, of
    which the part above the diagonal tiles is not touched. Inside diagonal tiles, what is above the diagonal is undefined.
    """

    buffer: np.ndarray
    n: int
    n_jobs: int
    size: int = TILE_ROWS
    packed: bool = False

    @classmethod
    def of(cls, A: np.ndarray, n_jobs: int) -> LowerTiles:
        """Return the tiles of a C-ordered matrix, which they share memory with;  (n, n)."""
        assert A.flags.c_contiguous
        return cls(A.reshape(-1), len(A), n_jobs if len(A) > TILE_ROWS else 1)

    @staticmethod
    def packed_length(n: int, size: int = TILE_ROWS) -> int:
        """Return the length of a packed buffer."""
        tiles = -(-n // size)
        return tiles * (tiles + 1) // 2 * size * size

    @property
    def _layout(self) -> tuple[int, int, bool]:
        return self.n, self.size, self.packed

    @property
    def _tiles(self) -> int:
        return -(-self.n // self.size)

    def factor(self) -> None:
        """Replace C by its Cholesky factor L, or raise LinAlgError and leave neither;  n^3/3 flops."""
        with tile_threads(self.n_jobs) as threads:
            for k in range(self._tiles):
                if loops.factor_diagonal_tile(*self._layout, k, self.buffer):
                    raise np.linalg.LinAlgError(f"The pivots of rows from {k * self.size} fail.")
                threads.run(loops.factor_column, *self._layout, k, self.buffer)
                first = k + 1
                while first < self._tiles:
                    last = self._last_row(first, k)
                    threads.run(loops.update_rows, *self._layout, k, first, last, self.buffer)
                    first = last

    def _last_row(self, first: int, k: int) -> int:
        """Return where the rows of tiles from `first` on end that one call updates by column k."""
        allowed = CALL_FLOPS / (2.0 * self.size**3)
        last, tiles = first, 0
        while last < self._tiles and (last == first or tiles + last - k <= allowed):
            tiles += last - k
            last += 1
        return last

    def fill(self, profile: Profile, Z: np.ndarray, diagonal: np.ndarray) -> None:
        """Make this K o ZZ^T off the diagonal, and `diagonal` on it;  (n, d), (n,);  n^2/2 kernel values."""
        kernel = profile.family, profile.shape, profile.scale, profile.near
        points = profile.left, profile.right, profile.points
        with tile_threads(self.n_jobs) as threads:
            for first, last in self._groups():
                layout = *self._layout, first, last
                threads.run(loops.fill_rows, *layout, *kernel, *points, Z, diagonal, self.buffer)

    def contract_inverse(self, profile: Profile, Z: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """Return sums of (alpha alpha^T - C^-1) o <z_i, z_j> with the profile's derivatives;  (3 + p,).

        These tiles hold C^-1. n^2/2 kernel values, and 2 p flops an entry if derivatives are by column.
        """
        kernel = profile.family, profile.shape, profile.near, profile.by_column
        points = profile.left, profile.right, profile.points
        sums = np.zeros((self._tiles * (self._tiles + 1) // 2, 3 + profile.points.shape[1]))
        with tile_threads(self.n_jobs) as threads:
            for first, last in self._groups():
                layout = *self._layout, first, last
                arrays = *points, Z, alpha, self.buffer, sums
                threads.run(loops.contract_rows, *layout, *kernel, *arrays)
        total: np.ndarray = sums.sum(axis=0)
        return total

    def _groups(self) -> Iterator[tuple[int, int]]:
        """Yield rows of tiles, from the first to before the last, that one call passes through."""
        first = 0
        while first < self._tiles:
            last = first + 1
            while last < self._tiles and self._entries(first, last + 1) <= CALL_ENTRIES:
                last += 1
            yield first, last
            first = last

    def _entries(self, first: int, last: int) -> float:
        return float(self.size) ** 2 * (last * (last + 1) - first * (first + 1)) / 2

    def half_solve(self, B: np.ndarray) -> None:
        """Replace rows B by B L^-T;  (c, n), C-ordered;  n^2 c flops."""
        self._solve(B, backward=False)

    def solve(self, B: np.ndarray) -> None:
        """Replace rows B by B C^-1 = B L^-T L^-1;  (c, n), C-ordered;  2 n^2 c flops."""
        self._solve(B, backward=False)
        self._solve(B, backward=True)

    def _solve(self, B: np.ndarray, backward: bool) -> None:
        assert B.flags.c_contiguous
        flops_per_row = float(self.n) ** 2
        at_once = max(1, int(CALL_FLOPS / (flops_per_row * CHUNK_RIGHT_HAND_SIDES)))
        step = at_once * CHUNK_RIGHT_HAND_SIDES * max(1, self.n_jobs)
        with tile_threads(self.n_jobs) as threads:
            for start in range(0, len(B), step):
                some = B[start : start + step].reshape(-1)
                chunk = CHUNK_RIGHT_HAND_SIDES
                threads.run(loops.solve_rows, *self._layout, backward, chunk, self.buffer, some)

    def invert(self) -> None:
        """Replace L by the lower triangle of C^-1 = L^-T L^-1;  2 n^3/3 flops."""
        column = np.empty(self._tiles * self.size * self.size, self.buffer.dtype)
        with tile_threads(self.n_jobs) as threads:
            for k in range(self._tiles - 1, -1, -1):
                loops.invert_diagonal_tile(*self._layout, k, self.buffer)
                threads.run(loops.copy_column, *self._layout, k, self.buffer, column)
                threads.run(loops.invert_column, *self._layout, k, self.buffer, column)
            for i in range(self._tiles):
                threads.run(loops.copy_column, *self._layout, i, self.buffer, column)
                threads.run(loops.square_row, *self._layout, i, self.buffer, column)
