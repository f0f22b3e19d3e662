"""What every likelihood answers, and Gaussian noise.

A solver sees a likelihood as *sites*: rows of a target that is f plus independent Gaussian noise, target_i = f_i + N(0, v_i).
For Gaussian noise that is what the model says; for any other likelihood it is Newton's approximation at a point.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..runtime.arguments import moderate
from ..runtime.state import stored


@dataclass(frozen=True)
class Sites:
    """A Gaussian stand-in for a likelihood at n rows: target_i = f_i + N(0, variance_i).

    `target` (n,), `variance` (n,), and `variance_gradient` (n, s), by the s parameters of the likelihood.
    """

    target: np.ndarray
    variance: np.ndarray
    variance_gradient: np.ndarray


class Likelihood(abc.ABC):
    """p(y | f) at given parameters, whose logarithms are `theta`."""

    is_gaussian: ClassVar[bool] = False  # Whether the posterior is known in closed form.
    standardizes_target: ClassVar[bool] = False  # Whether y may be centred and scaled.

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
        """Return this likelihood at other parameters;  (s,)."""

    @abc.abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""

    @abc.abstractmethod
    def sites(self, y: np.ndarray) -> Sites:
        """Return the sites of rows with these y;  (n,); n flops."""

    @abc.abstractmethod
    def predict(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of a new y where f has these;  (m,), (m,) -> (m,), (m,)."""

    @abc.abstractmethod
    def draw(self, f: np.ndarray, random: np.random.RandomState) -> np.ndarray:
        """Return a draw of y at each f, of any shape."""

    def must_be_moderate(self) -> None:
        """Raise a ValueError unless squares and products of the parameters stay in float64."""
        for name, value in self.as_dict().items():
            moderate(value, name)


@stored
@dataclass(frozen=True)
class GaussianLikelihood(Likelihood):
    """y = f + N(0, sigma_y^2)."""

    sigma_y: float

    is_gaussian = True
    standardizes_target = True

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

    def sites(self, y: np.ndarray) -> Sites:
        variance = np.full(len(y), self.sigma_y**2)
        return Sites(y, variance, 2.0 * variance[:, None])

    def predict(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return mean, variance + self.sigma_y**2

    def draw(self, f: np.ndarray, random: np.random.RandomState) -> np.ndarray:
        return f + self.sigma_y * random.standard_normal(f.shape)
