"""The posterior on a grid: means are interpolated, everything else is that of conjugate gradients."""

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
    """E[w*] is interpolated from `grid_weights` (g, d), which is K_U W^T diag(alpha) Z.

    `remainder` is the variance that interpolation leaves, over the noise's; NaN for a model that was saved without it.
    """

    interpolated: Interpolated
    grid_weights: np.ndarray
    remainder: float = float("nan")

    # Variances are those of k, and means those of its interpolation, so variances are no bounds.
    capabilities = frozenset({Capability.TRAINING_WEIGHTS, Capability.SAMPLED_VARIANCE})
    forms = ("grid",)

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        super().must_fit(plan, preprocessor)
        dense = not (preprocessor.sparse_z or preprocessor.sparse_x)
        must(dense, "a grid of sparse rows")
        self.interpolated.must_fit(plan.n, preprocessor.n_x)
        shape = self.interpolated.grid.size, self.d
        must_be_numbers(self.grid_weights, shape, "the weights of the grid")

    def _variances_in_words(self) -> str:
        known = self.remainder == self.remainder
        left = f", which leaves {self.remainder:.1e} of the noise's variance" if known else ""
        said = (
            super()
            ._variances_in_words()
            .replace(NEVER_BELOW, f"of k, not of its interpolation{left}: no bounds")
        )
        return said.replace("above it", "above the exact ones")

    def _covariances(self, session: Session) -> tuple[Covariance, Covariance]:
        return grid_covariances(self.training_rows, self.hyperparameters, session, self.interpolated)

    def mean(
        self, x: Any, cross: CrossCovariance | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        """Return E[w*] from 4^p points a query; of one outside the grid, from all rows."""
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
