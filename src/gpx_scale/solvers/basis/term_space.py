"""Functions and sums over rows for weights that have priors of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...data.inputs import InputRows, Preprocessor
from ...model.hyperparameters import Hyperparameters
from ...model.weight_prior import WeightPrior
from ...runtime.state import must, must_be_numbers, stored
from .marginal_likelihood import (
    ROUNDING_SHARE,
    Densities,
    GramAt,
    NoiseRatio,
    relative_slopes,
)
from .sufficient_statistics import Nodes
from .term_statistics import GramSums, TermStatistics
from .weight_functions import WeightFunctions, is_constant


@stored
@dataclass(frozen=True)
class RowAverages:
    """Averages over some of the rows, with which remainders of several weights become one number.

    `mean_squares` has the mean square of each function of each set (q,), and `shares` (d,) those of
    |z|^2 that each column of Z has.
    """

    mean_squares: tuple[np.ndarray, ...]
    shares: np.ndarray

    @classmethod
    def of(cls, functions: WeightFunctions, some: InputRows) -> RowAverages:
        """Return the averages over some rows."""
        squares = np.square(some.Z.to_dense()).sum(axis=0)
        total = squares.sum()
        shares = squares / total if total > 0 else np.full(squares.size, 1.0 / squares.size)
        means = tuple(np.square(one.functions(some.x)).mean(axis=0) for one in functions.sets)
        return cls(means, shares)

    def ratio(self, functions: WeightFunctions, hyperparameters: Hyperparameters) -> NoiseRatio:
        """Return the ratio of the noise of the weights, with the remainder, to that of y.

        Each weight has a remainder of its own, which is the share of the prior variance that its
        functions leave out. In D, all of them have the mean, weighted by the shares.
        """
        prior, sigma_w_var = hyperparameters.weight_prior, hyperparameters.sigma_w**2
        remainder, along = self._remainder(functions, prior)
        noise = sigma_w_var + remainder
        per = 1.0 / noise if noise else 0.0
        tail = np.array([2.0 * per * sigma_w_var, -2.0])
        return NoiseRatio(
            noise / hyperparameters.sigma_y**2, np.concatenate([per * prior.packed(along), tail])
        )

    def _remainder(
        self, functions: WeightFunctions, prior: WeightPrior
    ) -> tuple[float, list[tuple[np.ndarray, np.ndarray]]]:
        """Return the mean remainder, and its derivatives for each active term.

        These are by the kernel's parameters, and by the log variances of the term's columns.
        """
        number_of = {weight: number for number, weight, _ in functions.columns}
        total, along = 0.0, []
        for term in prior.active:
            of_kernel = np.zeros(term.kernel.theta.size)
            of_columns = np.zeros(term.columns.size)
            origin = term.kernel.prepare(np.zeros((1, functions.p)))
            whole = float(term.kernel.diagonal(origin)[0])
            for k, weight in enumerate([] if is_constant(term) else term.columns.tolist()):
                number = number_of[weight]
                s, slopes = term.kernel.spectral_density(functions.sets[number].omega)
                mean_square = self.mean_squares[number]
                left = whole - float(mean_square @ s)
                if left >= ROUNDING_SHARE * whole:
                    factor = self.shares[weight] * term.variances[weight]
                    total += factor * left
                    of_columns[k] = factor * left
                    whole_along = term.kernel.diagonal_gradient(origin)[0]
                    of_kernel += factor * (whole_along - mean_square @ slopes)
            along.append((of_kernel, of_columns))
        return total, along


@stored
@dataclass(frozen=True)
class TermSpace:
    """The functions and sums over rows that serve a range of hyperparameters."""

    functions: WeightFunctions
    averages: RowAverages
    nodes: Nodes
    sums: TermStatistics

    @cached_property
    def _gram(self) -> GramSums:
        return GramSums(self.functions)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_gram"}

    def covers_lengths(self, hyperparameters: Hyperparameters) -> bool:
        """Return whether there are functions for these length scales."""
        prior = hyperparameters.weight_prior
        return not prior.is_shared and self.functions.covers(prior)

    def covers(self, hyperparameters: Hyperparameters) -> bool:
        """Return whether functions and nodes serve these hyperparameters."""
        fit = self.covers_lengths(hyperparameters)
        return fit and self.nodes.covers(self.ratio(hyperparameters).value)

    @property
    def size(self) -> int:
        """Return M, the number of functions of all weights."""
        return int(self.functions.owners.size)

    @property
    def rows(self) -> int:
        """Return the number of rows that the sums are over."""
        return self.sums.rows

    @property
    def d(self) -> int:
        """Return the number of weights."""
        return self.functions.d

    @property
    def centre(self) -> np.ndarray:
        """Return the centre of all boxes;  (p,)."""
        sets = self.functions.sets
        return sets[0].box.centre if sets else np.zeros(self.functions.p)

    def with_rows(self, more: TermStatistics, node: Nodes) -> TermSpace:
        """Return a space with the sums over more rows, at one node only."""
        weights, _ = self.nodes.at(node.rho[0])
        total = TermStatistics(self.rows, (weights @ self.sums.sums)[None])
        total += more
        return replace(self, nodes=node, sums=total)

    def ratio(self, hyperparameters: Hyperparameters) -> NoiseRatio:
        """Return the noise of the weights, with the remainder, over that of y."""
        return self.averages.ratio(self.functions, hyperparameters)

    def densities(self, hyperparameters: Hyperparameters) -> Densities:
        """Return the prior variances of the coefficients."""
        s, slopes = self.functions.densities(hyperparameters.weight_prior)

        def collected(along: np.ndarray, relative: np.ndarray) -> np.ndarray:
            along_theta: np.ndarray = along @ relative
            return along_theta

        return Densities(s, relative_slopes(s, slopes), collected)

    def gram_at(self, weights: np.ndarray) -> GramAt:
        """Return the sums over rows, interpolated with these weights of the nodes."""
        return self._gram.at(weights @ self.sums.sums)

    def must_fit(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless functions and sums have the sizes of these inputs."""
        functions, averages = self.functions, self.averages
        functions.must_fit(preprocessor.n_x, preprocessor.n_weights)
        self.nodes.must_be_nodes()
        # Cosines are counted before functions are listed, as a damaged file could claim very many.
        sums = self.sums.sums
        cosines = sum(pair.frequencies for _, _, pair in functions.pairs)
        must(sums.ndim == 2 and cosines <= sums.shape[1], "it has fewer sums than cosines")
        must(len(averages.mean_squares) == len(functions.sets), "a set has no mean squares")
        for means, one in zip(averages.mean_squares, functions.sets, strict=True):
            must_be_numbers(means, (len(one),), "the mean squares of the functions")
        must_be_numbers(averages.shares, (functions.d,), "the shares of the columns of Z")
        must_be_numbers(sums, (self.nodes.count, self._gram.size), "the sums over rows")
        must(self.sums.rows >= 1, "the sums are over no rows")
