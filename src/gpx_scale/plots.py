"""Pictures of explanations (extra [plot], matplotlib): red adds to the prediction, blue takes away, bars are one deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .explanation import Explanation

RED, BLUE, GREY = "#c0392b", "#2166ac", "#555555"  # told apart by every common form of colour blindness


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says which extra brings it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'gpx-scale[plot]'") from error
    return plt


def plot_contributions(explanation: Explanation, i: int = 0, *, ax: Any = None, k: int = 20) -> Any:
    """The paper's figure 1: the k largest contributions to sample i as bars with error bars, feature values in labels."""
    reasons = explanation.top(i, k)[::-1]
    if ax is None:
        _, ax = pyplot().subplots(figsize=(6.0, 1.2 + 0.3 * max(1, len(reasons))), layout="constrained")
    values = np.array([reason.contribution for reason in reasons])
    deviations = None
    if explanation.contributions_std is not None:
        deviations = [reason.contribution_std for reason in reasons]
    ax.barh(
        np.arange(len(reasons)),
        values,
        xerr=deviations,
        color=np.where(values >= 0, RED, BLUE),
        error_kw={"ecolor": GREY, "elinewidth": 1.2, "capsize": 2.5},
    )
    ax.set_yticks(np.arange(len(reasons)), [f"{reason.feature} = {reason.value:.4g}" for reason in reasons])
    ax.axvline(0.0, color="black", linewidth=0.8)
    ax.set_xlabel("contribution to the prediction (error bar: one standard deviation)")
    spread = "" if explanation.prediction_std is None else f" ± {explanation.prediction_std[i]:.3g}"
    ax.set_title(f"prediction {explanation.prediction[i]:.4g}{spread}, base value {explanation.base_values[i]:.4g}")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_image(explanation: Explanation, i: int, shape: tuple[int, int], *, ax: Any, limit: float | None = None) -> Any:
    """Contributions of sample i as an image; `limit` is the value of the strongest colour; returns the image."""
    values = explanation.contributions[i].reshape(shape)
    limit = float(np.abs(values).max()) if limit is None else limit
    ax.set(xticks=[], yticks=[])
    return ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
