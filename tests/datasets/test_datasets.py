"""The data: what ships with scikit-learn, what is generated, what is in a folder."""

from urllib.error import URLError

import numpy as np
import pytest
from sklearn.utils import Bunch

from gpx_scale import InputError, datasets
from gpx_scale.datasets import download, sources, tabular
from gpx_scale.datasets.csv_table import content_digest, read_table, write_table


def test_bundled_and_generated_sets():
    digits, diabetes, synth = (
        datasets.load_digits(),
        datasets.load_diabetes(),
        datasets.synth10(500),
    )
    assert digits.X.shape == (1797, 64)
    assert set(digits.y) == {-1.0, 1.0}
    assert diabetes.X.shape == (442, 10)
    assert synth.y.std() == pytest.approx(1.0)
    assert np.allclose(synth.X.std(axis=0), 1.0)


def test_a_synthetic_table_has_known_noise_and_few_features_that_matter():
    data, exact = datasets.synth_ard(400), datasets.synth_ard(400, noise=0.0)
    assert data.X.shape == (400, 26)
    assert np.allclose(data.X.std(axis=0), 1.0)
    assert np.array_equal(data.X, exact.X)
    # The signal is standardised. The standard deviation of 400 draws is off by 0.1 / sqrt(800).
    assert exact.y.std() == pytest.approx(1.0)
    assert (data.y - exact.y).std() == pytest.approx(0.1, abs=4 * 0.1 / np.sqrt(800))


@pytest.mark.parametrize("relevant", [1, 3])
def test_a_synthetic_table_does_not_use_its_other_features(relevant):
    """The signal is computed again from the columns that matter, by the formula."""
    data = datasets.synth_ard(50, p=3, relevant=relevant, noise=0.0, random_state=4)
    A = np.random.RandomState(4).standard_normal((relevant, relevant)) / np.sqrt(relevant)
    signal = np.array(
        [
            sum(np.sin(row[:relevant] @ a) * x for a, x in zip(A, row, strict=False))
            for row in data.X
        ]
    )
    assert np.allclose(data.y, (signal - signal.mean()) / signal.std())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"relevant": 27}, "relevant=27 is more than the 26 features"),
        ({"p": 0}, "p=0 is not valid"),
        ({"noise": -0.1}, "noise=-0.1 is not valid"),
    ],
)
def test_a_synthetic_table_refuses_what_it_cannot_make(asked, message):
    with pytest.raises(InputError, match=message):
        datasets.synth_ard(10, **asked)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("abalone", (4177, 10)),
        ("boston", (506, 13)),
        ("california", (20640, 8)),
        ("fish", (908, 6)),
        ("kin40k", (40000, 8)),
        ("protein", (45730, 9)),
        ("wine", (6497, 11)),
    ],
)
def test_sets_of_the_data_folder(name, shape, shared_data):
    data = getattr(datasets, f"load_{name}")()
    assert data.X.shape == shape
    assert data.y.shape == shape[:1]
    assert len(set(data.feature_names)) == shape[1]
    assert np.isfinite(data.X).all()
    assert np.isfinite(data.y).all()


def test_a_set_of_a_folder_only_names_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path / "none"))
    with pytest.raises(
        datasets.DataUnavailable,
        match=r"kin40k\.csv\.gz.*GPX_SCALE_DATA.*none', which is no folder",
    ):
        datasets.load_kin40k()


def test_the_users_own_file_is_taken_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path))
    (tmp_path / "abalone.csv").write_text(
        "\ufeffsex,length,rings\nM,0.5,7\n\nI,0.25,4\n", encoding="utf-8"
    )
    data = datasets.load_abalone()
    assert data.feature_names == ["sex=I", "sex=M", "length"]
    assert data.X.tolist() == [[0.0, 1.0, 0.5], [1.0, 0.0, 0.25]]
    assert data.y.tolist() == [7.0, 4.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sex,length,rings\nM,0.5\n", r"abalone\.csv.*row 1 has 2 cells and not 3"),
        ("sex,length,rings\n", r"abalone\.csv.*no rows"),
        ("", r"abalone\.csv.*no rows"),
        ("sex,length\nM,0.5\n", r"no column 'rings'. It has sex, length"),
        ("sex,length,rings\nM,long,7\n", r"column 'length' must have numbers only"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(content, message, monkeypatch, tmp_path):
    monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path))
    (tmp_path / "abalone.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        datasets.load_abalone()


def test_california_comes_from_scikit_learn_where_the_folder_has_it_not(monkeypatch, tmp_path):
    monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path))
    bunch = Bunch(data=np.ones((3, 2)), target=np.arange(3.0), feature_names=["a", "b"])
    monkeypatch.setattr(tabular, "fetch_california_housing", lambda: bunch)
    data = datasets.load_california()
    assert (data.X.shape, data.y.tolist(), data.feature_names) == (
        (3, 2),
        [0.0, 1.0, 2.0],
        ["a", "b"],
    )


def test_california_without_a_connection(monkeypatch, tmp_path):
    def refused():
        raise URLError(ConnectionRefusedError(111, "Connection refused"))

    monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path))
    monkeypatch.setattr(tabular, "fetch_california_housing", refused)
    with pytest.raises(datasets.DataUnavailable) as caught:
        datasets.load_california()
    for part in (
        "California",
        "Connection refused",
        "california_housing.csv.gz",
        repr(str(tmp_path)),
        "GPX_SCALE_DATA",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_a_table_comes_back_from_its_file(name, tmp_path):
    table = {"n": ("1", "2.50"), "text": ('señor, "él"\nsays', " x ")}
    write_table(tmp_path / name, table)
    assert read_table(tmp_path / name) == table


def test_a_digest_is_of_the_content_and_not_of_its_spelling():
    table = {"n": ("4.09", "0", "1e3"), "text": ("a  b", "", "c")}
    digest = content_digest(table, ["n", "text"])
    assert digest == content_digest(
        {"text": ("a\nb ", "", "c"), "n": (" 4.0900", "-0.0", "1000.00000000001")}, ["n", "text"]
    )
    for other in (
        {**table, "n": ("4.0900001", "0", "1e3")},
        {**table, "text": ("ab", "", "c")},
        {**table, "text": ("a b", "c", "")},
    ):
        assert content_digest(other, ["n", "text"]) != digest
    assert content_digest({"m": table["n"], "text": table["text"]}, ["m", "text"]) != digest
    assert content_digest(table, ["text", "n"]) != digest


def test_a_bar_of_bytes(capsys):
    meter = download.Meter("Toy")
    meter._every = 0.0
    meter.show_bytes(2**19, 2**20)
    meter.show_bytes(2**19, None)
    first, second = capsys.readouterr().err.splitlines()
    assert "Toy |############            | 0.5 MiB of 1.0 MiB" in first
    assert "0.5 MiB, time left unknown" in second


def test_a_mirror_stands_for_the_host(monkeypatch):
    url = "https://host.org/a+b.zip?c=d"
    monkeypatch.delenv("GPX_SCALE_MIRROR", raising=False)
    assert download.at_mirror(url) == url
    for mirror in ("http://127.0.0.1:9/", "http://127.0.0.1:9"):
        monkeypatch.setenv("GPX_SCALE_MIRROR", mirror)
        assert download.at_mirror(url) == "http://127.0.0.1:9/a+b.zip?c=d"
    monkeypatch.setenv("GPX_SCALE_MIRROR", "file:///etc")
    with pytest.raises(InputError, match="GPX_SCALE_MIRROR"):
        download.at_mirror(url)


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("GPX_SCALE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert sources.cache_folder() == tmp_path / "xdg" / "gpx_scale"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert sources.cache_folder() == tmp_path / ".cache" / "gpx_scale"
    monkeypatch.setenv("GPX_SCALE_CACHE", "~/mine")
    assert sources.cache_folder() == tmp_path / "mine"


def test_tables_that_hold_no_data_set_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path))
    for text, said in (
        ("MEDV,RM,RM\n1,2,3\n", "more than one column 'RM'"),
        ("MEDV\n1\n", "nothing to predict it by"),
    ):
        (tmp_path / "boston_housing.csv").write_text(text)
        with pytest.raises(InputError, match=said):
            datasets.load_boston()
    with pytest.raises(InputError, match="there is no"):
        datasets.load_drug(tmp_path / "missing.tsv")
    for make in (datasets.synth2, datasets.synth10):
        with pytest.raises(InputError, match="n=1"):
            make(1)


def test_a_mirror_that_is_no_address_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("GPX_SCALE_DATA", raising=False)
    monkeypatch.setenv("GPX_SCALE_CACHE", str(tmp_path))
    monkeypatch.setenv("GPX_SCALE_MIRROR", "http://[::1")
    with pytest.raises(InputError, match="GPX_SCALE_MIRROR"):
        datasets.load_boston()
