"""Draws of whole functions: of the prior by random Fourier features, of the posterior from these.

A draw of g = (g_1 .. g_d), which can be evaluated at any x, is called a path:

    g_l(x) = sqrt(v / F) sum_f  a_fl cos(omega_f.x) + b_fl sin(omega_f.x)

with a, b ~ N(0, 1), frequencies omega drawn from the kernel's spectrum, and v = k(x, x). Every path
draws its own frequencies, so that second moments are those of the kernel without bias. The d
functions of a path share the frequencies. Where weights have priors of their own, a path is the sum
of a draw of each term, whose amplitudes are scaled by the standard deviations of the weights. By
Matheron's rule, a path of the posterior is

    w_s(x) = g_s(x) + E[w(x)] - Cov[w(x), f] C^-1 y_s

where y_s are the data that the prior path g_s would have shown, noise included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2

from ...data.features import Features
from ...data.inputs import Preprocessor, TrainingRows
from ...model.hyperparameters import Hyperparameters
from ...model.weight_prior import WeightPrior
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_numbers, stored

# A path has this many frequencies.
FREQUENCIES = 512
# A standard deviation from samples is not below the exact one with this probability, for each
# query.
NOT_BELOW_PROBABILITY = 0.99
# Waves of this many rows are computed at once by a worker.
ROWS_AT_ONCE = 1024


@stored
@dataclass(frozen=True)
class PriorPath:
    """One draw of g = (g_1 .. g_d) from the prior, as a function.

    It is a sum over `components`, each with frequencies (F, p) and amplitudes (2 F, d) of the
    cosines and then the sines. A constant has one frequency, which is 0.
    """

    components: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def draw(cls, prior: WeightPrior, p: int, d: int, random: np.random.RandomState) -> PriorPath:
        """Return a draw of d functions of p inputs."""
        components = []
        for term in prior.active:
            scales = 1.0 if term.weight_variances is None else np.sqrt(term.weight_variances)
            for frequencies, variance in term.kernel.sample_frequencies(p, FREQUENCIES, random):
                count = len(frequencies)
                amplitudes = np.sqrt(variance / count) * random.standard_normal((2 * count, d))
                components.append((frequencies, (scales * amplitudes).astype(np.float32)))
        return cls(components)

    def __call__(self, x: Any, session: Session) -> np.ndarray:
        """Return g(x_i);  (n, p) -> (n, d);  n F sines and cosines."""

        def one(rows: slice) -> np.ndarray:
            total: np.ndarray = sum(
                self._waves(x[rows], frequencies) @ amplitudes
                for frequencies, amplitudes in self.components
            )
            return total

        parts = session.executor.map(one, slices(len(x), ROWS_AT_ONCE))
        return np.concatenate(parts).astype(float)

    def must_fit(self, prior: WeightPrior, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless this is a path of this prior, these columns and weights."""
        random = np.random.RandomState(0)
        of_terms = (
            term.kernel.sample_frequencies(preprocessor.n_x, 1, random) for term in prior.active
        )
        all_there = len(self.components) == sum(map(len, of_terms))
        must(all_there, "a path has another number of components than its kernels")
        for frequencies, amplitudes in self.components:
            count, single = len(frequencies), (np.float32,)
            must_be_numbers(frequencies, (count, preprocessor.n_x), "the frequencies of a path")
            shape = 2 * count, preprocessor.n_weights
            must_be_numbers(amplitudes, shape, "the amplitudes of a path", single)

    def along(self, x: Any, Z: Features, session: Session) -> np.ndarray:
        """Return z_i . g(x_i);  (n, p), (n, d) -> (n,).

        Z is multiplied by the amplitudes first, so that a sparse Z stays sparse.
        """

        def one(rows: slice) -> np.ndarray:
            total: np.ndarray = sum(
                np.einsum(
                    "ij,ij->i",
                    self._waves(x[rows], frequencies),
                    Z[rows].right_multiply(amplitudes.T),
                )
                for frequencies, amplitudes in self.components
            )
            return total

        parts = session.executor.map(one, slices(len(x), ROWS_AT_ONCE))
        return np.concatenate(parts).astype(float)

    @staticmethod
    def _waves(x: Any, frequencies: np.ndarray) -> np.ndarray:
        """Return cos(omega_f.x_i), then sin(omega_f.x_i);  (n, p), (F, p) -> (n, 2 F)."""
        phase = x.right_multiply(frequencies.T) if isinstance(x, Features) else x @ frequencies.T
        # Sines in float32 are five times faster.
        phase = phase.astype(np.float32)
        return np.hstack([np.cos(phase), np.sin(phase)])


def prior_paths(
    data: TrainingRows,
    hyperparameters: Hyperparameters,
    randoms: list[np.random.RandomState],
    session: Session,
) -> tuple[list[PriorPath], np.ndarray]:
    """Return a path of the prior for each random state, and the y that it shows.

    The latter are at the training rows, with the noise of y and of the weights;  (n, len(randoms)).
    """
    x, noise = hyperparameters.kernel.vectors(data.x), np.sqrt(hyperparameters.noise(data))
    paths, seen = [], np.empty((len(data), len(randoms)))
    for s, random in enumerate(randoms):
        path = PriorPath.draw(hyperparameters.weight_prior, x.shape[1], data.Z.shape[1], random)
        seen[:, s] = path.along(x, data.Z, session) + noise * random.standard_normal(len(data))
        paths.append(path)
    return paths, seen


def path_bytes(d: int, terms: int) -> int:
    """Return the bytes of one path: its amplitudes, drawn in float64 and kept in float32."""
    return 12 * 2 * FREQUENCIES * d * terms


def inflation(samples: int) -> float:
    """Return the factor for a variance that is estimated from this many draws.

    The product is not below the true variance with NOT_BELOW_PROBABILITY.
    """
    return float(samples / chi2.ppf(1.0 - NOT_BELOW_PROBABILITY, samples))
