"""The benchmark session: limits of the machine before and after it, a compact JSON file, and a
table of all cases.

`--benchmark-json=PATH` writes the file that bench/compare.py reads: the seconds of all rounds,
work, memory and share of the limit of each case.
"""

from __future__ import annotations

import statistics

import pytest

import machine
from machine import MAX_DRIFT, both, ideal_seconds

KEPT = ("median", "iqr", "rounds", "data")
FOUND = pytest.StashKey[dict]()


def pytest_configure(config):
    config.addinivalue_line("markers", "full: large cases, which make bench CASE=full runs")
    config.stash[FOUND] = {}


@pytest.hookimpl(tryfirst=True)  # The marks must be there before -m chooses.
def pytest_collection_modifyitems(config, items):
    """Mark large cases as `full`, and leave them out unless -m or the name of a test asks for
    them.
    """
    for item in items:
        if hasattr(item, "callspec") and getattr(item.callspec.params.get("case"), "full", False):
            item.add_marker("full")
    if config.option.markexpr or any("::" in argument for argument in config.args):
        return
    full = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=full)
    items[:] = [item for item in items if item not in full]


@pytest.fixture(scope="session")
def limits(request):
    """Measure GFLOP/s and GB/s before the first case, and again after the last, because
    the speed of a machine may change meanwhile.
    """
    found = request.config.stash[FOUND]
    found["start"] = machine.limits()
    yield found["start"]
    found["end"] = machine.limits()


def _limits_of(config):
    """Return both measurements and whether the session was disturbed, or None if it measured
    no case.
    """
    found = config.stash[FOUND]
    if "end" not in found:
        return None
    apart = machine.apart(found["start"], found["end"])
    return {**found, "apart": apart, "disturbed": apart > MAX_DRIFT}


def _figures(median, extra, known):
    """Return GFLOP/s, GB/s and the share of the limit that a case reaches."""
    work = extra["work"]
    flops = sum(value for name, value in work.items() if name != "bytes")
    ideal = ideal_seconds(work, extra["threads"], known) if work else None
    return {
        "gflops": flops / median / 1e9 if flops else None,
        "gigabytes": work["bytes"] / median / 1e9 if work.get("bytes") else None,
        "fraction": ideal / median if ideal else None,
    }


def pytest_benchmark_update_json(config, benchmarks, output_json):
    limits = _limits_of(config)
    output_json["machine"] = machine.description()
    output_json["limits"] = limits
    del output_json["machine_info"]
    for one in output_json["benchmarks"]:
        stats, extra = one["stats"], one["extra_info"]
        if limits and "work" in extra:
            extra |= _figures(stats["median"], extra, both(limits["start"], limits["end"]))
        one["stats"] = {name: stats[name] for name in KEPT}
        one["stats"]["data"] = [float(f"{value:.4g}") for value in stats["data"]]
        for name in ("options", "params", "param", "group", "fullname"):
            one.pop(name, None)


def pytest_terminal_summary(terminalreporter, config):
    limits = _limits_of(config)
    session = getattr(config, "_benchmarksession", None)
    cases = [
        one for one in getattr(session, "benchmarks", []) if one.extra_info.get("work") is not None
    ]
    if limits is None or not cases:
        return
    write = terminalreporter.write_line
    write("")
    for line in machine.table(limits["start"], limits["end"]):
        write(line)
    if limits["disturbed"]:
        write(
            f"DISTURBED: the limits at the start and at the end differ by {limits['apart']:.0%}. "
            "Measure again."
        )
    widths = {
        "median": 10,
        "IQR": 7,
        "compiles": 10,
        "memory": 10,
        "GFLOP": 9,
        "GFLOP/s": 9,
        "GB/s": 7,
        "of limit": 9,
    }
    write(f"\n{'case':<52}" + "".join(f"{title:>{width}}" for title, width in widths.items()))
    known = both(limits["start"], limits["end"])
    for one in cases:
        write(_line(one, known))


def _line(one, known):
    """Return the line of a case in the table."""
    extra, median = one.extra_info, statistics.median(one.stats.data)
    figures = _figures(median, extra, known)
    flops = sum(value for name, value in extra["work"].items() if name != "bytes") / 1e9
    cells = [
        f"{median * 1e3:>8.1f}ms",
        f"{one.stats.iqr / median:>7.0%}",
        f"{extra['compilation']:>9.1f}s",
        f"{extra['memory'] / 2**20:>7.1f}MiB",
        f"{flops:>9.2f}" if flops else f"{'-':>9}",
        _shown(figures["gflops"], ">9.1f"),
        _shown(figures["gigabytes"], ">7.1f"),
        _shown(figures["fraction"], ">9.0%"),
    ]
    return f"{one.name.removeprefix('test_case[').removesuffix(']'):<52}" + "".join(cells)


def _shown(value, how):
    """Return a formatted number, or a dash of the same width for None."""
    return f"{value:{how}}" if value is not None else f"{'-':>{how.strip('>%f').split('.')[0]}}"
