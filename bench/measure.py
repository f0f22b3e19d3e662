"""Measuring on a shared machine: pairs taken in turn and compared as ratios, never absolute times."""

from __future__ import annotations

import json
import resource
import statistics
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
    return statistics.median(mine), statistics.median(other), statistics.median(a / b for a, b in pairs)


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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def report(rows, name):
    """Print rows (what, measured, target, met) as a table, and keep them as JSON."""
    width = max(len(row[0]) for row in rows)
    print()
    for what, measured, target, met in rows:
        print(f"{what:<{width}}  {measured:<44}  {target:<26}  {'' if met is None else 'met' if met else 'NOT MET'}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    kept = {row["what"]: row for row in (json.loads(path.read_text()) if path.is_file() else [])}
    for what, measured, target, met in rows:  # a run of some cases leaves the others' results
        kept[what] = {"what": what, "measured": measured, "target": target, "met": met}
    path.write_text(json.dumps(list(kept.values()), indent=1) + "\n")
