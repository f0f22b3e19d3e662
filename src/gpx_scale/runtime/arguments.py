"""Checks of arguments: each returns a value that can be used, or raises an InputError that names it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import InputError

LARGEST_PARAMETER, LARGEST_SQUARE = (
    1e100,
    1e300,
)  # hyperparameters, and those that are squares themselves
COUNTABLE = 10**15


def positive(value: Any, name: str, *, zero: bool = False) -> float:
    """A finite number above 0 (or at least 0), as a float; anything else is an InputError that names it."""
    number = _number(value)
    if not (0.0 <= number < math.inf if zero else 0.0 < number < math.inf):
        raise InputError(
            f"{name}={value!r}: give a finite number {'of at least' if zero else 'above'} 0"
        )
    return number


def moderate(
    value: Any, name: str, *, zero: bool = False, most: float = LARGEST_PARAMETER
) -> float:
    """The same of a hyperparameter, between `most` and its inverse, so that squares and products stay in float64."""
    number = positive(value, name, zero=zero)
    if not 1.0 / most <= number <= most and not (zero and number == 0.0):
        raise InputError(f"{name}={value!r}: give a number between {1.0 / most:.0e} and {most:.0e}")
    return number


def probability(value: Any, name: str) -> float:
    """A number between 0 and 1, neither of them."""
    number = _number(value)
    if not 0.0 < number < 1.0:
        raise InputError(f"{name}={value!r}: give a probability between 0 and 1, such as 0.95")
    return number


def _number(value: Any) -> float:
    """NaN for what is none."""
    try:
        return math.nan if np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def real_array(value: Any) -> np.ndarray:
    """Real numbers as float64; empty where there are none such."""
    try:
        with np.errstate(over="ignore"):
            return np.empty(0) if np.iscomplexobj(value) else np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return np.empty(0)


def whole(value: Any, name: str, *, least: int) -> int:
    """A whole number of at least `least`, and no more than can be counted; anything else is an InputError that names it."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not least <= value <= COUNTABLE
    ):
        raise InputError(
            f"{name}={value!r}: give a whole number of at least {least}, up to {COUNTABLE:.0e}"
        )
    return int(value)


def flag(value: Any, name: str) -> bool:
    """True or False, or 1 or 0."""
    if not isinstance(value, bool | np.bool_ | int | np.integer) or value not in (0, 1):
        raise InputError(f"{name}={value!r}: give True or False")
    return bool(value)


def one_of(value: Any, known: tuple[Any, ...], name: str) -> Any:
    """One of a few values, compared by type too; anything else is an InputError that names them."""
    if isinstance(value, np.bool_ | int | np.integer) and value in (0, 1):
        value = bool(value)
    if not any(type(value) is type(one) and value == one for one in known):
        raise InputError(
            f"{name}={value!r}: give {', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        )
    return value
