"""The explanation of one sample as a paragraph for people who know nothing of statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from ..numbers_as_text import as_text, as_value, decimals, percent
from .groups import OTHERS, by_groups

if TYPE_CHECKING:
    from .class_explanation import ClassExplanation
    from .explanation import Explanation


def paragraph(explanation: Explanation, i: int, k: int, level: float, groups: object) -> str:
    """Return the explanation of sample i in words, as `Explanation.in_words` describes it."""
    one = by_groups(explanation[i], groups)
    say = _Numbers.of(one)
    known = one.contributions_std is not None
    entries, values = one.entries(level if known else None), one.values()
    order = np.argsort(-np.abs(entries["contribution"]), kind="stable")
    sentences = [_prediction(one, say, level), _start(one, say)]
    for e in order[:k]:
        name = one.feature_names[entries["feature"][e]]
        bounds = (entries["lower"][e], entries["upper"][e]) if known else None
        sentences.append(_reason(name, values[e], entries["contribution"][e], bounds, one, say))
    if others := order[k:].size:
        which = "The other feature" if others == 1 else f"The other {others} features together"
        rest = float(entries["contribution"][order[k:]].sum())
        sentences.append(f"{which} {say.moves(rest, several=others > 1)}.")
    if one.is_far[0]:
        sentences.append("But the model has seen nothing like this case, so it knows very little.")
    elif known:
        sentences.append(f"Each range in brackets is right with a probability of {percent(level)}.")
    return " ".join(sentences)


def paragraph_of_class(
    explanation: ClassExplanation, i: int, k: int, level: float, groups: object
) -> str:
    """Return the explanation of the class of sample i in words.

    Reasons have what they do to the probability of the class.
    """
    one: Any = by_groups(explanation[i], groups)
    known = one.contributions_std is not None
    entries, values = one.entries(level if known else None), one.values()
    changes = one.probability_changes
    moved = changes.data if sp.issparse(changes) else changes[0]
    chance = f"{one.probability[0]:.0%}"
    sentences = [f"The probability of {one.classes[0]} is {chance}."]
    for e in np.argsort(-np.abs(entries["contribution"]), kind="stable")[:k]:
        name = one.feature_names[entries["feature"][e]]
        points = f"{abs(moved[e]):.0%}".rstrip("%")
        way = "raises" if entries["contribution"][e] > 0 else "lowers"
        said = f"{_with_value(name, values[e], one)} {way} it by {points} percentage points"
        unsure = known and entries["lower"][e] < 0.0 < entries["upper"][e]
        sentences.append(f"{said}{', but may as well do the opposite' if unsure else ''}.")
    if one.is_far[0]:
        sentences.append("But the model has seen nothing like this case, so it knows very little.")
    return " ".join(sentences)


@dataclass(frozen=True)
class _Numbers:
    """Numbers of one sample as texts, with as many decimals as its uncertainty leaves.

    `places` is the number of decimals, and `unit` that of y with a space before it, or "".
    """

    places: int
    unit: str

    @classmethod
    def of(cls, one: Explanation) -> _Numbers:
        """Return the way to write the numbers of one sample."""
        size = float(np.abs(one.entries()["contribution"]).max(initial=0.0))
        places = decimals(size or float(one.prediction[0]), 3)
        if one.prediction_std is not None:
            places = decimals(float(one.prediction_std[0]), 2)
        return cls(places, f" {one.target_units}" if one.target_units else "")

    def is_zero(self, value: float) -> bool:
        """Return whether a number is 0 with these decimals."""
        return float(f"{value:.{self.places}f}") == 0.0

    def plain(self, value: float) -> str:
        """Return a number without its unit."""
        return as_text(0.0 if self.is_zero(value) else value, f",.{self.places}f")

    def full(self, value: float) -> str:
        """Return a number with its unit."""
        return f"{self.plain(value)}{self.unit}"

    def moves(self, value: float, several: bool = False) -> str:
        """Return by how much one or several contributions raise or lower the prediction."""
        end = "" if several else "s"
        if self.is_zero(value):
            return f"change{end} almost nothing"
        verb = f"add{end}" if value > 0 else f"take{end} away"
        return f"{verb} {self.full(abs(value))}"


def _prediction(one: Explanation, say: _Numbers, level: float) -> str:
    """Return the sentence about the prediction and its interval."""
    name = one.target_name
    said = f"The predicted {name}" if name else "The prediction"
    said += f" is {say.full(float(one.prediction[0]))}"
    if one.prediction_std is None:
        return f"{said}."
    lower, upper = (say.plain(float(bound[0])) for bound in one.prediction_interval(level))
    return (
        f"{said}. With a probability of {percent(level)}, the true {name or 'value'} is between "
        f"{lower} and {upper}{say.unit}."
    )


def _start(one: Explanation, say: _Numbers) -> str:
    """Return the sentence about where the contributions start."""
    base, moved = float(one.base_values[0]), float(one.prediction[0] - one.base_values[0])
    if say.is_zero(moved):
        return f"The starting point is {say.full(base)}, and the reasons balance each other."
    way = "up" if moved > 0 else "down"
    return (
        f"The starting point is {say.full(base)}, and the following reasons move it {way} by "
        f"{say.full(abs(moved))}."
    )


def _reason(
    name: str,
    value: float | str,
    contribution: float,
    bounds: tuple[float, float] | None,
    one: Explanation,
    say: _Numbers,
) -> str:
    """Return the sentence about one contribution."""
    several = name == OTHERS
    subject = "All other features together" if several else _with_value(name, value, one)
    said = f"{subject} {say.moves(contribution, several)}"
    if bounds is None:
        return f"{said}."
    if bounds[0] < 0.0 < bounds[1]:
        low, high = (say.plain(bound) for bound in bounds)
        return f"{said}, but may as well do the opposite ({low} to {high})."
    low, high = (say.plain(bound) for bound in sorted(map(abs, bounds)))
    return f"{said} ({low} to {high})."


def _with_value(name: str, value: float | str, one: Explanation) -> str:
    """Return a feature with its value and unit."""
    if isinstance(value, str):
        return f"{name} = {value}"
    if np.isnan(value):
        return name
    unit = (one.units or {}).get(name, "")
    return f"{name} = {as_value(value)}{f' {unit}' if unit else ''}"
