"""The collapsed variational bound on the evidence, from sums over rows: blocks are mapped to statistics, and these added.

    S_uu = L L^T    F = S_nu L^-T    Psi = F^T D^-1 F    c = F^T D^-1 y    B = I + Psi    v = L^-T B^-1 c    E = I - B^-1
    bound = log N(y; 0, F F^T + D) - 1/2 sum (s_ii - |F_i|^2) / D_i,    s_ii = k(x_i, x_i) |z_i|^2

Inducing variables are u = z_u . g(x_u), with x_u and z_u of their own. Everything is in the coordinates of L^-1 u: Psi is a
sum of squares there, so its digits do not depend on how nearly singular S_uu is. Jitter on S_uu is noise on u, and leaves a
bound. A pass for the statistics takes 2 n m^2 flops, one for the slopes as many; S_nu is formed in blocks, and never kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from ...data.inputs import InputRows, TrainingRows
from ...errors import NotPositiveDefinite
from ...linalg.cholesky import INDUCING_JITTER, NO_JITTER, factor_with_jitter
from ...linalg.preconditioner import right_solve
from ...model.hyperparameters import Hyperparameters
from ...model.weight_prior import PreparedRows, WeightPrior
from ...runtime.parallel import safe_threads
from ...runtime.session import serial_session
from ...runtime.state import are_finite, must, must_be_numbers, stored

NATS_LOST = 0.1  # a row, by rounding, from which a bound is none


@dataclass(frozen=True)
class InducingVariables:
    """u = z_u . g(x_u) of inducing points at given hyperparameters, S_uu + jitter diag(S_uu) = L L^T."""

    points: InputRows
    hyperparameters: Hyperparameters
    prepared: PreparedRows
    L: np.ndarray
    jitter: float

    @classmethod
    def of(cls, points: InputRows, hyperparameters: Hyperparameters) -> InducingVariables:
        """Return the variables u at these points, S_uu factorised;  m^3/3 flops."""
        prior = hyperparameters.weight_prior
        prepared = prior.prepare(points)
        S, diagonal = prior.tile(prepared, prepared), prior.diagonal(prepared)
        diagonal[diagonal == 0.0] = 1.0  # a point without z says nothing, whatever its variance
        failure = (
            f"the covariance of {len(points)} inducing points has no Cholesky factor, even with "
            "jitter: is the kernel positive definite? Give fewer inducing points"
        )
        with safe_threads(len(S)):
            L, jitter = factor_with_jitter(S, diagonal, INDUCING_JITTER, failure)
        return cls(points, hyperparameters, prepared, L, jitter)

    def __len__(self) -> int:
        return len(self.L)

    @property
    def weight_prior(self) -> WeightPrior:
        return self.hyperparameters.weight_prior

    def down(self, A: np.ndarray) -> np.ndarray:
        """L^-T A;  (m, ...) -> (m, ...)."""
        return solve_triangular(self.L, A, lower=True, trans="T", check_finite=False)


# statistics


@stored
@dataclass
class Statistics:
    """What the bound and the posterior know of the rows: Psi (m, m), c (m,), and sums over rows of log D, y^2/D, s/D."""

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
        must(right, "sums over rows that are none")

    def copy(self) -> Statistics:
        return Statistics(
            self.rows, self.psi.copy(), self.c.copy(), self.log_noise, self.y_squared, self.prior
        )


@dataclass(frozen=True)
class BlockStatistics:
    """A block of rows -> its Statistics;  2 b m^2 flops."""

    frame: InducingVariables

    def __call__(self, block: TrainingRows) -> Statistics:
        frame, prior = self.frame, self.frame.weight_prior
        rows = prior.prepare(block)
        D = frame.hyperparameters.noise(block.Z)
        root = np.sqrt(D)
        F = right_solve(frame.L, prior.tile(rows, frame.prepared), serial_session())
        F /= root[:, None]
        y = block.y / root
        own = float((prior.diagonal(rows) / D).sum())
        return Statistics(len(block), F.T @ F, y @ F, float(np.log(D).sum()), float(y @ y), own)


# slopes


@dataclass
class BoundGradient:
    """Derivatives of the bound by the logs of the parameters (t,) and, where asked for, by x_u (m, p) and z_u (m, d)."""

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
    """A block of rows -> what its S_nu, D and s add to the Slopes;  2 b m^2 flops.

    G_nu = beta v^T + D^-1 S_nu M     beta = (y - S_nu v) / D     M = L^-T E L^-1
    g_D  = 1/2 (beta^2 - 1/D + (s - diag(S_nu M S_un)) / D^2)     g_s = -1/(2 D)
    """

    frame: InducingVariables
    M: np.ndarray
    v: np.ndarray
    by_points: bool = False

    def __call__(self, block: TrainingRows) -> BoundGradient:
        frame, prior, hyperparameters = (
            self.frame,
            self.frame.weight_prior,
            self.frame.hyperparameters,
        )
        rows, z_squared = prior.prepare(block), block.Z.squared_norms()
        D, own = hyperparameters.noise(block.Z), prior.diagonal(rows)
        inner = rows.Z.inner_products(frame.prepared.Z)
        S = prior.tile(rows, frame.prepared, inner)
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
        along_own = (-0.5 * z_squared / D) @ prior.diagonal_gradient(rows)
        x = z = None
        weighed = G * inner
        if self.by_points:
            x, z = prior.contract_inputs(frame.prepared, rows, G.T, np.ascontiguousarray(weighed.T))
        along_S = prior.kernel.contract_gradient(rows.points, frame.prepared.points, weighed).sum(
            axis=0
        )
        return BoundGradient(np.concatenate([along_S + along_own, along_noise]), x, z)


# bound


@dataclass(frozen=True)
class Bound:
    """The bound of all rows from their Statistics: its value, and what posterior and slopes need."""

    frame: InducingVariables
    statistics: Statistics
    root: np.ndarray
    v: np.ndarray
    value: float

    @classmethod
    def of(cls, frame: InducingVariables, statistics: Statistics) -> Bound:
        """root: the lower Cholesky factor of B;  m^3/3 flops."""
        found = statistics
        if (lost := np.finfo(float).eps * found.prior) > NATS_LOST * found.rows:
            raise NotPositiveDefinite(
                f"the prior variance is {found.prior / found.rows:.0e} times the noise: rounding takes {lost:.0e} nats from "
                "the bound; raise sigma_y, or use solver='exact'"
            )
        failure = "the sums over rows have no Cholesky factor: rows of other sizes than at fit?"
        B = np.eye(len(frame)) + found.psi
        with safe_threads(len(frame)):
            root, _ = factor_with_jitter(B, B.diagonal().copy(), NO_JITTER, failure)
        solved = cho_solve((root, True), found.c, check_finite=False)
        value = -0.5 * (
            found.rows * np.log(2.0 * np.pi)
            + found.log_noise
            + 2.0 * np.log(root.diagonal()).sum()
            + (found.y_squared - found.c @ solved)
            + (found.prior - np.trace(found.psi))
        )
        return cls(frame, found, root, frame.down(solved), float(value))

    @cached_property
    def E(self) -> np.ndarray:
        """I - B^-1, which the data have taken off the prior of L^-1 u;  (m, m)."""
        return np.eye(len(self.root)) - self._b_inverse()

    def _b_inverse(self) -> np.ndarray:
        half = solve_triangular(self.root, np.eye(len(self.root)), lower=True, check_finite=False)
        return half.T @ half

    def differentiate(self, by_points: bool = False) -> BlockGradient:
        """The map of the second pass."""
        return BlockGradient(self.frame, self._sandwich(self.E), self.v, by_points)

    def _sandwich(self, A: np.ndarray) -> np.ndarray:
        """L^-T A L^-1 of a symmetric A;  (m, m)."""
        return self.frame.down(self.frame.down(A).T)

    def own_gradient(self, by_points: bool = False) -> BoundGradient:
        """What S_uu adds: G_uu = 1/2 L^-T (E - Psi - B^-1 c c^T B^-1) L^-1."""
        frame, prior = self.frame, self.frame.weight_prior
        G = 0.5 * (self._sandwich(self.E - self.statistics.psi) - np.outer(self.v, self.v))
        weighed = G * frame.points.Z.inner_products(frame.points.Z)
        x = z = None
        if by_points:  # u is on both sides of S_uu
            x, z = prior.contract_inputs(frame.prepared, frame.prepared, 2.0 * G, 2.0 * weighed)
        theta = prior.kernel.contract_gradient(
            frame.prepared.points, frame.prepared.points, weighed
        ).sum(axis=0)
        return BoundGradient(np.concatenate([theta, np.zeros(2)]), x, z)
