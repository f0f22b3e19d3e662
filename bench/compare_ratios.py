"""Measure a benchmark of ratios again, and compare it with the committed results: `make
bench-compare`, or `python bench/compare_ratios.py CASE`.

A ratio is of two things that were measured in turn within one run, so a slower machine changes
it little (`in_turn` of bench/measure.py). It grows when this package becomes slower beside what
it is compared with. The exit status is 1 if one has grown by more than TOLERATED_GROWTH. The
committed results stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import COMMITTED

BENCH = Path(__file__).resolve().parent
# A ratio that has grown by less than this counts as noise.
TOLERATED_GROWTH = 0.2


def ratios(path):
    """Return {what: ratio} of the rows of a file of results that have one."""
    return {row["what"]: row["ratio"] for row in json.loads(path.read_text()) if "ratio" in row}


def compare(committed, measured):
    """Return lines of text, the worst first, and the names of ratios that have grown too much."""
    common = [what for what in committed if what in measured]
    growth = {what: measured[what] / committed[what] - 1.0 for what in common}
    behind = [what for what in common if growth[what] > TOLERATED_GROWTH]
    width = max([len("case"), *map(len, committed | measured)])
    lines = [f"{'case':<{width}}  committed  measured  growth"]
    for what in sorted(common, key=lambda what: -growth[what]):
        state = "  BEHIND" if what in behind else ""
        numbers = f"{committed[what]:>9.2f}  {measured[what]:>8.2f}  {growth[what]:>+6.0%}"
        lines.append(f"{what:<{width}}  {numbers}{state}")
    lines += [f"{what:<{width}}  not measured" for what in committed if what not in measured]
    lines += [f"{what:<{width}}  not committed" for what in measured if what not in committed]
    return lines, behind


def measure(case, folder):
    """Run a benchmark that writes its results into a folder; return its exit status."""
    command = [sys.executable, str(BENCH), case]
    return subprocess.run(command, env=os.environ | {"GPX_SCALE_BENCH_RESULTS": folder}).returncode


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", nargs="?", default="tiles", help="benchmark; default tiles")
    asked = parser.parse_args(arguments)
    committed = ratios(COMMITTED / f"{asked.case}.json")
    with tempfile.TemporaryDirectory() as folder:
        if status := measure(asked.case, folder):
            return status
        lines, behind = compare(committed, ratios(Path(folder, f"{asked.case}.json")))
    print("\n".join(lines))
    if behind:
        print(f"behind by more than {TOLERATED_GROWTH:.0%}: {'; '.join(behind)}")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
