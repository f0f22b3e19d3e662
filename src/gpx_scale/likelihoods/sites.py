"""The Gaussian problem that has the same posterior as an approximated likelihood."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..data.inputs import TrainingRows
from ..data.row_columns import RowColumns
from ..runtime.state import must, must_be_numbers, stored


@stored
@dataclass(frozen=True)
class Sites:
    """For each row a target and a variance, such that target_i = f_i + N(0, variance_i);  (n,)."""

    target: np.ndarray
    variance: np.ndarray

    def applied(self, rows: TrainingRows) -> TrainingRows:
        """Return rows whose targets and known noise are those of the sites."""
        columns = RowColumns(noise=np.sqrt(self.variance))
        return replace(rows, y=self.target, columns=columns)

    def must_fit(self, n: int) -> None:
        """Raise a ValueError unless these sites, read from a file, belong to n rows."""
        must_be_numbers(self.target, (n,), "the targets of the sites")
        must_be_numbers(self.variance, (n,), "the variances of the sites")
        must((self.variance > 0).all(), "a site has no variance")
