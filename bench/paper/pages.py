"""Write the pages of docs/paper from scores: tables in Markdown and CSV, with our numbers
beside the paper's.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from protocol import DEFAULT
from published import COLUMNS, SIZES, TABLE, TIMES
from scipy.stats import ttest_rel
from scores import Scores, number, summary

BETTER = {"mse": min, "faithfulness": max, "stability": min}
TEMPLATE = Path(__file__).with_name("page.md")
# GPR does not explain, and the default is not one of the paper's methods.
NOT_COMPARED = {"mse": ("GPR", DEFAULT)} | dict.fromkeys(("faithfulness", "stability"), (DEFAULT,))
# The columns of our tables: those of the paper, and the model that `GPXRegressor()` chooses.
SHOWN = {measure: (*columns, DEFAULT) for measure, columns in COLUMNS.items()}


def bold(scores: Scores, measure: str, name: str, columns: tuple[str, ...]) -> set[str]:
    """Return the best method of a row, and those that a paired t-test at 5% does not
    distinguish from it.
    """
    known = {
        m: scores.by_split(name, m, measure)
        for m in columns
        if m not in NOT_COMPARED.get(measure, ())
    }
    known = {
        m: values
        for m, values in known.items()
        if values and not np.isnan(list(values.values())).any()
    }
    if not known:
        return set()
    best = BETTER[measure](known, key=lambda method: np.mean(list(known[method].values())))
    return {
        method for method, values in known.items() if method == best or _alike(values, known[best])
    }


def _alike(these: dict[int, float], those: dict[int, float]) -> bool:
    """Return whether a paired t-test does not distinguish two methods."""
    common = sorted(these.keys() & those.keys())
    a, b = (np.array([values[split] for split in common]) for values in (these, those))
    if len(common) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    apart = a - b
    if np.ptp(apart) <= 1e-9 * np.abs(apart).max():  # The test needs a variance.
        return not apart.any()
    return bool(ttest_rel(a, b).pvalue >= 0.05)


def apart(scores: Scores, measure: str, name: str, method: str) -> bool | None:
    """Return whether our mean is more than two of the paper's standard deviations from its
    mean.

    It is None if either is not known.
    """
    ours, paper = scores.of(name, method, measure), TABLE.get((measure, name, method))
    if not ours.size or not isinstance(paper, tuple):
        return None
    return bool(abs(ours.mean() - paper[0]) > 2 * paper[1])


def table(scores: Scores, measure: str) -> str:
    """Return a table with two lines per set: ours and the paper's.

    The best of ours is bold. A † marks what is more than two standard deviations from the
    paper's.
    """
    columns = SHOWN[measure]
    lines = [f"| | | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for name in SIZES:
        if (measure, name, columns[0]) not in TABLE:
            continue
        best = bold(scores, measure, name, columns)
        ours, theirs = [], []
        for method in columns:
            values, paper = scores.of(name, method, measure), TABLE.get((measure, name, method), "")
            text = f"**{summary(values)}**" if method in best else summary(values)
            ours.append(text + (" †" if apart(scores, measure, name, method) else ""))
            theirs.append(number(*paper) if isinstance(paper, tuple) else paper)
        lines += [f"| {name} | ours | {' | '.join(ours)} |", f"| | paper | {' | '.join(theirs)} |"]
    return "\n".join(lines)


def neighbours(scores: Scores) -> str:
    """Return a table of how many test rows have a neighbour, and of stability with half the
    radius.
    """
    lines = [
        "| | test rows with a neighbour | GPX at half the radius | paper |",
        "|---|---|---|---|",
    ]
    for name in SIZES:
        counted, half = (
            scores.of(name, "GPX", "with_neighbour"),
            scores.of(name, "GPX", "stability_half_epsilon"),
        )
        if counted.size:
            rows, known = scores.of(name, "GPX", "explained"), half[~np.isnan(half)]
            narrow = summary(known) if known.size else "none has one"
            paper = number(*TABLE["stability", name, "GPX"])
            lines.append(
                f"| {name} | {counted.mean():.0f} of {rows.mean():.0f} | {narrow} | {paper} |"
            )
    return "\n".join(lines)


def sampled(scores: Scores) -> str:
    """Return lines about the sets where LIME and SHAP explained only some test rows.

    They give the stability of GPX on the same rows.
    """
    lines = []
    for name in SIZES:
        ours = scores.of(name, "GPX", "stability_sampled")
        if ours.size:
            some, rows = (
                scores.of(name, "GPR+LIME", "explained"),
                scores.of(name, "GPX", "explained").mean(),
            )
            count, score = f"{some.mean():.0f}" if some.size else "some", summary(ours)
            lines.append(
                f"- {name}: LIME and SHAP explained {count} of {rows:.0f} test rows of each split; "
                f"on those GPX has {score}."
            )
    return "\n".join(lines)


def times(path: Path) -> str:
    """Return a table of seconds on Digits, ours beside the paper's, with ratios to GPX."""
    if not path.is_file():
        return "Not measured yet: `make paper`."
    with path.open(newline="") as lines:
        ours = {
            row["method"]: (float(row["training"]), float(row["prediction"]))
            for row in csv.DictReader(lines)
        }
    columns = [method for method in TIMES if method in ours]
    rows = [f"| | | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]

    def line(
        what: str,
        whose: str,
        of: dict[str, tuple[float, float]],
        value: Callable[[tuple[float, float]], float],
    ) -> None:
        """Add a line of the table."""
        rows.append(
            f"| {what} | {whose} | {' | '.join(f'{value(of[method]):.2f}' for method in columns)} |"
        )

    for what, value in (
        ("Training", lambda t: t[0]),
        ("Prediction", lambda t: t[1]),
        ("Total", sum),
    ):
        line(what, "ours", ours, value)
        line("", "paper", TIMES, value)
    line("Total / GPX's", "ours", ours, lambda t: sum(t) / sum(ours["GPX"]))
    line("", "paper", TIMES, lambda t: sum(t) / sum(TIMES["GPX"]))
    return "\n".join(rows)


def _deviation(values: np.ndarray) -> str:
    """Return the standard deviation as text, empty if a value is not finite."""
    return f"{values.std():.6g}" if np.isfinite(values).all() else ""


def write_tables(scores: Scores, folder: Path) -> None:
    """Write a CSV file for each table.

    It has means and standard deviations, ours and the paper's, and whether a method is bold.
    """
    for measure, columns in SHOWN.items():
        with (folder / f"{measure}.csv").open("w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(
                (
                    "set",
                    "method",
                    "splits",
                    "mean",
                    "sd",
                    "bold",
                    "paper_mean",
                    "paper_sd",
                    "beyond_2_sd",
                )
            )
            for name in SIZES:
                best = bold(scores, measure, name, columns)
                for method in columns:
                    values, paper = (
                        scores.of(name, method, measure),
                        TABLE.get((measure, name, method)),
                    )
                    if values.size:
                        theirs = paper if isinstance(paper, tuple) else (paper or "", "")
                        own = f"{values.mean():.6g}", _deviation(values), int(method in best)
                        far = apart(scores, measure, name, method)
                        writer.writerow(
                            (
                                name,
                                method,
                                values.size,
                                *own,
                                *theirs,
                                "" if far is None else int(far),
                            )
                        )


# Measure, set, method.
Cell = tuple[str, str, str]
Variants = dict[Cell, dict[str, float]]
# These have the settings of the tables, on fewer splits, and are therefore not variants.
SAME = {
    "length scale": ("theta2 at its best", "theta2 at its best, as in the tables"),
    "relevance": ("relevance", "relevance, absolute differences"),
    "scales": ("as in table 3",),
    "fusion": ("lambda1 = 1, Weber point",),
    "texts": ("as in the tables",),
}


def tried(rows: list[dict[str, str]]) -> Variants:
    """Return what every variant of the experiments gave for a cell of the tables.

    The settings of the tables themselves are not variants.
    """
    found: Variants = {}
    for row in rows:
        if row["variant"] not in SAME.get(row["experiment"], ()):
            variant = f"{row['experiment']}: {row['variant']}".replace("|", "\\|")
            found.setdefault((row["measure"], row["set"], row["method"]), {})[variant] = float(
                row["mean"]
            )
    return found


def marked(scores: Scores) -> dict[Cell, tuple[float, float]]:
    """Return the cells that are more than two standard deviations from the paper's, with the
    paper's numbers.
    """
    return {
        cell: paper
        for cell, paper in TABLE.items()
        if apart(scores, *cell) and isinstance(paper, tuple)
    }


def far(scores: Scores, variants: Variants) -> str:
    """Return a table of every marked cell.

    It says how far the cell is from the paper's number, and which variant comes nearest to it.
    """
    lines = [
        "| measure | set | method | ours | paper | off by | tried | nearest | gives | |",
        f"|{'---|' * 10}",
    ]
    for (measure, name, method), (mean, sd) in marked(scores).items():
        ours, known = scores.of(name, method, measure), variants.get((measure, name, method), {})
        known = {variant: value for variant, value in known.items() if np.isfinite(value)}
        cells = [
            measure,
            name,
            method,
            summary(ours),
            number(mean, sd),
            _signed((ours.mean() - mean) / sd),
            str(len(known)),
        ]
        if known:
            nearest = min(known, key=lambda variant: abs(known[variant] - mean))
            reached = _how_near(known[nearest], ours.mean(), mean, sd)
            cells += [nearest, number(known[nearest]), reached]
        else:
            cells += ["", "", "not tried"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _how_near(value: float, ours: float, mean: float, sd: float) -> str:
    """Say whether a variant reaches the paper's number."""
    if abs(value - mean) <= 2 * sd:
        return "**reached**"
    return "nearer" if abs(value - mean) <= 0.5 * abs(ours - mean) else "not explained"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def reached(scores: Scores, variants: Variants) -> str:
    """Return a table of what each variant reaches and loses.

    Among the marked cells that it was tried on, it counts those that it brings within two
    standard deviations. Among the others, it counts those that it takes out of them.
    """
    counts: dict[str, list[int]] = {}
    for cell, known in variants.items():
        paper, far_off = TABLE.get(cell), apart(scores, *cell)
        if far_off is None or not isinstance(paper, tuple):
            continue
        for variant, value in known.items():
            count = counts.setdefault(variant, [0, 0, 0, 0])
            inside = abs(value - paper[0]) <= 2 * paper[1]
            count[0 if far_off else 2] += 1
            count[1 if far_off else 3] += inside == far_off
    lines = ["| variant | reaches, of the marked cells | loses, of the others |", "|---|---|---|"]
    for variant, (cells, gained, others, lost) in sorted(
        counts.items(), key=lambda one: (-one[1][1] + one[1][3], one[0])
    ):
        if gained:
            lines.append(f"| {variant} | {gained} of {cells} | {lost} of {others} |")
    return "\n".join(lines)


def by_ranks(rows: list[dict[str, str]]) -> str:
    """Return faithfulness by ranks, where the authors' search ends from the median, beside the
    paper's.

    Bold numbers are within two standard deviations.
    """
    found = {
        (row["set"], row["method"]): float(row["mean"])
        for row in rows
        if row["variant"] == "from the median, by ranks"
    }
    lines = []
    for name in dict.fromkeys(name for name, _ in found):
        cells = []
        for method in ("GPX", "GPR+LIME", "GPR+SHAP"):
            value, (mean, sd) = found.get((name, method)), TABLE["faithfulness", name, method]
            mark = "**" if value is not None and abs(value - mean) <= 2 * sd else ""
            cells.append(
                f"{mark}{'-' if value is None else number(value)}{mark} / {number(mean, sd)}"
            )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def counted(scores: Scores, variants: Variants) -> str:
    """Say how many cells are marked, and how many of them a variant explains."""
    lines = [line.rsplit("|", 2)[1].strip() for line in far(scores, variants).splitlines()[2:]]
    words = {
        "**reached**": "reached by a variant",
        "nearer": "half the way or more",
        "not explained": "not explained",
    }
    parts = [
        f"{lines.count(key)} {text}"
        for key, text in (words | {"not tried": "not tried"}).items()
        if key in lines
    ]
    known = sum(apart(scores, *cell) is not None for cell in TABLE)
    return f"{len(lines)} of {known} cells are marked: {', '.join(parts)}."


def page(scores: Scores, folder: Path, rows: list[dict[str, str]]) -> str:
    """Return docs/paper/index.md: page.md with its tables."""
    filled = {measure: table(scores, measure) for measure in COLUMNS}
    found = tried(rows)
    filled |= {
        "far": far(scores, found),
        "reached": reached(scores, found),
        "counted": counted(scores, found),
        "neighbours": neighbours(scores),
        "sampled": sampled(scores),
        "by_ranks": by_ranks(rows),
        "times": times(folder / "times.csv"),
    }
    return re.sub(r"\{\{(.*?)\}\}", lambda mark: filled[mark[1]], TEMPLATE.read_text())
