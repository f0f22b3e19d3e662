"""Plots of explanations, by matplotlib (needs the extra `[plot]`).

Vermilion stands for what adds to a prediction and blue for what takes away from it. Error bars,
lines and bands show 95% intervals, unless another level is asked for.
"""

from .effects import plot_effect
from .maps import plot_map
from .overview import plot_dependence, plot_summary
from .sample import plot_contributions, plot_image, plot_images
from .text import plot_text

__all__ = [
    "plot_contributions",
    "plot_dependence",
    "plot_effect",
    "plot_image",
    "plot_images",
    "plot_map",
    "plot_summary",
    "plot_text",
]
