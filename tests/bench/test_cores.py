"""Replays of parallel loops on many workers, and the work of their iterations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gpx_scale.linalg.lower_tiles import LowerTiles
from gpx_scale.runtime.parallel import Executor

BENCH = Path(__file__).resolve().parents[2] / "bench"
COUNTED = BENCH / "counted_flops.py"


@pytest.fixture
def bench(monkeypatch):
    """Import bench/replay.py."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield __import__("replay")
    for name in ("replay", "loop_work", "measure"):
        sys.modules.pop(name, None)


def run_alone(arguments, **environment):
    """Return what a fresh process prints, as JSON."""
    path = os.pathsep.join([str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_workers_of_a_loop_have_contiguous_shares(bench):
    region = bench.Region("loop", np.array([3.0, 1.0, 1.0, 1.0, 2.0]))
    assert [bench.finish(region, workers) for workers in (1, 2, 3, 16)] == [8.0, 5.0, 4.0, 3.0]


def test_workers_of_a_queue_take_the_next_piece(bench):
    region = bench.Region("blocks", np.array([3.0, 1.0, 1.0, 1.0, 2.0]), queue=True)
    assert [bench.finish(region, workers) for workers in (1, 2, 3, 16)] == [8.0, 5.0, 3.0, 3.0]
    longest_last = bench.Region("blocks", np.array([1.0, 1.0, 1.0, 3.0]), queue=True, least=4.5)
    assert [bench.finish(longest_last, workers) for workers in (1, 2, 4)] == [6.0, 4.5, 4.5]


def test_a_replay_adds_up_what_time_is_spent_on(bench):
    regions = [bench.Region("a", np.ones(6), 12e9), bench.Region("b", np.array([4.0, 2.0]))]
    found = bench.replay(regions, 1.0, 4, start=0.25)
    assert (found.serial, found.even, found.starts, found.bandwidth) == (1.0, 3.0, 0.5, 0.0)
    assert found.tail == {"a": 0.5, "b": 2.5}
    assert found.seconds == 7.5
    assert found.needed == 6e9
    # Memory that moves 3 GB/s takes four seconds for the first region, and not two.
    slow = bench.replay(regions, 1.0, 4, start=0.25, bandwidth=3e9)
    assert slow.bandwidth == 2.0
    assert slow.seconds == 9.5
    # One worker takes as long as all work.
    assert bench.replay(regions, 1.0, 1).seconds == 13.0


def test_a_share_of_threads_is_that_of_numba():
    code = """
import json, numba, numpy as np
from numba.np.ufunc.parallel import get_thread_id

@numba.njit(parallel=True)
def threads(out):
    for k in numba.prange(out.size):
        out[k] = get_thread_id()

found = {}
for workers in (2, 5, 16):
    numba.set_num_threads(workers)
    for count in (1, 3, 16, 20, 100):
        out = np.empty(count, np.int64)
        threads(out)
        found[f"{workers} {count}"] = out.tolist()
print(json.dumps(found if numba.threading_layer() == "omp" else None))
"""
    threads = {"NUMBA_NUM_THREADS": "16", "OMP_NUM_THREADS": "16"}
    found = run_alone(["-c", code], NUMBA_THREADING_LAYER="default", **threads)
    if found is None:
        pytest.skip("the threads of this machine are not those of OpenMP")
    for key, seen in found.items():
        workers, count = map(int, key.split())
        shares = np.array_split(np.arange(count), workers)
        assert seen == [t for t, share in enumerate(shares) for _ in share]


def test_seconds_of_work_follow_from_the_times_of_calls(bench):
    random = np.random.RandomState(0)
    true = np.array([2e-3, 5e-4])
    calls = []
    for count in (3, 7, 12):
        work = random.uniform(size=(count, 3))
        calls.append(bench.Call(("loop", False), [work], float((work[:, :2] @ true).sum())))
    found = bench.seconds_of_work(calls)
    assert_allclose(found["loop", False], true)
    (region,) = calls[0].regions(found)
    assert_allclose(region.seconds, calls[0].work[0][:, :2] @ true)
    assert region.bytes == pytest.approx(calls[0].work[0][:, 2].sum())


def tiles(n_jobs):
    X = np.random.RandomState(0).standard_normal((90, 93))
    return LowerTiles(90, 16, (X @ X.T / 93 + np.eye(90)).reshape(-1), n_jobs)


def test_a_recorded_run_has_its_results_and_calls(bench):
    plain, watched = tiles(1), tiles(16)
    plain.factor()
    with bench.recording() as record:
        watched.factor()
    assert_array_equal(watched.buffer, plain.buffer)
    if not record.calls:
        pytest.skip("numba has no threading layer here")
    assert {call.kind for call in record.calls} == {
        ("factor_column", False),
        ("update_rows", False),
    }
    rates = bench.seconds_of_work(record.calls)
    alone = record.replayed(rates, 1).seconds
    assert alone == pytest.approx(record.serial + sum(call.seconds for call in record.calls))
    assert record.replayed(rates, 16).seconds < alone
    # The same calls follow without the work.
    untouched = tiles(16)
    with bench.recording(rates) as composed:
        untouched.factor()
    assert_array_equal(untouched.buffer, tiles(16).buffer)
    assert [call.kind for call in composed.calls] == [call.kind for call in record.calls]
    for one, other in zip(composed.calls, record.calls, strict=True):
        assert_array_equal(np.vstack(one.work), np.vstack(other.work))


def test_blocks_of_python_s_workers_are_recorded(bench):
    def doubled(block):
        return 2.0 * block

    with Executor(16) as executor, bench.recording() as record:
        total = executor.sum_over(doubled, [np.ones(3), np.ones(3)])
        assert executor.map(len, ["a", "bc"]) == [1, 2]
    assert_array_equal(total, np.full(3, 4.0))
    assert [region.seconds.size for region in record.queues] == [2, 2]
    assert all(region.queue for region in record.queues)


def test_the_work_of_iterations_is_what_blas_is_asked_for():
    compared = run_alone([str(COUNTED)], NUMBA_DISABLE_JIT="1")
    assert {
        *("factor_column", "update_rows", "solve_rows", "invert_diagonal_tiles", "square_row"),
        *("multiply_block_rows", "multiply_block_columns", "contract_inverse", "multiply_stored"),
        *("multiply_transposed", "multiply", "gram_tiles", "contract_product"),
    } <= set(compared)
