"""The exact search for the rows nearest to queries, in the metric of the kernel.

    kernel, Z                        the best rows of a query have
    stationary, dense X and Z        the smallest distances, scaled by the kernel's length scales
    any other, dense Z               the largest k(x*, x_j), as for sums and Gram matrices
    several terms that vary          the largest sum_t tr(Lambda_t) k_t(x*, x_j), the covariance of
                                     their weights
    any, sparse Z                    the largest Cov[f(x*), f_j]^2 / C_jj, f = z.g(x): rows that
                                     share features with the query come first

Among equals, rows with a larger |z| come first, and then those with a smaller number. Every result
is that of a full sort in this order, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..compiled import neighbor_search as loops
from ..data.features import SparseFeatures
from ..data.indexed_rows import IndexedRows
from ..data.inputs import InputRows, TrainingRows
from ..kernels.kernel import Kernel, Prepared, Profile
from ..model.hyperparameters import Hyperparameters
from ..model.weight_prior import PreparedRows, kernel_matrix
from ..runtime.parallel import slices
from ..runtime.session import Session
from ..runtime.tile_loops import Threads, tile_threads

# Pairs of a query and a row that one worker compares in one call: less than a second of a slow
# core, so that Ctrl-C is noticed in time.
CALL_PAIRS = 1e8
# A worker compares at most so many queries with a part of the rows.
WORKER_QUERIES = 64
# Keys that are computed at once where the search has no compiled form: 64 MB in float64.
KEYS_AT_ONCE = 2**23
# Sums in float32 round |x|^2 + |x'|^2 - 2 x.x' by less than 2 (p + 4) eps (|x|^2 + |x'|^2), with
# the rounding of their numbers, and a comparison in float64 is rounded by far less. This factor
# covers them twice.
SLACK_FACTOR = 4.0
# Larger squared distances than four times this number, and differences smaller than the other one,
# are not represented in float32.
LARGEST_SINGLE_SQUARE = 1e37
SMALLEST_SINGLE = 1e-36


@dataclass(frozen=True)
class Neighbors:
    """The rows that were found for b queries, up to k for each, the best one first.

    Attributes
    ----------
    rows : ndarray of shape (b, k)
        The numbers of the rows. Places that are not in use hold 0.
    counts : ndarray of shape (b,)
        How many rows were found for each query: k, or all that it may take if they are fewer.
    keys : ndarray of shape (b, k)
        The numbers by which rows were compared, of which the smallest are best.
    """

    rows: np.ndarray
    counts: np.ndarray
    keys: np.ndarray

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, queries: slice) -> Neighbors:
        return Neighbors(self.rows[queries], self.counts[queries], self.keys[queries])

    @property
    def in_use(self) -> np.ndarray:
        """Return which places are in use;  (b, k)."""
        used: np.ndarray = np.arange(self.rows.shape[1]) < self.counts[:, None]
        return used


@dataclass(frozen=True)
class Eligible:
    """The rows, of n in all, that each query may take.

    Query i may take rows with a rank below `limits[i]`, and not the row `own[i]`;  limits (b,),
    own (b,), both int64. Ranks are the `positions` (n,) of the rows in an order. If these are None,
    the ranks of rows `excluded` are 1 and those of all others 0. `positions` may be those of some
    rows alone, of which the `first` has that number.
    """

    n: int
    limits: np.ndarray
    own: np.ndarray
    excluded: np.ndarray
    positions: np.ndarray | None = None
    first: int = 0

    @classmethod
    def without(
        cls, n: int, excluded: np.ndarray, queries: int, own: np.ndarray | None = None
    ) -> Eligible:
        """Return all of n rows but those `excluded` and, for each query, its `own` row."""
        none = np.full(queries, -1)
        return cls(n, np.ones(queries, np.int64), none if own is None else own, np.sort(excluded))

    @classmethod
    def before(cls, positions: np.ndarray, queries: np.ndarray) -> Eligible:
        """Return, for queries that are rows, the rows before each of them in an order.

        `positions` (n,) is the place of each row in the order, and n for rows that no query takes.
        """
        return cls(positions.size, positions[queries], queries, np.empty(0, np.int64), positions)

    def ranks(self, rows: slice) -> np.ndarray:
        """Return the ranks of consecutive rows;  (r,) int64."""
        if self.positions is not None:
            return self.positions[rows.start - self.first : rows.stop - self.first]
        ranks = np.zeros(rows.stop - rows.start, np.int64)
        first, last = np.searchsorted(self.excluded, (rows.start, rows.stop))
        ranks[self.excluded[first:last] - rows.start] = 1
        return ranks

    def of_part(self, start: int, stop: int) -> Eligible:
        """Return what queries may take of some rows, without the places of all others."""
        if self.positions is None:
            return self
        return replace(self, positions=self.positions[start:stop].copy(), first=start)


class _Heaps:
    """The best rows so far of each query, as `compiled.neighbor_search` keeps them."""

    def __init__(self, queries: int, count: int, among: Eligible) -> None:
        self.keys = np.full((queries, count), np.inf)
        self.norms = np.zeros((queries, count))
        self.rows = np.zeros((queries, count), np.int64)
        self.counts = np.zeros(queries, np.int64)
        self._among = among

    def ranks(self, rows: slice) -> np.ndarray:
        """Return the ranks of consecutive rows."""
        return self._among.ranks(rows)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the last arguments of the loops that merge rows."""
        limits, own = self._among.limits, self._among.own
        return limits, own, self.keys, self.norms, self.rows, self.counts

    def sorted(self, threads: Threads) -> Neighbors:
        """Return the rows of all heaps, the best one first."""
        threads.run(loops.sort_heaps, self.keys, self.norms, self.rows, self.counts)
        return Neighbors(self.rows, self.counts, self.keys)


@dataclass(frozen=True)
class NeighborSearch:
    """A search among given rows, in the metric of given hyperparameters.

    The rows are prepared once, at the first search;  O(n p) flops and n (p + 3) numbers.
    """

    rows: InputRows
    hyperparameters: Hyperparameters

    def nearest(
        self, queries: InputRows, count: int, among: Eligible, session: Session
    ) -> Neighbors:
        """Return the `count` rows that are best for each query, or all that it may take.

        b n kernel values, or 2 p flops per pair of a query and a row for a stationary kernel.
        """
        count = max(0, min(count, among.n))
        heaps = _Heaps(len(queries), count, among)
        with tile_threads(session.executor.n_jobs) as threads:
            if count and len(queries):
                self.merge(queries, 0, heaps, session, threads)
            return heaps.sorted(threads)

    def merge(
        self, queries: InputRows, start: int, heaps: _Heaps, session: Session, threads: Threads
    ) -> None:
        """Merge these rows, of which the first has the number `start`, into heaps of queries."""
        if self.profile is None or queries.Z.is_sparse:
            self._merge_keys(queries, start, heaps, session, threads)
        else:
            self._merge_distances(queries, start, heaps, session, threads)

    @cached_property
    def prepared_rows(self) -> PreparedRows:
        """Return the rows in the form that blocks of S are computed from, with all terms."""
        return self.hyperparameters.weight_prior.prepare(self.rows)

    @cached_property
    def _metric(self) -> list[tuple[float, Kernel, Prepared]]:
        """Return the kernels that vary with x, with their weights and the rows as they take them.

        Their weighted sum tells which rows are near. A single one has weight 1.
        """
        prior = self.hyperparameters.weight_prior
        of_terms = zip(prior.active, self.prepared_rows.of_terms, strict=True)
        varying = [
            (float(term.variances.sum()), term.kernel, own.points)
            for term, own in of_terms
            if not (prior.is_shared or term.kernel.is_constant)
        ]
        if len(varying) > 1:
            return varying
        if varying:
            return [(1.0, *varying[0][1:])]
        if prior.active[0].kernel is prior.kernel:
            return [(1.0, prior.kernel, self.prepared_rows.points)]
        return [(1.0, prior.kernel, prior.kernel.prepare(self.rows.x))]

    @cached_property
    def profile(self) -> Profile | None:
        """Return the rows as compiled loops take them.

        It is None if the kernel has no such form, or several of them vary.
        """
        (_, kernel, prepared), *others = self._metric
        return None if others else kernel.profile(prepared)

    @cached_property
    def norms(self) -> np.ndarray:
        """Return |z_j|^2;  (n,)."""
        return self.rows.Z.squared_norms()

    @cached_property
    def variances(self) -> np.ndarray:
        """Return C_jj, analytically and not from products of rows;  (n,)."""
        own = self.hyperparameters.weight_prior.diagonal(self.prepared_rows)
        total: np.ndarray = own + self.hyperparameters.noise(self.rows)
        return total

    @cached_property
    def compiled_features(self) -> Any:
        """Return Z as compiled loops take it: a matrix, or the arrays of sparse rows and d."""
        Z = self.rows.Z
        if isinstance(Z, SparseFeatures):
            return Z.pointers, Z.indices, Z.values, Z.d
        return np.ascontiguousarray(Z.to_dense())

    @cached_property
    def _squared(self) -> np.ndarray:
        """Return |x_j|^2 of the scaled rows;  (n,)."""
        assert self.profile is not None
        return _squared_rows(self.profile.points)

    def _merge_distances(
        self, queries: InputRows, start: int, heaps: _Heaps, session: Session, threads: Threads
    ) -> None:
        """Merge all rows by squared distances."""
        kernel = self._metric[0][1]
        seen, known = kernel.profile(kernel.prepare(queries.x)), self.profile
        assert seen is not None
        assert known is not None
        b, p = seen.points.shape
        squared = _squared_rows(seen.points)
        share = 1.0 - SLACK_FACTOR * (p + 4) * np.finfo(np.float32).eps
        # Without a bound in float32, all pairs are compared by their differences.
        is_small = max(squared.max(), self._squared.max()) < LARGEST_SINGLE_SQUARE
        scale = 1.0 if is_small else 0.0
        query_low = scale * share * squared - SMALLEST_SINGLE
        group = max(1, min(WORKER_QUERIES, -(-b // session.executor.n_jobs)))
        for rows in self._calls(b, session):
            at, points = _moved(rows, start), known.points[rows]
            coordinates = np.empty((p, len(points)), np.float32)
            low = np.empty(len(points), np.float32)
            given = points, self._squared[rows], scale, share
            threads.run(loops.transpose_single, *given, coordinates, low)
            arrays = points, coordinates, low, self.norms[rows], heaps.ranks(at), at.start
            threads.run(
                loops.merge_distances, seen.points, query_low, group, *arrays, *heaps.arrays
            )

    def _calls(self, queries: int, session: Session) -> Iterator[slice]:
        """Yield the rows of each call, which has about CALL_PAIRS pairs per worker."""
        at_once = int(CALL_PAIRS * session.executor.n_jobs / (queries * loops.TILE))
        yield from slices(len(self.rows), loops.TILE * max(1, at_once))

    def _merge_keys(
        self, queries: InputRows, start: int, heaps: _Heaps, session: Session, threads: Threads
    ) -> None:
        """Merge all rows by keys that are computed from kernel values, some columns at a time."""
        Z = queries.Z
        metric = [(*one, one[1].prepare(queries.x)) for one in self._metric]
        for rows in slices(len(self.rows), max(1, KEYS_AT_ONCE // len(queries))):
            (weight, kernel, prepared, seen), *others = metric
            K = kernel_matrix(kernel, seen, prepared[rows], session)
            if others:
                K *= weight
            for weight, kernel, prepared, seen in others:
                more = kernel_matrix(kernel, seen, prepared[rows], session)
                more *= weight
                K += more
            if Z.is_sparse:
                interest = Z.inner_products(self.rows.Z[rows])
                empty = Z.squared_norms() == 0.0
                interest[empty] = np.sqrt(self.norms[rows])
                K *= interest
                np.square(K, out=K)
                K /= self.variances[rows]
            np.negative(K, out=K)
            at = _moved(rows, start)
            arrays = K, self.norms[rows], heaps.ranks(at), at.start
            threads.run(loops.merge_keys, *arrays, *heaps.arrays)


@dataclass
class BestRows:
    """The best rows of each of some queries, found in one pass over rows that are not in memory."""

    queries: InputRows
    hyperparameters: Hyperparameters
    among: Eligible
    count: int

    def __post_init__(self) -> None:
        self.heaps = _Heaps(len(self.queries), self.count, self.among)

    def add(self, rows: InputRows, start: int, session: Session) -> None:
        """Take in consecutive rows, of which the first has the number `start`."""
        if not (self.count and len(self.queries)):
            return
        search = NeighborSearch(rows, self.hyperparameters)
        with tile_threads(session.executor.n_jobs) as threads:
            search.merge(self.queries, start, self.heaps, session, threads)

    def of_part(self, start: int, stop: int) -> BestRows:
        """Return the same search without any rows, for those with numbers from `start` on."""
        return replace(self, among=self.among.of_part(start, stop))

    def merge(self, other: BestRows) -> None:
        """Take in the best of other rows."""
        mine, theirs = self.heaps, other.heaps
        found = theirs.keys, theirs.norms, theirs.rows, theirs.counts
        loops.merge_heaps(*found, mine.keys, mine.norms, mine.rows, mine.counts)


@dataclass(frozen=True)
class PassSearch:
    """A search among rows that are not in memory, in one pass over them."""

    rows: IndexedRows
    hyperparameters: Hyperparameters

    # There is no compiled form of rows that are elsewhere, only of those that are gathered.
    profile: ClassVar[None] = None

    def nearest(
        self, queries: InputRows, count: int, among: Eligible, session: Session
    ) -> Neighbors:
        """Return the `count` rows that are best for each query, as `NeighborSearch` does.

        The pass is made for a `count` of 0, too, as it is what notices rows that have changed.
        """
        count = max(0, min(count, among.n))
        found = self.rows.run(BestRows(queries, self.hyperparameters, among, count), session)
        with tile_threads(session.executor.n_jobs) as threads:
            return found.heaps.sorted(threads)


def search_among(
    rows: TrainingRows | IndexedRows, hyperparameters: Hyperparameters
) -> NeighborSearch | PassSearch:
    """Return a search among rows, wherever they are."""
    if rows.in_memory:
        assert isinstance(rows, TrainingRows)
        return NeighborSearch(rows, hyperparameters)
    assert isinstance(rows, IndexedRows)
    return PassSearch(rows, hyperparameters)


def largest_scores(
    scores: np.ndarray, norms: np.ndarray, count: int, among: Eligible, session: Session
) -> Neighbors:
    """Return the rows with the largest scores of each query, found as `NeighborSearch` does.

    (b, n), (n,) |z|^2;  one comparison per score.
    """
    heaps = _Heaps(len(scores), min(count, scores.shape[1]), among)
    with tile_threads(session.executor.n_jobs) as threads:
        if heaps.keys.size:
            ranks = among.ranks(slice(0, scores.shape[1]))
            threads.run(loops.merge_keys, -scores, norms, ranks, 0, *heaps.arrays)
        return heaps.sorted(threads)


def _moved(rows: slice, start: int) -> slice:
    """Return the numbers of consecutive rows, if the first of them all has the number `start`."""
    return slice(start + rows.start, start + rows.stop)


def _squared_rows(points: np.ndarray) -> np.ndarray:
    """Return |x|^2 for each row;  (n, p) -> (n,)."""
    return np.asarray(np.einsum("ij,ij->i", points, points))
