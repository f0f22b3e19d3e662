"""Seconds of complete fits against rows: the picture and the table at the head of docs/scaling.md.

`make bench CASE=search` keeps what it measures in results/fits.json and draws the picture, and
`make tables` writes the table. Lines are what the planner predicts from committed rates, for two
cores and, as a projection, for sixteen. Points are measured.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gpx_scale import make_plan
from gpx_scale.errors import GPXError
from gpx_scale.runtime.memory import format_bytes
from measure import RESULTS

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "seconds_against_rows.png"
COLUMNS = 10
MEMORY = {2: "24GB", 16: "64GB"}
# These are the colours of Okabe and Ito.
COLOURS = {
    "exact": "#000000",
    "cg": "#0072B2",
    "neighbors": "#E69F00",
    "inducing": "#D55E00",
    "basis": "#009E73",
}
TABLE_ROWS = (1_000, 5_000, 10_000, 20_000, 30_000, 50_000, 100_000, 1_000_000)


def keep(name, found):
    """Keep the seconds of a measured fit."""
    path = RESULTS / "fits.json"
    fits = json.loads(path.read_text()) if path.is_file() else {}
    fits[name] = {key: found[key] for key in ("rows", "solver", "dtype", "fitted", "planned")}
    path.write_text(json.dumps(fits, indent=1) + "\n")


def measured():
    """Return the measured fits that a line of the picture predicts.

    Those are fits of dense features with the usual settings.
    """
    path = RESULTS / "fits.json"
    fits = json.loads(path.read_text()) if path.is_file() else {}
    usual = ("synth", "kin40k")
    asked = ("search_rows", "points")
    return [
        fit
        for name, fit in fits.items()
        if name.startswith(usual) and not any(word in name for word in asked)
    ]


def predicted(n, columns, cores, **asked):
    """Return the plan of a fit, or None if it needs more memory than there is."""
    try:
        return make_plan(n, columns, COLUMNS, memory_limit=MEMORY[cores], n_jobs=cores, **asked)
    except GPXError:
        return None


def in_words(seconds):
    """Return seconds with two digits."""
    return f"{float(f'{seconds:.2g}'):g}"


def draw(path=PICTURE):
    """Draw seconds against rows for every solver, predicted and measured."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5.4), layout="constrained")
    sizes = np.unique(np.logspace(3, 6, 40).astype(int))
    for solver, colour in COLOURS.items():
        for cores, line in ((2, "-"), (16, "--")):
            columns = 2 if solver == "basis" else COLUMNS
            plans = [(n, predicted(n, columns, cores, solver=solver)) for n in sizes.tolist()]
            known = [(n, plan.seconds) for n, plan in plans if plan is not None and plan.seconds]
            if known:
                label = f"{solver}, {cores} cores" + ("" if cores == 2 else " (projected)")
                axes.plot(*zip(*known, strict=True), line, color=colour, label=label)
        points = [(fit["rows"], fit["fitted"]) for fit in measured() if fit["solver"] == solver]
        if points:
            axes.plot(
                *zip(*points, strict=True), "o", color=colour, markeredgecolor="white", zorder=3
            )
    axes.axhline(600, color="#999999", linewidth=1)
    axes.text(1_050, 660, 'ten minutes, the patience of "auto"', color="#666666", fontsize=8)
    axes.set(
        xscale="log",
        yscale="log",
        ylim=(0.2, 5_000),
        xlabel="rows",
        ylabel="seconds of a complete fit",
        title="Lines are predicted, points are measured with two cores",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def markdown():
    """Return the table of rows, cores, memory and seconds, by the solver that "auto" takes."""
    lines = [
        "| rows | 2 cores: solver | memory | seconds, predicted | measured | "
        "16 cores: solver | memory | seconds, projected |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n in TABLE_ROWS:
        cells = [f"{n:,}"]
        for cores in (2, 16):
            plan = predicted(n, COLUMNS, cores)
            precision = np.dtype(plan.dtype).name
            name = f"`{plan.solver}`" + (f", {precision}" if plan.solver == "exact" else "")
            cells += [name, format_bytes(plan.bytes_needed), in_words(plan.seconds)]
            if cores == 2:
                same = (
                    fit for fit in measured() if (fit["rows"], fit["solver"]) == (n, plan.solver)
                )
                seconds = min((fit["fitted"] for fit in same), default=None)
                cells.append("" if seconds is None else in_words(seconds))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
