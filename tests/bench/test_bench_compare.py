"""Conclusions from benchmarks: slower cases, noise, slower machines; flops, exponents,
projections, and the cases by name.
"""

import json
import runpy
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.kernels import RBF
from gpx_scale.linalg.covariance import TiledCovariance
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.session import Session

BENCH = Path(__file__).resolve().parents[2] / "bench"
RATES = {"dgemm": 40.0, "sgemm": 80.0, "dpotrf": 30.0, "spotrf": 60.0, "copy": 20.0}


@pytest.fixture
def modules(monkeypatch):
    """Import the modules of bench/."""
    monkeypatch.syspath_prepend(str(BENCH))
    names = (
        *("measure", "machine", "compare", "compare_ratios"),
        *("test_suite", "numpy_peers", "scaling", "tables"),
    )
    yield {name: __import__(name) for name in names}
    for name in (*names, "peers.table", "peers"):
        sys.modules.pop(name, None)


@pytest.fixture
def bench(modules):
    return modules["compare"]


class Suite:
    """Files as the suite writes them."""

    def __init__(self, folder):
        self.folder = folder

    def run(
        self,
        file,
        cases,
        speed=1.0,
        end=1.0,
        copy=1.0,
        noise=0.01,
        work=None,
        random=None,
        rounds=9,
    ):
        """Write a run of `cases`, {name: seconds}, and return its path.

        `speed` is that of the machine, `end` its change until the end of the run, and `copy`
        that of its bandwidth. Rounds are spread evenly, or at `random`.
        """
        written = []
        for name, median in cases.items():
            even = norm.ppf((np.arange(rounds) + 0.5) / rounds)
            data = median * np.exp(
                noise * (even if random is None else random.standard_normal(rounds))
            )
            low, middle, high = np.percentile(data, [25, 50, 75])
            stats = {"median": middle, "iqr": high - low, "rounds": rounds, "data": data.tolist()}
            extra = {"work": work or {"dgemm": 1e9}, "threads": 2, "memory": 1000}
            written.append({"name": f"test_case[{name}]", "stats": stats, "extra_info": extra})
        limits = {"start": self._limits(speed, copy), "end": self._limits(speed * end, copy)}
        path = self.folder / file
        path.write_text(json.dumps({"benchmarks": written, "limits": limits}))
        return str(path)

    @staticmethod
    def _limits(speed, copy):
        rates = {**RATES, "copy": copy * RATES["copy"]}
        return {
            n: {name: int(n) * speed * rate for name, rate in rates.items()} for n in ("1", "2")
        }


@pytest.fixture
def suite(tmp_path):
    return Suite(tmp_path)


TIMES = {"evidence-exact-2t": 1.0, "product-cg-2t": 0.02}


def rows_of(bench, base, head):
    """Return the rows of two runs by name, and the names of cases that one run lacks."""
    rows, gone, new = bench.compare(bench.Run.read(base), bench.Run.read(head))
    return {row.name: row for row in rows}, gone, new


def test_equal_runs_are_within_noise(bench, suite, capsys):
    base, head = suite.run("base.json", TIMES), suite.run("head.json", TIMES)
    assert bench.main([base, head]) == 0
    assert "0 slower, 0 faster, 2 within noise" in capsys.readouterr().out


@pytest.mark.parametrize("rounds", [5, 15])
def test_few_of_many_noisy_cases_that_did_not_change_count_as_slower(bench, suite, rounds):
    random, many = np.random.RandomState(0), {f"case{k}": 1.0 for k in range(500)}
    base, head = (
        suite.run(file, many, noise=0.2, random=random, rounds=rounds)
        for file in ("base.json", "head.json")
    )
    rows, _, _ = rows_of(bench, base, head)
    # There is noise that has to be told from a change.
    assert sum(row.ratio > 1.1 for row in rows.values()) > 25
    assert sum(row.verdict == "slower" for row in rows.values()) <= 5


def test_one_round_says_nothing(bench, suite, capsys):
    base, head = (
        suite.run(file, {"fit-cg-2t": took}, rounds=1)
        for file, took in (("base.json", 1.0), ("head.json", 3.0))
    )
    assert bench.main([base, head]) == 0
    assert "1 too few rounds" in capsys.readouterr().out


def test_a_case_that_takes_twice_as_long_fails_and_is_named(bench, suite, capsys):
    base, head = (
        suite.run("base.json", TIMES),
        suite.run("head.json", {**TIMES, "product-cg-2t": 0.04}),
    )
    assert bench.main([base, head]) == 1
    assert capsys.readouterr().out.endswith("slower by more than 1.25: product-cg-2t\n")
    assert bench.main([base, head, "--only", "^evidence"]) == 0
    assert bench.main([base, head, "--factor", "2.5"]) == 0
    rows, _, _ = rows_of(bench, base, head)
    assert rows["product-cg-2t"].low < 2 < rows["product-cg-2t"].high
    back, _, _ = rows_of(bench, head, base)
    assert back["product-cg-2t"].verdict == "faster"


def test_the_same_difference_is_noise_where_rounds_are_far_apart(bench, suite):
    slower = {name: 1.3 * median for name, median in TIMES.items()}
    assert bench.main([suite.run("base.json", TIMES), suite.run("head.json", slower)]) == 1
    assert (
        bench.main(
            [suite.run("base.json", TIMES, noise=0.5), suite.run("head.json", slower, noise=0.5)]
        )
        == 0
    )


def test_cases_of_one_run_alone_are_shown_and_do_not_fail(bench, suite, capsys):
    base, head = (
        suite.run("base.json", TIMES),
        suite.run("head.json", {"evidence-exact-2t": 1.0, "fit-grid-2t": 3.0}),
    )
    assert bench.main([base, head]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("product-cg-2t" in line and "in the base alone" in line for line in lines)
    assert any("fit-grid-2t" in line and "in the head alone" in line for line in lines)
    assert bench.main([suite.run("a.json", {"x": 1.0}), suite.run("b.json", {"y": 1.0})]) == 2
    with pytest.raises(SystemExit) as ended:
        bench.main([base, str(suite.folder / "nowhere.json")])
    assert ended.value.code == 2


def test_a_machine_half_as_fast_is_no_regression(bench, suite):
    base = suite.run("base.json", TIMES)
    slow_day = {name: 2 * median for name, median in TIMES.items()}
    assert bench.main([base, suite.run("head.json", slow_day, speed=0.5)]) == 0
    assert bench.main([base, suite.run("head.json", slow_day)]) == 1
    # The same time on a machine twice as fast is a regression.
    assert bench.main([base, suite.run("head.json", TIMES, speed=2.0)]) == 1


def test_limits_that_moved_within_a_run_widen_the_bounds(bench, suite):
    base, slower = (
        suite.run("base.json", TIMES),
        {name: 1.3 * median for name, median in TIMES.items()},
    )
    assert bench.main([base, suite.run("head.json", slower, speed=1.5**0.5, end=1 / 1.5)]) == 1
    assert bench.main([base, suite.run("head.json", slower, speed=3**0.5, end=1 / 3)]) == 0


def test_bandwidth_counts_where_it_is_what_limits(bench, suite):
    """Moving 2 GB at 40 GB/s takes longer than 1 GFLOP at 80 GFLOP/s.

    A machine with half the bandwidth may take twice as long.
    """
    work, slow_day = (
        {"dgemm": 1e9, "bytes": 2e9},
        {name: 2 * median for name, median in TIMES.items()},
    )
    base = suite.run("base.json", TIMES, work=work)
    assert bench.main([base, suite.run("head.json", slow_day, work=work, copy=0.5)]) == 0
    # The work of the base counts.
    head = suite.run("head.json", slow_day, work={"dgemm": 1e9}, copy=0.5)
    assert bench.main([base, head]) == 0
    assert (
        bench.main([suite.run("base.json", TIMES), suite.run("head.json", slow_day, copy=0.5)]) == 1
    )


def test_more_work_is_not_excused(bench, suite):
    slower = {name: 2 * median for name, median in TIMES.items()}
    head = suite.run("head.json", slower, work={"dgemm": 2e9})
    assert bench.main([suite.run("base.json", TIMES), head]) == 1


def test_runs_without_limits_are_compared_plainly(bench, suite):
    base, head = (
        suite.run("base.json", TIMES),
        suite.run("head.json", {**TIMES, "product-cg-2t": 0.06}),
    )
    for path in (base, head):
        found = json.loads(Path(path).read_text())
        Path(path).write_text(json.dumps({**found, "limits": None}))
    rows, _, _ = rows_of(bench, base, head)
    assert rows["product-cg-2t"].ratio == pytest.approx(
        rows["product-cg-2t"].head / rows["product-cg-2t"].base
    )
    assert bench.main([base, head]) == 1


def test_flops_are_those_of_the_operations_that_ran(modules):
    Case, machine, n = modules["test_suite"].Case, modules["machine"], 120
    with modules["test_suite"].prepared(Case("evidence", "exact", n, threads=1)) as job:
        work = machine.counted(job.run)
    assert work["dpotrf"] == pytest.approx(n**3)  # These are potrf and potri.
    # An entry needs the exponent, <z, z'> and the epilogue. There is one tile, which is formed
    # and contracted.
    per_entry = 2 * (10 + 2) + 2 * 10 + machine.EXP_FLOPS["d"] + 2
    assert work["dgemm"] == pytest.approx(
        2 * n * n * per_entry + 2 * n * n
    )  # The last term is a solve.
    for solver, single in (("cg", True), ("cg_recomputed", False)):
        with modules["test_suite"].prepared(
            Case("product", solver, n, threads=1, dtype="float32")
        ) as job:
            job.run()  # The first run forms the tiles that are stored.
            work = machine.counted(job.run)
        product = 2 * n * n * 16
        assert work["sgemm"] == product if single else work["sgemm"] > product
        assert work.get("bytes", 0) == (2 * n * n if single else 0)


def test_counting_leaves_everything_as_it_was(modules):
    machine = modules["machine"]
    before = {key: vars(key[0])[key[1]] for key in machine.FORMULAS}

    def fails():
        assert (
            vars(machine.runtime.Executor)["matmul"]
            is not before[machine.runtime.Executor, "matmul"]
        )
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        machine.counted(fails)
    assert {key: vars(key[0])[key[1]] for key in machine.FORMULAS} == before


def test_the_least_time_is_of_arithmetic_or_of_bandwidth(modules):
    least = modules["machine"].ideal_seconds
    known = {"1": RATES}
    assert least({"dgemm": 40e9, "sgemm": 80e9}, 1, known) == pytest.approx(2.0)
    assert least({"dgemm": 40e9, "bytes": 60e9}, 1, known) == pytest.approx(3.0)
    # Two threads are asked for, and only one was measured.
    assert least({"dgemm": 40e9}, 2, known) == pytest.approx(1.0)


def test_every_case_has_a_name_of_its_own(modules):
    names = [case.name for case in modules["test_suite"].CASES]
    assert len(set(names)) == len(names)


def test_exponents_are_those_of_a_power_law(modules):
    n = np.array([1000.0, 2000.0, 4000.0])
    slope, error = modules["scaling"].exponent(n, 3e-9 * n**2.5)
    assert slope == pytest.approx(2.5)
    assert error == pytest.approx(0.0, abs=1e-9)
    _, error = modules["scaling"].exponent(n, 3e-9 * n**2.5 * [1.0, 1.3, 1.0])
    assert error > 0.1


def both_threads(copy=2.0):
    return {
        "1": RATES,
        "2": {name: (copy if name == "copy" else 2.0) * rate for name, rate in RATES.items()},
    }


def test_tables_go_between_the_marks_of_a_page(modules, tmp_path):
    scaling, tables = modules["scaling"], modules["tables"]
    sizes = {
        str(n): {
            "1": [1e-9 * n**2] * 3,
            "2": [6e-10 * n**2] * 3,
            "memory": 8 * n,
        }
        for n in (100, 200, 400)
    }
    limits = {"start": both_threads(), "end": both_threads(), "apart": 0.01}
    found = {
        "cg_product": {"limits": limits, "machine": {"processor": "a made-up one"}, "sizes": sizes}
    }
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- scaling -->\nold\n<!-- end of scaling -->\nafter\n")
    for _ in range(2):
        tables.between(page, "scaling", scaling.markdown(found))
    text = page.read_text()
    assert text.startswith("before\n<!-- scaling -->\nLimits by threads: ")
    assert text.endswith("<!-- end of scaling -->\nafter\n")
    assert "old" not in text
    assert text.count("n^2.00 ± 0.00 | n^2 |") == 1
    assert text.count("| n^1.00 |") == 1
    page.write_text("no marks")
    with pytest.raises(ValueError, match="needed: one"):
        tables.between(page, "scaling", "")
    scaling.draw(found, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_a_benchmark_is_run_by_its_name(monkeypatch, capsys):
    dispatcher = runpy.run_path(str(BENCH / "__main__.py"), run_name="dispatcher")
    extras = tomllib.loads((BENCH.parent / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name, case in dispatcher["CASES"].items():
        assert dispatcher["main"](["--extra", name]) == 0
        assert capsys.readouterr().out.strip() in extras
        for step in case.steps:
            assert step[0] == "-m" or Path(step[0]).is_file()
    assert dispatcher["main"](["nothing"]) == 2
    words = capsys.readouterr().err
    assert words.startswith("There is no benchmark 'nothing'.")
    assert all(f"  {name} " in words for name in dispatcher["CASES"])
    assert dispatcher["main"](["varying", "million"]) == 2
    assert "varying.py or spatial.py" in capsys.readouterr().err


def test_results_of_cases_that_were_not_run_stay(modules, monkeypatch, tmp_path, capsys):
    """Raw results are not committed: a summary without them keeps the rows that it cannot make."""
    monkeypatch.setattr(modules["measure"], "RESULTS", tmp_path)
    report = modules["measure"].report
    report([("a", "1 s", "", None), ("b", "2 s", "at most 3 s", True)], "made_up")
    report([("b", "4 s", "at most 3 s", False)], "made_up")
    report([], "made_up")
    rows = json.loads((tmp_path / "made_up.json").read_text())
    assert [(row["what"], row["measured"], row["met"]) for row in rows] == [
        ("a", "1 s", None),
        ("b", "4 s", False),
    ]
    assert "NOT MET" in capsys.readouterr().out


@pytest.fixture
def again(modules, monkeypatch, tmp_path):
    """Return a function that compares made-up ratios, as if a benchmark had measured them."""
    module = modules["compare_ratios"]
    monkeypatch.setattr(module, "COMMITTED", tmp_path)

    def compared(committed, measured, status=0):
        def measure(case, folder):
            write(Path(folder, f"{case}.json"), measured)
            return status

        monkeypatch.setattr(module, "measure", measure)
        write(tmp_path / "made_up.json", committed)
        return module.main(["made_up"])

    def write(path, found):
        monkeypatch.setattr(modules["measure"], "RESULTS", path.parent)
        rows = [
            modules["measure"].Row(what, "in words", "", None, ratio)
            for what, ratio in found.items()
        ]
        modules["measure"].report(rows, path.stem)

    return compared


def test_a_ratio_that_has_grown_by_more_than_a_fifth_fails(again, capsys):
    committed = {"Cholesky": 1.0, "filling": 1.2}
    assert again(committed, {"Cholesky": 1.19, "filling": 0.6}) == 0
    assert "BEHIND" not in capsys.readouterr().out
    assert again(committed, {"Cholesky": 1.0, "filling": 1.45}) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("BEHIND")] == ["filling"]
    assert lines[-1] == "behind by more than 20%: filling"


def test_ratios_of_one_side_alone_are_shown_and_do_not_fail(again, capsys):
    """Large cases are not measured again, and seconds are no ratio."""
    committed = {"Cholesky": 1.0, "30,000 rows": 1.3, "compilation": None}
    assert again(committed, {"Cholesky": 1.0, "new": 9.0, "compilation": None}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["30,000", "rows", "not", "measured"] for line in lines)
    assert any(line.split() == ["new", "not", "committed"] for line in lines)


def test_a_benchmark_that_fails_is_no_comparison(again):
    assert again({"Cholesky": 1.0}, {"Cholesky": 1.0}, status=3) == 3


def test_runs_alternate_and_what_prepares_them_does_not_count(modules):
    seen = []

    def ours():
        seen.append("ours")

    def theirs():
        seen.append("theirs")
        time.sleep(0.02)

    def prepare():
        seen.append("-")
        time.sleep(0.05)

    mine, other, ratio = modules["measure"].in_turn(ours, theirs, 2, prepare)
    assert seen == ["-", "ours", "-", "theirs"] * 3
    assert mine < 0.02 <= other
    assert ratio < 1.0


def test_numpy_peers_of_the_loops_over_tiles_compute_what_these_do(modules):
    n, jobs, random = 700, 2, np.random.RandomState(0)
    X, V = random.randn(n, 4), random.randn(n, 3)
    params = Hyperparameters.of(RBF(1.0, 20.0), 0.1, 0.5)
    rows, peers = TrainingRows(X, DenseFeatures(X), X[:, 0]), modules["numpy_peers"]
    with Session.open(jobs) as session:
        tiles = TiledCovariance(rows, params, session).compiled
        profile, Z = tiles.profile, tiles.Z.to_dense()
        exponents = profile.left @ profile.right.T
        S = np.exp(exponents) * (Z @ Z.T)
        both = np.column_stack([S @ V[:, 0], (S * exponents) @ V[:, 0]])
        weighed = S * (V @ V.T)
        formed = peers.Formed(profile, Z, jobs)
        for use, expected in (
            (peers.multiply, S @ V),
            (peers.contract, np.array([weighed.sum(), (weighed * exponents).sum()])),
            (peers.tangents, both),
        ):
            out = np.zeros((jobs, *expected.shape))
            formed.over(session.executor, use(out, V))
            np.testing.assert_allclose(out.sum(axis=0), expected, rtol=1e-9, atol=1e-9)
        ours = tiles.matmul(V, S.diagonal())
    np.testing.assert_allclose(ours, S @ V, rtol=1e-9, atol=1e-9)
