"""The box that x lives in, in one to three dimensions, and the eigenfunctions of the Laplacian on it:

    phi_j(x) = prod_k L_k^-1/2 sin(j_k t_k),   t_k = pi (x_k - centre_k + L_k) / (2 L_k),   omega_jk = pi j_k / (2 L_k)
    k(x, x') ~ sum_j s(omega_j) phi_j(x) phi_j(x'),   s the spectral density of k

They are 0 on the box's edge, and stay 0 outside. L is the half-width of the data and a margin of MARGIN length scales; the
m_k = CUT 2 L_k / (pi l_k) functions of a dimension reach frequencies of CUT / l_k, of which those inside an ellipse are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from ...errors import InputError, SolverUnavailable
from ...model.hyperparameters import Hyperparameters
from ...runtime.state import must, must_be_numbers, stored
from ..low_dimensional import (
    LARGEST_COUNT,
    MAX_X_COLUMNS,
    InputExtent,
    InputResolution,
    signal_to_noise_of,
)

# By smoothness nu, in length scales and in their inverse. The image of a point in the edge, k(2 MARGIN), is what the edge
# costs: 2e-7 for the RBF, 1e-4 for the others, of which CUT leaves out more: 6e-7, and 5e-4, 3e-3 and 7% in two dimensions.
MARGIN = {np.inf: 2.8, 2.5: 3.0, 1.5: 3.5, 0.5: 4.6}
CUT = {np.inf: 5.34, 2.5: 10.0, 1.5: 12.0, 0.5: 15.0}
LEAST_CUT = 3.5  # where functions are too many otherwise: 5% of a Matern 5/2 is left out, 0.2% of an RBF, in two dimensions
REACH = 1.25  # the longest length scale of a box over the one that it was built for, and that over the shortest
BASIS_ROWS = 5_000  # from which `auto` takes a basis for a smooth k of few columns: as exact, and sooner done
BASIS_MOST = 5_000  # functions, of all weights, up to which `auto` takes a basis: M^3 flops an evaluation are seconds
BASIS_LARGEST = 12_000  # functions that are ever built: 1.7e12 flops an evaluation
BASIS_LEFT = 0.02  # share of k that functions may leave out for `auto` to take them
CLOSE = 1.1  # the same where parameters are given: a margin still


@stored
@dataclass(frozen=True)
class LaplacianBasis:
    """Functions for all length scales from `shortest` to `longest`;  (p,) each, counts (p,) of whole numbers."""

    centre: np.ndarray
    half: np.ndarray
    counts: np.ndarray
    shortest: np.ndarray
    longest: np.ndarray

    @classmethod
    def around(
        cls,
        extent: InputExtent,
        hyperparameters: Hyperparameters,
        d: int,
        reach: float,
        most: int,
        count: int | None = None,
    ) -> LaplacianBasis:
        """For the kernel's length scales times and over `reach`, with `most` functions if that will do; `count`: functions a
        dimension, if given."""
        kernel = hyperparameters.kernel
        low, high = kernel.length_scale_range(extent.low.size)
        shortest, longest = low / reach, high * reach
        signal_to_noise = signal_to_noise_of(hyperparameters, d, low.size)
        half = extent.half + margin(kernel.smoothness, signal_to_noise) * longest
        counts = (
            counts_for(half, shortest, kernel.smoothness, signal_to_noise, most)
            if count is None
            else np.full(low.size, count)
        )
        return cls(0.5 * (extent.low + extent.high), half, counts, shortest, longest)

    def covers(self, kernel: Any) -> bool:
        low, high = kernel.length_scale_range(self.half.size)
        return bool(
            (low >= self.shortest * (1 - 1e-9)).all() and (high <= self.longest * (1 + 1e-9)).all()
        )

    def must_fit(self, p: int, frequencies: int) -> None:
        """Raise a ValueError unless this is a box of p columns, whose cosines are so many.

        That number is compared before functions are listed, which a damaged file could make many.
        """
        for name in ("centre", "half", "shortest", "longest"):
            must_be_numbers(getattr(self, name), (p,), f"the {name} of the box")
        whole = isinstance(self.counts, np.ndarray) and self.counts.dtype.kind == "i"
        must(whole and self.counts.shape == (p,), "no functions")
        counts = [int(count) for count in self.counts]
        found = int(np.prod([2 * count + 1 for count in counts], dtype=object))
        must(min(counts) >= 1 and found == frequencies, "functions of another number")
        wide = (self.half > 0).all() and (self.shortest > 0).all()
        must(wide and (self.shortest <= self.longest).all(), "a box without extent")

    @cached_property
    def index(self) -> np.ndarray:
        """j of every function, inside the ellipse of radii m_k;  (q, p)."""
        every = np.stack(
            np.meshgrid(*(np.arange(1, m + 1) for m in self.counts), indexing="ij"), axis=-1
        )
        flat = every.reshape(-1, self.counts.size)
        return flat[
            ((flat / self.counts) ** 2).sum(axis=1) <= max(1.0, (self.counts**-2.0).sum()) + 1e-12
        ]

    @property
    def omega(self) -> np.ndarray:
        """(q, p)."""
        return 0.5 * np.pi * self.index / self.half

    def __len__(self) -> int:
        return len(self.index)

    def must_hold(self, x: np.ndarray) -> None:
        """Rows a length scale or less from the edge are refused."""
        out = (np.abs(x - self.centre) > self.half - self.longest).any(axis=1)
        if out.any():
            raise InputError(
                f"{int(out.sum())} of {len(x)} rows are beyond the box that the basis was built for: fit again with all rows, "
                "or use solver='inducing'"
            )

    def angles(self, x: np.ndarray) -> np.ndarray:
        """t in [0, pi]; 0 outside the box, where every function is 0;  (n, p)."""
        t = 0.5 * np.pi * ((x - self.centre) / self.half + 1.0)
        t[((t < 0.0) | (t > np.pi)).any(axis=1)] = 0.0
        return t

    def functions(self, t: np.ndarray) -> np.ndarray:
        """phi at angles;  (n, p) -> (n, q)."""
        out = np.full((len(t), len(self)), np.prod(self.half) ** -0.5)
        for k, m in enumerate(self.counts):
            out *= np.sin(t[:, k, None] * np.arange(1, m + 1))[:, self.index[:, k] - 1]
        return out

    @property
    def frequencies(self) -> int:
        """Of the cosines that products of two functions are made of."""
        return int(np.prod(2 * self.counts + 1))

    def cosines(self, t: np.ndarray) -> np.ndarray:
        """prod_k cos(a_k t_k), a_k = 0 .. 2 m_k;  (n, p) -> (n, frequencies)."""
        out = np.ones((len(t), 1))
        for k, m in enumerate(self.counts):
            table = np.cos(t[:, k, None] * np.arange(2 * m + 1))
            out = (out[:, :, None] * table[:, None, :]).reshape(len(t), -1)
        return out

    @cached_property
    def products(self) -> list[tuple[float, np.ndarray]]:
        """phi_i phi_j = sum of sign cosine[where[i, j]]: in each dimension (cos (i - j) t - cos (i + j) t) / (2 L);
        [(sign, (q, q))]."""
        found = []
        for turn in product((0, 1), repeat=self.counts.size):
            where = np.zeros((len(self), len(self)), np.int32)
            for k, plus in enumerate(turn):
                j = self.index[:, k].astype(np.int32)
                where *= np.int32(2 * self.counts[k] + 1)
                where += j[:, None] + j if plus else np.abs(j[:, None] - j)
            found.append(((-1.0) ** sum(turn) / float(np.prod(2.0 * self.half)), where))
        return found


def margin(smoothness: float, signal_to_noise: float) -> float:
    """Length scales between data and edge; more where little noise hides what the edge costs."""
    if np.isinf(smoothness):
        return float(np.hypot(MARGIN[smoothness], np.sqrt(0.5 * np.log(signal_to_noise))))
    return MARGIN[smoothness]


def cut(smoothness: float, signal_to_noise: float) -> float:
    """Frequencies, in inverse length scales; more where little noise hides what is left out."""
    return (
        float(np.hypot(CUT[smoothness], np.sqrt(2.0 * np.log(signal_to_noise))))
        if np.isinf(smoothness)
        else CUT[smoothness]
    )


def counts_for(
    half: np.ndarray, shortest: np.ndarray, smoothness: float, signal_to_noise: float, most: int
) -> np.ndarray:
    """m in each dimension: as `cut` asks for or, where that makes more than `most` functions, less, to LEAST_CUT;  (p,)."""
    full = 2.0 / np.pi * half / shortest
    for each in np.linspace(cut(smoothness, signal_to_noise), LEAST_CUT, 20):
        counts = np.ceil(np.minimum(each * full, LARGEST_COUNT)).astype(int)
        if functions_in(counts) <= most:
            break
    return counts


def functions_in(counts: np.ndarray) -> float:
    """About how many the ellipse of these radii holds."""
    return float(np.prod(counts)) * {1: 1.0, 2: np.pi / 4, 3: np.pi / 6}[len(counts)]


def counts_of(low: InputResolution, most: int) -> np.ndarray:
    """Functions a dimension, `most` in all if that will do."""
    assert low.spans is not None
    half = np.array(low.spans) + margin(low.smoothness, low.signal_to_noise) * low.spread * REACH
    return counts_for(
        half, np.full(half.size, 1.0 / REACH), low.smoothness, low.signal_to_noise, most
    )


def left_out(low: InputResolution, most: int) -> float:
    """Share of k that this many functions leave out, about; 1 where they are too few."""
    counts, full = counts_of(low, most), counts_of(low, 10**9)
    if functions_in(counts) > most:
        return 1.0
    square = (cut(low.smoothness, low.signal_to_noise) * float((counts / full).min())) ** 2
    nu = low.smoothness
    return float(np.exp(-0.5 * square) if np.isinf(nu) else (1.0 + square / (2.0 * nu)) ** -nu)


def suits_a_basis(
    n: int,
    p: int,
    d: int,
    low: InputResolution | None,
    stream: bool,
    count: int | None,
    exact_rows: int,
) -> bool:
    """Whether `auto` takes a basis: few columns, many rows, and length scales (once known) that few functions resolve."""
    if low is None or not low.density or p > MAX_X_COLUMNS:
        return False
    if not stream and n <= (BASIS_ROWS if np.isinf(low.smoothness) else exact_rows):
        return False
    if low.spans is None or count is not None:
        return d * 9**p <= 2 * BASIS_MOST
    return left_out(low, BASIS_MOST // d) <= BASIS_LEFT


def must_have_density(low: InputResolution) -> None:
    if not low.density:
        raise SolverUnavailable(
            "this kernel has no spectral density in closed form: use solver='grid', 'exact', 'cg' or 'inducing'"
        )


def basis_bytes(
    n: int, p: int, d: int, counts: np.ndarray, nodes: int, n_jobs: int, stream: bool
) -> int:
    """Rows unless they stream, M^2 matrices, where the products of functions are, sums (two a worker), blocks in work."""
    q, cosines = functions_in(counts), float(np.prod(2 * counts + 1))
    held = 8 * (p + 2 * d + 4) * (0 if stream else n)
    sums = nodes * (d * (d + 1) / 2 * cosines + d * q)
    working = n_jobs * (3 * q * q + 256 * (cosines + q + nodes * d * d))
    return held + int(8 * (2 * (q * d) ** 2 + 2**p * q * q / 2 + (2 * n_jobs + 3) * sums + working))
