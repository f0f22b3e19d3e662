"""What a fit does as it goes, and the report it leaves."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import InputError
from .memory import counted, format_bytes, peak_memory
from .state import stored

logger = logging.getLogger("gpx_scale")

ROWS_ADDED = "; rows were added since, at these hyperparameters"


@stored
@dataclass
class FitReport:
    """A record of one fit, for people (`print(report)`) and programs (its attributes).

    `evidence` is of the full model, without prior, in the units of the user's y; the leave-one-out error too.
    """

    solver: str = ""
    reasons: list[str] = field(default_factory=list)
    n_samples: int = 0
    n_features: int = 0
    dtype: str = ""
    n_jobs: int = 1
    standardized: bool = True
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    evidence: float = float("nan")
    evaluations: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    converged: bool | None = None
    message: str = ""
    at_bound: list[str] = field(default_factory=list)
    jitter: float = 0.0
    condition: float = float("nan")
    leave_one_out_rmse: float = float("nan")
    memory_planned: int = 0
    memory_peak: int = 0
    variances: str = "exact"
    evidence_deviation: float = 0.0
    solution: str = ""

    def __str__(self) -> str:
        lines = [
            f"GPX fit: {self.n_samples} samples, {self.n_features} features, solver {self.solver!r} ({self.dtype}, "
            f"{counted(self.n_jobs, 'thread')})",
            *(f"  why             {reason}" for reason in self.reasons),
            "  parameters      "
            + ", ".join(f"{k} = {_short(v)}" for k, v in self.hyperparameters.items()),
            f"  evidence        {self.evidence:.3f} nats"
            + (
                f" (standard error {self.evidence_deviation:.2g})"
                if self.evidence_deviation
                else ""
            ),
        ]
        if self.leave_one_out_rmse == self.leave_one_out_rmse:
            lines.append(f"  leave-one-out   RMSE {self.leave_one_out_rmse:.4g}")
        counts = ", ".join(f"{count} on {phase}" for phase, count in self.evaluations.items())
        state = {True: "converged", False: "NOT converged", None: "none"}[self.converged]
        lines.append(f"  evaluations     {counts}{'; ' if counts else ''}{state}: {self.message}")
        lines += [
            "  seconds         "
            + ", ".join(f"{phase} {value:.2f}" for phase, value in self.seconds.items()),
            f"  at a bound      {', '.join(self.at_bound) or 'none'}",
            f"  solution        {self.solution or f'Cholesky, condition number at least {self.condition:.1e}'}; "
            f"jitter {self.jitter:.0e}",
            f"  memory          {format_bytes(self.memory_planned)} planned, "
            f"{format_bytes(self.memory_peak)} peak of the process",
            f"  variances       {self.variances}",
        ]
        return "\n".join(lines)

    def after_more_rows(self, plan: Any, evidence: float, posterior: Any) -> FitReport:
        """Return the report of this model after rows were added to it.

        The search (evaluations, seconds, whether it converged, bounds) stays that of the first fit, whose hyperparameters the
        model keeps; the message says so. All else is of the model as it is now.
        """
        found = posterior.diagnostics
        return replace(
            self,
            solver=plan.solver,
            reasons=list(plan.reasons),
            n_samples=posterior.n_rows,
            dtype=np.dtype(plan.dtype).name,
            n_jobs=plan.n_jobs,
            evidence=evidence,
            evidence_deviation=found.standard_error,
            message=self.message.removesuffix(ROWS_ADDED) + ROWS_ADDED,
            jitter=found.jitter,
            condition=found.condition_number,
            variances=found.variances,
            solution=found.solution,
            leave_one_out_rmse=float("nan"),
            memory_planned=plan.bytes_needed,
            memory_peak=peak_memory(),
        )


def _short(value: Any) -> str:
    try:
        return f"{float(value):.4g}"
    except TypeError:
        return (
            "[" + " ".join(f"{v:.3g}" for v in value[:8]) + (" ..." if len(value) > 8 else "") + "]"
        )


HOPELESS = 1e12  # what an optimiser sees where there is no Cholesky factor


class Stopped(Exception):
    """A callback asked to stop the whole search: the best of what is being searched counts."""


class Journal:
    """Keeps the report while a fit runs, times its phases, tells loggers, the terminal and the user's callbacks."""

    def __init__(
        self, verbose: int = 0, callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None
    ) -> None:
        self.report = FitReport()
        self.stopped = False
        self.was_interrupted = False
        self._bar = Bar() if verbose else None
        several: Any = (
            () if callbacks is None else (callbacks,) if callable(callbacks) else callbacks
        )
        if not isinstance(several, Sequence) or not all(map(callable, several)):
            raise InputError(f"callbacks={callbacks!r}: give a function, or a list of functions")
        self._callbacks = list(several)
        self._started = time.perf_counter()
        self._phase = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start, outer, self._phase = time.perf_counter(), self._phase, name
        try:
            yield
        finally:
            self._phase = outer
            elapsed = time.perf_counter() - start
            self.report.seconds[name] = self.report.seconds.get(name, 0.0) + elapsed
            self.say(f"{name}: {elapsed:.2f} s")

    def evaluated(self, phase: str, evidence: float, parameters: dict[str, Any]) -> None:
        """Count an evaluation and tell the callbacks; `stopped` says, from then on, whether one of them answered True."""
        count = self.report.evaluations[phase] = self.report.evaluations.get(phase, 0) + 1
        self.say(f"{phase} evaluation {count}: {evidence:.4f} nats")
        state = {
            "phase": phase,
            "evaluation": count,
            "evidence": evidence,
            "hyperparameters": parameters,
            "seconds": time.perf_counter() - self._started,
        }
        answers = [callback(state) for callback in self._callbacks]  # every one is told
        if any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers):
            self.stopped = True  # it stays so: a fit is several searches, and the ones to come are not wanted either

    def passed(self, done: int, rows: int) -> None:
        """Tell of a pass over rows."""
        if self._bar is not None:
            self._bar.show_rows(self._phase, done, rows)

    def iterated(self, iteration: int, left: float, goal: float) -> None:
        """An iteration of a solve: what is left of the column furthest behind, and where it may stop, in nats."""
        logger.debug("%s: iteration %d, %.1e nats left of %.1e", self._phase, iteration, left, goal)
        if self._bar is not None:
            self._bar.show(self._phase, iteration, left, goal)

    def interrupted(self) -> None:
        """Ctrl-C in the search: the fit goes on with the best point found, and raises when that model stands."""
        self.stopped = self.was_interrupted = True
        self.say("interrupted: finishing with the best parameters found; Ctrl-C again to drop them")

    def say(self, message: str) -> None:
        logger.info(message)
        if self._bar is not None:
            self._bar.line(message)

    def close(self) -> FitReport:
        self.report.seconds["total"] = time.perf_counter() - self._started
        self.report.memory_peak = peak_memory()
        return self.report


@contextmanager
def undone_on_failure(estimator: Any) -> Iterator[None]:
    """Ctrl-C or an error inside leaves the estimator's attributes as they were before, but for parameters that were found."""
    before = dict(estimator.__dict__)
    try:
        yield
    except BaseException:
        found = {name: value for name, value in estimator.__dict__.items() if name == "_known"}
        estimator.__dict__.clear()
        estimator.__dict__.update(before | found)
        raise


class Bar:
    """Lines on stderr and, while a solve runs, a bar below them: rewritten in place on a terminal, now and then elsewhere."""

    WIDTH = 24

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every = 0.2 if self._terminal else 10.0
        self._drawn = False
        self._began = self._shown = time.perf_counter()
        self._first: tuple[str, float] = ("", 0.0)
        self._done = 0

    def line(self, message: str) -> None:
        print(f"{self._clear()}[gpx_scale] {message}", file=sys.stderr, flush=True)

    def show(self, phase: str, iteration: int, left: float, goal: float) -> None:
        """An iteration of a solve."""
        if iteration <= 1 or self._first[0] != phase:
            self._began, self._first = time.perf_counter(), (phase, left)
        self._draw(
            phase, self._share(left, goal), f"iteration {iteration}, {left:.1e} nats to {goal:.0e}"
        )

    def show_rows(self, phase: str, done: int, rows: int) -> None:
        """A pass over rows."""
        if self._first != (phase, float(rows)) or done < self._done:
            self._began, self._first = time.perf_counter(), (phase, float(rows))
        self._done = done
        self._draw(
            phase,
            done / rows if rows else 0.0,
            f"{done:,} of {rows:,} rows" if rows else f"{done:,} rows",
        )

    def _draw(self, phase: str, share: float, state: str) -> None:
        now = time.perf_counter()
        if now - self._shown < self._every:
            return
        self._shown = now
        bar = "#" * round(share * self.WIDTH)
        to_go = (
            f"{(now - self._began) * (1 - share) / share:.0f} s left"
            if share > 0.02
            else "time left unknown"
        )
        text = f"[gpx_scale] {phase} |{bar:<{self.WIDTH}}| {state}, {to_go}"
        if self._terminal:
            print(f"{self._clear()}{text}", end="", file=sys.stderr, flush=True)
            self._drawn = True
        else:
            print(text, file=sys.stderr, flush=True)

    def _share(self, left: float, goal: float) -> float:
        """How far a solve is, if what is left falls by the same factor in each iteration."""
        whole, done = self._first[1] / max(goal, 1e-300), self._first[1] / max(left, 1e-300)
        return (
            min(1.0, max(0.0, math.log(max(done, 1.0)) / math.log(whole))) if whole > 1.0 else 1.0
        )

    def _clear(self) -> str:
        was, self._drawn = self._drawn, False
        return "\r\x1b[K" if was else ""
