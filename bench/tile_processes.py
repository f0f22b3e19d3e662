"""Measurements of loops over tiles that need a process of their own: `python
bench/tile_processes.py NAME` prints the numbers of one of them as JSON.

They are memory, Ctrl-C, and what the first call of a process waits for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np

from measure import resident_peak, seconds

GIVEN = {"theta1": 0.23, "theta2": 23.7, "sigma_w": 0.003, "sigma_y": 0.062}
# The least number of rows whose matrix has several tiles, and therefore runs in parallel, is 513.
SMALL_ROWS = 600


def alone(name, **environment):
    """Return the numbers of a function of this file that runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, name],
        env=os.environ | environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def _model(**more):
    from gpx_scale import GPXRegressor

    return GPXRegressor(solver="exact", optimizer=None, **GIVEN, **more)


def fit_memory(n=20_000):
    """Measure the bytes that a float32 fit takes above what the process had after a small fit.

    The residual of alpha is that of its own units: |C alpha - y| / |y|.
    """
    import psutil

    from gpx_scale.runtime.session import Session

    # These are drawn by numpy, as making `synth10` takes more memory than the fit.
    random = np.random.RandomState(0)
    X = random.standard_normal((n, 10))
    y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * random.standard_normal(n)
    model = _model(dtype="float32")
    model.fit(X[:SMALL_ROWS], y[:SMALL_ROWS])
    before = psutil.Process().memory_info().rss
    taken = seconds(lambda: model.fit(X, y))
    above = resident_peak() - before
    posterior = model.posterior_
    y = posterior.training_rows.y
    with Session.open(None) as session:
        C = posterior.factor(session).covariance
        residual = C.matmul(posterior.coefficients[:, None])[:, 0] - y
    relative = float(np.linalg.norm(residual) / np.linalg.norm(y))
    return {"n": n, "above": above, "seconds": taken, "residual": relative}


def first_call():
    """Measure how much longer the first fit and explanation of a process take than the next."""
    from gpx_scale import datasets

    data = datasets.synth10(SMALL_ROWS)

    def job():
        _model(n_jobs=2).fit(data.X, data.y).explain(data.X[:20])

    return {"first": seconds(job), "next": min(seconds(job) for _ in range(3))}


def ctrl_c(n=10_000, interrupts=6):
    """Measure the longest time from Ctrl-C to the end of a factorisation with one thread.

    Interrupts are spread over the time that a factorisation takes.
    """
    from gpx_scale.linalg.lower_tiles import LowerTiles

    signal.signal(signal.SIGINT, signal.default_int_handler)
    buffer = np.empty(n * n)
    diagonal = buffer[:: n + 1]
    sent = []

    def interrupt():
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    def factor():
        buffer[:] = 0.0
        diagonal[:] = 1.0
        start = time.perf_counter()
        LowerTiles.of(buffer.reshape(n, n), 1).factor()
        return time.perf_counter() - start

    whole, waited = factor(), []
    for k in range(interrupts):
        timer = threading.Timer(whole * (k + 0.5) / interrupts, interrupt)
        try:
            timer.start()
            factor()
            timer.join()
        except KeyboardInterrupt:
            waited.append(time.perf_counter() - sent[-1])
    return {"whole": whole, "longest": max(waited), "interrupts": len(waited)}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
