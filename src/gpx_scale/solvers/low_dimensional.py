"""The range and the resolution of an X with one to three columns, for a basis and for a grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.inputs import InputRows, Preprocessor, TrainingRows
from ..errors import InputError, SolverUnavailable
from ..kernels.kernel import Kernel
from ..model.hyperparameters import Hyperparameters
from ..runtime.state import are_finite, must, must_be_numbers, stored

# With more columns, a basis or a grid that resolves the length scales is too large.
MAX_X_COLUMNS = 3
# Up to this ratio of prior variance to noise variance, the usual number of functions, or of points
# of a grid, is enough.
USUAL_SIGNAL_TO_NOISE = 100.0
# Length scales are found by an exact search on this many rows.
SUBSET_ROWS = 1_000
# Counts of functions and of points are cut here, so that they fit into an integer.
LARGEST_COUNT = 1e9


@stored
@dataclass
class InputExtent:
    """The least and the largest x of all rows (p,), and the largest |z|^2."""

    low: np.ndarray
    high: np.ndarray
    z_squared: float

    @classmethod
    def of(cls, block: TrainingRows) -> InputExtent:
        """Return the extent of a block of rows;  O(n (p + d))."""
        return cls(block.x.min(axis=0), block.x.max(axis=0), float(block.Z.squared_norms().max()))

    def __iadd__(self, other: InputExtent) -> InputExtent:
        """Widen the extent so that it covers the other one's rows."""
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.z_squared = max(self.z_squared, other.z_squared)
        return self

    @property
    def half(self) -> np.ndarray:
        """Return half of the range of each column of X;  (p,)."""
        half_widths: np.ndarray = 0.5 * (self.high - self.low)
        return half_widths

    def must_fit(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless this is the extent of rows with these columns of X."""
        must_be_numbers(self.low, (preprocessor.n_x,), "the least x")
        must_be_numbers(self.high, (preprocessor.n_x,), "the largest x")
        inside = are_finite(self.z_squared) and self.z_squared >= 0
        must((self.low <= self.high).all() and inside, "x has no extent")


def must_be_resolved(
    count: int | None,
    extent: InputExtent | None,
    preprocessor: Preprocessor,
) -> None:
    """Raise a ValueError unless a plan can end with this count per column and this extent."""
    must(count is None or count >= 1, "its plan is not complete")
    if extent is not None:
        extent.must_fit(preprocessor)


@dataclass(frozen=True)
class InputResolution:
    """The facts that decide whether a basis or a grid resolves functions of x in few dimensions.

    Attributes
    ----------
    density : bool
        Whether the kernel has a spectral density.
    smoothness : float
        The smoothness of the kernel, infinite for an RBF.
    spans : tuple of float, or None
        Half of the range of each column over its shortest length scale, once these are known.
    spread : float
        The largest ratio of a column's longest to its shortest length scale.
    relative_signal_to_noise : float
        The ratio of prior variance to noise variance over USUAL_SIGNAL_TO_NOISE, at least 1.
    extent : InputExtent or None
        The range of all rows, once it is known.
    """

    density: bool = True
    smoothness: float = float("inf")
    spans: tuple[float, ...] | None = None
    spread: float = 1.0
    relative_signal_to_noise: float = 1.0
    extent: InputExtent | None = None

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        some: InputRows,
        found: tuple[Hyperparameters, InputExtent] | None = None,
    ) -> InputResolution | None:
        """Return the resolution for a kernel and some of the rows.

        Hyperparameters and the extent of all rows may be `found` already; then it has spans. It is
        None where X or Z is sparse, or where the kernel does not take vectors.
        """
        if kernel.input_kind != "vectors" or some.Z.is_sparse or not isinstance(some.x, np.ndarray):
            return None
        if found is None:
            return cls(kernel.has_spectral_density, kernel.smoothness)
        hyperparameters, extent = found
        low, high = kernel.length_scale_range(extent.half.size)
        spans = tuple((extent.half / low).tolist())
        relative_signal_to_noise = relative_signal_to_noise_of(
            hyperparameters, some.Z.shape[1], extent.half.size
        )
        return cls(
            kernel.has_spectral_density,
            kernel.smoothness,
            spans,
            float((high / low).max()),
            relative_signal_to_noise,
            extent,
        )


def relative_signal_to_noise_of(hyperparameters: Hyperparameters, d: int, p: int) -> float:
    """Return prior variance over noise variance, relative to USUAL_SIGNAL_TO_NOISE, at least 1.

    Both are the variances of y for a z with |z|^2 = d.
    """
    # The prior variance is the same for all x, so any x serves.
    origin, prior = np.zeros((1, p)), hyperparameters.weight_prior
    if prior.is_shared:
        signal = d * float(prior.kernel.diagonal(prior.kernel.prepare(origin))[0])
    else:
        signal = float(prior.variance(origin).sum())
    return max(
        1.0,
        signal
        / (USUAL_SIGNAL_TO_NOISE * (hyperparameters.sigma_y**2 + d * hyperparameters.sigma_w**2)),
    )


def must_be_low(p: int, low: InputResolution | None, dtype: str, solver: str) -> None:
    """Raise an error unless X has few columns, X and Z are dense, and the kernel takes vectors."""
    if p > MAX_X_COLUMNS:
        raise InputError(
            f"solver={solver!r} takes an X with 1 to {MAX_X_COLUMNS} columns, and this one has "
            f"{p}. Use solver='exact', 'cg', 'neighbors' or 'inducing'."
        )
    if low is None:
        raise SolverUnavailable(
            f"solver={solver!r} needs a dense X, a dense Z and a kernel of vectors. "
            "Use solver='cg', 'neighbors' or 'inducing'."
        )
    if dtype == "float32":
        raise InputError(
            f'dtype="float32" is not available with solver={solver!r}, which computes in float64. '
            'Give dtype="auto".'
        )
