"""Preconditioners P = D + F F^T, which make conjugate gradients converge in fewer iterations.

F F^T = S_nI S_II^-1 S_In is the Nystrom approximation of S from r pivot rows I. P is close to C in
the directions in which S has large eigenvalues, and P <= C.

The pivots are chosen once per fit, by a randomly pivoted Cholesky factorisation of S in blocks. At
other parameters, the same pivots give another F, so P changes smoothly with the parameters. The
pivots take n r^2 flops, F and its Gram matrix 2 n r^2, and each column that is solved 4 n r.

The columns of constant parts of the weights, C = V + B B^T, join those of the pivots: F = (F_V, B),
where F_V is that of the part V which varies. So P has them exactly.

With a sparse Z, the diagonal dominates C, so D_i is C_ii - |F_i|^2 and not the noise. Without
pivots, this is Jacobi's preconditioner. Such a P is not below C, so it gives no bound of the error
(the noise alone does). Its derivatives are not needed: they would reduce the variance of estimated
traces, but estimates from probes of random signs do not have that part of the variance.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_solve, get_lapack_funcs, solve_triangular

from ..compiled import low_rank as loops
from ..model.weight_prior import PreparedRows, WeightPrior
from ..runtime.parallel import slices
from ..runtime.session import Session
from ..runtime.tile_loops import tile_threads
from .cholesky import PIVOT_ROWS_JITTER, factor_in_parallel, inverse_in_parallel
from .covariance import Covariance
from .lower_tiles import CALL_FLOPS, LowerTiles, factor_in_tiles

# Pivots are drawn in blocks of this many, so that most flops are in matrix products. The value was
# chosen by hand.
PIVOT_BLOCK = 128
# Below this share of its trace, what the pivots leave of S is rounding error.
NEGLIGIBLE_SHARE = 1e-13
# The largest relative change of a number that is rounded to float32.
FLOAT32_ROUNDING = 2.0**-24
# G is float32 up to this squared Frobenius norm, the sum of S_ii / D_i that the pivots explain.
# There, rounding changes r.P^-1 r by at most 6e-4 of itself and of r.D^-1 r.
FLOAT32_SQUARED_NORM = 1e8


def choose_pivots(
    covariance: Covariance, rank: int, random: np.random.RandomState, below_noise: float = 0.0
) -> np.ndarray:
    """Return at most `rank` pivot rows, for a low-rank approximation of S;  (r,);  n r^2 flops.

    They are drawn in blocks, with probabilities in proportion to the diagonal of S minus that of
    the approximation so far. The choice ends early if that difference is on average at most
    `below_noise` times D_i. Within a block, a pivoted Cholesky factorisation drops rows that depend
    on others, such as duplicates.
    """
    n, session = len(covariance), covariance.session
    remainder = covariance.diagonal - covariance.noise
    enough, dependent = NEGLIGIBLE_SHARE * remainder.sum(), NEGLIGIBLE_SHARE * remainder
    F, chosen = np.empty((n, rank)), np.empty(0, int)
    while chosen.size < rank and remainder.sum() > enough:
        if chosen.size and np.mean(remainder / covariance.noise) <= below_noise:
            break
        odds = remainder / remainder.sum()
        size = min(PIVOT_BLOCK, rank - chosen.size, int(np.count_nonzero(odds)))
        block = random.choice(n, size, replace=False, p=odds)
        have = chosen.size
        G = covariance.columns(block)
        G -= session.executor.matmul(F[:, :have], F[block, :have].T)
        (pstrf,) = get_lapack_funcs(("pstrf",), (G,))
        L, order, good, _ = pstrf(G[block], lower=1)
        good = min(int(good), _leading(L.diagonal() ** 2 > dependent[block][order - 1]))
        keep = order[:good] - 1
        F[:, have : have + good] = right_solve(
            L[:good, :good], np.ascontiguousarray(G[:, keep]), session
        )
        remainder -= np.einsum("ij,ij->i", F[:, have : have + good], F[:, have : have + good])
        chosen = np.append(chosen, block[keep])
        remainder[remainder < dependent] = 0.0
        remainder[block] = 0.0
    return chosen


class Preconditioner(abc.ABC):
    """A matrix P close to C, with which conjugate gradients need fewer iterations.

    If it `bounds_from_below`, P <= C, and r.P^-1 r / 2 bounds the error of a solve in nats.
    """

    bounds_from_below: bool

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """Return the number of pivots, for messages."""

    @abc.abstractmethod
    def solve(self, R: np.ndarray) -> np.ndarray:
        """Return P^-1 R;  (n, c) -> (n, c)."""

    @abc.abstractmethod
    def draw(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return draws from N(0, P), made of standard normals (r, c) and (n, c);  (n, c)."""

    @abc.abstractmethod
    def log_determinant(self) -> float:
        """Return log|P|."""

    @abc.abstractmethod
    def error_bound_nats(self, R: np.ndarray, PR: np.ndarray) -> np.ndarray:
        """Return upper bounds of r.C^-1 r / 2 for residuals R, given PR = P^-1 R.

        (n, c), (n, c) -> (c,).
        """

    @abc.abstractmethod
    def trace_gradient(self) -> np.ndarray:
        """Return tr(P^-1 dP/dtheta) for every parameter;  (t,)."""

    @abc.abstractmethod
    def contract(self, V: np.ndarray) -> np.ndarray:
        """Return sum_c v_c^T (dP/dtheta) v_c for every parameter;  (n, c) -> (t,)."""

    @abc.abstractmethod
    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dP/dtheta_t) v for every parameter;  (n,) -> (n, t)."""


@dataclass(frozen=True)
class LowRankPreconditioner(Preconditioner):
    """The preconditioner P = D^1/2 (I + G G^T) D^1/2 = D + F F^T of r pivot rows.

    F = S_nI L^-T with S_II = L L^T, and G = D^-1/2 F, (n, r), is float64, or float32 if that is
    enough. Columns of constant weights follow those of the pivots, whose S has the terms that vary.
    If it `bounds_from_below`, D is the noise, and P <= C but for rounding: then
    (1 - rounding) P <= C. If not, D_i = C_ii - |F_i|^2.

    If G is rounded to float32, its entries change by at most u = 2^-24 times themselves, and P is
    the matrix of the rounded G. With t = u |G|, by the Frobenius norm, and H for the exact G,

        G G^T <= (1 + t) H H^T + (1 + 1/t) t^2 I,     I + G G^T <= (1 + t + t^2) (I + H H^T)

    and therefore (1 - t) (I + G G^T) <= I + H H^T. So `rounding` is t.
    """

    covariance: Covariance
    pivots: np.ndarray
    L: np.ndarray
    D: np.ndarray
    G: np.ndarray
    bounds_from_below: bool = True
    rounding: float = 0.0

    @classmethod
    def of(
        cls, covariance: Covariance, pivots: np.ndarray, bounds_from_below: bool = True
    ) -> LowRankPreconditioner:
        """Return the preconditioner of these pivot rows;  (r,);  n r kernel values, n r^2 flops.

        Rows whose weights have lost all of their variances are left out.
        """
        noise, n_jobs = covariance.noise, covariance.session.executor.n_jobs
        varying = covariance.varying
        if not covariance.weight_prior.is_shared:
            pivots = pivots[varying.diagonal[pivots] > noise[pivots]]
        F = varying.columns(pivots)
        L = F[pivots]
        if pivots.size:
            rows = f"The covariance of {pivots.size} pivot rows"
            failure = f"{rows} has no Cholesky factor. Check that the kernel is positive definite."
            L, _ = factor_in_parallel(L, L.diagonal().copy(), PIVOT_ROWS_JITTER, failure, n_jobs)
            F = right_solve(L, F, covariance.session)
        if covariance.constant_columns.size:
            F = np.hstack([F, covariance.constant_columns])
        explained = np.empty(len(F))
        with tile_threads(n_jobs) as threads:
            threads.run(loops.square_rows, F, explained)
            D = noise if bounds_from_below else np.maximum(covariance.diagonal - explained, noise)
            squared_norm = float((explained / D).sum())
            is_float32 = squared_norm <= FLOAT32_SQUARED_NORM
            G = np.empty(F.shape, np.float32 if is_float32 else np.float64)
            threads.run(loops.scale_rows, F, 1.0 / np.sqrt(D), G)
        rounding = FLOAT32_ROUNDING * np.sqrt(squared_norm) if is_float32 else 0.0
        return cls(covariance, pivots, L, D, G, bounds_from_below, float(rounding))

    @property
    def _theta_size(self) -> int:
        """Return the number of parameters of the prior, without sigma_w."""
        return self.covariance.weight_prior.theta.size - 1

    @property
    def rank(self) -> int:
        return int(self.G.shape[1])

    @property
    def F(self) -> np.ndarray:
        """Return D^1/2 G;  (n, r)."""
        F: np.ndarray = self._root[:, None] * self.G
        return F

    @cached_property
    def _root(self) -> np.ndarray:
        """Return D^1/2;  (n,)."""
        root: np.ndarray = np.sqrt(self.D)
        return root

    def error_bound_nats(self, R: np.ndarray, PR: np.ndarray) -> np.ndarray:
        """Return upper bounds of r.C^-1 r / 2, from P if P <= C, else from the noise alone.

        (n, c), (n, c) -> (c,). A float32 G makes r.P^-1 r wrong by less than 2 `rounding`
        r.D^-1 r, which is added.
        """
        by_noise = column_sums(R, R / self.covariance.noise[:, None])
        if not self.bounds_from_below:
            return 0.5 * by_noise
        by_P: np.ndarray = column_sums(R, PR) + 2.0 * self.rounding * by_noise
        return 0.5 / (1.0 - self.rounding) * by_P

    @property
    def session(self) -> Session:
        """Return the session of the covariance."""
        return self.covariance.session

    @property
    def _n_jobs(self) -> int:
        return self.session.executor.n_jobs

    @cached_property
    def inner_factor(self) -> np.ndarray:
        """Return the Cholesky factor of M = I + G^T G in the lower triangle of a matrix;  (r, r).

        It takes n r^2 flops. Entries above the diagonal are undefined.
        """
        M = np.empty((self.rank, self.rank))
        rows = -(-self.rank // loops.GRAM_TILE)
        tile_flops = 2.0 * len(self.G) * loops.GRAM_TILE**2
        step = max(1, int(CALL_FLOPS / tile_flops)) * self._n_jobs
        with tile_threads(self._n_jobs) as threads:
            for some in slices(rows * (rows + 1) // 2, step):
                threads.run(loops.gram_tiles, some.start, some.stop, self.G, M)
        return factor_in_tiles(M, self._n_jobs) if self.rank else M

    def solve(self, R: np.ndarray) -> np.ndarray:
        """Return P^-1 R = D^-1/2 (I - G (I + G^T G)^-1 G^T) D^-1/2 R.

        (n, c) -> (n, c);  4 n r c flops.
        """
        scaled: np.ndarray = R / self._root[:, None]
        if self.rank:
            scaled -= self._up(self._inner_solve(self._down(scaled)))
        scaled /= self._root[:, None]
        return scaled

    def _inner_solve(self, A: np.ndarray) -> np.ndarray:
        """Return M^-1 A;  (r, c) -> (r, c)."""
        # LAPACK takes a C-ordered lower triangle for an upper one, without a copy.
        solved: np.ndarray = cho_solve((self.inner_factor.T, False), A, check_finite=False)
        return solved

    def draw(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return F e1 + D^1/2 e2 ~ N(0, P) for standard normals e1 (r, c) and e2 (n, c)."""
        draws: np.ndarray = self._root[:, None] * (self._up(first) + second)
        return draws

    def log_determinant(self) -> float:
        return float(np.log(self.D).sum() + 2.0 * np.log(self.inner_factor.diagonal()).sum())

    # `_down` and `_up` multiply transposed matrices: with few columns, BLAS is 1.6 times faster if
    # these are the rows of the product.
    def _down(self, V: np.ndarray) -> np.ndarray:
        """Return G^T V;  (n, c) -> (r, c)."""
        left, units = self._rows_like_G(V)
        parts = np.empty((-(-len(V) // loops.GROUP_ROWS), V.shape[1], self.rank))
        with tile_threads(self._n_jobs) as threads:
            threads.run(loops.multiply_transposed, self.G, left, parts)
        product: np.ndarray = parts.sum(axis=0).T * units
        return product

    def _up(self, W: np.ndarray) -> np.ndarray:
        """Return G W;  (r, c) -> (n, c)."""
        left, units = self._rows_like_G(W)
        out = np.empty((W.shape[1], len(self.G)))
        with tile_threads(self._n_jobs) as threads:
            threads.run(loops.multiply, self.G, left, out)
        product: np.ndarray = out.T * units
        return product

    def _rows_like_G(self, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the columns of A as rows in the precision of G, and the unit of each column.

        (m, c) -> (c, m), (c,). Columns are divided by their largest entry before they are rounded,
        because float32 represents numbers of moderate size only.
        """
        units = np.ones(A.shape[1])
        if self.G.dtype == np.float32:
            size = np.abs(A).max(axis=0, initial=0.0)
            units = np.where(size > 0.0, size, 1.0)
        return np.ascontiguousarray((A / units).T, self.G.dtype), units

    # The derivatives are at fixed pivots: dP = dS_nI Q^T + Q dS_In - Q dS_II Q^T + dD, where
    # Q = S_nI S_II^-1 = D^1/2 G L^-1. The same G is used in all of them and in P, so the traces and
    # the probes that estimate them agree exactly, whatever the precision of G.

    def trace_gradient(self) -> np.ndarray:
        """Return tr(P^-1 dP/dtheta) for every parameter;  (t,);  2 n r^2 flops, n r kernel values.

        With M = I + G^T G and H = P^-1 Q = D^-1/2 G M^-1 L^-1, this is
        2 sum(H o dS_nI) - sum((H^T Q) o dS_II) + diag(P^-1).dD. Here
        H^T Q = L^-T M^-1 (M - I) L^-1, since G^T G = M - I, and
        D diag(P^-1) = 1 - rowsum(H o S_nI), since D^1/2 G L^T = S_nI. For a constant column b_l,
        b_l.P^-1 b_l = 1 - (M^-1)_ll, and H has the first rows of M^-1 alone.
        """
        if not self.rank:
            return self._along_noise(1.0 / self.D)
        M_inverse, r = inverse_in_parallel(self.inner_factor, self._n_jobs), self.pivots.size
        of_constants = np.ascontiguousarray(M_inverse[:, r:])
        inner = sandwich(self.L, np.eye(r) - M_inverse[:r, :r], self.session)
        H = right_solve_transposed(self.L, np.ascontiguousarray(M_inverse[:, :r]), self.session)
        along_S, explained = self._contract(self.G, np.ascontiguousarray(H.T), 1.0 / self._root)
        along_columns = 1.0 - of_constants[r:].diagonal()
        gradient = self._joined(2.0 * along_S - self._contract_pivots(inner), along_columns)
        if along_columns.size:
            explained = explained + column_sums(self._up(of_constants).T, self.G[:, r:].T)
        gradient += self._along_noise((1.0 - explained) / self.D)
        return gradient

    def _joined(self, along_varying: np.ndarray, along_columns: np.ndarray) -> np.ndarray:
        """Return derivatives by all parameters from those of S and of constant columns."""
        return self.covariance.weight_prior.with_constants(along_varying, along_columns)

    def contract(self, V: np.ndarray) -> np.ndarray:
        """Return sum_c v_c^T (dP/dtheta) v_c for every parameter;  (n, c) -> (t,)."""
        if not self.rank:
            return self._along_noise(np.einsum("ij,ij->i", V, V))
        QtV, inner = self._transposed_products(V)
        along_S = 2.0 * self._contract(V, QtV)[0] - self._contract_pivots(QtV @ QtV.T)
        gradient = self._joined(along_S, np.square(inner).sum(axis=1))
        gradient += self._along_noise(np.einsum("ij,ij->i", V, V))
        return gradient

    def _transposed_products(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Q^T V = L^-T G^T D^1/2 V of the pivots, and B^T V;  (n, c) -> (r, c), (b, c)."""
        down, r = self._down(self._root[:, None] * V), self.pivots.size
        solved = solve_triangular(self.L, down[:r], lower=True, trans="T", check_finite=False)
        return np.ascontiguousarray(solved), down[r:]

    def _along_noise(self, diagonal: np.ndarray) -> np.ndarray:
        """Return sum_i diagonal_i dD_i/dtheta for every parameter;  (n,) -> (t,)."""
        tangents = diagonal @ self.covariance.noise_gradient
        return np.concatenate([np.zeros(self._theta_size), tangents])

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dP/dtheta_t) v for every parameter;  (n,) -> (n, t);  2 n r kernel values."""
        if not self.rank:
            return np.hstack(
                [np.zeros((len(v), self._theta_size)), v[:, None] * self.covariance.noise_gradient]
            )
        prior, rows, r = self._varying, self._rows, self.pivots.size
        pivots = rows[self.pivots]
        Qtv, inner_products = self._transposed_products(v[:, None])

        def products(a: PreparedRows, b: PreparedRows, right: np.ndarray) -> np.ndarray:
            """Return (dS_ab/dtheta_t) right for every parameter;  (b, 1) -> (a, t)."""
            return prior.contract_product(a, b, np.ones((len(a), 1)), right, self.session)[0]

        tangents = products(rows, pivots, Qtv)
        inner = products(pivots, rows, v[:, None]) - products(pivots, pivots, Qtv)
        solved = np.zeros((self.rank, inner.shape[1]))
        solved[:r] = solve_triangular(self.L, inner, lower=True, check_finite=False)
        tangents += self._root[:, None] * self._up(solved)
        of_constants = inner_products * (self._root[:, None] * self.G[:, r:]).T
        tangents = self._joined(tangents.T, of_constants).T
        return np.hstack([tangents, v[:, None] * self.covariance.noise_gradient])

    @cached_property
    def _rows(self) -> PreparedRows:
        """Return all rows in the form that blocks of S are computed from, in float64."""
        return self._varying.prepare(self.covariance.rows)

    @property
    def _varying(self) -> WeightPrior:
        """Return the prior of the terms of S, of which there are pivots."""
        return self.covariance.varying.weight_prior

    def _contract(
        self, U: np.ndarray, V: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sum_ij W_ij dS_nI/dtheta (t,), and the row sums of W o S_nI (n,).

        W = diag(weights) U V^T with (n,), (n, c) and (r, c). Without weights, they are 1.
        """
        prior, pivots = self._varying, self._rows[self.pivots]
        along, sums = prior.contract_product(self._rows, pivots, U, V, self.session)
        if weights is not None:
            along, sums = along * weights[:, None], sums * weights
        return self._with_noise(along), sums

    def _contract_pivots(self, W: np.ndarray) -> np.ndarray:
        """Return sum_ij W_ij dS_II/dtheta;  (r, r) -> (t,)."""
        prior, pivots = self._varying, self._rows[self.pivots]
        return self._with_noise(prior.contract_matrix(pivots, pivots, W, self.session)[0])

    def _with_noise(self, along: np.ndarray) -> np.ndarray:
        """Return the sum over rows, and 0 for sigma_w and sigma_y, on which S does not depend."""
        return np.concatenate([along.sum(axis=0), np.zeros(2)])


def column_sums(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return a.b for each pair of columns;  (n, c), (n, c) -> (c,)."""
    sums: np.ndarray = np.einsum("ij,ij->j", A, B)
    return sums


def right_solve(L: np.ndarray, B: np.ndarray, session: Session) -> np.ndarray:
    """Return B L^-T, computed in place if B is C-ordered;  (r, r), (n, r) -> (n, r).

    n r^2 flops.
    """
    B = np.ascontiguousarray(B)
    if B.size:
        LowerTiles.of(np.ascontiguousarray(L), session.executor.n_jobs).half_solve(B)
    return B


def right_solve_transposed(L: np.ndarray, B: np.ndarray, session: Session) -> np.ndarray:
    """Return B L^-1, computed in place;  (r, r), (n, r), both C-ordered -> (n, r);  n r^2 flops."""
    if B.size:
        LowerTiles.of(L, session.executor.n_jobs).back_solve(B)
    return B


def sandwich(L: np.ndarray, A: np.ndarray, session: Session) -> np.ndarray:
    """Return L^-T A L^-1 of a symmetric A, which is overwritten.

    (r, r), (r, r), both C-ordered -> (r, r);  2 r^3 flops.
    """
    half = right_solve_transposed(L, A, session)
    return right_solve_transposed(L, np.ascontiguousarray(half.T), session)


def _leading(flags: np.ndarray) -> int:
    """Return how many flags are true before the first one that is not."""
    return flags.size if flags.all() else int(np.argmin(flags))
