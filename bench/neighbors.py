"""The neighbours solver beside exact, inducing points and two peers: `make bench CASE=neighbors`.

It needs the extra [peers] and takes an hour on two cores. Each case runs in a process of its own
and compiles before the clock runs. `python bench/neighbors.py NAME ...` runs some cases and leaves
the results of the others; cases that compare solvers at the hyperparameters of a complete fit read
these from the results of that fit, which runs before them. All fits have the paper's kernel.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np

from large import THREADS, real
from measure import RESULTS, in_turn, run_cases, seconds

QUERIES = 1_000
# Standard deviations of weights are compared with exact ones at this number of rows.
COMPARED_ROWS = 12_000
# The number of neighbours of the comparison with MuyGPyS, and of its rows of leave-one-out.
PEER_NEIGHBORS, PEER_BATCH = 64, 1_000
# The points, rows of a step and passes over all rows of GPyTorch's SVGP.
SVGP_POINTS, SVGP_BATCH, SVGP_PASSES = 1_024, 1_024, 40
# The share of a normal distribution within so many standard deviations is 95%.
TWO_SIDED_95 = 1.959964
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "error_against_time.png"
PICTURE_ROWS = 12_000
PICTURE_FITS = {
    "exact": {"solver": "exact"},
    "cg": {"solver": "cg"},
    **{f"inducing, {m}": {"solver": "inducing", "n_inducing": m} for m in (100, 300, 1_000)},
    **{
        f"neighbors, {k} + {m}": {"solver": "neighbors", "n_neighbors": k, "n_shared": m}
        for k, m in ((32, 0), (64, 256), (128, 512), (256, 1_024), (512, 2_048))
    },
}


def paper():
    """Return the arguments of the paper's model, searched on as many rows as a solver chooses."""
    from gpx_scale import PAPER

    return {key: value for key, value in PAPER.items() if key != "search_rows"}


def synth10(n):
    """Return X, y and true weights of `synth10`: n rows, and then QUERIES new ones.

    y is not centred here, so that y = w.x + noise holds exactly.
    """
    random = np.random.RandomState(0)
    A = random.standard_normal((10, 10)) / np.sqrt(10.0)
    X = random.standard_normal((n + QUERIES, 10))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    weights = np.sin(X @ A.T)
    y = (weights * X).sum(axis=1) + 0.1 * random.standard_normal(len(X))
    size = y.std()
    return X[:n], y[:n] / size, X[n:], y[n:] / size, weights[n:] / size


def fit(X, y, **arguments):
    """Return a model that is fitted after everything was compiled, and the seconds of its fit."""
    from gpx_scale import GPXRegressor

    given = {**paper(), "random_state": 0, "n_jobs": THREADS, "memory_limit": "16GB", **arguments}
    some = {**given, "memory_limit": None}
    if "n_inducing" in given:
        some["n_inducing"] = 20
    for rows in (600, 2_100):
        small = GPXRegressor(**some, max_iter=2).fit(X[:rows], y[:rows])
        small.explain(X[:20])
        small.predict(X[:20], return_std=True)
    model = GPXRegressor(**given)
    return model, seconds(lambda: model.fit(X, y))


def quality(mean, std, y):
    """Return error, log-likelihood per row and coverage of predictions."""
    density = -0.5 * np.log(2 * np.pi * std**2) - (y - mean) ** 2 / (2 * std**2)
    return {
        "rmse": float(np.sqrt(np.mean((mean - y) ** 2))),
        "log_likelihood": float(density.mean()),
        "coverage": coverage(mean, std, y),
    }


def coverage(mean, std, truth):
    """Return the share of true values within the 95% intervals."""
    return float(np.mean(np.abs(mean - truth) < TWO_SIDED_95 * std))


def complete(X, y, Xq, yq, weights=None, **arguments):
    """Return what a complete fit and the explanation of all queries take, and how good they are."""
    model, fitted = fit(X, y, **{"solver": "neighbors", **arguments})
    answers = []
    explained = seconds(lambda: answers.append(model.explain(Xq)))
    found, report = answers[0], model.fit_report_
    result = {
        "fit": fitted,
        "explain": explained,
        "planned": model._plan.seconds,
        **quality(found.prediction, found.prediction_std, yq),
        "hyperparameters": model.hyperparameters_,
        "phases": report.seconds,
        "solution": report.solution,
    }
    if weights is not None:
        result["coverage_of_weights"] = coverage(found.weights, found.weights_std, weights)
    if model.solver_ == "neighbors":
        posterior = model.posterior_
        result |= {"neighbors": posterior.neighbors, "shared": int(posterior.shared.size)}
        result["held_out"] = posterior.held_out
    return result


def ratios(ours, exact):
    """Return the least, the median and the largest ratio of two arrays."""
    ratio = ours / exact
    return [float(value) for value in (ratio.min(), np.median(ratio), ratio.max())]


def earlier(name):
    """Return the results of a complete fit that ran before."""
    return json.loads((RESULTS / "neighbors_raw.json").read_text())[name]


def exact_at(hyperparameters, X, y):
    """Return the exact model with a float32 factor of all rows, and the seconds to condition it."""
    given = {**hyperparameters, "optimizer": None, "dtype": "float32"}
    return fit(X, y, solver="exact", standardize=False, **given)


def real_queries(name):
    """Return rows of a data set and QUERIES of its test rows."""
    X, y, Xq, yq = real(name)
    return X, y, Xq[:QUERIES], yq[:QUERIES]


def kin40k():
    return complete(*real_queries("kin40k"), standardize=False)


def kin40k_exact():
    """Condition neighbours and a float32 factor at the same hyperparameters, n = 36,000."""
    X, y, Xq, yq = real_queries("kin40k")
    before = earlier("kin40k")
    sizes = {"n_neighbors": before["neighbors"], "n_shared": before["shared"]}
    given = {**before["hyperparameters"], **sizes, "optimizer": None, "standardize": False}
    near, _ = fit(X, y, solver="neighbors", **given)
    _, std = near.predict(Xq, return_std=True)
    del near
    exact, fitted = exact_at(before["hyperparameters"], X, y)
    exact_mean, exact_std = exact.predict(Xq, return_std=True)
    return {"fit": fitted, **quality(exact_mean, exact_std, yq), "y": ratios(std, exact_std)}


def kin40k_inducing():
    return complete(*real_queries("kin40k"), standardize=False, solver="inducing", n_inducing=1_000)


def protein():
    return complete(*real_queries("protein"), standardize=False)


def synth10_50k():
    return complete(*synth10(50_000), standardize=False)


def synth10_50k_exact():
    """Condition a float32 factor at the hyperparameters of the neighbours' fit, n = 50,000."""
    X, y, Xq, yq, _ = synth10(50_000)
    exact, fitted = exact_at(earlier("synth10_50k")["hyperparameters"], X, y)
    return {"fit": fitted, "rmse": float(np.sqrt(np.mean((exact.predict(Xq) - yq) ** 2)))}


def synth10_million():
    return complete(*synth10(1_000_000), standardize=False, memory_limit="4GB")


def synth10_million_inducing():
    return complete(
        *synth10(1_000_000),
        standardize=False,
        memory_limit="4GB",
        solver="inducing",
        n_inducing=500,
    )


def muygps(name):
    """Compare predictions of y with MuyGPyS at the same number of neighbours.

    It fits a length scale and a noise to leave-one-out likelihoods, by L-BFGS-B. Its variance is
    taken with or without the noise, whichever gives the better log-likelihood.
    """
    from MuyGPyS.examples.regress import make_regressor, regress_any
    from MuyGPyS.gp.deformation import F2, Isotropy, l2
    from MuyGPyS.gp.hyperparameter import AnalyticScale, Parameter
    from MuyGPyS.gp.kernels import RBF, Matern
    from MuyGPyS.gp.noise import HomoscedasticNoise
    from MuyGPyS.optimize import L_BFGS_B_optimize
    from MuyGPyS.optimize.loss import lool_fn

    X, y, Xq, yq = real_queries(name)
    model, fitted = fit(
        X, y, solver="neighbors", n_neighbors=PEER_NEIGHBORS, n_shared=0, standardize=False
    )
    found = {}
    for kernel in ("RBF", "Matern 5/2"):
        np.random.seed(0)  # noqa: NPY002 (MuyGPyS draws from it)
        scale = Parameter(2.0, (1e-1, 1e2))
        if kernel == "RBF":
            k = RBF(deformation=Isotropy(metric=F2, length_scale=scale))
        else:
            form = Isotropy(metric=l2, length_scale=scale)
            k = Matern(smoothness=Parameter(2.5), deformation=form)
        start = time.perf_counter()
        peer, lookup = make_regressor(
            X,
            y[:, None],
            nn_count=PEER_NEIGHBORS,
            batch_count=PEER_BATCH,
            loss_fn=lool_fn,
            opt_fn=L_BFGS_B_optimize,
            k_kwargs={
                "kernel": k,
                "noise": HomoscedasticNoise(1e-2, (1e-6, 1.0)),
                "scale": AnalyticScale(),
            },
            nn_kwargs={"nn_method": "exact"},
        )
        taken = time.perf_counter() - start

        def theirs(peer=peer, lookup=lookup):
            return regress_any(peer, Xq, X, lookup, y[:, None])[:2]

        mean, variance = (np.ravel(part) for part in theirs())
        noise = float(np.ravel(peer.noise())[0]) * float(np.ravel(peer.scale())[0])
        both = [quality(mean, np.sqrt(variance + more), yq) for more in (0.0, noise)]
        best = max(both, key=lambda one: one["log_likelihood"])
        mine, other, ratio = in_turn(lambda: model.predict(Xq, return_std=True), theirs, rounds=5)
        found[kernel] = {"fit": taken, "predict": other, "ratio": ratio, **best}
    mean, std = model.predict(Xq, return_std=True)
    return {"fit": fitted, "predict": mine, **quality(mean, std, yq), "peer": found}


def muygps_kin40k():
    return muygps("kin40k")


def muygps_protein():
    return muygps("protein")


def svgp_kin40k():
    """Fit GPyTorch's SVGP with our kernel to kin40k, by steps of Adam on batches."""
    import gpytorch
    import torch

    from large import _gpytorch_kernel

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    X, y, Xq, yq = (torch.as_tensor(a, dtype=torch.float32) for a in real_queries("kin40k"))

    class Svgp(gpytorch.models.ApproximateGP):
        def __init__(self, points):
            own = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(
                gpytorch.variational.VariationalStrategy(
                    self, points, own, learn_inducing_locations=True
                )
            )
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = _gpytorch_kernel(gpytorch)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    start = time.perf_counter()
    model = Svgp(X[torch.randperm(len(X))[:SVGP_POINTS]].clone())
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 0.01
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    for _ in range(SVGP_PASSES):
        for rows in torch.randperm(len(X)).split(SVGP_BATCH):
            optimizer.zero_grad()
            loss = -objective(model(X[rows]), y[rows])
            loss.backward()
            optimizer.step()
    taken = time.perf_counter() - start
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        answer = likelihood(model(Xq))
        mean, std = answer.mean.numpy(), answer.variance.sqrt().numpy()
    return {"fit": taken, **quality(mean, std, yq.numpy())}


def deviations():
    """Compare standard deviations with exact ones in float64, at given hyperparameters.

    The true weights of `synth10` tell how many of them the intervals of either solver cover.
    """
    found = {}
    for name in ("kin40k", "synth10"):
        weights = None
        if name == "kin40k":
            X, y, Xq, _ = real_queries("kin40k")
        else:
            X, y, Xq, _, weights = synth10(COMPARED_ROWS)
        X, y = X[:COMPARED_ROWS], y[:COMPARED_ROWS]
        near, _ = fit(X, y, solver="neighbors", standardize=False)
        given = {**near.hyperparameters_, "optimizer": None, "standardize": False}
        ours = near.explain(Xq)
        exact = fit(X, y, solver="exact", dtype="float64", **given)[0].explain(Xq)
        off = (ours.prediction - exact.prediction) / exact.prediction_std
        found[name] = {
            "y": ratios(ours.prediction_std, exact.prediction_std),
            "weights": ratios(ours.weights_std, exact.weights_std),
            "mean": float(np.abs(off).max()),
            "sizes": [near.posterior_.neighbors, int(near.posterior_.shared.size)],
        }
        if weights is not None:
            found[name]["coverage_of_weights"] = [
                coverage(one.weights, one.weights_std, weights) for one in (ours, exact)
            ]
    return found


def rough():
    """Compare the weights of a rough function of one column with exact ones: Matern 1/2."""
    from gpx_scale import kernels

    found = {}
    random = np.random.RandomState(0)
    for n in (500, 12_000):
        x = np.sort(random.uniform(0.0, 10.0, n + QUERIES))
        Z = np.column_stack([np.ones(x.size), random.standard_normal(x.size)])
        kernel = kernels.Matern12(theta1=1.0, theta2=2.0)
        y = _walk(x, random) + Z[:, 1] * _walk(x, random) + 0.3 * random.standard_normal(x.size)
        queries = np.sort(random.permutation(x.size)[:QUERIES])
        rows = np.setdiff1d(np.arange(x.size), queries)
        given = {"optimizer": None, "sigma_w": 0.0, "sigma_y": 0.3, "standardize": False}
        ours, exact = (
            fit_rough(kernel, x[rows, None], y[rows], Z[rows], solver=solver, **given).explain(
                x[queries, None], Z[queries]
            )
            for solver in ("neighbors", "exact")
        )
        found[f"{n:,}"] = {
            "variance": ratios(ours.weights_std**2, exact.weights_std**2),
            "mean": float(np.abs((ours.weights - exact.weights) / exact.weights_std).max()),
        }
    return found


def _walk(x, random):
    """Return a function with the Matern 1/2 kernel of length scale 1 at sorted places."""
    value = np.empty(x.size)
    value[0] = random.standard_normal()
    for i, step in enumerate(np.diff(x)):
        keep = np.exp(-step)
        value[i + 1] = keep * value[i] + np.sqrt(1.0 - keep**2) * random.standard_normal()
    return value


def fit_rough(kernel, X, y, Z, **arguments):
    """Return a model of a rough function."""
    from gpx_scale import GPXRegressor

    return GPXRegressor(
        kernel, fit_intercept=False, random_state=0, n_jobs=THREADS, **arguments, weights="shared"
    ).fit(X, y, Z)


def threads():
    """Compare complete fits and explanations by 1, 2 and 16 threads, bit by bit."""
    os.environ["NUMBA_NUM_THREADS"] = "16"
    found = []
    X, y, Xq, _ = real_queries("kin40k")
    for n_jobs in (1, 2, 16):
        model, _ = fit(X[:4_000], y[:4_000], solver="neighbors", n_jobs=n_jobs)
        answer = model.explain(Xq)
        found.append((model.theta_, answer.prediction, answer.prediction_std, answer.weights_std))
    same = [
        all(np.array_equal(one, two) for one, two in zip(found[0], other, strict=True))
        for other in found[1:]
    ]
    return {"same": bool(all(same))}


def picture_case(name):
    """Return a case that fits the data of the picture by one of its solvers."""

    def one():
        X, y, Xq, yq = real_queries("kin40k")
        found = complete(X[:PICTURE_ROWS], y[:PICTURE_ROWS], Xq, yq, **PICTURE_FITS[name])
        return {key: found[key] for key in ("fit", "rmse", "log_likelihood", "planned")}

    return one


CASES = {
    f.__name__: f
    for f in (
        kin40k,
        kin40k_exact,
        kin40k_inducing,
        svgp_kin40k,
        protein,
        muygps_kin40k,
        muygps_protein,
        synth10_50k,
        synth10_50k_exact,
        synth10_million,
        synth10_million_inducing,
        deviations,
        rough,
        threads,
    )
} | {f"picture: {name}": picture_case(name) for name in PICTURE_FITS}


def draw(found):
    """Draw the picture of docs/scaling.md: error against seconds."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    from fits import COLOURS

    figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
    labels = {"inducing": "inducing, m points", "neighbors": "neighbors, k + m rows"}
    for solver in ("exact", "cg", "inducing", "neighbors"):
        points = [
            (one["fit"], one["rmse"], name)
            for name, one in found.items()
            if name.split(",")[0] == solver
        ]
        axes.plot(
            [at for at, _, _ in points],
            [error for _, error, _ in points],
            "o-",
            color=COLOURS[solver],
            label=labels.get(solver, solver),
            linewidth=1,
        )
        for at, error, name in points:
            if "," in name:
                text, where = name.split(", ")[1], {"xytext": (6, 5), "fontsize": 8}
                axes.annotate(
                    text,
                    (at, error),
                    textcoords="offset points",
                    color=COLOURS[solver],
                    **where,
                )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="seconds of a complete fit (two cores)",
        ylabel="RMSE of 1,000 new rows",
        title=f"kin40k, n = {PICTURE_ROWS:,}: error against time",
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=130)
    plt.close(figure)


def ratio_row(what, ratio, words, limit, at_most=True):
    """Return a row of the table for a ratio and its limit."""
    met = ratio <= limit if at_most else ratio >= limit
    return what, f"{ratio:.3g} ({words})", f"at {'most' if at_most else 'least'} {limit:g}", met


def error_row(what, ours, other, limit, more=""):
    """Return the row for the ratio of two RMSEs, with `more` words about them."""
    words = f"RMSE {ours['rmse']:.4f} / {other['rmse']:.4f}{more}"
    return ratio_row(what, ours["rmse"] / other["rmse"], words, limit)


def rows_beside_exact(found):
    """Yield the rows of complete fits beside exact and beside inducing points."""
    ours, exact, points = (found.get(f"kin40k{more}") for more in ("", "_exact", "_inducing"))
    what = "kin40k, n = 36,000"
    if ours and exact:
        yield error_row(f"{what}: error / exact's", ours, exact, 1.15)
        lost = exact["log_likelihood"] - ours["log_likelihood"]
        words = f"{ours['log_likelihood']:.3f} / {exact['log_likelihood']:.3f}"
        what_lost = f"{what}: log-likelihood per row, exact's minus ours"
        yield ratio_row(what_lost, lost, words, 0.1)
    if ours and points:
        yield error_row(f"{what}: error / that of 1,000 inducing points", ours, points, 0.6)
        times = points["fit"] / ours["fit"]
        words = f"{ours['fit']:.0f} s, {points['fit']:.0f} s"
        yield ratio_row(f"{what}: times faster to fit", times, words, 5.0, at_most=False)
    if ours and (peer := found.get("svgp_kin40k")):
        more = f"; {ours['fit']:.0f} s / {peer['fit']:.0f} s for {SVGP_PASSES} passes"
        yield error_row(f"{what}: error / that of GPyTorch's SVGP", ours, peer, 0.6, more)
    ours, exact = found.get("synth10_50k"), found.get("synth10_50k_exact")
    what = "synth10, n = 50,000"
    if ours and exact:
        yield error_row(f"{what}: error / exact's", ours, exact, 1.3)
        times = exact["fit"] / ours["fit"]
        words = f"{ours['fit']:.0f} s, search included / {exact['fit']:.0f} s without search"
        yield ratio_row(f"{what}: times faster to fit", times, words, 5.0, at_most=False)
    ours, points = found.get("synth10_million"), found.get("synth10_million_inducing")
    what = "synth10, n = 1,000,000"
    if ours:
        words = f"{ours['memory'] / 1e9:.2f} GB"
        yield f"{what}: memory", words, "at most 4 GB", ours["memory"] <= 4e9
    if ours and points:
        mine, theirs = (one["fit"] + one["explain"] for one in (ours, points))
        words = f"{mine:.0f} s / {theirs:.0f} s"
        what_time = f"{what}: fit and 1,000 explanations / those of 500 inducing points"
        yield ratio_row(what_time, mine / theirs, words, 0.25)
        yield error_row(f"{what}: error / that of 500 inducing points", ours, points, 0.6)


def rows_of_peers(found):
    """Yield the rows beside MuyGPyS."""
    for name in ("kin40k", "protein"):
        if r := found.get(f"muygps_{name}"):
            for kernel, peer in r["peer"].items():
                what = f"{name}: {PEER_NEIGHBORS} neighbours beside MuyGPyS, {kernel}"
                more = r["log_likelihood"] - peer["log_likelihood"]
                words = f"{r['log_likelihood']:.3f} / {peer['log_likelihood']:.3f}, "
                words += f"RMSE {r['rmse']:.3f} / {peer['rmse']:.3f}"
                what_more = f"{what}: log-likelihood per row more"
                yield ratio_row(what_more, more, words, 0.0, at_most=False)
                words = f"{r['predict'] / QUERIES * 1e3:.2f} ms / "
                words += f"{peer['predict'] / QUERIES * 1e3:.2f} ms"
                yield ratio_row(f"{what}: time per query", peer["ratio"], words, 1.0)


def rows_of_uncertainty(found):
    """Yield the rows about standard deviations and intervals."""
    compared = {
        f"{name}, n = {COMPARED_ROWS:,}: {kind}": one[kind]
        for name, one in found.get("deviations", {}).items()
        if isinstance(one, dict)
        for kind in ("y", "weights")
    }
    if r := found.get("kin40k_exact"):
        compared["kin40k, n = 36,000: y"] = r["y"]
    for what, (least, median, largest) in compared.items():
        words = f"least {least:.5f}, median {median:.3f}, largest {largest:.2f}"
        yield (
            f"{what}: standard deviation / exact",
            words,
            "least 0.9999, median 1.25",
            least >= 0.9999 and median <= 1.25,
        )
    for name, what in {
        "kin40k": "kin40k",
        "protein": "protein",
        "synth10_50k": "synth10, n = 50,000",
        "synth10_million": "synth10, n = 1,000,000",
    }.items():
        if r := found.get(name):
            kinds = {"y": "coverage", "weights": "coverage_of_weights"}
            for kind, key in kinds.items():
                if key in r:
                    yield (
                        f"{what}: coverage of 95% intervals, {kind}",
                        f"{r[key]:.1%}",
                        "92% to 98%",
                        0.92 <= r[key] <= 0.98,
                    )
    if one := found.get("deviations", {}).get("synth10"):
        mine, exact = one["coverage_of_weights"]
        yield (
            f"synth10, n = {COMPARED_ROWS:,}: coverage of 95% intervals, weights",
            f"{mine:.1%}, and {exact:.1%} by exact at the same hyperparameters",
        )
    for n, one in found.get("rough", {}).items():
        if isinstance(one, dict):
            least, _, largest = one["variance"]
            words = (
                f"means {one['mean']:.2g} sd off; variances {least:.6f} to {largest:.4f} of exact"
            )
            fine = one["mean"] <= 0.05 and least >= 1 - 1e-9 and largest <= 1.02
            yield f"Matern 1/2, one column, n = {n}", words, "0.05 sd, 1 to 1.02", fine


def summary(found):
    """Return the rows of the table from the numbers of the cases."""
    rows = [*rows_beside_exact(found), *rows_of_peers(found), *rows_of_uncertainty(found)]
    if r := found.get("threads"):
        words = "the same bits" if r["same"] else "other bits"
        rows.append(("1, 2 and 16 threads", words, "the same bits", r["same"]))
    for name in ("kin40k", "protein", "synth10_50k", "synth10_million"):
        if r := found.get(name):
            ratio = r["planned"] / r["fit"]
            words = f"{ratio:.2f} ({r['planned']:.0f} s / {r['fit']:.0f} s; "
            words += f"{r['neighbors']} neighbours, {r['shared']} shared rows)"
            what = f"{name}: predicted / measured seconds"
            rows.append((what, words, "0.5 to 2", 0.5 <= ratio <= 2.0))
    points = {
        name.removeprefix("picture: "): one
        for name, one in found.items()
        if name.startswith("picture: ")
    }
    if points:
        draw(points)
    return rows


if __name__ == "__main__":
    run_cases(__file__, __doc__, CASES, summary, "neighbors")
