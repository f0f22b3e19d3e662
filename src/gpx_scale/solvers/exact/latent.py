"""The exact solver for likelihoods that are not Gaussian: Newton's method by Cholesky factors.

S is formed once for given hyperparameters, in n^2/2 numbers. Every Newton step copies it into a
buffer, adds the noise of the weights and D to its diagonal, and factorises it there, n^3/3 flops.
"""

from __future__ import annotations

import numpy as np

from ...data.inputs import TrainingRows
from ...likelihoods import Observed, Sites
from ...linalg.covariance import CopiedCovariance, TiledCovariance
from ...linalg.covariance_factor import CholeskyFactor
from ...linalg.kernel_tiles import stored_product
from ...linalg.lower_tiles import LowerTiles
from ...model.hyperparameters import Hyperparameters
from ...optimize.evidence import Evidence
from ...runtime.session import Session
from ..newton import LatentPosterior, LatentTarget, SiteSystem, latent_posterior
from .posterior import ExactPosterior


class TiledSystem(SiteSystem):
    """S in packed tiles, and the Cholesky factor of C for one D after the other in a buffer."""

    def __init__(
        self,
        rows: TrainingRows,
        hyperparameters: Hyperparameters,
        buffer: np.ndarray,
        session: Session,
    ) -> None:
        self._rows, self._hyperparameters, self._session = rows, hyperparameters, session
        none = np.zeros(len(rows))
        without = TiledCovariance(Sites(none, none).applied(rows), hyperparameters, session)
        self._own = without.diagonal
        self._prior = without.empty_tiles(np.float64)
        without.fill_prior(self._prior)
        self._buffer = buffer
        self.factor: CholeskyFactor

    @property
    def prior_variance(self) -> np.ndarray:
        return self._own

    def multiply(self, a: np.ndarray) -> np.ndarray:
        return stored_product(self._prior, a[:, None], self._own)[:, 0]

    def condition(self, D: np.ndarray) -> None:
        rows = Sites(self._rows.y, D).applied(self._rows)
        given = rows, self._hyperparameters, self._session
        covariance = CopiedCovariance(*given, known=self._prior)
        tiles = LowerTiles.pack_into(self._buffer, len(rows), self._session.executor.n_jobs)
        self.factor = CholeskyFactor.of(covariance, tiles)

    def solve(self, t: np.ndarray) -> np.ndarray:
        return self.factor.solve(t[:, None])[:, 0]

    def half_log_determinant(self) -> float:
        return self.factor.half_log_determinant()

    def inverse_diagonal(self) -> np.ndarray:
        return self.factor.tiles.inverse_diagonal()


class LatentEvaluator:
    """Evidence and posteriors of the rows of one fit, by Newton's method.

    It remembers the last posterior of the same rows, from which Newton's method begins at the next
    hyperparameters.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows: TrainingRows | None = None
        self._last: dict[int, LatentPosterior] = {}

    def targets(self, rows: TrainingRows, hyperparameters: Hyperparameters) -> list[LatentTarget]:
        """Return what Newton's method fits, for each latent function."""
        likelihood, offset = hyperparameters.likelihood, rows.columns.offset
        m = np.zeros(len(rows)) if offset is None else offset
        return [
            LatentTarget(likelihood, observed, m)
            for observed in likelihood.latent_targets(Observed.of(rows.y, rows.columns))
        ]

    def evaluate(
        self,
        rows: TrainingRows,
        hyperparameters: Hyperparameters,
        buffer: np.ndarray,
        gradient: bool,
        information: bool,
    ) -> Evidence:
        """Return the approximation of log p(y), summed over the latent functions.

        n^3/3 flops for each Newton step, and 2 n^3/3 to n^3 for the gradient.
        """
        system = TiledSystem(rows, hyperparameters, buffer, self._session)
        value, left_out, slope, metric = 0.0, 0.0, None, None
        for k, target in enumerate(self.targets(rows, hyperparameters)):
            found = self._posterior(system, target, rows, k)
            value += found.log_evidence
            if not gradient:
                continue
            if information:
                more = system.factor.average_information(found.a)
                metric = more if metric is None else metric + more
            along, inverse_diagonal = evidence_gradient(system, target, found)
            slope = along if slope is None else slope + along
            left_out += _left_out(target, found, inverse_diagonal)
        known = left_out if gradient else None
        return Evidence(value, slope, len(rows), information=metric, left_out_log_density=known)

    def condition(
        self,
        rows: TrainingRows,
        hyperparameters: Hyperparameters,
        buffer: np.ndarray,
    ) -> list[ExactPosterior]:
        """Return the posterior of each latent function, which owns a buffer like the given one.

        The first one owns the given one.
        """
        total, parts = 0.0, []
        for k, target in enumerate(self.targets(rows, hyperparameters)):
            buffer = np.empty_like(buffer) if k else buffer
            system = TiledSystem(rows, hyperparameters, buffer, self._session)
            found = self._posterior(system, target, rows, k)
            total += found.log_evidence
            sites = Sites(found.pseudo_target(target.offset), found.D)
            parts.append((found.a, system.factor, sites))
        return [
            ExactPosterior(
                hyperparameters,
                rows,
                a,
                factor.tiles,
                factor.jitter,
                total,
                factor.condition,
                sites,
            )
            for a, factor, sites in parts
        ]

    def _posterior(
        self, system: SiteSystem, target: LatentTarget, rows: TrainingRows, k: int
    ) -> LatentPosterior:
        """Return the posterior of latent function k, and remember it."""
        if self._rows is not rows:
            self._rows, self._last = rows, {}
        self._last[k] = latent_posterior(system, target, self._last.get(k))
        return self._last[k]


def evidence_gradient(
    system: TiledSystem, target: LatentTarget, found: LatentPosterior
) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivatives of the log evidence by theta, and diag(C^-1);  (t,), (n,).

        1/2 sum_ij Q_ij dS~_ij       Q = a a^T - C^-1, and for Laplace u a^T + a u^T besides
        u = s - C^-1 S~ s            s = (1 - diag B^-1) rho / 2, with rho the third derivative / W

    u is how the mode moves log|B|. The factor in the buffer is overwritten.
    """
    likelihood, observed = target.likelihood, target.observed
    covariance, factor, D = system.factor.covariance, system.factor, found.D
    implicit = not likelihood.is_variational and likelihood.is_log_concave
    if implicit:
        share = 1.0 - system.inverse_diagonal() * D
        s = 0.5 * share * likelihood.third_ratio(observed, found.f)
        u = s - system.solve(system.multiply(s))
    along, inverse_diagonal = covariance.contract_inverse(found.a, factor.tiles)
    gradient = 0.5 * along
    if implicit:
        gradient += covariance.contract(u[:, None], found.a[:, None])
    if likelihood.theta.size:
        if likelihood.is_variational:
            by_rows = likelihood.smoothed_parameter_slopes(observed, found.f, found.v)
            own = observed.weighted(by_rows).sum(axis=0)
        else:
            own = _laplace_parameters(target, found, (1.0 - inverse_diagonal * D) * D)
            if implicit:
                slopes = likelihood.parameter_slopes(observed, found.f)
                own = own + system.multiply(u) @ observed.weighted(slopes.first)
        gradient[-likelihood.theta.size :] = own
    return gradient, inverse_diagonal


def _laplace_parameters(target: LatentTarget, found: LatentPosterior, V: np.ndarray) -> np.ndarray:
    """Return the derivatives by the likelihood's parameters at a fixed mode;  (s,)."""
    likelihood, observed = target.likelihood, target.observed
    slopes = likelihood.parameter_slopes(observed, found.f)
    curvature = slopes.curvature
    if not likelihood.is_log_concave:
        curvature = likelihood.fisher_slopes(observed)
    by_rows = slopes.value - 0.5 * V[:, None] * curvature
    total: np.ndarray = observed.weighted(by_rows).sum(axis=0)
    return total


def _left_out(target: LatentTarget, found: LatentPosterior, inverse_diagonal: np.ndarray) -> float:
    """Return the sum of log p(y_i | all other rows), without the site of row i.

    f_i given the others is N(t_i - a_i / R_ii, 1 / R_ii - D_i) with R = C^-1.
    """
    mean = target.offset + found.pseudo_target(target.offset) - found.a / inverse_diagonal
    variance = np.maximum(1.0 / inverse_diagonal - found.D, 0.0)
    log_density = target.likelihood.predictive_log_density(target.observed, mean, variance)
    return float(target.observed.weighted(log_density).sum())
