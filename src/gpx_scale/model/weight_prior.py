"""The prior of the weights, the one place where the readable features Z and the kernel meet.

    w_l(x) = sum_t g_tl(x) + e_l,    g_tl ~ GP(0, variance_tl k_t),    e_l ~ N(0, sigma_w^2)
    f(x)   = w(x).z
    S_ij   = Cov[f_i, f_j] without e = sum_t k_t(x_i, x_j) <z_i, Lambda_t z_j>

where Lambda_t is the diagonal matrix of the variances of term t. Only one term whose variances are
1 is implemented, which is the paper's model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.features import Features
from ..data.inputs import InputRows
from ..errors import NotPositiveDefinite
from ..kernels.kernel import Kernel, Prepared
from ..runtime.arguments import LARGEST_SQUARE
from ..runtime.parallel import TILE_ROWS, slices
from ..runtime.session import Session
from ..runtime.state import stored
from .cross_block import CrossBlock


@stored
@dataclass(frozen=True)
class Term:
    """A Gaussian process for each weight, with a common kernel: g_l ~ GP(0, weight_variances_l k).

    `weight_variances` are (d,), or None if all of them are 1.
    """

    kernel: Kernel
    weight_variances: np.ndarray | None = None


def variances(weight_variance: np.ndarray | float, Z: Features) -> np.ndarray:
    """Return weight_variance_i |z_i|^2, or raise an error if float64 cannot represent it.

    (n,), (n, d) -> (n,). A search treats the error like a missing Cholesky factor: it tries another
    point.
    """
    with np.errstate(over="ignore"):
        found: np.ndarray = weight_variance * Z.squared_norms()
    if found.max(initial=0.0) > LARGEST_SQUARE:
        raise NotPositiveDefinite(
            f"The variance of the weights times |z|^2 is {found.max():.1e}, which leaves float64. "
            "Rescale Z, or give a smaller sigma_w and theta1."
        )
    return found


@dataclass(frozen=True)
class PreparedRows:
    """Rows at given parameters: x as the kernel prepares it, and Z. It can be sliced by rows."""

    points: Prepared
    Z: Features

    def __len__(self) -> int:
        return len(self.Z)

    def __getitem__(self, rows: slice | np.ndarray) -> PreparedRows:
        return PreparedRows(self.points[rows], self.Z[rows])


@stored
@dataclass(frozen=True)
class WeightPrior:
    """The prior of the weights: its terms, and the standard deviation sigma_w of their noise."""

    terms: tuple[Term, ...]
    sigma_w: float

    @classmethod
    def of(cls, kernel: Kernel, sigma_w: float) -> WeightPrior:
        """Return the paper's prior: all weights have this kernel."""
        return cls((Term(kernel),), sigma_w)

    @property
    def kernel(self) -> Kernel:
        """Return the kernel that all weights share."""
        (term,) = self.terms
        return term.kernel

    @property
    def theta(self) -> np.ndarray:
        """Return the logarithms of the kernels' parameters and of sigma_w;  (t + 1,)."""
        with np.errstate(divide="ignore"):  # sigma_w = 0 is allowed. Its logarithm is -inf.
            log_sigma_w = np.log([self.sigma_w])
        return np.concatenate([*(term.kernel.theta for term in self.terms), log_sigma_w])

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        """Return the kind of each entry of `theta`."""
        return (*(kind for term in self.terms for kind in term.kernel.parameter_kinds), "sigma")

    def with_theta(self, theta: np.ndarray) -> WeightPrior:
        """Return this prior with other parameters;  (t + 1,)."""
        terms, at = [], 0
        for term in self.terms:
            size = term.kernel.theta.size
            terms.append(replace(term, kernel=term.kernel.with_theta(theta[at : at + size])))
            at += size
        return WeightPrior(tuple(terms), float(np.exp(theta[at:]).tolist()[0]))

    def as_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""
        return {**self.kernel.as_dict(), "sigma_w": self.sigma_w}

    def prepare(self, rows: InputRows, dtype: Any = np.float64) -> PreparedRows:
        """Return rows in the form that `tile` and `contract` take, in this dtype;  O(n p)."""
        return PreparedRows(self.kernel.prepare(rows.x, dtype), rows.Z.astype(dtype))

    def tile(self, a: PreparedRows, b: PreparedRows, inner: np.ndarray | None = None) -> np.ndarray:
        """Return S between rows a and b;  (a, b);  2 d flops and one kernel value per entry.

        `inner` has the products <z_i, z_j> if the caller knows them already.
        """
        out = a.Z.inner_products(b.Z) if inner is None else inner.copy()
        self.kernel.multiply(a.points, b.points, out)
        return out

    def contract(
        self, a: PreparedRows, b: PreparedRows, weigh: Callable[[np.ndarray], None]
    ) -> np.ndarray:
        """Return sum_j W_ij dS_ij/dtheta for each row i of a;  (a, t).

        `weigh` multiplies a block (a, b) by W in place. It is a function and not the matrix W so
        that W can be computed and multiplied in one pass.
        """
        G = a.Z.inner_products(b.Z)
        weigh(G)
        return self.kernel.contract_gradient(a.points, b.points, G)

    def contract_matrix(
        self, a: PreparedRows, b: PreparedRows, W: np.ndarray, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sum_j W_ij dS_ij/dtheta for each row i of a, and the row sums of W o S.

        (a, b) -> (a, t), (a,);  one kernel value per entry, in parallel.
        """
        if (block := self._block(a, b, session)) is not None:
            return block.contract(W)
        return self._contract_tiles(a, b, lambda rows, cols: W[rows, cols], session)

    def contract_product(
        self, a: PreparedRows, b: PreparedRows, U: np.ndarray, V: np.ndarray, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of `contract_matrix` for W = U V^T, which is never stored.

        (a, c), (b, c) -> (a, t), (a,);  one kernel value and 2 c flops per entry, in parallel.
        """
        if (block := self._block(a, b, session)) is not None:
            return block.contract_product(U, V)
        return self._contract_tiles(a, b, lambda rows, cols: U[rows] @ V[cols].T, session)

    def _block(self, a: PreparedRows, b: PreparedRows, session: Session) -> CrossBlock | None:
        """Return the block between rows a and b; None if it has no compiled form."""
        return CrossBlock.of(self.kernel, a.points, b.points, (a.Z, b.Z), session.executor.n_jobs)

    def _contract_tiles(
        self,
        a: PreparedRows,
        b: PreparedRows,
        weights: Callable[[slice, slice], np.ndarray],
        session: Session,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of `contract_matrix` tile by tile, for kernels of any form.

        `weights` returns W of some rows and columns.
        """

        def one(rows: slice) -> tuple[np.ndarray, np.ndarray]:
            count = rows.stop - rows.start
            along, sums = np.zeros((count, self.kernel.theta.size)), np.zeros(count)
            for cols in slices(len(b), TILE_ROWS):
                G = a.Z[rows].inner_products(b.Z[cols])
                G *= weights(rows, cols)
                S = G.copy()
                self.kernel.multiply(a.points[rows], b.points[cols], S)
                sums += S.sum(axis=1)
                along += self.kernel.contract_gradient(a.points[rows], b.points[cols], G)
            return along, sums

        found = session.executor.map(one, slices(len(a), TILE_ROWS))
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    def contract_inputs(
        self, a: PreparedRows, b: PreparedRows, W: np.ndarray, weighed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return sum_j W_ij dS_ij by x_i and, if Z is dense, by z_i;  (a, b) -> (a, p), (a, d).

        `weighed` is W_ij <z_i, z_j>, which callers have already; it is overwritten.
        """
        by_z = None
        if not b.Z.is_sparse:
            K = np.array(W, order="C")
            self.kernel.multiply(a.points, b.points, K)
            by_z = K @ b.Z.to_dense()
        return self.kernel.contract_input_gradient(a.points, b.points, weighed), by_z

    def diagonal(self, a: PreparedRows) -> np.ndarray:
        """Return S_ii = k(x_i, x_i) |z_i|^2, analytically and not from products of rows;  (n,)."""
        return variances(self.kernel.diagonal(a.points), a.Z)

    def diagonal_gradient(self, a: PreparedRows) -> np.ndarray:
        """Return the derivatives of k(x_i, x_i) by theta, which is not yet dS_ii/dtheta;  (n, t).

        dS_ii/dtheta is |z_i|^2 times that.
        """
        return self.kernel.diagonal_gradient(a.points)

    def variance(self, x: Any) -> np.ndarray:
        """Return k(x, x), the prior variance of each weight without its noise, at x;  (m,)."""
        return self.kernel.diagonal(self.kernel.prepare(x))

    def joint(self, x: Any, A: Features, session: Session) -> np.ndarray:
        """Return the prior covariance of a_i . g(x_i) between all queries i;  (m, d) -> (m, m)."""
        points = self.kernel.prepare(x)
        joint = kernel_matrix(self.kernel, points, points, session, (A, A))
        joint[np.diag_indices(len(joint))] = self.kernel.diagonal(points) * A.squared_norms()
        return joint

    def cross(
        self, x: Any, rows: InputRows, session: Session, own: slice | None = None
    ) -> CrossCovariance:
        """Return Cov[g_l(x*_i), f_j] between queries and rows;  m n kernel values.

        If the queries are training rows whose own weights w_i = g(x_i) + e_i are asked for, `own`
        says which rows they are, and the covariance of e_i is added.
        """
        points = self.kernel.prepare(x)
        K = kernel_matrix(self.kernel, points, self.kernel.prepare(rows.x), session)
        if own is not None:
            K[np.arange(len(K)), np.arange(own.start, own.stop)] += self.sigma_w**2
        return CrossCovariance(K, rows.Z, self.kernel, points)


@dataclass(frozen=True)
class CrossCovariance:
    """The covariance of weights at queries with f at the training rows.

    Cov[w_l(x*_i), f_j] = k(x*_i, x_j) z_jl is kept as K = k(x*, X) (m, n) and Z (n, d), together
    with the kernel and the queries as it prepares them. It can be sliced by queries.
    """

    K: np.ndarray
    Z: Features
    kernel: Kernel
    points: Prepared

    def __len__(self) -> int:
        return len(self.K)

    def __getitem__(self, queries: slice | np.ndarray) -> CrossCovariance:
        return replace(self, K=self.K[queries], points=self.points[queries])

    def variance(self) -> np.ndarray:
        """Return k(x*, x*), the prior variance of each weight of a query;  (m,)."""
        return self.kernel.diagonal(self.points)

    def weights(self, alpha: np.ndarray, session: Session) -> np.ndarray:
        """Return sum_j Cov[w_l(x*_i), f_j] alpha_j = (K diag(alpha) Z)_il.

        (n,) -> (m, d);  2 m n d flops.
        """
        return self.Z.scale_rows(alpha).left_multiply(self.K, session)

    def along(self, A: Features) -> np.ndarray:
        """Return Cov[a_i . w(x*_i), f_j];  (m, d) -> (m, n);  2 m n d flops."""
        covariance: np.ndarray = self.K * A.inner_products(self.Z)
        return covariance

    def of_all_weights(self) -> np.ndarray:
        """Return Cov[w_l(x*_i), f_j] for all i, l and j;  (m, d, n)."""
        return self.Z.columns_times(self.K)


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
