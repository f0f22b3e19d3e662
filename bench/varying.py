"""Varying coefficients by the solvers `basis` and `grid`, beside GPBoost (Vecchia) and mgwr:
`make bench CASE=varying`.

It needs the extra [peers]. The data are `synth2`, five coefficients over the unit square. A
fit includes the search for hyperparameters and 1,000 vectors of coefficients with their
standard deviations at new places. `python bench/varying.py NAME ...` runs some cases and
leaves the results of the others.
"""

from __future__ import annotations

import time

import numpy as np

from measure import run_cases
from peers.case import RowSource
from peers.coefficient import GPBoost, Gwr

THREADS = 2
QUERIES = 1_000
SHORT_ROWS = 30_000


def truth(X, scale=1.0):
    """Return the coefficients of `synth2` at places X, before scaling."""
    u, v = X.T
    pi = np.pi
    w = [
        np.sin(2 * pi * u) * np.cos(pi * v),
        np.cos(2 * pi * u + v),
        np.sin(pi * (u + v)),
        np.sin(2 * pi * v),
    ]
    return np.column_stack([*w, (np.cos(2 * pi * u * v) + 1) / 2]) * scale


def data(n):
    """Return rows, queries, and the true coefficients of the queries in the units of the rows'
    y.
    """
    from gpx_scale.datasets import synth2

    rows, query = synth2(n), synth2(QUERIES, random_state=1)
    return rows, query, truth(query.X, rows.weights[0, 1] / truth(rows.X[:1])[0, 1])


def ours(n, **arguments):
    """Return time, error and coverage of our fit on n rows."""
    from gpx_scale import GPXRegressor

    small = data(1500)
    # This fit compiles, so that the next does not.
    compiling = GPXRegressor(
        solver="basis", n_jobs=THREADS, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(*small[0][:3])
    compiling.explain(small[1].X, small[1].Z)
    rows, query, true = data(n)
    start = time.perf_counter()
    model = GPXRegressor(
        random_state=0,
        n_jobs=THREADS,
        **arguments,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(rows.X, rows.y, rows.Z)
    found = model.explain(query.X, query.Z)
    took = time.perf_counter() - start
    error = found.weights - true
    return {
        "seconds": took,
        "rmse": float(np.sqrt(np.mean(error**2))),
        "coverage": float(np.mean(np.abs(error) <= 2.0 * found.weights_std)),
        "solver": model.solver_,
        "phases": model.fit_report_.seconds,
        "evaluations": model.fit_report_.evaluations,
    }


def peer(model, n):
    """Return time and error of a peer of bench/peers: its fit, and the coefficients at new
    places.
    """
    rows, query, true = data(n)
    case = RowSource(rows.X, rows.y, query.X, query.y, rows.Z, query.Z, true)
    start = time.perf_counter()
    model.fit(case)
    weights = model.answer(case)
    return {
        "seconds": time.perf_counter() - start,
        "rmse": float(np.sqrt(np.mean((weights - true) ** 2))),
    }


def gpboost_50000():
    import gpboost  # noqa: F401 (The import is not timed.)

    return peer(GPBoost(), 50_000)


def mgwr_10000():
    import mgwr.gwr  # noqa: F401 (The import is not timed.)

    model = Gwr()
    return peer(model, 10_000) | {"bandwidth": float(model.model.bw)}


def short():
    """Return seconds and error of a basis and of a grid at given length scales.

    The coefficients have more and more waves.
    """
    from gpx_scale import GPXRegressor
    from gpx_scale.errors import GPXError

    random, found = np.random.RandomState(0), {}
    X, query = random.uniform(size=(SHORT_ROWS, 2)), random.uniform(size=(QUERIES, 2))
    z, z_query = (
        np.column_stack([np.ones(len(A)), random.standard_normal(len(A))]) for A in (X, query)
    )
    noise = 0.3 * random.standard_normal(SHORT_ROWS)

    def waves(A, count):
        """Return two coefficients with `count` waves per side of the square."""
        u, v = 2 * np.pi * count * A.T
        return np.column_stack([np.sin(u) * np.cos(v), np.cos(u + 0.7 * v)])

    for count in (1, 1, 4, 8, 16, 24):  # The first compiles, and the second overwrites it.
        y, true = (waves(X, count) * z).sum(axis=1) + noise, waves(query, count)
        length = 0.25 / count / X.std()
        for solver in ("basis", "grid"):
            start = time.perf_counter()
            try:
                model = GPXRegressor(
                    solver=solver,
                    optimizer=None,
                    theta1=0.5,
                    theta2=2 * length**2,
                    sigma_w=0.01,
                    sigma_y=0.3,
                    random_state=0,
                    n_jobs=THREADS,
                ).fit(X, y, z)
                error = model.explain(query, z_query).weights - true
            except GPXError as refused:
                found[f"{solver} {count}"] = {"refused": str(refused)}
                continue
            found[f"{solver} {count}"] = {
                "seconds": time.perf_counter() - start,
                "rmse": float(np.sqrt(np.mean(error**2))),
            }
    return found


def remainder():
    """Measure what a basis and a grid leave out.

    For a rough kernel on 300 rows: nats by which the basis misses the exact evidence, with the
    remainder as noise and without it, and standard deviations of the weights over the exact
    ones. For an RBF on 800 rows: nats that a grid misses.
    """
    from dataclasses import replace

    from gpx_scale import GPXRegressor, kernels
    from gpx_scale.data.features import DenseFeatures
    from gpx_scale.data.inputs import TrainingRows
    from gpx_scale.data.row_source import MemoryRows
    from gpx_scale.linalg.covariance import TiledCovariance
    from gpx_scale.model.hyperparameters import Hyperparameters
    from gpx_scale.runtime.parallel import Executor
    from gpx_scale.runtime.session import Session
    from gpx_scale.solvers.basis.solver import BasisSettings, BasisSolver
    from gpx_scale.solvers.contract import Plan
    from gpx_scale.solvers.exact.solver import ExactSolver
    from gpx_scale.solvers.grid.interpolation import (
        POINTS_PER_LENGTH_SCALE,
        Grid,
        GridCovariance,
        Interpolated,
    )
    from gpx_scale.solvers.low_dimensional import InputExtent

    session = Session.of(Executor(1))

    def drawn(n, params):
        """Return rows that are drawn from the model, and their C."""
        random = np.random.RandomState(0)
        x, z = (
            random.uniform(-1.7, 1.7, (n, 2)),
            np.column_stack([np.ones(n), random.standard_normal((n, 2))]),
        )
        unknown = TrainingRows(x, DenseFeatures(z), np.zeros(n))
        C = TiledCovariance(unknown, params, session).matmul(np.eye(n))
        return TrainingRows(
            x, DenseFeatures(z), np.linalg.cholesky(C) @ random.standard_normal(n)
        ), C

    params = Hyperparameters.of(kernels.Matern12(1.3, 3.0), 0.1, 0.3)
    rows = MemoryRows(drawn(300, params)[0])
    exact = ExactSolver(300, np.float64, session).evaluate(rows, params, gradient=False).value
    plan = Plan(300, 2, 3, "basis", np.float64, 1, 0, session.memory_limit)
    engine = BasisSolver(plan, session, BasisSettings(32), most=5_000)
    space = engine._prepare(rows, params)
    found = {"nats": engine.evaluate(rows, params).value - exact, "functions": len(space.box)}
    known = float(space.mean_square @ params.kernel.spectral_density(space.box.omega)[0])
    nothing_left = space.mean_square * (1.3 / known)
    engine._space = replace(space, mean_square=nothing_left)
    found["nats_without"] = engine.evaluate(rows, params).value - exact

    params = Hyperparameters.of(kernels.RBF(1.3, 0.5), 0.1, 0.3)
    some, C = drawn(800, params)
    on = Interpolated.of(
        Grid.around(InputExtent.of(some), params.kernel, None, POINTS_PER_LENGTH_SCALE), some.x
    )
    G = GridCovariance(some, params, session, np.float64, on).matmul(np.eye(800))
    logs = [
        -0.5 * (some.y @ np.linalg.solve(A, some.y) + np.linalg.slogdet(A)[1])
        for A in (0.5 * (G + G.T), C)
    ]
    found["grid_nats"] = logs[0] - logs[1]

    X, y, Z, *_ = data(300)[0]
    given = {"optimizer": None, "theta2": 1.0, "sigma_y": 0.3}
    for kernel in ("rbf", "matern52", "matern32", "matern12"):
        ours, theirs = (
            GPXRegressor(kernel, solver=s, **given).fit(X, y, Z).explain(X, Z).weights_std
            for s in ("basis", "exact")
        )
        found[kernel] = [float((ours / theirs).min()), float((ours / theirs).max())]
    return found


CASES = {
    "remainder": remainder,
    "ours_50000": lambda: ours(50_000),
    "gpboost_50000": gpboost_50000,
    "ours_10000": lambda: ours(10_000),
    "mgwr_10000": mgwr_10000,
    "million": lambda: ours(1_000_000),
    "short": short,
}


def _said(found):
    """Describe time and error of a case."""
    return f"{found['seconds']:.1f} s, RMSE {found['rmse']:.4f}"


def summary(found):
    """Return the rows of the table from the numbers of the cases."""
    rows = []
    mine, theirs = found.get("ours_50000"), found.get("gpboost_50000")
    if mine:
        within = f"{_said(mine)}, {mine['coverage']:.0%} within 2 sd"
        rows.append(
            (
                "synth2, n = 50,000: fit and 1,000 coefficient vectors",
                within,
                "90% within 2 sd",
                mine["coverage"] >= 0.9,
            )
        )
    if mine and theirs:
        ratio = theirs["seconds"] / mine["seconds"]
        rows.append(
            (
                "the same, GPBoost (Vecchia) over ours in time",
                f"{ratio:.0f} times ({_said(theirs)})",
                "20 times",
                ratio >= 20,
            )
        )
        share = mine["rmse"] / theirs["rmse"]
        rows.append(
            ("the same, our error over GPBoost's", f"{share:.2f}", "a third", share <= 1 / 3)
        )
    million = found.get("million")
    if million:
        memory = million["memory"] / 2**30
        fits = memory < 4 and (theirs is None or million["seconds"] < theirs["seconds"])
        said = f"{_said(million)}, {memory:.1f} GiB"
        rows.append(("synth2, n = 1,000,000", said, "GPBoost's time at 50,000; 4 GiB", fits))
    mine, theirs = found.get("ours_10000"), found.get("mgwr_10000")
    if mine and theirs:
        ratio = theirs["seconds"] / mine["seconds"]
        fine = ratio >= 20 and mine["rmse"] < theirs["rmse"]
        said = f"{ratio:.0f} times ({_said(theirs)}; ours {_said(mine)})"
        rows.append(
            ("synth2, n = 10,000: mgwr's GWR over ours in time", said, "20 times, less error", fine)
        )
    left = found.get("remainder")
    if left:
        said = f"{abs(left['nats']):.0f} nats off if the remainder counts as noise, "
        said += f"{abs(left['nats_without']):.0f} if not"
        rows.append((f"Matern 1/2, 300 rows, {left['functions']} functions", said, "", None))
        said = ", ".join(
            f"{k} {left[k][0]:.3f} to {left[k][1]:.3f}"
            for k in ("rbf", "matern52", "matern32", "matern12")
        )
        rows.append(("deviations of weights, basis over exact, 300 rows", said, "", None))
        rows.append(
            ("RBF, 800 rows, on a grid", f"{abs(left['grid_nats']):.2f} nats off", "", None)
        )
    for name, case in (found.get("short") or {}).items():
        if name == "memory":
            continue
        solver, count = name.split()
        waves = f"{count} {'wave' if count == '1' else 'waves'} per side"
        said = _said(case) if "seconds" in case else "refused: too many functions"
        rows.append(
            (
                f"{waves}, n = {SHORT_ROWS:,}, given length scales: {solver}",
                said,
                "",
                None,
            )
        )
    return rows


if __name__ == "__main__":
    run_cases(__file__, __doc__, CASES, summary, "varying")
