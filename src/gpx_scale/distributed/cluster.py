"""How work runs on a Dask cluster: its workers, tasks at chosen workers, results and sums."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import distributed

from ..errors import GPXError, InputError
from .partition_tasks import add_together

# A tree of additions adds four sums at a time.
FAN_IN_SUMS = 4
# A fit waits this long for the first worker of a cluster.
FIRST_WORKER_WAIT_SECONDS = 10.0
# While it waits for a result, the driver looks this often whether the cluster still has workers.
POLL_SECONDS = 2.0
# A running fit gives up after this long without any worker.
NO_WORKER_LIMIT_SECONDS = 60.0
# Matrices of m x m numbers go with every pass over the rows, so Dask's warning of large graphs is
# switched off.
ALLOW_LARGE_GRAPHS = {"distributed.admin.large-graph-warning-threshold": "1TiB"}


def client_of(client: Any) -> Any:
    """Return the given client, or the one in use, once its cluster has a worker."""
    if client is None:
        try:
            client = distributed.default_client()
        except ValueError:
            raise InputError(
                "There is no Dask client. Give client=distributed.Client(...)."
            ) from None
    try:
        client.wait_for_workers(1, timeout=FIRST_WORKER_WAIT_SECONDS)
    except TimeoutError:
        raise GPXError(
            f"The cluster has no workers: none came within {FIRST_WORKER_WAIT_SECONDS:.0f} s. "
            "Start some, or fit with GPXRegressor."
        ) from None
    return client


def workers_of(client: Any) -> list[str]:
    """Return the addresses of the workers; wait for one if all have just gone.

    `client.scheduler_info()` would not do: it is a copy, which a timer replaces every two seconds
    by one that lists no workers.
    """
    while not (workers := sorted(client.nthreads())):
        client_of(client)
    return workers


def compute_at(
    client: Any, tasks: list[Any], homes: list[str], turns: list[int] | None = None
) -> list[Any]:
    """Start every task at the worker that is its home, and return the futures of the tasks.

    Tasks with the same turn and home are one graph. Graphs of turn 0 start before those of turn 1.
    Within one graph, Dask surveys partitions soon after it has read them, so few unsurveyed ones
    are in memory. It starts graphs in the order in which they are submitted only if their
    `fifo_timeout` is zero.
    """
    futures: dict[int, Any] = {}
    groups = list(zip(turns or [0] * len(tasks), homes, strict=True))
    for group in sorted(set(groups)):
        members = [k for k in range(len(tasks)) if groups[k] == group]
        options = {"workers": group[1], "allow_other_workers": True, "fifo_timeout": "0s"}
        started = client.compute([tasks[k] for k in members], **options)
        futures.update(zip(members, started, strict=True))
    return [futures[k] for k in range(len(tasks))]


def sum_by_tree(client: Any, parts: list[Any]) -> Any:
    """Return a future of the sum of `parts`, which workers add FAN_IN_SUMS at a time."""
    while len(parts) > 1:
        groups = [parts[k : k + FAN_IN_SUMS] for k in range(0, len(parts), FAN_IN_SUMS)]
        # Additions go before other tasks. With 64 partitions, 11 to 22 sums are then in memory at
        # once, instead of 51.
        parts = [client.submit(add_together, group, pure=False, priority=1) for group in groups]
    return parts[0]


def result_of(
    client: Any,
    future: Any,
    poll: float = POLL_SECONDS,
    meanwhile: Callable[[], None] | None = None,
) -> Any:
    """Return the result of a future.

    A cluster that has had no workers for a minute is an error. `meanwhile` is called every `poll`
    seconds until the result is there.
    """
    alone = None
    while True:
        try:
            # A result that is there may still take longer than `poll` to arrive.
            return future.result(timeout=NO_WORKER_LIMIT_SECONDS if future.done() else poll)
        except TimeoutError:
            if future.status == "error":
                # This raises the error of the task, which may be a TimeoutError of its own.
                return future.result()
            if meanwhile is not None:
                meanwhile()
            if client.nthreads():
                alone = None
            elif alone is None:
                alone = time.monotonic()
            elif time.monotonic() - alone > NO_WORKER_LIMIT_SECONDS:
                future.cancel()
                raise GPXError(
                    f"The fit was given up: the cluster has had no workers for "
                    f"{NO_WORKER_LIMIT_SECONDS:.0f} s. Start workers and fit again."
                ) from None
        except distributed.CancelledError as error:
            raise GPXError(
                f"A partition was lost with its worker and cannot be made again ({error}). "
                "Give Dask collections, which Dask can compute a second time."
            ) from None


def raise_with_row(client: Any, counts: list[Any], again: Callable[[int, int], Any]) -> None:
    """Repeat the first task that failed with the number of rows before it, and raise its error.

    A task does not know how many rows come before its partition, so its first error cannot number
    the row among all. `counts` are futures of the number of rows per partition, which fail where
    the partition did; `again(k, start)` is the task of partition k with `start` rows before it.
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
