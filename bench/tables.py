"""Write docs/measured.md and the tables of README and of guides from the last bench runs: `make tables`."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import scaling
from measure import RESULTS
from peers.table import markdown

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "engine": (
        "The engine beside LAPACK and numpy",
        "make bench`, 20,000 rows: `make bench CASE=full",
    ),
    "large": (
        "Tens of thousands of rows beside GPyTorch: the iterative solver",
        "make bench CASE=large",
    ),
    "inducing": (
        "Inducing points beside GPyTorch's SGPR, a million rows, Dask",
        "make bench CASE=inducing",
    ),
    "varying": ("Varying coefficients beside GPBoost and mgwr", "make bench CASE=varying"),
    "doors": ("What people look at, hand on and keep", "make bench CASE=doors"),
    "spatial": ("Coefficients over space and time, on real data", "make bench CASE=varying"),
    "text": ("Bags of words", "make bench CASE=text"),
    "peers": ("Beside other packages", "make bench CASE=peers"),
    "accuracy": ("Accuracy as in the paper: standardised, five 80/20 splits", "make paper"),
}
PAPER = Path(__file__).resolve().parents[1] / "docs" / "paper"
INTRODUCTION = """# Measured

On two cores of a shared, noisy machine. What counts is the ratio of two things measured in turn within one run. This page is
written by `make tables` from the results of the commands named in it. The longer ones are not run for every change; their
dates are beside them. Cost against rows is in [scaling](scaling.md).
"""


def table(rows):
    lines = ["| what | measured | target | |", "|---|---|---|---|"]
    state = {None: "", True: "met", False: "not met"}
    lines += [
        f"| {row['what']} | {row['measured']} | {row['target']} | {state[row['met']]} |"
        for row in rows
    ]
    return "\n".join(lines)


def main():
    results = {
        name: json.loads((RESULTS / f"{name}.json").read_text())
        for name in PAGES
        if name != "accuracy"
    }
    results["accuracy"] = accuracy()
    parts = [INTRODUCTION]
    for name, (title, command) in PAGES.items():
        dates = {row.get("date") for row in results[name]} - {None}
        when = f", {' to '.join(dict.fromkeys((min(dates), max(dates))))}" if dates else ""
        parts.append(f"## {title}\n\n`{command}`{when}\n\n{table(results[name])}\n")
    (ROOT / "docs" / "measured.md").write_text("\n".join(parts))
    beside = markdown(json.loads((RESULTS / "peers_tasks.json").read_text()))
    fill(
        ROOT / "README.md",
        [row for row in results["engine"] if row["target"]] + results["accuracy"],
    )
    fill(ROOT / "docs" / "scaling.md", results["large"] + results["inducing"] + results["varying"])
    for page in (ROOT / "README.md", ROOT / "docs" / "scaling.md"):
        between(page, "peers", beside)
    between(
        ROOT / "docs" / "scaling.md",
        "scaling",
        scaling.markdown(json.loads((RESULTS / "scaling.json").read_text())),
    )
    fill(ROOT / "docs" / "text.md", results["text"])
    over_time = [row["what"].startswith("bicycles") for row in results["spatial"]]
    for page, wanted in (("spatial", False), ("time", True)):
        fill(
            ROOT / "docs" / f"{page}.md",
            [
                row
                for row, time in zip(results["spatial"], over_time, strict=True)
                if time == wanted
            ],
        )


def accuracy():
    """GPX's errors beside the paper's, of its six tables of numbers."""
    with (PAPER / "mse.csv").open(newline="") as lines:
        found = [
            row
            for row in csv.DictReader(lines)
            if row["method"] == "GPX" and row["set"] not in ("Paper", "Drug")
        ]
    return [
        {
            "what": f"{row['set']}: MSE of GPX, {row['splits']} splits",
            "measured": f"{float(row['mean']):.3f} ± {float(row['sd']):.3f}",
            "target": f"{float(row['paper_mean']):.3f} ± 2 x {float(row['paper_sd']):.3f}, the paper's",
            "met": row["beyond_2_sd"] == "0",
        }
        for row in found
    ]


def fill(path, rows):
    between(path, "measured", table(rows))


def between(path, name, text):
    """Put a text between the two marks of that name, of which a page has one pair."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    filled, count = marked.subn(lambda marks: f"{marks[1]}{text}\n{marks[2]}", path.read_text())
    if count != 1:
        raise ValueError(
            f"{path} has {count} places between <!-- {name} --> and <!-- end of {name} -->; needed: one"
        )
    path.write_text(filled)


if __name__ == "__main__":
    main()
