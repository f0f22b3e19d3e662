"""The covariance of the weights at queries with the data, and matrices of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..data.features import Features
from ..kernels.kernel import Kernel, Prepared
from ..runtime.parallel import TILE_ROWS, slices
from ..runtime.session import Session
from .cross_block import CrossBlock
from .term import CONSTANT, VARYING


@dataclass(frozen=True)
class CrossCovariance:
    """The covariance of weights at queries with f at the training rows.

    Cov[w_l(x*_i), f_j] = sum_t variance_tl k_t(x*_i, x_j) z_jl. These are K = k(x*, X) (m, n) and
    Z (n, d) of the first term, with its kernel, the queries as it prepares them, and its variances,
    None if all are 1; `others` are the further terms. A term without a kernel is the noise of the
    queries' own weights. A covariance can be sliced by queries.
    """

    K: np.ndarray
    Z: Features
    kernel: Kernel | None
    points: Prepared
    weight_variances: np.ndarray | None = None
    part: str = VARYING
    others: tuple[CrossCovariance, ...] = ()

    def __len__(self) -> int:
        return len(self.K)

    def __getitem__(self, queries: slice | np.ndarray) -> CrossCovariance:
        others = tuple(other[queries] for other in self.others)
        return replace(self, K=self.K[queries], points=self.points[queries], others=others)

    @property
    def has_constants(self) -> bool:
        """Return whether any weight has a part that is the same everywhere."""
        return any(
            one.part == CONSTANT and one.weight_variances is not None and one.weight_variances.any()
            for one in self.of_terms
        )

    @property
    def varying_terms(self) -> CrossCovariance | None:
        """Return the covariance without constant parts, None if there is nothing else."""
        return _sum_of([one for one in self.of_terms if one.part != CONSTANT])

    def of_part(self, part: str) -> CrossCovariance:
        """Return the covariance of one part of the weights with f."""
        found = _sum_of([one for one in self.of_terms if one.part == part])
        if found is None:
            none = np.zeros(self.Z.shape[1])
            return replace(self, weight_variances=none, part=part, others=())
        return found

    def variance(self) -> np.ndarray:
        """Return the prior variance of each weight of a query, without its noise.

        It is k(x*, x*) (m,) for weights that share their prior, and else (m, d).
        """
        # The noise of the weights has no kernel, and may be all that is left of a part.
        if self.kernel is not None and self.weight_variances is None and not self.others:
            return self.kernel.diagonal(self.points)
        total = np.zeros((len(self), self.Z.shape[1]))
        for one in self.of_terms:
            if one.kernel is not None and one.weight_variances is not None:
                total += one.kernel.diagonal(one.points)[:, None] * one.weight_variances
        return total

    def weights(self, alpha: np.ndarray, session: Session) -> np.ndarray:
        """Return sum_j Cov[w_l(x*_i), f_j] alpha_j = sum_t (K_t diag(alpha) Z Lambda_t)_il.

        (n,) -> (m, d);  2 m n d flops per term.
        """
        found: np.ndarray = self.Z.scale_rows(alpha).left_multiply(self.K, session)
        if self.weight_variances is not None:
            found = found * self.weight_variances
        for other in self.others:
            found += other.weights(alpha, session)
        return found

    def along(self, A: Features) -> np.ndarray:
        """Return Cov[a_i . w(x*_i), f_j];  (m, d) -> (m, n);  2 m n d flops per term."""
        own = A if self.weight_variances is None else A.scale_columns(self.weight_variances)
        covariance: np.ndarray = self.K * own.inner_products(self.Z)
        for other in self.others:
            covariance += other.along(A)
        return covariance

    @property
    def of_terms(self) -> tuple[CrossCovariance, ...]:
        """Return the covariance of each term by itself."""
        return tuple(replace(one, others=()) for one in (self, *self.others))

    def interest(self) -> np.ndarray:
        """Return the length of the vector Cov[w(x*_i), f_j] of all weights;  (m, n).

        2 m n d flops per term.
        """
        if self.weight_variances is None and not self.others:
            lengths: np.ndarray = self.K * np.sqrt(self.Z.squared_norms())
            return lengths
        if self.Z.is_sparse:
            return np.asarray(np.sqrt(self._squared_interest()))
        return np.array([np.linalg.norm(one.of_all_weights()[0], axis=0) for one in self._each()])

    def _squared_interest(self) -> np.ndarray:
        """Return the squares of `interest` from products of pairs of terms;  (m, n)."""
        total = np.zeros(self.K.shape)
        variances = [
            np.ones(self.Z.shape[1]) if one.weight_variances is None else one.weight_variances
            for one in self.of_terms
        ]
        for one, own in zip(self.of_terms, variances, strict=True):
            for other, others in zip(self.of_terms, variances, strict=True):
                total += one.K * other.K * self.Z.squares_times(own * others)
        return total

    def _each(self) -> Iterator[CrossCovariance]:
        """Yield the covariance of each query by itself, as those of all take m d n numbers."""
        return (self[i : i + 1] for i in range(len(self)))

    def of_all_weights(self) -> np.ndarray:
        """Return Cov[w_l(x*_i), f_j] for all i, l and j;  (m, d, n)."""
        found = self.Z.columns_times(self.K)
        if self.weight_variances is not None:
            found *= self.weight_variances[:, None]
        for other in self.others:
            found += other.of_all_weights()
        return found


def _sum_of(terms: list[CrossCovariance]) -> CrossCovariance | None:
    """Return the sum of the covariances of single terms, None if there are none."""
    return replace(terms[0], others=tuple(terms[1:])) if terms else None


def kernel_matrix(
    kernel: Kernel,
    a: Prepared,
    b: Prepared,
    session: Session,
    Z: tuple[Features, Features] | None = None,
) -> np.ndarray:
    """Return k(a_i, b_j) of prepared rows, times <z_i, z_j> if Z of both is given;  (m, n).

    Tiles are computed in parallel.
    """
    out = np.empty((len(a), len(b)))
    if (block := CrossBlock.of(kernel, a, b, Z, session.executor.n_jobs)) is not None:
        block.fill(out)
        return out

    def fill(tile: tuple[slice, slice]) -> None:
        rows, cols = tile
        shape = rows.stop - rows.start, cols.stop - cols.start
        block = np.ones(shape) if Z is None else Z[0][rows].inner_products(Z[1][cols])
        kernel.multiply(a[rows], b[cols], block)
        out[tile] = block

    session.executor.map(
        fill, [(r, c) for r in slices(len(a), TILE_ROWS) for c in slices(len(b), 4 * TILE_ROWS)]
    )
    return out
