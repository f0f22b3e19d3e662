"""Explanations: the weights of each sample, their contributions to its prediction, uncertainty."""

from .explanation import Explanation, Reason, joined
from .intervals import Interval, between, dense

__all__ = ["Explanation", "Interval", "Reason", "between", "dense", "joined"]
