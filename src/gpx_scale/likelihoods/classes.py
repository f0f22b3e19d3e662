"""The likelihoods of classes and of shares: Bernoulli with two links, and binomial.

s = 2 y - 1        logit: p = 1 / (1 + exp(-f))        probit: p = Phi(f)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import betainc, erfcx, expit, gammaln, log_ndtr, logit, ndtr

from ..runtime.state import stored
from .likelihood import (
    LARGEST_LATENT,
    Likelihood,
    LogConcaveLikelihood,
    Observed,
    ParameterSlopes,
    Slopes,
    reason_against_counts,
)

# The logistic function is a mixture of normal distribution functions, sum_k share_k Phi(rate_k f),
# to 2e-8 everywhere (Monahan and Stefanski, "Normal scale mixture approximations to F*(z) and
# computation of the logistic-normal integral", 1992). Expectations over N(f, v) then have a closed
# form, whose derivatives agree with each other for any v.
LOGISTIC_SHARES = np.array(
    [
        *(0.00324634327288686517, 0.05151747703397, 0.19507791267386, 0.31556982363282),
        *(0.27414957615843, 0.13107688069547, 0.02791241872797, 0.00144956780535),
    ]
)
LOGISTIC_RATES = np.array(
    [
        *(1.36534080629635, 1.05952397101586, 0.83079131376519, 0.65073216664639),
        *(0.50813542536649, 0.39631334516647, 0.30890425226712, 0.23821261640956),
    ]
)
# Below this argument, the distance of the hazard phi / Phi to minus its argument has no digits left
# in float64, and its expansion is exact.
FAR_BELOW = -1e4


@dataclass(frozen=True)
class ParameterFree(LogConcaveLikelihood):
    """A likelihood without parameters."""

    @property
    def theta(self) -> np.ndarray:
        return np.empty(0)

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return ()

    def with_theta(self, theta: np.ndarray) -> Likelihood:
        return self

    def as_dict(self) -> dict[str, Any]:
        return {}

    def parameter_slopes(self, observed: Observed, f: np.ndarray) -> ParameterSlopes:
        none = np.empty((len(f), 0))
        return ParameterSlopes(none, none, none)


@dataclass(frozen=True)
class BernoulliLikelihood(ParameterFree):
    """A likelihood of y = 1 with a probability that grows with f, and of y = 0 otherwise.

    With more than two classes, y is the number of the class, and each class has a latent function
    of its own, for this class against all others. `link` is the name of the function whose inverse
    gives the probability.
    """

    link: ClassVar[str]
    n_classes: int = 2

    @property
    def latent_functions(self) -> int:
        return 1 if self.n_classes == 2 else self.n_classes

    def latent_targets(self, observed: Observed) -> list[Observed]:
        if self.n_classes == 2:
            return [observed]
        each = (observed.y == k for k in range(self.n_classes))
        return [replace(observed, y=is_this.astype(float)) for is_this in each]

    def probability(self, f: np.ndarray) -> np.ndarray:
        """Return the probability of y = 1 given f, of any shape."""
        return self.moments(f, None)[0]

    def distribution(self, y: np.ndarray, f: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return np.where(y < 0, 0.0, np.where(y < 1, self.probability(-f), 1.0))

    def draw(
        self, f: np.ndarray, random: np.random.RandomState, trials: np.ndarray | None = None
    ) -> np.ndarray:
        draws: np.ndarray = (random.uniform(size=f.shape) < self.probability(f)).astype(float)
        return draws


@stored
@dataclass(frozen=True)
class LogitLikelihood(BernoulliLikelihood):
    """The likelihood of logistic regression, p(y = 1 | f) = 1 / (1 + exp(-f))."""

    name = "logit"
    link = "logit"

    def slopes(self, observed: Observed, f: np.ndarray) -> Slopes:
        p = expit(f)
        value = -np.logaddexp(0.0, (1.0 - 2.0 * observed.y) * f)
        return Slopes(value, observed.y - p, p * expit(-f))

    def smoothed(self, observed: Observed, f: np.ndarray, v: np.ndarray) -> Slopes:
        softplus, p, curvature = smoothed_softplus(f, v)
        return Slopes(observed.y * f - softplus, observed.y - p, curvature)

    def third_ratio(self, observed: Observed, f: np.ndarray) -> np.ndarray:
        return np.tanh(0.5 * f)

    def moments(self, f: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        p = expit(f)
        return p, p * expit(-f)

    def predict(
        self, mean: np.ndarray, variance: np.ndarray, trials: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        _, p, _ = smoothed_softplus(mean, variance)
        _, q, _ = smoothed_softplus(-mean, variance)
        return p, p * q


@stored
@dataclass(frozen=True)
class ProbitLikelihood(BernoulliLikelihood):
    """The likelihood of probit regression, p(y = 1 | f) = Phi(f)."""

    name = "probit"
    link = "probit"

    def slopes(self, observed: Observed, f: np.ndarray) -> Slopes:
        sign = 2.0 * observed.y - 1.0
        hazard, above = _hazard(sign * f)
        return Slopes(log_ndtr(sign * f), sign * hazard, hazard * above)

    def third_ratio(self, observed: Observed, f: np.ndarray) -> np.ndarray:
        sign = 2.0 * observed.y - 1.0
        hazard, above = _hazard(sign * f)
        ratio: np.ndarray = sign * (hazard + above - 1.0 / above)
        return ratio

    def moments(self, f: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        p = ndtr(f)
        return p, p * ndtr(-f)

    def predict(
        self, mean: np.ndarray, variance: np.ndarray, trials: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.moments(mean / np.sqrt(1.0 + variance), None)


def smoothed_softplus(f: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the expectation of log(1 + exp(.)) over N(f, v), and its two derivatives by f.

    (n,), (n,) -> (n,) each.
    """
    width = np.sqrt(v[:, None] + LOGISTIC_RATES**-2)
    u = f[:, None] / width
    cumulated, density = ndtr(u), np.exp(-0.5 * np.square(u)) / np.sqrt(2.0 * np.pi)
    value = (f[:, None] * cumulated + width * density) @ LOGISTIC_SHARES
    return value, cumulated @ LOGISTIC_SHARES, (density / width) @ LOGISTIC_SHARES


def _hazard(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return h = phi(u) / Phi(u), and h + u, which is positive."""
    with np.errstate(over="ignore", divide="ignore"):
        hazard = np.sqrt(2.0 / np.pi) / erfcx(-u / np.sqrt(2.0))
        above = np.where(u < FAR_BELOW, -1.0 / u, hazard + u)
    return hazard, above


@stored
@dataclass(frozen=True)
class BinomialLikelihood(ParameterFree):
    """The likelihood of y successes in a number of trials, each with the probability of a logit."""

    name = "binomial"
    is_whole = True

    def reason_against(self, observed: Observed) -> str | None:
        trials = _trials(observed.trials)
        if (trials < 1).any() or (trials != np.floor(trials)).any():
            return "trials are not whole numbers of at least 1. Give how often each row was tried."
        if (observed.y > trials).any():
            return (
                "y has more successes than trials. Give trials= of at least y, in the same order."
            )
        return reason_against_counts(observed.y)

    def best(self, observed: Observed) -> np.ndarray:
        with np.errstate(divide="ignore"):
            found = logit(observed.y / _trials(observed.trials))
        return np.asarray(np.clip(found, -LARGEST_LATENT, LARGEST_LATENT))

    def centre(self, observed: Observed, offset: np.ndarray) -> float:
        trials = np.broadcast_to(_trials(observed.trials), observed.y.shape)
        successes, failures = observed.y.sum(), (trials - observed.y).sum()
        return float(np.log((successes + 0.5) / (failures + 0.5)) - offset.mean())

    def distribution(self, y: np.ndarray, f: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        n = _trials(trials)
        whole = np.clip(np.floor(y), 0.0, n - 1.0)
        inside = betainc(n - whole, whole + 1.0, expit(-f))
        return np.where(y < 0, 0.0, np.where(y >= n, 1.0, inside))

    def slopes(self, observed: Observed, f: np.ndarray) -> Slopes:
        y, trials, p = observed.y, _trials(observed.trials), expit(f)
        ways = gammaln(trials + 1.0) - gammaln(y + 1.0) - gammaln(trials - y + 1.0)
        value = ways - y * np.logaddexp(0.0, -f) - (trials - y) * np.logaddexp(0.0, f)
        return Slopes(value, y - trials * p, trials * p * expit(-f))

    def smoothed(self, observed: Observed, f: np.ndarray, v: np.ndarray) -> Slopes:
        y, trials = observed.y, _trials(observed.trials)
        softplus, p, curvature = smoothed_softplus(f, v)
        ways = gammaln(trials + 1.0) - gammaln(y + 1.0) - gammaln(trials - y + 1.0)
        return Slopes(ways + y * f - trials * softplus, y - trials * p, trials * curvature)

    def third_ratio(self, observed: Observed, f: np.ndarray) -> np.ndarray:
        return np.tanh(0.5 * f)

    def moments(self, f: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        p = expit(f)
        return _trials(trials) * p, _trials(trials) * p * expit(-f)

    def draw(
        self, f: np.ndarray, random: np.random.RandomState, trials: np.ndarray | None = None
    ) -> np.ndarray:
        counts = np.broadcast_to(_trials(trials), f.shape).astype(int)
        return random.binomial(counts, expit(f)).astype(float)


def _trials(trials: np.ndarray | None) -> np.ndarray:
    """Return the numbers of trials, 1 if none are given."""
    return np.ones(1) if trials is None else trials
