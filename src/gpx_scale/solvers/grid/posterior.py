"""The posterior on a grid, which is that of conjugate gradients with interpolated means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...data.inputs import Preprocessor
from ...linalg.covariance import Covariance
from ...model.weight_prior import CrossCovariance
from ...runtime.session import Session
from ...runtime.state import must, must_be_numbers, stored
from ..cg.posterior import NEVER_BELOW, CGPosterior
from ..contract import Capability, Plan
from .interpolation import Interpolated, grid_covariances


@stored
@dataclass(frozen=True)
class GridPosterior(CGPosterior):
    """The posterior whose mean E[w*] is interpolated from `grid_weights` (g, d).

    These are K_U W^T diag(alpha) Z. `remainder` is the variance that interpolation leaves out,
    divided by the noise variance; it is NaN for a model that was saved without it.
    """

    interpolated: Interpolated
    grid_weights: np.ndarray
    remainder: float = float("nan")

    # The variances are those of k and the means those of its interpolation, so variances are not
    # upper bounds.
    capabilities = frozenset(
        {
            Capability.TRAINING_WEIGHTS,
            Capability.JOINT_COVARIANCE,
            Capability.SAMPLED_VARIANCE,
        }
    )
    forms = ("grid",)

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        super().must_fit(plan, preprocessor)
        dense = not (preprocessor.sparse_z or preprocessor.sparse_x)
        must(dense, "it has a grid, and X or Z is sparse")
        self.interpolated.must_fit(plan.n, preprocessor.n_x)
        shape = self.interpolated.grid.size, self.d
        must_be_numbers(self.grid_weights, shape, "the weights of the grid")

    def _variances_in_words(self) -> str:
        known = self.remainder == self.remainder
        left = f", which leaves out {self.remainder:.1e} of the noise variance" if known else ""
        meaning = f"of k, not of its interpolation{left}: not upper bounds"
        said = super()._variances_in_words().replace(NEVER_BELOW, meaning)
        return said.replace("above it", "above the exact ones")

    def _covariances(self, session: Session) -> tuple[Covariance, Covariance]:
        return grid_covariances(
            self.training_rows, self.hyperparameters, session, self.interpolated
        )

    def mean(
        self, x: Any, cross: CrossCovariance | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        """Return E[w*], interpolated from 4^p points per query;  (m, d).

        A query outside of the grid takes the sum over all rows instead.
        """
        kernel = self.hyperparameters.kernel
        vectors = kernel.vectors(x)
        found = np.empty((len(vectors), self.d))
        inside = self.interpolated.grid.inside(vectors)
        if inside.any():
            found[inside] = self.interpolated.grid.weights(vectors[inside]) @ self.grid_weights
        if not inside.all():
            found[~inside] = super().mean(vectors[~inside], None, session)
        if own is not None:
            found += (
                self.hyperparameters.sigma_w**2
                * self.support.Z[own].scale_rows(self.coefficients[own]).to_dense()
            )
        return found
