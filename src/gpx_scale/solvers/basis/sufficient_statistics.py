"""Sums over rows from which the log marginal likelihood of a basis follows at any hyperparameters.

    G(rho) = sum_i h_i (phi_i x z_i)(phi_i x z_i)^T     h_i = 1 / (1 + rho |z_i|^2)
    b(rho) = sum_i h_i y_i (phi_i x z_i)                rho = (sigma_w^2 + remainder) / sigma_y^2

The remainder is the variance of k that the functions leave out. The sums are computed once, in
blocks of rows. A product of two functions is a sum of cosines, so G needs (2 m + 1)^p sums of
h z_l z_l' cos(a.t), and not (q d)^2 numbers per row. As functions of xi = log(1 + rho T), where T
is the largest |z|^2, all sums are analytic within pi of the real axis, whatever |z_i|^2 is. So a
few Chebyshev nodes in xi interpolate them to any accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial import chebyshev

from ...data.features import DenseFeatures
from ...data.inputs import TrainingRows
from ...runtime.parallel import slices
from ...runtime.state import are_finite, must, stored
from .laplacian_basis import LaplacianBasis

# Rows are summed this many at once, so that their cosines stay in the cache.
ROWS_AT_ONCE = 256
# The logarithm of rho may move this far before the sums are computed again.
LOG_RHO_RANGE = 2.0
# If rho T may become smaller than this, the nodes reach down to rho = 0, because one range serves
# all smaller values.
SMALL_RHO_T = 0.3
# The interpolation may change the log marginal likelihood of all rows by this much.
INTERPOLATION_ERROR_NATS = 1e-5
# xi may be outside of the range of the nodes by this share, which is rounding.
XI_ROUNDING = 1e-9


@stored
@dataclass(frozen=True)
class Nodes:
    """Chebyshev nodes in xi = log(1 + rho T), from `low` to `high`; T is `largest`."""

    low: float
    high: float
    largest: float
    count: int

    @classmethod
    def around(cls, rho: float, largest: float, rows: int, spread: float = LOG_RHO_RANGE) -> Nodes:
        """Return nodes for rho multiplied and divided by e^spread.

        If the lower end is small, they reach down to 0. With rho = 0, there is one node at 0.
        """
        largest = max(largest, 1e-300)
        low, high = (float(np.log1p(rho * np.exp(sign * spread) * largest)) for sign in (-1, 1))
        if rho * np.exp(-spread) * largest < SMALL_RHO_T and spread:
            low = 0.0
        return cls(low, high, largest, cls._needed(low, high, rows))

    @staticmethod
    def _needed(low: float, high: float, rows: int) -> int:
        """Return the number of nodes that reach the accuracy, at the rate of convergence."""
        half = 0.5 * (high - low)
        if half == 0.0:
            return 1
        rate = np.pi / half + np.hypot(np.pi / half, 1.0)
        return int(np.ceil(np.log(rows / INTERPOLATION_ERROR_NATS) / np.log(rate))) + 1

    def reaching(self, rho: float, rows: int) -> Nodes:
        """Return nodes for the range of these, and for the one around rho as well."""
        other = Nodes.around(rho, self.largest, rows)
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Nodes(low, high, self.largest, self._needed(low, high, rows))

    def must_be_nodes(self) -> None:
        """Raise a ValueError unless there are nodes in a range of finite numbers."""
        finite = are_finite(self.low, self.high, self.largest)
        must(
            finite and self.low <= self.high and self.largest > 0 < self.count,
            "the nodes of the interpolation are not in a range",
        )

    def covers(self, rho: float) -> bool:
        """Return whether rho is in the range of the nodes."""
        xi = np.log1p(rho * self.largest)
        return bool(self.low * (1 - XI_ROUNDING) <= xi <= self.high * (1 + XI_ROUNDING))

    @property
    def rho(self) -> np.ndarray:
        """Return rho at the nodes;  (count,)."""
        return (
            np.expm1(0.5 * (self.low + self.high) + 0.5 * (self.high - self.low) * self._points)
            / self.largest
        )

    @property
    def _points(self) -> np.ndarray:
        """Return the Chebyshev points in [-1, 1];  (count,)."""
        return chebyshev.chebpts1(self.count)

    @cached_property
    def _lagrange(self) -> np.ndarray:
        """Return the Chebyshev coefficients of the polynomials that are 1 at one node, 0 at others.

        (count, count)
        """
        return np.linalg.inv(chebyshev.chebvander(self._points, self.count - 1))

    def at(self, rho: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of the nodes for a value at rho, and for its derivative by log rho.

        (count,), (count,)
        """
        if self.count == 1:
            return np.ones(1), np.zeros(1)
        half = 0.5 * (self.high - self.low)
        place = np.clip((np.log1p(rho * self.largest) - self.low) / half - 1.0, -1.0, 1.0)
        slope = rho * self.largest / (1.0 + rho * self.largest) / half
        derivative = chebyshev.chebval(place, chebyshev.chebder(self._lagrange))
        return chebyshev.chebval(place, self._lagrange), slope * np.atleast_1d(derivative)


@stored
@dataclass
class BasisStatistics:
    """The sums over rows at each of r nodes, which interpolate to any rho.

    `cosines` (r, pairs, frequencies) are the sums of h z_l z_l' cos(a.t) for each pair of weights
    l <= l', `b` is (r, d, q), and `plain` (r, 4) are the sums of log(1 + rho |z|^2), h y^2, h and
    h^2. `at` returns sums without the first axis.
    """

    rows: int
    cosines: np.ndarray
    b: np.ndarray
    plain: np.ndarray

    def __iadd__(self, other: BasisStatistics) -> BasisStatistics:
        self.rows += other.rows
        self.cosines += other.cosines
        self.b += other.b
        self.plain += other.plain
        return self

    def at(self, weights: np.ndarray) -> BasisStatistics:
        """Return the sums interpolated with these weights of the nodes, without the first axis."""
        parts = (np.tensordot(weights, part, axes=1) for part in (self.cosines, self.b, self.plain))
        return BasisStatistics(self.rows, *parts)


@dataclass(frozen=True)
class BlockBasisStatistics:
    """The task that maps a block of rows to its `BasisStatistics`.

    2 r d^2/2 (2 m + 1)^p flops per row. If `within` is true, rows beyond the box or near its edge
    are refused, because the box was not built for them.
    """

    box: LaplacianBasis
    nodes: Nodes
    within: bool = False

    def __call__(self, block: TrainingRows) -> BasisStatistics:
        assert isinstance(block.Z, DenseFeatures)
        if self.within:
            self.box.must_hold(block.x)
        r, d, rho = self.nodes.count, block.Z.shape[1], self.nodes.rho
        first, second = np.triu_indices(d)
        cosines = np.zeros((r * first.size, self.box.frequencies))
        b, plain = np.zeros((r * d, len(self.box))), np.zeros((r, 4))
        for rows in slices(len(block), ROWS_AT_ONCE):
            z, y, t = block.Z.array[rows], block.y[rows], self.box.angles(block.x[rows])
            scaled = block.Z[rows].squared_norms()[:, None] * rho
            h = 1.0 / (1.0 + scaled)
            pairs = z[:, first] * z[:, second]
            cosines += (h[:, :, None] * pairs[:, None, :]).reshape(len(z), -1).T @ self.box.cosines(
                t
            )
            seen = h * y[:, None]
            b += (seen[:, :, None] * z[:, None, :]).reshape(len(z), -1).T @ self.box.functions(t)
            plain += np.column_stack(
                [np.log1p(scaled).sum(axis=0), y @ seen, h.sum(axis=0), (h**2).sum(axis=0)]
            )
        return BasisStatistics(
            len(block), cosines.reshape(r, first.size, -1), b.reshape(r, d, -1), plain
        )
