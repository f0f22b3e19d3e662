"""A row as users give it, alone or twice: as it is, and with some of its values changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..data.input_pair import XZ, count_rows
from ..errors import InputError
from ..runtime.files import import_optional


def one_row(row: Any) -> Any:
    """Return a table of one row, from a table, a series, a list of numbers or an XZ pair."""
    if isinstance(row, XZ):
        # X of a kernel of objects is a list of them.
        return XZ(row.X if isinstance(row.X, list) else one_row(row.X), one_row(row.Z))
    if hasattr(row, "to_frame") and not hasattr(row, "columns"):
        return row.to_frame().T.infer_objects()
    table = row if hasattr(row, "iloc") or sp.issparse(row) else np.atleast_2d(np.asarray(row))
    is_array = isinstance(table, np.ndarray)
    if is_array and (table.ndim != 2 or table.dtype.kind not in "biuf"):
        raise InputError(
            "row is no row of a table of numbers. Give a frame or an array with one row, a series, "
            "or an XZ pair of one row."
        )
    if count_rows(table) != 1:
        raise InputError(
            f"row has {count_rows(table)} rows. Give one, such as X[:1], or X.iloc[[0]] of a frame."
        )
    return table


def with_changes(
    row: Any, changes: Any, x_names: Sequence[str], z_names: Sequence[str]
) -> tuple[Any, Any]:
    """Return X of two rows, the given one and the changed one, and Z of both or None.

    Columns are given by name or, in X alone, by number. A column that X and Z both have is changed
    in both. The names are those of the columns at fit, for tables that have none.
    """
    if not isinstance(changes, Mapping) or not changes:
        raise InputError(
            f"changes={changes!r} cannot be used. Give a dict with the new value of each column "
            "that changes."
        )
    given = one_row(row)
    tables = [given.X, given.Z] if isinstance(given, XZ) else [given]
    both, missing, names = [], set(changes), list[str]()
    for table, usual in zip(tables, (x_names, z_names), strict=False):
        mine = [str(name) for name in getattr(table, "columns", usual)]
        count = table.shape[1] if len(tables) == 1 else 0
        places = {column: _place(column, mine, count) for column in changes}
        known = {column: at for column, at in places.items() if at is not None}
        both.append(_twice(table, {at: changes[column] for column, at in known.items()}))
        missing -= set(known)
        names += mine
    for column in sorted(missing, key=str):
        some = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise InputError(f"changes has {column!r}, which is no column. The columns are {some}.")
    return both[0], both[1] if len(both) > 1 else None


def _place(column: Any, names: Sequence[str], count: int) -> int | None:
    """Return the place of a column that is given by its name or number, None if there is none."""
    if isinstance(column, str):
        return names.index(column) if column in names else None
    is_number = isinstance(column, int | np.integer) and not isinstance(column, bool)
    return int(column) if is_number and 0 <= column < count else None


def _twice(table: Any, values: Mapping[int, Any]) -> Any:
    """Return a table with a row twice, the second time with other values at some places."""
    if isinstance(table, list):
        return table * 2
    if hasattr(table, "iloc"):
        two = table.iloc[[0, 0]].reset_index(drop=True)
        for at, value in values.items():
            two[two.columns[at]] = _column_of_both(two.iloc[:, at], value)
        return two
    if sp.issparse(table):
        two = sp.vstack([table, table], format="lil", dtype=float)
    else:
        two = np.repeat(table, 2, axis=0).astype(float)
    for at, value in values.items():
        two[1, at] = _number(value)
    return two.tocsr() if sp.issparse(two) else two


def _column_of_both(old: Any, value: Any) -> Any:
    """Return a pandas column with the old value and a new one, of the old type where possible."""
    pandas = import_optional("pandas", "files")
    if isinstance(old.dtype, pandas.CategoricalDtype):
        kind = old.dtype if value in old.cat.categories else None
        return pandas.Series([old.iloc[0], value], dtype=kind)
    if old.dtype.kind == "M":
        value = pandas.Timestamp(value)
    return pandas.Series([old.iloc[0], value])


def _number(value: Any) -> float:
    """Return a value as a finite number, or raise an InputError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise InputError(f"changes has the value {value!r}. Give a finite number.")
    return number
