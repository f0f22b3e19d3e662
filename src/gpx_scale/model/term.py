"""A term of the prior of the weights: a kernel, and the variance that each weight has of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..data.features import Features
from ..kernels.kernel import Kernel
from ..runtime.arguments import LARGEST_PARAMETER
from ..runtime.state import must, must_be_numbers, stored

# The parts of a weight: the same everywhere; a curve of its own feature; and varying with all of x.
CONSTANT, OWN, VARYING = "constant", "own", "varying"
# The same from the most to the least flexible one.
PARTS = (VARYING, OWN, CONSTANT)


@stored
@dataclass(frozen=True)
class Term:
    """A Gaussian process for each weight, with a common kernel: g_l ~ GP(0, weight_variances_l k).

    `weight_variances` are (d,), or None if all of them are 1. A variance of 0 removes the term of
    that weight. Columns with the same number in `tied` (d,) have one variance together; None means
    that each column has its own. If several terms vary, each has a `name`, with which those of its
    parameters begin. The term is an `own` curve if its kernel reads the weight's own feature alone.
    """

    kernel: Kernel
    weight_variances: np.ndarray | None = None
    tied: np.ndarray | None = None
    name: str = ""
    own: bool = False

    @property
    def variances(self) -> np.ndarray:
        """Return the variances of weights that have priors of their own;  (d,)."""
        assert self.weight_variances is not None
        return self.weight_variances

    @property
    def part(self) -> str:
        """Return the name of the part of a weight that this term is."""
        if self.kernel.is_constant:
            return CONSTANT
        return OWN if self.own else VARYING

    @property
    def is_active(self) -> bool:
        """Return whether any weight has this term."""
        return self.weight_variances is None or bool(self.weight_variances.any())

    @cached_property
    def columns(self) -> np.ndarray:
        """Return the columns of Z whose weights have this term, in their order;  (d_t,)."""
        return np.flatnonzero(self.variances)

    @cached_property
    def _representatives(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first column of each free variance, and the variance of each of `columns`."""
        if self.tied is None:
            return self.columns, np.arange(self.columns.size)
        _, first, variance = np.unique(
            self.tied[self.columns], return_index=True, return_inverse=True
        )
        # Variances are in the order of their first columns.
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        return self.columns[first[order]], rank[variance]

    @property
    def variance_numbers(self) -> np.ndarray:
        """Return which of the free variances each of `columns` has;  (d_t,)."""
        return self._representatives[1]

    @property
    def free_variances(self) -> np.ndarray:
        """Return the variances that are parameters, one for all columns that are tied."""
        if self.weight_variances is None:
            return np.empty(0)
        free: np.ndarray = self.weight_variances[self._representatives[0]]
        return free

    @property
    def parameter_columns(self) -> np.ndarray:
        """Return the first column of Z of each of the free variances."""
        return np.empty(0, int) if self.weight_variances is None else self._representatives[0]

    @property
    def prefix(self) -> str:
        """Return what the names of its parameters begin with."""
        return f"{self.name}." if self.name else ""

    def with_free_variances(self, free: np.ndarray) -> Term:
        """Return this term with other values of its free variances."""
        if self.weight_variances is None:
            return self
        variances = np.zeros_like(self.weight_variances)
        variances[self.columns] = free[self._representatives[1]]
        return replace(self, weight_variances=variances)

    def alone(self, columns: np.ndarray, name: str) -> Term:
        """Return this term for the weights of some columns only, under a name of its own."""
        variances = np.zeros_like(self.variances)
        variances[columns] = self.variances[columns]
        return replace(self, weight_variances=variances, name=name)

    def with_variance(self, column: int, variance: float) -> Term:
        """Return this term with another variance of one weight, and of those tied to it."""
        variances = self.variances.copy()
        at = column if self.tied is None else self.tied == self.tied[column]
        variances[at] = variance
        return replace(self, weight_variances=variances)

    def along_free_variances(self, along_columns: np.ndarray) -> np.ndarray:
        """Return derivatives by the log free variances from those by the log variances.

        (d_t, ...) -> (f, ...)
        """
        if self.weight_variances is None or not self.is_active:
            return along_columns[:0]
        if self.tied is None:
            return along_columns
        first, variance = self._representatives
        total = np.zeros((first.size, *along_columns.shape[1:]))
        np.add.at(total, variance, along_columns)
        return total

    def scaled(self, Z: Features) -> Features:
        """Return Z Lambda^1/2, without columns of variance 0;  (n, d) -> (n, d_t).

        A term that no weight has gets one column of zeros, because BLAS takes no empty matrix.
        """
        if self.weight_variances is None:
            return Z
        columns = self.columns if self.is_active else np.zeros(1, int)
        roots = np.sqrt(self.weight_variances[columns]).astype(Z.arrays[-1].dtype)
        return Z.at_columns(columns).scale_columns(roots)

    def must_fit(self, d: int) -> None:
        """Raise a ValueError unless the variances, read from a file, are those of d weights."""
        if self.weight_variances is None:
            must(self.tied is None, "it ties weights that have no variances")
            return
        must_be_numbers(self.weight_variances, (d,), "the variances of the weights")
        inside = (self.weight_variances >= 0) & (self.weight_variances <= LARGEST_PARAMETER)
        must(inside.all(), "a variance of the weights is out of range")
        if self.tied is not None:
            whole = self.tied.dtype.kind == "i" and self.tied.shape == (d,)
            must(whole, "the columns that share a variance are not numbered")
            tied = self.weight_variances[self.tied.argsort(kind="stable")]
            same = np.diff(np.sort(self.tied)) == 0
            must((np.diff(tied)[same] == 0).all(), "columns that are tied have other variances")
