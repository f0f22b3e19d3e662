"""Weights with priors of their own beside those that share one, on simulated data.

`python bench/weights.py NAME ...` runs some cases, and leaves the results of the others. The data
are `datasets.synth_semi` and `synth_multiscale`, with known weights, and y = sin(2a) + b^2 beside
two columns of noise. The case `tables` has weights="auto" beside "shared" on the tables of
default.py, and needs the files of GPX_SCALE_DATA. Cases named `basis_N` have `synth_multiscale` of
N rows by the basis. `vecchia_50000` and `mgwr_2500` have it by GPBoost and mgwr, and are skipped
where these are not installed.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np

from default import TABLES, split_of
from measure import Row, run_cases

DRAWS = 10
# A constant weight is one number per draw, so its coverage takes more of them.
CONSTANT_DRAWS = 100
# The points of a main effect.
CURVE_POINTS = 41
MODELS = ("shared", "semi")
SCALES = (*MODELS, "multiscale")
CURVES = (*MODELS, "additive")
TEST_ROWS = 1000
# The tables are cut to so many rows, and there are so many splits of each.
TABLE_ROWS = 1500
TABLE_SPLITS = 3
# A 95% interval of a normal distribution has this many standard deviations on either side.
DEVIATIONS_OF_95_PERCENT = 1.96
SETTINGS = {"kernel": "rbf", "ard": False, "random_state": 0}


def _fit(weights, X, y, Z, **more):
    """Return a fitted model, and the seconds of the fit."""
    from gpx_scale import GPXRegressor

    start = time.perf_counter()
    # The intercept of an additive model is a part of it.
    model = GPXRegressor(
        weights=weights, fit_intercept=weights == "additive", **SETTINGS, **more
    ).fit(X, y, Z)
    return model, time.perf_counter() - start


def _compile():
    """Compile what fits use, so that compilation is not timed."""
    from gpx_scale.datasets import synth_semi

    data = synth_semi(700)
    for weights in MODELS:
        model, _ = _fit(weights, data.X, data.y, data.Z)
        model.explain(data.X[:5], data.Z[:5])


def _scores(model, seconds, test):
    """Return errors and coverage of the weights at new rows, and what was decided."""
    found = model.explain(test.X, test.Z, std="surface")
    off = found.weights - test.weights
    inside = np.abs(off) < DEVIATIONS_OF_95_PERCENT * found.weights_std
    # A weight that is found to be zero has an interval of no length, and is right if it is zero.
    inside |= (found.weights_std < 1e-8) & (np.abs(off) < 1e-8)
    return {
        "seconds": seconds,
        "rmse": float(np.sqrt(np.mean(off**2))),
        "rmse_of_weights": np.sqrt(np.mean(off**2, axis=0)).tolist(),
        "mse_of_y": float(np.mean((model.predict(test.X, test.Z) - test.y) ** 2)),
        "coverage": inside.mean(axis=0).tolist(),
        "evidence": float(model.log_marginal_likelihood_value_),
        "decisions": [row.decision for row in model.fit_report_.weight_table],
    }


def _draws(make, n, models=MODELS):
    """Return the scores of the models on all draws of a simulation."""
    _compile()
    found = {weights: [] for weights in models}
    for draw in range(DRAWS):
        train, test = make(n, random_state=draw), make(TEST_ROWS, random_state=1000 + draw)
        for weights, scores in found.items():
            model, seconds = _fit(weights, train.X, train.y, train.Z)
            scores.append(_scores(model, seconds, test))
    return found


def semi(n):
    """Return the scores on `synth_semi` of n rows."""
    from gpx_scale.datasets import synth_semi

    return _draws(synth_semi, n)


def multiscale(n):
    """Return the scores on `synth_multiscale` of n rows."""
    from gpx_scale.datasets import synth_multiscale

    return _draws(synth_multiscale, n, SCALES)


def noise_columns():
    """Return importances for y = sin(2a) + b^2 with two noise columns, and how sure signs are.

    The importances are shares of the largest one, and a sign is sure if its posterior probability
    is above 97.5%.
    """
    _compile()
    found = {weights: [] for weights in CURVES}
    for draw in range(DRAWS):
        random = np.random.RandomState(draw)
        X = random.uniform(-2.0, 2.0, (500, 4))
        y = np.sin(2.0 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * random.standard_normal(500)
        for weights, scores in found.items():
            model, seconds = _fit(weights, X[:400], y[:400], None)
            explanation = model.explain(X[400:])
            positive = explanation.probability_positive()[:, 2:]
            sure = (positive > 0.975) | (positive < 0.025)
            # A weight of zero has no sign.
            sure &= np.abs(explanation.weights[:, 2:]) > 1e-8
            importance = explanation.importance()
            scores.append(
                {
                    "seconds": seconds,
                    "importance": (importance / importance.max()).tolist(),
                    "sure": float(sure.mean()),
                    "decisions": [row.decision for row in model.fit_report_.weight_table],
                }
            )
    return found


def tables():
    """Return errors of "shared" and "auto" on the splits of tables, and what was chosen."""
    from gpx_scale import GPXRegressor

    found = {}
    for name in TABLES:
        for number in range(TABLE_SPLITS):
            split = split_of(name, number)
            X, y = split.X[:TABLE_ROWS], split.y[:TABLE_ROWS]
            errors, chosen = {}, ""
            for weights in ("shared", "auto"):
                model = GPXRegressor(weights=weights, random_state=0).fit(X, y)
                error = model.predict(split.X_test[:TABLE_ROWS]) - split.y_test[:TABLE_ROWS]
                errors[weights] = float(np.sqrt(np.mean(error**2)) / y.std())
                compared = model.fit_report_.prior_table
                chosen = next((one.weights for one in compared if one.chosen), "shared")
            found[f"{name}, split {number}"] = {**errors, "chosen": chosen}
    return found


def curves():
    """Return errors and coverage of the main effects of `synth_additive`.

    A main effect is what a feature does to the prediction while all others have their means, minus
    its mean over the curve. Both interactions are 0 there.
    """
    from gpx_scale.datasets import synth_additive

    _compile()
    effects = (lambda a: np.sin(2.0 * a), np.square, lambda c: 0.8 * c, lambda d: np.expm1(0.5 * d))
    scores = []
    for draw in range(DRAWS):
        train = synth_additive(500, draw)
        model, seconds = _fit("additive", train.X, train.y, None)
        curves = [_curve_of(model, train.X, k, effect) for k, effect in enumerate(effects)]
        scores.append(
            {
                "seconds": seconds,
                "rmse": [float(np.sqrt(np.mean(off**2))) for off, _ in curves],
                "coverage": [
                    float(np.mean(np.abs(off) <= DEVIATIONS_OF_95_PERCENT * std))
                    for off, std in curves
                ],
                "decisions": [row.decision for row in model.fit_report_.weight_table],
            }
        )
    return {"additive": scores}


def _curve_of(model, X, k, effect):
    """Return the errors of a centred main effect along feature k, and its deviations."""
    values = np.linspace(X[:, k].min(), X[:, k].max(), CURVE_POINTS)
    rows = np.tile(X.mean(axis=0), (CURVE_POINTS, 1))
    rows[:, k] = values
    mean, covariance = model.predict(rows, return_cov=True)
    # The covariance is that of new measurements, each of which has noise of its own.
    sigma_w, sigma_y = (model.hyperparameters_[name] for name in ("sigma_w", "sigma_y"))
    squares = 1.0 + np.square((rows - X.mean(axis=0)) / X.std(axis=0)).sum(axis=1)
    y_scale = model.explain(rows[:1], std=False).noise / sigma_y
    noise = y_scale**2 * (sigma_y**2 + sigma_w**2 * squares)
    centring = np.eye(CURVE_POINTS) - 1.0 / CURVE_POINTS
    joint = centring @ (covariance - np.diag(noise)) @ centring
    return centring @ (mean - effect(values)), np.sqrt(np.maximum(joint.diagonal(), 0.0))


def constants():
    """Return how many deviations the two constant weights of `synth_semi` are off, over draws."""
    from gpx_scale.datasets import synth_semi

    _compile()
    off = []
    for draw in range(CONSTANT_DRAWS):
        data = synth_semi(500, random_state=2000 + draw)
        model, _ = _fit("semi", data.X, data.y, data.Z)
        found = model.explain(data.X[:1], data.Z[:1], std="surface")
        error = (found.weights - data.weights[:1])[0, 3:5]
        off.append((error / found.weights_std[0, 3:5]).tolist())
    return {"off": off}


def cost():
    """Return processor seconds of the default and of the paper's model, on 4,000 rows."""
    from gpx_scale import PAPER, GPXRegressor
    from gpx_scale.datasets import synth10, synth_semi

    def semi(n):
        data = synth_semi(n, 0)
        return data.X, data.y, data.Z

    found = {}
    for name, make in (("synth10", lambda n: synth10(n)[:2]), ("synth_semi", semi)):
        seconds = []
        for arguments in ({}, PAPER):
            GPXRegressor(random_state=0, **arguments).fit(*make(600))
            rows, start = make(4000), time.process_time()
            GPXRegressor(random_state=0, **arguments).fit(*rows)
            seconds.append(time.process_time() - start)
        found[name] = seconds
    return found


def by_basis(n):
    """Return the scores of one draw of `synth_multiscale` of n rows, by the basis."""
    from gpx_scale.datasets import synth_multiscale

    train, test = synth_multiscale(n), synth_multiscale(TEST_ROWS, 1000)
    found = {}
    for weights in ("shared", "multiscale"):
        # A small fit compiles what the large one takes.
        _fit(weights, train.X[:2000], train.y[:2000], train.Z[:2000], solver="basis")
        model, seconds = _fit(weights, train.X, train.y, train.Z, solver="basis")
        found[weights] = _scores(model, seconds, test)
    return found


def vecchia(n):
    """Return seconds and errors of GPBoost's Vecchia approximation on `synth_multiscale`."""
    if find_spec("gpboost") is None:
        return {"skipped": "gpboost is not installed"}
    from peers.coefficient import GPBoost

    return _by_peer(GPBoost(), n, intercept=True)


class Mgwr:
    """mgwr's MGWR, which has a bandwidth for each coefficient."""

    def fit(self, rows):
        from mgwr.gwr import MGWR
        from mgwr.sel_bw import Sel_BW

        places, y = list(map(tuple, rows.X)), rows.y[:, None]
        search = Sel_BW(places, y, rows.Z, multi=True, constant=False)
        search.search()
        self.params = MGWR(places, y, rows.Z, search, constant=False).fit().params

    def answer(self, rows):
        # MGWR predicts at no other places than those of its rows.
        return self.params


def mgwr(n):
    """Return seconds and errors of mgwr's MGWR on `synth_multiscale`, and ours beside it."""
    if find_spec("mgwr") is None:
        return {"skipped": "mgwr is not installed"}
    return _by_peer(Mgwr(), n) | {"ours": by_basis(n)["multiscale"]}


def _by_peer(peer, n, intercept=False):
    """Return seconds and errors of a peer; with an intercept, Z has a column of ones for it."""
    from gpx_scale.datasets import synth_multiscale

    train, test = synth_multiscale(n), synth_multiscale(TEST_ROWS, 1000)

    def wide(Z):
        return np.column_stack([np.ones(len(Z)), Z]) if intercept else Z

    rows = SimpleNamespace(X=train.X, y=train.y, Z=wide(train.Z), Xq=test.X, Zq=wide(test.Z))
    start = time.perf_counter()
    peer.fit(rows)
    seconds = time.perf_counter() - start
    found = peer.answer(rows)[:, int(intercept) :]
    off = found - (test.weights if len(found) == TEST_ROWS else train.weights)
    return {"seconds": seconds, "rmse_of_weights": np.sqrt(np.mean(off**2, axis=0)).tolist()}


CASES = {
    "semi_500": lambda: semi(500),
    "semi_2000": lambda: semi(2000),
    "multiscale_625": lambda: multiscale(625),
    "noise_columns": noise_columns,
    "tables": tables,
    "curves": curves,
    "constants": constants,
    "cost": cost,
    "basis_50000": lambda: by_basis(50_000),
    "basis_1000000": lambda: by_basis(1_000_000),
    "vecchia_50000": lambda: vecchia(50_000),
    "mgwr_2500": lambda: mgwr(2_500),
}


def _mean(scores, name):
    return float(np.mean([one[name] for one in scores]))


def _counted(scores, columns, decision):
    """Return how many of some columns have a decision, for every draw."""
    return np.array([[one["decisions"][k] == decision for k in columns] for one in scores])


def _rows_of_semi(found, n):
    """Return the rows about `synth_semi` of n rows."""
    shared, semi = found["shared"], found["semi"]
    ratio = _mean(semi, "rmse") / _mean(shared, "rmse")
    slower = np.median([a["seconds"] / b["seconds"] for a, b in zip(semi, shared, strict=True)])
    zeros = _counted(semi, range(5, 15), "zero").sum(axis=1)
    right = np.hstack(
        [_counted(semi, range(3), "varying"), _counted(semi, (3, 4), "constant")]
    ).sum(axis=0)
    coverage = np.mean([one["coverage"] for one in semi], axis=0)
    is_large = n == 2000
    start = f"synth_semi, n = {n:,}"
    return [
        Row(
            f"{start}: RMSE of the weights, semi / shared",
            f"{ratio:.2f} ({_mean(semi, 'rmse'):.4f} / {_mean(shared, 'rmse'):.4f})",
            "at most 0.45" if is_large else "",
            bool(ratio <= 0.45) if is_large else None,
        ),
        Row(
            f"{start}: MSE of y, semi / shared",
            f"{_mean(semi, 'mse_of_y'):.3f} / {_mean(shared, 'mse_of_y'):.3f}",
        ),
        Row(
            f"{start}: log marginal likelihood, semi - shared",
            f"{_mean(semi, 'evidence') - _mean(shared, 'evidence'):+.0f} nats",
        ),
        Row(
            f"{start}: zeros found, of 10",
            f"{zeros.mean():.1f}, at least {zeros.min()}",
            "at least 9" if is_large else "",
            bool(zeros.mean() >= 9) if is_large else None,
        ),
        Row(
            f"{start}: draws of {DRAWS} in which each of 3 varying and 2 constant is recognised",
            " ".join(map(str, right)),
            "at least 9" if is_large else "",
            bool(right.min() >= 9) if is_large else None,
        ),
        Row(
            f"{start}: coverage of 95% intervals, the 3 varying and 2 constant weights",
            " ".join(f"{share:.0%}" for share in coverage[:5]),
            "92-99%" if is_large else "",
            bool(((coverage[:5] >= 0.92) & (coverage[:5] <= 0.99)).all()) if is_large else None,
        ),
        Row(
            f"{start}: seconds of the fit, semi / shared",
            f"{slower:.1f} ({_mean(semi, 'seconds'):.1f} s / {_mean(shared, 'seconds'):.1f} s)",
            "at most 4" if is_large else "",
            bool(slower <= 4) if is_large else None,
        ),
    ]


def _rows_of_multiscale(found):
    """Return the rows about `synth_multiscale`."""
    rows = []
    for weights in SCALES:
        scores = found[weights]
        errors = np.mean([one["rmse_of_weights"] for one in scores], axis=0)
        coverage = np.mean([one["coverage"] for one in scores], axis=0)
        start = f"synth_multiscale, n = 625, {weights}: "
        kinds = "constant / smooth / rough"
        rows += [
            Row(f"{start}RMSE, {kinds}", " / ".join(f"{error:.3f}" for error in errors)),
            Row(f"{start}coverage, {kinds}", " / ".join(f"{share:.0%}" for share in coverage)),
        ]
    return rows


def _rows_of_noise(found):
    """Return the rows about noise columns."""
    rows = []
    for weights in CURVES:
        scores = found[weights]
        importance = np.mean([one["importance"] for one in scores], axis=0)
        sure = _mean(scores, "sure")
        target = weights == "additive"
        start = f"sin(2a) + b^2 and two noise columns, {weights}: "
        rows += [
            Row(
                f"{start}importance of the noise, of the largest",
                " ".join(f"{share:.1%}" for share in importance[2:]),
                "below 5%" if target else "",
                bool((importance[2:] < 0.05).all()) if target else None,
            ),
            Row(
                f"{start}rows with a sure sign of a noise weight",
                f"{sure:.1%}",
                "below 2%" if target else "",
                bool(sure < 0.02) if target else None,
            ),
        ]
    return rows


def _rows_of_tables(found):
    """Return the rows about tables."""
    splits = {name: one for name, one in found.items() if isinstance(one, dict)}
    ratios = {name: one["auto"] / one["shared"] for name, one in splits.items()}
    mean, worst = np.exp(np.mean(np.log([*ratios.values()]))), max(ratios, key=ratios.get)
    rows = [
        Row(
            f"{name}: RMSE, auto / shared",
            f"{ratios[name]:.3f} ({one['auto']:.4f} / {one['shared']:.4f}), {one['chosen']}",
        )
        for name, one in splits.items()
    ]
    return [
        *rows,
        Row(
            "Tables: RMSE, auto / shared, geometric mean",
            f"{mean:.3f}",
            "at most 0.95",
            bool(mean <= 0.95),
        ),
        Row(
            "Tables: RMSE, auto / shared, the worst split",
            f"{ratios[worst]:.3f} ({worst})",
            "at most 1.02",
            bool(ratios[worst] <= 1.02),
        ),
    ]


def _rows_of_curves(found):
    """Return the rows about main effects."""
    scores = found["additive"]
    errors = np.mean([one["rmse"] for one in scores], axis=0)
    coverage = np.mean([one["coverage"] for one in scores], axis=0)
    unimportant = _counted(scores, (5,), "zero").sum()
    start = "synth_additive, n = 500, additive: "
    return [
        Row(
            f"{start}RMSE of the four main effects",
            " / ".join(f"{error:.3f}" for error in errors),
        ),
        Row(
            f"{start}coverage of 95% intervals of the curves",
            " / ".join(f"{share:.0%}" for share in coverage),
            "90-99%",
            bool(((coverage >= 0.9) & (coverage <= 0.99)).all()),
        ),
        Row(f"{start}draws of {DRAWS} in which the noise has no weight", str(unimportant)),
    ]


def _rows_of_constants(found):
    """Return the row about intervals of constant weights."""
    inside = np.abs(found["off"]) <= DEVIATIONS_OF_95_PERCENT
    return [
        Row(
            f"synth_semi, n = 500: coverage of the 2 constant weights over {len(inside)} draws",
            " ".join(f"{share:.0%}" for share in inside.mean(axis=0)),
        )
    ]


def _rows_of_cost(found):
    """Return the rows about the seconds of the default."""
    times = {name: one for name, one in found.items() if isinstance(one, list)}
    return [
        Row(
            f"{name}, n = 4,000: processor seconds, default / PAPER",
            f"{default / paper:.1f} ({default:.0f} s / {paper:.0f} s)",
            "at most 6",
            bool(default <= 6.0 * paper),
        )
        for name, (default, paper) in times.items()
    ]


def _errors(rmse):
    return " / ".join(f"{error:.4f}" for error in rmse)


def _rows_of_basis(found, n):
    """Return the rows about length scales of their own by the basis, n rows."""
    shared, own = found["shared"], found["multiscale"]
    slower, ratio = own["seconds"] / shared["seconds"], own["rmse"] / shared["rmse"]
    start = f"synth_multiscale, n = {n:,}, basis: "
    both = f"{_errors(own['rmse_of_weights'])}; {_errors(shared['rmse_of_weights'])}"
    return [
        Row(
            f"{start}seconds, length scales of their own / shared",
            f"{slower:.1f} ({own['seconds']:.0f} s / {shared['seconds']:.0f} s)",
            "at most 2.5",
            bool(slower <= 2.5),
        ),
        Row(
            f"{start}RMSE of the weights, length scales of their own / shared",
            f"{ratio:.2f} ({own['rmse']:.4f} / {shared['rmse']:.4f})",
            "at most 0.5",
            bool(ratio <= 0.5),
        ),
        Row(f"{start}RMSE, constant / smooth / rough: own; shared", both),
        Row(
            f"{start}coverage, constant / smooth / rough",
            " / ".join(f"{share:.0%}" for share in own["coverage"]),
        ),
    ]


def _rows_of_peer(found, name, n, target):
    """Return the row about a peer, with ours beside it if both were measured."""
    start = f"synth_multiscale, n = {n:,}: {name}"
    if "skipped" in found:
        return [Row(start, found["skipped"])]
    if "ours" not in found:
        return [Row(start, f"{found['seconds']:.0f} s, RMSE {_errors(found['rmse_of_weights'])}")]
    ours = found["ours"]
    faster = found["seconds"] / ours["seconds"]
    said = f"{faster:.0f} times our {ours['seconds']:.1f} s, RMSE "
    said += f"{_errors(found['rmse_of_weights'])}; ours {_errors(ours['rmse_of_weights'])}"
    return [Row(start, said, f"at least {target} times", bool(faster >= target))]


def summary(found):
    """Return the rows of all cases that were measured."""
    rows = []
    for name, n in (("semi_500", 500), ("semi_2000", 2000)):
        rows += _rows_of_semi(found[name], n) if name in found else []
    for n in (50_000, 1_000_000):
        name = f"basis_{n}"
        rows += _rows_of_basis(found[name], n) if name in found else []
    if "vecchia_50000" in found:
        rows += _rows_of_peer(found["vecchia_50000"], "GPBoost's Vecchia", 50_000, None)
    if "mgwr_2500" in found:
        rows += _rows_of_peer(found["mgwr_2500"], "mgwr's MGWR", 2_500, 50)
    rows += _rows_of_multiscale(found["multiscale_625"]) if "multiscale_625" in found else []
    rows += _rows_of_noise(found["noise_columns"]) if "noise_columns" in found else []
    rows += _rows_of_tables(found["tables"]) if "tables" in found else []
    rows += _rows_of_curves(found["curves"]) if "curves" in found else []
    rows += _rows_of_constants(found["constants"]) if "constants" in found else []
    rows += _rows_of_cost(found["cost"]) if "cost" in found else []
    return rows


if __name__ == "__main__":
    run_cases(__file__, __doc__.split("\n")[0], CASES, summary, "weights")
