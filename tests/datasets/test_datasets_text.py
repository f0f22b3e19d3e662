"""Texts: the Drug files of a user, bags of words, vectors by LSA or by a sentence encoder."""

import pickle
import sys
import types

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from gpx_scale import GPXRegressor, GPXWarning, InputError, datasets
from gpx_scale.datasets import text_encoders as vectors

TEXTS = [
    "a warm and honest film",
    "a cold film without a story",
    "the story is warm",
    "honest work by a cold director",
    "the director found no story",
    "warm words for the work",
]
HEADER = (
    "\turlDrugName\trating\teffectiveness\tsideEffects\tcondition"
    "\tbenefitsReview\tsideEffectsReview\tcommentsReview\n"
)
TRAIN = (
    "2202\tenalapril\t4\tHighly Effective\tMild\theart"
    '\t"slowed the ""progress"""\tcough\t"two\r\nlines, one tab\t"\n'
    "3117\tortho\t1\tHighly Effective\tSevere\tpills\tworked\tnausea\t\n"
)
TEST = "1366\tbiaxin\t9\tConsiderably Effective\tMild\tsinus\t  \tsome pain\ttook it daily\n"


@pytest.fixture
def drug_folder(tmp_path, monkeypatch):
    (tmp_path / "drugLibTrain_raw.tsv").write_bytes((HEADER + TRAIN).encode())
    (tmp_path / "drugLibTest_raw.tsv").write_bytes((HEADER + TEST).encode())
    monkeypatch.delenv("GPX_SCALE_DATA", raising=False)
    return tmp_path


def test_drug_from_a_folder_a_file_or_the_data_folder(drug_folder, monkeypatch):
    data = datasets.load_drug(drug_folder)
    assert data.texts == ["two\r\nlines, one tab", "took it daily"]
    assert data.y.tolist() == [4.0, 9.0]
    assert data.min_count == 5
    assert datasets.load_drug(str(drug_folder / "drugLibTest_raw.tsv")).texts == ["took it daily"]
    monkeypatch.setenv("GPX_SCALE_DATA", str(drug_folder))
    assert datasets.load_drug().texts == data.texts


def test_columns_of_drug_are_joined(drug_folder):
    data = datasets.load_drug(drug_folder, columns=["benefitsReview", "commentsReview"])
    assert data.texts == ['slowed the "progress" two\r\nlines, one tab', "worked", "took it daily"]
    assert data.y.tolist() == [4.0, 1.0, 9.0]
    assert datasets.load_drug(drug_folder, columns="sideEffectsReview").texts == [
        "cough",
        "nausea",
        "some pain",
    ]


def test_drug_says_where_to_get_it_and_where_to_put_it(drug_folder, tmp_path):
    with pytest.raises(datasets.DataUnavailable) as caught:
        datasets.load_drug()
    for part in (
        "drugLibTrain_raw.tsv",
        "drugLibTest_raw.tsv",
        "archive.ics.uci.edu/dataset/461",
        "GPX_SCALE_DATA",
        "path=",
    ):
        assert part in str(caught.value)
    (drug_folder / "drugLibTest_raw.tsv").unlink()
    with pytest.raises(datasets.DataUnavailable, match=r"has no drugLibTest_raw\.tsv\."):
        datasets.load_drug(drug_folder)


def test_drug_files_of_another_kind(drug_folder):
    with pytest.raises(InputError, match=r"no column review. It has urlDrugName, rating"):
        datasets.load_drug(drug_folder, columns=["review"])
    with pytest.raises(InputError, match="leaves no text"):
        datasets.load_drug(drug_folder, columns=[])
    (drug_folder / "drugLibTest_raw.tsv").write_text(HEADER + TEST.replace("\t9\t", "\tnine\t"))
    with pytest.raises(InputError, match="'rating' must have numbers only"):
        datasets.load_drug(drug_folder)


def test_paper_and_its_cut_off(shared_data):
    data = datasets.load_paper()
    assert (len(data.texts), data.y.shape, data.min_count) == (399, (399,), 2)
    assert set(data.y) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert datasets.bag_of_words(data.min_count).fit_transform(data.texts).shape == (399, 3085)


def test_a_file_without_texts(monkeypatch, tmp_path):
    (tmp_path / "paper_reviews.csv").write_text("evaluation\n1\n")
    monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"no column 'text'. It has evaluation"):
        datasets.load_paper()


def test_a_text_set_may_be_cut():
    data = datasets.TextDataset(TEXTS, np.arange(6.0))
    assert data.min_count == 2
    assert data._replace(texts=TEXTS[:2], y=data.y[:2])._replace(min_count=5).min_count == 5


def test_bag_of_words_counts_documents():
    words = datasets.bag_of_words(2)
    Z = words.fit_transform(["film film film", "a film, a story", "work"])
    assert words.get_feature_names_out().tolist() == ["film"]
    assert Z.toarray().tolist() == [[1], [1], [0]]


@pytest.mark.parametrize("count", [0, 1.0, True, "2"])
def test_a_cut_off_is_a_number_of_documents(count):
    with pytest.raises(InputError, match="min_count"):
        datasets.bag_of_words(count)


def test_lsa_is_tfidf_and_a_truncated_svd():
    ours = datasets.sentence_vectors("lsa", n_components=3)
    known = make_pipeline(
        TfidfVectorizer(sublinear_tf=True), TruncatedSVD(3, random_state=0), Normalizer()
    )
    assert ours.encoder == "lsa"
    X, X_known = ours.fit_transform(TEXTS), known.fit_transform(TEXTS)
    assert np.allclose(X @ X.T, X_known @ X_known.T)  # whose axes have no sign
    assert np.allclose(ours.transform(TEXTS[::-1]), X[::-1])
    assert np.array_equal(ours.transform(["unheard"]), np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("texts", "k"),
    [
        (TEXTS, 6),
        (["warm", "warm", "warm warm"], 1),
        (["one text alone"], 1),
        (["two words", "words two"], 2),
    ],
)
def test_components_are_capped_by_the_texts(texts, k):
    X = datasets.sentence_vectors("lsa").fit_transform(texts)
    assert X.shape == (len(texts), k)
    assert np.allclose(np.linalg.norm(X, axis=1), 1.0)


def test_lsa_is_an_estimator():
    lsa = datasets.sentence_vectors("lsa", n_components=2, random_state=3)
    with pytest.raises(NotFittedError):
        lsa.transform(TEXTS)
    assert clone(lsa).get_params() == {"n_components": 2, "random_state": 3}
    X = lsa.fit_transform(TEXTS)
    assert np.array_equal(pickle.loads(pickle.dumps(lsa)).transform(TEXTS), X)
    with pytest.raises(InputError, match="n_components"):
        datasets.sentence_vectors("lsa", n_components=0).fit(TEXTS)


def test_texts_go_through_a_model():
    model = GPXRegressor(
        x_transformer=datasets.sentence_vectors("lsa", n_components=4),
        z_transformer=datasets.bag_of_words(2),
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    texts = [f"{text} {k % 3}" for k, text in enumerate(TEXTS * 5)]
    model.fit(texts, np.array([text.count("warm") for text in texts], float))
    assert model.predict(["a warm film", "a cold film"]).shape == (2,)
    assert model.explain(["a warm film"]).weights.shape[1] == len(
        datasets.bag_of_words(2).fit(texts).vocabulary_
    )


@pytest.fixture
def package(monkeypatch):
    """A stand-in for sentence_transformers, whose vectors are lengths of texts.

    It keeps the texts that it was given.
    """
    module = types.ModuleType("sentence_transformers")
    module.asked = []

    class SentenceTransformer:
        def __init__(self, name):
            module.asked.append(name)
            if name == "absent":
                raise OSError("no such model, and no connection")

        def encode(self, texts, batch_size, show_progress_bar):
            module.asked.append((len(texts), batch_size, show_progress_bar))
            return np.array([[len(text)] * 512 for text in texts], np.float32)

    module.SentenceTransformer = SentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    vectors._model.cache_clear()
    yield module
    vectors._model.cache_clear()


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    vectors._model.cache_clear()


def test_the_encoder_is_taken_where_it_is_there(package):
    encoder = datasets.sentence_vectors()
    assert isinstance(encoder, datasets.SentenceEncoder)
    assert encoder.encoder == "distiluse-base-multilingual-cased-v2"
    X = encoder.fit_transform(iter(TEXTS))
    assert X.shape == (6, 512)
    assert X.dtype == np.float64
    assert X[:, 0].tolist() == [len(text) for text in TEXTS]
    assert package.asked == ["distiluse-base-multilingual-cased-v2", (6, 32, False)]  # loaded once
    assert np.array_equal(clone(encoder).set_params(batch_size=2).transform(TEXTS), X)
    assert package.asked[-1] == (6, 2, False)
    assert np.array_equal(pickle.loads(pickle.dumps(encoder)).transform(TEXTS), X)
    assert len(pickle.dumps(encoder)) < 500
    with pytest.raises(InputError, match="not one text"):
        encoder.transform("one")


def test_an_encoder_by_name(package):
    assert datasets.sentence_vectors("some-model").encoder == "some-model"
    assert package.asked == ["some-model"]
    with pytest.raises(InputError, match="'absent' could not be loaded: no such model"):
        datasets.sentence_vectors("absent")
    with pytest.raises(InputError, match="encoder=None"):
        datasets.sentence_vectors(None)


def test_lsa_where_the_model_does_not_load(package, monkeypatch):
    monkeypatch.setattr(vectors, "DEFAULT_ENCODER", "absent")
    with pytest.warns(GPXWarning, match="'absent' could not be loaded.*LSA is used instead"):
        assert datasets.sentence_vectors().encoder == "lsa"


def test_lsa_where_the_package_is_not_there(no_package):
    found = datasets.sentence_vectors(n_components=7, random_state=1)
    assert found.encoder == "lsa"
    assert found.get_params() == {"n_components": 7, "random_state": 1}
    with pytest.raises(ImportError, match="needs the package sentence-transformers"):
        datasets.sentence_vectors("some-model")
