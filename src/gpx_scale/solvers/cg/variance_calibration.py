"""How much variances from few rows exceed the exact ones: training rows, taken as new, whose exact variance is solved for
along with y, of their y and (of a sparse Z) of the weight of a feature that they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ...data.features import SparseFeatures
from ...data.inputs import TrainingRows
from ...linalg.covariance import Covariance, TiledCovariance
from ...model.hyperparameters import Hyperparameters
from ...runtime.parallel import evenly_spaced
from ...runtime.session import Session
from ...runtime.state import stored
from ..neighborhood import LocalVariance
from ..posterior import MomentRequest
from ..sparse_weights import Entries, LocalWords, entry_moments

CALIBRATION_ROWS = 4  # of each kind


@stored
class Asked(NamedTuple):
    """The weights whose variance is checked: training rows, and of each the feature (one entry of 1 per row)."""

    rows: np.ndarray
    matrix: sp.csr_array


@dataclass(frozen=True)
class CalibrationRows:
    """The rows, and features of some rows (a pattern with one entry each) where Z is sparse."""

    training: TrainingRows
    hyperparameters: Hyperparameters
    rows: np.ndarray
    words: SparseFeatures | None

    @classmethod
    def draw(
        cls, data: TrainingRows, hyperparameters: Hyperparameters, random: np.random.RandomState
    ) -> CalibrationRows:
        rows = random.permutation(len(data))[:CALIBRATION_ROWS]
        if not data.Z.is_sparse:
            return cls(data, hyperparameters, rows, None)
        assert isinstance(data.Z, SparseFeatures)
        having = np.flatnonzero(data.Z.counts)
        some = having[evenly_spaced(CALIBRATION_ROWS, having.size)]
        picked = [data.Z.pointers[i] + random.randint(data.Z.counts[i]) for i in some]
        pointers = np.zeros(len(data) + 1, int)
        pointers[some + 1] = 1
        return cls(
            data,
            hyperparameters,
            rows,
            SparseFeatures(
                np.cumsum(pointers), data.Z.indices[picked], np.ones(some.size), data.Z.d
            ),
        )

    def __len__(self) -> int:
        return self.rows.size + (0 if self.words is None else self.words.indices.size)

    @property
    def scale(self) -> np.ndarray:
        """What the solves' tolerance is relative to: the noise of y, then sigma_w^2 and a thousandth of k(x, x);  (c,)."""
        noise = self.hyperparameters.noise(self.training.Z)[self.rows]
        if self.words is None:
            return noise
        prior = self.hyperparameters.weight_prior
        weights = prior.sigma_w**2 + 1e-3 * prior.variance(self.training.x)
        return np.concatenate([noise, weights[self.words.entry_rows]])

    @property
    def asked(self) -> Asked:
        if self.words is None:
            return Asked(self.rows[:0], sp.csr_array((0, 1)))
        rows = self.words.entry_rows
        return Asked(rows, self.words[rows].matrix)

    def right_hand_sides(self, C: Covariance) -> np.ndarray:
        """Return b of each: S's column of the row, or k(x_i, X) o z_l;  (n, c)."""
        columns = C.columns(self.rows)
        if self.words is None:
            return columns
        K = self.hyperparameters.weight_prior.cross(
            self.training.x[self.words.entry_rows], self.training, C.session
        ).K
        one = np.zeros((self.words.d, self.words.indices.size))
        one[self.words.indices, np.arange(self.words.indices.size)] = 1.0
        Z = self.training.Z.right_multiply(one)
        return np.hstack([columns, K.T * Z])

    def excess(
        self, near: LocalVariance, known: np.ndarray, session: Session
    ) -> list[tuple[float, float]]:
        """Return median and largest share by which deviations exceed the exact ones with known b.C^-1 b: of y, of weights."""
        count, prior, rows = self.rows.size, self.hyperparameters.weight_prior, self.training
        diagonal = near.shared_rows(session).diagonal[self.rows]
        cross = prior.cross(rows.x[self.rows], rows, session)
        less = near.reduction(cross, MomentRequest(along=[rows.Z[self.rows]]), session).along[0]
        noise = self.hyperparameters.noise(rows.Z[self.rows])
        found = [_excess(diagonal - less, np.maximum(diagonal - known[:count], noise))]
        if self.words is not None and len(self) > count:
            reduction = LocalWords(TiledCovariance(rows, self.hyperparameters, session))
            entries = Entries(rows.x, self.words)
            _, reduced = entry_moments(
                prior, rows, np.zeros(len(rows)), entries, reduction, session
            )
            floor = prior.sigma_w**2
            variance = prior.variance(rows.x)[self.words.entry_rows]
            found.append(
                _excess(
                    variance - reduced + floor, np.maximum(variance - known[count:], 0.0) + floor
                )
            )
        return found


def _excess(variances: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Median and largest share by which deviations exceed exact ones (or a little more, where the solve is not at its end)."""
    excess = np.sqrt(np.maximum(variances / np.maximum(exact, 1e-300), 1.0)) - 1.0
    return float(np.median(excess)), float(excess.max())
