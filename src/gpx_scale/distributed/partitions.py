"""Dask collections and futures as lists of partitions, each an (X, y, Z) triple of rows."""

from __future__ import annotations

from typing import Any

import dask.array
import distributed
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import delayed

from ..data.input_pair import unpack
from ..errors import InputError
from .partition_tasks import triple_of, triple_of_blocks, triple_of_future


def is_remote(X: Any) -> bool:
    """Return whether X is a Dask collection or a list of futures, and not in memory."""
    X, _ = unpack(X, None)
    return is_dask_collection(X) or _are_futures(X)


def _are_futures(X: Any) -> bool:
    """Return whether X is a list of futures that has at least one."""
    return (
        isinstance(X, list | tuple)
        and bool(X)
        and all(isinstance(item, distributed.Future) for item in X)
    )


def name_of_partition(k: int) -> str:
    """Return the name of partition k, counted from 1, that error messages use."""
    return f"partition {k + 1}"


def partitions_of(X: Any, y: Any, Z: Any) -> list[Any]:
    """Return a task per partition of the rows, not yet computed, whose result is its (X, y, Z)."""
    if _are_futures(X):
        if y is not None or Z is not None:
            raise InputError(
                "A list of futures has whole partitions, (X, y) or (X, y, Z). Give fit(futures), "
                "without y and Z."
            )
        return [delayed(triple_of_future)(future) for future in X]
    if y is None:
        raise InputError("The target y is missing. Give y, or the name of its column.")
    if isinstance(y, str):
        if y not in getattr(X, "columns", ()):
            names = ", ".join(map(str, getattr(X, "columns", ())))
            has = (
                f"It has {names}. Give the name of one of them."
                if names
                else "Its columns have no names. Give y as a Dask collection."
            )
            raise InputError(f"X has no column {y!r} to take as the target. {has}")
        X, y = X.drop(columns=y), X[y]
    tables = [_cut_as(X, A, name) for name, A in (("X", X), ("y", y), ("Z", Z)) if A is not None]
    counts = [A.numblocks[0] if hasattr(A, "chunks") else A.npartitions for A in tables]
    if len(set(counts)) > 1:
        raise InputError(
            f"X, y and Z have different numbers of partitions: {', '.join(map(str, counts))}. "
            "Repartition them alike."
        )
    return _side_by_side(tables)


def _cut_as(X: Any, A: Any, name: str) -> Any:
    """Return an array with its rows cut as those of X and its columns in one block.

    A dataframe is returned as it is.
    """
    if not is_dask_collection(A):
        raise InputError(
            f"{name} is not a Dask collection, but X is. Give dask.array.from_array({name}, ...)."
        )
    if not hasattr(A, "chunks"):
        return A
    rows = X.chunks[0] if hasattr(X, "chunks") else A.chunks[0]
    known = not any(np.isnan(size) for size in (*rows, *A.chunks[0]))
    if known and sum(rows) != sum(A.chunks[0]):
        raise InputError(
            f"{name} has {sum(A.chunks[0])} rows, and X has {sum(rows)}. Give as many rows of "
            f"{name} as of X."
        )
    return A.rechunk({0: rows if known else A.chunks[0], **dict.fromkeys(range(1, A.ndim), -1)})


def _side_by_side(tables: list[Any]) -> list[Any]:
    """Return a task per partition of the rows, whose result is the triple of X, y and Z.

    Arrays, and dataframes, are made one collection first, which Dask optimises as a whole. If X and
    y are columns of one source, a partition of the source is then read once for both. A mixture of
    arrays and dataframes is read table by table.
    """
    arrays = [hasattr(A, "chunks") for A in tables]
    if all(arrays):
        axes = [
            ("rows", *(f"{k}-{axis}" for axis in range(1, A.ndim))) for k, A in enumerate(tables)
        ]
        pairs = [item for pair in zip(tables, axes, strict=True) for item in pair]
        options = {
            "concatenate": False,
            "align_arrays": False,
            "dtype": object,
            "meta": np.empty(0, object),
        }
        triples = dask.array.blockwise(triple_of_blocks, ("rows",), *pairs, **options)
        return list(triples.to_delayed())
    if not any(arrays):
        X, *others = tables
        options = {"align_dataframes": False, "enforce_metadata": False, "meta": X._meta}
        return list(X.map_partitions(triple_of, *others, **options).to_delayed())
    columns = [np.ravel(A.to_delayed()) for A in tables]
    return [delayed(triple_of)(*row) for row in zip(*columns, strict=True)]
