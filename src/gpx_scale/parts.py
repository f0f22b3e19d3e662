"""What every solver that conditions on all rows hands to the posterior: E[w*] = k(x*, X) diag(alpha) Z, and the prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .covariance import cross
from .inputs import DenseFeatures, Inputs
from .params import Params
from .runtime import Executor


@dataclass(frozen=True)
class Reductions:
    """What the data take off the prior covariance of each query's g(x*), as asked: of each weight (m, d), the whole
    (m, d, d), along vectors (m,) each."""

    var: np.ndarray | None
    cov: np.ndarray | None
    along: list[np.ndarray]


@dataclass(frozen=True)
class RowParts:
    """Queries come as x, with the executor of the call. `own`: the queries are training rows, these ones, and ask for
    their own w_i = g(x_i) + e_i."""

    data: Inputs
    params: Params
    alpha: np.ndarray

    def __len__(self) -> int:
        return len(self.data)

    def cross(self, x: Any, executor: Executor, own: slice | None = None) -> np.ndarray:
        """Cov of g(x*) (or of the row's own w) with g(x_i) as y_i sees it;  (m, n)."""
        kernel = self.params.kernel
        K = cross(kernel, kernel.points(x), kernel.points(self.data.x), executor)
        if own is not None:
            K[np.arange(len(K)), np.arange(own.start, own.stop)] += self.params.sigma_w**2
        return K

    def prior(self, x: Any) -> np.ndarray:
        """k(x*, x*);  (m,)."""
        kernel = self.params.kernel
        return kernel.diagonal(kernel.points(x))

    def mean(self, K: np.ndarray, executor: Executor) -> np.ndarray:
        """E[w*] = K diag(alpha) Z;  (m, n) -> (m, d)."""
        return self.data.Z.scaled(self.alpha).combine(K, executor)

    def prior_joint(self, x: Any, A: np.ndarray, executor: Executor) -> np.ndarray:
        """k(x_i*, x_j*) <a_i, a_j>;  (m, m)."""
        kernel = self.params.kernel
        points, Z = kernel.points(x), DenseFeatures(A)
        joint = cross(kernel, points, points, executor, (Z, Z))
        joint[np.diag_indices(len(joint))] = kernel.diagonal(points) * Z.squared()
        return joint


def symmetric_part(A: np.ndarray) -> np.ndarray:
    return 0.5 * (A + np.swapaxes(A, -1, -2))
