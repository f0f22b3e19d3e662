"""What else is known of each row of counts: its offset and its trials, and the centre of f."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..data.inputs import Preprocessor
from ..data.row_columns import RowColumns
from ..data.row_source import MemoryRows, RowSource
from ..errors import InputError
from ..likelihoods import Likelihood, Observed
from ..runtime.arguments import real_array


def columns_of(likelihood: Likelihood, offset: Any, trials: Any) -> RowColumns:
    """Return the checked offset and trials of rows, or raise an InputError that names one."""
    if trials is not None and likelihood.name != "binomial":
        raise InputError("trials= is for likelihood='binomial'. Leave it out, or give that.")
    return RowColumns(offset=_numbers(offset, "offset"), trials=_numbers(trials, "trials"))


def _numbers(given: Any, name: str) -> np.ndarray | None:
    """Return one finite number for each row, None if none are given."""
    if given is None:
        return None
    found = real_array(np.asarray(given))
    if found.ndim != 1 or not np.isfinite(found).all():
        raise InputError(
            f"{name} has the shape {found.shape}, or numbers that are not finite. Give one finite "
            "number for each row."
        )
    return found


def must_have_rows(columns: RowColumns, n: int) -> None:
    """Raise an InputError unless each column has a number for each of n rows."""
    for name, column in columns.known.items():
        if len(column) != n:
            raise InputError(
                f"{name} and X have inconsistent numbers of samples: {len(column)} and {n}. Give "
                "one number for each row."
            )


def with_columns(
    preprocessor: Preprocessor, rows: RowSource, columns: RowColumns, likelihood: Likelihood
) -> tuple[Preprocessor, RowSource]:
    """Return the preprocessor and the rows with what else is known of each of them.

    For counts, f is centred where its mean is that of the rows: this is the shift of predictions,
    and part of each row's offset.
    """
    if likelihood.standardizes_target and not columns:
        return preprocessor, rows
    data = rows.load()
    must_have_rows(columns, len(data))
    observed = Observed.of(data.y, columns)
    reason = likelihood.reason_against(observed)
    if reason is not None:
        raise InputError(reason)
    offset = np.zeros(len(data)) if columns.offset is None else columns.offset
    centre = likelihood.centre(observed, offset)
    if centre:
        columns = replace(columns, offset=offset + centre)
        scaling = replace(preprocessor.scaling, y_shift=centre)
        preprocessor = replace(preprocessor, scaling=scaling)
    return preprocessor, MemoryRows(replace(data, columns=columns))
