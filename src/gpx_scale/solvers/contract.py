"""What a solver plans, evaluates and returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Evidence:
    """log p(y) of the full model without prior, its gradient by `Hyperparameters.theta`, and what came with it for free.

    `deviation`: the standard error of `value` where it is an estimate, 0 where it is exact.
    """

    value: float
    gradient: np.ndarray | None
    alpha: np.ndarray
    rows: int
    inverse_diagonal: np.ndarray | None = None
    information: np.ndarray | None = None
    deviation: float = 0.0

    def leave_one_out(self) -> np.ndarray:
        """y_i minus its prediction from all other rows: alpha_i / (C^-1)_ii;  (n,)."""
        assert self.inverse_diagonal is not None
        return self.alpha / self.inverse_diagonal

    def leave_one_out_std(self) -> np.ndarray:
        """Deviation of that prediction, noise included: (C^-1)_ii^-1/2;  (n,)."""
        assert self.inverse_diagonal is not None
        return self.inverse_diagonal**-0.5
