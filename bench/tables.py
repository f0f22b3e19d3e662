"""Write the tables of docs/measured.md and docs/scaling.md from the last bench runs: `make tables`.

The prose of both pages is theirs; only what stands between two marks, such as <!-- engine --> and
<!-- end of engine -->, is written here.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import default
import fits
import scaling
from measure import RESULTS
from peers.table import USUAL_TARGET, markdown

ROOT = Path(__file__).resolve().parents[1]
PAPER = ROOT / "docs" / "paper"
MEASURED = ROOT / "docs" / "measured.md"
SCALING = ROOT / "docs" / "scaling.md"
# The results that docs/measured.md shows line by line, by the name of their marks.
LISTED = {
    "engine": "engine",
    "tiles": "tiles",
    "search": "search",
    "large": "large",
    "inducing": "inducing",
    "neighbors": "neighbors",
    "varying": "varying",
    "spatial": "spatial",
    "text": "text",
    "weights": "weights",
    "saved models": "doors",
}


def read(name):
    """Return the results of one bench as the last run left them."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(rows):
    """Return rows as a Markdown table, without columns of targets if no row has a target."""
    if not any(row["target"] for row in rows):
        lines = ["| quantity | measured |", "|---|---|"]
        return "\n".join(lines + [f"| {row['what']} | {row['measured']} |" for row in rows])
    lines = ["| quantity | measured | target | |", "|---|---|---|---|"]
    state = {None: "", True: "met", False: "not met"}
    lines += [
        f"| {row['what']} | {row['measured']} | {row['target']} | {state[row['met']]} |"
        for row in rows
    ]
    return "\n".join(lines)


def listed(rows):
    """Return rows (`Row`) as the dicts that results have."""
    return [row._asdict() for row in rows]


def dated(rows, text):
    """Return a text, and before it the dates of the first and the last measurement of rows."""
    dates = {row.get("date") for row in rows} - {None}
    if not dates:
        return text
    when = " to ".join(dict.fromkeys((min(dates), max(dates))))
    return f"Measured on {when}.\n\n{text}"


def main():
    for mark, name in LISTED.items():
        between(MEASURED, mark, dated(read(name), table(read(name))))
    peers = read("peers")
    between(MEASURED, "peers", dated(peers, markdown(read("peers_tasks"))))
    targets = [row for row in peers if row["target"] != USUAL_TARGET]
    between(MEASURED, "targets of peers", dated(targets, table(targets)))
    chosen = default.Results(RESULTS / "default.json")
    between(
        MEASURED, "default", dated(chosen.found.values(), table(listed(default.targets(chosen))))
    )
    between(MEASURED, "default by table", default.markdown(chosen))
    between(MEASURED, "accuracy", table(accuracy()))
    between(SCALING, "scaling", scaling.markdown(read("scaling")))
    between(SCALING, "fits", fits.markdown())
    if (RESULTS / "cores.json").exists():
        between(SCALING, "cores", dated(read("cores"), table(read("cores"))))


def accuracy():
    """Return the errors of GPX beside the paper's, for its six data sets of numbers."""
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
            "target": f"{float(row['paper_mean']):.3f} ± 2 x {float(row['paper_sd']):.3f}, "
            "the paper's",
            "met": row["beyond_2_sd"] == "0",
        }
        for row in found
    ]


def between(path, name, text):
    """Write a text between the two marks of that name; a page has exactly one such pair."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    filled, count = marked.subn(lambda marks: f"{marks[1]}{text}\n{marks[2]}", path.read_text())
    if count != 1:
        raise ValueError(
            f"{path} has {count} places between <!-- {name} --> and <!-- end of {name} -->; "
            "needed: one. Add or remove marks."
        )
    path.write_text(filled)


if __name__ == "__main__":
    main()
