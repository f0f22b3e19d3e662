"""The covariance of a sparse Z whose weights have priors of their own, on pairs of rows.

    C_ij = sum_t k_t(x_i, x_j) <z_i, Lambda_t z_j> + D_ij

Rows that share no feature have C_ij = 0 whatever the variances are, so the list of pairs serves all
hyperparameters. Each term has inner products of its own, which are computed anew for other
variances: that takes an addition for each entry of a pair's second row. A constant term needs
nothing else, as its kernel is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..compiled import pair_variances
from ..data.features import SparseFeatures
from ..data.inputs import TrainingRows
from ..model.hyperparameters import Hyperparameters
from ..model.term import Term
from ..model.weight_prior import WeightPrior
from ..runtime.session import Session
from ..runtime.tile_loops import tile_threads
from .pairs import Pairs
from .sparse_covariance import PairCovariance, PairKernel

# Entries of rows that one call reads: less than a second of one core, so that Ctrl-C is noticed.
CALL_ENTRIES = 2e8


@dataclass(frozen=True)
class PairTerm:
    """A term on the pairs: its features Z Lambda^1/2, and their inner products as `pairs.inner`."""

    term: Term
    rows: TrainingRows
    pairs: Pairs

    @classmethod
    def of(cls, term: Term, data: TrainingRows, pairs: Pairs, session: Session) -> PairTerm:
        """Return a term with its inner products;  an addition for each entry of each pair."""
        rows = replace(data, Z=term.scaled(data.Z))
        made = cls(term, rows, replace(pairs, inner=np.empty(len(pairs))))
        with tile_threads(session.executor.n_jobs) as threads:
            for rounds, _ in pairs.parts(CALL_ENTRIES / rows.Z.entries_per_row):
                where = pairs.tiles_of(rounds), pairs.blocks, pairs.runs, pairs.columns
                threads.run(
                    pair_variances.pair_inner,
                    *(*where[0], *where[1:], *made.entries, made.pairs.inner),
                )
        return made

    @property
    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Return the scaled features as loops take them."""
        Z = self.rows.Z
        assert isinstance(Z, SparseFeatures)
        return Z.pointers, Z.indices, Z.values, Z.d

    def along_diagonal(self, weights: np.ndarray) -> np.ndarray:
        """Return sum_i weights_i z_il^2 of all columns l;  (n,) -> (d_t,)."""
        Z = self.rows.Z
        assert isinstance(Z, SparseFeatures)
        values = np.repeat(weights, Z.counts) * Z.values[Z.span] ** 2
        return np.asarray(np.bincount(Z.indices[Z.span], values, minlength=Z.d))

    def alone(self, hyperparameters: Hyperparameters, session: Session) -> PairCovariance:
        """Return the covariance of this term, as if it were that of weights that share a prior.

        Its derivatives by the parameters of the kernel are those of this term.
        """
        prior = WeightPrior.of(self.term.kernel, hyperparameters.sigma_w)
        given = replace(hyperparameters, weight_prior=prior)
        return PairCovariance(self.rows, given, session, np.float64, self.pairs)


@dataclass(frozen=True)
class PairTermsCovariance(PairCovariance):
    """The covariance C of a sum of terms on the pairs of rows that share a feature."""

    of_terms: tuple[PairTerm, ...] = field(kw_only=True)

    @staticmethod
    def terms_of(
        data: TrainingRows, prior: WeightPrior, pairs: Pairs, session: Session
    ) -> tuple[PairTerm, ...]:
        """Return the active terms of a prior on the pairs."""
        return tuple(PairTerm.of(term, data, pairs, session) for term in prior.active)

    def _fill(self, kernel: PairKernel, span: slice, out: np.ndarray) -> None:
        """Write the values S of some pairs into `out`;  one kernel value for each term."""
        out[...] = 0.0
        for one in self.of_terms:
            if one.term.kernel.is_constant:
                out += one.pairs.inner[span]
                continue
            values = np.empty_like(out)
            own = replace(kernel, kernel=one.term.kernel)
            own.values(self.pairs.squared[span], one.pairs.inner[span], values)
            out += values

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return sum_c u_c^T (dC/dtheta) v_c for every parameter;  (n, c), (n, c) -> (t,).

        Beside what a shared prior takes, 2 c flops per pair, and an addition for each entry.
        """
        U, V = np.ascontiguousarray(U, float), np.ascontiguousarray(V, float)
        both = np.einsum("ij,ij->i", U, V)
        along = []
        for one in self.of_terms:
            count = one.term.variance_numbers.max(initial=-1) + 1
            sums = np.zeros((len(self.pairs.blocks.tiles), count))
            self._over(one, pair_variances.contract_variances, U, V, sums)
            own = both * one.term.kernel.diagonal(one.term.kernel.prepare(self.rows.x))
            of_columns = one.term.along_free_variances(one.along_diagonal(own))
            of_kernel = np.empty(0)
            if one.term.is_active and one.term.kernel.theta.size:
                found = one.alone(self.hyperparameters, self.session).contract(U, V)
                of_kernel = found[: one.term.kernel.theta.size]
            along.append((of_kernel, sums.sum(axis=0) + of_columns))
        return np.concatenate([self._joined(along), both @ self.noise_gradient])

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dC/dtheta_t) v for every parameter;  (n,) -> (n, t)."""
        v = np.ascontiguousarray(v, float)
        along = []
        for one in self.of_terms:
            kernel, numbers = one.term.kernel, one.term.variance_numbers
            out = np.zeros((len(v), numbers.max(initial=-1) + 1))
            self._over(one, pair_variances.add_variance_tangents, v, out)
            own = v * kernel.diagonal(kernel.prepare(self.rows.x))
            of_variance = np.zeros((numbers.size, out.shape[1]))
            of_variance[np.arange(numbers.size), numbers] = 1.0
            if numbers.size:
                out += own[:, None] * (one.rows.Z.squares_times(of_variance))
            of_kernel = np.empty((0, len(v)))
            if one.term.is_active and kernel.theta.size:
                found = one.alone(self.hyperparameters, self.session).tangents(v)
                of_kernel = found[:, : kernel.theta.size].T
            along.append((of_kernel, out.T))
        return np.hstack([self._joined(along).T, v[:, None] * self.noise_gradient])

    def _joined(self, along: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return derivatives by all parameters but sigma_w from those of each term.

        These are by the parameters of a kernel, and by the free variances.
        """
        return np.concatenate([*(one for one, _ in along), *(other for _, other in along)])

    def _over(self, one: PairTerm, loop: Any, *arguments: np.ndarray) -> None:
        """Run a loop by the free variances of a term, part by part of the pairs."""
        numbers = one.term.variance_numbers
        if not numbers.size:
            return
        with self._loops() as (threads, kernel):
            own = replace(kernel, kernel=one.term.kernel)
            for rounds, span, room in self._parts(2):
                K, ones = room
                ones[...] = 1.0
                if one.term.kernel.is_constant:
                    K[...] = 1.0
                else:
                    own.values(self.pairs.squared[span], ones, K)
                where = *rounds, *self.pairs.listed(span)
                threads.run(loop, *where, K, *one.entries, numbers, *arguments)
