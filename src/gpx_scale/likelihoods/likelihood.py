"""The contract of all likelihoods, and Gaussian noise.

A likelihood is p(y | f) of each row, whose latent function is f = z . w(x) plus an offset. Where it
is Gaussian, the posterior is known in closed form. For any other, Newton's method
(`solvers.newton`) maximises log p(y | f), or its expectation under N(f, v), and needs derivatives
by f of both.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from ..data.row_columns import RowColumns
from ..runtime.arguments import moderate
from ..runtime.state import must, stored

# Expectations of a log-likelihood are sums over so many Gauss-Hermite nodes: gradients of the bound
# are then off by 4e-6.
SMOOTHING_NODES = 20
# Moments and probabilities of a new y are sums over so many.
PREDICTION_NODES = 32
# An f beyond this number is as good as infinite: exp of it is near the largest number of float64.
LARGEST_LATENT = 700.0
# A quantile is looked for in an interval that is doubled and then halved so often: to 2^-50 of it.
QUANTILE_DOUBLINGS = 40
QUANTILE_BISECTIONS = 60


@dataclass(frozen=True)
class Observed:
    """The targets of n rows, and the numbers of trials where the likelihood has them;  (n,) each.

    Every row counts once unless there are weights.
    """

    y: np.ndarray
    trials: np.ndarray | None = None
    weight: np.ndarray | None = None

    @classmethod
    def of(cls, y: np.ndarray, columns: RowColumns) -> Observed:
        """Return the targets of rows with what is known of each of them."""
        return cls(y, columns.trials, columns.sample_weight)

    def at_nodes(self) -> Observed:
        """Return the targets as columns, for latent values that have one column for each node."""
        trials = None if self.trials is None else self.trials[:, None]
        return Observed(self.y[:, None], trials)

    def weighted(self, A: np.ndarray) -> np.ndarray:
        """Return numbers of the rows times their weights;  (n, ...) -> (n, ...)."""
        if self.weight is None:
            return A
        weighted: np.ndarray = (A.T * self.weight).T
        return weighted


@dataclass(frozen=True)
class Slopes:
    """The log-likelihood of each row and its derivatives by f.

    value : log p(y | f), or its expectation.
    first : its derivative.
    curvature : minus its second derivative, W.
    """

    value: np.ndarray
    first: np.ndarray
    curvature: np.ndarray

    def weighted(self, observed: Observed) -> Slopes:
        """Return these of rows that count as often as their weights say."""
        parts = self.value, self.first, self.curvature
        return Slopes(*(observed.weighted(part) for part in parts))


@dataclass(frozen=True)
class ParameterSlopes:
    """The derivatives of log p(y | f), of its slope and of W, by log parameters;  (n, s) each."""

    value: np.ndarray
    first: np.ndarray
    curvature: np.ndarray


# How the posterior of f is approximated: by the Gaussian with the largest lower bound of log p(y),
# or by the curvature at its mode.
VARIATIONAL = "vi"
LAPLACE = "laplace"


class Likelihood(abc.ABC):
    """A likelihood p(y | f) at given parameters, whose logarithms are `theta`.

    Attributes
    ----------
    name : str
        The name by which a user asks for it.
    is_gaussian : bool
        Whether the posterior is known in closed form.
    standardizes_target : bool
        Whether y may be centred and scaled.
    is_log_concave : bool
        Whether W is never negative. Otherwise, `fisher` takes its place.
    has_exponential_mean : bool
        Whether the mean of y is exp(f), so that expectations over a wide N(f, v) leave float64.
    is_whole : bool
        Whether y is a whole number of at least 0.
    noise_sd : float
        The standard deviation of Gaussian noise, 0 for other likelihoods.
    """

    name: ClassVar[str]
    is_gaussian: ClassVar[bool] = False
    standardizes_target: ClassVar[bool] = False
    is_log_concave: ClassVar[bool] = True
    has_exponential_mean: ClassVar[bool] = False
    is_whole: ClassVar[bool] = False

    @property
    def noise_sd(self) -> float:
        """Return the standard deviation of Gaussian noise, 0 for other likelihoods."""
        return 0.0

    def reason_against(self, observed: Observed) -> str | None:
        """Return why y cannot be of this likelihood, as a sentence, None if it can."""
        return None

    def best(self, observed: Observed) -> np.ndarray:
        """Return the f at which log p(y | f) is largest;  (n,)."""
        return observed.y

    def centre(self, observed: Observed, offset: np.ndarray) -> float:
        """Return the constant f at which the mean of y is that of the rows, given their offset.

        It is 0 where y itself is centred.
        """
        return 0.0

    @property
    def is_variational(self) -> bool:
        """Return whether the likelihood is smoothed by the variance of the posterior."""
        return False

    @property
    @abc.abstractmethod
    def theta(self) -> np.ndarray:
        """Return the logarithms of the parameters, (s,)."""

    @property
    @abc.abstractmethod
    def parameter_kinds(self) -> tuple[str, ...]:
        """Return the kind of each entry of `theta`, which decides its prior and its bounds."""

    @abc.abstractmethod
    def with_theta(self, theta: np.ndarray) -> Likelihood:
        """Return this likelihood with other parameters;  (s,)."""

    @abc.abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""

    @abc.abstractmethod
    def slopes(self, observed: Observed, f: np.ndarray) -> Slopes:
        """Return log p(y | f) and its first two derivatives;  (n,), or (n, k) at several f."""

    @abc.abstractmethod
    def third_ratio(self, observed: Observed, f: np.ndarray) -> np.ndarray:
        """Return the third derivative of log p(y | f) over W;  (n,) -> (n,)."""

    @abc.abstractmethod
    def parameter_slopes(self, observed: Observed, f: np.ndarray) -> ParameterSlopes:
        """Return the derivatives by the logarithms of the parameters;  (n,) -> (n, s) each."""

    @abc.abstractmethod
    def moments(self, f: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of y given f, of any shape."""

    @abc.abstractmethod
    def distribution(self, y: np.ndarray, f: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        """Return P(Y <= y | f), of any shape."""

    @abc.abstractmethod
    def draw(
        self, f: np.ndarray, random: np.random.RandomState, trials: np.ndarray | None = None
    ) -> np.ndarray:
        """Return one draw of y for each entry of f, which may have any shape."""

    @property
    def latent_functions(self) -> int:
        """Return how many latent functions Newton's method has to find, 0 for Gaussian noise."""
        return 0 if self.is_gaussian else 1

    def latent_targets(self, observed: Observed) -> list[Observed]:
        """Return the targets of each latent function; there is one, unless there are classes."""
        return [observed]

    def fisher(self, observed: Observed) -> np.ndarray:
        """Return the expectation of W over y, for a likelihood that is not log-concave;  (n,)."""
        raise TypeError(f"{type(self).__name__} is log-concave, so W itself is used.")

    def fisher_slopes(self, observed: Observed) -> np.ndarray:
        """Return the derivatives of `fisher` by the logarithms of the parameters;  (n, s)."""
        raise TypeError(f"{type(self).__name__} is log-concave, so W itself is used.")

    def smoothed(self, observed: Observed, f: np.ndarray, v: np.ndarray) -> Slopes:
        """Return the expectations of `slopes` over N(f, v), by Gauss-Hermite nodes;  (n,), (n,)."""
        nodes, weights = gauss_hermite(SMOOTHING_NODES)
        at = self.slopes(observed.at_nodes(), f[:, None] + np.sqrt(v)[:, None] * nodes)
        return Slopes(at.value @ weights, at.first @ weights, at.curvature @ weights)

    def smoothed_parameter_slopes(
        self, observed: Observed, f: np.ndarray, v: np.ndarray
    ) -> np.ndarray:
        """Return the expectation of the derivatives of log p over N(f, v);  (n,) -> (n, s)."""
        total = np.zeros((len(f), self.theta.size))
        for node, weight in zip(*gauss_hermite(SMOOTHING_NODES), strict=True):
            total += weight * self.parameter_slopes(observed, f + np.sqrt(v) * node).value
        return total

    def predict(
        self, mean: np.ndarray, variance: np.ndarray, trials: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of a new y, given those of f;  (m,), (m,) -> (m,), (m,)."""
        nodes, weights = gauss_hermite(PREDICTION_NODES)
        at_nodes = None if trials is None else trials[:, None]
        means, variances = self.moments(
            mean[:, None] + np.sqrt(variance)[:, None] * nodes, at_nodes
        )
        centre = means @ weights
        spread = np.square(means - centre[:, None]) @ weights
        return centre, variances @ weights + spread

    def quantile(
        self,
        level: float,
        mean: np.ndarray,
        variance: np.ndarray,
        trials: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the quantile of a new y whose f is N(mean, variance);  (m,), (m,) -> (m,).

        It is found by bisection of P(Y <= y), the sum over Gauss-Hermite nodes. That of a whole
        number is the least one at which P(Y <= y) reaches the level.
        """
        nodes, weights = gauss_hermite(PREDICTION_NODES)
        f = mean[:, None] + np.sqrt(variance)[:, None] * nodes
        at_nodes = None if trials is None else trials[:, None]

        def reached(y: np.ndarray) -> np.ndarray:
            total = self.distribution(y[:, None], f, at_nodes) @ weights
            return np.asarray(total >= level)

        centre, spread = self.predict(mean, variance, trials)
        reach = np.sqrt(spread) + 1.0
        low, high = centre - reach, centre + reach
        if self.is_whole:
            low, high, reach = np.full_like(mean, -1.0), np.ceil(high), np.ceil(reach)
        for _ in range(QUANTILE_DOUBLINGS):
            above, below = reached(low), reached(high)
            if below.all() and not above.any():
                break
            reach = 2.0 * reach
            low, high = np.where(above, low - reach, low), np.where(below, high, high + reach)
        for _ in range(QUANTILE_BISECTIONS):
            middle = 0.5 * (low + high)
            middle = np.floor(middle) if self.is_whole else middle
            low, high = np.where(reached(middle), (low, middle), (middle, high))
        return np.asarray(high)

    def predictive_log_density(
        self, observed: Observed, mean: np.ndarray, variance: np.ndarray
    ) -> np.ndarray:
        """Return log p(y) of new rows whose f is N(mean, variance);  (m,), (m,) -> (m,)."""
        nodes, weights = gauss_hermite(PREDICTION_NODES)
        f = mean[:, None] + np.sqrt(variance)[:, None] * nodes
        logs: np.ndarray = logsumexp(self.slopes(observed.at_nodes(), f).value, 1, weights)
        return logs

    def must_be_moderate(self) -> None:
        """Raise a ValueError unless float64 can represent the squares of the parameters."""
        for name, value in self.as_dict().items():
            moderate(value, name)


@dataclass(frozen=True)
class LogConcaveLikelihood(Likelihood):
    """A likelihood whose posterior is found by variational inference, or by Laplace's method."""

    inference: str = field(default=VARIATIONAL, kw_only=True)

    @property
    def is_variational(self) -> bool:
        return self.inference == VARIATIONAL

    def must_be_moderate(self) -> None:
        super().must_be_moderate()
        must(self.inference in (VARIATIONAL, LAPLACE), "its inference is not known")


def reason_against_counts(y: np.ndarray) -> str | None:
    """Return why these are no counts, as a sentence, None if they are."""
    if (y < 0).any():
        return f"y has a negative count, {y.min():g}. Give counts of at least 0."
    if (y != np.floor(y)).any():
        return f"y has {y[y != np.floor(y)][0]:g}, which is no count. Give whole numbers."
    return None


@cache
def gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights with which sums are expectations over N(0, 1);  (k,), (k,)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


@stored
@dataclass(frozen=True)
class GaussianLikelihood(Likelihood):
    """The likelihood of Gaussian noise, y = f + N(0, sigma_y^2)."""

    sigma_y: float

    name = "gaussian"
    is_gaussian = True
    standardizes_target = True

    @property
    def noise_sd(self) -> float:
        return self.sigma_y

    @property
    def theta(self) -> np.ndarray:
        return np.log([self.sigma_y])

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return ("sigma",)

    def with_theta(self, theta: np.ndarray) -> GaussianLikelihood:
        return replace(self, sigma_y=float(np.exp(theta)[0]))

    def as_dict(self) -> dict[str, Any]:
        return {"sigma_y": self.sigma_y}

    def slopes(self, observed: Observed, f: np.ndarray) -> Slopes:
        missed, precision = observed.y - f, self.sigma_y**-2
        value = -0.5 * (np.square(missed) * precision + np.log(2 * np.pi / precision))
        return Slopes(value, missed * precision, np.full(f.shape, precision))

    def third_ratio(self, observed: Observed, f: np.ndarray) -> np.ndarray:
        return np.zeros_like(f)

    def parameter_slopes(self, observed: Observed, f: np.ndarray) -> ParameterSlopes:
        missed, precision = observed.y - f, self.sigma_y**-2
        first, curvature = -2.0 * missed * precision, np.full_like(f, -2.0 * precision)
        value = np.square(missed) * precision - 1.0
        return ParameterSlopes(value[:, None], first[:, None], curvature[:, None])

    def moments(self, f: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return f, np.full_like(f, self.sigma_y**2)

    def predict(
        self, mean: np.ndarray, variance: np.ndarray, trials: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return mean, variance + self.sigma_y**2

    def distribution(self, y: np.ndarray, f: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return np.asarray(ndtr((y - f) / self.sigma_y))

    def quantile(
        self,
        level: float,
        mean: np.ndarray,
        variance: np.ndarray,
        trials: np.ndarray | None = None,
    ) -> np.ndarray:
        return np.asarray(mean + np.sqrt(variance + self.sigma_y**2) * ndtri(level))

    def draw(
        self, f: np.ndarray, random: np.random.RandomState, trials: np.ndarray | None = None
    ) -> np.ndarray:
        return f + self.sigma_y * random.standard_normal(f.shape)
