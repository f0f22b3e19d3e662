"""What 4, 8 and 16 cores would gain, replayed from the schedules of one: `make bench CASE=cores`.

A run with n_jobs=P is recorded on one core and replayed on P workers (bench/replay.py). The replay
of two workers is compared with the measured gain of two threads. All other numbers of cores are
projections, not measurements. They are printed if that comparison holds, with what limits them:

    serial part     what runs between parallel loops, in Python and numpy
    tail            the time in which workers wait for the last one, in the loop that is named
    starts          the time to start and end parallel loops, as measured with two threads
    memory          bytes per second that a loop needs, if nothing stays in a cache

An exact evaluation of 20,000 rows and one of cg with 50,000 take minutes. They are composed: the
code runs with loops that do nothing but tell their work, whose seconds were measured with fewer
rows. A composition with fewer rows is compared with a measurement. `python bench/cores.py NAME ...`
measures some cases, and leaves the results of the others.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from functools import partial
from unittest import mock

import numpy as np

import machine
from gpx_scale.compiled import low_rank
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.linalg.conjugate_gradients import Solution, iterate
from gpx_scale.linalg.covariance import TiledCovariance
from gpx_scale.runtime.parallel import usable_cores
from gpx_scale.runtime.session import Session
from gpx_scale.runtime.tile_loops import tile_threads
from gpx_scale.solvers.cg import solver as cg
from measure import Row, in_turn, report, seconds
from replay import recording, seconds_of_work
from test_suite import JOBS, Case, _inputs, _params, _solver

CORES = (2, 4, 8, 16)
# A replay of two workers, or a composition, may differ from the measurement by this share.
TOLERATED = 0.1
# Rounds of a case take about this long with one thread, so that a short disturbance changes few of
# them. There are at least and at most as many as the bounds say.
SECONDS_OF_ROUNDS = 8.0
FEWEST_ROUNDS = 2
MOST_ROUNDS = 25
# Shares of the time that are smaller than this are not printed.
LEAST_SHARE = 0.02
# An evaluation of 50,000 rows of synth10 by conjugate gradients took this many iterations, with
# this many columns on average.
ITERATIONS_OF_50_000 = 48, 10
_TEXT = {"d": 2000, "density": 0.01}
_SINGLE = {"dtype": "float32"}
CASES = {
    "exact": ("exact evaluation", Case("evidence", "exact", 5000)),
    "cg": ("cg evaluation, stored tiles", Case("evidence", "cg", 12_000)),
    "cg_recomputed": ("cg evaluation, recomputed tiles", Case("evidence", "cg_recomputed", 8000)),
    "cg_pairs": ("cg evaluation, sparse pairs", Case("evidence", "cg_pairs", 16_000, **_TEXT)),
    "product": ("cg product, stored tiles", Case("product", "cg", 20_000, **_SINGLE)),
    "product_recomputed": (
        "cg product, recomputed tiles",
        Case("product", "cg_recomputed", 20_000, **_SINGLE),
    ),
    "product_pairs": (
        "cg product, sparse pairs",
        Case("product", "cg_pairs", 16_000, **_SINGLE, **_TEXT),
    ),
    "inducing": ("inducing evaluation", Case("evidence", "inducing", 80_000, points=500)),
    "basis": ("basis pass", Case("pass", "basis", 100_000, d=5)),
}


@dataclass(frozen=True)
class Limits:
    """The seconds to start a parallel region, and bytes per second, both of two threads here."""

    start: float
    bandwidth: float

    @classmethod
    def measured(cls, rounds=2000):
        """Measure both, the first with a loop that has nearly no work."""
        F, out, took = np.ones((2, 1)), np.empty(2), []
        for workers in (1, 2):
            with tile_threads(workers) as threads:
                run = partial(threads.run, low_rank.square_rows, F, out)
                run()
                took.append(statistics.median(seconds(run) for _ in range(rounds)))
        copied = machine.limits(gemm=200, potrf=200)["2"]["copy"]
        return cls(max(0.0, took[1] - took[0]), 1e9 * copied)


@dataclass(frozen=True)
class Found:
    """What is known of a run: its seconds on one core, and its records by the number of workers.

    `gain` is the measured one of two threads, `rates` are the seconds of each kind of work, and
    `others` is the share of the cores that other processes used meanwhile.
    """

    label: str
    alone: float
    gain: float | None
    records: dict
    rates: dict
    others: float = 0.0

    def replayed(self, workers, limits, bandwidth=np.inf):
        """Return the replay on some workers."""
        return self.records[workers].replayed(self.rates, workers, limits.start, bandwidth)

    def gain_of(self, workers, limits):
        """Return how many times faster some workers are in the replay than one."""
        bandwidth = limits.bandwidth if workers == 2 else np.inf
        return self.alone / self.replayed(workers, limits, bandwidth).seconds

    def check(self, limits):
        """Return the row that compares the replay of two workers with the measurement."""
        replayed = self.gain_of(2, limits)
        measured = f"{self.gain:.2f} times one; replayed {replayed:.2f}"
        if self.others >= LEAST_SHARE:
            measured += f" (disturbed: others used {self.others:.0%} of the cores)"
        return _within(f"{self.label}: 2 threads", measured, replayed / self.gain)

    def projection(self, limits, least=None):
        """Return the row of the projections. The gain of the last may have a least value."""
        most = CORES[-1]
        gains = [self.gain_of(workers, limits) for workers in CORES[1:]]
        parts = [", ".join(f"{gain:.1f}" for gain in gains) + " times one", *self._limits(limits)]
        needed = self.replayed(most, limits).needed
        if needed > 0.0:
            shared = self.alone / self.replayed(most, limits, limits.bandwidth).seconds
            here = f"{shared:.1f} times with the {limits.bandwidth / 1e9:.0f} of 2 threads here"
            parts.append(f"{needed / 1e9:.0f} GB/s needed ({here})")
        target = "" if least is None else f"{most} cores: at least {least}"
        met = None if least is None else gains[-1] >= least
        what = f"{self.label}: {', '.join(map(str, CORES[1:]))} cores, projected, not measured"
        return Row(what, "; ".join(parts), target, met)

    def _limits(self, limits):
        """Return what takes the time of the most workers, besides work that is divided evenly."""
        found = self.replayed(CORES[-1], limits)
        worst = max(found.tail, key=found.tail.get)
        spent = {
            "serial": found.serial,
            f"tail (most in {worst})": sum(found.tail.values()),
            "starts": found.starts,
        }
        shares = {what: took / found.seconds for what, took in spent.items()}
        order = sorted(shares, key=shares.get, reverse=True)
        return [f"{shares[what]:.0%} {what}" for what in order if shares[what] >= LEAST_SHARE]


def _within(what, measured, ratio):
    """Return a row about a ratio that should be 1."""
    met = bool(abs(ratio - 1.0) <= TOLERATED)
    return Row(what, measured, f"within {TOLERATED:.0%}", met)


def measured(label, case):
    """Measure a case with one and two threads, and record it for all numbers of workers."""
    with Session.open(1, random_state=0) as session:
        make = partial(JOBS[case.work], case, session)
        shared = None if case.work == "product" else make()

        def on(workers):
            """Return the run with some workers, after what only a first run does."""
            session.executor.n_jobs = workers
            # The tiles of a product keep their number of workers.
            job = shared or make()

            def run():
                session.executor.n_jobs = workers
                job.run()

            if shared is None or workers == 1:
                run()
            return run

        one, two = on(1), on(2)
        rounds = int(np.clip(SECONDS_OF_ROUNDS / seconds(one), FEWEST_ROUNDS, MOST_ROUNDS))
        busy, began = machine.used_by_others(), time.perf_counter()
        _, alone, ratio = in_turn(two, one, rounds)
        busy, took = machine.used_by_others() - busy, time.perf_counter() - began
        records = {workers: recorded(on(workers)) for workers in CORES}
    rates = seconds_of_work(call for record in records.values() for call in record.calls)
    others = busy / took / usable_cores()
    return Found(f"{label}, n = {case.n:,}", alone, 1.0 / ratio, records, rates, others)


def recorded(run, rates=None):
    """Return the record of a run."""
    with recording(rates) as record:
        run()
    return record


def composed(label, run, session, rates):
    """Return what follows from the work of a run whose loops are not executed."""
    records = {}
    with np.errstate(all="ignore"):
        # The first time, the machine gives memory to this process, which is slow.
        for workers in (CORES[-1], 1, *CORES):
            session.executor.n_jobs = workers
            records[workers] = recorded(run, rates)
    return Found(label, records[1].serial, None, records, rates)


def composition(beside, found, limits):
    """Return the row that compares a composition with a measurement."""
    times, gains = (found.alone, beside.alone), (found.gain_of(2, limits), beside.gain)
    measured = (
        f"{times[0]:.1f} s with one thread, {gains[0]:.2f} times as fast with 2; "
        f"measured {times[1]:.1f} and {gains[1]:.2f}"
    )
    ratio = max(a / b for pair in (times, gains) for a, b in (pair, pair[::-1]))
    return _within(f"{beside.label}: composed", measured, ratio)


# Compositions.


def exact_evaluation(n, session):
    """Return an evaluation by the exact solver, without tests of its results."""
    case = Case("evidence", "exact", n)
    data, params = _inputs(case), _params(case)

    def run():
        C = TiledCovariance(data, params, session)
        tiles = C.empty_tiles(np.float64)
        C.fill(tiles)
        tiles.factor()
        alpha = data.y[None].copy()
        tiles.solve(alpha)
        C.contract_inverse(alpha[0], tiles)

    return run


def exact_composition(found, limits):
    """Return the check of a composition of 10,000 rows, and the projection of 20,000."""
    with Session.open(1) as session:
        run, times = exact_evaluation(10_000, session), []
        for workers in (1, 2):
            session.executor.n_jobs = workers
            times.append(seconds(run))
        label = "exact evaluation, n = 10,000"
        beside = Found(label, times[0], times[0] / times[1], {}, {})
        smaller = composition(beside, composed(label, run, session, found.rates), limits)
        run, label = exact_evaluation(20_000, session), "exact evaluation, n = 20,000"
        larger = composed(label, run, session, found.rates)
        return smaller, larger.projection(limits, 12)


def cg_evaluation(n, session, count, columns):
    """Return an evaluation by conjugate gradients with a number of iterations and of columns."""
    case = Case("evidence", "cg", n)
    data, params = MemoryRows(_inputs(case)), _params(case)
    solver = _solver(case, data, params, session)
    solver._pivots = np.sort(session.random.choice(n, solver.settings.rank, replace=False))
    solver._control = np.ones(params.theta.size)

    def solve(C, P, B, nats, *, precise, tell):
        """Iterate without a test of convergence."""
        H, X = P.solve(B), np.zeros_like(B)

        def goes_on(at):
            P.error_bound_nats(at.residual, at.preconditioned)
            return np.ones(at.running.size, bool)

        some = slice(columns)
        iterate(C.matmul, P.solve, X[:, some], B[:, some], H[:, some], goes_on, count)
        R = B - precise.matmul(X)
        bounds = P.error_bound_nats(R, P.solve(R))
        lanczos = {j: (np.ones(2), np.zeros(1)) for j in range(1, B.shape[1])}
        quadratic = np.einsum("ij,ij->j", B + R, X)
        return Solution(X, bounds, bounds, count, count * columns, quadratic, lanczos)

    def run():
        with mock.patch.object(cg, "solve", solve):
            solver.evaluate(data, params)

    return run


def cg_composition(found, limits, solution):
    """Return the check of a composition of as many rows as in `found`, and the one of 50,000.

    `solution` is what conjugate gradients returned for the former.
    """
    count = solution.iterations
    iterations = count, round(solution.matvecs / count)
    with Session.open(1, random_state=0) as session:
        n = CASES["cg"][1].n
        again = composed(found.label, cg_evaluation(n, session, *iterations), session, found.rates)
        run = cg_evaluation(50_000, session, *ITERATIONS_OF_50_000)
        larger = composed("cg evaluation, stored tiles, n = 50,000", run, session, found.rates)
        return composition(found, again, limits), larger.projection(limits, 8)


def rows_of(name, limits):
    """Measure a case, and return its rows: comparisons with measurements, then projections."""
    solutions, solve = [], cg.solve

    def watched(*args, **more):
        solutions.append(solve(*args, **more))
        return solutions[-1]

    with mock.patch.object(cg, "solve", watched):
        found = measured(*CASES[name])
    pairs = [(found.check(limits), found.projection(limits))]
    if name == "exact":
        pairs.append(exact_composition(found, limits))
    if name == "cg":
        pairs.append(cg_composition(found, limits, solutions[-1]))
    checks, projections = zip(*pairs, strict=True)
    if not all(check.met for check in checks):
        none = "none, because the replay differs from the measurement"
        projections = [
            one._replace(measured=none, met=False if one.target else None) for one in projections
        ]
    return [*checks, *projections]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"cases to measure, all by default: {', '.join(CASES)}",
    )
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(CASES):
        parser.error(
            f"There is no case {', '.join(sorted(unknown))}. There are {', '.join(CASES)}."
        )
    if max(machine.usable_threads()) < 2:
        parser.error("A replay is compared with two threads, and there is only one core.")
    limits, rows = Limits.measured(), []
    print(f"start of a region {limits.start * 1e6:.1f} us, copy {limits.bandwidth / 1e9:.0f} GB/s")
    for name in asked.names or list(CASES):
        found = rows_of(name, limits)
        print(*(f"{row.what}: {row.measured}" for row in found), sep="\n", flush=True)
        rows += found
    report(rows, "cores")


if __name__ == "__main__":
    main()
