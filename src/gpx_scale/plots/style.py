"""What all pictures share: axes, colour maps, names as they are written, rows and columns of explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..explanation import Explanation
from ..numbers_as_text import as_text, decimals
from ..palette import ColourMap
from ..runtime.files import import_optional

LONGEST = 32  # characters of a name


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says which extra brings it."""
    return import_optional("matplotlib.pyplot", "plot")


def axes_of(ax: Any, width: float, height: float) -> Any:
    """The given axes, or those of a new figure of this size in inches."""
    return pyplot().subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def colour_map(colours: ColourMap) -> Any:
    """Return what matplotlib takes as `cmap`, of a colour map of `palette`."""
    if isinstance(colours, str):
        return colours
    colors = import_optional("matplotlib.colors", "plot")
    return colors.LinearSegmentedColormap.from_list("gpx_scale", colours)


def label_of(name: Any, longest: int = LONGEST) -> str:
    """A name as matplotlib may draw it: in one line, not too long, no mathematics."""
    name = " ".join(str(name).split())
    if len(name) > longest:
        name = f"{name[: longest - 10]}…{name[-9:]}"
    return name.replace("$", r"\$")


def prediction_of(explanation: Explanation, i: int) -> tuple[str, str]:
    """Prediction and its deviation, to two digits of the latter, and the base value."""
    mean, base = float(explanation.prediction[i]), float(explanation.base_values[i])
    if explanation.prediction_std is None:
        return as_text(mean), as_text(base)
    std = float(explanation.prediction_std[i])
    form = f".{decimals(std, 2)}f" if 1e-4 <= std < 1e6 else ".4g"
    return f"{as_text(mean, form)} ± {as_text(std, form)}", as_text(base, form)


def unit_of(explanation: Explanation) -> str:
    """Of a weight."""
    return f"{label_of(explanation.target_name, 20) if explanation.target_name else 'prediction'} per unit"


def contribution_to(explanation: Explanation) -> str:
    """What an axis of contributions measures, in the units of y."""
    return f"contribution to {label_of(explanation.target_name, 30) if explanation.target_name else 'the prediction'}"


def row_of(A: Any) -> np.ndarray:
    """Of one sample: the numbers of all features, or of those it has."""
    return A.data if sp.issparse(A) else A[0]


def column_of(A: Any, feature: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples that have the feature (of an array: all), and its numbers there."""
    if not sp.issparse(A):
        return np.arange(len(A)), A[:, feature]
    entries = A[:, [feature]].tocoo()
    return entries.coords[0], entries.data


def position_of(names: Sequence[str], key: str | int, what: str) -> int:
    """Where a name is, or a number that is a position."""
    if key in names:
        return list(names).index(key)  # type: ignore[arg-type]
    if isinstance(key, int | np.integer) and -len(names) <= key < len(names):
        return int(key) % len(names)
    some = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
    raise InputError(f"{what}={key!r}: give a number below {len(names)} or one of {some}")


def range_of(values: np.ndarray, share: float = 0.01) -> tuple[float, float]:
    """Quantiles, or extremes where these are one, or a unit around a constant."""
    for low, high in (np.quantile(values, [share, 1.0 - share]), (values.min(), values.max())):
        if low < high:
            return float(low), float(high)
    return float(low) - 0.5, float(low) + 0.5
