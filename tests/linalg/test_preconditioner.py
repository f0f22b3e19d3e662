"""The preconditioner P = D + F F^T agrees with dense algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import oracle
from gpx_scale.linalg.covariance import TiledCovariance
from gpx_scale.linalg.preconditioner import LowRankPreconditioner, choose_pivots
from gpx_scale.runtime.parallel import Executor
from gpx_scale.runtime.session import Session
from problems import make_problem


@pytest.fixture(scope="module")
def session():
    with Executor(2) as executor:
        yield Session.of(executor)


@pytest.fixture(scope="module", params=[40, 400])
def case(request, session):
    problem = make_problem(n=400)
    covariance = TiledCovariance(problem.inputs, problem.params, session)
    pivots = choose_pivots(covariance, request.param, np.random.RandomState(0))
    return problem, covariance, LowRankPreconditioner.of(covariance, pivots)


def dense(P):
    return np.diag(P.D) + P.F @ P.F.T


def test_solve_and_determinant_are_of_one_matrix(case):
    _problem, _, P = case
    R = np.random.RandomState(1).randn(400, 5)
    whole = dense(P)
    assert_allclose(P.solve(R), np.linalg.solve(whole, R), rtol=1e-8, atol=1e-8)
    assert P.log_determinant() == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-10)


def test_it_is_never_above_the_covariance_and_equal_on_its_pivots(case):
    problem, _, P = case
    C = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    gap = C - dense(P)
    assert np.linalg.eigvalsh(gap).min() > -1e-9 * np.abs(C).max()
    assert np.abs(gap[P.pivots]).max() < 1e-8 * np.abs(C).max()


def test_draws_have_its_covariance(case):
    _, _, P = case
    random = np.random.RandomState(2)
    draws = P.draw(random.randn(P.rank, 20_000), random.randn(len(P.D), 20_000))
    u = np.random.RandomState(3).randn(len(P.D))
    expected = u @ dense(P) @ u
    assert np.var(u @ draws) == pytest.approx(expected, rel=5 * np.sqrt(2 / 20_000))


def test_derivatives_agree_with_differences(case, session):
    problem, _covariance, P = case
    V = np.random.RandomState(4).randn(len(P.D), 3)
    trace, pairs = P.trace_gradient(), P.contract(V)
    for t, h in enumerate(1e-4 * np.eye(problem.params.theta.size)):
        up, down = (
            LowRankPreconditioner.of(
                TiledCovariance(
                    problem.inputs, problem.params.with_theta(problem.params.theta + e), session
                ),
                P.pivots,
            )
            for e in (h, -h)
        )
        assert trace[t] == pytest.approx(
            (up.log_determinant() - down.log_determinant()) / 2e-4, rel=1e-4, abs=1e-4
        )
        difference = (np.sum(V * (dense(up) @ V)) - np.sum(V * (dense(down) @ V))) / 2e-4
        assert pairs[t] == pytest.approx(difference, rel=1e-4, abs=1e-4)


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
    assert_allclose(v @ P.tangents(v), P.contract(v[:, None]), rtol=1e-8, atol=1e-8)


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
