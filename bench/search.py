"""Complete fits beside those of the commit before the tile engine: `make bench CASE=search`.

That commit is checked out into a git worktree, and each fit runs in a process of its own with
either package, one after the other. A fit of a few rows compiles everything before the clock
runs. `python bench/search.py NAME ...` runs some cases and leaves the results of the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from measure import report

# The last commit whose kernels ran from a pool of Python threads.
BEFORE = "dea8361"
ROOT = Path(__file__).resolve().parent.parent
QUERIES = 1000
# Seconds that one fit may take.
PATIENCE = 1800


def _synth(n):
    from gpx_scale import datasets

    data = datasets.synth10(n + QUERIES)
    return data.X[:n], data.y[:n], data.X[n:], data.y[n:]


def _kin40k(n):
    from gpx_scale import datasets

    data = datasets.load_kin40k()
    order = np.random.RandomState(0).permutation(len(data.y))[: n + QUERIES]
    X, y = data.X[order], data.y[order]
    y = (y - y.mean()) / y.std()
    return X[:n], y[:n], X[n:], y[n:]


# Cases by name: the data, their rows, arguments of the estimator in the new version, and whether
# predictions are part of the time.
CASES = {
    "synth10, n = 8,000": (_synth, 8_000, {}, False),
    'synth10, n = 8,000, search_rows="all"': (_synth, 8_000, {"search_rows": "all"}, False),
    "kin40k, n = 12,000, with predictions": (_kin40k, 12_000, {}, True),
    "synth10, n = 20,000, with predictions": (_synth, 20_000, {}, True),
}
# The least gain in time of each case.
AT_LEAST = dict(zip(CASES, (2.5, 1.3, 3.0, 1.5), strict=True))


def one(name, is_new):
    """Return seconds, error, log-likelihood and evidence of a case, in this process."""
    from gpx_scale import GPXRegressor

    load, n, more, predicts = CASES[name]
    X, y, Xq, yq = load(n)
    model = GPXRegressor(kernel="rbf", random_state=0, **(more if is_new else {}))
    for rows in (600, 1300):
        small = GPXRegressor(kernel="rbf", max_iter=2, random_state=0)
        small.fit(X[:rows], y[:rows]).predict(Xq[:5], return_std=True)
    for solver in ("exact", "cg"):
        kind = {"solver": solver, "dtype": "float32", "max_iter": 1}
        GPXRegressor(kernel="rbf", random_state=0, **kind).fit(X[:1300], y[:1300])
    start = time.perf_counter()
    model.fit(X, y)
    fitted = time.perf_counter() - start
    mean, std = model.predict(Xq, return_std=True)
    answered = time.perf_counter() - start
    density = -0.5 * np.log(2 * np.pi * std**2) - (yq - mean) ** 2 / (2 * std**2)
    return {
        "seconds": answered if predicts else fitted,
        "planned": getattr(model.plan(X, y), "seconds", None) if is_new else None,
        "fitted": fitted,
        "solver": model.solver_,
        "dtype": model.fit_report_.dtype,
        "rmse": float(np.sqrt(np.mean((mean - yq) ** 2))),
        "log_likelihood": float(density.mean()),
        "evidence": float(model.log_marginal_likelihood_value_),
        "rows": n,
    }


@contextmanager
def worktree():
    """Check the earlier commit out, and yield the folder of its package."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "before")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(path), BEFORE], check=True)
        try:
            yield path / "src"
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def measured(name, source, is_new):
    """Return what `one` finds in a process of its own that uses the package in a folder."""
    caches = f"gpx_scale_{'new' if is_new else BEFORE}"
    path = os.pathsep.join([str(source), str(Path(__file__).parent)])
    environment = os.environ | {
        "PYTHONPATH": path,
        "NUMBA_CACHE_DIR": str(Path(tempfile.gettempdir(), caches)),
    }
    code = f"import json, search; print(json.dumps(search.one({name!r}, {is_new})))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(name, before, now):
    """Return the rows of the table for one case."""
    gain = before["seconds"] / now["seconds"]
    times = f"{gain:.2f} times faster ({before['seconds']:.0f} s by {before['solver']}, "
    times += f"{now['seconds']:.0f} s by {now['solver']} in {now['dtype']})"
    least = AT_LEAST[name]
    yield name, times, f"at least {least:g}", gain >= least
    error = now["rmse"] / before["rmse"]
    yield f"{name}: RMSE, new / before", f"{error:.3f}", "at most 1.01", error <= 1.01
    gained = now["log_likelihood"] - before["log_likelihood"]
    per_row = f"{gained:+.4f} nats per row"
    yield f"{name}: log-likelihood of queries", per_row, "at least -0.01", gained >= -0.01
    more = (now["evidence"] - before["evidence"]) / now["rows"]
    yield f"{name}: evidence", f"{more:+.5f} nats per row", "", None
    ratio = now["planned"] / now["fitted"]
    right = 0.5 <= ratio <= 2.0
    yield f"{name}: predicted / measured seconds", f"{ratio:.2f}", "0.5 to 2", right


def main(names):
    found = []
    with worktree() as before:
        for name in names or CASES:
            if name not in CASES:
                sys.exit(f"There is no case {name!r}. There are: {', '.join(CASES)}.")
            earlier = measured(name, before, is_new=False)
            found += rows_of(name, earlier, measured(name, ROOT / "src", is_new=True))
    report(found, "search")


if __name__ == "__main__":
    main(sys.argv[1:])
