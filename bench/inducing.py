"""Inducing points beside GPyTorch's SGPR, a million rows, and Dask: `make bench CASE=inducing`.

It needs the extra [peers] and takes half an hour on two cores. The million rows are read from
a memory map, and Dask is compared with threads. `python bench/inducing.py NAME ...` runs some
cases and leaves the results of the others.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import numpy as np

from large import THREADS, Sgpr, sgpr_fit, synth
from measure import run_cases, seconds

MILLION = 1_000_000


def _compile():
    from gpx_scale import GPXRegressor

    X, y, Xq, _ = synth(600, 20)
    GPXRegressor(
        solver="inducing",
        n_inducing=20,
        random_state=0,
        n_jobs=THREADS,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y).predict(Xq, return_std=True)


def _fit(X, y, Xq, yq, **arguments):
    from gpx_scale import GPXRegressor

    _compile()
    start = time.perf_counter()
    model = GPXRegressor(
        random_state=0,
        n_jobs=THREADS,
        **arguments,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    mean, std = model.predict(Xq, return_std=True)
    return {
        "seconds": time.perf_counter() - start,
        "mse": float(np.mean((mean - yq) ** 2)),
        "coverage": float(np.mean(np.abs(mean - yq) < 2 * std)),
        "evaluations": model.fit_report_.evaluations,
        "phases": model.fit_report_.seconds,
        "solver": model.solver_,
    }


def evaluation():
    """Compare our bound and gradient with SGPR's in turn, n = 50,000, m = 500.

    Ours is measured with the gradient by the hyperparameters, as in every pass of the last
    search, and by the points too. SGPR's gradient is by both.
    """
    from gpx_scale import GPXRegressor
    from gpx_scale.runtime.session import Session
    from gpx_scale.solvers.inducing.point_selection import PointSelection
    from gpx_scale.solvers.inducing.solver import InducingSolver

    X, y, _, _ = synth(50_000)
    _compile()
    model = GPXRegressor(
        solver="inducing", n_inducing=500, optimizer=None, n_jobs=THREADS, random_state=0
    ).fit(X, y)
    closure = Sgpr(X, y, 500).loss
    rows, params = model._rows, model.posterior_.hyperparameters
    with Session.open(THREADS) as session:
        selection = PointSelection(500, "given", 0, model.posterior_.support)
        solver = InducingSolver(None, selection, session)

        def with_points():
            solver.gradient(rows, solver.bound(rows, params), by_points=True)

        def ours():
            solver.evaluate(rows, params)

        ours(), with_points(), closure()
        turns = [(seconds(ours), seconds(with_points), seconds(closure)) for _ in range(5)]
    mine, moving, theirs = (statistics.median(column) for column in zip(*turns, strict=True))
    return {
        "ours": mine,
        "with_points": moving,
        "sgpr": theirs,
        "ratio": statistics.median(c / a for a, _, c in turns),
        "ratio_with_points": statistics.median(c / b for _, b, c in turns),
    }


def ours_500():
    return _fit(*synth(50_000), solver="inducing", n_inducing=500)


def ours_1000():
    return _fit(*synth(50_000), solver="inducing", n_inducing=1000)


def sgpr_500():
    return sgpr_fit(*synth(50_000), inducing=500)


def sgpr_1000():
    return sgpr_fit(*synth(50_000), inducing=1000)


def million():
    """Measure a complete fit of a million rows on disk, and the memory of this process."""
    from gpx_scale import GPXRegressor

    _compile()
    X, y, Xq, yq = synth(MILLION)
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/X.npy", X)
        np.save(f"{folder}/y.npy", y)
        del X, y
        X, y = np.load(f"{folder}/X.npy", mmap_mode="r"), np.load(f"{folder}/y.npy", mmap_mode="r")
        start = time.perf_counter()
        model = GPXRegressor(
            n_inducing=500,
            n_jobs=THREADS,
            random_state=0,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(X, y)
        took = time.perf_counter() - start
    mean, std = model.predict(Xq, return_std=True)
    report = model.fit_report_
    return {
        "seconds": took,
        "mse": float(np.mean((mean - yq) ** 2)),
        "coverage": float(np.mean(np.abs(mean - yq) < 2 * std)),
        "evaluations": report.evaluations,
        "phases": report.seconds,
        "solver": model.solver_,
    }


def dask_beside_threads():
    """Compare two single-threaded Dask workers with two threads, n = 50,000, m = 500.

    Evaluations of bound and gradient run in turn. Complete fits are compared too.
    """
    import dask.array as da
    from distributed import Client, LocalCluster

    from gpx_scale import GPXRegressor
    from gpx_scale.distributed import DaskGPXRegressor

    X, y, Xq, _ = synth(50_000)
    _compile()
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        parts = da.from_array(X, chunks=(12_500, -1)), da.from_array(y, chunks=12_500)
        arguments = {"n_inducing": 500, "random_state": 0, "n_jobs": THREADS}
        # The workers compile in this fit.
        DaskGPXRegressor(client, **{**arguments, "optimizer": None}).fit(*parts)
        start = time.perf_counter()
        there = DaskGPXRegressor(
            client, **arguments, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(*parts)
        middle = time.perf_counter()
        here = GPXRegressor(
            solver="inducing", **arguments, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(X, y)
        whole = (middle - start) / (time.perf_counter() - middle)
        theta = here.theta_

        def ours():
            here.log_marginal_likelihood(theta, eval_gradient=True)

        def dask():
            there.log_marginal_likelihood(theta, eval_gradient=True)

        turns = [(seconds(ours), seconds(dask)) for _ in range(7)]
        apart = float(np.abs(there.predict(Xq) - here.predict(Xq)).max())
    return {"ratio": statistics.median(b / a for a, b in turns), "whole": whole, "apart": apart}


def deviations():
    """Compare standard deviations of m points with exact ones at the same hyperparameters.

    Returned are the least, median and largest ratios over six small problems.
    """
    from gpx_scale import GPXRegressor, datasets

    random = np.random.RandomState(0)
    place, facts = random.uniform(size=(3300, 2)), random.randn(3300, 3)
    varying = (
        np.sin(9 * place[:, 0]) * facts[:, 0]
        + np.cos(8 * place[:, 1]) * facts[:, 1]
        + 0.3 * random.randn(3300)
    )
    ten, patients = datasets.synth10(3300), datasets.load_diabetes()
    problems = [(ten.X, ten.X, ten.y, m) for m in (30, 100, 300)] + [
        (place, facts, varying, m) for m in (50, 150)
    ]
    problems.append((patients.X, patients.X, patients.y, 40))
    ratios = {"y": [], "weights": []}
    for X, Z, y, m in problems:
        cut = 10 * len(y) // 11
        ours = GPXRegressor(
            solver="inducing",
            n_inducing=m,
            random_state=0,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(X[:cut], y[:cut], Z[:cut])
        exact = GPXRegressor(solver="exact", optimizer=None, **ours.hyperparameters_).fit(
            X[:cut], y[:cut], Z[:cut]
        )
        a, b = (model.explain(X[cut:], Z[cut:]) for model in (ours, exact))
        ratios["y"].append(a.prediction_std / b.prediction_std)
        ratios["weights"].append((a.weights_std / b.weights_std).ravel())
    found = {name: np.concatenate(parts) for name, parts in ratios.items()}
    return {
        name: [float(r.min()), float(np.median(r)), float(r.max())] for name, r in found.items()
    }


CASES = {
    f.__name__: f
    for f in (
        evaluation,
        ours_500,
        sgpr_500,
        ours_1000,
        sgpr_1000,
        million,
        dask_beside_threads,
        deviations,
    )
}


def summary(found):
    """Return the rows of the table from the numbers of the cases."""
    rows = []
    if r := found.get("evaluation"):
        words = f"{r['ratio']:.1f} times faster ({r['ours']:.2f} s, {r['sgpr']:.2f} s); "
        words += "with slopes by the points too "
        words += f"{r['ratio_with_points']:.1f} times ({r['with_points']:.2f} s)"
        rows.append(
            (
                "n = 50,000, m = 500: bound and gradient beside SGPR",
                words,
                "at least 3",
                r["ratio"] >= 3,
            )
        )
    for m in (500, 1000):
        ours, peer = found.get(f"ours_{m}"), found.get(f"sgpr_{m}")
        if ours and peer:
            words = f"MSE {ours['mse']:.4f} in {ours['seconds']:.0f} s, "
            words += f"{ours['coverage']:.0%} within 2 sd; SGPR "
            words += (
                f"{peer['mse']:.4f} in {peer['seconds']:.0f} s ({peer['evaluations']} evaluations)"
            )
            fine = ours["mse"] < peer["mse"] and ours["seconds"] < peer["seconds"]
            rows.append(
                (
                    f"n = 50,000, m = {m:,}: complete fit beside SGPR's",
                    words,
                    "smaller error in less time",
                    fine,
                )
            )
    if r := found.get("million"):
        passes = ", ".join(f"{count} on {phase}" for phase, count in r["evaluations"].items())
        words = f"{r['seconds']:.0f} s, {r['memory'] / 1e9:.2f} GB, MSE {r['mse']:.4f}, "
        words += f"{r['coverage']:.0%} within 2 sd; {passes}"
        rows.append(
            (
                "n = 1,000,000 from a memory map, m = 500: complete fit",
                words,
                "under 3 GB",
                r["memory"] < 3e9,
            )
        )
    if r := found.get("dask_beside_threads"):
        words = f"{r['ratio']:.2f} an evaluation, {r['whole']:.2f} a whole fit; "
        words += f"predictions {r['apart']:.1e} apart"
        fine = max(r["ratio"], r["whole"]) <= 1.5 and r["apart"] <= 1e-10
        rows.append(
            ("Dask, two workers / two threads, n = 50,000, m = 500", words, "1.5, 1e-10", fine)
        )
    if r := found.get("deviations"):
        words = "; ".join(
            f"of {name} {r[name][0]:.3f}, {r[name][1]:.3f}, {r[name][2]:.2f}"
            for name in ("y", "weights")
        )
        rows.append(
            ("deviations / exact ones, six small problems: least, median, largest", words, "", None)
        )
    return rows


if __name__ == "__main__":
    run_cases(__file__, __doc__, CASES, summary, "inducing")
