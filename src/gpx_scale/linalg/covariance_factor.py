"""The Cholesky factor of C, in one buffer, and what is solved with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import NotConverged
from .cholesky import COVARIANCE_JITTER, factor_with_jitter
from .conjugate_gradients import Progress, iterate
from .covariance import TiledCovariance
from .lower_tiles import LowerTiles, factor_in_tiles

# Relative rounding of b.C^-1 b up to which the explicit inverse serves for variances.
INVERTIBLE = 1e-10
# Relative residual that refined solves with a float32 factor aim at, and the worst to go on with.
REFINED, ACCEPTED = 1e-12, 1e-8
# Iterations of a refinement at most. Each gains several digits, unless float32 has none to give.
REFINEMENTS = 50


@dataclass(frozen=True)
class CholeskyFactor:
    """C + jitter diag(C) = L L^T, L in the lower triangle of `buffer`, and what solves with it."""

    covariance: TiledCovariance
    buffer: np.ndarray
    jitter: float

    @classmethod
    def of(cls, covariance: TiledCovariance, buffer: np.ndarray) -> CholeskyFactor:
        """Return the factor of C, which fills the buffer and is factorised there;  n^3/3 flops."""
        most = COVARIANCE_JITTER.jitters(buffer.dtype)[-1]
        failure = (
            f"the covariance of {len(covariance)} rows has no {buffer.dtype} Cholesky factor, even "
            f"with jitter of {most:.0e} of its diagonal: is the kernel positive definite? Raise "
            "sigma_y, drop duplicate rows"
        )
        if buffer.dtype == np.float32:
            failure += ', or use dtype="float64"'
        L, jitter = factor_with_jitter(
            buffer,
            covariance.diagonal,
            COVARIANCE_JITTER,
            failure,
            routine=partial(factor_in_tiles, n_jobs=covariance.session.executor.n_jobs),
            fill=partial(covariance.fill_lower, buffer),
        )
        return cls(covariance, L, jitter)

    def multiply(self, X: np.ndarray) -> np.ndarray:
        """(C + jitter diag(C)) X in float64, by tiles;  (n, c) -> (n, c)."""
        product = self.covariance.matmul(X)
        if self.jitter:
            product += self.jitter * self.covariance.diagonal[:, None] * X
        return product

    @property
    def _tiles(self) -> LowerTiles:
        """Return the tiles of the factor, in the memory of the buffer."""
        return LowerTiles.of(self.buffer, self.covariance.session.executor.n_jobs)

    @property
    def refined(self) -> bool:
        return self.buffer.dtype == np.float32

    @property
    def condition(self) -> float:
        """(max L_ii / min L_ii)^2: a lower bound of the condition number of C."""
        diagonal = self.buffer.diagonal().astype(float)
        return float((diagonal.max() / diagonal.min()) ** 2)

    def half_log_determinant(self) -> float:
        return float(np.log(self.buffer.diagonal().astype(float)).sum())

    def _apply_inverse(self, B: np.ndarray) -> np.ndarray:
        """(L L^T)^-1 B in the factor's dtype;  (n, c) -> (n, c)."""
        rows = np.array(B.T, self.buffer.dtype, order="C")
        self._tiles.solve(rows)
        return rows.T

    def solve(self, B: np.ndarray) -> np.ndarray:
        """C^-1 B;  (n, c) -> (n, c). With a float32 factor: conjugate gradients in float64, preconditioned by it."""
        if not self.refined:
            return self._apply_inverse(B)
        size = np.abs(B).max(axis=0, initial=0.0)
        size[size == 0] = 1.0  # columns of size 1: float32 has neither 1e-98 nor 1e98
        return size * self._refine(B / size)

    def _refine(self, B: np.ndarray) -> np.ndarray:
        """Return C^-1 B, refined from what the float32 factor gives;  (n, c) -> (n, c).

        Columns do not leave the iteration one by one: with few iterations, that saves little.
        """
        scale = np.linalg.norm(B, axis=0)
        scale[scale == 0] = 1.0

        def worst(R: np.ndarray) -> float:
            return (np.linalg.norm(R, axis=0) / scale).max(initial=0.0)

        def goes_on(at: Progress) -> np.ndarray:
            return np.full(at.running.size, not worst(at.residual) <= REFINED)

        def precondition(R: np.ndarray) -> np.ndarray:
            return self._apply_inverse(R).astype(float)

        X = precondition(B)
        R = B - self.multiply(X)
        H = precondition(R)
        iterate(self.multiply, precondition, X, R, H, goes_on, REFINEMENTS, order="K")
        left = worst(B - self.multiply(X))  # The recurrence of residuals may drift.
        if not left <= ACCEPTED:  # also catches NaN
            raise NotConverged(
                f"refining the float32 factor's solve stopped at a residual of {left:.1e} (needed "
                f'{ACCEPTED:.0e}): raise sigma_y, or use dtype="float64"'
            )
        return X

    def inverse_in_place(self) -> np.ndarray:
        """C^-1 in the lower triangle of the buffer, in the place of the factor, which is gone;  2 n^3/3 flops."""
        self._tiles.invert()
        return self.buffer

    def halves(self, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P, Q (c, n) with P Q^T = B C^-1 B^T for rows B (c, n), which are overwritten.

        float64: both are B L^-T;  n^2 c flops. float32: the refined X = C^-1 B and 2 B - C X, whose product 2 B.X - X C X is
        exact to the second order of what is left, and never above B C^-1 B: no variance computed with it is too small.
        """
        if self.refined:
            X = self.solve(B.T)
            Q = self.multiply(X)
            np.subtract(2.0 * B.T, Q, out=Q)
            return X.T, Q.T
        V = np.ascontiguousarray(B)
        self._tiles.half_solve(V)
        return V, V
