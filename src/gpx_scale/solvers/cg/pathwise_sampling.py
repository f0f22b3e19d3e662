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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2

from ...data.features import Features
from ...data.inputs import Preprocessor, TrainingRows
from ...kernels.kernel import Kernel
from ...model.hyperparameters import Hyperparameters
from ...model.weight_prior import WeightPrior
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_numbers, stored

# A path has this many frequencies, which the kernels of weights with priors of their own share, but
# each of them has at least a few.
FREQUENCIES = 512
LEAST_FREQUENCIES = 64
# A standard deviation from samples is not below the exact one with this probability, for each
# query.
NOT_BELOW_PROBABILITY = 0.99
# Waves of this many rows are computed at once by a worker.
ROWS_AT_ONCE = 1024


@stored
@dataclass(frozen=True)
class PriorPath:
    """One draw of g = (g_1 .. g_d) from the prior, as a function.

    It is a sum over `components`, each with frequencies (F, p) and amplitudes (2 F, c) of the
    cosines and then the sines. A constant has one frequency, which is 0. `columns` are the c
    weights that have each component; None stands for all d weights in all of them.
    """

    components: list[tuple[np.ndarray, np.ndarray]]
    columns: list[np.ndarray] | None = None

    @classmethod
    def draw(cls, prior: WeightPrior, p: int, d: int, random: np.random.RandomState) -> PriorPath:
        """Return a draw of d functions of p inputs."""
        if prior.is_shared:
            return cls(_components(prior.kernel, p, d, FREQUENCIES, random))
        components, columns = [], []
        for term in prior.active:
            own = term.columns
            for one in _components(term.kernel, p, own.size, _frequencies(prior), random):
                frequencies, amplitudes = one
                scales = np.sqrt(term.variances[own]).astype(np.float32)
                components.append((frequencies, scales * amplitudes))
                columns.append(own)
        return cls(components, columns)

    def __call__(self, x: Any, d: int, session: Session) -> np.ndarray:
        """Return g(x_i) of d weights;  (n, p) -> (n, d);  n F sines and cosines."""

        def one(rows: slice) -> np.ndarray:
            found = (
                self._waves(x[rows], frequencies) @ amplitudes
                for frequencies, amplitudes in self.components
            )
            if self.columns is None:
                whole: np.ndarray = sum(found)
                return whole
            total = np.zeros((rows.stop - rows.start, d))
            for columns, values in zip(self.columns, found, strict=True):
                total[:, columns] += values
            return total

        parts = session.executor.map(one, slices(len(x), ROWS_AT_ONCE))
        return np.concatenate(parts).astype(float)

    def must_fit(self, prior: WeightPrior, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless this is a path of this prior, these columns and weights."""
        random = np.random.RandomState(0)
        expected = [
            np.arange(preprocessor.n_weights) if prior.is_shared else term.columns
            for term in prior.active
            for _ in term.kernel.sample_frequencies(preprocessor.n_x, 1, random)
        ]
        all_there = len(self.components) == len(expected)
        must(all_there, "a path has another number of components than its kernels")
        must((self.columns is None) == prior.is_shared, "a path has the weights of another prior")
        found = expected if self.columns is None else self.columns
        same = len(found) == len(expected) and all(map(np.array_equal, found, expected))
        must(same, "the components of a path are those of other weights")
        for (frequencies, amplitudes), columns in zip(self.components, expected, strict=True):
            count, single = len(frequencies), (np.float32,)
            must_be_numbers(frequencies, (count, preprocessor.n_x), "the frequencies of a path")
            shape = 2 * count, columns.size
            must_be_numbers(amplitudes, shape, "the amplitudes of a path", single)

    def along(self, x: Any, Z: Features, session: Session) -> np.ndarray:
        """Return z_i . g(x_i);  (n, p), (n, d) -> (n,).

        Z is multiplied by the amplitudes first, so that a sparse Z stays sparse.
        """
        all_of_them = [None] * len(self.components)
        own: Sequence[np.ndarray | None] = all_of_them if self.columns is None else self.columns

        def one(rows: slice) -> np.ndarray:
            total: np.ndarray = sum(
                np.einsum(
                    "ij,ij->i",
                    self._waves(x[rows], frequencies),
                    _of_columns(Z[rows], columns).right_multiply(amplitudes.T),
                )
                for (frequencies, amplitudes), columns in zip(self.components, own, strict=True)
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


def path_bytes(prior: WeightPrior, d: int) -> int:
    """Return the bytes of one path: its amplitudes, drawn in float64 and kept in float32."""
    if prior.is_shared:
        return 12 * 2 * FREQUENCIES * d
    return 12 * 2 * _frequencies(prior) * sum(term.columns.size for term in prior.active)


def _frequencies(prior: WeightPrior) -> int:
    """Return the number of frequencies of each kernel of weights with priors of their own."""
    varying = sum(not term.kernel.is_constant for term in prior.active)
    return max(LEAST_FREQUENCIES, FREQUENCIES // max(1, varying))


def _components(
    kernel: Kernel, p: int, d: int, count: int, random: np.random.RandomState
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the frequencies and amplitudes of a draw of d functions with one kernel."""
    components = []
    for frequencies, variance in kernel.sample_frequencies(p, count, random):
        size = len(frequencies)
        amplitudes = np.sqrt(variance / size) * random.standard_normal((2 * size, d))
        components.append((frequencies, amplitudes.astype(np.float32)))
    return components


def _of_columns(Z: Features, columns: np.ndarray | None) -> Features:
    """Return some columns of Z, or all of them if that is None."""
    return Z if columns is None else Z.at_columns(columns)


def inflation(samples: int) -> float:
    """Return the factor for a variance that is estimated from this many draws.

    The product is not below the true variance with NOT_BELOW_PROBABILITY.
    """
    return float(samples / chi2.ppf(1.0 - NOT_BELOW_PROBABILITY, samples))
