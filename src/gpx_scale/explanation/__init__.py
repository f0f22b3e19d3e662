"""Explanations: the weights of each sample, their contributions to its prediction, uncertainty."""

from .class_explanation import ClassExplanation, explanation_of_class, in_order
from .comparisons import SupportingRow, WhatIf, comparison
from .effects import Effect
from .explanation import Explanation, Reason, joined
from .groups import Groups, by_groups
from .importance import Importance
from .intervals import Interval, between, dense
from .latent_explanation import LatentExplanation, explanation_of_counts

__all__ = [
    "ClassExplanation",
    "Effect",
    "Explanation",
    "Groups",
    "Importance",
    "Interval",
    "LatentExplanation",
    "Reason",
    "SupportingRow",
    "WhatIf",
    "between",
    "by_groups",
    "comparison",
    "dense",
    "explanation_of_class",
    "explanation_of_counts",
    "in_order",
    "joined",
]
