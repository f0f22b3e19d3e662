"""Conversion between the user's units and standardised units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..runtime.state import stored
from .features import DenseFeatures, Features, SparseFeatures

# Shifts and scales are rounded to this many binary digits, so that they do not depend on the order
# in which the moments of parts of the rows were added up.
SHIFT_BITS = 40
# The units of y and of a column of Z may differ by this many powers of ten. Their quotient, which
# is the unit of a weight, then stays within float64, whose largest number is 1.8e308.
MAX_UNIT_RATIO_DECADES = 290
# Columns of X that are not standardised may differ in scale by this many powers of ten. Real
# units never differ more, and a sum of squares in float64 keeps only 16 digits.
MAX_COLUMN_RATIO_DECADES = 30.0
# A column is constant if its largest and smallest numbers differ by no more than this relative
# difference, a few rounding errors.
CONSTANT_TOLERANCE = 8 * np.finfo(float).eps


@dataclass(frozen=True)
class ColumnMoments:
    """The means, standard deviations, minima and maxima of columns;  (p,) each.

    The moments of parts of the rows add up (`+`) to those of all rows. Numbers of any finite size
    are safe. A sparse matrix is never shifted or scaled, so its moments are set to mean 0 and
    standard deviation 1, with no constant column.
    """

    rows: int
    centre: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, A: Any) -> ColumnMoments:
        """Return the moments of the columns of a table;  (n, p)."""
        if sp.issparse(A):
            zero, one = np.zeros(A.shape[1]), np.ones(A.shape[1])
            return cls(A.shape[0], zero, one, -one, one)
        size = np.abs(A).max(axis=0, initial=0.0)
        unit = np.where(size > 0, size, 1.0)
        relative = A / unit
        low, high = A.min(axis=0, initial=np.inf), A.max(axis=0, initial=-np.inf)
        return cls(len(A), unit * relative.mean(axis=0), unit * relative.std(axis=0), low, high)

    def __add__(self, other: ColumnMoments) -> ColumnMoments:
        """Return the moments of the rows of both."""
        rows = self.rows + other.rows
        mine, theirs = self.rows / rows, other.rows / rows
        apart = other.centre - self.centre
        spread = np.hypot(np.sqrt(mine) * self.deviation, np.sqrt(theirs) * other.deviation)
        return ColumnMoments(
            rows,
            self.centre + theirs * apart,
            np.hypot(spread, np.sqrt(mine * theirs) * apart),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    @property
    def constant(self) -> np.ndarray:
        """Return which columns are constant up to rounding;  (p,) bool."""
        size = np.maximum(np.abs(self.low), np.abs(self.high))
        same = self.high - self.low <= CONSTANT_TOLERANCE * size
        # Denormal numbers have too few digits to be divided by.
        return np.asarray(same | (self.deviation < np.finfo(float).tiny))

    @property
    def mean(self) -> np.ndarray:
        """Return the means, rounded to about 12 decimal digits of the standard deviations;  (p,).

        So they do not depend on how parts were added up. The mean of a constant column is its
        value.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            size = np.maximum(self.deviation, np.abs(self.centre) / 16)
            unit = np.ldexp(1.0, np.frexp(size)[1] - SHIFT_BITS)
            return np.where(self.constant, self.low, np.round(self.centre / unit) * unit)

    @property
    def scale(self) -> np.ndarray:
        """Return the standard deviations, rounded likewise, and 1 for constant columns;  (p,)."""
        fraction, exponent = np.frexp(self.deviation)
        rounded = np.ldexp(np.round(np.ldexp(fraction, SHIFT_BITS)), exponent - SHIFT_BITS)
        return np.where(self.constant, 1.0, rounded)


@stored
@dataclass(frozen=True)
class Scaling:
    """The conversion between the user's units and standardised units, marked by a tilde.

    x~ = (x - x_shift) / x_scale, and z~ and y~ likewise. With an intercept, z~ has a 1 at its end.

    X is always centred, because kernels see only differences, which then keep more digits. A
    constant column of Z that is not 0 acts as an intercept: it is divided by its value and never
    centred. A sparse X or Z stays as it is. Contributions are relative to `z_baseline`, in the
    user's units.
    """

    x_shift: np.ndarray
    x_scale: np.ndarray
    z_shift: np.ndarray
    z_scale: np.ndarray
    z_baseline: np.ndarray
    y_shift: float
    y_scale: float
    intercept: bool

    @classmethod
    def of(
        cls, x: Any, Z: Any, y: np.ndarray, *, standardize: bool, fit_intercept: bool
    ) -> Scaling:
        """Return the scaling of rows in memory; x is None if the kernel does not take vectors."""
        vectors = ColumnMoments.of(x if x is not None else np.empty((1, 0)))
        return cls.from_columns(
            vectors, ColumnMoments.of(Z), ColumnMoments.of(y[:, None]), standardize, fit_intercept
        )

    @classmethod
    def from_columns(
        cls,
        x: ColumnMoments,
        z: ColumnMoments,
        y: ColumnMoments,
        standardize: bool,
        fit_intercept: bool,
    ) -> Scaling:
        """Return the scaling that follows from the moments of the columns of X, Z and y."""
        z_scale = np.where(z.constant & (z.mean != 0), z.mean, z.scale)
        z_shift = np.where(z.constant, 0.0, z.mean)
        x_scale, z_baseline, y_shift, y_scale = x.scale, z.mean, float(y.mean[0]), float(y.scale[0])
        if not standardize:
            _must_be_comparable(x)
            x_scale, z_shift, z_scale = (
                np.ones_like(x_scale),
                np.zeros_like(z_shift),
                np.ones_like(z_scale),
            )
            z_baseline, y_shift, y_scale = z_shift, 0.0, 1.0
        return cls(x.mean, x_scale, z_shift, z_scale, z_baseline, y_shift, y_scale, fit_intercept)

    def x(self, x: Any) -> Any:
        """Return rows of X in standardised units;  (n, p)."""
        return (
            SparseFeatures.of(x)
            if sp.issparse(x)
            else np.ascontiguousarray((x - self.x_shift) / self.x_scale)
        )

    def z(self, Z: Any) -> Features:
        """Return rows of Z in standardised units, with a column of ones if there is an intercept.

        (n, d) -> (n, d) or (n, d + 1).
        """
        if sp.issparse(Z):
            return SparseFeatures.of(
                sp.hstack([Z, np.ones((Z.shape[0], 1))]) if self.intercept else Z
            )
        scaled = (Z - self.z_shift) / self.z_scale
        return DenseFeatures(
            np.column_stack([scaled, np.ones(len(scaled))]) if self.intercept else scaled
        )

    def z_row(self, z: np.ndarray) -> np.ndarray:
        """Return one row of Z in standardised units;  (d,) -> (d,), or (d + 1,) with intercept."""
        return np.append((z - self.z_shift) / self.z_scale, np.ones(int(self.intercept)))

    def raw_z(self, scaled: Features) -> Any:
        """Return rows of Z in the user's units, from those in standardised units."""
        if isinstance(scaled, DenseFeatures):
            return scaled.array[:, : self.z_scale.size] * self.z_scale + self.z_shift
        return scaled.matrix[:, : self.z_scale.size]  # type: ignore[attr-defined]

    def y(self, y: np.ndarray) -> np.ndarray:
        """Return the target in standardised units;  (n,)."""
        return (y - self.y_shift) / self.y_scale

    def prediction(self, latent: np.ndarray) -> np.ndarray:
        """Return predictions in the user's units, from w . z in standardised units;  (n,)."""
        with np.errstate(over="ignore"):
            return finite(self.y_shift + self.y_scale * latent, "predictions")

    def deviation(self, variance: np.ndarray) -> np.ndarray:
        """Return standard deviations of y in the user's units, from standardised variances."""
        with np.errstate(over="ignore"):
            return finite(self.y_scale * np.sqrt(variance), "standard deviations of predictions")

    def weights(self, W: np.ndarray) -> np.ndarray:
        """Return weights per unit of z in the user's units, without that of the intercept.

        (..., d + 1) or (..., d) -> (..., d). Standard deviations of weights are converted likewise.
        """
        with np.errstate(over="ignore"):
            return finite(W[..., : self.z_scale.size] * (self.y_scale / self.z_scale), "weights")

    def has_units_apart(self) -> bool:
        """Return whether weights, in units of y over those of a column of Z, leave float64."""
        decades = np.abs(np.log10(self.y_scale) - np.log10(np.abs(self.z_scale)))
        return bool((decades > MAX_UNIT_RATIO_DECADES).any())


def _must_be_comparable(x: ColumnMoments) -> None:
    """Raise an InputError if the smaller columns of X could not change any distance."""
    spreads = x.scale[~x.constant]
    if (
        spreads.size
        and (apart := np.log10(spreads.max()) - np.log10(spreads.min())) > MAX_COLUMN_RATIO_DECADES
    ):
        raise InputError(
            f"The columns of X differ by a factor of 1e{apart:.0f} in scale, so distances would be "
            "those of the largest column alone. Use standardize=True, or rescale the columns."
        )


def finite(A: np.ndarray, what: str) -> np.ndarray:
    """Return A, or raise an InputError if a number became infinite in the user's units.

    `what` is a plural noun that the message begins with.
    """
    if not np.isfinite(A).all():
        raise InputError(
            f"{what[0].upper()}{what[1:]} leave float64 in the units of the data. "
            "Rescale y, X and Z."
        )
    return A
