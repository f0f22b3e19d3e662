"""Hyperparameters: frozen, packed as logarithms, with priors and bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import InputError
from ..runtime.arguments import LARGEST_SQUARE, real_array

LOGARITHMS = math.log(LARGEST_SQUARE)
# Weak Gaussian priors on the logs: they keep L-BFGS off the flat directions. Bounds: the start times or over exp(half).
PRIOR_SD = {"theta1": 3.0, "theta2": 2.0, "shape": 2.0, "sigma": 3.0}
HALF_WIDTH = {"theta1": math.log(1e6), "theta2": math.log(1e5), "shape": math.log(1e3), "sigma": math.log(1e3)}


@dataclass(frozen=True)
class Hyperparameters:
    """The kernel with its parameters, and the two noise deviations. `theta` packs the logs: kernel, sigma_w, sigma_y."""

    kernel: Any
    sigma_w: float
    sigma_y: float

    @property
    def theta(self) -> np.ndarray:
        with np.errstate(divide="ignore"):  # sigma_w = 0 is allowed: its log is -inf, and stays so
            return np.concatenate([self.kernel.theta, np.log([self.sigma_w, self.sigma_y])])

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return (*self.kernel.parameter_kinds, "sigma", "sigma")

    def with_theta(self, theta: np.ndarray) -> Hyperparameters:
        theta = real_array(theta)
        if theta.shape != self.theta.shape or not (np.abs(theta[theta != -np.inf]) <= LOGARITHMS).all():
            raise InputError(
                f"theta must hold {self.theta.size} logarithms ({', '.join(self.names)}), none beyond {LOGARITHMS:.0f}, got "
                f"{theta!r}"
            )
        sigma_w, sigma_y = np.exp(theta[-2:]).tolist()
        return replace(self, kernel=self.kernel.with_theta(theta[:-2]), sigma_w=sigma_w, sigma_y=sigma_y)

    @property
    def names(self) -> list[str]:
        """One name an entry of `theta`; entries of a vector are numbered."""
        return [
            f"{name}[{k}]" if np.ndim(value) else name for name, value in self.as_dict().items() for k in range(np.size(value))
        ]

    def as_dict(self) -> dict[str, Any]:
        return {**self.kernel.as_dict(), "sigma_w": self.sigma_w, "sigma_y": self.sigma_y}

    def noise(self, z_squared: np.ndarray) -> np.ndarray:
        """D_i = sigma_y^2 + sigma_w^2 |z_i|^2;  (n,) -> (n,)."""
        return self.sigma_y**2 + self.sigma_w**2 * z_squared


@dataclass(frozen=True)
class HyperparameterPrior:
    """Independent Gaussians on the free logs, centred where the fit starts, and the bounds around them."""

    centre: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def around(cls, params: Hyperparameters) -> HyperparameterPrior:
        half_width = np.array([HALF_WIDTH[label] for label in params.parameter_kinds])
        sd = np.array([PRIOR_SD[label] for label in params.parameter_kinds])
        return cls(params.theta, sd, params.theta - half_width, params.theta + half_width)

    def within(self, low: np.ndarray, high: np.ndarray) -> HyperparameterPrior:
        """The same where these bounds hold too;  (t,), (t,)."""
        return replace(self, low=np.maximum(self.low, low), high=np.minimum(self.high, high))

    @property
    def free(self) -> np.ndarray:
        """Which entries are estimated: a log of -inf (sigma_w = 0) is held."""
        return np.isfinite(self.centre)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return self.low, self.high

    def value_and_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """log density up to a constant, and its gradient;  (t,) -> (), (t,)."""
        gradient = np.zeros_like(theta)
        scaled = (theta[self.free] - self.centre[self.free]) / self.sd[self.free]
        gradient[self.free] = -scaled / self.sd[self.free]
        return -0.5 * float(scaled @ scaled), gradient
