"""Training rows on a cluster of which given ones are read, and among which neighbours are found.

Every worker finds the best rows of its partitions, and the driver merges them in the order of the
partitions. If a worker is lost, Dask makes its partitions again and repeats its part only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import dask
import numpy as np

from ..data.indexed_rows import (
    AddedRows,
    IndexedRows,
    PassOverRows,
    bytes_per_row_of,
)
from ..data.inputs import Preprocessor, TrainingRows
from ..data.row_source import joined
from ..errors import InputError
from ..kernels.kernel import Kernel
from ..runtime.memory import available_memory, format_bytes
from ..runtime.session import Session
from .cluster import ALLOW_LARGE_GRAPHS, result_of
from .partition_tasks import itself, pass_over, take_rows

P = TypeVar("P", bound=PassOverRows)
R = TypeVar("R")
# Loaded rows take at most this share of the memory that is available to the driver.
LOADED_MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class ClusterRows(IndexedRows):
    """The training rows in standardised units, on the workers that scaled them.

    `source` has the rows as a sum needs them, `starts` the number of rows before each partition and
    before the end (partitions + 1,), and `first` some rows by which memory is measured.
    """

    source: Any
    starts: np.ndarray
    first: TrainingRows

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def n_weights(self) -> int:
        return self.first.n_weights

    @property
    def bytes_per_row(self) -> int:
        return bytes_per_row_of(self.first)

    def __getitem__(self, index: np.ndarray) -> TrainingRows:
        order, places = np.unique(np.asarray(index, np.int64), return_inverse=True)
        tasks = []
        with dask.config.set(ALLOW_LARGE_GRAPHS):
            cuts = np.searchsorted(order, self.starts)
            for k, (low, high) in enumerate(itertools.pairwise(cuts)):
                if low < high:
                    tasks.append(self._submit(take_rows, k, order[low:high] - self.starts[k]))
            found = [result_of(self.source.client, task) for task in tasks]
        return joined(found)[places] if found else self.first[:0]

    def run(self, task: P, session: Session) -> P:
        with dask.config.set(ALLOW_LARGE_GRAPHS):
            parts: list[tuple[Any, int]] = []
            for k, (start, stop) in enumerate(zip(self.starts[:-1], self.starts[1:], strict=True)):
                if start < stop:
                    mine = task.of_part(int(start), int(stop))
                    parts.append((self._submit(pass_over, k, mine, int(start)), int(stop)))
            for part, stop in parts:
                task.merge(result_of(self.source.client, part))
                session.journal.passed(stop, len(self))
        return task

    def _submit(self, function: Callable[..., Any], k: int, *arguments: Any) -> Any:
        """Start a task on partition k at the worker that has it."""
        source = self.source
        options = {"workers": source.homes[k], "allow_other_workers": True, "pure": False}
        return source.client.submit(function, source.inputs[k], *arguments, **options)

    def sum_over(self, task: Callable[[TrainingRows], R], session: Session) -> R:
        total: R = self.source.sum_over(task, session)
        return total

    def load(self) -> TrainingRows:
        needed = len(self) * self.bytes_per_row
        if needed > LOADED_MEMORY_SHARE * available_memory():
            raise InputError(
                f"The training rows are on the cluster, and take {format_bytes(needed)} here. Fit "
                "with solver='inducing', which keeps no rows, or use the model on the cluster."
            )
        client = self.source.client
        futures = [client.submit(itself, data, pure=False) for data in self.source.inputs]
        parts = [result_of(client, future) for future in futures]
        return joined([part for part in parts if part is not None])

    def local(self) -> TrainingRows:
        return self.load()

    def with_rows(self, more: TrainingRows) -> AddedRows:
        return AddedRows(self, more)

    def with_intercept(self) -> ClusterRows:
        first = self.first.with_intercept()
        return replace(self, source=self.source.with_intercept(), first=first)

    def fingerprint(self, kernel: Kernel) -> bytes:
        found: bytes = self.source.fingerprint(kernel)
        return found

    def must_fit(self, kernel: Any, preprocessor: Preprocessor, n_train: int | None = None) -> None:
        raise ValueError("its rows are on a cluster")

    def __reduce__(self) -> Any:
        """Return a copy in memory: a copy of a model is used without the cluster."""
        return itself, (self.load(),)
