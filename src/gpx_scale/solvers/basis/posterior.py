"""The posterior of a basis, which is that of the coefficients of its functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from ...data.features import Features
from ...data.inputs import Preprocessor, TrainingRows
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
from .remainder import (
    BlockRemainderStatistics,
    ErrorCovariance,
    Remainder,
    RemainderStatistics,
    error_covariance,
    further,
)
from .remainder import statistics_task as remainder_task
from .sufficient_statistics import BasisStatistics, BlockBasisStatistics, Nodes


@stored
@dataclass(frozen=True)
class BasisPosterior(Posterior[np.ndarray]):
    """The posterior of the coefficients of M functions, with mean v and covariance B^-1.

    `statistics` has the functions and the sums over rows, `coefficients` (M,) are v, and `inverse`
    (M, M) is B^-1. `remainder_shares` are the mean and the largest share of the prior variance at
    the rows that the functions leave out. Variances count it by further functions (`remainder`),
    which leave out the share `tail_share` on average over the rows. Without further functions, it
    counts as noise, as it did in models that were saved before there were any.
    """

    statistics: Space
    coefficients: np.ndarray
    inverse: np.ndarray
    log_evidence: float
    condition_number: float
    remainder_shares: tuple[float, float]
    remainder: Remainder | None = None
    tail_share: float = float("nan")

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
        cls,
        space: Space,
        hyperparameters: Hyperparameters,
        x: np.ndarray,
        remainder: Remainder | None,
        session: Session,
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
        made = cls(*known, (0.0, 0.0), remainder)
        shares = made.left_out(x) / hyperparameters.weight_prior.variance(x)
        tails = made.tail(x) / hyperparameters.weight_prior.variance(x)
        left = float(shares.mean()), float(shares.max())
        made = replace(made, remainder_shares=left, tail_share=float(tails.mean()))
        made.error_covariance(session)
        return made

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
        if self.remainder is not None:
            variances = (
                f"those of the errors of the means, whose functions leave out {mean:.1e} of the "
                f"prior variance on average over the rows (at most {most:.1e}); "
                f"{self._further} further functions for each weight count this, but for "
                f"{self.tail_share:.1e}, which counts as noise"
            )
        return Diagnostics(
            self.log_evidence,
            condition_number=self.condition_number,
            solution=solution,
            variances=variances,
        )

    @property
    def _further(self) -> int:
        """Return the number of further functions of each weight."""
        if self.remainder is None:
            return 0
        return int(further(self.statistics.box, self.remainder.outer).sum())

    def error_covariance(self, session: Session) -> ErrorCovariance | None:
        """Return the matrices of the covariance of errors, None without further functions.

        They are kept, but neither copied nor saved: a copy or a loaded model computes them when it
        first needs them.
        """
        if self.remainder is None:
            return None
        known: ErrorCovariance | None = self.__dict__.get("_error_covariance")
        if known is None:
            box, parameters = self.statistics.box, self.hyperparameters
            known = error_covariance(box, self.remainder, parameters, self.inverse, session)
            self.__dict__["_error_covariance"] = known
        return known

    @cached_property
    def _root_density(self) -> np.ndarray:
        """Return s^1/2 at the frequencies of the functions;  (q,)."""
        density, _ = self.hyperparameters.kernel.spectral_density(self.statistics.box.omega)
        root: np.ndarray = np.sqrt(density)
        return root

    def cross(self, x: Any, session: Session, own: slice | None = None) -> np.ndarray:
        """Return s^1/2 phi(x*), the covariance of g(x*) with the coefficients;  (m, q).

        The columns of further functions, if there are any, come after those of the basis.
        """
        x = self.hyperparameters.kernel.vectors(x)
        parts = session.executor.map(lambda rows: self._scaled(x[rows]), slices(len(x), 512))
        found: np.ndarray = np.concatenate(parts) if parts else self._scaled(x)
        return found

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        """Return s^1/2 phi(x*), as `cross` does, in one thread."""
        box, kernel = self.statistics.box, self.hyperparameters.kernel
        angles = box.angles(x)
        own: np.ndarray = box.functions(angles) * self._root_density
        if self.remainder is None:
            return own
        outer = self.remainder.outer
        more = further(box, outer)
        density, _ = kernel.spectral_density(outer.omega[more])
        return np.hstack([own, outer.functions(angles)[:, more] * np.sqrt(density)])

    def left_out(self, x: Any) -> np.ndarray:
        """Return the part of k(x*, x*) that the functions of the basis leave out;  (m,)."""
        return self._left_by(x, len(self.statistics.box))

    def tail(self, x: Any) -> np.ndarray:
        """Return the part of k(x*, x*) that further functions leave out, too;  (m,)."""
        return self._left_by(x, None)

    def _left_by(self, x: Any, count: int | None) -> np.ndarray:
        """Return the part of k(x*, x*) that the first functions of `cross` leave out;  (m,)."""
        vectors = self.hyperparameters.kernel.vectors(x)
        known = np.square(self._scaled(vectors)[:, :count]).sum(axis=1)
        left: np.ndarray = np.maximum(self.hyperparameters.weight_prior.variance(x) - known, 0.0)
        return left

    def mean(
        self, x: Any, cross: np.ndarray | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        """Return E[w_l*] = sum_j s_j^1/2 v_jl phi_j(x*);  (m, d)."""
        phi = self._split(self.cross(x, session) if cross is None else cross)[0]
        V = np.ascontiguousarray(self.coefficients.reshape(self.d, -1).T)
        found: np.ndarray = session.executor.matmul(phi, V)
        return found

    def _split(self, cross: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the functions of the basis and the further ones, at queries."""
        q = len(self.statistics.box)
        return cross[:, :q], cross[:, q:]

    @property
    def bytes_per_query(self) -> int:
        return 2 * 8 * (len(self) + self.d * self._further)

    def _with_features(self, phi: np.ndarray, A: Features) -> np.ndarray:
        """Return the Kronecker product of a and phi* of each query;  (m, q), (m, d) -> (m, M)."""
        products: np.ndarray = A.to_dense()[:, :, None] * phi[:, None, :]
        return products.reshape(len(phi), -1)

    def reduction(self, cross: np.ndarray, request: MomentRequest, session: Session) -> Moments:
        """Return by how much the data reduce the prior variances and covariances of each query.

        R = phi.phi I - (phi x I)^T B^-1 (phi x I) (m, d, d), its diagonal (m, d), and a.R a (m,)
        for each vector a. With further functions, B^-1 is replaced by the covariance of errors, and
        phi_R^T T phi with its transpose is added.
        """
        phi, outer = self._split(cross)
        q, more, d = phi.shape[1], outer.shape[1], self.d
        own, each, full = np.square(phi).sum(axis=1), None, None
        error = self.error_covariance(session)
        matrix = self.inverse if error is None else error.own

        def crossed(l: int, k: int) -> np.ndarray:
            """Return phi_R^T T_lk phi of each query;  (m,)."""
            assert error is not None
            T = error.crossed[l * more : l * more + more, k * q : k * q + q]
            return np.asarray(np.einsum("ij,ij->i", phi @ T.T, outer))

        if request.covariance:
            full = np.empty((len(phi), d, d))

            def pair(at: tuple[slice, slice, int]) -> None:
                rows, cols, _ = at
                taken = np.einsum("ij,ij->i", phi @ matrix[rows, cols], phi)
                if error is not None:
                    l, k = rows.start // q, cols.start // q
                    taken -= crossed(l, k) + crossed(k, l)
                full[:, rows.start // q, cols.start // q] = full[
                    :, cols.start // q, rows.start // q
                ] = -taken

            session.executor.map(pair, blocks(d, q))
            full += own[:, None, None] * np.eye(d)
            each = np.einsum("ijj->ij", full) if request.variance else None
        elif request.variance:

            def one(l: int) -> np.ndarray:
                rows = slice(l * q, l * q + q)
                taken = np.einsum("ij,ij->i", phi @ matrix[rows, rows], phi)
                if error is not None:
                    taken -= 2.0 * crossed(l, l)
                reduced: np.ndarray = own - taken
                return reduced

            each = np.column_stack(session.executor.map(one, range(d)))
        return Moments(None, each, full, [self._along(cross, A, session) for A in request.along])

    def _along(self, cross: np.ndarray, A: Features, session: Session) -> np.ndarray:
        """Return a.R a of each query;  (m,)."""
        phi, outer = self._split(cross)
        wide, error = self._with_features(phi, A), self.error_covariance(session)
        known = session.executor.matmul(wide, self.inverse if error is None else error.own)
        reduced: np.ndarray = np.square(phi).sum(axis=1) * A.squared_norms()
        reduced -= np.einsum("ij,ij->i", known, wide)
        if error is not None:
            moved = session.executor.matmul(wide, error.crossed.T)
            reduced += 2.0 * np.einsum("ij,ij->i", moved, self._with_features(outer, A))
        return reduced

    def joint_reduction(self, cross: np.ndarray, A: Features, session: Session) -> np.ndarray:
        """Return (a_i x phi_i)^T (I - B^-1) (a_j x phi_j) for all queries i and j;  (m, m).

        With further functions, it is as in `reduction`.
        """
        phi, outer = self._split(cross)
        wide, error = self._with_features(phi, A), self.error_covariance(session)
        if error is None:
            known = wide - session.executor.matmul(wide, self.inverse)
            return symmetric_part(session.executor.matmul(known, wide.T))
        known = wide - session.executor.matmul(wide, error.own)
        moved = session.executor.matmul(wide, error.crossed.T)
        found = session.executor.matmul(known, wide.T)
        found += 2.0 * session.executor.matmul(moved, self._with_features(outer, A).T)
        return symmetric_part(found)

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

        The part of k that all functions leave out is drawn independently for each query.
        """
        (phi, outer), q = self._split(self.cross(x, session)), len(self.statistics.box)
        error, more = self.error_covariance(session), self._further
        e = random.standard_normal((len(self), count))
        if error is None:
            moved = solve_triangular(self._root, e, lower=True, trans="T", check_finite=False)
        else:
            left_out = random.standard_normal((self.d * more, count))
            moved = self.inverse @ (cholesky(error.noise, lower=True, check_finite=False) @ e)
            moved -= error.crossed.T @ left_out
        drawn = self.coefficients[:, None] + moved
        draws = np.empty((len(phi), self.d, count))
        for l in range(self.d):
            draws[:, l] = session.executor.matmul(phi, drawn[l * q : l * q + q])
            if error is not None:
                draws[:, l] += outer @ left_out[l * more : l * more + more]
        left = np.sqrt(self.tail(x) + self.hyperparameters.sigma_w**2)
        return draws + left[:, None, None] * random.standard_normal(draws.shape)

    @cached_property
    def _root(self) -> np.ndarray:
        """Return the Cholesky factor of B, in its lower triangle;  (M, M)."""
        return BasisLikelihood(self.statistics, self.hyperparameters, serial_session()).B

    def __getstate__(self) -> dict[str, Any]:
        # Large matrices that can be computed again are left out.
        left_out = "_root", "_error_covariance"
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

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
        if self.remainder is not None:
            must(isinstance(self.remainder, Remainder), "its further functions are something else")
            self.remainder.must_fit(space.box, preprocessor)

    def joint_bytes(self, m: int) -> int:
        return 8 * (4 * m * (len(self) + self.d * self._further) + 4 * m * m)

    def draw_bytes(self, m: int, count: int) -> int:
        box, more = self.statistics.box, self._further
        drawn = 3 * m * self.d + 2 * (len(self) + self.d * more)
        return 8 * (2 * len(self) ** 2 + m * (len(box) + more) + drawn * count)

    def can_evaluate(self, hyperparameters: Hyperparameters) -> bool:
        return self.statistics.covers(hyperparameters)

    def statistics_task(self) -> BlockAddedStatistics:
        """Return the task that sums further rows, at the hyperparameters of this posterior."""
        box = self.statistics.box
        own = BlockBasisStatistics(box, self._node, within=True)
        if self.remainder is None:
            return BlockAddedStatistics(own, None)
        given = box, self.remainder.outer, self._rho, self.hyperparameters
        return BlockAddedStatistics(own, remainder_task(*given))

    @property
    def _node(self) -> Nodes:
        """Return the one node that stands for the hyperparameters of this posterior."""
        space = self.statistics
        return Nodes.around(self._rho, space.nodes.largest, space.sums.rows, spread=0.0)

    @property
    def _rho(self) -> float:
        """Return the ratio of the noise of the weights, with the remainder, to sigma_y^2."""
        space = self.statistics
        return NoiseRatio.of(space.box, space.mean_square, self.hyperparameters).value

    def with_statistics(self, more: RowStatistics, session: Session) -> BasisPosterior:
        assert isinstance(more, AddedStatistics)
        space, remainder = self.statistics, self.remainder
        weights, _ = space.nodes.at(self._node.rho[0])
        now = space.sums.at(weights)
        total = BasisStatistics(now.rows, now.cosines[None], now.b[None], now.plain[None])
        total += more.own
        space = replace(space, nodes=self._node, sums=total)
        if remainder is not None and more.remainder is not None:
            sums = RemainderStatistics(remainder.sums.cosines + more.remainder.cosines)
            remainder = replace(remainder, sums=sums)
        centre = space.box.centre[None]
        made = BasisPosterior.of(space, self.hyperparameters, centre, remainder, session)
        # The shares are those at the rows of the fit.
        return replace(made, remainder_shares=self.remainder_shares, tail_share=self.tail_share)


@dataclass
class AddedStatistics:
    """The sums over rows that are added to a posterior: its own, and those of its remainder."""

    own: BasisStatistics
    remainder: RemainderStatistics | None

    def __iadd__(self, other: AddedStatistics) -> AddedStatistics:
        self.own += other.own
        if self.remainder is not None and other.remainder is not None:
            self.remainder += other.remainder
        return self


@dataclass(frozen=True)
class BlockAddedStatistics:
    """The task that maps a block of rows to its `AddedStatistics`."""

    own: BlockBasisStatistics
    remainder: BlockRemainderStatistics | None

    def __call__(self, block: TrainingRows) -> AddedStatistics:
        more = None if self.remainder is None else self.remainder(block)
        return AddedStatistics(self.own(block), more)
