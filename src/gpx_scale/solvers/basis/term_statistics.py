"""Sums over rows for the functions of weights that have priors of their own.

They are those of `sufficient_statistics`, at the same nodes, for all pairs of the sets of functions
and of the constant ones. All of them are sums over rows of h, a product of two columns of [Z, y],
and a function of x: the cosine of a frequency, a function of a set, or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ...data.features import DenseFeatures
from ...data.inputs import TrainingRows
from ...runtime.parallel import slices
from ...runtime.state import stored
from .laplacian_basis import functions_in
from .marginal_likelihood import GramAt
from .sufficient_statistics import ROWS_AT_ONCE, Nodes
from .weight_functions import FunctionPair, WeightFunctions

# The sums that belong to no function: log(1 + rho |z|^2), h y^2, h and h^2.
PLAIN = 4


@dataclass(frozen=True)
class Part:
    """Sums of products of columns `first` and `second` (u,) of [Z, y] with `width` functions of x.

    `functions` maps x (n, p) to tables whose products are these functions, a function for each
    choice of one column from every table. `at` are the places of the sums.
    """

    first: np.ndarray
    second: np.ndarray
    functions: Callable[[np.ndarray], list[np.ndarray]]
    width: int
    at: slice

    def of(self, sums: np.ndarray) -> np.ndarray:
        """Return these sums among all of them;  (k,) -> (u, width)."""
        found: np.ndarray = sums[self.at].reshape(self.first.size, self.width)
        return found

    def add(self, zy: np.ndarray, h: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        """Add the sums over some rows, for each column of h;  (n, d + 1), (n, r), (n, p), (r, k).

        2 r u width flops per row.
        """
        *tables, last = self.functions(x)
        weighed = h
        # The products with the last table are those of a matrix product, so that the products of
        # all tables are never formed.
        for table in (zy[:, self.first] * zy[:, self.second], *tables):
            weighed = (weighed[:, :, None] * table[:, None, :]).reshape(len(zy), -1)
        out[:, self.at] += (weighed.T @ last).reshape(h.shape[1], -1)


def ones(x: np.ndarray) -> list[np.ndarray]:
    """Return the function that is 1 everywhere;  (n, p) -> (n, 1)."""
    return [np.ones((len(x), 1))]


class Parts:
    """The parts of sums over rows, one after another, from the place `start` on."""

    def __init__(self, start: int = 0) -> None:
        self.all: list[Part] = []
        self.size = start

    def add(
        self,
        first: np.ndarray,
        second: np.ndarray,
        functions: Callable[[np.ndarray], list[np.ndarray]],
        width: int,
    ) -> Part:
        """Add a part, and return it."""
        at = slice(self.size, self.size + first.size * width)
        part = Part(first, second, functions, width, at)
        self.all.append(part)
        self.size = at.stop
        return part


@dataclass(frozen=True)
class Block:
    """A block of W^T H W, where W has the functions of all columns, and `of` makes it from sums.

    It is below the diagonal, or on it.
    """

    rows: slice
    columns: slice
    of: Callable[[np.ndarray], np.ndarray]


class GramSums:
    """The sums over rows from which W^T H W and W^T H y follow, for H = diag(h).

    `parts` say where they are among `size` sums; `blocks` make the matrix.
    """

    def __init__(self, functions: WeightFunctions) -> None:
        parts, self.blocks = Parts(PLAIN), []
        self._of_y: list[tuple[slice, Part]] = []
        sets, constants, y = functions.sets, functions.constants, functions.d
        columns = [
            [at for number, _, at in functions.columns if number == k] for k in range(len(sets))
        ]
        start = functions.first_constant
        for a, b, pair in functions.pairs:
            left, right = (
                np.triu_indices(sets[a].weights.size)
                if a == b
                else np.indices((sets[a].weights.size, sets[b].weights.size)).reshape(2, -1)
            )
            weights = sets[a].weights[left], sets[b].weights[right]
            part = parts.add(*weights, pair.cosines, pair.frequencies)
            for k, (l, m) in enumerate(zip(left, right, strict=True)):
                made = partial(_products, pair, part, k)
                self.blocks.append(Block(columns[b][m], columns[a][l], made))
        rows = slice(start, start + constants.size)
        for one, of_weights in zip(sets, columns, strict=True):
            count = one.weights.size
            first = np.concatenate([one.weights, np.repeat(one.weights, constants.size)])
            second = np.concatenate([np.full(count, y), np.tile(constants, count)])
            part = parts.add(first, second, one.table, len(one))
            self._of_y.append((slice(of_weights[0].start, of_weights[-1].stop), part))
            for k, at in enumerate(of_weights if constants.size else []):
                some = slice(count + k * constants.size, count + (k + 1) * constants.size)
                self.blocks.append(Block(rows, at, partial(rows_of, part, some)))
        if constants.size:
            first = np.concatenate([constants, np.repeat(constants, constants.size)])
            second = np.concatenate(
                [np.full(constants.size, y), np.tile(constants, constants.size)]
            )
            part = parts.add(first, second, ones, 1)
            self._of_y.append((rows, part))
            self.blocks.append(Block(rows, rows, partial(_square, part, constants.size)))
        self.parts, self.size = parts.all, parts.size

    def at(self, sums: np.ndarray) -> GramAt:
        """Return the sums over rows at one rho, from all of them;  (k,)."""
        made = [(block.rows, block.columns, partial(block.of, sums)) for block in self.blocks]
        return GramAt(sums[:PLAIN], self.products_with_y(sums), made)

    def products_with_y(self, sums: np.ndarray) -> np.ndarray:
        """Return W^T H y;  (k,) -> (M,)."""
        found = np.empty(max(at.stop for at, _ in self._of_y))
        for at, part in self._of_y:
            # The products with y come first in their part.
            found[at] = part.of(sums).ravel()[: at.stop - at.start]
        return found


def _products(pair: FunctionPair, part: Part, k: int, sums: np.ndarray) -> np.ndarray:
    """Return the block for two weights, with the functions of the second one in its rows."""
    return pair.gram(part.of(sums)[k]).T


def rows_of(part: Part, rows: slice, sums: np.ndarray) -> np.ndarray:
    """Return some rows of a part."""
    return part.of(sums)[rows]


def _square(part: Part, count: int, sums: np.ndarray) -> np.ndarray:
    """Return a part, without its products with y, as a square matrix."""
    return part.of(sums)[count:].reshape(count, count)


def number_of_sums(functions: WeightFunctions) -> int:
    """Return about how many sums over rows there are, without listing the functions."""
    d_c, found = (
        functions.constants.size,
        PLAIN + functions.constants.size * (functions.constants.size + 1),
    )
    for a, b, pair in functions.pairs:
        left, right = functions.sets[a].weights.size, functions.sets[b].weights.size
        found += pair.frequencies * (left * (left + 1) // 2 if a == b else left * right)
    for one in functions.sets:
        found += one.weights.size * (1 + d_c) * int(functions_in(one.box.counts))
    return found


@stored
@dataclass
class TermStatistics:
    """The sums over rows at each of r nodes, which interpolate to any rho;  (r, k)."""

    rows: int
    sums: np.ndarray

    def __iadd__(self, other: TermStatistics) -> TermStatistics:
        self.rows += other.rows
        self.sums += other.sums
        return self


@dataclass(frozen=True)
class BlockTermStatistics:
    """The task that maps a block of rows to its `TermStatistics`.

    If `within` is true, rows beyond a box or near its edge are refused, because the boxes were not
    built for them.
    """

    functions: WeightFunctions
    nodes: Nodes
    within: bool = False

    @cached_property
    def _gram(self) -> GramSums:
        return GramSums(self.functions)

    def __call__(self, block: TrainingRows) -> TermStatistics:
        if self.within:
            self.functions.must_hold(block.x)
        found = np.zeros((self.nodes.count, self._gram.size))
        for rows, zy, squared in chunks_of(block):
            scaled = squared[:, None] * self.nodes.rho
            h = 1.0 / (1.0 + scaled)
            of_y = zy[:, -1] ** 2 @ h
            plain = np.log1p(scaled).sum(axis=0), of_y, h.sum(axis=0), (h**2).sum(axis=0)
            found[:, :PLAIN] += np.column_stack(plain)
            for part in self._gram.parts:
                part.add(zy, h, block.x[rows], found)
        return TermStatistics(len(block), found)

    def __getstate__(self) -> dict[str, object]:
        # Functions of functions cannot be sent to the workers of a cluster, and are made again.
        return {name: value for name, value in self.__dict__.items() if name != "_gram"}


def chunks_of(block: TrainingRows) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Return chunks of a block of rows: their numbers, [Z, y], and |z|^2."""
    assert isinstance(block.Z, DenseFeatures)
    for rows in slices(len(block), ROWS_AT_ONCE):
        zy = np.column_stack([block.Z.array[rows], block.y[rows]])
        yield rows, zy, block.Z[rows].squared_norms()
