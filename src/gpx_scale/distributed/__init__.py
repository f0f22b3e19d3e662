"""Fits on a Dask cluster (needs the extra `[dask]`)."""

try:
    import dask.array  # noqa: F401
    import distributed  # noqa: F401
except ImportError:  # pragma: no cover - the tests have Dask
    raise ImportError(
        "gpx_scale.distributed needs Dask. Install it with: pip install 'gpx-scale[dask]'"
    ) from None

from .regressor import DaskGPXRegressor

__all__ = ["DaskGPXRegressor"]
