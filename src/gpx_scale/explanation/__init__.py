"""Explanations: the weights of each sample, their contributions to its prediction, uncertainty."""

from .comparisons import SupportingRow, WhatIf, comparison
from .effects import Effect
from .explanation import Explanation, Reason, joined
from .groups import Groups, by_groups
from .importance import Importance
from .intervals import Interval, between, dense

__all__ = [
    "Effect",
    "Explanation",
    "Groups",
    "Importance",
    "Interval",
    "Reason",
    "SupportingRow",
    "WhatIf",
    "between",
    "by_groups",
    "comparison",
    "dense",
    "joined",
]
