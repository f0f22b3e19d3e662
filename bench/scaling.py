"""Time and memory against n for each solver with one and two threads: `make bench CASE=scaling`.

It takes about seven minutes on two idle cores. `python bench/scaling.py NAME ...` measures
some series and leaves the results of the others. Rounds go to results/scaling.json, from which
`make tables` writes docs/scaling.md; `draw` makes the picture of that page. `--smoke FOLDER`
measures tiny sizes and writes to that folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import machine
from measure import RESULTS, peak_bytes, seconds
from test_suite import Case, once, prepared

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "scaling.png"
STYLE = {
    "marker": "o",
    "markersize": 5,
    "markeredgecolor": "black",
    "markeredgewidth": 0.5,
    "linewidth": 1.6,
}
# A size is measured for about this long, by a number of rounds between two bounds.
SECONDS_PER_SIZE = 4.0
FEWEST_ROUNDS = 3
MOST_ROUNDS = 7


@dataclass(frozen=True)
class Series:
    """A case that is measured at several numbers of rows, with the cost that theory gives and
    a colour.
    """

    label: str
    case: Case
    sizes: tuple[int, ...]
    theory: str
    colour: str  # These are the colours of Okabe and Ito.
    tiny: tuple[int, ...] = (300, 600)


SERIES = {
    "exact": Series(
        "`exact`: evidence with gradient",
        Case("evidence", "exact", 0),
        (1000, 1400, 2000, 2800, 4000, 5600),
        "n^3",
        "#000000",
    ),
    "cg": Series(
        "`cg`: evidence with gradient",
        Case("evidence", "cg", 0),
        (2000, 4000, 8000, 16_000),
        "n^2 and iterations",
        "#0072B2",
    ),
    "cg_product": Series(
        "`cg`: product of 16 vectors, tiles stored",
        Case("product", "cg", 0, dtype="float32"),
        (4000, 8000, 16_000, 32_000),
        "n^2",
        "#56B4E9",
    ),
    "cg_recomputed": Series(
        "`cg`: product of 16 vectors, tiles recomputed",
        Case("product", "cg_recomputed", 0, dtype="float32"),
        (4000, 8000, 16_000),
        "n^2",
        "#CC79A7",
    ),
    "cg_pairs": Series(
        "`cg`: product of 16 vectors, sparse Z (1% of 2,000 words)",
        Case("product", "cg_pairs", 0, d=2000, density=0.01, dtype="float32"),
        (4000, 8000, 16_000),
        "n^2",
        "#E69F00",
    ),
    "inducing": Series(
        "`inducing`: evidence with gradient, 500 points",
        Case("evidence", "inducing", 0, points=500),
        (10_000, 20_000, 40_000, 80_000),
        "n",
        "#D55E00",
        (1000, 2000),
    ),
    "basis": Series(
        "`basis`: the pass over the rows",
        Case("pass", "basis", 0, d=5),
        (25_000, 50_000, 100_000, 200_000),
        "n",
        "#009E73",
        (2000, 4000),
    ),
    "grid": Series(
        "`grid`: product of 16 vectors",
        Case("product", "grid", 0, d=5, dtype="float32"),
        (20_000, 40_000, 80_000, 160_000),
        "n",
        "#F0E442",
        (2000, 4000),
    ),
}


def measure(series, sizes):
    """Return {n: {"1": [seconds], "2": [seconds], "memory": bytes}}.

    The memory is that of the largest number of threads.
    """
    found = {}
    for n in sizes:
        one = found[str(n)] = {}
        for jobs in machine.usable_threads():
            case = replace(series.case, n=n, threads=jobs)
            one[str(jobs)] = rounds_of(case)
        one["memory"] = peak_bytes(partial(once, case))
        print(series.label, n, one, flush=True)
    return found


def rounds_of(case):
    """Return the seconds of several rounds of a case."""
    with prepared(case) as job:
        usual = seconds(job.run)  # The first run compiles and chooses pivots.
        rounds = int(np.clip(SECONDS_PER_SIZE / usual, FEWEST_ROUNDS, MOST_ROUNDS))
        return [float(f"{seconds(job.run):.4g}") for _ in range(rounds)]


def run(names, path, tiny=False):
    """Measure series, and return their results with the earlier results of the others.

    The limits of the machine are measured before and after.
    """
    kept = json.loads(path.read_text()) if path.is_file() else {}
    small = {"gemm": 200, "potrf": 200, "copied": 2**22} if tiny else {}
    start = machine.limits(**small)
    for name in names:
        series = SERIES[name]
        sizes = series.tiny if tiny else series.sizes
        kept[name] = {
            "limits": {"start": start},
            "machine": machine.description(),
            "sizes": measure(series, sizes),
        }
        path.write_text(json.dumps(kept, indent=1) + "\n")
    end = machine.limits(**small)
    for name in names:
        kept[name]["limits"] |= {"end": end, "apart": machine.apart(start, end)}
    kept = {name: kept[name] for name in SERIES if name in kept}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def medians(sizes, jobs):
    """Return n and the median seconds as two arrays."""
    pairs = [(int(n), statistics.median(one[jobs])) for n, one in sizes.items() if jobs in one]
    return tuple(np.array(pairs, dtype=float).T)


def exponent(n, values):
    """Return the slope of log values against log n, and its standard error, which is NaN for
    two sizes.
    """
    x, y = np.log(n), np.log(values)
    slope, height = np.polyfit(x, y, 1)
    left = np.square(y - slope * x - height).sum()
    free = len(x) - 2
    return slope, float(
        np.sqrt(left / free / np.square(x - x.mean()).sum())
    ) if free > 0 else float("nan")


def markdown(found):
    """Return the tables of the page: time and memory."""
    return "\n".join([_state(found), "", *_cost(found), "", *_memory(found)])


def _state(found):
    """Describe the limits of the machine, and how much these changed during the run."""
    first = next(iter(found.values()))
    limits = first["limits"]
    rates = [
        f"dgemm {one['dgemm']:.0f} GFLOP/s, dpotrf {one['dpotrf']:.0f}, "
        f"copy {one['copy']:.0f} GB/s with {jobs}"
        for jobs, one in machine.both(limits["start"], limits["end"]).items()
    ]
    apart = max(one["limits"]["apart"] for one in found.values())
    words = f"Limits by threads: {'; '.join(rates)}. "
    words += f"Measured before and after, these were at most {apart:.0%} apart"
    if apart > machine.MAX_DRIFT:
        words += f", which is more than the {machine.MAX_DRIFT:.0%} of an undisturbed run"
    return words + "."


def _cost(found):
    """Yield the lines of the table of times."""
    yield (
        "| what | rows | seconds, 1 thread | seconds, 2 threads | 2 threads gain "
        "| cost, measured | in theory |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, one in found.items():
        series, sizes = SERIES[name], one["sizes"]
        most = max(jobs for jobs in next(iter(sizes.values())) if jobs.isdigit())
        slope, error = exponent(*medians(sizes, most))
        n, alone = medians(sizes, "1")
        several = medians(sizes, most)[1]
        rows = f"{n[0]:,.0f} to {n[-1]:,.0f}"
        gain = f"{alone[-1] / several[-1]:.2f}" if most != "1" else ""
        shown = f"{_short(several[0])} to {_short(several[-1])}" if most != "1" else ""
        cells = [series.label, rows, f"{_short(alone[0])} to {_short(alone[-1])}", shown, gain]
        yield (
            "| "
            + " | ".join(
                [
                    *cells,
                    f"n^{slope:.2f}" + (f" ± {error:.2f}" if error == error else ""),
                    series.theory,
                ]
            )
            + " |"
        )


def _memory(found):
    """Yield the lines of the table of memory."""
    yield "| what it allocates at most | rows | memory | grows as |"
    yield "|---|---|---|---|"
    for name, one in found.items():
        n, peaks = np.array(
            [(int(n), at["memory"]) for n, at in one["sizes"].items()], dtype=float
        ).T
        slope, _ = exponent(n, peaks)
        yield (
            f"| {SERIES[name].label} | {n[0]:,.0f} to {n[-1]:,.0f} "
            f"| {peaks[0] / 2**20:,.1f} to {peaks[-1] / 2**20:,.1f} MiB "
            f"| n^{slope:.2f} |"
        )


def _short(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def draw(found, path=PICTURE):
    """Draw time and memory against n, with the exponents in the legend."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for name, one in found.items():
        series, sizes = SERIES[name], one["sizes"]
        label, threads = (
            series.label.replace("`", ""),
            sorted(jobs for jobs in next(iter(sizes.values())) if jobs.isdigit()),
        )
        for jobs in threads:
            n, took = medians(sizes, jobs)
            shown = f"{label}: $n^{{{exponent(n, took)[0]:.2f}}}$" if jobs == threads[-1] else None
            left.plot(
                n,
                took,
                color=series.colour,
                label=shown,
                linestyle="-" if jobs == threads[-1] else ":",
                **STYLE,
            )
        peaks = [at["memory"] / 2**30 for at in sizes.values()]
        right.plot([int(n) for n in sizes], peaks, color=series.colour, **STYLE)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="rows n",
        ylabel="seconds (dotted: one thread)",
        title="Time",
    )
    right.set(
        xscale="log", yscale="log", xlabel="rows n", ylabel="GiB allocated at most", title="Memory"
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"series to measure, all by default: {', '.join(SERIES)}",
    )
    parser.add_argument(
        "--smoke",
        type=Path,
        metavar="FOLDER",
        help="measure tiny sizes, and write everything to this folder",
    )
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(SERIES):
        parser.error(
            f"There is no series {', '.join(sorted(unknown))}. There are {', '.join(SERIES)}."
        )
    folder = asked.smoke or RESULTS
    folder.mkdir(exist_ok=True)
    found = run(asked.names or list(SERIES), folder / "scaling.json", tiny=asked.smoke is not None)
    draw(found, asked.smoke / "scaling.png" if asked.smoke else PICTURE)
    print(markdown(found))


if __name__ == "__main__":
    main()
