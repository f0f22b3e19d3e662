"""The prior of the weights: where Z and the kernel meet."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.features import Features
from ..runtime.parallel import TILE, Executor, slices


def cross(kernel: Any, a: Any, b: Any, executor: Executor, Z: tuple[Features, Features] | None = None) -> np.ndarray:
    """k(a_i, b_j) for points a, b, times <z_i, z_j> where Z = (Z of a, Z of b) is given;  (m, n) in parallel tiles."""
    out = np.empty((len(a), len(b)))

    def fill(tile: tuple[slice, slice]) -> None:
        rows, cols = tile
        block = (
            np.ones((rows.stop - rows.start, cols.stop - cols.start)) if Z is None else Z[0][rows].inner_products(Z[1][cols])
        )
        kernel.multiply(a[rows], b[cols], block)
        out[tile] = block

    executor.map(fill, [(r, c) for r in slices(len(a), TILE) for c in slices(len(b), 4 * TILE)])
    return out
