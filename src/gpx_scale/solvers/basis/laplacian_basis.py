"""A box around x in one to three dimensions, and the eigenfunctions of the Laplacian on it.

    phi_j(x) = prod_k L_k^-1/2 sin(j_k t_k)       t_k = pi (x_k - centre_k + L_k) / (2 L_k)
    k(x, x') ~ sum_j s(omega_j) phi_j(x) phi_j(x')       omega_jk = pi j_k / (2 L_k)

s is the spectral density of k. The functions are 0 on the edge of the box and are set to 0 outside
of it. The half-width L_k of the box is that of the data plus a margin of some length scales. There
are m_k = 2 c L_k / (pi l_k) functions in dimension k, where l_k is the length scale, and c the
cutoff. They reach the frequency c / l_k. Only those products over dimensions are kept whose
frequencies are inside an ellipse.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from ...errors import InputError, SolverUnavailable
from ...kernels.kernel import Kernel
from ...model.hyperparameters import Hyperparameters
from ...runtime.state import must, must_be_numbers, stored
from ..low_dimensional import (
    LARGEST_COUNT,
    MAX_X_COLUMNS,
    InputExtent,
    InputResolution,
    relative_signal_to_noise_of,
)

# The distance between the data and the edge of the box, in length scales, by the smoothness nu.
# The edge changes k by its value between a point and its mirror image in the edge, which is twice
# that distance away: 2e-7 of an RBF, and 1e-4 of the other kernels.
MARGIN_LENGTH_SCALES = {np.inf: 2.8, 2.5: 3.0, 1.5: 3.5, 0.5: 4.6}
# The highest frequency, in inverse length scales, by the smoothness nu. In two dimensions, the
# frequencies above it are 6e-7 of an RBF, and 5e-4, 3e-3 and 7% of a Matern 5/2, 3/2 and 1/2.
CUTOFF_PER_LENGTH_SCALE = {np.inf: 5.34, 2.5: 10.0, 1.5: 12.0, 0.5: 15.0}
# The cutoff is lowered to this value if there would be too many functions otherwise. In two
# dimensions it leaves out 5% of a Matern 5/2 and 0.2% of an RBF.
LEAST_CUTOFF_PER_LENGTH_SCALE = 3.5
# A box is built for length scales up to this factor longer and shorter than the current ones, so
# that a search can move without building another.
LENGTH_SCALE_FACTOR = 1.25
# This is the factor if the hyperparameters are given. It is above 1 to leave some margin.
FIXED_LENGTH_SCALE_FACTOR = 1.1
# Up to this many functions for all weights together, `auto` takes a basis, because the M^3 flops
# of an evaluation take seconds.
AUTO_MAX_FUNCTIONS = 5_000
# `auto` assumes this many functions for each column of X as long as length scales are not known.
# The value was chosen by hand.
ASSUMED_FUNCTIONS_PER_COLUMN = 9
# More functions than this are never built: an evaluation would take 1.7e12 flops.
MAX_FUNCTIONS = 12_000
# `auto` takes a basis if its functions leave out no more than this share of k, and less of it if
# the noise is small. With Matern 3/2 in one dimension, 0.1% of k left out and 600 rows, means are
# up to 0.4 standard deviations off the exact ones with noise of 0.3, and 1.2 with noise of 0.03.
AUTO_REMAINDER_SHARE = 0.005
# A length scale may be outside of the range of a basis by this share, which is rounding.
LENGTH_SCALE_ROUNDING = 1e-9


@stored
@dataclass(frozen=True)
class LaplacianBasis:
    """The eigenfunctions of a box, which serve all length scales from `shortest` to `longest`.

    `centre` and the half-widths `half` describe the box, and `counts` are the numbers of functions
    m_k of each dimension;  (p,) each.
    """

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
        """Return a basis for the kernel's length scales, multiplied and divided by `reach`.

        It has no more than `most` functions for each weight, unless the least cutoff needs more.
        `count` is the number of functions per dimension, if the user gave it.
        """
        kernel = hyperparameters.kernel
        low, high = kernel.length_scale_range(extent.low.size)
        shortest, longest = low / reach, high * reach
        relative_signal_to_noise = relative_signal_to_noise_of(hyperparameters, d, low.size)
        half = extent.half + margin(kernel.smoothness, relative_signal_to_noise) * longest
        counts = (
            counts_for(half, shortest, kernel.smoothness, relative_signal_to_noise, most)
            if count is None
            else np.full(low.size, count)
        )
        return cls(0.5 * (extent.low + extent.high), half, counts, shortest, longest)

    def covers(self, kernel: Kernel) -> bool:
        """Return whether the basis was built for the kernel's length scales."""
        low, high = kernel.length_scale_range(self.half.size)
        return bool(
            (low >= self.shortest * (1 - LENGTH_SCALE_ROUNDING)).all()
            and (high <= self.longest * (1 + LENGTH_SCALE_ROUNDING)).all()
        )

    def must_fit(self, p: int, frequencies: int) -> None:
        """Raise a ValueError unless this is a box of p columns with that many cosines.

        The number of cosines is compared before the functions are listed, because a damaged file
        could claim very many.
        """
        for name in ("centre", "half", "shortest", "longest"):
            must_be_numbers(getattr(self, name), (p,), f"the {name} of the box")
        whole = isinstance(self.counts, np.ndarray) and self.counts.dtype.kind == "i"
        must(
            whole and self.counts.shape == (p,),
            f"the numbers of functions are not {p} whole numbers",
        )
        counts = [int(count) for count in self.counts]
        found = int(np.prod([2 * count + 1 for count in counts], dtype=object))
        must(
            min(counts) >= 1 and found == frequencies,
            "the numbers of functions do not fit the sums of cosines",
        )
        wide = (self.half > 0).all() and (self.shortest > 0).all()
        must(wide and (self.shortest <= self.longest).all(), "the box has no extent")

    @cached_property
    def index(self) -> np.ndarray:
        """Return j of every function, inside the ellipse with radii m_k;  (q, p)."""
        every = np.stack(
            np.meshgrid(*(np.arange(1, m + 1) for m in self.counts), indexing="ij"), axis=-1
        )
        flat = every.reshape(-1, self.counts.size)
        kept: np.ndarray = flat[self.contains(flat)]
        return kept

    def contains(self, index: np.ndarray) -> np.ndarray:
        """Return whether functions j are in the basis: inside the ellipse;  (r, p) -> (r,) bool."""
        size = ((index / self.counts) ** 2).sum(axis=1)
        inside: np.ndarray = size <= max(1.0, (self.counts**-2.0).sum()) + 1e-12
        return inside

    @property
    def omega(self) -> np.ndarray:
        """Return the frequencies of every function, pi j_k / (2 L_k);  (q, p)."""
        frequencies: np.ndarray = 0.5 * np.pi * self.index / self.half
        return frequencies

    def __len__(self) -> int:
        return len(self.index)

    def must_hold(self, x: np.ndarray) -> None:
        """Raise an InputError if a row is less than one length scale inside of the box."""
        out = (np.abs(x - self.centre) > self.half - self.longest).any(axis=1)
        if out.any():
            raise InputError(
                f"{int(out.sum())} of {len(x)} rows are beyond the box that the basis was built "
                "for. Fit again with all rows, or use solver='inducing'."
            )

    def angles(self, x: np.ndarray) -> np.ndarray:
        """Return t in [0, pi], and 0 outside of the box, where every function is 0;  (n, p)."""
        t: np.ndarray = 0.5 * np.pi * ((x - self.centre) / self.half + 1.0)
        t[((t < 0.0) | (t > np.pi)).any(axis=1)] = 0.0
        return t

    def functions(self, t: np.ndarray) -> np.ndarray:
        """Return phi at the angles t;  (n, p) -> (n, q)."""
        out = np.full((len(t), len(self)), np.prod(self.half) ** -0.5)
        for k, m in enumerate(self.counts):
            out *= np.sin(t[:, k, None] * np.arange(1, m + 1))[:, self.index[:, k] - 1]
        return out

    @property
    def frequencies(self) -> int:
        """Return the number of cosines whose sums are the products of two functions."""
        return int(np.prod(2 * self.counts + 1))

    def cosines(self, t: np.ndarray) -> np.ndarray:
        """Return prod_k cos(a_k t_k) for all a_k = 0 .. 2 m_k;  (n, p) -> (n, frequencies)."""
        out = np.ones((len(t), 1))
        for k, m in enumerate(self.counts):
            table = np.cos(t[:, k, None] * np.arange(2 * m + 1))
            out = (out[:, :, None] * table[:, None, :]).reshape(len(t), -1)
        return out

    @cached_property
    def products(self) -> list[tuple[float, np.ndarray]]:
        """Return, for each of 2^p terms, a factor and the cosine of every pair (i, j) of functions.

        phi_i phi_j is the sum over terms of factor cosines[where[i, j]], because it is
        (cos (i - j) t - cos (i + j) t) / (2 L) in each dimension;  [(factor, where (q, q))].
        """
        found = []
        for turn in product((0, 1), repeat=self.counts.size):
            where = np.zeros((len(self), len(self)), np.int32)
            for k, plus in enumerate(turn):
                j = self.index[:, k].astype(np.int32)
                where *= np.int32(2 * self.counts[k] + 1)
                where += j[:, None] + j if plus else np.abs(j[:, None] - j)
            found.append(((-1.0) ** sum(turn) / float(np.prod(2.0 * self.half)), where))
        return found


def margin(smoothness: float, relative_signal_to_noise: float) -> float:
    """Return the distance between the data and the edge, in length scales.

    For an RBF it grows as the noise shrinks, because the noise then hides less of the edge's
    effect. For Matern kernels it is fixed.
    """
    if np.isinf(smoothness):
        return float(
            np.hypot(
                MARGIN_LENGTH_SCALES[smoothness], np.sqrt(0.5 * np.log(relative_signal_to_noise))
            )
        )
    return MARGIN_LENGTH_SCALES[smoothness]


def cutoff(smoothness: float, relative_signal_to_noise: float) -> float:
    """Return the highest frequency, in inverse length scales.

    For an RBF it grows as the noise shrinks, because the noise then hides less of the frequencies
    that are left out. For Matern kernels it is fixed.
    """
    if np.isinf(smoothness):
        return float(
            np.hypot(
                CUTOFF_PER_LENGTH_SCALE[smoothness], np.sqrt(2.0 * np.log(relative_signal_to_noise))
            )
        )
    return CUTOFF_PER_LENGTH_SCALE[smoothness]


def counts_for(
    half: np.ndarray,
    shortest: np.ndarray,
    smoothness: float,
    relative_signal_to_noise: float,
    most: int,
) -> np.ndarray:
    """Return the number of functions of each dimension;  (p,).

    It follows from the cutoff, which is lowered step by step, down to the least one, while there
    are more than `most` functions.
    """
    full = 2.0 / np.pi * half / shortest
    for each in np.linspace(
        cutoff(smoothness, relative_signal_to_noise), LEAST_CUTOFF_PER_LENGTH_SCALE, 20
    ):
        counts: np.ndarray = np.ceil(np.minimum(each * full, LARGEST_COUNT)).astype(int)
        if functions_in(counts) <= most:
            break
    return counts


def functions_in(counts: np.ndarray) -> float:
    """Return about how many functions are inside the ellipse with these radii."""
    return float(np.prod(counts)) * {1: 1.0, 2: np.pi / 4, 3: np.pi / 6}[len(counts)]


def counts_of(low: InputResolution, most: int) -> np.ndarray:
    """Return the number of functions of each dimension, at most `most` in all if that will do."""
    assert low.spans is not None
    reach = LENGTH_SCALE_FACTOR
    half = (
        np.array(low.spans)
        + margin(low.smoothness, low.relative_signal_to_noise) * low.spread * reach
    )
    return counts_for(
        half, np.full(half.size, 1.0 / reach), low.smoothness, low.relative_signal_to_noise, most
    )


def left_out(low: InputResolution, most: int) -> float:
    """Return about which share of k this many functions leave out; 1 if they are too few."""
    counts, full = counts_of(low, most), counts_of(low, 10**9)
    if functions_in(counts) > most:
        return 1.0
    square = (
        cutoff(low.smoothness, low.relative_signal_to_noise) * float((counts / full).min())
    ) ** 2
    nu = low.smoothness
    return float(np.exp(-0.5 * square) if np.isinf(nu) else (1.0 + square / (2.0 * nu)) ** -nu)


def reason_against_a_basis(
    p: int, d: int, low: InputResolution | None, count: int | None
) -> str | None:
    """Return the reason why "auto" does not consider a basis, None if it does.

    Once length scales are known, few functions must be enough for them.
    """
    if low is None:
        return "it needs dense X and Z, and a kernel of vectors"
    if p > MAX_X_COLUMNS:
        return f"X has more than {MAX_X_COLUMNS} columns"
    if not low.density:
        return "the kernel has no spectral density in closed form"
    if low.spans is None or count is not None:
        few = d * ASSUMED_FUNCTIONS_PER_COLUMN**p <= 2 * AUTO_MAX_FUNCTIONS
    else:
        left = left_out(low, AUTO_MAX_FUNCTIONS // d) * low.relative_signal_to_noise
        few = left <= AUTO_REMAINDER_SHARE
    return None if few else "too many functions would be needed"


def must_have_density(low: InputResolution) -> None:
    """Raise SolverUnavailable unless the kernel has a spectral density."""
    if not low.density:
        raise SolverUnavailable(
            "solver='basis' needs a kernel whose spectral density is known in closed form. Use "
            "solver='grid', 'exact', 'cg', 'neighbors' or 'inducing' with this kernel."
        )


def basis_bytes(
    n: int, p: int, d: int, counts: np.ndarray, nodes: int, n_jobs: int, stream: bool
) -> int:
    """Return the memory of a fit, in bytes.

    It has the rows unless they stream, M^2 matrices, the indices of products of functions, the
    sums over rows (two for each worker), and the blocks that workers compute.
    """
    q, cosines = functions_in(counts), float(np.prod(2 * counts + 1))
    held = 8 * (p + 2 * d + 4) * (0 if stream else n)
    sums = nodes * (d * (d + 1) / 2 * cosines + d * q)
    working = n_jobs * (3 * q * q + 256 * (cosines + q + nodes * d * d))
    return held + int(8 * (2 * (q * d) ** 2 + 2**p * q * q / 2 + (2 * n_jobs + 3) * sums + working))


def term_basis_bytes(
    n: int,
    widths: tuple[int, int, int],
    size: int,
    sums: int,
    most_cosines: int,
    n_jobs: int,
    stream: bool,
) -> int:
    """Return the memory of a fit of weights with priors of their own, in bytes.

    `widths` are the numbers of columns of X and Z and of nodes. `size` is the number M of all
    functions, `sums` that of the sums over rows at all nodes, and `most_cosines` that of the
    cosines of one pair of sets. M^2 numbers are kept in three matrices, and in indices of products.
    """
    p, d, nodes = widths
    held = 8 * (p + 2 * d + 4) * (0 if stream else n)
    working = n_jobs * (256 * (2 * most_cosines + size + nodes * d * d) + 2 * size**2)
    return held + 8 * (3 * size**2 + (2 * n_jobs + 3) * sums + working)
