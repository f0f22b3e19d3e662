"""The posterior of a basis, which is that of the coefficients of its functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from ...data.features import Features
from ...data.inputs import Preprocessor
from ...errors import InputError
from ...model.hyperparameters import Hyperparameters
from ...runtime.parallel import slices
from ...runtime.session import Session, serial_session
from ...runtime.state import are_finite, must, must_be_numbers, stored
from ..contract import Capability, Plan
from ..posterior import (
    Diagnostics,
    MomentRequest,
    Moments,
    Posterior,
    RowStatistics,
    symmetric_part,
)
from ..sparse_weights import Entries, EntryReduction
from .marginal_likelihood import BasisLikelihood, NoiseRatio, Space, blocks
from .sufficient_statistics import BasisStatistics, BlockBasisStatistics, Nodes


@stored
@dataclass(frozen=True)
class BasisPosterior(Posterior[np.ndarray]):
    """The posterior of the coefficients of M functions, with mean v and covariance B^-1.

    `statistics` has the functions and the sums over rows, `coefficients` (M,) are v, and `inverse`
    (M, M) is B^-1. `remainder_shares` are the mean and the largest share of the prior variance at
    the rows that the functions leave out.
    """

    statistics: Space
    coefficients: np.ndarray
    inverse: np.ndarray
    log_evidence: float
    condition_number: float
    remainder_shares: tuple[float, float]

    capabilities = frozenset(
        {
            Capability.STREAM,
            Capability.FILES,
            Capability.ADD_ROWS,
            Capability.JOINT_COVARIANCE,
        }
    )

    @classmethod
    def of(
        cls, space: Space, hyperparameters: Hyperparameters, x: np.ndarray, session: Session
    ) -> BasisPosterior:
        """Return the posterior at these hyperparameters;  M^3 flops.

        The shares that the functions leave out are measured at the rows `x`.
        """
        found = BasisLikelihood(space, hyperparameters, session)
        inverse = found.inverted()
        for rows in slices(len(inverse), 512):
            inverse[rows, rows] = np.tril(inverse[rows, rows]) + np.tril(inverse[rows, rows], -1).T
            inverse[rows, rows.stop :] = inverse[rows.stop :, rows].T
        known = hyperparameters, space, found.v, inverse, found.value, found.condition
        made = cls(*known, (0.0, 0.0))
        shares = made.remainder(x) / hyperparameters.weight_prior.variance(x)
        return replace(made, remainder_shares=(float(shares.mean()), float(shares.max())))

    def __len__(self) -> int:
        return self.statistics.size

    @property
    def d(self) -> int:
        return int(self.statistics.sums.b.shape[1])

    @property
    def n_rows(self) -> int:
        return self.statistics.sums.rows

    @property
    def diagnostics(self) -> Diagnostics:
        box, (mean, most) = self.statistics.box, self.remainder_shares
        lengths = ", ".join(
            f"{half / length:.1f}" for half, length in zip(box.half, box.longest, strict=True)
        )
        solution = (
            f"{len(box)} functions for each of {self.d} weights, on a box of half-width {lengths} "
            "length scales"
        )
        variances = (
            "those of the basis plus the share of the prior variance that it leaves out, "
            f"{mean:.1e} on average over the rows (at most {most:.1e}); not upper bounds"
        )
        return Diagnostics(
            self.log_evidence,
            condition_number=self.condition_number,
            solution=solution,
            variances=variances,
        )

    @cached_property
    def _root_density(self) -> np.ndarray:
        """Return s^1/2 at the frequencies of the functions;  (q,)."""
        density, _ = self.hyperparameters.kernel.spectral_density(self.statistics.box.omega)
        root: np.ndarray = np.sqrt(density)
        return root

    def cross(self, x: Any, session: Session, own: slice | None = None) -> np.ndarray:
        """Return s^1/2 phi(x*), the covariance of g(x*) with the coefficients;  (m, q)."""
        box, x = self.statistics.box, self.hyperparameters.kernel.vectors(x)
        parts = session.executor.map(
            lambda rows: box.functions(box.angles(x[rows])), slices(len(x), 512)
        )
        if not parts:
            return np.empty((0, len(box)))
        found: np.ndarray = np.concatenate(parts) * self._root_density
        return found

    def remainder(self, x: Any) -> np.ndarray:
        """Return the part of k(x*, x*) that the functions leave out;  (m,)."""
        box = self.statistics.box
        vectors = self.hyperparameters.kernel.vectors(x)
        known = np.square(box.functions(box.angles(vectors)) * self._root_density).sum(axis=1)
        left: np.ndarray = np.maximum(self.hyperparameters.weight_prior.variance(x) - known, 0.0)
        return left

    def mean(
        self, x: Any, cross: np.ndarray | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        """Return E[w_l*] = sum_j s_j^1/2 v_jl phi_j(x*);  (m, d)."""
        phi = self.cross(x, session) if cross is None else cross
        V = np.ascontiguousarray(self.coefficients.reshape(self.d, -1).T)
        found: np.ndarray = session.executor.matmul(phi, V)
        return found

    @property
    def bytes_per_query(self) -> int:
        return 2 * 8 * len(self)

    def _with_features(self, phi: np.ndarray, A: Features) -> np.ndarray:
        """Return the Kronecker product of a and phi* of each query;  (m, q), (m, d) -> (m, M)."""
        products: np.ndarray = A.to_dense()[:, :, None] * phi[:, None, :]
        return products.reshape(len(phi), -1)

    def reduction(self, cross: np.ndarray, request: MomentRequest, session: Session) -> Moments:
        """Return by how much the data reduce the prior variances and covariances of each query.

        R = phi.phi I - (phi x I)^T B^-1 (phi x I) (m, d, d), its diagonal (m, d), and a.R a (m,)
        for each vector a
        """
        phi, q, d = cross, cross.shape[1], self.d
        own, each, full = np.square(phi).sum(axis=1), None, None
        if request.covariance:
            full = np.empty((len(phi), d, d))

            def pair(at: tuple[slice, slice, int]) -> None:
                rows, cols, _ = at
                taken = np.einsum("ij,ij->i", phi @ self.inverse[rows, cols], phi)
                full[:, rows.start // q, cols.start // q] = full[
                    :, cols.start // q, rows.start // q
                ] = -taken

            session.executor.map(pair, blocks(d, q))
            full += own[:, None, None] * np.eye(d)
            each = np.einsum("ijj->ij", full) if request.variance else None
        elif request.variance:

            def one(l: int) -> np.ndarray:
                rows = slice(l * q, l * q + q)
                taken = np.einsum("ij,ij->i", phi @ self.inverse[rows, rows], phi)
                reduced: np.ndarray = own - taken
                return reduced

            each = np.column_stack(session.executor.map(one, range(d)))
        return Moments(None, each, full, [self._along(phi, A, own, session) for A in request.along])

    def _along(self, phi: np.ndarray, A: Features, own: np.ndarray, session: Session) -> np.ndarray:
        """Return a.R a of each query, where `own` is phi.phi;  (m,)."""
        wide = self._with_features(phi, A)
        known = session.executor.matmul(wide, self.inverse)
        reduced: np.ndarray = own * A.squared_norms() - np.einsum("ij,ij->i", known, wide)
        return reduced

    def joint_reduction(self, cross: np.ndarray, A: Features, session: Session) -> np.ndarray:
        """Return (a_i x phi_i)^T (I - B^-1) (a_j x phi_j) for all queries i and j;  (m, m)."""
        wide = self._with_features(cross, A)
        known = wide - session.executor.matmul(wide, self.inverse)
        return symmetric_part(session.executor.matmul(known, wide.T))

    def entry_mean_and_reduction(
        self, entries: Entries, reduction: EntryReduction | None, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        raise InputError(
            "A model with solver='basis' needs a dense Z, and a sparse one was given. Give Z as an "
            "array."
        )

    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count).

        The part of k that the functions leave out is drawn independently for each query.
        """
        phi, q = self.cross(x, session), len(self.statistics.box)
        e = random.standard_normal((len(self), count))
        moved = solve_triangular(self._root, e, lower=True, trans="T", check_finite=False)
        drawn = self.coefficients[:, None] + moved
        draws = np.empty((len(phi), self.d, count))
        for l in range(self.d):
            draws[:, l] = session.executor.matmul(phi, drawn[l * q : l * q + q])
        left = np.sqrt(self.remainder(x) + self.hyperparameters.sigma_w**2)
        return draws + left[:, None, None] * random.standard_normal(draws.shape)

    @cached_property
    def _root(self) -> np.ndarray:
        """Return the Cholesky factor of B, in its lower triangle;  (M, M)."""
        return BasisLikelihood(self.statistics, self.hyperparameters, serial_session()).B

    def __getstate__(self) -> dict[str, Any]:
        # The factor is left out, because M^2 numbers are large and can be computed again.
        return {name: value for name, value in self.__dict__.items() if name != "_root"}

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        space, kernel = self.statistics, self.hyperparameters.kernel
        dense = not (preprocessor.sparse_x or preprocessor.sparse_z)
        must(dense, "it has a basis, and X or Z is sparse")
        must(kernel.has_spectral_density, "its kernel has no spectral density")
        space.must_fit(preprocessor)
        must(space.box.covers(kernel), "its basis was built for other length scales")
        M = space.size
        must_be_numbers(self.coefficients, (M,), "the coefficients of the basis")
        must_be_numbers(self.inverse, (M, M), "the covariance of the basis")
        known = are_finite(*self.remainder_shares)
        must(known, "the remainder of the basis is not finite")

    def joint_bytes(self, m: int) -> int:
        return 8 * (4 * m * len(self) + 4 * m * m)

    def draw_bytes(self, m: int, count: int) -> int:
        box = self.statistics.box
        return 8 * (2 * len(self) ** 2 + m * len(box) + (3 * m * self.d + 2 * len(self)) * count)

    def can_evaluate(self, hyperparameters: Hyperparameters) -> bool:
        return self.statistics.covers(hyperparameters)

    def statistics_task(self) -> BlockBasisStatistics:
        """Return the task that sums further rows, at the hyperparameters of this posterior."""
        return BlockBasisStatistics(self.statistics.box, self._node, within=True)

    @property
    def _node(self) -> Nodes:
        """Return the one node that stands for the hyperparameters of this posterior."""
        space = self.statistics
        rho = NoiseRatio.of(space.box, space.mean_square, self.hyperparameters).value
        return Nodes.around(rho, space.nodes.largest, space.sums.rows, spread=0.0)

    def with_statistics(self, more: RowStatistics, session: Session) -> BasisPosterior:
        assert isinstance(more, BasisStatistics)
        space = self.statistics
        weights, _ = space.nodes.at(self._node.rho[0])
        now = space.sums.at(weights)
        total = BasisStatistics(now.rows, now.cosines[None], now.b[None], now.plain[None])
        total += more
        space = replace(space, nodes=self._node, sums=total)
        made = BasisPosterior.of(space, self.hyperparameters, space.box.centre[None], session)
        return replace(made, remainder_shares=self.remainder_shares)
