"""Streams: functions, folders and memory maps bring rows in chunks.

The fitted models are those of the same rows in memory.
"""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer

from gpx_scale import XZ, GPXRegressor, GPXWarning, InputError, kernels
from gpx_scale.data import row_files
from gpx_scale.data.row_source import blocks_of, keys, least
from gpx_scale.data.scaling import ColumnMoments
from gpx_scale.datasets import synth10
from gpx_scale.runtime.journal import ProgressBar
from gpx_scale.runtime.parallel import slices
from problems import make_problem

ARGUMENTS = {"solver": "inducing", "n_inducing": 25, "random_state": 0}
X, y, NAMES = synth10(700)
X = 3.0 + 2.0 * X


def chunks_of(*arrays, size=150):
    """Return a function that yields the rows of the arrays in chunks."""
    return lambda: (tuple(A[rows] for A in arrays) for rows in slices(len(arrays[0]), size))


@pytest.mark.parametrize("size", [1, 64, 150, 700, 5000])
def test_a_stream_gives_what_its_rows_in_memory_give(size):
    memory = GPXRegressor(**ARGUMENTS, optimizer=None).fit(X, y)
    stream = GPXRegressor(**ARGUMENTS, optimizer=None).fit(chunks_of(X, y, size=size))
    assert_array_equal(stream.predict(X), memory.predict(X))
    assert stream.log_marginal_likelihood_value_ == memory.log_marginal_likelihood_value_
    assert stream.n_features_in_ == 10
    assert stream.solver_ == "inducing"


def test_so_does_the_search():
    memory, stream = (
        GPXRegressor(**ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared").fit(X, y),
        GPXRegressor(**ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared").fit(
            chunks_of(X, y)
        ),
    )
    assert_array_equal(stream.theta_, memory.theta_)
    assert_array_equal(stream.explain(X[:9]).weights_std, memory.explain(X[:9]).weights_std)
    value, gradient = stream.log_marginal_likelihood(stream.theta_ + 0.1, eval_gradient=True)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_a_z_of_its_own_may_be_sparse():
    problem = make_problem(n=300, share=0.4)
    Z = sp.csr_array(problem.Z)
    memory = GPXRegressor(**ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared").fit(
        problem.X, problem.y, Z
    )
    stream = GPXRegressor(**ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared").fit(
        chunks_of(problem.X, problem.y, Z, size=70)
    )
    paired = GPXRegressor(**ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared").fit(
        lambda: ((XZ(problem.X[r], Z[r]), problem.y[r]) for r in slices(300, 50))
    )
    for model in (stream, paired):
        assert_array_equal(model.predict(problem.X, Z), memory.predict(problem.X, Z))


def test_combined_kernels_and_columns_by_name():
    kernel = kernels.RBF(0.5, 10.0) + kernels.Matern32(0.5, 5.0)
    frame = pd.DataFrame(X, columns=NAMES)
    columns = {"x_transformer": NAMES[:4], "z_transformer": NAMES[2:7], "fit_intercept": True}
    columns["weights"] = "shared"
    memory = GPXRegressor(kernel, **ARGUMENTS, **columns).fit(frame, y)
    stream = GPXRegressor(kernel, **ARGUMENTS, **columns).fit(chunks_of(frame, pd.Series(y)))
    assert_array_equal(stream.predict(frame), memory.predict(frame))
    assert stream.explain(frame[:2]).feature_names == NAMES[2:7]
    assert list(stream.feature_names_in_) == NAMES


def test_text_through_transformers_that_are_fitted():
    texts = [
        f"good {word} film" if k % 2 else f"bad {word} plot"
        for k, word in enumerate(["old", "new", "long"] * 40)
    ]
    marks = np.array([1.0, -1.0] * 60)
    words = HashingVectorizer(n_features=64, alternate_sign=False)
    lsa = TruncatedSVD(2, random_state=0)
    with pytest.raises(InputError, match="x_transformer is not fitted"):
        GPXRegressor(
            **ARGUMENTS, x_transformer=lsa, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(lambda: [(texts, marks)])
    lsa.fit(words.transform(texts))
    to_x = lambda docs: lsa.transform(words.transform(docs))  # noqa: E731
    model = GPXRegressor(
        **ARGUMENTS,
        x_transformer=to_x,
        z_transformer=words,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    model.fit(lambda: ((texts[r], marks[r]) for r in slices(120, 50)))
    assert model.score(texts, marks) > 0.8
    assert sp.issparse(model.explain(texts[:3]).weights)


def test_a_folder_of_files(tmp_path):
    memory = GPXRegressor(**ARGUMENTS, optimizer=None).fit(X, y).predict(X)
    frame = pd.DataFrame(X, columns=NAMES).assign(target=y)
    for kind in ("npz", "csv", "csv.gz", "tsv", "parquet"):
        (tmp_path / kind).mkdir()
        for k, rows in enumerate(slices(700, 300)):
            path = tmp_path / kind / f"part{k}.{kind}"
            if kind == "npz":
                np.savez(path, X=X[rows], y=y[rows])
            elif kind == "parquet":
                frame[rows].to_parquet(path)
            else:
                frame[rows].to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
        target = None if kind == "npz" else "target"
        model = GPXRegressor(**ARGUMENTS, optimizer=None).fit(tmp_path / kind, target)
        assert_allclose(model.predict(frame[NAMES] if target else X), memory, rtol=1e-9, atol=1e-10)
        one = GPXRegressor(**ARGUMENTS, optimizer=None).fit(
            str(tmp_path / kind / f"part0.{kind}"), target
        )
        assert one.fit_report_.n_samples == 300
    with pytest.raises(InputError, match="name of the target"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(tmp_path / "csv")
    with pytest.raises(InputError, match="no column 'price', only x0"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
            tmp_path / "parquet", "price"
        )
    with pytest.raises(InputError, match="no such folder"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
            tmp_path / "nothing", "y"
        )
    with pytest.raises(InputError, match=r"holds no .npz"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(tmp_path, "y")
    (tmp_path / "csv" / ".part0.csv").write_text("not,data")
    (tmp_path / "csv" / "folder.csv").mkdir()
    assert (
        GPXRegressor(**ARGUMENTS, optimizer=None)
        .fit(tmp_path / "csv", "target")
        .fit_report_.n_samples
        == 700
    )
    (tmp_path / "csv" / "part9.csv").write_text("")
    with pytest.raises(InputError, match=r"part9.csv cannot be read"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
            tmp_path / "csv", "target"
        )
    (tmp_path / "broken.npz").write_bytes(b"zip?")
    with pytest.raises(InputError, match=r"broken.npz cannot be read"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
            tmp_path / "broken.npz"
        )
    np.savez(tmp_path / "uneven.npz", X=X[:-3], y=y)
    with pytest.raises(InputError, match="697, 700 rows"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
            tmp_path / "uneven.npz"
        )
    with pytest.raises(InputError, match="bring their own y"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
            tmp_path / "uneven.npz", y
        )
    np.savez(tmp_path / "wrong.npz", A=X)
    with pytest.raises(InputError, match=r"wrong.npz has no X and no y, only A"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
            tmp_path / "wrong.npz"
        )
    np.savez(tmp_path / "scalar.npz", X=3.0, y=y)
    with pytest.raises(InputError, match="table with rows is needed"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
            tmp_path / "scalar.npz"
        )


FRAME = pd.DataFrame(X, columns=NAMES).assign(target=y)


def fit_folder(path, target="target"):
    return GPXRegressor(**ARGUMENTS, optimizer=None).fit(path, target)


def named_index(frame):
    return frame.set_index(pd.Index(np.arange(len(frame))[::-1] ** 2, name="id"))


WRITERS = {
    "t.csv": lambda frame, path: frame.to_csv(path, index=False),
    "t.CSV": lambda frame, path: frame.to_csv(path, index=False),
    "t.Csv.GZ": lambda frame, path: frame.to_csv(path, index=False, compression="gzip"),
    "t.tsv.gz": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "t.TSV": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "bom.csv": lambda frame, path: frame[frame.columns[::-1]].to_csv(
        path, index=False, encoding="utf-8-sig"
    ),
    "blanks.csv": lambda frame, path: frame.rename(columns=lambda name: f" {name} ").to_csv(
        path, index=False
    ),
    "t.PARQUET": lambda frame, path: frame.to_parquet(path),
    "index.parquet": lambda frame, path: named_index(frame).to_parquet(path),
    "range.parquet": lambda frame, path: frame.set_index(
        pd.RangeIndex(5, 5 + len(frame), name="id")
    ).to_parquet(path),
    "labels.parquet": lambda frame, path: frame.set_index(
        frame.index.to_numpy()[::-1] ** 2
    ).to_parquet(path),
    "levels.parquet": lambda frame, path: frame.set_index(
        [frame.index % 2, frame.index]
    ).to_parquet(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_has_the_same_features(tmp_path, name, monkeypatch):
    """The case of a file's suffix, the order of its columns and its index make no difference."""
    monkeypatch.setattr(row_files, "FILE_CHUNK_ROWS", 150)
    FRAME[:400].to_csv(tmp_path / "a.csv", index=False)
    WRITERS[name](FRAME[400:], tmp_path / name)
    (tmp_path / "empty.csv").write_text(",".join(FRAME))  # a header without rows
    model = fit_folder(tmp_path)
    assert list(model.feature_names_in_) == NAMES
    assert model.fit_report_.n_samples == 700
    memory = GPXRegressor(**ARGUMENTS, optimizer=None).fit(X, y).predict(X)
    assert_allclose(model.predict(FRAME[NAMES]), memory, rtol=1e-9, atol=1e-10)


LINES = "".join(f"{k},{k % 7},{k % 5}\n" for k in range(50))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "a,b,target\n" + LINES.replace("\n", ",8\n"),
            "bad.csv cannot be read as a table: rows are longer than the header",
        ),
        (
            "a,b,target\n" + LINES + "1,2,3,4\n",
            "bad.csv cannot be read as a table: .*Expected 3 fields in line 52, saw 4",
        ),
        ("a,a,target\n" + LINES, "bad.csv has more than one column named 'a'"),
        (",a,target\n" + LINES, "bad.csv, column 1 of 3 has no name.*index=False"),
        (("a,b,target\n" + LINES).replace(",", ";"), "separated by ';'.*a function that yields"),
        ("a,b,cible é\n" + LINES, "bad.csv is not UTF-8.*a function that yields"),
        ("a,b,y\n" + LINES, "bad.csv has no column 'target', only a, b, y"),
        ("a,b,target\n", "The stream has no rows"),
        ("target\n1\n2\n", "bad.csv has no column besides the target 'target'"),
        ("", "bad.csv cannot be read as a table: it has no columns"),
    ],
)
def test_tables_that_a_stream_refuses(tmp_path, text, words):
    (tmp_path / "bad.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=words) as error:
        fit_folder(tmp_path)
    assert "--" not in str(error.value)  # which would be an option of the command line


def test_files_of_a_folder_that_do_not_go_together(tmp_path):
    FRAME[:300].to_csv(tmp_path / "a.csv", index=False)
    FRAME[300:].rename(columns={"x3": "other"}).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(
        InputError,
        match=r"b.csv does not have the columns of a.csv: it lacks 'x3', and only it has 'other'",
    ):
        fit_folder(tmp_path)
    (tmp_path / "b.csv").unlink()
    np.savez(tmp_path / "b.NPZ.npz", X=X, y=y)
    for target in ("target", None):
        with pytest.raises(InputError, match="both npz files and tables"):
            fit_folder(tmp_path, target)
    (tmp_path / "a.csv").unlink()
    (tmp_path / "b.NPZ.npz").rename(tmp_path / "b.NPZ")
    assert fit_folder(tmp_path, None).fit_report_.n_samples == 700


def test_the_index_of_a_parquet_file_is_no_target(tmp_path):
    named_index(FRAME).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(
        InputError, match=r"no column 'id', only x0.*'id' is its index: .*reset_index"
    ):
        fit_folder(tmp_path, "id")


def test_files_that_are_skipped_are_named(tmp_path):
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    for name in ("_SUCCESS", "_metadata", ".b.csv.crc"):
        (tmp_path / name).write_text("")
    (tmp_path / "more").mkdir()
    assert fit_folder(tmp_path).fit_report_.n_samples == 700
    for name in ("b.xlsx", "c.csv.zip"):
        (tmp_path / name).write_text("")
    with pytest.warns(
        GPXWarning, match=r"not read: 'b.xlsx', 'c.csv.zip'\. Write their rows to .npz, .csv"
    ):
        assert fit_folder(tmp_path).fit_report_.n_samples == 700
    (tmp_path / "a.csv").unlink()
    with pytest.raises(InputError, match=r"holds no .npz.*only 'b.xlsx', 'c.csv.zip'"):
        fit_folder(tmp_path)
    with pytest.raises(
        InputError, match=r"b.xlsx' is not a file that fit reads\. Give one that ends in .npz"
    ):
        fit_folder(tmp_path / "b.xlsx")
    with pytest.raises(InputError, match=r"X=.*is not the path of a file"):
        fit_folder("x" * 5000)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_memory_map(tmp_path, dtype):
    mapped = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype=dtype, shape=X.shape)
    mapped[:] = X
    memory = GPXRegressor(**ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared").fit(
        np.array(mapped), y
    )
    stream = GPXRegressor(**ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared").fit(
        np.load(tmp_path / "X.npy", mmap_mode="r"), y
    )
    assert stream.fit_report_.reasons[1].startswith("The rows come in chunks")
    assert_array_equal(stream.predict(X), memory.predict(X))
    auto = GPXRegressor(optimizer=None).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), y)
    assert auto.solver_ == "exact"
    Z = sp.csr_array(X)
    with_z = GPXRegressor(**ARGUMENTS, optimizer=None).fit(
        np.load(tmp_path / "X.npy", mmap_mode="r"), y[:, None], Z
    )
    assert_array_equal(
        with_z.predict(X, Z),
        GPXRegressor(**ARGUMENTS, optimizer=None).fit(np.array(mapped), y, Z).predict(X, Z),
    )
    with pytest.raises(InputError, match="700 rows needs y"):
        GPXRegressor(**ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared").fit(
            np.load(tmp_path / "X.npy", mmap_mode="r"), y[:-1]
        )


def fit(factory, **more):
    return GPXRegressor(**{**ARGUMENTS, "optimizer": None, **more}).fit(factory)


def test_empty_chunks_are_passed_over_and_empty_streams_are_not():
    model = fit(lambda: [(X[:0], y[:0]), (X[:400], y[:400]), (X[:0], y[:0]), (X[400:], y[400:])])
    assert_array_equal(
        model.predict(X), GPXRegressor(**ARGUMENTS, optimizer=None).fit(X, y).predict(X)
    )
    for factory in (lambda: [], lambda: [(X[:0], y[:0])]):
        with pytest.raises(InputError, match="no rows"):
            fit(factory)


def test_a_number_that_is_missing_is_found():
    bad, bad_y = X.copy(), y.copy()
    bad[437, 3], bad_y[612] = np.nan, np.inf
    with pytest.raises(InputError, match=r"chunk 3, its row 138 \(row 438 of all\).*NaN"):
        fit(chunks_of(bad, y))
    with pytest.raises(InputError, match=r"chunk 5, its row 13 \(row 613 of all\)"):
        fit(chunks_of(X, bad_y))


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (
            lambda: [(X[:300], y[:300]), (X[300:, :4], y[300:])],
            "chunk 2: X has 4 columns here and 10",
        ),
        (
            lambda: [(X[:300], y[:300]), (X[300:], y[300:500])],
            "chunk 2.*400 rows of X, but 200 of y",
        ),
        (
            lambda: [(X[:300], y[:300]), (X[300:], y[300:], X[300:])],
            "chunk 2: Some chunks bring a Z",
        ),
        (
            lambda: [(X[:300], y[:300]), (sp.csr_array(X[300:]), y[300:])],
            "chunk 2: X is sparse here",
        ),
        (lambda: [(X[:300], y[:300]), (X[300:], y[:0])], "chunk 2: .*y"),
        (lambda: [(X[:300], y[:300]), (X[:0], y[300:])], "chunk 2"),
        (lambda: [X], "chunk 1 of the stream is of type ndarray"),
        (lambda: 3, "function that yields"),
        (lambda: [(np.array([["a", "b"]]), [1.0])], "chunk 1"),
    ],
)
def test_chunks_that_do_not_fit_are_named(factory, words):
    with pytest.raises(InputError, match=words):
        fit(factory)


def test_frames_with_other_columns_are_named():
    frames = [pd.DataFrame(X[:300], columns=NAMES), pd.DataFrame(X[300:], columns=NAMES[::-1])]
    with pytest.raises(InputError, match="chunk 2: The columns are"):
        fit(lambda: [(frames[0], y[:300]), (frames[1], y[300:])])
    with pytest.raises(InputError, match="chunk 2: The columns are"):
        fit(lambda: [(frames[0], y[:300], X[:300]), (frames[1], y[300:], X[300:])])
    model = fit(lambda: [(frames[0], y[:300])])
    with pytest.raises(InputError, match="chunk 1: The feature names"):
        model.partial_fit(lambda: [(frames[1], y[300:])])
    assert model.fit_report_.n_samples == 300


def test_forms_of_sparse_chunks_and_a_nan_in_a_wide_one():
    Z = sp.csr_array(np.where(np.abs(X) > 4, X, 0.0))
    whole = GPXRegressor(**ARGUMENTS, optimizer=None).fit(X, y, Z)
    for form in (sp.coo_array, sp.csc_array, sp.coo_matrix):
        assert_array_equal(
            fit(lambda form=form: [(X, y, form(Z))]).predict(X, Z), whole.predict(X, Z)
        )
    wide = sp.csr_array((np.r_[1.0, np.nan], ([0, 5], [3, 40_000_000])), shape=(700, 50_000_000))
    with pytest.raises(InputError, match=r"chunk 1, its row 6 \(row 6 of all\)"):
        fit(lambda: [(X, y, wide)])


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ([(X[:300], y[:300])], "ended before chunk 2, after 300 of 700 rows"),
        ([(X[:300], y[:300]), (X[300:], y[300:]), (X[:1], y[:1])], "chunk 3 was not there"),
        (
            [(X[:200], y[:200]), (X[200:], y[200:])],
            "chunk 1, the data differ.*200 rows, 300 before",
        ),
        (
            [(X[:300], y[:300]), (X[300:] + 1e-9, y[300:])],
            "chunk 2, the data differ.*other numbers",
        ),
    ],
)
def test_a_second_pass_that_differs_is_seen(second, words):
    passes = iter([[(X[:300], y[:300]), (X[300:], y[300:])], second])
    with pytest.raises(InputError, match=words):
        fit(lambda: next(passes))


def test_a_generator_is_not_a_stream():
    used_up = iter([(X, y)])
    with pytest.raises(InputError, match=r"[Aa] generator is used up"):
        fit(lambda: used_up)
    with pytest.raises(InputError, match=r"[Aa] generator is used up"):
        fit(iter([(X, y)]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((chunks_of(X, y), y), "its own y"), ((chunks_of(X, y), None, X), "its own Z")],
)
def test_what_a_stream_brings_is_not_given_again(arguments, words):
    with pytest.raises(InputError, match=words):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(*arguments)


def test_kernels_that_need_all_rows_say_so():
    with pytest.raises(InputError, match="A stream needs vectors"):
        GPXRegressor("precomputed", fit_intercept=False, weights="shared").fit(chunks_of(X, y))


def test_ctrl_c_in_a_stream_leaves_the_model_as_it_was():
    model = fit(chunks_of(X[:300], y[:300]))
    before, count = model.predict(X[:5]), 0

    def interrupted():
        nonlocal count
        for chunk in chunks_of(X, y)():
            count += 1
            if count == 7:
                raise KeyboardInterrupt
            yield chunk

    with pytest.raises(KeyboardInterrupt):
        model.fit(interrupted)
    assert_array_equal(model.predict(X[:5]), before)


def test_partial_fit_takes_streams_too():
    fixed = {"optimizer": None, "theta2": 80.0, "inducing_points": X[:20], "standardize": False}
    whole = GPXRegressor(**ARGUMENTS, **fixed).fit(X, y)
    parts = GPXRegressor(**ARGUMENTS, **fixed)
    parts.partial_fit(chunks_of(X[:400], y[:400])).partial_fit(chunks_of(X[400:], y[400:], size=90))
    assert_allclose(parts.predict(X[:50]), whole.predict(X[:50]), rtol=1e-9, atol=1e-10)
    with pytest.raises(InputError, match=r"chunk 1: .*4"):
        parts.partial_fit(lambda: [(X[:5, :4], y[:5])])


def test_progress_over_chunks_is_told(capsys, monkeypatch):
    monkeypatch.setattr(
        ProgressBar,
        "_draw",
        lambda self, phase, share, state: self.line(f"{phase} {share:.2f} {state}"),
    )
    GPXRegressor(**ARGUMENTS, optimizer=None, verbose=1).fit(chunks_of(X, y))
    told = capsys.readouterr().err
    assert "survey of the rows 0.00 150 rows" in told
    assert "posterior 1.00 700 of 700 rows" in told


def test_blocks_do_not_depend_on_chunks():
    problem = make_problem(n=100)
    data = problem.inputs
    for size in (1, 7, 32, 100):
        blocks = list(blocks_of((data[rows] for rows in slices(100, size)), 32))
        assert [len(block) for block in blocks] == [32, 32, 32, 4]
        assert_array_equal(np.concatenate([block.x for block in blocks]), data.x)
        assert_array_equal(np.concatenate([block.Z.array for block in blocks]), data.Z.array)


def test_samples_do_not_depend_on_chunks_and_are_even():
    whole = keys(0, 100_000, 5)
    assert_array_equal(
        np.concatenate([keys(s.start, s.stop - s.start, 5) for s in slices(100_000, 999)]), whole
    )
    sample = least(whole, 10_000)
    assert sample.size == 10_000
    counts, _ = np.histogram(sample, bins=10, range=(0, 100_000))
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)
    assert_array_equal(least(whole, 100), np.intersect1d(least(whole, 100), sample))
    assert (keys(0, 1000, 5) != keys(0, 1000, 6)).all()


@pytest.mark.parametrize("scale", [1.0, 1e-140, 1e140])
def test_columns_add_up(scale):
    A = scale * (5.0 + np.random.RandomState(0).randn(1000, 3) * [1.0, 1e-6, 0.0])
    total = ColumnMoments.of(A[:10])
    for rows in slices(990, 300):
        total = total + ColumnMoments.of(A[10:][rows])
    whole = ColumnMoments.of(A)
    assert_array_equal(total.mean, whole.mean)
    assert_array_equal(total.scale[[0, 2]], whole.scale[[0, 2]])
    assert_allclose(total.scale[1], whole.scale[1], rtol=1e-8)  # of 6 digits that the offset leaves
    assert_allclose(whole.mean, scale * (A / scale).mean(axis=0), rtol=1e-11)
    assert_allclose(whole.scale[:2], scale * (A / scale).std(axis=0)[:2], rtol=1e-8)
    assert whole.constant.tolist() == [False, False, True]
