"""A Dask cluster of two worker processes gives the results of threads.

This also holds if one of the processes is killed.
"""

import os
import pickle
import signal

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from gpx_scale import GPXError, GPXRegressor, InputError, load
from gpx_scale.datasets import synth2, synth10

dask = pytest.importorskip("dask", reason="needs the [dask] extra")
dd = pytest.importorskip("dask.dataframe", reason="needs the [dask] extra")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

from gpx_scale.distributed import DaskGPXRegressor  # noqa: E402
from gpx_scale.distributed.cluster import result_of, workers_of  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default")
]  # Dask's own, of files and sockets that close later
ARGUMENTS = {"n_inducing": 25, "random_state": 0}
X, y, NAMES = synth10(1200)
X = 3.0 + 2.0 * X


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def local():
    return GPXRegressor(
        solver="inducing", **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, y)


def arrays(rows=300):
    return da.from_array(X, chunks=(rows, 4)), da.from_array(y, chunks=350)


def test_two_workers_find_what_threads_find(client, local):
    model = DaskGPXRegressor(
        client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(*arrays())
    assert_allclose(model.theta_, local.theta_, atol=1e-10)
    assert_allclose(model.predict(X), local.predict(X), atol=1e-10)
    assert_allclose(
        model.log_marginal_likelihood_value_, local.log_marginal_likelihood_value_, rtol=1e-10
    )
    assert_allclose(model.predict(arrays(500)[0]).compute(), local.predict(X), atol=1e-10)
    assert len(set(model._rows.homes)) == 2


@pytest.mark.parametrize("more", [{"solver": "basis"}, {"n_inducing": 20}])
def test_weights_with_priors_of_their_own_are_added_up_where_the_partitions_are(client, more):
    data = synth2(200)
    rows = data.X, data.y, data.Z[:, :2]
    given = {"weights": "semi", "prune": False, "optimizer": None, "kernel": "rbf", "theta2": 30.0}
    given |= {"solver": "inducing", "fit_intercept": False, "random_state": 0, **more}
    local = GPXRegressor(**given).fit(*rows)
    parts = [da.from_array(A, chunks=(100, *A.shape[1:])) for A in rows]
    model = DaskGPXRegressor(client, **given).fit(*parts)
    ours, theirs = (one.explain(data.X[:9], data.Z[:9, :2]) for one in (local, model))
    for name in ("weights", "weights_std", "constant", "constant_std"):
        assert_allclose(getattr(theirs, name), getattr(ours, name), atol=1e-9)


def test_a_basis_is_added_up_where_the_partitions_are(client):
    data = synth2(1500)
    arguments = {"solver": "basis", "random_state": 0, "max_iter": 10}
    local = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X, data.y, data.Z[:, :2]
    )
    parts = [da.from_array(A, chunks=(400, *A.shape[1:])) for A in (data.X, data.y, data.Z[:, :2])]
    model = DaskGPXRegressor(
        client, **arguments, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(*parts)
    assert model.solver_ == "basis"
    assert_allclose(model.theta_, local.theta_, atol=1e-6)
    assert_allclose(
        model.predict(data.X, data.Z[:, :2]), local.predict(data.X, data.Z[:, :2]), atol=1e-6
    )
    model.partial_fit(*parts)
    assert model.fit_report_.n_samples == 3000


def test_to_local_is_an_ordinary_model(client, local):
    model = (
        DaskGPXRegressor(**ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared")
        .fit(*arrays())
        .to_local()
    )  # client=None: the one in use
    assert type(model) is GPXRegressor
    assert_allclose(model.explain(X[:5]).weights_std, local.explain(X[:5]).weights_std, atol=1e-10)
    copy = pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.predict(X[:5]), model.predict(X[:5]))
    before = model.predict(X[:5])
    model.partial_fit(X[:50], y[:50])
    assert np.abs(model.predict(X[:5]) - before).max() > 0


def test_frames_names_and_futures(client, local):
    frame = pd.DataFrame(X, columns=NAMES).assign(target=y)
    parts = dd.from_pandas(frame, npartitions=5)
    for model in (
        DaskGPXRegressor(
            client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(parts, "target"),
        DaskGPXRegressor(
            client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(parts[NAMES], parts["target"]),
    ):
        assert list(model.feature_names_in_) == NAMES
        assert_allclose(model.predict(frame[NAMES]), local.predict(X), atol=1e-10)
        assert_allclose(model.predict(parts[NAMES]).compute(), local.predict(X), atol=1e-10)
    futures = client.scatter([(X[:700], y[:700]), (X[700:700], y[700:700]), (X[700:], y[700:])])
    model = DaskGPXRegressor(
        client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(futures)
    assert_allclose(model.predict(X), local.predict(X), atol=1e-10)


def test_a_z_of_its_own_in_arrays_and_futures(client):
    Z = np.abs(X[:, :4])
    here = GPXRegressor(solver="inducing", **ARGUMENTS, optimizer=None).fit(X, y, Z)
    halves = client.scatter(
        [(A[:600], b[:600], C[:600]) for A, b, C in ((X, y, Z), (X[600:], y[600:], Z[600:]))]
    )
    arrays_of_three = [da.from_array(A, chunks=500) for A in (X, y, Z)]
    for model in (
        DaskGPXRegressor(client, **ARGUMENTS, optimizer=None).fit(*arrays_of_three),
        DaskGPXRegressor(client, **ARGUMENTS, optimizer=None).fit(halves),
    ):
        assert_allclose(model.predict(X, Z), here.predict(X, Z), atol=1e-10)


def test_an_error_of_a_task_is_not_waited_for(client):
    def late():
        raise TimeoutError("storage did not answer")

    with pytest.raises(TimeoutError, match="storage"):
        result_of(client, client.submit(late, pure=False))


NEAR = {"solver": "neighbors", "n_neighbors": 25, "n_shared": 12, "theta2": 20.0}
NEAR |= {"optimizer": None, "kernel": "rbf", "fit_intercept": False}


def near_in_memory():
    return GPXRegressor(**NEAR).fit(X, y)


def assert_same(found, wanted):
    assert_allclose(found.weights, wanted.weights, rtol=0, atol=1e-9)
    assert_allclose(found.weights_std, wanted.weights_std, rtol=1e-9)


def test_each_partition_finds_its_neighbours(client, tmp_path):
    memory = near_in_memory()
    # The second partition has no rows.
    cuts = [slice(0, 500), slice(0, 0), slice(500, 1200)]
    futures = client.scatter([(X[rows], y[rows]) for rows in cuts])
    model = DaskGPXRegressor(client, **NEAR).fit(futures)
    assert not model.posterior_.rows.in_memory
    assert_same(model.explain(X[:40]), memory.explain(X[:40]))
    assert_allclose(
        model.log_marginal_likelihood_value_, memory.log_marginal_likelihood_value_, rtol=1e-9
    )
    model.save(tmp_path / "model.gpx")
    for one in (model.to_local(), pickle.loads(pickle.dumps(model)), load(tmp_path / "model.gpx")):
        assert one.posterior_.rows.in_memory
        assert_same(one.explain(X[:40]), memory.explain(X[:40]))
    new = np.full((1, 10), 50.0)
    model.partial_fit(da.from_array(new), da.from_array(np.array([9.0])))
    memory.partial_fit(new, [9.0])
    for one in (model, model.to_local(), pickle.loads(pickle.dumps(model))):
        assert_same(one.explain(new), memory.explain(new))


def test_partitions_find_the_neighbours_of_weights_with_priors_of_their_own(client):
    given = {**NEAR, "weights": "semi", "theta2": 20.0}
    memory = GPXRegressor(**given).fit(X, y)
    model = DaskGPXRegressor(client, **given).fit(*arrays(500))
    assert not model.posterior_.rows.in_memory
    found, wanted = model.explain(X[:40]), memory.explain(X[:40])
    assert_same(found, wanted)
    assert_allclose(found.constant, wanted.constant, rtol=0, atol=1e-9)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL.")
def test_neighbours_survive_a_worker_that_is_killed(client):
    model = DaskGPXRegressor(client, **NEAR).fit(*arrays(100))
    wanted = model.explain(X[:40])
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    assert_same(model.explain(X[:40]), wanted)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL.")
def test_a_worker_that_is_killed_is_survived(client, local):
    killed = []

    def kill(state):
        if state["phase"] == "all rows" and not killed:
            killed.extend(list(client.run(os.getpid).values())[:1])
            os.kill(killed[0], signal.SIGKILL)

    model = DaskGPXRegressor(
        client, **ARGUMENTS, callbacks=[kill], kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(*arrays())
    assert killed
    assert_allclose(model.theta_, local.theta_, atol=1e-10)
    assert_allclose(model.predict(X), local.predict(X), atol=1e-10)


def test_bad_partitions_are_named(client):
    bad = X.copy()
    bad[950, 2] = np.nan
    with pytest.raises(InputError, match=r"partition 4, its row 51 \(row 951 of all\)"):
        DaskGPXRegressor(
            client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(da.from_array(bad, chunks=(300, -1)), arrays()[1])
    frame = dd.from_pandas(pd.DataFrame(X, columns=NAMES), npartitions=3)
    for target, words in ((None, "y is missing"), ("price", "no column 'price' .* It has x0")):
        with pytest.raises(InputError, match=words):
            DaskGPXRegressor(
                client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
            ).fit(frame, target)
    with pytest.raises(InputError, match="partition 2: X has 4 columns here"):
        DaskGPXRegressor(
            client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(client.scatter([(X, y), (X[:, :4], y)]))
    with pytest.raises(InputError, match="y is not a Dask collection"):
        DaskGPXRegressor(
            client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(arrays()[0], y)
    with pytest.raises(InputError, match="y has 1199 rows, and X has 1200"):
        DaskGPXRegressor(
            client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(arrays()[0], da.from_array(y[:-1]))
    with pytest.raises(InputError, match="futures has whole partitions"):
        DaskGPXRegressor(
            client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(client.scatter([(X, y)]), y)


def test_the_model_is_chosen_on_the_sample_that_the_scheduler_keeps(client):
    arguments = ARGUMENTS | {"candidates": ["rbf", "matern32"], "ard": False, "max_iter": 3}
    shifted = y[:300] + 3.0 * (X[:300, 0] > X[:300, 0].mean())
    parts = da.from_array(X[:300], chunks=(100, -1)), da.from_array(shifted, chunks=100)
    there = DaskGPXRegressor(client, **arguments).fit(*parts)
    here = GPXRegressor(solver="inducing", **arguments).fit(X[:300], shifted)
    both = [model.kernel_table_.drop(columns="seconds") for model in (there, here)]
    pd.testing.assert_frame_equal(*both, atol=1e-6)
    assert there.kernel_table_.fit_intercept[0]
    assert there.posterior_.d == X.shape[1] + 1
    assert_allclose(there.predict(X), here.predict(X), atol=1e-6)


def test_it_is_an_estimator(client):
    model = DaskGPXRegressor(
        n_inducing=7, sigma_w=0.2, kernel="rbf", fit_intercept=False, weights="shared"
    )
    assert model.get_params()["n_inducing"] == 7
    assert clone(model.set_params(sigma_w=0.3)).sigma_w == 0.3
    assert (
        clone(DaskGPXRegressor(client, kernel="rbf", fit_intercept=False, weights="shared")).client
        is client
    )
    assert (
        DaskGPXRegressor(n_inducing=7, optimizer=None).fit(X[:100], y[:100]).solver_ == "inducing"
    )  # arrays too


def test_rows_are_added_where_they_are(client):
    fixed = {
        "n_inducing": 25,
        "random_state": 0,
        "optimizer": None,
        "inducing_points": X[:20],
        "theta2": 80.0,
    }
    whole = GPXRegressor(solver="inducing", standardize=False, **fixed).fit(X, y)
    parts = DaskGPXRegressor(client, standardize=False, **fixed).fit(
        da.from_array(X[:700], chunks=(200, -1)), da.from_array(y[:700])
    )
    parts.partial_fit(da.from_array(X[700:], chunks=(150, -1)), da.from_array(y[700:], chunks=100))
    assert_allclose(parts.predict(X), whole.predict(X), atol=1e-8)
    assert parts.fit_report_.n_samples == 1200
    frame = dd.from_pandas(pd.DataFrame(X, columns=NAMES), npartitions=3)
    named = DaskGPXRegressor(client, **ARGUMENTS, optimizer=None).fit(
        frame, dd.from_pandas(pd.Series(y), npartitions=3)
    )
    with pytest.raises(ValueError, match="feature names"):
        named.partial_fit(frame[NAMES[::-1]], dd.from_pandas(pd.Series(y), npartitions=3))
    with pytest.raises(InputError, match=r"predict\(\) alone"):
        named.explain(frame)


def test_a_cluster_without_workers_is_an_error_after_a_short_wait(monkeypatch):
    monkeypatch.setattr("gpx_scale.distributed.cluster.FIRST_WORKER_WAIT_SECONDS", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        pytest.raises(GPXError, match="no workers"),
    ):
        DaskGPXRegressor(
            client, **ARGUMENTS, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(*arrays())


def test_a_copy_of_the_scheduler_that_lists_no_workers_is_not_asked(client, monkeypatch):
    monkeypatch.setattr(
        client, "scheduler_info", lambda *_, **__: {"workers": {}}
    )  # so it is for moments, by a timer
    assert (
        DaskGPXRegressor(client, **ARGUMENTS, optimizer=None).fit(*arrays()).fit_report_.n_samples
        == 1200
    )


def test_workers_that_have_all_gone_are_waited_for(monkeypatch):
    monkeypatch.setattr("gpx_scale.distributed.cluster.FIRST_WORKER_WAIT_SECONDS", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        with pytest.raises(GPXError, match="no workers"):
            workers_of(client)
        monkeypatch.setattr("gpx_scale.distributed.cluster.FIRST_WORKER_WAIT_SECONDS", 30.0)
        cluster.scale(1)
        assert len(workers_of(client)) == 1
