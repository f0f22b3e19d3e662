"""The contract of all kernels, and sums and products of kernels."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from ..data.checks import must_be_features, table_of
from ..data.features import DenseFeatures, SparseFeatures
from ..data.inputs import Preprocessor
from ..errors import InputError, SolverUnavailable
from ..runtime.state import must, stored


class Sliceable(Protocol):
    """Rows of x that can be sliced: an array, sparse features, or a class of a kernel's own."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | np.ndarray, /) -> Self: ...


class Prepared(Sliceable, Protocol):
    """Rows of x as `Kernel.prepare` returns them: kernel values are computed from these.

    Each kernel has a class of its own for them.
    """


# Rows that `prepare` of the same kernel returned. The type is Any so that each kernel can name its
# own class in its methods; no kernel is ever given the prepared rows of another one.
OwnPrepared: TypeAlias = Any


@dataclass(frozen=True)
class Profile:
    """A stationary kernel at dense points, as the loops of `compiled.kernel_tiles` take it.

    k(x, x') = scale f(s), where f is the profile of a `family` with its `shape`. The product of
    `left` and `right`, (n, p + 2) each, is -s; pairs with s < near are computed from differences of
    `points` (n, p), which are scaled so that s = |x - x'|^2. If `by_column`, derivatives are taken
    by the length scale of every column.
    """

    family: int
    shape: float | np.floating[Any]
    scale: float | np.floating[Any]
    near: float | np.floating[Any]
    by_column: bool
    left: np.ndarray
    right: np.ndarray
    points: np.ndarray


class RadialProfile(NamedTuple):
    """A stationary kernel of one distance, as the loops of `compiled.pair_kernels` take it.

    k(x, x') = scale f(rate |x - x'|^2), where f is the profile of a `family` with its `shape`.
    """

    family: int
    shape: float | np.floating[Any]
    scale: float | np.floating[Any]
    rate: float


class Kernel(abc.ABC):
    """A kernel k(x, x'), the base class of all kernels.

    Kernels are immutable. They are added with ``+`` and multiplied with ``*``, and calling one
    returns a matrix of its values. The other methods are called by solvers.

    Attributes
    ----------
    input_kind : str
        The form of X that the kernel is defined on: "vectors", "gram" (rows of a Gram matrix) or
        "objects".

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.kernels import RBF
    >>> kernel = RBF(theta1=2.0, theta2=1.0)
    >>> kernel.input_kind
    'vectors'
    >>> kernel(np.zeros((3, 2)), np.zeros((4, 2))).shape
    (3, 4)
    >>> kernel(np.zeros((1, 2))).tolist()
    [[2.0]]
    """

    input_kind: ClassVar[str]
    # The smoothness nu of a Matern kernel; infinite if functions can be differentiated infinitely
    # often.
    smoothness: ClassVar[float] = float("inf")
    # Whether k(x, x') is 1 for all x, so that functions are the same number everywhere.
    is_constant: ClassVar[bool] = False

    @property
    def components(self) -> tuple[Kernel, ...]:
        """Return the kernels that this one combines, none for most."""
        return ()

    @property
    @abc.abstractmethod
    def parameter_kinds(self) -> tuple[str, ...]:
        """Return the kind of each entry of `theta`, a key of `model.hyperparameters.PRIOR_SD`."""

    @property
    @abc.abstractmethod
    def theta(self) -> np.ndarray:
        """Return the logarithms of the parameters, (t,)."""

    @abc.abstractmethod
    def with_theta(self, theta: np.ndarray) -> Kernel:
        """Return this kernel with other parameters;  (t,)."""

    @abc.abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""

    def resolved(self, x: Any, ard: bool = False) -> Kernel:
        """Return this kernel with theta2="median" replaced by a number, computed from x.

        If `ard`, there is one number for each column of x.
        """
        return self

    def without_columns(self, columns: Sequence[int]) -> Kernel:
        """Return this kernel as one that does not read some columns of x, if it has ARD."""
        return self

    def of_columns(self, columns: Sequence[int], p: int) -> Kernel:
        """Return this kernel as one that reads only some of the p columns of x."""
        raise SolverUnavailable(
            f"{type(self).__name__} does not read columns of X. Give a kernel of vectors."
        )

    def sliceable(self, x: Any) -> Sliceable:
        """Return x in a form that `prepare` takes and that can be sliced by rows."""
        rows: Sliceable = x
        return rows

    def training_input(self, x: Any) -> Sliceable:
        """Return the training x in a form that `prepare` takes and that can be sliced by rows.

        It is called once per fit, and may compute whatever does not depend on parameters.
        """
        return self.sliceable(x)

    def vectors_of(self, x: Any) -> Any:
        """Return the vectors that `training_input` was made of, if the kernel takes vectors."""
        return x

    def query_input(self, x: Any, n_train: int) -> Sliceable:
        """Return the x of queries in a form that `prepare` takes and that can be sliced by rows."""
        rows: Sliceable = x
        return rows

    @abc.abstractmethod
    def prepare(self, x: Any, dtype: Any = np.float64) -> Prepared:
        """Return what kernel values of the rows of x are computed from, at these parameters.

        O(n p). The result can be sliced by rows.
        """

    @abc.abstractmethod
    def diagonal(self, points: OwnPrepared) -> np.ndarray:
        """Return k(x_i, x_i), analytically and not from products of rows;  (n,)."""

    @abc.abstractmethod
    def diagonal_gradient(self, points: OwnPrepared) -> np.ndarray:
        """Return dk(x_i, x_i)/dtheta;  (n, t)."""

    def vectors(self, x: Any) -> np.ndarray:
        """Return the rows of x themselves, (n, p).

        x is as `training_input`, `sliceable` or `query_input` returned it. If X is sparse, the rows
        are `SparseFeatures`, which the declared type leaves out: most callers take a dense X only.
        """
        if self.input_kind != "vectors":
            raise SolverUnavailable(
                f"{type(self).__name__} has no spectrum to draw functions from. "
                "Use solver='exact' to draw samples."
            )
        rows: np.ndarray = x
        return rows

    def input_arrays(self, x: Any) -> list[np.ndarray]:
        """Return arrays by which a checkpoint recognises x.

        x is as `sliceable` or `training_input` returned it.
        """
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
        """Return whether tiles of x may be computed in float32.

        They may if squared distances lose no digits beyond those that float32 does not have.
        """
        return False

    def profile(self, prepared: OwnPrepared) -> Profile | None:
        """Return prepared rows as compiled loops over tiles take them.

        It is None if the kernel has no compiled form for such rows.
        """
        return None

    def gradient_of_sums(self, sums: np.ndarray) -> np.ndarray:
        """Return derivatives by `theta` from sums of loops that contract with a profile.

        (3 + p, ...) -> (t, ...). Only kernels with a `profile` have them.
        """
        raise SolverUnavailable(f"{type(self).__name__} has no compiled form.")

    def sample_frequencies(
        self, p: int, count: int, random: np.random.RandomState
    ) -> list[tuple[np.ndarray, float]]:
        """Return frequencies drawn from the kernel's spectrum, for random Fourier features.

        They come as a list of (omega, v) with draws omega (count, p), such that k(x, x') is the sum
        of v E[cos(omega.(x - x'))] over the list.
        """
        raise SolverUnavailable(
            f"{type(self).__name__} has no spectrum to draw functions from. "
            "Use solver='exact' to draw samples."
        )

    def length_scale_range(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the shortest and the longest length scale in each column of x;  (p,), (p,)."""
        raise SolverUnavailable(
            f"{type(self).__name__} has no length scales. "
            "Use solver='exact', 'cg', 'neighbors' or 'inducing'."
        )

    @property
    def has_spectral_density(self) -> bool:
        """Return whether the spectral density is known in closed form."""
        return False

    def spectral_density(self, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the spectral density and its derivatives by theta;  (q, p) -> (q,), (q, t)."""
        raise SolverUnavailable(
            f"{type(self).__name__} has no spectral density in closed form. "
            "Use solver='grid', 'exact', 'cg', 'neighbors' or 'inducing'."
        )

    @abc.abstractmethod
    def multiply(self, a: OwnPrepared, b: OwnPrepared, out: np.ndarray) -> None:
        """Multiply `out` by k(a_i, b_j) in place;  (len(a), len(b))."""

    @abc.abstractmethod
    def contract_gradient(self, a: OwnPrepared, b: OwnPrepared, G: np.ndarray) -> np.ndarray:
        """Return sum_j G_ij dk(a_i, b_j)/dtheta for each row i;  (len(a), len(b)) -> (len(a), t).

        G is overwritten.
        """

    def contract_input_gradient(self, a: OwnPrepared, b: OwnPrepared, G: np.ndarray) -> np.ndarray:
        """Return sum_j G_ij dk(a_i, b_j)/dx_i for each row i;  (len(a), len(b)) -> (len(a), p).

        G is overwritten.
        """
        raise SolverUnavailable(
            f"{type(self).__name__} has no derivative by x. Give optimize_inducing=False."
        )

    @property
    def is_radial(self) -> bool:
        """Return whether k(x, x') is a function of |x - x'|^2 alone.

        If so, `multiply_at` and `gradient_at` compute it from squared distances of pairs.
        """
        return False

    def radial_profile(self, dtype: Any) -> RadialProfile | None:
        """Return the kernel as compiled loops over pairs take it, None if it has no such form."""
        return None

    def multiply_at(self, squared: np.ndarray, out: np.ndarray) -> None:
        """Multiply `out` by k at squared distances in place, in the dtype of `out`;  (pairs,)."""
        raise self._no_function_of_distance("multiply_at")

    def gradient_at(self, squared: np.ndarray, G: np.ndarray) -> np.ndarray:
        """Return G dk/dtheta at squared distances;  (pairs,), (pairs,) -> (t, pairs)."""
        raise self._no_function_of_distance("gradient_at")

    def _no_function_of_distance(self, method: str) -> SolverUnavailable:
        """Return the error of a kernel without a method that radial kernels have."""
        return SolverUnavailable(
            f"{type(self).__name__} does not compute k from squared distances. Define "
            f"{method}, or let is_radial return False."
        )

    def tile(self, a: OwnPrepared, b: OwnPrepared, dtype: Any = np.float64) -> np.ndarray:
        """Return k(a_i, b_j) of prepared rows;  (len(a), len(b))."""
        out = np.ones((len(a), len(b)), dtype)
        self.multiply(a, b, out)
        return out

    def __call__(self, x: Any, y: Any = None) -> np.ndarray:
        """Return the matrix k(x_i, y_j), (m, n); y = None stands for x."""
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
    """Rows of x in the forms of two kernels, which are sliced together."""

    first: Any
    second: Any

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: slice | np.ndarray) -> PairPoints:
        return PairPoints(self.first[rows], self.second[rows])


@dataclass(frozen=True)
class Pair(Kernel):
    """A combination of two kernels on the same x.

    The parameters of the first come before those of the second; their names are k1.* and k2.*.
    """

    first: Kernel
    second: Kernel

    def __post_init__(self) -> None:
        if not isinstance(self.first, Kernel) or not isinstance(self.second, Kernel):
            raise InputError(
                f"Kernels can only be combined with kernels, not {self.first!r} with "
                f"{self.second!r}. Use objects of gpx_scale.kernels on both sides."
            )
        if self.first.input_kind != self.second.input_kind:
            raise InputError(
                f"{self.first!r} takes {self.first.input_kind}, {self.second!r} takes "
                f"{self.second.input_kind}. Combine kernels that take the same kind of X."
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

    def without_columns(self, columns: Sequence[int]) -> Kernel:
        first, second = (one.without_columns(columns) for one in self.components)
        return replace(self, first=first, second=second)

    def of_columns(self, columns: Sequence[int], p: int) -> Kernel:
        first, second = (one.of_columns(columns, p) for one in self.components)
        return replace(self, first=first, second=second)

    def sliceable(self, x: Any) -> Sliceable:
        if self.input_kind == "vectors":
            return super().sliceable(x)
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        return PairPoints(self.first.sliceable(x.first), self.second.sliceable(x.second))

    def training_input(self, x: Any) -> PairPoints:
        return PairPoints(self.first.training_input(x), self.second.training_input(x))

    def vectors_of(self, x: Any) -> Any:
        return self.first.vectors_of(x.first) if isinstance(x, PairPoints) else x

    def query_input(self, x: Any, n_train: int) -> PairPoints:
        return PairPoints(self.first.query_input(x, n_train), self.second.query_input(x, n_train))

    def prepare(self, x: Any, dtype: Any = np.float64) -> PairPoints:
        x = x if isinstance(x, PairPoints) else PairPoints(x, x)
        return PairPoints(self.first.prepare(x.first, dtype), self.second.prepare(x.second, dtype))

    def vectors(self, x: Any) -> np.ndarray:
        rows: np.ndarray = self.first.vectors(x.first) if isinstance(x, PairPoints) else x
        return rows

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
        low, high = self.first.length_scale_range(p)
        other_low, other_high = self.second.length_scale_range(p)
        return np.minimum(low, other_low), np.maximum(high, other_high)


@stored
@dataclass(frozen=True)
class Sum(Pair):
    """The sum k1(x, x') + k2(x, x') of two kernels, which ``k1 + k2`` returns.

    Parameters
    ----------
    first : Kernel
        The kernel k1. The names of its parameters begin with "k1.".
    second : Kernel
        The kernel k2, which takes the same kind of X. The names of its parameters begin with "k2.".

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.kernels import RBF, Matern32, Sum
    >>> kernel = Sum(RBF(theta1=2.0, theta2=3.0), Matern32(theta1=0.5, theta2=1.0))
    >>> kernel(np.zeros((1, 2))).tolist()
    [[2.5]]
    >>> kernel == RBF(2.0, 3.0) + Matern32(0.5, 1.0)
    True
    """

    def sample_frequencies(
        self, p: int, count: int, random: np.random.RandomState
    ) -> list[tuple[np.ndarray, float]]:
        first = self.first.sample_frequencies(p, count, random)
        return first + self.second.sample_frequencies(p, count, random)

    def spectral_density(self, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        s, gradient = self.first.spectral_density(omega)
        other_s, other_gradient = self.second.spectral_density(omega)
        return s + other_s, np.hstack([gradient, other_gradient])

    @property
    def has_spectral_density(self) -> bool:
        return self.first.has_spectral_density and self.second.has_spectral_density

    def diagonal(self, points: PairPoints) -> np.ndarray:
        first, second = self.first.diagonal(points.first), self.second.diagonal(points.second)
        total: np.ndarray = first + second
        return total

    def diagonal_gradient(self, points: PairPoints) -> np.ndarray:
        return np.hstack(
            [
                self.first.diagonal_gradient(points.first),
                self.second.diagonal_gradient(points.second),
            ]
        )

    def contract_input_gradient(self, a: PairPoints, b: PairPoints, G: np.ndarray) -> np.ndarray:
        gradient = self.first.contract_input_gradient(a.first, b.first, G.copy())
        gradient += self.second.contract_input_gradient(a.second, b.second, G)
        return gradient

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
    """The product k1(x, x') k2(x, x') of two kernels, which ``k1 * k2`` returns.

    Parameters
    ----------
    first : Kernel
        The kernel k1. The names of its parameters begin with "k1.".
    second : Kernel
        The kernel k2, which takes the same kind of X. The names of its parameters begin with "k2.".

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.kernels import RBF, Matern32, Product
    >>> kernel = Product(RBF(theta1=2.0, theta2=3.0), Matern32(theta1=0.5, theta2=1.0))
    >>> kernel(np.zeros((1, 2))).tolist()
    [[1.0]]
    >>> kernel == RBF(2.0, 3.0) * Matern32(0.5, 1.0)
    True
    """

    def sample_frequencies(
        self, p: int, count: int, random: np.random.RandomState
    ) -> list[tuple[np.ndarray, float]]:
        """Return sums of the frequencies of both kernels.

        cos(a) cos(b) = (cos(a + b) + cos(a - b)) / 2, and spectra are symmetric, so a - b has the
        distribution of a + b.
        """
        first = self.first.sample_frequencies(p, count, random)
        return [
            (a + b, v * w)
            for a, v in first
            for b, w in self.second.sample_frequencies(p, count, random)
        ]

    def diagonal(self, points: PairPoints) -> np.ndarray:
        first, second = self.first.diagonal(points.first), self.second.diagonal(points.second)
        product: np.ndarray = first * second
        return product

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
        gradient = self.first.contract_input_gradient(a.first, b.first, first)
        gradient += self.second.contract_input_gradient(a.second, b.second, second)
        return gradient

    def _weighed(
        self, a: PairPoints, b: PairPoints, G: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return G k2 and G k1, the weights of derivatives of k1 and k2; G is overwritten."""
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
