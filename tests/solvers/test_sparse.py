"""A sparse Z gives the same numbers as a dense one, and stays sparse from input to explanation."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GridSearchCV, cross_val_predict

import oracle
from conftest import GOLDEN
from gpx_scale import PAPER, XZ, GPXRegressor, kernels, make_plan
from gpx_scale.data.features import DENSITY_SAMPLE_ROWS, SparseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.errors import InputError, MemoryLimitError, SolverUnavailable
from gpx_scale.linalg.pairs import Pairs
from gpx_scale.linalg.preconditioner import LowRankPreconditioner, choose_pivots
from gpx_scale.linalg.sparse_covariance import PairCovariance
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.parallel import Executor
from gpx_scale.runtime.session import Session
from gpx_scale.solvers.cg import solver as cg
from gpx_scale.solvers.cg.planning import TRIAL_RANK_DIVISOR
from gpx_scale.solvers.exact.solver import ExactSolver
from problems import cg_solver, make_problem, problems

CSR = sp.csr_array


@pytest.fixture(scope="module")
def session():
    with Executor(2) as executor:
        yield Session.of(executor)


def bag_of_words(n, d=120, words=5, seed=0, kind="binary"):
    """Return counts of words whose frequencies fall as 1/rank, as in text; some rows are empty."""
    random = np.random.RandomState(seed)
    odds = 1.0 / np.arange(2, d + 2)
    counts = random.poisson(words * odds / odds.sum(), size=(n, d)).astype(float)
    if kind == "binary":
        counts = np.minimum(counts, 1.0)
    elif kind == "tfidf":
        counts *= np.log(1.0 + d * odds)
        counts /= np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)
    return counts


def text_problem(n=800, m=40, seed=0, **more):
    random = np.random.RandomState(seed)
    Z = bag_of_words(n + m, seed=seed, **more)
    X = random.randn(n + m, 4)
    weights = random.randn(Z.shape[1])
    y = (Z * weights * (1.0 + 0.5 * np.sin(X[:, :1]))).sum(axis=1) + 0.3 * random.randn(n + m)
    return X[:n], y[:n], Z[:n], X[n:], Z[n:]


GIVEN = {
    "theta1": 0.8,
    "theta2": 6.0,
    "sigma_w": 0.1,
    "sigma_y": 0.4,
    "optimizer": None,
    "standardize": False,
}


# sparse is dense


@given(problem=problems(largest=30, widest=12, shares=(0.0, 0.1, 0.4)))
def test_sparse_and_dense_agree_on_drawn_problems(problem):
    dense, sparse = problem.fitted(), problem.model().fit(problem.X, problem.y, CSR(problem.Z))
    tol = {"rtol": max(1e-8, problem.tol), "atol": max(1e-8, problem.tol)}
    for one, other in zip(
        sparse.log_marginal_likelihood(sparse.theta_, eval_gradient=True),
        dense.log_marginal_likelihood(dense.theta_, eval_gradient=True),
        strict=True,
    ):
        assert_allclose(one, other, **tol)
    Zq = CSR(problem.Z_query)
    for one, other in zip(
        sparse.predict(problem.X_query, Zq, return_std=True),
        dense.predict(problem.X_query, problem.Z_query, return_std=True),
        strict=True,
    ):
        assert_allclose(one, other, **tol)
    few, all_, expected = (
        sparse.explain(problem.X_query, Zq),
        sparse.explain(problem.X_query, Zq, dense=True),
        dense.explain(problem.X_query, problem.Z_query, baseline="zero"),
    )
    present = problem.Z_query != 0
    for name in ("weights", "weights_std", "contributions", "contributions_std"):
        assert isinstance(getattr(few, name), sp.csr_array)
        assert_array_equal(getattr(few, name).indices, CSR(problem.Z_query).indices)
        assert_allclose(
            getattr(few, name).toarray()[present], getattr(expected, name)[present], **tol
        )
        assert_allclose(getattr(all_, name), getattr(expected, name), **tol)
    for name in ("base_values", "base_values_std", "prediction", "prediction_std"):
        assert_allclose(getattr(few, name), getattr(expected, name), **tol)
    assert_array_equal(few.base_values + few.contributions.sum(axis=1), few.prediction)


def test_a_fit_finds_the_same_hyperparameters():
    X, y, Z, Xq, Zq = text_problem(n=150)
    models = [
        GPXRegressor(
            standardize=False, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(X, y, A)
        for A in (Z, CSR(Z))
    ]
    assert_allclose(models[1].theta_, models[0].theta_, rtol=1e-6, atol=1e-6)
    assert_allclose(models[1].predict(Xq, CSR(Zq)), models[0].predict(Xq, Zq), rtol=1e-6, atol=1e-8)


def test_golden_bag_of_words():
    golden = np.load(GOLDEN / "bag_of_words.npz")
    given = dict(zip(("theta1", "theta2", "sigma_w", "sigma_y"), golden["theta"], strict=True))
    model = GPXRegressor(**PAPER, optimizer=None, standardize=False, **given)
    model.fit(golden["X"], golden["y"], CSR(golden["Z"]))
    value, gradient = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
    assert_allclose(value, golden["log_marginal_likelihood"], rtol=1e-10)
    assert_allclose(gradient, golden["gradient_log_theta"], rtol=1e-9)
    explanation = model.explain(golden["X_query"], CSR(golden["Z_query"]), dense=True, cov=True)
    assert_allclose(explanation.weights, golden["w_mean"], rtol=1e-8, atol=1e-10)
    assert_allclose(explanation.weights_cov[0], golden["w_cov_first"], rtol=1e-8, atol=1e-10)
    explanation = model.explain(golden["X_query"], CSR(golden["Z_query"]))
    rows, cols = CSR(golden["Z_query"]).nonzero()
    assert_allclose(explanation.weights_std.data**2, golden["w_var"][rows, cols], rtol=1e-9)
    assert_allclose(explanation.prediction, golden["y_mean"], rtol=1e-8, atol=1e-10)
    assert_allclose(explanation.prediction_std**2, golden["y_var"], rtol=1e-9)


@pytest.mark.parametrize("dtype", [float, np.float32, int, np.int8, bool])
@pytest.mark.parametrize("make", [sp.csr_array, sp.csr_matrix, sp.csc_matrix, sp.coo_array])
def test_every_form_of_a_sparse_matrix_is_taken(make, dtype):
    X, y, Z, Xq, Zq = text_problem(n=60, m=5)
    expected = GPXRegressor(**GIVEN).fit(X, y, CSR(Z)).predict(Xq, CSR(Zq))
    assert_allclose(
        GPXRegressor(**GIVEN).fit(X, y, make(Z.astype(dtype))).predict(Xq, make(Zq.astype(dtype))),
        expected,
    )


def test_unsorted_duplicate_and_zero_entries_and_wide_indices():
    X, y, Z, Xq, Zq = text_problem(n=60, m=5, kind="counts")
    tidy = CSR(Z)
    order = np.concatenate(
        [np.arange(*span)[::-1] for span in zip(tidy.indptr[:-1], tidy.indptr[1:], strict=True)]
    )
    halves = np.repeat(0.5 * tidy.data[order], 2)  # Every entry comes twice, as two halves.
    messy = CSR((halves, np.repeat(tidy.indices[order], 2), 2 * tidy.indptr), shape=Z.shape)
    wide = CSR(
        (tidy.data, tidy.indices.astype(np.int64), tidy.indptr.astype(np.int64)), shape=Z.shape
    )
    zeros = tidy.copy().tolil()
    zeros[0, 0] = 7.0
    zeros = CSR(zeros)
    zeros.data[zeros.indices.tolist().index(0)] = Z[0, 0]  # A stored entry may be 0.
    before = messy.data.copy(), messy.indices.copy()
    models = [GPXRegressor(**GIVEN).fit(X, y, A) for A in (tidy, messy, wide, zeros)]
    assert_array_equal(messy.data, before[0])  # The caller's matrix is not changed.
    assert_array_equal(messy.indices, before[1])
    for model in models[1:]:
        assert_allclose(model.predict(Xq, CSR(Zq)), models[0].predict(Xq, CSR(Zq)), rtol=1e-12)
        assert model.log_marginal_likelihood_value_ == pytest.approx(
            models[0].log_marginal_likelihood_value_, rel=1e-12
        )


@pytest.mark.parametrize(
    "kernel",
    [
        "rbf",
        "matern12",
        "matern32",
        "matern52",
        "rq",
        kernels.RBF(0.5, 3.0) + kernels.Matern32(0.5, 9.0),
    ],
)
def test_sparse_x(kernel):
    _, y, Z, _, Zq = text_problem(n=80, m=6, kind="tfidf")
    given = {**GIVEN, "theta2": 0.8}
    dense = GPXRegressor(kernel, **given).fit(Z, y)
    sparse = GPXRegressor(kernel, **given).fit(CSR(Z), y)
    for one, other in zip(
        sparse.predict(CSR(Zq), return_std=True), dense.predict(Zq, return_std=True), strict=True
    ):
        assert_allclose(one, other, rtol=1e-9, atol=1e-10)
    assert sparse.n_features_in_ == Z.shape[1]
    iterative = GPXRegressor(kernel, solver="cg", **given).fit(CSR(Z), y)
    assert_allclose(iterative.predict(CSR(Zq)), dense.predict(Zq), atol=1e-4)


def test_distances_of_sparse_rows_far_from_the_origin_keep_their_digits():
    random = np.random.RandomState(0)
    near = CSR(1e4 + 1e-3 * random.rand(6, 3))
    for kernel in (kernels.RBF(1.0, 1e-6), kernels.Matern12(1.0, 1e-6)):
        assert_allclose(
            kernel(near), kernel(near.toarray() - near.toarray().mean(axis=0)), rtol=1e-6
        )


def test_a_wide_sparse_x_is_planned_by_its_entries():
    Z = sp.random_array((300, 200_000), density=5e-5, random_state=0, format="csr")
    model = GPXRegressor(memory_limit="30MB", n_jobs=2, optimizer=None).fit(Z, np.arange(300.0))
    assert model._plan.p < 50
    assert_array_equal(SparseFeatures.of(Z)[::2].matrix[:, :500].toarray(), Z[::2, :500].toarray())


def test_a_prediction_does_not_pay_for_weights(monkeypatch):
    X, y, Z, Xq, Zq = text_problem(n=60, m=4)
    for A, B in ((Z, Zq), (CSR(Z), CSR(Zq))):
        model = GPXRegressor(**GIVEN).fit(X, y, A)
        kind = type(model.posterior_)
        expected = model.predict(Xq, B, return_std=True)
        with monkeypatch.context() as patch:
            for name in ("entry_reduction", "weight_reduction", "full_reduction"):
                patch.setattr(kind, name, None)
            assert_array_equal(model.predict(Xq, B, return_std=True), expected)


def test_ard_needs_a_dense_x():
    _, y, Z, _, _ = text_problem(n=30)
    with pytest.raises(InputError, match="dense X"):
        GPXRegressor(ard=True, kernel="rbf", fit_intercept=False, weights="shared").fit(CSR(Z), y)
    dense, sparse = (
        GPXRegressor(ard=True, **GIVEN).fit(np.eye(30)[:, :3], y, A) for A in (Z, CSR(Z))
    )
    assert_allclose(sparse.log_marginal_likelihood_value_, dense.log_marginal_likelihood_value_)


def test_kernels_on_objects_and_given_matrices():
    X, y, Z, _, _ = text_problem(n=50)
    K = kernels.RBF(1.0, 6.0)(X)
    asked = []

    def function(a, b):
        asked.append(len(a) * len(b))
        return K[np.ix_(a, b)]

    dense = GPXRegressor("precomputed", **GIVEN).fit(K[:40, :40], y[:40], Z[:40])
    sparse = GPXRegressor("precomputed", **GIVEN).fit(K[:40, :40], y[:40], CSR(Z[:40]))
    objects = GPXRegressor(function, **GIVEN).fit(list(range(40)), y[:40], CSR(Z[:40]))
    query = np.column_stack([K[40:, :40], K[40:, 40:]])
    expected = dense.predict(query, Z[40:], return_std=True)
    asked.clear()
    for found in (
        sparse.predict(query, CSR(Z[40:]), return_std=True),
        objects.predict(list(range(40, 50)), CSR(Z[40:]), return_std=True),
    ):
        assert_allclose(found, expected, rtol=1e-9)
    # The function is not called again for every feature that two rows share.
    assert sum(asked) < 5 * 10 * 40


def test_intercept_beside_a_sparse_z():
    X, y, Z, Xq, Zq = text_problem(n=100, m=7)
    dense, sparse = (GPXRegressor(fit_intercept=True, **GIVEN).fit(X, y, A) for A in (Z, CSR(Z)))
    a, b = dense.explain(Xq, Zq, baseline="zero"), sparse.explain(Xq, CSR(Zq))
    for name in ("base_values", "base_values_std", "prediction", "prediction_std"):
        assert_allclose(getattr(b, name), getattr(a, name), rtol=1e-9)
    assert b.weights.shape == Zq.shape
    assert_allclose(b.contributions.toarray(), a.contributions, rtol=1e-9, atol=1e-12)
    raw = sparse.explain(Xq, CSR(Zq), dense=True, baseline=np.full(Zq.shape[1], 0.5))
    assert_allclose(
        raw.base_values,
        dense.explain(Xq, Zq, baseline=np.full(Zq.shape[1], 0.5)).base_values,
        rtol=1e-9,
    )


def test_training_rows_own_weights():
    X, y, Z, _, _ = text_problem(n=90)
    dense, sparse = (GPXRegressor(**GIVEN).fit(X, y, A) for A in (Z, CSR(Z)))
    a, b = dense.training_explanation(baseline="zero"), sparse.training_explanation()
    rows, cols = CSR(Z).nonzero()
    assert_allclose(b.weights.data, a.weights[rows, cols], rtol=1e-9, atol=1e-12)
    assert_allclose(b.weights_std.data, a.weights_std[rows, cols], rtol=1e-8)
    assert_allclose(b.prediction_std, a.prediction_std, rtol=1e-9)
    names = [f"word {l}" for l in range(Z.shape[1])]
    c = sparse.training_explanation(dense=True, feature_names=names)
    assert c.feature_names == names
    for name in (
        "data",
        "weights",
        "weights_std",
        "contributions",
        "contributions_std",
        "prediction",
        "base_values",
    ):
        assert_allclose(getattr(c, name), getattr(a, name), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("dtype", "m"), [("float64", 1), ("float64", 40), ("float32", 12)])
def test_every_way_to_exact_deviations(dtype, m):
    """Few queries take triangular solves, many the inverse, and a float32 factor is refined."""
    X, y, Z, Xq, Zq = text_problem(n=100, m=40)
    model = GPXRegressor(solver="exact", dtype=dtype, **GIVEN).fit(X, y, CSR(Z))
    found, k = model.explain(Xq[:m], CSR(Zq[:m])), oracle.rbf(0.8, 6.0)
    for i in range(m):
        _, cov = oracle.weights(k, X, y, Z, Xq[i], 0.1, 0.4)
        assert_allclose(found.weights_std[[i]].data, np.sqrt(cov.diagonal()[Zq[i] != 0]), rtol=1e-8)


# pairs


@pytest.mark.parametrize("words", [2, 5, 30])
def test_density_is_predicted(words):
    Z = SparseFeatures.of(CSR(bag_of_words(3 * DENSITY_SAMPLE_ROWS, d=400, words=words)))
    true = np.count_nonzero((Z.matrix @ Z.matrix.T).toarray()) / len(Z) ** 2
    assert true * 0.9 < Z.pair_density < true * 1.3
    with_ones = SparseFeatures.of(sp.hstack([Z.matrix, np.ones((len(Z), 1))]))
    assert with_ones.pair_density == 1.0


def test_rows_of_sparse_features():
    Z = bag_of_words(50)
    rows = SparseFeatures.of(CSR(Z))
    for some in (slice(3, 9), slice(0, 0), np.array([7, 7, 2]), np.arange(50) % 3 == 0):
        part = rows[some]
        assert_array_equal(part.matrix.toarray(), Z[some])
        assert_allclose(part.squared_norms(), (Z[some] ** 2).sum(axis=1))
        assert_allclose(part.inner_products(rows[some]), Z[some] @ Z[some].T)
        assert_allclose(
            part[1:3].scale_rows(np.arange(len(part[1:3]))).matrix.toarray(),
            Z[some][1:3] * np.arange(len(Z[some][1:3]))[:, None],
        )


# solver


@pytest.fixture(scope="module", params=["binary", "tfidf"])
def pair(request):
    """Return models of the same text by the exact solver and on pairs, at equal hyperparameters."""
    X, y, Z, Xq, Zq = text_problem(n=1200, m=30, kind=request.param)
    given = {**GIVEN, "random_state": 0}
    return (
        *(GPXRegressor(solver=s, **given).fit(X, y, CSR(Z)) for s in ("exact", "cg")),
        Xq,
        CSR(Zq),
    )


def test_means_agree_and_deviations_are_never_below_exact(pair):
    exact, iterative, Xq, Zq = pair
    assert iterative._plan.settings.form == "pairs"
    a, b = exact.explain(Xq, Zq), iterative.explain(Xq, Zq)
    assert_allclose(b.prediction, a.prediction, atol=1e-4)
    assert_allclose(b.weights.data, a.weights.data, atol=1e-4)
    for ratio in (b.weights_std.data / a.weights_std.data, (b.prediction_std / a.prediction_std)):
        assert ratio.min() > 1 - 1e-9
        assert np.median(ratio) < 1.2
    assert_allclose(b.prediction_std, iterative.predict(Xq, Zq, return_std=True)[1], rtol=1e-12)


def test_the_excess_is_stated_and_is_the_true_one(pair):
    exact, iterative, _, _ = pair
    (y_median, y_most), (median, most) = iterative.posterior_.excess
    assert 0 <= y_median <= y_most < 0.5
    assert 0 <= median <= most < 1.0
    report = iterative.fit_report_.variances
    assert "never below exact" in report
    assert "for weights" in report
    # The weights that were solved for are compared with the exact ones.
    checked = iterative.posterior_.checked
    x = exact.posterior_.support.x[checked.rows] + exact._preprocessor.scaling.x_shift
    a, b = (model.explain(x, checked.matrix).weights_std.data for model in (exact, iterative))
    assert_allclose([np.median(b / a - 1.0), (b / a - 1.0).max()], [median, most], atol=1e-4)


def test_evidence_and_gradient_of_pairs_within_the_probes_noise(session):
    X, _, Z, _, _ = text_problem(n=900)
    params = Hyperparameters.of(kernels.RBF(0.8, 6.0), 0.1, 0.4)
    C = oracle.covariance(oracle.rbf(0.8, 6.0), X, Z, 0.1, 0.4)
    # This y is a draw of the model, so that observed and expected information are about the same.
    y = np.linalg.cholesky(C) @ np.random.RandomState(9).randn(900)
    data = TrainingRows(X, SparseFeatures.of(CSR(Z)), y)
    exact = ExactSolver(900, np.float64, session).evaluate(
        MemoryRows(data), params, information=True
    )
    values, losses = [], []
    for seed in range(4):
        solver = cg_solver(data, session, seed, form="pairs", rank=60, try_jacobi=seed % 2 == 0)
        found = solver.evaluate(MemoryRows(data), params, information=True)
        off = found.gradient - exact.gradient
        losses.append(0.5 * off @ np.linalg.solve(exact.information, off))
        values.append((found.value - exact.value) / max(found.standard_error, 0.05))
        assert_allclose(
            found.information,
            exact.information,
            rtol=0.05,
            atol=0.02 * np.abs(exact.information).max(),
        )
    # A gradient from s probes without a control variate loses t / (2 s) nats on average; the mean
    # of four such losses varies by half of that.
    assert np.mean(losses) < 2 * params.theta.size / (2 * cg.PROBES)
    assert np.abs(values).max() < 4.5


def test_a_fit_on_pairs_finds_the_optimum_of_the_exact_one(monkeypatch):
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.PAIRS_SUBSET_ROWS", 600)
    X, y, Z, _, _ = text_problem(n=1200)
    exact, iterative = (
        GPXRegressor(
            solver=s, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(X, y, CSR(Z))
        for s in ("exact", "cg")
    )
    assert iterative._plan.subset < 1200  # The search on pairs was run.
    reached = exact.log_marginal_likelihood(iterative.theta_)
    assert exact.log_marginal_likelihood_value_ - reached < 0.5
    assert iterative.log_marginal_likelihood_value_ == pytest.approx(
        reached, abs=5 * iterative.fit_report_.evidence_deviation
    )


def test_jacobi_or_pivots_whichever_is_faster(session):
    """Pivots pay for 120 features whose weights hardly vary, with hardly any noise.

    C then has 120 eigenvalues of all sizes, which the pivots remove.
    """
    n = 1500
    random, Z = np.random.RandomState(0), SparseFeatures.of(CSR(bag_of_words(n)))
    hard = (
        TrainingRows(1e-3 * random.randn(n, 1), Z, random.randn(n)),
        Hyperparameters.of(kernels.RBF(1.0, 1.0), 1e-3, 0.1),
    )
    easy = (
        TrainingRows(random.randn(n, 3), Z, random.randn(n)),
        Hyperparameters.of(kernels.RBF(1.0, 6.0), 0.5, 0.5),
    )
    ranks = []
    for data, params in (hard, easy):
        solver = cg_solver(data, session, 0, form="pairs", rank=600, try_jacobi=True)
        ranks.append(solver._precondition(*solver._covariances(data, params), data.y).rank)
    assert ranks[0] > 0
    assert ranks[1] == 0


@pytest.mark.parametrize("rank", [0, 50])
def test_low_rank_and_diagonal_residual(session, rank):
    problem = make_problem(n=400, d=40, share=0.1)
    data = problem.sparse_inputs
    C = PairCovariance(
        data, problem.params, session, np.float64, Pairs.of(data, problem.params.kernel, session)
    )
    P = LowRankPreconditioner.of(
        C, choose_pivots(C, rank, np.random.RandomState(0)), bounds_from_below=False
    )
    assert P.rank == rank
    whole = np.diag(P.D) + P.F @ P.F.T
    # P keeps its factor in float32, to which the diagonal and solutions are rounded.
    rounding = 4 * np.finfo(P.G.dtype).eps if rank else 1e-9
    assert_allclose(whole.diagonal(), C.diagonal, rtol=rounding)  # This is the residual.
    R = np.random.RandomState(1).randn(400, 3)
    wanted = np.linalg.solve(whole, R)
    assert_allclose(P.solve(R), wanted, rtol=0, atol=10 * rounding * np.abs(wanted).max())
    assert P.log_determinant() == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-9)
    dense = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    left = 0.5 * np.einsum("ij,ij->j", R, np.linalg.solve(dense, R))
    assert (P.error_bound_nats(R, P.solve(R)) >= left).all()  # It is a bound for any P.


@pytest.mark.parametrize(
    "more", [{"fit_intercept": True}, {"ard": True}, {"fit_intercept": True, "dtype": "float64"}]
)
def test_a_sparse_z_over_tiles(more):
    """A sparse Z takes tiles if C is not sparse, or not a function of one distance."""
    X, y, Z, Xq, Zq = text_problem(n=700, m=20)
    exact = GPXRegressor(solver="exact", **{**GIVEN, **more, "dtype": "float64"}).fit(X, y, Z)
    tiles = GPXRegressor(solver="cg", random_state=0, **GIVEN, **more).fit(X, y, CSR(Z))
    assert tiles._plan.settings.form != "pairs"
    a, b = exact.explain(Xq, Zq, baseline="zero"), tiles.explain(Xq, CSR(Zq))
    rows, cols = Zq.nonzero()
    assert_allclose(b.prediction, a.prediction, atol=1e-3)
    for ratio in (
        b.weights_std.data / a.weights_std[rows, cols],
        b.prediction_std / a.prediction_std,
    ):
        assert 1 - 1e-9 < ratio.min() <= np.median(ratio) < 1.2


def test_samples_of_a_sparse_model(pair):
    exact, iterative, Xq, Zq = pair
    draws = exact.sample_y(Xq, Zq, n_samples=300, random_state=0)
    mean, std = exact.predict(Xq, Zq, return_std=True)
    assert np.abs((draws.mean(axis=1) - mean) / std * np.sqrt(300)).max() < 5
    assert iterative.sample_weights(Xq[:3], Zq[:3], n_samples=2).shape == (3, Zq.shape[1], 2)
    assert iterative.sample_y(Xq, Zq, n_samples=0).shape == (30, 0)
    draws = iterative.sample_y(Xq, Zq, n_samples=40, random_state=0)
    assert np.abs((draws.mean(axis=1) - mean) / std * np.sqrt(40)).max() < 5
    with pytest.raises(SolverUnavailable, match="dense Z"):
        iterative.explain(Xq, Zq, std="samples")


def test_joint_covariance_of_pairs(pair):
    exact, iterative, Xq, Zq = pair
    _, a = exact.predict(Xq, Zq, return_cov=True)
    _, b = iterative.predict(Xq, Zq, return_cov=True)
    assert_allclose(b, a, atol=1e-4)
    assert (b.diagonal() >= a.diagonal() * (1 - 1e-9)).all()


# plan, memory, bad input


def test_the_plan_takes_pairs_below_half_and_says_why():
    few, many = (
        make_plan(20_000, 50, 10, density=density, memory_limit="4GiB", n_jobs=2, solver=solver)
        for density, solver in ((0.05, "auto"), (0.7, "cg"))
    )
    assert few.settings.form == "pairs"
    assert few.bytes_needed < many.bytes_needed
    assert many.settings.form == "stored"
    assert "70% of all pairs" in str(many)
    tight = make_plan(60_000, 50, 10, density=0.4, memory_limit="3GiB", n_jobs=2, solver="cg")
    assert tight.settings.form == "recomputed"
    assert "their list needs" in str(tight)
    other = make_plan(20_000, 50, 10, density=0.05, radial=False, solver="cg")
    assert other.settings.form != "pairs"
    assert make_plan(5_000, 50, 10, density=0.05).solver == "exact"


def test_more_pairs_than_predicted_are_refused_before_they_are_listed(monkeypatch):
    X, y, Z, _, _ = text_problem(n=2000)
    model = GPXRegressor(solver="cg", memory_limit="100MB", n_jobs=2, **GIVEN)
    monkeypatch.setattr(SparseFeatures, "pair_density", 1e-6)
    monkeypatch.setattr("gpx_scale.solvers.cg.solver.PAIR_BYTES", 10_000)
    with pytest.raises(MemoryLimitError, match="pairs"):
        model.fit(X, y, CSR(Z))


@pytest.mark.parametrize("solver", ["exact", "cg"])
def test_empty_documents_and_unseen_words(solver):
    X, y, Z, Xq, _ = text_problem(n=80)
    Z = np.column_stack([Z, np.zeros((80, 2))])  # The last two features are in no row.
    Z[:5] = 0.0
    model = GPXRegressor(solver=solver, **GIVEN).fit(X, y, CSR(Z))
    query = np.zeros((3, Z.shape[1]))
    query[1, -1] = 2.0
    found = model.explain(Xq[:3], CSR(query))
    mean, std = model.predict(Xq[:3], CSR(query), return_std=True)
    assert_allclose(mean, 0.0)
    assert_allclose(std[[0, 2]], 0.4)  # This is sigma_y alone.
    assert_allclose(std[1], np.sqrt(4.0 * (0.8 + 0.1**2) + 0.4**2))  # This is the prior.
    assert found.contributions.nnz == 1
    assert found.top(0) == []
    assert found.weights_std[[1]].data == pytest.approx(np.sqrt(0.8 + 0.1**2))
    everything = GPXRegressor(solver=solver, **GIVEN).fit(X, y, CSR(np.zeros((80, 3))))
    assert_allclose(everything.predict(Xq[:2], CSR(np.ones((2, 3)))), 0.0)


def test_bad_sparse_input_is_named():
    X, y, Z, Xq, Zq = text_problem(n=40, m=3)
    broken = CSR(Z)
    broken.data[3] = np.nan
    with pytest.raises(ValueError, match="Z contains NaN"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(X, y, broken)
    broken.data[3] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(X, y, broken)
    broken.data[3] = 1e200
    with pytest.raises(InputError, match="Z reaches"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(X, y, broken)
    with pytest.raises(ValueError, match="no columns"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(X, y, CSR((40, 0)))
    with pytest.raises(ValueError, match="inconsistent"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(X, y, CSR(Z[:20]))
    model = GPXRegressor(**GIVEN).fit(X, y, CSR(Z))
    with pytest.raises(InputError, match="columns here and had 120 at fit"):
        model.predict(Xq, sp.hstack([CSR(Zq), CSR(np.ones((3, 1)))]).tocsr())
    with pytest.raises(InputError, match="dense=True"):
        model.explain(Xq, CSR(Zq), baseline=np.ones(120))
    with pytest.raises(InputError, match="dense=True"):
        model.explain(Xq, CSR(Zq), cov=True)
    # A model of a sparse Z takes dense queries, too.
    assert_allclose(model.predict(Xq, Zq), model.predict(Xq, CSR(Zq)))
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        GPXRegressor(**GIVEN).fit(X, y, Z).predict(Xq, CSR(Zq))
    with pytest.raises(MemoryLimitError, match="Explaining"):
        GPXRegressor(memory_limit="1MB", n_jobs=2, **GIVEN).fit(X, y, CSR(Z)).explain(
            np.tile(Xq, (200, 1)), CSR(np.tile(Zq, (200, 1))), dense=True
        )


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("solver", ["exact", "cg"])
def test_one_and_two_rows(solver, n):
    model = GPXRegressor(solver=solver, kernel="rbf", fit_intercept=False, weights="shared").fit(
        np.arange(n)[:, None], np.arange(n), CSR(np.ones((n, 2)))
    )
    assert np.isfinite(model.predict([[0.5]], CSR(np.ones((1, 2))), return_std=True)).all()


# ecosystem


def test_cross_validation_and_grid_search_with_sparse_pairs():
    X, y, Z, _, _ = text_problem(n=60)
    data = XZ(X, CSR(Z))
    found = cross_val_predict(GPXRegressor(**GIVEN), data, y, cv=3)
    assert np.corrcoef(found, y)[0, 1] > 0.3
    search = GridSearchCV(GPXRegressor(**GIVEN), {"sigma_y": [0.2, 0.4]}, cv=2).fit(data, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_slices_frames_and_tops_of_a_sparse_explanation():
    pytest.importorskip("pandas")
    X, y, Z, Xq, Zq = text_problem(n=60, m=6)
    explanation = GPXRegressor(**GIVEN).fit(X, y, CSR(Z)).explain(Xq, CSR(Zq))
    assert len(explanation) == 6
    assert len(explanation[1:3]) == 2
    assert_array_equal(
        explanation[np.array([4, 0])].weights.toarray(), explanation.weights.toarray()[[4, 0]]
    )
    frame = explanation.to_frame()
    assert len(frame) == np.count_nonzero(Zq)
    assert_allclose(
        frame.groupby("sample").contribution.sum().to_numpy(),
        explanation.contributions.sum(axis=1)[Zq.any(axis=1)],
    )
    wide = explanation.to_frame(wide=True)
    assert wide.shape == (6, 3 + 120)
    i = int(np.argmax(np.count_nonzero(Zq, axis=1)))
    best = explanation.top(i, 2)
    row = np.abs(explanation.contributions[[i]].toarray()[0])
    assert abs(best[0].contribution) == row.max()
    assert best[0].contribution_std > 0


def test_pickles_and_checkpoints(tmp_path):
    import pickle

    X, y, Z, Xq, Zq = text_problem(n=200, m=5)
    model = GPXRegressor(
        solver="cg",
        random_state=0,
        checkpoint=tmp_path / "fit.npz",
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y, CSR(Z))
    again = pickle.loads(pickle.dumps(model))
    assert_allclose(
        again.predict(Xq, CSR(Zq), return_std=True),
        model.predict(Xq, CSR(Zq), return_std=True),
        rtol=1e-12,
    )
    resumed = GPXRegressor(
        solver="cg",
        random_state=0,
        checkpoint=tmp_path / "fit.npz",
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y, CSR(Z))
    assert "checkpoint" in resumed.fit_report_.message
    Z[0, 0] += 1.0
    with pytest.raises(InputError, match="other data"):
        GPXRegressor(
            solver="cg",
            checkpoint=tmp_path / "fit.npz",
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(X, y, CSR(Z))


@pytest.mark.parametrize("sigma_y", [0.2, 0.01, 1e-4])
def test_exact_deviations_are_not_below_those_of_a_dense_z_when_c_is_nearly_singular(sigma_y):
    random = np.random.RandomState(0)
    X, Z, y = (
        random.randint(0, 2, (200, 3)) * 1.0,
        random.poisson(1.5, (200, 40)) * 1.0,
        random.randn(200),
    )
    given = {
        **GIVEN,
        "theta1": 8.0,
        "theta2": 5.0,
        "sigma_w": 0.0,
        "sigma_y": sigma_y,
        "solver": "exact",
    }
    dense, sparse = (GPXRegressor(**given).fit(X, y, A) for A in (Z, CSR(Z)))
    rows, cols = Z.nonzero()
    expected = dense.explain(X, Z, baseline="zero").weights_std[rows, cols]
    assert (sparse.explain(X, CSR(Z)).weights_std.data / expected - 1.0).min() > -1e-8


@pytest.mark.parametrize("size", [1.0, 1e4, 1e6])
def test_empty_documents_beside_large_entries_do_not_loosen_the_solve(size):
    random = np.random.RandomState(0)
    Z = (random.rand(600, 100) < 0.04) * size
    Z[np.arange(600), random.randint(100, size=600)] = size
    Z[:6] = 0.0
    X, y = random.randn(600, 4), random.randn(600)
    found = [
        GPXRegressor(solver=solver, optimizer=None, random_state=0)
        .fit(X, y, CSR(Z))
        .predict(X[:50], CSR(Z[100:150]))
        for solver in ("exact", "cg")
    ]
    assert_allclose(found[1], found[0], atol=1e-4 * np.ptp(found[0]))


@pytest.mark.parametrize("tiny", [0.0, 1e-17, 1e-9])
def test_a_y_that_is_rounding_in_the_largest_rows_is_solved(tiny):
    X, y, Z, Xq, Zq = text_problem(n=300, m=10)
    size = (Z**2).sum(axis=1)
    y = np.where(size >= np.quantile(size, 0.75), tiny, 1.0) * (y - y.mean())
    for A, B in ((Z, Zq), (CSR(Z), CSR(Zq))):
        found = [
            GPXRegressor(solver=s, random_state=0, **GIVEN).fit(X, y, A).predict(Xq, B)
            for s in ("exact", "cg")
        ]
        assert_allclose(found[1], found[0], atol=1e-4)


def test_nested_kernels_on_pairs():
    X, y, Z, Xq, Zq = text_problem(n=150, m=5)
    kernel = kernels.RBF(0.5, 6.0) + kernels.Matern32(0.4, 3.0) + kernels.RBF(0.2, 1.0)
    given = {"optimizer": None, "standardize": False, "sigma_y": 0.4}
    a, b = (
        GPXRegressor(kernel, solver=s, **given).fit(X, y, CSR(Z)).predict(Xq, CSR(Zq))
        for s in ("exact", "cg")
    )
    assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("wrong", [120, -1])
def test_indices_outside_the_matrix_are_refused(wrong):
    X, y, Z, _, _ = text_problem(n=30)
    broken = CSR(Z)
    broken.indices[5] = wrong
    with pytest.raises(InputError, match="point outside"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(X, y, broken)


def test_all_pivots_where_jacobi_fails():
    random = np.random.RandomState(0)
    Z = np.repeat((random.rand(500, 120) < 0.04) * 30.0, 2, axis=0)
    X = np.repeat(random.randn(500, 4), 2, axis=0)
    given = {**GIVEN, "sigma_w": 0.0, "sigma_y": 0.1, "theta2": 20.0, "random_state": 0}
    y = random.randn(1000)
    exact, iterative = (GPXRegressor(solver=s, **given).fit(X, y, CSR(Z)) for s in ("exact", "cg"))
    assert iterative.posterior_.pivots.size > iterative._plan.settings.rank / TRIAL_RANK_DIVISOR
    assert_allclose(
        iterative.predict(X[:50], CSR(Z[:50])), exact.predict(X[:50], CSR(Z[:50])), atol=1e-3
    )


def test_far_queries_of_a_float32_factor():
    X, Z = np.arange(20.0)[:, None], np.zeros((20, 3))
    Z[:, 0], Z[0, 1] = 1.0, 1.0
    given = {**GIVEN, "theta2": 1.0}
    found = [
        GPXRegressor(solver="exact", dtype=dtype, **given)
        .fit(X, np.sin(X[:, 0]), CSR(Z))
        .explain([[15.0]], CSR(np.ones((1, 3))))
        for dtype in ("float64", "float32")
    ]
    assert_allclose(found[1].weights_std.data, found[0].weights_std.data, rtol=1e-8)


def test_an_answer_does_not_depend_on_workers_or_on_what_else_is_asked(monkeypatch):
    # Some features are in more rows than this.
    monkeypatch.setattr("gpx_scale.solvers.sparse_weights.MAX_ROWS_OF_A_FEATURE", 100)
    X, y, Z, Xq, Zq = text_problem(n=400, m=30)
    found = [
        GPXRegressor(solver="cg", random_state=0, n_jobs=jobs, **GIVEN)
        .fit(X, y, CSR(Z))
        .explain(Xq, CSR(Zq))
        for jobs in (1, 3)
    ]
    assert_allclose(found[1].weights_std.data, found[0].weights_std.data, rtol=1e-12)
    model = GPXRegressor(solver="cg", random_state=0, **GIVEN).fit(X, y, CSR(Z))
    alone = model.explain(Xq[3:4], CSR(Zq[3:4]))
    assert_allclose(alone.weights_std.data, found[0][3].weights_std.data, rtol=1e-12)


def test_words_named_like_columns_and_sparse_forms_in_pairs():
    pytest.importorskip("pandas")
    X, y, Z, Xq, Zq = text_problem(n=40, m=4)
    explanation = (
        GPXRegressor(**GIVEN)
        .fit(X, y, CSR(Z))
        .explain(Xq, CSR(Zq), feature_names=["prediction", *"x" * 119])
    )
    assert explanation.to_frame(wide=True).shape == (4, 123)
    assert len(explanation[np.array(2)]) == 1
    for form in (sp.coo_array, sp.bsr_array, sp.dia_array):
        assert XZ(form(X), form(Z))[[1, 2]].Z.shape == (2, 120)


def test_signed_entries_that_cancel_count_as_shared():
    Z = np.tile([[1.0, 1.0], [1.0, -1.0]], (60, 1))
    assert SparseFeatures.of(CSR(Z)).pair_density == 1.0


def test_samples_stay_within_the_memory_limit():
    random = np.random.RandomState(0)
    Z = sp.random_array((60, 5000), density=0.001, random_state=0, format="csr")
    model = GPXRegressor(solver="cg", memory_limit="20MB", n_jobs=2, **GIVEN)
    model.fit(random.randn(60, 2), random.randn(60), Z)
    with pytest.raises(MemoryLimitError):
        model.sample_y(random.randn(2, 2), Z[:2])
    with pytest.raises(InputError, match="n_samples"):
        model.sample_y(random.randn(2, 2), Z[:2], n_samples=-1)
