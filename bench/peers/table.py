"""From results/peers_tasks.json to verdicts, results/peers.json and the tables of docs/measured.md.

Nothing here is typed in or measured.

In each task, every entry of ours is compared with every peer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# A peer whose error is larger by less than this share, or by less than the absolute number,
# counts as no worse than ours.
EQUAL_ERROR_SHARE = 0.01
EQUAL_ERROR = 1e-6
GIB = 2**30
# The target of every comparison that has none of its own. Its verdict says whether it is met.
USUAL_TARGET = "no slower at equal or less error"


class Pair(NamedTuple):
    """One of our entries and a peer in one task.

    `words` says how they compare, `fine` whether that is as it should be (None if there is
    nothing to compare), and `ratio` is the peer's time divided by ours (None if one of them
    has none).
    """

    task: dict[str, Any]
    ours: str
    peer: str
    words: str
    fine: bool | None
    ratio: float | None

    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the numbers of our entry and of the peer."""
        return self.task["entries"][self.ours], self.task["entries"][self.peer]


def verdict(ours: dict[str, Any], peer: dict[str, Any]) -> tuple[str, bool | None]:
    """Return words about a pair, and whether the result is as it should be.

    It is not if our entry failed, or took longer than a peer whose error is equal or less.
    """
    if ours["status"] != "ok":
        return f"ours {state(ours)}", False
    if peer["status"] != "ok":
        return f"peer {state(peer)}", None
    ratio, no_worse = peer["seconds"] / ours["seconds"], _no_more(peer["error"], ours["error"])
    if ratio < 1 and no_worse:
        fitting = ours["fit"] / ours["seconds"] if ours["seconds"] > ours["answer"] else 0.0
        share = f" (fitting is {fitting:.0%} of it)" if fitting else ""
        return (
            f"slower: {1 / ratio:.2g} times its time at no less error; "
            f"needs {ratio:.0%} of our time{share}",
            False,
        )
    if ratio < 1:
        return f"slower, {_times(ours['error'], peer['error'])} its error", True
    if _no_more(ours["error"], peer["error"]):
        return "faster, no more error", True
    return f"faster, {_times(ours['error'], peer['error'])} its error", True


def state(entry: dict[str, Any]) -> str:
    """Return the status of an entry: ok, out of time after N s, or failed with the reason."""
    if entry["status"] == "out of time":
        return f"out of time after {entry['limit']:.0f} s"
    return f"failed: {entry['reason']}" if entry["status"] == "failed" else entry["status"]


def pairs(raw: dict[str, Any]) -> Iterator[Pair]:
    """Yield every pair of our entries and peers, task by task."""
    for task in raw["tasks"].values():
        for mine, ours in task["entries"].items():
            for other, peer in task["entries"].items():
                if ours["ours"] and not peer["ours"]:
                    known = ours["status"] == peer["status"] == "ok"
                    yield Pair(
                        task,
                        mine,
                        other,
                        *verdict(ours, peer),
                        peer["seconds"] / ours["seconds"] if known else None,
                    )


def rows(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that bench/tables.py reads: {what, measured, target, met, date}."""
    found = []
    for pair in pairs(raw):
        ours, peer = pair.both()
        least = pair.task["least"].get(pair.ours)
        met = pair.fine
        if least and pair.ratio is not None:
            met = pair.ratio >= least and pair.fine is not False
        times = (
            ""
            if pair.ratio is None
            else f"{_ratio(pair)} times our time ({_time(ours)} / {_time(peer)}), "
        )
        measured = f"{pair.words}; {times}{_errors(pair)}, {_memory(pair)} GiB"
        target = f"at least {least:g} times faster" if least else USUAL_TARGET
        date = pair.task["measured"]
        found.append(
            (f"{_title(pair.task)}: {pair.ours} beside {pair.peer}", measured, target, met, date)
        )
        if "evidence" in ours and "evidence" in peer:
            no_worse = ours["evidence"] >= peer["evidence"] and _no_more(
                ours["error"], peer["error"]
            )
            words = f"evidence {ours['evidence']:.1f} / {peer['evidence']:.1f}, {_errors(pair)}"
            found.append(
                (
                    f"{_title(pair.task)}: evidence and error beside {pair.peer}",
                    words,
                    "no worse",
                    no_worse,
                    date,
                )
            )
    for task in raw["tasks"].values():
        for who, entry in task["entries"].items():
            if entry["ours"] and entry["status"] == "ok" and task["memory"]:
                words, target = (
                    f"{entry['memory'] / GIB:.2f} GiB",
                    f"under {task['memory'] / 1e9:g} GB",
                )
                met = entry["memory"] < task["memory"]
                found.append(
                    (f"{_title(task)}: memory of {who}", words, target, met, task["measured"])
                )
            if "least_excess" in entry:
                words = f"{entry['error']:.1e} off in the median, "
                words += f"least excess {entry['least_excess']:+.1e}"
                found.append(
                    (
                        f"{_title(task)}: deviations of {who} beside the formula",
                        words,
                        "",
                        None,
                        task["measured"],
                    )
                )
    return [
        dict(zip(("what", "measured", "target", "met", "date"), row, strict=True)) for row in found
    ]


def markdown(raw: dict[str, Any]) -> str:
    """Return one table per task.

    Errors and memory are ours / the peer's, time is the peer's over ours.
    """
    lines: list[str] = []
    task = None
    for pair in pairs(raw):
        if pair.task is not task:
            task, error = pair.task, pair.task["error"]
            lines += [
                *([""] if lines else []),
                f"**{_title(task)}**",
                "",
                f"| ours | peer | time, peer / ours | {error}, ours / peer "
                "| GiB, ours / peer | verdict |",
                "|---|---|---|---|---|---|",
            ]
        ours, peer = pair.both()
        cells = (
            _cell(pair.ours, ours),
            _cell(pair.peer, peer),
            _ratio(pair),
            _numbers(pair),
            _memory(pair),
            pair.words,
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join([*lines, "", _conditions(raw)])


def keep(raw: dict[str, Any], folder: Path) -> None:
    """Write peers_tasks.json, and peers.json from it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("peers_tasks", raw), ("peers", rows(raw))):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def _conditions(raw: dict[str, Any]) -> str:
    """Return threads, limits and versions; if tasks were run at different times, all that
    occurred.
    """
    said: dict[str, dict[str, None]] = {}
    for task in raw["tasks"].values():
        for name, value in {
            "threads": task["threads"],
            "limit": f"{task['limit']:.0f} s",
            **task["versions"],
        }.items():
            said.setdefault(name, {})[str(value)] = None
    words = "; ".join(f"{name} {' and '.join(values)}" for name, values in said.items())
    return (
        "Every entry ran in a process of its own. *Cold* includes compilation, as in the first run "
        f"after installation. Conditions: {words}."
    )


def _no_more(a: float, b: float) -> bool:
    """Return whether error a is at most b, or equal to it within rounding."""
    return a <= b * (1 + EQUAL_ERROR_SHARE) + EQUAL_ERROR


def _times(a: float, b: float) -> str:
    return f"{a / b:.3g} times" if b > EQUAL_ERROR else f"{a:.1e} over"


def _title(task: dict[str, Any]) -> str:
    sizes = next(
        ((entry["n"], entry["m"]) for entry in task["entries"].values() if "n" in entry), None
    )
    n, m = ("?", "?") if sizes is None else (f"{size:,}" for size in sizes)
    return task["title"].format(n=n, m=m)


def _time(entry: dict[str, Any], also: float = 0.0) -> str:
    s = entry["seconds"] + also
    return f"{s:.0f} s" if s >= 10 else f"{s:.1f} s" if s >= 1 else f"{s:.2g} s"


def _cell(who: str, entry: dict[str, Any]) -> str:
    if entry["status"] != "ok":
        return f"{who}: {state(entry)}"
    cold = f" (cold {_time(entry, entry['compile'])})" if "compile" in entry else ""
    return f"{who}: {_time(entry)}{cold}"


def _ratio(pair: Pair) -> str:
    if pair.ratio is None:
        return "-"
    return f"{pair.ratio:.3g}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.3g}"


def _errors(pair: Pair) -> str:
    return f"{pair.task['error']} {_numbers(pair)}"


def _numbers(pair: Pair) -> str:
    return " / ".join(_number(entry.get("error")) for entry in pair.both())


def _memory(pair: Pair) -> str:
    return " / ".join(
        f"{entry['memory'] / GIB:.2f}" if entry.get("memory") else "-" for entry in pair.both()
    )
