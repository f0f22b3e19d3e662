"""The posterior of inducing points.

    E[w*] = k(x*, X_u) diag(v) Z_u       Cov[g*] = k** I - W^T E W
    W = L^-1 diag(k*) Z_u                E = I - (I + Psi)^-1

It stores the points, L and sums over the training rows. It stores no training row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from ...data.features import DenseFeatures, Features
from ...data.inputs import InputRows, Preprocessor
from ...kernels.constant import Constant
from ...linalg.preconditioner import right_solve
from ...model.term import CONSTANT
from ...model.weight_prior import CrossCovariance
from ...runtime.parallel import slices
from ...runtime.session import Session, serial_session
from ...runtime.state import must, must_be_numbers, stored
from ..contract import Capability, Plan
from ..joint_prior import JointWeightPrior
from ..posterior import (
    Diagnostics,
    KernelPosterior,
    MomentRequest,
    Moments,
    RowStatistics,
    symmetric_part,
)
from ..sparse_weights import EntryReduction, SolvedEntryReduction
from .collapsed_bound import BlockStatistics, Bound, Statistics
from .inducing_variables import ConstantParts, InducingVariables, without_constants


@stored
@dataclass(frozen=True)
class InducingPosterior(KernelPosterior):
    """The posterior of m inducing points, whose `coefficients` (m,) are v of the formulas above.

    Its standard deviations are not upper bounds: some were 4% below the exact ones
    (docs/streams.md).
    """

    L: np.ndarray
    statistics: Statistics
    E: np.ndarray
    log_evidence: float
    jitter: float
    # How far means are from those by near rows, in words. Empty if it was not measured.
    held_out: str = ""

    capabilities = frozenset(
        {
            Capability.STREAM,
            Capability.FILES,
            Capability.ADD_ROWS,
            Capability.JOINT_COVARIANCE,
            Capability.SPARSE_FEATURES,
            Capability.ANY_KERNEL,
            Capability.WEIGHT_TERMS,
        }
    )

    @classmethod
    def of(cls, bound: Bound) -> InducingPosterior:
        """Return the posterior that belongs to a bound."""
        known = bound.variables
        return cls(
            known.hyperparameters,
            *(known.points, bound.v, known.L, bound.statistics, bound.E, bound.value, known.jitter),
        )

    @property
    def variables(self) -> InducingVariables:
        """Return the inducing variables with their factor L."""
        prepared = without_constants(self.hyperparameters.weight_prior).prepare(self.support)
        return InducingVariables(self.support, self.hyperparameters, prepared, self.L, self.jitter)

    @property
    def n_rows(self) -> int:
        return self.statistics.rows

    def __len__(self) -> int:
        return len(self.L)

    def cross(self, x: Any, session: Session, own: slice | None = None) -> CrossCovariance:
        """Return the covariance of the weights with the inducing variables.

        Those of constant parts are as the points of weights e_l / c_l^1/2, with which no other part
        has a covariance.
        """
        prior, known = self.hyperparameters.weight_prior, self.variables.constants
        if not len(known):
            return super().cross(x, session, own)
        found = without_constants(prior).cross(x, self.support, session)
        m, count, d = len(self.support), len(known), self.d
        units = np.zeros((count, d))
        units[np.arange(count), known.columns] = known.variances**-0.5
        Z = DenseFeatures(np.vstack([self.support.Z.to_dense(), units]))
        wide = [
            replace(one, K=np.hstack([one.K, np.zeros((len(x), count))]), Z=Z, others=())
            for one in found.of_terms
        ]
        K = np.hstack([np.zeros((len(x), m)), np.ones((len(x), count))])
        variances = np.zeros(d)
        variances[known.columns] = known.variances
        kernel = Constant()
        given = K, Z, kernel, kernel.prepare(x), variances
        return replace(wide[0], others=(*wide[1:], CrossCovariance(*given, part=CONSTANT)))

    def statistics_task(self) -> BlockStatistics:
        return BlockStatistics(self.variables)

    def with_statistics(self, more: RowStatistics, session: Session) -> InducingPosterior:
        assert isinstance(more, Statistics)
        total = self.statistics.copy()
        total += more
        return InducingPosterior.of(Bound.of(self.variables, total, session))

    @property
    def unexplained(self) -> float:
        """Return the share of the rows' prior variance that the inducing variables do not explain.

        1 - tr(Psi) / sum_i s_i / D_i, where each row is weighted by 1 / D_i
        """
        return (
            max(0.0, 1.0 - float(np.trace(self.statistics.psi)) / self.statistics.prior)
            if self.statistics.prior
            else 0.0
        )

    @property
    def diagnostics(self) -> Diagnostics:
        variances = (
            f"variational, from {len(self.support)} inducing points, which leave "
            f"{self.unexplained:.1%} of the rows' prior variance unexplained"
            f"{'; ' if self.held_out else ''}{self.held_out}"
        )
        return Diagnostics(
            self.log_evidence, jitter=self.jitter, solution="collapsed bound", variances=variances
        )

    @property
    def bytes_per_query(self) -> int:
        return 4 * 8 * len(self)

    def _quadratic(self, B: np.ndarray, session: Session) -> np.ndarray:
        """Return b.L^-T E L^-1 b for every row b of B, which is overwritten.

        (c, m) -> (c,);  3 m^2 flops per row
        """
        V = right_solve(self.L, B, session)
        reduced = np.einsum("ij,ij->i", V, session.executor.matmul(V, self.E))
        positive: np.ndarray = np.maximum(reduced, 0.0)
        return positive

    def reduction(
        self, cross: CrossCovariance, request: MomentRequest, session: Session
    ) -> Moments:
        """Return by how much the data reduce the prior variances and covariances of each query.

        diag(W^T E W) (q, d), W^T E W (q, d, d), and a^T W^T E W a (q,) for each vector a
        """
        each = full = None
        if request.covariance:
            V = right_solve(self.L, cross.of_all_weights().reshape(-1, len(self)), session)
            known = session.executor.matmul(V, self.E).reshape(len(cross), -1, len(self))
            V = V.reshape(known.shape)
            whole = session.executor.map(
                lambda i: V[i] @ known[i].swapaxes(1, 2), slices(len(cross), 8)
            )
            full = symmetric_part(np.concatenate(whole))
            each = np.einsum("ijj->ij", full) if request.variance else None
        elif request.variance:
            each = self._quadratic(cross.of_all_weights().reshape(-1, len(self)), session).reshape(
                len(cross), -1
            )
        return Moments(
            None, each, full, [self._quadratic(cross.along(A), session) for A in request.along]
        )

    def joint_reduction(self, cross: CrossCovariance, A: Features, session: Session) -> np.ndarray:
        """Return a_i^T W_i^T E W_j a_j for all pairs of queries i and j;  (q, q)."""
        V = right_solve(self.L, cross.along(A), session)
        return symmetric_part(session.executor.matmul(session.executor.matmul(V, self.E), V.T))

    def entry_reduction(self, entries: int, session: Session) -> EntryReduction:
        return SolvedEntryReduction(len(self), partial(self._quadratic, session=session))

    @cached_property
    def _root(self) -> np.ndarray:
        """Return R, the lower Cholesky factor of B = I + Psi;  (m, m)."""
        return Bound.of(self.variables, self.statistics, serial_session()).root

    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (q, d, count).

        By Matheron's rule, a prior draw of g at points and queries together is corrected by the
        difference between its u and a posterior draw of u, for which
        S_uu^-1 u = v + L^-T R^-T e, where B = R R^T and e is standard normal.
        """
        m, d, variables = len(self.support), self.d, self.variables
        varying, constants = replace(variables.varying, sigma_w=0.0), variables.constants
        prior = JointWeightPrior.of(varying, self.support.x, x, session)
        draws, missed = np.empty((len(x), d, count)), np.empty((len(self), count))
        for s in range(count):
            W = prior.draw(d, random)
            missed[:m, s] = self.support.Z.row_dots(W[:m])
            draws[:, :, s] = W[m:]
        missed[m:] = random.standard_normal((len(constants), count))
        drawn = solve_triangular(
            self._root, random.standard_normal((len(self), count)), lower=True, trans="T"
        )
        moves = self.coefficients[:, None] + variables.solve_transposed(
            drawn - solve_triangular(self.L, missed, lower=True)
        )
        draws = prior.moved(draws, moves[:m], self.support.Z, session)
        roots = np.sqrt(constants.variances)[:, None]
        draws[:, constants.columns] += roots * (missed[m:] + moves[m:])
        return draws + self.hyperparameters.sigma_w * random.standard_normal(draws.shape)

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        must(isinstance(self.support, InputRows), "its inducing points are not rows of X and Z")
        m = len(self.support)
        must(m >= 1, "it has no inducing points")
        self.support.must_fit(self.hyperparameters.kernel, preprocessor, plan.n)
        m += len(ConstantParts.of(self.hyperparameters.weight_prior))
        must_be_numbers(self.coefficients, (m,), "the coefficients of the inducing points")
        must_be_numbers(self.L, (m, m), "the factor of the inducing points")
        must_be_numbers(self.E, (m, m), "the matrix E of the inducing points")
        positive = (self.L.diagonal() > 0).all()
        must(
            positive and 0.0 <= self.jitter < 1.0,
            "the factor of the inducing points is not a Cholesky factor",
        )
        self.statistics.must_fit(m)

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_query + 32 * m * m

    def draw_bytes(self, m: int, count: int) -> int:
        u, d = len(self), self.d
        return 8 * (3 * (u + m) ** 2 + m * u + (2 * m * d + 4 * u) * count + 3 * (u + m) * d)
