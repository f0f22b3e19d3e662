"""Vecchia's approximation of log p(y), estimated on a sample of the rows.

The rows are in one random order, which begins with some shared rows U. Each further row is
predicted from U and from its nearest rows N(i) among those before it:

    log p(y)  ~  log p(y_U) + sum_i log p(y_i | y_U, y_N(i))

It is exact if N(i) has all rows before i. The sum over all rows is estimated from T of them. Mean
mu and variance v of a row, and their derivatives, are those of `compiled.vecchia`:

    d log p(y_i | ...)  =  (e^2/v - 1) dv / (2 v) + e dmu / v,         e = y_i - mu
    information         =  sum_i [dmu dmu^T / v + dv dv^T / (2 v^2)]

Neighbours among all rows would make a good score for held-out rows, but a poor objective: on data
of the model it loses 11 nats where this one loses 4 to 6 (n = 3,000, 1,000 sampled rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...compiled import term_vecchia as term_loops
from ...compiled import vecchia as loops
from ...data.indexed_rows import IndexedRows
from ...data.inputs import TrainingRows
from ...data.row_source import MemoryRows
from ...errors import NotPositiveDefinite
from ...kernels.kernel import Profile
from ...linalg.cholesky import FEW_ROWS_JITTER
from ...linalg.neighbor_search import Eligible, NeighborSearch, PassSearch
from ...model.hyperparameters import Hyperparameters
from ...model.packed_terms import PackedTerms
from ...optimize.evidence import Evidence
from ...runtime.parallel import all_but, slices
from ...runtime.session import Session
from ...runtime.tile_loops import tile_threads
from ..exact.solver import ExactSolver

# A row is predicted from at most this many shared rows and neighbours, and takes a time of their
# cube. The values were chosen by hand, and they cost accuracy on smooth functions of many columns:
# on 1,500 rows of `synth10`, the maximum with 256 neighbours is 35 nats of the exact log p(y) below
# the exact maximum, with 600 it is 12, and with all earlier rows 0.3 (128 shared rows in each).
MOST_SHARED = 128
MOST_NEIGHBORS = 256
# The sum is estimated from so many rows per free hyperparameter, and at least from so many in all:
# the maximum then loses about q n / (2 T) nats, 2 for q = 4 and n = 1,000.
SAMPLED_ROWS_PER_PARAMETER = 250
LEAST_SAMPLED_ROWS = 1_000
# Rows that one worker predicts in one call: less than a second of a slow core.
CALL_ROWS = 100
# Shares of the diagonal that are tried until a few rows have a Cholesky factor.
JITTERS = np.array(FEW_ROWS_JITTER.jitters(np.float64))


@dataclass(frozen=True)
class OrderedRows:
    """The rows of Vecchia's approximation that are sampled, and those that each is predicted from.

    Attributes
    ----------
    source : TrainingRows or IndexedRows
        All training rows, wherever they are.
    data : TrainingRows
        Those of them that are used, which have numbers of their own below.
    shared : ndarray of shape (u,)
        The first rows of the order, U.
    sets : ndarray of shape (T, u + k + 1)
        For each sampled row, the rows that it is predicted from, and then its own number.
    counts : ndarray of shape (T,)
        How many rows each is predicted from.
    """

    source: TrainingRows | IndexedRows
    data: TrainingRows
    shared: np.ndarray
    sets: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(
        cls,
        search: NeighborSearch | PassSearch,
        data: TrainingRows | IndexedRows,
        shared: np.ndarray,
        neighbors: int,
        sampled: int,
        seed: int,
        session: Session,
    ) -> OrderedRows:
        """Return `sampled` rows of a random order, which the seed determines.

        Neighbours are the nearest by `search`, at whose hyperparameters distances are measured.
        """
        n, shared = len(data), shared[:MOST_SHARED]
        rest = all_but(n, shared)
        order = np.random.RandomState(seed).permutation(rest)
        positions = np.full(n, n, np.int64)
        positions[order] = np.arange(order.size)
        # The rows of a random order at evenly spaced places are a random sample of all of them,
        # and of all numbers of rows before a row.
        places = np.linspace(0, order.size - 1, min(sampled, order.size)).astype(int)
        return cls.in_order(search, data, shared, neighbors, positions, order[places], session)

    @classmethod
    def in_order(
        cls,
        search: NeighborSearch | PassSearch,
        data: TrainingRows | IndexedRows,
        shared: np.ndarray,
        neighbors: int,
        positions: np.ndarray,
        some: np.ndarray,
        session: Session,
    ) -> OrderedRows:
        """Return `some` rows (T,), each predicted from the shared ones and from rows before it.

        `positions` (n,) are the places of rows in the order, n for the shared rows.
        """
        among = Eligible.before(positions, some)
        near = search.nearest(data[some], min(neighbors, MOST_NEIGHBORS), among, session)
        sets = np.zeros((some.size, shared.size + near.rows.shape[1] + 1), np.int64)
        counts = shared.size + near.counts
        sets[:, : shared.size] = shared
        sets[:, shared.size : -1] = near.rows
        sets[np.arange(some.size), counts] = some
        if data.in_memory and search.hyperparameters.kernel.input_kind != "vectors":
            assert isinstance(data, TrainingRows)
            return cls(data, data, shared, sets, counts)
        # Of many rows, few are used. A Gram matrix would be copied, vectors are short.
        used, numbers = np.unique(np.append(shared, sets), return_inverse=True)
        renumbered = numbers[shared.size :].reshape(sets.shape)
        return cls(data, data[used], numbers[: shared.size], renumbered, counts)

    @property
    def rows_per_sampled(self) -> float:
        """Return how many rows, without the shared ones, a sampled one stands for."""
        return (len(self.source) - self.shared.size) / max(1, self.counts.size)

    @cached_property
    def _targets(self) -> np.ndarray:
        """Return the y of the sampled rows;  (T,)."""
        own = self.sets[np.arange(self.counts.size), self.counts]
        targets: np.ndarray = self.data.y[own]
        return targets

    def evaluate(
        self,
        hyperparameters: Hyperparameters,
        session: Session,
        *,
        gradient: bool = True,
        information: bool = False,
    ) -> Evidence:
        """Return the approximation of log p(y), with its standard error from the sample.

        The gradient and the information come with it if they are asked for. T (r^3/3 + r^2 t)
        flops for sets of r rows and t parameters.
        """
        found = self._predicted(hyperparameters, session, gradient)
        v, e, times = found.variance, self._targets - found.mean, self.rows_per_sampled
        logs = found.log_densities(self._targets)
        value, size = times * float(logs.sum()), logs.size
        missing = 1.0 - size / max(1.0, len(self.source) - self.shared.size)
        spread = float(logs.std(ddof=1)) if size > 1 else 0.0
        error = times * spread * np.sqrt(size * max(0.0, missing))
        slope = metric = None
        if gradient:
            dv, dmu = found.variance_gradient, found.mean_gradient
            slope = times * (dv.T @ (0.5 * (e**2 / v - 1.0) / v) + dmu.T @ (e / v))
            if information:
                scaled_v, scaled_mu = dv / v[:, None], dmu / np.sqrt(v)[:, None]
                metric = times * (0.5 * scaled_v.T @ scaled_v + scaled_mu.T @ scaled_mu)
        if self.shared.size:
            first = ExactSolver(self.shared.size, np.float64, session).evaluate(
                MemoryRows(self.data[self.shared]),
                hyperparameters,
                gradient=gradient,
                information=information,
            )
            value += first.value
            slope = None if slope is None else slope + first.gradient
            metric = None if metric is None else metric + first.information
        return Evidence(
            value, slope, len(self.source), information=metric, standard_error=float(error)
        )

    def log_densities(self, hyperparameters: Hyperparameters, session: Session) -> np.ndarray:
        """Return log p(y_i | y_U, y_N(i)) of the sampled rows;  (T,)."""
        return self._predicted(hyperparameters, session, False).log_densities(self._targets)

    def _predicted(
        self, hyperparameters: Hyperparameters, session: Session, gradient: bool
    ) -> PredictedRows:
        """Return the prediction of each sampled row, with derivatives if asked for."""
        search = NeighborSearch(self.data, hyperparameters)
        count, t = self.counts.size, hyperparameters.theta.size
        made = PredictedRows(
            *(np.empty(count), np.empty(count)),
            *(np.zeros((count, t * gradient)), np.zeros((count, t * gradient))),
        )
        prior = hyperparameters.weight_prior
        if not prior.is_shared and (packed := prior.pack(search.prepared_rows)) is not None:
            self._predict_by_terms(search, packed, made, session)
        elif prior.is_shared and search.profile is not None:
            self._predict_by_profile(search, search.profile, made, session)
        else:
            self._predict_one_by_one(search, made, session)
        variance = made.variance
        if not (variance > 0.0).all():
            raise NotPositiveDefinite(
                "The covariance of some neighbouring rows has no Cholesky factor. Raise sigma_y."
            )
        return made

    def _predict_by_profile(
        self, search: NeighborSearch, profile: Profile, made: PredictedRows, session: Session
    ) -> None:
        """Predict rows in a compiled loop for weights that share one kernel."""
        hyperparameters, gradient = search.hyperparameters, made.has_gradient
        noise = hyperparameters.noise(self.data)
        noise_gradient = hyperparameters.noise_gradient(self.data)
        count, width = self.counts.size, 3 + profile.points.shape[1]
        sums = [np.zeros((count, width * gradient)) for _ in range(2)]
        noises = [np.zeros((count, 2 * gradient)) for _ in range(2)]
        how = profile.family, profile.shape, profile.scale, profile.near
        rows = search.compiled_features, search.variances - noise, noise, noise_gradient
        with tile_threads(session.executor.n_jobs) as threads:
            for q in self._calls(session):
                given = self.data.y, self.sets[q], self.counts[q], JITTERS, gradient
                out = made.mean[q], made.variance[q]
                more = sums[0][q], sums[1][q], noises[0][q], noises[1][q]
                points = how, profile.by_column, profile.points
                threads.run(loops.predict_rows, *points, *rows, *given, *out, *more)
        if not gradient:
            return
        for along, total, by_noise in zip(
            (made.mean_gradient, made.variance_gradient), sums, noises, strict=True
        ):
            along[:, :-2] = hyperparameters.kernel.gradient_of_sums(total.T).T
            along[:, -2:] = by_noise

    def _predict_by_terms(
        self, search: NeighborSearch, packed: PackedTerms, made: PredictedRows, session: Session
    ) -> None:
        """Predict rows in a compiled loop for a sum of terms."""
        hyperparameters, count = search.hyperparameters, self.counts.size
        noise = hyperparameters.noise(self.data)
        sides = 2 * made.has_gradient
        sums, by_noise = np.zeros((count, sides, packed.width)), np.zeros((count, sides, 2))
        rows = packed.kernel, packed.points, packed.Z, search.variances - noise, noise
        given = hyperparameters.noise_gradient(self.data), self.data.y[:, None]
        means, ones = made.mean[:, None], np.ones((count, 1, 1))
        with tile_threads(session.executor.n_jobs) as threads:
            for q in self._calls(session):
                sets = self.sets[q], self.counts[q], JITTERS, ones[q]
                out = means[q], made.variance[q], sums[q], by_noise[q]
                threads.run(term_loops.predict_rows, *rows, *given, *sets, *out)
        if not sides:
            return
        for side, along in enumerate((made.variance_gradient, made.mean_gradient)):
            along[:, :-2] = hyperparameters.weight_prior.of_sums(packed, sums[:, side].T).T
            along[:, -2:] = by_noise[:, side]

    def _calls(self, session: Session) -> Iterator[slice]:
        """Yield the sampled rows of each call of a compiled loop."""
        session.journal.begins(self.counts.size)
        for rows in slices(self.counts.size, CALL_ROWS * session.executor.n_jobs):
            yield rows
            session.journal.worked(rows.stop - rows.start)

    def _predict_one_by_one(
        self, search: NeighborSearch, made: PredictedRows, session: Session
    ) -> None:
        """Predict rows as the compiled loops do, for kernels that have no compiled form."""
        hyperparameters, own = search.hyperparameters, search.variances
        prior, rows = hyperparameters.weight_prior, search.prepared_rows
        noise_gradient = hyperparameters.noise_gradient(self.data)

        def one(i: int) -> None:
            mine = self.sets[i, : self.counts[i] + 1]
            some = rows[mine]
            C = prior.tile(some, some)
            np.fill_diagonal(C, own[mine])
            H, A = np.empty(mine.size), np.empty(mine.size)
            found = loops.predict_last(C, self.data.y[mine], JITTERS, H, A)
            made.mean[i], made.variance[i] = found
            if not made.has_gradient:
                return
            for along, right in ((made.mean_gradient[i], A), (made.variance_gradient[i], H)):

                def weigh(G: np.ndarray, right: np.ndarray = right) -> None:
                    G *= np.outer(H, right)

                along[:-2] = prior.contract(some, some, weigh).sum(axis=0)
                along[-2:] = (H * right) @ noise_gradient[mine]

        session.executor.map(one, range(self.counts.size))


@dataclass(frozen=True)
class PredictedRows:
    """Mean and variance of each sampled row (T,), with their derivatives by theta (T, t)."""

    mean: np.ndarray
    variance: np.ndarray
    mean_gradient: np.ndarray
    variance_gradient: np.ndarray

    @property
    def has_gradient(self) -> bool:
        """Return whether derivatives are asked for."""
        return bool(self.mean_gradient.size)

    def log_densities(self, y: np.ndarray) -> np.ndarray:
        """Return the log density of each y;  (T,)."""
        v, e = self.variance, y - self.mean
        logs: np.ndarray = -0.5 * (np.log(2.0 * np.pi * v) + e**2 / v)
        return logs


def sampled_rows(parameters: int) -> int:
    """Return how many rows the likelihood of so many free hyperparameters is estimated from."""
    return max(LEAST_SAMPLED_ROWS, SAMPLED_ROWS_PER_PARAMETER * parameters)
