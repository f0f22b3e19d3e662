"""x in one to three dimensions: how many functions on a box, or points of a grid, it takes, and whether they suit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .box import DIMENSIONS, REACH, Extent, counts_for, cut, functions_in, margin, must_be_low, sharpness
from .errors import InputError, SolverUnavailable
from .features import DenseFeatures
from .grid import EDGE, PLANNED_SHARE_OF_NOISE, left_by, per_length, points_for
from .params import Params

BASIS_ROWS = 5_000  # from which `auto` takes a basis for a smooth k of few columns: as exact, and sooner done
BASIS_MOST = 5_000  # functions, of all weights, up to which `auto` takes a basis: M^3 flops an evaluation are seconds
BASIS_LARGEST = 12_000  # functions that are ever built: 1.7e12 flops an evaluation
ROUGHEST = 1.5  # smoothness nu of the roughest kernel that a grid is laid for: 145 points per length scale at nu = 1/2
BASIS_LEFT = 0.02  # share of k that functions may leave out for `auto` to take them


@dataclass(frozen=True)
class Low:
    """What decides whether functions on a box, or a grid, will do for x in few dimensions: whether k has a spectral density,
    how smooth it is and, once known, the half-widths of x over the shortest length scales, and the longest over these."""

    density: bool = True
    smoothness: float = float("inf")
    spans: tuple[float, ...] | None = None
    spread: float = 1.0
    sharp: float = 1.0

    @classmethod
    def of(cls, kernel: Any, some: Any, found: tuple[Params, Extent] | None = None) -> Low | None:
        """Of a kernel and rows (some of them), with spans where parameters and the extent of all rows are known. None where X
        or Z is sparse, or where k is not of vectors."""
        if kernel.takes != "vectors" or not isinstance(some.Z, DenseFeatures) or not isinstance(some.x, np.ndarray):
            return None
        if found is None:
            return cls(kernel.has_density, kernel.smoothness)
        params, extent = found
        low, high = kernel.lengths(extent.half.size)
        spans = tuple((extent.half / low).tolist())
        sharp = sharpness(params, some.Z.shape[1], extent.half.size)
        return cls(kernel.has_density, kernel.smoothness, spans, float((high / low).max()), sharp)

    def counts(self, most: int) -> np.ndarray:
        """Functions a dimension, `most` in all if that will do."""
        assert self.spans is not None
        half = np.array(self.spans) + margin(self.smoothness, self.sharp) * self.spread * REACH
        return counts_for(half, np.full(half.size, 1.0 / REACH), self.smoothness, self.sharp, most)

    def per_length(self, share: float = 1.0) -> float:
        """Grid points per length scale, as many as roughness and noise ask for, or a share of that."""
        assert self.spans is not None
        return share * per_length(self.sharp, self.smoothness, len(self.spans))

    def points(self, share: float = 1.0) -> np.ndarray:
        """Grid points a dimension."""
        return points_for(2.0 * np.array(self.spans), self.per_length(share)) + 2 * EDGE

    def resolved(self, share: float) -> bool:
        """Whether a grid with a share of the points still resolves the kernel beside the noise."""
        assert self.spans is not None
        return left_by(self.per_length(share), self.sharp, self.smoothness, len(self.spans)) <= PLANNED_SHARE_OF_NOISE

    def left(self, most: int) -> float:
        """Share of k that this many functions leave out, about; 1 where they are too few."""
        counts, full = self.counts(most), self.counts(10**9)
        if functions_in(counts) > most:
            return 1.0
        square = (cut(self.smoothness, self.sharp) * float((counts / full).min())) ** 2
        nu = self.smoothness
        return float(np.exp(-0.5 * square) if np.isinf(nu) else (1.0 + square / (2.0 * nu)) ** -nu)


def must_suit(p: int, solver: str, low: Low | None, dtype: str) -> None:
    must_be_low(p, solver)
    if low is None:
        raise SolverUnavailable(f"solver={solver!r} needs a dense X and Z, and a kernel of vectors: use 'cg' or 'inducing'")
    if solver == "basis" and not low.density:
        raise SolverUnavailable(
            "this kernel has no spectral density in closed form: use solver='grid', 'exact', 'cg' or 'inducing'"
        )
    if solver == "grid" and low.smoothness < ROUGHEST:
        raise SolverUnavailable(
            "solver='grid' interpolates between points, and a Matern 1/2 is too rough for that: use solver='exact', 'cg', "
            "'basis' or 'inducing', or a smoother kernel"
        )
    if dtype == "float32":
        raise InputError(f'dtype="float32": solver={solver!r} computes in float64; give dtype="auto"')


def suits_a_basis(n: int, p: int, d: int, low: Low | None, stream: bool, count: int | None, exact_rows: int) -> bool:
    """Whether `auto` takes a basis: few columns, many rows, and length scales (once known) that few functions resolve."""
    if low is None or not low.density or p > DIMENSIONS:
        return False
    if not stream and n <= (BASIS_ROWS if np.isinf(low.smoothness) else exact_rows):
        return False
    if low.spans is None or count is not None:
        return d * 9**p <= 2 * BASIS_MOST
    return low.left(BASIS_MOST // d) <= BASIS_LEFT


def basis_bytes(n: int, p: int, d: int, counts: np.ndarray, nodes: int, n_jobs: int, stream: bool) -> int:
    """Rows unless they stream, M^2 matrices, where the products of functions are, sums (two a worker), blocks in work."""
    q, cosines = functions_in(counts), float(np.prod(2 * counts + 1))
    held = 8 * (p + 2 * d + 4) * (0 if stream else n)
    sums = nodes * (d * (d + 1) / 2 * cosines + d * q)
    working = n_jobs * (3 * q * q + 256 * (cosines + q + nodes * d * d))
    return held + int(8 * (2 * (q * d) ** 2 + 2**p * q * q / 2 + (2 * n_jobs + 3) * sums + working))


def grid_bytes(n: int, p: int, d: int, points: np.ndarray, rank: int, shared: int, n_jobs: int) -> int:
    """Interpolation both ways, transforms of 8 columns a weight, what the grid knows of k, preconditioner, variances."""
    padded = float(np.prod(2.0 * points))
    interpolation = 2 * 16 * n * 4**p
    transforms = padded * (8 * d * 5 + 6 * (p + 6)) * 8
    rows = 8 * n * (3 * 8 * d + 8 * 32 + 3 * rank + 2 * shared + 4 * (p + 2) + 3 * d)
    return int(interpolation + transforms + rows + n_jobs * 2**25)
