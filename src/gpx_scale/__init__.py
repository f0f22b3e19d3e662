"""Gaussian process regression with local explanation (GPX), exact and at scale.

A prediction comes with its reasons: a weight for every readable feature, with its uncertainty.
"""

from . import blocks, compare, datasets, kernels, metrics, plots, report, text
from .data.input_pair import XZ
from .errors import GPXError, GPXWarning, InputError, MemoryLimitError
from .estimator.classifier import GPXClassifier
from .estimator.loading import load
from .estimator.paper import PAPER as _PAPER
from .estimator.regressor import GPXRegressor
from .explanation import Explanation
from .plan import make_plan

__version__ = "0.1.0"

PAPER = _PAPER
"""The model of the paper (Yoshikawa and Iwata), as arguments of `GPXRegressor`.

``GPXRegressor(**PAPER)`` has a Gaussian kernel with one length scale for all columns of X and no
local intercept, whatever the defaults are. ``GPXRegressor(**PAPER | {"ard": True})`` differs from
the paper in one argument.
"""

__all__ = [
    "PAPER",
    "XZ",
    "Explanation",
    "GPXClassifier",
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
