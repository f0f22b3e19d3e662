"""The functions of weights that have priors of their own: a set for each kernel, and constants.

    w_l(x) = sum_j s_lj^1/2 v_lj phi_j(x) + c_l^1/2 v_l + noise       s_lj = lambda_l s(omega_j)

The j are those of the set that weight l belongs to. Each set has a box for its own length scales.
All boxes have one centre, and each is an odd whole number of times narrower than the widest one:

    L = r L_r      sin(j t_r) = (-1)^(j (r - 1) / 2) sin(j r t)      r odd

where t and t_r are the angles of x in the two boxes. So a product of functions of two sets is a sum
of cosines of common frequencies, too, and sums over rows need few numbers for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from ...model.hyperparameters import Hyperparameters
from ...model.term import Term
from ...model.weight_prior import WeightPrior
from ...runtime.state import must, must_be_indices, stored
from ..low_dimensional import InputExtent, relative_signal_to_noise_of
from .laplacian_basis import LaplacianBasis, counts_for, functions_in, margin

# The widest box is at most so many times as wide as the narrowest one has to be. The number of
# cosines grows with its square in two dimensions. A search keeps length scales within this; the
# longest one is then still more than twice as long as half of the range of x.
MAX_STRIDE = 5
# A file with more functions or a larger stride in one dimension is damaged: no basis is so large.
MOST_IN_A_FILE = 100_000
# A box may be narrower than it has to be by this share, which is rounding.
WIDTH_ROUNDING = 1e-12


@stored
@dataclass(frozen=True)
class FunctionSet:
    """The functions of a box, and the weights that have them.

    `stride` (p,) says how many times narrower than the widest box this one is, in each dimension.
    The functions are those of the box that reach further in frequency than `without` (p,) does.
    """

    box: LaplacianBasis
    stride: np.ndarray
    weights: np.ndarray
    without: np.ndarray | None = None

    @cached_property
    def index(self) -> np.ndarray:
        """Return j of every function;  (q, p)."""
        kept: np.ndarray = self.box.index[self._kept]
        return kept

    @cached_property
    def _kept(self) -> np.ndarray:
        """Return which functions of the box are in the set."""
        if self.without is None:
            return np.ones(len(self.box), bool)
        inner = LaplacianBasis(
            *(self.box.centre, self.box.half, self.without, self.box.shortest, self.box.longest)
        )
        return ~inner.contains(self.box.index)

    @property
    def omega(self) -> np.ndarray:
        """Return the frequencies of every function;  (q, p)."""
        frequencies: np.ndarray = self.box.omega[self._kept]
        return frequencies

    def __len__(self) -> int:
        return len(self.index)

    def functions(self, x: np.ndarray) -> np.ndarray:
        """Return the functions at x, which are 0 outside of the box;  (n, p) -> (n, q)."""
        found = self.box.functions(self.box.angles(x))
        return found if self.without is None else found[:, self._kept]

    def table(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the functions at x as a single table."""
        return [self.functions(x)]

    def must_fit(self, p: int, d: int) -> None:
        """Raise a ValueError unless these are functions of p columns for some of d weights."""
        box = self.box
        must_be_counts(box.counts, p, "numbers of functions")
        must_be_counts(self.stride, p, "strides of a box")
        must((self.stride % 2 == 1).all(), "the stride of a box is even")
        box.must_fit(p, int(np.prod([2 * int(count) + 1 for count in box.counts], dtype=object)))
        must_be_indices(self.weights, d, "the weights that have functions")
        if self.without is not None:
            must_be_counts(self.without, p, "numbers of inner functions")


def must_be_counts(counts: np.ndarray, p: int, what: str) -> None:
    """Raise a ValueError unless there are p positive whole numbers."""
    whole = isinstance(counts, np.ndarray) and counts.dtype.kind == "i" and counts.shape == (p,)
    inside = whole and (counts >= 1).all() and (counts <= MOST_IN_A_FILE).all()
    must(inside, f"the {what} are not {p} positive whole numbers")


@dataclass(frozen=True)
class FunctionPair:
    """The products of functions of two sets, as sums of cosines of common frequencies."""

    a: FunctionSet
    b: FunctionSet

    @property
    def _steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the strides of both sets on their finest common lattice, and its half-width."""
        step = np.gcd(self.a.stride, self.b.stride)
        return self.a.stride // step, self.b.stride // step, self.a.box.half * self.a.stride / step

    @property
    def tops(self) -> np.ndarray:
        """Return the highest frequency in each dimension;  (p,)."""
        of_a, of_b, _ = self._steps
        highest: np.ndarray = of_a * self.a.box.counts + of_b * self.b.box.counts
        return highest

    @property
    def frequencies(self) -> int:
        """Return the number of cosines whose sums are the products of two functions."""
        return int(np.prod(self.tops + 1))

    def cosines(self, x: np.ndarray) -> list[np.ndarray]:
        """Return cos(a t_k) for all a up to the highest, for each dimension k.

        (n, p) -> p times (n, tops_k + 1)
        """
        _, _, half = self._steps
        t = 0.5 * np.pi * ((x - self.a.box.centre) / half + 1.0)
        return [np.cos(t[:, k, None] * np.arange(top + 1)) for k, top in enumerate(self.tops)]

    def gram(self, cosines: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        """Return the sums of products of functions from those of cosines.

        `rows` cuts the functions of the first set;  (frequencies,) -> (q_a, q_b).
        """
        found = (factor * cosines.take(where) for factor, where in self._places(rows))
        total: np.ndarray = sum(found, start=np.zeros(()))
        first, second, _ = self._steps
        total *= _signs(self.a.index[rows], first)[:, None]
        total *= _signs(self.b.index, second)
        return total

    def _places(self, rows: slice) -> Iterator[tuple[float, np.ndarray]]:
        """Return, for each of 2^p terms, a factor and the cosine of every pair of functions."""
        of_a, of_b, _ = self._steps
        first, second = self.a.index[rows] * of_a, self.b.index * of_b
        size = float(np.prod(4.0 * self.a.box.half * self.b.box.half) ** -0.5)
        for turn in product((0, 1), repeat=of_a.size):
            where = np.zeros((len(first), len(second)), np.int64)
            for k, plus in enumerate(turn):
                i, j = first[:, k, None], second[:, k]
                where *= self.tops[k] + 1
                where += i + j if plus else np.abs(i - j)
            yield (-1.0) ** sum(turn) * size, where


def _signs(index: np.ndarray, stride: np.ndarray) -> np.ndarray:
    """Return (-1)^(j (r - 1) / 2) for functions j of a box with strides r;  (q, p) -> (q,)."""
    signs: np.ndarray = 1.0 - 2.0 * ((index * ((stride - 1) // 2)).sum(axis=1) % 2)
    return signs


@stored
@dataclass(frozen=True)
class WeightFunctions:
    """The functions of all weights: the sets, and the weights that have a constant function.

    The columns of W, and so the coefficients, are ordered by sets, their weights, and functions.
    Those of the constants come last.
    """

    sets: tuple[FunctionSet, ...]
    constants: np.ndarray
    d: int
    p: int

    @classmethod
    def around(
        cls,
        extent: InputExtent,
        hyperparameters: Hyperparameters,
        reach: float,
        most: int,
        count: int | None = None,
    ) -> WeightFunctions:
        """Return functions for the kernels' length scales, multiplied and divided by `reach`.

        There are no more than `most` for all weights, unless the least cutoff needs more. `count`
        is their number per dimension, if the user gave it.
        """
        prior, p = hyperparameters.weight_prior, extent.half.size
        d = prior.terms[0].variances.size
        relative = relative_signal_to_noise_of(hyperparameters, d, p)
        varying = varying_terms(prior)
        ranges = [term.kernel.length_scale_range(p) for term in varying]
        shortest, longest = (
            np.array([found[k] * reach**sign for found in ranges]).reshape(-1, p)
            for k, sign in ((0, -1), (1, 1))
        )
        margins = np.array([margin(term.kernel.smoothness, relative) for term in varying])
        needed = extent.half + margins[:, None] * longest
        strides = np.ones((len(varying), p), int)
        halves = needed.copy()
        for k in range(p if varying else 0):
            strides[:, k], widest = _strides(needed[:, k], shortest[:, k])
            halves[:, k] = widest / strides[:, k]
        each = most // max(1, sum(term.columns.size for term in varying))
        centre, sets = 0.5 * (extent.low + extent.high), []
        for term, low, high, half, stride in zip(
            varying, shortest, longest, halves, strides, strict=True
        ):
            counts = (
                counts_for(half, low, term.kernel.smoothness, relative, each)
                if count is None
                else np.full(p, count)
            )
            box = LaplacianBasis(centre, half, counts, low, high)
            sets.append(FunctionSet(box, stride, term.columns))
        # A weight that varies may turn out to be constant, so all of them have a constant function
        # if any may. If no weight has a term, one function of variance 0 stands for all.
        has_constants = any(is_constant(term) for term in prior.terms)
        constants = np.arange(d if has_constants else 0 if sets else 1)
        return cls(tuple(sets), constants, d, p)

    @cached_property
    def columns(self) -> list[tuple[int, int, slice]]:
        """Return, for each weight that varies, its set, its number, and its columns."""
        found, at = [], 0
        for number, one in enumerate(self.sets):
            for weight in one.weights.tolist():
                found.append((number, weight, slice(at, at + len(one))))
                at += len(one)
        return found

    @cached_property
    def owners(self) -> np.ndarray:
        """Return the weight that each column belongs to;  (M,)."""
        each = [np.repeat(one.weights, len(one)) for one in self.sets]
        return np.concatenate([*each, self.constants])

    @property
    def about_size(self) -> int:
        """Return about how many columns there are, without listing the functions."""
        each = [int(functions_in(one.box.counts)) * one.weights.size for one in self.sets]
        return sum(each) + self.constants.size

    @property
    def first_constant(self) -> int:
        """Return the first column of a constant function."""
        return self.owners.size - self.constants.size

    @cached_property
    def pairs(self) -> list[tuple[int, int, FunctionPair]]:
        """Return all pairs of sets, and their products of functions."""
        count = len(self.sets)
        numbers = [(a, b) for a in range(count) for b in range(a, count)]
        return [(a, b, FunctionPair(self.sets[a], self.sets[b])) for a, b in numbers]

    def covers(self, prior: WeightPrior) -> bool:
        """Return whether there are functions for all terms, at their length scales."""
        boxes = {weight: self.sets[number].box for number, weight, _ in self.columns}
        for term in prior.active:
            if is_constant(term):
                if not np.isin(term.columns, self.constants).all():
                    return False
            elif term.is_active:
                found = [boxes.get(weight) for weight in term.columns.tolist()]
                if not all(box is not None and box.covers(term.kernel) for box in found):
                    return False
        return True

    def must_hold(self, x: np.ndarray) -> None:
        """Raise an InputError if a row is near to the edge of a box, or beyond it."""
        for one in self.sets:
            one.box.must_hold(x)

    def at(self, x: np.ndarray) -> np.ndarray:
        """Return the functions of every column at x;  (n, p) -> (n, M)."""
        found = [np.tile(one.functions(x), (1, one.weights.size)) for one in self.sets]
        return np.hstack([*found, np.ones((len(x), self.constants.size))])

    def densities(self, prior: WeightPrior) -> tuple[np.ndarray, np.ndarray]:
        """Return s of every column, and its derivatives by the parameters but sigma_w.

        (M,), (M, t)
        """
        M = self.owners.size
        s, along = np.zeros(M), []
        for term in prior.active:
            of_kernel = np.zeros((term.kernel.theta.size, M))
            of_columns = np.zeros((term.columns.size, M))
            place = {weight: k for k, weight in enumerate(term.columns.tolist())}
            for weight, columns, density, slopes in self._densities_of(term):
                variance = term.variances[weight]
                s[columns] += variance * density
                of_kernel[:, columns] += variance * slopes.T
                of_columns[place[weight], columns] += variance * density
            along.append((of_kernel, of_columns))
        return s, prior.packed(along).T

    def _densities_of(self, term: Term) -> Iterator[tuple[int, slice, np.ndarray, np.ndarray]]:
        """Return, for each weight of a term, its columns, and the kernel's density with slopes."""
        if is_constant(term):
            for k, weight in enumerate(self.constants.tolist()):
                if term.variances[weight] > 0:
                    at = self.first_constant + k
                    yield weight, slice(at, at + 1), np.ones(1), np.empty((1, 0))
            return
        known: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for number, weight, columns in self.columns:
            if term.variances[weight] > 0:
                if number not in known:
                    known[number] = term.kernel.spectral_density(self.sets[number].omega)
                yield weight, columns, *known[number]

    def must_fit(self, p: int, d: int) -> None:
        """Raise a ValueError unless these are functions of p columns for d weights."""
        must((self.d, self.p) == (d, p), "its functions are those of other columns")
        must_be_indices(self.constants, d, "the weights that have a constant function")
        for one in self.sets:
            one.must_fit(p, d)
            first = self.sets[0]
            same = np.array_equal(one.box.centre, first.box.centre)
            widest = first.box.half * first.stride
            same &= np.allclose(one.box.half * one.stride, widest, rtol=1e-9)
            must(same, "its boxes have no common lattice")
        weights = np.concatenate([np.zeros(0, int), *(one.weights for one in self.sets)])
        must(np.unique(weights).size == weights.size, "a weight has two sets of functions")


def longest_theta(
    extent: InputExtent, hyperparameters: Hyperparameters, reach: float
) -> np.ndarray:
    """Return the largest `theta` for which no box is too wide beside the narrowest one;  (t,).

    It is infinite for all parameters but length scales. Kernels are as in `WeightFunctions.around`.
    """
    prior, p, at = hyperparameters.weight_prior, extent.half.size, 0
    relative = relative_signal_to_noise_of(hyperparameters, prior.terms[0].variances.size, p)
    longest = np.full(hyperparameters.theta.size, np.inf)
    varying = varying_terms(prior)
    margins = [margin(term.kernel.smoothness, relative) for term in varying]
    ranges = [term.kernel.length_scale_range(p)[1] for term in varying]
    needed = [extent.half + m * reach * high for m, high in zip(margins, ranges, strict=True)]
    for term, least, high in zip(varying, margins, ranges, strict=True):
        widest = MAX_STRIDE * np.min(needed, axis=0)
        factor = float(((widest - extent.half) / (least * reach * high)).min())
        theta = term.kernel.theta
        is_length = np.array([kind == "theta2" for kind in term.kernel.parameter_kinds])
        longest[at : at + theta.size][is_length] = theta[is_length] + 2.0 * np.log(factor)
        at += theta.size
    return longest


def is_constant(term: Term) -> bool:
    """Return whether the weights of a term are the same everywhere."""
    return term.kernel.is_constant


def varying_terms(prior: WeightPrior) -> list[Term]:
    """Return the terms of which any weight varies."""
    return [term for term in prior.terms if term.is_active and not is_constant(term)]


def _strides(needed: np.ndarray, shortest: np.ndarray) -> tuple[np.ndarray, float]:
    """Return odd strides of boxes in one dimension, and the half-width of the widest one.

    Each box has at least the half-width that it needs, and the number of functions is small.
    (g,), (g,) -> (g,), ()
    """
    least = float(needed.max())

    def odd(width: float) -> np.ndarray:
        whole = np.floor(width * (1.0 + WIDTH_ROUNDING) / needed).astype(int)
        narrower: np.ndarray = whole - (whole % 2 == 0)
        return narrower

    times = 2 * np.ceil(0.5 * (least / needed - 1.0)).astype(int) + 1
    widths = np.concatenate([[least], times * needed])
    functions = [(width / (odd(width) * shortest)).sum() for width in widths]
    widest = float(widths[int(np.argmin(functions))])
    return odd(widest), widest
