"""The Cholesky factorisation with jitter, beside plain NumPy, on matrices with known pivots."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale.errors import NotPositiveDefinite
from gpx_scale.linalg import cholesky
from gpx_scale.linalg.cholesky import JitterPolicy, factor_of_few_rows, factor_with_jitter
from gpx_scale.linalg.lower_tiles import factor_in_tiles

EPS = np.finfo(float).eps
POLICIES = {k: value for k, value in vars(cholesky).items() if isinstance(value, JitterPolicy)}
IN_TILES = partial(factor_in_tiles, n_jobs=2)
IN_TILES.__name__ = factor_in_tiles.__name__
ROUTINES = [IN_TILES, cholesky.factor_fortran_ordered, cholesky.factor_c_ordered]
REGULAR = np.array([[4.0, 2.0, 1.0], [2.0, 5.0, 3.0], [1.0, 3.0, 6.0]])
SINGULAR = np.full((3, 3), 4.0)  # The second pivot is exactly 0.
TINY_PIVOT = np.array([[1.0, 1.0], [1.0, 1.0 + EPS]])  # The second pivot is eps, exactly.
NEARLY_INDEFINITE = np.array(
    [[1.0, 1.0 + 5e-9], [1.0 + 5e-9, 1.0]]
)  # It needs a jitter above 5e-9.
INDEFINITE = np.array([[1.0, 2.0], [2.0, 1.0]])

# The least jitter that helps, worked out by hand, or None if no jitter of the policy helps.
LEAST = {
    "COVARIANCE_JITTER": {"singular": 1e1 * EPS, "tiny": 1e1 * EPS, "indefinite": 1e9 * EPS},
    "INDUCING_JITTER": {"singular": 1e1 * EPS, "tiny": 1e1 * EPS, "indefinite": 1e9 * EPS},
    "PIVOT_ROWS_JITTER": {"singular": 1e1 * EPS, "tiny": 0.0, "indefinite": None},
    "JOINT_PRIOR_JITTER": {"singular": 1e-12, "tiny": 0.0, "indefinite": 1e-8},
    "JOINT_WEIGHTS_JITTER": {"singular": 1e-12, "tiny": 0.0, "indefinite": 1e-8},
    "FEW_ROWS_JITTER": {"singular": 1e-12, "tiny": 0.0, "indefinite": 1e-8},
    "NO_JITTER": {"singular": None, "tiny": 0.0, "indefinite": None},
}
MATRICES = {"singular": SINGULAR, "tiny": TINY_PIVOT, "indefinite": NEARLY_INDEFINITE}


def factorised(A, policy, routine=cholesky.factor_fortran_ordered):
    """Return L and the jitter, from a matrix that is made anew for each jitter."""
    work, diagonal = np.empty_like(A), A.diagonal().astype(float)

    def fill(jitter):
        work[...] = A
        np.fill_diagonal(work, (1.0 + jitter) * diagonal)

    return factor_with_jitter(work, diagonal, policy, "no factor", routine, fill)


def naive(A, policy):
    """Return the jitter by the definition, None if there is no factor."""
    eps = np.finfo(A.dtype).eps
    unit = eps if policy.in_units_of_eps else 1.0
    for jitter in (step * unit for step in policy.steps):
        if jitter >= policy.below:
            break
        try:
            L = np.linalg.cholesky(A + jitter * np.diag(A.diagonal()))
        except np.linalg.LinAlgError:
            continue
        least = policy.least_pivot
        if least is None or (L.diagonal() ** 2 > least * eps * A.diagonal()).all():
            return jitter
    return None


def test_every_policy_is_in_the_table():
    assert POLICIES.keys() == LEAST.keys()


@pytest.mark.parametrize("routine", ROUTINES, ids=lambda routine: routine.__name__)
@pytest.mark.parametrize("name", LEAST)
def test_a_regular_matrix_has_its_factor_without_jitter(name, routine):
    L, jitter = factorised(REGULAR, POLICIES[name], routine)
    assert jitter == 0.0
    assert_allclose(np.tril(L), np.linalg.cholesky(REGULAR), rtol=1e-14)


@pytest.mark.parametrize("routine", ROUTINES, ids=lambda routine: routine.__name__)
@pytest.mark.parametrize("scale", [1.0, 2.0**20])
@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("name", LEAST)
def test_the_least_jitter_that_helps_is_taken(name, kind, scale, routine):
    """Rows of very different size take the same: all is relative to each row's diagonal entry."""
    A, policy, least = MATRICES[kind], POLICIES[name], LEAST[name][kind]
    sizes = scale ** np.linspace(-1.0, 1.0, len(A)).round()
    A = sizes[:, None] * A * sizes
    assert naive(A, policy) == least  # the table is right
    if least is None:
        with pytest.raises(NotPositiveDefinite, match="no factor"):
            factorised(A, policy, routine)
        return
    L, jitter = factorised(A, policy, routine)
    assert jitter == least
    with_jitter = A + jitter * np.diag(A.diagonal())
    assert_allclose(np.tril(L) @ np.tril(L).T, with_jitter, rtol=8 * EPS)


@pytest.mark.parametrize("routine", ROUTINES, ids=lambda routine: routine.__name__)
@pytest.mark.parametrize("name", LEAST)
def test_an_indefinite_matrix_has_no_factor(name, routine):
    with pytest.raises(NotPositiveDefinite, match="no factor"):
        factorised(INDEFINITE, POLICIES[name], routine)


def test_float32_takes_no_jitter_that_would_be_another_model():
    tried = cholesky.COVARIANCE_JITTER.jitters(np.float32)
    assert_allclose(tried, [0.0, 1.2e-6, 1.2e-4, 1.2e-2], rtol=0.01)
    A, policy = SINGULAR.astype(np.float32), cholesky.COVARIANCE_JITTER
    L, jitter = factorised(A, policy, IN_TILES)
    assert L.dtype == np.float32
    assert jitter == tried[1]


def test_a_matrix_that_its_routine_keeps_gets_another_diagonal():
    A = SINGULAR.copy()
    L, jitter = factor_with_jitter(A, SINGULAR.diagonal(), cholesky.FEW_ROWS_JITTER, "no factor")
    assert jitter == 1e-12
    assert_allclose(L @ L.T, A, rtol=4 * EPS)


@pytest.mark.parametrize("noise", [0.0, 0.5, np.array([0.1, 0.2, 0.3])])
def test_few_rows_with_more_noise(noise):
    L = factor_of_few_rows(REGULAR.copy(), noise)
    assert_allclose(L @ L.T, REGULAR + noise * np.eye(3), rtol=1e-14)
    with pytest.raises(NotPositiveDefinite, match="Raise sigma_y"):
        factor_of_few_rows(INDEFINITE.copy())
