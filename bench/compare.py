"""Compare two runs of the suite: `python bench/compare.py base.json head.json`, both written
by `--benchmark-json`.

A ratio is head / base of two medians, each divided by the least time that the work of the base
can take at the limits of the machine on that day. A slower machine therefore does not count as
a slower program, but more work does.

The bounds of a ratio combine the standard errors of the medians (0.93 IQR / sqrt(rounds),
times Student's t for so few rounds), half of the change of the limits within each run, and 3%
by which equal runs differ. Among 1,000 unchanged cases, one or two count as slower. The exit
status is 1 if a case is slower beyond its bounds and by more than FACTOR.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import t as student

# Equal runs differ by this share of a ratio anyway, because of memory layout and the contents of
# caches.
RATIO_FLOOR = 0.03
# For normal noise, the standard error of a median is this number times IQR / sqrt(rounds).
MEDIAN_ERROR_PER_IQR = 0.93
# With this limit on Student's t, simulated equal runs of 3 and 5 rounds count as different in
# 0.2% of cases, as often as runs of more rounds do without it.
LARGEST_T = 7.2
# Fewer rounds do not show a spread.
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Run:
    """The cases of a file by name, and the limits {threads: {name: rate}} at the start and at
    the end.
    """

    cases: dict
    start: dict | None
    end: dict | None
    disturbed: bool = False

    @classmethod
    def read(cls, path):
        """Read a file that the suite has written."""
        found = json.loads(Path(path).read_text())
        limits = found.get("limits") or {}
        names = (
            (re.sub(r"^test_case\[(.*)\]$", r"\1", one["name"]), one) for one in found["benchmarks"]
        )
        return cls(
            dict(names), limits.get("start"), limits.get("end"), bool(limits.get("disturbed"))
        )

    def ideal(self, work, threads):
        """Return the least time of `work` at the mean of both limits, and the logarithm of
        their ratio.

        They are 1 and 0 if the limits or the work are unknown.
        """
        if not self.start or not work:
            return 1.0, 0.0
        first, last = (
            _least(work, limits.get(str(threads)) or limits[max(limits)])
            for limits in (self.start, self.end)
        )
        return math.sqrt(first * last), abs(math.log(first / last))


def _least(work, rates):
    """Return the least time that `work` takes at given rates, in nanoseconds."""
    computing = sum(flops / rates[name] for name, flops in work.items() if name != "bytes")
    return max(computing, work.get("bytes", 0.0) / rates["copy"])


@dataclass(frozen=True)
class Row:
    """A case of both runs: medians, the ratio relative to the limits with its bounds, and the
    ratio of memory.
    """

    name: str
    base: float
    head: float
    ratio: float
    low: float
    high: float
    memory: float | None

    @property
    def verdict(self):
        """Say whether the case became slower or faster beyond its bounds."""
        if math.isinf(self.high):
            return "too few rounds"
        return "slower" if self.low > 1 else "faster" if self.high < 1 else "within noise"

    def fails(self, factor):
        """Return whether the case is slower by more than a factor."""
        return self.verdict == "slower" and self.ratio > factor


def compare(base, head, pattern=""):
    """Return the rows of cases that both runs have, and the names that only the base and only
    the head has.
    """
    names = [name for name in base.cases | head.cases if re.search(pattern, name)]
    rows = [_row(name, base, head) for name in names if name in base.cases and name in head.cases]
    return (
        rows,
        [n for n in names if n not in head.cases],
        [n for n in names if n not in base.cases],
    )


def _row(name, base, head):
    ours, theirs = base.cases[name], head.cases[name]
    before, now = ours["stats"]["median"], theirs["stats"]["median"]
    work, threads = ours["extra_info"].get("work"), ours["extra_info"].get("threads", 1)
    (base_least, base_drift), (head_least, head_drift) = (
        run.ideal(work, threads) for run in (base, head)
    )
    ratio = (now / head_least) / (before / base_least)
    spread = [_spread(one["stats"]) for one in (ours, theirs)]
    width = math.hypot(*spread, base_drift / 2, head_drift / 2, RATIO_FLOOR)
    memory = [one["extra_info"].get("memory") for one in (ours, theirs)]
    shares = memory[1] / memory[0] if all(memory) else None
    return Row(name, before, now, ratio, ratio * math.exp(-width), ratio * math.exp(width), shares)


def _spread(stats):
    """Return how far off a median may be, relative to it."""
    rounds = stats["rounds"]
    if rounds < FEWEST_ROUNDS:
        return math.inf
    times = min(float(student.ppf(0.999, rounds - 1)), LARGEST_T)
    return times * MEDIAN_ERROR_PER_IQR * stats["iqr"] / stats["median"] / math.sqrt(rounds)


def table(rows, gone, new):
    """Return lines of text, the slowest case first."""
    width = max([len("case"), *(len(name) for name in [*(row.name for row in rows), *gone, *new])])
    titles = f"{'base':>10}  {'head':>10}  {'ratio':>6}  {'beside the limits':>20}  {'memory':>6}"
    lines = [f"{'case':<{width}}  {titles}"]
    for row in sorted(rows, key=lambda row: -row.ratio):
        bounds = (
            f"{row.ratio:.2f} ({row.low:.2f}, {f'{row.high:.2f}' if row.high < 100 else 'any'})"
        )
        memory = "" if row.memory is None else f"{row.memory:.2f}"
        times = f"{row.base * 1e3:>8.2f}ms  {row.head * 1e3:>8.2f}ms  {row.head / row.base:>6.2f}"
        lines.append(f"{row.name:<{width}}  {times}  {bounds:>20}  {memory:>6}  {row.verdict}")
    lines += [f"{name:<{width}}  in the base alone" for name in gone] + [
        f"{name:<{width}}  in the head alone" for name in new
    ]
    return lines


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base")
    parser.add_argument("head")
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="compare only cases whose names match this regular expression",
    )
    parser.add_argument(
        "--factor", type=float, default=1.25, help="smallest ratio that counts; default 1.25"
    )
    asked = parser.parse_args(arguments)
    try:
        base, head = Run.read(asked.base), Run.read(asked.head)
    except (OSError, ValueError, KeyError) as problem:
        parser.error(f"A file is not a run of the suite (--benchmark-json): {problem!r}.")
    rows, gone, new = compare(base, head, asked.only)
    if not rows:
        runs = f"{asked.base} ({len(gone)} cases) and {asked.head} ({len(new)})"
        print(f"{runs} have no case in common.", file=sys.stderr)
        return 2
    print("\n".join(table(rows, gone, new)))
    for name, one in (("base", base), ("head", head)):
        if one.disturbed:
            print(f"The limits of the machine changed while the {name} ran. Measure it again.")
    verdicts = [row.verdict for row in rows]
    print(
        ", ".join(
            f"{verdicts.count(name)} {name}"
            for name in ("slower", "faster", "within noise", "too few rounds")
        )
    )
    worst = [row.name for row in rows if row.fails(asked.factor)]
    if worst:
        print(f"slower by more than {asked.factor:g}: {', '.join(worst)}")
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
