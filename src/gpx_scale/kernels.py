"""k(x, x') and its derivatives. A kernel is frozen and holds its parameters; `theta` is their logs.

    RBF                   theta1 exp(-s)                          s = sum_k (x_k - x'_k)^2 / theta2_k
    Matern12, 32, 52      theta1 times the Matern form of lengthscale sqrt(theta2 / 2)
    RationalQuadratic     theta1 (1 + s / shape)^-shape
    Precomputed           theta1 times a Gram matrix
    Function              theta1 times function(objects, objects)

`theta2` is one number, a sequence (one for each column: ARD), or "median". All tend to the paper's RBF: lengthscale^2 =
theta2 / 2. `a + b` and `a * b` combine kernels on the same x.

>>> kernel = RBF(theta1=2.0, theta2=3.0) + Matern32(theta2=1.0)
>>> kernel.as_dict()
{'k1.theta1': 2.0, 'k1.theta2': 3.0, 'k2.theta1': 1.0, 'k2.theta2': 1.0}
>>> kernel(np.zeros((1, 2)), np.ones((1, 2))).shape
(1, 1)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.spatial.distance import pdist

from . import jit
from .errors import InputError
from .params import positive

__all__ = [
    "RBF",
    "Function",
    "Kernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "Precomputed",
    "Product",
    "RationalQuadratic",
    "Sum",
]

MEDIAN_ROWS = 1000  # rows of the median heuristic: its relative error is about 1% there


class Kernel(abc.ABC):
    """What every kernel answers. `takes` names the x it is defined on: "vectors", "gram" or "objects"."""

    takes: ClassVar[str]

    # parameters
    @property
    @abc.abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Kind of each entry of `theta`, as in `params.PRIOR_SD`."""

    @property
    @abc.abstractmethod
    def theta(self) -> np.ndarray:
        """Logarithms of the parameters, (t,)."""

    @abc.abstractmethod
    def with_theta(self, theta: np.ndarray) -> Kernel: ...

    @abc.abstractmethod
    def as_dict(self) -> dict[str, Any]: ...

    def started(self, x: Any, ard: bool = False) -> Kernel:
        """This kernel with "median" replaced by a number (one a column with `ard`)."""
        return self

    # points
    def training(self, x: Any) -> Any:
        """What can be computed of the training x once for a whole fit, whatever the parameters; slices by rows."""
        return x

    def queries(self, x: Any, n_train: int) -> Any:
        """Query x in the form that `points` takes."""
        return x

    @abc.abstractmethod
    def points(self, x: Any, dtype: Any = np.float64) -> Any:
        """What tiles need of the rows of x at these parameters: an object that slices by rows; O(n p)."""

    @abc.abstractmethod
    def diagonal(self, points: Any) -> np.ndarray:
        """k(x_i, x_i), (n,): analytic, never from a product."""

    # tiles
    @abc.abstractmethod
    def multiply(self, a: Any, b: Any, out: np.ndarray) -> None:
        """out *= k(a, b);  (len(a), len(b)) in place."""

    @abc.abstractmethod
    def contract(self, a: Any, b: Any, G: np.ndarray) -> np.ndarray:
        """sum_ij G_ij dk(a_i, b_j)/dtheta;  (len(a), len(b)) -> (t,). G is overwritten."""

    def tile(self, a: Any, b: Any, dtype: Any = np.float64) -> np.ndarray:
        out = np.ones((len(a), len(b)), dtype)
        self.multiply(a, b, out)
        return out

    def __call__(self, x: Any, y: Any = None) -> np.ndarray:
        """The matrix k(x_i, y_j), (m, n), for looking at; y = None means x."""
        a = self.points(x)
        return self.tile(a, a if y is None else self.points(y))

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other)

    def __mul__(self, other: Kernel) -> Kernel:
        return Product(self, other)


# ------------------------------------------------------------------------------------------------------ stationary


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

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, rows: slice | np.ndarray) -> VectorPoints:
        return VectorPoints(self.left[rows], self.right[rows])

    def minus_s(self, other: VectorPoints) -> np.ndarray:
        return self.left @ other.right.T


@dataclass(frozen=True)
class Stationary(Kernel):
    theta1: float = 1.0
    theta2: float | str | Sequence[float] = "median"

    takes: ClassVar[str] = "vectors"
    family: ClassVar[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta1", positive(self.theta1, "theta1"))
        if isinstance(self.theta2, str):
            if self.theta2 != "median":
                raise InputError(f'theta2={self.theta2!r}: give a number, one a column, or "median"')
        elif np.ndim(self.theta2) == 0:
            object.__setattr__(self, "theta2", positive(self.theta2, "theta2"))
        else:
            values = tuple(positive(value, "theta2") for value in np.asarray(self.theta2).ravel())
            object.__setattr__(self, "theta2", values)

    @property
    def scales(self) -> np.ndarray:
        """theta2 as (1,) or (p,)."""
        if isinstance(self.theta2, str):
            raise InputError('theta2="median" is known only once data are seen: give a number')
        return np.atleast_1d(np.asarray(self.theta2, dtype=float))

    @property
    def labels(self) -> tuple[str, ...]:
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

    def started(self, x: np.ndarray, ard: bool = False) -> Stationary:
        theta2 = median_squared_distance(x) if isinstance(self.theta2, str) else self.theta2
        if ard and np.ndim(theta2) == 0:
            theta2 = (theta2,) * x.shape[1]
        if np.ndim(theta2) and np.size(theta2) != x.shape[1]:
            raise InputError(f"theta2 has {np.size(theta2)} entries, X has {x.shape[1]} columns: give one a column")
        return replace(self, theta2=theta2)

    @property
    def _shape(self) -> float:
        return 1.0

    def points(self, x: np.ndarray, dtype: Any = np.float64) -> VectorPoints:
        return VectorPoints.of((np.asarray(x) / np.sqrt(self.scales)).astype(dtype, copy=False))

    def diagonal(self, points: VectorPoints) -> np.ndarray:
        return np.full(len(points), self.theta1)

    def _minus_s(self, a: VectorPoints, b: VectorPoints) -> np.ndarray:
        E = a.minus_s(b)
        if self.family == jit.MATERN12:
            # sqrt(s) turns the GEMM's rounding of eps |x|^2 into sqrt(eps) |x|: near pairs need their differences.
            size = max(1.0, -min(a.left[:, -2].min(initial=0.0), b.left[:, -2].min(initial=0.0)))
            jit.refine_close_pairs(a.directions / np.sqrt(2.0), b.directions / np.sqrt(2.0), 1e-6 * size, E)
        return E

    def multiply(self, a: VectorPoints, b: VectorPoints, out: np.ndarray) -> None:
        real = a.left.dtype.type
        jit.times_profile(self.family, real(self._shape), real(self.theta1), self._minus_s(a, b), out)

    def contract(self, a: VectorPoints, b: VectorPoints, G: np.ndarray) -> np.ndarray:
        sums = np.zeros(3)
        jit.contract_profile(self.family, self._shape, self._minus_s(a, b), G, sums)
        along = sums[1:2]
        if self.scales.size > 1:
            # sum_ij G_ij (x_i - x_j)^2 = rowsum.x_i^2 + colsum.x_j^2 - 2 x_i.G x_j, for all columns by one GEMM.
            xa, xb = a.directions, b.directions
            along = 0.5 * (G.sum(axis=1) @ xa**2 + G.sum(axis=0) @ xb**2) - np.einsum("ik,ik->k", xa, G @ xb)
        return self.theta1 * np.concatenate([sums[:1], along, sums[2:]])[: self.theta.size]


@dataclass(frozen=True)
class RBF(Stationary):
    """theta1 exp(-|x - x'|^2 / theta2), as in the paper."""

    family: ClassVar[int] = jit.RBF


@dataclass(frozen=True)
class Matern12(Stationary):
    """theta1 exp(-r / l), l^2 = theta2 / 2."""

    family: ClassVar[int] = jit.MATERN12


@dataclass(frozen=True)
class Matern32(Stationary):
    """theta1 (1 + b) exp(-b), b = sqrt(3) r / l, l^2 = theta2 / 2."""

    family: ClassVar[int] = jit.MATERN32


@dataclass(frozen=True)
class Matern52(Stationary):
    """theta1 (1 + b + b^2/3) exp(-b), b = sqrt(5) r / l, l^2 = theta2 / 2."""

    family: ClassVar[int] = jit.MATERN52


@dataclass(frozen=True)
class RationalQuadratic(Stationary):
    """theta1 (1 + s / shape)^-shape: a mixture of RBFs of many length scales."""

    shape: float = 1.0

    family: ClassVar[int] = jit.RQ

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shape", positive(self.shape, "shape"))

    @property
    def _shape(self) -> float:
        return self.shape

    @property
    def labels(self) -> tuple[str, ...]:
        return (*super().labels, "shape")

    @property
    def theta(self) -> np.ndarray:
        return np.append(super().theta, np.log(self.shape))

    def with_theta(self, theta: np.ndarray) -> RationalQuadratic:
        return replace(super().with_theta(theta[:-1]), shape=float(np.exp(theta[-1])))  # type: ignore[return-value]

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "shape": self.shape}


def median_squared_distance(x: np.ndarray) -> float:
    """Median heuristic for theta2: the median of |x_i - x_j|^2 over pairs of at most MEDIAN_ROWS evenly spread rows."""
    rows = x[np.unique(np.linspace(0, len(x) - 1, min(len(x), MEDIAN_ROWS)).astype(int))]
    squared = pdist(rows, "sqeuclidean")
    squared = squared[squared > 0]
    return float(np.median(squared)) if squared.size else 1.0


# -------------------------------------------------------------------------------------- Gram matrices and functions


@dataclass(frozen=True)
class GramPoints:
    """Rows of a Gram matrix and, for each, the column in which it stands itself (empty where it has none)."""

    rows: np.ndarray
    columns: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | np.ndarray) -> GramPoints:
        return GramPoints(self.rows[rows], self.columns[rows] if self.columns.size else self.columns)


@dataclass(frozen=True)
class Scaled(Kernel):
    """theta1 times a kernel without parameters."""

    theta1: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta1", positive(self.theta1, "theta1"))

    @abc.abstractmethod
    def block(self, a: Any, b: Any) -> np.ndarray:
        """The parameter-free kernel, (len(a), len(b))."""

    @property
    def labels(self) -> tuple[str, ...]:
        return ("theta1",)

    @property
    def theta(self) -> np.ndarray:
        return np.log([self.theta1])

    def with_theta(self, theta: np.ndarray) -> Scaled:
        return replace(self, theta1=float(np.exp(theta[0])))

    def as_dict(self) -> dict[str, Any]:
        return {"theta1": self.theta1}

    def multiply(self, a: Any, b: Any, out: np.ndarray) -> None:
        out *= self.theta1
        out *= self.block(a, b)

    def contract(self, a: Any, b: Any, G: np.ndarray) -> np.ndarray:
        return np.array([self.theta1 * np.vdot(G, self.block(a, b))])


@dataclass(frozen=True)
class Precomputed(Scaled):
    """theta1 times a Gram matrix given as X: (n, n) at fit; at predict (m, n), or with the queries' own block beside it:
    (m, n + 1) with k(x*, x*) last, which variances need, or (m, n + m) with k(x*, x*'), which joint ones need."""

    takes: ClassVar[str] = "gram"

    def training(self, x: np.ndarray) -> GramPoints:
        return GramPoints(x, np.arange(len(x)))

    def queries(self, x: np.ndarray, n_train: int) -> GramPoints:
        m, extra = len(x), x.shape[1] - n_train
        if extra == 0:
            return GramPoints(x, np.empty(0, int))
        if extra == 1:
            return GramPoints(x, np.full(m, n_train))
        if extra == m:
            return GramPoints(x, np.arange(n_train, n_train + m))
        raise InputError(
            f'kernel="precomputed": X is {x.shape}; with {n_train} training rows give {m} x {n_train} (mean only), '
            f"{m} x {n_train + 1} (k(x*, x*) last) or {m} x {n_train + m} (the queries' own Gram matrix beside it)"
        )

    def points(self, x: Any, dtype: Any = np.float64) -> GramPoints:
        return x if isinstance(x, GramPoints) else self.training(np.asarray(x, dtype=float))

    def diagonal(self, points: GramPoints) -> np.ndarray:
        if not points.columns.size:
            raise InputError(
                'kernel="precomputed": a variance needs k(x*, x*); give X of shape (m, n + 1) with it as the last column, '
                "or (m, n + m) with the queries' own Gram matrix, or ask for the mean only"
            )
        return self.theta1 * points.rows[np.arange(len(points)), points.columns]

    def block(self, a: GramPoints, b: GramPoints) -> np.ndarray:
        if not b.columns.size:
            raise InputError('kernel="precomputed": joint results need X of shape (m, n + m)')
        if b.columns[-1] - b.columns[0] + 1 == b.columns.size:  # a run of columns needs no copy
            return a.rows[:, b.columns[0] : b.columns[-1] + 1]
        return a.rows[:, b.columns]


@dataclass(frozen=True)
class Objects:
    """Arbitrary Python objects, and their Gram matrix if it was asked for once (training)."""

    items: list[Any]
    gram: np.ndarray | None = None
    offset: int = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice | np.ndarray) -> Objects:
        if isinstance(rows, slice) and self.gram is not None:
            start, stop, _ = rows.indices(len(self))
            return Objects(self.items[start:stop], self.gram, self.offset + start)
        index = np.arange(len(self))[rows]
        at = self.offset + index
        return Objects([self.items[i] for i in index], None if self.gram is None else self.gram[np.ix_(at, at)])


@dataclass(frozen=True)
class Function(Scaled):
    """theta1 times function(list, list) -> (a, b) array, on any Python objects: graphs, sets, strings."""

    function: Callable[[list[Any], list[Any]], Any] = None  # type: ignore[assignment]

    takes: ClassVar[str] = "objects"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise InputError(f"Function kernel needs a callable on two lists of objects, got {self.function!r}")

    def points(self, x: Any, dtype: Any = np.float64) -> Objects:
        return x if isinstance(x, Objects) else Objects(list(x))

    def training(self, x: Any) -> Objects:
        """The objects with k of all pairs, (n, n)."""
        objects = self.points(x)
        gram = self._evaluate(objects.items, objects.items)
        if not np.allclose(gram, gram.T, rtol=1e-8, atol=1e-8 * np.abs(gram).max(initial=0.0)):
            raise InputError("the kernel function is not symmetric: k(a, b) and k(b, a) differ")
        return Objects(objects.items, gram)

    def diagonal(self, points: Objects) -> np.ndarray:
        each = (self._evaluate([item], [item])[0, 0] for item in points.items)
        return self.theta1 * np.fromiter(each, float, len(points))

    def block(self, a: Objects, b: Objects) -> np.ndarray:
        if a.gram is not None and a.gram is b.gram:
            return a.gram[a.offset : a.offset + len(a), b.offset : b.offset + len(b)]
        return self._evaluate(a.items, b.items)

    def _evaluate(self, a: list[Any], b: list[Any]) -> np.ndarray:
        values = np.asarray(self.function(a, b), dtype=float)
        if values.shape != (len(a), len(b)) or not np.isfinite(values).all():
            raise InputError(
                f"the kernel function gave {values.shape} for lists of {len(a)} and {len(b)} objects"
                f"{'' if np.isfinite(values).all() else ', with NaN or infinity'}; needed: a finite ({len(a)}, {len(b)})"
            )
        return values


# ---------------------------------------------------------------------------------------------------- combinations


@dataclass(frozen=True)
class PairPoints:
    first: Any
    second: Any

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: slice | np.ndarray) -> PairPoints:
        return PairPoints(self.first[rows], self.second[rows])


@dataclass(frozen=True)
class Pair(Kernel):
    """Two kernels on the same x; parameters of the first, then of the second, named k1.* and k2.*."""

    first: Kernel
    second: Kernel

    def __post_init__(self) -> None:
        if not isinstance(self.first, Kernel) or not isinstance(self.second, Kernel):
            raise InputError(f"can only combine kernels, got {self.first!r} and {self.second!r}")
        if self.first.takes != self.second.takes:
            raise InputError(f"{self.first!r} takes {self.first.takes}, {self.second!r} takes {self.second.takes}")

    @property
    def takes(self) -> str:  # type: ignore[override]
        return self.first.takes

    @property
    def labels(self) -> tuple[str, ...]:
        return self.first.labels + self.second.labels

    @property
    def theta(self) -> np.ndarray:
        return np.concatenate([self.first.theta, self.second.theta])

    def with_theta(self, theta: np.ndarray) -> Kernel:
        cut = self.first.theta.size
        return replace(self, first=self.first.with_theta(theta[:cut]), second=self.second.with_theta(theta[cut:]))

    def as_dict(self) -> dict[str, Any]:
        parts = (("k1", self.first), ("k2", self.second))
        return {f"{name}.{key}": value for name, part in parts for key, value in part.as_dict().items()}

    def started(self, x: Any, ard: bool = False) -> Kernel:
        return replace(self, first=self.first.started(x, ard), second=self.second.started(x, ard))

    def training(self, x: Any) -> PairPoints:
        return PairPoints(self.first.training(x), self.second.training(x))

    def queries(self, x: Any, n_train: int) -> PairPoints:
        return PairPoints(self.first.queries(x, n_train), self.second.queries(x, n_train))

    def points(self, x: Any, dtype: Any = np.float64) -> PairPoints:
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        return PairPoints(self.first.points(x.first, dtype), self.second.points(x.second, dtype))


@dataclass(frozen=True)
class Sum(Pair):
    """k1 + k2."""

    def diagonal(self, points: PairPoints) -> np.ndarray:
        return self.first.diagonal(points.first) + self.second.diagonal(points.second)

    def multiply(self, a: PairPoints, b: PairPoints, out: np.ndarray) -> None:
        K = self.first.tile(a.first, b.first, out.dtype)
        K += self.second.tile(a.second, b.second, out.dtype)
        out *= K

    def contract(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        first = self.first.contract(a.first, b.first, G.copy())
        return np.concatenate([first, self.second.contract(a.second, b.second, G)])


@dataclass(frozen=True)
class Product(Pair):
    """k1 k2."""

    def diagonal(self, points: PairPoints) -> np.ndarray:
        return self.first.diagonal(points.first) * self.second.diagonal(points.second)

    def multiply(self, a: PairPoints, b: PairPoints, out: np.ndarray) -> None:
        self.first.multiply(a.first, b.first, out)
        self.second.multiply(a.second, b.second, out)

    def contract(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        first, second = G.copy(), G
        self.second.multiply(a.second, b.second, first)
        self.first.multiply(a.first, b.first, second)
        return np.concatenate(
            [self.first.contract(a.first, b.first, first), self.second.contract(a.second, b.second, second)]
        )


NAMES: dict[str, type[Stationary]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rq": RationalQuadratic,
}


def as_kernel(kernel: Any, theta1: Any = 1.0, theta2: Any = "median") -> Kernel:
    """A kernel object from a name, a kernel (its own parameters count), or a callable on two lists of objects."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str) and kernel in NAMES:
        return NAMES[kernel](theta1, theta2)
    if isinstance(kernel, str) and kernel == "precomputed":
        return Precomputed(theta1)
    if callable(kernel):
        return Function(theta1, kernel)
    known = ", ".join(f'"{name}"' for name in (*NAMES, "precomputed"))
    raise InputError(f"kernel={kernel!r}: give one of {known}, a gpx_scale.kernels object, or a callable")
