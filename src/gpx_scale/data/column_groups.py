"""Groups of columns, which users give as a dict of names or numbers of columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError


def checked_groups(groups: Any) -> dict[str, list[Any]]:
    """Return groups as a dict of lists of columns, or raise an InputError if they are none."""
    if not isinstance(groups, Mapping) or not all(isinstance(name, str) for name in groups):
        raise InputError(
            f"groups={groups!r} is not valid. Give a dict with a list of columns of Z for the "
            "name of each group."
        )
    return {name: _columns_in(groups[name], name) for name in groups}


def members_of(
    groups: Mapping[str, Sequence[Any]],
    names: Sequence[str],
    encoded: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, list[int]]:
    """Return the numbers of the columns of each group, or raise an InputError.

    `names` are those of all columns. A column can be in one group only, and once. A name of
    `encoded` stands for all columns that were made of one column of a frame.
    """
    found: dict[str, list[int]] = {}
    seen: dict[int, str] = {}
    counts = Counter(names)
    places = {name: at for at, name in enumerate(names) if counts[name] == 1}
    for group, columns in groups.items():
        found[group] = []
        for column in columns:
            if isinstance(column, str) and column not in places and column in (encoded or {}):
                found[group] += (encoded or {})[column]
            else:
                found[group].append(_number_of(column, group, names, places))
        for column in found[group]:
            if column in seen:
                raise InputError(
                    f"groups= has the column {names[column]!r} in {seen[column]!r} and in "
                    f"{group!r}. Give each column to one group, and once."
                )
            seen[column] = group
    return found


def _columns_in(columns: Any, group: str) -> list[Any]:
    """Return the columns of a group as a list, or raise an InputError."""
    if isinstance(columns, str) or not hasattr(columns, "__len__") or len(columns) == 0:
        raise InputError(
            f"The group {group!r} has the columns {columns!r}. Give a list of at least one name or "
            "number of a column of Z."
        )
    return list(columns)


def _number_of(column: Any, group: str, names: Sequence[str], places: Mapping[str, int]) -> int:
    """Return the number of a column that is given by its name or its number.

    `places` has the numbers of the names that only one column has.
    """
    if isinstance(column, str) and column in places:
        return places[column]
    is_number = isinstance(column, int | np.integer) and not isinstance(column, bool)
    if is_number and 0 <= column < len(names):
        return int(column)
    some = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
    raise InputError(
        f"The group {group!r} has {column!r}, which is no column of Z. Give a name ({some}) or a "
        f"number from 0 to {len(names) - 1}."
    )
