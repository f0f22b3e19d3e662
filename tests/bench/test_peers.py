"""The table of peers: verdicts and pages from made-up numbers, and processes that fail or run
out of time.
"""

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def table(monkeypatch):
    """Import bench/peers/table.py."""
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    yield __import__("peers.table").table
    for name in set(sys.modules) - before:
        if name == "measure" or name.split(".")[0] == "peers":
            del sys.modules[name]


def entry(seconds, error, ours=False, **more):
    """Return made-up numbers of an entry."""
    fit, answer = 0.75 * seconds, 0.25 * seconds
    times = {"n": 1437, "m": 360, "fit": fit, "answer": answer, "seconds": seconds}
    return {"ours": ours, "status": "ok", "error": error, "memory": 2**30, **times, **more}


def made(**entries):
    """Return the results of one task with these entries."""
    task = {
        "title": "Digits, n = {n}: {m} images",
        "error": "MSE",
        "least": {},
        "memory": None,
        "entries": entries,
    }
    return {
        "tasks": {
            "digits": task
            | {
                "threads": 2,
                "limit": 300.0,
                "versions": {"torch": "2.13.0"},
                "measured": "2026-01-01",
            }
        }
    }


OUT = {"ours": False, "status": "out of time", "limit": 300.0, "memory": 3 * 2**30}
BROKEN = {"ours": False, "status": "failed", "reason": "RuntimeError: a | b", "memory": 2**30}


@pytest.mark.parametrize(
    ("ours", "peer", "starts", "fine"),
    [
        (entry(1, 0.1), entry(20, 0.2), "faster, no more error", True),
        (entry(1, 0.1005), entry(20, 0.1), "faster, no more error", True),
        (entry(1, 0.2), entry(20, 0.1), "faster, 2 times its error", True),
        (entry(2, 0.1), entry(1, 0.2), "slower, 0.5 times its error", True),
        (
            entry(2, 0.1),
            entry(1, 0.1),
            "slower: 2 times its time at no less error; needs 50% of our time",
            False,
        ),
        # Errors less than 1% apart are equal, which counts against us, and so is rounding.
        (entry(2, 0.1), entry(1, 0.1005), "slower: 2 times", False),
        (entry(2, 0.1), entry(1, 0.05), "slower: 2 times", False),
        (entry(2, 3e-8), entry(1, 4e-8), "slower: 2 times", False),
        (entry(1, 0.02), entry(20, 0.0), "faster, 2.0e-02 over its error", True),
        (entry(1, 0.1), OUT, "peer out of time after 300 s", None),
        (entry(1, 0.1), BROKEN, "peer failed: RuntimeError", None),
        (BROKEN, entry(1, 0.1), "ours failed: RuntimeError", False),
        (OUT, BROKEN, "ours out of time after 300 s", False),
    ],
)
def test_slower_at_equal_or_less_error_is_said(table, ours, peer, starts, fine):
    words, found = table.verdict(ours, peer)
    assert words.startswith(starts)
    assert found is fine


def test_a_slower_row_says_where_our_time_goes(table):
    assert table.verdict(entry(2, 0.1), entry(1, 0.1))[0].endswith("(fitting is 75% of it)")
    asked = entry(2, 0.1) | {"answer": 2}  # The fit does not count.
    assert table.verdict(asked, entry(1, 0.1))[0].endswith("needs 50% of our time")


def test_every_one_of_ours_stands_beside_every_peer(table):
    raw = made(exact=entry(1, 0.1, True), cg=entry(3, 0.1, True), a=entry(2, 0.2), b=OUT)
    assert [(pair.ours, pair.peer, pair.ratio) for pair in table.pairs(raw)] == [
        ("exact", "a", 2.0),
        ("exact", "b", None),
        ("cg", "a", pytest.approx(2 / 3)),
        ("cg", "b", None),
    ]


def test_markdown(table):
    raw = made(
        exact=entry(1.26, 0.0809, True, compile=9.0),
        peer=entry(35.2, 0.0885, memory=5 * 2**30),
        other=BROKEN,
    )
    lines = table.markdown(raw).splitlines()
    assert lines[0] == "**Digits, n = 1,437: 360 images**"
    assert "| MSE, ours / peer |" in lines[2]
    assert lines[4] == (
        "| exact: 1.3 s (cold 10 s) | peer: 35 s | 27.9 | 0.0809 / 0.0885 | 1.00 / 5.00 | "
        "faster, no more error |"
    )
    assert "failed: RuntimeError: a / b | - | 0.0809 / - |" in lines[5]
    assert {line.count("|") for line in lines[2:6]} == {7}
    assert lines[-1].endswith("threads 2; limit 300 s; torch 2.13.0.")
    raw["tasks"]["later"] = raw["tasks"]["digits"] | {"threads": 1}
    assert "threads 2 and 1; limit 300 s;" in table.markdown(raw)


def test_a_task_that_nobody_finished_has_its_row(table):
    assert "n = ?" in table.markdown(made(exact=OUT | {"ours": True}, peer=OUT))


def test_rows_of_the_measured_page(table):
    raw = made(
        exact=entry(1, 0.1, True, evidence=-400.0), peer=entry(10, 0.2, evidence=-500.0), slow=OUT
    )
    task = raw["tasks"]["digits"]
    task |= {"least": {"exact": 20}, "memory": 1e9}
    found = {row["what"].split(": ")[-1]: row for row in table.rows(raw)}
    # These are 10 of 20 times, the evidence, the peer that ran out of time, and the memory.
    assert [row["met"] for row in found.values()] == [False, True, None, False]
    assert found["exact beside peer"]["target"] == "at least 20 times faster"
    task["least"] = {"exact": 5}
    assert table.rows(raw)[0]["met"] is True
    task["entries"]["peer"] = entry(0.5, 0.1)
    task["least"] = {}
    assert table.rows(raw)[0]["met"] is False


def test_results_are_kept_as_the_tables_read_them(table, tmp_path):
    raw = made(exact=entry(1, 0.1, True), peer=entry(2, 0.2))
    table.keep(raw, tmp_path / "results")
    assert json.loads((tmp_path / "results" / "peers_tasks.json").read_text()) == raw
    (row,) = json.loads((tmp_path / "results" / "peers.json").read_text())
    assert set(row) == {"what", "measured", "target", "met", "date"}


@pytest.mark.parametrize(("limit", "status"), [(0.0, "out of time"), (60.0, "failed")])
def test_a_process_that_is_stopped_or_fails_is_an_answer(table, monkeypatch, limit, status):
    pytest.importorskip("psutil", reason="psutil comes with dask's distributed (extra [test])")
    case = __import__("peers.case").case
    code = "import sys; sys.exit('no such task')"
    monkeypatch.setattr(case, "command", lambda *asked: [sys.executable, "-c", code])
    found = case.alone("digits", "exact", tiny=True, limit=limit)
    assert found["status"] == status
    assert found.get("reason") in (None, "no such task")
