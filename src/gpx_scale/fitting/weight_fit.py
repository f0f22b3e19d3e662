"""The steps of a fit that concern weights with priors of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..data.row_source import RowSource
from ..model.hyperparameters import Hyperparameters
from ..optimize.objective import Optimum, forget
from ..runtime.session import Session
from ..solvers.contract import Solver
from .options import FitOptions, SearchLimits
from .pruning import Tested, pruned, same_terms
from .starting_point import (
    KnownOptimum,
    StartingPoint,
    SubsetOptimum,
    find_length_scales,
    subset_optimum,
)
from .weight_options import WeightNames, WeightOptions

# The better start is found on this many rows.
START_ROWS = 800
# The search before terms are removed ends where a Newton step promises a tenth of this. For 2,000
# rows these are 0.1 nats, few beside the 1.35 nats of a decision.
FIRST_TOLERANCE_NATS_PER_ROW = 5e-4


@dataclass(frozen=True)
class WeightFit:
    """What is asked for of the weights, for a Z whose features or groups have names."""

    options: WeightOptions
    features: WeightNames

    def applied(self, given: Hyperparameters) -> Hyperparameters:
        """Return given hyperparameters with the priors that are asked for."""
        return self.options.applied(given, self.features)

    def started(self, subset: SubsetOptimum | None) -> SubsetOptimum | None:
        """Return the optimum of a comparison of models, from which a search for terms begins.

        One of weights that share their prior knows no variances, so that no stage of the search is
        left out.
        """
        if subset is None or not subset.hyperparameters.weight_prior.is_shared:
            return subset
        if self.options.shared:
            return subset
        return SubsetOptimum(self.applied(subset.hyperparameters), 0)

    def restarted(self, known: KnownOptimum | None, given: Hyperparameters) -> KnownOptimum | None:
        """Return the optimum of an earlier fit, with the terms that it has removed."""
        if known is None or self.options.shared:
            return known
        found = self.options.restarted(known.hyperparameters, given, self.features)
        return replace(known, hyperparameters=found)

    def first_search(self, options: FitOptions) -> FitOptions:
        """Return the options of the search before terms are removed, which ends earlier."""
        if self.options.shared:
            return options
        tol = max(options.search.tol, FIRST_TOLERANCE_NATS_PER_ROW)
        return replace(options, search=replace(options.search, tol=tol))

    def placed(
        self, start: StartingPoint, rows: RowSource, limits: SearchLimits, session: Session
    ) -> StartingPoint:
        """Return the better of two starts on a subset of the rows, one with short length scales.

        Weights with priors of their own often differ in how fast they vary, and a search from the
        median distance alone can leave out one that varies fast. A comparison of priors has tried
        both.
        """
        data = rows.load() if rows.in_memory else rows.subset(START_ROWS)
        has_lengths = bool(start.given.is_length_scale.any())
        is_known = start.warm or start.known_rows > 0
        searched = limits.wanted and not is_known and not session.journal.stopped
        if self.options.shared or not searched or not has_lengths:
            return start
        if not isinstance(data.x, np.ndarray) or not np.ptp(data.y):
            return start
        count = min(len(rows), START_ROWS)
        found = find_length_scales(start, rows, count, limits, session)
        return replace(found, known_rows=count)

    def pruned(
        self,
        optimum: Optimum,
        start: StartingPoint,
        rows: RowSource,
        solver: Solver,
        options: FitOptions,
        session: Session,
    ) -> tuple[Optimum, Tested]:
        """Return the optimum without the terms that earn too little, and what the others earn.

        Checkpoints keep the optimum of all terms, from which this step can be taken again.
        """
        if session.journal.stopped or session.journal.was_interrupted:
            return optimum, Tested(optimum.hyperparameters)
        refit = Refits(self.options, start, rows, solver, options, session, optimum)
        given = rows, refit, self.options.prune, session, solver
        tested = pruned(optimum.hyperparameters, *given, is_optimum=False)
        apart = self.options.split(tested.hyperparameters)
        if apart is not tested.hyperparameters and not session.journal.was_interrupted:
            if not solver.keeps_rows:
                apart = subset_optimum(apart, rows, START_ROWS, options.search, session)
            found = refit(apart)
            tested = pruned(found, *given, is_optimum=True)
        return refit.ended(tested), tested

    def finished(
        self,
        optimum: Optimum,
        start: StartingPoint,
        rows: RowSource,
        solver: Solver,
        options: FitOptions,
        session: Session,
    ) -> tuple[Optimum, Tested]:
        """Return the optimum of all rows for terms that were decided on some, and their nats."""
        refit = Refits(self.options, start, rows, solver, options, session, optimum)
        if session.journal.stopped or session.journal.was_interrupted:
            return optimum, Tested(optimum.hyperparameters)
        found = refit(optimum.hyperparameters)
        given = rows, refit, self.options.prune, session, solver
        tested = pruned(found, *given, is_optimum=True)
        return refit.ended(tested), tested


@dataclass
class Refits:
    """Searches for the terms that are left, each from hyperparameters that have them.

    `optimum` is that of the last search, and at first one of all terms.
    """

    weights: WeightOptions
    start: StartingPoint
    rows: RowSource
    solver: Solver
    options: FitOptions
    session: Session
    optimum: Optimum

    def __call__(self, found: Hyperparameters) -> Hyperparameters:
        """Search from these hyperparameters, and return the optimum."""
        given = same_terms(self.start.given, found)
        if any(term.name for term in found.weight_prior.terms):
            given = self.weights.split(given)
        again = replace(self.start, given=given, hyperparameters=found, warm=True, file=None)
        again = replace(again, points=self.solver.carried)
        search = again.search(self.rows, self.options.search, self.session, forget)
        self.optimum = self.solver.search(search)
        return self.optimum.hyperparameters

    def ended(self, tested: Tested) -> Optimum:
        """Return the last optimum, with the terms that were removed after it."""
        if tested.hyperparameters is self.optimum.hyperparameters:
            return self.optimum
        return replace(self.optimum, hyperparameters=tested.hyperparameters, evidence=None)
