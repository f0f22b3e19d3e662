"""Fits on a Dask cluster."""

from .regressor import DaskGPXRegressor

__all__ = ["DaskGPXRegressor"]
