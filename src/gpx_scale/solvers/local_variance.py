"""Variances of queries from the rows that all of them share and from the rows nearby.

No variance is below the one from all rows, as fewer rows never know more (`neighborhood`). Constant
parts of weights are known from all rows (`constant_weights`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.inputs import Preprocessor, TrainingRows
from ..linalg.neighbor_search import Eligible, largest_scores
from ..model.hyperparameters import Hyperparameters
from ..model.weight_prior import CrossCovariance
from ..runtime.session import Session
from ..runtime.state import must, must_be_indices, stored
from .constant_weights import ConstantWeights
from .neighborhood import RightHandSides, SharedRows
from .posterior import MomentRequest, Moments

# Each query has this many rows nearby for itself. The value was chosen by hand: a query takes
# |N|^2 |U| flops.
NEARBY_ROWS = 512


@stored
@dataclass(frozen=True)
class LocalVariance:
    """Variances from the rows that all queries share and from the rows nearby.

    `shared` has the indices of the shared rows (m,), and `nearby` is the number of rows that are
    most correlated with a query. The constant parts of weights are known from all rows; they are
    `constants`, None without such parts.
    """

    rows: TrainingRows
    hyperparameters: Hyperparameters
    shared: np.ndarray
    nearby: int
    constants: ConstantWeights | None = None

    @classmethod
    def of(
        cls,
        rows: TrainingRows,
        hyperparameters: Hyperparameters,
        shared: np.ndarray,
        session: Session,
        nearby: int = NEARBY_ROWS,
        constants: ConstantWeights | None = None,
    ) -> LocalVariance:
        """Return local variances with the shared rows factorised;  n m^2 flops."""
        made = cls(rows, hyperparameters, shared, nearby, constants)
        made.shared_rows(session)
        return made

    def shared_rows(self, session: Session) -> SharedRows:
        """Return the quantities of the shared rows.

        They are kept, but neither copied nor saved: a copy or a loaded model computes them when it
        first needs them;  n m^2 flops.
        """
        known: SharedRows | None = self.__dict__.get("_shared_rows")
        if known is None:
            given = self.hyperparameters
            if self.constants is not None:
                given = replace(given, weight_prior=given.weight_prior.without_constants)
            known = SharedRows.of(self.rows, given, self.shared, session)
            self.__dict__["_shared_rows"] = known
        return known

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the n m numbers of the shared rows."""
        return {name: value for name, value in self.__dict__.items() if name != "_shared_rows"}

    def must_fit(
        self,
        hyperparameters: Hyperparameters,
        n: int,
        preprocessor: Preprocessor,
    ) -> None:
        """Raise a ValueError unless these are variances from n rows at these hyperparameters."""
        same = self.hyperparameters == hyperparameters and len(self.rows) == n
        must(same, "variances are of another model")
        self.rows.must_fit(hyperparameters.kernel, preprocessor, n)
        prior = hyperparameters.weight_prior
        if self.constants is not None:
            must(prior.has_constants, "it has constant weights that its prior does not have")
            self.constants.must_fit(n, prior.constant_scales())
        must_be_indices(self.shared, n, "shared rows")
        must(self.nearby >= 1, "a count is out of range")

    def reduction(
        self, cross: CrossCovariance, request: MomentRequest, session: Session
    ) -> Moments:
        """Return lower bounds of b.C^-1 b for each query, with the shapes of `Posterior.reduction`.

        b is diag(k*) z_l for weight l, and diag(k*) Z a along a vector a, or a sum of such terms.
        """
        if self.constants is None:
            return self._local_reduction(cross, request, session)
        others = cross.varying_terms
        local = None if others is None else self._local_reduction(others, request, session)
        return self.constants.reduction(cross, local, request, session)

    def variances_of(self, index: np.ndarray, session: Session) -> np.ndarray:
        """Return C_jj of some rows;  (r,)."""
        found: np.ndarray = self.shared_rows(session).diagonal[index]
        if self.constants is None:
            return found
        B = self.rows.Z[index].right_multiply(self.constants.scales)
        found = found + np.square(B).sum(axis=1)
        return found

    def _local_reduction(
        self, cross: CrossCovariance, request: MomentRequest, session: Session
    ) -> Moments:
        """Return the reductions by the shared rows and those nearby alone."""
        known, along = self.shared_rows(session), [cross.along(A) for A in request.along]
        scores = self._interest(cross, along) ** 2 / known.diagonal
        b, n = scores.shape
        among = Eligible.without(n, self.shared, b)
        near = largest_scores(
            scores, known.search.norms, min(self.nearby, n - self.shared.size), among, session
        )
        parts, d = [], 0
        if request.variance or request.covariance:
            d = cross.Z.shape[1]
            parts.append(RightHandSides.of_terms(cross, near, self.shared))
        for one in along:
            of_near = np.take_along_axis(one, near.rows, axis=1)
            parts.append(RightHandSides.of_one(of_near, one[:, self.shared]))
        sides = RightHandSides.joined(parts, near, self.shared.size)
        return known.condition(near, sides, session, full=request.covariance).reduction(d, request)

    def _interest(self, cross: CrossCovariance, along: list[np.ndarray]) -> np.ndarray:
        """Return the covariances by which rows are near: with y*, or the weights if z* = 0.

        `along` are those of the vectors that are asked for, that of y* first;  (m, n).
        """
        if not along:
            return cross.interest()
        interest = along[0].copy()
        others = np.flatnonzero(~interest.any(axis=1))
        if others.size:
            interest[others] = cross[others].interest()
        return interest
