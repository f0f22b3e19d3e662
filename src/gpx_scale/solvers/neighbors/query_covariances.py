"""The covariances of queries with the rows that they are conditioned on, and means from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...compiled import neighborhood as loops
from ...data.features import Features, SparseFeatures
from ...linalg.neighbor_search import Neighbors
from ...model.cross_covariance import kernel_matrix
from ...runtime.session import Session
from ...runtime.tile_loops import tile_threads
from ..neighborhood import Conditioned, RightHandSides, SharedRows
from .query_rows import QueryRows, QueryTerm, dense_rows


@dataclass(frozen=True)
class QueryCovariances:
    """The covariances of queries with the rows around them, among all rows of `known`."""

    known: SharedRows

    @property
    def Z(self) -> Features:
        """Return the readable features of all rows."""
        return self.known.search.rows.Z

    @property
    def d(self) -> int:
        """Return the number of weights."""
        return self.Z.shape[1]

    def terms(self, x: Any, near: Neighbors, session: Session) -> tuple[QueryTerm, ...]:
        """Return the kernel values of each term between queries and their rows."""
        known, active = self.known, self.known.search.hyperparameters.weight_prior.active
        of_near = known.kernels_of_near(x, near, session)
        of_shared = known.kernels_of_shared(x, session)
        of_sums = self._of_sums(x, session)
        return tuple(
            QueryTerm(near, shared, term.weight_variances, term.part, summed)
            for near, shared, term, summed in zip(of_near, of_shared, active, of_sums, strict=True)
        )

    def _of_sums(self, x: Any, session: Session) -> list[np.ndarray | None]:
        """Return sum_j k_t(x*, x_j) z_jl G_j for each term;  (b, d, c) each;  b s d c flops."""
        prior, sums = self.known.search.hyperparameters.weight_prior, self.known.sums
        if sums is None:
            return [None] * len(prior.active)
        rows = self.known.search.prepared_rows[sums.rows]
        Z = self.Z[sums.rows].to_dense()
        found: list[np.ndarray | None] = []
        for term, own in zip(prior.active, rows.of_terms, strict=True):
            some, made = Z[:, term.columns], np.zeros((len(x), self.d, sums.count))
            if term.kernel.is_constant:
                made[:, term.columns] = some.T @ sums.coefficients
            else:
                K = kernel_matrix(term.kernel, term.kernel.prepare(x), own.points, session)
                for g, coefficients in enumerate(sums.coefficients.T):
                    weighed = some * coefficients[:, None]
                    made[:, term.columns, g] = session.executor.matmul(K, weighed)
            found.append(made)
        return found

    def noise_of(self, near: Neighbors, own: np.ndarray) -> QueryTerm:
        """Return the term of the noise of training rows' own weights;  (b,)."""
        b, prior, sums = own.size, self.known.search.hyperparameters.weight_prior, self.known.sums
        K_near, K_shared = np.zeros(near.rows.shape), np.zeros((b, self.known.shared.size))
        K_near[near.in_use & (near.rows == own[:, None])] = prior.sigma_w**2
        K_shared[self.known.shared == own[:, None]] = prior.sigma_w**2
        summed = None
        if sums is not None:
            z = prior.sigma_w**2 * self.Z[own].to_dense()
            summed = z[:, :, None] * sums.of_rows(own)[:, None, :]
        return QueryTerm(K_near, K_shared, summed=summed)

    def of_weights(self, query: QueryRows) -> RightHandSides:
        """Return the covariances of all weights, B = sum_t diag(k_t*) Z Lambda_t."""
        if not query.terms:
            return RightHandSides.nothing(query.near, len(self.known.L), self.d)
        rows = dense_rows(self.Z, query.near), self.Z[self.known.shared].to_dense()
        return RightHandSides.summed(
            RightHandSides.of_weights(term.near, term.shared, *rows)
            .with_sums(term.summed)
            .scaled(term.weight_variances)
            for term in query.terms
        )

    def along(self, query: QueryRows, A: Features, session: Session) -> RightHandSides:
        """Return the covariances of a_i . w(x*_i)."""
        parts = []
        for term in query.terms:
            scaled, summed = term.scaled(A), None
            near, shared = self._inner(scaled, query.near, session)
            if term.summed is not None:
                summed = (scaled.to_dense()[:, :, None] * term.summed).sum(axis=1, keepdims=True)
            one = RightHandSides.of_one(term.near * near, term.shared * shared)
            parts.append(one.with_sums(summed))
        if not parts:
            return RightHandSides.nothing(query.near, len(self.known.L), 1)
        return RightHandSides.summed(parts)

    def at_entries(
        self, query: QueryRows, pattern: SparseFeatures, session: Session
    ) -> RightHandSides:
        """Return k*_j z_jl of the rows of each query, at the features l of its pattern."""
        (term,) = query.terms
        b, m, width = len(query), self.known.shared.size, int(pattern.counts.max(initial=0))
        near = np.empty((*query.near.rows.shape, width))
        shared = np.empty((b, m, width))
        pointers, features = pattern.pointers - pattern.pointers[0], pattern.indices[pattern.span]
        Z = self.known.search.compiled_features
        with tile_threads(session.executor.n_jobs) as threads:
            given = pointers, features, term.near, query.near.rows, query.near.counts
            threads.run(loops.sparse_columns, Z, *given, near)
            given = pointers, features, term.shared, *self._shared_of_each(b)
            threads.run(loops.sparse_columns, Z, *given, shared)
        return RightHandSides(near, np.ascontiguousarray(shared.swapaxes(1, 2)))

    def _shared_of_each(self, b: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the shared rows of each of b queries, and their number;  (b, m), (b,)."""
        return np.tile(self.known.shared, (b, 1)), np.full(b, self.known.shared.size)

    def _inner(
        self, A: Features, near: Neighbors, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return <a_i, z_j> with rows near each query, and with shared ones;  (b, k), (b, m)."""
        Z = self.Z
        shared = A.inner_products(Z[self.known.shared])
        if A.is_sparse:
            assert isinstance(A, SparseFeatures)
            found = np.zeros(near.rows.shape)
            with tile_threads(session.executor.n_jobs) as threads:
                given = A.pointers, A.indices, A.values, near.rows, near.counts, found
                Z_rows = self.known.search.compiled_features
                threads.run(loops.sparse_inner_products, Z_rows, *given)
            return found, shared
        return np.matmul(dense_rows(Z, near), A.to_dense()[:, :, None])[:, :, 0], shared

    def mean(
        self,
        query: QueryRows,
        found: Conditioned,
        pattern: SparseFeatures | None,
        session: Session,
    ) -> np.ndarray:
        """Return E[w*], the sum of k*_j alpha_j z_j;  (b, d), or (entries,) of a pattern."""
        assert found.near_weights is not None
        assert found.shared_weights is not None
        weights = found.near_weights, found.shared_weights
        if pattern is None:
            return self._dense_mean(query, *weights, session)
        (term,) = query.terms
        near, shared = term.near * weights[0], term.shared * weights[1]
        pointers, features = pattern.pointers - pattern.pointers[0], pattern.indices[pattern.span]
        mean = np.zeros(features.size)
        Z_rows = self.known.search.compiled_features
        with tile_threads(session.executor.n_jobs) as threads:
            given = pointers, features, shared, *self._shared_of_each(len(query)), mean
            threads.run(loops.add_sparse_mean, Z_rows, *given)
            given = pointers, features, near, query.near.rows, query.near.counts, mean
            threads.run(loops.add_sparse_mean, Z_rows, *given)
        return mean

    def _dense_mean(
        self,
        query: QueryRows,
        near_weights: np.ndarray,
        shared_weights: np.ndarray,
        session: Session,
    ) -> np.ndarray:
        """Return the sum over rows j and terms t of k_t*_j alpha_j Lambda_t z_j;  (b, d)."""
        Z, mean, m = self.Z, np.zeros((len(query), self.d)), self.known.shared.size
        rows = dense_rows(Z, query.near)
        for term in query.terms:
            near, shared = term.near * near_weights, term.shared * shared_weights[:, :m]
            local = np.matmul(near[:, None, :], rows)[:, 0]
            local += Z[self.known.shared].left_multiply(shared, session)
            if term.summed is not None:
                local += np.matmul(term.summed, shared_weights[:, m:, None])[:, :, 0]
            mean += local if term.weight_variances is None else local * term.weight_variances
        return mean
