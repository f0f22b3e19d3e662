"""What all plots share: axes, colour maps, labels, and rows and columns of explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..explanation import Explanation, between
from ..numbers_as_text import as_text, decimals
from ..palette import ColourMap
from ..runtime.files import import_optional

# Longer names are cut, so that labels leave space for the plot.
MAX_LABEL_CHARACTERS = 32


def pyplot() -> Any:
    """Return matplotlib.pyplot, or raise an error that names the extra to install."""
    return import_optional("matplotlib.pyplot", "plot")


def axes_of(ax: Any, width: float, height: float) -> Any:
    """Return the given axes, or those of a new figure of this size in inches."""
    return pyplot().subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def colour_map(colours: ColourMap) -> Any:
    """Return a colour map of `palette` in a form that matplotlib takes as `cmap`."""
    if isinstance(colours, str):
        return colours
    colors = import_optional("matplotlib.colors", "plot")
    return colors.LinearSegmentedColormap.from_list("gpx_scale", colours)


def label_of(name: Any, longest: int = MAX_LABEL_CHARACTERS) -> str:
    """Return a name for matplotlib to draw: in one line, not too long, without mathematics."""
    text = " ".join(str(name).split())
    if len(text) > longest:
        text = f"{text[: longest - 10]}…{text[-9:]}"
    return text.replace("$", r"\$")


def label_with_value(name: Any, value: float | str, units: Mapping[str, str] | None = None) -> str:
    """Return the name of a feature with its value: a number, the level of a category, or none."""
    if isinstance(value, str):
        return f"{label_of(name)} = {label_of(value)}"
    unit = (units or {}).get(name, "")
    written = f"{as_text(value)} {label_of(unit, 12)}" if unit else as_text(value)
    return label_of(name) if np.isnan(value) else f"{label_of(name)} = {written}"


def prediction_of(explanation: Explanation, i: int, level: float = 0.95) -> tuple[str, str]:
    """Return a prediction with half of its interval, and the base value, as texts.

    They are rounded to two digits of the half interval.
    """
    mean, base = float(explanation.prediction[i]), float(explanation.base_values[i])
    if explanation.prediction_std is None:
        return as_text(mean), as_text(base)
    half = float(between(0.0, float(explanation.prediction_std[i]), level).upper)
    form = f".{decimals(half, 2)}f" if 1e-4 <= half < 1e6 else ".4g"
    return f"{as_text(mean, form)} ± {as_text(half, form)}", as_text(base, form)


def unit_of(explanation: Explanation, feature: str) -> str:
    """Return the unit of a weight, for a label."""
    target = label_of(explanation.target_name, 20) if explanation.target_name else "prediction"
    if explanation.target_units:
        target = label_of(explanation.target_units, 20)
    unit = (explanation.units or {}).get(feature, "unit")
    return f"{target} per {label_of(unit, 20)}"


def contribution_to(explanation: Explanation) -> str:
    """Return the label of an axis of contributions, which are in the units of y."""
    target = label_of(explanation.target_name, 30) if explanation.target_name else "the prediction"
    unit = f" ({label_of(explanation.target_units, 20)})" if explanation.target_units else ""
    return f"contribution to {target}{unit}"


def row_of(A: Any) -> np.ndarray:
    """Return the only row of an array; the stored numbers of a sparse one."""
    row: np.ndarray = A.data if sp.issparse(A) else A[0]
    return row


def column_of(A: Any, feature: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples that have a feature, and its numbers there.

    All samples of a dense array have it.
    """
    if not sp.issparse(A):
        return np.arange(len(A)), A[:, feature]
    entries = A[:, [feature]].tocoo()
    return entries.coords[0], entries.data


def position_of(names: Sequence[str], key: str | int, what: str) -> int:
    """Return the position of a name, or a number that is a position; `what` names the argument."""
    if key in names:
        return list(names).index(key)  # type: ignore[arg-type]
    if isinstance(key, int | np.integer) and -len(names) <= key < len(names):
        return int(key) % len(names)
    some = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
    raise InputError(f"{what}={key!r}: Give a number below {len(names)} or one of {some}.")


def range_of(values: np.ndarray, share: float = 0.01) -> tuple[float, float]:
    """Return the quantiles at `share` and 1 - `share`.

    If these are equal, return the extremes; around a constant, return an interval of length 1.
    """
    for low, high in (np.quantile(values, [share, 1.0 - share]), (values.min(), values.max())):
        if low < high:
            return float(low), float(high)
    return float(low) - 0.5, float(low) + 0.5
