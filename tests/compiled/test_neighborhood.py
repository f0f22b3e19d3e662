"""Conditioning on shared and near rows beside its slow twin: numpy on the union of both."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gpx_scale import kernels
from gpx_scale.compiled import neighborhood as loops
from gpx_scale.data.features import DenseFeatures, SparseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.linalg.neighbor_search import Eligible
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.tile_loops import tile_threads
from gpx_scale.solvers import neighborhood
from gpx_scale.solvers.neighborhood import RightHandSides, SharedRows
from kernel_cases import KERNELS, plain
from problems import session_of

SIGMA_W, SIGMA_Y = 0.2, 0.3


class Case:
    """Rows, queries, and the matrices of all rows that the slow twin takes its parts from."""

    def __init__(self, kernel, n=90, b=7, p=3, d=2, share=1.0, seed=0):
        random = np.random.RandomState(seed)
        self.X, self.Q = random.standard_normal((n, p)), random.standard_normal((b, p))
        self.Z = random.standard_normal((n, d)) * (random.uniform(size=(n, d)) < share)
        self.y = random.standard_normal(n)
        self.X[n // 2] = self.X[0]  # Equal points.
        self.kernel, self.params = kernel, Hyperparameters.of(kernel, SIGMA_W, SIGMA_Y)
        norms = np.square(self.Z).sum(axis=1)
        self.C = plain(kernel, self.X, self.X) * (self.Z @ self.Z.T)
        self.C += np.diag(SIGMA_Y**2 + SIGMA_W**2 * norms)
        self.K = plain(kernel, self.Q, self.X)

    def features(self, sparse):
        return SparseFeatures.of(self.Z) if sparse else DenseFeatures(self.Z)

    def shared_rows(self, shared, session, sparse=False, **options):
        rows = TrainingRows(self.X, self.features(sparse), self.y)
        return SharedRows.of(rows, self.params, shared, session, **options)

    def twin(self, rows):
        """Return the mean and the reduction of the weights, from those rows of each query."""
        found = []
        for k, some in zip(self.K, rows, strict=True):
            B, C = k[some, None] * self.Z[some], self.C[np.ix_(some, some)]
            found.append((B.T @ np.linalg.solve(C, self.y[some]), B.T @ np.linalg.solve(C, B)))
        return map(np.array, zip(*found, strict=True))


def conditioned(case, shared, count, session, sparse=False, full=True, **options):
    """Return the rows near each query, and the moments of its weights given these and U."""
    known = case.shared_rows(shared, session, sparse, **options)
    queries = TrainingRows(case.Q, known.search.rows.Z[: len(case.Q)], case.y[: len(case.Q)])
    among = Eligible.without(len(case.y), shared, len(case.Q))
    near = known.search.nearest(queries, count, among, session)
    K_near, K_shared = (
        known.kernel_of_near(case.Q, near, session),
        known.kernel_of_shared(case.Q, session),
    )
    sides = RightHandSides.of_weights(K_near, K_shared, case.Z[near.rows], case.Z[shared])
    found = known.condition(near, sides, session, mean=True, full=full)
    mean = np.einsum("bk,bkd->bd", K_near * found.near_weights, case.Z[near.rows])
    mean += (K_shared * found.shared_weights) @ case.Z[shared]
    return near, mean, found


def unions(near, shared):
    pairs = zip(near.rows, near.counts, strict=True)
    return [np.concatenate([shared, rows[:count]]) for rows, count in pairs]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("m", "k"), [(0, 12), (9, 0), (20, 15), (60, 500), (90, 5)])
@pytest.mark.parametrize("name", KERNELS)
def test_moments_are_those_of_the_union_of_both(name, m, k, keep):
    case = Case(KERNELS[name])
    shared = np.random.RandomState(1).permutation(90)[:m]
    options = {"keep": keep, "single": False}
    near, mean, found = conditioned(case, shared, k, session_of(2), **options)
    wanted, reduction = case.twin(unions(near, shared))
    assert found.dropped == 0
    assert_allclose(mean, wanted, rtol=0, atol=1e-11)
    assert_allclose(found.found, reduction, rtol=0, atol=1e-11)
    _, again, diagonal = conditioned(case, shared, k, session_of(), full=False, **options)
    assert_array_equal(again, mean)
    assert_allclose(diagonal.found, np.einsum("bii->bi", found.found), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["rbf", "matern12", "sum"])
def test_sparse_features_are_those_of_a_dense_z(name):
    case = Case(KERNELS[name], d=20, share=0.2)
    shared = np.arange(0, 90, 6)
    near, mean, found = conditioned(case, shared, 17, session_of(2), True, single=False)
    wanted, reduction = case.twin(unions(near, shared))
    assert_allclose(mean, wanted, rtol=0, atol=1e-11)
    assert_allclose(found.found, reduction, rtol=0, atol=1e-11)


def test_a_factor_in_float32_raises_variances_a_little():
    case, shared = Case(KERNELS["rbf"]), np.arange(0, 90, 4)
    near, mean, found = conditioned(case, shared, 20, session_of(2), single=True)
    wanted, reduction = case.twin(unions(near, shared))
    assert_allclose(mean, wanted, rtol=0, atol=1e-3)
    assert_allclose(found.found, reduction, rtol=0, atol=1e-3)
    less = np.linalg.eigvalsh(reduction - found.found)
    assert (less > -1e-9).all()
    assert found.found.dtype == np.float64


def test_without_a_cholesky_factor_of_both_the_shared_rows_are_dropped():
    """F of another matrix makes C_N|U indefinite; the rows nearby alone still have a factor."""
    case, session, shared = Case(KERNELS["rbf"]), session_of(), np.arange(10)
    known = case.shared_rows(shared, session, single=False)
    known.F[...] *= 3.0
    queries = TrainingRows(case.Q, DenseFeatures(case.Z[:7]), case.y[:7])
    near = known.search.nearest(queries, 15, Eligible.without(90, shared, 7), session)
    K_near, K_shared = (
        known.kernel_of_near(case.Q, near, session),
        known.kernel_of_shared(case.Q, session),
    )
    sides = RightHandSides.of_weights(K_near, K_shared, case.Z[near.rows], case.Z[shared])
    found = known.condition(near, sides, session, mean=True, full=True)
    wanted, reduction = case.twin(list(near.rows))
    dropped = ~found.shared_weights.any(axis=1)
    assert 0 < dropped.sum() == found.dropped
    assert_allclose(found.found[dropped], reduction[dropped], rtol=0, atol=1e-11)
    mean = np.einsum("bk,bkd->bd", K_near * found.near_weights, case.Z[near.rows])
    assert_allclose(mean[dropped], wanted[dropped], rtol=0, atol=1e-11)


@pytest.mark.parametrize("keep", [True, False])
def test_one_two_and_sixteen_threads_and_small_batches_give_the_same_bits(monkeypatch, keep):
    case, shared = Case(KERNELS["ard"], n=400, b=50, d=3), np.arange(0, 400, 9)

    def everything(n_jobs):
        near, mean, found = conditioned(case, shared, 31, session_of(n_jobs), keep=keep)
        return near.rows, mean, found.found, found.near_weights, found.shared_weights

    alone = everything(1)
    for n_jobs in (2, 16):
        for one, other in zip(everything(n_jobs), alone, strict=True):
            assert_array_equal(one, other)
    monkeypatch.setattr(neighborhood, "BLOCK_BYTES", 1)
    for one, other in zip(everything(2), alone, strict=True):
        assert_allclose(one, other, rtol=0, atol=1e-12)


def test_entries_of_sparse_queries_are_found_by_their_features():
    random = np.random.RandomState(0)
    Z, pattern = (
        SparseFeatures.of(random.standard_normal(shape) * (random.uniform(size=shape) < 0.3))
        for shape in ((30, 12), (5, 12))
    )
    K = random.standard_normal((5, 8))
    rows = np.array([random.permutation(30)[:8] for _ in range(5)])
    counts = np.array([8, 0, 3, 8, 1])
    width = int(pattern.counts.max())
    columns, mean = np.full((5, 8, width), np.nan), np.zeros(pattern.indices.size)
    arrays = Z.pointers, Z.indices, Z.values, Z.d
    with tile_threads(2) as threads:
        given = pattern.pointers, pattern.indices, K, rows, counts
        threads.run(loops.sparse_columns, arrays, *given, columns)
        threads.run(loops.add_sparse_mean, arrays, *given, mean)
    dense = Z.to_dense()
    for i, row in enumerate(rows):
        features = pattern.indices[pattern.pointers[i] : pattern.pointers[i + 1]]
        used = np.arange(8) < counts[i]
        wanted = (K[i] * used)[:, None] * dense[row][:, features]
        assert_array_equal(columns[i, :, : features.size], wanted)
        assert not columns[i, :, features.size :].any()
        at = slice(*pattern.pointers[i : i + 2])
        assert_allclose(mean[at], wanted.sum(axis=0), rtol=0, atol=1e-14)


def test_kernels_of_near_rows_have_all_their_digits():
    kernel = kernels.Matern12(1.0, 1.0)
    X = 1e5 + np.random.RandomState(0).standard_normal((20, 2))
    rows = TrainingRows(X, DenseFeatures(np.ones((20, 1))), np.zeros(20))
    session = session_of()
    known = SharedRows.of(rows, Hyperparameters.of(kernel, 0.0, 0.1), np.arange(0), session)
    near = known.search.nearest(rows[:4], 9, Eligible.without(20, np.arange(0), 4), session)
    found = known.kernel_of_near(X[:4], near, session)
    wanted = np.take_along_axis(plain(kernel, X[:4], X), near.rows, axis=1)
    assert_allclose(found, wanted, rtol=1e-6)
