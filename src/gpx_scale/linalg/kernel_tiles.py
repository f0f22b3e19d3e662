"""S = K o ZZ^T of rows in memory, whose tiles are formed in compiled loops when they are used.

Every operation is a sequence of parallel loops (`compiled.kernel_tiles`). A tile is formed, used
and forgotten, for all columns of a product at once. All sums are in the order of the tiles, so
results have the same bits for any number of threads. Python runs between the loops, where Ctrl-C is
noticed.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..compiled import kernel_tiles as loops
from ..data.features import Features, SparseFeatures
from ..kernels.kernel import Profile
from ..runtime.tile_loops import Threads, tile_threads
from .lower_tiles import CALL_FLOPS, LowerTiles, Tell, row_groups, tell_nobody, tile_size

# A product has this many partial sums, each of which is computed by one worker.
PARTIAL_SUMS = 16
# A product with more columns is computed in parts of this many, which limits the partial sums.
# A product of 32 columns takes 0.8 times as long per column as one of 16.
PRODUCT_COLUMNS = 32
# Entries of S that one worker forms in one call: less than a second of a slow core, so that Ctrl-C
# is noticed in time.
CALL_ENTRIES = 5e7


def product_order(count: int) -> np.ndarray:
    """Return which strips of tiles each group of a product takes, as `compiled` loops take it.

    (steps, groups), with -1 where a group has no more strips. Strips are given to the groups in
    turn, forwards and backwards, from the longest to the shortest, so that all groups have about
    equally many tiles.
    """
    groups = min(PARTIAL_SUMS, count)
    order = np.full((-(-count // groups), groups), -1)
    for k, strip in enumerate(range(count - 1, -1, -1)):
        turn, at = divmod(k, groups)
        order[turn, at if turn % 2 == 0 else -1 - at] = strip
    return order


class FormedTiles(abc.ABC):
    """The matrix S (n, n) in tiles that are formed when they are used.

    A subclass gives the arrays that the loops take.
    """

    n_jobs: int

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the tiles."""

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """Return the number of derivatives that a contraction gives for each row or tile."""

    @property
    @abc.abstractmethod
    def _kernel(self) -> tuple[Any, ...]:
        """Return the kernel, or those of all terms, as the loops take them."""

    @property
    @abc.abstractmethod
    def _points(self) -> tuple[np.ndarray, ...]:
        """Return the points of the kernel, or of all kernels."""

    @property
    @abc.abstractmethod
    def _by_column(self) -> bool:
        """Return whether there are derivatives by the length scale of every column of x."""

    @property
    @abc.abstractmethod
    def _features(self) -> Any:
        """Return Z as the loops take it."""

    @property
    @abc.abstractmethod
    def _squares(self) -> np.ndarray:
        """Return x and x^2 for the tangents of one kernel;  (n, 2 p)."""

    @property
    def size(self) -> int:
        """Return the number of rows of a tile."""
        return tile_size(len(self))

    @property
    def count(self) -> int:
        """Return the number of rows of tiles."""
        return -(-len(self) // self.size)

    @property
    def _loop_jobs(self) -> int:
        """Return the number of threads of a loop. A single tile takes one."""
        return self.n_jobs if self.count > 1 else 1

    def _threads(self) -> Any:
        return tile_threads(self._loop_jobs)

    def _groups(self) -> Iterator[tuple[int, int]]:
        """Yield groups of rows of tiles, each for one call that forms tiles."""
        at_once = self._loop_jobs * CALL_ENTRIES / self.size**2
        return row_groups(0, self.count, 0, at_once)

    def fill(self, tiles: LowerTiles, diagonal: np.ndarray) -> None:
        """Fill tiles with S, and with `diagonal` (n,) on its diagonal;  n^2/2 kernel values."""
        with self._threads() as threads:
            for group in self._groups():
                arrays = self._kernel, self._points, self._features, diagonal, tiles.buffer
                threads.run(loops.fill_rows, *tiles.layout, *group, *arrays)

    def contract_inverse(
        self, tiles: LowerTiles, alpha: np.ndarray, tell: Tell = tell_nobody
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of alpha alpha^T - C^-1 with the derivatives of S, and diag(C^-1).

        (n,) -> (width,), (n,). The tiles hold L^-1. This takes n^3/3 flops and n^2/2 kernel values;
        derivatives by column take 2 p flops more per entry. `tell` is called with the flops of each
        part, when it is done.
        """
        sums, diagonal = self._sums(), np.empty(len(self))
        kernel = self._kernel, self._by_column, self._points, self._features
        with self._threads() as threads:
            for group in self._heavy_groups():
                arrays = *kernel, alpha, tiles.buffer, diagonal, sums
                threads.run(loops.contract_inverse, *tiles.layout, *group, *arrays)
                tell(tiles.inverse_flops(*group))
        return sums.sum(axis=0), diagonal

    def _sums(self) -> np.ndarray:
        """Return zeros for the sums of each lower tile;  (tiles, width)."""
        return np.zeros((self.count * (self.count + 1) // 2, self.width))

    def _heavy_groups(self) -> Iterator[tuple[int, int]]:
        """Yield groups of rows of tiles, for calls that compute tiles of the inverse.

        A tile in row i takes 2 size^3 (count - i) flops.
        """
        first, most = 0, self._loop_jobs * CALL_FLOPS / (2.0 * self.size**3)
        while first < self.count:
            last, products = first, 0.0
            while last < self.count and (last == first or products < most):
                products += (last + 1) * (self.count - last)
                last += 1
            yield first, last
            first = last

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return sums of (U V^T + V U^T)/2 with the derivatives of S;  (n, c) each -> (width,).

        This takes n^2/2 kernel values and 4 c flops per entry.
        """
        dtype = self.dtype
        # Of a matrix by columns, loops would copy all rows for every strip of a tile.
        left, right = (np.ascontiguousarray(np.hstack(b), dtype) for b in ([U, V], [V, U]))
        sums = self._sums()
        kernel = self._kernel, self._by_column, self._points, self._features
        with self._threads() as threads:
            for group in self._groups():
                arrays = *kernel, left, right, sums
                threads.run(loops.contract_products, len(self), self.size, *group, *arrays)
        # A diagonal tile contains both triangles.
        on_diagonal = np.cumsum(np.arange(1, self.count + 1)) - 1
        sums[on_diagonal] *= 0.5
        total: np.ndarray = sums.sum(axis=0)
        return total

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return sums over j of v_j with the derivatives of S_ij, for each row i.

        (n,) -> (n, width);  n^2 kernel values.
        """
        n = len(self)
        out = np.empty((n, self.width))
        kernel = self._kernel, self._by_column, self._points, self._squares, self._features
        strips = -(-n // loops.STRIP_ROWS)
        step = max(1, int(CALL_ENTRIES / (n * loops.STRIP_ROWS))) * self._loop_jobs
        with self._threads() as threads:
            for first in range(0, strips, step):
                arrays = *kernel, v.astype(self.dtype), out
                last = min(strips, first + step)
                threads.run(loops.tangent_rows, n, self.size, first, last, *arrays)
        return out

    def matmul(self, V: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
        """Return (S + diag(diagonal - diag S)) V;  (n, c), (n,) -> (n, c);  2 n^2 c flops."""

        def run(threads: Threads, *arrays: Any) -> None:
            *steps, right, partial = arrays
            kernel = self._kernel, self._points, self._features
            at = len(self), self.size, *steps
            threads.run(loops.multiply_formed, *at, *kernel, right, partial)

        right = V.astype(self.dtype, copy=False)
        return grouped_product(run, self.count, self._loop_jobs, right, V, diagonal)

    def quadratic(self, X: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
        """Return x.(S + diag(diagonal - diag S)) x for each row of X.

        (c, n), (n,) -> (c,);  n^2 c flops, half of those of a product.
        """
        order = product_order(self.count)
        partial = np.zeros((order.shape[1], len(X)))
        kernel = self._kernel, self._points, self._features
        step = self._steps_at_once(order, len(X))
        with self._threads() as threads:
            for first in range(0, len(order), step):
                last = min(len(order), first + step)
                arrays = order, *kernel, X, partial
                threads.run(loops.quadratic_formed, len(self), self.size, first, last, *arrays)
        total: np.ndarray = np.square(X) @ diagonal + partial.sum(axis=0)
        return total

    def _steps_at_once(self, order: np.ndarray, columns: int) -> int:
        """Return how many strips each group takes in one call of a product with many columns."""
        flops = 2.0 * columns * self.size * len(self) * order.shape[1]
        return max(1, int(self._loop_jobs * CALL_FLOPS / flops))

    def matmul_rows(self, X: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
        """Return X (S + diag(diagonal - diag S));  (c, n), (n,) -> (c, n);  2 n^2 c flops.

        It is for hundreds of rows of X, for which the partial sums of `matmul` would be too large.
        """
        out = np.empty_like(X)
        kernel = self._kernel, self._points, self._features
        flops = 2.0 * len(X) * self.size * len(self)
        step = max(1, int(CALL_FLOPS / flops)) * self._loop_jobs
        with self._threads() as threads:
            for first in range(0, self.count, step):
                last = min(self.count, first + step)
                arrays = *kernel, X, out
                threads.run(loops.multiply_rows, len(self), self.size, first, last, *arrays)
        out += X * diagonal
        return out


@dataclass(frozen=True)
class KernelTiles(FormedTiles):
    """The matrix S of a kernel's `profile` and a Z, (n, n), without storing it.

    Z is dense or sparse, and of the dtype of the profile. The derivatives are 3 + p sums
    (`compiled.dense.contract_profile`).
    """

    profile: Profile
    Z: Features
    n_jobs: int

    def __len__(self) -> int:
        return len(self.profile.left)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.profile.left.dtype

    @property
    def width(self) -> int:
        return 3 + int(self.profile.points.shape[1])

    @property
    def _kernel(self) -> tuple[Any, ...]:
        profile = self.profile
        return profile.family, profile.shape, profile.scale, profile.near

    @property
    def _points(self) -> tuple[np.ndarray, ...]:
        return self.profile.left, self.profile.right, self.profile.points

    @property
    def _by_column(self) -> bool:
        return self.profile.by_column

    @cached_property
    def _features(self) -> Any:
        """Return Z as the loops take it: a matrix, or the arrays of sparse rows and features."""
        Z = self.Z
        if isinstance(Z, SparseFeatures):
            starts, docs, values = Z.by_feature
            by_row = Z.pointers, Z.indices, Z.values.astype(self.dtype, copy=False)
            return *by_row, starts, docs, values.astype(self.dtype, copy=False)
        return np.ascontiguousarray(Z.to_dense())

    @property
    def _squares(self) -> np.ndarray:
        x = self.profile.points
        return np.hstack([x, x**2])


def stored_product(tiles: LowerTiles, V: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """Return (S + diag(diagonal)) V from packed tiles of S, whose diagonal is 0.

    (n, c), (n,) -> (n, c);  2 n^2 c flops. The diagonal tiles hold both triangles.
    """

    def run(threads: Threads, *arrays: Any) -> None:
        *steps, right, partial = arrays
        at = tiles.n, tiles.size, *steps
        threads.run(loops.multiply_stored, *at, tiles.buffer, right, partial)

    right = V.astype(tiles.dtype, copy=False)
    return grouped_product(run, tiles.count, tiles.loop_jobs, right, V, diagonal)


def grouped_product(
    run: Callable[..., None],
    count: int,
    n_jobs: int,
    right: np.ndarray,
    V: np.ndarray,
    diagonal: np.ndarray,
) -> np.ndarray:
    """Return diag(diagonal) V plus the product of tiles with `right`, by partial sums;  (n, c).

    `right` is V in the dtype of the tiles, of which there are `count` rows.
    `run(threads, first, last, order, columns, partial)` adds the products of strips
    order[first:last] with some columns to partial sums (groups, n, c).
    """
    n, order, out = len(V), product_order(count), np.empty(V.shape)
    step = max(1, int(n_jobs * CALL_ENTRIES * 2 * len(order) / float(n) ** 2))
    with tile_threads(n_jobs) as threads:
        for at in range(0, V.shape[1], PRODUCT_COLUMNS):
            chunk = slice(at, at + PRODUCT_COLUMNS)
            columns = np.ascontiguousarray(right[:, chunk])
            partial = np.zeros((order.shape[1], *columns.shape))
            for first in range(0, len(order), step):
                last = min(len(order), first + step)
                run(threads, first, last, order, columns, partial)
            own = np.ascontiguousarray(V[:, chunk], float)
            threads.run(loops.add_partial_sums, diagonal, own, partial, at, out)
    return out
