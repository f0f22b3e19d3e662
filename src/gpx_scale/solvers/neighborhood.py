"""Conditioning on a part of the training rows: some that all queries share, and some near each one.

With the shared rows U and the rows N that are near a query, none of which is in U:

    C_UU = L L^T,   F_j = L^-1 S_Uj,   a = L^-1 y_U,   F_B = L^-1 B_U         B = diag(k*) Z
    B_N|U = B_N - F_N^T F_B,           C_N|U = (S_NN - F_N^T F_N) + D_N,      D is added last
    E[w*]   = F_B^T a + B_N|U^T C_N|U^-1 (y_N - F_N^T a)
    Cov[g*] = k** I - F_B^T F_B - B_N|U^T C_N|U^-1 B_N|U

No variance is below the one from all rows, as fewer rows never know more. A query takes
k^3/3 + k^2 m flops, k m c + m^2 c for c right-hand sides, and m^2 k if F_N is not kept.

On `synth10` with n = 15,000, 3,000 shared rows and 500 nearby ones, standard deviations exceed the
exact ones by 8% in the median for y and by 0.1% for weights. With the shared or the nearby rows
alone, they exceed those of y by 60% or 38%.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..compiled import neighborhood as loops
from ..compiled import term_neighborhood as term_loops
from ..data.inputs import TrainingRows
from ..kernels.kernel import Kernel, Prepared, Profile
from ..linalg.cholesky import FEW_ROWS_JITTER, factor_of_few_rows
from ..linalg.neighbor_search import Neighbors, NeighborSearch
from ..linalg.preconditioner import right_solve, right_solve_transposed
from ..model.hyperparameters import Hyperparameters
from ..model.weight_prior import CrossCovariance, PreparedRows, kernel_matrix
from ..runtime.parallel import slices
from ..runtime.session import Session
from ..runtime.tile_loops import tile_threads
from .posterior import MomentRequest, Moments, symmetric_part
from .weighted_sums import WeightedSums, constant_columns, informative_coefficients

# All queries share at most this many rows. The value was chosen by hand: n |U| numbers are kept.
MAX_SHARED_ROWS = 3_000
# F is kept in float32 if all D_i are above this share of C_ii.
FLOAT32_LEAST_NOISE_SHARE = 5e-4
# F_N^T F_N in float32 is off by 1e-7 of C's diagonal per entry, and by 5e-6 as a matrix of
# 512 rows. This share of C's diagonal, added to C_N|U, makes up for it and raises a
# variance by at most FLOAT32_ROUNDING_SHARE / FLOAT32_LEAST_NOISE_SHARE of itself. S_NN stays in
# float64, as its errors in float32 would be larger.
FLOAT32_ROUNDING_SHARE = 1e-5
# Given weighted sums over many rows, at least this share of the noise of a row is left.
LEAST_NOISE_SHARE = 0.5
# The matrices S_NN that are formed at once take at most this many bytes.
BLOCK_BYTES = 2**26


@dataclass(frozen=True)
class Conditioned:
    """The result of conditioning b queries, each on shared rows and on up to k rows near it.

    Attributes
    ----------
    found : ndarray of shape (b, c) or (b, c, c)
        F_B^T F_B + B_N|U^T C_N|U^-1 B_N|U of c right-hand sides: its diagonal, or all of it.
    near_weights, shared_weights : ndarray of shape (b, k), (b, m), or None
        The alpha of the rows that a query is conditioned on: E[w*] is the sum of k*_j alpha_j z_j.
    dropped : int
        The number of queries that were conditioned on U or N alone, as rounding left no Cholesky
        factor of both.
    """

    found: np.ndarray
    near_weights: np.ndarray | None
    shared_weights: np.ndarray | None
    dropped: int

    def reduction(self, d: int, request: MomentRequest) -> Moments:
        """Return the reductions that were asked for, if d weights come before vectors `along`."""
        is_full = self.found.ndim == 3
        each = np.einsum("ijj->ij", self.found) if is_full else self.found
        return Moments(
            None,
            each[:, :d] if request.variance else None,
            self.found[:, :d, :d] if request.covariance else None,
            [each[:, d + j] for j in range(len(request.along))],
        )


@dataclass(frozen=True)
class SharedRows:
    """The rows U that all queries are conditioned on, and the training rows around them.

    Attributes
    ----------
    search : NeighborSearch
        All training rows, at the hyperparameters.
    y : ndarray of shape (n,)
        The targets.
    shared : ndarray of shape (m,)
        The numbers of the rows U.
    diagonal, noise : ndarray of shape (n,)
        C_jj and D_j.
    L, a : ndarray of shape (m, m), (m,)
        The Cholesky factor of C_UU, and L^-1 y_U.
    F : ndarray of shape (n, m), or None
        F_j of all rows, in float64 or float32. None if F_N is computed where it is used.
    sums : WeightedSums or None
        Weighted sums of y that are conditioned on like further shared rows: L, a and F have c more
        rows or columns for them.
    """

    search: NeighborSearch
    y: np.ndarray
    shared: np.ndarray
    diagonal: np.ndarray
    noise: np.ndarray
    L: np.ndarray
    a: np.ndarray
    F: np.ndarray | None
    sums: WeightedSums | None = None

    @classmethod
    def of(
        cls,
        rows: TrainingRows,
        hyperparameters: Hyperparameters,
        shared: np.ndarray,
        session: Session,
        *,
        keep: bool = True,
        single: bool | None = None,
        summed: np.ndarray | None = None,
        coefficients: np.ndarray | None = None,
    ) -> SharedRows:
        """Return the shared rows, factorised;  m^3/3 flops, and n m^2 if F of all rows is kept.

        F is in float32 if it is `single`, and by default where that is accurate enough. With rows
        that are `summed`, (s,), ascending and not shared, there are sums for constant weights.
        Their coefficients (s, c) are computed if they are not known.
        """
        search, noise = NeighborSearch(rows, hyperparameters), hyperparameters.noise(rows)
        diagonal = search.variances
        C = _covariances(search, shared, shared, session)
        np.fill_diagonal(C, (diagonal - noise)[shared])
        L = factor_of_few_rows(C, noise[shared])
        a = right_solve(L, rows.y[None, shared], session)[0]
        made = cls(search, rows.y, shared, diagonal, noise, L, a, None)
        columns = constant_columns(hyperparameters.weight_prior)
        has_sums = columns.size > 0 and summed is not None and summed.size > 0
        if keep:
            if single is None:
                single = bool((noise / diagonal).min() > FLOAT32_LEAST_NOISE_SHARE)
            shape = len(rows), shared.size + columns.size * has_sums
            F = np.empty(shape, np.float32 if single else np.float64)
            for some in _row_slices(len(rows), shared.size):
                F[some, : shared.size] = made.factors_of(np.arange(some.start, some.stop), session)
            made = replace(made, F=F)
        if has_sums:
            assert summed is not None
            if coefficients is None:
                coefficients = informative_coefficients(made, summed, columns, session)
            return made._with_sums(summed, coefficients, session)
        return made

    def _with_sums(self, summed: np.ndarray, G: np.ndarray, session: Session) -> SharedRows:
        """Return these rows with sums over others in addition;  n s kernel values per term.

        Columns of F for the sums are there already, and are written.
        """
        m, c = self.shared.size, G.shape[1]
        is_used = G.any(axis=0)
        sums = WeightedSums.over(self.search, summed, G, session)
        W = right_solve(self.L, sums.covariances[self.shared].T.copy(), session)
        C = symmetric_part(G.T @ sums.covariances[summed] - W @ W.T)
        # A column of Z that the shared rows determine tells nothing more. Its sum is 0.
        L_sums = factor_of_few_rows(C, np.where(is_used, 0.0, 1.0))
        L = np.zeros((m + c, m + c))
        L[:m, :m], L[m:, :m], L[m:, m:] = self.L, W, L_sums
        more = (G.T @ self.y[summed] - W @ self.a)[None]
        a = np.concatenate([self.a, right_solve(L_sums, more, session)[0]])
        if self.F is not None:
            for some in _row_slices(len(self), m):
                rest = sums.covariances[some] - self.F[some, :m] @ W.T
                self.F[some, m:] = right_solve(L_sums, rest, session)
        return replace(self, L=L, a=a, sums=sums)

    def factor_blocks(
        self, index: np.ndarray, session: Session
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of some rows, with their F_j^T for the shared rows alone;  (., m)."""
        for some in _row_slices(index.size, self.shared.size):
            if self.F is None:
                yield some, self.factors_of(index[some], session)
            else:
                yield some, self.F[index[some], : self.shared.size]

    def __len__(self) -> int:
        return len(self.y)

    def with_rows(self, rows: TrainingRows, session: Session) -> SharedRows:
        """Return the same shared rows among more rows, which begin with those of this one.

        r m^2 flops for r new rows if F of all rows is kept.
        """
        hyperparameters = self.search.hyperparameters
        search, noise = NeighborSearch(rows, hyperparameters), hyperparameters.noise(rows)
        diagonal = search.variances
        sums = None if self.sums is None else self.sums.with_rows(search, session)
        made = replace(self, search=search, y=rows.y, diagonal=diagonal, noise=noise, F=None)
        made = replace(made, sums=sums)
        if self.F is None:
            return made
        new = made.factors_of(np.arange(len(self), len(rows)), session)
        return replace(made, F=np.concatenate([self.F, new.astype(self.F.dtype)]))

    def first(self, count: int) -> SharedRows:
        """Return the first `count` of these rows, whose factors are parts of those of all."""
        assert self.sums is None
        return replace(
            self,
            shared=self.shared[:count],
            L=np.ascontiguousarray(self.L[:count, :count]),
            a=self.a[:count],
            F=None if self.F is None else np.ascontiguousarray(self.F[:, :count]),
        )

    @property
    def rounding(self) -> float:
        """Return the share of C's diagonal that makes up for the rounding of F."""
        is_single = self.F is not None and self.F.dtype == np.float32
        return FLOAT32_ROUNDING_SHARE if is_single else 0.0

    @property
    def _least(self) -> np.ndarray:
        """Return the least variance of y_j given the shared rows, whatever the rounding;  (n,).

        It is D_j. Sums have a small share of the noise of each row in them.
        """
        return self.noise if self.sums is None else LEAST_NOISE_SHARE * self.noise

    def factors_of(self, index: np.ndarray, session: Session) -> np.ndarray:
        """Return F_j^T of some rows in float64;  (r,) -> (r, m);  r m^2 flops."""
        S = _covariances(self.search, index, self.shared, session)
        if self.sums is not None:
            S = np.hstack([S, self.sums.covariances[index]])
        return right_solve(self.L, S, session)

    def kernels_of_shared(self, x: Any, session: Session) -> list[np.ndarray]:
        """Return k_t(x*, x_j) of all shared rows, for each term;  (b, m) each."""
        shared = self.search.prepared_rows[self.shared]
        active = self.search.hyperparameters.weight_prior.active
        return [
            kernel_matrix(term.kernel, term.kernel.prepare(x), own.points, session)
            for term, own in zip(active, shared.of_terms, strict=True)
        ]

    def kernel_of_shared(self, x: Any, session: Session) -> np.ndarray:
        """Return k(x*, x_j) of all shared rows, for the only term;  (b, m)."""
        (found,) = self.kernels_of_shared(x, session)
        return found

    def kernels_of_near(self, x: Any, near: Neighbors, session: Session) -> list[np.ndarray]:
        """Return k_t(x*, x_j) of the rows near each query, for each term;  (b, k) each.

        Places that are not in use hold 0.
        """
        search, prior = self.search, self.search.hyperparameters.weight_prior
        if prior.is_shared:
            points = search.prepared_rows.points
            return [_kernel_of_near(prior.kernel, points, search.profile, x, near, session)]
        rows, near = self._gathered(near)
        return [
            _kernel_of_near(
                *(term.kernel, own.points, term.kernel.profile(own.points), x, near, session)
            )
            for term, own in zip(prior.active, rows.of_terms, strict=True)
        ]

    def kernel_of_near(self, x: Any, near: Neighbors, session: Session) -> np.ndarray:
        """Return k(x*, x_j) of the rows near each query, for the only term;  (b, k)."""
        (found,) = self.kernels_of_near(x, near, session)
        return found

    def _gathered(self, near: Neighbors) -> tuple[PreparedRows, Neighbors]:
        """Return the rows near any query, and the neighbours by their numbers among these.

        Where no compiled form is made of them, these are all rows.
        """
        rows = self.search.prepared_rows
        if self.search.hyperparameters.weight_prior.pack(rows[:1]) is None:
            return rows, near
        index, at = np.unique(near.rows, return_inverse=True)
        return rows[index], replace(near, rows=at.reshape(near.rows.shape))

    def condition(
        self,
        near: Neighbors,
        sides: RightHandSides,
        session: Session,
        *,
        mean: bool = False,
        full: bool = False,
    ) -> Conditioned:
        """Return each query conditioned on the shared rows and on the rows near it.

        If `mean`, the weights of these rows in the mean come with it. If `full`, all products of
        the c right-hand sides are computed. The right-hand sides are overwritten.
        k^3/3 + k^2 (m + c) + (k + m) m c flops per query, and k m^2 more if F is not kept.
        """
        b, k = near.rows.shape
        m, c = len(self.L), sides.near.shape[2]
        half_shared = right_solve(self.L, sides.shared.reshape(b * c, m), session)
        half_shared = half_shared.reshape(b, c, m)
        half_near = np.ascontiguousarray(sides.near)
        found = np.empty((b, c, c if full else 1))
        near_weights, rest = np.zeros((b, k if mean else 0)), np.zeros((b, m if mean else 0))
        how = np.empty(b, np.int64)
        jitters = np.array(FEW_ROWS_JITTER.jitters(np.float64))
        with tile_threads(session.executor.n_jobs) as threads:
            for q in slices(b, max(1, BLOCK_BYTES // (8 * max(1, k * k)))):
                some = near[q]
                F, at = self._factors(some, session)
                noise, raised = self._least[some.rows], self.rounding * self.diagonal[some.rows]
                targets = self.a, self.y[some.rows], mean
                T = self._blocks(some, session)
                given = some.counts, T, F, at, noise, raised, jitters, *targets
                made = half_shared[q], half_near[q], full, near_weights[q], rest[q], found[q]
                threads.run(loops.condition, *given, *made, how[q])
        weights = right_solve_transposed(self.L, rest, session) if mean else None
        return Conditioned(
            found if full else found[:, :, 0],
            near_weights if mean else None,
            weights,
            int((how != loops.ON_BOTH).sum()),
        )

    def _factors(self, near: Neighbors, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """Return rows F_j^T (r, m), and the place of each near row among them (b, k)."""
        if self.F is not None:
            return self.F, near.rows
        index, at = np.unique(near.rows, return_inverse=True)
        return self.factors_of(index, session), at.reshape(near.rows.shape)

    def _blocks(self, near: Neighbors, session: Session) -> np.ndarray:
        """Return S between the rows near each query, with its exact diagonal;  (b, k, k)."""
        b, k = near.rows.shape
        search, T = self.search, np.empty((b, k, k))
        own = self.diagonal - self._least
        prior = search.hyperparameters.weight_prior
        if prior.is_shared and (profile := search.profile) is not None:
            with tile_threads(session.executor.n_jobs) as threads:
                rows = search.compiled_features, own, near.rows, near.counts
                threads.run(loops.fill_blocks, _kernel(profile), profile.points, *rows, T)
            return T
        if not prior.is_shared:
            some, at = self._gathered(near)
            if (packed := prior.pack(some)) is not None:
                with tile_threads(session.executor.n_jobs) as threads:
                    given = packed.kernel, packed.points, packed.Z, own[near.rows]
                    threads.run(term_loops.fill_blocks, *given, at.rows, at.counts, T)
                return T

        def one(i: int) -> None:
            mine = near.rows[i, : near.counts[i]]
            rows = search.prepared_rows[mine]
            block = prior.tile(rows, rows)
            np.fill_diagonal(block, own[mine])
            T[i, : mine.size, : mine.size] = block

        session.executor.map(one, range(b))
        return T


@dataclass(frozen=True)
class RightHandSides:
    """The covariances of c quantities of each query with the rows that it is conditioned on.

    near (b, k, c) has those with the rows near it, and shared (b, c, m) those with shared rows.
    """

    near: np.ndarray
    shared: np.ndarray

    @classmethod
    def of_weights(
        cls, K_near: np.ndarray, K_shared: np.ndarray, Z_near: np.ndarray, Z_shared: np.ndarray
    ) -> RightHandSides:
        """Return those of all d weights, B = diag(k*) Z.

        (b, k), (b, m), (b, k, d), (m, d) -> c = d.
        """
        return cls(K_near[:, :, None] * Z_near, K_shared[:, None, :] * Z_shared.T)

    @classmethod
    def of_terms(
        cls, cross: CrossCovariance, near: Neighbors, shared: np.ndarray
    ) -> RightHandSides:
        """Return those of all d weights, B = sum_t diag(k_t*) Z Lambda_t."""
        Z, d = cross.Z, cross.Z.shape[1]
        Z_near = Z[near.rows.ravel()].to_dense().reshape(*near.rows.shape, d)
        Z_shared = Z[shared].to_dense()
        return cls.summed(
            cls.of_weights(
                np.take_along_axis(one.K, near.rows, axis=1), one.K[:, shared], Z_near, Z_shared
            ).scaled(one.weight_variances)
            for one in cross.of_terms
        )

    @classmethod
    def nothing(cls, near: Neighbors, m: int, c: int) -> RightHandSides:
        """Return those of c quantities that have nothing in common with any row."""
        b, k = near.rows.shape
        return cls(np.zeros((b, k, c)), np.zeros((b, c, m)))

    @classmethod
    def summed(cls, parts: Iterable[RightHandSides]) -> RightHandSides:
        """Return the sum of those of several terms, of which the first ones are overwritten."""
        first, *others = parts
        for other in others:
            first.near[...] += other.near
            first.shared[...] += other.shared
        return first

    def with_sums(self, summed: np.ndarray | None) -> RightHandSides:
        """Return these with the covariances with weighted sums of y, after shared rows;  (b, c, .).

        None stands for no sums.
        """
        if summed is None:
            return self
        return replace(self, shared=np.concatenate([self.shared, summed], axis=2))

    def scaled(self, by: np.ndarray | None) -> RightHandSides:
        """Return these times a number for each quantity, None if all are 1;  (c,)."""
        return self if by is None else RightHandSides(self.near * by, self.shared * by[:, None])

    @classmethod
    def of_one(cls, near: np.ndarray, shared: np.ndarray) -> RightHandSides:
        """Return those of a single quantity, c = 1;  (b, k), (b, m)."""
        return cls(near[:, :, None], shared[:, None, :])

    @classmethod
    def joined(cls, parts: list[RightHandSides], near: Neighbors, m: int) -> RightHandSides:
        """Return those of several parts, one after the other, which may be none."""
        b, k = near.rows.shape
        return cls(
            np.concatenate([np.empty((b, k, 0)), *(part.near for part in parts)], axis=2),
            np.concatenate([np.empty((b, 0, m)), *(part.shared for part in parts)], axis=1),
        )


def _row_slices(count: int, m: int) -> list[slice]:
    """Return slices of rows whose covariances with m others are in memory together."""
    return slices(count, max(1, BLOCK_BYTES // (8 * max(1, m))))


def _kernel(profile: Profile) -> tuple[Any, ...]:
    """Return a kernel as compiled loops take it."""
    return profile.family, profile.shape, profile.scale, profile.near


def _covariances(
    search: NeighborSearch, a: np.ndarray, b: np.ndarray, session: Session
) -> np.ndarray:
    """Return S between rows a and rows b;  (r,), (s,) -> (r, s);  r s kernel values."""
    rows = search.prepared_rows
    return search.hyperparameters.weight_prior.block(rows[a], rows[b], session)


def _kernel_of_near(
    kernel: Kernel,
    points: Prepared,
    profile: Profile | None,
    x: Any,
    near: Neighbors,
    session: Session,
) -> np.ndarray:
    """Return k(x*, x_j) of the rows near each query, and 0 in places not in use;  (b, k).

    `points` are the rows as the kernel prepares them, and `profile` is their compiled form if there
    is one.
    """
    K, seen = np.zeros(near.rows.shape), kernel.prepare(x)
    if profile is not None:
        queries = kernel.profile(seen)
        assert queries is not None
        with tile_threads(session.executor.n_jobs) as threads:
            both = queries.points, profile.points
            threads.run(loops.fill_kernel, _kernel(profile), *both, near.rows, near.counts, K)
        return K

    def one(i: int) -> None:
        rows = near.rows[i, : near.counts[i]]
        K[i, : rows.size] = kernel.tile(seen[i : i + 1], points[rows])

    session.executor.map(one, range(len(near)))
    return K
