"""The search for neighbours beside its slow twin, a full sort in numpy."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from gpx_scale import kernels
from gpx_scale.compiled import neighbor_search as loops
from gpx_scale.data.features import DenseFeatures, SparseFeatures
from gpx_scale.data.inputs import InputRows
from gpx_scale.linalg import neighbor_search
from gpx_scale.linalg.neighbor_search import (
    WORKER_QUERIES,
    Eligible,
    NeighborSearch,
    largest_scores,
)
from gpx_scale.model.hyperparameters import Hyperparameters
from kernel_cases import KERNELS, plain
from problems import session_of

# One row, less than a tile, and several tiles and blocks of queries with a rest.
SIZES = [(1, 1), (5, 40), (WORKER_QUERIES + 3, 2 * loops.TILE + 9)]


def make_rows(n, m, seed=0, p=3, d=2):
    """Return n rows and m queries with values on a lattice, so that many distances are equal."""
    random = np.random.RandomState(seed)
    x, q = (random.randint(-2, 3, (count, p)).astype(float) for count in (n, m))
    Z = random.randint(-1, 3, (n, d)).astype(float)
    return InputRows(x, DenseFeatures(Z)), InputRows(q, DenseFeatures(np.ones((m, d))))


def sorted_rows(keys, norms, allowed):
    """Return all allowed rows of each query by (key, -|z|^2, row), one by one."""
    return [
        sorted(np.flatnonzero(ok), key=lambda j, k=key: (k[j], -norms[j], j))
        for key, ok in zip(keys, allowed, strict=True)
    ]


def assert_found(found, wanted, count):
    for i, rows in enumerate(wanted):
        best = rows[:count]
        assert found.counts[i] == len(best)
        assert_array_equal(found.rows[i, : len(best)], best)
        assert not found.rows[i, len(best) :].any()


def search(kernel, rows):
    return NeighborSearch(rows, Hyperparameters.of(kernel, 0.1, 0.3))


@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("count", [1, 7, 600, 5000])
@pytest.mark.parametrize("name", ["rbf", "matern12", "rq"])
def test_neighbours_are_those_of_a_full_sort(name, count, m, n):
    """With length scales of 2, lattice distances are exact, and equal ones are equal."""
    rows, queries = make_rows(n, m)
    kernel = type(KERNELS[name])(1.0, 4.0)
    excluded = np.arange(0, n, 3)
    found = search(kernel, rows).nearest(
        queries, count, Eligible.without(n, excluded, m), session_of(2)
    )
    keys = np.square((queries.x[:, None] - rows.x) / 2.0).sum(axis=2)
    allowed = np.tile(~np.isin(np.arange(n), excluded), (m, 1))
    assert_found(found, sorted_rows(keys, rows.Z.squared_norms(), allowed), count)


def test_ard_scales_are_the_metric():
    rows, queries = make_rows(500, 20)
    kernel = kernels.Matern32(1.0, (1.0, 16.0, 0.25))
    found = search(kernel, rows).nearest(
        queries, 31, Eligible.without(500, np.arange(0), 20), session_of()
    )
    keys = np.square((queries.x[:, None] - rows.x) / [1.0, 4.0, 0.5]).sum(axis=2)
    allowed = np.ones((20, 500), bool)
    assert_found(found, sorted_rows(keys, rows.Z.squared_norms(), allowed), 31)


@pytest.mark.parametrize("name", ["sum", "product", "nested"])
def test_combined_kernels_go_by_their_values(name):
    rows, queries = make_rows(300, 9)
    kernel = KERNELS[name]
    found = search(kernel, rows).nearest(
        queries, 25, Eligible.without(300, np.arange(7), 9), session_of(2)
    )
    K = plain(kernel, queries.x, rows.x)
    best = -np.sort(-K[:, 7:], axis=1)[:, :25]
    assert np.allclose(np.take_along_axis(K, found.rows, axis=1), best, rtol=1e-12)
    assert (found.rows >= 7).all()


def test_gram_matrices_go_by_their_rows():
    random = np.random.RandomState(0)
    A = random.standard_normal((40, 60))
    G, kernel = A @ A.T, kernels.Precomputed(2.0)
    rows = InputRows(kernel.training_input(G), DenseFeatures(np.ones((40, 1))))
    queries = InputRows(kernel.query_input(G[:5], 40), DenseFeatures(np.ones((5, 1))))
    own = np.arange(5)
    found = search(kernel, rows).nearest(
        queries, 6, Eligible.without(40, np.arange(0), 5, own), session_of()
    )
    allowed = np.arange(40) != own[:, None]
    assert_found(found, sorted_rows(-G[:5], np.ones(40), allowed), 6)


def test_rows_before_a_row_are_its_neighbours():
    rows, _ = make_rows(400, 1)
    order = np.random.RandomState(1).permutation(400)
    positions = np.empty(400, np.int64)
    positions[order] = np.arange(400)
    positions[:10] = 400  # Shared rows are nobody's neighbours.
    some = order[[0, 3, 50, 399]]
    some = some[some >= 10]
    found = search(kernels.RBF(1.0, 1.0), rows).nearest(
        rows[some], 20, Eligible.before(positions, some), session_of()
    )
    keys = np.square(rows.x[some][:, None] - rows.x).sum(axis=2)
    allowed = positions < positions[some][:, None]
    assert_found(found, sorted_rows(keys, rows.Z.squared_norms(), allowed), 20)


def test_rows_that_share_features_come_first():
    random = np.random.RandomState(0)
    X = random.standard_normal((200, 2))
    Z = sp.random(200, 30, 0.05, random_state=0, format="csr")
    rows = InputRows(X, SparseFeatures.of(Z))
    queries = rows[np.arange(12)]
    kernel = kernels.RBF(1.5, 2.0)
    own = np.arange(12)
    found = search(kernel, rows).nearest(
        queries, 40, Eligible.without(200, np.arange(20, 30), 12, own), session_of(2)
    )
    inner, norms = (Z @ Z.T).toarray()[:12], rows.Z.squared_norms()
    C = 1.5 * norms + 0.3**2 + 0.1**2 * norms
    K = plain(kernel, X[:12], X)
    keys = -np.square(K * np.where(norms[:12, None] > 0, inner, np.sqrt(norms))) / C
    allowed = ~np.isin(np.arange(200), np.arange(20, 30)) & (np.arange(200) != own[:, None])
    for i, wanted in enumerate(sorted_rows(keys, norms, allowed)):
        best = np.sort(keys[i][wanted[:40]])
        assert np.allclose(np.sort(keys[i][found.rows[i]]), best, rtol=1e-10, atol=1e-300)
        assert allowed[i][found.rows[i]].all()


def test_scores_are_sorted():
    random = np.random.RandomState(0)
    scores = random.randint(0, 5, (9, 150)).astype(float)
    norms = random.randint(0, 3, 150).astype(float)
    among = Eligible.without(150, np.arange(5), 9)
    found = largest_scores(scores, norms, 30, among, session_of(2))
    allowed = np.tile(np.arange(150) >= 5, (9, 1))
    assert_found(found, sorted_rows(-scores, norms, allowed), 30)


def test_one_two_and_sixteen_threads_and_short_calls_give_the_same_rows(monkeypatch):
    random = np.random.RandomState(0)
    rows = InputRows(random.standard_normal((3000, 4)), DenseFeatures(np.ones((3000, 1))))
    rows.x[1000:2000] = rows.x[:1000]  # duplicates
    queries = rows[np.arange(0, 3000, 11)]
    for kernel in (kernels.RBF(1.0, 2.0), KERNELS["rbf"] + kernels.RBF(0.5, 0.3)):

        def found(n_jobs, kernel=kernel):
            among = Eligible.without(3000, np.arange(30), len(queries))
            return search(kernel, rows).nearest(queries, 50, among, session_of(n_jobs))

        alone = found(1)
        for n_jobs in (2, 16):
            assert_array_equal(found(n_jobs).rows, alone.rows)
            assert_array_equal(found(n_jobs).keys, alone.keys)
        with monkeypatch.context() as short:
            short.setattr(neighbor_search, "CALL_PAIRS", 1.0)
            short.setattr(neighbor_search, "KEYS_AT_ONCE", 1000)
            assert_array_equal(found(2).rows, alone.rows)


def test_rows_far_from_the_centre_are_found_by_differences():
    """The matrix product rounds squared distances by more than their differences here."""
    random = np.random.RandomState(0)
    X = 1e6 + random.standard_normal((700, 2))
    rows = InputRows(X, DenseFeatures(np.ones((700, 1))))
    queries = rows[np.arange(50)]
    found = search(kernels.RBF(1.0, 1.0), rows).nearest(
        queries, 9, Eligible.without(700, np.arange(0), 50), session_of(2)
    )
    keys = np.square(X[:50, None] - X).sum(axis=2)
    assert_found(found, sorted_rows(keys, np.ones(700), np.ones((50, 700), bool)), 9)


def test_a_million_equal_rows_are_taken_by_their_numbers():
    rows = InputRows(np.ones((1_000_000, 2)), DenseFeatures(np.ones((1_000_000, 1))))
    found = search(kernels.RBF(1.0, 1.0), rows).nearest(
        rows[np.arange(3)], 20, Eligible.without(1_000_000, np.arange(0), 3), session_of(2)
    )
    assert_array_equal(found.rows, np.tile(np.arange(20), (3, 1)))


@pytest.mark.parametrize("queries", [0, 2])
def test_nothing_is_found_where_nothing_is_asked_for(queries):
    rows, asked = make_rows(10, 2)
    some = asked[np.arange(queries)]
    everything = Eligible.without(10, np.arange(10), queries)
    found = search(kernels.RBF(1.0, 1.0), rows).nearest(some, 5, everything, session_of())
    assert found.rows.shape == (queries, 5)
    assert not found.counts.any()
    assert not found.in_use.any()


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
def test_numbers_that_float32_does_not_have_are_compared_in_float64(scale):
    random = np.random.RandomState(0)
    x, q = scale * random.standard_normal((900, 9)), scale * random.standard_normal((70, 9))
    x[:5] *= 1e3  # Some rows are far from all others.
    hyperparameters = Hyperparameters.of(kernels.RBF(1.0, 1.0), 0.1, 0.1)
    rows, queries = (InputRows(A, DenseFeatures(np.ones((len(A), 1)))) for A in (x, q))
    search = NeighborSearch(rows, hyperparameters)
    among = Eligible.without(900, np.arange(0), 70)
    found = search.nearest(queries, 12, among, session_of(2))
    distances = ((q[:, None] / scale - x / scale) ** 2).sum(axis=2)
    assert_array_equal(found.rows, np.argsort(distances, axis=1)[:, :12])
