"""A sum of terms S = sum_t K_t o Z_t Z_t^T in the form of compiled loops over tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.packed_terms import PackedTerms
from .kernel_tiles import FormedTiles


@dataclass(frozen=True)
class TermTiles(FormedTiles):
    """The sum of the matrices of several kernels, each with features of its own, (n, n)."""

    rows: PackedTerms
    n_jobs: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    @property
    def width(self) -> int:
        return self.rows.width

    @property
    def _kernel(self) -> tuple[np.ndarray, ...]:
        return self.rows.kernel

    @property
    def _points(self) -> tuple[np.ndarray, ...]:
        return self.rows.points

    @property
    def _by_column(self) -> bool:
        return False  # `_kernel` says it for every term.

    @property
    def _features(self) -> np.ndarray:
        return self.rows.Z

    @property
    def _squares(self) -> np.ndarray:
        return np.empty((0, 0), self.dtype)  # Terms compute them strip by strip.
