"""The choice of the numbers of neighbours and of shared rows, by held-out rows.

Some training rows are predicted without themselves, with every pair (k, m) of a list. Of the pairs
whose mean log density is close to the best one, that with the fewest flops per query is taken.

The density of y says little about the weights where the noise is large: in one dimension, with a
Matern 1/2, noise of 0.3 and 12,000 rows, 64 neighbours lose nothing, and their means of weights are
up to 0.28 standard deviations off; with 128, they are 0.03 off. So if a smaller pair predicts the
rows as the largest one does, the pair is taken from those that do: then all rows that matter are
among the neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...runtime.session import Session
from .planning import NeighborsSettings
from .posterior import NeighborsPosterior

# This many rows are predicted, with all pairs the same ones: 12 s for 50,000 rows on two cores. The
# log density of a row has a standard deviation of 2.3 to 2.5 nats on kin40k, with long tails, so
# that differences of 0.01 between two pairs may be chance.
HELD_OUT_ROWS = 512
# A pair is good enough if it loses at most so much to the best one.
GOOD_ENOUGH_NATS_PER_ROW = 0.01
# Two pairs predict rows alike if their means differ by at most so many standard deviations of z.g,
# as a root mean square, and its variances by this share.
ALIKE_DEVIATIONS = 0.01
ALIKE_SHARE = 0.01
# The pairs are made of these numbers, as far as the plan allows them, and of the planned ones.
NEIGHBORS = (64, 128, 256, 512)
SHARED = (0, 512, 1_024, 2_048)


@dataclass(frozen=True)
class SetSizes:
    """Numbers of neighbours and of shared rows, and how they predict held-out rows.

    `score` is their mean log density, `mean` and `variance` (b,) are the moments of z.g.
    """

    neighbors: int
    shared: int
    score: float
    mean: np.ndarray
    variance: np.ndarray

    def predicts_as(self, other: SetSizes) -> bool:
        """Return whether the predictions are those of another pair, up to small differences."""
        apart = np.square(self.mean - other.mean) / other.variance
        more = np.abs(self.variance / other.variance - 1.0)
        return bool(apart.mean() <= ALIKE_DEVIATIONS**2 and more.mean() <= ALIKE_SHARE)

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
    rest = np.setdiff1d(np.arange(len(posterior)), posterior.shared)
    most = posterior.shared.size
    if not rest.size:
        return posterior
    held = np.sort(np.random.RandomState(posterior.seed).permutation(rest)[:HELD_OUT_ROWS])
    known, tried = posterior.shared_rows(session), []
    for m in _sizes(SHARED, most, settings.choose_shared):
        some = known.first(m)
        for k in _sizes(NEIGHBORS, settings.neighbors, settings.choose_neighbors):
            if k + m:
                one = replace(posterior, shared=some.shared, neighbors=k).with_known(some)
                tried.append(SetSizes(k, m, *_predicted(one, held, session)))
                session.journal.say(f"{k} neighbours, {m} shared rows: {tried[-1].score:.4f} nats")
    best = max(one.score for one in tried)
    good = [one for one in tried if one.score >= best - GOOD_ENOUGH_NATS_PER_ROW]
    alike = [one for one in good if one is not tried[-1] and one.predicts_as(tried[-1])]
    good = alike or good
    taken = min(good, key=lambda one: one.flops(posterior.d, posterior.keeps_factor))
    chosen = replace(
        posterior,
        shared=posterior.shared[: taken.shared],
        neighbors=taken.neighbors,
        held_out=[(one.neighbors, one.shared, one.score) for one in tried],
    )
    # Factors of fewer rows are computed anew, as a loaded model computes them: parts of larger ones
    # may differ in their last digits.
    return chosen.with_known(known) if taken.shared == most else chosen


def _sizes(usual: tuple[int, ...], most: int, is_chosen: bool) -> list[int]:
    """Return the numbers that are compared: the usual ones below `most`, and that itself."""
    return [*(size for size in usual if size < most and is_chosen), most]


def _predicted(
    posterior: NeighborsPosterior, held: np.ndarray, session: Session
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the mean log density of held-out rows, and mean and variance of their z.g."""
    mean, variance = posterior.predict_held_out(held, session)
    e = posterior.rows.y[held] - mean
    score = float(np.mean(-0.5 * (np.log(2.0 * np.pi * variance) + e**2 / variance)))
    noise = posterior.hyperparameters.noise(posterior.rows.Z[held])
    # Rounding may leave nothing of the variance.
    least = np.finfo(float).eps * variance
    return score, mean, np.maximum(variance - noise, least)
