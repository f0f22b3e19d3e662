"""What every kernel answers, and sums and products of kernels."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..data.checks import table_of
from ..errors import InputError, SolverUnavailable


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
    def rows(self, x: Any) -> Any:
        """x as `points` takes it, sliced by rows."""
        return x

    def training(self, x: Any) -> Any:
        """The same with what can be computed of the training x once for a whole fit, whatever the parameters."""
        return self.rows(x)

    def queries(self, x: Any, n_train: int) -> Any:
        """Query x in the form that `points` takes."""
        return x

    @abc.abstractmethod
    def points(self, x: Any, dtype: Any = np.float64) -> Any:
        """What tiles need of the rows of x at these parameters: an object that slices by rows; O(n p)."""

    @abc.abstractmethod
    def diagonal(self, points: Any) -> np.ndarray:
        """k(x_i, x_i), (n,): analytic, never from a product."""

    @abc.abstractmethod
    def diagonal_slopes(self, points: Any) -> np.ndarray:
        """dk(x_i, x_i)/dtheta, (n, t)."""

    def vectors(self, x: Any) -> np.ndarray:
        """The rows of x themselves, (n, p), of what `training` or `queries` made of them."""
        if self.takes != "vectors":
            raise SolverUnavailable(
                f"{type(self).__name__} has no spectrum to draw functions from: use solver='exact' to sample"
            )
        return x

    def input_arrays(self, x: Any) -> list[np.ndarray]:
        """Return numbers by which x, as `rows` or `training` made it, is told from other inputs."""
        return [x] if isinstance(x, np.ndarray) else x.arrays

    def single(self, x: Any) -> bool:
        """Whether tiles of x may be formed in float32: no distance loses more than float32's own digits."""
        return False

    def spectrum(self, p: int, count: int, random: np.random.RandomState) -> list[tuple[np.ndarray, float]]:
        """Components (omega (count, p), v) with k(x, x') = sum of v E cos(omega.(x - x')), omega drawn from the spectrum."""
        raise SolverUnavailable(f"{type(self).__name__} has no spectrum to draw functions from")

    # spectral densities, of stationary kernels
    smoothness: ClassVar[float] = float("inf")  # nu: how often functions can be differentiated

    def lengths(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        """The shortest and the longest length scale in each column of x;  (p,), (p,)."""
        raise SolverUnavailable(f"{type(self).__name__} has no length scales: use solver='exact', 'cg' or 'inducing'")

    def density(self, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The spectral density and its derivatives by theta;  (q, p) -> (q,), (q, t)."""
        raise SolverUnavailable(
            f"{type(self).__name__} has no spectral density in closed form: use solver='grid', 'exact', 'cg' or 'inducing'"
        )

    @property
    def has_density(self) -> bool:
        return False

    # tiles
    @abc.abstractmethod
    def multiply(self, a: Any, b: Any, out: np.ndarray) -> None:
        """``out *= k(a, b)``;  (len(a), len(b)) in place."""

    @abc.abstractmethod
    def contract(self, a: Any, b: Any, G: np.ndarray) -> np.ndarray:
        """sum_j G_ij dk(a_i, b_j)/dtheta for each row;  (len(a), len(b)) -> (len(a), t). G is overwritten."""

    def pull(self, a: Any, b: Any, G: np.ndarray) -> np.ndarray:
        """sum_j G_ij dk(a_i, b_j)/dx_i for each row;  (len(a), len(b)) -> (len(a), p). G is overwritten."""
        raise SolverUnavailable(f"{type(self).__name__} has no derivative by x: give optimize_inducing=False")

    # pairs
    @property
    def radial(self) -> bool:
        """Whether k(x, x') is a function of |x - x'|^2 alone, so that `at` and `slopes_at` answer for listed pairs."""
        return False

    def at(self, squared: np.ndarray, out: np.ndarray) -> None:
        """``out *= k`` at squared distances;  (pairs,) in place, in out's dtype."""
        raise NotImplementedError

    def slopes_at(self, squared: np.ndarray, G: np.ndarray) -> np.ndarray:
        """G dk/dtheta at squared distances;  (pairs,), (pairs,) -> (t, pairs)."""
        raise NotImplementedError

    def tile(self, a: Any, b: Any, dtype: Any = np.float64) -> np.ndarray:
        out = np.ones((len(a), len(b)), dtype)
        self.multiply(a, b, out)
        return out

    def __call__(self, x: Any, y: Any = None) -> np.ndarray:
        """The matrix k(x_i, y_j), (m, n), for looking at; y = None means x."""
        x, y = (table_of(A, name) if self.takes == "vectors" and A is not None else A for A, name in ((x, "x"), (y, "y")))
        a = self.points(x)
        return self.tile(a, a if y is None else self.points(y))

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other)

    def __mul__(self, other: Kernel) -> Kernel:
        return Product(self, other)


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

    def rows(self, x: Any) -> Any:
        if self.takes == "vectors":
            return x
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        return PairPoints(self.first.rows(x.first), self.second.rows(x.second))

    def training(self, x: Any) -> PairPoints:
        return PairPoints(self.first.training(x), self.second.training(x))

    def queries(self, x: Any, n_train: int) -> PairPoints:
        return PairPoints(self.first.queries(x, n_train), self.second.queries(x, n_train))

    def points(self, x: Any, dtype: Any = np.float64) -> PairPoints:
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        return PairPoints(self.first.points(x.first, dtype), self.second.points(x.second, dtype))

    def vectors(self, x: Any) -> np.ndarray:
        return self.first.vectors(x.first) if isinstance(x, PairPoints) else x

    def input_arrays(self, x: Any) -> list[np.ndarray]:
        if not isinstance(x, PairPoints):
            return super().input_arrays(x)
        return self.first.input_arrays(x.first) + self.second.input_arrays(x.second)

    def single(self, x: Any) -> bool:
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        return self.first.single(x.first) and self.second.single(x.second)

    @property
    def radial(self) -> bool:
        return self.first.radial and self.second.radial

    @property
    def smoothness(self) -> float:  # type: ignore[override]
        return min(self.first.smoothness, self.second.smoothness)

    def lengths(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        (low, high), (other_low, other_high) = self.first.lengths(p), self.second.lengths(p)
        return np.minimum(low, other_low), np.maximum(high, other_high)


@dataclass(frozen=True)
class Sum(Pair):
    """k1 + k2."""

    def spectrum(self, p: int, count: int, random: np.random.RandomState) -> list[tuple[np.ndarray, float]]:
        return self.first.spectrum(p, count, random) + self.second.spectrum(p, count, random)

    def density(self, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (s, slopes), (other, other_slopes) = self.first.density(omega), self.second.density(omega)
        return s + other, np.hstack([slopes, other_slopes])

    @property
    def has_density(self) -> bool:
        return self.first.has_density and self.second.has_density

    def diagonal(self, points: PairPoints) -> np.ndarray:
        return self.first.diagonal(points.first) + self.second.diagonal(points.second)

    def diagonal_slopes(self, points: PairPoints) -> np.ndarray:
        return np.hstack([self.first.diagonal_slopes(points.first), self.second.diagonal_slopes(points.second)])

    def pull(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        return self.first.pull(a.first, b.first, G.copy()) + self.second.pull(a.second, b.second, G)

    def multiply(self, a: PairPoints, b: PairPoints, out: np.ndarray) -> None:
        K = self.first.tile(a.first, b.first, out.dtype)
        K += self.second.tile(a.second, b.second, out.dtype)
        out *= K

    def contract(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        first = self.first.contract(a.first, b.first, G.copy())
        return np.hstack([first, self.second.contract(a.second, b.second, G)])

    def at(self, squared: np.ndarray, out: np.ndarray) -> None:
        k, other = np.ones_like(out), np.ones_like(out)
        self.first.at(squared, k)
        self.second.at(squared, other)
        out *= k + other

    def slopes_at(self, squared: np.ndarray, G: np.ndarray) -> np.ndarray:
        return np.vstack([self.first.slopes_at(squared, G), self.second.slopes_at(squared, G)])


@dataclass(frozen=True)
class Product(Pair):
    """k1 k2."""

    def spectrum(self, p: int, count: int, random: np.random.RandomState) -> list[tuple[np.ndarray, float]]:
        """cos(a) cos(b) = (cos(a + b) + cos(a - b)) / 2, and spectra are symmetric: frequencies add."""
        first = self.first.spectrum(p, count, random)
        return [(a + b, v * w) for a, v in first for b, w in self.second.spectrum(p, count, random)]

    def diagonal(self, points: PairPoints) -> np.ndarray:
        return self.first.diagonal(points.first) * self.second.diagonal(points.second)

    def diagonal_slopes(self, points: PairPoints) -> np.ndarray:
        first, second = points.first, points.second
        return np.hstack(
            [
                self.first.diagonal_slopes(first) * self.second.diagonal(second)[:, None],
                self.second.diagonal_slopes(second) * self.first.diagonal(first)[:, None],
            ]
        )

    def multiply(self, a: PairPoints, b: PairPoints, out: np.ndarray) -> None:
        self.first.multiply(a.first, b.first, out)
        self.second.multiply(a.second, b.second, out)

    def contract(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        first, second = self._weighed(a, b, G)
        return np.hstack([self.first.contract(a.first, b.first, first), self.second.contract(a.second, b.second, second)])

    def pull(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        first, second = self._weighed(a, b, G)
        return self.first.pull(a.first, b.first, first) + self.second.pull(a.second, b.second, second)

    def _weighed(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """G k2 and G k1, by which the derivatives of k1 and of k2 count."""
        first, second = G.copy(), G
        self.second.multiply(a.second, b.second, first)
        self.first.multiply(a.first, b.first, second)
        return first, second

    def at(self, squared: np.ndarray, out: np.ndarray) -> None:
        self.first.at(squared, out)
        self.second.at(squared, out)

    def slopes_at(self, squared: np.ndarray, G: np.ndarray) -> np.ndarray:
        first, second = G.copy(), G.copy()
        self.second.at(squared, first)
        self.first.at(squared, second)
        return np.vstack([self.first.slopes_at(squared, first), self.second.slopes_at(squared, second)])
