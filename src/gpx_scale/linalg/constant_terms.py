"""The covariance of weights of which some parts are constant: a matrix of low rank more.

    C = V + B B^T,    B = Z Lambda_c^1/2

where V has the noise and all terms that vary with x, and Lambda_c the variances of the constant
parts. No tile has to be formed for B B^T. It is in a product with C, in its derivatives and in the
preconditioner without any error but rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.hyperparameters import Hyperparameters
from .covariance import Covariance


@dataclass(frozen=True)
class CovarianceWithConstants(Covariance):
    """A covariance C = V + B B^T, whose part V (`varying`) has any form."""

    varying: Covariance = None  # type: ignore[assignment]

    @classmethod
    def of(cls, hyperparameters: Hyperparameters, varying: Covariance) -> CovarianceWithConstants:
        """Return the covariance with the constant parts that these hyperparameters have."""
        return cls(varying.rows, hyperparameters, varying.session, varying.dtype, varying)

    @property
    def product_cost(self) -> float:
        return self.varying.product_cost

    def matmul(self, V: np.ndarray) -> np.ndarray:
        """Return C V, with 4 n c flops per constant weight more than the part that varies."""
        B = self.constant_columns
        product: np.ndarray = self.varying.matmul(V) + B @ (B.T @ V)
        return product

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        B = self.constant_columns
        along_columns = ((B.T @ U) * (B.T @ V)).sum(axis=1)
        return self.weight_prior.with_constants(self.varying.contract(U, V), along_columns)

    def tangents(self, v: np.ndarray) -> np.ndarray:
        B = self.constant_columns
        along_columns = (B.T @ v)[:, None] * B.T
        along = self.varying.tangents(v).T
        return np.ascontiguousarray(self.weight_prior.with_constants(along, along_columns).T)
