"""What the functions leave out of weights with priors of their own, and the resulting variance.

It is as in `remainder`: W has the functions of all weights with the roots of their variances, and
W_R has further functions of each set, which reach further in frequency. Constant functions leave
nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from ...data.inputs import Preprocessor, TrainingRows
from ...model.hyperparameters import Hyperparameters
from ...model.weight_prior import WeightPrior
from ...runtime.session import Session
from ...runtime.state import must, must_be_numbers, stored
from ..low_dimensional import relative_signal_to_noise_of
from .remainder import ErrorCovariance, outer_box
from .term_statistics import Block, GramSums, Part, Parts, chunks_of, rows_of
from .weight_functions import FunctionPair, FunctionSet, WeightFunctions, varying_terms


@stored
@dataclass
class TermRemainderStatistics:
    """Sums over rows for W^T D_0 D^-2 W (`noise`, (k,)) and W_R^T D^-1 W (`crossed`, (c,))."""

    noise: np.ndarray
    crossed: np.ndarray

    def __iadd__(self, other: TermRemainderStatistics) -> TermRemainderStatistics:
        self.noise += other.noise
        self.crossed += other.crossed
        return self


class CrossedSums:
    """The sums over rows from which W_R^T H W follows, in blocks, for H = diag(h)."""

    def __init__(self, functions: WeightFunctions, outer: WeightFunctions) -> None:
        parts, self.blocks = Parts(), list[Block]()
        constants = functions.constants
        last = slice(functions.first_constant, functions.owners.size)
        for number, far in enumerate(outer.sets):
            columns = [at for k, _, at in outer.columns if k == number]
            for other, near in enumerate(functions.sets):
                of_near = [at for k, _, at in functions.columns if k == other]
                left, right = np.indices((far.weights.size, near.weights.size)).reshape(2, -1)
                pair = FunctionPair(far, near)
                weights = far.weights[left], near.weights[right]
                part = parts.add(*weights, pair.cosines, pair.frequencies)
                for k, (l, m) in enumerate(zip(left, right, strict=True)):
                    made = partial(_products, pair, part, k)
                    self.blocks.append(Block(columns[l], of_near[m], made))
            first, second = (
                np.repeat(far.weights, constants.size),
                np.tile(constants, far.weights.size),
            )
            part = parts.add(first, second, far.table, len(far))
            for k, at in enumerate(columns if constants.size else []):
                some = slice(k * constants.size, (k + 1) * constants.size)
                self.blocks.append(Block(at, last, partial(_transposed, part, some)))
        self.parts, self.size = parts.all, parts.size


def _products(pair: FunctionPair, part: Part, k: int, sums: np.ndarray) -> np.ndarray:
    """Return the block for two weights."""
    return pair.gram(part.of(sums)[k])


def _transposed(part: Part, some: slice, sums: np.ndarray) -> np.ndarray:
    """Return the block of further functions and constant ones."""
    return rows_of(part, some, sums).T


@dataclass(frozen=True)
class BlockTermRemainderStatistics:
    """The task that maps a block of rows to its `TermRemainderStatistics`.

    `rho` and `own_rho` are the variances of the weights' noise over sigma_y^2, with the remainder
    and without it.
    """

    functions: WeightFunctions
    outer: WeightFunctions
    rho: float
    own_rho: float

    @cached_property
    def _sums(self) -> tuple[GramSums, CrossedSums]:
        return GramSums(self.functions), CrossedSums(self.functions, self.outer)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_sums"}

    def __call__(self, block: TrainingRows) -> TermRemainderStatistics:
        of_noise, crossed = self._sums
        found = np.zeros((1, of_noise.size)), np.zeros((1, crossed.size))
        for rows, zy, squared in chunks_of(block):
            h = 1.0 / (1.0 + self.rho * squared)
            noisy = h**2 * (1.0 + self.own_rho * squared)
            for part in of_noise.parts:
                part.add(zy, noisy[:, None], block.x[rows], found[0])
            for part in crossed.parts:
                part.add(zy, h[:, None], block.x[rows], found[1])
        return TermRemainderStatistics(found[0][0], found[1][0])


@stored
@dataclass(frozen=True)
class TermRemainder:
    """The further functions of all weights that vary, and sums over the rows for them."""

    outer: WeightFunctions
    sums: TermRemainderStatistics

    def with_rows(self, more: TermRemainderStatistics) -> TermRemainder:
        """Return this remainder with the sums over more rows."""
        noise, crossed = self.sums.noise + more.noise, self.sums.crossed + more.crossed
        return replace(self, sums=TermRemainderStatistics(noise, crossed))

    def must_fit(self, functions: WeightFunctions, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless these are further functions on the same boxes."""
        self.outer.must_fit(preprocessor.n_x, preprocessor.n_weights)
        pairs = [FunctionPair(far, near) for far in self.outer.sets for near in functions.sets]
        cosines = sum(pair.frequencies for pair in pairs)
        must(cosines <= self.sums.crossed.size, "it has fewer sums than further cosines")
        known = {one.weights.tobytes(): one for one in functions.sets}
        for far in self.outer.sets:
            near = known.get(far.weights.tobytes())
            same = (
                near is not None
                and np.array_equal(far.box.half, near.box.half)
                and np.array_equal(far.box.centre, near.box.centre)
                and far.without is not None
                and np.array_equal(far.without, near.box.counts)
            )
            must(same, "its further functions are on another box")
        shapes = GramSums(functions).size, CrossedSums(functions, self.outer).size
        must_be_numbers(self.sums.noise, (shapes[0],), "the sums over rows of the noise")
        must_be_numbers(self.sums.crossed, (shapes[1],), "the sums of further cosines")


def statistics_task(
    functions: WeightFunctions, outer: WeightFunctions, rho: float, hyperparameters: Hyperparameters
) -> BlockTermRemainderStatistics:
    """Return the task that sums rows for products of functions and further functions."""
    own_rho = (hyperparameters.sigma_w / hyperparameters.sigma_y) ** 2
    return BlockTermRemainderStatistics(functions, outer, rho, own_rho)


def further_functions(
    functions: WeightFunctions, hyperparameters: Hyperparameters, x: np.ndarray, memory_limit: int
) -> WeightFunctions | None:
    """Return further functions for what each set leaves out, measured at some rows.

    None is returned if all of it is negligible, or counts as noise.
    """
    relative = relative_signal_to_noise_of(hyperparameters, functions.d, functions.p)
    kernels = {
        weight: term.kernel
        for term in varying_terms(hyperparameters.weight_prior)
        for weight in term.columns.tolist()
    }
    found, size = [], functions.owners.size
    for one in functions.sets:
        kernel = next((kernels[k] for k in one.weights.tolist() if k in kernels), None)
        if kernel is None:
            continue
        given = one.box, kernel, x, relative, one.weights.size, size, memory_limit
        if (outer := outer_box(*given)) is not None:
            found.append(FunctionSet(outer, one.stride, one.weights, one.box.counts))
    return replace(functions, sets=tuple(found), constants=np.zeros(0, int)) if found else None


def error_covariance(
    functions: WeightFunctions,
    remainder: TermRemainder,
    hyperparameters: Hyperparameters,
    inverse: np.ndarray,
    session: Session,
) -> ErrorCovariance:
    """Return the covariance of the error of the mean, where `inverse` is B^-1.

    4 M^3 + 4 c M^2 flops.
    """
    root = roots(functions, hyperparameters.weight_prior) / hyperparameters.sigma_y
    root_outer = roots(remainder.outer, hyperparameters.weight_prior) / hyperparameters.sigma_y
    noise = np.zeros_like(inverse)
    right = np.zeros((root_outer.size, root.size))

    def fill(block: Block) -> None:
        scale = np.outer(root[block.rows], root[block.columns])
        noise[block.rows, block.columns] = scale * block.of(remainder.sums.noise)
        noise[block.columns, block.rows] = noise[block.rows, block.columns].T

    def fill_right(block: Block) -> None:
        scale = np.outer(root_outer[block.rows], root[block.columns])
        right[block.rows, block.columns] = scale * block.of(remainder.sums.crossed)

    session.executor.map(fill, GramSums(functions).blocks)
    session.executor.map(fill_right, CrossedSums(functions, remainder.outer).blocks)
    return ErrorCovariance.of(noise, right, inverse, session)


def roots(functions: WeightFunctions, prior: WeightPrior) -> np.ndarray:
    """Return the roots of the prior variances of the coefficients;  (M,)."""
    found: np.ndarray = np.sqrt(functions.densities(prior)[0])
    return found
