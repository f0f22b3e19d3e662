"""C of a sparse Z: pairs of rows that share a feature, listed once for a whole fit, and the covariance on them.

C_ij = k(x_i, x_j) <z_i, z_j> is exactly 0 where two rows share no feature, so C has the pattern of ZZ^T. Of every pair in its
lower half we keep <z_i, z_j> and |x_i - x_j|^2; new parameters cost one exponential a pair, a product two additions a column.

Rows are cut into blocks; a tile holds the pairs of two blocks. In a product a tile adds to the rows of both its blocks, so
tiles run in rounds of a tournament, every block playing once a round: no two workers write to the same row, there are no
partial sums, and the order of every sum is that of the rounds, whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ..compiled import sparse as sparse_loops
from ..compiled.sparse import PANEL_COLUMNS
from ..data.features import SparseFeatures
from ..data.inputs import TrainingRows
from ..kernels.kernel import Kernel
from ..model.hyperparameters import Hyperparameters
from ..runtime.memory import aligned
from ..runtime.parallel import slices
from ..runtime.session import Session
from .covariance import Covariance, StoredCovariance, TiledCovariance

BLOCKS = 16  # half of them can be worked on at once
FEWEST_PAIRS = 200_000  # of a tile, in the mean: less is not worth a round
LARGEST_BLOCK = 32_768  # rows: the pairs of a tile are counted in 32 bits
STRIPS = (
    (0.1, 128),
    (0.0, 512),
)  # rows of a strip, from a density on: few stay near the core, many save loops over no pairs
CHUNK = 2**15  # pairs that go through the kernel at once, and stay in the second-level cache
PAIR_NS = 1.1  # of two cores: a pair in a product with 16 columns
PAIR_BYTES = (
    2 + 8 + 8 + 4
)  # column, inner product (4 where float32 has it exactly), squared distance, value


@dataclass(frozen=True)
class Tile:
    """The pairs of two blocks of rows, listed as in `jit_sparse`; on the diagonal each pair once, the later row first."""

    rows: slice
    cols: slice
    strip: int
    at: np.ndarray
    columns: np.ndarray
    inner: np.ndarray
    squared: np.ndarray

    @property
    def listed(self) -> tuple[int, np.ndarray, np.ndarray]:
        """What every kernel takes first."""
        return self.strip, self.at, self.columns

    @property
    def size(self) -> int:
        return self.columns.size


@dataclass(frozen=True)
class Pairs:
    """All pairs of distinct rows that share a feature, whatever the parameters: `rounds` of tiles that share no block."""

    rounds: list[list[Tile]]

    @classmethod
    def of(
        cls,
        data: TrainingRows,
        kernel: Kernel,
        session: Session,
        allow: Callable[[int], None] = lambda count: None,
    ) -> Pairs:
        """Count, then `allow` the count or raise, then list;  an addition for every feature that two rows share, twice, and
        3 p flops a pair."""
        assert isinstance(data.Z, SparseFeatures)
        density, x = data.Z.pair_density, kernel.vectors(data.x)
        strip = next(size for least, size in STRIPS if density >= least)
        blocks = _blocks(len(data), strip, density)
        parts = [data.Z[block] for block in blocks]
        for part in parts:
            part.by_feature  # noqa: B018
        rounds = _tournament(len(blocks))
        counted = [
            session.executor.map(lambda pair: _count(parts, *pair, strip), matches)
            for matches in rounds
        ]
        allow(sum(int(pointers[-1, -1]) for one in counted for pointers in one))

        def fill(job: tuple[tuple[int, int], np.ndarray]) -> Tile:
            (i, j), pointers = job
            columns, inner = _fill(parts, i, j, strip, pointers)
            squared = np.empty(columns.size)
            _distances(x, blocks[i], blocks[j], strip, pointers, columns, squared)
            return Tile(blocks[i], blocks[j], strip, pointers, columns, inner, squared)

        return cls(
            [
                session.executor.map(fill, zip(one, at, strict=True))
                for one, at in zip(rounds, counted, strict=True)
            ]
        )

    @property
    def tiles(self) -> list[Tile]:
        return [tile for one in self.rounds for tile in one]

    def __len__(self) -> int:
        return sum(tile.size for tile in self.tiles)


def _blocks(n: int, strip: int, density: float) -> list[slice]:
    """An even number of blocks, their edges at multiples of `strip` but the last; few where there are few pairs."""
    count = max(2, min(BLOCKS, int(n * np.sqrt(density / FEWEST_PAIRS))), -(-n // LARGEST_BLOCK))
    count += count % 2
    strips = -(-n // strip)
    edges = [min(n, strip * ((strips * k) // count)) for k in range(count)] + [n]
    return [slice(a, b) for a, b in pairwise(edges)]


def _tournament(count: int) -> list[list[tuple[int, int]]]:
    """Every block with itself, then every two blocks (the later first) once: rounds in which no block is twice."""
    rounds = [[(k, k) for k in range(count)]]
    circle = list(range(1, count))
    for _ in circle:
        seats = [0, *circle]
        rounds.append(
            [(max(a, b), min(a, b)) for a, b in zip(seats[: count // 2], seats[::-1], strict=False)]
        )
        circle = [circle[-1], *circle[:-1]]
    return rounds


def _count(parts: list[SparseFeatures], i: int, j: int, strip: int) -> np.ndarray:
    """Pointers of the pairs of two blocks, `at` of `jit_sparse`;  (strips, a + 1)."""
    rows, block = parts[i], parts[j]
    counts = np.zeros((max(1, -(-len(block) // strip)), len(rows)), np.int64)
    starts, docs, _ = block.by_feature
    sparse_loops.count_pairs(
        strip, rows.pointers, rows.indices, starts, docs, len(block), i == j, counts
    )
    ends = np.cumsum(counts).reshape(counts.shape)
    starts_of_strips = np.concatenate([[0], ends[:-1, -1]]) if len(rows) else np.zeros(len(counts))
    return np.column_stack([starts_of_strips, ends]).astype(np.int32)


def _fill(
    parts: list[SparseFeatures], i: int, j: int, strip: int, pointers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Columns and inner products; the latter in float32 where that is exact, as for words and counts."""
    rows, block = parts[i], parts[j]
    columns, inner = np.empty(pointers[-1, -1], np.uint16), np.empty(pointers[-1, -1])
    args = rows.pointers, rows.indices, rows.values, *block.by_feature
    sparse_loops.fill_pairs(strip, *args, len(block), i == j, pointers, columns, inner)
    single = inner.astype(np.float32)
    return columns, single if (single == inner).all() else inner


def _distances(
    x: Any,
    rows: slice,
    cols: slice,
    strip: int,
    at: np.ndarray,
    columns: np.ndarray,
    out: np.ndarray,
) -> None:
    if isinstance(x, SparseFeatures):
        a, b = x[rows], x[cols]
        sparse_loops.sparse_pair_distances(
            strip,
            at,
            columns,
            a.pointers,
            a.indices,
            a.values,
            b.pointers,
            b.indices,
            b.values,
            out,
        )
    else:
        sparse_loops.pair_distances(strip, at, columns, x[rows], x[cols], out)


@dataclass(frozen=True)
class PairCovariance(Covariance):
    """C on the pairs alone. float32: values of the pairs are kept; float64: computed for each product, in chunks."""

    pairs: Pairs = None  # type: ignore[assignment]

    def _values(self, tile: Tile) -> np.ndarray:
        """S of the tile's pairs;  one exponential each."""
        out = tile.inner.astype(self.dtype)
        for chunk in slices(tile.size, CHUNK):
            self.weight_prior.kernel.multiply_at(tile.squared[chunk], out[chunk])
        return out

    @cached_property
    def _kept(self) -> dict[int, np.ndarray]:
        tiles = self.pairs.tiles
        return {
            id(tile): values
            for tile, values in zip(
                tiles, self.session.executor.map(self._values, tiles), strict=True
            )
        }

    def _prepare(self) -> None:
        self.prepared, self.diagonal  # noqa: B018
        if self.dtype == np.float32:
            self._kept  # noqa: B018

    @property
    def product_cost(self) -> float:
        return PAIR_NS * len(self.pairs)

    def matmul(self, V: np.ndarray) -> np.ndarray:
        """C V;  (n, c) -> (n, c);  each pair serves PANEL_COLUMNS columns and both triangles."""
        self._prepare()
        out = self.diagonal[:, None] * V
        for chunk in slices(V.shape[1], PANEL_COLUMNS):
            width = chunk.stop - chunk.start
            right, total = (aligned((len(V), PANEL_COLUMNS), self.dtype) for _ in range(2))
            right[:, :width] = V[:, chunk]

            def multiply(tile: Tile, right: np.ndarray = right, total: np.ndarray = total) -> None:
                values = self._kept[id(tile)] if self.dtype == np.float32 else self._values(tile)
                blocks = right[tile.rows], right[tile.cols], total[tile.rows], total[tile.cols]
                sparse_loops.pair_product(*tile.listed, values, *blocks)

            for one in self.pairs.rounds:
                self.session.executor.map(multiply, one)
            out[:, chunk] += total[:, :width]
        return out

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """sum_c u_c^T dC v_c by every parameter;  (n, c), (n, c) -> (t,);  two exponentials and 4 c flops a pair."""
        self._prepare()
        kernel = self.weight_prior.kernel
        left, right = aligned(U.shape, self.dtype), aligned(V.shape, self.dtype)
        left[...], right[...] = U, V

        def one(tile: Tile) -> np.ndarray:
            G = tile.inner.astype(self.dtype)
            blocks = left[tile.rows], right[tile.rows], left[tile.cols], right[tile.cols]
            sparse_loops.pair_weights(*tile.listed, *blocks, G)
            total = np.zeros(kernel.theta.size)
            for chunk in slices(tile.size, CHUNK):
                total += kernel.gradient_at(tile.squared[chunk], G[chunk]).sum(axis=1, dtype=float)
            return total

        both = np.einsum("ij,ij->i", U, V)
        along = np.sum(
            self.session.executor.map(one, self.pairs.tiles), axis=0
        ) + self._own_slopes * (both @ self.rows.Z.squared_norms())
        return np.concatenate([along, both @ self.noise_gradient])

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """(dC/dtheta_t) v for every parameter;  (n,) -> (n, t);  two exponentials a pair."""
        self._prepare()
        kernel = self.weight_prior.kernel
        out = (v * self.rows.Z.squared_norms())[:, None] * self._own_slopes

        def one(tile: Tile) -> None:
            slopes = np.empty((kernel.theta.size, tile.size), self.dtype)
            G = tile.inner.astype(self.dtype)
            for chunk in slices(tile.size, CHUNK):
                slopes[:, chunk] = kernel.gradient_at(tile.squared[chunk], G[chunk])
            out_rows, out_cols = (
                np.zeros((s.stop - s.start, len(slopes))) for s in (tile.rows, tile.cols)
            )
            sparse_loops.pair_tangents(
                *tile.listed, slopes, v[tile.rows], v[tile.cols], out_rows, out_cols
            )
            out[tile.rows] += out_rows
            out[tile.cols] += out_cols

        for tiles in self.pairs.rounds:
            self.session.executor.map(one, tiles)
        return np.hstack([out, v[:, None] * self.noise_gradient])

    @property
    def _own_slopes(self) -> np.ndarray:
        """dk(x, x)/dtheta;  (t,)."""
        return self.weight_prior.kernel.gradient_at(np.zeros(1), np.ones(1))[:, 0]


def covariances(
    data: TrainingRows,
    hyperparameters: Hyperparameters,
    session: Session,
    form: str,
    dtype: Any,
    pairs: Pairs | None,
) -> tuple[Covariance, Covariance]:
    """C for many products, in float32 where that will do, in its form; and in float64."""
    exact = TiledCovariance(data, hyperparameters, session)
    fine = single_will_do(exact)
    if form == "pairs":
        assert pairs is not None
        precise = PairCovariance(data, hyperparameters, session, np.float64, pairs)
        return PairCovariance(
            data, hyperparameters, session, dtype, pairs
        ) if fine else precise, precise
    if not fine:
        return exact, exact
    tiles = {"stored": StoredCovariance, "recomputed": TiledCovariance}[form]
    return tiles(
        data,
        hyperparameters,
        session,
        dtype if hyperparameters.kernel.float32_is_safe(data.x) else np.float64,
    ), exact


def single_will_do(exact: Covariance) -> bool:
    """Whether float32 keeps the digits and the range of C.

    Rounding n^2 numbers to float32 moves the eigenvalues of C by about eps sqrt(n) of its diagonal: where the noise is not far
    above that, the rounded matrix need not be positive.
    """
    z_squared, largest = exact.rows.Z.squared_norms().max(), exact.diagonal.max()
    in_range = 1e-25 < largest < 1e25
    if z_squared:
        in_range &= 1e-25 < z_squared < 1e25 and 1e-25 * z_squared < largest < 1e25 * z_squared
    return in_range and (exact.noise / exact.diagonal).min() >= 4.0 * np.finfo(
        np.float32
    ).eps * np.sqrt(len(exact))
