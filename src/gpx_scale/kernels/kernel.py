"""What every kernel answers, and sums and products of kernels."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..data.checks import must_be_features, table_of
from ..data.features import DenseFeatures, SparseFeatures
from ..data.inputs import Preprocessor
from ..errors import InputError, SolverUnavailable
from ..runtime.state import must, stored


@dataclass(frozen=True)
class Profile:
    """A stationary kernel scale f(s) at dense points, as `compiled.tiles` takes it.

    `left`, `right` (n, p + 2) are augmented points whose product is -s; pairs with s < near are computed by
    differences of `points` (n, p), which are scaled so that s = |x - x'|^2. If `by_column`, derivatives are wanted for every
    column.
    """

    family: int
    shape: float
    scale: float
    near: float
    by_column: bool
    left: np.ndarray
    right: np.ndarray
    points: np.ndarray


class Kernel(abc.ABC):
    """What every kernel answers. `takes` names the x it is defined on: "vectors", "gram" or "objects"."""

    input_kind: ClassVar[str]

    @property
    def components(self) -> tuple[Kernel, ...]:
        """Return the kernels that this one combines, none for most."""
        return ()

    # parameters
    @property
    @abc.abstractmethod
    def parameter_kinds(self) -> tuple[str, ...]:
        """Kind of each entry of `theta`, as in `model.hyperparameters.PRIOR_SD`."""

    @property
    @abc.abstractmethod
    def theta(self) -> np.ndarray:
        """Logarithms of the parameters, (t,)."""

    @abc.abstractmethod
    def with_theta(self, theta: np.ndarray) -> Kernel:
        """Return this kernel at other parameters;  (t,)."""

    @abc.abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""

    def resolved(self, x: Any, ard: bool = False) -> Kernel:
        """This kernel with "median" replaced by a number (one a column with `ard`)."""
        return self

    # points
    def sliceable(self, x: Any) -> Any:
        """x as `prepare` takes it, sliced by rows."""
        return x

    def training_input(self, x: Any) -> Any:
        """The same with what can be computed of the training x once for a whole fit, whatever the parameters."""
        return self.sliceable(x)

    def query_input(self, x: Any, n_train: int) -> Any:
        """Query x in the form that `prepare` takes."""
        return x

    @abc.abstractmethod
    def prepare(self, x: Any, dtype: Any = np.float64) -> Any:
        """What tiles need of the rows of x at these parameters: an object that slices by rows; O(n p)."""

    @abc.abstractmethod
    def diagonal(self, points: Any) -> np.ndarray:
        """k(x_i, x_i), (n,): analytic, never from a product."""

    @abc.abstractmethod
    def diagonal_gradient(self, points: Any) -> np.ndarray:
        """dk(x_i, x_i)/dtheta, (n, t)."""

    def vectors(self, x: Any) -> np.ndarray:
        """The rows of x themselves, (n, p), of what `training_input` or `query_input` made of them."""
        if self.input_kind != "vectors":
            raise SolverUnavailable(
                f"{type(self).__name__} has no spectrum to draw functions from: use solver='exact' to sample"
            )
        return x

    def input_arrays(self, x: Any) -> list[np.ndarray]:
        """Return numbers by which x, as `sliceable` or `training_input` made it, is told from other inputs."""
        return [x] if isinstance(x, np.ndarray) else x.arrays

    def must_fit_input(
        self,
        x: Any,
        n: int,
        preprocessor: Preprocessor,
        n_train: int | None = None,
    ) -> None:
        """Raise a ValueError unless x, read from a file, has n rows that this kernel takes.

        `n_train` is the number of columns that the rows of a Gram matrix must have, if it is known.
        """
        takes_vectors = self.input_kind == "vectors"
        must(takes_vectors, "its kernel takes objects, which a file does not hold")
        is_sparse = isinstance(x, SparseFeatures)
        must(is_sparse == preprocessor.sparse_x, "X is sparse in one place and dense in another")
        must_be_features(x if is_sparse else DenseFeatures(x), (n, preprocessor.n_x), "X")

    def float32_is_safe(self, x: Any) -> bool:
        """Whether tiles of x may be formed in float32: no distance loses more than float32's own digits."""
        return False

    def sample_frequencies(
        self, p: int, count: int, random: np.random.RandomState
    ) -> list[tuple[np.ndarray, float]]:
        """Components (omega (count, p), v) with k(x, x') = sum of v E cos(omega.(x - x')), omega drawn from the spectrum."""
        raise SolverUnavailable(f"{type(self).__name__} has no spectrum to draw functions from")

    def profile(self, points: Any) -> Profile | None:
        """Return what compiled loops over tiles need of prepared points; None if this kernel has no compiled form."""
        return None

    def gradient_of(self, sums: np.ndarray) -> np.ndarray:
        """Return derivatives by theta from the sums of `compiled.tiles.contract_rows`;  (3 + p,) -> (t,)."""
        raise SolverUnavailable(f"{type(self).__name__} has no compiled form")

    # spectral densities, of stationary kernels
    smoothness: ClassVar[float] = float("inf")  # nu: how often functions can be differentiated

    def length_scale_range(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        """The shortest and the longest length scale in each column of x;  (p,), (p,)."""
        raise SolverUnavailable(
            f"{type(self).__name__} has no length scales: use solver='exact', 'cg' or 'inducing'"
        )

    def spectral_density(self, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The spectral density and its derivatives by theta;  (q, p) -> (q,), (q, t)."""
        raise SolverUnavailable(
            f"{type(self).__name__} has no spectral density in closed form: use solver='grid', 'exact', 'cg' or 'inducing'"
        )

    @property
    def has_spectral_density(self) -> bool:
        """Return whether the spectral density is known in closed form."""
        return False

    # tiles
    @abc.abstractmethod
    def multiply(self, a: Any, b: Any, out: np.ndarray) -> None:
        """``out *= k(a, b)``;  (len(a), len(b)) in place."""

    @abc.abstractmethod
    def contract_gradient(self, a: Any, b: Any, G: np.ndarray) -> np.ndarray:
        """sum_j G_ij dk(a_i, b_j)/dtheta for each row;  (len(a), len(b)) -> (len(a), t). G is overwritten."""

    def contract_input_gradient(self, a: Any, b: Any, G: np.ndarray) -> np.ndarray:
        """sum_j G_ij dk(a_i, b_j)/dx_i for each row;  (len(a), len(b)) -> (len(a), p). G is overwritten."""
        raise SolverUnavailable(
            f"{type(self).__name__} has no derivative by x: give optimize_inducing=False"
        )

    # pairs
    @property
    def is_radial(self) -> bool:
        """Return whether k(x, x') is a function of |x - x'|^2 alone.

        If so, `multiply_at` and `gradient_at` answer for listed pairs.
        """
        return False

    def multiply_at(self, squared: np.ndarray, out: np.ndarray) -> None:
        """``out *= k`` at squared distances;  (pairs,) in place, in out's dtype."""
        raise SolverUnavailable(f"{type(self).__name__} is not a function of distance alone")

    def gradient_at(self, squared: np.ndarray, G: np.ndarray) -> np.ndarray:
        """G dk/dtheta at squared distances;  (pairs,), (pairs,) -> (t, pairs)."""
        raise SolverUnavailable(f"{type(self).__name__} is not a function of distance alone")

    def tile(self, a: Any, b: Any, dtype: Any = np.float64) -> np.ndarray:
        """Return k(a_i, b_j) of prepared inputs;  (len(a), len(b))."""
        out = np.ones((len(a), len(b)), dtype)
        self.multiply(a, b, out)
        return out

    def __call__(self, x: Any, y: Any = None) -> np.ndarray:
        """The matrix k(x_i, y_j), (m, n), for looking at; y = None means x."""
        x, y = (
            table_of(A, name) if self.input_kind == "vectors" and A is not None else A
            for A, name in ((x, "x"), (y, "y"))
        )
        a = self.prepare(x)
        return self.tile(a, a if y is None else self.prepare(y))

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other)

    def __mul__(self, other: Kernel) -> Kernel:
        return Product(self, other)


@stored
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
        if self.first.input_kind != self.second.input_kind:
            raise InputError(
                f"{self.first!r} takes {self.first.input_kind}, {self.second!r} takes {self.second.input_kind}"
            )

    @property
    def components(self) -> tuple[Kernel, ...]:
        return self.first, self.second

    @property
    def input_kind(self) -> str:  # type: ignore[override]
        return self.first.input_kind

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return self.first.parameter_kinds + self.second.parameter_kinds

    @property
    def theta(self) -> np.ndarray:
        return np.concatenate([self.first.theta, self.second.theta])

    def with_theta(self, theta: np.ndarray) -> Kernel:
        cut = self.first.theta.size
        return replace(
            self,
            first=self.first.with_theta(theta[:cut]),
            second=self.second.with_theta(theta[cut:]),
        )

    def as_dict(self) -> dict[str, Any]:
        parts = (("k1", self.first), ("k2", self.second))
        return {
            f"{name}.{key}": value for name, part in parts for key, value in part.as_dict().items()
        }

    def resolved(self, x: Any, ard: bool = False) -> Kernel:
        return replace(self, first=self.first.resolved(x, ard), second=self.second.resolved(x, ard))

    def sliceable(self, x: Any) -> Any:
        if self.input_kind == "vectors":
            return x
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        return PairPoints(self.first.sliceable(x.first), self.second.sliceable(x.second))

    def training_input(self, x: Any) -> PairPoints:
        return PairPoints(self.first.training_input(x), self.second.training_input(x))

    def query_input(self, x: Any, n_train: int) -> PairPoints:
        return PairPoints(self.first.query_input(x, n_train), self.second.query_input(x, n_train))

    def prepare(self, x: Any, dtype: Any = np.float64) -> PairPoints:
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        return PairPoints(self.first.prepare(x.first, dtype), self.second.prepare(x.second, dtype))

    def vectors(self, x: Any) -> np.ndarray:
        return self.first.vectors(x.first) if isinstance(x, PairPoints) else x

    def input_arrays(self, x: Any) -> list[np.ndarray]:
        if not isinstance(x, PairPoints):
            return super().input_arrays(x)
        return self.first.input_arrays(x.first) + self.second.input_arrays(x.second)

    def must_fit_input(
        self,
        x: Any,
        n: int,
        preprocessor: Preprocessor,
        n_train: int | None = None,
    ) -> None:
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        self.first.must_fit_input(x.first, n, preprocessor, n_train)
        self.second.must_fit_input(x.second, n, preprocessor, n_train)

    def float32_is_safe(self, x: Any) -> bool:
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        return self.first.float32_is_safe(x.first) and self.second.float32_is_safe(x.second)

    @property
    def is_radial(self) -> bool:
        return self.first.is_radial and self.second.is_radial

    @property
    def smoothness(self) -> float:  # type: ignore[override]
        return min(self.first.smoothness, self.second.smoothness)

    def length_scale_range(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        (low, high), (other_low, other_high) = (
            self.first.length_scale_range(p),
            self.second.length_scale_range(p),
        )
        return np.minimum(low, other_low), np.maximum(high, other_high)


@stored
@dataclass(frozen=True)
class Sum(Pair):
    """k1 + k2."""

    def sample_frequencies(
        self, p: int, count: int, random: np.random.RandomState
    ) -> list[tuple[np.ndarray, float]]:
        return self.first.sample_frequencies(p, count, random) + self.second.sample_frequencies(
            p, count, random
        )

    def spectral_density(self, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (s, slopes), (other, other_slopes) = (
            self.first.spectral_density(omega),
            self.second.spectral_density(omega),
        )
        return s + other, np.hstack([slopes, other_slopes])

    @property
    def has_spectral_density(self) -> bool:
        return self.first.has_spectral_density and self.second.has_spectral_density

    def diagonal(self, points: PairPoints) -> np.ndarray:
        return self.first.diagonal(points.first) + self.second.diagonal(points.second)

    def diagonal_gradient(self, points: PairPoints) -> np.ndarray:
        return np.hstack(
            [
                self.first.diagonal_gradient(points.first),
                self.second.diagonal_gradient(points.second),
            ]
        )

    def contract_input_gradient(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        return self.first.contract_input_gradient(
            a.first, b.first, G.copy()
        ) + self.second.contract_input_gradient(a.second, b.second, G)

    def multiply(self, a: PairPoints, b: PairPoints, out: np.ndarray) -> None:
        K = self.first.tile(a.first, b.first, out.dtype)
        K += self.second.tile(a.second, b.second, out.dtype)
        out *= K

    def contract_gradient(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        first = self.first.contract_gradient(a.first, b.first, G.copy())
        return np.hstack([first, self.second.contract_gradient(a.second, b.second, G)])

    def multiply_at(self, squared: np.ndarray, out: np.ndarray) -> None:
        k, other = np.ones_like(out), np.ones_like(out)
        self.first.multiply_at(squared, k)
        self.second.multiply_at(squared, other)
        out *= k + other

    def gradient_at(self, squared: np.ndarray, G: np.ndarray) -> np.ndarray:
        return np.vstack([self.first.gradient_at(squared, G), self.second.gradient_at(squared, G)])


@stored
@dataclass(frozen=True)
class Product(Pair):
    """k1 k2."""

    def sample_frequencies(
        self, p: int, count: int, random: np.random.RandomState
    ) -> list[tuple[np.ndarray, float]]:
        """cos(a) cos(b) = (cos(a + b) + cos(a - b)) / 2, and spectra are symmetric: frequencies add."""
        first = self.first.sample_frequencies(p, count, random)
        return [
            (a + b, v * w)
            for a, v in first
            for b, w in self.second.sample_frequencies(p, count, random)
        ]

    def diagonal(self, points: PairPoints) -> np.ndarray:
        return self.first.diagonal(points.first) * self.second.diagonal(points.second)

    def diagonal_gradient(self, points: PairPoints) -> np.ndarray:
        first, second = points.first, points.second
        return np.hstack(
            [
                self.first.diagonal_gradient(first) * self.second.diagonal(second)[:, None],
                self.second.diagonal_gradient(second) * self.first.diagonal(first)[:, None],
            ]
        )

    def multiply(self, a: PairPoints, b: PairPoints, out: np.ndarray) -> None:
        self.first.multiply(a.first, b.first, out)
        self.second.multiply(a.second, b.second, out)

    def contract_gradient(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        first, second = self._weighed(a, b, G)
        return np.hstack(
            [
                self.first.contract_gradient(a.first, b.first, first),
                self.second.contract_gradient(a.second, b.second, second),
            ]
        )

    def contract_input_gradient(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        first, second = self._weighed(a, b, G)
        return self.first.contract_input_gradient(
            a.first, b.first, first
        ) + self.second.contract_input_gradient(a.second, b.second, second)

    def _weighed(
        self, a: PairPoints, b: PairPoints, G: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """G k2 and G k1, by which the derivatives of k1 and of k2 count."""
        first, second = G.copy(), G
        self.second.multiply(a.second, b.second, first)
        self.first.multiply(a.first, b.first, second)
        return first, second

    def multiply_at(self, squared: np.ndarray, out: np.ndarray) -> None:
        self.first.multiply_at(squared, out)
        self.second.multiply_at(squared, out)

    def gradient_at(self, squared: np.ndarray, G: np.ndarray) -> np.ndarray:
        first, second = G.copy(), G.copy()
        self.second.multiply_at(squared, first)
        self.first.multiply_at(squared, second)
        return np.vstack(
            [self.first.gradient_at(squared, first), self.second.gradient_at(squared, second)]
        )
