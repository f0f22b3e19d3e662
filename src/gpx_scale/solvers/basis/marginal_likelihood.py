"""The model of a basis at given parameters: B = I + sigma_y^-2 S^1/2 G S^1/2, its factor, the evidence and its gradient.

c = sigma_y^-2 S^1/2 b      v = B^-1 c      log p(y) = -1/2 (n log 2 pi + sum log D + log|B| + sum y^2/D - c.v)
d/dlog s_j = 1/2 sum_l (v_jl^2 - 1 + (B^-1)_jl,jl)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import get_lapack_funcs

from ...data.inputs import Preprocessor
from ...errors import NotPositiveDefinite, SolverUnavailable
from ...model.hyperparameters import Hyperparameters
from ...runtime.session import Session
from ...runtime.state import must, must_be_numbers, stored
from .laplacian_basis import LaplacianBasis
from .sufficient_statistics import BasisStatistics, Nodes

NOTHING = 1e-9  # of k(0): a remainder that is rounding


@stored
@dataclass(frozen=True)
class Space:
    """Functions and sums for a range of parameters, and what they were made of."""

    box: LaplacianBasis
    mean_square: np.ndarray  # of each function over the rows, (q,)
    nodes: Nodes
    sums: BasisStatistics

    def covers(self, hyperparameters: Hyperparameters) -> bool:
        return self.box.covers(hyperparameters.kernel) and self.nodes.covers(
            Ratio.of(self.box, self.mean_square, hyperparameters).value
        )

    def must_fit(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless functions and sums are those of such columns and weights."""
        box, nodes, sums, d = self.box, self.nodes, self.sums, preprocessor.n_weights
        box.must_fit(preprocessor.n_x, sums.cosines.shape[2] if sums.cosines.ndim == 3 else 0)
        q, r = len(box), nodes.count
        must_be_numbers(self.mean_square, (q,), "the mean squares of the functions")
        nodes.must_be_nodes()
        shape = r, d * (d + 1) // 2, box.frequencies
        must_be_numbers(sums.cosines, shape, "the sums of cosines")
        must_be_numbers(sums.b, (r, d, q), "the sums of y over rows")
        must_be_numbers(sums.plain, (r, 4), "the sums over rows")
        must(sums.rows >= 1, "sums over rows that are none")

    @property
    def size(self) -> int:
        """M."""
        return len(self.box) * self.sums.b.shape[1]


@dataclass(frozen=True)
class Ratio:
    """rho = (sigma_w^2 + left) / sigma_y^2, and the derivatives of its logarithm by theta."""

    value: float
    slopes: np.ndarray

    @classmethod
    def of(
        cls, box: LaplacianBasis, mean_square: np.ndarray, hyperparameters: Hyperparameters
    ) -> Ratio:
        kernel, sigma_w_var = hyperparameters.kernel, hyperparameters.sigma_w**2
        origin = kernel.prepare(np.zeros((1, box.half.size)))
        s, slopes = kernel.spectral_density(box.omega)
        whole = float(kernel.diagonal(origin)[0])
        left = whole - float(mean_square @ s)
        if left < NOTHING * whole:
            left, along = 0.0, np.zeros(slopes.shape[1])
        else:
            along = kernel.diagonal_gradient(origin)[0] - mean_square @ slopes
        noise = sigma_w_var + left
        per = 1.0 / noise if noise else 0.0
        return cls(
            noise / hyperparameters.sigma_y**2,
            np.concatenate([per * along, [2.0 * per * sigma_w_var, -2.0]]),
        )


class BasisLikelihood:
    """The model at given parameters: B and its factor, v, and the value of the evidence;  M^3/3 flops."""

    def __init__(self, space: Space, hyperparameters: Hyperparameters, session: Session) -> None:
        self.space, self.hyperparameters, self._session = space, hyperparameters, session
        self._ratio = Ratio.of(space.box, space.mean_square, hyperparameters)
        weights, self._slopes = space.nodes.at(self._ratio.value)
        found = space.sums.at(weights)
        s, self._density_slopes = hyperparameters.kernel.spectral_density(space.box.omega)
        self.root_s = np.sqrt(s)
        self._s = s
        self._precision = hyperparameters.sigma_y**-2
        d = found.b.shape[0]
        self.c = (self._precision * self.root_s * found.b).ravel()
        self.plain = found.plain
        self.B = np.zeros((self.c.size, self.c.size), order="F")
        scale = self._precision * np.outer(self.root_s, self.root_s)

        def fill(at: tuple[slice, slice, int]) -> None:
            rows, cols, pair = at
            self.B[cols, rows] = scale * gram(space.box, found.cosines[pair])

        session.executor.map(fill, blocks(d, len(s)))
        self.B[np.diag_indices(self.c.size)] += 1.0
        potrf, potrs = get_lapack_funcs(("potrf", "potrs"), (self.B,))
        self.B, info = potrf(self.B, lower=1, overwrite_a=1, clean=0)
        if info:
            raise NotPositiveDefinite(
                f"The basis has no Cholesky factor at sigma_y = {hyperparameters.sigma_y:.1e}, since the data "
                "are fitted beyond rounding. Raise sigma_y."
            )
        self.v = potrs(self.B, self.c, lower=1)[0]
        diagonal = self.B.diagonal()
        self.condition = float((diagonal.max() / diagonal.min()) ** 2)
        n = space.sums.rows
        log_noise = n * np.log(hyperparameters.sigma_y**2) + self.plain[0]
        fitted = self._precision * self.plain[1] - self.c @ self.v
        self.value = float(
            -0.5 * (n * np.log(2 * np.pi) + log_noise + 2.0 * np.log(diagonal).sum() + fitted)
        )

    def inverted(self) -> np.ndarray:
        """B^-1's lower triangle, in B's place;  2 M^3/3 flops, once."""
        (potri,) = get_lapack_funcs(("potri",), (self.B,))
        self.B, _ = potri(self.B, lower=1, overwrite_c=1)
        return self.B

    def gradient_and_information(self) -> tuple[np.ndarray, np.ndarray]:
        """By the logs of the parameters. Of the information: by the kernel's, the average of observed and expected; by the
        noise's, what it would be without functions."""
        inverse, v, n = self.inverted(), self.v, self.space.sums.rows
        known = 1.0 - inverse.diagonal()
        along_s = 0.5 * (v**2 - known).reshape(-1, self.root_s.size).sum(axis=0)
        s = self._s[:, None]
        relative = np.divide(
            self._density_slopes, s, out=np.zeros_like(self._density_slopes), where=s > 0
        )  # d log s
        along_y = -0.5 * (n - known.sum() - self._precision * self.plain[1] + self.c @ v + v @ v)
        gradient = (
            np.concatenate([along_s @ relative, [0.0, 2.0 * along_y]])
            + self._along_ratio(inverse) * self._ratio.slopes
        )
        moved = (v.reshape(-1, self.root_s.size, 1) * relative).reshape(v.size, -1)
        own, squares = self.plain[2:]
        noise = 2.0 * np.array([[n - 2.0 * own + squares, own - squares], [own - squares, squares]])
        t = moved.shape[1]
        information = np.zeros((t + 2, t + 2))
        information[:t, :t] = 0.5 * (moved.T @ moved - moved.T @ _symmetric_product(inverse, moved))
        information[t:, t:] = noise
        return gradient, information

    def _along_ratio(self, inverse: np.ndarray) -> float:
        """By log rho at a given sigma_y: -1/2 (sum (B^-1 + v v^T) o H' + ...), H' = sigma_y^-2 S^1/2 G' S^1/2."""
        if self._ratio.value == 0.0:
            return 0.0
        if self.space.nodes.count == 1:
            raise SolverUnavailable(
                "the gradient of the evidence needs the rows, which this model does not have: fit again"
            )
        moved = self.space.sums.at(self._slopes)
        q, scale = self.root_s.size, self._precision * np.outer(self.root_s, self.root_s)
        below = np.tri(q, k=-1) + np.tri(q)  # an entry below the diagonal stands for two

        def one(at: tuple[slice, slice, int]) -> float:
            rows, cols, pair = at
            weighed = inverse[cols, rows] + np.outer(self.v[cols], self.v[rows])
            weighed *= scale
            weighed *= below if rows == cols else 2.0
            return float(np.einsum("ij,ij->", weighed, gram(self.space.box, moved.cosines[pair])))

        traced = sum(self._session.executor.map(one, blocks(moved.b.shape[0], q)))
        along_c = self._precision * (self.root_s * moved.b).ravel() @ self.v
        return -0.5 * (moved.plain[0] + traced + self._precision * moved.plain[1] - 2.0 * along_c)


def blocks(d: int, q: int) -> list[tuple[slice, slice, int]]:
    """Where the weights l <= l' of each pair are, and the pair's number."""
    pairs = zip(*np.triu_indices(d), strict=True)
    return [
        (slice(l * q, l * q + q), slice(k * q, k * q + q), pair)
        for pair, (l, k) in enumerate(pairs)
    ]


def gram(box: LaplacianBasis, cosines: np.ndarray) -> np.ndarray:
    """sum_i h_i z_il z_il' phi_i phi_i^T from sums of cosines;  (frequencies,) -> (q, q)."""
    total = np.zeros((len(box), len(box)))
    for sign, where in box.products:
        total += sign * cosines.take(where)
    return total


def _symmetric_product(lower: np.ndarray, A: np.ndarray) -> np.ndarray:
    """A symmetric matrix, of which the lower triangle is there, times A."""
    return np.tril(lower) @ A + np.tril(lower, -1).T @ A
