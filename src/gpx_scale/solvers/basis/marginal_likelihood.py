"""The log marginal likelihood of a basis at given hyperparameters, with its gradient.

    B = I + sigma_y^-2 S^1/2 G S^1/2      c = sigma_y^-2 S^1/2 b      v = B^-1 c
    log p(y) = -1/2 (n log 2 pi + sum_i log D_i + log|B| + sum_i y_i^2 / D_i - c.v)
    d log p(y) / d log s_j = 1/2 sum_l (v_jl^2 - 1 + (B^-1)_jl,jl)

S is diag(s_j), the spectral density at the frequencies of the functions. G and b are sums over
rows (`sufficient_statistics`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...data.inputs import Preprocessor
from ...errors import NotPositiveDefinite, SolverUnavailable
from ...linalg.lower_tiles import LowerTiles
from ...model.hyperparameters import Hyperparameters
from ...runtime.session import Session
from ...runtime.state import must, must_be_numbers, stored
from .laplacian_basis import LaplacianBasis
from .sufficient_statistics import BasisStatistics, Nodes

# A remainder below this share of k(x, x) is rounding, and counts as 0.
ROUNDING_SHARE = 1e-9


@stored
@dataclass(frozen=True)
class Space:
    """The functions and sums over rows that serve a range of hyperparameters.

    `mean_square` (q,) is the mean over the rows of the square of each function.
    """

    box: LaplacianBasis
    mean_square: np.ndarray
    nodes: Nodes
    sums: BasisStatistics

    def covers(self, hyperparameters: Hyperparameters) -> bool:
        """Return whether functions and nodes serve these hyperparameters."""
        return self.box.covers(hyperparameters.kernel) and self.nodes.covers(
            NoiseRatio.of(self.box, self.mean_square, hyperparameters).value
        )

    def must_fit(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless functions and sums have the sizes of these inputs."""
        box, nodes, sums, d = self.box, self.nodes, self.sums, preprocessor.n_weights
        box.must_fit(preprocessor.n_x, sums.cosines.shape[2] if sums.cosines.ndim == 3 else 0)
        q, r = len(box), nodes.count
        must_be_numbers(self.mean_square, (q,), "the mean squares of the functions")
        nodes.must_be_nodes()
        shape = r, d * (d + 1) // 2, box.frequencies
        must_be_numbers(sums.cosines, shape, "the sums of cosines")
        must_be_numbers(sums.b, (r, d, q), "the sums of y over rows")
        must_be_numbers(sums.plain, (r, 4), "the sums over rows")
        must(sums.rows >= 1, "the sums are over no rows")

    @property
    def size(self) -> int:
        """Return M, the number of functions of all weights."""
        return len(self.box) * int(self.sums.b.shape[1])


@dataclass(frozen=True)
class NoiseRatio:
    """The ratio rho = (sigma_w^2 + remainder) / sigma_y^2, with the gradient (t,) of its logarithm.

    The gradient is by `theta`, the logarithms of the hyperparameters.
    """

    value: float
    gradient: np.ndarray

    @classmethod
    def of(
        cls, box: LaplacianBasis, mean_square: np.ndarray, hyperparameters: Hyperparameters
    ) -> NoiseRatio:
        """Return the ratio at these hyperparameters."""
        kernel, sigma_w_var = hyperparameters.kernel, hyperparameters.sigma_w**2
        origin = kernel.prepare(np.zeros((1, box.half.size)))
        s, slopes = kernel.spectral_density(box.omega)
        whole = float(kernel.diagonal(origin)[0])
        remainder = whole - float(mean_square @ s)
        if remainder < ROUNDING_SHARE * whole:
            remainder, along = 0.0, np.zeros(slopes.shape[1])
        else:
            along = kernel.diagonal_gradient(origin)[0] - mean_square @ slopes
        noise = sigma_w_var + remainder
        per = 1.0 / noise if noise else 0.0
        return cls(
            noise / hyperparameters.sigma_y**2,
            np.concatenate([per * along, [2.0 * per * sigma_w_var, -2.0]]),
        )


class BasisLikelihood:
    """The log marginal likelihood `value` at given hyperparameters;  M^3/3 flops.

    `B` has the Cholesky factor of B in its lower triangle (until `inverted` replaces it), and `v`
    (M,) are the posterior means of the coefficients. `condition` is a lower bound of the condition
    number of B.
    """

    def __init__(self, space: Space, hyperparameters: Hyperparameters, session: Session) -> None:
        self.space, self.hyperparameters, self._session = space, hyperparameters, session
        self._ratio = NoiseRatio.of(space.box, space.mean_square, hyperparameters)
        weights, self._slopes = space.nodes.at(self._ratio.value)
        found = space.sums.at(weights)
        s, self._density_slopes = hyperparameters.kernel.spectral_density(space.box.omega)
        self.root_s = np.sqrt(s)
        self._s = s
        self._precision = hyperparameters.sigma_y**-2
        d = found.b.shape[0]
        self.c = (self._precision * self.root_s * found.b).ravel()
        self.plain = found.plain
        self.B = np.zeros((self.c.size, self.c.size))
        scale = self._precision * np.outer(self.root_s, self.root_s)

        def fill(at: tuple[slice, slice, int]) -> None:
            rows, cols, pair = at
            self.B[cols, rows] = scale * gram(space.box, found.cosines[pair])

        session.executor.map(fill, blocks(d, len(s)))
        self.B[np.diag_indices(self.c.size)] += 1.0
        self._tiles = LowerTiles.of(self.B, session.executor.n_jobs)
        try:
            self._tiles.factor()
        except np.linalg.LinAlgError:
            raise NotPositiveDefinite(
                f"The basis has no Cholesky factor at sigma_y = {hyperparameters.sigma_y:.1e}, "
                "because the noise is too small beside rounding. Raise sigma_y."
            ) from None
        self.v = self.c.copy()
        self._tiles.solve(self.v[None])
        diagonal = self.B.diagonal()
        self.condition = float((diagonal.max() / diagonal.min()) ** 2)
        n = space.sums.rows
        log_noise = n * np.log(hyperparameters.sigma_y**2) + self.plain[0]
        fitted = self._precision * self.plain[1] - self.c @ self.v
        self.value = float(
            -0.5 * (n * np.log(2 * np.pi) + log_noise + 2.0 * np.log(diagonal).sum() + fitted)
        )

    def inverted(self) -> np.ndarray:
        """Return the lower triangle of B^-1, which replaces the factor;  2 M^3/3 flops.

        It can be called once.
        """
        self._tiles.invert()
        return self.B

    def gradient_and_information(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient by `theta`, and the information matrix;  (t,), (t, t).

        The information of the kernel's parameters is the average of the observed and the expected
        one. That of sigma_w and sigma_y is as if there were no functions, and between the two
        groups it is 0.
        """
        inverse, v, n = self.inverted(), self.v, self.space.sums.rows
        known = 1.0 - inverse.diagonal()
        along_s = 0.5 * (v**2 - known).reshape(-1, self.root_s.size).sum(axis=0)
        s = self._s[:, None]
        # These are the derivatives of log s.
        relative = np.divide(
            self._density_slopes, s, out=np.zeros_like(self._density_slopes), where=s > 0
        )
        along_y = -0.5 * (n - known.sum() - self._precision * self.plain[1] + self.c @ v + v @ v)
        gradient = (
            np.concatenate([along_s @ relative, [0.0, 2.0 * along_y]])
            + self._along_ratio(inverse) * self._ratio.gradient
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
        """Return the derivative by log rho while sigma_y is held.

        -1/2 (sum log(1 + rho |z|^2)' + sum (B^-1 + v v^T) o H' + sigma_y^-2 (sum h y^2)' - 2 c'.v)
        with H' = sigma_y^-2 S^1/2 G' S^1/2, where ' is the derivative by log rho
        """
        if self._ratio.value == 0.0:
            return 0.0
        if self.space.nodes.count == 1:
            raise SolverUnavailable(
                "The gradient of the log marginal likelihood needs the training rows, which this "
                "model does not keep. Fit it again."
            )
        moved = self.space.sums.at(self._slopes)
        q, scale = self.root_s.size, self._precision * np.outer(self.root_s, self.root_s)
        # An entry below the diagonal counts twice, because only the lower triangle is there.
        below = np.tri(q, k=-1) + np.tri(q)

        def one(at: tuple[slice, slice, int]) -> float:
            rows, cols, pair = at
            weighed = inverse[cols, rows] + np.outer(self.v[cols], self.v[rows])
            weighed *= scale
            weighed *= below if rows == cols else 2.0
            return float(np.einsum("ij,ij->", weighed, gram(self.space.box, moved.cosines[pair])))

        traced = sum(self._session.executor.map(one, blocks(moved.b.shape[0], q)))
        along_c = self._precision * (self.root_s * moved.b).ravel() @ self.v
        return float(
            -0.5 * (moved.plain[0] + traced + self._precision * moved.plain[1] - 2.0 * along_c)
        )


def blocks(d: int, q: int) -> list[tuple[slice, slice, int]]:
    """Return, for each pair of weights l <= l', the rows and columns of its block in B.

    The last number is the position of the pair among all pairs.
    """
    pairs = zip(*np.triu_indices(d), strict=True)
    return [
        (slice(l * q, l * q + q), slice(k * q, k * q + q), pair)
        for pair, (l, k) in enumerate(pairs)
    ]


def gram(box: LaplacianBasis, cosines: np.ndarray) -> np.ndarray:
    """Return sum_i h_i z_il z_il' phi_i phi_i^T from sums of cosines;  (frequencies,) -> (q, q)."""
    total = np.zeros((len(box), len(box)))
    for factor, where in box.products:
        total += factor * cosines.take(where)
    return total


def _symmetric_product(lower: np.ndarray, A: np.ndarray) -> np.ndarray:
    """Return a symmetric matrix, given by its lower triangle, times A;  (M, t) -> (M, t)."""
    product: np.ndarray = np.tril(lower) @ A + np.tril(lower, -1).T @ A
    return product
