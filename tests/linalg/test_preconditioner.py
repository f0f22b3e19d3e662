"""The preconditioner P = D + F F^T agrees with dense algebra."""

from contextlib import contextmanager

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import oracle
from gpx_scale.linalg.covariance import TiledCovariance
from gpx_scale.linalg.preconditioner import LowRankPreconditioner, choose_pivots
from gpx_scale.model.cross_block import CrossBlock
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.parallel import Executor
from gpx_scale.runtime.session import Session
from kernel_cases import KERNELS
from problems import make_problem


@pytest.fixture(scope="module")
def session():
    with Executor(2) as executor:
        yield Session.of(executor)


@contextmanager
def precision(dtype):
    """Let factors be of this dtype."""
    limit = np.inf if dtype == np.float32 else -1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpx_scale.linalg.preconditioner.FLOAT32_SQUARED_NORM", limit)
        yield


BOTH = pytest.mark.parametrize("dtype", [np.float64, np.float32])


@pytest.fixture(scope="module", params=[40, 400])
def pivots(request):
    return request.param


@pytest.fixture(scope="module", params=[np.float64, np.float32])
def case(request, pivots, session):
    problem = make_problem(n=400)
    covariance = TiledCovariance(problem.inputs, problem.params, session)
    pivots = choose_pivots(covariance, pivots, np.random.RandomState(0))
    with precision(request.param):
        P = LowRankPreconditioner.of(covariance, pivots)
    assert P.G.dtype == request.param
    return problem, covariance, P


def dense(P):
    return np.diag(P.D) + P.F @ P.F.T


def relative_error(P, double=1e-8):
    """Return the relative error of products with G: `double` if G is float64."""
    return 2.0 * P.rounding if P.G.dtype == np.float32 else double


def test_solve_and_determinant_are_of_one_matrix(case):
    _problem, _, P = case
    R = np.random.RandomState(1).randn(400, 5)
    whole = dense(P)
    error = np.abs(P.solve(R) - np.linalg.solve(whole, R)).max()
    assert error < relative_error(P) * np.abs(R / P.D[:, None]).max()
    assert P.log_determinant() == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-10)


def test_it_is_never_above_the_covariance_and_equal_on_its_pivots(case):
    problem, _, P = case
    C = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    gap = C - (1.0 - P.rounding) * dense(P)
    assert np.linalg.eigvalsh(gap).min() > -1e-9 * np.abs(C).max()
    assert np.abs(gap[P.pivots]).max() < relative_error(P) * np.abs(C).max()


@pytest.mark.parametrize(
    ("sigma_y", "dtype"),
    [(1e-1, np.float32), (1e-3, np.float32), (1e-1, np.float64), (1e-5, np.float64)],
)
def test_error_bounds_hold_for_every_residual(sigma_y, dtype, session):
    """Residuals along the largest eigenvectors of C lose the most digits in P^-1 r."""
    problem = make_problem(n=300, sigma_y=sigma_y, sigma_w=0.0)
    C = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    covariance = TiledCovariance(problem.inputs, problem.params, session)
    pivots = choose_pivots(covariance, 100, np.random.RandomState(0))
    with precision(dtype):
        P = LowRankPreconditioner.of(covariance, pivots)
    values, vectors = np.linalg.eigh(C)
    R = np.hstack([vectors, np.random.RandomState(0).standard_normal((300, 20))])
    energy = 0.5 * np.sum((vectors.T @ R) ** 2 / values[:, None], axis=0)
    bounds = P.error_bound_nats(R, P.solve(R))
    # LAPACK computes small eigenvalues to the rounding of the largest one.
    assert (bounds > energy * (1.0 - 1e-9 - 1e-15 * values[-1] / values[0])).all()
    noise_alone = 0.5 * np.sum(R**2, axis=0) / sigma_y**2
    assert np.mean(bounds / noise_alone) < 0.9


def test_little_noise_keeps_the_factor_in_float64(session):
    def factor(sigma_y):
        problem = make_problem(n=100, sigma_y=sigma_y, sigma_w=0.0)
        covariance = TiledCovariance(problem.inputs, problem.params, session)
        return LowRankPreconditioner.of(covariance, np.arange(50))

    usual, little = factor(0.1), factor(1e-5)
    assert (usual.G.dtype, little.G.dtype) == (np.float32, np.float64)
    assert 0.0 < usual.rounding < 1e-3
    assert little.rounding == 0.0


@BOTH
def test_columns_of_any_size_are_solved(dtype, session):
    problem = make_problem(n=100)
    covariance = TiledCovariance(problem.inputs, problem.params, session)
    with precision(dtype):
        P = LowRankPreconditioner.of(covariance, np.arange(50))
    R = np.repeat(np.random.RandomState(0).standard_normal((100, 1)), 4, axis=1)
    units = np.array([2.0**-200, 0.0, 1.0, 2.0**200])
    assert_allclose(P.solve(R * units), P.solve(R) * units, rtol=1e-12)


def test_draws_have_its_covariance(case):
    _, _, P = case
    random = np.random.RandomState(2)
    draws = P.draw(random.randn(P.rank, 20_000), random.randn(len(P.D), 20_000))
    u = np.random.RandomState(3).randn(len(P.D))
    first = P.draw(np.eye(P.rank), np.zeros((len(P.D), P.rank)))
    assert_allclose(first, P.F, rtol=0, atol=relative_error(P) * np.abs(P.F).max())
    expected = u @ dense(P) @ u
    assert np.var(u @ draws) == pytest.approx(expected, rel=5 * np.sqrt(2 / 20_000))


def test_derivatives_agree_with_differences(case, session):
    problem, _covariance, P = case
    V = np.random.RandomState(4).randn(len(P.D), 3)
    trace, pairs = P.trace_gradient(), P.contract(V)
    tolerance = {"rel": 1e-4, "abs": 1e-4 if P.G.dtype == np.float64 else 1e-2}

    def moved(step):
        """Return P at other parameters, in float64: differences would show float32's rounding."""
        there = problem.params.with_theta(problem.params.theta + step)
        with precision(np.float64):
            return LowRankPreconditioner.of(
                TiledCovariance(problem.inputs, there, session), P.pivots
            )

    for t, h in enumerate(1e-4 * np.eye(problem.params.theta.size)):
        up, down = moved(h), moved(-h)
        slope = (up.log_determinant() - down.log_determinant()) / 2e-4
        assert trace[t] == pytest.approx(slope, **tolerance)
        difference = (np.sum(V * (dense(up) @ V)) - np.sum(V * (dense(down) @ V))) / 2e-4
        assert pairs[t] == pytest.approx(difference, **tolerance)


@pytest.mark.parametrize("name", KERNELS)
def test_derivatives_without_compiled_blocks_are_the_same(name, session, monkeypatch):
    problem = make_problem(n=200)
    params = Hyperparameters.of(KERNELS[name], *problem.noise)
    P = LowRankPreconditioner.of(
        TiledCovariance(problem.inputs, params, session), np.arange(0, 200, 4)
    )
    v = np.random.RandomState(0).standard_normal((200, 2))
    compiled = (
        P.trace_gradient(),
        P.contract(v),
        P.tangents(v[:, 0]),
        P.covariance.columns(P.pivots),
    )
    monkeypatch.setattr(CrossBlock, "of", lambda *_: None)
    tiled = P.trace_gradient(), P.contract(v), P.tangents(v[:, 0]), P.covariance.columns(P.pivots)
    for one, other in zip(compiled, tiled, strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-8 * np.abs(other).max())


@BOTH
def test_one_two_and_sixteen_threads_give_the_same_bits(dtype):
    problem = make_problem(n=700)
    R = np.random.RandomState(1).standard_normal((700, 5))

    def everything(n_jobs):
        with Executor(n_jobs) as executor, precision(dtype):
            covariance = TiledCovariance(problem.inputs, problem.params, Session.of(executor))
            P = LowRankPreconditioner.of(covariance, np.arange(600))
            traces = P.trace_gradient(), P.contract(R), P.tangents(R[:, 0])
            return P.G, P.solve(R), P.draw(R[:600], R), np.array(P.log_determinant()), *traces

    alone = everything(1)
    for n_jobs in (2, 16):
        for one, other in zip(alone, everything(n_jobs), strict=True):
            assert_array_equal(one, other)


def test_pivots_are_reproducible_distinct_and_drop_duplicates(session):
    problem = make_problem(n=300)
    twice = np.tile(np.arange(150), 2)
    data = problem.inputs[twice]
    covariance = TiledCovariance(data, problem.params, session)
    first, second = (choose_pivots(covariance, 300, np.random.RandomState(7)) for _ in range(2))
    assert_allclose(first, second)
    assert len(set(first % 150)) == first.size <= 150  # a row and its copy explain the same
    assert choose_pivots(covariance, 10, np.random.RandomState(8)).size == 10


def test_noise_ends_the_search_for_pivots_early(session):
    quiet, loud = make_problem(n=300, sigma_y=0.1), make_problem(n=300, sigma_y=3.0)
    ranks = [
        choose_pivots(
            TiledCovariance(p.inputs, p.params, session),
            300,
            np.random.RandomState(0),
            below_noise=0.5,
        ).size
        for p in (quiet, loud)
    ]
    assert ranks[1] < ranks[0]


def test_rank_makes_it_closer(session):
    problem = make_problem(n=300)
    C = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    covariance = TiledCovariance(problem.inputs, problem.params, session)
    conditions = []
    for rank in (10, 50, 150):
        P = LowRankPreconditioner.of(
            covariance, choose_pivots(covariance, rank, np.random.RandomState(0))
        )
        conditions.append(np.linalg.cond(P.solve(C)))
    assert conditions[0] > 2 * conditions[1] > 4 * conditions[2]


def test_tangents_are_its_derivatives(case):
    _problem, _, P = case
    v = np.random.RandomState(5).randn(len(P.D))
    error = relative_error(P)
    assert_allclose(v @ P.tangents(v), P.contract(v[:, None]), rtol=error, atol=1e3 * error)


def test_rows_without_z_leave_only_the_noise(session):
    problem = make_problem(n=30)
    data = type(problem.inputs)(problem.X, type(problem.inputs.Z)(0.0 * problem.Z), problem.y)
    covariance = TiledCovariance(data, problem.params, session)
    P = LowRankPreconditioner.of(
        covariance, choose_pivots(covariance, 10, np.random.RandomState(0))
    )
    V = np.ones((30, 2))
    assert P.rank == 0
    assert_allclose(P.solve(V), V / covariance.noise[:, None])
    assert P.log_determinant() == pytest.approx(np.log(covariance.noise).sum())
    assert_allclose(P.trace_gradient(), [0, 0, 0, 2.0 * 30], atol=1e-9)
    assert_allclose(P.tangents(V[:, 0])[:, 3], 2.0 * problem.sigma_y**2)
