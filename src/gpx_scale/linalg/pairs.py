"""The list of pairs of sparse rows that share a feature; it does not depend on the parameters.

The rows are cut into blocks, and a tile contains the pairs of two blocks. In a product, a tile adds
to the rows of both of its blocks. So tiles are worked on in rounds, like the matches of a
tournament in which every block plays once per round: no two workers write to the same row, there
are no partial sums, and the order of every sum does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compiled import pair_listing
from ..compiled.pair_listing import Blocks, Runs
from ..data.features import SparseFeatures
from ..data.inputs import TrainingRows
from ..kernels.kernel import Kernel
from ..runtime.session import Session
from ..runtime.tile_loops import Threads, tile_threads

# The rows are cut into this many blocks, half of which can be worked on at the same time.
USUAL_BLOCKS = 32
# There are fewer blocks if a tile would have fewer pairs than this on average, about 7 microseconds
# of work, because the threads of a round wait for each other at its end.
MIN_TILE_PAIRS = 8_000
# There are more blocks if one would have more rows than this, since the rows of a block are counted
# in 16 bits.
MAX_BLOCK_ROWS = 32_768
# Blocks and strips begin at multiples of this, since the listing marks rows in words of 64 bits.
WORD_ROWS = 64
# Pairs (least density, rows per strip). The vectors of a short strip stay in the first-level cache,
# and long strips have long runs: at a density of 0.2, a pair takes 0.62 ns on one core with strips
# of 256 rows and 0.74 with 512, and at 0.03 it takes 0.98 ns with 384 and 0.94 with 768.
STRIP_ROWS_BY_DENSITY = ((0.1, 256), (0.0, 768))
# Workers list the pairs of this many parts of the rows in one call, so that they end together.
LISTING_PARTS = 64
# Features shared by pairs of rows, of which one call takes so many additions: less than a second of
# one core, so that Ctrl-C is noticed in time.
CALL_ADDITIONS = 2e8
# Numbers that the distances of one call take, for the same reason.
CALL_DIFFERENCES = 5e8
# The memory of a pair: column, inner product (4 bytes if float32 represents it exactly), squared
# distance, and kernel value.
PAIR_BYTES = 2 + 8 + 8 + 4
# The memory that two terms of the weights add: an inner product each.
TERM_PAIR_BYTES = 2 * 8


@dataclass(frozen=True)
class Pairs:
    """All pairs of distinct rows that share a feature, as compiled/pair_listing.py describes them.

    `columns`, `inner` and `squared` (pairs,) have the column of a pair in its strip, the inner
    product <z_i, z_j>, and the squared distance |x_i - x_j|^2.
    """

    blocks: Blocks
    runs: Runs
    columns: np.ndarray
    inner: np.ndarray
    squared: np.ndarray

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
        Z, x, n_jobs = data.Z, kernel.vectors(data.x), session.executor.n_jobs
        blocks = _blocks(len(Z), Z.pair_density)
        # Strip g has a cell for every row of the first block of its tile.
        rows = np.diff(blocks.edges)[blocks.tiles[:, 0]]
        cells = _starts(np.repeat(rows, np.diff(blocks.strips)))
        numbers = np.zeros(cells[-1], np.int32)
        starts, docs, values = Z.by_feature
        with tile_threads(n_jobs) as threads:
            for cuts in _cuts(Z):
                threads.run(
                    pair_listing.count_pairs,
                    *(cuts, Z.pointers, Z.indices, starts, docs, blocks, cells, numbers),
                )
            sizes = np.zeros((2, cells.size - 1), np.int64)
            threads.run(pair_listing.size_strips, cells, numbers, *sizes)
            pairs_at, runs_at = _starts(sizes[0]), _starts(sizes[1])
            count = int(pairs_at[-1])
            allow(count)
            run_rows, run_sizes = np.empty((2, runs_at[-1]), np.uint16)
            runs = Runs(pairs_at, runs_at, run_rows, run_sizes)
            threads.run(
                pair_listing.order_runs, blocks.strip, cells, runs_at, numbers, run_rows, run_sizes
            )
            columns = np.empty(count, np.uint16)
            inner = np.empty(count, np.float32 if _float32_is_exact(Z) else np.float64)
            for cuts in _cuts(Z):
                threads.run(
                    pair_listing.fill_pairs,
                    *(cuts, Z.pointers, Z.indices, Z.values, starts, docs, values),
                    *(blocks, cells, numbers, pairs_at, columns, inner),
                )
            pairs = cls(blocks, runs, columns, inner, np.empty(count))
            pairs._measure(x, threads)
        return pairs

    def _measure(self, x: Any, threads: Threads) -> None:
        """Write |x_i - x_j|^2 into `squared`;  3 p flops per pair."""
        rows: tuple[np.ndarray, ...]
        if isinstance(x, SparseFeatures):
            loop, rows = pair_listing.sparse_pair_distances, (x.pointers, x.indices, x.values)
            per_pair = 2.0 * x.values.size / max(1, len(x))
        else:
            loop, rows = pair_listing.pair_distances, (np.ascontiguousarray(x),)
            per_pair = x.shape[1]
        for rounds, _ in self.parts(CALL_DIFFERENCES / max(1.0, per_pair)):
            tiles = self.tiles_of(rounds)
            threads.run(loop, *tiles, self.blocks, self.runs, self.columns, *rows, self.squared)

    def __len__(self) -> int:
        return self.columns.size

    def listed(self, span: slice) -> tuple[Blocks, Runs, np.ndarray, int]:
        """Return what loops over pairs take: layout, columns, and the number of the first pair."""
        return self.blocks, self.runs, self.columns[span], span.start

    def parts(self, most: float) -> Iterator[tuple[tuple[int, int], slice]]:
        """Yield (first round and the one after the last, pairs) of consecutive rounds.

        A part has at most that many pairs, or a single round.
        """
        ends = self.runs.pairs_at[self.blocks.strips[self.blocks.rounds]].tolist()
        first, count = 0, len(ends) - 1
        while first < count:
            last = first + 1
            while last < count and ends[last + 1] - ends[first] <= most:
                last += 1
            yield (first, last), slice(ends[first], ends[last])
            first = last

    def tiles_of(self, rounds: tuple[int, int]) -> tuple[int, int]:
        """Return the first tile of rounds, and the one after their last."""
        first, last = self.blocks.rounds[list(rounds)].tolist()
        return first, last

    @property
    def product_bytes(self) -> int:
        """Return how many bytes a product in float32 reads, besides vectors."""
        runs = self.runs.rows.nbytes + self.runs.sizes.nbytes
        return self.columns.nbytes + runs + 4 * len(self)


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Return where parts of given sizes begin, and where the last one ends;  (k,) -> (k + 1,)."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _blocks(n: int, density: float) -> Blocks:
    """Return an even number of blocks, fewer if pairs are few, with their tiles and strips."""
    count = max(
        2, min(USUAL_BLOCKS, int(n * np.sqrt(density / MIN_TILE_PAIRS))), -(-n // MAX_BLOCK_ROWS)
    )
    count += count % 2
    words = -(-n // WORD_ROWS)
    edges = np.minimum(n, WORD_ROWS * (words * np.arange(count + 1) // count))
    rows = np.diff(edges)
    wanted = next(size for least, size in STRIP_ROWS_BY_DENSITY if density >= least)
    # Strips are about equally long.
    strips_of_block = max(1, round(rows.max() / wanted))
    strip = WORD_ROWS * max(1, -(-int(rows.max()) // (WORD_ROWS * strips_of_block)))
    rounds = _tournament(count)
    tiles = np.array([match for one in rounds for match in one])
    numbers = np.zeros((count, count), np.int64)
    numbers[tiles[:, 0], tiles[:, 1]] = np.arange(len(tiles))
    strips = _starts(-(-rows[tiles[:, 1]] // strip))
    return Blocks(edges, tiles, numbers, _starts(np.array([*map(len, rounds)])), strip, strips)


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


def _cuts(Z: SparseFeatures) -> list[np.ndarray]:
    """Return cuts of the rows for the calls that list pairs: parts of about equal work.

    A call has LISTING_PARTS parts, and about CALL_ADDITIONS additions.
    """
    shares = np.diff(Z.by_feature[0])
    additions = np.concatenate([[0], np.cumsum(shares[Z.indices])])[Z.pointers]
    # A row meets the rows before it only.
    work = _starts(np.diff(additions) * np.arange(len(Z)) // max(1, len(Z)) + 1)
    calls = max(1, round(work[-1] / CALL_ADDITIONS))
    edges = np.linspace(0, work[-1], calls * LISTING_PARTS + 1)
    cuts = np.searchsorted(work, edges)
    return [
        cuts[k * LISTING_PARTS : (k + 1) * LISTING_PARTS + 1].astype(np.int64) for k in range(calls)
    ]


def _float32_is_exact(Z: SparseFeatures) -> bool:
    """Return whether inner products, and the sums that they are made of, are exact in float32.

    It is so if values are whole numbers, as counts are, and |z|^2 is below 2^24.
    """
    is_whole = (Z.values == np.rint(Z.values)).all()
    return bool(is_whole and Z.squared_norms().max(initial=0.0) < 2**24)
