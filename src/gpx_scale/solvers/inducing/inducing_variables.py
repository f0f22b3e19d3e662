"""The inducing variables, from which the bound and the posterior follow.

    u_j = z_j . g(x_j)      w_l^c / c_l^1/2      Cov = [S_uu, 0; 0, I] = L L^T

The u are those of m points, each with an x and a z of its own, and of the parts of the weights that
vary. Weights with priors of their own may have constant parts w_l^c ~ N(0, c_l), which are
variables themselves, so that the bound has them exactly: z_l c_l^1/2 is the covariance of a row
with the variable of weight l.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import block_diag, solve_triangular

from ...data.inputs import InputRows
from ...linalg.cholesky import INDUCING_JITTER, factor_in_parallel
from ...model.hyperparameters import Hyperparameters
from ...model.term import CONSTANT
from ...model.weight_prior import PreparedRows, WeightPrior, kernel_matrix
from ...runtime.session import Session


@dataclass(frozen=True)
class ConstantParts:
    """The weights that have constant parts, and the variances of these;  (c,), (c,)."""

    columns: np.ndarray
    variances: np.ndarray

    @classmethod
    def of(cls, prior: WeightPrior) -> ConstantParts:
        """Return the constant parts of a prior."""
        terms = [] if prior.is_shared else [t for t in prior.active if t.part == CONSTANT]
        columns = np.concatenate([np.zeros(0, int), *(term.columns for term in terms)])
        variances = [term.variances[term.columns] for term in terms]
        return cls(columns, np.concatenate([np.zeros(0), *variances]))

    def __len__(self) -> int:
        return self.columns.size

    def features(self, rows: InputRows) -> np.ndarray:
        """Return z_l c_l^1/2;  (n, c)."""
        scaled: np.ndarray = rows.Z.to_dense()[:, self.columns] * np.sqrt(self.variances)
        return scaled


def without_constants(prior: WeightPrior) -> WeightPrior:
    """Return the prior of the parts of the weights that vary."""
    if prior.is_shared:
        return prior
    return replace(prior, terms=tuple(term for term in prior.terms if term.part != CONSTANT))


@dataclass(frozen=True)
class InducingVariables:
    """The variables of m inducing points, and of c constant parts, at given hyperparameters.

    L (m + c, m + c) is the lower Cholesky factor of their covariance, which has jitter
    diag(S_uu) added. `prepared` are the points for the parts that vary.
    """

    points: InputRows
    hyperparameters: Hyperparameters
    prepared: PreparedRows
    L: np.ndarray
    jitter: float

    @classmethod
    def of(
        cls, points: InputRows, hyperparameters: Hyperparameters, session: Session
    ) -> InducingVariables:
        """Return the variables of these points, and factorise S_uu;  m^3/3 flops."""
        prior = without_constants(hyperparameters.weight_prior)
        prepared = prior.prepare(points)
        x, Z = prepared.points, prepared.Z
        if prior.is_shared:
            S = kernel_matrix(prior.kernel, x, x, session, (Z, Z))
        else:
            S = prior.block(prepared, prepared, session)
        diagonal = prior.diagonal(prepared)
        # A point whose z is 0 tells nothing of the data, so any variance will do for it.
        diagonal[diagonal == 0.0] = 1.0
        failure = (
            f"The covariance of {len(points)} inducing points has no Cholesky factor, even with "
            "jitter. Check that the kernel is positive definite, or give fewer inducing points."
        )
        n_jobs = session.executor.n_jobs
        L, jitter = factor_in_parallel(S, diagonal, INDUCING_JITTER, failure, n_jobs)
        if count := len(ConstantParts.of(hyperparameters.weight_prior)):
            L = block_diag(L, np.eye(count))
        return cls(points, hyperparameters, prepared, L, jitter)

    def __len__(self) -> int:
        return len(self.L)

    @cached_property
    def varying(self) -> WeightPrior:
        """Return the prior of the parts of the weights that vary."""
        return without_constants(self.hyperparameters.weight_prior)

    @cached_property
    def constants(self) -> ConstantParts:
        """Return the constant parts of the weights."""
        return ConstantParts.of(self.hyperparameters.weight_prior)

    def covariance(
        self, block: InputRows, rows: PreparedRows, inner: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the covariance of f at the rows of a block with the variables;  (b, m + c).

        `rows` are those of the block as the varying parts prepare them, and `inner` is as in
        `WeightPrior.tile`.
        """
        S = self.varying.tile(rows, self.prepared, inner)
        return S if not len(self.constants) else np.hstack([S, self.constants.features(block)])

    def prior_variance(self, block: InputRows, rows: PreparedRows) -> np.ndarray:
        """Return the prior variance of f at the rows of a block;  (b,)."""
        variance = self.varying.diagonal(rows)
        if len(self.constants):
            variance += np.square(self.constants.features(block)).sum(axis=1)
        return variance

    def packed(self, of_varying: np.ndarray, of_constants: np.ndarray) -> np.ndarray:
        """Return derivatives by all parameters of the prior but sigma_w.

        They are given by those of the parts that vary, and by the log variances of the constant
        ones;  (s,), (c,) -> (t,).
        """
        prior, at = self.hyperparameters.weight_prior, 0
        if prior.is_shared:
            return of_varying
        is_constant = [np.zeros(sum(t.kernel.theta.size for t in prior.terms if t.is_active), bool)]
        along = []
        for term in prior.terms:
            is_constant.append(np.full(term.free_variances.size, term.part == CONSTANT))
            if term.part == CONSTANT and term.is_active:
                along.append(term.along_free_variances(of_constants[at : at + term.columns.size]))
                at += term.columns.size
        where = np.concatenate(is_constant)
        found = np.empty(where.size)
        found[~where], found[where] = of_varying, np.concatenate([np.zeros(0), *along])
        return found

    def solve_transposed(self, A: np.ndarray) -> np.ndarray:
        """Return L^-T A;  (m + c, ...) -> (m + c, ...)."""
        solved: np.ndarray = solve_triangular(self.L, A, lower=True, trans="T", check_finite=False)
        return solved
