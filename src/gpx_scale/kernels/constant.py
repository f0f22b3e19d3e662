"""The constant kernel k(x, x') = 1, whose functions are the same number everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compiled import dense as dense_loops
from ..runtime.state import stored
from .kernel import Kernel, Prepared, Profile


@dataclass(frozen=True)
class ConstantPoints:
    """The number of rows, and the dtype of kernel values: nothing else of x matters."""

    count: int
    dtype: Any

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: slice | np.ndarray) -> ConstantPoints:
        some = range(self.count)[rows] if isinstance(rows, slice) else rows
        if isinstance(some, np.ndarray) and some.dtype == bool:
            return ConstantPoints(int(some.sum()), self.dtype)
        return ConstantPoints(len(some), self.dtype)


@stored
@dataclass(frozen=True)
class Constant(Kernel):
    """The kernel k(x, x') = 1 of a weight that is constant; it has no parameters.

    It takes rows of any kind.
    """

    input_kind = "vectors"
    is_constant = True

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return ()

    @property
    def theta(self) -> np.ndarray:
        return np.empty(0)

    def with_theta(self, theta: np.ndarray) -> Constant:
        return self

    def as_dict(self) -> dict[str, Any]:
        return {}

    def prepare(self, x: Any, dtype: Any = np.float64) -> Prepared:
        return ConstantPoints(len(x), dtype)

    def float32_is_safe(self, x: Any) -> bool:
        return True

    def sample_frequencies(
        self, p: int, count: int, random: np.random.RandomState
    ) -> list[tuple[np.ndarray, float]]:
        """Return the frequency 0, of which one is enough."""
        return [(np.zeros((1, p)), 1.0)]

    def diagonal(self, points: ConstantPoints) -> np.ndarray:
        return np.ones(len(points))

    def diagonal_gradient(self, points: ConstantPoints) -> np.ndarray:
        return np.empty((len(points), 0))

    def profile(self, prepared: ConstantPoints) -> Profile:
        # The points have no columns, so that s = 0 for every pair.
        zeros = np.zeros((len(prepared), 2), prepared.dtype)
        real = zeros.dtype.type
        none = np.empty((len(prepared), 0), prepared.dtype)
        return Profile(dense_loops.RBF, real(1), real(1), real(0), False, zeros, zeros, none)

    def gradient_of_sums(self, sums: np.ndarray) -> np.ndarray:
        return sums[:0]

    def multiply(self, a: ConstantPoints, b: ConstantPoints, out: np.ndarray) -> None:
        """Leave `out` as it is."""

    def contract_gradient(self, a: ConstantPoints, b: ConstantPoints, G: np.ndarray) -> np.ndarray:
        return np.empty((len(a), 0))
