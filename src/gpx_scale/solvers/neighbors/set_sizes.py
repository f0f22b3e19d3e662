"""The choice of the numbers of neighbours and of shared rows, by held-out rows.

Some training rows are predicted without themselves, with every pair (k, m) of a list. Of the pairs
whose mean log density is close to the best one, that with the fewest flops per query is taken.

All pairs predict the same rows, so that their differences per row are known much better than the
log densities themselves, whose standard deviation is about 2 nats. Pairs that are clearly worse
than the best one on a few rows are not tried on more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ...runtime.parallel import all_but
from ...runtime.session import Session
from .gathering import around
from .planning import NeighborsSettings
from .posterior import NeighborsPosterior

# All pairs predict this many rows first. Those that remain predict as many again, and so on, until
# a pair is decided, or until so many rows were predicted.
FIRST_HELD_OUT_ROWS = 256
MOST_HELD_OUT_ROWS = 1_024
# A pair is good enough if it loses at most so much to the best one.
GOOD_ENOUGH_NATS_PER_ROW = 0.01
# A mean difference is certain beyond so many of its standard errors.
CERTAIN_ERRORS = 2.0
# The pairs are made of these numbers, as far as the plan allows them, and of the planned ones. With
# 64 neighbours, log densities of y may be as good, but means of weights were up to 0.1 standard
# deviations from the exact ones for a rough function of one column (Matern 1/2, n = 12,000), where
# 128 leave 0.002.
NEIGHBORS = (128, 256, 512)
SHARED = (0, 512, 1_024, 2_048, 4_096)


@dataclass
class SetSizes:
    """Numbers of neighbours and of shared rows, and how well they predict held-out rows.

    `densities` has the log densities of the rows so far, and `loss` is the mean of what they lost
    to those of the best pair when both were last compared.
    """

    neighbors: int
    shared: int
    densities: np.ndarray = field(default_factory=lambda: np.empty(0))
    loss: float = 0.0

    def flops(self, d: int, keeps_factor: bool) -> float:
        """Return about how many flops a query with d weights takes."""
        k, m = float(self.neighbors), float(self.shared)
        return k**3 / 3.0 + k**2 * m + (k + m) * m * d + (0.0 if keeps_factor else k * m**2)

    def lost_to(self, other: SetSizes) -> tuple[float, float]:
        """Return the nats per row lost to another pair, and twice their standard error."""
        lost = other.densities - self.densities
        error = lost.std(ddof=1) / np.sqrt(lost.size) if lost.size > 1 else 0.0
        return float(lost.mean()), float(CERTAIN_ERRORS * error)

    def is_too_bad(self, best: SetSizes) -> bool:
        """Return whether this pair certainly loses too much to the best one."""
        loss, error = self.lost_to(best)
        return loss - error > GOOD_ENOUGH_NATS_PER_ROW

    def is_good_enough(self, others: list[SetSizes]) -> bool:
        """Return whether this pair certainly loses little to each of the others."""
        bounds = [sum(self.lost_to(other)) for other in others]
        return max(bounds, default=0.0) <= GOOD_ENOUGH_NATS_PER_ROW


def choose_sizes(
    posterior: NeighborsPosterior, settings: NeighborsSettings, session: Session
) -> NeighborsPosterior:
    """Return the posterior with the smallest numbers of rows that are good enough.

    The posterior given has all shared rows, of which the first ones are taken, and as many
    neighbours as planned.
    """
    rest = all_but(len(posterior), posterior.shared)
    most = posterior.shared.size
    if not rest.size:
        return posterior
    held = np.random.RandomState(posterior.seed).permutation(rest)[:MOST_HELD_OUT_ROWS]
    local, held = _around(posterior, held, session)
    pairs = [
        SetSizes(k, m)
        for m in _sizes(SHARED, most, settings.choose_shared)
        for k in _sizes(NEIGHBORS, settings.neighbors, settings.choose_neighbors)
        if k + m
    ]
    pairs.sort(key=lambda one: one.flops(posterior.d, posterior.keeps_factor))
    left, count = pairs, 0
    while True:
        some = np.sort(held[count : max(FIRST_HELD_OUT_ROWS, 2 * count)])
        count += some.size
        _predict(left, local, some, session)
        best = max(left, key=lambda one: float(one.densities.mean()))
        for one in left:
            one.loss, error = one.lost_to(best)
            session.journal.say(
                f"{one.neighbors} neighbours, {one.shared} shared rows: {one.loss:.4f} +- "
                f"{error:.4f} nats per row lost, {count} rows"
            )
        left = [one for one in left if not one.is_too_bad(best)]
        if left[0].is_good_enough(left[1:]) or count >= held.size:
            break
    taken = next(one for one in left if one.loss <= GOOD_ENOUGH_NATS_PER_ROW)
    score = float(best.densities.mean())
    chosen = replace(
        posterior,
        shared=posterior.shared[: taken.shared],
        neighbors=taken.neighbors,
        held_out=[(one.neighbors, one.shared, score - one.loss) for one in pairs],
    )
    # Factors of fewer rows are computed anew, as a loaded model computes them: parts of larger ones
    # may differ in their last digits.
    is_whole = taken.shared == most and local is posterior
    return chosen.with_known(local.shared_rows(session)) if is_whole else chosen


def _around(
    posterior: NeighborsPosterior, held: np.ndarray, session: Session
) -> tuple[NeighborsPosterior, np.ndarray]:
    """Return a posterior in memory that predicts held-out rows alike, and their numbers there.

    It has all shared rows and the most neighbours, so it has those of every pair that is compared.
    """
    if posterior.rows.in_memory:
        return posterior, held
    local, index = around(posterior, posterior.rows[held], session, held)
    return local, np.searchsorted(index, held)


def _sizes(usual: tuple[int, ...], most: int, is_chosen: bool) -> list[int]:
    """Return the numbers that are compared: the usual ones below `most`, and that itself."""
    return [*(size for size in usual if size < most and is_chosen), most]


def _predict(
    pairs: list[SetSizes], posterior: NeighborsPosterior, some: np.ndarray, session: Session
) -> None:
    """Add the log densities of held-out rows to those of each pair."""
    known = posterior.shared_rows(session)
    for m in sorted({one.shared for one in pairs}):
        first = known.first(m)
        for pair in (one for one in pairs if one.shared == m):
            model = replace(posterior, shared=first.shared, neighbors=pair.neighbors)
            mean, variance = model.with_known(first).predict_held_out(some, session)
            e = posterior.memory.y[some] - mean
            logs = -0.5 * (np.log(2.0 * np.pi * variance) + e**2 / variance)
            pair.densities = np.append(pair.densities, logs)
