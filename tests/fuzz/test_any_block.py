"""The paper's block matrices, the measures, and the methods for comparison, on any tables."""

import numpy as np
from hypothesis import strategies as st

from fuzz import hostile
from fuzz.outcome import Refused, fuzz, outcome
from gpx_scale import blocks, compare, metrics


@fuzz(
    0.02,
    n=st.integers(0, 5),
    d=st.integers(0, 4),
    seed=hostile.seeds,
    form=st.sampled_from(("dense", *hostile.FORMATS)),
)
def test_block_matrices_are_what_they_stand_for(n, d, seed, form):
    random = np.random.RandomState(seed)
    root = random.standard_normal((n, n))
    K, Z, k_star = root @ root.T, random.standard_normal((n, d)), random.standard_normal(n)
    given = Z
    if form != "dense":
        given, Z = hostile.sparse(Z, form, "none", random)
    K_bar, Z_bar = outcome(blocks.K_bar, K, d), outcome(blocks.Z_bar, given)
    assert (K_bar.shape, Z_bar.shape) == ((n * d, n * d), (n, n * d))
    np.testing.assert_allclose((Z_bar @ K_bar @ Z_bar.T).toarray(), K * (Z @ Z.T), atol=1e-9)
    assert outcome(blocks.k_bar_star, k_star, d).shape == (n * d, d)
    v = random.standard_normal(n * d)
    np.testing.assert_allclose(outcome(blocks.K_bar_operator, K, d).matvec(v), K_bar @ v, atol=1e-9)
    np.testing.assert_allclose(
        outcome(blocks.Z_bar_operator, given).matvec(v), Z_bar @ v, atol=1e-9
    )


class Linear:
    """A model that predicts the first column."""

    def predict(self, X):
        return np.asarray(X, dtype=float)[:, 0]


@fuzz(
    0.02,
    X=hostile.tables((6, 3), 0.5, sparse_too=False),
    contributions=hostile.tables((6, 3), 0.3),
    y=hostile.targets(6, 0.5),
    which=st.integers(0, 3),
)
def test_any_measure_is_taken_or_refused(X, contributions, y, which):
    ask = (
        lambda: metrics.mean_squared_error(y, y),
        lambda: metrics.faithfulness(Linear(), X, contributions=contributions, per_sample=True),
        lambda: metrics.sufficiency(Linear(), X, contributions=contributions),
        lambda: metrics.stability(None, X, weights=contributions, epsilon=0.5),
    )[which]
    outcome(ask)


@fuzz(
    0.02,
    X=hostile.tables((8, 2), 0.4),
    y=hostile.targets(8, 0.4),
    make=st.sampled_from(
        (compare.Ridge, compare.Lasso, compare.GPR, compare.ARD, compare.GPX, compare.NetworkLasso)
    ),
)
def test_any_method_is_fitted_or_refused(X, y, make):
    method = make()
    fitted = outcome(method.fit, X, y)
    if not isinstance(fitted, Refused):
        mean = outcome(method.predict, X)
        assert isinstance(mean, Refused) or np.isfinite(mean).all()
