"""The covariance C of a sparse Z, on the pairs of rows that share a feature.

C_ij = k(x_i, x_j) <z_i, z_j> is exactly 0 if two rows share no feature, so C has the pattern of
ZZ^T. The pairs of its lower triangle are listed once per fit, with <z_i, z_j> and |x_i - x_j|^2.
Other parameters then take one exponential per pair, and a product takes two additions per pair
and column.

The rows are cut into blocks, and a tile contains the pairs of two blocks. In a product, a tile adds
to the rows of both of its blocks. So tiles are worked on in rounds, like the matches of a
tournament in which every block plays once per round: no two workers write to the same row, there
are no partial sums, and the order of every sum does not depend on the number of workers.
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

# The rows are cut into this many blocks, half of which can be worked on at the same time.
USUAL_BLOCKS = 16
# There are fewer blocks if a tile would have fewer pairs than this on average, which is too little
# work for a round.
MIN_TILE_PAIRS = 200_000
# There are more blocks if one would have more rows than this, since the pairs of a tile are counted
# in 32 bits.
MAX_BLOCK_ROWS = 32_768
# Pairs (least density, rows per strip): from a density of 10% on, strips have 128 rows, otherwise
# 512. The vectors of a short strip stay in the cache, and long strips save loops over rows that
# have no pairs.
STRIP_ROWS_BY_DENSITY = ((0.1, 128), (0.0, 512))
# The kernel is computed for this many pairs at once, which stay in the second-level cache.
CHUNK_PAIRS = 2**15
# The time of a pair in a product with 16 columns, on two cores.
PAIR_NS = 1.1
# The memory of a pair: column, inner product (4 bytes if float32 represents it exactly), squared
# distance, and kernel value.
PAIR_BYTES = 2 + 8 + 8 + 4


@dataclass(frozen=True)
class Tile:
    """The pairs of two blocks of rows, in the order that `compiled.sparse` describes.

    `at` (strips, rows + 1) points into the other arrays, which have an entry per pair: the column,
    counted from the first row of its strip, the inner product <z_i, z_j>, and the squared distance
    |x_i - x_j|^2. A tile on the diagonal contains each pair once, with the later row first.
    """

    rows: slice
    cols: slice
    strip: int
    at: np.ndarray
    columns: np.ndarray
    inner: np.ndarray
    squared: np.ndarray

    @property
    def listed(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Return the first three arguments of all compiled loops over pairs."""
        return self.strip, self.at, self.columns

    @property
    def size(self) -> int:
        """Return the number of pairs."""
        return self.columns.size


@dataclass(frozen=True)
class Pairs:
    """All pairs of distinct rows that share a feature; they do not depend on the parameters.

    Each of the `rounds` is a list of tiles no two of which share a block.
    """

    rounds: list[list[Tile]]

    @classmethod
    def of(
        cls,
        data: TrainingRows,
        kernel: Kernel,
        session: Session,
        allow: Callable[[int], None] = lambda count: None,
    ) -> Pairs:
        """Return the pairs of training rows.

        The pairs are counted first. Then `allow(count)` may raise an error, for example if memory
        is short, before they are listed. Both passes take an addition for every feature that two
        rows share; distances take 3 p flops per pair.
        """
        assert isinstance(data.Z, SparseFeatures)
        density, x = data.Z.pair_density, kernel.vectors(data.x)
        strip = next(size for least, size in STRIP_ROWS_BY_DENSITY if density >= least)
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
        """Return the tiles of all rounds."""
        return [tile for one in self.rounds for tile in one]

    def __len__(self) -> int:
        return sum(tile.size for tile in self.tiles)


def _blocks(n: int, strip: int, density: float) -> list[slice]:
    """Return an even number of blocks, which begin at multiples of `strip`.

    There are fewer blocks if there are few pairs.
    """
    count = max(
        2, min(USUAL_BLOCKS, int(n * np.sqrt(density / MIN_TILE_PAIRS))), -(-n // MAX_BLOCK_ROWS)
    )
    count += count % 2
    strips = -(-n // strip)
    edges = [min(n, strip * ((strips * k) // count)) for k in range(count)] + [n]
    return [slice(a, b) for a, b in pairwise(edges)]


def _tournament(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs of blocks, such that no block is twice in a round.

    The first round has every block with itself. In the others, every two blocks meet once, and the
    later block of a pair comes first. This is the circle method of round-robin tournaments.
    """
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
    """Return the pointers `Tile.at` to the pairs of two blocks;  (strips, a + 1)."""
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
    """Return the columns and the inner products of the pairs of two blocks;  (pairs,), (pairs,).

    Inner products are float32 if that is exact, as it is for counts.
    """
    rows, block = parts[i], parts[j]
    columns, inner = np.empty(pointers[-1, -1], np.uint16), np.empty(pointers[-1, -1])
    args = rows.pointers, rows.indices, rows.values, *block.by_feature
    sparse_loops.fill_pairs(strip, *args, len(block), i == j, pointers, columns, inner)
    rounded = inner.astype(np.float32)
    return columns, rounded if (rounded == inner).all() else inner


def _distances(
    x: Any,
    rows: slice,
    cols: slice,
    strip: int,
    at: np.ndarray,
    columns: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write |x_i - x_j|^2 of the pairs of two blocks into `out`;  (pairs,);  3 p flops each."""
    if isinstance(x, SparseFeatures):
        a, b = x[rows], x[cols]
        left, right = (a.pointers, a.indices, a.values), (b.pointers, b.indices, b.values)
        sparse_loops.sparse_pair_distances(strip, at, columns, *left, *right, out)
    else:
        sparse_loops.pair_distances(strip, at, columns, x[rows], x[cols], out)


@dataclass(frozen=True)
class PairCovariance(Covariance):
    """The covariance C on the pairs of rows that share a feature.

    In float32, the values of the pairs are kept. In float64, they are computed for each product.
    """

    pairs: Pairs = None  # type: ignore[assignment]

    def _values(self, tile: Tile) -> np.ndarray:
        """Return S of the pairs of a tile;  (pairs,);  one exponential per pair."""
        out = tile.inner.astype(self.dtype)
        for chunk in slices(tile.size, CHUNK_PAIRS):
            self.weight_prior.kernel.multiply_at(tile.squared[chunk], out[chunk])
        return out

    @cached_property
    def _kept(self) -> dict[int, np.ndarray]:
        """Return the values of all tiles, by the id of the tile."""
        tiles = self.pairs.tiles
        values = self.session.executor.map(self._values, tiles)
        return {id(tile): found for tile, found in zip(tiles, values, strict=True)}

    def _prepare(self) -> None:
        """Compute what all tiles share, before several workers would compute it at once."""
        self.prepared, self.diagonal  # noqa: B018
        if self.dtype == np.float32:
            self._kept  # noqa: B018

    @property
    def product_cost(self) -> float:
        return PAIR_NS * len(self.pairs)

    def matmul(self, V: np.ndarray) -> np.ndarray:
        """Return C V;  (n, c) -> (n, c).

        Each pair is read once for PANEL_COLUMNS columns and both triangles.
        """
        self._prepare()
        out: np.ndarray = self.diagonal[:, None] * V
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
        """Return sum_c u_c^T (dC/dtheta) v_c for every parameter;  (n, c), (n, c) -> (t,).

        Two exponentials and 4 c flops per pair.
        """
        self._prepare()
        kernel = self.weight_prior.kernel
        left, right = aligned(U.shape, self.dtype), aligned(V.shape, self.dtype)
        left[...], right[...] = U, V

        def one(tile: Tile) -> np.ndarray:
            G = tile.inner.astype(self.dtype)
            blocks = left[tile.rows], right[tile.rows], left[tile.cols], right[tile.cols]
            sparse_loops.pair_weights(*tile.listed, *blocks, G)
            total = np.zeros(kernel.theta.size)
            for chunk in slices(tile.size, CHUNK_PAIRS):
                total += kernel.gradient_at(tile.squared[chunk], G[chunk]).sum(axis=1, dtype=float)
            return total

        both = np.einsum("ij,ij->i", U, V)
        along = np.sum(self.session.executor.map(one, self.pairs.tiles), axis=0)
        along = along + self._diagonal_gradient * (both @ self.rows.Z.squared_norms())
        return np.concatenate([along, both @ self.noise_gradient])

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dC/dtheta_t) v for every parameter;  (n,) -> (n, t);  2 exponentials per pair."""
        self._prepare()
        kernel = self.weight_prior.kernel
        out = (v * self.rows.Z.squared_norms())[:, None] * self._diagonal_gradient

        def one(tile: Tile) -> None:
            gradient = np.empty((kernel.theta.size, tile.size), self.dtype)
            G = tile.inner.astype(self.dtype)
            for chunk in slices(tile.size, CHUNK_PAIRS):
                gradient[:, chunk] = kernel.gradient_at(tile.squared[chunk], G[chunk])
            out_rows, out_cols = (
                np.zeros((s.stop - s.start, len(gradient))) for s in (tile.rows, tile.cols)
            )
            sparse_loops.pair_tangents(
                *tile.listed, gradient, v[tile.rows], v[tile.cols], out_rows, out_cols
            )
            out[tile.rows] += out_rows
            out[tile.cols] += out_cols

        for tiles in self.pairs.rounds:
            self.session.executor.map(one, tiles)
        return np.hstack([out, v[:, None] * self.noise_gradient])

    @property
    def _diagonal_gradient(self) -> np.ndarray:
        """Return dk(x, x)/dtheta, which is the same for all x;  (t,)."""
        gradient: np.ndarray = self.weight_prior.kernel.gradient_at(np.zeros(1), np.ones(1))
        return gradient[:, 0]


def covariances(
    data: TrainingRows,
    hyperparameters: Hyperparameters,
    session: Session,
    form: str,
    dtype: Any,
    pairs: Pairs | None,
) -> tuple[Covariance, Covariance]:
    """Return C for many products, in float32 if that is precise enough, and C in float64.

    `form` is "pairs", "stored" or "recomputed", and `dtype` that of the first one if it need not be
    float64.
    """
    exact = TiledCovariance(data, hyperparameters, session)
    can_round = float32_is_enough(exact)
    if form == "pairs":
        assert pairs is not None
        precise = PairCovariance(data, hyperparameters, session, np.float64, pairs)
        if not can_round:
            return precise, precise
        return PairCovariance(data, hyperparameters, session, dtype, pairs), precise
    if not can_round:
        return exact, exact
    tiles = {"stored": StoredCovariance, "recomputed": TiledCovariance}[form]
    tile_dtype = dtype if hyperparameters.kernel.float32_is_safe(data.x) else np.float64
    return tiles(data, hyperparameters, session, tile_dtype), exact


def float32_is_enough(exact: Covariance) -> bool:
    """Return whether float32 can represent C well enough.

    C has to be in the range of float32. Rounding n^2 numbers moves the eigenvalues of C by about
    eps sqrt(n) times its diagonal, so the noise has to be well above that, or the rounded matrix
    may not be positive definite.
    """
    z_squared, largest = exact.rows.Z.squared_norms().max(), exact.diagonal.max()
    in_range = 1e-25 < largest < 1e25
    if z_squared:
        in_range &= 1e-25 < z_squared < 1e25 and 1e-25 * z_squared < largest < 1e25 * z_squared
    least_noise = 4.0 * np.finfo(np.float32).eps * np.sqrt(len(exact))
    return bool(in_range and (exact.noise / exact.diagonal).min() >= least_noise)
