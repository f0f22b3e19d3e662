"""The first screen of a report: one sentence about the model, and its scores in large type."""

from __future__ import annotations

import math

import numpy as np

from ..explanation import Explanation, between
from ..metrics import Accuracy
from ..numbers_as_text import percent, significant
from ..runtime.memory import counted
from .held_out import HeldOut, coverage_in_words, share_interval

# The sentence names up to this many features, those that matter at least half as much as the first.
MAX_NAMED_FEATURES = 3
NAMED_SHARE = 0.5
# Below this share of the variance, predictions are said to be hardly better than the mean of y.
HARDLY_BETTER_R2 = 0.02
# R^2 of fewer samples says nothing.
MIN_SAMPLES_FOR_R2 = 10


def with_unit(number: str, unit: str | None) -> str:
    """Return a number with its unit, if it has one."""
    return f"{number}\N{NO-BREAK SPACE}{unit}" if unit else number


def accuracy_of(found: HeldOut, level: float) -> Accuracy:
    """Return RMSE, R^2 and the share of true values inside of the intervals."""
    return Accuracy.of(found.y, found.mean, found.std, level)


def verdict(
    explanation: Explanation, found: HeldOut | None, importance: np.ndarray, level: float
) -> str:
    """Return one sentence: how good predictions are, whether to trust intervals, what matters."""
    target = explanation.target_name or "the target"
    matters = _what_matters(explanation, importance)
    if found is None:
        count = counted(len(explanation), "prediction")
        return f"{count} of {target}, whose true values are not given: {matters}."
    if not found.is_fair:
        return (
            "How good the model is cannot be said from these samples, which it may have been "
            f"fitted on; {matters}."
        )
    scores = accuracy_of(found, level)
    rmse = with_unit(significant(scores.rmse, 3), explanation.target_units)
    rows = "rows" if found.samples is None else "samples"
    where = f"{rows} that it has not seen"
    if not math.isfinite(scores.r2) or len(found.y) < MIN_SAMPLES_FOR_R2:
        says = f"The model misses {target} by {rmse} (root mean squared error) in {where}"
    elif scores.r2 < HARDLY_BETTER_R2:
        says = f"In {where}, the model predicts {target} hardly better than its mean does"
    else:
        says = (
            f"The model explains {scores.r2:.0%} of the variance of {target} in {where}, and "
            f"misses it by {rmse} (root mean squared error)"
        )
    if found.std is not None:
        right = coverage_in_words(scores.within, len(found.y), level)
        says += (
            f"; its {percent(level)} intervals contain {scores.within:.0%} of the true values, "
            f"{right}"
        )
    return f"{says}; {matters}."


def _what_matters(explanation: Explanation, importance: np.ndarray) -> str:
    """Return which features matter most, in words."""
    order = np.argsort(-importance, kind="stable")[:MAX_NAMED_FEATURES]
    most = float(importance.max())
    names = [
        explanation.feature_names[l] for l in order.tolist() if importance[l] >= NAMED_SHARE * most
    ]
    if most == 0.0:
        return "no feature contributes anything"
    if len(names) == 1:
        return f"{names[0]} matters most"
    comma = "; " if any("," in name for name in names) else ", "
    return f"{comma.join(names[:-1])} and {names[-1]} matter most"


def figures(explanation: Explanation, found: HeldOut, level: float) -> list[tuple[str, str]]:
    """Return (number, meaning) pairs: errors, coverage and width of intervals."""
    unit, said = explanation.target_units, percent(level)
    scores, n = accuracy_of(found, level), len(found.y)
    of_mean = significant(spread_of(found.y), 4)
    shown = [
        (
            with_unit(significant(scores.rmse), unit),
            f"root mean squared error of {counted(n, 'prediction')}; that of their mean is "
            f"{with_unit(of_mean, unit)}",
        )
    ]
    if math.isfinite(scores.r2):
        shown.append((significant(scores.r2, 3), "R², the share of the variance of y explained"))
    if found.std is not None:
        share, (low, high) = f"{scores.within:.1%}", share_interval(scores.within, n)
        shown.append(
            (
                share,
                f"{said} intervals contain {share} of {counted(n, 'true value')} "
                f"({low:.1%} to {high:.1%} with 95% probability)",
            )
        )
        lower, upper = between(found.mean, found.std, level)
        width = significant(float(np.mean(upper - lower)))
        shown.append((with_unit(width, unit), f"mean width of the {said} interval"))
    return shown


def spread_of(values: np.ndarray) -> float:
    """Return the standard deviation, computed without overflow."""
    scale = float(np.abs(values).max()) or 1.0
    return scale * float(np.std(values / scale))
