"""Training rows on a Dask cluster: partitions stay on their workers, and sums of them come back.

The driver has a subset of the rows and matrices of m x m numbers; the search for hyperparameters,
the inducing points and the posterior are those of `GPXRegressor`. A fit reads every partition once:
the worker that read it holds it until all partitions are surveyed and it can be scaled. A partition
that its worker has no memory for is read a second time. If a worker is lost, Dask makes its
partitions again from the collection, and computes again what was being computed with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import dask
import distributed
import numpy as np
from dask.delayed import delayed

from ..data.chunks import ChunkChecksum
from ..data.indexed_rows import MEASURED_ROWS
from ..data.inputs import InputTransforms, TrainingRows
from ..data.row_source import ReportProgress, ignore_progress, least
from ..data.stream import Survey, SurveyedRows, SurveyOptions
from ..errors import InputError
from ..runtime.session import Session
from .cluster import (
    ALLOW_LARGE_GRAPHS,
    compute_at,
    raise_with_row,
    result_of,
    sum_by_tree,
    workers_of,
)
from .cluster_rows import ClusterRows
from .partition_tasks import (
    Sample,
    has_room,
    itself,
    rows_of_survey,
    scale_partition,
    sum_over,
    survey_partition,
    with_intercept,
)
from .partitions import name_of_partition

# While partitions are read, the driver looks this often for workers whose memory is full. Few disks
# read as much as a gigabyte in this time.
MEMORY_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class DaskRows(SurveyedRows):
    """The training rows in standardised units, on the workers that scaled them.

    `inputs` are futures of the scaled partitions, `homes` are the workers that have them, and
    `drawn` is a subset of the rows in the memory of the driver.
    """

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
        """Survey all partitions, then scale them and leave them on their workers."""
        workers = workers_of(client)
        homes = [workers[k * len(workers) // len(partitions)] for k in range(len(partitions))]
        with dask.config.set(ALLOW_LARGE_GRAPHS):
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
                delayed(scale_partition)(part, sent, one.name, start, options.standardize, one)
                for part, one, start in zip(parts, before, starts, strict=True)
            ]
            # Partitions that are held take the first turn, so that they are released before others
            # are read again.
            turns = [0 if isinstance(part, distributed.Future) else 1 for part in parts]
            inputs = compute_at(client, scaled, homes, turns)
            # Dask releases a held partition when its scaled rows are there and nothing else
            # refers to it.
            del parts, scaled
            samples = [
                client.submit(Sample.of, data, start, options.keep, options.seed, pure=False)
                for data, start in zip(inputs, starts, strict=True)
            ]
            drawn = result_of(client, sum_by_tree(client, samples))
        return cls(survey, preprocessor, options.standardize, client, inputs, homes, drawn)

    def subset(self, count: int) -> TrainingRows:
        """Return the `count` rows with the smallest keys of those that the driver has."""
        return self.drawn.data[least(self.drawn.keys, count)]

    @property
    def is_indexed(self) -> bool:
        return True

    def indexed(self) -> ClusterRows:
        return self._on_cluster

    @cached_property
    def _on_cluster(self) -> ClusterRows:
        """Return the rows as those of the cluster, the same object at every call."""
        known = {one.name: one.rows for one in self.survey.prints}
        names = map(name_of_partition, range(len(self.inputs)))
        starts = np.cumsum([0, *(known.get(name, 0) for name in names)])
        return ClusterRows(self, starts, self.subset(MEASURED_ROWS))

    def with_intercept(self) -> DaskRows:
        """Return the same rows with the column of an intercept, which the workers add."""
        inputs = [
            self.client.submit(
                with_intercept, data, workers=home, allow_other_workers=True, pure=False
            )
            for data, home in zip(self.inputs, self.homes, strict=True)
        ]
        return replace(
            self,
            preprocessor=self.preprocessor.with_intercept(),
            inputs=inputs,
            drawn=replace(self.drawn, data=self.drawn.data.with_intercept()),
        )

    def sum_over(self, task: Callable[[TrainingRows], Any], session: Session) -> Any:
        """Return the sum of a task over all partitions, computed where they are."""
        with dask.config.set(ALLOW_LARGE_GRAPHS):
            sent = self.client.submit(itself, task, pure=False)
            sums = [
                self.client.submit(
                    sum_over, sent, data, workers=home, allow_other_workers=True, pure=False
                )
                for data, home in zip(self.inputs, self.homes, strict=True)
            ]
            self._tell_when_done(sums, session)
            total = sum_by_tree(self.client, sums)
            # The sum of one partition is not kept after it is added to the others.
            del sums
            found = result_of(self.client, total)
        session.journal.passed(len(self), len(self))
        return found

    def _tell_when_done(self, sums: list[Any], session: Session) -> None:
        """Report how many rows are passed whenever the sum of a partition is done."""
        known = {one.name: one.rows for one in self.survey.prints}
        passed: list[int] = []

        def tell(rows: int, _: Any) -> None:
            passed.append(rows)
            session.journal.passed(sum(passed), len(self))

        for k, future in enumerate(sums):
            rows = known.get(name_of_partition(k), 0)
            future.add_done_callback(partial(tell, rows))


def surveyed(
    client: Any, partitions: list[Any], homes: list[str], transforms: InputTransforms
) -> tuple[Survey, list[Any]]:
    """Return the survey of all partitions, and the partitions.

    A partition that its worker holds is a future; one that its worker has no memory for is the task
    that reads it again.
    """
    count, sent = len(partitions), client.submit(itself, transforms, pure=False)

    def survey_of(k: int, part: Any, start: int | None = None) -> Any:
        return delayed(survey_partition)(part, sent, name_of_partition(k), start)

    tasks = [
        *partitions,
        *map(survey_of, range(count), partitions),
        *map(delayed(has_room), partitions),
    ]
    futures = compute_at(client, tasks, 3 * homes)
    parts, surveys, rooms = futures[:count], futures[count : 2 * count], futures[2 * count :]
    del futures
    waiting = set(range(count))

    def release() -> None:
        """Drop the futures of partitions that their workers have no memory for."""
        for k in [k for k in waiting if rooms[k].done()]:
            waiting.remove(k)
            if rooms[k].status == "finished" and not result_of(client, rooms[k]):
                parts[k] = partitions[k]

    try:
        survey = result_of(client, sum_by_tree(client, surveys), MEMORY_POLL_SECONDS, release)
    except InputError:
        counts = [client.submit(rows_of_survey, one, pure=False) for one in surveys]
        raise_with_row(client, counts, lambda k, start: survey_of(k, parts[k], start))
        raise
    if survey is None:
        raise InputError("The partitions have no rows. Give at least one partition with rows.")
    held = result_of(client, client.submit(itself, rooms, pure=False))
    return survey, [
        part if room else again for part, again, room in zip(parts, partitions, held, strict=True)
    ]
