"""Numbers of threads and threading layers: any of them is refused in words, or gives equal bits."""

import os

import joblib
import numba
import pytest

from alone import fitted_bits, run_alone
from gpx_scale import InputError
from gpx_scale.runtime.parallel import PASSIVE_WAITING, usable_cores
from gpx_scale.runtime.tile_loops import Threads, threading_layer
from problems import make_problem

LAYERS = pytest.mark.parametrize("layer", ["omp", "workqueue"])

BITS = """
    import sys, threading
    import numba
    from alone import fitted_bits
    from gpx_scale.runtime.tile_loops import threading_layer, tile_threads

    def bits_of(jobs):
        return {fitted_bits(n_jobs) for n_jobs in jobs}

    def used(n_jobs):
        with tile_threads(n_jobs):
            return numba.get_num_threads()
"""


def test_no_workers_are_refused_before_anything_is_computed(problem):
    model = problem.model(n_jobs=0)
    with pytest.raises(InputError, match="n_jobs=0 is not valid"):
        model.fit(*problem.data)
    assert not hasattr(model, "theta_")


@pytest.mark.parametrize("most", [1, 16])
def test_more_workers_than_threads_give_the_same_bits(most):
    """numba has `most` threads; -1 are as many as cores, which this process has, too."""
    code = f"{BITS}\n    print(*bits_of([1, -1, 16, 1000]), used(16), used(1000))"
    found = run_alone(code, NUMBA_NUM_THREADS=str(most))
    assert found == [fitted_bits(1), str(most), str(most)]


def test_a_thousand_workers_are_planned_as_those_that_can_work():
    rows = make_problem(n=2000)
    most = max(usable_cores(), numba.config.NUMBA_NUM_THREADS)
    few, many = (rows.model(n_jobs=jobs, memory_limit="2GiB") for jobs in (most, 1000))
    assert many.plan(*rows.data) == few.plan(*rows.data)
    assert many.plan(*rows.data).n_jobs == most


@LAYERS
def test_eight_python_threads_may_fit_at_once(layer):
    code = f"""{BITS}
    found = []
    workers = [threading.Thread(target=lambda: found.append(fitted_bits(2))) for _ in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    print(threading_layer(), len(found), *set(found))
    """
    found = run_alone(code, NUMBA_THREADING_LAYER=layer)
    assert found == [layer, "8", fitted_bits(1)]


@pytest.mark.parametrize(
    ("asked", "missing"),
    [("tbb", ["tbbpool"]), ("threadsafe", ["tbbpool", "omppool"])],
)
def test_without_a_threading_layer_a_fit_is_serial(asked, missing):
    """The modules of layers cannot be imported, as where their libraries are absent."""
    code = f"""
    import sys
    for name in {missing}:
        sys.modules["numba.np.ufunc." + name] = None
    {BITS}
    print(threading_layer(), *bits_of([2]))
    """
    assert run_alone(code, NUMBA_THREADING_LAYER=asked) == ["None", fitted_bits(1)]


def test_numba_s_threads_are_started_so_that_they_hardly_spin():
    """They read the setting when they start, whichever scope is the first to start them."""
    code = """
    import os
    import numba
    from gpx_scale.runtime.tile_loops import tile_threads

    seen, start = [], numba.get_num_threads

    def noted():
        seen.append(os.environ.get("GOMP_SPINCOUNT"))
        return start()

    numba.get_num_threads = noted
    with tile_threads(2):
        pass
    print(seen[0], os.environ.get("GOMP_SPINCOUNT"))
    """
    if "GOMP_SPINCOUNT" in os.environ:
        pytest.skip("the user has set GOMP_SPINCOUNT, which stays as it is")
    assert run_alone(code) == [PASSIVE_WAITING["GOMP_SPINCOUNT"], "None"]


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_fits_inside_workers_of_joblib_have_the_same_bits(backend):
    """Workers have one thread unless they ask for more; then each of them has several."""
    found = joblib.Parallel(n_jobs=2, backend=backend)(
        joblib.delayed(fitted_bits)(n_jobs) for n_jobs in (None, 2, None, 2)
    )
    assert set(found) == {fitted_bits(1)}


def test_the_model_of_these_tests_runs_in_parallel(monkeypatch):
    """Otherwise the tests of this file would compare serial loops with themselves."""
    run, seen = Threads.run, []

    def noted(self, loop, *arguments):
        seen.append(self._lock is not None)
        run(self, loop, *arguments)

    monkeypatch.setattr(Threads, "run", noted)
    fitted_bits(2)
    assert any(seen) or threading_layer() is None
