"""gpx_scale: Gaussian process regression with local explanation (GPX), a prediction and its reasons, at scale."""

from . import blocks, compare, datasets, kernels, metrics, plots, report, text
from .data.inputs import XZ
from .errors import GPXError, GPXWarning, InputError, MemoryLimitError
from .estimator.regressor import GPXRegressor, load
from .explanation import Explanation
from .plan import make_plan

__version__ = "0.1.0"

__all__ = [
    "XZ",
    "Explanation",
    "GPXError",
    "GPXRegressor",
    "GPXWarning",
    "InputError",
    "MemoryLimitError",
    "blocks",
    "compare",
    "datasets",
    "kernels",
    "load",
    "make_plan",
    "metrics",
    "plots",
    "report",
    "text",
]
