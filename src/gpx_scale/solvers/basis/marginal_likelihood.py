"""The log marginal likelihood of a basis at given hyperparameters, with its gradient.

    B = I + sigma_y^-2 S^1/2 G S^1/2      c = sigma_y^-2 S^1/2 b      v = B^-1 c
    log p(y) = -1/2 (n log 2 pi + sum_i log D_i + log|B| + sum_i y_i^2 / D_i - c.v)
    d log p(y) / d log s_j = 1/2 sum_l (v_jl^2 - 1 + (B^-1)_jl,jl)

S is diag(s_j), the spectral density at the frequencies of the functions. G and b are sums over
rows (`sufficient_statistics`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

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

    def covers_lengths(self, hyperparameters: Hyperparameters) -> bool:
        """Return whether the functions serve the length scales of these hyperparameters."""
        return hyperparameters.weight_prior.is_shared and self.box.covers(hyperparameters.kernel)

    def covers(self, hyperparameters: Hyperparameters) -> bool:
        """Return whether functions and nodes serve these hyperparameters."""
        return self.covers_lengths(hyperparameters) and self.nodes.covers(
            self.ratio(hyperparameters).value
        )

    def ratio(self, hyperparameters: Hyperparameters) -> NoiseRatio:
        """Return the noise of the weights, with the remainder, over that of y."""
        return NoiseRatio.of(self.box, self.mean_square, hyperparameters)

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
        return len(self.box) * self.d

    @property
    def rows(self) -> int:
        """Return the number of rows that the sums are over."""
        return self.sums.rows

    @property
    def d(self) -> int:
        """Return the number of weights."""
        return int(self.sums.b.shape[1])

    @property
    def centre(self) -> np.ndarray:
        """Return the centre of the box;  (p,)."""
        return self.box.centre

    def with_rows(self, more: BasisStatistics, node: Nodes) -> Space:
        """Return a space with the sums over more rows, at one node only."""
        weights, _ = self.nodes.at(node.rho[0])
        now = self.sums.at(weights)
        total = BasisStatistics(now.rows, now.cosines[None], now.b[None], now.plain[None])
        total += more
        return replace(self, nodes=node, sums=total)

    def densities(self, hyperparameters: Hyperparameters) -> Densities:
        """Return the prior variances of the coefficients."""
        s, slopes = hyperparameters.kernel.spectral_density(self.box.omega)
        d = self.d

        def collected(along: np.ndarray, relative: np.ndarray) -> np.ndarray:
            along_theta: np.ndarray = along.reshape(d, -1).sum(axis=0) @ relative[: s.size]
            return along_theta

        return Densities(np.tile(s, d), np.tile(relative_slopes(s, slopes), (d, 1)), collected)

    def gram_at(self, weights: np.ndarray) -> GramAt:
        """Return the sums over rows, interpolated with these weights of the nodes."""
        found, q = self.sums.at(weights), len(self.box)

        def block(pair: int) -> Callable[[], np.ndarray]:
            return lambda: gram(self.box, found.cosines[pair])

        made = [(cols, rows, block(pair)) for rows, cols, pair in blocks(self.d, q)]
        return GramAt(found.plain, found.b.ravel(), made)


@dataclass(frozen=True)
class Densities:
    """The prior variances s (M,) of the coefficients, and the derivatives of their logarithms.

    `relative` (M, t) has those by the parameters of the prior but sigma_w. `collected` maps
    derivatives by log s (M,) and `relative` to those by the parameters (t,).
    """

    s: np.ndarray
    relative: np.ndarray
    collected: Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class GramAt:
    """Sums over rows at one rho: the plain ones (4,), b (M,), and G in blocks.

    A block has rows and columns of G, on the diagonal or below it, and a function that makes it.
    """

    plain: np.ndarray
    b: np.ndarray
    blocks: Sequence[tuple[slice, slice, Callable[[], np.ndarray]]]


class FunctionSpace(Protocol):
    """Functions and sums over rows that serve a range of hyperparameters."""

    @property
    def nodes(self) -> Nodes:
        """Return the nodes of the sums."""

    @property
    def rows(self) -> int:
        """Return the number of rows that the sums are over."""

    def ratio(self, hyperparameters: Hyperparameters) -> NoiseRatio:
        """Return the noise of the weights, with the remainder, over that of y."""

    def densities(self, hyperparameters: Hyperparameters) -> Densities:
        """Return the prior variances of the coefficients."""

    def gram_at(self, weights: np.ndarray) -> GramAt:
        """Return the sums over rows, interpolated with these weights of the nodes."""


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

    def __init__(
        self, space: FunctionSpace, hyperparameters: Hyperparameters, session: Session
    ) -> None:
        self.space, self.hyperparameters, self._session = space, hyperparameters, session
        self._ratio = space.ratio(hyperparameters)
        weights, self._slopes = space.nodes.at(self._ratio.value)
        found = space.gram_at(weights)
        self._densities = space.densities(hyperparameters)
        self.root_s = np.sqrt(self._densities.s)
        self._precision = hyperparameters.sigma_y**-2
        self.c = self._precision * self.root_s * found.b
        self.plain = found.plain
        self.B = np.zeros((self.c.size, self.c.size))

        def fill(block: tuple[slice, slice, Callable[[], np.ndarray]]) -> None:
            rows, cols, made = block
            self.B[rows, cols] = self._scale(rows, cols) * made()

        session.executor.map(fill, found.blocks)
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
        n = space.rows
        log_noise = n * np.log(hyperparameters.sigma_y**2) + self.plain[0]
        fitted = self._precision * self.plain[1] - self.c @ self.v
        self.value = float(
            -0.5 * (n * np.log(2 * np.pi) + log_noise + 2.0 * np.log(diagonal).sum() + fitted)
        )

    def _scale(self, rows: slice, cols: slice) -> np.ndarray:
        """Return sigma_y^-2 s^1/2 s^1/2^T of a block."""
        return self._precision * np.outer(self.root_s[rows], self.root_s[cols])

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
        inverse, v, n = self.inverted(), self.v, self.space.rows
        known, relative = 1.0 - inverse.diagonal(), self._densities.relative
        along_s = self._densities.collected(0.5 * (v**2 - known), relative)
        along_y = -0.5 * (n - known.sum() - self._precision * self.plain[1] + self.c @ v + v @ v)
        gradient = (
            np.concatenate([along_s, [0.0, 2.0 * along_y]])
            + self._along_ratio(inverse) * self._ratio.gradient
        )
        moved = v[:, None] * relative
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
        moved = self.space.gram_at(self._slopes)

        def one(block: tuple[slice, slice, Callable[[], np.ndarray]]) -> float:
            rows, cols, made = block
            weighed = inverse[rows, cols] + np.outer(self.v[rows], self.v[cols])
            weighed *= self._scale(rows, cols)
            if rows == cols:
                # An entry below the diagonal counts twice, as only the lower triangle is there.
                weighed *= np.tri(len(weighed), k=-1) + np.tri(len(weighed))
            else:
                weighed *= 2.0
            return float(np.einsum("ij,ij->", weighed, made()))

        traced = sum(self._session.executor.map(one, moved.blocks))
        along_c = self._precision * (self.root_s * moved.b) @ self.v
        return float(
            -0.5 * (moved.plain[0] + traced + self._precision * moved.plain[1] - 2.0 * along_c)
        )


def relative_slopes(s: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return the derivatives of log s from those of s, 0 where s is;  (M,), (M, t) -> (M, t)."""
    s = s[:, None]
    found: np.ndarray = np.divide(slopes, s, out=np.zeros_like(slopes), where=s > 0)
    return found


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
