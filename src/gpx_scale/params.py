"""Hyperparameters: frozen, packed to logs, with weak priors and bounds around where they start."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .errors import InputError

LARGEST_PARAMETER, LARGEST_SQUARE = 1e100, 1e300  # hyperparameters, and those that are squares themselves
LOGARITHMS = math.log(LARGEST_SQUARE)
COUNTABLE = 10**15

# Weak Gaussian priors on the logs: they keep L-BFGS off the flat directions. Bounds: the start times or over exp(half).
PRIOR_SD = {"theta1": 3.0, "theta2": 2.0, "shape": 2.0, "sigma": 3.0}
HALF_WIDTH = {"theta1": math.log(1e6), "theta2": math.log(1e5), "shape": math.log(1e3), "sigma": math.log(1e3)}


@dataclass(frozen=True)
class Params:
    """The kernel with its parameters, and the two noise deviations. `theta` packs the logs: kernel, sigma_w, sigma_y."""

    kernel: Any
    sigma_w: float
    sigma_y: float

    @property
    def theta(self) -> np.ndarray:
        with np.errstate(divide="ignore"):  # sigma_w = 0 is allowed: its log is -inf, and stays so
            return np.concatenate([self.kernel.theta, np.log([self.sigma_w, self.sigma_y])])

    @property
    def labels(self) -> tuple[str, ...]:
        return (*self.kernel.labels, "sigma", "sigma")

    def with_theta(self, theta: np.ndarray) -> Params:
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
class Prior:
    """Independent Gaussians on the free logs, centred where the fit starts, and the bounds around them."""

    centre: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def around(cls, params: Params) -> Prior:
        half_width = np.array([HALF_WIDTH[label] for label in params.labels])
        sd = np.array([PRIOR_SD[label] for label in params.labels])
        return cls(params.theta, sd, params.theta - half_width, params.theta + half_width)

    def within(self, low: np.ndarray, high: np.ndarray) -> Prior:
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


def positive(value: Any, name: str, *, zero: bool = False) -> float:
    """A finite number above 0 (or at least 0), as a float; anything else is an InputError that names it."""
    number = _number(value)
    if not (0.0 <= number < math.inf if zero else 0.0 < number < math.inf):
        raise InputError(f"{name}={value!r}: give a finite number {'of at least' if zero else 'above'} 0")
    return number


def moderate(value: Any, name: str, *, zero: bool = False, most: float = LARGEST_PARAMETER) -> float:
    """The same of a hyperparameter, between `most` and its inverse, so that squares and products stay in float64."""
    number = positive(value, name, zero=zero)
    if not 1.0 / most <= number <= most and not (zero and number == 0.0):
        raise InputError(f"{name}={value!r}: give a number between {1.0 / most:.0e} and {most:.0e}")
    return number


def probability(value: Any, name: str) -> float:
    """A number between 0 and 1, neither of them."""
    number = _number(value)
    if not 0.0 < number < 1.0:
        raise InputError(f"{name}={value!r}: give a probability between 0 and 1, such as 0.95")
    return number


def _number(value: Any) -> float:
    """NaN for what is none."""
    try:
        return math.nan if np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def real_array(value: Any) -> np.ndarray:
    """Real numbers as float64; empty where there are none such."""
    try:
        with np.errstate(over="ignore"):
            return np.empty(0) if np.iscomplexobj(value) else np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return np.empty(0)


def whole(value: Any, name: str, *, least: int) -> int:
    """A whole number of at least `least`, and no more than can be counted; anything else is an InputError that names it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= COUNTABLE:
        raise InputError(f"{name}={value!r}: give a whole number of at least {least}, up to {COUNTABLE:.0e}")
    return int(value)


def flag(value: Any, name: str) -> bool:
    """True or False, or 1 or 0."""
    if not isinstance(value, bool | np.bool_ | int | np.integer) or value not in (0, 1):
        raise InputError(f"{name}={value!r}: give True or False")
    return bool(value)


def one_of(value: Any, known: tuple[Any, ...], name: str) -> Any:
    """One of a few values, compared by type too; anything else is an InputError that names them."""
    if isinstance(value, np.bool_ | int | np.integer) and value in (0, 1):
        value = bool(value)
    if not any(type(value) is type(one) and value == one for one in known):
        raise InputError(f"{name}={value!r}: give {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")
    return value
