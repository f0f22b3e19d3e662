"""What else may be known of each row: its weight, its noise, its offset and its trials."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..errors import InputError
from ..runtime.arguments import LARGEST_SQUARE
from ..runtime.state import must, must_be_numbers, stored


@stored
@dataclass(frozen=True)
class RowColumns:
    """Numbers that belong to the rows, each (n,) or None if the rows have none.

    Attributes
    ----------
    sample_weight : ndarray of shape (n,) or None
        How many times each row counts. All are positive.
    noise : ndarray of shape (n,) or None
        The known standard deviation of the noise of each row, in standardised units of y.
    offset : ndarray of shape (n,) or None
        The part of the latent function that is known.
    trials : ndarray of shape (n,) or None
        The number of trials of each row, for a binomial likelihood.
    """

    sample_weight: np.ndarray | None = None
    noise: np.ndarray | None = None
    offset: np.ndarray | None = None
    trials: np.ndarray | None = None

    def __bool__(self) -> bool:
        """Return whether there is any column."""
        return bool(self.known)

    @property
    def known(self) -> dict[str, np.ndarray]:
        """Return the columns that the rows have, by name."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in columns.items() if column is not None}

    def __getitem__(self, rows: Any) -> RowColumns:
        """Return the columns of the selected rows."""
        if not self:
            return self
        return RowColumns(**{name: column[rows] for name, column in self.known.items()})

    def with_rows(self, more: RowColumns) -> RowColumns:
        """Return the columns of these rows and of others after them."""
        return joined_columns([self, more])

    def must_fit(self, n: int) -> None:
        """Raise a ValueError unless these columns, read from a file, belong to n rows."""
        for name, column in self.known.items():
            must_be_numbers(column, (n,), name)
            must(np.abs(column).max(initial=0.0) <= LARGEST_SQUARE, f"{name} leaves float64")
        if self.sample_weight is not None:
            must((self.sample_weight > 0).all(), "a row has a weight of 0 or less")
        if self.noise is not None:
            must((self.noise >= 0).all(), "a row has a negative standard deviation")


# Rows of which nothing else is known.
NO_COLUMNS = RowColumns()


def joined_columns(parts: list[RowColumns]) -> RowColumns:
    """Return the columns of all parts as one, in their order."""
    if not any(parts):
        return NO_COLUMNS
    names = {name for part in parts for name in part.known}
    for name in sorted(names):
        if any(name not in part.known for part in parts):
            raise InputError(
                f"Some rows have {name!r}, and some have none. Give it for all rows, or for none."
            )
    return replace(
        NO_COLUMNS,
        **{name: np.concatenate([part.known[name] for part in parts]) for name in names},
    )
