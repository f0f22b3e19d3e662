"""The planner: which solver "auto" takes, by predicted seconds and bytes, and what it says."""

import numpy as np
import pytest

from gpx_scale import GPXRegressor, datasets, make_plan
from gpx_scale import plan as planner
from gpx_scale.errors import MemoryLimitError, SlowFitWarning
from gpx_scale.fitting import procedure
from gpx_scale.solvers import registry
from gpx_scale.solvers.basis import solver as basis
from gpx_scale.solvers.exact import solver as exact
from gpx_scale.solvers.low_dimensional import InputResolution
from problems import make_problem


def planned(n, p=10, **more):
    return make_plan(n, p, p, **{"memory_limit": "20GiB", "n_jobs": 2, **more})


def test_exact_inference_goes_as_far_as_a_person_waits():
    for n in (10, 2_000, 10_000, 20_000, 30_000):
        assert planned(n).solver == "exact"
        assert planned(n).seconds <= planner.AUTO_PATIENCE_SECONDS
    assert planned(200_000).solver == "neighbors"
    assert planned(50_000, n_jobs=16).solver == "exact"


def test_float32_is_taken_where_float64_has_no_time_or_memory():
    plans = [planned(n) for n in range(10_000, 60_000, 2_000)]
    kinds = [(plan.solver, np.dtype(plan.dtype).name) for plan in plans]
    order = [("exact", "float64"), ("exact", "float32"), ("cg", "float32")]
    places = [order.index(kind) for kind in kinds if kind in order]
    assert places == sorted(places)
    assert planned(20_000, memory_limit="1.2GiB").dtype is np.float32


@pytest.mark.parametrize("n_jobs", [1, 2, 16])
@pytest.mark.parametrize("solver", [one.name for one in registry.SOLVERS if one.name != "grid"])
def test_predicted_times_grow_with_rows_and_fall_with_threads(solver, n_jobs):
    def seconds(n, jobs=n_jobs):
        return planned(n, p=2, solver=solver, n_jobs=jobs, memory_limit="1TiB").seconds

    found = [seconds(n) for n in (500, 5_000, 50_000)]
    assert 0 < found[0] < found[1] < found[2]
    assert seconds(50_000, jobs=2 * n_jobs) < found[2]


@pytest.mark.parametrize(
    ("solver", "n", "stages"),
    [
        ("exact", 550, {300, 550}),
        ("exact", 700, {300, 458, 700}),
        ("cg", 550, {300}),
        ("cg", 700, {300, 458}),
    ],
)
def test_predicted_stages_of_a_search_are_those_that_run(solver, n, stages, monkeypatch):
    """300 rows are as many as 5,000 are, and from 600 rows on there is a stage in the middle."""
    monkeypatch.setattr("gpx_scale.optimize.search.EXACT_GRADIENT_ROWS", 300)
    monkeypatch.setattr("gpx_scale.optimize.search.QUARTER_FROM_ROWS", 200)
    monkeypatch.setattr("gpx_scale.optimize.search.ESTIMATED_FROM_ROWS", 200)
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.SUBSET_ROWS", 300)
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.MANY_ROWS", 600)
    monkeypatch.setattr(exact, "SEARCH_ROWS", 300)
    predicted, run = set(), set()
    seconds, evaluate = exact._step_seconds, exact.ExactSolver.evaluate

    def counted(plan, rows, rates):
        predicted.add(rows)
        return seconds(plan, rows, rates)

    def noted(self, rows, *arguments, probes=0, **more):
        run.update({len(rows)} if probes else ())
        return evaluate(self, rows, *arguments, probes=probes, **more)

    monkeypatch.setattr(exact, "_step_seconds", counted)
    monkeypatch.setattr(exact.ExactSolver, "evaluate", noted)
    data = datasets.synth10(n)
    model = GPXRegressor(
        solver=solver, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    )
    model.fit(data.X, data.y)
    assert run == stages
    assert predicted - {0} == stages


def test_a_plan_says_what_was_considered_and_is_the_same_every_time():
    plan = planned(50_000)
    names = [candidate.solver for candidate in plan.candidates]
    assert names == ["exact", "exact", "basis", "grid", "cg", "neighbors", "inducing"]
    taken = [candidate for candidate in plan.candidates if candidate.verdict == "taken"]
    assert [(one.solver, one.seconds) for one in taken] == [(plan.solver, plan.seconds)]
    for candidate in plan.candidates:
        assert str(candidate) in str(plan)
        if candidate.bytes_needed is not None:
            assert candidate.seconds is not None or candidate.solver == "grid"
    assert plan == planned(50_000)


def test_a_basis_is_taken_where_it_is_as_exact_and_much_faster():
    assert planned(1_000, p=2).solver == "exact"
    fast = planned(15_000, p=2)
    assert fast.solver == "basis"
    assert "as exact as" in fast.reasons[0]
    rough = planned(15_000, p=2, low=InputResolution(smoothness=0.5))
    assert rough.solver == "exact"
    assert planned(15_000, p=2, low=InputResolution(density=False)).solver == "exact"


def test_a_basis_of_many_functions_is_not_taken_where_exact_is_as_fast():
    wide = InputResolution(spans=(0.8, 0.95, 0.95))
    assert planned(5_000, p=3, low=wide, solver="basis").seconds > 20
    assert planned(5_000, p=3, low=wide).solver == "exact"
    assert planned(100_000, p=3, low=wide).solver == "basis"


def test_predicted_flops_of_a_basis_are_those_of_its_fit(monkeypatch):
    monkeypatch.setattr(basis, "LOOKED_UP_FLOPS", 0.0)
    # This search takes fewer evaluations than usual.
    monkeypatch.setattr(basis, "EVALUATIONS", 4.0)
    counted, likelihood, add_up = [], basis.BasisLikelihood.__init__, basis.BasisSolver._add_up

    def evaluated(self, space, *arguments):
        counted.append(space.size**3)
        likelihood(self, space, *arguments)

    def passed(self, rows, box, mean_square, nodes):
        # A product with a sum of cosines for each node and pair of weights.
        counted.append(2.0 * len(rows) * nodes.count * 15 * box.frequencies)
        return add_up(self, rows, box, mean_square, nodes)

    monkeypatch.setattr(basis.BasisLikelihood, "__init__", evaluated)
    monkeypatch.setattr(basis.BasisSolver, "_add_up", passed)
    data = datasets.synth2(3000)
    assert data.Z.shape[1] == 5
    model = GPXRegressor(
        solver="basis", random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    )
    plan = model.fit(data.X, data.y, data.Z)._plan
    assert len(counted) == 1 + 4 + 1
    assert plan.settings.flops == pytest.approx(sum(counted), rel=0.3)


def test_a_sparse_z_with_few_pairs_takes_conjugate_gradients_if_they_are_much_faster():
    assert planned(20_000, density=0.03).solver == "cg"
    assert planned(20_000, density=0.9).solver == "exact"


def test_rows_in_chunks_need_a_solver_that_reads_them_so():
    plan = planned(10_000, stream=True)
    assert plan.solver == "inducing"
    against = {candidate.solver: candidate.verdict for candidate in plan.candidates}
    assert "all rows in memory" in against["exact"]
    assert "all rows in memory" in against["cg"]


def test_more_rows_than_any_memory_are_refused_with_their_size():
    with pytest.raises(MemoryLimitError, match=r"needs .* GiB"):
        planned(10**9)
    assert planned(10**9, stream=True).seconds > 1e4


def test_where_no_solver_is_fast_enough_the_fastest_is_taken_with_a_warning(monkeypatch):
    monkeypatch.setattr(planner, "AUTO_PATIENCE_SECONDS", 1e-3)
    monkeypatch.setattr(procedure, "AUTO_PATIENCE_SECONDS", 1e-3)
    plan = planned(5_000)
    assert "This is the fastest" in plan.reasons[0]
    times = [one.seconds for one in plan.candidates if one.seconds is not None]
    assert plan.seconds == min(times)
    problem = make_problem(n=30)
    with pytest.warns(SlowFitWarning, match="predicted to take"):
        GPXRegressor(max_iter=2, kernel="rbf", fit_intercept=False, weights="shared").fit(
            problem.X, problem.y, problem.Z
        )


def test_a_solver_that_was_asked_for_is_taken_however_long_it_takes():
    plan = planned(80_000, solver="exact", memory_limit="60GiB")
    assert plan.solver == "exact"
    assert plan.seconds > planner.AUTO_PATIENCE_SECONDS
    assert not plan.candidates
