"""Inputs of one to three columns: how far they extend, and what a basis or a grid must resolve of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.inputs import Preprocessor, TrainingRows
from ..errors import InputError, SolverUnavailable
from ..model.hyperparameters import Hyperparameters
from ..runtime.state import are_finite, must, must_be_numbers, stored

DIMENSIONS = 3
SHARP = 100.0  # k over the noise up to which the usual functions, or points of a grid, are enough
SUBSET_ROWS = 1_000  # of the exact search that length scales come from
LARGEST_COUNT = 1e9  # count of anything


@stored
@dataclass
class InputExtent:
    """What a pass over the rows finds: how far x reaches, and the largest |z|^2."""

    low: np.ndarray
    high: np.ndarray
    z_squared: float

    @classmethod
    def of(cls, block: TrainingRows) -> InputExtent:
        return cls(block.x.min(axis=0), block.x.max(axis=0), float(block.Z.squared_norms().max()))

    def __iadd__(self, other: InputExtent) -> InputExtent:
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.z_squared = max(self.z_squared, other.z_squared)
        return self

    @property
    def half(self) -> np.ndarray:
        return 0.5 * (self.high - self.low)

    def must_fit(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless this is an extent of the columns of X."""
        must_be_numbers(self.low, (preprocessor.n_x,), "the least x")
        must_be_numbers(self.high, (preprocessor.n_x,), "the largest x")
        inside = are_finite(self.z_squared) and self.z_squared >= 0
        must((self.low <= self.high).all() and inside, "x has no extent")


def must_be_resolved(
    count: int | None,
    extent: InputExtent | None,
    preprocessor: Preprocessor,
) -> None:
    """Raise a ValueError unless a plan may end with so many functions or points for each column."""
    must(count is None or count >= 1, "its plan is not at its end")
    if extent is not None:
        extent.must_fit(preprocessor)


@dataclass(frozen=True)
class InputResolution:
    """What decides whether functions on a box, or a grid, will do for x in few dimensions: whether k has a spectral density,
    how smooth it is and, once known, the half-widths of x over the shortest length scales, and the longest over these."""

    density: bool = True
    smoothness: float = float("inf")
    spans: tuple[float, ...] | None = None
    spread: float = 1.0
    signal_to_noise: float = 1.0
    extent: InputExtent | None = None

    @classmethod
    def of(
        cls, kernel: Any, some: Any, found: tuple[Hyperparameters, InputExtent] | None = None
    ) -> InputResolution | None:
        """Of a kernel and rows (some of them), with spans where parameters and the extent of all rows are known. None where X
        or Z is sparse, or where k is not of vectors."""
        if kernel.input_kind != "vectors" or some.Z.is_sparse or not isinstance(some.x, np.ndarray):
            return None
        if found is None:
            return cls(kernel.has_spectral_density, kernel.smoothness)
        hyperparameters, extent = found
        low, high = kernel.length_scale_range(extent.half.size)
        spans = tuple((extent.half / low).tolist())
        signal_to_noise = signal_to_noise_of(hyperparameters, some.Z.shape[1], extent.half.size)
        return cls(
            kernel.has_spectral_density,
            kernel.smoothness,
            spans,
            float((high / low).max()),
            signal_to_noise,
            extent,
        )


def signal_to_noise_of(hyperparameters: Hyperparameters, d: int, p: int) -> float:
    """k over the noise, of a z of size sqrt(d), where that is more than SHARP; else 1."""
    origin = hyperparameters.kernel.prepare(np.zeros((1, p)))  # any x will do
    signal = d * float(hyperparameters.kernel.diagonal(origin)[0])
    return max(
        1.0, signal / (SHARP * (hyperparameters.sigma_y**2 + d * hyperparameters.sigma_w**2))
    )


def must_be_low(p: int, low: InputResolution | None, dtype: str, solver: str) -> None:
    """Raise an error unless X has few columns, X and Z are dense, and the kernel is one of vectors."""
    if p > DIMENSIONS:
        raise InputError(
            f"solver={solver!r} is for X of 1 to {DIMENSIONS} columns, got {p}: use 'exact', 'cg' or 'inducing'"
        )
    if low is None:
        raise SolverUnavailable(
            f"solver={solver!r} needs a dense X and Z, and a kernel of vectors: use 'cg' or 'inducing'"
        )
    if dtype == "float32":
        raise InputError(
            f'dtype="float32": solver={solver!r} computes in float64; give dtype="auto"'
        )
