"""Kernels agree with their formulas, and their derivatives with differences.

The compiled loops over tiles are compared with both.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import kernels as sk

from gpx_scale import InputError, kernels
from gpx_scale.compiled import dense as dense_loops
from kernel_cases import KERNELS, plain


def set_overlap(a, b):
    return [[len(s & t) / max(1, len(s | t)) for t in b] for s in a]


SETS = [{1, 2}, {2, 3}, {1}, {4, 5, 6}, {1, 2, 3}]


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


def test_a_kernel_of_some_columns_reads_no_others():
    random = np.random.RandomState(0)
    a, b = random.standard_normal((2, 7, 3))
    for kernel in (
        kernels.RBF(1.3, 3.0),
        kernels.RBF(1.3, [2.0, 1.0, 0.5]) * kernels.Matern32(1, 6.0),
    ):
        some = kernel.of_columns([1], 3)
        changed = b.copy()
        changed[:, [0, 2]] = 9.0
        assert_allclose(some(a, b), some(a, changed))
        assert not np.allclose(some(a, b), some(a, changed[::-1]))
    only = kernels.RBF(1.3, 3.0).of_columns([1], 3)
    assert_allclose(only(a, b), kernels.RBF(1.3, 1.0)(a[:, [1]], b[:, [1]]))


def test_values_are_the_formulas(kernel):
    random = np.random.RandomState(0)
    a, b = random.randn(30, 3), random.randn(20, 3)
    b[0] = a[0]  # an equal pair, where the GEMM rounds
    assert_allclose(kernel(a, b), plain(kernel, a, b), rtol=1e-12)
    points = kernel.prepare(a)
    assert_allclose(kernel.diagonal(points), plain(kernel, a, a).diagonal(), rtol=1e-15)


def test_contraction_is_the_derivative(kernel):
    random = np.random.RandomState(1)
    a, b, G = random.randn(15, 3), random.randn(12, 3), random.randn(15, 12)
    a[:2] = b[:2]
    rows = kernel.contract_gradient(kernel.prepare(a), kernel.prepare(b), G.copy())
    for k, h in enumerate(1e-6 * np.eye(kernel.theta.size)):
        up, down = (plain(kernel.with_theta(kernel.theta + e), a, b) for e in (h, -h))
        assert_allclose(rows[:, k], (G * (up - down)).sum(axis=1) / 2e-6, rtol=1e-6, atol=1e-7)


def test_theta_round_trip(kernel):
    assert kernel.with_theta(kernel.theta).as_dict().keys() == kernel.as_dict().keys()
    assert_allclose(kernel.with_theta(kernel.theta + 0.5).theta, kernel.theta + 0.5, rtol=1e-14)
    assert len(kernel.parameter_kinds) == kernel.theta.size


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (kernels.RBF(1.0, 3.0), sk.RBF(np.sqrt(1.5))),
        (kernels.Matern12(1.0, 3.0), sk.Matern(np.sqrt(1.5), nu=0.5)),
        (kernels.Matern32(1.0, 3.0), sk.Matern(np.sqrt(1.5), nu=1.5)),
        (kernels.Matern52(1.0, 3.0), sk.Matern(np.sqrt(1.5), nu=2.5)),
        (kernels.RationalQuadratic(1.0, 3.0, 0.8), sk.RationalQuadratic(np.sqrt(1.5), alpha=0.8)),
    ],
)
def test_agrees_with_scikit_learn_at_lengthscale_squared_theta2_over_2(ours, theirs):
    X = np.random.RandomState(2).randn(20, 4)
    assert_allclose(ours(X), theirs(X), rtol=1e-10)


def test_matern12_keeps_its_digits_at_near_pairs():
    a = np.array([[1000.0, -500.0]])
    b = a + 1e-9
    difference = np.sqrt(((a - b) ** 2).sum())
    assert kernels.Matern12(1.0, 2.0)(a, b)[0, 0] == pytest.approx(np.exp(-difference), rel=1e-14)


@given(st.integers(0, 10**6), st.sampled_from([np.float64, np.float32]))
def test_profiles_in_both_precisions(seed, real):
    random = np.random.RandomState(seed)
    E = -np.exp(random.uniform(-20, 6, size=(7, 33)))
    s = -E.astype(real).astype(float)
    eps = np.finfo(real).eps
    for family, kernel in enumerate(
        (kernels.RBF, kernels.Matern12, kernels.Matern32, kernels.Matern52)
    ):
        out = np.ones(E.shape, real)
        dense_loops.times_profile(family, real(1), real(1), E.astype(real), out)
        expected = plain(kernel(1.0, 1.0), np.zeros((1, 1)), np.sqrt(s).reshape(-1, 1)).reshape(
            s.shape
        )
        shown = expected > 1e3 * np.finfo(real).tiny
        # exp turns a relative error eps of its argument a into a eps; a reaches sqrt(10 s).
        error = (np.abs(out - expected) / expected)[shown] / (8 + np.maximum(s, np.sqrt(10 * s)))[
            shown
        ]
        assert error.max(initial=0.0) < 2 * eps


def test_exponential_to_the_last_bits():
    x = -np.linspace(0, 700, 70_001)[None, :]
    out = np.ones_like(x)
    dense_loops.times_profile(dense_loops.RBF, 1.0, 1.0, x, out)
    assert np.abs(out / np.exp(x) - 1).max() < 4e-16


def test_median_heuristic():
    X = np.random.RandomState(0).randn(300, 4)
    exact = np.median(cdist(X, X, "sqeuclidean")[np.triu_indices(300, 1)])
    assert kernels.RBF().resolved(X).theta2 == pytest.approx(exact)
    assert kernels.RBF().resolved(np.ones((5, 2))).theta2 == 1.0
    assert kernels.RBF().resolved(X, ard=True).theta2 == (pytest.approx(exact),) * 4


def test_function_kernel_on_sets():
    kernel = kernels.Function(2.0, set_overlap)
    training = kernel.training_input(SETS)
    assert_allclose(
        kernel.tile(training[1:3], training[0:4]), 2.0 * np.array(set_overlap(SETS[1:3], SETS[:4]))
    )
    picked = training[np.array([4, 0])]
    assert_allclose(
        kernel.tile(picked, picked),
        2.0 * np.array(set_overlap([SETS[4], SETS[0]], [SETS[4], SETS[0]])),
    )
    assert_allclose(kernel.diagonal(training), 2.0)
    both = kernel + kernels.Function(1.0, set_overlap)
    joint = both.prepare(both.training_input(SETS))
    assert_allclose(both.tile(joint, joint), 3.0 * np.array(set_overlap(SETS, SETS)))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda: kernels.RBF(theta1=0.0), "theta1=0.0"),
        (lambda: kernels.RBF(theta2=-1.0), "theta2=-1.0"),
        (lambda: kernels.RBF(theta2="mean"), "theta2='mean'"),
        (lambda: kernels.RBF(theta2=np.inf), "theta2=inf"),
        (lambda: kernels.RBF(theta2=(np.inf, np.inf)), "theta2=.*inf.* no finite number"),
        (lambda: kernels.RationalQuadratic(1.0, 1.0, 0.0), "shape=0.0"),
        (lambda: kernels.RBF() + 1.0, "only be combined with kernels"),
        (lambda: kernels.RBF() * kernels.Precomputed(), "takes vectors, .* takes gram"),
        (lambda: kernels.Function(1.0), "needs a callable"),
        (
            lambda: kernels.RBF(1.0, (1.0, 2.0)).resolved(np.zeros((3, 5))),
            "2 entries, X has 5 columns",
        ),
        (lambda: kernels.RBF()(np.zeros((2, 2))), '"median" is known only once data are seen'),
        (lambda: kernels.as_kernel("rbff"), "kernel='rbff'"),
        (
            lambda: kernels.Function(1.0, lambda a, b: [[1.0]]).training_input(SETS),
            r"list of shape \(1, 1\) for 5 and 5",
        ),
        (
            lambda: kernels.Function(
                1.0, lambda a, b: np.arange(25.0).reshape(5, 5)
            ).training_input(SETS),
            "not symmetric",
        ),
        (
            lambda: kernels.Function(1.0, lambda a, b: np.full((5, 5), np.nan)).training_input(
                SETS
            ),
            "NaN or infinity",
        ),
    ],
)
def test_broken_kernels_say_what_is_wrong(broken, words):
    with pytest.raises(InputError, match=words):
        broken()
