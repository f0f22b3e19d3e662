"""A measurement of how much standard deviations from a part of the rows exceed the exact ones.

A few training rows are treated as new rows. Their exact variances are solved for together with y:
those of y, and for a sparse Z also those of the weight of one feature of each row.
"""

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
from ..local_variance import LocalVariance
from ..posterior import MomentRequest
from ..sparse_weights import Entries, LocalEntryReduction, entry_moments

# The variances of y are compared at this many rows, and for a sparse Z those of as many weights.
CALIBRATION_ROWS = 4
# Tolerances of weights are relative to sigma_w^2 plus this share of the prior variance.
PRIOR_SHARE_OF_SCALE = 1e-3
# An exact variance of 0 is replaced by this number, so that ratios are finite.
SMALLEST_VARIANCE = 1e-300


@stored
class Asked(NamedTuple):
    """The weights whose variance is checked: training rows, and one feature of each as a 1."""

    rows: np.ndarray
    matrix: sp.csr_array


@dataclass(frozen=True)
class CalibrationRows:
    """The rows whose y is checked, and for a sparse Z the features of some rows.

    `features` is a pattern of the shape of Z, with one entry in each of CALIBRATION_ROWS rows.
    Below, c is the number of all right-hand sides, those of rows and then those of features.
    """

    training: TrainingRows
    hyperparameters: Hyperparameters
    rows: np.ndarray
    features: SparseFeatures | None

    @classmethod
    def draw(
        cls, data: TrainingRows, hyperparameters: Hyperparameters, random: np.random.RandomState
    ) -> CalibrationRows:
        """Return random rows, and for a sparse Z a random feature of each of some rows."""
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
        return self.rows.size + (0 if self.features is None else self.features.indices.size)

    @property
    def scale(self) -> np.ndarray:
        """Return the variances that the tolerances of the solves are relative to;  (c,).

        For y it is the noise, for weights it is sigma_w^2 and a thousandth of k(x, x).
        """
        noise: np.ndarray = self.hyperparameters.noise(self.training)[self.rows]
        if self.features is None:
            return noise
        prior = self.hyperparameters.weight_prior
        variance = prior.variance_at(self.training.x, self.features)
        # A weight without a variance has nothing to solve for.
        weights = prior.sigma_w**2 + PRIOR_SHARE_OF_SCALE * np.where(variance > 0, variance, 1.0)
        return np.concatenate([noise, weights])

    @property
    def asked(self) -> Asked:
        """Return the weights that are checked, which a dense Z has none of."""
        if self.features is None:
            return Asked(self.rows[:0], sp.csr_array((0, 1)))
        rows = self.features.entry_rows
        return Asked(rows, self.features[rows].matrix)

    def right_hand_sides(self, C: Covariance) -> np.ndarray:
        """Return one right-hand side per check;  (n, c).

        It is a column of S for a row, and k(x_i, X) o z_l for a feature.
        """
        columns = C.columns(self.rows)
        if self.features is None:
            return columns
        cross = self.hyperparameters.weight_prior.cross(
            self.training.x[self.features.entry_rows], self.training, C.session
        )
        of_features = cross.along(self.features[self.features.entry_rows])
        return np.hstack([columns, of_features.T])

    def excess(
        self, near: LocalVariance, known: np.ndarray, session: Session
    ) -> list[tuple[float, float]]:
        """Return the median and the largest excess of standard deviations, for y, then for weights.

        `known` are the solved b.C^-1 b, which give the exact variances;  (c,).
        """
        count, prior, rows = self.rows.size, self.hyperparameters.weight_prior, self.training
        diagonal = near.variances_of(self.rows, session)
        cross = prior.cross(rows.x[self.rows], rows, session)
        less = near.reduction(cross, MomentRequest(along=[rows.Z[self.rows]]), session).along[0]
        noise = self.hyperparameters.noise(rows)[self.rows]
        found = [_excess(diagonal - less, np.maximum(diagonal - known[:count], noise))]
        if self.features is not None and len(self) > count:
            reduction = LocalEntryReduction(TiledCovariance(rows, self.hyperparameters, session))
            entries = Entries(rows.x, self.features)
            _, reduced = entry_moments(
                prior, rows, np.zeros(len(rows)), entries, reduction, session
            )
            floor = prior.sigma_w**2
            variance = prior.variance_at(rows.x, self.features)
            found.append(
                _excess(
                    variance - reduced + floor, np.maximum(variance - known[count:], 0.0) + floor
                )
            )
        return found


def _excess(variances: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Return the median and the largest share by which standard deviations exceed the exact ones.

    Solves to a tolerance make exact variances a little too large, so that ratios may be below 1;
    these count as 1.
    """
    ratios = variances / np.maximum(exact, SMALLEST_VARIANCE)
    excess = np.sqrt(np.maximum(ratios, 1.0)) - 1.0
    return float(np.median(excess)), float(excess.max())
