"""Kernels of a distance: theta1 f(s), s = sum_k (x_k - x'_k)^2 / theta2_k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import pdist

from ..compiled import dense as dense_loops
from ..compiled import sparse as sparse_loops
from ..data.checks import LARGEST_NUMBER
from ..data.features import SparseFeatures
from ..errors import InputError
from ..runtime.arguments import LARGEST_SQUARE, moderate
from ..runtime.parallel import evenly_spaced
from ..runtime.state import stored
from .kernel import Kernel, Profile
from .spectral import density

FAR = 1e4  # |x|^2 / theta2 from which eps |x|^2 / theta2 is more than 1e-12
SINGLE = 50.0  # |x|^2 / theta2 up to which float32 rounds s by less than 1e-5
MEDIAN_ROWS = 1000  # rows of the median heuristic: its relative error is about 1% there


@dataclass(frozen=True)
class VectorPoints:
    """Rows scaled by theta2^-1/2 and augmented, so that one GEMM gives -s: left_i . right_j = 2 x.y - |x|^2 - |y|^2."""

    left: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, scaled: np.ndarray) -> VectorPoints:
        n, p = scaled.shape
        left = np.empty((n, p + 2), scaled.dtype)
        left[:, :p] = scaled * scaled.dtype.type(np.sqrt(2.0))
        left[:, p] = -np.einsum("ij,ij->i", scaled, scaled)
        left[:, p + 1] = 1.0
        right = left.copy()
        right[:, p], right[:, p + 1] = left[:, p + 1], left[:, p]
        return cls(left, right)

    @property
    def directions(self) -> np.ndarray:
        """sqrt(2) times the scaled rows, (n, p)."""
        return self.left[:, :-2]

    @property
    def squared(self) -> np.ndarray:
        """|x|^2 / theta2;  (n,)."""
        return -self.left[:, -2]

    @property
    def real(self) -> Any:
        return self.left.dtype.type

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, rows: slice | np.ndarray) -> VectorPoints:
        return VectorPoints(self.left[rows], self.right[rows])

    def minus_s(self, other: VectorPoints) -> np.ndarray:
        return self.left @ other.right.T

    def refine(self, other: VectorPoints, near: float, E: np.ndarray) -> None:
        """Recompute, by differences, the entries of E = -s with s < near."""
        dense_loops.refine_close_pairs(
            self.directions / np.sqrt(2.0), other.directions / np.sqrt(2.0), near, E
        )


@dataclass(frozen=True)
class SparsePoints:
    """The same for sparse rows, scaled by theta2^-1/2: products by the features that two rows share."""

    rows: SparseFeatures
    squared: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | np.ndarray) -> SparsePoints:
        return SparsePoints(self.rows[rows], self.squared[rows])

    @property
    def real(self) -> Any:
        return self.squared.dtype.type

    def minus_s(self, other: SparsePoints) -> np.ndarray:
        E = self.rows.inner_products(other.rows)
        E *= self.real(2.0)
        E -= self.squared[:, None]
        E -= other.squared
        return E

    def refine(self, other: SparsePoints, near: float, E: np.ndarray) -> None:
        a, b = self.rows, other.rows
        sparse_loops.refine_close_sparse(
            a.pointers, a.indices, a.values, b.pointers, b.indices, b.values, near, E
        )


@dataclass(frozen=True)
class Stationary(Kernel):
    theta1: float = 1.0
    theta2: float | str | Sequence[float] = "median"

    input_kind: ClassVar[str] = "vectors"
    family: ClassVar[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta1", moderate(self.theta1, "theta1"))
        if isinstance(self.theta2, str):
            if self.theta2 != "median":
                raise InputError(
                    f'theta2={self.theta2!r}: give a number, one a column, or "median"'
                )
        elif np.ndim(self.theta2) == 0:
            object.__setattr__(self, "theta2", moderate(self.theta2, "theta2", most=LARGEST_SQUARE))
        else:
            given = np.asarray(self.theta2).ravel().tolist()
            values = tuple(moderate(value, "theta2", most=LARGEST_SQUARE) for value in given)
            if not values:
                raise InputError("theta2 is empty: give a number, or one a column")
            object.__setattr__(self, "theta2", values)

    @property
    def scales(self) -> np.ndarray:
        """theta2 as (1,) or (p,)."""
        if isinstance(self.theta2, str):
            raise InputError('theta2="median" is known only once data are seen: give a number')
        return np.atleast_1d(np.asarray(self.theta2, dtype=float))

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return ("theta1",) + ("theta2",) * self.scales.size

    @property
    def theta(self) -> np.ndarray:
        return np.log([self.theta1, *self.scales])

    def with_theta(self, theta: np.ndarray) -> Stationary:
        values = np.exp(theta).tolist()
        theta2 = tuple(values[1 : 1 + self.scales.size])
        return replace(self, theta1=values[0], theta2=theta2 if np.ndim(self.theta2) else theta2[0])

    def as_dict(self) -> dict[str, Any]:
        theta2 = np.array(self.theta2) if np.ndim(self.theta2) else self.theta2
        return {"theta1": self.theta1, "theta2": theta2}

    def resolved(self, x: Any, ard: bool = False) -> Stationary:
        if isinstance(x, SparseFeatures) and (ard or np.ndim(self.theta2)):
            raise InputError(
                "one theta2 for each column needs a dense X: give x_transformer=TruncatedSVD(...), or ard=False"
            )
        theta2 = median_squared_distance(x) if isinstance(self.theta2, str) else self.theta2
        if ard and np.ndim(theta2) == 0:
            theta2 = (theta2,) * x.shape[1]
        if np.ndim(theta2) and np.size(theta2) != x.shape[1]:
            raise InputError(
                f"theta2 has {np.size(theta2)} entries, X has {x.shape[1]} columns: give one a column"
            )
        return replace(self, theta2=theta2)

    @property
    def _shape(self) -> float:
        return 1.0

    def prepare(self, x: Any, dtype: Any = np.float64) -> VectorPoints | SparsePoints:
        if sp.issparse(x):
            x = SparseFeatures.of(x)
        if self.scales.size not in (1, x.shape[1]) or (
            self.scales.size > 1 and isinstance(x, SparseFeatures)
        ):
            raise InputError(
                f"theta2 has {self.scales.size} entries, X has {x.shape[1]} columns: give one a column of a dense X"
            )
        with np.errstate(over="ignore"):
            scaled = (x.values if isinstance(x, SparseFeatures) else np.asarray(x)) / np.sqrt(
                self.scales
            )
        if not np.abs(scaled).max(initial=0.0) < LARGEST_NUMBER:
            raise InputError(
                f"theta2={self.theta2!r} is too small beside X: squared distances over it overflow"
            )
        scaled = scaled.astype(dtype, copy=False)
        if isinstance(x, SparseFeatures):
            rows = replace(x, values=scaled)
            return SparsePoints(rows, rows.squared_norms().astype(dtype, copy=False))
        return VectorPoints.of(scaled)

    def float32_is_safe(self, x: Any) -> bool:
        # Matern 1/2 has a square root at s = 0, which makes 1e-3 of a rounding of 1e-6.
        squared = (
            x.squared_norms() / self.scales
            if isinstance(x, SparseFeatures)
            else (x**2 / self.scales).sum(axis=1)
        )
        return self.family != dense_loops.MATERN12 and float(squared.max(initial=0.0)) <= SINGLE

    def sample_frequencies(
        self, p: int, count: int, random: np.random.RandomState
    ) -> list[tuple[np.ndarray, float]]:
        """Gaussian for the RBF; the others are mixtures of RBFs over a gamma-distributed scale, and so is their spectrum."""
        mixed = self._mixing(count, random)
        frequencies = random.standard_normal((count, p)) * np.sqrt(
            2.0 * mixed[:, None] / self.scales
        )
        return [(frequencies, self.theta1)]

    def _mixing(self, count: int, random: np.random.RandomState) -> np.ndarray:
        """Factors tau with f(s) = E exp(-tau s);  (count,)."""
        if self.family == dense_loops.RBF:
            return np.ones(count)
        if self.family == dense_loops.RQ:
            return random.standard_gamma(self._shape, count) / self._shape
        return self.smoothness / random.standard_gamma(self.smoothness, count)

    def length_scale_range(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.broadcast_to(np.sqrt(self.scales / 2.0), p)
        return lengths, lengths

    def spectral_density(self, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.has_spectral_density:
            return super().spectral_density(omega)
        s, slopes = density(
            self.smoothness, self.theta1, self.length_scale_range(omega.shape[1])[0], omega
        )
        if self.scales.size == 1:
            slopes = np.column_stack([slopes[:, 0], slopes[:, 1:].sum(axis=1)])
        return s, slopes

    @property
    def has_spectral_density(self) -> bool:
        return self.family != dense_loops.RQ

    def diagonal(self, points: Any) -> np.ndarray:
        return np.full(len(points), self.theta1)

    def diagonal_gradient(self, points: Any) -> np.ndarray:
        slopes = np.zeros((len(points), self.theta.size))
        slopes[:, 0] = self.theta1
        return slopes

    def _minus_s(self, a: Any, b: Any) -> np.ndarray:
        E = a.minus_s(b)
        near = self._near(max(1.0, a.squared.max(initial=0.0), b.squared.max(initial=0.0)))
        if near > 0.0:
            a.refine(b, near, E)
        return E

    def _near(self, size: float) -> float:
        """Return the s below which pairs need their differences, if no |x|^2 / theta2 exceeds `size`.

        The GEMM rounds s by eps |x|^2. Far from the centre that shows in every pair near enough to matter, and the square root of
        Matern 1/2 makes sqrt(eps) |x| of it.
        """
        if size > FAR or self.family == dense_loops.MATERN12:
            return max(1e-6 * size, FAR if size > FAR else 0.0)
        return 0.0

    def profile(self, points: Any) -> Profile | None:
        if not isinstance(points, VectorPoints):
            return None
        scaled = np.ascontiguousarray(points.directions / points.real(np.sqrt(2.0)))
        near = self._near(max(1.0, points.squared.max(initial=0.0)))
        constants = points.real(self._shape), points.real(self.theta1), points.real(near)
        return Profile(
            self.family, *constants, self.scales.size > 1, points.left, points.right, scaled
        )

    def gradient_of(self, sums: np.ndarray) -> np.ndarray:
        along = sums[3:] if self.scales.size > 1 else sums[1:2]
        return self.theta1 * np.concatenate([sums[:1], along, sums[2:3]])[: self.theta.size]

    def multiply(self, a: Any, b: Any, out: np.ndarray) -> None:
        dense_loops.times_profile(
            self.family, a.real(self._shape), a.real(self.theta1), self._minus_s(a, b), out
        )

    def contract_gradient(self, a: Any, b: Any, G: np.ndarray) -> np.ndarray:
        sums = np.empty((3, len(a)), G.dtype)
        dense_loops.contract_profile(
            self.family, G.dtype.type(self._shape), self._minus_s(a, b), G, sums
        )
        along = sums[1:2].T
        if self.scales.size > 1:
            # sum_j G_ij (x_i - x_j)^2 = x_i^2 sum_j G_ij - 2 x_i (G x)_i + (G x^2)_i, all columns by one GEMM each.
            xa, xb = a.directions, b.directions
            along = 0.5 * (xa**2 * G.sum(axis=1)[:, None] + G @ xb**2) - xa * (G @ xb)
        return self.theta1 * np.hstack([sums[:1].T, along, sums[2:].T])[:, : self.theta.size]

    def contract_input_gradient(self, a: Any, b: Any, G: np.ndarray) -> np.ndarray:
        if isinstance(a, SparsePoints):
            return super().contract_input_gradient(a, b, G)
        dense_loops.contract_profile(
            self.family,
            G.dtype.type(self._shape),
            self._minus_s(a, b),
            G,
            np.empty((3, len(a)), G.dtype),
        )
        apart = (
            a.directions * G.sum(axis=1)[:, None] - G @ b.directions
        )  # sum_j G_ij (x_i - x_j), by G = -G f'
        return -self.theta1 * np.sqrt(2.0 / self.scales) * apart

    @property
    def is_radial(self) -> bool:
        return not np.ndim(self.theta2)

    def multiply_at(self, squared: np.ndarray, out: np.ndarray) -> None:
        real, E = (
            out.dtype.type,
            np.multiply(squared, -1.0 / self.scales, dtype=float).astype(out.dtype, copy=False),
        )
        dense_loops.times_profile(
            self.family, real(self._shape), real(self.theta1), E[None], out[None]
        )

    def gradient_at(self, squared: np.ndarray, G: np.ndarray) -> np.ndarray:
        real, E = (
            G.dtype.type,
            np.multiply(squared, -1.0 / self.scales, dtype=float).astype(G.dtype, copy=False),
        )
        values, weighed = G.copy(), G.copy()
        dense_loops.times_profile(
            self.family, real(self._shape), real(self.theta1), E[None], values[None]
        )
        dense_loops.contract_profile(
            self.family, real(self._shape), E[None], weighed[None], np.empty((3, 1), G.dtype)
        )
        weighed *= E  # contract_profile leaves h and s
        weighed *= real(self.theta1)
        if self.family != dense_loops.RQ:
            return np.vstack([values, weighed])
        return np.vstack(
            [
                values,
                weighed,
                weighed - values * real(self._shape) * np.log1p(E / real(self._shape)),
            ]
        )


@stored
@dataclass(frozen=True)
class RBF(Stationary):
    """``theta1 exp(-|x - x'|^2 / theta2)``, as in the paper."""

    family: ClassVar[int] = dense_loops.RBF


@stored
@dataclass(frozen=True)
class Matern12(Stationary):
    """theta1 exp(-r / l), l^2 = theta2 / 2."""

    family: ClassVar[int] = dense_loops.MATERN12
    smoothness: ClassVar[float] = 0.5


@stored
@dataclass(frozen=True)
class Matern32(Stationary):
    """theta1 (1 + b) exp(-b), b = sqrt(3) r / l, l^2 = theta2 / 2."""

    family: ClassVar[int] = dense_loops.MATERN32
    smoothness: ClassVar[float] = 1.5


@stored
@dataclass(frozen=True)
class Matern52(Stationary):
    """theta1 (1 + b + b^2/3) exp(-b), b = sqrt(5) r / l, l^2 = theta2 / 2."""

    family: ClassVar[int] = dense_loops.MATERN52
    smoothness: ClassVar[float] = 2.5


@stored
@dataclass(frozen=True)
class RationalQuadratic(Stationary):
    """theta1 (1 + s / shape)^-shape: a mixture of RBFs of many length scales."""

    shape: float = 1.0

    family: ClassVar[int] = dense_loops.RQ

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shape", moderate(self.shape, "shape"))

    @property
    def _shape(self) -> float:
        return self.shape

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return (*super().parameter_kinds, "shape")

    @property
    def theta(self) -> np.ndarray:
        return np.append(super().theta, np.log(self.shape))

    def with_theta(self, theta: np.ndarray) -> RationalQuadratic:
        return replace(super().with_theta(theta[:-1]), shape=float(np.exp(theta[-1])))  # type: ignore[call-arg, return-value]

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "shape": self.shape}


def median_squared_distance(x: Any) -> float:
    """Median heuristic for theta2: the median of |x_i - x_j|^2 over pairs of at most MEDIAN_ROWS evenly spread rows."""
    rows = x[evenly_spaced(MEDIAN_ROWS, len(x))]
    if isinstance(rows, SparseFeatures):
        points = SparsePoints(rows, rows.squared_norms())
        squared = -points.minus_s(points)[np.tril_indices(len(rows), -1)]
    else:
        squared = pdist(rows, "sqeuclidean")
    squared = squared[squared > 0]
    return float(np.median(squared)) if squared.size else 1.0
