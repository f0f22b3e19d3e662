"""Run tasks: `python -m peers [TASK ...] [--tiny]` in bench/. A run of some tasks leaves the
results of the others.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import signal
import sys
import time

from measure import RESULTS

from . import __doc__ as description
from . import coefficient, reason, regression, weights
from .case import THREADS, alone, run
from .table import keep, markdown, state

TASKS = {
    "digits": weights.DIGITS,
    "queries": weights.QUERIES,
    "abalone": regression.ABALONE,
    "synth10": regression.SYNTH10,
    "synth2": coefficient.WIDE,
    "synth2_5000": coefficient.NARROW,
    "reasons_boston": reason.BOSTON,
    "reasons_digits": reason.DIGITS,
}
PACKAGES = (
    "gpx-scale",
    "pytorch-gpx",
    "torch",
    "gpytorch",
    "scikit-learn",
    "gpboost",
    "mgwr",
    "shap",
    "lime",
)
# The process of an entry may take this long, including imports and compilation.
LIMIT_SECONDS = 300.0


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that are compared."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m peers", description=description)
    parser.add_argument(
        "names", nargs="*", metavar="TASK", help=f"tasks to run, all by default: {', '.join(TASKS)}"
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="use few rows, to see that everything runs, and keep nothing",
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, help="seconds that an entry may take"
    )
    parser.add_argument(
        "--case", nargs=2, metavar=("TASK", "WHO"), help="run one entry in this process"
    )
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(TASKS):
        parser.error(
            f"There is no task {', '.join(sorted(unknown))}. There are {', '.join(TASKS)}."
        )
    if asked.case:
        key, who = asked.case
        print(json.dumps(run(TASKS[key], who, asked.tiny)))
        return

    # Without this handler, the process of an entry would go on alone when this one is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    path = RESULTS / "peers_tasks.json"
    raw = json.loads(path.read_text()) if path.is_file() and not asked.tiny else {"tasks": {}}
    conditions = {"threads": THREADS, "limit": asked.limit, "versions": versions()}
    start = time.perf_counter()
    for key in asked.names or list(TASKS):
        task, entries = TASKS[key], {}
        for who in (*task.ours, *task.peers):
            entries[who] = {"ours": who in task.ours} | alone(key, who, asked.tiny, asked.limit)
            said = {
                name: f"{value:.4g}"
                for name, value in entries[who].items()
                if isinstance(value, float)
            }
            minutes = (time.perf_counter() - start) / 60
            print(f"[{minutes:4.1f} min] {key}, {who}: {state(entries[who])} {said}", flush=True)
        raw["tasks"][key] = {
            "title": task.title,
            "error": task.error,
            "least": task.least or {},
            "memory": task.memory,
        }
        raw["tasks"][key] |= conditions | {
            "measured": time.strftime("%Y-%m-%d"),
            "entries": entries,
        }
        if not asked.tiny:
            keep(raw, RESULTS)
    print(f"\n{markdown(raw)}")


if __name__ == "__main__":
    main()
