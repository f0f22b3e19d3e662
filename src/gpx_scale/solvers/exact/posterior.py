"""The posterior of the exact solver, from the Cholesky factor of C.

B = diag(k*) Z (n, d),   E[w*] = B^T alpha,   Cov[g*] = k** I - B^T C^-1 B
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...data.features import Features
from ...data.inputs import Preprocessor, TrainingRows
from ...linalg.covariance import TiledCovariance
from ...linalg.covariance_factor import INVERSE_MAX_ROUNDING, CholeskyFactor
from ...model.weight_prior import CrossCovariance
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import fields_of, must, must_be_numbers, stored
from ..contract import Capability, Plan
from ..joint_prior import JointPrior
from ..posterior import Diagnostics, KernelPosterior, MomentRequest, Moments, symmetric_part
from ..sparse_weights import EntryReduction, InverseEntryReduction, SolvedEntryReduction
from .variance_bound import latent_variance_bound


def _packed(posterior: ExactPosterior) -> dict[str, Any]:
    """Return the fields of a posterior, with the factor's triangle as n (n + 1) / 2 numbers."""
    n, buffer = len(posterior), posterior.buffer
    packed = np.empty(n * (n + 1) // 2, buffer.dtype)
    for i, row in enumerate(buffer):
        packed[i * (i + 1) // 2 :][: i + 1] = row[: i + 1]
    return fields_of(posterior) | {"buffer": packed}


def _unpacked(buffer: np.ndarray, coefficients: np.ndarray, **known: Any) -> ExactPosterior:
    """Return the posterior whose fields `_packed` returned."""
    n = coefficients.size
    must(buffer.size == n * (n + 1) // 2, "its Cholesky factor has another size")
    square = np.zeros((n, n), buffer.dtype)
    for i, row in enumerate(square):
        row[: i + 1] = buffer[i * (i + 1) // 2 :][: i + 1]
    return ExactPosterior(buffer=square, coefficients=coefficients, **known)


@stored(take=_packed, make=_unpacked)
@dataclass(frozen=True)
class ExactPosterior(KernelPosterior):
    """The posterior from the Cholesky factor of C, in the lower triangle of `buffer` (n, n).

    `jitter` was added to the diagonal of C, relative to it.
    """

    buffer: np.ndarray
    jitter: float
    log_evidence: float
    condition_number: float

    capabilities = frozenset(
        {
            Capability.TRAINING_WEIGHTS,
            Capability.LEAVE_ONE_OUT,
            Capability.UPPER_BOUND,
            Capability.SPARSE_FEATURES,
            Capability.ANY_KERNEL,
            Capability.FLOAT32,
        }
    )

    @property
    def training_rows(self) -> TrainingRows:
        assert isinstance(self.support, TrainingRows)
        return self.support

    @property
    def diagnostics(self) -> Diagnostics:
        exact = self.buffer.dtype == np.float64
        variances = "exact" if exact else "refined against float64 tiles, never below exact"
        return Diagnostics(
            self.log_evidence,
            jitter=self.jitter,
            condition_number=self.condition_number,
            variances=variances,
        )

    @property
    def bytes_per_query(self) -> int:
        """Return the bytes of a right-hand side, its solution, and one more vector of n numbers.

        With a float32 factor, there are copies in float64.
        """
        return (3 if self.buffer.dtype == np.float64 else 6) * 8 * len(self)

    def factor(self, session: Session) -> CholeskyFactor:
        """Return the Cholesky factor of C, for work in a session."""
        covariance = TiledCovariance(self.training_rows, self.hyperparameters, session)
        return CholeskyFactor(covariance, self.buffer, self.jitter)

    def reduction(
        self, cross: CrossCovariance, request: MomentRequest, session: Session
    ) -> Moments:
        """Return diag(B^T C^-1 B), B^T C^-1 B, and a^T B^T C^-1 B a, as asked for.

        This takes n^2 flops per right-hand side: d per query for all weights, and 1 for each
        vector a.
        """
        full = self.full_reduction(cross, session) if request.covariance else None
        each = None
        if request.variance:
            each = (
                self.weight_reduction(cross, session)
                if full is None
                else np.einsum("ijj->ij", full)
            )
        return Moments(
            None, each, full, [self._quadratic(cross.along(A), session) for A in request.along]
        )

    def weight_reduction(self, cross: CrossCovariance, session: Session) -> np.ndarray:
        """Return diag(B^T C^-1 B) for each query;  (m, d);  n^2 m d flops."""
        P, Q = self._halves(cross.of_all_weights(), session)
        return np.concatenate(
            session.executor.map(lambda i: np.einsum("ijk,ijk->ij", P[i], Q[i]), slices(len(P), 8))
        )

    def full_reduction(self, cross: CrossCovariance, session: Session) -> np.ndarray:
        """Return B^T C^-1 B for each query;  (m, d, d);  n^2 m d + 2 n m d^2 flops."""
        P, Q = self._halves(cross.of_all_weights(), session)
        products = session.executor.map(lambda i: P[i] @ Q[i].swapaxes(1, 2), slices(len(P), 8))
        return symmetric_part(np.concatenate(products))

    def joint_reduction(self, cross: CrossCovariance, A: Features, session: Session) -> np.ndarray:
        """Return a_i^T B_i^T C^-1 B_j a_j for all pairs;  (m, m);  n^2 m + 2 n m^2 flops."""
        P, Q = self._halves(cross.along(A), session)
        return symmetric_part(session.executor.matmul(P, Q.T))

    def entry_reduction(self, entries: int, session: Session) -> EntryReduction:
        """Return the reduction by the inverse of C where that pays, or by triangular solves.

        The inverse pays if it takes fewer flops than a triangular solve for every entry. It must
        also fit into memory and be accurate: b.C^-1 b from an explicit inverse is off by the
        condition number times eps, which is at most trace(C) / min(D) eps.
        """
        n = len(self)
        covariance = self.factor(session).covariance
        rounding = np.finfo(float).eps * covariance.diagonal.sum() / covariance.noise.min()
        fits = self.buffer.dtype == np.float64 and 9 * n * n < session.memory_limit
        if fits and 3 * entries > 2 * n and rounding < INVERSE_MAX_ROUNDING:
            inverse = replace(self.factor(session), buffer=self.buffer.copy()).inverse_in_place()
            return InverseEntryReduction(inverse, 1.0 - rounding)
        return SolvedEntryReduction(n, partial(self._quadratic, session=session))

    def _quadratic(self, B: np.ndarray, session: Session) -> np.ndarray:
        """Return b.C^-1 b for each row b of B;  (c, n) -> (c,);  n^2 c flops; B is overwritten."""
        P, Q = self._halves(B, session)
        return np.asarray(np.einsum("ij,ij->i", P, Q))

    def upper_bound_variance(self, x: Any, session: Session) -> np.ndarray:
        return latent_variance_bound(self, x, session)

    def solve_rows(self, B: np.ndarray, session: Session) -> np.ndarray:
        """Return B C^-1 along the last axis;  (..., n) -> (..., n);  2 n^2 flops per row."""
        solved = self.factor(session).solve(B.reshape(-1, len(self)).T)
        return solved.T.reshape(B.shape)

    def _halves(self, B: np.ndarray, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """Return P and Q with P Q^T = B C^-1 B^T along the last axis;  (..., n) -> (..., n) each.

        B is overwritten;  n^2 flops per row.
        """
        P, Q = self.factor(session).halves(B.reshape(-1, len(self)))
        return P.reshape(B.shape), Q.reshape(B.shape)

    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count).

        By Matheron's rule, w is drawn from the prior at training rows and queries together, and
        then corrected by the difference between y and the y of the draw. This takes
        (n + m)^3/3 + (n + m)^2 d count flops.
        """
        rows, hyperparameters = self.training_rows, self.hyperparameters
        n, m, d = len(self), len(x), self.d
        prior = JointPrior.of(
            hyperparameters.kernel, rows.x, x, hyperparameters.sigma_w**2, session
        )
        draws, missed = np.empty((m, d, count)), np.empty((n, count))
        for s in range(count):
            W = prior.draw(d, random)
            noise = hyperparameters.sigma_y * random.standard_normal(n)
            missed[:, s] = rows.y - rows.Z.row_dots(W[:n]) - noise
            draws[:, :, s] = W[n:]
        return prior.moved(draws, self.factor(session).solve(missed), rows.Z, session)

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        n = plan.n
        must(isinstance(self.support, TrainingRows), "its rows have no y")
        self.support.must_fit(self.hyperparameters.kernel, preprocessor, n)
        must_be_numbers(self.coefficients, (n,), "alpha")
        must_be_numbers(self.buffer, (n, n), "the Cholesky factor", (plan.dtype,))
        positive = (self.buffer.diagonal() > 0).all()
        must(positive, "the diagonal of the Cholesky factor is not positive")
        must(0.0 <= self.jitter < 1.0, "the jitter is out of range")

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_query + 24 * m * m

    def draw_bytes(self, m: int, count: int) -> int:
        n, d = len(self), self.d
        return 8 * (3 * (n + m) ** 2 + m * n + (m * d + 3 * n) * count + 3 * (n + m) * d)
