"""Where a search for hyperparameters begins: given values, an earlier fit, a checkpoint, or length scales of a subset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.inputs import InputRows, TrainingRows
from ..data.row_source import RowSource
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..optimize.objective import Optimum
from ..optimize.search import Search
from ..runtime.session import Session
from ..runtime.state import stored
from ..solvers.exact.solver import exact_subset_optimum
from .checkpoint import Checkpoint, State
from .options import SearchLimits

SHORTER_START = 100.0  # A second search starts at theta2 divided by this.
PATCH = 20  # rows, for each one of a subset, that its close ones are found in


@stored
@dataclass(frozen=True)
class KnownOptimum:
    """Hyperparameters of an earlier fit, and its inducing points, if it has any."""

    hyperparameters: Hyperparameters
    points: InputRows | None = None


@dataclass(frozen=True)
class StartingPoint:
    """Where a search begins.

    If it is `warm`, the hyperparameters are an optimum already, with these inducing points. `finished` is the last word of a
    checkpoint; `given` are the values that the prior is centred at; `file` is where the best point is saved.
    """

    given: Hyperparameters
    hyperparameters: Hyperparameters
    warm: bool = False
    points: InputRows | None = None
    finished: bool = False
    file: Checkpoint | None = None

    def save(
        self, hyperparameters: Hyperparameters, points: InputRows | None, finished: bool = False
    ) -> None:
        """Write the checkpoint, if there is to be one."""
        if self.file is not None:
            self.file.write(State(hyperparameters.theta, finished, points))

    def search(
        self, rows: RowSource, limits: SearchLimits, session: Session, save_best: Any
    ) -> Search:
        """Return the search that begins here."""
        return Search(
            rows,
            self.hyperparameters,
            HyperparameterPrior.around(self.given),
            limits.max_iter,
            limits.tol,
            limits.n_restarts,
            session,
            save_best,
            self.warm,
            self.points,
        )


def starting_point(
    rows: RowSource,
    given: Hyperparameters,
    limits: SearchLimits,
    known: KnownOptimum | None,
    solver: Mapping[str, Any],
    most_points: int,
    session: Session,
) -> StartingPoint:
    """Return the given values, or what an earlier fit or the checkpoint knows.

    `solver` is what tells its searches apart, and `most_points` how many inducing points it takes at most.
    """
    found = StartingPoint(given, given)
    if not limits.wanted:
        return found
    if known is not None and known.hyperparameters.parameter_kinds == given.parameter_kinds:
        theta = known.hyperparameters.theta
        usable = HyperparameterPrior.around(given).free & np.isfinite(theta)
        start = given.with_theta(np.where(usable, theta, given.theta))
        found = replace(found, hyperparameters=start, warm=True, points=known.points)
    if limits.checkpoint is None:
        return found
    file = Checkpoint.at(limits.checkpoint, rows, given, solver, most_points)
    found = replace(found, file=file)
    if (state := file.read()) is not None:
        session.journal.say(f"resumed from {file.path}")
        start = given.with_theta(state.theta)
        return replace(
            found, hyperparameters=start, warm=True, points=state.points, finished=state.finished
        )
    return found


def find_length_scales(
    start: StartingPoint, rows: RowSource, count: int, limits: SearchLimits, session: Session
) -> StartingPoint:
    """Return the better of two exact optima of a subset, from the given values and from a tenth of their length scales.

    From the median distance, a search would take what changes over a fraction of it for noise.
    """
    given, lengths = start.given, start.given.is_length_scale
    search = Search(
        rows,
        given,
        HyperparameterPrior.around(given),
        *(limits.max_iter, limits.tol, limits.n_restarts, session),
    )
    some = _spread_and_near(rows, count)
    found = [exact_subset_optimum(search, some, given)]
    if not session.journal.stopped:
        shorter = given.with_theta(given.theta - np.log(SHORTER_START) * lengths)
        found.append(exact_subset_optimum(search, some, shorter, warm=True))

    def height(optimum: Optimum) -> float:
        log_prior, _ = search.prior.value_and_gradient(optimum.hyperparameters.theta)
        return -np.inf if optimum.evidence is None else optimum.evidence.value + log_prior

    return replace(start, hyperparameters=max(found, key=height).hyperparameters)


def _spread_and_near(rows: RowSource, count: int) -> TrainingRows:
    """Return half of a subset spread over all rows, half next to one another, to see long and short length scales."""
    sample = rows.subset(PATCH * count)
    spread = np.sort(np.random.RandomState(0).permutation(len(sample))[: -(-count // 2)])
    apart = np.square(sample.x - sample.x[spread[0]]).sum(axis=1)
    near = np.argsort(apart, kind="stable")[: count // 2]
    return sample[np.union1d(spread, near)]
