"""The contract of all likelihoods, and Gaussian noise.

A solver sees a likelihood as *sites*: for each row a target that is f plus independent Gaussian
noise, target_i = f_i + N(0, v_i). For Gaussian noise, this is the model itself; for any other
likelihood, it is Newton's approximation at a point.
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
    """A Gaussian approximation of a likelihood at n rows: target_i = f_i + N(0, variance_i).

    `target` and `variance` are (n,). `variance_gradient` (n, s) has the derivatives of the variance
    by the logarithms of the s parameters of the likelihood.
    """

    target: np.ndarray
    variance: np.ndarray
    variance_gradient: np.ndarray


class Likelihood(abc.ABC):
    """A likelihood p(y | f) at given parameters, whose logarithms are `theta`.

    If it `is_gaussian`, the posterior is known in closed form. If it `standardizes_target`, y may
    be centred and scaled.
    """

    is_gaussian: ClassVar[bool] = False
    standardizes_target: ClassVar[bool] = False

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
    def sites(self, y: np.ndarray) -> Sites:
        """Return the sites of rows with these y;  (n,) -> Sites of n rows;  n flops."""

    @abc.abstractmethod
    def predict(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of a new y, given those of f;  (m,), (m,) -> (m,), (m,)."""

    @abc.abstractmethod
    def draw(self, f: np.ndarray, random: np.random.RandomState) -> np.ndarray:
        """Return one draw of y for each entry of f, which may have any shape."""

    def must_be_moderate(self) -> None:
        """Raise a ValueError unless float64 can represent the squares of the parameters."""
        for name, value in self.as_dict().items():
            moderate(value, name)


@stored
@dataclass(frozen=True)
class GaussianLikelihood(Likelihood):
    """The likelihood of Gaussian noise, y = f + N(0, sigma_y^2)."""

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
