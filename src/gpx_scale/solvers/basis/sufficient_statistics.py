"""Sums over rows from which the evidence of a basis follows, whatever the parameters: added up once, in blocks of rows.

    G(rho) = sum_i h_i (phi_i x z_i)(phi_i x z_i)^T      b(rho) = sum_i h_i y_i (phi_i x z_i)      h_i = 1 / (1 + rho |z_i|^2)

rho = (sigma_w^2 + what functions leave of k) / sigma_y^2. A product of functions is a sum of cosines, so G needs (2 m + 1)^p
sums of h z_l z_l' cos(a.t), not (q d)^2 numbers a row. As functions of xi = log(1 + rho T), T the largest |z|^2, all of them
are analytic within pi of the real axis, whatever |z_i|^2 is: a few Chebyshev nodes in xi interpolate to any digits.
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

ROWS = 256  # of a block at once: its cosines stay in the cache
SPREAD = 2.0  # the logarithm of rho may move that far from where it starts
SMALL = 0.3  # of rho T: from here down to 0, one range serves all
ACCURACY = 1e-5  # nats of all rows that interpolation may miss


@stored
@dataclass(frozen=True)
class Nodes:
    """Chebyshev nodes in xi = log(1 + rho T), from `low` to `high`."""

    low: float
    high: float
    largest: float
    count: int

    @classmethod
    def around(cls, rho: float, largest: float, rows: int, spread: float = SPREAD) -> Nodes:
        """For rho times and over e^spread, and all below where that is small; rho = 0 stays 0."""
        largest = max(largest, 1e-300)
        low, high = (float(np.log1p(rho * np.exp(sign * spread) * largest)) for sign in (-1, 1))
        if rho * np.exp(-spread) * largest < SMALL and spread:
            low = 0.0
        return cls(low, high, largest, cls._needed(low, high, rows))

    @staticmethod
    def _needed(low: float, high: float, rows: int) -> int:
        half = 0.5 * (high - low)
        if half == 0.0:
            return 1
        rate = np.pi / half + np.hypot(np.pi / half, 1.0)
        return int(np.ceil(np.log(rows / ACCURACY) / np.log(rate))) + 1

    def reaching(self, rho: float, rows: int) -> Nodes:
        """These, and what is around rho."""
        other = Nodes.around(rho, self.largest, rows)
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Nodes(low, high, self.largest, self._needed(low, high, rows))

    def must_be_nodes(self) -> None:
        """Raise a ValueError unless there are nodes in a range of finite numbers."""
        finite = are_finite(self.low, self.high, self.largest)
        must(finite and self.low <= self.high and self.largest > 0 < self.count, "no nodes")

    def covers(self, rho: float) -> bool:
        xi = np.log1p(rho * self.largest)
        return bool(self.low * (1 - 1e-9) <= xi <= self.high * (1 + 1e-9))

    @property
    def rho(self) -> np.ndarray:
        """(count,)."""
        return (
            np.expm1(0.5 * (self.low + self.high) + 0.5 * (self.high - self.low) * self._points)
            / self.largest
        )

    @property
    def _points(self) -> np.ndarray:
        return chebyshev.chebpts1(self.count)

    @cached_property
    def _lagrange(self) -> np.ndarray:
        """Chebyshev coefficients of the polynomials that are 1 at one node, 0 at the others;  (count, count)."""
        return np.linalg.inv(chebyshev.chebvander(self._points, self.count - 1))

    def at(self, rho: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the nodes, for a value at rho and for its derivative by log rho;  (count,), (count,)."""
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
    """At each of r nodes: of cosines, for each pair l <= l' (r, pairs, frequencies); b (r, d, q); and of log(1 + rho |z|^2),
    h y^2, h and h^2 (r, 4). They add up over rows, and interpolate to any rho."""

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
        """Interpolated by these weights of the nodes; without the first axis."""
        parts = (np.tensordot(weights, part, axes=1) for part in (self.cosines, self.b, self.plain))
        return BasisStatistics(self.rows, *parts)


@dataclass(frozen=True)
class AddUp:
    """A block of rows -> its Sums;  2 r d^2/2 (2 m + 1)^p flops a row."""

    box: LaplacianBasis
    nodes: Nodes
    within: bool = False  # refuse rows near the box's edge, which it was not built for

    def __call__(self, block: TrainingRows) -> BasisStatistics:
        assert isinstance(block.Z, DenseFeatures)
        if self.within:
            self.box.must_hold(block.x)
        r, d, rho = self.nodes.count, block.Z.shape[1], self.nodes.rho
        first, second = np.triu_indices(d)
        cosines = np.zeros((r * first.size, self.box.frequencies))
        b, plain = np.zeros((r * d, len(self.box))), np.zeros((r, 4))
        for rows in slices(len(block), ROWS):
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
