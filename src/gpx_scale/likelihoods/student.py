"""The likelihood of noise with heavy tails, under which single rows may be far off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import digamma, gammaln, stdtr

from ..runtime.state import stored
from .likelihood import Likelihood, Observed, ParameterSlopes, Slopes


@stored
@dataclass(frozen=True)
class StudentLikelihood(Likelihood):
    """The likelihood of y = f + sigma_y t, where t has Student's distribution with `nu` degrees.

    It is not log-concave: W is negative where a row is farther off than sigma_y nu^1/2.
    """

    sigma_y: float
    nu: float

    name = "student"
    standardizes_target = True
    is_log_concave = False

    @property
    def theta(self) -> np.ndarray:
        return np.log([self.sigma_y, self.nu])

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return ("sigma", "degrees")

    def with_theta(self, theta: np.ndarray) -> StudentLikelihood:
        return StudentLikelihood(*np.exp(theta).tolist())

    def as_dict(self) -> dict[str, Any]:
        return {"sigma_y": self.sigma_y, "nu": self.nu}

    def slopes(self, observed: Observed, f: np.ndarray) -> Slopes:
        nu, missed = self.nu, observed.y - f
        scale = nu * self.sigma_y**2
        total = scale + np.square(missed)
        constant = gammaln(0.5 * (nu + 1)) - gammaln(0.5 * nu) - 0.5 * np.log(np.pi * scale)
        value = constant - 0.5 * (nu + 1) * np.log1p(np.square(missed) / scale)
        curvature = (nu + 1) * (scale - np.square(missed)) / np.square(total)
        return Slopes(value, (nu + 1) * missed / total, curvature)

    def third_ratio(self, observed: Observed, f: np.ndarray) -> np.ndarray:
        missed = observed.y - f
        scale, square = self.nu * self.sigma_y**2, np.square(missed)
        ratio: np.ndarray = 2.0 * missed * (square - 3.0 * scale) / (scale**2 - np.square(square))
        return ratio

    def fisher(self, observed: Observed) -> np.ndarray:
        expected = (self.nu + 1) / ((self.nu + 3) * self.sigma_y**2)
        return np.full(observed.y.shape, expected)

    def fisher_slopes(self, observed: Observed) -> np.ndarray:
        expected = self.fisher(observed)
        by_nu = 2.0 * self.nu / ((self.nu + 3) * (self.nu + 1)) * expected
        return np.column_stack([-2.0 * expected, by_nu])

    def parameter_slopes(self, observed: Observed, f: np.ndarray) -> ParameterSlopes:
        nu, square, missed = self.nu, np.square(observed.y - f), observed.y - f
        scale = nu * self.sigma_y**2
        total = scale + square
        outside = square / total
        by_sigma = (nu + 1) * outside - 1.0
        by_nu = 0.5 * nu * (digamma(0.5 * (nu + 1)) - digamma(0.5 * nu) - np.log1p(square / scale))
        by_nu += 0.5 * ((nu + 1) * outside - 1.0)
        # Both parameters change the scale, by a factor of 2 and of 1; nu + 1 depends on nu alone.
        by_scale = -(nu + 1) * missed * scale / total**2
        first = [2.0 * by_scale, by_scale + nu * missed / total]
        bent = (nu + 1) * scale * (3.0 * square - scale) / total**3
        curvature = [2.0 * bent, bent + nu * (scale - square) / total**2]
        columns = ([by_sigma, by_nu], first, curvature)
        return ParameterSlopes(*(np.column_stack(column) for column in columns))

    def moments(self, f: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return f and the variance, which is infinite with two degrees of freedom or less."""
        if self.nu <= 2.0:
            return f, np.full_like(f, np.inf)
        return f, np.full_like(f, self.sigma_y**2 * self.nu / (self.nu - 2.0))

    def predict(
        self, mean: np.ndarray, variance: np.ndarray, trials: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return mean, variance + self.moments(mean, None)[1]

    def distribution(self, y: np.ndarray, f: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return np.asarray(stdtr(self.nu, (y - f) / self.sigma_y))

    def draw(
        self, f: np.ndarray, random: np.random.RandomState, trials: np.ndarray | None = None
    ) -> np.ndarray:
        return f + self.sigma_y * random.standard_t(self.nu, f.shape)
