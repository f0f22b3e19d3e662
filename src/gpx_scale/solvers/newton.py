"""Newton's method for the posterior of f under a likelihood that is not Gaussian.

With S~ = S + sigma_w^2 diag(|z|^2), the offset m, and l(f; v) the expectation of log p(y | .) over
N(f, v), whose derivatives are g = l' and W = -l'':

    C = S~ + W^-1        a = C^-1 (f - m + g / W)        f <- m + S~ a

Every step is the Gaussian problem with the targets f - m + g / W and the noise variances D = 1 / W,
so a solver needs solves with S~ + diag(D) alone. With v = 0, the fixed point is the mode of the
posterior (Laplace's approximation). With v = diag V, V = (S~^-1 + W)^-1, it is the Gaussian with
the largest lower bound of log p(y) (variational inference).
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np

from ..errors import NotConverged
from ..likelihoods import Likelihood, Observed
from ..likelihoods.likelihood import Slopes

# A Newton step is the last one if it promised less than this.
LAST_STEP_NATS = 1e-9
# Variational inference begins at the mode for v = 0, which is needed roughly.
FIRST_MODE_NATS = 0.1
# Relative rounding error of float64.
ROUNDING = float(np.finfo(float).eps)
# Newton's method has converged after at most 32 steps wherever it was measured.
MAX_STEPS = 100
# A step that is still too long after so many halvings is too long by rounding alone.
MAX_HALVINGS = 40
# The variances v have converged when a pass changes the lower bound by less than this share of a
# nat for each row, in nats.
VARIANCE_TOLERANCE_NATS_PER_ROW = 1e-7
# They converge in 4 to 40 passes. Where they do not, the last bound is still one of log p(y).
MAX_PASSES = 60
# A pass moves v by this share of the way: with all of it, large variances go to and fro (at theta1
# = 180 and n = 600, 50 passes in place of 25). Where a pass lowers the bound, the share is halved,
# but not to less than the second one.
FIRST_LENGTH = 0.7
LEAST_LENGTH = 0.1
# Rows without features have no prior variance, and saturated ones no curvature. W is at least this
# share of the inverse of their prior variance, or of the second share of the mean one.
LEAST_CURVATURE = 1e-10
LEAST_PRIOR_VARIANCE = 1e-8
# exp(f + v/2) leaves float64 soon: the first variances are at most this, and they grow by at most
# this factor in a pass.
FIRST_VARIANCE = 2.0
LARGEST_GROWTH = 2.0
# Where a likelihood is not log-concave, W is at least this share of its expectation.
LEAST_FISHER_SHARE = 1e-3


class SiteSystem(abc.ABC):
    """The linear algebra of one S~ with any noise variances D, as one solver does it."""

    @property
    @abc.abstractmethod
    def prior_variance(self) -> np.ndarray:
        """Return the diagonal of S~;  (n,)."""

    @abc.abstractmethod
    def multiply(self, a: np.ndarray) -> np.ndarray:
        """Return S~ a;  (n,) -> (n,)."""

    @abc.abstractmethod
    def condition(self, D: np.ndarray) -> None:
        """Prepare what follows for C = S~ + diag(D);  (n,)."""

    @abc.abstractmethod
    def solve(self, t: np.ndarray) -> np.ndarray:
        """Return C^-1 t;  (n,) -> (n,)."""

    @abc.abstractmethod
    def half_log_determinant(self) -> float:
        """Return log|C| / 2."""

    @abc.abstractmethod
    def inverse_diagonal(self) -> np.ndarray:
        """Return the diagonal of C^-1;  (n,)."""


@dataclass(frozen=True)
class LatentTarget:
    """What Newton's method fits: the likelihood, the targets of the rows, their offset m (n,)."""

    likelihood: Likelihood
    observed: Observed
    offset: np.ndarray

    def slopes(self, f: np.ndarray, v: np.ndarray) -> Slopes:
        """Return l(f; v) and its derivatives, of rows with their weights;  (n,), (n,)."""
        if v.any():
            found = self.likelihood.smoothed(self.observed, f, v)
        else:
            found = self.likelihood.slopes(self.observed, f)
        return found.weighted(self.observed)

    def objective(self, a: np.ndarray, f: np.ndarray, v: np.ndarray) -> float:
        """Return sum l(f; v) - a.(f - m) / 2, which a step must not lower."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.slopes(f, v).value.sum() - 0.5 * (a @ (f - self.offset)))

    def curvature_of_steps(self, at: Slopes, least: np.ndarray) -> np.ndarray:
        """Return the W of a Newton step, which is positive;  (n,) -> (n,)."""
        if not self.likelihood.is_log_concave:
            least = np.maximum(least, LEAST_FISHER_SHARE * self._fisher())
        return np.asarray(np.maximum(at.curvature, least))

    def curvature_of_evidence(self, at: Slopes, least: np.ndarray) -> np.ndarray:
        """Return the W of the posterior: its expectation if W itself may be negative."""
        found = at.curvature if self.likelihood.is_log_concave else self._fisher()
        return np.asarray(np.maximum(found, least))

    def _fisher(self) -> np.ndarray:
        return self.observed.weighted(self.likelihood.fisher(self.observed))


@dataclass(frozen=True)
class LatentPosterior:
    """The Gaussian approximation N(f, V) of the posterior of n rows.

    a : C^-1 (f - m + g / W), with f = m + S~ a.
    v : the variances over which the likelihood was smoothed, 0 for Laplace's approximation.
    D : 1 / W.
    log_evidence : Laplace's approximation of log p(y), or its lower bound.
    steps : the number of Newton steps.
    """

    a: np.ndarray
    f: np.ndarray
    v: np.ndarray
    D: np.ndarray
    log_evidence: float
    steps: int

    def pseudo_target(self, offset: np.ndarray) -> np.ndarray:
        """Return C a = f - m + D a, the target of the Gaussian problem with the same posterior."""
        target: np.ndarray = self.f - offset + self.D * self.a
        return target


@dataclass(frozen=True)
class _Mode:
    """A point of Newton's method with fixed v, and how many steps led there."""

    a: np.ndarray
    f: np.ndarray
    steps: int = 0


def latent_posterior(
    system: SiteSystem, target: LatentTarget, start: LatentPosterior | None = None
) -> LatentPosterior:
    """Return the approximation of the posterior, from the mode and variances of a `start` if given.

    The system is conditioned on its D afterwards. NotConverged is raised if Newton's method does
    not converge.
    """
    prior = system.prior_variance
    least = LEAST_CURVATURE / np.maximum(prior, LEAST_PRIOR_VARIANCE * (prior.mean() or 1.0))
    none = np.zeros_like(target.offset)
    v, mode = none, _Mode(none, target.offset.copy())
    if start is not None:
        v = np.minimum(start.v, prior)
        mode = _warm(target, start.a, target.offset + system.multiply(start.a), v)
    variational = target.likelihood.is_variational
    enough = FIRST_MODE_NATS if variational else LAST_STEP_NATS
    if start is None or not variational:
        mode = _find_mode(system, target, mode, v, least, enough)
    approximated = _variational if variational else _laplace
    return approximated(system, target, mode, v, least)


def _warm(target: LatentTarget, a: np.ndarray, f: np.ndarray, v: np.ndarray) -> _Mode:
    """Return a start at the solution of other hyperparameters, unless the offset is better."""
    none = np.zeros_like(a)
    # A value that is not a number is not better.
    if target.objective(a, f, v) >= target.objective(none, target.offset, v):
        return _Mode(a, f)
    return _Mode(none, target.offset.copy())


def _find_mode(
    system: SiteSystem,
    target: LatentTarget,
    mode: _Mode,
    v: np.ndarray,
    least: np.ndarray,
    enough: float,
) -> _Mode:
    """Return the maximum of the objective for fixed v, by Newton steps that are halved if needed.

    The last step is one that promised less than `enough` nats.
    """
    a, f, m = mode.a, mode.f, target.offset
    for step in range(1, MAX_STEPS + 1):
        at = target.slopes(f, v)
        D = 1.0 / target.curvature_of_steps(at, least)
        system.condition(D)
        towards_a = system.solve(f - m + at.first * D) - a
        towards_f = system.multiply(towards_a)
        slope = float((at.first - a) @ towards_f)
        a, f, value = _moved(target, a, f, towards_a, towards_f, v)
        if slope < max(enough, ROUNDING * (abs(value) + len(f))):
            return _Mode(a, m + system.multiply(a), mode.steps + step)
    raise NotConverged(
        f"The mode of the latent function was not found in {MAX_STEPS} Newton steps. Rescale y, "
        "or give a smaller theta1."
    )


def _moved(
    target: LatentTarget,
    a: np.ndarray,
    f: np.ndarray,
    towards_a: np.ndarray,
    towards_f: np.ndarray,
    v: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return a and f after a step, which is halved until it does not lower the objective.

    The value of the objective comes with them. It is the same point if no length is short enough.
    """
    value = target.objective(a, f, v)
    least = value - 10.0 * ROUNDING * (abs(value) + len(f))
    length = 1.0
    for _ in range(MAX_HALVINGS):
        moved = a + length * towards_a, f + length * towards_f
        # A value that is not a number is no progress.
        if (reached := target.objective(*moved, v)) >= least:
            return *moved, reached
        length *= 0.5
    return a, f, value


def _laplace(
    system: SiteSystem, target: LatentTarget, mode: _Mode, v: np.ndarray, least: np.ndarray
) -> LatentPosterior:
    """Return Laplace's approximation at the mode, with the system conditioned there.

    log p(y) ~ sum log p(y | f) - a.(f - m) / 2 - log|B| / 2,    |B| = |C| prod W
    """
    at = target.slopes(mode.f, v)
    D = 1.0 / target.curvature_of_evidence(at, least)
    system.condition(D)
    half = system.half_log_determinant() - 0.5 * float(np.log(D).sum())
    value = float(at.value.sum() - 0.5 * (mode.a @ (mode.f - target.offset))) - half
    return LatentPosterior(mode.a, mode.f, v, D, value, mode.steps)


def _variational(
    system: SiteSystem, target: LatentTarget, mode: _Mode, v: np.ndarray, least: np.ndarray
) -> LatentPosterior:
    """Return the Gaussian with the largest lower bound, with the system conditioned on its D.

    log p(y) >= sum l(f; diag V) - (tr B^-1 + a.(f - m) - n) / 2 - log|B| / 2

    with V = (S~^-1 + W)^-1, diag V = (1 - diag B^-1) / W and diag B^-1 = diag(C^-1) / W. Each pass
    has one factor, from which come a Newton step for f, the next v, and the bound of both.
    """
    a, f, m = mode.a, mode.f, target.offset
    n, length, before = len(f), FIRST_LENGTH, -np.inf
    for step in range(1, MAX_PASSES + 1):
        at = target.slopes(f, v)
        D = 1.0 / target.curvature_of_evidence(at, least)
        system.condition(D)
        towards_a = system.solve(f - m + at.first * D) - a
        share = system.inverse_diagonal() * D
        V = np.maximum((1.0 - share) * D, 0.0)
        half = system.half_log_determinant() - 0.5 * float(np.log(D).sum())
        a, f, value = _moved(target, a, f, towards_a, system.multiply(towards_a), V)
        f = m + system.multiply(a)
        bound = value - 0.5 * float((share - 1.0).sum()) - half
        gain, before = bound - before, bound
        if abs(gain) < VARIANCE_TOLERANCE_NATS_PER_ROW * n or step == MAX_PASSES:
            break
        shorter, longer = max(0.5 * length, LEAST_LENGTH), min(1.5 * length, FIRST_LENGTH)
        length = shorter if gain < 0.0 else longer
        most = np.full(n, np.inf)
        if target.likelihood.has_exponential_mean:
            most = np.maximum(LARGEST_GROWTH * v, FIRST_VARIANCE)
        v = v + length * (np.minimum(V, most) - v)
    return LatentPosterior(a, f, V, D, bound, mode.steps + step)
