"""Saved models, reports, coverage of intervals, expected times, and the command line on a
million rows: `make bench CASE=doors`.

`python bench/doors.py NAME ...` runs some cases and leaves the results of the others.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np

from measure import in_turn, run_cases, seconds


def saved():
    """Compare our file of an exact model of 4,000 rows with joblib's, in turn."""
    import joblib

    import gpx_scale
    from gpx_scale.datasets import synth10

    data = synth10(4000)
    model = gpx_scale.GPXRegressor(optimizer=None).fit(data.X, data.y)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "model.gpx", Path(folder) / "model.joblib"
        save, dump, save_ratio = in_turn(
            lambda: model.save(ours), lambda: joblib.dump(model, theirs), rounds=5
        )
        load, undump, load_ratio = in_turn(
            lambda: gpx_scale.load(ours), lambda: joblib.load(theirs), rounds=5
        )
        same = np.array_equal(
            gpx_scale.load(ours).predict(data.X[:100]), model.predict(data.X[:100])
        )
        sizes = ours.stat().st_size, theirs.stat().st_size
    return {
        "save": save,
        "dump": dump,
        "load": load,
        "undump": undump,
        "ratios": [save_ratio, load_ratio],
        "bytes": sizes,
        "same": same,
    }


def report():
    """Measure the report of 360 explained samples of Digits, each of 64 pixels."""
    from gpx_scale.cli import demos
    from gpx_scale.report import write_report

    section = demos.digits().section
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        write_report(path, [section])
        return {
            "seconds": seconds(lambda: write_report(path, [section])),
            "bytes": path.stat().st_size,
        }


def coverage(load):
    """Return the share of values within the 95% intervals of models that had not seen them.

    The models are those of a cross-validation with five folds.
    """
    import pandas as pd

    from gpx_scale import GPXRegressor
    from gpx_scale.validation import cross_validate

    data = load()
    found = cross_validate(
        GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared"),
        pd.DataFrame(data.X),
        pd.Series(data.y),
        explain=True,
    )
    return {
        "within": found.explanation.coverage(data.y),
        "rows": len(data.y),
        "folds": [fold[1].within for fold in found.folds],
    }


def boston():
    from gpx_scale.datasets import load_boston

    return coverage(load_boston)


def abalone():
    from gpx_scale.datasets import load_abalone

    return coverage(load_abalone)


def expected():
    """Compare the seconds of fits with the time that `gpx-scale plan` expects, for each
    solver.
    """
    from gpx_scale import GPXRegressor
    from gpx_scale.datasets import synth2, synth10

    found = {}
    for name, n, given in (
        ("exact", 1500, {}),
        ("exact", 6000, {}),
        ("cg", 12_000, {}),
        ("inducing", 30_000, {"solver": "inducing", "n_inducing": 300}),
        ("inducing", 150_000, {"n_inducing": 200}),
        ("basis", 20_000, {}),
    ):
        data = synth2(n) if name == "basis" else synth10(n)
        model = GPXRegressor(
            random_state=0, **given, kernel="rbf", fit_intercept=False, weights="shared"
        )
        arrays = (data.X, data.y, data.Z) if name == "basis" else (data.X, data.y)
        few = [A[:1000] for A in arrays]
        # This fit compiles, so that the next does not.
        GPXRegressor(
            solver=name if name != "exact" else "auto",
            n_inducing=50,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(*few)
        plan = model.plan(*arrays)
        start = time.perf_counter()
        model.fit(*arrays)
        found[f"{model.solver_}, n = {n:,}"] = [time.perf_counter() - start, plan.seconds]
    return {"fits": found}


def rows_of(n, seed):
    """Return a frame of n rows: five columns of numbers, a category, and y."""
    import pandas as pd

    random = np.random.RandomState(seed)
    A = random.normal(size=(n, 5)).round(4)
    return pd.DataFrame(A, columns=list("abcde")).assign(
        kind=random.choice(["u", "v"], n),
        y=A[:, 0] * np.sin(A[:, 1]) + A[:, 2] + 0.1 * random.normal(size=n),
    )


def write_million(path):
    """Write a CSV file of 1,000,000 rows."""
    rows_of(1_000_000, 0).to_csv(path, index=False)


def million():
    """Run `gpx-scale fit` on a CSV file with 1,000,000 rows, and return the R^2 of new rows.

    Another process writes the file, so that its memory does not count.
    """
    import gpx_scale
    from gpx_scale.cli import main

    with tempfile.TemporaryDirectory() as folder:
        table, model = Path(folder) / "rows.csv", Path(folder) / "model.gpx"
        writer = multiprocessing.get_context("spawn").Process(target=write_million, args=(table,))
        writer.start()
        writer.join()
        size, new = table.stat().st_size, rows_of(5000, 1)
        start = time.perf_counter()
        assert main(["fit", str(table), "-t", "y", "-o", str(model), "--n-inducing", "200"]) == 0
        took = time.perf_counter() - start
        fitted = gpx_scale.load(model)
        r2 = fitted.score(new[list(fitted.feature_names_in_)], new["y"])
        return {
            "seconds": took,
            "bytes": size,
            "model": model.stat().st_size,
            "solver": fitted.solver_,
            "r2": r2,
        }


CASES = {
    "saved": saved,
    "report": report,
    "boston": boston,
    "abalone": abalone,
    "expected": expected,
    "million": million,
}


def summary(found):
    """Return the rows of the table from the numbers of the cases."""
    rows = []
    if kept := found.get("saved"):
        save, load = kept["ratios"]
        ours, theirs = (size / 2**20 for size in kept["bytes"])
        measured = f"saved in {save:.2f}, loaded in {load:.2f} of its time; "
        measured += f"{ours:.0f} MiB against {theirs:.0f}"
        rows.append(
            (
                "saved exact model, n = 4,000, beside joblib",
                measured,
                "same predictions",
                kept["same"],
            )
        )
    if kept := found.get("report"):
        rows.append(
            (
                "report of Digits, 360 samples",
                f"{kept['seconds']:.2f} s, {kept['bytes'] / 1e6:.2f} MB",
                "",
                None,
            )
        )
    for name in ("boston", "abalone"):
        if kept := found.get(name):
            folds = ", ".join(f"{share:.0%}" for share in kept["folds"])
            measured = f"{kept['within']:.1%} of {kept['rows']} values ({folds} by fold)"
            rows.append(
                (
                    f"95% intervals on {name.title()}",
                    measured,
                    "90% to 99%",
                    0.90 <= kept["within"] <= 0.99,
                )
            )
    if kept := found.get("expected"):
        largest = max(
            max(took / expected, expected / took) for took, expected in kept["fits"].values()
        )
        each = "; ".join(
            f"{name}: {took:.1f} s, expected {expected:.1f} s"
            for name, (took, expected) in kept["fits"].items()
        )
        rows.append(
            (
                "time that `gpx-scale plan` expects",
                f"{each}; largest factor {largest:.1f}",
                "at most 3",
                largest <= 3.0,
            )
        )
    if kept := found.get("million"):
        measured = (
            f"{kept['seconds']:.0f} s, {kept['memory'] / 2**30:.2f} GiB, "
            f"R^2 of new rows {kept['r2']:.3f}, "
            f"model of {kept['model'] / 1e6:.1f} MB"
        )
        rows.append(
            (
                "CSV of 1,000,000 rows by `gpx-scale fit`",
                measured,
                kept["solver"],
                kept["solver"] == "inducing",
            )
        )
    return rows


if __name__ == "__main__":
    run_cases(__file__, __doc__, CASES, summary, "doors")
