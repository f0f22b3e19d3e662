"""The starting point of a search for hyperparameters.

It is one of these: the given values, the optimum of an earlier fit, a checkpoint, or the optimum
of a subset of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from .model_choice import ModelChoice
from .options import SearchLimits

# A second search for length scales starts at theta2, their square, divided by this number.
THETA2_DIVISOR = 100.0
# The subset is drawn from a sample that has this many rows for each row of the subset.
CANDIDATES_PER_ROW = 20


@stored
@dataclass(frozen=True)
class KnownOptimum:
    """The hyperparameters of an earlier fit, its inducing points, and the choice of its model.

    It has inducing points if its solver has, and a choice if the user left the model open.
    """

    hyperparameters: Hyperparameters
    points: InputRows | None = None
    choice: ModelChoice | None = None


@dataclass(frozen=True)
class SubsetOptimum:
    """The hyperparameters at which the search on a subset of so many rows has ended.

    `information` is the average information of these rows there, (t, t), if it is known.
    """

    hyperparameters: Hyperparameters
    rows: int
    information: np.ndarray | None = None


@dataclass(frozen=True)
class StartingPoint:
    """The point at which a search begins.

    `given` are the hyperparameters of the user, at which their prior is centred. If the start is
    `warm`, `hyperparameters` and `points` are the optimum of an earlier search; `finished` says
    that a checkpoint is of a search that has converged. If they are the optimum of a subset,
    `known_rows` is its number of rows. The best point is saved to `file`.
    """

    given: Hyperparameters
    hyperparameters: Hyperparameters
    warm: bool = False
    points: InputRows | None = None
    finished: bool = False
    file: Checkpoint | None = None
    known_rows: int = 0

    def save(
        self, hyperparameters: Hyperparameters, points: InputRows | None, finished: bool = False
    ) -> None:
        """Write the checkpoint, if the user asked for one."""
        if self.file is not None:
            self.file.write(State(hyperparameters.theta, finished, points))

    def search(
        self,
        rows: RowSource,
        limits: SearchLimits,
        session: Session,
        save_best: Callable[[Hyperparameters], None],
    ) -> Search:
        """Return the search that begins here; `save_best` is called with every better point."""
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
            limits.optimizer,
            limits.search_rows,
            known_rows=self.known_rows,
        )


def starting_point(
    rows: RowSource,
    given: Hyperparameters,
    limits: SearchLimits,
    known: KnownOptimum | None,
    solver: Mapping[str, Any],
    most_points: int,
    session: Session,
    subset: SubsetOptimum | None = None,
    choice: ModelChoice | None = None,
) -> StartingPoint:
    """Return the start: a checkpoint if there is one, else an earlier fit, else the given values.

    `solver` is the fingerprint of the solver, and `most_points` the largest number of inducing
    points that it takes. The optimum of a `subset`, at which the model was chosen, comes before the
    given values. The `choice` is written to the checkpoint.
    """
    found = StartingPoint(given, given)
    if not limits.wanted:
        return found
    if subset is not None:
        start = given.with_theta(subset.hyperparameters.theta)
        found = replace(found, hyperparameters=start, known_rows=subset.rows)
    if known is not None and known.hyperparameters.parameter_kinds == given.parameter_kinds:
        theta = known.hyperparameters.theta
        usable = HyperparameterPrior.around(given).free & np.isfinite(theta)
        start = given.with_theta(np.where(usable, theta, given.theta))
        found = StartingPoint(given, start, warm=True, points=known.points)
    if limits.checkpoint is None:
        return found
    file = Checkpoint.at(limits.checkpoint, rows, given, solver, most_points, choice)
    found = replace(found, file=file)
    if (state := file.read()) is not None:
        session.journal.say(f"The fit resumes from the checkpoint {str(file.path)!r}.")
        start = given.with_theta(state.theta)
        return replace(
            found, hyperparameters=start, warm=True, points=state.points, finished=state.finished
        )
    return found


def find_length_scales(
    start: StartingPoint, rows: RowSource, count: int, limits: SearchLimits, session: Session
) -> StartingPoint:
    """Return the start at the better of two exact optima of a subset of `count` rows.

    One search starts from the given hyperparameters, and one from a tenth of their length scales. A
    search that starts only at the median distance can mistake a signal with a much shorter length
    scale for noise.
    """
    given, lengths = start.given, start.given.is_length_scale
    search, some = _subset_search(given, rows, count, limits, session)
    found = [exact_subset_optimum(search, some, start.hyperparameters)]
    if not session.journal.stopped:
        shorter = given.with_theta(given.theta - np.log(THETA2_DIVISOR) * lengths)
        found.append(exact_subset_optimum(search, some, shorter, warm=True))

    def height(optimum: Optimum) -> float:
        log_prior, _ = search.prior.value_and_gradient(optimum.hyperparameters.theta)
        return -np.inf if optimum.evidence is None else optimum.evidence.value + log_prior

    return replace(start, hyperparameters=max(found, key=height).hyperparameters)


def subset_optimum(
    first: Hyperparameters,
    rows: RowSource,
    count: int,
    limits: SearchLimits,
    session: Session,
) -> Hyperparameters:
    """Return the exact optimum of a subset of `count` rows, for weights with kernels of their own.

    The search starts from these hyperparameters, at which its prior is centred.
    """
    search, some = _subset_search(first, rows, count, limits, session)
    return exact_subset_optimum(search, some, first, warm=True).hyperparameters


def _subset_search(
    given: Hyperparameters, rows: RowSource, count: int, limits: SearchLimits, session: Session
) -> tuple[Search, TrainingRows]:
    """Return a search around given hyperparameters, and the subset of rows for it."""
    search = Search(
        rows,
        given,
        HyperparameterPrior.around(given),
        *(limits.max_iter, limits.tol, limits.n_restarts, session),
        optimizer=limits.optimizer,
        search_rows=limits.search_rows,
    )
    return search, _spread_and_near(rows, search.most_rows(count))


def _spread_and_near(rows: RowSource, count: int) -> TrainingRows:
    """Return a subset of which half is spread over all rows, and half is close to one another.

    It shows long length scales and short ones.
    """
    sample = rows.subset(CANDIDATES_PER_ROW * count)
    spread = np.sort(np.random.RandomState(0).permutation(len(sample))[: -(-count // 2)])
    apart = np.square(sample.x - sample.x[spread[0]]).sum(axis=1)
    near = np.argsort(apart, kind="stable")[: count // 2]
    return sample[np.union1d(spread, near)]
