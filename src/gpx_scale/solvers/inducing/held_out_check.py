"""A check of the means of inducing points between the points, by the rows near some rows.

Some rows of a sample are predicted from the rows of the sample that are near them, without
themselves, at the hyperparameters of the fit. With f = z.g, the two predictions should differ by
no more than their standard deviations:

    t = (E_points[f] - E_near[f]) / (Var_points[f] + Var_near[f])^1/2

If the points stood for all rows, the variance of the difference would be Var_near - Var_points, as
the near rows are some of them, and the root mean square of t would be below 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...data.inputs import Queries, TrainingRows
from ...linalg.neighbor_search import Eligible
from ...runtime.parallel import evenly_spaced
from ...runtime.session import Session
from ..neighborhood import RightHandSides, SharedRows
from ..posterior import MomentRequest
from .posterior import InducingPosterior

# The rows that are compared, those that they are predicted from, and those that these are found
# among: a second on one core.
COMPARED_ROWS = 200
NEAR_ROWS = 128
SAMPLE_ROWS = 4_000
# A fit warns if the root mean square of t is above this: it is below 1 where the points suffice.
# The value was chosen by hand.
WARNED_DEVIATIONS = 2.0


@dataclass(frozen=True)
class HeldOutCheck:
    """The root mean square and the largest |t| of the rows that were compared."""

    usual: float
    most: float

    @property
    def fails(self) -> bool:
        """Return whether means are off by several standard deviations."""
        return self.usual > WARNED_DEVIATIONS

    def __str__(self) -> str:
        return (
            f"on held-out rows, means are {self.usual:.1f} standard deviations (at most "
            f"{self.most:.1f}) from those by near rows"
        )


def check_held_out(
    posterior: InducingPosterior, sample: TrainingRows, session: Session
) -> HeldOutCheck:
    """Return how far means are from those of near rows, at some rows of a sample."""
    hyperparameters, n = posterior.hyperparameters, len(sample)
    which, none = evenly_spaced(COMPARED_ROWS, n), np.empty(0, int)
    known = SharedRows.of(sample, hyperparameters, none, session, keep=False)
    rows, among = sample[which], Eligible.without(n, none, which.size, which)
    near = known.search.nearest(rows, min(NEAR_ROWS, n - 1), among, session)
    prepared = hyperparameters.weight_prior.prepare(sample)
    b = np.zeros(near.rows.shape)
    for K, of_term in zip(
        known.kernels_of_near(rows.x, near, session), prepared.of_terms, strict=True
    ):
        inner = of_term.Z[which].inner_products(of_term.Z)
        b += K * np.take_along_axis(inner, near.rows, axis=1)
    sides = RightHandSides.of_one(b.copy(), np.empty((which.size, 0)))
    found = known.condition(near, sides, session, mean=True)
    assert found.near_weights is not None
    mean = (b * found.near_weights).sum(axis=1)
    variance = np.maximum((known.diagonal - known.noise)[which] - found.found[:, 0], 0.0)
    request = MomentRequest(along=[rows.Z], surface=True)
    mine = posterior.moments(Queries(rows.x, rows.Z), request, session)
    assert mine.mean is not None
    both = variance + mine.along[0]
    apart = np.square(rows.Z.row_dots(mine.mean) - mean)
    t = np.sqrt(np.divide(apart, both, np.zeros(which.size), where=both > 0))
    return HeldOutCheck(float(np.sqrt(np.square(t).mean())), float(t.max(initial=0.0)))
