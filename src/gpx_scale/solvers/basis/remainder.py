"""What the functions of a basis leave out of k, and the variance of the mean that results.

A basis has M coefficients v, and functions phi_R of higher frequency are left out, with
coefficients v_R (c, for all weights together):

    y = W v + W_R v_R + e        e ~ N(0, D_0)        D_0 = sigma_y^2 + sigma_w^2 |z|^2

The mean is computed as if the left-out part were noise: E[v] = B^-1 W^T D^-1 y, where D has its
average. That is an estimate like any other, and the covariance of its error, which is at least the
exact posterior covariance, is known:

    error       =  phi*^T B^-1 (v - W^T D^-1 e)  +  (phi_R* - T phi*)^T v_R  +  ...
    covariance  =  phi*^T B^-1 (I + W^T D_0 D^-2 W) B^-1 phi*  +  |phi_R* - T phi*|^2 + tail
    T           =  W_R^T D^-1 W B^-1

The tail is the part of k** that neither has. A white remainder, |phi_R*|^2 in the place of
|phi_R* - T phi*|^2, gives standard deviations down to 0.98, 0.88 and 0.82 of the exact ones for
Matern 5/2, 3/2 and 1/2 in one dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...data.features import DenseFeatures
from ...data.inputs import Preprocessor, TrainingRows
from ...kernels.kernel import Kernel
from ...model.hyperparameters import Hyperparameters
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_numbers, stored
from .laplacian_basis import LaplacianBasis, functions_in
from .sufficient_statistics import ROWS_AT_ONCE

# If functions leave out less than this share of k, what they leave out is noise, as it is for an
# RBF.
NEGLIGIBLE_SHARE = 1e-6
# Further functions reach so many times as far in frequency. The first number is taken that leaves
# out these shares of the remainder and of k, less of it if the noise is small: 2 and 3 for Matern
# 5/2 and 3/2 in one dimension, and 24 or more for Matern 1/2.
REACHES = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 96.0)
TAIL_SHARE_OF_REMAINDER = 1.0 / 16.0
TAIL_SHARE = 1.5e-3
# There are no more of them than T^T T can be computed for with this many multiplications, which
# take some seconds on two cores, and than T fits into this share of the memory.
MOST_PRODUCTS = 5e10
MEMORY_SHARE = 0.125
# Nor are there more for one weight than this, with which the tail is measured in 200 MB.
MOST_FUNCTIONS = 200_000
# The tail is measured at this many rows.
TAIL_ROWS = 64
# A worker looks up the products of this many functions with all others at once.
FUNCTIONS_AT_ONCE = 256


@stored
@dataclass
class RemainderStatistics:
    """Sums over rows of h z_l z_l' cos(a.t), for h = sigma_y^2 D^-1 and sigma_y^2 D_0 D^-2.

    `cosines` is (2, pairs, frequencies), with all pairs l <= l' of weights.
    """

    cosines: np.ndarray

    def __iadd__(self, other: RemainderStatistics) -> RemainderStatistics:
        self.cosines += other.cosines
        return self


@dataclass(frozen=True)
class BlockRemainderStatistics:
    """The task that maps a block of rows to its `RemainderStatistics`.

    `box` has half as many functions per dimension as there are frequencies. `rho` and `own_rho` are
    the variances of the weights' noise over sigma_y^2, with the remainder and without it.
    """

    box: LaplacianBasis
    rho: float
    own_rho: float

    def __call__(self, block: TrainingRows) -> RemainderStatistics:
        assert isinstance(block.Z, DenseFeatures)
        first, second = np.triu_indices(block.Z.shape[1])
        cosines = np.zeros((2 * first.size, self.box.frequencies))
        for rows in slices(len(block), ROWS_AT_ONCE):
            z, t = block.Z.array[rows], self.box.angles(block.x[rows])
            squared = block.Z[rows].squared_norms()
            h = 1.0 / (1.0 + self.rho * squared)
            both = np.column_stack([h, h**2 * (1.0 + self.own_rho * squared)])
            pairs = z[:, first] * z[:, second]
            weighed = (both[:, :, None] * pairs[:, None, :]).reshape(len(z), -1)
            cosines += weighed.T @ self.box.cosines(t)
        return RemainderStatistics(cosines.reshape(2, first.size, -1))


@stored
@dataclass(frozen=True)
class Remainder:
    """The further functions, up to those of the box `outer`, and sums over the rows for them."""

    outer: LaplacianBasis
    sums: RemainderStatistics

    def with_rows(self, more: RemainderStatistics) -> Remainder:
        """Return this remainder with the sums over more rows."""
        return replace(self, sums=RemainderStatistics(self.sums.cosines + more.cosines))

    def must_fit(self, box: LaplacianBasis, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless these are further functions on that box."""
        p, d = preprocessor.n_x, preprocessor.n_weights
        for name in ("centre", "half", "shortest", "longest"):
            must_be_numbers(getattr(self.outer, name), (p,), f"the {name} of the further functions")
            same = np.array_equal(getattr(self.outer, name), getattr(box, name))
            must(same, "its further functions are on another box")
        counts = self.outer.counts
        whole = isinstance(counts, np.ndarray) and counts.dtype.kind == "i"
        more = whole and counts.shape == (p,) and (counts >= box.counts).all()
        must(more, "it has fewer further functions than functions")
        shape = 2, d * (d + 1) // 2, _frequencies(box, self.outer).frequencies
        must_be_numbers(self.sums.cosines, shape, "the sums of further cosines")


@dataclass(frozen=True)
class ErrorCovariance:
    """The matrices of the covariance of the error of the mean, for M functions and c further ones.

    `own` (M, M) is B^-1 (I + W^T D_0 D^-2 W) B^-1 + T^T T, and `crossed` (c, M) is T. `noise` (M,
    M) is I + W^T D_0 D^-2 W.
    """

    own: np.ndarray
    crossed: np.ndarray
    noise: np.ndarray

    @classmethod
    def of(
        cls, noise: np.ndarray, right: np.ndarray, inverse: np.ndarray, session: Session
    ) -> ErrorCovariance:
        """Return the matrices from W^T D_0 D^-2 W, which is overwritten, W_R^T D^-1 W and B^-1."""
        noise[np.diag_indices(len(noise))] += 1.0
        crossed = session.executor.matmul(right, inverse)
        own = session.executor.matmul(inverse, session.executor.matmul(noise, inverse))
        own += session.executor.matmul(np.ascontiguousarray(crossed.T), crossed)
        return cls(0.5 * (own + own.T), crossed, noise)


def outer_box(
    box: LaplacianBasis,
    kernel: Kernel,
    x: np.ndarray,
    relative_signal_to_noise: float,
    d: int,
    size: int,
    memory_limit: int,
) -> LaplacianBasis | None:
    """Return a box with further functions for what `box` leaves out.

    It is measured at some of the rows x. None is returned if it is negligible, or if there would be
    too many further functions; all of it counts as noise then. `d` weights have the functions, and
    `size` is the number of those of all weights.
    """
    angles = box.angles(x[:TAIL_ROWS])
    whole = float(kernel.diagonal(kernel.prepare(np.zeros((1, box.half.size))))[0])

    def left_by(one: LaplacianBasis) -> float:
        known = np.square(one.functions(angles)) @ kernel.spectral_density(one.omega)[0]
        return whole - float(known.mean())

    remainder, found = left_by(box), None
    most = TAIL_SHARE * whole / relative_signal_to_noise
    if remainder <= NEGLIGIBLE_SHARE * whole:
        return None
    for reach in REACHES:
        wider = replace(box, counts=np.ceil(reach * box.counts).astype(int))
        functions = functions_in(wider.counts)
        more = functions * d
        too_many = more * size**2 > MOST_PRODUCTS or 8 * more * size > MEMORY_SHARE * memory_limit
        if functions > MOST_FUNCTIONS or (too_many and found is not None):
            break
        found = wider
        if left_by(wider) <= min(TAIL_SHARE_OF_REMAINDER * remainder, most):
            break
    return found


def further(box: LaplacianBasis, outer: LaplacianBasis) -> np.ndarray:
    """Return which functions of the outer box are not in the box;  (q_outer,) bool."""
    return ~box.contains(outer.index)


def statistics_task(
    box: LaplacianBasis, outer: LaplacianBasis, rho: float, hyperparameters: Hyperparameters
) -> BlockRemainderStatistics:
    """Return the task that sums rows for products of functions of both boxes."""
    own_rho = (hyperparameters.sigma_w / hyperparameters.sigma_y) ** 2
    return BlockRemainderStatistics(_frequencies(box, outer), rho, own_rho)


def error_covariance(
    box: LaplacianBasis,
    remainder: Remainder,
    hyperparameters: Hyperparameters,
    inverse: np.ndarray,
    session: Session,
) -> ErrorCovariance:
    """Return the covariance of the error of the mean, where `inverse` is B^-1.

    4 M^3 + 4 c M^2 flops.
    """
    outer, sums = remainder.outer, remainder.sums
    wide, density = _frequencies(box, outer), hyperparameters.kernel.spectral_density
    index = outer.index[further(box, outer)]
    root, root_outer = (
        np.sqrt(density(0.5 * np.pi * at / box.half)[0]) / hyperparameters.sigma_y
        for at in (box.index, index)
    )
    M, q, more = len(inverse), len(box), len(index)
    d = M // q
    first, second = np.triu_indices(d)
    pair = np.zeros((d, d), int)
    pair[first, second] = pair[second, first] = np.arange(first.size)
    noise, right = np.empty((M, M)), np.empty((d * more, M))

    def fill(job: tuple[int, slice, bool]) -> None:
        l, rows, is_further = job
        some, scale = (index, root_outer) if is_further else (box.index, root)
        into, at = (right, l * more) if is_further else (noise, l * q)
        where = _places(box, wide, some[rows])
        for k in range(d):
            cosines = sums.cosines[0 if is_further else 1, pair[l, k]]
            block = sum(factor * cosines.take(place) for factor, place in where)
            block *= scale[rows, None] * root
            into[at + rows.start : at + rows.stop, k * q : k * q + q] = block

    jobs = [(l, rows, False) for l in range(d) for rows in slices(q, FUNCTIONS_AT_ONCE)]
    jobs += [(l, rows, True) for l in range(d) for rows in slices(more, FUNCTIONS_AT_ONCE)]
    session.executor.map(fill, jobs)
    return ErrorCovariance.of(noise, right, inverse, session)


def _frequencies(box: LaplacianBasis, outer: LaplacianBasis) -> LaplacianBasis:
    """Return a box whose cosines are those of all products of functions of both boxes."""
    return replace(box, counts=(box.counts + outer.counts + 1) // 2)


def _places(
    box: LaplacianBasis, wide: LaplacianBasis, index: np.ndarray
) -> list[tuple[float, np.ndarray]]:
    """Return, for each of 2^p terms, a factor and the cosine of every pair of functions.

    The pairs are of functions with these indices (r, p) and functions of the box, and the cosines
    are those of the wide box, as in `LaplacianBasis.products`;  [(factor, where (r, q))].
    """
    found = []
    for turn in product((0, 1), repeat=box.counts.size):
        where = np.zeros((len(index), len(box)), np.int64)
        for k, plus in enumerate(turn):
            i, j = index[:, k, None], box.index[:, k]
            where *= 2 * wide.counts[k] + 1
            where += i + j if plus else np.abs(i - j)
        found.append(((-1.0) ** sum(turn) / float(np.prod(2.0 * box.half)), where))
    return found
