"""The collapsed variational bound on the log marginal likelihood, computed from sums over rows.

    S_uu = L L^T     F = S_nu L^-T     Psi = F^T D^-1 F     c = F^T D^-1 y
    B = I + Psi      v = L^-T B^-1 c   E = I - B^-1         s_ii = k(x_i, x_i) |z_i|^2
    bound = log N(y; 0, F F^T + D) - 1/2 sum_i (s_ii - |F_i|^2) / D_i

The inducing variables are u = z_u . g(x_u) at m points, each with an x and a z of its own, and the
constant parts of weights that have them (`inducing_variables`). All
formulas are in the coordinates L^-1 u, in which Psi is a sum of squares, so its accuracy does not
depend on how nearly singular S_uu is. Jitter on S_uu is noise on u, with which the result is
still a bound. A first pass over the rows computes the statistics, and a second one the gradient;
each takes 2 n m^2 flops. S_nu is formed in blocks of rows and never kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_solve

from ...data.inputs import TrainingRows
from ...errors import NotPositiveDefinite
from ...linalg.cholesky import NO_JITTER, factor_in_parallel, inverse_in_parallel
from ...linalg.preconditioner import right_solve, sandwich
from ...model.weight_prior import PreparedRows
from ...runtime.session import Session, serial_session
from ...runtime.state import are_finite, must, must_be_numbers, stored
from .inducing_variables import InducingVariables

# The bound is refused if rounding of its terms may change it by more than this many nats per row,
# because a search could not tell such a bound from noise.
MAX_ROUNDING_NATS_PER_ROW = 0.1


@stored
@dataclass
class Statistics:
    """The sums over rows from which the bound and the posterior follow.

    These are `psi` (m, m) and `c` (m,), and the sums of log D (`log_noise`), y^2 / D (`y_squared`)
    and s / D (`prior`), where s_i = k(x_i, x_i) |z_i|^2 is the prior variance of a row.
    """

    rows: int
    psi: np.ndarray
    c: np.ndarray
    log_noise: float
    y_squared: float
    prior: float

    def __iadd__(self, other: Statistics) -> Statistics:
        self.rows += other.rows
        self.psi += other.psi
        self.c += other.c
        self.log_noise += other.log_noise
        self.y_squared += other.y_squared
        self.prior += other.prior
        return self

    def must_fit(self, m: int) -> None:
        """Raise a ValueError unless these are sums over rows for m inducing points."""
        must_be_numbers(self.psi, (m, m), "the sums over rows")
        must_be_numbers(self.c, (m,), "the sums of y over rows")
        sums = self.log_noise, self.y_squared, self.prior
        right = self.rows >= 1 and are_finite(*sums) and min(sums[1:]) >= 0.0
        must(right, "the sums over rows are not finite, are negative, or count no rows")

    def copy(self) -> Statistics:
        """Return a copy with arrays of its own."""
        return Statistics(
            self.rows, self.psi.copy(), self.c.copy(), self.log_noise, self.y_squared, self.prior
        )


@dataclass(frozen=True)
class BlockStatistics:
    """The task that maps a block of b rows to its `Statistics`;  2 b m^2 flops."""

    variables: InducingVariables

    def __call__(self, block: TrainingRows) -> Statistics:
        variables = self.variables
        rows = variables.varying.prepare(block)
        D = variables.hyperparameters.noise(block)
        root = np.sqrt(D)
        F = right_solve(variables.L, variables.covariance(block, rows), serial_session())
        F /= root[:, None]
        y = block.y / root
        own = float((variables.prior_variance(block, rows) / D).sum())
        return Statistics(len(block), F.T @ F, y @ F, float(np.log(D).sum()), float(y @ y), own)


@dataclass
class BoundGradient:
    """The derivatives of the bound.

    `theta` (t,) has those by the logarithms of the hyperparameters. `x` (m, p) and `z` (m, d) have
    those by the inducing points, and are None unless they are asked for.
    """

    theta: np.ndarray
    x: np.ndarray | None = None
    z: np.ndarray | None = None

    def __iadd__(self, other: BoundGradient) -> BoundGradient:
        self.theta += other.theta
        if self.x is not None:
            self.x += other.x
        if self.z is not None:
            self.z += other.z
        return self


@dataclass(frozen=True)
class BlockGradient:
    """The task that maps a block of b rows to its part of the gradient;  2 b m^2 flops.

    The part comes from S_nu, D and s of these rows:

    G_nu = beta v^T + D^-1 S_nu M     beta = (y - S_nu v) / D     M = L^-T E L^-1
    g_D  = 1/2 (beta^2 - 1/D + (s - diag(S_nu M S_un)) / D^2)     g_s = -1/(2 D)
    """

    variables: InducingVariables
    M: np.ndarray
    v: np.ndarray
    by_points: bool = False

    def __call__(self, block: TrainingRows) -> BoundGradient:
        variables, hyperparameters = self.variables, self.variables.hyperparameters
        prior, m = variables.varying, len(variables.points)
        rows, z_squared = prior.prepare(block), block.Z.squared_norms()
        D, own = hyperparameters.noise(block), variables.prior_variance(block, rows)
        is_shared = prior.is_shared
        inner = rows.Z.inner_products(variables.prepared.Z) if is_shared else None
        S = variables.covariance(block, rows, inner)
        beta = (block.y - S @ self.v) / D
        G = S @ self.M
        known = np.einsum("ij,ij->i", G, S)
        G /= D[:, None]
        G += beta[:, None] * self.v
        along_D = 0.5 * (beta**2 - 1.0 / D + (own - known) / D**2)
        along_noise = 2.0 * np.array(
            [
                hyperparameters.sigma_w**2 * (along_D @ z_squared),
                hyperparameters.sigma_y**2 * along_D.sum(),
            ]
        )
        of_points = G[:, :m]
        weighed = of_points if inner is None else of_points * inner
        x = z = None
        if self.by_points:
            x, z = prior.contract_inputs(
                variables.prepared, rows, of_points.T, np.ascontiguousarray(weighed.T)
            )
        if is_shared:
            along_own = (-0.5 * z_squared / D) @ prior.diagonal_gradient(rows)
            along_S = prior.kernel.contract_gradient(
                rows.points, variables.prepared.points, weighed
            ).sum(axis=0)
            along = along_S + along_own
        else:
            along = self._along_terms(block, rows, G, S, -0.5 / D)
        return BoundGradient(np.concatenate([along, along_noise]), x, z)

    def _along_terms(
        self,
        block: TrainingRows,
        rows: PreparedRows,
        G: np.ndarray,
        S: np.ndarray,
        along_own: np.ndarray,
    ) -> np.ndarray:
        """Return the derivatives by the parameters of a sum of terms but sigma_w;  (t,).

        `along_own` (b,) are those by the prior variances of the rows. A constant part has the
        covariance c_l^1/2 z_l with its variable, so that half of it is the derivative by log c_l.
        """
        variables, m = self.variables, len(self.variables.points)
        prior, session = variables.varying, serial_session()
        along, _ = prior.contract_matrix(rows, variables.prepared, G[:, :m].copy(), session)
        of_varying = along.sum(axis=0) + prior.contract_diagonal(rows, along_own)
        of_constants = 0.5 * (G[:, m:] * S[:, m:]).sum(axis=0)
        of_constants += along_own @ S[:, m:] ** 2
        return variables.packed(of_varying, of_constants)


@dataclass(frozen=True)
class Bound:
    """The bound of all rows, from their statistics.

    `root` (m, m) is the lower Cholesky factor of B, and `v` (m,) = L^-T B^-1 c are the coefficients
    of the posterior mean.
    """

    variables: InducingVariables
    statistics: Statistics
    root: np.ndarray
    v: np.ndarray
    value: float
    session: Session

    @classmethod
    def of(cls, variables: InducingVariables, statistics: Statistics, session: Session) -> Bound:
        """Return the bound, for which B is factorised;  m^3/3 flops."""
        found = statistics
        if (lost := np.finfo(float).eps * found.prior) > MAX_ROUNDING_NATS_PER_ROW * found.rows:
            raise NotPositiveDefinite(
                f"The prior variance is {found.prior / found.rows:.0e} times the noise variance, "
                f"so that rounding changes the bound by {lost:.0e} nats. Raise sigma_y, or use "
                "solver='exact'."
            )
        failure = (
            "The sums over rows have no Cholesky factor. Check that the rows have the same scale "
            "as those of the first fit."
        )
        B = np.eye(len(variables)) + found.psi
        n_jobs = session.executor.n_jobs
        root, _ = factor_in_parallel(B, B.diagonal().copy(), NO_JITTER, failure, n_jobs)
        solved = cho_solve((root, True), found.c, check_finite=False)
        value = -0.5 * (
            found.rows * np.log(2.0 * np.pi)
            + found.log_noise
            + 2.0 * np.log(root.diagonal()).sum()
            + (found.y_squared - found.c @ solved)
            + (found.prior - np.trace(found.psi))
        )
        v = variables.solve_transposed(solved)
        return cls(variables, found, root, v, float(value), session)

    @cached_property
    def E(self) -> np.ndarray:
        """Return I - B^-1, by which the data reduce the prior covariance I of L^-1 u;  (m, m)."""
        inverse = inverse_in_parallel(self.root, self.session.executor.n_jobs)
        E: np.ndarray = np.eye(len(self.root)) - inverse
        return E

    def differentiate(self, by_points: bool = False) -> BlockGradient:
        """Return the task of the second pass over the rows, which sums the gradient."""
        return BlockGradient(self.variables, self._sandwich(self.E.copy()), self.v, by_points)

    def _sandwich(self, A: np.ndarray) -> np.ndarray:
        """Return L^-T A L^-1 of a symmetric A, which is overwritten;  (m, m)."""
        return sandwich(self.variables.L, A, self.session)

    def own_gradient(self, by_points: bool = False) -> BoundGradient:
        """Return the part of the gradient that comes from S_uu, and from no row.

        G_uu = 1/2 L^-T (E - Psi - B^-1 c c^T B^-1) L^-1
        """
        variables, prior = self.variables, self.variables.varying
        G = 0.5 * (self._sandwich(self.E - self.statistics.psi) - np.outer(self.v, self.v))
        m = len(variables.points)
        if m < len(G):
            # The covariance of the constant parts with each other and with u is known.
            G = np.ascontiguousarray(G[:m, :m])
        x = z = None
        if by_points:  # The factor 2 is there because the points are on both sides of S_uu.
            weighed = 2.0 * G * variables.points.Z.inner_products(variables.points.Z)
            x, z = prior.contract_inputs(variables.prepared, variables.prepared, 2.0 * G, weighed)
        along, _ = prior.contract_matrix(variables.prepared, variables.prepared, G, self.session)
        found = variables.packed(along.sum(axis=0), np.zeros(len(variables) - m))
        return BoundGradient(np.concatenate([found, np.zeros(2)]), x, z)
