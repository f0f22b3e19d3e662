"""Plots agree with the numbers of explanations: bars, points, bands, colours, shaded words."""

import re
import sys
from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from matplotlib.colors import to_hex
from sklearn.compose import make_column_transformer
from sklearn.preprocessing import OneHotEncoder

from gpx_scale import XZ, GPXRegressor, InputError, plots, text
from gpx_scale.explanation import Explanation, Reason
from gpx_scale.numbers_as_text import as_text
from gpx_scale.palette import PRINT, SIZES
from gpx_scale.plots import overview, style
from problems import make_problem


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Every picture can be drawn; no setting is changed; figures are closed."""
    before = dict(mpl.rcParams)
    yield
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
    plt.close("all")
    assert dict(mpl.rcParams) == before


def made(weights, std=0.3, shift=1.0, names=None, target=None):
    """Return an explanation with these weights; contributions are the weights times `shift`."""
    weights = weights if sp.issparse(weights) else np.asarray(weights, dtype=float)
    m, d = weights.shape
    deviations = None if std is None else filled(weights, std)
    contributions = weights * shift
    total = np.asarray(contributions.sum(axis=1)).ravel()
    return Explanation(
        weights=weights,
        weights_std=deviations,
        contributions=contributions,
        contributions_std=deviations,
        base_values=np.full(m, 10.0),
        base_values_std=None,
        prediction=10.0 + total,
        prediction_std=None if std is None else np.full(m, 0.5),
        data=filled(weights, shift),
        feature_names=names or [f"x{k}" for k in range(d)],
        target_name=target,
    )


def filled(like, value):
    if not sp.issparse(like):
        return np.full(like.shape, value)
    return sp.csr_array((np.full(like.nnz, value), like.indices, like.indptr), shape=like.shape)


def some(m=30, d=5, seed=0, **more):
    return made(np.random.RandomState(seed).randn(m, d), **more)


def words(m=30, d=8, seed=0, **more):
    """Sparse, with a row of no features, a feature of no rows, and an entry that is 0."""
    random = np.random.RandomState(seed)
    A = np.where(random.rand(m, d) < 0.3, random.randn(m, d), 0.0)
    A[0], A[:, d - 1] = 0.0, 0.0
    pattern = sp.csr_array(A)
    pattern.data[3] = 0.0
    return made(pattern, **more)


def bars_of(ax):
    return [patch.get_width() for patch in ax.patches]


def labels_of(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def points_of(ax):
    return [part for part in ax.collections if type(part).__name__ == "PathCollection"]


def lines_of(ax):
    return [
        part.get_segments() for part in ax.collections if type(part).__name__ == "LineCollection"
    ]


def test_without_matplotlib_plots_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"gpx-scale\[plot\]"):
        style.pyplot()


# bars


def test_plot_of_one_explanation(problem):
    explanation = problem.fitted().explain(problem.X_query, problem.Z_query)
    ax = explanation.plot(1, k=3)
    reasons = explanation.top(1, 3)
    np.testing.assert_allclose(bars_of(ax)[:3], [reason.contribution for reason in reasons])
    assert labels_of(ax) == [
        f"{reason.feature} = {as_text(reason.value)}" for reason in reasons
    ] + ["1 other"]
    np.testing.assert_allclose(
        sum(bars_of(ax)), explanation.prediction[1] - explanation.base_values[1]
    )


@pytest.mark.parametrize("kind", [some, words])
@pytest.mark.parametrize("std", [0.3, None])
@pytest.mark.parametrize("k", [0, 2, 99])
def test_bars_add_up_and_colours_are_signs(kind, std, k):
    explanation = kind(std=std)
    signs = np.sign([reason.contribution for reason in explanation.top(7, 99)[k:]])
    assert k == 99 or {-1.0, 1.0} <= set(signs)
    ax = plots.plot_contributions(explanation, 7, k=k)
    widths, colours = bars_of(ax), [to_hex(patch.get_facecolor()) for patch in ax.patches]
    np.testing.assert_allclose(sum(widths), explanation.prediction[7] - explanation.base_values[7])
    shown = explanation.top(7, k)
    assert widths[: len(shown)] == [reason.contribution for reason in shown]
    assert colours[: len(shown)] == [
        PRINT.adds if reason.contribution >= 0 else PRINT.takes for reason in shown
    ]
    others = len(explanation.top(7, 99)) - len(shown)
    assert len(widths) == len(shown) + (others > 0)
    if others:
        assert (labels_of(ax)[-1], colours[-1]) == (
            f"{others} other{'s' * (others > 1)}",
            PRINT.rule,
        )
    assert "vermilion adds, blue takes away" in ax.get_xlabel()
    assert ("95% interval" in ax.get_xlabel()) == (std is not None)


def test_error_bars_are_intervals():
    explanation = replace(some(), contributions_std=np.abs(np.random.RandomState(1).randn(30, 5)))
    for level in (0.95, 0.9):
        ax = plots.plot_contributions(explanation, 3, level=level)
        ends = np.array([segment[:, 0] for segment in lines_of(ax)[0]])
        order = np.argsort(-np.abs(explanation.contributions[3]))
        expected = (bound[3] for bound in explanation.interval(level))
        np.testing.assert_allclose(ends, np.column_stack(list(expected))[order])
    assert "90% interval" in ax.get_xlabel()
    assert not lines_of(plots.plot_contributions(some(std=None), level=0.9))


def test_a_title_says_prediction_interval_and_base_value():
    assert (
        plots.plot_contributions(made([[-20.26]])).get_title()
        == "prediction −10.26 ± 0.98, base value 10.00"
    )
    assert (
        plots.plot_contributions(made([[2.0]], target="rent"))
        .get_title()
        .startswith("predicted rent 12.00 ± 0.98")
    )
    assert (
        plots.plot_contributions(made([[2.0]], std=None)).get_title()
        == "prediction 12, base value 10"
    )
    tiny = replace(made([[2.0]]), prediction_std=np.zeros(1))
    assert plots.plot_contributions(tiny).get_title() == "prediction 12 ± 0, base value 10"


def test_units_are_written():
    explanation = made([[2.0, 1.0]], target="rent").with_units({"x0": "m²"}, "EUR")
    ax = plots.plot_contributions(explanation)
    assert labels_of(ax) == ["x0 = 1 m²", "x1 = 1"]
    assert "contribution to rent (EUR)" in ax.get_xlabel()
    figure = plots.plot_map(explanation, "x0", [[0.0, 1.0]])
    assert figure.axes[2].get_ylabel() == "EUR per m²"


def test_names_are_drawn_as_they_are():
    names = ["$5 and $6", "<b>x_1^2</b>", "a long name " * 9, "two\nlines"]
    explanation = made(
        [[4.0, 3.0, 2.0, 1.0]], names=names, target="price in $ of $ and of more than fits"
    )
    ax = plots.plot_contributions(explanation)
    shown = [label.removesuffix(" = 1") for label in labels_of(ax)]
    assert shown[:2] == [r"\$5 and \$6", "<b>x_1^2</b>"]
    assert len(shown[2]) == style.MAX_LABEL_CHARACTERS
    assert "…" in shown[2]
    assert shown[3] == "two lines"
    assert plots.plot_summary(explanation).get_yticklabels()[0].get_text() == r"\$5 and \$6"
    plots.plot_map(explanation, names[0], [[0.0, 1.0]], names=("$x$", "y_"))


def test_a_document_without_known_words_says_so():
    ax = plots.plot_contributions(words(), 0)
    assert not ax.patches
    assert "none of the features" in ax.texts[0].get_text()


# images


@pytest.mark.parametrize("kind", [some, words])
@pytest.mark.parametrize("what", ["contributions", "weights", "data", "certainty"])
def test_an_image_is_the_row_on_a_scale_of_its_own_kind(kind, what):
    explanation = kind(d=6)
    ax = plots.plot_image(explanation, 2, (2, 3), what=what)
    image = ax.images[0]
    known = abs(explanation.weights) / 0.3 if what == "certainty" else getattr(explanation, what)
    values = (known.toarray() if sp.issparse(known) else known)[2]
    np.testing.assert_allclose(np.asarray(image.get_array()), values.reshape(2, 3))
    low, high = image.get_clim()
    assert high == pytest.approx(np.abs(values).max())
    assert low == (-high if what in ("contributions", "weights") else 0.0)
    if what in ("contributions", "weights"):
        takes, nothing, adds = image.get_cmap()([0.2, 0.5, 0.8])
        assert takes[2] > takes[0]  # more blue than red
        assert adds[0] > adds[2]
        assert np.ptp(nothing[:3]) < 0.02
    _, given = plt.subplots()
    assert plots.plot_image(explanation, 2, (2, 3), ax=given, what=what, limit=7.0) is given
    assert given.images[0].get_clim()[1] == 7.0


@pytest.mark.parametrize("std", [0.3, None])
def test_images_share_one_scale_a_line(std):
    explanation, rows = some(d=6, std=std), [4, 0, 7]
    figure = plots.plot_images(explanation, rows, (2, 3), titles=["a", "b", "$"])
    lines = 4 if std else 3
    axes = [ax for ax in figure.axes if ax.images and ax.get_label() != "<colorbar>"]
    assert len(axes) == 3 * lines
    grid = np.array(axes).reshape(lines, 3)
    for line, what in zip(grid[:3], ("data", "weights", "contributions"), strict=True):
        drawn = np.stack([np.asarray(ax.images[0].get_array()).ravel() for ax in line])
        np.testing.assert_allclose(drawn, getattr(explanation, what)[rows])
    for line in grid[1:3]:
        limit = max(np.abs(ax.images[0].get_array()).max() for ax in line)
        assert {ax.images[0].get_clim() for ax in line} == {(-limit, limit)}
    assert [ax.get_ylabel() for ax in grid[:, 0]] == [
        "input",
        "weight",
        "contribution",
        "certainty",
    ][:lines]
    assert grid[0, 2].get_title().startswith("\\$\n")
    assert len(figure.axes) == 4 * lines


def test_shapes_and_kinds_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="5 features"):
        plots.plot_image(some(), 0, (2, 3))
    with pytest.raises(InputError, match="'certainty'"):
        plots.plot_image(some(), 0, (1, 5), what="colour")
    with pytest.raises(InputError, match="std=True"):
        plots.plot_image(some(std=None), 0, (1, 5), what="certainty")
    with pytest.raises(InputError, match="1 titles for 2"):
        plots.plot_images(some(), [0, 1], (1, 5), titles=["a"])


# summary


def test_a_summary_has_a_point_for_every_sample():
    explanation = some(40, 6)
    ax = plots.plot_summary(explanation, k=4)
    order = np.argsort(-explanation.importance())[:4]
    assert labels_of(ax) == [f"x{feature}" for feature in order]
    for line, (cloud, feature) in enumerate(zip(points_of(ax), order, strict=True)):
        across, up = cloud.get_offsets().T
        np.testing.assert_allclose(across, explanation.contributions[:, feature])
        assert (np.abs(up - line) <= 0.4).all()
    assert ax.get_title() == "the 4 most important of 6 features, 40 samples"


def test_a_summary_of_a_sparse_z_has_the_samples_that_have_the_feature():
    explanation = words()
    ax = plots.plot_summary(explanation, k=99)
    counts = np.diff(explanation.contributions.tocsc().indptr)
    order = [
        feature
        for feature in np.argsort(-explanation.importance(), kind="stable")
        if counts[feature]
    ]
    assert labels_of(ax) == [f"x{feature} ({counts[feature]})" for feature in order]
    assert [len(cloud.get_offsets()) for cloud in points_of(ax)] == [
        counts[feature] for feature in order
    ]


def test_deviations_are_drawn_for_a_spread_of_many_samples(monkeypatch):
    monkeypatch.setattr(overview, "MAX_ERROR_BARS", 10)
    explanation = some(33, 2, std=0.25)
    ax = plots.plot_summary(explanation)
    for feature, segments in zip(np.argsort(-explanation.importance()), lines_of(ax), strict=True):
        ends = np.array([segment[:, 0] for segment in segments])
        column = np.sort(explanation.contributions[:, feature])
        assert len(ends) == 10
        np.testing.assert_allclose(np.diff(ends), 2 * 1.959964 * 0.25, rtol=1e-6)
        np.testing.assert_allclose(ends.mean(axis=1)[[0, -1]], column[[0, -1]])
    assert "for 10 samples" in ax.get_xlabel()
    assert not lines_of(plots.plot_summary(some(std=None)))


def test_colours_of_a_summary_go_from_low_to_high_values():
    values = np.column_stack([np.arange(50.0), np.full(50, 7.0)])
    explanation = replace(some(50, 2), data=values)
    by_name = dict(
        zip(labels_of(ax := plots.plot_summary(explanation)), points_of(ax), strict=True)
    )
    shades = by_name["x0"].get_array()
    assert (shades.min(), shades.max()) == (0.0, 1.0)
    assert (np.diff(shades) >= 0).all()
    assert to_hex(by_name["x1"].get_facecolor()[0]) == PRINT.quiet  # a constant has no low and high
    bars = [ax.get_ylabel() for ax in ax.figure.axes[1:]]
    assert bars == ["value of the feature"]
    assert len(plots.plot_summary(words()).figure.axes) == 1  # all words are 1


def test_points_are_spread_alike_every_time_and_one_is_on_its_line():
    values = np.random.RandomState(0).randn(500)
    heights = overview._spread(values)
    np.testing.assert_array_equal(heights, overview._spread(values))
    assert (
        np.abs(heights[np.abs(values) < 0.3]).max()
        > 3 * np.abs(heights[np.abs(values) > 2.5]).max()
    )
    assert overview._spread(np.array([3.0])).tolist() == [0.0]
    assert len(set(overview._spread(np.zeros(9)))) == 9


# dependence


@pytest.fixture(scope="module")
def fitted():
    """Models of one problem: of arrays, of frames, each with and without a separate Z."""
    given = make_problem(n=60, p=3, d=2)
    X, Z = (
        pd.DataFrame(given.X, columns=["a", "b", "c$"]),
        pd.DataFrame(given.Z, columns=["u", "v"]),
    )
    y = pd.Series(given.y, name="rent")
    tables = {
        "arrays": (given.X, None),
        "frames": (X, None),
        "arrays, Z": (given.X, given.Z),
        "frames, Z": (X, Z),
    }
    return {kind: (given.model().fit(X, y, Z), X, Z) for kind, (X, Z) in tables.items()}


@pytest.mark.parametrize("kind", ["arrays", "frames", "arrays, Z", "frames, Z"])
def test_a_band_is_the_weights_interval_on_the_grid(fitted, kind):
    model, X, Z = fitted[kind]
    feature = {"frames": "b", "frames, Z": "v", "arrays": "x1", "arrays, Z": 1}[kind]
    ax = plots.plot_dependence(
        model, X, feature, "c$" if "frames" in kind else 2, Z=Z, level=0.8, points=21
    )
    numbers = np.asarray(X)
    grid = np.tile(np.median(numbers, axis=0), (21, 1))
    grid[:, 2] = np.linspace(*np.quantile(numbers[:, 2], [0.01, 0.99]), 21)
    asked = pd.DataFrame(grid, columns=X.columns) if "frames" in kind else grid
    expected = model.explain(asked, None if Z is None else Z[:21])
    lower, upper = (bound[:, 1] for bound in expected.weights_interval(0.8))
    corners = ax.collections[0].get_paths()[0].vertices
    for x, low, high in zip(grid[:, 2], lower, upper, strict=True):
        heights = corners[np.isclose(corners[:, 0], x), 1]
        np.testing.assert_allclose([heights.min(), heights.max()], [low, high])
    line, rug = ax.lines[:2]
    np.testing.assert_allclose(line.get_ydata(), expected.weights[:, 1])
    assert set(rug.get_xdata()) <= set(numbers[:, 2])
    assert len(rug.get_xdata()) == 58  # within the two quantiles
    assert ax.get_ylabel() == "rent per unit"
    assert "80% interval" in ax.get_legend().get_texts()[0].get_text()
    bottom, top = ax.get_ylim()
    assert len(ax.lines) == 2 + (bottom <= 0 <= top)


def test_a_pair_is_unpacked_and_constants_have_room(fitted):
    model, X, Z = fitted["arrays, Z"]
    plots.plot_dependence(model, XZ(X, Z), 0, 0, points=5)
    constant = np.column_stack([np.full(20, 3.0), np.linspace(0.0, 1.0, 20)])
    ax = plots.plot_dependence(
        GPXRegressor(optimizer=None).fit(constant, np.arange(20.0)), constant, 1, 0, points=5
    )
    assert ax.get_xlim() == (2.5, 3.5)
    assert style.range_of(np.array([0.0] * 999 + [1.0])) == (0.0, 1.0)  # rare, and yet not constant


def test_columns_that_cannot_be_walked_along_are_named(fitted):
    model, X, _ = fitted["frames"]
    for on, message in (("d", "on='d': Give a number below 3 or one of 'a', 'b'"), (3, "on=3")):
        with pytest.raises(InputError, match=re.escape(message)):
            plots.plot_dependence(model, X, 0, on)
    with pytest.raises(InputError, match="feature='z'"):
        plots.plot_dependence(model, X, "z", 0)
    more = X.assign(kind=pd.Categorical(["u"] * 60))
    with pytest.raises(InputError, match="Column 'kind' of X does not have numbers"):
        plots.plot_dependence(model, more, 0, "kind")
    for given in (["a text", "another"], sp.csr_array(np.eye(3)), np.arange(3.0)):
        with pytest.raises(InputError, match="dense table of numbers"):
            plots.plot_dependence(model, given, 0, 0)


def test_categories_stay_at_what_is_most_frequent():
    random = np.random.RandomState(0)
    X = pd.DataFrame({"size": random.normal(size=60), "city": ["Nara"] * 40 + ["Kyoto"] * 20})
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["city"]), remainder="passthrough"
    )
    model = GPXRegressor(x_transformer=columns, z_transformer=columns, optimizer=None).fit(
        X, random.normal(size=60)
    )
    ax = plots.plot_dependence(model, X, "remainder__size", "size", points=7)
    line = ax.get_lines()[0]
    rows = pd.DataFrame({"size": line.get_xdata(), "city": "Nara"})
    expected = model.explain(rows)
    at = expected.feature_names.index("remainder__size")
    np.testing.assert_allclose(line.get_ydata(), expected.weights[:, at])


# maps


def test_a_map_shows_the_whole_surface_and_hatches_where_it_is_unsure():
    explanation, places = some(std=0.4, target="rent"), np.random.RandomState(2).rand(30, 2)
    figure = plots.plot_map(explanation, "x2", places, names=("east", "north"))
    weights = explanation.weights[:, 2]
    sure = np.abs(weights) > 1.959964 * 0.4
    coloured, strokes = points_of(figure.axes[0])
    np.testing.assert_allclose(coloured.get_offsets(), places)
    np.testing.assert_allclose(coloured.get_array(), weights)
    limit = np.abs(weights).max()
    assert coloured.get_clim() == (-limit, limit)
    # Each of these samples is in a cell of its own.
    crossed = np.asarray(strokes.get_offsets())
    np.testing.assert_allclose(
        crossed[crossed[:, 0].argsort()], places[~sure][places[~sure, 0].argsort()]
    )
    assert f"95% interval contains 0 ({np.mean(~sure):.0%})" in figure.axes[0].get_title()
    halves = points_of(figure.axes[1])[0]
    np.testing.assert_allclose(halves.get_array(), 1.959964 * 0.4)
    assert [ax.get_aspect() for ax in figure.axes[:2]] == [1.0, 1.0]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("east", "north")
    assert all(part.get_rasterized() for part in (coloured, strokes, halves))
    assert figure.axes[2].get_ylabel() == "rent per unit"


def test_a_map_is_that_of_the_surface():
    data = make_problem(n=60, p=2, d=3, seed=1)
    model = GPXRegressor("rbf", sigma_w=0.7, optimizer=None, fit_intercept=False)
    model.fit(data.X, data.y, data.Z)
    surface = model.explain(data.X, data.Z, std="surface")
    drawn = [
        points_of(plots.plot_map(explanation, 1, data.X).axes[1])[0].get_array()
        for explanation in (surface, model.explain(data.X, data.Z))
    ]
    np.testing.assert_allclose(drawn[0], 1.959964 * surface.weights_std[:, 1], rtol=1e-6)
    np.testing.assert_allclose(drawn[1], drawn[0], rtol=1e-6)


def test_hatching_stays_sparse_however_many_samples_there_are():
    random = np.random.RandomState(0)
    figure = plots.plot_map(made(np.zeros((20_000, 1))), 0, random.rand(20_000, 2))
    assert len(points_of(figure.axes[0])[1].get_offsets()) == 36**2


@pytest.mark.parametrize(
    ("coordinates", "names", "degrees"),
    [
        (np.array([[-122.4, 47.5], [-122.3, 47.7], [-121.5, 47.6]]), ("longitude", "latitude"), 1),
        (
            pd.DataFrame({"Lat": [47.5, 47.7, 47.6], "Lon": [-122.4, -122.3, -121.5]}),
            ("Lon", "Lat"),
            1,
        ),
        (np.array([[0.4, 0.5], [0.3, 0.7], [0.5, 0.6]]), ("x", "y"), 0),
        (np.array([[941396.0, 3521764.0], [895553.0, 3471916.0], [1.0, 2.0]]), ("x", "y"), 0),
        (np.array([[40.0, 50.0], [41.0, 52.0], [42.0, 51.0]]), ("x", "y"), 0),
    ],
    ids=["numbers", "names in the other order", "unit square", "metres", "a lattice"],
)
def test_degrees_are_recognised(coordinates, names, degrees):
    explanation = made([[1.0], [2.0], [3.0]])
    ax = plots.plot_map(explanation, 0, coordinates).axes[0]
    ends = tuple(f"{name} (°)" for name in names) if degrees else names
    assert (ax.get_xlabel(), ax.get_ylabel()) == ends
    across, up = points_of(ax)[0].get_offsets().T
    assert ax.get_aspect() == pytest.approx(1 / np.cos(np.radians(47.6)) if degrees else 1.0)
    if degrees:
        np.testing.assert_allclose(across, [-122.4, -122.3, -121.5])
        np.testing.assert_allclose(up, [47.5, 47.7, 47.6])


def test_degrees_across_the_180th_meridian_stay_together():
    ax = plots.plot_map(made([[1.0], [2.0]]), 0, [[179.0, -17.0], [-179.0, -18.0]], degrees=True)
    np.testing.assert_allclose(points_of(ax.axes[0])[0].get_offsets()[:, 0], [179.0, 181.0])


@pytest.mark.parametrize(
    ("coordinates", "message"),
    [
        (pd.DataFrame({"lat": [1.0, 2.0], "lon": [400.0, 2.0]}), "are not degrees"),
        (pd.DataFrame({"longitude": [1.0, 2.0], "latitude": [100.0, 2.0]}), "are not degrees"),
        ([[0.0, np.nan], [1.0, 1.0]], "two finite numbers"),
        ([["a", "b"], ["c", "d"]], "are not numbers"),
    ],
)
def test_places_that_are_none_are_named(coordinates, message):
    with pytest.raises(InputError, match=message):
        plots.plot_map(made([[1.0], [2.0]]), 0, coordinates)


def test_a_coefficient_of_one_sign_has_its_own_range():
    random = np.random.RandomState(0)
    explanation = made(5.0 + random.rand(20, 1))
    drawn = points_of(plots.plot_map(explanation, 0, random.rand(20, 2)).axes[0])[0]
    assert drawn.get_clim() == (explanation.weights.min(), explanation.weights.max())
    assert drawn.get_cmap().name == SIZES
    large = points_of(
        plots.plot_map(made(np.ones((20_000, 1))), 0, random.rand(20_000, 2)).axes[0]
    )[0]
    assert large.get_sizes()[0] < drawn.get_sizes()[0]


def test_a_map_of_words_has_the_samples_with_the_word():
    explanation = words(std=None)
    places = np.random.RandomState(0).rand(30, 2)
    figure = plots.plot_map(explanation, 1, places)
    column = explanation.weights[:, [1]].tocoo()
    np.testing.assert_allclose(points_of(figure.axes[0])[0].get_offsets(), places[column.coords[0]])
    assert len(figure.axes) == 2  # a map and its colour bar: there are no deviations
    with pytest.raises(InputError, match="coordinates have the shape"):
        plots.plot_map(explanation, 1, places[:3])


# text

REASONS = [
    Reason("great", 1.0, 2.0, 2.0, 0.1),
    Reason("güzel", 1.0, -1.0, -1.0, 0.9),
    Reason("new york", 1.0, 0.5, 0.5, None),
    Reason("absent", 1.0, 9.0, 9.0, 1.0),
]
DOCUMENT = "Not <b>GREAT</b>, not great & $5 or $6: Çok güzel; a\nnew york story. " * 3


@pytest.mark.parametrize("strongest", [None, 5.0])
def test_words_are_shaded_as_highlight_shades_them(strongest):
    ax = plots.plot_text(DOCUMENT, REASONS, strongest=strongest)
    drawn = [piece.get_text() for piece in ax.texts]
    assert "".join(drawn) == "".join(DOCUMENT.split())
    marks = re.findall(
        r"rgba\((\d+),(\d+),(\d+),([\d.]+)\);border-bottom:(\w+)",
        text.highlight(DOCUMENT, REASONS, strongest=strongest),
    )
    assert len(ax.patches) == len(marks) == 15
    for patch, (*colour, opacity, _) in zip(ax.patches, marks, strict=True):
        np.testing.assert_allclose(patch.get_facecolor()[:3], np.array(colour, dtype=float) / 255)
        assert patch.get_facecolor()[3] == pytest.approx(float(opacity), abs=0.006)
    assert len(ax.lines) == sum(line != "none" for *_, line in marks) == 6
    below = {
        piece.get_text()
        for piece in ax.texts
        for line in ax.lines
        if piece.get_position()[0] == line.get_xdata()[0]
    }
    assert below >= {"GREAT", "great"}
    said = [entry.get_text() for entry in ax.get_legend().get_texts()]
    assert len(said) == 3
    assert "95% interval does not contain 0" in said[2]


def test_lines_of_text_fit_and_nothing_overlaps():
    _, ax = plt.subplots(figsize=(5.0, 4.0))
    plots.plot_text(
        "word " * 60 + "x" * 200 + "\n$a_b$ end", [Reason("word", 1.0, 1.0, 1.0, 0.1)], ax=ax
    )
    ax.figure.canvas.draw()
    room = ax.get_window_extent()
    boxes = [piece.get_window_extent() for piece in ax.texts]
    assert (
        max(box.x1 for box in boxes) <= room.x1 + 0.05 * room.width
    )  # letters are up to 4% wider where they are hinted
    starts = [piece.get_position() for piece in ax.texts]
    for (_, y), (_, then_y), box, then in zip(
        starts[:-1], starts[1:], boxes[:-1], boxes[1:], strict=True
    ):
        assert then_y < y or then.x0 > box.x1 + 2.0  # a space apart
    assert len({y for _, y in starts}) >= 6
    assert not any(piece.get_parse_math() for piece in ax.texts)


def test_texts_of_nothing():
    assert not plots.plot_text("", []).texts
    assert not plots.plot_text("nothing of it", REASONS).patches


# all the pictures


@pytest.mark.parametrize(
    "explanation",
    [
        made([[2.0]]),
        made([[2.0]], std=None),
        made(np.zeros((5, 4))),
        made(np.ones((3, 64)), shift=0.0),
        made(np.zeros((5, 4)), std=0.0),
    ],
    ids=["one", "one without deviations", "zeros", "at the baseline", "sure of zeros"],
)
def test_the_smallest_and_the_emptiest_can_be_drawn(explanation):
    m, d = explanation.weights.shape
    assert len(plots.plot_contributions(explanation, k=99).patches) == d
    assert len(points_of(plots.plot_summary(explanation, k=99))) == d
    plots.plot_images(explanation, range(m), (1, d))
    plots.plot_image(explanation, -1, (d, 1))
    plots.plot_map(explanation, 0, np.zeros((m, 2)))


def test_axes_and_figures_that_are_given_are_drawn_on():
    explanation = some(d=6)
    figure, (left, right) = plt.subplots(1, 2, layout="constrained")
    assert plots.plot_contributions(explanation, ax=left) is left
    assert explanation.plot_summary(ax=right) is right
    below = plt.figure(layout="constrained").subfigures(2, 1)
    assert plots.plot_images(explanation, [0], (2, 3), figure=below[0]) is below[0]
    assert (
        plots.plot_map(explanation, 0, np.random.RandomState(0).rand(30, 2), figure=below[1])
        is below[1]
    )
    assert len(plt.get_fignums()) == 2
    assert all(plt.figure(number).get_layout_engine() is not None for number in plt.get_fignums())
    assert figure.axes[0] is left
