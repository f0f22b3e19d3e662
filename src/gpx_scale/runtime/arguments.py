"""Checks of arguments.

Each check returns a value that can be used, or raises an InputError that names the argument.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import InputError

# The largest hyperparameter. Products of three such numbers stay within float64.
LARGEST_PARAMETER = 1e100
# The largest hyperparameter that is a square itself (theta1, theta2). It is not squared again.
LARGEST_SQUARE = 1e300
# The largest whole number that is accepted as a count. Up to there, float64 has all whole numbers.
LARGEST_COUNT = 10**15


def positive(value: Any, name: str, *, zero: bool = False) -> float:
    """Return a finite number above 0 as a float, or raise an InputError that names it.

    If `zero` is true, 0 is accepted, too.
    """
    number = _number(value)
    if not (0.0 <= number < math.inf if zero else 0.0 < number < math.inf):
        raise InputError(
            f"{name}={value!r} is not valid. "
            f"Give a finite number {'of at least' if zero else 'above'} 0."
        )
    return number


def moderate(
    value: Any, name: str, *, zero: bool = False, most: float = LARGEST_PARAMETER
) -> float:
    """Return a hyperparameter between 1 / `most` and `most`, or raise an InputError that names it.

    Within these limits, squares and products of hyperparameters stay within float64. If `zero` is
    true, 0 is accepted, too.
    """
    number = positive(value, name, zero=zero)
    if not 1.0 / most <= number <= most and not (zero and number == 0.0):
        raise InputError(
            f"{name}={value!r} is not valid. Give a number between {1.0 / most:.0e} and {most:.0e}."
        )
    return number


def probability(value: Any, name: str) -> float:
    """Return a number above 0 and below 1, or raise an InputError that names it."""
    number = _number(value)
    if not 0.0 < number < 1.0:
        raise InputError(
            f"{name}={value!r} is not valid. Give a probability between 0 and 1, such as 0.95."
        )
    return number


def _number(value: Any) -> float:
    """Return a value as a float, and NaN for anything that is not a single number."""
    try:
        return math.nan if np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def real_array(value: Any) -> np.ndarray:
    """Return real numbers as an array of float64, and an empty array for anything else."""
    try:
        with np.errstate(over="ignore"):
            return np.empty(0) if np.iscomplexobj(value) else np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return np.empty(0)


def whole(value: Any, name: str, *, least: int) -> int:
    """Return a whole number from `least` to LARGEST_COUNT, or raise an InputError that names it."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not least <= value <= LARGEST_COUNT
    ):
        raise InputError(
            f"{name}={value!r} is not valid. "
            f"Give a whole number of at least {least}, up to {LARGEST_COUNT:.0e}."
        )
    return int(value)


def flag(value: Any, name: str) -> bool:
    """Return True or False, which may be given as 1 or 0, or raise an InputError that names it."""
    if not isinstance(value, bool | np.bool_ | int | np.integer) or value not in (0, 1):
        raise InputError(f"{name}={value!r} is not valid. Give True or False.")
    return bool(value)


def one_of(value: Any, known: tuple[Any, ...], name: str) -> Any:
    """Return a value that is one of `known`, or raise an InputError that lists those.

    A value must have the type of the known one, except that 1 and 0 stand for True and False.
    """
    if isinstance(value, np.bool_ | int | np.integer) and value in (0, 1):
        value = bool(value)
    if not any(type(value) is type(one) and value == one for one in known):
        raise InputError(
            f"{name}={value!r} is not valid. "
            f"Give {', '.join(map(repr, known[:-1]))} or {known[-1]!r}."
        )
    return value
