"""Measuring on a shared machine: pairs taken in turn and compared as ratios, never absolute times."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(ours, theirs, rounds=7):
    """Median seconds of each, and the median of the ratios ours / theirs of neighbouring runs, after one run unmeasured."""
    ours()
    theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    mine, other = zip(*pairs, strict=True)
    return (
        statistics.median(mine),
        statistics.median(other),
        statistics.median(a / b for a, b in pairs),
    )


def steady(function, rounds=5):
    """(seconds of the first call, compilation included where it is needed; median seconds of the following ones)."""
    return seconds(function), statistics.median(seconds(function) for _ in range(rounds))


def peak_bytes(function):
    """Peak of what numpy and Python allocate during a call."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resident_peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def report(rows, name):
    """Print rows (what, measured, target, met) as a table, and keep them as JSON."""
    width = max(len(row[0]) for row in rows)
    print()
    for what, measured, target, met in rows:
        print(
            f"{what:<{width}}  {measured:<44}  {target:<26}  {'' if met is None else 'met' if met else 'NOT MET'}"
        )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    kept = {row["what"]: row for row in (json.loads(path.read_text()) if path.is_file() else [])}
    for (
        what,
        measured,
        target,
        met,
    ) in rows:  # a run of some cases leaves the others' results, and their dates
        if kept.get(what, {}).get("measured") != measured:
            kept[what] = {"what": what, "measured": measured, "date": time.strftime("%Y-%m-%d")}
        kept[what] |= {"target": target, "met": met}
    path.write_text(json.dumps(list(kept.values()), indent=1) + "\n")


def run_cases(file, description, cases, summary, name, timeout=3600):
    """The command line of a benchmark of long cases: each runs in a process of its own, for its peak memory, and leaves its
    numbers in results/NAME_raw.json, so that a run of some cases leaves the results of the others."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(cases)}; default: all"
    )
    parser.add_argument("--case", choices=cases)
    asked = parser.parse_args()
    if asked.case is not None:
        print(json.dumps({**cases[asked.case](), "memory": resident_peak()}))
        return
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}_raw.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    for case in asked.names or list(cases):
        if (result := _alone(file, case, timeout)) is None:  # what was kept of it stays
            continue
        found[case] = result
        print(case, result, flush=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    report(summary(found), name)


def _alone(file, case, timeout):
    """The case in a process of its own; one that fails is shown as such."""
    try:
        done = subprocess.run(
            [sys.executable, file, "--case", case], capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        print(f"{case} took more than {timeout // 60} minutes")
        return None
    if done.returncode:
        print(
            f"{case} failed ({done.returncode}): {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        )
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])
