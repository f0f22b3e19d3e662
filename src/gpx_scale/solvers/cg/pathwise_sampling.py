"""Draws of the prior as functions, by random Fourier features, and of the posterior by Matheron's rule.

    g_l(x) = sqrt(v / F) sum_f  a_fl cos(omega_f.x) + b_fl sin(omega_f.x),     a, b ~ N(0, 1),   omega ~ the kernel's spectrum

Every path draws frequencies of its own, so second moments are those of the kernel without bias; the d functions of a path
share them. A path of the posterior is w_s(x) = g_s(x) + E[w(x)] - k(x, X) diag(C^-1 y_s) Z, y_s the prior path's own data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2

from ...data.features import Features
from ...data.inputs import Preprocessor, TrainingRows
from ...kernels.kernel import Kernel
from ...model.hyperparameters import Hyperparameters
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_numbers, stored

FEATURES = 512  # frequencies of one path
CONFIDENCE = 0.99  # that the deviation of one query from samples is not below the exact one


@stored
@dataclass(frozen=True)
class PriorPath:
    """One draw of g = (g_1 .. g_d): `components` are (frequencies (F, p), amplitudes (2 F, d))."""

    components: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def draw(cls, kernel: Any, p: int, d: int, random: np.random.RandomState) -> PriorPath:
        components = []
        for frequencies, variance in kernel.sample_frequencies(p, FEATURES, random):
            amplitudes = np.sqrt(variance / FEATURES) * random.standard_normal((2 * FEATURES, d))
            components.append((frequencies, amplitudes.astype(np.float32)))
        return cls(components)

    def __call__(self, x: Any, session: Session) -> np.ndarray:
        """g(x_i);  (n, p) -> (n, d);  n F sines and cosines."""

        def one(rows: slice) -> np.ndarray:
            waves = [
                (self._waves(x[rows], frequencies), amplitudes)
                for frequencies, amplitudes in self.components
            ]
            return sum(wave @ amplitudes for wave, amplitudes in waves)

        return np.concatenate(session.executor.map(one, slices(len(x), 1024))).astype(float)

    def must_fit(self, kernel: Kernel, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless this is a path of this kernel, with as many columns of X and weights."""
        one_frequency = kernel.sample_frequencies(preprocessor.n_x, 1, np.random.RandomState(0))
        all_there = len(self.components) == len(one_frequency)
        must(all_there, "a path has another number of components than its kernel")
        for frequencies, amplitudes in self.components:
            count, single = len(frequencies), (np.float32,)
            must_be_numbers(frequencies, (count, preprocessor.n_x), "the frequencies of a path")
            shape = 2 * count, preprocessor.n_weights
            must_be_numbers(amplitudes, shape, "the amplitudes of a path", single)

    def along(self, x: Any, Z: Features, session: Session) -> np.ndarray:
        """z_i . g(x_i), through (Z a^T), so that a sparse Z stays sparse;  (n, p), (n, d) -> (n,)."""

        def one(rows: slice) -> np.ndarray:
            waves = [
                (self._waves(x[rows], frequencies), amplitudes)
                for frequencies, amplitudes in self.components
            ]
            return sum(
                np.einsum("ij,ij->i", wave, Z[rows].right_multiply(amplitudes.T))
                for wave, amplitudes in waves
            )

        return np.concatenate(session.executor.map(one, slices(len(x), 1024))).astype(float)

    @staticmethod
    def _waves(x: Any, frequencies: np.ndarray) -> np.ndarray:
        """Cosines, then sines;  (n, p), (F, p) -> (n, 2 F)."""
        phase = x.right_multiply(frequencies.T) if isinstance(x, Features) else x @ frequencies.T
        phase = phase.astype(np.float32)  # sines of float32 are five times faster
        return np.hstack([np.cos(phase), np.sin(phase)])


def prior_paths(
    data: TrainingRows,
    hyperparameters: Hyperparameters,
    randoms: list[np.random.RandomState],
    session: Session,
) -> tuple[list[PriorPath], np.ndarray]:
    """A path of the prior from each generator, and what it would have shown as y at the training rows;  (n, len(randoms))."""
    x, noise = hyperparameters.kernel.vectors(data.x), np.sqrt(hyperparameters.noise(data.Z))
    paths, seen = [], np.empty((len(data), len(randoms)))
    for s, random in enumerate(randoms):
        path = PriorPath.draw(hyperparameters.kernel, x.shape[1], data.Z.shape[1], random)
        seen[:, s] = path.along(x, data.Z, session) + noise * random.standard_normal(len(data))
        paths.append(path)
    return paths, seen


def path_bytes(d: int) -> int:
    """Of one path: its amplitudes, in float64 while they are drawn and in float32 after."""
    return 12 * 2 * FEATURES * d


def inflation(samples: int) -> float:
    """What a variance estimated from that many draws is multiplied by, to be below the true one with 1 - CONFIDENCE only."""
    return float(samples / chi2.ppf(1.0 - CONFIDENCE, samples))
