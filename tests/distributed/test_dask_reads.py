"""A fit on Dask reads a partition once if its worker can hold it, and never more than twice."""

import os
import signal
import time
import weakref
from collections import Counter
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from gpx_scale import GPXRegressor, InputError
from gpx_scale.data.chunks import source_of
from gpx_scale.data.inputs import InputTransforms
from gpx_scale.data.stream import ChunkChecksum, StreamRows, SurveyOptions
from gpx_scale.datasets import synth10

dask = pytest.importorskip("dask", reason="needs the [dask] extra")
dd = pytest.importorskip("dask.dataframe", reason="needs the [dask] extra")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

import gpx_scale.distributed  # noqa: E402
from gpx_scale.distributed import DaskGPXRegressor, partition_tasks  # noqa: E402
from gpx_scale.distributed.cluster import result_of  # noqa: E402
from gpx_scale.distributed.dask_rows import DaskRows  # noqa: E402
from gpx_scale.distributed.partitions import partitions_of  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default")
]  # Dask warns of files and sockets that it closes later.
PARTITIONS, ROWS = 4, 300
X, y, NAMES = synth10(PARTITIONS * ROWS)
X = 3.0 + 2.0 * X
FRAME = pd.DataFrame(X, columns=NAMES).assign(target=y)
ARGUMENTS = {"n_inducing": 25, "random_state": 0, "optimizer": None}
HOW = SurveyOptions(keep=100, seed=5, standardize=True, fit_intercept=True)


@pytest.fixture(scope="module")
def client():
    """Two workers that are threads of this process, so that tests can replace what they run."""
    options = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": ":0",
    }
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def local():
    return GPXRegressor(solver="inducing", **ARGUMENTS).fit(X, y)


@pytest.fixture
def room(monkeypatch):
    """Decide for which partitions the workers have room, which otherwise depends on the machine."""
    return lambda decide: monkeypatch.setattr(
        gpx_scale.distributed.dask_rows, "has_room", decide, raising=False
    )


@pytest.fixture
def forget(monkeypatch):
    """Wait after the survey until Dask has forgotten the partitions that are not held.

    It may otherwise do so too late for a second read.
    """
    survey = gpx_scale.distributed.dask_rows.surveyed

    def survey_and_wait(client, *arguments):
        found, parts = survey(client, *arguments)
        keys = {str(part.key) for part in parts if dask.is_dask_collection(part)}
        assert wait_until(
            lambda: keys.isdisjoint(
                str(key) for key, workers in client.who_has().items() if workers
            )
        )
        return found, parts

    monkeypatch.setattr(gpx_scale.distributed.dask_rows, "surveyed", survey_and_wait)


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


class Source:
    """A source that writes a line into a file for every partition that is read from it."""

    def __init__(self, folder):
        self.file = os.fspath(folder / "reads")

    def frame(self, k):
        with open(self.file, "a") as file:
            file.write(f"{k}\n")
        return FRAME[k * ROWS : (k + 1) * ROWS]

    def table(self, k):
        return self.frame(k).to_numpy()

    def pair(self, k):
        table = self.table(k)
        return table[:, :-1], table[:, -1]

    def reads(self):
        """Return how often each partition has been read since the last call."""
        with open(self.file) as file:
            counts = Counter(map(int, file))
        os.remove(self.file)
        return [counts[k] for k in range(PARTITIONS)]


def must_agree(model, local):
    queries = FRAME[NAMES] if hasattr(model, "feature_names_in_") else X
    assert_allclose(model.predict(queries), local.predict(X), atol=1e-10)


def array_of(source, rows=ROWS):
    blocks = [
        da.from_delayed(dask.delayed(source.table)(k), (rows, len(NAMES) + 1), float)
        for k in range(PARTITIONS)
    ]
    return da.concatenate(blocks, allow_unknown_chunksizes=True)


def known_chunks(source):
    A = array_of(source)
    return A[:, :-1], A[:, -1]


def unknown_chunks(source):
    A = array_of(source, np.nan)
    return A[:, :-1], A[:, -1]


def chunks_cut_otherwise(source):
    A = array_of(source)
    return A[:, :-1].rechunk((200, 3)), A[:, -1]


def dataframe(source):
    return dd.from_delayed(
        [dask.delayed(source.frame)(k) for k in range(PARTITIONS)], meta=FRAME[:0]
    ), "target"


def mapped_dataframe(source):
    return dd.from_map(source.frame, range(PARTITIONS), meta=FRAME[:0]), "target"


def frame_and_series(source):
    frame, target = mapped_dataframe(source)
    return frame[NAMES], frame[target]


def array_of_a_dataframe(source):
    A = mapped_dataframe(source)[0].to_dask_array()
    return A[:, :-1], A[:, -1]


COLLECTIONS = [
    known_chunks,
    unknown_chunks,
    chunks_cut_otherwise,
    dataframe,
    mapped_dataframe,
    frame_and_series,
    array_of_a_dataframe,
]


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_x_and_y_of_one_source_share_what_is_read(client, tmp_path, collection):
    source = Source(tmp_path)
    X_part, y_part, Z_part = client.gather(
        client.compute(partitions_of(*collection(source), None))
    )[1]
    assert source.reads() == [1] * PARTITIONS
    assert len(X_part) == len(y_part)
    assert_array_equal(np.asarray(X_part), X[len(y_part) : 2 * len(y_part)])
    assert Z_part is None


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_a_fit_reads_every_partition_once(client, local, room, tmp_path, collection):
    room(lambda parts: True)
    source = Source(tmp_path)
    model = DaskGPXRegressor(client, **ARGUMENTS).fit(*collection(source))
    assert source.reads() == [1] * PARTITIONS
    must_agree(model, local)


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_a_partial_fit_reads_every_partition_once(client, room, tmp_path, collection):
    source = Source(tmp_path)
    model = DaskGPXRegressor(client, **ARGUMENTS).fit(*collection(source))
    source.reads()
    model.partial_fit(*collection(source))
    assert source.reads() == [1] * PARTITIONS
    assert model.fit_report_.n_samples == 2 * len(y)


@pytest.mark.parametrize("has_room", [True, False])
def test_futures_are_computed_once(client, local, room, tmp_path, has_room):
    room(lambda parts: has_room)
    source = Source(tmp_path)
    futures = [client.submit(source.pair, k, pure=False) for k in range(PARTITIONS)]
    model = DaskGPXRegressor(client, **ARGUMENTS).fit(futures).partial_fit(futures)
    assert source.reads() == [1] * PARTITIONS
    assert model.fit_report_.n_samples == 2 * len(y)


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_partitions_that_workers_have_no_room_for_are_read_twice(
    client, local, room, forget, tmp_path, collection
):
    room(lambda parts: False)
    source = Source(tmp_path)
    model = DaskGPXRegressor(client, **ARGUMENTS).fit(*collection(source))
    assert source.reads() == [2] * PARTITIONS
    must_agree(model, local)


def test_a_worker_holds_what_fits(client, local, room, forget, tmp_path):
    room(lambda parts: float(parts[1][0]) in (y[0], y[2 * ROWS]))
    source = Source(tmp_path)
    model = DaskGPXRegressor(client, **ARGUMENTS).fit(*known_chunks(source))
    assert source.reads() == [1, 2, 1, 2]
    must_agree(model, local)


class LastWaits:
    """Tables whose last one waits for a while, until an earlier one has left the memory."""

    tables: ClassVar[list[weakref.ref]] = []
    seen_free = False

    @classmethod
    def table(cls, k, seconds):
        table = np.column_stack([X, y])[
            k * ROWS : (k + 1) * ROWS
        ].copy()  # the owner of its memory, to which slices refer
        cls.tables.append(weakref.ref(table))
        if len(cls.tables) == PARTITIONS:
            cls.seen_free = wait_until(
                lambda: any(other() is None for other in cls.tables), seconds
            )
        return table


@pytest.mark.parametrize(("has_room", "seconds"), [(True, 0.5), (False, 20.0)])
def test_partitions_without_room_leave_the_memory_before_all_are_read(
    client, room, monkeypatch, has_room, seconds
):
    room(lambda parts: has_room)
    monkeypatch.setattr(LastWaits, "tables", [])
    monkeypatch.setattr(LastWaits, "seen_free", False)
    shape = ROWS, len(NAMES) + 1
    A = da.concatenate(
        [
            da.from_delayed(dask.delayed(LastWaits.table)(k, seconds), shape, float)
            for k in range(PARTITIONS)
        ]
    )
    DaskGPXRegressor(client, **ARGUMENTS).fit(A[:, :-1], A[:, -1])
    assert LastWaits.seen_free is not has_room


def test_partitions_are_not_held_beside_their_scaled_rows(client, room, monkeypatch):
    """When a fit begins to search, no table of its source is in memory any more."""
    room(lambda parts: True)
    monkeypatch.setattr(LastWaits, "tables", [])
    shape = ROWS, len(NAMES) + 1
    A = da.concatenate(
        [
            da.from_delayed(dask.delayed(LastWaits.table)(k, 0.0), shape, float)
            for k in range(PARTITIONS)
        ]
    )
    rows = DaskRows.open(
        client,
        partitions_of(A[:, :-1], A[:, -1], None),
        InputTransforms("vectors", None, None),
        HOW,
    )
    assert len(LastWaits.tables) == PARTITIONS
    assert wait_until(lambda: all(table() is None for table in LastWaits.tables))
    assert len(rows) == len(y)


@pytest.mark.parametrize(
    ("limit", "used", "free_on_machine", "expected"),
    [
        (1000, 500, 4000, True),
        (1000, 501, 4000, False),
        (1000, 100, 499, False),  # Other processes have taken the memory.
        (None, 100, 2000, True),
        (
            None,
            100,
            1999,
            False,
        ),  # The limit is that of the machine, and more than half of it is in use.
        (0, 3000, 1999, False),
    ],
)
def test_the_memory_that_a_worker_has_left(monkeypatch, limit, used, free_on_machine, expected):
    worker = SimpleNamespace(
        memory_manager=SimpleNamespace(memory_limit=limit),
        monitor=SimpleNamespace(get_process_memory=lambda: used),
    )
    monkeypatch.setattr(distributed, "get_worker", lambda: worker)
    monkeypatch.setattr(distributed.system, "MEMORY_LIMIT", 4000)
    monkeypatch.setattr(partition_tasks, "available_memory", lambda: free_on_machine)
    assert partition_tasks.has_room(None) is expected


@pytest.mark.parametrize("limit", [None, 0, 2**20])
def test_a_fit_does_not_need_memory_that_is_not_there(local, tmp_path, limit):
    """A worker with a limit of one megabyte has none left; without a limit it has the machine's."""
    source = Source(tmp_path)
    never = {
        f"distributed.worker.memory.{what}": False
        for what in ("target", "spill", "pause", "terminate")
    }
    options = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": ":0",
        "memory_limit": limit,
    }
    with (
        dask.config.set(never),
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        model = DaskGPXRegressor(client, **ARGUMENTS).fit(*mapped_dataframe(source))
        must_agree(model, local)
        assert set(source.reads()) <= {1, 2}


@pytest.fixture(scope="module")
def processes():
    options = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "processes": True,
        "dashboard_address": ":0",
    }
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_worker_processes_hold_what_they_read(processes, local, tmp_path):
    source = Source(tmp_path)
    model = DaskGPXRegressor(processes, **ARGUMENTS).fit(*unknown_chunks(source))
    assert source.reads() == [1] * PARTITIONS
    must_agree(model, local)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL.")
def test_partitions_that_are_lost_while_they_are_held_are_read_again(
    processes, local, monkeypatch, tmp_path
):
    source = Source(tmp_path)
    survey = gpx_scale.distributed.dask_rows.surveyed

    def survey_and_kill(client, *arguments):
        found = survey(client, *arguments)
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        return found

    monkeypatch.setattr(gpx_scale.distributed.dask_rows, "surveyed", survey_and_kill)
    model = DaskGPXRegressor(processes, **ARGUMENTS).fit(*mapped_dataframe(source))
    assert max(source.reads()) == 2
    must_agree(model, local)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_sample_is_that_of_the_same_rows_in_a_stream(client, sparse):
    tables = [(X[k : k + 150], y[k : k + 150]) for k in range(0, 600, 150)]
    if sparse:
        tables = [(sp.csr_array(np.where(A > 4.0, A, 0.0)), b) for A, b in tables]
    tables.insert(2, (tables[0][0][:0], y[:0]))
    transforms = InputTransforms("vectors", None, None)
    stream = StreamRows.open(source_of(lambda: iter(tables), None, None), transforms, HOW)
    rows = DaskRows.open(client, partitions_of(client.scatter(tables), None, None), transforms, HOW)
    for count in (1, 40, 100):
        here, there = stream.subset(count), rows.subset(count)
        assert_array_equal(there.y, here.y)
        for one, other in zip(here.Z.arrays, there.Z.arrays, strict=True):
            assert_array_equal(one, other)
        for one, other in zip(
            getattr(here.x, "arrays", [here.x]), getattr(there.x, "arrays", [there.x]), strict=True
        ):
            assert_array_equal(one, other)
    assert rows.fingerprint(None) == stream.fingerprint(None)


@pytest.mark.parametrize("has_room", [True, False])
def test_a_bad_row_is_named_though_rows_before_it_are_not_counted_first(
    client, local, room, has_room
):
    room(lambda parts: has_room)
    bad = FRAME.copy()
    bad.loc[[950, 1100], "x2"] = np.nan
    frame = dd.from_pandas(bad, npartitions=PARTITIONS)
    with pytest.raises(InputError, match=r"partition 4, its row 51 \(row 951 of all\)") as raised:
        DaskGPXRegressor(client, **ARGUMENTS).fit(frame, "target")
    assert raised.value.__suppress_context__
    model = DaskGPXRegressor(client, **ARGUMENTS).fit(
        dd.from_pandas(FRAME, npartitions=PARTITIONS), "target"
    )
    with pytest.raises(InputError, match=r"partition 4, its row 51 \(row 951 of all\)"):
        model.partial_fit(frame, "target")
    assert model.fit_report_.n_samples == len(y)


def test_a_frame_of_parquet_files_and_its_target(client, local, tmp_path):
    """Dask reads several small files as one partition, and more of them for a single column."""
    pytest.importorskip("pyarrow")
    for k in range(PARTITIONS):
        FRAME[k * ROWS : (k + 1) * ROWS].to_parquet(tmp_path / f"{k}.parquet")
    frame = dd.read_parquet(tmp_path)
    for arguments in ((frame, "target"), (frame[NAMES], frame["target"])):
        model = DaskGPXRegressor(client, **ARGUMENTS).fit(*arguments)
        must_agree(model, local)


def changing_array():
    def made():
        return np.random.RandomState(int.from_bytes(os.urandom(4), "little")).randn(100, 3)

    return da.concatenate(
        [da.from_delayed(dask.delayed(made, pure=False)(), (100, 3), float) for _ in range(3)]
    )


def test_partitions_that_change_between_passes_are_seen(client, room, forget):
    room(lambda parts: False)
    A = changing_array()
    with pytest.raises(InputError, match="differ from the first pass"):
        DaskGPXRegressor(client, **ARGUMENTS).fit(A, A[:, 0])


def test_a_source_that_changes_but_is_read_once_gives_rows_that_belong_together(client, room):
    room(lambda parts: True)
    A = changing_array()
    model = DaskGPXRegressor(client, **ARGUMENTS).fit(A, A[:, 0] + 0.0)
    sample = model._rows.subset(300)
    assert_allclose(sample.y, sample.Z.array[:, 0], atol=1e-10)  # X and y are of the same read.


def test_a_partition_that_comes_back_without_rows_is_seen():
    parts, transforms = (X, y, None), InputTransforms("vectors", None, None)
    survey = partition_tasks.survey_partition(parts, transforms, "partition 1")
    preprocessor = survey.preprocessor(transforms, HOW)
    nothing = (X[:0], y[:0], None)
    with pytest.raises(
        InputError,
        match=r"partition 1, the data differ from the first pass \(0 rows, 1200 before\)",
    ):
        partition_tasks.scale_partition(
            nothing, preprocessor, "partition 1", 0, True, survey.prints[0]
        )
    with pytest.raises(InputError, match=r"differ from the first pass \(1200 rows, 0 before\)"):
        partition_tasks.scale_partition(
            parts, preprocessor, "partition 1", 0, True, ChunkChecksum.of_nothing("partition 1")
        )
    assert (
        partition_tasks.scale_partition(
            nothing, preprocessor, "partition 1", 0, True, ChunkChecksum.of_nothing("partition 1")
        )
        is None
    )


def test_a_result_that_takes_long_to_arrive_is_not_an_error():
    class Slow:
        status, waits = "pending", 0

        def done(self):
            return self.status == "finished"

        def result(self, timeout):
            self.waits += 1
            if timeout < 10.0:
                self.status = "finished"  # It is done just after the wait for it is over.
                raise TimeoutError
            return "result"

    assert result_of(SimpleNamespace(nthreads=lambda: {"worker": 1}), slow := Slow()) == "result"
    assert slow.waits == 2
