"""A symmetric matrix in lower tiles: it is filled, factorised and inverted in parallel.

Every operation is a sequence of parallel loops over tiles (`compiled.tiles`), with one BLAS thread
in each worker. All sums are in the order of the tiles, so results have the same bits for any number
of threads. Python runs between the loops, where Ctrl-C is noticed.
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
FACTOR_TILE_ROWS = 512
# Right-hand sides are divided into as many chunks as the second number, if there are fewer of them
# than the first. BLAS packs each tile of the factor once for a chunk, so large chunks are faster
# (beside 512, chunks of 128 take 1.1 times as long at n = 4,000), and small ones divide the work
# more evenly. The number of threads must not matter, as it would change the last digits.
CHUNKS_BELOW = ((1024, 4), (4096, 8), (np.inf, 16))
# A chunk has at least and at most this many right-hand sides.
MIN_CHUNK_ROWS = 32
MAX_CHUNK_ROWS = 512
# Flops of one call that updates tiles: less than a second of one slow core, so that Ctrl-C is
# noticed in time.
CALL_FLOPS = 1e10
# Entries of C that one call forms, for the same reason.
CALL_ENTRIES = 1e8


def factor_in_tiles(A: np.ndarray, n_jobs: int) -> np.ndarray:
    """Return A with L in its lower triangle; entries above the diagonal are undefined.

    (n, n), C-ordered;  n^3/3 flops and no further memory. If A is not positive definite,
    LinAlgError is raised, and A has been overwritten.
    """
    LowerTiles.of(A, n_jobs).factor()
    return A


@dataclass(frozen=True)
class LowerTiles:
    """The lower triangle of an (n, n) matrix in a one-dimensional buffer, in tiles.

    A `packed` buffer holds one tile after the other, in n^2/2 numbers and a strip. Otherwise the
    buffer is a row-major (n, n) matrix. Entries above the diagonal are neither read nor kept.
    """

    buffer: np.ndarray
    n: int
    n_jobs: int
    size: int = FACTOR_TILE_ROWS
    packed: bool = False

    @classmethod
    def of(cls, A: np.ndarray, n_jobs: int) -> LowerTiles:
        """Return the tiles of a C-ordered matrix, which they share memory with;  (n, n)."""
        assert A.flags.c_contiguous
        n = len(A)
        is_one_tile = n <= FACTOR_TILE_ROWS
        return cls(A.reshape(-1), n, 1 if is_one_tile else n_jobs, min(n, FACTOR_TILE_ROWS))

    @staticmethod
    def packed_length(n: int, size: int = FACTOR_TILE_ROWS) -> int:
        """Return the length of a packed buffer."""
        tiles = -(-n // size)
        return tiles * (tiles + 1) // 2 * size * size

    @property
    def _layout(self) -> tuple[int, int, bool]:
        return self.n, self.size, self.packed

    @property
    def _tiles(self) -> int:
        return -(-self.n // self.size)

    @staticmethod
    def inverse_bytes(n: int, itemsize: int) -> int:
        """Return the memory of a column and a diagonal of tiles, which `invert` takes."""
        size = max(1, min(n, FACTOR_TILE_ROWS))
        return 2 * itemsize * -(-n // size) * size * size

    def factor(self) -> None:
        """Replace C by its Cholesky factor L;  n^3/3 flops.

        If C is not positive definite, LinAlgError is raised, and C has been overwritten.
        """
        with tile_threads(self.n_jobs) as threads:
            for k in range(self._tiles):
                if loops.factor_diagonal_tile(*self._layout, k, self.buffer):
                    raise np.linalg.LinAlgError(f"The pivots of rows from {k * self.size} fail.")
                threads.run(loops.factor_column, *self._layout, k, self.buffer)
                for first, last in self._groups(k + 1, CALL_FLOPS / (2.0 * self.size**3)):
                    threads.run(loops.update_rows, *self._layout, k, first, last, self.buffer)

    def _groups(self, column: int, tiles_at_once: float) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of consecutive rows of tiles, from row `column` on.

        A group has at most that many tiles from `column` to the diagonal, or a single row.
        """
        first = column
        while first < self._tiles:
            last, tiles = first, 0
            while last < self._tiles and (last == first or tiles + last - column < tiles_at_once):
                tiles += last - column + 1
                last += 1
            yield first, last
            first = last

    def fill(self, profile: Profile, Z: np.ndarray, diagonal: np.ndarray) -> None:
        """Fill the tiles with K o ZZ^T, and with `diagonal` on the diagonal.

        (n, d), (n,);  n^2/2 kernel values.
        """
        kernel = profile.family, profile.shape, profile.scale, profile.near
        points = profile.left, profile.right, profile.points
        with tile_threads(self.n_jobs) as threads:
            for first, last in self._groups(0, CALL_ENTRIES / self.size**2):
                layout = *self._layout, first, last
                threads.run(loops.fill_rows, *layout, *kernel, *points, Z, diagonal, self.buffer)

    def contract_inverse(self, profile: Profile, Z: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """Return sums of (alpha alpha^T - C^-1) o ZZ^T with the profile's derivatives;  (3 + p,).

        The tiles hold C^-1. It takes n^2/2 kernel values; derivatives by column take 2 p flops more
        per entry.
        """
        kernel = profile.family, profile.shape, profile.near, profile.by_column
        points = profile.left, profile.right, profile.points
        sums = np.zeros((self._tiles * (self._tiles + 1) // 2, 3 + profile.points.shape[1]))
        with tile_threads(self.n_jobs) as threads:
            for first, last in self._groups(0, CALL_ENTRIES / self.size**2):
                layout = *self._layout, first, last
                arrays = *points, Z, alpha, self.buffer, sums
                threads.run(loops.contract_rows, *layout, *kernel, *arrays)
        total: np.ndarray = sums.sum(axis=0)
        return total

    def half_solve(self, B: np.ndarray) -> None:
        """Replace rows B by B L^-T;  (c, n), C-ordered;  n^2 c flops."""
        self._solve(B, backward=False)

    def solve(self, B: np.ndarray) -> None:
        """Replace rows B by B C^-1 = B L^-T L^-1;  (c, n), C-ordered;  2 n^2 c flops."""
        self._solve(B, backward=False)
        self._solve(B, backward=True)

    def _solve(self, B: np.ndarray, backward: bool) -> None:
        assert B.flags.c_contiguous
        chunks = next(chunks for rows, chunks in CHUNKS_BELOW if len(B) < rows)
        chunk = min(MAX_CHUNK_ROWS, max(MIN_CHUNK_ROWS, -(-len(B) // chunks)))
        chunks_per_worker = max(1, int(CALL_FLOPS / (float(self.n) ** 2 * chunk)))
        step = chunks_per_worker * chunk * self.n_jobs
        with tile_threads(self.n_jobs) as threads:
            for start in range(0, len(B), step):
                some = B[start : start + step].reshape(-1)
                threads.run(loops.solve_rows, *self._layout, backward, chunk, self.buffer, some)

    def invert(self) -> None:
        """Replace L by the lower triangle of C^-1 = L^-T L^-1;  2 n^3/3 flops."""
        column, diagonals = np.empty((2, self._tiles * self.size**2), self.buffer.dtype)
        with tile_threads(self.n_jobs) as threads:
            threads.run(loops.invert_diagonal_tiles, *self._layout, self.buffer)
            for k in range(self._tiles - 1, -1, -1):
                at = *self._layout, k
                threads.run(loops.copy_column, *at, -1.0, self.buffer, column)
                threads.run(loops.multiply_column, *at, self.buffer, column)
                threads.run(loops.invert_column, *at, self.buffer, column)
            threads.run(loops.square_diagonal_tiles, *self._layout, self.buffer, diagonals)
            for i in range(self._tiles):
                at = *self._layout, i
                threads.run(loops.copy_column, *at, 1.0, self.buffer, column)
                threads.run(loops.square_row, *at, self.buffer, diagonals, column)
