"""A sum of terms S = sum_t K_t o Z_t Z_t^T in the form of compiled loops over tiles.

Z_t = Z Lambda_t^1/2 has the features of a term, scaled by the square roots of their variances.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..kernels.kernel import Profile
from .kernel_tiles import FormedTiles


@dataclass(frozen=True)
class TermTiles(FormedTiles):
    """The sum of the matrices of several kernels, each with features of its own, (n, n).

    `features` are the scaled features of each term, (n, d_t), in the dtype of the profiles. The
    derivatives of one term follow those of another: 3 + p_t sums of its kernel, and d_t by the
    logarithms of the variances of its columns.
    """

    profiles: tuple[Profile, ...]
    features: tuple[np.ndarray, ...]
    n_jobs: int

    def __len__(self) -> int:
        return len(self.features[0])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.profiles[0].left.dtype

    @property
    def _widths(self) -> list[tuple[int, int]]:
        """Return the numbers of derivatives of each term: of its kernel, and of its variances."""
        pairs = zip(self.profiles, self.features, strict=True)
        return [(3 + profile.points.shape[1], Z.shape[1]) for profile, Z in pairs]

    @property
    def width(self) -> int:
        return sum(map(sum, self._widths))

    def apart(self, sums: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the derivatives of each term by its kernel and by its variances.

        (width, ...) -> (3 + p_t, ...), (d_t, ...) for each term.
        """
        found, at = [], 0
        for of_kernel, of_variances in self._widths:
            cut, end = at + of_kernel, at + of_kernel + of_variances
            found.append((sums[at:cut], sums[cut:end]))
            at = end
        return found

    @cached_property
    def _kernel(self) -> tuple[np.ndarray, ...]:
        numbers = [
            np.array([getattr(profile, name) for profile in self.profiles], self.dtype)
            for name in ("shape", "scale", "near")
        ]
        families = np.array([profile.family for profile in self.profiles])
        by_column = np.array([profile.by_column for profile in self.profiles])
        x_starts = _starts([profile.points for profile in self.profiles])
        return families, *numbers, by_column, x_starts, _starts(self.features)

    @cached_property
    def _points(self) -> tuple[np.ndarray, ...]:
        names = ("left", "right", "points")
        return tuple(
            np.ascontiguousarray(np.hstack([getattr(profile, name) for profile in self.profiles]))
            for name in names
        )

    @property
    def _by_column(self) -> bool:
        return False  # `_kernel` says it for every term.

    @cached_property
    def _features(self) -> np.ndarray:
        return np.ascontiguousarray(np.hstack(self.features))

    @property
    def _squares(self) -> np.ndarray:
        return np.empty((0, 0), self.dtype)  # Terms compute them strip by strip.


def _starts(arrays: Any) -> np.ndarray:
    """Return where the columns of each array begin if they stand side by side, and the end."""
    return np.cumsum([0, *(array.shape[1] for array in arrays)])
