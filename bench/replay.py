"""Record the parallel regions of a run on one core, and replay them on any number of workers.

Every parallel loop over tiles has a known schedule: numba gives each thread a contiguous share of
the iterations, and all threads wait for each other at the end. In a record, loops are executed by
their serial twins, one after the other. The time of each call is measured, and the work of its
iterations is known (bench/loop_work.py). From the times of many calls follow the seconds of each
kind of work, and from these the seconds of each iteration. Blocks of rows, which Python's threads
take one by one, are timed one by one. Whatever runs between these regions is the serial part.
"""

from __future__ import annotations

import heapq
import operator
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from unittest import mock

import numpy as np
from scipy.optimize import nnls

import loop_work
from gpx_scale.compiled import low_rank, tiles
from gpx_scale.runtime.parallel import Executor
from gpx_scale.runtime.tile_loops import Threads
from measure import seconds

# A kind of region counts for the bandwidth that is needed if it takes this share of the time.
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Region:
    """A part of a run that is divided among workers, who wait for each other at its end.

    `seconds` are those of its pieces on one core, in their order, and `bytes` are what all of them
    move. Workers have contiguous shares of the pieces. If it is a `queue`, a worker that is free
    takes the next piece instead, and the region takes `least` seconds on any number of workers.
    """

    name: str
    seconds: np.ndarray
    bytes: float = 0.0
    queue: bool = False
    least: float = 0.0


def finish(region, workers):
    """Return when the last worker is done with a region."""
    if not region.queue:
        # numba divides the iterations of a loop among its threads in the same way.
        return max(float(share.sum()) for share in np.array_split(region.seconds, workers))
    free = [0.0] * workers
    for piece in region.seconds:
        heapq.heapreplace(free, free[0] + float(piece))
    return max(*free, region.least)


@dataclass
class Replay:
    """The seconds of a run on some workers, by what they are spent on.

    `even` is the time of all regions if their work could be divided evenly, and `tail` is the time
    that they take longer, by their names. `starts` is the time to start and end regions, and
    `bandwidth` is the time by which memory delays them. `needed` is the largest number of bytes per
    second of the regions of one name, without those that take little of the time.
    """

    serial: float
    even: float = 0.0
    starts: float = 0.0
    bandwidth: float = 0.0
    tail: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    needed: float = 0.0

    @property
    def seconds(self):
        """Return the seconds of the whole run."""
        spent = self.serial + self.even + self.starts + self.bandwidth
        return spent + sum(self.tail.values())


def replay(regions, serial, workers, start=0.0, bandwidth=np.inf):
    """Return the replay of a run that has `serial` seconds between its regions.

    A region takes `start` seconds more, and it takes no less than its bytes at the `bandwidth`.
    """
    found = Replay(serial)
    took, moved = defaultdict(float), defaultdict(float)
    for region in regions:
        even, last = float(region.seconds.sum()) / workers, finish(region, workers)
        found.even += even
        found.tail[region.name] += last - even
        found.starts += start
        found.bandwidth += max(0.0, region.bytes / bandwidth - last)
        took[region.name] += last
        moved[region.name] += region.bytes
    rates = [moved[name] / s for name, s in took.items() if s > LEAST_SHARE * found.seconds]
    found.needed = max(rates, default=0.0)
    return found


@dataclass(frozen=True)
class Call:
    """A call of a loop: the work of each of its regions, and its seconds on one core.

    The `kind` is the name of the loop and whether it is float32. The seconds are None if the call
    was not executed.
    """

    kind: tuple[str, bool]
    work: list[np.ndarray]
    seconds: float | None

    @classmethod
    def of(cls, loop, arguments, took):
        """Return the record of a call."""
        name = loop.serial.py_func.__name__.removesuffix("_serial")
        work = getattr(loop_work, name)(*arguments)
        is_single = any(getattr(one, "dtype", None) == np.float32 for one in arguments)
        return cls((name, is_single), work if isinstance(work, list) else [work], took)

    def regions(self, rates):
        """Return the regions, given the seconds of each kind of work."""
        iterations = [one[:, :-1] @ rates[self.kind] for one in self.work]
        total = sum(float(one.sum()) for one in iterations)
        if not total:
            return [Region(self.kind[0], np.array([self.seconds or 0.0]))]
        scale = 1.0 if self.seconds is None else self.seconds / total
        return [
            Region(self.kind[0], scale * one, float(work[:, -1].sum()))
            for one, work in zip(iterations, self.work, strict=True)
        ]


def seconds_of_work(calls):
    """Return {kind: seconds of each kind of work}, by least squares from the times of calls."""
    alike = defaultdict(list)
    for call in calls:
        alike[call.kind].append(call)
    found = {}
    for kind, some in alike.items():
        amounts = np.array([sum(one[:, :-1].sum(axis=0) for one in call.work) for call in some])
        scale = np.maximum(amounts.max(axis=0), 1.0)
        found[kind] = nnls(amounts / scale, np.array([call.seconds for call in some]))[0] / scale
    return found


@dataclass
class Record:
    """A run on one core: calls of loops, regions of Python's threads, and the serial seconds."""

    calls: list[Call] = field(default_factory=list)
    queues: list[Region] = field(default_factory=list)
    serial: float = 0.0

    def replayed(self, rates, workers, start=0.0, bandwidth=np.inf):
        """Return the replay on some workers, given the seconds of each kind of work."""
        regions = [*self.queues, *(one for call in self.calls for one in call.regions(rates))]
        return replay(regions, self.serial, workers, start, bandwidth)


@contextmanager
def recording(rates=None):
    """Yield the record of what runs inside `with`, in which every loop runs serially.

    With `rates`, the seconds of each kind of work, loops are not executed at all. Their results are
    undefined then, and the record has the serial parts and the calls that a run would make.
    """
    record, apart = Record(), 0.0

    def run(threads, loop, *arguments):
        nonlocal apart
        is_parallel, began = threads._lock is not None, time.perf_counter()
        # The precision of a preconditioner depends on the results of `square_rows`.
        if rates is None or loop is low_rank.square_rows:
            loop.serial(*arguments)
        took = time.perf_counter() - began
        if rates is None and not is_parallel:
            return  # This is part of the serial seconds.
        call = Call.of(loop, arguments, took if rates is None else None)
        if is_parallel:
            record.calls.append(call)
        else:
            record.serial += sum(float(one.seconds.sum()) for one in call.regions(rates))
        apart += time.perf_counter() - began

    def timed_map(executor, function, items):
        nonlocal apart
        began, pieces, results = time.perf_counter(), [], []
        for item in items:
            start = time.perf_counter()
            results.append(function(item))
            pieces.append(time.perf_counter() - start)
        record.queues.append(Region("Python's workers", np.array(pieces), queue=True))
        apart += time.perf_counter() - began
        return results

    def timed_sum(executor, function, items):
        nonlocal apart
        began, pieces, total, adding, held = time.perf_counter(), [], None, 0.0, 0.0
        for item in items:
            # Python's lock is held for no longer than a block of a single row takes.
            held = held or seconds(partial(function, item[:1]))
            start = time.perf_counter()
            found = function(item)
            done = time.perf_counter()
            total = found if total is None else operator.iadd(total, found)
            pieces.append(done - start)
            adding += time.perf_counter() - done
        least = max(adding, held * len(pieces))
        record.queues.append(Region("Python's workers", np.array(pieces), 0.0, True, least))
        apart += time.perf_counter() - began
        return total

    with ExitStack() as patches:
        replaced = [
            (Threads, "run", run),
            (Executor, "map", timed_map),
            (Executor, "sum_over", timed_sum),
        ]
        if rates is not None:
            # A first tile that was not filled has no Cholesky factor.
            replaced.append((tiles, "factor_first_tile", lambda *_: 0))
        for owner, name, other in replaced:
            patches.enter_context(mock.patch.object(owner, name, other))
        began = time.perf_counter()
        yield record
        record.serial += time.perf_counter() - began - apart
