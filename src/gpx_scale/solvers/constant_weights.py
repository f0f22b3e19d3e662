"""The posterior of the parts of weights that are constant, and what it adds to other variances.

With y = B gamma + h, where gamma ~ N(0, I) are the constant parts over their prior deviations, and
h ~ N(0, V) is all that varies, noise included:

    Cov[gamma | y] = (I + B^T V^-1 B)^-1 = Sigma,    M = V^-1 B
    q = a.gamma + q_h:    Var[q | y] = Var[q_h | y, gamma] + r.Sigma r,    r = a - M^T Cov[h, q_h]

The first variance may come from a part of the rows, which makes it too large. A constant is known
from all rows, so that a part of them would not do: Sigma and r come from M, which is solved for
once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.cross_covariance import CrossCovariance
from ..runtime.session import Session
from ..runtime.state import must_be_numbers, stored
from .posterior import MomentRequest, Moments


@stored
@dataclass(frozen=True)
class ConstantWeights:
    """The posterior of c constant parts of d weights.

    Attributes
    ----------
    scales : ndarray of shape (d, c)
        The prior standard deviation of each part, in the row of its weight.
    solved : ndarray of shape (n, c)
        M = V^-1 B.
    covariance : ndarray of shape (c, c)
        Sigma.
    """

    scales: np.ndarray
    solved: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(
        cls, scales: np.ndarray, B: np.ndarray, M: np.ndarray, VM: np.ndarray
    ) -> ConstantWeights:
        """Return the posterior from M = V^-1 B to a tolerance, and V M;  O(n c^2).

        B^T V^-1 B is never above its true value, M^T (2 B - V M), so Sigma is never too small.
        """
        inner = M.T @ (2.0 * B - VM)
        covariance = np.linalg.inv(np.eye(len(inner)) + 0.5 * (inner + inner.T))
        return cls(scales, M, 0.5 * (covariance + covariance.T))

    def must_fit(self, n: int, scales: np.ndarray) -> None:
        """Raise a ValueError unless these are constants of n rows with these prior deviations."""
        c = scales.shape[1]
        must_be_numbers(self.scales, scales.shape, "the deviations of constant weights")
        must_be_numbers(self.solved, (n, c), "the solutions for constant weights")
        must_be_numbers(self.covariance, (c, c), "the covariance of constant weights")

    def reduction(
        self,
        cross: CrossCovariance,
        varying: Moments | None,
        request: MomentRequest,
        session: Session,
    ) -> Moments:
        """Return the reductions of queries from those of the parts that vary, given the constants.

        `cross` may have constant parts, others, or both; without others, `varying` is None.
        2 n d c flops per query and term.
        """
        others = cross.varying_terms
        count, (d, c) = len(cross), self.scales.shape
        scales = self.scales if cross.has_constants else np.zeros((d, c))
        along = []
        for k, A in enumerate(request.along):
            a = A.right_multiply(scales)
            r = a if others is None else a - others.along(A) @ self.solved
            more = 0.0 if varying is None else varying.along[k]
            along.append(more + np.square(a).sum(axis=1) - self._quadratic(r))
        variance = covariance = None
        if request.variance or request.covariance:
            R = np.broadcast_to(scales, (count, d, c))
            if others is not None:
                known = [others.weights(column, session) for column in self.solved.T]
                R = R - np.stack(known, axis=2)
            if request.variance:
                variance = np.square(scales).sum(axis=1) - self._quadratic(R)
            if request.covariance:
                covariance = scales @ scales.T - R @ self.covariance @ R.swapaxes(1, 2)
            if varying is not None:
                variance = None if variance is None else variance + varying.variance
                covariance = None if covariance is None else covariance + varying.covariance
        return Moments(None, variance, covariance, along)

    def _quadratic(self, R: np.ndarray) -> np.ndarray:
        """Return r.Sigma r of vectors along the last axis;  (..., c) -> (...)."""
        return np.asarray(np.einsum("...c,...c->...", R @ self.covariance, R))
