"""The effects of the most important features as small pictures, all on one scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..explanation import Effect, Explanation, Importance
from ..numbers_as_text import as_value

# So many effects are shown, if there are at least so many samples to see them in.
MAX_EFFECTS, LEAST_SAMPLES = 6, 20
# A category with more levels has no picture, as their names would not be readable.
MAX_LEVELS = 8
# The picture in its own units: its size, and the part that the axes leave.
WIDTH, HEIGHT = 320.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 312.0, 10.0, 158.0
# Names of levels are cut, so that they do not overlap.
LEVEL_CHARACTERS = 60


@dataclass(frozen=True)
class Tick:
    """A number or a level at a place of an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class EffectPicture:
    """The places of a curve with its band, or of the levels of a category with their whiskers.

    `curve` and `band` are lists of points for SVG, and `levels` has (x, y, lower y, upper y).
    """

    name: str
    unit: str
    curve: str
    band: str
    levels: list[tuple[float, float, float, float]]
    across: list[Tick]
    up: list[Tick]
    zero: float


# What the parts of weights are called in a report.
PARTS = {
    "constant": "effects that are the same everywhere",
    "own": "curves of single features",
    "varying": "effects that depend on other columns (interactions)",
}


def parts_in_words(shares: dict[str, float]) -> str:
    """Return a sentence about what the parts of the weights carry, empty if nothing is known."""
    if not shares:
        return ""
    said = [f"{share:.0%} by {PARTS[name]}" for name, share in shares.items()]
    return f"The variance of the contributions is carried {', '.join(said[:-1])} and {said[-1]}."


def effect_pictures(
    explanation: Explanation, importance: Importance, level: float
) -> list[EffectPicture]:
    """Return the pictures of the effects of the most important features, which may be none."""
    if sp.issparse(explanation.weights) or len(explanation) < LEAST_SAMPLES:
        return []
    found: list[tuple[Effect, np.ndarray, np.ndarray]] = []
    for at in np.argsort(-np.asarray(importance), kind="stable").tolist():
        effect = _effect(explanation, at)
        if effect is not None and len(found) < MAX_EFFECTS:
            found.append((effect, *_bounds(effect, level)))
    if not found:
        return []
    low = min(float(lower.min()) for _, lower, _ in found)
    high = max(float(upper.max()) for _, _, upper in found)
    units = explanation.units or {}
    return [
        _picture(effect, lower, upper, (low, high), units.get(effect.feature, ""))
        for effect, lower, upper in found
    ]


def _effect(explanation: Explanation, at: int) -> Effect | None:
    """Return the effect of a feature, None if there is nothing to draw."""
    try:
        effect = explanation.effect(at)
    except InputError:
        # A group of several features may have no values.
        return None
    too_many = effect.is_category and len(effect) > MAX_LEVELS
    return None if len(effect) < 2 or too_many or not np.ptp(effect.mean) else effect


def _bounds(effect: Effect, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the band of an effect, which has no width without standard deviations."""
    if effect.std is None:
        return effect.mean, effect.mean
    lower, upper = effect.interval(level)
    return lower, upper


def _picture(
    effect: Effect, lower: np.ndarray, upper: np.ndarray, ends: tuple[float, float], unit: str
) -> EffectPicture:
    """Return the picture of an effect on a vertical scale from `ends[0]` to `ends[1]`."""
    low, high = min(ends[0], 0.0), max(ends[1], 0.0)

    def up(values: np.ndarray) -> np.ndarray:
        return np.asarray(BOTTOM - (BOTTOM - TOP) * (values - low) / ((high - low) or 1.0))

    if effect.is_category:
        places = LEFT + (RIGHT - LEFT) * (np.arange(len(effect)) + 0.5) / len(effect)
        longest = max(3, LEVEL_CHARACTERS // len(effect))
        across = [
            Tick(round(float(place), 1), _cut(str(value), longest))
            for place, value in zip(places, effect.values, strict=True)
        ]
    else:
        values = effect.values.astype(float)
        first, last = float(values[0]), float(values[-1])
        places = LEFT + (RIGHT - LEFT) * (values - first) / (last - first)
        across = [
            Tick(round(LEFT + (RIGHT - LEFT) * (tick - first) / (last - first), 1), as_value(tick))
            for tick in ticks(first, last)
        ]
    heights, lowest, highest = up(effect.mean), up(lower), up(upper)
    is_curve = not effect.is_category
    band = np.append(lowest, highest[::-1]), np.append(places, places[::-1])
    levels = np.column_stack([places, heights, lowest, highest]).round(1).tolist()
    return EffectPicture(
        effect.feature,
        unit,
        _points(places, heights) if is_curve else "",
        _points(band[1], band[0]) if is_curve and effect.std is not None else "",
        [] if is_curve else [tuple(row) for row in levels],
        across,
        [Tick(round(float(up(np.array(tick))), 1), as_value(tick)) for tick in ticks(low, high)],
        round(float(up(np.array(0.0))), 1),
    )


def _points(x: np.ndarray, y: np.ndarray) -> str:
    """Return a list of points for SVG."""
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _cut(text: str, longest: int) -> str:
    """Return a text that is not too long."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return up to about `count` round numbers from `low` to `high`.

    >>> ticks(-0.7, 2.3), ticks(18.0, 38.0)
    ([0.0, 1.0, 2.0], [20.0, 25.0, 30.0, 35.0])
    """
    if not low < high:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(m * size for m in (1.0, 2.0, 5.0, 10.0) if (high - low) / (m * size) <= count + 0.5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(at * step, 12) for at in range(first, last + 1)]
