"""Between the user's units and the engine's, and what of the columns decides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..runtime.state import stored
from .features import DenseFeatures, Features, SparseFeatures

DIGITS = 40  # binary ones, of shifts and scales
UNITS_APART = 290  # decimal digits between the units of y and of a z
COLUMNS_APART = 30.0  # powers of ten between columns of X that are not scaled: squares of float64 keep 16 of them, no unit needs more


@dataclass(frozen=True)
class ColumnMoments:
    """Means, deviations and extremes of columns, safe for any finite scale;  (p,) each. Those of parts of the rows add up to
    those of all. Of a sparse matrix, which stays as it is: 0, 1, and nothing constant."""

    rows: int
    centre: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, A: Any) -> ColumnMoments:
        if sp.issparse(A):
            zero, one = np.zeros(A.shape[1]), np.ones(A.shape[1])
            return cls(A.shape[0], zero, one, -one, one)
        size = np.abs(A).max(axis=0, initial=0.0)
        unit = np.where(size > 0, size, 1.0)
        relative = A / unit
        low, high = A.min(axis=0, initial=np.inf), A.max(axis=0, initial=-np.inf)
        return cls(len(A), unit * relative.mean(axis=0), unit * relative.std(axis=0), low, high)

    def __add__(self, other: ColumnMoments) -> ColumnMoments:
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
        same = self.high - self.low <= 8 * np.finfo(float).eps * np.maximum(
            np.abs(self.low), np.abs(self.high)
        )
        return same | (
            self.deviation < np.finfo(float).tiny
        )  # denormal numbers have no digits to scale by

    @property
    def mean(self) -> np.ndarray:
        """To about 12 digits of the deviation, so that it does not depend on how parts were added up; the value itself where
        constant."""
        with np.errstate(invalid="ignore", divide="ignore"):
            unit = np.ldexp(
                1.0, np.frexp(np.maximum(self.deviation, np.abs(self.centre) / 16))[1] - DIGITS
            )
            return np.where(self.constant, self.low, np.round(self.centre / unit) * unit)

    @property
    def scale(self) -> np.ndarray:
        """Deviations, to as many digits; 1 where constant."""
        fraction, exponent = np.frexp(self.deviation)
        return np.where(
            self.constant, 1.0, np.ldexp(np.round(np.ldexp(fraction, DIGITS)), exponent - DIGITS)
        )


@stored
@dataclass(frozen=True)
class Scaling:
    """Between the user's units and the engine's: x~ = (x - shift)/scale, z~ likewise (then a 1 for the intercept), y~.

    x is always centred (kernels see differences only; centring keeps their digits). A constant z column that is not 0 is
    divided by its value and never centred: it is an intercept. Sparse x and z stay as they are. `z_baseline`: the z to which
    contributions are relative.
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
        return (
            SparseFeatures.of(x)
            if sp.issparse(x)
            else np.ascontiguousarray((x - self.x_shift) / self.x_scale)
        )

    def z(self, Z: Any) -> Features:
        if sp.issparse(Z):
            return SparseFeatures.of(
                sp.hstack([Z, np.ones((Z.shape[0], 1))]) if self.intercept else Z
            )
        scaled = (Z - self.z_shift) / self.z_scale
        return DenseFeatures(
            np.column_stack([scaled, np.ones(len(scaled))]) if self.intercept else scaled
        )

    def z_row(self, z: np.ndarray) -> np.ndarray:
        """Return one z in standardised units;  (d,) -> (d~,)."""
        return np.append((z - self.z_shift) / self.z_scale, np.ones(int(self.intercept)))

    def raw_z(self, scaled: Features) -> Any:
        """Back from the engine's Z to the user's."""
        if isinstance(scaled, DenseFeatures):
            return scaled.array[:, : self.z_scale.size] * self.z_scale + self.z_shift
        return scaled.matrix[:, : self.z_scale.size]  # type: ignore[attr-defined]

    def y(self, y: np.ndarray) -> np.ndarray:
        return (y - self.y_shift) / self.y_scale

    def prediction(self, latent: np.ndarray) -> np.ndarray:
        """The user's y from the engine's sum of contributions."""
        with np.errstate(over="ignore"):
            return finite(self.y_shift + self.y_scale * latent, "predictions")

    def deviation(self, variance: np.ndarray) -> np.ndarray:
        """The user's deviation of y from the engine's variance."""
        with np.errstate(over="ignore"):
            return finite(self.y_scale * np.sqrt(variance), "deviations of predictions")

    def weights(self, W: np.ndarray) -> np.ndarray:
        """The user's weights, per unit of z, without the intercept's;  (..., d~) -> (..., d);  also of deviations."""
        with np.errstate(over="ignore"):
            return finite(W[..., : self.z_scale.size] * (self.y_scale / self.z_scale), "weights")

    def has_units_apart(self) -> bool:
        """Whether weights, in units of y over those of a column of Z, leave float64."""
        return bool(
            (np.abs(np.log10(self.y_scale) - np.log10(np.abs(self.z_scale))) > UNITS_APART).any()
        )


def _must_be_comparable(x: ColumnMoments) -> None:
    """Refuse columns that are added up in one distance and of which the smaller ones cannot count."""
    spreads = x.scale[~x.constant]
    if (
        spreads.size
        and (apart := np.log10(spreads.max()) - np.log10(spreads.min())) > COLUMNS_APART
    ):
        raise InputError(
            f"the columns of X differ by a factor of 1e{apart:.0f} in scale, and distances would be those of the largest one "
            "alone: use standardize=True, or rescale them"
        )


def finite(A: np.ndarray, what: str) -> np.ndarray:
    """A itself; in the user's units, what the engine computed may leave float64."""
    if not np.isfinite(A).all():
        raise InputError(f"{what} leave float64 in the units of the data: rescale y, X and Z")
    return A
