"""The neighbours solver with rows in memory maps and files: the answers are those of memory."""

import pickle
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import HashingVectorizer

from gpx_scale import GPXRegressor, InputError, MemoryLimitError, kernels, load, make_plan
from gpx_scale.data import row_files
from gpx_scale.data.row_files import MappedFile
from gpx_scale.linalg.neighbor_search import BestRows, Eligible, NeighborSearch, PassSearch
from gpx_scale.runtime.journal import Journal
from gpx_scale.solvers.neighbors import gathering, planning, posterior, set_sizes
from problems import make_problem, session_of

PROBLEM = make_problem(n=330, p=2, d=3, m=9, seed=2)
GIVEN = {"solver": "neighbors", "n_neighbors": 12, "n_shared": 7, "random_state": None}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(row_files, "FILE_CHUNK_ROWS", 100)


def mapped(folder, A, name):
    """Return an array as a memory map of a file."""
    np.save(folder / f"{name}.npy", A)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


def model_of(**more):
    return PROBLEM.model(**{**GIVEN, **more})


def fitted(folder, **more):
    """Return a model of memory maps of X, y and Z."""
    X, y, Z = PROBLEM.data
    arrays = mapped(folder, X, "X"), mapped(folder, y, "y"), mapped(folder, Z, "Z")
    return model_of(**more).fit(*arrays)


QUERIES = PROBLEM.X_query, PROBLEM.Z_query


def assert_same(found, wanted):
    """Raise an AssertionError unless explanations are equal up to the rounding of products."""
    assert_allclose(found.weights, wanted.weights, rtol=0, atol=1e-11)
    assert_allclose(found.weights_std, wanted.weights_std, rtol=1e-10)
    assert_allclose(found.prediction_std, wanted.prediction_std, rtol=1e-10)


def test_memory_maps_give_the_answers_of_memory(tmp_path):
    memory, files = model_of().fit(*PROBLEM.data), fitted(tmp_path)
    assert not files.posterior_.rows.in_memory
    assert_same(files.explain(*QUERIES), memory.explain(*QUERIES))
    assert_same(files.explain(*QUERIES, cov=True), memory.explain(*QUERIES, cov=True))
    assert_allclose(
        files.log_marginal_likelihood_value_, memory.log_marginal_likelihood_value_, rtol=1e-12
    )
    assert_allclose(np.array(files.leave_one_out()), np.array(memory.leave_one_out()), atol=1e-10)
    assert_same(files.training_explanation(), memory.training_explanation())
    value, slope = files.log_marginal_likelihood(files.theta_ + 0.1, eval_gradient=True)
    wanted = memory.log_marginal_likelihood(files.theta_ + 0.1, eval_gradient=True)
    assert_allclose(value, wanted[0], rtol=1e-12)
    assert_allclose(slope, wanted[1], rtol=1e-9, atol=1e-9)
    draws = files.sample_y(*QUERIES, n_samples=2, random_state=0)
    assert_allclose(draws, memory.sample_y(*QUERIES, n_samples=2, random_state=0), atol=1e-9)
    _, cov = files.predict(PROBLEM.X_query[:1], PROBLEM.Z_query[:1], return_cov=True)
    assert_allclose(cov[0, 0], files.explain(*QUERIES).prediction_std[0] ** 2, rtol=1e-10)


def test_batches_of_queries_give_the_same_answers(tmp_path, monkeypatch):
    files = fitted(tmp_path)
    together = files.explain(*QUERIES)

    def one_by_one(posterior, count, session):
        return [slice(i, i + 1) for i in range(count)]

    monkeypatch.setattr(posterior, "batches", one_by_one)
    assert_same(files.explain(*QUERIES), together)


def test_a_pass_over_files_shows_its_progress(tmp_path, monkeypatch):
    files, seen = fitted(tmp_path), []
    monkeypatch.setattr(Journal, "passed", lambda self, done, rows: seen.append((done, rows)))
    files.explain(*QUERIES)
    m = len(PROBLEM.X_query)
    assert seen == [(100, 330), (200, 330), (300, 330), (330, 330), (0, m), (m, m)]


def test_held_out_rows_choose_the_same_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "AUTO_SHARED", 60)
    monkeypatch.setattr(set_sizes, "SHARED", (0, 20))
    given = {"n_neighbors": "auto", "n_shared": "auto"}
    memory, files = model_of(**given).fit(*PROBLEM.data), fitted(tmp_path, **given)
    a, b = memory.posterior_, files.posterior_
    assert (a.neighbors, a.shared.size) == (b.neighbors, b.shared.size)
    assert len(a.held_out) == 9
    assert_allclose([s for *_, s in b.held_out], [s for *_, s in a.held_out], rtol=1e-10)


def test_a_complete_fit_finds_hyperparameters(tmp_path):
    given = {"optimizer": "auto", "max_iter": 3}
    memory, files = model_of(**given).fit(*PROBLEM.data), fitted(tmp_path, **given)
    assert_allclose(files.theta_, memory.theta_, rtol=1e-6)


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz"])
def test_folders_give_the_answers_of_memory(tmp_path, kind):
    X, y, _ = PROBLEM.data
    for k, rows in enumerate(np.array_split(np.arange(len(y)), 3)):
        if kind == "npz":
            np.savez(tmp_path / f"{k}.npz", X=X[rows], y=y[rows])
            continue
        frame = pd.DataFrame(X[rows], columns=["a", "b"]).assign(target=y[rows])
        path = tmp_path / f"{k}.{kind}"
        frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=False)
    files = model_of().fit(tmp_path, None if kind == "npz" else "target")
    memory = model_of().fit(X, y)
    queries = PROBLEM.X_query
    if kind != "npz":
        queries = pd.DataFrame(queries, columns=["a", "b"])
    assert_same(files.explain(queries), memory.explain(PROBLEM.X_query))
    assert_same(pickle.loads(pickle.dumps(files)).explain(queries), files.explain(queries))


@pytest.mark.parametrize("kernel_takes", ["texts", "numbers"])
def test_texts_in_a_folder_stay_sparse(tmp_path, kernel_takes):
    random = np.random.RandomState(0)
    words = np.array([f"w{k}" for k in range(30)])
    texts = [" ".join(random.choice(words, count)) for count in random.randint(1, 9, 240)]
    frame = pd.DataFrame({"text": texts, "place": random.standard_normal(240)})
    target = random.standard_normal(240)
    frame.assign(target=target).to_parquet(tmp_path / "rows.parquet")
    encode = HashingVectorizer(n_features=2**16, alternate_sign=False)
    to_Z = ColumnTransformer([("words", encode, "text")]).fit(frame)
    to_x = to_Z if kernel_takes == "texts" else ["place"]
    given = {"x_transformer": to_x, "z_transformer": to_Z, "standardize": False}
    files = model_of(**given).fit(tmp_path, "target")
    memory = model_of(**given).fit(frame, target)
    assert files.posterior_.rows.bytes_per_row < 400
    found, wanted = files.explain(frame[:9]), memory.explain(frame[:9])
    assert_allclose(found.weights.toarray(), wanted.weights.toarray(), rtol=0, atol=1e-11)
    assert_allclose(found.weights_std.data, wanted.weights_std.data, rtol=1e-10)


def test_a_search_in_one_pass_is_that_of_memory(tmp_path):
    files = fitted(tmp_path)
    rows, hyperparameters = files.posterior_.rows, files.posterior_.hyperparameters
    memory = rows.load()
    queries = memory[np.arange(0, 330, 7)]
    own = np.arange(0, 330, 7)
    for among in (
        Eligible.without(330, np.arange(40, 60), len(queries), own),
        Eligible.before(np.random.RandomState(0).permutation(330), own),
    ):
        found = PassSearch(rows, hyperparameters).nearest(queries, 20, among, session_of(2))
        wanted = NeighborSearch(memory, hyperparameters).nearest(queries, 20, among, session_of())
        assert_array_equal(found.rows, wanted.rows)
        assert_array_equal(found.keys, wanted.keys)
        # Parts may be searched apart, and merged in any order.
        parts = []
        for piece in (slice(200, 330), slice(0, 30), slice(30, 200)):
            whole = BestRows(queries, hyperparameters, among, 20)
            part = whole.of_part(piece.start, piece.stop)
            part.add(memory[piece], piece.start, session_of())
            parts.append(part)
        for part in parts:
            whole.merge(part)
        taken = np.sort(np.where(wanted.in_use, wanted.rows, -1), axis=1)
        heap = np.where(np.arange(20) < whole.heaps.counts[:, None], whole.heaps.rows, -1)
        assert_array_equal(np.sort(heap, axis=1), taken)


@pytest.mark.parametrize("changed", ["X", "y", "Z"])
def test_rows_that_have_changed_are_refused(tmp_path, changed):
    files = fitted(tmp_path)
    files.predict(*QUERIES)
    A = np.load(tmp_path / f"{changed}.npy", mmap_mode="r+")
    A[250] += 1.0
    with pytest.raises(InputError, match=r"chunk 3.*differ from those at fit.*put them back"):
        files.predict(*QUERIES)
    A[250] -= 1.0


@pytest.mark.parametrize("neighbors", [12, 400])
def test_rows_that_are_all_shared_are_read_and_checked(tmp_path, neighbors):
    given = {"n_shared": 400, "n_neighbors": neighbors}
    files, memory = fitted(tmp_path, **given), model_of(**given).fit(*PROBLEM.data)
    assert files.posterior_.nearby == 0
    assert_same(files.explain(*QUERIES), memory.explain(*QUERIES))
    assert_allclose(files.leave_one_out(), memory.leave_one_out(), rtol=1e-10)
    A = np.load(tmp_path / "y.npy", mmap_mode="r+")
    A[250] += 1.0
    with pytest.raises(InputError, match=r"chunk 3.*differ from those at fit"):
        files.predict(*QUERIES)


def test_files_that_are_gone_or_shorter_are_refused(tmp_path):
    files = fitted(tmp_path)
    np.save(tmp_path / "X.npy", PROBLEM.X[:300])
    with pytest.raises(InputError, match="bytes, and had"):
        files.predict(*QUERIES)
    (tmp_path / "X.npy").unlink()
    with pytest.raises(InputError, match="there is no such file"):
        files.predict(*QUERIES)


def test_a_late_nan_is_named_by_its_row(tmp_path):
    X = PROBLEM.X.copy()
    X[317, 1] = np.nan
    with pytest.raises(InputError, match=r"chunk 4, its row 18 \(row 318 of all\)"):
        model_of().fit(mapped(tmp_path, X, "X"), PROBLEM.y)


def test_copies_refer_to_memory_maps(tmp_path):
    files = fitted(tmp_path, n_neighbors=3, n_shared=2)
    state = pickle.dumps(files)
    assert PROBLEM.X.tobytes()[:64] not in state
    assert_same(pickle.loads(state).explain(*QUERIES), files.explain(*QUERIES))


@pytest.mark.parametrize("cut", [slice(5, 300), slice(None, None, 2), slice(None, None, -1)])
def test_a_part_of_a_memory_map_is_found_again(tmp_path, cut):
    A = mapped(tmp_path, PROBLEM.X, "X")[cut]
    place = MappedFile.of(A)
    assert_array_equal(pickle.loads(pickle.dumps(place)).open(), PROBLEM.X[cut])
    fortran = mapped(tmp_path, np.asfortranarray(PROBLEM.X), "F")[cut, 1:]
    assert_array_equal(MappedFile.of(fortran).open(), PROBLEM.X[cut, 1:])


def test_a_function_of_chunks_is_refused_with_a_remedy():
    with pytest.raises(InputError, match=r"read only in their order.*solver='inducing'"):
        model_of().fit(lambda: [PROBLEM.data])
    assert (
        GPXRegressor(weights="shared").fit(lambda: [(np.zeros((9, 4)), np.arange(9.0))]).solver_
        == "inducing"
    )


def test_solvers_that_need_memory_name_those_that_read_files_and_streams(tmp_path):
    np.savez(tmp_path / "rows.npz", X=PROBLEM.X, y=PROBLEM.y)
    with pytest.raises(InputError, match=r"rows come in chunks\. Use solver='neighbors'"):
        model_of(solver="exact").fit(tmp_path)
    with pytest.raises(InputError, match=r"rows come in chunks\. Use solver='inducing'"):
        model_of(solver="exact").fit(lambda: [PROBLEM.data])


def test_auto_takes_neighbours_for_files_and_points_for_streams():
    sizes = {"memory_limit": "4GiB", "n_jobs": 2}
    assert make_plan(1_000_000, 10, 10, files=True, **sizes).solver == "neighbors"
    assert make_plan(1_000_000, 10, 10, stream=True, **sizes).solver == "inducing"
    few, many = (make_plan(n, 8, 8, files=True, **sizes).bytes_needed for n in (10**6, 10**7))
    assert many - few <= 50 * (10**7 - 10**6)


def test_memory_below_one_query_is_refused(tmp_path):
    files = fitted(tmp_path)
    files.set_params(memory_limit=1000)
    with pytest.raises(MemoryLimitError, match="One query with its neighbours"):
        files.predict(*QUERIES)


def saved(model, folder):
    model.save(folder / "model.gpx")
    return load(folder / "model.gpx")


@pytest.mark.parametrize("limit", [0, 2**30])
def test_a_model_file_has_the_rows_or_their_places(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(gathering, "SAVED_ROWS_BYTES", limit)
    files = fitted(tmp_path)
    loaded = saved(files, tmp_path)
    assert loaded.posterior_.rows.in_memory == bool(limit)
    assert_same(loaded.explain(*QUERIES), files.explain(*QUERIES))
    again = saved(loaded, tmp_path)
    assert_same(again.explain(*QUERIES), files.explain(*QUERIES))
    np.save(tmp_path / "X.npy", PROBLEM.X + 1.0)
    if limit:
        assert_same(again.explain(*QUERIES), loaded.explain(*QUERIES))
        return
    with pytest.raises(InputError, match="differ from those at fit"):
        again.predict(*QUERIES)


def test_arrays_that_are_stored_by_columns_can_be_saved(tmp_path):
    X, y, Z = PROBLEM.data
    X_map, Z_map = (mapped(tmp_path, np.asfortranarray(A), f"{A.shape}") for A in (X, Z))
    assert X_map.flags.f_contiguous
    files = model_of().fit(X_map, y, Z_map)
    assert_same(saved(files, tmp_path).explain(*QUERIES), files.explain(*QUERIES))


def test_a_model_file_of_others_opens_no_file_but_those_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "SAVED_ROWS_BYTES", 0)
    fitted(tmp_path).save(tmp_path / "model.gpx")
    for old, new in ((b'"<f8"', b'"|O8"'), (b'"offset": 128', b'"offset": 999')):
        copy_with(tmp_path / "model.gpx", tmp_path / "other.gpx", old, new)
        loaded = load(tmp_path / "other.gpx")
        with pytest.raises(InputError, match=r"X\.npy"):
            loaded.predict(*QUERIES)


def copy_with(path, other, old, new):
    """Copy a model file with another text in its tree."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            assert name != "model.json" or old in content
            target.writestr(name, content.replace(old, new) if name == "model.json" else content)


@pytest.mark.parametrize("kind", ["memory", "files"])
@pytest.mark.parametrize("kernel", ["rbf", kernels.RBF(0.5, 3.0) + kernels.Matern32(0.4, 2.0)])
def test_added_rows_are_neighbours_at_once(tmp_path, kind, kernel):
    X, y, Z = PROBLEM.data
    first, given = slice(0, 250), {"kernel": kernel, "n_neighbors": 25}
    parts, whole = model_of(**given), model_of(**given).fit(X, y, Z)
    arrays = X[first], y[first], Z[first]
    if kind == "files":
        arrays = [mapped(tmp_path, A, f"part{k}") for k, A in enumerate(arrays)]
    parts.fit(*arrays)
    before = parts.theta_
    for rows in (slice(250, 251), slice(251, 330)):
        parts.partial_fit(X[rows], y[rows], Z[rows])
    assert_array_equal(parts.theta_, before)
    assert parts.fit_report_.n_samples == 330
    same = replace(whole.posterior_, shared=parts.posterior_.shared)
    loaded = saved(parts, tmp_path)
    whole.posterior_ = same
    for model in (parts, loaded, pickle.loads(pickle.dumps(parts))):
        assert_same(model.explain(*QUERIES), whole.explain(*QUERIES))
    # A row that was added is found by the query at its place.
    far = np.full((1, 2), 40.0)
    parts.partial_fit(far, [9.0], np.ones((1, 3)))
    assert abs(parts.predict(far, np.ones((1, 3)))[0] - 9.0) < 1.0


def test_factors_of_all_rows_are_kept_while_they_take_a_part_of_the_memory():
    model, wanted = (model_of(n_shared=60).fit(*PROBLEM.data) for _ in range(2))
    # A quarter of the limit has room for the factors of two copies of the rows, and not of three.
    limit = int(4 * 2.5 * 8 * 60 * len(PROBLEM.y))
    for keeps in (True, False):
        wanted.partial_fit(*PROBLEM.data)
        model.set_params(memory_limit=limit).partial_fit(*PROBLEM.data)
        assert model.posterior_.keeps_factor == keeps
        model.set_params(memory_limit=None)
        assert_same(model.explain(*QUERIES), wanted.explain(*QUERIES))


def test_rows_that_are_added_to_files_keep_within_the_memory(tmp_path):
    files = fitted(tmp_path).partial_fit(*PROBLEM.data)
    rows = len(PROBLEM.y)
    files.set_params(memory_limit=int(1.5 * 2 * rows * files.posterior_.rows.bytes_per_row))
    with pytest.raises(MemoryLimitError, match="A copy of the rows that were added"):
        files.partial_fit(*PROBLEM.data)
    assert len(files.posterior_) == 2 * rows


def test_duplicates_are_told_apart_by_their_numbers(tmp_path):
    X, Z, y = np.ones((330, 2)), np.ones((330, 3)), PROBLEM.y
    files = model_of().fit(mapped(tmp_path, X, "X"), y, mapped(tmp_path, Z, "Z"))
    memory = model_of().fit(X, y, Z)
    assert_same(files.explain(X[:2], Z[:2]), memory.explain(X[:2], Z[:2]))
