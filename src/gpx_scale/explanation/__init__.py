"""Explanations: the weights of each sample, their contributions to its prediction, uncertainty."""

from .class_explanation import ClassExplanation, in_order
from .explanation import Explanation, Reason, joined
from .intervals import Interval, between, dense

__all__ = [
    "ClassExplanation",
    "Explanation",
    "Interval",
    "Reason",
    "between",
    "dense",
    "in_order",
    "joined",
]
