"""An explanation as a notebook shows it: a table of its first samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..numbers_as_text import as_text, decimals, significant
from ..runtime.notebook import html_table
from .intervals import between

if TYPE_CHECKING:
    from .explanation import Explanation

# The table has at most this many samples, and of each so many reasons.
MOST_SAMPLES = 8
REASONS = 3


def shown_in_notebook(explanation: Explanation) -> str:
    """Return the first samples with their largest reasons, as an HTML table."""
    m, unit = len(explanation), explanation.target_units or ""
    rows = []
    for i in range(min(m, MOST_SAMPLES)):
        std = None if explanation.prediction_std is None else float(explanation.prediction_std[i])
        reasons = [
            f"{reason.feature} {_with_half(reason.contribution, reason.contribution_std, True)}"
            for reason in explanation.top(i, REASONS)
        ]
        predicted = _with_half(float(explanation.prediction[i]), std)
        rows.append((str(i), f"{predicted} {unit}".strip(), ", ".join(reasons)))
    target = f"predicted {explanation.target_name}" if explanation.target_name else "prediction"
    notes = [f"{m - MOST_SAMPLES:,} more samples are not shown."] if m > MOST_SAMPLES else []
    if explanation.prediction_std is not None:
        notes.append("Numbers after ± are halves of 95% intervals.")
    return html_table(
        repr(explanation), ("sample", target, "largest contributions"), rows, " ".join(notes)
    )


def _with_half(mean: float, std: float | None, signed: bool = False) -> str:
    """Return a number with half of its 95% interval, to two digits of that."""
    sign = "+" if signed and mean >= 0 else ""
    if not std:
        return f"{sign}{significant(mean)}"
    half = float(between(0.0, std, 0.95).upper)
    if not 1e-4 <= half < 1e12:
        return f"{sign}{significant(mean)} ± {significant(half, 2)}"
    form = f",.{decimals(half, 2)}f"
    return f"{sign}{as_text(mean, form)} ± {as_text(half, form)}"
