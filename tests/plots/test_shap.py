"""The plots of shap take our explanations as they are (extra [bench])."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_diabetes
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from gpx_scale import GPXRegressor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, of other packages
    shap = pytest.importorskip("shap", reason="shap is in the extra [bench]")
plt = pytest.importorskip("matplotlib.pyplot")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def explanation():
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    return (
        GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared")
        .fit(X[:150], pd.Series(y[:150], name="progression"))
        .explain(X[150:190])
    )


@pytest.fixture(scope="module")
def texts():
    documents = ["good film", "bad film", "good plot and good cast", "bad cast", "a film"] * 5
    model = GPXRegressor(
        x_transformer=TfidfVectorizer(), z_transformer=CountVectorizer(), optimizer=None
    )
    return model.fit(documents, [1, -1, 2, -2, 0] * 5).explain(documents[:4])


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_the_numbers_are_ours(explanation):
    theirs = explanation.to_shap(level=0.9)
    assert isinstance(theirs, shap.Explanation)
    np.testing.assert_array_equal(theirs.values, explanation.contributions)
    np.testing.assert_array_equal(theirs.data, explanation.data)
    np.testing.assert_array_equal(theirs.lower_bounds, explanation.interval(0.9).lower)
    np.testing.assert_array_equal(theirs.upper_bounds, explanation.interval(0.9).upper)
    assert theirs.base_values.shape == (len(explanation),)
    assert theirs.feature_names == explanation.feature_names
    np.testing.assert_allclose(
        theirs.base_values + theirs.values.sum(axis=1), explanation.prediction
    )


def test_a_waterfall_draws_the_intervals(explanation):
    theirs = explanation.to_shap()[3]
    shap.plots.waterfall(theirs, show=False)
    lines = [
        lines for ax in plt.gcf().axes for lines in ax.collections if hasattr(lines, "get_segments")
    ]
    spans = [segment for some in lines for segment in some.get_segments()]
    widths = sorted(
        {round(float(np.ptp(span[:, 0])), 6) for span in spans if np.ptp(span[:, 1]) == 0}
    )
    reach = theirs.upper_bounds - theirs.lower_bounds
    largest = np.argsort(-np.abs(theirs.values))[:9]
    assert set(np.round(reach[largest], 6)) <= set(widths)


PLOTS = {
    "bar": lambda theirs: shap.plots.bar(theirs, show=False),
    "bar of one": lambda theirs: shap.plots.bar(theirs[0], show=False),
    "beeswarm": lambda theirs: shap.plots.beeswarm(theirs, show=False),
    "scatter": lambda theirs: shap.plots.scatter(theirs[:, theirs.feature_names[0]], show=False),
    "heatmap": lambda theirs: shap.plots.heatmap(theirs, show=False),
    "force": lambda theirs: shap.plots.force(theirs[0], matplotlib=True, show=False),
    "many forces": lambda theirs: shap.plots.force(theirs),
    "waterfall": lambda theirs: shap.plots.waterfall(theirs[0], show=False),
}


@pytest.mark.parametrize("name", PLOTS)
def test_its_plots_take_dense_and_sparse_rows(name, explanation, texts):
    PLOTS[name](explanation.to_shap())
    plt.close("all")
    PLOTS[name](texts.to_shap())


def test_its_text_plot_takes_words(texts):
    theirs = texts.to_shap(words=True)
    page = shap.plots.text(theirs[2], display=False)
    for word in ("good", "plot", "cast"):
        assert word in page
    assert "bad" not in page
    assert "good" in shap.plots.text(theirs, display=False)


def test_sparse_rows_are_made_dense_only_as_asked(texts, monkeypatch):
    seen, to_dense = [], sp.csr_array.toarray

    def watched(self, *given, **named):
        seen.append(self.shape)
        return to_dense(self, *given, **named)

    monkeypatch.setattr(sp.csr_array, "toarray", watched)
    assert texts[:2].to_shap().values.shape == (2, len(texts.feature_names))
    assert set(seen) == {(2, len(texts.feature_names))}


def test_without_deviations_there_are_no_bounds(explanation):
    bare = explanation.__class__(**{**vars(explanation), "contributions_std": None})
    assert bare.to_shap().lower_bounds is None
    shap.plots.waterfall(bare.to_shap()[0], show=False)
