"""Pictures of explanations (extra [plot], matplotlib).

Vermilion adds to the prediction, blue takes away, and deviations say how sure that is.
"""

from .overview import plot_dependence, plot_map, plot_summary
from .sample import plot_contributions, plot_image, plot_images
from .text import plot_text

__all__ = [
    "plot_contributions",
    "plot_dependence",
    "plot_image",
    "plot_images",
    "plot_map",
    "plot_summary",
    "plot_text",
]
