"""The posterior of the neighbours solver: each query is conditioned on rows of its own.

A query x* is conditioned on the shared rows U and on the k rows N nearest to it, as described in
`solvers.neighborhood`. No standard deviation is below the exact one. As each query has rows of its
own, there is no joint distribution of several queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...data.features import Features, SparseFeatures, full_pattern
from ...data.indexed_rows import IndexedRows
from ...data.inputs import InputRows, Preprocessor, Queries, TrainingRows
from ...data.row_source import MemoryRows, RowSource
from ...errors import SolverUnavailable
from ...linalg.neighbor_search import Eligible
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_indices, must_be_numbers, stored
from ..contract import Capability, Plan, capability_error
from ..exact.posterior import ExactPosterior
from ..neighborhood import Conditioned, RightHandSides, SharedRows
from ..posterior import (
    Diagnostics,
    MomentRequest,
    Moments,
    Posterior,
    PriorVariance,
    RowStatistics,
)
from ..weighted_sums import constant_columns
from .adding_rows import NewRows, with_rows
from .gathering import around, batches, fields_for_a_file
from .planning import NeighborsSettings, query_bytes
from .query_covariances import QueryCovariances
from .query_rows import QueryRows, with_own
from .union import given_union

# The seeds of a RandomState are below this number.
SEEDS_END = 2**32
# Up to this size, F_j of all rows is kept in float64, which needs no correction for its rounding.
# Beyond, it is in float32 where the noise is large enough for that.
FLOAT64_FACTOR_BYTES = 2**28


@stored(take=fields_for_a_file)
@dataclass(frozen=True)
class NeighborsPosterior(Posterior[QueryRows]):
    """The posterior of each query given shared rows and its nearest rows.

    Attributes
    ----------
    rows : TrainingRows or IndexedRows
        All training rows, in memory or elsewhere.
    shared : ndarray of shape (m,)
        The numbers of the shared rows.
    neighbors : int
        The number k of rows near each query.
    keeps_factor : bool
        Whether F_j of all rows is kept in memory, or computed for the rows of each query.
    seed : int
        The seed of the order of the rows in Vecchia's log p(y).
    sampled : int
        The number of rows from which that is estimated.
    log_evidence, standard_error : float
        Vecchia's log p(y) in nats, and its standard error.
    held_out : list of (int, int, float)
        The pairs (k, m) that were compared, and the mean log density of held-out rows with each:
        that of the best pair, less what was lost to it on the rows that both predicted.
    summed : ndarray of shape (s,)
        The numbers of the rows of weighted sums of y, for constant weights. They are not shared,
        and none if no weight is constant.
    coefficients : ndarray of shape (s, c)
        The coefficients of the rows in the sums.
    """

    rows: TrainingRows | IndexedRows
    shared: np.ndarray
    neighbors: int
    keeps_factor: bool
    seed: int
    sampled: int
    log_evidence: float
    standard_error: float
    held_out: list[tuple[int, int, float]]
    summed: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    coefficients: np.ndarray | None = None

    capabilities = frozenset(
        {
            Capability.TRAINING_WEIGHTS,
            Capability.LEAVE_ONE_OUT,
            Capability.UPPER_BOUND,
            Capability.SPARSE_FEATURES,
            Capability.ANY_KERNEL,
            Capability.FILES,
            Capability.ADD_ROWS,
            Capability.WEIGHT_TERMS,
        }
    )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def d(self) -> int:
        return self.rows.n_weights

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    @property
    def training_rows(self) -> TrainingRows | None:
        return self.memory if self.rows.in_memory else None

    @property
    def row_source(self) -> RowSource:
        if self.rows.in_memory:
            return MemoryRows(self.memory)
        assert isinstance(self.rows, IndexedRows)
        return self.rows

    def local(self) -> NeighborsPosterior:
        if self.rows.in_memory:
            return self
        assert isinstance(self.rows, IndexedRows)
        return replace(self, rows=self.rows.local())

    @property
    def memory(self) -> TrainingRows:
        """Return the training rows, which are known to be in memory."""
        assert isinstance(self.rows, TrainingRows)
        return self.rows

    @property
    def nearby(self) -> int:
        """Return how many rows near a query there are: k, or all that are not shared."""
        return min(self.neighbors, len(self) - self.shared.size)

    @property
    def diagnostics(self) -> Diagnostics:
        sets = f"{self.shared.size} rows for all queries and on the {self.nearby} rows nearest to"
        chosen = ""
        if len(self.held_out) > 1:
            best = max(score for _, _, score in self.held_out)
            (mine,) = (
                score
                for k, m, score in self.held_out
                if (k, m) == (self.neighbors, self.shared.size)
            )
            chosen = (
                f"; {len(self.held_out)} pairs of these numbers were compared on held-out rows, "
                f"where this one loses {best - mine:.4f} nats per row"
            )
        if self.summed.size:
            chosen += f"; constant weights are known from {self.summed.size} rows in addition"
        return Diagnostics(
            self.log_evidence,
            self.standard_error,
            solution=f"each query is conditioned on {sets} it{chosen}",
            variances=f"conditioned on {sets} each query; never below exact",
        )

    @property
    def bytes_per_query(self) -> int:
        return self._query_bytes(1)

    def _query_bytes(self, columns: int) -> int:
        """Return the working memory of one query with so many right-hand sides."""
        each = query_bytes(self.nearby, self.shared.size, columns, self.keeps_factor)
        if not self.summed.size:
            return each
        prior = self.hyperparameters.weight_prior
        sums = len(prior.active) * self.d * constant_columns(prior).size
        return each + 8 * (2 * self.summed.size + 2 * sums)

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_query + 24 * m * m

    def draw_bytes(self, m: int, count: int) -> int:
        return 8 * m * self.d * (2 * count + 4 * self.d)

    # The rows of each query.

    def shared_rows(self, session: Session) -> SharedRows:
        """Return the shared rows, factorised.

        They are kept, but neither copied nor saved: a copy or a loaded model computes them when it
        first needs them;  m^3/3 flops, and n m^2 if F_j of all rows is kept.
        """
        known: SharedRows | None = self.__dict__.get("_shared_rows")
        if known is None:
            given = self.memory, self.hyperparameters, self.shared, session
            is_small = 8 * len(self) * self.shared.size <= FLOAT64_FACTOR_BYTES
            single = False if is_small else None
            known = SharedRows.of(*given, keep=self.keeps_factor, single=single, summed=self.summed)
            self.__dict__["_shared_rows"] = known
        return known

    def with_known(self, known: SharedRows) -> NeighborsPosterior:
        """Keep the shared rows, factorised before, and return this posterior."""
        self.__dict__["_shared_rows"] = known
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without what is computed from them."""
        return {name: value for name, value in self.__dict__.items() if name != "_shared_rows"}

    def query_rows(
        self, queries: InputRows, session: Session, own: np.ndarray | None = None
    ) -> QueryRows:
        """Return the rows that queries are conditioned on.

        If they are training rows that ask for their own weights, `own` has their numbers (b,), and
        each has itself beside its k neighbours.
        """
        known, b = self.shared_rows(session), len(queries)
        among = Eligible.without(len(self), self.shared, b, own)
        near = known.search.nearest(queries, self.nearby, among, session)
        if own is not None:
            near = with_own(near, own, ~np.isin(own, self.shared))
        covariances = self._covariances(session)
        terms = covariances.terms(queries.x, near, session)
        if own is not None:
            noise = covariances.noise_of(near, own)
            if self.hyperparameters.weight_prior.is_shared:
                # All weights have the same variances, so it is added to the only term.
                terms[0].near[...] += noise.near
                terms[0].shared[...] += noise.shared
            else:
                terms = (*terms, noise)
        return QueryRows(near, terms)

    def _covariances(self, session: Session) -> QueryCovariances:
        """Return the covariances of queries with the rows around them."""
        return QueryCovariances(self.shared_rows(session))

    def cross(self, x: Any, session: Session, own: slice | None = None) -> QueryRows:
        """Return the rows of each query; without its z, these are the nearest ones alone."""
        Z = self.memory.Z.repeat_row(np.zeros(self.d), len(x))
        rows = None if own is None else np.arange(own.start, own.stop)
        return self.query_rows(InputRows(x, Z), session, rows)

    # Moments.

    def _condition(
        self,
        query: QueryRows,
        pattern: SparseFeatures | None,
        request: MomentRequest,
        session: Session,
    ) -> Conditioned:
        """Return the queries conditioned on their rows, for all weights that are asked for.

        For sparse features, these are the weights at the entries of a pattern, up to as many as the
        longest row of it has.
        """
        known, parts, near = self.shared_rows(session), [], query.near
        covariances = self._covariances(session)
        if request.variance or request.covariance:
            if pattern is None:
                parts.append(covariances.of_weights(query))
            else:
                parts.append(covariances.at_entries(query, pattern, session))
        parts += [covariances.along(query, A, session) for A in request.along]
        sides = RightHandSides.joined(parts, near, len(known.L))
        return known.condition(near, sides, session, mean=request.mean, full=request.covariance)

    def mean(
        self, x: Any, cross: QueryRows | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        query = self.cross(x, session, own) if cross is None else cross
        found = self._condition(query, None, MomentRequest(), session)
        return self._covariances(session).mean(query, found, None, session)

    def cross_of_part(self, cross: QueryRows | None, part: str) -> QueryRows:
        assert cross is not None
        return cross.of_part(part)

    def reduction(self, cross: QueryRows, request: MomentRequest, session: Session) -> Moments:
        found = self._condition(cross, None, replace(request, mean=False), session)
        return found.reduction(self._columns(request, None), request)

    def _columns(self, request: MomentRequest, pattern: SparseFeatures | None) -> int:
        """Return how many right-hand sides of a query are those of weights."""
        if not (request.variance or request.covariance):
            return 0
        return self.d if pattern is None else int(pattern.counts.max(initial=0))

    def moments(self, queries: Queries, request: MomentRequest, session: Session) -> Moments:
        """Return the moments of the weights of each query, as `Posterior.moments` does.

        Upper bounds are the ordinary variances, which are never below the exact ones.
        """
        if request.method == "samples":
            raise capability_error(type(self), Capability.SAMPLED_VARIANCE)
        own = np.arange(len(queries)) if queries.own else None
        if self.rows.in_memory:
            return self._all_moments(queries, own, request, session)
        pieces = []
        for i in batches(self, len(queries), session):
            mine = None if own is None else own[i]
            local, index = around(self, queries[i], session, mine)
            at = None if mine is None else np.searchsorted(index, mine)
            pieces.append(local._all_moments(queries[i], at, request[i], session))
        return Moments.joined(pieces)

    def _all_moments(
        self,
        queries: InputRows,
        own: np.ndarray | None,
        request: MomentRequest,
        session: Session,
    ) -> Moments:
        """Return the moments of queries, chunk by chunk; `own` is as in `query_rows`."""
        pattern: SparseFeatures | None = None
        if queries.Z.is_sparse and not request.covariance:
            entries = full_pattern(queries.Z.shape) if request.all_features else queries.Z
            assert isinstance(entries, SparseFeatures)
            pattern = entries
        columns = len(request.along) + self._columns(request, pattern)
        each = self._query_bytes(columns)
        session.require(each, "one query with its neighbours", "a smaller n_shared")
        pieces = []
        session.journal.passed(0, len(queries))
        for i in slices(len(queries), max(1, session.chunk_bytes // each)):
            rows = None if own is None else own[i]
            some = queries[i]
            at = None if pattern is None else pattern[i]
            pieces.append(self._moments(some, rows, at, request[i], session))
            session.journal.passed(i.stop, len(queries))
        found = Moments.joined(pieces)
        is_full = pattern is not None and request.all_features
        return found.reshaped(queries.Z.shape) if is_full else found

    def _moments(
        self,
        queries: InputRows,
        own: np.ndarray | None,
        pattern: SparseFeatures | None,
        request: MomentRequest,
        session: Session,
    ) -> Moments:
        """Return the moments of one chunk of queries; `own` is as in `query_rows`."""
        query = self.query_rows(queries, session, own)
        query = query if request.part is None else query.of_part(request.part)
        # Vectors of zeros are common, as the usual baseline is 0. They need no solve.
        moving = replace(request, along=[A for A in request.along if A.squared_norms().any()])
        found = self._condition(query, pattern, moving, session)
        mean = (
            self._covariances(session).mean(query, found, pattern, session)
            if request.mean
            else np.empty(0)
        )
        if not (request.variance or request.covariance or request.along):
            return Moments(mean)
        given = self.hyperparameters, queries.x, own is not None
        prior = PriorVariance.of(*given, request.surface, request.part)
        reduced = found.reduction(self._columns(request, pattern), moving)
        if pattern is None or not request.variance:
            return self.moments_of(mean, reduced, request, prior)
        sums = self.moments_of(mean, reduced, replace(request, variance=False), prior)
        assert reduced.variance is not None
        in_use = np.arange(reduced.variance.shape[1]) < pattern.counts[:, None]
        return replace(sums, variance=prior.minus(reduced.variance)[in_use])

    # Other answers.

    def joint_reduction(self, cross: QueryRows, A: Features, session: Session) -> np.ndarray:
        """Raise an error, as queries have no joint distribution."""
        raise capability_error(type(self), Capability.JOINT_COVARIANCE)

    def joint_covariance(self, queries: Queries, session: Session) -> np.ndarray:
        """Return the variance of a single new y, (1, 1): several have no joint distribution.

        It is conditioned on the same rows as for `moments`, which depend on a sparse z*.
        """
        if len(queries) != 1:
            raise capability_error(type(self), Capability.JOINT_COVARIANCE)
        request = MomentRequest(along=[queries.Z], mean=False)
        latent = self.moments(queries, request, session).along[0]
        variance: np.ndarray = self.hyperparameters.likelihood.predict(np.zeros(1), latent)[1]
        return variance[:, None]

    def jointly(self, queries: Queries, session: Session) -> ExactPosterior:
        return given_union(self, queries, session)[0]

    def row_weights(
        self, query: Queries, session: Session
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        union, index = given_union(self, query, session)
        _, weights, y = union.row_weights(query, session)
        return index, weights, y

    def leave_one_out(self, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """Return y_i minus its prediction from other rows, and its deviations;  (n,), (n,).

        A row that is not shared is left out of its own neighbours. A shared row i is left out of
        the set s of the rows that it is conditioned on: alpha_i / (C_ss^-1)_ii is its residual, and
        (C_ss^-1)_ii is b.C_ss^-1 b for b = 1 at this row and 0 at all others. So is every row if
        there are weighted sums.
        """
        everything = np.arange(len(self))
        if self.rows.in_memory:
            return self._left_out(everything, session)
        pieces = []
        for i in batches(self, len(self), session):
            some = everything[i]
            local, index = around(self, self.rows[some], session, some)
            pieces.append(local._left_out(np.searchsorted(index, some), session))
        residuals, deviations = zip(*pieces, strict=True)
        return np.concatenate(residuals), np.concatenate(deviations)

    def _left_out(self, rows: np.ndarray, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """Return what `leave_one_out` does, of some rows;  (r,) -> (r,), (r,)."""
        residuals, deviations = np.empty(rows.size), np.empty(rows.size)
        # Weighted sums have the y of a row that is left out, as those of shared rows have.
        from_sets = np.isin(rows, self.shared) | (self.summed.size > 0)
        others, mine = np.flatnonzero(~from_sets), np.flatnonzero(from_sets)
        size = max(1, session.chunk_bytes // self._query_bytes(1))
        y = self.memory.y
        for i in slices(others.size, size):
            at = others[i]
            mean, variance = self.predict_held_out(rows[at], session)
            residuals[at], deviations[at] = y[rows[at]] - mean, np.sqrt(variance)
            session.journal.passed(i.stop, rows.size)
        for i in slices(mine.size, size):
            at = mine[i]
            residuals[at], deviations[at] = self._left_out_of_sets(rows[at], session)
            session.journal.passed(others.size + i.stop, rows.size)
        return residuals, deviations

    def _left_out_of_sets(
        self, some: np.ndarray, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what `leave_one_out` does, of rows that are in their sets;  (b,) -> (b,), (b,).

        A row that is not shared is added to its neighbours. Its y is also part of the sums t: with
        u = 1 at the row and G_i at t, u.alpha / u.C_ss^-1 u is its residual.
        """
        known = self.shared_rows(session)
        among = Eligible.without(len(self), self.shared, some.size, some)
        near = known.search.nearest(self.memory[some], self.nearby, among, session)
        near = with_own(near, some, ~np.isin(some, self.shared))
        of_near = (near.in_use & (near.rows == some[:, None])).astype(float)
        of_shared = (self.shared == some[:, None]).astype(float)
        if known.sums is not None:
            of_shared = np.hstack([of_shared, known.sums.of_rows(some)])
        sides = RightHandSides.of_one(of_near.copy(), of_shared.copy())
        found = known.condition(near, sides, session, mean=True)
        assert found.near_weights is not None
        assert found.shared_weights is not None
        alpha = (of_near * found.near_weights).sum(axis=1)
        alpha += (of_shared * found.shared_weights).sum(axis=1)
        return alpha / found.found[:, 0], found.found[:, 0] ** -0.5

    def predict_held_out(self, some: np.ndarray, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of y of rows that are not shared, each without itself.

        (b,) -> (b,), (b,).
        """
        known, rows = self.shared_rows(session), self.memory[some]
        among = Eligible.without(len(self), self.shared, some.size, some)
        near = known.search.nearest(rows, self.nearby, among, session)
        query = QueryRows(near, self._covariances(session).terms(rows.x, near, session))
        b = self._covariances(session).along(query, rows.Z, session)
        sides = RightHandSides(b.near.copy(), b.shared.copy())
        found = known.condition(near, sides, session, mean=True)
        assert found.near_weights is not None
        assert found.shared_weights is not None
        mean = (b.near[:, :, 0] * found.near_weights).sum(axis=1)
        mean += (b.shared[:, 0] * found.shared_weights).sum(axis=1)
        noise = known.noise[some]
        variance = np.maximum(known.diagonal[some] - found.found[:, 0], noise)
        return mean, variance

    def statistics_task(self) -> Callable[[TrainingRows], NewRows]:
        if self.hyperparameters.kernel.input_kind != "vectors":
            raise SolverUnavailable(
                "Rows cannot be added to a model whose kernel compares objects, as it keeps the "
                "kernel values of all pairs of rows. Call fit with all rows."
            )
        return NewRows.of

    def with_statistics(self, more: RowStatistics, session: Session) -> NeighborsPosterior:
        assert isinstance(more, NewRows)
        return with_rows(self, more, session)

    def sample_weights(
        self, queries: Queries, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return draws of w, which are independent between queries;  (m, d, count)."""
        m = len(queries)
        session.require(self.draw_bytes(m, count), f"sampling {m} queries")
        found = self.moments(queries, MomentRequest(covariance=True), session)
        return _draws(found, count, random)

    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return draws as `sample_weights` does, from the rows nearest in x;  (m, d, count)."""
        Z = self.rows[np.zeros(1, np.int64)].Z.repeat_row(np.zeros(self.d), len(x))
        return self.sample_weights(Queries(x, Z), count, random, session)

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        n, settings = plan.n, plan.settings_of(NeighborsSettings)
        must(isinstance(self.rows, TrainingRows | IndexedRows), "its rows have no y")
        self.rows.must_fit(self.hyperparameters.kernel, preprocessor, n)
        must_be_indices(self.shared, n, "shared rows")
        must_be_indices(self.summed, n, "rows of sums")
        apart = np.diff(self.summed) > 0, ~np.isin(self.summed, self.shared)
        must(np.concatenate(apart).all(), "rows of sums are out of order, or shared")
        if self.coefficients is not None:
            columns = constant_columns(self.hyperparameters.weight_prior).size
            shape = self.summed.size, columns
            must_be_numbers(self.coefficients, shape, "coefficients of sums")
        must(self.shared.size <= settings.shared, "it has more shared rows than planned")
        must(0 <= self.neighbors <= settings.neighbors, "it has more neighbours than planned")
        must(self.neighbors + self.shared.size >= 1, "it has neither neighbours nor shared rows")
        must(0 <= self.seed < SEEDS_END and self.sampled >= 1, "a count is out of range")
        compared = [(k, m) for k, m, _ in self.held_out]
        chosen = len(compared) < 2 or compared.count((self.neighbors, self.shared.size)) == 1
        must(chosen, "its numbers of rows are not among those that were compared")


def _draws(found: Moments, count: int, random: np.random.RandomState) -> np.ndarray:
    """Return draws from the normal distribution of each query;  (m, d, count).

    d^3 flops per query. Eigenvalues that rounding has made negative count as 0.
    """
    assert found.mean is not None
    assert found.covariance is not None
    m, d = found.mean.shape
    values, vectors = np.linalg.eigh(found.covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    draws: np.ndarray = found.mean[:, :, None] + root @ random.standard_normal((m, d, count))
    return draws
