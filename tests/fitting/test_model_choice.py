"""The choice of kernel, length scales and intercept by the integrated evidence."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import clone

import oracle
from gpx_scale import PAPER, GPXRegressor, InputError, kernels, load
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.data.scaling import Scaling
from gpx_scale.errors import NotPositiveDefinite, SolverUnavailable
from gpx_scale.fitting.model_choice import MAX_ARD_COLUMNS, ModelChoice
from gpx_scale.fitting.model_comparison import ENOUGH_NATS, Contender, Race, Rule, Setting
from gpx_scale.fitting.model_decision import (
    Decision,
    decided,
    has_constant,
    reasons_for,
    unused_columns,
)
from gpx_scale.fitting.procedure import information_of
from gpx_scale.fitting.starting_point import SubsetOptimum
from gpx_scale.model.hyperparameters import PRIOR_SD, Hyperparameters
from gpx_scale.optimize.evidence import Evidence
from gpx_scale.optimize.objective import Optimum, Point
from gpx_scale.runtime.model_table import ComparedModel, as_lines
from gpx_scale.solvers.exact.solver import ExactSolver
from problems import session_of

COMPARED = "choice of the model"
QUICK = {"candidates": ["rbf", "matern32"], "random_state": 0, "weights": "shared"}


def table(seed=0, n=60, p=4, noise=0.1):
    """Return rows of which only the first two columns matter."""
    random = np.random.RandomState(seed)
    X = random.standard_normal((n, p))
    return X, np.sin(2.0 * X[:, 0]) * X[:, 1] + noise * random.standard_normal(n)


def drawn(kernel, X, Z, noise, seed):
    """Return y and the weights of data drawn from the model;  (n,), (n, d)."""
    random = np.random.RandomState(seed)
    n, d = Z.shape
    L = np.linalg.cholesky(kernel(X) + 1e-8 * np.eye(n))
    weights = L @ random.standard_normal((n, d))
    return (weights * Z).sum(axis=1) + noise * random.standard_normal(n), weights


def chosen(model):
    """Return the record of the model that was chosen."""
    (found,) = [one for one in model.fit_report_.kernel_table if one.chosen]
    return found


def compared_on(model):
    """Return how often models were evaluated for the comparison of the last fit."""
    counts = model.fit_report_.evaluations
    return sum(count for phase, count in counts.items() if phase.startswith(COMPARED))


def test_the_integrated_evidence_is_near_a_quadrature():
    """With a Gram matrix and sigma_w = 0, theta1 and sigma_y are free."""
    random = np.random.RandomState(0)
    n, start = 80, 0.5
    x = np.sort(random.uniform(0.0, 6.0, n))
    K = np.exp(-((x[:, None] - x) ** 2))
    y = np.linalg.cholesky(2.0 * K + 0.09 * np.eye(n)) @ random.standard_normal(n)

    kernel = kernels.Precomputed(1.0)
    given = Hyperparameters.of(kernel, 0.0, start)
    model = Contender(kernel, False, False, given, given)
    rows = TrainingRows(kernel.sliceable(K), DenseFeatures(np.ones((n, 1))), y)
    race = Race(Setting.of(rows, session_of()), Rule(ENOUGH_NATS, np.inf))
    race.run(model, [given])

    assert_allclose(
        oracle.log_density(y, 2.0 * K + 0.09 * np.eye(n)),
        _log_density(K, y, np.log([[2.0]]), np.log([[0.3]]))[0, 0],
    )
    t, s = np.meshgrid(np.linspace(-6.0, 8.0, 281), np.linspace(-4.0, 2.0, 281), indexing="ij")
    log_prior = sum(
        -0.5 * (log / sd) ** 2 - np.log(sd) - 0.5 * np.log(2.0 * np.pi)
        for log, sd in ((t, PRIOR_SD["theta1"]), (s - np.log(start), PRIOR_SD["sigma"]))
    )
    cell = (t[1, 0] - t[0, 0]) * (s[0, 1] - s[0, 0])
    expected = logsumexp(_log_density(K, y, t, s) + log_prior) + np.log(cell)
    # Laplace's error is of the order 1/n per parameter. Half of log 2 pi would be 0.9.
    assert_allclose(model.integrated, expected, atol=0.15)


def _log_density(K, y, log_theta1, log_sigma_y):
    """Return log p(y) for a grid of hyperparameters, by the eigenvalues of K."""
    values, vectors = np.linalg.eigh(K)
    squared = (vectors.T @ y) ** 2
    c = np.exp(log_theta1)[..., None] * values + np.exp(2.0 * log_sigma_y)[..., None]
    return -0.5 * (squared / c + np.log(c) + np.log(2.0 * np.pi)).sum(axis=-1)


def test_leave_one_out_density_is_that_of_models_without_each_row():
    X, y = table(n=12)
    Z, noise, k = np.ones((12, 1)), (0.2, 0.3), oracle.rbf(0.8, 2.0)
    expected = 0.0
    for i in range(12):
        rest = np.arange(12) != i
        expected += oracle.log_evidence(k, X, y, Z, *noise)
        expected -= oracle.log_evidence(k, X[rest], y[rest], Z[rest], *noise)
    setting = Setting.of(TrainingRows(X, DenseFeatures(Z), y), session_of())
    given = Hyperparameters.of(kernels.RBF(0.8, 2.0), *noise)
    evidence = setting.solver.evaluate(setting.with_intercept(False), given)
    assert_allclose(evidence.leave_one_out_log_density(), expected, rtol=1e-10)


@pytest.mark.parametrize("kernel", ["rbf", "matern32"])
def test_the_kernel_that_made_the_data_is_chosen(kernel):
    random = np.random.RandomState(1)
    X, Z = random.uniform(-1.0, 1.0, (150, 1)), np.ones((150, 1))
    made = {"rbf": kernels.RBF(1.0, 0.3), "matern32": kernels.Matern32(1.0, 0.3)}[kernel]
    y, _ = drawn(made, X, Z, 0.02, seed=2)
    model = GPXRegressor(**QUICK, sigma_w=0.0).fit(X, y, Z)
    assert chosen(model).kernel == kernel
    assert type(model.posterior_.hyperparameters.kernel) is type(made)


def test_length_scales_per_column_have_to_earn_their_place():
    X, y = table(n=80)
    assert chosen(GPXRegressor(**QUICK).fit(X, y)).ard
    ones = np.ones((80, 1))
    alike, _ = drawn(kernels.RBF(1.0, 8.0), X, ones, 0.5, seed=4)
    model = GPXRegressor(**QUICK).fit(X, alike, ones)
    assert not chosen(model).ard
    # The evidence at the optimum grows with the number of length scales.
    own = [one.log_evidence for one in model.fit_report_.kernel_table if one.ard]
    assert max(own) > chosen(model).log_evidence - 1.0


def model_draw(seed, n=150, d=4):
    """Return X = Z, y and the weights of data drawn from the model."""
    X = np.random.RandomState(seed).standard_normal((n, d))
    y, weights = drawn(kernels.RBF(1.0, 8.0), X, X, 0.3, seed + 1000)
    return X, y, weights


def test_data_of_the_model_get_an_intercept_where_z_is_centred():
    X, y, _ = model_draw(0)
    named = {"kernel": "rbf", "random_state": 0, "weights": "shared"}
    auto = GPXRegressor(**named).fit(X, y)
    without = GPXRegressor(**named, fit_intercept=False).fit(X, y)
    given = GPXRegressor(**named, fit_intercept=True).fit(X, y)
    better = given.log_marginal_likelihood() > without.log_marginal_likelihood()
    assert chosen(auto).fit_intercept == better
    same = given if better else without
    assert_allclose(auto.log_marginal_likelihood(), same.log_marginal_likelihood(), atol=1e-2)
    assert_allclose(auto.predict(X), same.predict(X), atol=1e-2)


@pytest.mark.slow
def test_intervals_of_weights_cover_the_weights_of_the_model():
    covered = []
    for seed in range(20):
        X, y, weights = model_draw(seed, n=200)
        model = GPXRegressor(random_state=seed, weights="shared").fit(X, y)
        explanation = model.explain(X)
        apart = np.abs(explanation.weights - weights)
        covered.append(np.mean(apart <= 1.96 * explanation.weights_std))
    assert 0.93 < np.mean(covered) < 0.97


def test_a_constant_column_and_a_sparse_z_get_no_intercept():
    X, y = table()
    for Z in (np.ones((60, 1)), np.column_stack([X, np.full(60, 3.0)]), sp.csr_array(X > 0)):
        model = GPXRegressor("rbf", random_state=0, weights="shared").fit(X, y, Z)
        assert not model.fit_report_.kernel_table
        assert any("intercept" in note for note in model.fit_report_.notes)
        assert not model._preprocessor.scaling.intercept


@pytest.mark.parametrize("standardize", [True, False])
def test_a_column_that_is_constant_on_the_compared_rows_alone_is_no_intercept(
    monkeypatch, standardize
):
    monkeypatch.setattr("gpx_scale.fitting.model_decision.COMPARISON_ROWS", 50)
    X, y = table()
    numbers = np.arange(60.0)[:, None]
    compared = MemoryRows(TrainingRows(numbers, DenseFeatures(numbers), y)).subset(50).x
    rare = np.where(np.isin(numbers, compared), 1.0, 2.0)
    model = GPXRegressor("rbf", standardize=standardize, max_iter=3, weights="shared")
    model.fit(X, y, np.column_stack([X[:, :2], rare]))
    assert {one.fit_intercept for one in model.fit_report_.kernel_table} == {False, True}


def test_a_column_that_is_centred_is_not_constant_on_the_sample_of_a_stream():
    X, y = table()
    Z = np.column_stack([np.ones(60), np.arange(60) < 50])
    scaling = Scaling.of(X, Z, y, standardize=True, fit_intercept=False)
    rows = TrainingRows(X, scaling.z(Z), y)[:50]
    assert has_constant(rows, scaling)
    other = replace(scaling, z_shift=scaling.z_shift[1:])
    assert not has_constant(TrainingRows(rows.x, DenseFeatures(rows.Z.array[:, 1:]), y), other)


def test_one_column_has_one_length_scale():
    X, y = table(p=2)
    model = GPXRegressor(**QUICK, fit_intercept=False).fit(X[:, :1], y)
    assert [one.ard for one in model.fit_report_.kernel_table] == [False, False]


def test_many_columns_share_a_length_scale_and_the_report_says_so():
    random = np.random.RandomState(0)
    X = random.standard_normal((30, MAX_ARD_COLUMNS + 1))
    model = GPXRegressor(**QUICK, fit_intercept=False).fit(X, X[:, 0], X[:, :2])
    assert not any(one.ard for one in model.fit_report_.kernel_table)
    assert f"{MAX_ARD_COLUMNS + 1} columns" in str(model.fit_report_)


def test_duplicate_rows_and_a_constant_y_are_fitted():
    X, y = table(n=15)
    model = GPXRegressor(**QUICK).fit(np.repeat(X, 4, axis=0), np.repeat(y, 4))
    assert np.isfinite(model.predict(X)).all()
    flat = GPXRegressor(random_state=0, weights="shared").fit(X, np.full(15, 2.0))
    assert "y is constant" in str(flat.fit_report_)
    assert_allclose(flat.predict(X), 2.0)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_few_rows_are_fitted(n):
    X, y = table(n=n)
    model = GPXRegressor(weights="shared").fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


@pytest.mark.parametrize("factor", [1e150, 1e-150])
def test_the_choice_does_not_depend_on_units(factor):
    X, y = table()
    model, scaled = (
        GPXRegressor(**QUICK).fit(X, y),
        GPXRegressor(**QUICK).fit(factor * X, factor * y),
    )
    assert [one.name for one in scaled.fit_report_.kernel_table] == [
        one.name for one in model.fit_report_.kernel_table
    ]
    assert_allclose(scaled.predict(factor * X) / factor, model.predict(X), rtol=1e-6, atol=1e-6)


def test_a_gram_matrix_a_function_and_an_object_are_taken_as_given():
    X, y = table(n=40)

    def alike(some, others):
        return np.exp(-np.square(np.subtract.outer(some, others)))

    shared = {"ard": "auto", "max_iter": 3, "weights": "shared"}
    gram = GPXRegressor("precomputed", **shared).fit(alike(X[:, 0], X[:, 0]), y, X)
    function = GPXRegressor(alike, **shared).fit(list(X[:, 0]), y, X)
    given = GPXRegressor(kernels.Matern12(2.0, 3.0), **shared).fit(X, y)
    for model, kind in ((gram, "Precomputed"), (function, "Function"), (given, "matern12")):
        found = {(one.kernel, one.ard) for one in model.fit_report_.kernel_table}
        assert found == {(kind, False)}
    with pytest.raises(InputError, match='kernel="auto"'):
        GPXRegressor(kernels.RBF(), candidates=["rbf"], weights="shared").fit(X, y)


def test_a_constant_column_leaves_the_kernel(tmp_path):
    X, y = table(n=70)
    X = np.insert(X, 2, 5.0, axis=1)
    model = GPXRegressor(
        random_state=0, candidates=["rbf"], fit_intercept=False, weights="shared"
    ).fit(X, y)
    theta2 = model.hyperparameters_["theta2"]
    assert_array_equal(np.flatnonzero(np.isinf(theta2)), [2])
    assert model.theta_.size == theta2.size - 1 + 3
    assert "does not read 1 of 5 columns" in str(model.fit_report_)
    model.save(tmp_path / "model.gpx")
    loaded = load(tmp_path / "model.gpx")
    assert_array_equal(loaded.predict(X), model.predict(X))
    value, gradient = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
    assert gradient.shape == model.theta_.shape
    assert_allclose(value, model.log_marginal_likelihood_value_, rtol=1e-6)


def test_a_column_that_varies_on_other_rows_of_a_stream_stays_in_the_kernel():
    x = np.random.RandomState(0).standard_normal((20, 5))
    x[:, 1], x[:, 3] = 0.0, -0.1
    kernel = kernels.RBF(1.0, (8.0, 900.0, 80.0, 80.0, 1e6))
    found = Hyperparameters.of(kernel, 0.1, 0.1)
    best = Contender(kernel, True, False, found, found)
    assert unused_columns(best, TrainingRows(x, DenseFeatures(x), x[:, 0])) == (1, 4)
    x[:] = 0.0
    assert unused_columns(best, TrainingRows(x, DenseFeatures(x), x[:, 0])) == (1, 2, 3, 4)


def test_a_note_about_sigma_w_is_about_sigma_w_where_columns_leave_the_kernel():
    X, y = table()
    X = np.insert(X, 2, 5.0, axis=1)
    arguments = {"candidates": ["rbf"], "ard": True, "random_state": 0, "n_inducing": 20}
    arguments["weights"] = "shared"
    for solver in ("exact", "inducing"):
        model = GPXRegressor(**arguments, solver=solver, max_iter=5).fit(X, y, X[:, :2])
        assert np.isinf(model.hyperparameters_["theta2"][2])
        assert "hardly determine sigma_w" in str(model.fit_report_)


def test_the_information_of_the_comparison_is_multiplied_for_all_rows():
    given = Hyperparameters.of(kernels.RBF(1.0, 2.0), 0.1, 0.1)
    choice = ModelChoice(given.kernel, False, False)
    decision = Decision(choice, SubsetOptimum(given, 10, np.eye(4)))
    optimum = Optimum(given, None, True, "", [])
    assert_array_equal(information_of(optimum, decision, 40), 4.0 * np.eye(4))
    assert information_of(optimum, Decision(choice), 40) is None


@pytest.mark.parametrize("kind", [kernels.RBF, kernels.Matern32, kernels.RationalQuadratic])
def test_a_kernel_with_infinite_length_scales_is_one_of_fewer_columns(kind):
    random = np.random.RandomState(0)
    x, G = random.standard_normal((9, 4)), random.standard_normal((9, 9))
    whole, part = kind(1.3, (2.0, np.inf, 0.7, np.inf)), kind(1.3, (2.0, 0.7))
    kept = np.ascontiguousarray(x[:, [0, 2]])
    a, b = whole.prepare(x), part.prepare(kept)
    assert_array_equal(whole(x), part(kept))
    assert_array_equal(whole.theta, part.theta)
    assert whole.parameter_kinds == part.parameter_kinds
    assert whole.with_theta(whole.theta + 1.0).theta2[1] == np.inf
    assert_array_equal(
        whole.contract_gradient(a, a, G.copy()), part.contract_gradient(b, b, G.copy())
    )
    along = whole.contract_input_gradient(a, a, G.copy())
    assert_array_equal(along[:, [0, 2]], part.contract_input_gradient(b, b, G.copy()))
    assert not along[:, [1, 3]].any()
    assert Hyperparameters.of(whole, 0.1, 0.1).names[1:3] == ["theta2[0]", "theta2[2]"]
    combined = (whole + part).without_columns([0])
    assert combined.first.theta2[0] == combined.second.theta2[0] == np.inf


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"candidates": []}, "at least one"),
        ({"candidates": "rbf"}, "Give a list"),
        ({"candidates": ["rbf", "cubic"]}, "candidates=.*cubic"),
        ({"candidates": ["auto"]}, "candidates=.*auto"),
        ({"candidates": ["precomputed"]}, "does not take vectors"),
        ({"kernel": "rbf", "candidates": ["rbf"]}, 'kernel="auto"'),
        ({"ard": "yes"}, "ard='yes'"),
        ({"fit_intercept": None}, "fit_intercept=None"),
        ({"fit_intercept": "no"}, "fit_intercept='no'"),
        ({"kernel": "automatic"}, 'no known kernel. Give one of "auto"'),
    ],
)
def test_broken_arguments_are_named(arguments, words):
    model = GPXRegressor(**arguments)
    with pytest.raises(InputError, match=words):
        model.fit(*table(n=10))
    assert not [name for name in vars(model) if name.endswith("_")]


class Broken(kernels.RBF):
    def multiply(self, a, b, out):
        raise ValueError("it is broken")


def test_a_kernel_that_fails_is_left_out_and_all_errors_are_named():
    X, y = table()
    model = GPXRegressor(candidates=["rbf", Broken()], random_state=0, weights="shared").fit(X, y)
    assert {one.note for one in model.fit_report_.kernel_table if one.kernel == "Broken"} == {
        "ValueError: it is broken"
    }
    failing = GPXRegressor(candidates=[Broken(), Broken(2.0)], weights="shared")
    with pytest.raises(NotPositiveDefinite, match=r"Broken: ValueError: it is broken; .*name a"):
        failing.fit(X, y)


def test_kernels_that_the_solver_does_not_take_are_not_compared():
    X, y = table(p=2)
    arguments = {"solver": "basis", "fit_intercept": False, "max_iter": 3, "weights": "shared"}
    model = GPXRegressor(candidates=["rq", "rbf"], **arguments).fit(X, y)
    assert {one.kernel for one in model.fit_report_.kernel_table} == {"rbf"}
    with pytest.raises(SolverUnavailable, match="spectral density"):
        GPXRegressor(candidates=["rq"], **arguments).fit(X, y)


@pytest.mark.parametrize(("rows_in_memory", "compared"), [(99, 50), (49, 0)])
def test_little_memory_leaves_fewer_rows_to_compare_or_none(monkeypatch, rows_in_memory, compared):
    def with_little_memory(open_model, rows, preprocessor, limits, session, _, is_possible):
        bytes_per_row = session.memory_limit / rows_in_memory
        return decided(
            *(open_model, rows, preprocessor, limits, session),
            lambda count: int(count * bytes_per_row),
            is_possible,
        )

    monkeypatch.setattr("gpx_scale.fitting.procedure.decided", with_little_memory)
    X, y = table(n=100)
    model = GPXRegressor(**QUICK, ard=False, max_iter=3).fit(X, y)
    report = model.fit_report_
    if compared:
        assert f"on {compared} rows" in report.notes[0]
        assert f"{COMPARED}, {compared} rows" in report.evaluations
    else:
        assert not report.kernel_table
        assert "memory_limit is too small for a comparison" in report.notes[0]
        assert type(model.posterior_.hyperparameters.kernel) is kernels.RBF


def test_the_table_is_a_frame_and_is_kept_in_files(tmp_path, monkeypatch):
    model = GPXRegressor(**QUICK).fit(*table())
    frame = model.kernel_table_
    assert {
        "kernel",
        "ard",
        "fit_intercept",
        "log_evidence",
        "integrated",
        "seconds",
        "chosen",
    } <= {*frame.columns}
    assert frame.chosen.sum() == 1
    assert frame.chosen[0]
    assert frame.integrated[0] == frame.integrated.max()
    assert (frame.behind.dropna() >= 0).all()
    assert frame.log_evidence[0] == pytest.approx(model.log_marginal_likelihood_value_, abs=1.0)
    model.save(tmp_path / "model.gpx")
    loaded = load(tmp_path / "model.gpx")
    assert loaded.kernel_table_.equals(frame)
    assert str(loaded.fit_report_) == str(model.fit_report_)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"gpx-scale\[files\]"):
        _ = model.kernel_table_
    named = GPXRegressor(**PAPER).fit(*table())
    assert not hasattr(named, "kernel_table_")


def test_the_report_has_a_line_for_each_model():
    one = ComparedModel("rbf", True, False, -10.0, -12.25, -9.5, 0.5, chosen=True)
    other = replace(one, kernel="rq", integrated=-15.0, leave_one_out=-8.0, chosen=False)
    failed = ComparedModel("matern32", False, True, seconds=0.25, note="ValueError: no")
    assert as_lines((one, other, failed)) == [
        "rbf with ARD: integrated evidence -12.2 nats (chosen), leave-one-out -9.5 nats, 0.50 s",
        "rq with ARD: integrated evidence -15.0 nats (2.8 behind), leave-one-out -8.0 nats, 0.50 s",
        "matern32 with an intercept: 0.25 s, ValueError: no",
    ]


def test_a_model_that_leave_one_out_prefers_is_mentioned():
    def contender(kernel, integrated, left_out, note=""):
        given = Hyperparameters.of(kernel, 0.1, 0.1)
        alpha = np.sqrt([-2.0 * left_out - np.log(2.0 * np.pi)])
        evidence = Evidence(-1.0, None, 1, alpha, np.ones(1))
        point = Point(np.zeros(4), 0.0, np.zeros(4), np.eye(4), given, evidence)
        return Contender(kernel, False, False, given, given, point, integrated, 0.0, note)

    best = contender(kernels.RBF(), -10.0, -20.0)
    near = contender(kernels.Matern32(), -11.0, -18.0)
    given_up = contender(kernels.Matern52(), -19.0, -5.0, "given up")
    assert len(reasons_for([best, near, given_up], 50)) == 1
    assert reasons_for([best], 1) == [
        "rbf has the largest integrated evidence of 1 model, on 1 row."
    ]
    other = contender(kernels.RBF(1.0, 0.1), -14.0, -16.5)
    assert reasons_for([best, near, other], 50)[1] == (
        "Predictions of rows that are left out prefer rbf: their log density is 3.5 nats larger."
    )


def test_arguments_stay_as_given():
    model = GPXRegressor(**QUICK)
    before = model.get_params()
    model.fit(*table())
    assert model.get_params() == before
    assert clone(model).get_params() == before


def test_without_a_search_auto_is_an_rbf_at_the_given_values():
    X, y = table()
    given = {"optimizer": None, "theta1": 0.7, "theta2": 3.0}
    auto = GPXRegressor(**given).fit(X, y)
    named = GPXRegressor("rbf", ard=False, fit_intercept=False, **given).fit(X, y)
    assert_array_equal(auto.predict(X), named.predict(X))
    assert not auto.fit_report_.kernel_table


def test_a_warm_start_keeps_the_choice():
    X, y = table()
    model = GPXRegressor(**QUICK, warm_start=True).fit(X, y)
    first = chosen(model)
    assert compared_on(model)
    model.fit(X, y + 0.01 * X[:, 0])
    assert chosen(model) == first
    assert not compared_on(model)
    model.set_params(kernel="matern52", candidates=None, ard=False, fit_intercept=False)
    assert model.fit(X, y).fit_report_.kernel_table == ()


def test_a_checkpoint_keeps_the_choice(tmp_path):
    X, y = table()
    path = tmp_path / "state.npz"
    model = GPXRegressor(**QUICK, checkpoint=path).fit(X, y)
    again = GPXRegressor(**QUICK, checkpoint=path).fit(X, y)
    assert again.fit_report_.evaluations == {}
    assert again.fit_report_.kernel_table == model.fit_report_.kernel_table
    assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(InputError, match="other data"):
        GPXRegressor(**QUICK, checkpoint=path).fit(X + 1.0, y[::-1])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "{",
        lambda text: "[]",
        lambda text: text.replace('"kernel": "', '"kernel": "other'),
        lambda text: text.replace('"ard": ', '"ard": "', 1),
        lambda text: text.replace('"seconds": ', '"seconds": "", "more": '),
        lambda text: text.replace('"unused_columns": []', '"unused_columns": [-1]'),
    ],
)
def test_a_damaged_choice_is_refused(tmp_path, change):
    X, y = table()
    path = tmp_path / "state.npz"
    GPXRegressor(**QUICK, checkpoint=path).fit(X, y)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    assert change(str(arrays["choice"])) != str(arrays["choice"])
    np.savez(path, **arrays | {"choice": np.array(change(str(arrays["choice"])))})
    with pytest.raises(InputError, match="cannot be read"):
        GPXRegressor(**QUICK, checkpoint=path).fit(X, y)


def test_a_stream_is_compared_on_its_sample():
    X, y = table(n=90)
    arguments = {**QUICK, "solver": "inducing", "n_inducing": 15, "max_iter": 3}
    memory = GPXRegressor(**arguments).fit(X, y)
    stream = GPXRegressor(**arguments).fit(
        lambda: ((X[k : k + 30], y[k : k + 30]) for k in (0, 30, 60))
    )
    assert chosen(stream).name == chosen(memory).name
    assert_array_equal(stream.predict(X), memory.predict(X))


def test_rows_of_a_stream_get_the_intercept_that_was_chosen():
    X, y = table(n=90)
    shifted = y + 3.0 * (X[:, 0] > 0)
    arguments = {"solver": "inducing", "n_inducing": 15, "max_iter": 3, "random_state": 0}
    models = [
        GPXRegressor("rbf", **arguments, fit_intercept=one, weights="shared")
        for one in ("auto", True)
    ]
    for model in models:
        model.fit(lambda: [(X, shifted)]).partial_fit(X[:5], shifted[:5])
    auto, given = models
    assert chosen(auto).fit_intercept
    assert auto.posterior_.d == given.posterior_.d == 5
    assert_allclose(auto.predict(X), given.predict(X), atol=0.1 * np.std(shifted))


@pytest.mark.parametrize("evaluation", [1, 2, 5, 12])
def test_a_callback_that_stops_the_comparison_leaves_a_model(evaluation):
    X, y = table()
    calls = []
    model = GPXRegressor(
        **QUICK, callbacks=lambda state: calls.append(state) or len(calls) == evaluation
    )
    model.fit(X, y)
    assert len(calls) == evaluation
    assert np.isfinite(model.predict(X)).all()
    assert model.fit_report_.converged is False
    assert chosen(model).kernel == "rbf"


@pytest.mark.parametrize("evaluation", [1, 5, 12])
def test_an_interrupted_comparison_leaves_a_model(evaluation):
    X, y = table()
    calls = []

    def interrupt(state):
        calls.append(state)
        if len(calls) == evaluation:
            raise KeyboardInterrupt

    model = GPXRegressor(**QUICK, callbacks=interrupt)
    with pytest.raises(KeyboardInterrupt, match="best hyperparameters"):
        model.fit(X, y)
    assert len(calls) == evaluation
    assert np.isfinite(model.predict(X)).all()
    assert chosen(model).kernel == "rbf"


def test_a_comparison_goes_on_from_the_second_start_if_there_is_no_factor_at_the_first():
    class FailsWithLittleNoise(ExactSolver):
        def evaluate(self, rows, hyperparameters, **arguments):
            if hyperparameters.sigma_y < 0.5:
                raise NotPositiveDefinite("there is no factor")
            return super().evaluate(rows, hyperparameters, **arguments)

    X, y = table(n=30)
    given = Hyperparameters.of(kernels.RBF(1.0, 8.0), 0.1, 0.1)
    model = Contender(given.kernel, False, False, given, given)
    setting = Setting.of(TrainingRows(X, DenseFeatures(X), y), session_of())
    solver = FailsWithLittleNoise(30, np.float64, session_of())
    race = Race(replace(setting, solver=solver), Rule(ENOUGH_NATS, np.inf))
    race.run_all([model], flips=False)
    assert model.note == ""
    assert np.isfinite(model.integrated)


@pytest.mark.parametrize(("sigma_y", "is_far"), [(1e-4, True), (0.1, False)])
def test_searches_leave_the_optimum_of_fewer_rows_together_if_it_is_far(sigma_y, is_far):
    X, y = table(n=40, noise=0.3)
    setting = Setting.of(TrainingRows(X, DenseFeatures(X), y), session_of())
    given = [
        Hyperparameters.of(kind(1.0, 8.0), 0.1, 0.1) for kind in (kernels.RBF, kernels.Matern32)
    ]
    first, second = (
        Contender(one.kernel, False, False, one, one.with_sigma_y(sigma_y)) for one in given
    )
    race = Race(setting, Rule(ENOUGH_NATS, np.inf))
    assert race.start_after_fewer_rows(first) is first.found
    race.run(first, [first.found])
    start = race.start_after_fewer_rows(second)
    expected = first.found if is_far else second.found
    assert_allclose(start.theta, expected.theta)
    assert type(start.kernel) is kernels.Matern32


def test_the_search_of_all_rows_begins_at_the_optimum_of_the_comparison():
    X, y = table(n=720, p=2)
    arguments = {**QUICK, "ard": False, "fit_intercept": False}
    report = GPXRegressor(**arguments).fit(X, y).fit_report_
    assert set(report.evaluations) == {
        f"{COMPARED}, 500 rows",
        f"{COMPARED}, 720 rows",
        "all rows",
    }
    assert report.evaluations["all rows"] <= 4
