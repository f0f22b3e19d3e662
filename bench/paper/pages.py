"""From scores to the pages of docs/paper: Markdown and CSV tables, ours beside the paper's."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from published import COLUMNS, SIZES, TABLE, TIMES
from scipy.stats import ttest_rel
from scores import Scores, number, summary

BETTER = {"mse": min, "faithfulness": max, "stability": min}
# experiment: columns, and which of the paper's numbers stands beside a set's column
SHOWN: dict[str, tuple[tuple[str, ...], Callable[[str, str], tuple[str, str, str]]]] = {
    "fusion": (("mse", "faithfulness", "stability"), lambda name, column: (column, name, "Network")),
    "length scale": (
        ("GPX", "GPR+LIME", "GPR+SHAP", "KL", "ARD", "nats"),
        lambda name, column: ("faithfulness", name, column),
    ),
    "relevance": (("ARD", "KL"), lambda name, column: ("faithfulness", name, column)),
    "agnostic": (("GPR+LIME", "GPR+SHAP"), lambda name, column: ("faithfulness", name, column)),
    "scales": (("stability",), lambda name, column: (column, name, "GPX")),
}
# (measure, set, method), "|" between several: what an experiment has shown for that very cell; others are not explained
WHY = {
    ("faithfulness|stability", "Diabetes|Boston|Fish", "Network"): "tried: near the paper's where weights are not fused",
    ("faithfulness", "Diabetes|Fish", "GPX"): "tried: the paper's with theta2 at the median",
    ("faithfulness", "Diabetes", "GPR+LIME"): "tried: the paper's with theta2 at the median",
    ("faithfulness", "Diabetes", "GPR+SHAP"): "tried: near the paper's with one centre as background",
    ("stability", "Digits|Boston", "GPX"): "tried: the paper's at half the radius",
}
TEMPLATE = Path(__file__).with_name("page.md")
NOT_COMPARED = {"mse": ("GPR",)}


def bold(scores: Scores, measure: str, name: str, columns: tuple[str, ...]) -> set[str]:
    """The best method of a row, and those that a paired t-test at 5% does not tell from it."""
    known = {m: scores.by_split(name, m, measure) for m in columns if m not in NOT_COMPARED.get(measure, ())}
    known = {m: values for m, values in known.items() if values and not np.isnan(list(values.values())).any()}
    if not known:
        return set()
    best = BETTER[measure](known, key=lambda method: np.mean(list(known[method].values())))
    return {method for method, values in known.items() if method == best or _alike(values, known[best])}


def _alike(these: dict[int, float], those: dict[int, float]) -> bool:
    common = sorted(these.keys() & those.keys())
    a, b = (np.array([values[split] for split in common]) for values in (these, those))
    if len(common) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    apart = a - b
    if np.ptp(apart) <= 1e-9 * np.abs(apart).max():  # the test has no variance to go by
        return not apart.any()
    return bool(ttest_rel(a, b).pvalue >= 0.05)


def apart(scores: Scores, measure: str, name: str, method: str) -> bool | None:
    """Whether our mean is more than two of the paper's deviations from its mean; None where either is not known."""
    ours, paper = scores.of(name, method, measure), TABLE.get((measure, name, method))
    if not ours.size or not isinstance(paper, tuple):
        return None
    return bool(abs(ours.mean() - paper[0]) > 2 * paper[1])


def table(scores: Scores, measure: str) -> str:
    """Two lines a set: ours, with the best in bold and † where it is more than two deviations from the paper's, and theirs."""
    columns = COLUMNS[measure]
    lines = [f"| | | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for name in SIZES:
        if (measure, name, columns[0]) not in TABLE:
            continue
        best = bold(scores, measure, name, columns)
        ours, theirs = [], []
        for method in columns:
            values, paper = scores.of(name, method, measure), TABLE[measure, name, method]
            text = f"**{summary(values)}**" if method in best else summary(values)
            ours.append(text + (" †" if apart(scores, measure, name, method) else ""))
            theirs.append(number(*paper) if isinstance(paper, tuple) else paper)
        lines += [f"| {name} | ours | {' | '.join(ours)} |", f"| | paper | {' | '.join(theirs)} |"]
    return "\n".join(lines)


def neighbours(scores: Scores) -> str:
    """How many test rows have a neighbour, and what half the radius gives."""
    lines = ["| | test rows with a neighbour | GPX at half the radius | paper |", "|---|---|---|---|"]
    for name in SIZES:
        counted, half = scores.of(name, "GPX", "with_neighbour"), scores.of(name, "GPX", "stability_half_epsilon")
        if counted.size:
            rows, known = scores.of(name, "GPX", "explained"), half[~np.isnan(half)]
            narrow = summary(known) if known.size else "none has one"
            paper = number(*TABLE["stability", name, "GPX"])
            lines.append(f"| {name} | {counted.mean():.0f} of {rows.mean():.0f} | {narrow} | {paper} |")
    return "\n".join(lines)


def sampled(scores: Scores) -> str:
    """Of sets where LIME and SHAP explained some test rows: the others' stability on the same."""
    lines = []
    for name in SIZES:
        ours = scores.of(name, "GPX", "stability_sampled")
        if ours.size:
            some, rows = scores.of(name, "GPR+LIME", "explained"), scores.of(name, "GPX", "explained").mean()
            count, score = f"{some.mean():.0f}" if some.size else "some", summary(ours)
            lines.append(
                f"- {name}: LIME and SHAP explained {count} of {rows:.0f} test rows of each split; on those GPX has {score}."
            )
    return "\n".join(lines)


def times(path: Path) -> str:
    """Seconds on Digits, ours beside the paper's; ratios to GPX."""
    if not path.is_file():
        return "Not measured yet: `make paper`."
    with path.open(newline="") as lines:
        ours = {row["method"]: (float(row["training"]), float(row["prediction"])) for row in csv.DictReader(lines)}
    columns = [method for method in TIMES if method in ours]
    rows = [f"| | | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]

    def line(what: str, whose: str, of: dict[str, tuple[float, float]], value: Callable[[tuple[float, float]], float]) -> None:
        rows.append(f"| {what} | {whose} | {' | '.join(f'{value(of[method]):.2f}' for method in columns)} |")

    for what, value in (("Training", lambda t: t[0]), ("Prediction", lambda t: t[1]), ("Total", sum)):
        line(what, "ours", ours, value)
        line("", "paper", TIMES, value)
    line("Total / GPX's", "ours", ours, lambda t: sum(t) / sum(ours["GPX"]))
    line("", "paper", TIMES, lambda t: sum(t) / sum(TIMES["GPX"]))
    return "\n".join(rows)


def _deviation(values: np.ndarray) -> str:
    return f"{values.std():.6g}" if np.isfinite(values).all() else ""


def write_tables(scores: Scores, folder: Path) -> None:
    """A CSV file of each table: mean and deviation, ours and the paper's, and whether the best is told from it."""
    for measure, columns in COLUMNS.items():
        with (folder / f"{measure}.csv").open("w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(("set", "method", "splits", "mean", "sd", "bold", "paper_mean", "paper_sd", "beyond_2_sd"))
            for name in SIZES:
                best = bold(scores, measure, name, columns)
                for method in columns:
                    values, paper = scores.of(name, method, measure), TABLE.get((measure, name, method))
                    if values.size:
                        theirs = paper if isinstance(paper, tuple) else (paper or "", "")
                        own = f"{values.mean():.6g}", _deviation(values), int(method in best)
                        far = apart(scores, measure, name, method)
                        writer.writerow((name, method, values.size, *own, *theirs, "" if far is None else int(far)))


def far(scores: Scores) -> str:
    """Every cell that is marked, with how far it is, and what is known of why."""
    lines = ["| measure | set | method | ours | paper | in its deviations | why |", "|---|---|---|---|---|---|---|"]
    for (measure, name, method), paper in TABLE.items():
        if apart(scores, measure, name, method) and isinstance(paper, tuple):
            ours = scores.of(name, method, measure)
            distance = f"{(ours.mean() - paper[0]) / paper[1]:+.1f}".replace("-", "−")
            why = next((text for match, text in WHY.items() if _matches(match, measure, name, method)), "not explained")
            cells = measure, name, method, summary(ours), number(*paper), distance, why
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _matches(match: tuple[str, str, str], *cell: str) -> bool:
    return all(own in part.split("|") for part, own in zip(match, cell, strict=True))


def variants(rows: list[dict[str, str]], experiment: str) -> str:
    """What the variants of an experiment gave, a line each, and below a set's the paper's own numbers."""
    columns, beside = SHOWN[experiment]
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        if row["experiment"] == experiment:
            cell = number(float(row["mean"]), float(row["sd"]) if row["sd"] else None)
            found.setdefault(row["set"], {}).setdefault(row["variant"], {})[row["measure"]] = cell
    lines = [f"| | | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for name, tried in found.items():
        for i, (variant, values) in enumerate(tried.items()):
            lines.append(f"| {'' if i else name} | {variant} | {' | '.join(values.get(c, '') for c in columns)} |")
        paper = [TABLE.get(beside(name, column), "") for column in columns]
        lines.append(f"| | *paper* | {' | '.join(number(*p) if isinstance(p, tuple) else p for p in paper)} |")
    return "\n".join(lines)


def page(scores: Scores, folder: Path, tried: list[dict[str, str]]) -> str:
    """docs/paper/index.md: page.md with its tables."""
    filled = {measure: table(scores, measure) for measure in COLUMNS}
    filled |= {
        "far": far(scores),
        "neighbours": neighbours(scores),
        "sampled": sampled(scores),
        "times": times(folder / "times.csv"),
    }
    filled |= {experiment: variants(tried, experiment) for experiment in SHOWN}
    return re.sub(r"\{\{(.*?)\}\}", lambda mark: filled[mark[1]], TEMPLATE.read_text())
