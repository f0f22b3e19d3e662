"""Measure times: pairs are run in turn and compared as ratios, because absolute times vary."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

COMMITTED = Path(__file__).parent / "results"
# A run that is compared with the committed results writes its own elsewhere.
RESULTS = Path(os.environ.get("GPX_SCALE_BENCH_RESULTS", COMMITTED))


def seconds(function):
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(ours, theirs, rounds=7, prepare=None, pause=0.0):
    """Return the median seconds of two functions, and the median of the ratios ours / theirs.

    Both run in turn, so a ratio is of neighbouring runs. One run of each before is not
    counted. `prepare` is called before every run, and then nothing happens for `pause` seconds;
    neither counts.
    """

    def one(function):
        if prepare is not None:
            prepare()
        time.sleep(pause)
        return seconds(function)

    pairs = [(one(ours), one(theirs)) for _ in range(1 + rounds)][1:]
    mine, other = zip(*pairs, strict=True)
    return (
        statistics.median(mine),
        statistics.median(other),
        statistics.median(a / b for a, b in pairs),
    )


def steady(function, rounds=5):
    """Return the seconds of the first call, and the median seconds of `rounds` more.

    The first call includes compilation, if something has to be compiled.
    """
    return seconds(function), statistics.median(seconds(function) for _ in range(rounds))


def peak_bytes(function):
    """Return the largest number of bytes that numpy and Python hold during a call."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resident_peak():
    """Return the largest resident memory of this process so far, in bytes.

    On Linux, `getrusage` begins with the memory of the parent process, which may be larger.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])
    import resource  # Windows does not have it.

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


class Row(NamedTuple):
    """A line of a table of results.

    `ratio` is the measured number, if it grows when this package becomes slower or larger than
    what it is compared with; bench/compare.py compares it with the committed one.
    """

    what: str
    measured: str
    target: str = ""
    met: bool | None = None
    ratio: float | None = None


def report(rows, name):
    """Print rows (`Row`, or tuples of its fields) as a table, and merge them into
    results/NAME.json.

    Rows that were not measured this time stay as they are, with their dates.
    """
    rows = [Row(*row) for row in rows]
    width = max((len(row.what) for row in rows), default=0)
    print()
    for row in rows:
        state = {None: "", True: "met", False: "NOT MET"}[row.met]
        print(f"{row.what:<{width}}  {row.measured:<44}  {row.target:<26}  {state}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    kept = {row["what"]: row for row in (json.loads(path.read_text()) if path.is_file() else [])}
    for row in rows:
        if kept.get(row.what, {}).get("measured") != row.measured:
            kept[row.what] = {
                "what": row.what,
                "measured": row.measured,
                "date": time.strftime("%Y-%m-%d"),
            }
        kept[row.what] |= {"target": row.target, "met": row.met}
        if row.ratio is not None:
            kept[row.what]["ratio"] = float(f"{row.ratio:.4g}")
    path.write_text(json.dumps(list(kept.values()), indent=1) + "\n")


def run_cases(file, description, cases, summary, name, timeout=3600):
    """Run the command line of a benchmark of long cases.

    Each case runs in a process of its own, so that its peak memory can be measured. Its
    numbers go to results/NAME_raw.json, which is not committed, and the rows that `summary`
    makes of them go to results/NAME.json, which is. A run of some cases leaves the results of
    the others.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"cases to run, all by default: {', '.join(cases)}"
    )
    parser.add_argument("--case", choices=cases, help="run one case in this process")
    asked = parser.parse_args()
    if asked.case is not None:
        print(json.dumps({**cases[asked.case](), "memory": resident_peak()}))
        return
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}_raw.json"

    def found():
        return json.loads(path.read_text()) if path.is_file() else {}

    for case in asked.names or list(cases):
        if (result := _alone(file, case, timeout)) is None:
            continue  # An earlier result of this case stays.
        print(case, result, flush=True)
        # Another run may have measured other cases meanwhile.
        path.write_text(json.dumps(found() | {case: result}, indent=1) + "\n")
    report(summary(found()), name)


def _alone(file, case, timeout):
    """Return the numbers of a case that ran in a process of its own, or None if it failed."""
    try:
        done = subprocess.run(
            [sys.executable, file, "--case", case], capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        print(f"{case} took more than {timeout // 60} minutes, and was stopped.")
        return None
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{case} failed with exit status {done.returncode}: {message}")
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])
