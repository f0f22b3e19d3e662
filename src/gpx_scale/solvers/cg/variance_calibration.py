"""How much variances from few rows exceed the exact ones: training rows, taken as new, whose exact variance is solved for
along with y, of their y and (of a sparse Z) of the weight of a feature that they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ...data.features import SparseFeatures
from ...data.inputs import TrainingRows
from ...linalg.covariance import Covariance
from ...model.hyperparameters import Hyperparameters
from ...model.weight_prior import cross
from ...runtime.parallel import Executor, evenly_spaced
from ..neighborhood import LocalVariance
from ..posterior import Parts
from ..sparse_weights import LocalWords, Queries, moments_at

PILOTS = 4  # of each kind


class Asked(NamedTuple):
    """The weights among the pilots: training rows, and of each the feature (one entry of 1 a row)."""

    rows: np.ndarray
    matrix: sp.csr_array


@dataclass(frozen=True)
class CalibrationRows:
    """The rows, and features of some rows (a pattern with one entry each) where Z is sparse."""

    data: TrainingRows
    params: Hyperparameters
    rows: np.ndarray
    words: SparseFeatures | None

    @classmethod
    def draw(cls, data: TrainingRows, params: Hyperparameters, random: np.random.RandomState) -> CalibrationRows:
        rows = random.permutation(len(data))[:PILOTS]
        if not isinstance(data.Z, SparseFeatures):
            return cls(data, params, rows, None)
        having = np.flatnonzero(data.Z.counts)
        some = having[evenly_spaced(PILOTS, having.size)]
        picked = [data.Z.pointers[i] + random.randint(data.Z.counts[i]) for i in some]
        pointers = np.zeros(len(data) + 1, int)
        pointers[some + 1] = 1
        return cls(
            data, params, rows, SparseFeatures(np.cumsum(pointers), data.Z.indices[picked], np.ones(some.size), data.Z.d)
        )

    def __len__(self) -> int:
        return self.rows.size + (0 if self.words is None else self.words.indices.size)

    @property
    def scale(self) -> np.ndarray:
        """What the solves' tolerance is relative to: the noise of y, then sigma_w^2 and a thousandth of k(x, x);  (c,)."""
        noise = self.params.noise(self.data.Z.squared_norms())[self.rows]
        if self.words is None:
            return noise
        weights = self.params.sigma_w**2 + 1e-3 * self.params.kernel.diagonal(self.params.kernel.prepare(self.data.x))
        return np.concatenate([noise, weights[self.words.entry_rows]])

    @property
    def asked(self) -> Asked:
        if self.words is None:
            return Asked(self.rows[:0], sp.csr_array((0, 1)))
        rows = self.words.entry_rows
        return Asked(rows, self.words[rows].matrix)

    def right_hand_sides(self, C: Covariance) -> np.ndarray:
        """b of each: S's column of the row, or k(x_i, X) o z_l;  (n, c)."""
        columns = C.columns(self.rows)
        if self.words is None:
            return columns
        kernel, points = self.params.kernel, self.params.kernel.prepare(self.data.x)
        K = cross(kernel, points[self.words.entry_rows], points, C.executor)
        one = np.zeros((self.words.d, self.words.indices.size))
        one[self.words.indices, np.arange(self.words.indices.size)] = 1.0
        Z = self.data.Z.right_multiply(one)
        return np.hstack([columns, K.T * Z])

    def excess(self, near: LocalVariance, known: np.ndarray, executor: Executor) -> list[tuple[float, float]]:
        """Median and largest share by which deviations exceed the exact ones with known b.C^-1 b: of y, then of weights."""
        count = self.rows.size
        points, diagonal = self.params.kernel.prepare(self.data.x), near.shared_rows(executor).diagonal[self.rows]
        K = cross(self.params.kernel, points[self.rows], points, executor)
        less = near.reductions(K, False, False, [self.data.Z[self.rows]], executor).along[0]
        noise = self.params.noise(self.data.Z[self.rows].squared_norms())
        found = [_excess(diagonal - less, np.maximum(diagonal - known[:count], noise))]
        if self.words is not None and len(self) > count:
            parts = Parts(self.data, self.params, np.zeros(len(self.data)))
            reduce = LocalWords(Covariance(self.data, self.params, executor))
            _, reduced = moments_at(parts, Queries(self.data.x, self.words), reduce, executor, 2**26)
            floor = self.params.sigma_w**2
            prior = parts.prior(self.data.x)[self.words.entry_rows]
            found.append(_excess(prior - reduced + floor, np.maximum(prior - known[count:], 0.0) + floor))
        return found


def _excess(variances: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Median and largest share by which deviations exceed exact ones (or a little more, where the solve is not at its end)."""
    excess = np.sqrt(np.maximum(variances / np.maximum(exact, 1e-300), 1.0)) - 1.0
    return float(np.median(excess)), float(excess.max())
