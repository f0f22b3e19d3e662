"""Rows on a Dask cluster: partitions stay on their workers, sums of them come back by a tree of additions.

The driver has a sample of the rows and m x m numbers; the search, the points and the posterior are those of `GPXRegressor`.
A fit reads every partition once: the worker that read it holds it until all partitions are surveyed and it can be scaled. A
partition that its worker has no room for is read a second time. A partition that is lost with its worker is made again from
where Dask had it, and so is what was being computed with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from ..data.inputs import InputTransforms, TrainingRows, unpack
from ..data.row_source import ReportProgress, ignore_progress, least
from ..data.stream import ChunkChecksum, Survey, SurveyedRows, SurveyOptions
from ..errors import GPXError, InputError
from ..estimator.regressor import GPXRegressor
from ..fitting.options import FitOptions
from ..runtime.session import Session
from .partition_tasks import (
    Sample,
    add_together,
    has_room,
    head_of,
    itself,
    rows_of_inputs,
    rows_of_survey,
    scale_partition,
    sum_over,
    survey_partition,
    triple_of,
    triple_of_blocks,
    triple_of_future,
)

try:
    import dask
    import dask.array
    import distributed
except ImportError:  # pragma: no cover - said where it is needed
    raise ImportError("gpx_scale.distributed needs Dask: pip install 'gpx-scale[dask]'") from None

__all__ = ["DaskGPXRegressor"]

FAN_IN = 4  # sums that are added at once
WAIT, POLL = 10.0, 2.0  # seconds for a worker to come, and between looks
HELD_POLL = 0.2  # seconds between looks for workers that are full, in which few disks read as much as a gigabyte
PATIENCE = 60.0  # seconds without any worker before a running fit gives up
LARGE = {
    "distributed.admin.large-graph-warning-threshold": "1TiB"
}  # m x m numbers go with every pass, and are meant to


class DaskGPXRegressor(GPXRegressor):
    """GPXRegressor on a cluster, with `solver="inducing"` or, for X of few columns, `"basis"`.

    Parameters
    ----------
    client : distributed.Client, optional
        None: the client that is in use.
    **parameters
        Those of `GPXRegressor`.

    `fit` takes Dask arrays, or dataframes (y: a series, or the target's name), or a list of futures of (X, y) or (X, y, Z)
    partitions. `predict` of a Dask array or dataframe is a Dask array; everything else answers here, from the inducing points.
    `to_local()` is an ordinary fitted `GPXRegressor`.
    """

    def __init__(self, client: Any = None, **parameters: Any) -> None:
        super().__init__(**{"solver": "inducing", **parameters})
        self.client = client

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted(["client", *GPXRegressor._get_param_names()])

    def to_local(self) -> GPXRegressor:
        """The same model, without a cluster."""
        local = GPXRegressor(
            **{
                name: value
                for name, value in self.get_params(deep=False).items()
                if name != "client"
            }
        )
        local.__dict__.update(
            {
                name: value
                for name, value in self.__getstate__().items()
                if name not in ("client", "_rows")
            }
        )
        return local

    def predict(
        self, X: Any, Z: Any = None, return_std: bool | str = False, return_cov: bool = False
    ) -> Any:
        """As of `GPXRegressor`; of a Dask array or dataframe, the means as a Dask array, computed where the partitions are."""
        check_is_fitted(self)
        if not dask.is_dask_collection(X):
            return super().predict(X, Z, return_std, return_cov)
        if Z is not None or return_std or return_cov:
            raise InputError(
                "of a Dask collection, means only: use to_local() on its partitions for more"
            )
        local = self.to_local()
        if hasattr(X, "map_partitions"):
            return X.map_partitions(local.predict, meta=np.empty(0))
        return X.rechunk({1: -1}).map_blocks(local.predict, drop_axis=1, dtype=float)

    def _survey(
        self, X: Any, y: Any, Z: Any, options: FitOptions
    ) -> Callable[..., SurveyedRows] | None:
        X, Z = unpack(X, Z)
        if not _is_remote(X):
            return super()._survey(X, y, Z, options)
        return partial(DaskRows.open, client_of(self.client), partitions_of(X, y, Z))

    def _sum_over(self, X: Any, y: Any, Z: Any, task: Any, session: Session) -> Any:
        X, Z = unpack(X, Z)
        if not _is_remote(X):
            return super()._sum_over(X, y, Z, task, session)
        client, preprocessor = client_of(self.client), self._preprocessor
        parts = partitions_of(X, y, Z)

        def scaled(k: int, start: int | None = None) -> Any:
            return dask.delayed(scale_partition)(
                parts[k], preprocessor, name_of_partition(k), start, True
            )

        with dask.config.set(LARGE):
            count, data = len(parts), [scaled(k) for k in range(len(parts))]
            heads, counts = (
                map(dask.delayed(head_of), parts),
                map(dask.delayed(rows_of_inputs), data),
            )
            sums = [dask.delayed(sum_over)(task, one) for one in data]
            futures = client.compute(
                [*heads, *counts, *sums]
            )  # one graph, in which all share what is read
            total = tree(client, futures[2 * count :])
            del futures[
                2 * count :
            ]  # A sum of one partition is not kept after it is added to the others.
            for head in futures[:count]:
                rows, first = result_of(client, head)
                if rows:
                    self._compare_columns(first)
            try:
                return result_of(client, total)
            except InputError:
                raise_with_row(client, futures[count:], scaled)
                raise

    def _query(self, X: Any, Z: Any) -> Any:
        if _is_remote(X):
            raise InputError(
                "a Dask collection has predict() alone: use to_local() on its partitions, or compute() it"
            )
        return super()._query(X, Z)

    def __sklearn_clone__(self) -> DaskGPXRegressor:
        """A client is shared, not copied."""
        return type(self)(
            **{
                name: value if name == "client" else clone(value, safe=False)
                for name, value in self.get_params(False).items()
            }
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}


def client_of(client: Any) -> Any:
    """The client, with a worker."""
    if client is None:
        try:
            client = distributed.default_client()
        except ValueError:
            raise InputError(
                "there is no Dask client: give client=distributed.Client(...)"
            ) from None
    try:
        client.wait_for_workers(1, timeout=WAIT)
    except TimeoutError:
        raise GPXError(
            f"the cluster has no workers (none came in {WAIT:.0f} s): start some, or fit with GPXRegressor"
        ) from None
    return client


def workers_of(client: Any) -> list[str]:
    """The addresses of its workers, as the scheduler knows them now; waits for one if all have just gone.

    Not client.scheduler_info(): that is a copy, which a timer replaces every two seconds by one that lists no workers.
    """
    while not (workers := sorted(client.nthreads())):
        client_of(client)
    return workers


def _is_remote(X: Any) -> bool:
    X, _ = unpack(X, None)
    return dask.is_dask_collection(X) or _are_futures(X)


def _are_futures(X: Any) -> bool:
    return (
        isinstance(X, list | tuple)
        and bool(X)
        and all(isinstance(item, distributed.Future) for item in X)
    )


def partitions_of(X: Any, y: Any, Z: Any) -> list[Any]:
    """(X, y, Z) of each row partition, not yet computed."""
    if _are_futures(X):
        if y is not None or Z is not None:
            raise InputError(
                "futures are of whole (X, y) or (X, y, Z) partitions: give fit(futures) alone"
            )
        return [dask.delayed(triple_of_future)(future) for future in X]
    if y is None:
        raise InputError("the target y is missing: give y, or the name of its column")
    if isinstance(y, str):
        if y not in getattr(X, "columns", ()):
            raise InputError(
                f"there is no column {y!r}, only {', '.join(map(str, getattr(X, 'columns', ()))) or 'numbers'}"
            )
        X, y = X.drop(columns=y), X[y]
    tables = [_cut_as(X, A, name) for name, A in (("X", X), ("y", y), ("Z", Z)) if A is not None]
    counts = [A.numblocks[0] if hasattr(A, "chunks") else A.npartitions for A in tables]
    if len(set(counts)) > 1:
        raise InputError(f"X, y and Z differ in partitions: {', '.join(map(str, counts))}")
    return _side_by_side(tables)


def _cut_as(X: Any, A: Any, name: str) -> Any:
    """Return an array with one block of columns and the rows cut as those of X; a dataframe as it is."""
    if not dask.is_dask_collection(A):
        raise InputError(
            f"{name} is not a Dask collection, as X is: give dask.array.from_array({name}, ...)"
        )
    if not hasattr(A, "chunks"):
        return A
    rows = X.chunks[0] if hasattr(X, "chunks") else A.chunks[0]
    known = not any(np.isnan(size) for size in (*rows, *A.chunks[0]))
    if known and sum(rows) != sum(A.chunks[0]):
        raise InputError(f"{name} has {sum(A.chunks[0])} rows, X has {sum(rows)}")
    return A.rechunk({0: rows if known else A.chunks[0], **dict.fromkeys(range(1, A.ndim), -1)})


def _side_by_side(tables: list[Any]) -> list[Any]:
    """Return the partitions of X, y and, if given, Z, not yet computed; those of the same rows are a triple.

    Arrays, and dataframes, are made one collection first, which Dask optimizes as a whole. If X and y are columns of one
    source, a partition of the source is then read once for both. A mixture of arrays and dataframes is read table by table.
    """
    arrays = [hasattr(A, "chunks") for A in tables]
    if all(arrays):
        axes = [
            ("rows", *(f"{k}-{axis}" for axis in range(1, A.ndim))) for k, A in enumerate(tables)
        ]
        pairs = [item for pair in zip(tables, axes, strict=True) for item in pair]
        how = {
            "concatenate": False,
            "align_arrays": False,
            "dtype": object,
            "meta": np.empty(0, object),
        }
        return list(dask.array.blockwise(triple_of_blocks, ("rows",), *pairs, **how).to_delayed())
    if not any(arrays):
        X, *others = tables
        how = {"align_dataframes": False, "enforce_metadata": False, "meta": X._meta}
        return list(X.map_partitions(triple_of, *others, **how).to_delayed())
    columns = [np.ravel(A.to_delayed()) for A in tables]
    return [dask.delayed(triple_of)(*row) for row in zip(*columns, strict=True)]


def name_of_partition(k: int) -> str:
    return f"partition {k + 1}"


@dataclass(frozen=True)
class DaskRows(SurveyedRows):
    """Rows behind the preprocessor, on the workers that made them; `drawn` is the sample that is here."""

    client: Any
    inputs: list[Any]
    homes: list[str]
    drawn: Sample

    @classmethod
    def open(
        cls,
        client: Any,
        partitions: list[Any],
        transforms: InputTransforms,
        options: SurveyOptions,
        tell: ReportProgress = ignore_progress,
    ) -> DaskRows:
        """After one pass that surveys all partitions; another brings them behind the preprocessor, where they stay."""
        workers = workers_of(client)
        homes = [workers[k * len(workers) // len(partitions)] for k in range(len(partitions))]
        with dask.config.set(LARGE):
            survey, parts = surveyed(client, partitions, homes, transforms)
            tell(survey.rows, survey.rows)
            preprocessor = survey.preprocessor(transforms, options)
            prints = {one.name: one for one in survey.prints}
            before = [
                prints.get(name, ChunkChecksum.of_nothing(name))
                for name in map(name_of_partition, range(len(parts)))
            ]
            starts = [int(start) for start in np.cumsum([0, *(one.rows for one in before[:-1])])]
            sent = client.submit(itself, preprocessor, pure=False)
            scaled = [
                dask.delayed(scale_partition)(part, sent, one.name, start, options.standardize, one)
                for part, one, start in zip(parts, before, starts, strict=True)
            ]
            # Partitions that are held take the first turn, so that they are released before others are read again.
            turns = [0 if isinstance(part, distributed.Future) else 1 for part in parts]
            inputs = compute_at(client, scaled, homes, turns)
            del parts, scaled  # Dask releases a held partition when its scaled rows are there.
            samples = [
                client.submit(Sample.of, data, start, options.keep, options.seed, pure=False)
                for data, start in zip(inputs, starts, strict=True)
            ]
            drawn = result_of(client, tree(client, samples))
        return cls(survey, preprocessor, options.standardize, client, inputs, homes, drawn)

    def subset(self, count: int) -> TrainingRows:
        return self.drawn.data[least(self.drawn.keys, count)]

    def sum_over(self, task: Callable[[TrainingRows], Any], session: Session) -> Any:
        with dask.config.set(LARGE):
            sent = self.client.submit(itself, task, pure=False)
            sums = [
                self.client.submit(
                    sum_over, sent, data, workers=home, allow_other_workers=True, pure=False
                )
                for data, home in zip(self.inputs, self.homes, strict=True)
            ]
            total = tree(self.client, sums)
            del sums  # A sum of one partition is not kept after it is added to the others.
            found = result_of(self.client, total)
        session.journal.passed(len(self), len(self))
        return found


def surveyed(
    client: Any, partitions: list[Any], homes: list[str], transforms: InputTransforms
) -> tuple[Survey, list[Any]]:
    """Return the survey of all partitions, and each partition: a future where its worker holds it, else not yet computed."""
    count, sent = len(partitions), client.submit(itself, transforms, pure=False)

    def survey_of(k: int, part: Any, start: int | None = None) -> Any:
        return dask.delayed(survey_partition)(part, sent, name_of_partition(k), start)

    tasks = [
        *partitions,
        *map(survey_of, range(count), partitions),
        *map(dask.delayed(has_room), partitions),
    ]
    futures = compute_at(client, tasks, 3 * homes)
    parts, surveys, rooms = futures[:count], futures[count : 2 * count], futures[2 * count :]
    del futures
    waiting = set(range(count))

    def release() -> None:
        for k in [k for k in waiting if rooms[k].done()]:
            waiting.remove(k)
            if rooms[k].status == "finished" and not result_of(client, rooms[k]):
                parts[k] = partitions[k]

    try:
        survey = result_of(client, tree(client, surveys), HELD_POLL, release)
    except InputError:
        counts = [client.submit(rows_of_survey, one, pure=False) for one in surveys]
        raise_with_row(client, counts, lambda k, start: survey_of(k, parts[k], start))
        raise
    if survey is None:
        raise InputError("the partitions have no rows")
    held = result_of(client, client.submit(itself, rooms, pure=False))
    return survey, [
        part if room else again for part, again, room in zip(parts, partitions, held, strict=True)
    ]


def compute_at(
    client: Any, tasks: list[Any], homes: list[str], turns: list[int] | None = None
) -> list[Any]:
    """Start every task at its home and return the futures; tasks of one turn and home, which are one graph, go in their turn.

    Dask orders the tasks of a graph so that few partitions are in memory unsurveyed. It takes graphs in the order in which
    they come only if they count as apart, for which their `fifo_timeout` must be zero.
    """
    futures: dict[int, Any] = {}
    groups = list(zip(turns or [0] * len(tasks), homes, strict=True))
    for group in sorted(set(groups)):
        some = [k for k in range(len(tasks)) if groups[k] == group]
        how = {"workers": group[1], "allow_other_workers": True, "fifo_timeout": "0s"}
        futures.update(zip(some, client.compute([tasks[k] for k in some], **how), strict=True))
    return [futures[k] for k in range(len(tasks))]


def raise_with_row(client: Any, counts: list[Any], again: Callable[[int, int], Any]) -> None:
    """Raise the error of the first partition that has one, once more: now the number of rows before it is known.

    `counts` are futures of the rows per partition, which fail where the partition did; `again` is the task that failed.
    """
    start = 0
    for k, count in enumerate(counts):
        try:
            start += result_of(client, count)
        except InputError:
            try:
                result_of(client, client.compute(again(k, start)))
            except InputError as error:
                raise error from None
            return


def tree(client: Any, parts: list[Any]) -> Any:
    """A future of the sum, added FAN_IN at a time where the parts are."""
    while len(parts) > 1:
        groups = [parts[k : k + FAN_IN] for k in range(0, len(parts), FAN_IN)]
        # Additions go before other tasks. Of 64 partitions, 11 to 22 sums are then in memory at once, in place of 51.
        parts = [client.submit(add_together, group, pure=False, priority=1) for group in groups]
    return parts[0]


def result_of(
    client: Any, future: Any, poll: float = POLL, meanwhile: Callable[[], None] | None = None
) -> Any:
    """Its result; a cluster that has lost all workers for good is an error, not a wait without end.

    `meanwhile` is called every `poll` seconds until the result is there.
    """
    alone = None
    while True:
        try:
            # A result that is there may still take longer than `poll` to arrive.
            return future.result(timeout=PATIENCE if future.done() else poll)
        except TimeoutError:
            if future.status == "error":
                return (
                    future.result()
                )  # This raises the error of the task, which may be a TimeoutError of its own.
            if meanwhile is not None:
                meanwhile()
            if client.nthreads():
                alone = None
            elif alone is None:
                alone = time.monotonic()
            elif time.monotonic() - alone > PATIENCE:
                future.cancel()
                raise GPXError(
                    f"the cluster has had no workers for {PATIENCE:.0f} s: the fit was given up"
                ) from None
        except distributed.client.CancelledError as error:
            raise GPXError(
                f"a partition was lost with its worker and cannot be made again ({error}): give Dask collections"
            ) from None
