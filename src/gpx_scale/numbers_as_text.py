"""Numbers as people read them in texts, plots and reports."""

from __future__ import annotations

import math

# A hyphen is shorter than a plus sign, so columns of signed numbers would not line up.
MINUS = "\N{MINUS SIGN}"


def as_text(value: float, form: str = ".4g") -> str:
    """Return a number in one of Python's formats, with a minus sign instead of a hyphen.

    >>> as_text(-0.25), as_text(1234.5, ",.1f")
    ('−0.25', '1,234.5')
    """
    return f"{value:{form}}".replace("-", MINUS)


def significant(value: float, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, and with all digits before its point.

    Numbers below 1e-4 or from 1e12 on are in scientific notation.

    >>> significant(19_081.0), significant(0.029664), significant(-1907.684, 6)
    ('19,081', '0.02966', '−1,907.68')
    """
    usual = -5 < magnitude(value) < 12
    return as_text(value, f",.{decimals(value, digits)}f" if usual else f".{digits - 1}e")


def as_value(value: float) -> str:
    """Return the value of a feature, with four digits and with all digits before its point.

    >>> as_value(27.0), as_value(2.34567), as_value(250_000.0)
    ('27', '2.346', '250,000')
    """
    return significant(value) if 1e4 <= abs(value) < 1e12 else as_text(value)


def decimals(value: float, digits: int) -> int:
    """Return how many decimals a number needs in order to show `digits` significant digits.

    >>> decimals(0.0123, 2), decimals(54.3, 2), decimals(54_321.0, 2)
    (3, 0, 0)
    """
    return max(0, digits - 1 - magnitude(value))


def magnitude(value: float) -> int:
    """Return the exponent of a number in scientific notation, and 0 for 0, infinity and NaN."""
    return math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0


def percent(share: float) -> str:
    """Return a share between 0 and 1, such as the probability of an interval, in percent.

    >>> percent(0.95), percent(0.99999)
    ('95%', '99.999%')
    """
    return f"{100.0 * share:g}%"
