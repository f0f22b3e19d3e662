"""The solver that conditions each query on shared rows and on its nearest rows.

Hyperparameters maximise Vecchia's likelihood of a sample of the rows (`vecchia`), from the exact
optimum of a subset on. Nothing of size n^2 is computed, and a fit of a million rows takes about as
long as one of thirty thousand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...data.indexed_rows import IndexedRows
from ...data.inputs import TrainingRows
from ...data.row_source import RowSource, keys, least
from ...errors import InputError
from ...linalg.covariance import TiledCovariance
from ...linalg.neighbor_search import search_among
from ...linalg.preconditioner import choose_pivots
from ...model.hyperparameters import HyperparameterPrior, Hyperparameters
from ...optimize.objective import Optimum
from ...optimize.search import Search
from ...runtime.parallel import all_but
from ...runtime.session import Session
from ..contract import Evidence, Plan, Problem, Solver, SolverSetup
from ..exact.solver import exact_subset_optimum
from ..posterior import Posterior
from ..rates import Rates
from ..weighted_sums import constant_columns
from .gathering import with_sums
from .planning import NeighborsSettings, expected_seconds, plan_neighbors, rows_of_sums
from .posterior import NeighborsPosterior
from .set_sizes import choose_sizes
from .vecchia import MOST_SHARED, OrderedRows, sampled_rows

# Neighbours are found again if the search has changed the ratio of two length scales by more than
# this, as a logarithm: some of the nearest rows are others then. The value was chosen by hand.
MOVED_LOG_RATIO = 0.2
# The search on the sampled rows is run at most so many times.
MOST_ROUNDS = 3
# A search ends at this tolerance. The optimum of the sample is further from that of all rows.
SAMPLE_TOLERANCE_NATS_PER_ROW = 1e-4


class NeighborsSolver(Solver):
    """The solver by shared rows and neighbours.

    It keeps the sampled rows and their neighbours from call to call, so that all evaluations are of
    one function.
    """

    name = "neighbors"
    keeps_rows = True
    capabilities = NeighborsPosterior.capabilities
    posterior_class = NeighborsPosterior
    settings_class = NeighborsSettings

    def __init__(
        self,
        plan: Plan,
        settings: NeighborsSettings,
        session: Session,
        known: NeighborsPosterior | None = None,
    ) -> None:
        self._plan, self.settings, self._session = plan, settings, session
        self._seed = session.draw_seed() if known is None else known.seed
        self._known = known
        # The sampled rows with their neighbours, and the rows that they were taken from.
        self._ordered: OrderedRows | None = None

    # Planning.

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        super().refuse(problem)
        if problem.options.dtype == "float32":
            raise InputError(
                "dtype=\"float32\" is not possible with solver='neighbors', which computes in "
                'float64. Give dtype="auto".'
            )

    @classmethod
    def plan(cls, problem: Problem) -> Plan:
        return plan_neighbors(problem)

    @classmethod
    def seconds(cls, plan: Plan, rates: Rates) -> float:
        return expected_seconds(plan, rates)

    @classmethod
    def create(
        cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None
    ) -> NeighborsSolver:
        mine = known if isinstance(known, NeighborsPosterior) else None
        return cls(plan, plan.settings_of(NeighborsSettings), setup.session, mine)

    # Search.

    def search(self, search: Search) -> Optimum:
        """Return the optimum of Vecchia's likelihood, from the exact optimum of a subset on."""
        journal, rows = self._session.journal, search.rows
        first = search.start
        has_terms = not first.weight_prior.is_shared
        if not search.warm or (has_terms and len(rows) <= self._plan.subset):
            data, count = rows.indexed(), search.most_rows(self._plan.subset)
            some = data[least(keys(0, len(data), self._seed), count)]
            found = exact_subset_optimum(search, some, first, search.warm)
            if len(some) == len(rows):
                return replace(found, evidence=None)
            first = found.hyperparameters
            # Terms are tested on a subset, too, and those that are left are searched again.
            if journal.stopped or has_terms or search.most_rows(len(rows)) <= len(some):
                return replace(found, evidence=None)
        # The search on sampled rows takes them all where all rows are asked for.
        on = replace(search, search_rows="all", prior=_without_constants(search.prior, first))
        on = on.starting_at(first).without_restarts()
        sampled = sampled_rows(int(on.prior.free.sum()))
        if search.search_rows != "auto":
            sampled = max(sampled, search.most_rows(len(rows)))
        for _ in range(MOST_ROUNDS):
            ordered = self._ordered = self._order(rows.indexed(), on.start, sampled)
            optimum = on.maximise(self.evaluate, warm=True, tol=SAMPLE_TOLERANCE_NATS_PER_ROW)
            found_at = optimum.hyperparameters
            if journal.stopped or not _has_moved(on.start, found_at):
                break
            on = on.starting_at(found_at)
        used = ordered.counts.size
        promised = optimum.promised_gain * used / len(rows)
        return replace(optimum, evidence=None, rows=used, promised_gain=promised)

    def _order(
        self, data: TrainingRows | IndexedRows, hyperparameters: Hyperparameters, sampled: int
    ) -> OrderedRows:
        """Return the sampled rows and their neighbours, nearest at these hyperparameters."""
        known = self._known
        with self._session.journal.phase("neighbours"):
            if known is None:
                shared = self._choose_shared(data, hyperparameters, self._vecchia_shared)
                neighbors = self.settings.neighbors
            else:
                hyperparameters = known.hyperparameters
                shared, neighbors, sampled = known.shared, known.neighbors, known.sampled
            search = search_among(data, hyperparameters)
            given = data, shared, neighbors, sampled, self._seed, self._session
            return OrderedRows.of(search, *given)

    @property
    def _vecchia_shared(self) -> int:
        """Return the number of shared rows of Vecchia's likelihood."""
        return min(self.settings.shared, MOST_SHARED)

    def _choose_shared(
        self, data: TrainingRows | IndexedRows, hyperparameters: Hyperparameters, count: int
    ) -> np.ndarray:
        """Return shared rows, chosen from a sample by a randomly pivoted Cholesky factorisation.

        (count,). If fewer rows already determine S, the others are drawn at random: they still
        average over the noise.
        """
        random = np.random.RandomState(self._seed)
        order = random.permutation(len(data))
        if not count:
            return order[:0]
        some = np.sort(order[: max(count, self.settings.pivot_rows)])
        C = TiledCovariance(data[some], hyperparameters, self._session)
        pivots = some[choose_pivots(C, min(count, len(some)), random)]
        rest = order[~np.isin(order, pivots)]
        return np.concatenate([pivots, rest[: count - pivots.size]])

    # Evaluations.

    def evaluate(
        self,
        rows: RowSource,
        hyperparameters: Hyperparameters,
        *,
        gradient: bool = True,
        information: bool = False,
    ) -> Evidence:
        """Return Vecchia's log p(y), estimated from a sample, with its standard error."""
        data = rows.indexed()
        if self._ordered is None or self._ordered.source is not data:
            free = int(np.isfinite(hyperparameters.theta).sum())
            self._ordered = self._order(data, hyperparameters, sampled_rows(free))
        return self._ordered.evaluate(
            hyperparameters, self._session, gradient=gradient, information=information
        )

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> NeighborsPosterior:
        """Return the posterior, with the numbers of rows that held-out rows have decided."""
        data, settings = rows.indexed(), self.settings
        sampled = sampled_rows(int(np.isfinite(hyperparameters.theta).sum()))
        posterior = NeighborsPosterior(
            hyperparameters,
            data,
            shared=self._choose_shared(data, hyperparameters, settings.shared),
            neighbors=settings.neighbors,
            keeps_factor=settings.keeps_factor,
            seed=self._seed,
            sampled=sampled,
            log_evidence=np.nan,
            standard_error=0.0,
            held_out=[],
        )
        if settings.choose_neighbors or settings.choose_shared:
            with self._session.journal.phase("numbers of neighbours"):
                posterior = choose_sizes(posterior, settings, self._session)
        posterior = self._with_sums(posterior)
        self._known, self._ordered = posterior, None
        found = self.evaluate(rows, hyperparameters, gradient=False)
        ended = replace(posterior, log_evidence=found.value, standard_error=found.standard_error)
        if posterior.summed.size and data.in_memory:
            ended.with_known(posterior.shared_rows(self._session))
        elif data.in_memory:
            ended.shared_rows(self._session)
        return ended

    def _with_sums(self, posterior: NeighborsPosterior) -> NeighborsPosterior:
        """Return the posterior with weighted sums of y for weights that have a constant part."""
        prior, n = posterior.hyperparameters.weight_prior, len(posterior)
        sums = constant_columns(prior).size
        if not sums:
            return posterior
        kernels = sum(not term.kernel.is_constant for term in prior.active)
        rest = all_but(n, posterior.shared)
        given = rest, n, posterior.nearby, sums, kernels, posterior.rows.in_memory, self._seed
        summed = rows_of_sums(*given)
        if not summed.size:
            return posterior
        with self._session.journal.phase("constant weights"):
            return with_sums(posterior, summed, self._session)


def _without_constants(prior: HyperparameterPrior, at: Hyperparameters) -> HyperparameterPrior:
    """Return a prior in which the variances of constant weights are held.

    A row of Vecchia's likelihood is predicted from a few hundred others, which are too few to tell
    a small constant weight from zero. The subset that the search starts from is larger.
    """
    if at.weight_prior.is_shared:
        return prior
    likelihood = np.zeros(at.likelihood.theta.size, bool)
    constants = np.concatenate([at.weight_prior.of_constants, likelihood])
    return replace(prior, held=np.asarray(prior.held) | constants)


def _has_moved(before: Hyperparameters, after: Hyperparameters) -> bool:
    """Return whether length scales have changed so much that other rows are nearest."""
    scales = before.is_length_scale
    moved = (after.theta - before.theta)[scales]
    return bool(moved.size > 1 and np.ptp(moved) > MOVED_LOG_RATIO)
