"""A symmetric matrix in lower tiles: it is factorised and inverted in parallel.

Every operation is a sequence of parallel loops over tiles (`compiled.tiles`), with one BLAS thread
in each worker. All sums are in the order of the tiles, so results have the same bits for any number
of threads. Python runs between the loops, where Ctrl-C is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..compiled import tiles as loops
from ..runtime.state import must, stored
from ..runtime.tile_loops import tile_threads

# Rows and columns of the largest tile: the factorisation is at its fastest from 384 to 512 for
# n = 2,000 and 4,000, in float64 and float32, with one thread and with two.
MAX_TILE_ROWS = 512
# Tiles have a multiple of this many rows, so that those of a packed buffer begin at cache lines.
TILE_ROWS_UNIT = 8
# Right-hand sides are divided into as many chunks as the second number, if there are fewer of them
# than the first. BLAS packs each tile of the factor once for a chunk, so large chunks are faster
# (beside 512, chunks of 128 take 1.1 times as long at n = 4,000), and small ones divide the work
# more evenly. The number of threads must not matter, as it would change the last digits.
CHUNKS_BELOW = ((1024, 4), (4096, 8), (np.inf, 16))
# A chunk has at least and at most this many right-hand sides.
MIN_CHUNK_ROWS = 32
MAX_CHUNK_ROWS = 512
# A solve of fewer flops runs serially: starting threads would take longer.
SMALL_SOLVE_FLOPS = 1e7
# Flops of one worker in one call: less than a second of a slow core, so that Ctrl-C is noticed in
# time.
CALL_FLOPS = 1e10


# A function that is called with the flops of a part of the work, when it is done.
Tell = Callable[[float], None]


def tell_nobody(flops: float) -> None:
    """Tell nobody."""


def factor_in_tiles(A: np.ndarray, n_jobs: int) -> np.ndarray:
    """Return A with L in its lower triangle; entries above the diagonal are undefined.

    (n, n), C-ordered;  n^3/3 flops and no further memory. If A is not positive definite,
    LinAlgError is raised, and A has been overwritten.
    """
    LowerTiles.of(A, n_jobs).factor()
    return A


def tile_size(n: int) -> int:
    """Return the rows of a tile, at most MAX_TILE_ROWS, such that little of the last is empty."""
    count = -(-n // MAX_TILE_ROWS)
    return n if count <= 1 else -(-n // (count * TILE_ROWS_UNIT)) * TILE_ROWS_UNIT


def row_groups(
    first: int, last: int, least: int, tiles_at_once: float
) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive rows of tiles, from row `first` to `last` - 1.

    A group has at most that many tiles from column `least` to the diagonal, or a single row.
    """
    while first < last:
        stop, tiles = first, 0
        while stop < last and (stop == first or tiles + stop - least < tiles_at_once):
            tiles += stop - least + 1
            stop += 1
        yield first, stop
        first = stop


@dataclass(frozen=True)
class TileCuts:
    """The cut of an (n, n) matrix into lower tiles of `size` rows and columns."""

    n: int
    size: int

    @property
    def count(self) -> int:
        """Return the number of rows of tiles."""
        return -(-self.n // self.size)

    def span(self, i: int) -> slice:
        """Return the rows of the i-th row of tiles."""
        return slice(i * self.size, min((i + 1) * self.size, self.n))

    def pairs(self) -> list[tuple[int, int]]:
        """Return (i, j) of all lower tiles. Rows with the most tiles come first."""
        return [(i, j) for i in range(self.count - 1, -1, -1) for j in range(i + 1)]


def _numbers_of(tiles: LowerTiles) -> dict[str, Any]:
    """Return what a file keeps of tiles: the numbers of the triangle."""
    return {"n": tiles.n, "triangle": tiles.to_triangle()}


def _tiles_of(n: int, triangle: np.ndarray) -> LowerTiles:
    """Return packed tiles from what `_numbers_of` returned."""
    return LowerTiles.of_triangle(triangle, n, n_jobs=1)


@stored(take=_numbers_of, make=_tiles_of)
@dataclass(frozen=True)
class LowerTiles(TileCuts):
    """The lower triangle of an (n, n) matrix in a one-dimensional buffer, in tiles.

    A `packed` buffer holds one tile after the other, in n^2/2 numbers and a strip. Otherwise the
    buffer is a row-major (n, n) matrix. Entries above the diagonal are neither read nor kept.
    """

    buffer: np.ndarray
    n_jobs: int
    packed: bool = False

    @classmethod
    def of(cls, A: np.ndarray, n_jobs: int) -> LowerTiles:
        """Return the tiles of a C-ordered matrix, which they share memory with;  (n, n)."""
        assert A.flags.c_contiguous
        return cls(len(A), tile_size(len(A)), A.reshape(-1), n_jobs)

    @classmethod
    def pack_into(cls, buffer: np.ndarray, n: int, n_jobs: int) -> LowerTiles:
        """Return packed tiles of n rows at the beginning of a buffer, which they share."""
        return cls(n, tile_size(n), buffer[: packed_length(n)], n_jobs, packed=True)

    @classmethod
    def empty(cls, n: int, dtype: Any, n_jobs: int) -> LowerTiles:
        """Return packed tiles of n rows in a buffer of their own, with undefined entries."""
        return cls.pack_into(np.empty(packed_length(n), dtype), n, n_jobs)

    @classmethod
    def of_triangle(cls, triangle: np.ndarray, n: int, n_jobs: int) -> LowerTiles:
        """Return packed tiles of a lower triangle that has one row after the other.

        (n (n + 1) / 2,). Entries above the diagonal become 0.
        """
        must(triangle.shape == (n * (n + 1) // 2,), "a triangle of its tiles has another size")
        tiles = cls.empty(n, triangle.dtype, n_jobs)
        tiles.buffer[:] = 0
        for i in range(n):
            tiles._put_row(i, triangle[i * (i + 1) // 2 :][: i + 1])
        return tiles

    def to_triangle(self) -> np.ndarray:
        """Return the lower triangle, one row after the other;  (n (n + 1) / 2,)."""
        triangle = np.empty(self.n * (self.n + 1) // 2, self.buffer.dtype)
        for i in range(self.n):
            triangle[i * (i + 1) // 2 :][: i + 1] = self._row(i)
        return triangle

    def to_matrix(self) -> np.ndarray:
        """Return the lower triangle as a matrix with zeros above the diagonal;  (n, n)."""
        matrix = np.zeros((self.n, self.n), self.buffer.dtype)
        for i, row in enumerate(matrix):
            row[: i + 1] = self._row(i)
        return matrix

    def tile(self, i: int, j: int) -> np.ndarray:
        """Return tile (i, j), which shares memory with the buffer."""
        start = loops.tile_start.py_func(self.n, self.size, self.packed, i, j)
        m, w = (self.span(k).stop - self.span(k).start for k in (i, j))
        width = self.size if self.packed else self.n
        flat = self.buffer[start : start + (m - 1) * width + w]
        strides = (width * flat.itemsize, flat.itemsize)
        return np.lib.stride_tricks.as_strided(flat, (m, w), strides)

    def _row(self, i: int) -> np.ndarray:
        """Return row i up to the diagonal;  (i + 1,)."""
        block, r = divmod(i, self.size)
        return np.concatenate([self.tile(block, j)[r] for j in range(block + 1)])[: i + 1]

    def _put_row(self, i: int, row: np.ndarray) -> None:
        """Write row i up to the diagonal;  (i + 1,)."""
        block, r = divmod(i, self.size)
        for j in range(block + 1):
            part = row[j * self.size : (j + 1) * self.size]
            self.tile(block, j)[r, : part.size] = part

    def diagonal(self) -> np.ndarray:
        """Return the diagonal in float64;  (n,)."""
        diagonals = [self.tile(k, k).diagonal() for k in range(self.count)]
        return np.concatenate(diagonals).astype(float)

    def copy(self) -> LowerTiles:
        """Return these tiles in a buffer of their own."""
        return replace(self, buffer=self.buffer.copy())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the buffer."""
        return self.buffer.dtype

    @property
    def layout(self) -> tuple[int, int, bool]:
        """Return n, the rows of a tile, and whether tiles are packed, as the loops take them."""
        return self.n, self.size, self.packed

    @property
    def loop_jobs(self) -> int:
        """Return the number of threads of a loop over these tiles. A single tile takes one."""
        return self.n_jobs if self.count > 1 else 1

    def factor(self, tell: Tell = tell_nobody) -> None:
        """Replace C by its Cholesky factor L;  n^3/3 flops.

        If C is not positive definite, LinAlgError is raised, and C has been overwritten. `tell` is
        called with the flops of each part, when it is done.
        """
        at_once = self.loop_jobs * CALL_FLOPS / (2.0 * self.size**3)
        failed = np.zeros(1, np.int64)
        with tile_threads(self.loop_jobs) as threads:
            failed[0] = loops.factor_first_tile(*self.layout, self.buffer)
            for k in range(self.count):
                if failed[0]:
                    raise np.linalg.LinAlgError(f"The pivots of rows from {k * self.size} fail.")
                threads.run(loops.factor_column, *self.layout, k, self.buffer)
                for group in row_groups(k + 1, self.count, k + 1, at_once):
                    arrays = self.buffer, failed
                    threads.run(loops.update_rows, *self.layout, k, *group, *arrays)
                left = self.count - k - 1
                tell(float(self.size) ** 3 * (left * (left + 1) + 1 / 3))

    def half_solve(self, B: np.ndarray) -> None:
        """Replace rows B by B L^-T;  (c, n), C-ordered;  n^2 c flops."""
        self._solve(B, backward=False)

    def back_solve(self, B: np.ndarray) -> None:
        """Replace rows B by B L^-1;  (c, n), C-ordered;  n^2 c flops."""
        self._solve(B, backward=True)

    def solve(self, B: np.ndarray) -> None:
        """Replace rows B by B C^-1 = B L^-T L^-1;  (c, n), C-ordered;  2 n^2 c flops."""
        self.half_solve(B)
        self.back_solve(B)

    def _solve(self, B: np.ndarray, backward: bool) -> None:
        assert B.flags.c_contiguous
        chunks = next(chunks for rows, chunks in CHUNKS_BELOW if len(B) < rows)
        chunk = min(MAX_CHUNK_ROWS, max(MIN_CHUNK_ROWS, -(-len(B) // chunks)))
        chunks_per_worker = max(1, int(CALL_FLOPS / (float(self.n) ** 2 * chunk)))
        is_small = float(self.n) ** 2 * len(B) < SMALL_SOLVE_FLOPS
        n_jobs = 1 if is_small else self.n_jobs
        step = chunks_per_worker * chunk * n_jobs
        with tile_threads(n_jobs) as threads:
            for start in range(0, len(B), step):
                some = B[start : start + step].reshape(-1)
                threads.run(loops.solve_rows, *self.layout, backward, chunk, self.buffer, some)

    def invert_factor(self, tell: Tell = tell_nobody) -> None:
        """Replace L by X = L^-1;  n^3/3 flops, which `tell` is called with as in `factor`.

        Neighbouring blocks of one tile are joined first, then blocks of two tiles, and so on.
        """
        strips_per_tile = -(-self.size // loops.STRIP)
        with tile_threads(self.loop_jobs) as threads:
            threads.run(loops.invert_diagonal_tiles, *self.layout, self.buffer)
            width = 1
            while width < self.count:
                pairs = -(-(self.count - width) // (2 * width))
                # The lower block of the last pair may have fewer rows than `width` tiles.
                rows = min(pairs * width, self.count - pairs * width)
                flops = float(loops.STRIP) * (width * self.size) ** 2
                step = max(1, int(CALL_FLOPS / flops)) * self.loop_jobs
                for loop, tiles in (
                    (loops.multiply_block_rows, rows),
                    (loops.multiply_block_columns, pairs * width),
                ):
                    strips = tiles * strips_per_tile
                    for first in range(0, strips, step):
                        last = min(strips, first + step)
                        threads.run(loop, *self.layout, width, first, last, self.buffer)
                        tell((last - first) * flops)
                width *= 2

    def inverse_diagonal(self) -> np.ndarray:
        """Return the diagonal of C^-1, the sums of squares of the columns of L^-1;  (n,).

        n^3/3 flops, in a copy of the tiles.
        """
        X = self.copy()
        X.invert_factor()
        total = np.zeros(self.n)
        for k in range(self.count):
            total[self.span(k)] += np.square(np.tril(X.tile(k, k))).sum(axis=0, dtype=float)
            for i in range(k + 1, self.count):
                total[self.span(k)] += np.square(X.tile(i, k)).sum(axis=0, dtype=float)
        return total

    def invert(self, tell: Tell = tell_nobody) -> None:
        """Replace L by the lower triangle of C^-1 = L^-T L^-1;  2 n^3/3 flops."""
        self.invert_factor(tell)
        own = np.empty(self.size**2, self.buffer.dtype)
        with tile_threads(self.loop_jobs) as threads:
            for i in range(self.count):
                loops.square_diagonal_tile(*self.layout, i, self.buffer, own)
                threads.run(loops.square_row, *self.layout, i, self.buffer, own)
                tell(self.inverse_flops(i, i + 1))

    def inverse_flops(self, first: int, last: int) -> float:
        """Return the flops of some rows of tiles of L^-T L^-1, given L^-1;  n^3/3 in all."""
        tiles = sum((i + 1) * (self.count - i) for i in range(first, last))
        return 2.0 * float(self.size) ** 3 * tiles


def packed_length(n: int) -> int:
    """Return the length of a packed buffer of n rows."""
    if not n:
        return 0
    size = tile_size(n)
    count = -(-n // size)
    return count * (count + 1) // 2 * size * size


def longest_buffer(n: int) -> int:
    """Return the length of a buffer in which any number of rows up to n can be packed.

    Where another row of tiles begins, all tiles become smaller, and so does the buffer.
    """
    full_tiles = n // MAX_TILE_ROWS * MAX_TILE_ROWS
    return max(packed_length(n), packed_length(full_tiles))
