"""The posterior of a basis, which is that of the coefficients of its functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

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
from .laplacian_basis import LaplacianBasis
from .marginal_likelihood import BasisLikelihood, Space, blocks
from .remainder import (
    ErrorCovariance,
    Remainder,
    error_covariance,
    further,
)
from .remainder import statistics_task as remainder_task
from .sufficient_statistics import BlockBasisStatistics, Nodes
from .term_remainder import TermRemainder
from .term_space import TermSpace


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

    statistics: Space | TermSpace
    coefficients: np.ndarray
    inverse: np.ndarray
    log_evidence: float
    condition_number: float
    remainder_shares: tuple[float, float]
    remainder: Remainder | TermRemainder | None = None
    tail_share: float = float("nan")

    capabilities = frozenset(
        {
            Capability.STREAM,
            Capability.FILES,
            Capability.ADD_ROWS,
            Capability.JOINT_COVARIANCE,
            Capability.WEIGHT_TERMS,
        }
    )

    @classmethod
    def of(
        cls,
        space: Space | TermSpace,
        hyperparameters: Hyperparameters,
        x: np.ndarray,
        remainder: Remainder | TermRemainder | None,
        session: Session,
    ) -> Self:
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
        shares, tails = made.shares(made.left_out(x), x), made.shares(made.tail(x), x)
        left = float(shares.mean()), float(shares.max())
        made = replace(made, remainder_shares=left, tail_share=float(tails.mean()))
        made.error_covariance(session)
        return made

    def __len__(self) -> int:
        return self.statistics.size

    @property
    def d(self) -> int:
        return self.statistics.d

    @property
    def n_rows(self) -> int:
        return self.statistics.rows

    @property
    def space(self) -> Space:
        """Return the functions and sums of weights that share their prior."""
        assert isinstance(self.statistics, Space)
        return self.statistics

    @property
    def description(self) -> str:
        """Return a description of the functions."""
        box = self.space.box
        lengths = widths(box)
        return (
            f"{len(box)} functions for each of {self.d} weights, on a box of half-width {lengths} "
            "length scales"
        )

    @property
    def diagnostics(self) -> Diagnostics:
        mean, most = self.remainder_shares
        variances = (
            "those of the basis plus the share of the prior variance that it leaves out, "
            f"{mean:.1e} on average over the rows (at most {most:.1e}); not upper bounds"
        )
        if self.remainder is not None:
            variances = (
                f"those of the errors of the means, whose functions leave out {mean:.1e} of the "
                f"prior variance on average over the rows (at most {most:.1e}); "
                f"{self.further_columns // self.d} further functions for each weight count this, "
                f"but for {self.tail_share:.1e}, which counts as noise"
            )
        return Diagnostics(
            self.log_evidence,
            condition_number=self.condition_number,
            solution=self.description,
            variances=variances,
        )

    @property
    def shared_remainder(self) -> Remainder | None:
        """Return the further functions of weights that share their prior."""
        assert not isinstance(self.remainder, TermRemainder)
        return self.remainder

    @property
    def further_columns(self) -> int:
        """Return the number of further functions of all weights."""
        if (remainder := self.shared_remainder) is None:
            return 0
        return self.d * int(further(self.space.box, remainder.outer).sum())

    def error_covariance(self, session: Session) -> ErrorCovariance | None:
        """Return the matrices of the covariance of errors, None without further functions.

        They are kept, but neither copied nor saved: a copy or a loaded model computes them when it
        first needs them.
        """
        if self.remainder is None:
            return None
        known: ErrorCovariance | None = self.__dict__.get("_error_covariance")
        if known is None:
            known = self.computed_error_covariance(session)
            self.__dict__["_error_covariance"] = known
        return known

    def computed_error_covariance(self, session: Session) -> ErrorCovariance:
        """Return the matrices of the covariance of errors, with further functions."""
        remainder, parameters = self.shared_remainder, self.hyperparameters
        assert remainder is not None
        return error_covariance(self.space.box, remainder, parameters, self.inverse, session)

    @cached_property
    def _root_density(self) -> np.ndarray:
        """Return s^1/2 at the frequencies of the functions;  (q,)."""
        density, _ = self.hyperparameters.kernel.spectral_density(self.space.box.omega)
        root: np.ndarray = np.sqrt(density)
        return root

    def cross(self, x: Any, session: Session, own: slice | None = None) -> np.ndarray:
        """Return s^1/2 phi(x*), the covariance of g(x*) with the coefficients;  (m, q).

        The columns of further functions, if there are any, come after those of the basis.
        """
        x = self.hyperparameters.kernel.vectors(x)
        parts = session.executor.map(lambda rows: self.scaled(x[rows]), slices(len(x), 512))
        found: np.ndarray = np.concatenate(parts) if parts else self.scaled(x)
        return found

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Return s^1/2 phi(x*), as `cross` does, in one thread."""
        box, kernel = self.space.box, self.hyperparameters.kernel
        angles = box.angles(x)
        own: np.ndarray = box.functions(angles) * self._root_density
        if (remainder := self.shared_remainder) is None:
            return own
        outer = remainder.outer
        more = further(box, outer)
        density, _ = kernel.spectral_density(outer.omega[more])
        return np.hstack([own, outer.functions(angles)[:, more] * np.sqrt(density)])

    def left_out(self, x: Any) -> np.ndarray:
        """Return the part of the prior variance that the functions of the basis leave out.

        (m,), or (m, d) where weights have priors of their own
        """
        return self.left_by(x, self.own_columns)

    def tail(self, x: Any) -> np.ndarray:
        """Return the part that further functions leave out, too."""
        return self.left_by(x, None)

    def shares(self, left: np.ndarray, x: Any) -> np.ndarray:
        """Return the shares of the prior variances at x that are left out."""
        found: np.ndarray = left / self.hyperparameters.weight_prior.variance(x)
        return found

    @property
    def own_columns(self) -> int:
        """Return how many columns of `cross` are those of the basis."""
        return len(self.space.box)

    @property
    def cross_columns(self) -> int:
        """Return how many columns `cross` has."""
        return self.own_columns + self.further_columns // self.d

    def left_by(self, x: Any, count: int | None) -> np.ndarray:
        """Return the part of k(x*, x*) that the first functions of `cross` leave out;  (m,)."""
        vectors = self.hyperparameters.kernel.vectors(x)
        known = np.square(self.scaled(vectors)[:, :count]).sum(axis=1)
        left: np.ndarray = np.maximum(self.hyperparameters.weight_prior.variance(x) - known, 0.0)
        return left

    def mean(
        self, x: Any, cross: np.ndarray | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        """Return E[w_l*] = sum_j s_j^1/2 v_jl phi_j(x*);  (m, d)."""
        phi = self.split(self.cross(x, session) if cross is None else cross)[0]
        V = np.ascontiguousarray(self.coefficients.reshape(self.d, -1).T)
        found: np.ndarray = session.executor.matmul(phi, V)
        return found

    def split(self, cross: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the functions of the basis and the further ones, at queries."""
        q = self.own_columns
        return cross[:, :q], cross[:, q:]

    @property
    def bytes_per_query(self) -> int:
        return 2 * 8 * (len(self) + self.further_columns)

    def with_features(self, phi: np.ndarray, A: Features, is_further: bool = False) -> np.ndarray:
        """Return the Kronecker product of a and phi* of each query;  (m, q), (m, d) -> (m, M).

        If `is_further` is true, these are the further functions.
        """
        products: np.ndarray = A.to_dense()[:, :, None] * phi[:, None, :]
        return products.reshape(len(phi), -1)

    def reduction(self, cross: np.ndarray, request: MomentRequest, session: Session) -> Moments:
        """Return by how much the data reduce the prior variances and covariances of each query.

        R = phi.phi I - (phi x I)^T B^-1 (phi x I) (m, d, d), its diagonal (m, d), and a.R a (m,)
        for each vector a. With further functions, B^-1 is replaced by the covariance of errors, and
        phi_R^T T phi with its transpose is added.
        """
        phi, outer = self.split(cross)
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
        return Moments(None, each, full, [self.along(cross, A, session) for A in request.along])

    def along(self, cross: np.ndarray, A: Features, session: Session) -> np.ndarray:
        """Return a.R a of each query;  (m,)."""
        phi, outer = self.split(cross)
        wide, error = self.with_features(phi, A), self.error_covariance(session)
        known = session.executor.matmul(wide, self.inverse if error is None else error.own)
        reduced = self.known_along(phi, A)
        reduced -= np.einsum("ij,ij->i", known, wide)
        if error is not None:
            moved = session.executor.matmul(wide, error.crossed.T)
            reduced += 2.0 * np.einsum("ij,ij->i", moved, self.with_features(outer, A, True))
        return reduced

    def known_along(self, phi: np.ndarray, A: Features) -> np.ndarray:
        """Return the prior variance of a.w that the functions have;  (m,)."""
        known: np.ndarray = np.square(phi).sum(axis=1) * A.squared_norms()
        return known

    def joint_reduction(self, cross: np.ndarray, A: Features, session: Session) -> np.ndarray:
        """Return (a_i x phi_i)^T (I - B^-1) (a_j x phi_j) for all queries i and j;  (m, m).

        With further functions, it is as in `reduction`.
        """
        phi, outer = self.split(cross)
        wide, error = self.with_features(phi, A), self.error_covariance(session)
        if error is None:
            known = wide - session.executor.matmul(wide, self.inverse)
            return symmetric_part(session.executor.matmul(known, wide.T))
        known = wide - session.executor.matmul(wide, error.own)
        moved = session.executor.matmul(wide, error.crossed.T)
        found = session.executor.matmul(known, wide.T)
        found += 2.0 * session.executor.matmul(moved, self.with_features(outer, A, True).T)
        return symmetric_part(found)

    def entry_mean_and_reduction(
        self,
        entries: Entries,
        reduction: EntryReduction | None,
        session: Session,
        part: str | None = None,
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
        phi, outer = self.split(self.cross(x, session))
        error = self.error_covariance(session)
        e, left_out = random.standard_normal((len(self), count)), None
        if error is None:
            moved = solve_triangular(self._root, e, lower=True, trans="T", check_finite=False)
        else:
            left_out = random.standard_normal((self.further_columns, count))
            moved = self.inverse @ (cholesky(error.noise, lower=True, check_finite=False) @ e)
            moved -= error.crossed.T @ left_out
        draws = self.weights_of(phi, self.coefficients[:, None] + moved, session)
        if left_out is not None:
            draws += self.weights_of_further(outer, left_out)
        left = np.sqrt(self.tail(x) + self.hyperparameters.sigma_w**2)
        left = left[:, None] if left.ndim == 1 else left
        return draws + left[:, :, None] * random.standard_normal(draws.shape)

    def weights_of(self, phi: np.ndarray, drawn: np.ndarray, session: Session) -> np.ndarray:
        """Return weights from coefficients;  (m, q), (M, count) -> (m, d, count)."""
        q = phi.shape[1]
        found = np.empty((len(phi), self.d, drawn.shape[1]))
        for l in range(self.d):
            found[:, l] = session.executor.matmul(phi, drawn[l * q : l * q + q])
        return found

    def weights_of_further(self, outer: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Return the part of the weights by further functions;  -> (m, d, count)."""
        more = outer.shape[1]
        parts = [outer @ drawn[l * more : l * more + more] for l in range(self.d)]
        return np.stack(parts, axis=1)

    @cached_property
    def _root(self) -> np.ndarray:
        """Return the Cholesky factor of B, in its lower triangle;  (M, M)."""
        return BasisLikelihood(self.statistics, self.hyperparameters, serial_session()).B

    def __getstate__(self) -> dict[str, Any]:
        # Large matrices that can be computed again are left out.
        left_out = "_root", "_error_covariance"
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        self.must_be_dense(preprocessor)
        is_shared = self.hyperparameters.weight_prior.is_shared
        must(isinstance(self.statistics, Space) and is_shared, "its weights share no prior")
        space, kernel = self.space, self.hyperparameters.kernel
        must(kernel.has_spectral_density, "its kernel has no spectral density")
        space.must_fit(preprocessor)
        must(space.box.covers(kernel), "its basis was built for other length scales")
        self.must_have_coefficients()
        if (remainder := self.remainder) is not None:
            right = isinstance(remainder, Remainder)
            must(right, "its further functions are something else")
            assert isinstance(remainder, Remainder)
            remainder.must_fit(space.box, preprocessor)

    def must_be_dense(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError if X or Z is sparse."""
        dense = not (preprocessor.sparse_x or preprocessor.sparse_z)
        must(dense, "it has a basis, and X or Z is sparse")

    def must_have_coefficients(self) -> None:
        """Raise a ValueError unless the coefficients are those of the functions."""
        M = self.statistics.size
        must_be_numbers(self.coefficients, (M,), "the coefficients of the basis")
        must_be_numbers(self.inverse, (M, M), "the covariance of the basis")
        known = are_finite(*self.remainder_shares)
        must(known, "the remainder of the basis is not finite")

    def joint_bytes(self, m: int) -> int:
        return 8 * (4 * m * (len(self) + self.further_columns) + 4 * m * m)

    def draw_bytes(self, m: int, count: int) -> int:
        drawn = 3 * m * self.d + 2 * (len(self) + self.further_columns)
        return 8 * (2 * len(self) ** 2 + m * self.cross_columns + drawn * count)

    def can_evaluate(self, hyperparameters: Hyperparameters) -> bool:
        return self.statistics.covers(hyperparameters)

    def statistics_task(self) -> BlockAddedStatistics:
        """Return the task that sums further rows, at the hyperparameters of this posterior."""
        box, remainder = self.space.box, self.shared_remainder
        own = BlockBasisStatistics(box, self.node, within=True)
        if remainder is None:
            return BlockAddedStatistics(own, None)
        given = box, remainder.outer, self.rho, self.hyperparameters
        return BlockAddedStatistics(own, remainder_task(*given))

    @property
    def node(self) -> Nodes:
        """Return the one node that stands for the hyperparameters of this posterior."""
        space = self.statistics
        return Nodes.around(self.rho, space.nodes.largest, space.rows, spread=0.0)

    @property
    def rho(self) -> float:
        """Return the ratio of the noise of the weights, with the remainder, to sigma_y^2."""
        return self.statistics.ratio(self.hyperparameters).value

    def with_statistics(self, more: RowStatistics, session: Session) -> Self:
        assert isinstance(more, AddedStatistics)
        remainder = self.remainder
        if remainder is not None and more.remainder is not None:
            remainder = remainder.with_rows(more.remainder)
        space = self.statistics.with_rows(more.own, self.node)
        made = self.of(space, self.hyperparameters, space.centre[None], remainder, session)
        # The shares are those at the rows of the fit.
        return replace(made, remainder_shares=self.remainder_shares, tail_share=self.tail_share)


def widths(box: LaplacianBasis) -> str:
    """Return the half-widths of a box in length scales, as text."""
    pairs = zip(box.half, box.longest, strict=True)
    return ", ".join(f"{half / length:.1f}" for half, length in pairs)


@dataclass
class AddedStatistics:
    """The sums over rows that are added to a posterior: its own, and those of its remainder."""

    own: Any
    remainder: Any

    def __iadd__(self, other: AddedStatistics) -> AddedStatistics:
        self.own += other.own
        if self.remainder is not None and other.remainder is not None:
            self.remainder += other.remainder
        return self


@dataclass(frozen=True)
class BlockAddedStatistics:
    """The task that maps a block of rows to its `AddedStatistics`."""

    own: Callable[[TrainingRows], Any]
    remainder: Callable[[TrainingRows], Any] | None

    def __call__(self, block: TrainingRows) -> AddedStatistics:
        more = None if self.remainder is None else self.remainder(block)
        return AddedStatistics(self.own(block), more)
