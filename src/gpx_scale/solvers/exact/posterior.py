"""The posterior of the exact solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...data.features import Features
from ...data.inputs import Preprocessor, TrainingRows
from ...linalg.covariance import TiledCovariance
from ...linalg.covariance_factor import INVERTIBLE, CholeskyFactor
from ...model.weight_prior import CrossCovariance
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import fields_of, must, must_be_numbers, stored
from ..contract import Capability, Plan
from ..joint_prior import JointPrior
from ..posterior import Diagnostics, KernelPosterior, MomentRequest, Moments, symmetric_part
from ..sparse_weights import EntryReduction, InverseWords, SolvedWords
from .variance_bound import latent_variance_bound


def _packed(posterior: ExactPosterior) -> dict[str, Any]:
    """Return the fields of a posterior, of the factor its triangle alone: half of n^2."""
    n, buffer = len(posterior), posterior.buffer
    packed = np.empty(n * (n + 1) // 2, buffer.dtype)
    for i, row in enumerate(buffer):
        packed[i * (i + 1) // 2 :][: i + 1] = row[: i + 1]
    return fields_of(posterior) | {"buffer": packed}


def _unpacked(buffer: np.ndarray, coefficients: np.ndarray, **known: Any) -> ExactPosterior:
    """Return the posterior whose fields `_packed` has returned."""
    n = coefficients.size
    must(buffer.size == n * (n + 1) // 2, "a factor of another size")
    square = np.zeros((n, n), buffer.dtype)
    for i, row in enumerate(square):
        row[: i + 1] = buffer[i * (i + 1) // 2 :][: i + 1]
    return ExactPosterior(buffer=square, coefficients=coefficients, **known)


@stored(take=_packed, make=_unpacked)
@dataclass(frozen=True)
class ExactPosterior(KernelPosterior):
    """The posterior from the Cholesky factor of C, in the lower triangle of `buffer`."""

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
        """Return the bytes of a row of `halves`, its result, and one more operand; float32 keeps copies in float64."""
        return (3 if self.buffer.dtype == np.float64 else 6) * 8 * len(self)

    def factor(self, session: Session) -> CholeskyFactor:
        covariance = TiledCovariance(self.support, self.hyperparameters, session)
        return CholeskyFactor(covariance, self.buffer, self.jitter)

    def reduction(
        self, cross: CrossCovariance, request: MomentRequest, session: Session
    ) -> Moments:
        """Return diag(B^T C^-1 B), B = diag(k*) Z, B^T C^-1 B itself, and a^T B^T C^-1 B a;  n^2 flops a right-hand side."""
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
        """Return diag(B^T C^-1 B) of each query, B = diag(k*) Z;  (m, d);  n^2 m d flops."""
        P, Q = self._halves(cross.of_all_weights(), session)
        return np.concatenate(
            session.executor.map(lambda i: np.einsum("ijk,ijk->ij", P[i], Q[i]), slices(len(P), 8))
        )

    def full_reduction(self, cross: CrossCovariance, session: Session) -> np.ndarray:
        """Return B^T C^-1 B of each query;  (m, d, d)."""
        P, Q = self._halves(cross.of_all_weights(), session)
        products = session.executor.map(lambda i: P[i] @ Q[i].swapaxes(1, 2), slices(len(P), 8))
        return symmetric_part(np.concatenate(products))

    def joint_reduction(self, cross: CrossCovariance, A: Features, session: Session) -> np.ndarray:
        """Return a_i^T B_i^T C^-1 B_j a_j for all pairs of queries;  (m, m)."""
        P, Q = self._halves(cross.along(A), session)
        return symmetric_part(session.executor.matmul(P, Q.T))

    def entry_reduction(self, entries: int, session: Session) -> EntryReduction:
        """Return (C^-1)_RR by the inverse where that is fewer flops than a triangular solve for every entry, fits, and has
        digits: b.C^-1 b from an explicit inverse is off by its condition number times eps, at most trace(C) / min(D) eps."""
        n = len(self)
        covariance = self.factor(session).covariance
        rounding = np.finfo(float).eps * covariance.diagonal.sum() / covariance.noise.min()
        fits = self.buffer.dtype == np.float64 and 9 * n * n < session.memory_limit
        if fits and 3 * entries > 2 * n and rounding < INVERTIBLE:
            inverse = replace(self.factor(session), buffer=self.buffer.copy()).inverse_in_place()
            return InverseWords(inverse, 1.0 - rounding)
        return SolvedWords(n, partial(self._quadratic, session=session))

    def _quadratic(self, B: np.ndarray, session: Session) -> np.ndarray:
        """Return b.C^-1 b of rows B, which are overwritten;  (c, n) -> (c,)."""
        P, Q = self._halves(B, session)
        return np.einsum("ij,ij->i", P, Q)

    def upper_bound_variance(self, x: Any, session: Session) -> np.ndarray:
        return latent_variance_bound(self, x, session)

    def solve_rows(self, B: np.ndarray, session: Session) -> np.ndarray:
        """Return B C^-1 along the last axis;  (..., n) -> (..., n);  2 n^2 flops a row."""
        return self.factor(session).solve(B.reshape(-1, len(self)).T).T.reshape(B.shape)

    def _halves(self, B: np.ndarray, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """Return P, Q of B's shape (..., n) with P Q^T = B C^-1 B^T along the last axis; B is overwritten."""
        P, Q = self.factor(session).halves(B.reshape(-1, len(self)))
        return P.reshape(B.shape), Q.reshape(B.shape)

    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count);  (n + m)^3/3 + (n + m)^2 d count flops.

        Matheron's rule: a prior draw of w at training rows and queries together, moved by what its y misses of ours.
        """
        rows, hyperparameters = self.support, self.hyperparameters
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
        must_be_numbers(self.buffer, (n, n), "the factor", (plan.dtype,))
        positive = (self.buffer.diagonal() > 0).all()
        must(positive and 0.0 <= self.jitter < 1.0, "the factor is none")

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_query + 24 * m * m

    def draw_bytes(self, m: int, count: int) -> int:
        n, d = self.support.Z.shape
        return 8 * (3 * (n + m) ** 2 + m * n + (m * d + 3 * n) * count + 3 * (n + m) * d)
