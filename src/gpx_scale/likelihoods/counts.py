"""The likelihoods of counts, whose mean is exp(f): Poisson and negative binomial."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import betainc, digamma, expit, gammaln, pdtr

from ..runtime.state import stored
from .classes import ParameterFree
from .likelihood import (
    LARGEST_LATENT,
    LogConcaveLikelihood,
    Observed,
    ParameterSlopes,
    Slopes,
    reason_against_counts,
)

# Draws of counts have at most this mean, which a Poisson generator of numpy takes.
LARGEST_MEAN = 1e15


class CountLikelihood(LogConcaveLikelihood):
    """A likelihood of counts whose mean is exp(f)."""

    has_exponential_mean = True
    is_whole = True

    def reason_against(self, observed: Observed) -> str | None:
        return reason_against_counts(observed.y)

    def best(self, observed: Observed) -> np.ndarray:
        return np.asarray(np.log(np.maximum(observed.y, np.exp(-LARGEST_LATENT))))

    def centre(self, observed: Observed, offset: np.ndarray) -> float:
        # Without any count, the rate is half a count in all rows.
        exposure = float(np.exp(offset).sum())
        return float(np.log(max(observed.y.sum(), 0.5) / exposure))


@stored
@dataclass(frozen=True)
class PoissonLikelihood(CountLikelihood, ParameterFree):
    """The likelihood of counts with the mean and the variance exp(f)."""

    name = "poisson"

    def slopes(self, observed: Observed, f: np.ndarray) -> Slopes:
        return self._slopes(observed, f, f)

    def smoothed(self, observed: Observed, f: np.ndarray, v: np.ndarray) -> Slopes:
        """Return the expectations over N(f, v) in closed form: that of exp(f) is exp(f + v/2)."""
        return self._slopes(observed, f, f + 0.5 * v)

    def _slopes(self, observed: Observed, f: np.ndarray, log_mean: np.ndarray) -> Slopes:
        with np.errstate(over="ignore"):
            mean = np.exp(log_mean)
        value = observed.y * f - mean - gammaln(observed.y + 1.0)
        return Slopes(value, observed.y - mean, mean)

    def third_ratio(self, observed: Observed, f: np.ndarray) -> np.ndarray:
        return np.full_like(f, -1.0)

    def moments(self, f: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):
            mean = np.exp(f)
        return mean, mean

    def distribution(self, y: np.ndarray, f: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        whole = np.floor(np.maximum(y, 0.0))
        return np.where(y < 0, 0.0, pdtr(whole, self.moments(f, None)[0]))

    def draw(
        self, f: np.ndarray, random: np.random.RandomState, trials: np.ndarray | None = None
    ) -> np.ndarray:
        mean = np.minimum(self.moments(f, None)[0], LARGEST_MEAN)
        return np.asarray(random.poisson(mean), float)


@stored
@dataclass(frozen=True)
class NegativeBinomialLikelihood(CountLikelihood):
    """The likelihood of counts with the mean m = exp(f) and the variance m + m^2 / r.

    The smaller r, the more the counts spread around their mean; with a large r they are Poisson.
    """

    r: float

    name = "negbinomial"

    @property
    def theta(self) -> np.ndarray:
        return np.log([self.r])

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return ("dispersion",)

    def with_theta(self, theta: np.ndarray) -> NegativeBinomialLikelihood:
        return replace(self, r=float(np.exp(theta)[0]))

    def as_dict(self) -> dict[str, Any]:
        return {"r": self.r}

    def slopes(self, observed: Observed, f: np.ndarray) -> Slopes:
        y, r, log_r = observed.y, self.r, np.log(self.r)
        p = expit(f - log_r)
        ways = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
        value = ways - y * np.logaddexp(0.0, log_r - f) - r * np.logaddexp(0.0, f - log_r)
        return Slopes(value, y - (y + r) * p, (y + r) * p * expit(log_r - f))

    def third_ratio(self, observed: Observed, f: np.ndarray) -> np.ndarray:
        return np.asarray(np.tanh(0.5 * (f - np.log(self.r))))

    def parameter_slopes(self, observed: Observed, f: np.ndarray) -> ParameterSlopes:
        y, r, log_r = observed.y, self.r, np.log(self.r)
        p, q = expit(f - log_r), expit(log_r - f)
        log_share = -np.logaddexp(0.0, f - log_r)
        value = r * (digamma(y + r) - digamma(r) + log_share + 1.0) - (y + r) * q
        first = -r * p + (y + r) * p * q
        curvature = p * q * (r - (y + r) * (q - p))
        return ParameterSlopes(value[:, None], first[:, None], curvature[:, None])

    def moments(self, f: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):
            mean = np.exp(f)
            return mean, mean + np.square(mean) / self.r

    def distribution(self, y: np.ndarray, f: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        whole = np.floor(np.maximum(y, 0.0))
        inside = betainc(self.r, whole + 1.0, expit(np.log(self.r) - f))
        return np.where(y < 0, 0.0, inside)

    def draw(
        self, f: np.ndarray, random: np.random.RandomState, trials: np.ndarray | None = None
    ) -> np.ndarray:
        mean = np.minimum(self.moments(f, None)[0], LARGEST_MEAN)
        rate = mean * random.gamma(self.r, 1.0 / self.r, f.shape)
        return np.asarray(random.poisson(np.minimum(rate, LARGEST_MEAN)), float)
