"""Preconditioners P = D + F F^T, which make conjugate gradients converge in fewer iterations.

F F^T = S_nI S_II^-1 S_In is the Nystrom approximation of S from r pivot rows I. P is close to C in
the directions in which S has large eigenvalues, and P <= C.

The pivots are chosen once per fit, by a randomly pivoted Cholesky factorisation of S in blocks. At
other parameters, the same pivots give another F, so P changes smoothly with the parameters. The
pivots take n r^2 flops, F and its Gram matrix 2 n r^2, and each column that is solved 4 n r.

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
from scipy.linalg import cho_solve, cholesky, get_lapack_funcs, solve_triangular

from ..model.weight_prior import PreparedRows
from ..runtime.parallel import slices
from ..runtime.session import Session
from .cholesky import PIVOT_ROWS_JITTER, factor_with_jitter
from .covariance import Covariance

# Pivots are drawn in blocks of this many, so that most flops are in matrix products. The value was
# chosen by hand.
PIVOT_BLOCK = 128
# A partial sum is over this many rows. The value was chosen by hand. It does not depend on the
# number of threads, so that sums are the same with any number.
SUM_ROWS = 2048
# A worker solves for this many rows at once: enough for BLAS, and for sixteen workers at n = 4,096.
SOLVE_ROWS = 256
# Below this share of its trace, what the pivots leave of S is rounding error.
NEGLIGIBLE_SHARE = 1e-13


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
        F[:, have : have + good] = right_solve(np.tril(L[:good, :good]), G[:, keep], session)
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
    """The preconditioner P = D + F F^T with F = S_nI L^-T and S_II = L L^T;  n r numbers.

    If it `bounds_from_below`, D is the noise. If not, D_i = C_ii - |F_i|^2.
    """

    covariance: Covariance
    pivots: np.ndarray
    L: np.ndarray
    F: np.ndarray
    bounds_from_below: bool = True

    @classmethod
    def of(
        cls, covariance: Covariance, pivots: np.ndarray, bounds_from_below: bool = True
    ) -> LowRankPreconditioner:
        """Return the preconditioner of these pivot rows;  (r,);  n r kernel values, n r^2 flops."""
        F = covariance.columns(pivots)
        own = F[pivots]
        if not pivots.size:
            return cls(covariance, pivots, own, F, bounds_from_below)
        rows = f"The covariance of {pivots.size} pivot rows"
        failure = f"{rows} has no Cholesky factor. Check that the kernel is positive definite."
        L, _ = factor_with_jitter(own, own.diagonal().copy(), PIVOT_ROWS_JITTER, failure)
        F = right_solve(L, F, covariance.session)
        return cls(covariance, pivots, L, F, bounds_from_below)

    @property
    def _theta_size(self) -> int:
        """Return the number of parameters of the kernel."""
        return self.covariance.weight_prior.kernel.theta.size

    @property
    def rank(self) -> int:
        return self.pivots.size

    @cached_property
    def D(self) -> np.ndarray:
        """Return the diagonal part of P, which is at least the noise;  (n,)."""
        noise = self.covariance.noise
        if self.bounds_from_below:
            return noise
        remainder = self.covariance.diagonal - np.einsum("ij,ij->i", self.F, self.F)
        D: np.ndarray = np.maximum(remainder, noise)
        return D

    def error_bound_nats(self, R: np.ndarray, PR: np.ndarray) -> np.ndarray:
        """Return upper bounds of r.C^-1 r / 2, from P if P <= C, else from the noise alone.

        (n, c), (n, c) -> (c,).
        """
        scaled = PR if self.bounds_from_below else R / self.covariance.noise[:, None]
        bound: np.ndarray = 0.5 * np.einsum("ij,ij->j", R, scaled)
        return bound

    @property
    def session(self) -> Session:
        """Return the session of the covariance."""
        return self.covariance.session

    @cached_property
    def inner_factor(self) -> np.ndarray:
        """Return the lower Cholesky factor of M = I + F^T D^-1 F;  (r, r)."""
        inner = np.eye(self.rank)
        if not self.rank:
            return inner
        root = np.sqrt(self.D)

        def gram(rows: slice) -> np.ndarray:
            scaled = self.F[rows] / root[rows, None]
            product: np.ndarray = scaled.T @ scaled
            return product

        # A partial sum has r^2 numbers, so `sum_over` keeps only a few of them at a time.
        inner += self.session.executor.sum_over(gram, slices(len(self.D), SUM_ROWS))
        factor: np.ndarray = cholesky(inner, lower=True, overwrite_a=True, check_finite=False)
        return factor

    def solve(self, R: np.ndarray) -> np.ndarray:
        """Return P^-1 R = D^-1 R - D^-1 F (I + F^T D^-1 F)^-1 F^T D^-1 R.

        (n, c) -> (n, c);  4 n r c flops.
        """
        scaled: np.ndarray = R / self.D[:, None]
        if not self.rank:
            return scaled
        inside = cho_solve((self.inner_factor, True), self._down(scaled), check_finite=False)
        scaled -= self._up(inside) / self.D[:, None]
        return scaled

    def draw(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return F e1 + D^1/2 e2 ~ N(0, P) for standard normals e1 (r, c) and e2 (n, c)."""
        draws: np.ndarray = self._up(first) + np.sqrt(self.D)[:, None] * second
        return draws

    def log_determinant(self) -> float:
        return float(np.log(self.D).sum() + 2.0 * np.log(self.inner_factor.diagonal()).sum())

    # `_down` and `_up` multiply transposed matrices: with few columns, BLAS is 1.6 times faster if
    # these are the rows of the product.
    def _down(self, V: np.ndarray) -> np.ndarray:
        """Return F^T V, summed in the order of the rows;  (n, c) -> (r, c)."""
        parts = self.session.executor.map(
            lambda rows: V[rows].T @ self.F[rows], slices(len(V), SUM_ROWS)
        )
        total: np.ndarray = np.sum(parts, axis=0)
        return total.T

    def _up(self, W: np.ndarray) -> np.ndarray:
        """Return F W;  (r, c) -> (n, c)."""
        out, left = np.empty((len(self.F), W.shape[1])), np.ascontiguousarray(W.T)

        def one(rows: slice) -> None:
            out[rows] = (left @ self.F[rows].T).T

        self.session.executor.map(one, slices(len(out), SUM_ROWS // 4))
        return out

    # The derivatives are at fixed pivots: dP = dS_nI Q^T + Q dS_In - Q dS_II Q^T + dD, where
    # Q = S_nI S_II^-1 = F L^-1.

    def trace_gradient(self) -> np.ndarray:
        """Return tr(P^-1 dP/dtheta) for every parameter;  (t,);  2 n r^2 flops, n r kernel values.

        With M = I + F^T D^-1 F and H = P^-1 Q = D^-1 F M^-1 L^-1, this is
        2 sum(H o dS_nI) - sum((H^T Q) o dS_II) + diag(P^-1).dD. Here
        H^T Q = L^-T M^-1 (M - I) L^-1, since F^T D^-1 F = M - I, and
        D diag(P^-1) = 1 - rowsum(H o S_nI), since F L^T = S_nI.
        """
        if not self.rank:
            return self._along_noise(1.0 / self.D)
        factor = self.inner_factor
        root = solve_triangular(factor, np.eye(self.rank), lower=True, check_finite=False)
        M_inverse = self.session.executor.matmul(root.T, root)
        H = self.session.executor.matmul(self.F, _times_inverse(M_inverse, self.L))
        H /= self.D[:, None]
        inner = _times_inverse(_times_inverse(np.eye(self.rank) - M_inverse, self.L).T, self.L)
        along_S, explained = self._contract(H)
        gradient: np.ndarray = 2.0 * along_S - self._contract_pivots(inner)
        gradient += self._along_noise((1.0 - explained) / self.D)
        return gradient

    def contract(self, V: np.ndarray) -> np.ndarray:
        """Return sum_c v_c^T (dP/dtheta) v_c for every parameter;  (n, c) -> (t,)."""
        if not self.rank:
            return self._along_noise(np.einsum("ij,ij->i", V, V))
        QtV = solve_triangular(self.L, self._down(V), lower=True, trans="T", check_finite=False)
        gradient: np.ndarray = 2.0 * self._contract(V, QtV)[0] - self._contract_pivots(QtV @ QtV.T)
        gradient += self._along_noise(np.einsum("ij,ij->i", V, V))
        return gradient

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
        prior, rows = self.covariance.weight_prior, self._rows
        pivots = rows[self.pivots]
        down = self._down(v[:, None])
        Qtv = solve_triangular(self.L, down, lower=True, trans="T", check_finite=False)[:, 0]

        def products(a: PreparedRows, b: PreparedRows, right: np.ndarray) -> np.ndarray:
            """Return (dS_ab/dtheta_t) right for every parameter;  (b,) -> (a, t)."""

            def weigh(G: np.ndarray) -> None:
                G *= right

            cuts = slices(len(a), max(16, 2**20 // max(1, len(b))))
            return np.concatenate(
                self.session.executor.map(lambda i: prior.contract(a[i], b, weigh), cuts)
            )

        tangents = products(rows, pivots, Qtv)
        inner = products(pivots, rows, v) - products(pivots, pivots, Qtv)
        tangents += self._up(solve_triangular(self.L, inner, lower=True, check_finite=False))
        return np.hstack([tangents, v[:, None] * self.covariance.noise_gradient])

    @cached_property
    def _rows(self) -> PreparedRows:
        """Return all rows in the form that blocks of S are computed from, in float64."""
        return self.covariance.weight_prior.prepare(self.covariance.rows)

    def _contract(
        self, left: np.ndarray, right: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sum_ij W_ij dS_nI/dtheta (t,), and the row sums of W o S_nI (n,).

        W is `left` (n, r), or left right^T with (n, c) and (r, c).
        """
        return self._contract_with(self._rows, left, right)

    def _contract_pivots(self, W: np.ndarray) -> np.ndarray:
        """Return sum_ij W_ij dS_II/dtheta;  (r, r) -> (t,)."""
        return self._contract_with(self._rows[self.pivots], W, None)[0]

    def _contract_with(
        self, rows: PreparedRows, left: np.ndarray, right: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of `_contract` for these rows and the pivots."""
        prior, pivots = self.covariance.weight_prior, self._rows[self.pivots]

        def one(i: slice) -> tuple[np.ndarray, np.ndarray]:
            along, sums = np.zeros(self._theta_size), np.zeros(i.stop - i.start)
            for j in slices(len(pivots), 512):
                W = left[i, j] if right is None else left[i] @ right[j].T
                found, more = prior.contract_and_sum(rows[i], pivots[j], W)
                along += found.sum(axis=0)
                sums += more
            return along, sums

        found = self.session.executor.map(one, slices(len(left), 512))
        gradient = np.sum([along for along, _ in found], axis=0)
        # S does not depend on the last two parameters, sigma_w and sigma_y.
        with_noise = np.concatenate([gradient, np.zeros(2)])
        return with_noise, np.concatenate([sums for _, sums in found])


def _times_inverse(A: np.ndarray, L: np.ndarray) -> np.ndarray:
    """Return A L^-1;  (r, r), (r, r) -> (r, r)."""
    solved: np.ndarray = solve_triangular(L, A.T, lower=True, trans="T", check_finite=False)
    return solved.T


def right_solve(L: np.ndarray, B: np.ndarray, session: Session) -> np.ndarray:
    """Return B L^-T, computed in place;  (r, r), (n, r) -> (n, r);  n r^2 flops.

    Nearly all of the flops are in matrix products, over blocks of rows in parallel.
    """
    cuts = slices(len(L), 128)
    inverses = [
        solve_triangular(L[j, j], np.eye(j.stop - j.start), lower=True, check_finite=False).T
        for j in cuts
    ]

    def one(rows: slice) -> None:
        mine = B[rows]
        for cols, inverse in zip(cuts, inverses, strict=True):
            block = mine[:, cols]
            if cols.start:
                block -= mine[:, : cols.start] @ L[cols, : cols.start].T
            block[...] = block @ inverse

    session.executor.map(one, slices(len(B), SOLVE_ROWS))
    return B


def _leading(flags: np.ndarray) -> int:
    """Return how many flags are true before the first one that is not."""
    return flags.size if flags.all() else int(np.argmin(flags))
