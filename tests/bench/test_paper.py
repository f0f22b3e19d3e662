"""The paper's experiments: pages are made from scores, and the committed pages are those of
the committed scores.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "paper"
COMMITTED = BENCH.parents[1] / "docs" / "paper"


@pytest.fixture
def paper(monkeypatch):
    """Import the modules of bench/paper."""
    monkeypatch.syspath_prepend(str(BENCH))
    names = ("published", "scores", "pages", "experiments", "protocol", "authors_search")
    yield {name: __import__(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def made(paper, path, **values):
    """Return scores of Digits from {method: MSE of each split}."""
    scores = paper["scores"].Scores(path)
    for method, errors in values.items():
        for split, error in enumerate(errors):
            scores.add("Digits", split, method, [("mse", error)])
    return scores


def test_scores_are_kept_and_gone_on_from(paper, tmp_path):
    scores = made(paper, tmp_path / "scores.csv", GPX=[0.1, 0.3])
    again = paper["scores"].Scores(tmp_path / "scores.csv")
    assert again.values == scores.values
    assert again.has("Digits", 1, "GPX")
    assert not again.has("Digits", 2, "GPX")
    assert again.of("Digits", "GPX", "mse").tolist() == [0.1, 0.3]


def test_bold_is_the_best_and_what_a_paired_test_does_not_tell_from_it(paper, tmp_path):
    near = [0.11, 0.19, 0.32, 0.38, 0.52]
    base = [0.1, 0.2, 0.3, 0.4, 0.5]
    scores = made(
        paper, tmp_path / "s.csv", GPX=base, ARD=near, Lasso=[v + 0.05 for v in base], GPR=[0.0] * 5
    )
    found = paper["pages"].bold(scores, "mse", "Digits", paper["published"].COLUMNS["mse"])
    # Lasso is worse on each split. GPR does not explain, and is not compared.
    assert found == {"GPX", "ARD"}


def test_what_has_no_score_is_not_the_best(paper, tmp_path):
    scores = made(paper, tmp_path / "s.csv", GPX=[np.nan, 0.1], ARD=[0.2, 0.3])
    assert paper["pages"].bold(scores, "mse", "Digits", paper["published"].COLUMNS["mse"]) == {
        "ARD"
    }


def test_scores_that_are_forgotten_are_measured_again(paper, tmp_path):
    scores = made(paper, tmp_path / "s.csv", GPX=[0.1], ARD=[0.2])
    scores.forget(["Digits"], ["GPX"])
    assert not scores.has("Digits", 0, "GPX")
    assert scores.has("Digits", 0, "ARD")


def test_what_is_far_from_the_paper_is_listed_with_the_nearest_that_was_tried(paper, tmp_path):
    pages = paper["pages"]
    scores = made(paper, tmp_path / "s.csv", GPX=[0.5, 0.5], Network=[0.05, 0.06], ARD=[0.2, 0.3])
    lines = pages.far(scores, {}).splitlines()[2:]
    assert len(lines) == 2  # ARD is within two standard deviations.
    assert all("not tried" in line for line in lines)
    network = "mse", "Digits", "Network"  # The paper has 0.163 +- 0.033.
    for values, word in (
        ({"a": 0.16, "b": 0.2}, "| a | 0.160 | **reached** |"),
        ({"a": 0.09, "b": np.inf}, "| 1 | a | 0.090 | not explained |"),
        ({"a": 0.2301, "b": 0.05}, "not explained |"),
        ({"a": 0.11, "b": 0.07}, "**reached** |"),
        ({"a": 0.115, "b": 0.2}, "| 2 | b |"),
    ):
        assert word in pages.far(scores, {network: values}), word
    words = pages.counted(scores, {network: {"a": 0.16}})
    assert words == "2 of 3 cells are marked: 1 reached by a variant, 1 not tried."


def test_variants_are_counted_by_what_they_reach_and_what_they_lose(paper, tmp_path):
    scores = made(paper, tmp_path / "s.csv", GPX=[0.5, 0.5], Network=[0.05, 0.06], ARD=[0.2, 0.3])
    variants = {
        ("mse", "Digits", "GPX"): {"good": 0.078, "bad": 0.4, "mixed": 0.08},
        ("mse", "Digits", "Network"): {"good": 0.16, "bad": 0.9},
        ("mse", "Digits", "ARD"): {"mixed": 2.0, "good": 0.3},
        ("nats", "Digits", "GPX"): {"good": -5.0},
    }
    lines = paper["pages"].reached(scores, variants).splitlines()[2:]
    assert lines == ["| good | 2 of 2 | 0 of 1 |", "| mixed | 1 of 1 | 1 of 1 |"]


def test_a_table_shows_both_and_marks_what_is_far_apart(paper, tmp_path):
    scores = made(paper, tmp_path / "s.csv", GPX=[0.08, 0.07], Network=[0.05, 0.06])
    lines = paper["pages"].table(scores, "mse").splitlines()
    assert "0.075 ± 0.005" in lines[2]
    assert "**0.055 ± 0.005** †" in lines[2]
    assert "0.078 ± 0.010" in lines[3]
    assert "0.163 ± 0.033" in lines[3]
    scores.add("Fish", 0, "GPR+LIME", [("stability", np.inf)])
    assert "∞" in paper["pages"].table(scores, "stability")


def test_the_published_numbers_are_all_there(paper):
    """Every number is also compared with the source of the paper, if that is available."""
    published = paper["published"]
    sources = list((BENCH.parents[2] / "shared" / "paper").glob("*.txt"))
    source = sources[0].read_text() if sources else None
    for (measure, _, _), cell in published.TABLE.items() if source else ():
        assert isinstance(cell, str) or f"{cell[0]:.3f} $\\pm$ {cell[1]:.3f}" in source, (
            measure,
            cell,
        )
    for measure, sets in (("mse", 8), ("faithfulness", 6), ("stability", 8)):
        methods = len(published.COLUMNS[measure])
        assert sum(key[0] == measure for key in published.TABLE) == sets * methods


def test_splits_are_standardised_on_their_training_rows(paper):
    split = paper["protocol"].split_of("Diabetes", 0)
    assert len(split.y) == 353
    assert np.allclose(split.X.mean(axis=0), 0.0, atol=1e-12)
    assert split.y.std() == pytest.approx(1.0)
    assert abs(split.X_test.mean()) > 1e-6


def test_a_method_is_measured_by_all_that_the_tables_need(paper):
    protocol = paper["protocol"]
    methods = protocol.Methods(protocol.split_of("Diabetes", 0), lambda name: {}, 0)
    found = dict(protocol.measured(methods, "Network"))
    assert {
        "mse",
        "faithfulness",
        "stability",
        "with_neighbour",
        "sufficiency_1",
        "sufficiency_10",
    } <= set(found)
    assert found["sufficiency_10"] == pytest.approx(0.0, abs=1e-12)  # All ten features are kept.
    assert set(dict(protocol.measured(methods, "GPR"))) == {"mse"}


def test_texts_are_encoded_as_their_words(paper, shared_data):
    split = paper["protocol"].split_of("Paper", 0)
    assert split.Z.shape[0] == len(split.X) == 319
    assert (
        np.corrcoef(split.encode(split.Z_test[:20]).ravel(), split.X_test[:20].ravel())[0, 1] > 0.9
    )


@pytest.mark.skipif(not (COMMITTED / "index.md").is_file(), reason="no page yet: make paper")
def test_the_page_is_what_the_scores_give(paper):
    scores = paper["scores"].Scores(COMMITTED / "scores.csv")
    tried = paper["experiments"].read(COMMITTED / "experiments.csv")
    assert paper["pages"].page(scores, COMMITTED, tried) == (COMMITTED / "index.md").read_text()


@pytest.mark.parametrize(
    ("length", "ends"),
    [
        (None, (0.02349708687408238, 49.44672562569622, 0.02039058663006244, 0.6515979702587593)),
        (
            np.log(2.0),
            (0.02931679812451369, 143.36875430372123, 0.00017613422013286297, 0.6609040806383065),
        ),
    ],
)
def test_the_package_search_ends_where_the_package_does(paper, length, ends):
    """The expected values are those of pytorch-gpx 0.1 on the first split of Diabetes, by its
    own `fit`.

    They are theta1, 2 lengthscale^2, noise_w and noise_y.
    """
    split = paper["protocol"].split_of("Diabetes", 0)
    model = paper["authors_search"].searched(split.X, split.y, None, 0.1, length)
    np.testing.assert_allclose(list(model.hyperparameters_.values()), ends, rtol=1e-6)


def test_a_search_may_end_with_a_length_scale_a_feature(paper):
    split = paper["protocol"].split_of("Diabetes", 0)
    model = paper["authors_search"].searched(
        split.X[:100], split.y[:100], np.ones((100, 1)), 0.0, ard=True
    )
    assert model.hyperparameters_["sigma_w"] == 0.0
    assert np.ptp(model.hyperparameters_["theta2"]) > 0
    start = np.log([np.log(2.0), *[13.0] * 10, 0.1])
    below = model.log_marginal_likelihood(np.insert(start, 11, -np.inf))
    assert model.log_marginal_likelihood_value_ > below + 10
