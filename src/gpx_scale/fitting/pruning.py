"""The terms of weights that earn too little are removed, and their cost with them.

A term earns the nats by which the log marginal likelihood falls without it, other parameters being
the same; a weight that varies is compared with a constant one. If the term does nothing, twice
these nats are 0 with probability 1/2, and else follow chi squared with one degree of freedom. The
95% point of this mixture is 2.71, so that such a term earns less than 1.35 nats in 95 of 100 data
sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ..data.row_source import MemoryRows, RowSource
from ..errors import NotConverged, NotPositiveDefinite
from ..model.hyperparameters import Hyperparameters
from ..model.term import OWN, PARTS
from ..runtime.session import Session
from ..solvers.contract import WEIGHT_TEST_ROWS
from ..solvers.exact.solver import ExactSolver

# A term that earns less is removed. It is the 95% point of the mixture of distributions above.
LEAST_EARNED_NATS = 1.35
# After terms are removed, the others are searched again, and tested again, at most this often.
MAX_ROUNDS = 3

# A function that searches again from hyperparameters.
Refit = Callable[[Hyperparameters], Hyperparameters]


@dataclass(frozen=True)
class Tested:
    """Hyperparameters whose terms were tested, and the nats that the weights earn.

    `nats` has them by the first column of each feature or group: what the weight earns against the
    next simpler one. A weight that is zero has none.
    """

    hyperparameters: Hyperparameters
    nats: dict[int, float] = field(default_factory=dict)


def pruned(
    start: Hyperparameters, rows: RowSource, refit: Refit, prune: bool, session: Session
) -> Tested:
    """Return hyperparameters without the terms that earn too little, searched again.

    Without `prune`, nothing is removed, and only the nats are computed. A test takes the factor of
    C, n^3/3 flops. Ctrl-C ends the tests, and all terms stay that are left.
    """
    some = MemoryRows(rows.subset(min(len(rows), WEIGHT_TEST_ROWS)))
    solver = ExactSolver(len(some), np.float64, session)

    def evidence(hyperparameters: Hyperparameters) -> float:
        try:
            return solver.evaluate(some, hyperparameters, gradient=False).value
        except (NotPositiveDefinite, NotConverged):
            return -np.inf

    least = LEAST_EARNED_NATS if prune else -np.inf
    found = Tested(start)
    try:
        for _ in range(MAX_ROUNDS):
            with session.journal.phase("tests of the weights"):
                found = tested_once(found.hyperparameters, evidence, least)
            ended = session.journal.stopped or session.journal.was_interrupted
            if found.hyperparameters.theta.size == start.theta.size or ended:
                break
            start = refit(found.hyperparameters)
            found = replace(found, hyperparameters=start)
    except KeyboardInterrupt:
        session.journal.interrupted()
    return found


def tested_once(
    hyperparameters: Hyperparameters,
    evidence: Callable[[Hyperparameters], float],
    least: float,
) -> Tested:
    """Test the weights of all features once, that with the smallest variances first.

    The most flexible part of a weight is compared with the next simpler one, which gets its
    variance, and so on, down to a weight of zero. Where a part stays, the simpler ones are tested
    without moving their variances. One weight after the other is simplified, so that of two
    collinear features, one stays.
    """
    current, value, nats = hyperparameters, evidence(hyperparameters), dict[int, float]()
    for column in _by_size(hyperparameters):
        for part in PARTS:
            if not _variance(current, part, column):
                continue
            if column in nats:
                simpler = _with_variance(current, part, column, 0.0)
            else:
                simpler = _simplified(current, part, column)
            other = evidence(simpler)
            if value - other < least:
                current, value = simpler, other
            elif column not in nats:
                nats[column] = value - other
    return Tested(current, nats)


def _by_size(hyperparameters: Hyperparameters) -> list[int]:
    """Return the first column of each feature or group, those of the smallest variances first."""
    sizes: dict[int, float] = {}
    for term in hyperparameters.weight_prior.terms:
        pairs = zip(term.parameter_columns.tolist(), term.free_variances.tolist(), strict=True)
        for column, variance in pairs:
            sizes[column] = sizes.get(column, 0.0) + variance
    return sorted(sizes, key=lambda column: sizes[column])


def _variance(hyperparameters: Hyperparameters, part: str, column: int) -> float:
    """Return the variance of a part of a weight, 0 if it has none."""
    terms = hyperparameters.weight_prior.terms
    return float(sum(term.variances[column] for term in terms if term.part == part))


def _simplified(hyperparameters: Hyperparameters, part: str, column: int) -> Hyperparameters:
    """Return hyperparameters in which the next simpler part of a weight replaces one.

    It gets the variance of both. Without a simpler part, the weight is zero.
    """
    variance = _variance(hyperparameters, part, column)
    without = _with_variance(hyperparameters, part, column, 0.0)
    for simpler in PARTS[PARTS.index(part) + 1 :]:
        total = variance + _variance(hyperparameters, simpler, column)
        found = _with_variance(without, simpler, column, total)
        if _variance(found, simpler, column):
            return found
    return without


def _with_variance(
    hyperparameters: Hyperparameters, part: str, column: int, variance: float
) -> Hyperparameters:
    """Return hyperparameters with another variance of a part of one weight, and of tied ones.

    A curve of a feature's own is the term that has the name of its column.
    """
    terms = tuple(
        term.with_variance(column, variance)
        if term.part == part and (part != OWN or term.name == f"own.z{column}")
        else term
        for term in hyperparameters.weight_prior.terms
    )
    prior = replace(hyperparameters.weight_prior, terms=terms)
    return replace(hyperparameters, weight_prior=prior)


def same_terms(given: Hyperparameters, found: Hyperparameters) -> Hyperparameters:
    """Return given hyperparameters without the terms that the found ones do not have.

    The weights that vary may have one term in the given ones, and several in the found ones.
    """
    terms = []
    for term in given.weight_prior.terms:
        kept = sum(
            (one.variances for one in found.weight_prior.terms if one.part == term.part),
            start=np.zeros_like(term.variances),
        )
        variances = np.where(kept > 0, term.variances, 0.0)
        terms.append(replace(term, weight_variances=variances))
    return replace(given, weight_prior=replace(given.weight_prior, terms=tuple(terms)))
