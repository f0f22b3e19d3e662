"""Forks, Ctrl-C and the end of the interpreter while loops over tiles run in other threads."""

import os
import signal

import pytest

from alone import fitted_bits, run_alone
from gpx_scale.linalg.covariance import Covariance
from gpx_scale.runtime.parallel import ForkSafeLock

LAYERS = pytest.mark.parametrize("layer", ["omp", "workqueue"])
HAS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
HAS_TIMER = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timer that sends signals"
)

FORK = """
    import os, signal, sys, threading
    from alone import fitted_bits

    def forked():
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1]
        status = 4
        try:
            signal.alarm(120)  # A child that waits for ever is ended, and its status is not 0.
            status = 0 if fitted_bits(2) == expected else 3
        finally:
            os._exit(status)
"""


@HAS_FORK
@LAYERS
def test_a_child_forked_after_a_fit_fits_as_its_parent_does(layer):
    code = f"""{FORK}
    expected = fitted_bits(2)
    print(forked(), fitted_bits(2))
    """
    assert run_alone(code, NUMBA_THREADING_LAYER=layer) == ["0", fitted_bits(1)]


@HAS_FORK
@LAYERS
def test_a_child_forked_while_other_threads_fit_fits_as_they_do(layer):
    """The locks and threads of the fits are in any state at the fork; the child has none of them.

    The parent's own fits go on.
    """
    code = f"""{FORK}
    # Serial loops are compiled before the forks, and not in each child.
    expected, found, stop = fitted_bits(1), [], threading.Event()

    def fit():
        while not stop.is_set():
            found.append(fitted_bits(2))

    workers = [threading.Thread(target=fit) for _ in range(2)]
    [worker.start() for worker in workers]
    statuses = [forked() for _ in range(6)]
    stop.set()
    [worker.join() for worker in workers]
    print(*set(statuses), len(found) >= 2, *set(found))
    """
    assert run_alone(code, NUMBA_THREADING_LAYER=layer) == ["0", "True", fitted_bits(1)]


@HAS_FORK
@pytest.mark.parametrize(
    "lock", ["global_compiler_lock", "vars(Covariance)['diagonal'].lock"], ids=["numba", "property"]
)
def test_a_child_opens_locks_that_other_threads_held_at_the_fork(lock):
    """The compiler of numba is one, and every cached property of Python 3.11 another."""
    if lock.startswith("vars") and not hasattr(vars(Covariance)["diagonal"], "lock"):
        pytest.skip("cached properties have no locks in this version of Python")
    code = f"""{FORK}
    from numba.core.compiler_lock import global_compiler_lock
    from gpx_scale.linalg.covariance import Covariance

    held, stop = threading.Event(), threading.Event()

    def hold():
        with {lock}:
            held.set()
            stop.wait(1.0)

    expected = fitted_bits(2)
    worker = threading.Thread(target=hold)
    worker.start()
    held.wait()
    status = forked()
    stop.set()
    worker.join()
    print(status)
    """
    assert run_alone(code) == ["0"]


@LAYERS
def test_the_interpreter_ends_while_daemon_threads_are_inside_loops(layer):
    """Daemon threads stop when they next ask for the GIL, which compiled loops do not hold."""
    code = """
    import threading
    import numpy as np
    from gpx_scale.linalg.lower_tiles import LowerTiles

    begun = threading.Barrier(3)

    def factorise():
        A = np.eye(2500)
        begun.wait()
        while True:
            LowerTiles.of(A, 2).factor()  # The factor of the identity is the identity.

    for _ in range(2):
        threading.Thread(target=factorise, daemon=True).start()
    LowerTiles.of(np.eye(600), 2).factor()
    begun.wait()
    threading.Event().wait(0.3)
    print("ends")
    """
    assert run_alone(code, NUMBA_THREADING_LAYER=layer) == ["ends"]


INTERRUPTED = """
    import itertools, signal, threading
    import numba
    import numpy as np
    from alone import fitted_bits
    from gpx_scale.linalg.lower_tiles import LowerTiles
    from gpx_scale.runtime.parallel import _blas_libraries

    signal.signal(signal.SIGALRM, signal.default_int_handler)  # A timer presses Ctrl-C.

    def counts():
        found = [library.get_num_threads() for library, _ in _blas_libraries()]
        return [*found, numba.get_num_threads()]

    expected, before = fitted_bits(2), counts()
    A = np.eye(300)
    left = 0
    for k in range(100):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-3 + 7e-5 * k)
            for _ in itertools.count():
                LowerTiles(300, 32, A.reshape(-1), 2).factor()
        except KeyboardInterrupt:
            left += 1
            A[:] = np.eye(300)  # A call that was left may have written a part of a column.
    # A lock that was left closed would stop a fit in another thread, and later ones here.
    found = []
    worker = threading.Thread(target=lambda: found.append(fitted_bits(2)), daemon=True)
    worker.start()
    worker.join(120)
    print(left, counts() == before, found == [expected], fitted_bits(2) == expected)
"""


@HAS_TIMER
@LAYERS
def test_ctrl_c_leaves_the_loop_over_columns_and_everything_works_afterwards(layer):
    found = run_alone(INTERRUPTED, NUMBA_THREADING_LAYER=layer)
    assert found == ["100", "True", "True", "True"]


@HAS_TIMER
def test_a_lock_is_open_after_ctrl_c_at_any_moment():
    def interrupt(*_):
        raise KeyboardInterrupt

    lock = ForkSafeLock()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for k in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + 1e-6 * (k % 100))
                while True:
                    with lock:
                        pass
            except KeyboardInterrupt:
                assert not lock._is_owned()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
