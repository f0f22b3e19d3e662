"""Rows on a Dask cluster: partitions stay on their workers, sums of them come back by a tree of additions.

The driver has a sample of the rows and m x m numbers; the search, the points and the posterior are those of `GPXRegressor`.
A partition that is lost with its worker is made again from where Dask had it, and so is what was being computed with it.
"""

from __future__ import annotations

import copy
import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from .errors import GPXError, InputError
from .estimator import GPXRegressor
from .inputs import Door, Gate, Inputs, take, unpack
from .rows import MemoryRows, Tell, nobody
from .runtime import Executor, threads
from .stream import Chunk, Print, Survey, SurveyedRows, is_empty, named, through

try:
    import dask
    import distributed
except ImportError:  # pragma: no cover - said where it is needed
    raise ImportError("gpx_scale.distributed needs Dask: pip install 'gpx-scale[dask]'") from None

__all__ = ["DaskGPXRegressor"]

FAN_IN = 4  # sums that are added at once
WAIT, POLL = 10.0, 2.0  # seconds for a worker to come, and between looks
PATIENCE = 60.0  # seconds without any worker before a running fit gives up
LARGE = {"distributed.admin.large-graph-warning-threshold": "1TiB"}  # m x m numbers go with every pass, and are meant to


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
        local = GPXRegressor(**{name: value for name, value in self.get_params(deep=False).items() if name != "client"})
        local.__dict__.update({name: value for name, value in self.__getstate__().items() if name not in ("client", "_rows")})
        return local

    def predict(self, X: Any, Z: Any = None, return_std: bool | str = False, return_cov: bool = False) -> Any:
        """As of `GPXRegressor`; of a Dask array or dataframe, the means as a Dask array, computed where the partitions are."""
        check_is_fitted(self)
        if not dask.is_dask_collection(X):
            return super().predict(X, Z, return_std, return_cov)
        if Z is not None or return_std or return_cov:
            raise InputError("of a Dask collection, means only: use to_local() on its partitions for more")
        local = self.to_local()
        if hasattr(X, "map_partitions"):
            return X.map_partitions(local.predict, meta=np.empty(0))
        return X.rechunk({1: -1}).map_blocks(local.predict, drop_axis=1, dtype=float)

    def _elsewhere(self, X: Any, y: Any, Z: Any, solver: str, kernel: Any) -> Callable[..., SurveyedRows] | None:
        X, Z = unpack(X, Z)
        if not _is_remote(X):
            return super()._elsewhere(X, y, Z, solver, kernel)
        return partial(DaskRows.open, client_of(self.client), partitions_of(X, y, Z))

    def _more(self, X: Any, y: Any, Z: Any, task: Any, executor: Executor) -> Any:
        X, Z = unpack(X, Z)
        if not _is_remote(X):
            return super()._more(X, y, Z, task, executor)
        client, door = client_of(self.client), self._door
        parts = partitions_of(X, y, Z)
        with dask.config.set(LARGE):
            heads = client.compute([dask.delayed(_head)(part) for part in parts])
            start, sums = 0, []
            for k, part in enumerate(parts):
                rows, head = result_of(client, heads[k])
                if rows:
                    self._compare_columns(head)
                data = dask.delayed(_inputs)(part, door, f"partition {k + 1}", start, True)
                sums.append(dask.delayed(_add_up)(task, data))
                start += rows
            return result_of(client, tree(client, client.compute(sums)))

    def _query(self, X: Any, Z: Any) -> Any:
        if _is_remote(X):
            raise InputError("a Dask collection has predict() alone: use to_local() on its partitions, or compute() it")
        return super()._query(X, Z)

    def __sklearn_clone__(self) -> DaskGPXRegressor:
        """A client is shared, not copied."""
        return type(self)(
            **{name: value if name == "client" else clone(value, safe=False) for name, value in self.get_params(False).items()}
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}


def client_of(client: Any) -> Any:
    """The client, with a worker."""
    if client is None:
        try:
            client = distributed.default_client()
        except ValueError:
            raise InputError("there is no Dask client: give client=distributed.Client(...)") from None
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
    return isinstance(X, list | tuple) and bool(X) and all(isinstance(item, distributed.Future) for item in X)


def partitions_of(X: Any, y: Any, Z: Any) -> list[Any]:
    """(X, y, Z) of each row partition, not yet computed."""
    if _are_futures(X):
        if y is not None or Z is not None:
            raise InputError("futures are of whole (X, y) or (X, y, Z) partitions: give fit(futures) alone")
        return [dask.delayed(_triple)(future) for future in X]
    if y is None:
        raise InputError("the target y is missing: give y, or the name of its column")
    if isinstance(y, str):
        if y not in getattr(X, "columns", ()):
            raise InputError(f"there is no column {y!r}, only {', '.join(map(str, getattr(X, 'columns', ()))) or 'numbers'}")
        X, y = X.drop(columns=y), X[y]
    parts = [_rows_of(A, X, name) for name, A in (("X", X), ("y", y), ("Z", Z)) if A is not None]
    if len({len(part) for part in parts}) > 1:
        raise InputError(f"X, y and Z differ in partitions: {', '.join(str(len(part)) for part in parts)}")
    return [dask.delayed(_triple)(row) for row in zip(*parts, strict=True)]


def _rows_of(A: Any, X: Any, name: str) -> list[Any]:
    """Partitions of one collection; an array is cut as X is."""
    if not dask.is_dask_collection(A):
        raise InputError(f"{name} is not a Dask collection, as X is: give dask.array.from_array({name}, ...)")
    if hasattr(A, "chunks"):
        rows = X.chunks[0] if hasattr(X, "chunks") else A.chunks[0]
        known = not any(np.isnan(size) for size in (*rows, *A.chunks[0]))
        if known and sum(rows) != sum(A.chunks[0]):
            raise InputError(f"{name} has {sum(A.chunks[0])} rows, X has {sum(rows)}")
        A = A.rechunk({0: rows if known else A.chunks[0], **({1: -1} if A.ndim > 1 else {})})
    return list(np.ravel(A.to_delayed()))


# Where partitions are.


def _triple(parts: Any) -> tuple[Any, Any, Any]:
    if not isinstance(parts, tuple | list) or len(parts) not in (2, 3):
        raise InputError(f"a partition is (X, y) or (X, y, Z), got {type(parts).__name__}")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else None


def _head(parts: Any) -> tuple[int, Any]:
    """How many rows, and one of them, to know columns by."""
    return len(parts[1]), take(parts[0], slice(0, 1))


def _survey(parts: Any, gate: Gate, name: str, start: int, keep: int, seed: int) -> Survey | None:
    chunk = Chunk(name, *parts)
    return None if is_empty(chunk) else Survey.of(name, through(gate, chunk, start), start, keep, seed)


def _inputs(
    parts: Any, door: Door, name: str, start: int, standardize: bool, before: dict[str, Print] | None = None
) -> Inputs | None:
    """Behind the door; the same rows as the survey saw, where it did."""
    chunk = Chunk(name, *parts)
    if is_empty(chunk):
        return None
    raw = through(door.gate, chunk, start, (door.sparse_x, door.sparse_z))
    if before is not None:
        Print.of(name, raw).must_be(before[name])
    with named(chunk):
        door.must_match(raw.x, raw.Z, raw.separate)
        return door.training(raw.x, raw.Z, raw.y, standardize)


@lru_cache(maxsize=1)
def _keep_freed_memory() -> None:
    """Dask's nannies have malloc give back what is freed at once, and every block of rows then waits for the same pages again:
    1.7 times the time. This process keeps them from now on."""
    with suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 32 * 2**20)  # M_MMAP_THRESHOLD, the most there is
        mallopt(-1, 512 * 2**20)  # M_TRIM_THRESHOLD


def _add_up(task: Callable[[Inputs], Any], data: Inputs | None) -> Any:
    if data is None:
        return None
    _keep_freed_memory()
    with threads(1), Executor(1) as executor:
        return MemoryRows(data).add_up(task, executor)


def _sum(parts: list[Any]) -> Any:
    found = [part for part in parts if part is not None]
    if not found:
        return None
    total = copy.deepcopy(found[0])  # a result that Dask keeps is not to be written to
    for part in found[1:]:
        total += part
    return total


def _itself(task: Any) -> Any:
    return task


@dataclass(frozen=True)
class DaskRows(SurveyedRows):
    """Rows behind the door, on the workers that made them."""

    client: Any
    inputs: list[Any]
    homes: list[str]

    @classmethod
    def open(
        cls,
        client: Any,
        partitions: list[Any],
        gate: Gate,
        *,
        keep: int,
        seed: int,
        standardize: bool,
        fit_intercept: bool,
        tell: Tell = nobody,
    ) -> DaskRows:
        """After one pass that surveys all partitions; another brings them behind the door, where they stay."""
        heads = client.compute([dask.delayed(_head)(part) for part in partitions])
        counts = [result_of(client, head)[0] for head in heads]
        starts = [int(start) for start in np.cumsum([0, *counts[:-1]])]
        names = [f"partition {k + 1}" for k in range(len(partitions))]
        with dask.config.set(LARGE):
            surveys = client.compute(
                [
                    dask.delayed(_survey)(part, gate, name, start, keep, seed)
                    for part, name, start in zip(partitions, names, starts, strict=True)
                ]
            )
            survey = result_of(client, tree(client, surveys))
            if survey is None:
                raise InputError("the partitions have no rows")
            tell(survey.rows, survey.rows)
            door = survey.door(gate, standardize, fit_intercept)
            prints = {one.name: one for one in survey.prints}
            workers = workers_of(client)
            homes = [workers[k * len(workers) // len(partitions)] for k in range(len(partitions))]
            inputs = [
                client.compute(
                    dask.delayed(_inputs)(part, door, name, start, standardize, prints), workers=home, allow_other_workers=True
                )
                for part, name, start, home in zip(partitions, names, starts, homes, strict=True)
            ]
        return cls(survey, door, standardize, client, inputs, homes)

    def add_up(self, task: Callable[[Inputs], Any], executor: Executor, tell: Tell = nobody) -> Any:
        with dask.config.set(LARGE):
            sent = self.client.submit(_itself, task, pure=False)
            parts = [
                self.client.submit(_add_up, sent, data, workers=home, allow_other_workers=True, pure=False)
                for data, home in zip(self.inputs, self.homes, strict=True)
            ]
            found = result_of(self.client, tree(self.client, parts))
        tell(len(self), len(self))
        return found


def tree(client: Any, parts: list[Any]) -> Any:
    """A future of the sum, added FAN_IN at a time where the parts are."""
    while len(parts) > 1:
        parts = [client.submit(_sum, parts[k : k + FAN_IN], pure=False) for k in range(0, len(parts), FAN_IN)]
    return parts[0]


def result_of(client: Any, future: Any) -> Any:
    """Its result; a cluster that has lost all workers for good is an error, not a wait without end."""
    alone = None
    while True:
        try:
            return future.result(timeout=POLL)
        except TimeoutError:
            if future.done():  # the task's own
                raise
            if client.nthreads():
                alone = None
            elif alone is None:
                alone = time.monotonic()
            elif time.monotonic() - alone > PATIENCE:
                future.cancel()
                raise GPXError(f"the cluster has had no workers for {PATIENCE:.0f} s: the fit was given up") from None
        except distributed.client.CancelledError as error:
            raise GPXError(
                f"a partition was lost with its worker and cannot be made again ({error}): give Dask collections"
            ) from None
