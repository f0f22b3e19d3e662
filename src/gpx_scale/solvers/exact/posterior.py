"""The posterior of the exact solver, from the Cholesky factor of C.

B = diag(k*) Z (n, d),   E[w*] = B^T alpha,   Cov[g*] = k** I - B^T C^-1 B
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...data.features import Features
from ...data.inputs import Preprocessor, Queries, TrainingRows
from ...likelihoods import Sites
from ...linalg.cholesky import JOINT_WEIGHTS_JITTER, factor_with_jitter
from ...linalg.covariance import TiledCovariance
from ...linalg.covariance_factor import INVERSE_MAX_ROUNDING, CholeskyFactor
from ...linalg.lower_tiles import LowerTiles, packed_length
from ...model.weight_prior import CrossCovariance, variances
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_numbers, stored
from ..contract import Capability, Plan
from ..joint_prior import JointWeightPrior
from ..posterior import Diagnostics, KernelPosterior, MomentRequest, Moments, symmetric_part
from ..sparse_weights import EntryReduction, InverseEntryReduction, SolvedEntryReduction
from .variance_bound import latent_variance_bound


def _made(
    coefficients: np.ndarray,
    tiles: LowerTiles | None = None,
    buffer: np.ndarray | None = None,
    **known: Any,
) -> ExactPosterior:
    """Return a posterior from its fields. Older files have the factor's triangle as `buffer`."""
    if buffer is not None:
        tiles = LowerTiles.of_triangle(buffer, coefficients.size, n_jobs=1)
    return ExactPosterior(tiles=tiles, coefficients=coefficients, **known)  # type: ignore[arg-type]


@stored(make=_made)
@dataclass(frozen=True)
class ExactPosterior(KernelPosterior):
    """The posterior from the Cholesky factor of C, in packed tiles.

    `jitter` was added to the diagonal of C, relative to it. If the likelihood is not Gaussian,
    `sites` are the targets and variances of the Gaussian problem with the same posterior.
    """

    tiles: LowerTiles
    jitter: float
    log_evidence: float
    condition_number: float
    sites: Sites | None = None

    capabilities = frozenset(
        {
            Capability.TRAINING_WEIGHTS,
            Capability.LEAVE_ONE_OUT,
            Capability.UPPER_BOUND,
            Capability.JOINT_COVARIANCE,
            Capability.SPARSE_FEATURES,
            Capability.ANY_KERNEL,
            Capability.FLOAT32,
            Capability.WEIGHT_TERMS,
            Capability.SPARSE_WEIGHT_TERMS,
            Capability.LIKELIHOODS,
        }
    )

    @property
    def training_rows(self) -> TrainingRows:
        assert isinstance(self.support, TrainingRows)
        return self.support

    @property
    def conditioned_rows(self) -> TrainingRows:
        """Return the rows of the Gaussian problem: the training rows, or those of the sites."""
        rows = self.training_rows
        return rows if self.sites is None else self.sites.applied(rows)

    @property
    def diagnostics(self) -> Diagnostics:
        exact = self.tiles.dtype == np.float64
        variances = "exact" if exact else "refined against float64 tiles, never below exact"
        return Diagnostics(
            self.log_evidence,
            jitter=self.jitter,
            condition_number=self.condition_number,
            variances=variances,
            dtype=self.tiles.dtype.type,
        )

    @property
    def bytes_per_query(self) -> int:
        """Return the bytes of a right-hand side, its solution, and one more vector of n numbers.

        With a float32 factor, there are copies in float64.
        """
        return (3 if self.tiles.dtype == np.float64 else 6) * 8 * len(self)

    def factor(self, session: Session) -> CholeskyFactor:
        """Return the Cholesky factor of C, for work in a session."""
        covariance = TiledCovariance(self.conditioned_rows, self.hyperparameters, session)
        tiles = replace(self.tiles, n_jobs=session.executor.n_jobs)
        return CholeskyFactor(covariance, tiles, self.jitter)

    def reduction(
        self, cross: CrossCovariance, request: MomentRequest, session: Session
    ) -> Moments:
        """Return diag(B^T C^-1 B), B^T C^-1 B, and a^T B^T C^-1 B a, as asked for.

        This takes n^2 flops per right-hand side: d per query for all weights, and 1 for each
        vector a.
        """
        noise = 0.0 if request.surface else self.hyperparameters.sigma_w**2
        full = self.full_reduction(cross, noise, session) if request.covariance else None
        with_weights = request.variance and full is None
        # All right-hand sides go through the factor together.
        sides = [cross.of_all_weights().reshape(-1, len(self))] if with_weights else []
        priors = [self._weight_variances(cross, noise)] if with_weights else []
        sides += [cross.along(A) for A in request.along]
        priors += [self._prior_along(cross, A, noise) for A in request.along]
        each, along = None, []
        if sides:
            B = sides[0] if len(sides) == 1 else np.concatenate(sides)
            found = self._quadratic(B, np.concatenate(priors), session)
            ends = np.cumsum([len(side) for side in sides])
            along = np.split(found, ends[:-1])
        if with_weights:
            each, along = along[0].reshape(len(cross), self.d), along[1:]
        elif request.variance and full is not None:
            each = np.einsum("ijj->ij", full)
        return Moments(None, each, full, along)

    def weight_reduction(self, cross: CrossCovariance, session: Session) -> np.ndarray:
        """Return diag(B^T C^-1 B) for each query;  (m, d);  n^2 m d flops."""
        noise = self.hyperparameters.sigma_w**2
        B, prior = cross.of_all_weights(), self._weight_variances(cross, noise)
        return self._quadratic(B.reshape(-1, len(self)), prior, session).reshape(B.shape[:2])

    def full_reduction(self, cross: CrossCovariance, noise: float, session: Session) -> np.ndarray:
        """Return B^T C^-1 B for each query;  (m, d, d);  n^2 m d + 2 n m d^2 flops.

        `noise` is the part of sigma_w^2 in the variances that are computed from it.
        """
        prior = self._weight_variances(cross, noise)
        P, Q = self._halves(cross.of_all_weights(), prior, session)
        products = session.executor.map(lambda i: P[i] @ Q[i].swapaxes(1, 2), slices(len(P), 8))
        return symmetric_part(np.concatenate(products))

    def joint_reduction(self, cross: CrossCovariance, A: Features, session: Session) -> np.ndarray:
        """Return a_i^T B_i^T C^-1 B_j a_j for all pairs;  (m, m);  n^2 m + 2 n m^2 flops."""
        prior = self._prior_along(cross, A, self.hyperparameters.sigma_w**2)
        P, Q = self._halves(cross.along(A), prior, session)
        return symmetric_part(session.executor.matmul(P, Q.T))

    # A float32 factor solves as precisely as variances with their noise need, so prior variances
    # come with the right-hand sides. `noise` is sigma_w^2, or 0 for variances without it.

    def _weight_variances(self, cross: CrossCovariance, noise: float) -> np.ndarray:
        """Return the prior variances of all weights of the queries, with noise;  (m d,)."""
        variance = cross.variance() + noise
        return np.repeat(variance, self.d) if variance.ndim == 1 else variance.ravel()

    def _prior_along(self, cross: CrossCovariance, A: Features, noise: float) -> np.ndarray:
        """Return the prior variances of a.w, with both noises;  (m,)."""
        weights = cross.variance() + noise
        if weights.ndim == 1:
            prior: np.ndarray = weights * A.squared_norms()
        else:
            prior = (weights * np.square(A.to_dense())).sum(axis=1)
        return prior + self.hyperparameters.sigma_y**2

    def entry_reduction(self, entries: int, session: Session) -> EntryReduction:
        """Return the reduction by the inverse of C where that pays, or by triangular solves.

        The inverse pays if it takes fewer flops than a triangular solve for every entry. It must
        also fit into memory and be accurate: b.C^-1 b from an explicit inverse is off by the
        condition number times eps, which is at most trace(C) / min(D) eps.
        """
        n = len(self)
        covariance = self.factor(session).covariance
        rounding = np.finfo(float).eps * covariance.diagonal.sum() / covariance.noise.min()
        # The packed inverse takes about 5 n^2 bytes, and the matrix made of it 8 n^2.
        fits = self.tiles.dtype == np.float64 and 14 * n * n < session.memory_limit
        if fits and 3 * entries > 2 * n and rounding < INVERSE_MAX_ROUNDING:
            inverse = self.factor(session).inverse().to_matrix()
            return InverseEntryReduction(inverse, 1.0 - rounding)
        hyperparameters = self.hyperparameters
        variance = hyperparameters.weight_prior.variance(self.training_rows.x)
        some = variance[variance > 0]
        prior = float(some.min(initial=np.inf if some.size else 1.0)) + hyperparameters.sigma_w**2

        def quadratic(B: np.ndarray) -> np.ndarray:
            return self._quadratic(B, np.full(len(B), prior), session)

        return SolvedEntryReduction(n, quadratic)

    def _quadratic(self, B: np.ndarray, prior: np.ndarray, session: Session) -> np.ndarray:
        """Return b.C^-1 b for each row b of B;  (c, n), (c,) -> (c,);  n^2 c flops.

        B is overwritten. Weights that are zero, or have no part that is asked for, take no solve.
        """
        factor = self.factor(session)
        moving = B.any(axis=1)
        if self.hyperparameters.weight_prior.is_shared or moving.all():
            return factor.quadratic(B, prior)
        found = np.zeros(len(B))
        if moving.any():
            found[moving] = factor.quadratic(B[moving], prior[moving])
        return found

    def row_weights(
        self, query: Queries, session: Session
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        b = self.cross(query.x, session).along(query.Z)
        return np.arange(len(self)), self.solve_rows(b, session)[0], self.training_rows.y

    def upper_bound_variance(self, x: Any, session: Session) -> np.ndarray | None:
        # The bound projects one kernel, and exact variances are bounds, too.
        if not self.hyperparameters.weight_prior.is_shared:
            return None
        return latent_variance_bound(self, x, session)

    def leave_one_out(self, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """Return alpha_i / (C^-1)_ii and (C^-1)_ii^-1/2;  (n,), (n,);  n^3/3 flops.

        With a float32 factor, n^3 flops in float64 are needed, and no deviation is below the exact
        one.
        """
        factor = self.factor(session)
        if not factor.refined:
            inverse_diagonal = factor.tiles.inverse_diagonal()
        else:
            n = len(self)
            size = max(1, min(n, session.chunk_bytes // self.bytes_per_query))
            units = (np.eye(i.stop - i.start, n, i.start) for i in slices(n, size))
            found = [factor.quadratic(some, np.zeros(len(some))) for some in units]
            inverse_diagonal = np.concatenate(found)
        residuals: np.ndarray = self.coefficients / inverse_diagonal
        return residuals, inverse_diagonal**-0.5

    def solve_rows(self, B: np.ndarray, session: Session) -> np.ndarray:
        """Return B C^-1 along the last axis;  (..., n) -> (..., n);  2 n^2 flops per row."""
        solved = self.factor(session).solve(B.reshape(-1, len(self)).T)
        return solved.T.reshape(B.shape)

    def _halves(
        self, B: np.ndarray, prior: np.ndarray, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return P and Q with P Q^T = B C^-1 B^T along the last axis;  (..., n) -> (..., n) each.

        B is overwritten;  n^2 flops per row.
        """
        P, Q = self.factor(session).halves(B.reshape(-1, len(self)), prior)
        return P.reshape(B.shape), Q.reshape(B.shape)

    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count).

        They come from the joint covariance of all m d weights, or by Matheron's rule from draws at
        training rows and queries together, whichever takes less memory.
        """
        if self._joint_weights_bytes(len(x)) <= self._matheron_bytes(len(x)):
            return self._draw_jointly(x, count, random, session)
        return self._draw_by_matheron(x, count, random, session)

    def _draw_jointly(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return draws from the joint covariance of all weights;  (m, d, count).

        n^2 m d + 2 n (m d)^2 + (m d)^3/3 flops.
        """
        m, d, hyperparameters = len(x), self.d, self.hyperparameters
        cross = self.cross(x, session)
        B = cross.of_all_weights().reshape(m * d, -1)
        prior = self._weight_variances(cross, hyperparameters.sigma_w**2)
        P, Q = self.factor(session).halves(B, prior)
        own = hyperparameters.weight_prior.joint_of_weights(x, d, session)
        joint = own - symmetric_part(session.executor.matmul(P, Q.T))
        diagonal = np.maximum(joint.diagonal(), 0.0) + hyperparameters.sigma_w**2
        failure = (
            "The joint covariance of the weights has no Cholesky factor, so samples cannot be "
            "drawn. Check that the kernel is positive definite."
        )
        L, _ = factor_with_jitter(joint, diagonal, JOINT_WEIGHTS_JITTER, failure)
        draws = self.mean(x, cross, session).reshape(-1, 1)
        draws = draws + L @ random.standard_normal((m * d, count))
        return draws.reshape(m, d, count)

    def _draw_by_matheron(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return draws by Matheron's rule;  (m, d, count).

        w is drawn from the prior at training rows and queries together, and then corrected by the
        difference between y and the y of the draw. This takes (n + m)^3/3 + (n + m)^2 d count
        flops.
        """
        rows, hyperparameters = self.conditioned_rows, self.hyperparameters
        n, m, d = len(self), len(x), self.d
        own = variances(hyperparameters.sigma_w**2, rows.Z)
        deviation = np.sqrt(np.maximum(hyperparameters.noise(rows) - own, 0.0))
        prior = JointWeightPrior.of(hyperparameters.weight_prior, rows.x, x, session)
        draws, missed = np.empty((m, d, count)), np.empty((n, count))
        for s in range(count):
            W = prior.draw(d, random)
            noise = deviation * random.standard_normal(n)
            missed[:, s] = rows.y - rows.Z.row_dots(W[:n]) - noise
            draws[:, :, s] = W[n:]
        return prior.moved(draws, self.factor(session).solve(missed), rows.Z, session)

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        n = plan.n
        must(isinstance(self.support, TrainingRows), "its rows have no y")
        self.support.must_fit(self.hyperparameters.kernel, preprocessor, n)
        must_be_numbers(self.coefficients, (n,), "alpha")
        # A fit in float32 goes on in float64 if C has no float32 factor.
        kinds = (plan.dtype, np.float64)
        must(isinstance(self.tiles, LowerTiles) and self.tiles.n == n, "it has another factor")
        must_be_numbers(self.tiles.buffer, (packed_length(n),), "the Cholesky factor", kinds)
        positive = (self.tiles.diagonal() > 0).all()
        must(positive, "the diagonal of the Cholesky factor is not positive")
        must(0.0 <= self.jitter < 1.0, "the jitter is out of range")
        is_gaussian = self.hyperparameters.likelihood.is_gaussian
        must(is_gaussian == (self.sites is None), "its sites and its likelihood do not agree")
        if self.sites is not None:
            self.sites.must_fit(n)

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_query + 24 * m * m

    def draw_bytes(self, m: int, count: int) -> int:
        draws = 8 * (m * self.d + 3 * len(self)) * count
        return draws + min(self._joint_weights_bytes(m), self._matheron_bytes(m))

    def _joint_weights_bytes(self, m: int) -> int:
        """Return the memory of the joint covariance of all weights of m queries."""
        return m * self.d * (self.bytes_per_query + 32 * m * self.d)

    def _matheron_bytes(self, m: int) -> int:
        """Return the memory of a draw of the prior at training rows and m queries."""
        n, terms = len(self), len(self.hyperparameters.weight_prior.active)
        return 8 * ((2 + terms) * (n + m) ** 2 + m * n * terms + 3 * (n + m) * self.d)
