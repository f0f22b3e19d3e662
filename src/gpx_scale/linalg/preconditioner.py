"""P = D + F F^T, F F^T = S_nI S_II^-1 S_In on r pivot rows I: close to C where S has large eigenvalues, and never above it.

Pivots come from a block randomly pivoted Cholesky of S, once a fit; at other parameters the same pivots make another F, so P
changes smoothly with the parameters. Cost: n r^2 flops for the pivots, 2 n r^2 for F and its Gram matrix, 4 n r a column
solved.

For a sparse Z, where most of C is its diagonal, D is all that F F^T leaves of it, D_i = C_ii - |F_i|^2: without pivots that is
Jacobi's preconditioner. Such a P is not below C, so it bounds nothing (the noise alone does), and its derivatives are not
needed: what they would take off the variance of a trace, probes of signs have not.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_solve, cholesky, get_lapack_funcs, solve_triangular

from ..model.weight_prior import PreparedRows
from ..runtime.parallel import safe_threads, slices
from ..runtime.session import Session
from .cholesky import PIVOT_ROWS_JITTER, factor_with_jitter
from .covariance import Covariance

BLOCK = 128  # pivots drawn at once
ROWS = 2048  # of one partial sum
ENOUGH = 1e-13  # of S's trace left unexplained: the rest is rounding


def choose_pivots(
    covariance: Covariance, rank: int, random: np.random.RandomState, below_noise: float = 0.0
) -> np.ndarray:
    """At most `rank` rows, drawn in blocks with probability in proportion to what is left of S_ii;  (r,);  n r^2 flops.

    Ends early where what is left of S_ii is on average `below_noise` times D_i. Rows that others in the block explain
    (duplicates) are dropped by a pivoted Cholesky.
    """
    n, session = len(covariance), covariance.session
    left = covariance.diagonal - covariance.noise
    enough, dependent = ENOUGH * left.sum(), ENOUGH * left
    F, chosen = np.empty((n, rank)), np.empty(0, int)
    while chosen.size < rank and left.sum() > enough:
        if chosen.size and np.mean(left / covariance.noise) <= below_noise:
            break
        odds = left / left.sum()
        size = min(BLOCK, rank - chosen.size, int(np.count_nonzero(odds)))
        block = random.choice(n, size, replace=False, p=odds)
        have = chosen.size
        G = covariance.columns(block)
        G -= session.executor.matmul(F[:, :have], F[block, :have].T)
        (pstrf,) = get_lapack_funcs(("pstrf",), (G,))
        L, order, good, _ = pstrf(G[block], lower=1)
        good = min(int(good), _leading(L.diagonal() ** 2 > dependent[block][order - 1]))
        keep = order[:good] - 1
        F[:, have : have + good] = right_solve(np.tril(L[:good, :good]), G[:, keep], session)
        left -= np.einsum("ij,ij->i", F[:, have : have + good], F[:, have : have + good])
        chosen = np.append(chosen, block[keep])
        left[left < dependent] = 0.0
        left[block] = 0.0
    return chosen


class Preconditioner(abc.ABC):
    """P close to C, with which conjugate gradients need fewer iterations.

    If it `bounds_from_below`, P <= C, and r.P^-1 r / 2 bounds what a solve still misses, in nats.
    """

    bounds_from_below: bool

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """Return how many pivots it has, for messages."""

    @abc.abstractmethod
    def solve(self, R: np.ndarray) -> np.ndarray:
        """Return P^-1 R;  (n, c) -> (n, c)."""

    @abc.abstractmethod
    def draw(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return draws of N(0, P) from standard normals (r, c) and (n, c);  (n, c)."""

    @abc.abstractmethod
    def log_determinant(self) -> float:
        """Return log|P|."""

    @abc.abstractmethod
    def error_bound_nats(self, R: np.ndarray, PR: np.ndarray) -> np.ndarray:
        """Return at least r.C^-1 r / 2 of residuals R, PR = P^-1 R;  (n, c), (n, c) -> (c,)."""

    @abc.abstractmethod
    def trace_gradient(self) -> np.ndarray:
        """Return tr(P^-1 dP) by every parameter;  (t,)."""

    @abc.abstractmethod
    def contract(self, V: np.ndarray) -> np.ndarray:
        """Return sum_c v_c^T dP v_c by every parameter;  (n, c) -> (t,)."""

    @abc.abstractmethod
    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dP/dtheta_t) v for every parameter;  (n,) -> (n, t)."""


@dataclass(frozen=True)
class LowRankPreconditioner(Preconditioner):
    """P = D + F F^T with F = S_nI L^-T, S_II = L L^T;  n r numbers.

    Unless it `bounds_from_below`, D takes what is left of C's diagonal.
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
        F = covariance.columns(pivots)
        own = F[pivots]
        if not pivots.size:
            return cls(covariance, pivots, own, F, bounds_from_below)
        rows = f"the covariance of {pivots.size} pivot rows"
        failure = f"{rows} has no Cholesky factor: is the kernel positive definite?"
        with safe_threads(len(own)):
            L, _ = factor_with_jitter(own, own.diagonal().copy(), PIVOT_ROWS_JITTER, failure)
        F = right_solve(L, F, covariance.session)
        return cls(covariance, pivots, L, F, bounds_from_below)

    @property
    def _theta_size(self) -> int:
        return self.covariance.weight_prior.kernel.theta.size

    @property
    def rank(self) -> int:
        return self.pivots.size

    @cached_property
    def D(self) -> np.ndarray:
        noise = self.covariance.noise
        if self.bounds_from_below:
            return noise
        return np.maximum(self.covariance.diagonal - np.einsum("ij,ij->i", self.F, self.F), noise)

    def error_bound_nats(self, R: np.ndarray, PR: np.ndarray) -> np.ndarray:
        """Return at least r.C^-1 r / 2: by P where P <= C, else by the noise alone;  (n, c), (n, c) -> (c,)."""
        return 0.5 * np.einsum(
            "ij,ij->j", R, PR if self.bounds_from_below else R / self.covariance.noise[:, None]
        )

    @property
    def session(self) -> Session:
        return self.covariance.session

    @cached_property
    def M(self) -> np.ndarray:
        """Lower Cholesky factor of I + F^T D^-1 F;  (r, r)."""
        inner = np.eye(self.rank)
        if not self.rank:
            return inner
        root = np.sqrt(self.D)

        def gram(rows: slice) -> np.ndarray:
            scaled = self.F[rows] / root[rows, None]
            return scaled.T @ scaled

        inner += self.session.executor.sum_over(
            gram, slices(len(self.D), ROWS)
        )  # r^2 numbers a partial sum: few at a time
        with safe_threads(len(inner)):
            return cholesky(inner, lower=True, overwrite_a=True, check_finite=False)

    def solve(self, R: np.ndarray) -> np.ndarray:
        """P^-1 R = D^-1 R - D^-1 F (I + F^T D^-1 F)^-1 F^T D^-1 R;  (n, c) -> (n, c);  4 n r c flops."""
        scaled = R / self.D[:, None]
        if not self.rank:
            return scaled
        inside = cho_solve((self.M, True), self._down(scaled), check_finite=False)
        scaled -= self._up(inside) / self.D[:, None]
        return scaled

    def draw(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """F e1 + D^1/2 e2 ~ N(0, P) from standard normals e1 (r, c) and e2 (n, c)."""
        return self._up(first) + np.sqrt(self.D)[:, None] * second

    def log_determinant(self) -> float:
        return float(np.log(self.D).sum() + 2.0 * np.log(self.M.diagonal()).sum())

    # With few columns, BLAS is 1.6 times faster when they are the rows of the product.
    def _down(self, V: np.ndarray) -> np.ndarray:
        """F^T V, added up in the order of the rows;  (n, c) -> (r, c)."""
        parts = self.session.executor.map(
            lambda rows: V[rows].T @ self.F[rows], slices(len(V), ROWS)
        )
        return np.sum(parts, axis=0).T

    def _up(self, W: np.ndarray) -> np.ndarray:
        """F W;  (r, c) -> (n, c)."""
        out, left = np.empty((len(self.F), W.shape[1])), np.ascontiguousarray(W.T)

        def one(rows: slice) -> None:
            out[rows] = (left @ self.F[rows].T).T

        self.session.executor.map(one, slices(len(out), ROWS // 4))
        return out

    # Derivatives, at fixed pivots: dP = dS_nI Q^T + Q dS_In - Q dS_II Q^T + dD, Q = S_nI S_II^-1 = F L^-1.

    def trace_gradient(self) -> np.ndarray:
        """tr(P^-1 dP) by every parameter;  (t,);  2 n r^2 flops and n r kernel values.

        P^-1 Q = D^-1 F M^-1 L^-1 =: H, so this is 2 sum(H o dS_nI) - sum((H^T Q) o dS_II) + diag(P^-1).dD, where
        H^T Q = L^-T M^-1 (M - I) L^-1, as F^T D^-1 F = M - I, and D diag(P^-1) = 1 - rowsum(H o S_nI), as F L^T = S_nI.
        """
        if not self.rank:
            return self._along_noise(1.0 / self.D)
        m_inverse = solve_triangular(self.M, np.eye(self.rank), lower=True, check_finite=False)
        M_inverse = self.session.executor.matmul(m_inverse.T, m_inverse)
        H = self.session.executor.matmul(self.F, _times_inverse(M_inverse, self.L))
        H /= self.D[:, None]
        inner = _times_inverse(_times_inverse(np.eye(self.rank) - M_inverse, self.L).T, self.L)
        along_S, explained = self._contract(H)
        return (
            2.0 * along_S
            - self._contract_pivots(inner)
            + self._along_noise((1.0 - explained) / self.D)
        )

    def contract(self, V: np.ndarray) -> np.ndarray:
        """sum_c v_c^T dP v_c by every parameter;  (n, c) -> (t,)."""
        if not self.rank:
            return self._along_noise(np.einsum("ij,ij->i", V, V))
        U = solve_triangular(
            self.L, self._down(V), lower=True, trans="T", check_finite=False
        )  # Q^T v
        return (
            2.0 * self._contract(V, U)[0]
            - self._contract_pivots(U @ U.T)
            + self._along_noise(np.einsum("ij,ij->i", V, V))
        )

    def _along_noise(self, diagonal: np.ndarray) -> np.ndarray:
        tangents = diagonal @ self.covariance.noise_gradient
        return np.concatenate([np.zeros(self._theta_size), tangents])

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """(dP/dtheta_t) v for every parameter;  (n,) -> (n, t);  2 n r kernel values."""
        if not self.rank:
            return np.hstack(
                [np.zeros((len(v), self._theta_size)), v[:, None] * self.covariance.noise_gradient]
            )
        prior, rows = self.covariance.weight_prior, self._rows
        pivots = rows[self.pivots]
        q = solve_triangular(
            self.L, self._down(v[:, None]), lower=True, trans="T", check_finite=False
        )[:, 0]  # Q^T v

        def products(a: PreparedRows, b: PreparedRows, right: np.ndarray) -> np.ndarray:
            def weigh(G: np.ndarray) -> None:
                G *= right

            cuts = slices(len(a), max(16, 2**20 // max(1, len(b))))
            return np.concatenate(
                self.session.executor.map(lambda i: prior.contract(a[i], b, weigh), cuts)
            )

        there = products(rows, pivots, q)
        back = products(pivots, rows, v) - products(pivots, pivots, q)
        there += self._up(solve_triangular(self.L, back, lower=True, check_finite=False))
        return np.hstack([there, v[:, None] * self.covariance.noise_gradient])

    @cached_property
    def _rows(self) -> PreparedRows:
        return self.covariance.weight_prior.prepare(self.covariance.rows)

    def _contract(
        self, left: np.ndarray, right: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """sum_ij W_ij dS_nI (t,), and the row sums of W o S_nI (n,), W = left, or left right^T;  (n, r) or (n, c), (r, c)."""
        return self._contract_with(self._rows, left, right)

    def _contract_pivots(self, W: np.ndarray) -> np.ndarray:
        """sum_ij W_ij dS_II;  (r, r) -> (t,)."""
        return self._contract_with(self._rows[self.pivots], W, None)[0]

    def _contract_with(
        self, rows: PreparedRows, left: np.ndarray, right: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
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
        return np.concatenate([np.sum([a for a, _ in found], axis=0), np.zeros(2)]), np.concatenate(
            [b for _, b in found]
        )


def _times_inverse(A: np.ndarray, L: np.ndarray) -> np.ndarray:
    """A L^-1;  (r, r), (r, r) -> (r, r)."""
    return solve_triangular(L, A.T, lower=True, trans="T", check_finite=False).T


def right_solve(L: np.ndarray, B: np.ndarray, session: Session) -> np.ndarray:
    """B L^-T in place;  (r, r), (n, r) -> (n, r);  n r^2 flops, nearly all of them in products, by blocks of rows."""
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

    session.executor.map(
        one, slices(len(B), max(16, min(1024, -(-len(B) // session.executor.n_jobs))))
    )
    return B


def _leading(flags: np.ndarray) -> int:
    """How many are true before the first that is not."""
    return flags.size if flags.all() else int(np.argmin(flags))
