"""Kernels that are functions of a distance: theta1 f(s), s = sum_k (x_k - x'_k)^2 / theta2_k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

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
from .kernel import Kernel, OwnPrepared, Profile, RadialProfile
from .spectral import density

# From this |x|^2 / theta2 on, the rounding error eps |x|^2 / theta2 of s is more than 1e-12.
FAR_SQUARED_NORM = 1e4
# Up to this |x|^2 / theta2, float32 rounds s by less than 1e-5.
FLOAT32_SQUARED_NORM = 50.0
# The median heuristic looks at this many rows, which makes its relative error about 1%.
MEDIAN_ROWS = 1000


@dataclass(frozen=True)
class VectorPoints:
    """Dense rows scaled by theta2^-1/2 and augmented, so that one matrix product gives -s.

    left_i . right_j = 2 x_i.x_j - |x_i|^2 - |x_j|^2;  both are (n, p + 2).
    """

    left: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, scaled: np.ndarray) -> VectorPoints:
        """Return the augmented form of rows that are scaled by theta2^-1/2;  (n, p)."""
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
        """Return sqrt(2) times the scaled rows;  (n, p)."""
        return self.left[:, :-2]

    @property
    def squared(self) -> np.ndarray:
        """Return |x|^2 / theta2;  (n,)."""
        return -self.left[:, -2]

    @property
    def real(self) -> type[np.floating[Any]]:
        """Return the type of the numbers, to convert scalars to it."""
        kind: type[np.floating[Any]] = self.left.dtype.type
        return kind

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, rows: slice | np.ndarray) -> VectorPoints:
        return VectorPoints(self.left[rows], self.right[rows])

    def minus_s(self, other: VectorPoints) -> np.ndarray:
        """Return -s between these rows and others;  (n, m);  2 n m (p + 2) flops."""
        E: np.ndarray = self.left @ other.right.T
        return E

    def refine(self, other: VectorPoints, near: float, E: np.ndarray) -> None:
        """Recompute the entries of E = -s with s < near from differences of rows;  (n, m)."""
        dense_loops.refine_close_pairs(
            self.directions / np.sqrt(2.0), other.directions / np.sqrt(2.0), near, E
        )


@dataclass(frozen=True)
class SparsePoints:
    """Sparse rows scaled by theta2^-1/2, and their |x|^2 / theta2, (n,).

    Inner products are sums over the features that two rows share.
    """

    rows: SparseFeatures
    squared: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | np.ndarray) -> SparsePoints:
        return SparsePoints(self.rows[rows], self.squared[rows])

    @property
    def real(self) -> type[np.floating[Any]]:
        """Return the type of the numbers, to convert scalars to it."""
        kind: type[np.floating[Any]] = self.squared.dtype.type
        return kind

    def minus_s(self, other: SparsePoints) -> np.ndarray:
        """Return -s between these rows and others;  (n, m)."""
        E = self.rows.inner_products(other.rows)
        E *= self.real(2.0)
        E -= self.squared[:, None]
        E -= other.squared
        return E

    def refine(self, other: SparsePoints, near: float, E: np.ndarray) -> None:
        """Recompute the entries of E = -s with s < near from differences of rows;  (n, m)."""
        a, b = self.rows, other.rows
        sparse_loops.refine_close_sparse(
            a.pointers, a.indices, a.values, b.pointers, b.indices, b.values, near, E
        )


# Prepared rows, all dense or all sparse.
PointsT = TypeVar("PointsT", VectorPoints, SparsePoints)


@dataclass(frozen=True)
class Stationary(Kernel):
    """A kernel theta1 f(s) on vectors.

    `family` is the number by which the compiled loops know the function f.
    """

    theta1: float = 1.0
    theta2: float | str | Sequence[float] = "median"

    input_kind: ClassVar[str] = "vectors"
    family: ClassVar[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta1", moderate(self.theta1, "theta1"))
        if isinstance(self.theta2, str):
            if self.theta2 != "median":
                raise InputError(
                    f"theta2={self.theta2!r} is not a number. Give a number, one for each "
                    'column of X, or "median".'
                )
        elif np.ndim(self.theta2) == 0:
            object.__setattr__(self, "theta2", moderate(self.theta2, "theta2", most=LARGEST_SQUARE))
        else:
            given = np.asarray(self.theta2).ravel().tolist()
            values = tuple(
                value if value == np.inf else moderate(value, "theta2", most=LARGEST_SQUARE)
                for value in given
            )
            if not values or min(values) == np.inf:
                raise InputError(
                    f"theta2={self.theta2!r} has no finite number. Give a number, or one for each "
                    "column of X, of which some may be infinite."
                )
            object.__setattr__(self, "theta2", values)

    @property
    def scales(self) -> np.ndarray:
        """Return theta2 as an array;  (1,) or (p,). Columns with an infinite one are not used."""
        if isinstance(self.theta2, str):
            raise InputError('theta2="median" is known only once data are seen. Give a number.')
        return np.array(self.theta2, dtype=float, ndmin=1)

    @property
    def used(self) -> np.ndarray:
        """Return which entries of theta2 are finite;  (1,) or (p,) bool.

        A column of X with an infinite one is not read, and has no parameter.
        """
        finite: np.ndarray = np.isfinite(self.scales)
        return finite

    def without_columns(self, columns: Sequence[int]) -> Stationary:
        if not len(columns) or not np.ndim(self.theta2):
            return self
        scales = self.scales
        scales[list(columns)] = np.inf
        return replace(self, theta2=tuple(scales.tolist()))

    def of_columns(self, columns: Sequence[int], p: int) -> Stationary:
        scales, read = self.scales, list(columns)
        if scales.size == 1:
            # theta2 is the square of a distance in p columns, and these have their share of it.
            scales = np.full(p, scales[0] * len(read) / p)
        usual = np.median(scales[np.isfinite(scales)])
        kept = np.where(np.isfinite(scales), scales, usual)
        found = np.full(p, np.inf)
        found[read] = kept[read]
        return replace(self, theta2=tuple(found.tolist()))

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return ("theta1",) + ("theta2",) * int(self.used.sum())

    @property
    def theta(self) -> np.ndarray:
        return np.log([self.theta1, *self.scales[self.used]])

    def with_theta(self, theta: np.ndarray) -> Self:
        values, scales, used = np.exp(theta), self.scales, self.used
        scales[used] = values[1 : 1 + int(used.sum())]
        theta2 = tuple(scales.tolist())
        return replace(
            self, theta1=float(values[0]), theta2=theta2 if np.ndim(self.theta2) else theta2[0]
        )

    def as_dict(self) -> dict[str, Any]:
        theta2 = np.array(self.theta2) if np.ndim(self.theta2) else self.theta2
        return {"theta1": self.theta1, "theta2": theta2}

    def resolved(self, x: Any, ard: bool = False) -> Stationary:
        if isinstance(x, SparseFeatures) and (ard or np.ndim(self.theta2)):
            raise InputError(
                "One theta2 for each column needs a dense X, but X is sparse. "
                "Give x_transformer=TruncatedSVD(...), or one theta2 and ard=False."
            )
        theta2 = median_squared_distance(x) if isinstance(self.theta2, str) else self.theta2
        if ard and np.ndim(theta2) == 0:
            theta2 = (theta2,) * x.shape[1]
        if np.ndim(theta2) and np.size(theta2) != x.shape[1]:
            raise InputError(
                f"theta2 has {np.size(theta2)} entries, X has {x.shape[1]} columns. Give one "
                "number, or one for each column."
            )
        return replace(self, theta2=theta2)

    @property
    def _shape(self) -> float:
        """Return the shape of the rational quadratic kernel; the other families ignore it."""
        return 1.0

    def prepare(self, x: Any, dtype: Any = np.float64) -> VectorPoints | SparsePoints:
        if sp.issparse(x):
            x = SparseFeatures.of(x)
        fits = self.scales.size in (1, x.shape[1])
        if not fits or (self.scales.size > 1 and isinstance(x, SparseFeatures)):
            raise InputError(
                f"theta2 has {self.scales.size} entries, X has {x.shape[1]} columns. Give one "
                "number, or one for each column of a dense X."
            )
        values = x.values if isinstance(x, SparseFeatures) else np.asarray(x)
        scales, used = self.scales, self.used
        if not used.all():
            values, scales = values[:, used], scales[used]
        with np.errstate(over="ignore"):
            scaled = values / np.sqrt(scales)
        if not np.abs(scaled).max(initial=0.0) < LARGEST_NUMBER:
            raise InputError(
                f"theta2={self.theta2!r} is too small for this X: squared distances divided by it "
                "overflow. Give a larger theta2."
            )
        scaled = scaled.astype(dtype, copy=False)
        if isinstance(x, SparseFeatures):
            rows = replace(x, values=scaled)
            return SparsePoints(rows, rows.squared_norms().astype(dtype, copy=False))
        return VectorPoints.of(scaled)

    def float32_is_safe(self, x: Any) -> bool:
        if isinstance(x, SparseFeatures):
            squared = x.squared_norms() / self.scales
        else:
            squared = (x**2 / self.scales).sum(axis=1)
        # Matern 1/2 has a square root at s = 0, which turns a rounding error of 1e-6 into 1e-3.
        has_root = self.family == dense_loops.MATERN12
        return not has_root and float(squared.max(initial=0.0)) <= FLOAT32_SQUARED_NORM

    def sample_frequencies(
        self, p: int, count: int, random: np.random.RandomState
    ) -> list[tuple[np.ndarray, float]]:
        """Return draws from the spectrum and theta1.

        The spectrum of the RBF is Gaussian. The other kernels are mixtures of RBFs over a scale
        with a gamma or an inverse gamma distribution, so their spectra are mixtures of Gaussians.
        """
        tau = self._mixing(count, random)
        stds = np.sqrt(2.0 * tau[:, None] / self.scales)
        return [(random.standard_normal((count, p)) * stds, self.theta1)]

    def _mixing(self, count: int, random: np.random.RandomState) -> np.ndarray:
        """Return draws of the factor tau for which f(s) = E[exp(-tau s)];  (count,)."""
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
        lengths, _ = self.length_scale_range(omega.shape[1])
        s, gradient = density(self.smoothness, self.theta1, lengths, omega)
        if self.scales.size == 1:
            gradient = np.column_stack([gradient[:, 0], gradient[:, 1:].sum(axis=1)])
        return s, gradient

    @property
    def has_spectral_density(self) -> bool:
        uses_all = self.is_radial or bool(self.used.all())
        return self.family != dense_loops.RQ and uses_all

    def diagonal(self, points: VectorPoints | SparsePoints) -> np.ndarray:
        return np.full(len(points), self.theta1)

    def diagonal_gradient(self, points: VectorPoints | SparsePoints) -> np.ndarray:
        gradient = np.zeros((len(points), self.theta.size))
        gradient[:, 0] = self.theta1
        return gradient

    def _minus_s(self, a: PointsT, b: PointsT) -> np.ndarray:
        """Return -s between rows a and b, with the digits that the kernel needs;  (a, b)."""
        E = a.minus_s(b)
        near = self._near(max(1.0, a.squared.max(initial=0.0), b.squared.max(initial=0.0)))
        if near > 0.0:
            a.refine(b, near, E)
        return E

    def _near(self, size: float) -> float:
        """Return the s below which pairs are computed from differences; 0 if none is.

        The matrix product rounds s by eps |x|^2, and `size` is the largest |x|^2. Far from the
        centre, that changes the kernel for every pair that is close enough to matter, and the
        square root of Matern 1/2 makes it sqrt(eps) |x|.
        """
        is_far = size > FAR_SQUARED_NORM
        if is_far or self.family == dense_loops.MATERN12:
            return max(1e-6 * size, FAR_SQUARED_NORM if is_far else 0.0)
        return 0.0

    def profile(self, prepared: OwnPrepared) -> Profile | None:
        # A subclass that computes its values in another way has no compiled form.
        computes_here = type(self).multiply is Stationary.multiply
        if not (computes_here and isinstance(prepared, VectorPoints)):
            return None
        real = prepared.real
        points = np.ascontiguousarray(prepared.directions / real(np.sqrt(2.0)))
        near = self._near(max(1.0, prepared.squared.max(initial=0.0)))
        return Profile(
            self.family,
            real(self._shape),
            real(self.theta1),
            real(near),
            self.scales.size > 1,
            prepared.left,
            prepared.right,
            points,
        )

    def gradient_of_sums(self, sums: np.ndarray) -> np.ndarray:
        along = sums[3:] if self.scales.size > 1 else sums[1:2]
        return self.theta1 * np.concatenate([sums[:1], along, sums[2:3]])[: self.theta.size]

    def multiply(self, a: PointsT, b: PointsT, out: np.ndarray) -> None:
        dense_loops.times_profile(
            self.family, a.real(self._shape), a.real(self.theta1), self._minus_s(a, b), out
        )

    def contract_gradient(self, a: PointsT, b: PointsT, G: np.ndarray) -> np.ndarray:
        sums = np.empty((3, len(a)), G.dtype)
        dense_loops.contract_profile(
            self.family, G.dtype.type(self._shape), self._minus_s(a, b), G, sums
        )
        along = sums[1:2].T
        if self.scales.size > 1:
            assert isinstance(a, VectorPoints)
            # sum_j G_ij (x_i - x_j)^2 = x_i^2 sum_j G_ij - 2 x_i (G x)_i + (G x^2)_i, for all
            # columns at once by two matrix products.
            xa, xb = a.directions, b.directions
            along = 0.5 * (xa**2 * G.sum(axis=1)[:, None] + G @ xb**2) - xa * (G @ xb)
        gradient: np.ndarray = np.hstack([sums[:1].T, along, sums[2:].T])[:, : self.theta.size]
        return self.theta1 * gradient

    def contract_input_gradient(self, a: PointsT, b: PointsT, G: np.ndarray) -> np.ndarray:
        if isinstance(a, SparsePoints):
            return super().contract_input_gradient(a, b, G)
        unused_sums = np.empty((3, len(a)), G.dtype)
        shape = G.dtype.type(self._shape)
        dense_loops.contract_profile(self.family, shape, self._minus_s(a, b), G, unused_sums)
        # contract_profile leaves -G f' in G, so this is sum_j -G_ij f'(s_ij) (x_i - x_j).
        apart = a.directions * G.sum(axis=1)[:, None] - G @ b.directions
        scales, used = self.scales, self.used
        gradient: np.ndarray = -self.theta1 * np.sqrt(2.0 / scales[used]) * apart
        if used.all():
            return gradient
        of_all = np.zeros((len(gradient), used.size), gradient.dtype)
        of_all[:, used] = gradient
        return of_all

    @property
    def is_radial(self) -> bool:
        return not np.ndim(self.theta2)

    def radial_profile(self, dtype: Any) -> RadialProfile | None:
        # A subclass that computes its values in another way has no compiled form.
        if type(self).multiply_at is not Stationary.multiply_at or not self.is_radial:
            return None
        real = np.dtype(dtype).type
        rate = 1.0 / float(self.scales[0])
        return RadialProfile(self.family, real(self._shape), real(self.theta1), rate)

    def multiply_at(self, squared: np.ndarray, out: np.ndarray) -> None:
        real = out.dtype.type
        E = np.multiply(squared, -1.0 / self.scales, dtype=float).astype(out.dtype, copy=False)
        dense_loops.times_profile(
            self.family, real(self._shape), real(self.theta1), E[None], out[None]
        )

    def gradient_at(self, squared: np.ndarray, G: np.ndarray) -> np.ndarray:
        real = G.dtype.type
        E = np.multiply(squared, -1.0 / self.scales, dtype=float).astype(G.dtype, copy=False)
        values, weighed = G.copy(), G.copy()
        dense_loops.times_profile(
            self.family, real(self._shape), real(self.theta1), E[None], values[None]
        )
        dense_loops.contract_profile(
            self.family, real(self._shape), E[None], weighed[None], np.empty((3, 1), G.dtype)
        )
        weighed *= E  # contract_profile has left -G f' in `weighed` and s in E.
        weighed *= real(self.theta1)
        if self.family != dense_loops.RQ:
            return np.vstack([values, weighed])
        along_shape = weighed - values * real(self._shape) * np.log1p(E / real(self._shape))
        return np.vstack([values, weighed, along_shape])


@stored
@dataclass(frozen=True)
class RBF(Stationary):
    """The radial basis function kernel ``theta1 exp(-|x - x'|^2 / theta2)``, as in the paper.

    Parameters
    ----------
    theta1 : float, default=1.0
        The scale, which is the variance k(x, x).
    theta2 : float, sequence of float or "median", default="median"
        The squared length: one number, or one for each column of a dense X, of which those with an
        infinite one are not used. "median" stands for the median of the squared distances between
        the training rows.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.kernels import RBF
    >>> x = np.array([[0.0], [1.0]])
    >>> K = RBF(theta1=2.0, theta2=0.5)(x)
    >>> np.allclose(K, 2.0 * np.exp(-((x - x.T) ** 2) / 0.5))
    True
    """

    family: ClassVar[int] = dense_loops.RBF


@stored
@dataclass(frozen=True)
class Matern12(Stationary):
    """The Matern kernel with nu = 1/2: ``theta1 exp(-r / l)``, ``l^2 = theta2 / 2``.

    Its functions are continuous and nowhere differentiable.

    Parameters
    ----------
    theta1 : float, default=1.0
        The scale, which is the variance k(x, x).
    theta2 : float, sequence of float or "median", default="median"
        The squared length: one number, or one for each column of a dense X, of which those with an
        infinite one are not used. "median" stands for the median of the squared distances between
        the training rows.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.kernels import Matern12
    >>> x = np.array([[0.0], [1.0]])
    >>> K = Matern12(theta1=2.0, theta2=8.0)(x)
    >>> np.allclose(K, 2.0 * np.exp(-np.abs(x - x.T) / 2.0))
    True
    """

    family: ClassVar[int] = dense_loops.MATERN12
    smoothness: ClassVar[float] = 0.5


@stored
@dataclass(frozen=True)
class Matern32(Stationary):
    """The Matern kernel with nu = 3/2: theta1 (1 + b) exp(-b).

    ``b = sqrt(3) r / l``, ``l^2 = theta2 / 2``. Its functions can be differentiated once.

    Parameters
    ----------
    theta1 : float, default=1.0
        The scale, which is the variance k(x, x).
    theta2 : float, sequence of float or "median", default="median"
        The squared length: one number, or one for each column of a dense X, of which those with an
        infinite one are not used. "median" stands for the median of the squared distances between
        the training rows.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.kernels import Matern32
    >>> x = np.array([[0.0], [1.0]])
    >>> b = np.sqrt(3.0) * np.abs(x - x.T) / 2.0
    >>> K = Matern32(theta1=2.0, theta2=8.0)(x)
    >>> np.allclose(K, 2.0 * (1.0 + b) * np.exp(-b))
    True
    """

    family: ClassVar[int] = dense_loops.MATERN32
    smoothness: ClassVar[float] = 1.5


@stored
@dataclass(frozen=True)
class Matern52(Stationary):
    """The Matern kernel with nu = 5/2: theta1 (1 + b + b^2 / 3) exp(-b).

    ``b = sqrt(5) r / l``, ``l^2 = theta2 / 2``. Its functions can be differentiated twice.

    Parameters
    ----------
    theta1 : float, default=1.0
        The scale, which is the variance k(x, x).
    theta2 : float, sequence of float or "median", default="median"
        The squared length: one number, or one for each column of a dense X, of which those with an
        infinite one are not used. "median" stands for the median of the squared distances between
        the training rows.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.kernels import Matern52
    >>> x = np.array([[0.0], [1.0]])
    >>> b = np.sqrt(5.0) * np.abs(x - x.T) / 2.0
    >>> K = Matern52(theta1=2.0, theta2=8.0)(x)
    >>> np.allclose(K, 2.0 * (1.0 + b + b**2 / 3.0) * np.exp(-b))
    True
    """

    family: ClassVar[int] = dense_loops.MATERN52
    smoothness: ClassVar[float] = 2.5


@stored
@dataclass(frozen=True)
class RationalQuadratic(Stationary):
    """The rational quadratic kernel ``theta1 (1 + s / shape)^-shape``.

    It is a mixture of RBF kernels with many length scales.

    Parameters
    ----------
    theta1 : float, default=1.0
        The scale, which is the variance k(x, x).
    theta2 : float, sequence of float or "median", default="median"
        The squared length: one number, or one for each column of a dense X, of which those with an
        infinite one are not used. "median" stands for the median of the squared distances between
        the training rows.
    shape : float, default=1.0
        The smaller it is, the more the length scales differ. For large values, the kernel
        tends to the RBF.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.kernels import RationalQuadratic
    >>> x = np.array([[0.0], [1.0]])
    >>> K = RationalQuadratic(theta1=2.0, theta2=0.5, shape=3.0)(x)
    >>> np.allclose(K, 2.0 * (1.0 + (x - x.T) ** 2 / 0.5 / 3.0) ** -3.0)
    True
    """

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

    def with_theta(self, theta: np.ndarray) -> Self:
        return replace(super().with_theta(theta[:-1]), shape=float(np.exp(theta[-1])))

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "shape": self.shape}


def median_squared_distance(x: Any) -> float:
    """Return the median heuristic for theta2.

    It is the median of |x_i - x_j|^2 over the pairs of at most MEDIAN_ROWS evenly spaced rows that
    are not equal.
    """
    rows = x[evenly_spaced(MEDIAN_ROWS, len(x))]
    if isinstance(rows, SparseFeatures):
        points = SparsePoints(rows, rows.squared_norms())
        squared = -points.minus_s(points)[np.tril_indices(len(rows), -1)]
    else:
        squared = pdist(rows, "sqeuclidean")
    squared = squared[squared > 0]
    return float(np.median(squared)) if squared.size else 1.0
