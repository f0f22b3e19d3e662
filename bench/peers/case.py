"""Tasks and their entries, and how one entry runs: in this process, or in a process of its
own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import psutil

from measure import resident_peak

# Every entry has this number of threads.
THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
BENCH = Path(__file__).resolve().parents[1]
DATA = BENCH.parents[1] / "shared" / "data"
# An entry that takes less than this is measured three times.
QUICK_SECONDS = 10.0
# Every entry runs on the small rows first, which is not counted. The tiny rows are those of --tiny.
SIZES = ("full", "tiny", "small")


class RowSource(NamedTuple):
    """The rows of a task: X (n, p) and y (n,) for training, Xq (m, p) and yq (m,) as queries.

    Z and Zq are given if they differ from X, and `true` are the true weights of the queries,
    if they are known.
    """

    X: np.ndarray
    y: np.ndarray
    Xq: np.ndarray
    yq: np.ndarray
    Z: np.ndarray | None = None
    Zq: np.ndarray | None = None
    true: np.ndarray | None = None


class Entry(Protocol):
    """A method: `fit` learns from rows, and `answer` returns what the task asks for, which its
    `score` takes.
    """

    def fit(self, rows: RowSource) -> None: ...

    def answer(self, rows: RowSource) -> Any: ...


@dataclass(frozen=True)
class Task:
    """A question about data, which our entries and those of peers answer.

    - `title` says what is done, with `{n}` for the number of training rows and `{m}` for that of
      queries.
    - `data` maps one of SIZES to rows.
    - `error` names the "error" that `score` (rows, answer, fitted entry) returns; less is better.
    - `ours` and `peers` map a name to a maker of an entry.
    - `counts_fit` is whether the time is that of `fit` and `answer`, or of `answer` alone.
    - `least` is how many times faster than every peer our entry should be, by its name.
    - `memory` is the number of bytes that our entries should stay below.
    """

    title: str
    data: Callable[[str], RowSource]
    error: str
    score: Callable[[RowSource, Any, Any], dict[str, float]]
    ours: dict[str, Callable[[], Entry]]
    peers: dict[str, Callable[[], Entry]]
    counts_fit: bool = True
    least: dict[str, float] | None = None
    memory: float | None = None

    def entry(self, who: str) -> Entry:
        """Return a new entry by its name."""
        return (self.ours | self.peers)[who]()


def loaded(name: str, **sizes: tuple[int, int | None]) -> Callable[[str], RowSource]:
    """Return the data of a loader of `gpx_scale.datasets`, split by `split`: (test, train)
    rows for each size.
    """

    def data(size: str) -> RowSource:
        from gpx_scale import datasets

        found = getattr(datasets, f"load_{name}")()
        return split(found.X, found.y, *sizes[size])

    return data


def split(X: Any, y: Any, test: int, train: int | None) -> RowSource:
    """Hold out `test` rows, and take at most `train` of the others.

    X and y are standardised by the training rows.
    """
    order = np.random.RandomState(0).permutation(len(y))
    rows, new = order[test:][:train], order[:test]
    shift, scale = X[rows].mean(axis=0), X[rows].std(axis=0)
    scale[scale == 0] = 1.0
    X, y = (X - shift) / scale, (y - y[rows].mean()) / y[rows].std()
    return RowSource(X[rows], y[rows], X[new], y[new])


def mse(rows: RowSource, predicted: Any, entry: Any) -> dict[str, float]:
    """Return the mean squared error of predictions."""
    return {"error": float(np.mean((predicted - rows.yq) ** 2))}


def run(task: Task, who: str, tiny: bool) -> dict[str, Any]:
    """Return seconds of `fit` and `answer`, peak memory and error of an entry.

    `compile` is how much longer our first run took than the second.
    """

    def once(rows: RowSource) -> tuple[float, float, Any, Entry]:
        entry = task.entry(who)
        start = time.perf_counter()
        entry.fit(rows)
        fitted = time.perf_counter()
        answer = entry.answer(rows)
        return fitted - start, time.perf_counter() - fitted, answer, entry

    try:
        few, rows = task.data("small"), task.data("tiny" if tiny else "full")
    except Exception as failed:  # The data do not depend on the entry.
        raise SystemExit(f"The data cannot be loaded: {failed!r}") from failed
    found: dict[str, Any] = {}
    first = sum(once(few)[:2])
    if who in task.ours:
        found["compile"] = max(0.0, first - sum(once(few)[:2]))
    *first_time, said, entry = once(rows)
    times = [first_time]
    while not tiny and len(times) < 3 and sum(first_time) < QUICK_SECONDS:
        del said, entry  # Only one model at a time is to count as memory.
        *another, said, entry = once(rows)
        times.append(another)
    fit, answer = map(statistics.median, zip(*times, strict=True))
    found |= {
        "n": len(rows.y),
        "m": len(rows.yq),
        "fit": fit,
        "answer": answer,
        "seconds": fit * task.counts_fit + answer,
    }
    # The memory is read before the score, which is not part of the task.
    found |= {"runs": len(times), "memory": resident_peak()}
    found |= task.score(rows, said, entry)
    if not np.isfinite(found["error"]):
        raise ArithmeticError(f"{task.error} is {found['error']}.")
    return found


def command(key: str, who: str, tiny: bool) -> list[str]:
    """Return the command that runs an entry in a process of its own."""
    return [sys.executable, "-m", "peers", "--case", key, who, *(["--tiny"] if tiny else [])]


def alone(key: str, who: str, tiny: bool, limit: float) -> dict[str, Any]:
    """Run an entry in a process of its own, for at most `limit` seconds.

    "status" is "ok", "out of time", or "failed" with a "reason".
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    with (
        tempfile.TemporaryDirectory() as cache,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        env = os.environ | dict.fromkeys(names, str(THREADS)) | {"NUMBA_CACHE_DIR": cache}
        env["PYTHONPATH"] = os.pathsep.join([str(BENCH), *filter(None, [env.get("PYTHONPATH")])])
        if DATA.is_dir():
            env.setdefault("GPX_SCALE_DATA", str(DATA))
        process = subprocess.Popen(
            command(key, who, tiny), stdout=out, stderr=err, env=env, start_new_session=True
        )
        try:
            whole, others = _watched(process, limit)
        except TimeoutError as stopped:
            return {"status": "out of time", "limit": limit, "memory": stopped.args[0]}
        finally:
            _end(process)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            said = [
                f"exit {process.returncode}",
                *filter(None, map(str.strip, err.read().splitlines())),
            ][-1][:200]
            reason = f"ended by signal {-process.returncode}" if process.returncode < 0 else said
            return {"status": "failed", "reason": reason, "memory": whole}
        found = json.loads(out.read().strip().splitlines()[-1])
    return {"status": "ok"} | found | {"memory": found["memory"] + others}


def _watched(process: subprocess.Popen, limit: float) -> tuple[int, int]:
    """Wait for a process, and return the peak of resident bytes with its workers, and of the
    workers alone.

    Memory is read four times per second.
    """
    start, whole, others = time.perf_counter(), 0, 0
    while process.poll() is None:
        if time.perf_counter() - start > limit:
            raise TimeoutError(whole)
        try:
            root = psutil.Process(process.pid)
            own, workers = (
                root.memory_info().rss,
                sum(child.memory_info().rss for child in root.children(recursive=True)),
            )
            whole, others = max(whole, own + workers), max(others, workers)
        except psutil.Error:  # One of the processes has just ended.
            pass
        time.sleep(0.25)
    return whole, others


def _end(process: subprocess.Popen) -> None:
    """End the process and everything that it has started, which share its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
