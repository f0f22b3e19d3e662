"""The choice of the numbers of neighbours and of shared rows, by held-out rows.

Some training rows are predicted without themselves, with every pair (k, m) of a list. Of the pairs
whose mean log density is close to the best one, that with the fewest flops per query is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...runtime.parallel import all_but
from ...runtime.session import Session
from .gathering import around
from .planning import NeighborsSettings
from .posterior import NeighborsPosterior

# This many rows are predicted, with all pairs the same ones: 12 s for 50,000 rows on two cores. The
# log density of a row has a standard deviation of 2.3 to 2.5 nats on kin40k, with long tails, so
# that differences of 0.01 between two pairs may be chance.
HELD_OUT_ROWS = 512
# A pair is good enough if it loses at most so much to the best one.
GOOD_ENOUGH_NATS_PER_ROW = 0.01
# The pairs are made of these numbers, as far as the plan allows them, and of the planned ones.
NEIGHBORS = (64, 128, 256, 512)
SHARED = (0, 512, 1_024, 2_048)


@dataclass(frozen=True)
class SetSizes:
    """Numbers of neighbours and of shared rows, and the mean log density of held-out rows."""

    neighbors: int
    shared: int
    score: float

    def flops(self, d: int, keeps_factor: bool) -> float:
        """Return about how many flops a query with d weights takes."""
        k, m = float(self.neighbors), float(self.shared)
        return k**3 / 3.0 + k**2 * m + (k + m) * m * d + (0.0 if keeps_factor else k * m**2)


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
    held = np.sort(np.random.RandomState(posterior.seed).permutation(rest)[:HELD_OUT_ROWS])
    local, held = _around(posterior, held, session)
    known, tried = local.shared_rows(session), []
    for m in _sizes(SHARED, most, settings.choose_shared):
        some = known.first(m)
        for k in _sizes(NEIGHBORS, settings.neighbors, settings.choose_neighbors):
            if k + m:
                one = replace(local, shared=some.shared, neighbors=k).with_known(some)
                tried.append(SetSizes(k, m, _score(one, held, session)))
                session.journal.say(f"{k} neighbours, {m} shared rows: {tried[-1].score:.4f} nats")
    best = max(one.score for one in tried)
    good = [one for one in tried if one.score >= best - GOOD_ENOUGH_NATS_PER_ROW]
    taken = min(good, key=lambda one: one.flops(posterior.d, posterior.keeps_factor))
    chosen = replace(
        posterior,
        shared=posterior.shared[: taken.shared],
        neighbors=taken.neighbors,
        held_out=[(one.neighbors, one.shared, one.score) for one in tried],
    )
    # Factors of fewer rows are computed anew, as a loaded model computes them: parts of larger ones
    # may differ in their last digits.
    is_whole = taken.shared == most and local is posterior
    return chosen.with_known(known) if is_whole else chosen


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


def _score(posterior: NeighborsPosterior, held: np.ndarray, session: Session) -> float:
    """Return the mean log density of held-out rows."""
    mean, variance = posterior.predict_held_out(held, session)
    e = posterior.memory.y[held] - mean
    return float(np.mean(-0.5 * (np.log(2.0 * np.pi * variance) + e**2 / variance)))
