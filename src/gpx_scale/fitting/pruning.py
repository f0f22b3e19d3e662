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
from functools import reduce

import numpy as np

from ..data.row_source import MemoryRows, RowSource
from ..errors import NotConverged, NotPositiveDefinite
from ..model.hyperparameters import Hyperparameters
from ..model.term import CONSTANT, OWN, PARTS
from ..runtime.session import Session
from ..solvers.contract import WEIGHT_TEST_ROWS, Solver
from ..solvers.exact.solver import ExactSolver

# A term that earns less is removed. It is the 95% point of the mixture of distributions above.
LEAST_EARNED_NATS = 1.35
# After terms are removed, the others are searched again, and tested again, at most this often.
MAX_ROUNDS = 3
# After the other hyperparameters have moved, weights that earned less are tested again.
SURE_NATS = 20.0
# So many weights are first tested together. Most of those that are zero are then found in a few
# evaluations.
AT_ONCE = 8

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
    start: Hyperparameters,
    rows: RowSource,
    refit: Refit,
    prune: bool,
    session: Session,
    fitted_by: Solver,
    is_optimum: bool,
) -> Tested:
    """Return hyperparameters without the terms that earn too little, searched again.

    Unless the start `is_optimum`, they are searched again in any case. Without `prune`, nothing is
    removed, and only the nats are computed. A test takes the factor of C of some rows, or an
    evaluation of all rows by the solver of the fit, if that takes sums that it has. Ctrl-C ends the
    tests, and all terms stay that are left.
    """
    some, solver = rows, fitted_by
    if not fitted_by.has_sums:
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
            if session.journal.stopped or session.journal.was_interrupted:
                break
            with session.journal.phase("tests of the weights"):
                found = tested_once(found, evidence, least)
            is_same = found.hyperparameters.theta.size == start.theta.size
            if is_same and is_optimum:
                break
            start, is_optimum = refit(found.hyperparameters), True
            # Of weights that earn so much, another test would find the same.
            sure = {k: nats for k, nats in found.nats.items() if nats > SURE_NATS}
            if is_same:
                found = replace(found, hyperparameters=start)
                break
            found = Tested(start, sure)
    except KeyboardInterrupt:
        session.journal.interrupted()
    return found


def tested_once(
    tested: Tested, evidence: Callable[[Hyperparameters], float], least: float
) -> Tested:
    """Test the weights of all features but those tested before, the smallest variances first.

    Weights that together earn too little are zero. Of the others, one after the other is simplified
    as far as it may be, so that of two collinear features, one stays.
    """
    current, nats = tested.hyperparameters, dict(tested.nats)
    columns, count = [k for k in _by_size(current) if k not in nats], AT_ONCE
    if not columns:
        return tested
    value = evidence(current)
    while columns and count:
        some = columns[:count]
        simpler = reduce(_zero, some, current)
        other = evidence(simpler)
        if value - other < least:
            current, value, columns = simpler, other, columns[len(some) :]
        else:
            count //= 2
    for column in columns:
        current, value, earned = _simplest(current, value, column, evidence, least)
        nats |= {} if earned is None else {column: earned}
    return Tested(current, nats)


def _simplest(
    current: Hyperparameters,
    value: float,
    column: int,
    evidence: Callable[[Hyperparameters], float],
    least: float,
) -> tuple[Hyperparameters, float, float | None]:
    """Return hyperparameters with the simplest weight of a feature that the rows allow.

    With them come their evidence, and what the weight earns against the next simpler one, None if
    it is zero. The most flexible part is compared with the next simpler one, which gets its
    variance, and so on, down to a weight of zero. Where a part stays, a curve of its own is tested
    without moving its variance, and a constant part stays, too: away from the data, the weight
    returns to it.
    """
    earned = None
    for part in PARTS:
        if not _variance(current, part, column) or (part == CONSTANT and earned is not None):
            continue
        if earned is None:
            simpler = _simplified(current, part, column)
        else:
            simpler = _with_variance(current, part, column, 0.0)
        other = evidence(simpler)
        if value - other < least:
            current, value = simpler, other
        elif earned is None:
            earned = value - other
    return current, value, earned


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


def _zero(hyperparameters: Hyperparameters, column: int) -> Hyperparameters:
    """Return hyperparameters in which the weight of one feature or group is zero."""
    for part in PARTS:
        hyperparameters = _with_variance(hyperparameters, part, column, 0.0)
    return hyperparameters


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
