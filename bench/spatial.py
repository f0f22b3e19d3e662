"""Coefficients that vary over space and time, on real data; this is the second part of `make
bench CASE=varying`.

Georgia and Berlin are compared with mgwr, King County with least squares, and bicycle rentals
are forecast. It needs mgwr and matplotlib, and data from the folder that GPX_SCALE_DATA names.
`python bench/spatial.py NAME ...` runs some cases, leaves the results of the others, and draws
the pictures of the guides.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from measure import run_cases

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDS = 10
# A 95% interval of a normal distribution has this many standard deviations on either side.
DEVIATIONS_OF_95_PERCENT = 1.96
HORIZONS = (1, 7, 28)
# Units of X per kilometre. Berlin is in Web Mercator, which is stretched by the cosine of the
# latitude.
UNITS_PER_KILOMETRE = {"Georgia": 1000.0, "Berlin": 1000.0 / np.cos(np.radians(52.54))}


def _rms(errors):
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(np.square(errors))))


def _timed(function):
    """Return the value of a call and its seconds."""
    start = time.perf_counter()
    found = function()
    return found, time.perf_counter() - start


def _compiled(solver):
    """Compile what a solver uses, so that compilation is not timed."""
    from gpx_scale import GPXRegressor
    from gpx_scale.datasets import synth2

    data = synth2(300)
    GPXRegressor(solver=solver, optimizer=None).fit(data.X, data.y, data.Z).explain(
        data.X[:5], data.Z[:5]
    )


def _fit(X, y, Z, **arguments):
    """Return a fitted model and the seconds of the fit."""
    from gpx_scale import GPXRegressor

    return _timed(
        lambda: GPXRegressor(
            random_state=0, **arguments, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(X, y, Z)
    )


def _fit_to_the_end(X, y, Z):
    """Fit, and continue up to three times from where the search ended if it has not converged.

    Returned are the model, the seconds of all fits, and their number.
    """
    model, seconds = _fit(X, y, Z, warm_start=True)
    fits = 1
    while not _converged(model) and fits < 4:
        seconds += _timed(lambda: model.fit(X, y, Z))[1]
        fits += 1
    return model, seconds, fits


def _converged(model):
    """Return whether the search of a model converged."""
    return "NOT converged" not in str(model.fit_report_)


def _least_squares(Z, y):
    """Return the coefficients of least squares."""
    return np.linalg.lstsq(Z, y, rcond=None)[0]


def _held_out(y, mean, std, least):
    """Return the errors of our predictions and of least squares on rows that neither was
    fitted to.
    """
    return {
        "rmse": _rms(y - mean),
        "r2": float(1 - np.mean((y - mean) ** 2) / y.var()),
        "coverage": float(np.mean(np.abs(y - mean) < DEVIATIONS_OF_95_PERCENT * std)),
        "rmse_ols": _rms(y - least),
        "r2_ols": float(1 - np.mean((y - least) ** 2) / y.var()),
    }


def _described(model, seconds, X):
    """Return a summary of a fitted model.

    `length` is sqrt(theta2 / 2) in standardised x, and `lengths` is the same in the units of
    X.
    """
    h = model.hyperparameters_
    length = float(np.sqrt(h["theta2"] / 2))
    return {
        "seconds": seconds,
        "solver": model.solver_,
        "evidence": float(model.log_marginal_likelihood_value_),
        "hyperparameters": {name: float(value) for name, value in h.items()},
        "length": length,
        "lengths": (length * X.std(axis=0)).tolist(),
        "converged": _converged(model),
    }


def _standardised(data):
    """Return y and covariates with mean 0 and standard deviation 1, as in mgwr's tutorials.

    mgwr adds the constant itself.
    """
    Z = data.Z[:, 1:]
    return (data.y - data.y.mean()) / data.y.std(), (Z - Z.mean(axis=0)) / Z.std(axis=0)


def _folds(n):
    """Return the number of the fold of each row."""
    return np.random.RandomState(0).permutation(n) % FOLDS


def _gwr(coordinates, y, Z, multiscale):
    """Return the numbers and coefficients of mgwr's GWR and, for few rows, MGWR.

    Both have their defaults: an adaptive bisquare kernel, and bandwidths by AICc.
    """
    from mgwr.gwr import GWR, MGWR
    from mgwr.sel_bw import Sel_BW

    target = y[:, None]
    bandwidth, searching = _timed(lambda: Sel_BW(coordinates, target, Z).search())
    local, fitting = _timed(lambda: GWR(coordinates, target, Z, bandwidth).fit())
    found = {"gwr": _gwr_numbers(local, searching + fitting, [float(bandwidth)])}
    surfaces = {"gwr": local.params}
    if multiscale:
        selector = Sel_BW(coordinates, target, Z, multi=True)
        bandwidths, searching = _timed(lambda: selector.search(multi_bw_min=[2]))
        several, fitting = _timed(lambda: MGWR(coordinates, target, Z, selector).fit())
        found["mgwr"] = _gwr_numbers(several, searching + fitting, [float(b) for b in bandwidths])
        surfaces["mgwr"] = several.params
    return found, surfaces


def _gwr_numbers(results, seconds, bandwidths):
    """Return a summary of a fit of mgwr."""
    return {
        "bandwidths": bandwidths,
        "aicc": float(results.aicc),
        "r2": float(1 - results.resid_ss / np.sum((results.y - results.y.mean()) ** 2)),
        "effective_parameters": float(results.tr_S),
        "seconds": seconds,
        "coefficients": _summary(results.params),
        "deviations": results.bse.mean(axis=0).tolist(),
    }


def _summary(weights):
    """Return mean, standard deviation, least and largest value of each coefficient over the
    rows.
    """
    return np.stack(
        [weights.mean(0), weights.std(0), weights.min(0), weights.max(0)], axis=1
    ).tolist()


def _gwr_errors(coordinates, y, Z, folds):
    """Return the RMSE of GWR on rows that were left out; its bandwidth is searched on the
    others.
    """
    from mgwr.gwr import GWR
    from mgwr.sel_bw import Sel_BW

    errors = np.empty(len(y))
    for fold in range(FOLDS):
        out = folds == fold
        bandwidth = Sel_BW(coordinates[~out], y[~out, None], Z[~out]).search()
        model = GWR(coordinates[~out], y[~out, None], Z[~out], bandwidth)
        errors[out] = y[out] - model.predict(coordinates[out], Z[out]).predictions.ravel()
    return _rms(errors)


def _our_errors(X, y, Z, folds, **arguments):
    """Return the errors of our predictions and of least squares on rows that were left out.

    Hyperparameters are searched on the rows that are kept. The share of y within 95% intervals
    is returned too.
    """
    mean, std, least = np.empty_like(y), np.empty_like(y), np.empty_like(y)
    for fold in range(FOLDS):
        out = folds == fold
        model, _ = _fit(X[~out], y[~out], Z[~out], **arguments)
        mean[out], std[out] = model.predict(X[out], Z[out], return_std=True)
        least[out] = Z[out] @ _least_squares(Z[~out], y[~out])
    return _held_out(y, mean, std, least)


def _beside_mgwr(data, multiscale):
    """Compare our model with GWR and MGWR on the same standardised rows.

    Held-out errors are by the same folds, in standard deviations of y.
    """
    _compiled("exact")
    y, covariates = _standardised(data)
    Z = np.column_stack([np.ones(len(y)), covariates])
    model, seconds = _fit(data.X, y, Z)
    weights = model.explain(data.X, Z)
    # The weight of a single row differs from the surface by sigma_w.
    surface_var = weights.weights_std**2 - model.hyperparameters_["sigma_w"] ** 2
    residual = y - model.predict(data.X, Z)
    alone, alone_seconds = _fit(data.X, y, Z, sigma_w=0)
    alone_residual = y - alone.predict(data.X, Z)
    theirs, surfaces = _gwr(data.X, y, covariates, multiscale)
    folds = _folds(len(y))
    correlation = {
        name: [
            float(np.corrcoef(weights.weights[:, k], surface[:, k])[0, 1])
            for k in range(Z.shape[1])
        ]
        for name, surface in surfaces.items()
    }
    return {
        "rows": len(y),
        "names": data.feature_names,
        "ours": {
            **_described(model, seconds, data.X),
            "r2": float(1 - np.mean(residual**2) / y.var()),
            "loo_rmse": _rms(model.leave_one_out()[0]),
            "coefficients": _summary(weights.weights),
            "deviations": weights.weights_std.mean(axis=0).tolist(),
            "surface_deviations": np.sqrt(surface_var).mean(axis=0).tolist(),
        },
        "surface_alone": {
            **_described(alone, alone_seconds, data.X),
            "r2": float(1 - np.mean(alone_residual**2) / y.var()),
            "loo_rmse": _rms(alone.leave_one_out()[0]),
            "cross_validated": _our_errors(data.X, y, Z, folds, sigma_w=0),
        },
        **theirs,
        "correlation": correlation,
        "cross_validated": {
            **_our_errors(data.X, y, Z, folds),
            "rmse_gwr": _gwr_errors(data.X, y, covariates, folds),
        },
    }


def georgia():
    from gpx_scale.datasets import load_georgia

    data = load_georgia()
    found = _beside_mgwr(data, multiscale=True)
    draw_georgia(data)
    return found


def berlin():
    from gpx_scale.datasets import load_berlin

    return _beside_mgwr(load_berlin(), multiscale=False)


def king_county():
    """Fit four fifths of the houses, and predict the others."""
    from gpx_scale.datasets import load_king_county

    _compiled("basis")
    data = load_king_county()
    out = np.random.RandomState(0).permutation(len(data.y)) < len(data.y) // 5
    X, y, Z = data.X[~out], data.y[~out], data.Z[~out]
    model, seconds = _fit(X, y, Z)
    (mean, std), answering = _timed(
        lambda: model.predict(data.X[out], data.Z[out], return_std=True)
    )
    draw_king_county(model, data, y, Z)
    return {
        "rows": len(y),
        "held_out": int(out.sum()),
        **_described(model, seconds, X),
        "seconds_predicting": answering,
        **_held_out(data.y[out], mean, std, data.Z[out] @ _least_squares(Z, y)),
        "noise": float(np.median(std)),
    }


def bike():
    """Forecast the last four weeks, and four weeks after each of six days.

    The hyperparameters for the six days come from the rows before the first. Weather is taken
    as measured.
    """
    from gpx_scale.datasets import load_bike

    _compiled("basis")
    data = load_bike()
    days = data.X[:, 0]
    last = np.floor(days[-1]) + 1 - 28
    model, seconds, fits = _fit_to_the_end(*_until(data, last))
    draw_bike(model, data, last)
    found = {
        "rows": int((days < last).sum()),
        "fits": fits,
        **_described(model, seconds, data.X[days < last]),
    }
    found["ahead"] = _ahead(model, data, last)
    found["ahead_of_residuals"] = _ahead_of_residuals(data, last)
    origins = [last - 28 * k for k in range(5, -1, -1)]
    first, *_ = _fit_to_the_end(*_until(data, origins[0]))
    several = [
        _ahead(_fit(*_until(data, at), optimizer=None, **first.hyperparameters_)[0], data, at)
        for at in origins
    ]
    found["origins"] = {
        h: {
            key: float(np.mean([one[h][key] for one in several]))
            for key in ("rmse", "rmse_ols", "coverage")
        }
        for h in several[0]
    }
    at, which = (
        np.array([-90.0, 0.0, 7.0, 28.0, 90.0, 365.0, 1e5]),
        data.feature_names.index("temperature"),
    )
    _, std = _path(model, *_until(data, last)[1:], (last + at)[:, None], which)
    found["growth"] = {
        f"{day:.0f}": float(value / std[-1]) for day, value in zip(at[:-1], std, strict=False)
    }
    return found


def _until(data, day):
    """Return the rows before a day."""
    before = data.X[:, 0] < day
    return data.X[before], data.y[before], data.Z[before]


def _ahead_of_residuals(data, origin):
    """Return the errors of a model of the residuals of least squares.

    Its forecasts return to constant coefficients instead of 0.
    """
    _, y, Z = _until(data, origin)
    left = data._replace(y=data.y - data.Z @ _least_squares(Z, y))
    return _ahead(_fit_to_the_end(*_until(left, origin))[0], left, origin)


def _ahead(model, data, origin):
    """Return the errors over the first 1, 7 and 28 days after the origin."""
    _, y, Z = _until(data, origin)
    least = _least_squares(Z, y)
    found = {}
    for horizon in HORIZONS:
        here = (data.X[:, 0] >= origin) & (data.X[:, 0] < origin + horizon)
        mean, std = model.predict(data.X[here], data.Z[here], return_std=True)
        found[str(horizon)] = _held_out(data.y[here], mean, std, data.Z[here] @ least)
    return found


def _maps(path, X, at, weights, std, reach, title, label, unit, size, dots, names):
    """Draw two maps of one coefficient: its value, and its standard deviation, up to `reach`
    from the nearest row.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patheffects import withStroke
    from scipy.spatial import cKDTree

    far = (cKDTree(X).query(np.column_stack([a.ravel() for a in at]))[0] > reach).reshape(
        at[0].shape
    )
    figure, axes = plt.subplots(1, 2, figsize=size, layout="constrained", sharex=True, sharey=True)
    panels = [(weights, "cividis", label), (std, "YlOrBr", "its standard deviation")]
    for side, (values, colours, name) in zip(axes, panels, strict=True):
        drawn = side.pcolormesh(
            *at, np.ma.masked_where(far, values), cmap=colours, shading="auto", rasterized=True
        )
        figure.colorbar(drawn, ax=side, label=unit, shrink=0.85)
        if dots:
            side.scatter(*X.T, s=dots, color="black", linewidths=0)
        for place, (east, north) in names.items():
            side.plot(east, north, "o", color="white", markeredgecolor="black", markersize=4)
            text = side.annotate(
                place, (east, north), textcoords="offset points", xytext=(5, 3), fontsize=8
            )
            text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
        side.set(title=name, aspect="equal", xlabel="km east")
    axes[0].set_ylabel("km north")
    figure.suptitle(title)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _lattice(X, margin, count):
    """Return a lattice of places around X."""
    low, high = X.min(axis=0) - margin, X.max(axis=0) + margin
    across = np.linspace(low[0], high[0], count)
    up = np.linspace(low[1], high[1], int(count * (high[1] - low[1]) / (high[0] - low[0])))
    return np.meshgrid(across, up)


def _surface(model, y, Z, at, column):
    """Return a coefficient over a lattice, and its standard deviation."""
    values, std = _path(model, y, Z, np.column_stack([a.ravel() for a in at]), column)
    return values.reshape(at[0].shape), std.reshape(at[0].shape)


def _path(model, y, Z, Xq, column):
    """Return a coefficient at queries, and its standard deviation without sigma_w.

    By sigma_w, the weight of a single row differs from the surface. y and Z are those that the
    model was fitted to.
    """
    found = model.explain(Xq, np.repeat(Z[:1], len(Xq), axis=0))
    own = model.hyperparameters_["sigma_w"] * y.std() / Z[:, column].std()
    return found.weights[:, column], np.sqrt(found.weights_std[:, column] ** 2 - own**2)


def draw_georgia(data):
    """Draw a coefficient in the units of the data, also between the counties."""
    X = (data.X - data.X.mean(axis=0)) / 1000
    model, _ = _fit(X, data.y, data.Z)
    at = _lattice(X, 20, 110)
    values, std = _surface(model, data.y, data.Z, at, data.feature_names.index("PctFB"))
    title = (
        "Georgia, 159 counties (dots): what a percentage point of foreign-born residents goes with"
    )
    unit = "points of bachelor's degrees per point"
    _maps(
        DOCS / "georgia.png",
        X,
        at,
        values,
        std,
        35,
        title,
        "coefficient of PctFB",
        unit,
        (10, 4.8),
        6,
        {},
    )


def draw_king_county(model, data, y, Z):
    """Draw the elasticity of price; y and Z are those that the model was fitted to."""
    X = data.X[data.X[:, 0] < 42]  # The mountains in the east have few sales.
    at = _lattice(X, 1, 160)
    values, std = _surface(model, y, Z, at, data.feature_names.index("log living area"))
    title = (
        "King County: elasticity of a house's price by its living area (within 1.5 km of a sale)"
    )
    names = {
        "Seattle": (-8.9, 5.1),
        "Bellevue": (0.9, 5.6),
        "Kent": (-1.6, -19.9),
        "Redmond": (6.9, 12.7),
    }
    unit = "% of price per % of area"
    _maps(
        DOCS / "king_county.png",
        X,
        at,
        values,
        std,
        1.5,
        title,
        "coefficient",
        unit,
        (10, 5),
        None,
        names,
    )


def draw_bike(model, data, last):
    """Draw the coefficient of temperature, through the forecast until it returns to the prior."""
    from datetime import date, timedelta

    import matplotlib.pyplot as plt

    start = date(2011, 1, 1)
    day = np.arange(0.0, last + 400, 2.0)
    _, y, Z = _until(data, last)
    mean, std = (
        100 * part
        for part in _path(model, y, Z, day[:, None], data.feature_names.index("temperature"))
    )
    when = [start + timedelta(days=int(d)) for d in day]
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    axes.fill_between(
        when,
        mean - DEVIATIONS_OF_95_PERCENT * std,
        mean + DEVIATIONS_OF_95_PERCENT * std,
        color="#56B4E9",
        alpha=0.4,
        lw=0,
        label="95% interval",
    )
    axes.plot(when, mean, color="#0072B2", label="coefficient of temperature")
    axes.axvline(
        start + timedelta(days=int(last)), color="#D55E00", ls="--", label="end of the data fitted"
    )
    axes.axhline(0, color="black", lw=0.6)
    axes.set(
        ylabel="rentals per degree C, log points x 100",
        title="Bicycle rentals by the hour: what a degree is worth",
    )
    axes.legend(frameon=False, loc="lower left")
    axes.grid(alpha=0.3)
    figure.savefig(DOCS / "bike.png", dpi=100)
    plt.close(figure)


CASES = {f.__name__: f for f in (georgia, berlin, king_county, bike)}


def _bandwidths(one):
    return ", ".join(f"{b:.0f}" for b in one["bandwidths"])


def _kilometres(one, unit=1):
    east, north = (length / unit for length in one["lengths"])
    return f"{east:.3g} km east, {north:.3g} km north"


def _mgwr_rows(name, r):
    """Return the rows of the table for a comparison with mgwr."""
    ours, fold, rows = r["ours"], r["cross_validated"], []
    head = f"{name}, {r['rows']:,} rows"
    alone = r["surface_alone"]
    for what, one in (("ours", ours), ("ours, sigma_w = 0", alone)):
        lengths = _kilometres(one, UNITS_PER_KILOMETRE[name])
        words = f"length scale {one['length']:.2f} ({lengths}), R^2 {one['r2']:.3f}, evidence "
        words += f"{one['evidence']:.1f}, {one['seconds']:.2f} s ({one['solver']})"
        rows.append((f"{head}: {what}", words, "", None))
    for peer in ("gwr", "mgwr"):
        if one := r.get(peer):
            words = f"bandwidths {_bandwidths(one)}, R^2 {one['r2']:.3f}, "
            words += f"AICc {one['aicc']:.1f}, {one['seconds']:.1f} s"
            rows.append((f"{head}: mgwr's {peer.upper()}", words, "", None))
    without = alone["cross_validated"]
    words = f"ours {fold['rmse']:.3f}, with sigma_w = 0 {without['rmse']:.3f}, "
    words += f"GWR {fold['rmse_gwr']:.3f}, "
    words += f"least squares {fold['rmse_ols']:.3f}"
    rows.append((f"{name}: RMSE by {FOLDS} folds, in deviations of y", words, "", None))
    words = f"{fold['coverage']:.1%}, with sigma_w = 0 {without['coverage']:.1%}"
    rows.append((f"{name}: y of the folds within 95% intervals", words, "", None))
    for k, feature in enumerate(r["names"]):
        (mean, _, low, high), std = ours["coefficients"][k], ours["surface_deviations"][k]
        words = f"ours {mean:.2f} ({low:.2f} to {high:.2f}), deviation {std:.2f}"
        for peer in ("gwr", "mgwr"):
            if one := r.get(peer):
                mean, _, low, high = one["coefficients"][k]
                words += f"; {peer.upper()} {mean:.2f} ({low:.2f} to {high:.2f}), "
                words += f"{one['deviations'][k]:.2f}, "
                words += f"correlation {r['correlation'][peer][k]:.2f}"
        rows.append(
            (
                f"{name}: coefficient of {'the constant' if feature == '1' else feature}",
                words,
                "",
                None,
            )
        )
    return rows


def summary(found):
    """Return the rows of the table from the numbers of the cases."""
    rows = []
    for name, case in (("Georgia", "georgia"), ("Berlin", "berlin")):
        if r := found.get(case):
            rows += _mgwr_rows(name, r)
    if r := found.get("king_county"):
        head = f"King County, {r['rows']:,} houses"
        words = f"length scale {r['length']:.2f} ({_kilometres(r)}), "
        words += f"{r['seconds']:.0f} s ({r['solver']}), "
        words += f"{r['memory'] / 1e9:.1f} GB"
        rows.append((f"{head}: fit", words, "", None))
        words = f"RMSE {r['rmse']:.3f}, R^2 {r['r2']:.3f}; "
        words += f"least squares {r['rmse_ols']:.3f}, {r['r2_ols']:.3f}"
        rows.append((f"King County, {r['held_out']:,} held out: log price", words, "", None))
        words = f"{r['coverage']:.1%}; predicted in {r['seconds_predicting']:.1f} s"
        rows.append(("King County: held-out log prices within 95% intervals", words, "", None))
    if r := found.get("bike"):
        state = "" if r["converged"] else ", search not converged"
        words = (
            f"length scale {r['lengths'][0]:.0f} days, {r['seconds']:.0f} s ({r['solver']}){state}"
        )
        rows.append((f"bicycles, {r['rows']:,} hours: fit", words, "", None))
        parts = {
            "the last four weeks": "ahead",
            "the same, on residuals": "ahead_of_residuals",
            "mean of six origins": "origins",
        }
        for what, ahead in ((what, r[key]) for what, key in parts.items()):
            for horizon, one in ahead.items():
                words = f"RMSE {one['rmse']:.3f}, least squares {one['rmse_ols']:.3f}; "
                words += f"{one['coverage']:.1%} within 95% intervals"
                rows.append(
                    (
                        f"bicycles, the first {horizon} days, {what}".replace("1 days", "day"),
                        words,
                        "",
                        None,
                    )
                )
        words = ", ".join(f"{value:.2f} at {day}" for day, value in r["growth"].items())
        rows.append(
            (
                "bicycles: deviation of temperature's weight / prior's, by days beyond the data",
                words,
                "",
                None,
            )
        )
    return rows


if __name__ == "__main__":
    run_cases(__file__, __doc__, CASES, summary, "spatial")
