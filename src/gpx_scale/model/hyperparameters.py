"""Hyperparameters: immutable, packed as logarithms, with priors and bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.features import Features
from ..data.inputs import InputRows, Preprocessor
from ..errors import InputError
from ..kernels.kernel import Kernel
from ..likelihoods.likelihood import GaussianLikelihood, Likelihood
from ..runtime.arguments import LARGEST_SQUARE, moderate, real_array
from ..runtime.state import must, stored
from .weight_prior import WeightPrior, variances

# The largest logarithm of a hyperparameter: its square has to be a number of float64.
LARGEST_LOGARITHM = math.log(LARGEST_SQUARE)
# The standard deviations of the Gaussian priors on the logarithms, for each kind of parameter. The
# priors are weak; they keep a search away from directions in which the likelihood is flat. That of
# a weight's variance is weaker still, since the variance of an irrelevant feature should be near 0.
PRIOR_SD = {
    "theta1": 3.0,
    "theta2": 2.0,
    "shape": 2.0,
    "sigma": 3.0,
    "variance": 6.0,
    "dispersion": 2.0,
    "degrees": 1.0,
}
# A search may multiply or divide the value that it starts from by at most exp of this number.
HALF_WIDTH = {
    "theta1": math.log(1e6),
    "theta2": math.log(1e5),
    "shape": math.log(1e3),
    "sigma": math.log(1e3),
    "variance": math.log(1e6),
    "dispersion": math.log(1e4),
    # Below two degrees of freedom, y has no variance.
    "degrees": math.log(1.9),
}


@stored
@dataclass(frozen=True)
class Hyperparameters:
    """The prior of the weights and the likelihood, with all of their parameters.

    `theta` packs the logarithms of the parameters: those of the kernel, the variances of weights
    that have priors of their own, sigma_w, sigma_y.
    """

    weight_prior: WeightPrior
    likelihood: Likelihood

    @classmethod
    def of(cls, kernel: Kernel, sigma_w: float, sigma_y: float) -> Hyperparameters:
        """Return hyperparameters of the paper's model: a kernel for all weights, Gaussian noise."""
        return cls(WeightPrior.of(kernel, sigma_w), GaussianLikelihood(sigma_y))

    def with_kernel(self, kernel: Kernel) -> Hyperparameters:
        """Return the model in which all weights share this kernel, with the same noise."""
        return Hyperparameters(WeightPrior.of(kernel, self.sigma_w), self.likelihood)

    @property
    def kernel(self) -> Kernel:
        """Return the kernel of the weights that vary."""
        return self.weight_prior.kernel

    @property
    def sigma_w(self) -> float:
        """Return the standard deviation of the noise of the weights."""
        return self.weight_prior.sigma_w

    @property
    def sigma_y(self) -> float:
        """Return the standard deviation of the Gaussian noise of the target, 0 without it."""
        return self.likelihood.noise_sd

    @property
    def theta(self) -> np.ndarray:
        """Return the logarithms of all parameters;  (t,)."""
        return np.concatenate([self.weight_prior.theta, self.likelihood.theta])

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        """Return the kind of each entry of `theta`."""
        return self.weight_prior.parameter_kinds + self.likelihood.parameter_kinds

    @property
    def is_length_scale(self) -> np.ndarray:
        """Return which entries of `theta` are logarithms of squared length scales;  (t,)."""
        return np.array([kind == "theta2" for kind in self.parameter_kinds])

    def with_theta(self, theta: np.ndarray) -> Hyperparameters:
        """Return these hyperparameters with other values, given as logarithms;  (t,)."""
        theta = real_array(theta)
        sizes = np.abs(theta[theta != -np.inf])
        if theta.shape != self.theta.shape or not (sizes <= LARGEST_LOGARITHM).all():
            raise InputError(
                f"theta={theta!r} does not fit the model. Give {self.theta.size} logarithms "
                f"({', '.join(self.names)}) between -{LARGEST_LOGARITHM:.0f} and "
                f"{LARGEST_LOGARITHM:.0f}."
            )
        cut = self.weight_prior.theta.size
        return Hyperparameters(
            self.weight_prior.with_theta(theta[:cut]), self.likelihood.with_theta(theta[cut:])
        )

    def with_sigma_y(self, sigma_y: float) -> Hyperparameters:
        """Return these hyperparameters with other Gaussian noise."""
        return replace(self, likelihood=GaussianLikelihood(sigma_y))

    @property
    def names(self) -> list[str]:
        """Return a name for each entry of `theta`; the entries of a vector are numbered."""
        return [*self.weight_prior.names, *self.likelihood.as_dict()]

    @property
    def held(self) -> np.ndarray:
        """Return which entries of `theta` are not searched for, because others do what they do."""
        none = np.zeros(self.likelihood.theta.size, bool)
        return np.concatenate([self.weight_prior.held, none])

    def as_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""
        return {**self.weight_prior.as_dict(), **self.likelihood.as_dict()}

    def noise(self, rows: InputRows) -> np.ndarray:
        """Return D_i = (sigma_y^2 + noise_i^2 + sigma_w^2 |z_i|^2) / weight_i;  (n,)."""
        D, columns = self.noise_of_new(rows.Z), rows.columns
        if columns.noise is not None:
            D += columns.noise**2
        if columns.sample_weight is not None:
            D /= columns.sample_weight
        return D

    def noise_of_new(self, Z: Features) -> np.ndarray:
        """Return sigma_y^2 + sigma_w^2 |z|^2, the D of rows that count once;  (n, d) -> (n,)."""
        return self.sigma_y**2 + variances(self.sigma_w**2, Z)

    def noise_gradient(self, rows: InputRows) -> np.ndarray:
        """Return the derivatives of D by log sigma_w and those of the likelihood;  (n, 1 + s).

        Only that of Gaussian noise is in D.
        """
        along_w = 2.0 * self.sigma_w**2 * rows.Z.squared_norms()
        along_others = np.full((len(rows), self.likelihood.theta.size), 2.0 * self.sigma_y**2)
        along = np.column_stack([along_w, along_others])
        weight = rows.columns.sample_weight
        return along if weight is None else along / weight[:, None]

    def must_fit(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless all values are finite and the kernel takes these inputs."""
        kernel = self.kernel
        alike = kernel.input_kind == preprocessor.transforms.input_kind
        must(alike, "its kernel takes another input than the model")
        moderate(self.sigma_w, "sigma_w", zero=True)
        self.likelihood.must_be_moderate()
        self.weight_prior.must_fit(preprocessor.n_weights)
        for term in self.weight_prior.terms:
            alike = term.kernel.is_constant or term.kernel.input_kind == kernel.input_kind
            must(alike, "its kernels take other inputs")
            must(np.isfinite(term.kernel.theta).all(), "a kernel has no hyperparameters")
            if kernel.input_kind == "vectors" and not preprocessor.sparse_x:
                # This raises an error if theta2 has another number of entries than x has columns.
                term.kernel.prepare(np.zeros((1, preprocessor.n_x)))


@dataclass(frozen=True)
class HyperparameterPrior:
    """The prior of the hyperparameters: independent Gaussians on their logarithms, with bounds.

    The `centre` is where the fit starts. Parameters that are `held` stay there. All arrays are
    (t,); none are held by default.
    """

    centre: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    held: np.ndarray | bool = False

    @classmethod
    def around(cls, hyperparameters: Hyperparameters) -> HyperparameterPrior:
        """Return the prior that is centred at given hyperparameters."""
        half_width = np.array([HALF_WIDTH[kind] for kind in hyperparameters.parameter_kinds])
        sd = np.array([PRIOR_SD[kind] for kind in hyperparameters.parameter_kinds])
        return cls(
            hyperparameters.theta,
            sd,
            hyperparameters.theta - half_width,
            hyperparameters.theta + half_width,
            hyperparameters.held,
        )

    def within(self, low: np.ndarray, high: np.ndarray) -> HyperparameterPrior:
        """Return this prior with the tighter of its own and these bounds;  (t,), (t,)."""
        return replace(self, low=np.maximum(self.low, low), high=np.minimum(self.high, high))

    @property
    def free(self) -> np.ndarray:
        """Return which entries are estimated;  (t,). A logarithm of -inf (sigma_w = 0) is not."""
        free: np.ndarray = np.isfinite(self.centre) & ~np.asarray(self.held)
        return free

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the largest logarithms;  (t,), (t,)."""
        return self.low, self.high

    def value_and_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log density up to a constant, and its gradient;  (t,) -> (), (t,)."""
        gradient = np.zeros_like(theta)
        scaled = (theta[self.free] - self.centre[self.free]) / self.sd[self.free]
        gradient[self.free] = -scaled / self.sd[self.free]
        return -0.5 * float(scaled @ scaled), gradient
