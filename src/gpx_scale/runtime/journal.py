"""The progress of a fit while it runs, and the report that it leaves."""

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
from .memory import counted, format_bytes, format_seconds, peak_memory
from .model_table import ComparedModel, as_lines
from .notebook import html_table
from .state import stored
from .weight_table import DecidedWeight

logger = logging.getLogger("gpx_scale")

# The message of a report ends with this after `partial_fit` has added rows to the model.
ROWS_ADDED = "; rows were added since, at these hyperparameters"
# Vectors of hyperparameters are printed up to this length.
MAX_PRINTED_VALUES = 8
# A search takes about this many evaluations, of which its bar shows the share that is done.
USUAL_EVALUATIONS = 10
# The optimiser sees this loss where the covariance has no Cholesky factor. It is larger than the
# loss of any usable point, and finite, so that differences between losses stay numbers.
FAILED_LOSS_NATS = 1e12


@stored
@dataclass
class FitReport:
    """A record of one fit, for people (`print(report)`) and for programs (its attributes).

    `GPXRegressor.fit` makes it and keeps it as `fit_report_`.

    Attributes
    ----------
    solver : str
        The solver that ran: "exact", "cg", "neighbors", "inducing", "basis" or "grid".
    reasons : list of str
        Why this solver and its settings were chosen.
    n_samples, n_features : int
        Numbers of training rows, and of columns of Z.
    dtype : str
        The type of numbers that the solver computed with, "float64" or "float32".
    n_jobs : int
        Number of threads.
    standardized : bool
        Whether the columns of X and Z, and y, were standardised.
    hyperparameters : dict
        The hyperparameters by name, in standardised units if `standardized` is true.
    evidence : float
        Log marginal likelihood of all training rows in nats (units of the natural logarithm), in
        the units of the user's y and without the prior of the hyperparameters. Larger is better.
    evaluations : dict of str to int
        How many times the log marginal likelihood was evaluated, by phase of the fit.
    seconds : dict of str to float
        Seconds by phase of the fit, and their "total".
    converged : bool or None
        Whether the search for hyperparameters converged. It is None if there was no search.
    message : str
        How the search ended.
    at_bound : list of str
        Names of the hyperparameters that ended at a bound of the search.
    search_rows_used : int
        The number of rows on which the search for hyperparameters ended, 0 if there was no search.
    promised_gain : float
        What a further Newton step promised on these rows at the last evaluation, in nats of the
        log marginal likelihood with the prior of the hyperparameters. It is NaN if it is not known,
        as after a search by L-BFGS.
    jitter : float
        The number that was added to the diagonal of the covariance matrix so that it had a
        Cholesky factor. It is 0 for most data.
    condition : float
        A lower bound on the condition number of the covariance matrix, from its Cholesky factor,
        or NaN if the solver does not give one.
    leave_one_out_rmse : float
        Root mean squared error of predicting each training row from all others, in the units of
        y, or NaN if the search did not compute it.
    memory_planned, memory_peak : int
        Bytes that were planned for the fit, and the largest size of the process so far.
    variances : str
        How accurate predicted variances are: "exact", or how they are approximated.
    evidence_deviation : float
        Standard error of `evidence`, or 0 if it is computed without random numbers.
    solution : str
        How the linear systems were solved. It is empty for a Cholesky factorisation.
    kernel_table : tuple of ComparedModel
        The models that were compared, the chosen one first, if kernel, ARD or intercept were left
        open. `GPXRegressor.kernel_table_` has them as a data frame.
    prior_table : tuple of ComparedModel
        The priors of the weights that were compared, the best one first, if weights="auto".
        `GPXRegressor.prior_table_` has them as a data frame.
    notes : list of str
        Why this model was chosen, if kernel, ARD, intercept or weights were left open, and
        whether the data hardly determine sigma_w.
    weight_table : tuple of DecidedWeight
        What was decided about the weight of each feature or group, if weights have priors of their
        own. `GPXRegressor.weight_table_` has it as a data frame.
    parameter_names : list of str
        A name for each entry of `theta_`, with the names of features.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale import GPXRegressor
    >>> X = np.linspace(0.0, 1.0, 20)[:, None]
    >>> report = GPXRegressor(optimizer=None).fit(X, X[:, 0] ** 2).fit_report_
    >>> report.solver, report.n_samples, report.evaluations, report.converged
    ('exact', 20, {}, None)
    >>> print(report)  # doctest: +ELLIPSIS
    GPX fit: 20 samples, 1 features, solver 'exact' (float64, ... thread...)
    ...
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
    search_rows_used: int = 0
    promised_gain: float = float("nan")
    jitter: float = 0.0
    condition: float = float("nan")
    leave_one_out_rmse: float = float("nan")
    memory_planned: int = 0
    memory_peak: int = 0
    variances: str = "exact"
    evidence_deviation: float = 0.0
    solution: str = ""
    kernel_table: tuple[ComparedModel, ...] = ()
    notes: list[str] = field(default_factory=list)
    weight_table: tuple[DecidedWeight, ...] = ()
    parameter_names: list[str] = field(default_factory=list)
    prior_table: tuple[ComparedModel, ...] = ()

    @property
    def promised_gain_per_row(self) -> float:
        """`promised_gain` divided by `search_rows_used`, in nats per row."""
        return self.promised_gain / self.search_rows_used if self.search_rows_used else math.nan

    @property
    def search(self) -> str:
        """The rows of the search and the gain that it left, in words; empty without a search."""
        if not self.search_rows_used:
            return ""
        rows = f"on {self.search_rows_used:,} of {self.n_samples:,} rows"
        if math.isnan(self.promised_gain):
            return rows
        return (
            f"{rows}; a further step promised {self.promised_gain:.2g} nats, "
            f"{self.promised_gain_per_row:.1g} per row"
        )

    def __str__(self) -> str:
        """Return the report as lines of text, each of which begins with what it is about."""
        return "\n".join([self._title, *(f"  {label:<24} {text}" for label, text in self._entries)])

    def _repr_html_(self) -> str:
        """Return the report as notebooks show it: a table of what it is about and what it says."""
        return html_table(self._title, (), self._entries)

    @property
    def _title(self) -> str:
        """The numbers of rows and features, and the solver."""
        return (
            f"GPX fit: {self.n_samples} samples, {self.n_features} features, "
            f"solver {self.solver!r} ({self.dtype}, {counted(self.n_jobs, 'thread')})"
        )

    @property
    def _entries(self) -> list[tuple[str, str]]:
        """What the report says, as pairs of a label and a text."""
        solution = self.solution or f"Cholesky, condition number at least {self.condition:.1e}"
        deviation = self.evidence_deviation
        error = f" (standard error {deviation:.2g})" if deviation else ""
        counts = ", ".join(f"{count} on {phase}" for phase, count in self.evaluations.items())
        state = {True: "converged", False: "NOT converged", None: "none"}[self.converged]
        seconds = (f"{phase} {value:.2f}" for phase, value in self.seconds.items())
        left_out = (
            []
            if math.isnan(self.leave_one_out_rmse)
            else [("leave-one-out", f"RMSE {self.leave_one_out_rmse:.4g}")]
        )
        return [
            *(("why", reason) for reason in self.reasons),
            *(("model", note) for note in self.notes),
            *(("compared", line) for line in as_lines(self.kernel_table)),
            *(("compared", line) for line in as_lines(self.prior_table)),
            *(("weight", str(row)) for row in self.weight_table),
            (
                "hyperparameters",
                ", ".join(f"{k} = {_short(v)}" for k, v in self.hyperparameters.items()),
            ),
            ("log marginal likelihood", f"{self.evidence:.3f} nats{error}"),
            *left_out,
            ("evaluations", f"{counts}{'; ' if counts else ''}{state}: {self.message}"),
            *([("search", self.search)] if self.search else []),
            ("seconds", ", ".join(seconds)),
            ("at a bound", ", ".join(self.at_bound) or "none"),
            ("solution", f"{solution}; jitter {self.jitter:.0e}"),
            (
                "memory",
                f"{format_bytes(self.memory_planned)} planned, "
                f"{format_bytes(self.memory_peak)} peak of the process",
            ),
            ("variances", self.variances),
        ]

    def after_more_rows(self, plan: Any, evidence: float, posterior: Any) -> FitReport:
        """Return the report of this model after rows were added to it.

        The search (evaluations, seconds, whether it converged, bounds) stays that of the first fit,
        whose hyperparameters the model keeps, and the message says so. Everything else describes
        the model with the added rows.
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
    """Return a hyperparameter, which is a number or a vector of them, as short text."""
    try:
        return f"{float(value):.4g}"
    except TypeError:
        shown = " ".join(f"{v:.3g}" for v in value[:MAX_PRINTED_VALUES])
        return f"[{shown}{' ...' if len(value) > MAX_PRINTED_VALUES else ''}]"


def share_of_search(evaluations: float) -> float:
    """Return the share of a search that is done, if it takes about USUAL_EVALUATIONS.

    A longer search comes closer to its end with every evaluation, and is never quite there.

    >>> share_of_search(2.5), share_of_search(8.0), share_of_search(32.0)
    (0.25, 0.8, 0.95)
    """
    if evaluations < 0.8 * USUAL_EVALUATIONS:
        return evaluations / USUAL_EVALUATIONS
    return 1.0 - 0.16 * USUAL_EVALUATIONS / evaluations


class Stopped(Exception):
    """A callback asked to stop the search. The fit ends with the best point found so far."""


class Journal:
    """The record of a running fit.

    It fills the `report`, times the phases of the fit, and passes progress on to the logger, to the
    terminal if `verbose` is set, and to the user's callbacks.
    """

    def __init__(
        self, verbose: int = 0, callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None
    ) -> None:
        self.report = FitReport()
        self.stopped = False
        self.was_interrupted = False
        self._bar = ProgressBar() if verbose else None
        several: Any = (
            () if callbacks is None else (callbacks,) if callable(callbacks) else callbacks
        )
        if not isinstance(several, Sequence) or not all(map(callable, several)):
            raise InputError(
                f"callbacks={callbacks!r} is not valid. Give a function, or a list of functions."
            )
        self._callbacks = list(several)
        self._started = time.perf_counter()
        self._phase = ""
        self._done = self._work = 0.0
        # The evaluations of the phase that runs, None if it is no search.
        self._evaluations: int | None = None
        # Whether the share of the phase is known by counts, of rows or models, and not by flops.
        self._is_counted = False

    @contextmanager
    def phase(self, name: str, search: bool = False) -> Iterator[None]:
        """Time a phase of the fit, and add the seconds to those of phases of the same name.

        Of a `search`, the bar shows the evaluations.
        """
        start, outer, self._phase = time.perf_counter(), self._phase, name
        before = self._evaluations, self._is_counted
        self._evaluations, self._is_counted = (0 if search else None), False
        try:
            yield
        finally:
            self._phase = outer
            self._evaluations, self._is_counted = before
            elapsed = time.perf_counter() - start
            self.report.seconds[name] = self.report.seconds.get(name, 0.0) + elapsed
            self.say(f"{name}: {elapsed:.2f} s")

    @contextmanager
    def bar(self, name: str) -> Iterator[None]:
        """Show the progress of work that is no phase of a fit, such as explaining rows.

        The bar is removed at the end. Nothing is timed and nothing is said, because such work is
        often short.
        """
        outer, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = outer
            if self._bar is not None:
                self._bar.clear()

    def evaluated(self, phase: str, evidence: float, parameters: dict[str, Any]) -> None:
        """Count an evaluation of the log marginal likelihood, and call the callbacks with it.

        If one of them returns True, `stopped` is set, and it stays set: a fit is several searches,
        and those to come are not wanted either.
        """
        count = self.report.evaluations[phase] = self.report.evaluations.get(phase, 0) + 1
        if self._evaluations is not None:
            self._evaluations += 1
        self.say(f"{phase} evaluation {count}: log marginal likelihood {evidence:.4f} nats")
        state = {
            "phase": phase,
            "evaluation": count,
            "evidence": evidence,
            "hyperparameters": parameters,
            "seconds": time.perf_counter() - self._started,
        }
        # All callbacks are called, even if the first one asks to stop.
        answers = [callback(state) for callback in self._callbacks]
        if any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers):
            self.stopped = True

    def passed(self, done: int, rows: int, what: str = "rows") -> None:
        """Report how many of the rows a pass has read. `rows` is 0 if their number is unknown."""
        self._is_counted = True
        if self._bar is not None:
            self._bar.show_count(self._phase, done, rows, what)

    def begins(self, work: float) -> None:
        """Report that an evaluation begins, which takes so much work, in flops or in rows."""
        self._done, self._work = 0.0, work

    def worked(self, work: float) -> None:
        """Report that so much more of the work of an evaluation is done."""
        self._done += work
        if self._bar is None or not self._work or self._is_counted:
            return
        share = min(1.0, self._done / self._work)
        state = f"{share:.0%}"
        if self._evaluations is not None:
            state = f"evaluation {self._evaluations + 1}"
            share = share_of_search(self._evaluations + share)
        self._bar.show_share(self._phase, share, state)

    def iterated(self, iteration: int, left: float, goal: float) -> None:
        """Report an iteration of conjugate gradients.

        `left` is the error of the column that is furthest behind and `goal` the error at which it
        may stop, both in nats.
        """
        logger.debug("%s: iteration %d, %.1e nats left of %.1e", self._phase, iteration, left, goal)
        if self._bar is not None:
            self._bar.show(self._phase, iteration, left, goal)

    def interrupted(self) -> None:
        """Record that Ctrl-C was pressed during the search.

        The fit finishes a model at the best point found, and raises KeyboardInterrupt after that.
        """
        self.stopped = self.was_interrupted = True
        self.say(
            "Interrupted: the fit finishes with the best hyperparameters found so far. "
            "Press Ctrl-C again to end it without them."
        )

    def say(self, message: str) -> None:
        """Send a message to the logger, and to the terminal if `verbose` is set."""
        logger.info(message)
        if self._bar is not None:
            self._bar.line(message)

    def close(self) -> FitReport:
        """Return the report, with the total time and the peak memory."""
        self.report.seconds["total"] = time.perf_counter() - self._started
        self.report.memory_peak = peak_memory()
        return self.report


@contextmanager
def undone_on_failure(estimator: Any) -> Iterator[None]:
    """Restore the attributes of an estimator if the body of the `with` statement fails.

    Only `_known`, the hyperparameters that were found, is kept, so that the next fit can start from
    them. Ctrl-C counts as a failure.
    """
    before = dict(estimator.__dict__)
    try:
        yield
    except BaseException:
        found = {name: value for name, value in estimator.__dict__.items() if name == "_known"}
        estimator.__dict__.clear()
        estimator.__dict__.update(before | found)
        raise


class ProgressBar:
    """Messages on stderr and, while something runs, a progress bar below them.

    On a terminal, the bar is rewritten in place. Elsewhere, such as in a log file, it is printed as
    a new line every ten seconds.
    """

    # The bar has this many characters, so that a line with its text fits on most terminals.
    WIDTH = 24

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every = 0.2 if self._terminal else 10.0
        self._drawn = False
        self._began = self._shown = time.perf_counter()
        self._first: tuple[str, float] = ("", 0.0)
        self._done = 0

    def line(self, message: str) -> None:
        """Print a message on a line of its own, in the place of the bar."""
        print(f"{self._clear()}[gpx_scale] {message}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the bar from a terminal, if one is there."""
        if text := self._clear():
            print(text, end="", file=sys.stderr, flush=True)

    def show(self, phase: str, iteration: int, left: float, goal: float) -> None:
        """Show an iteration of conjugate gradients; see `Journal.iterated`."""
        if iteration <= 1 or self._first[0] != phase:
            self._began, self._first = time.perf_counter(), (phase, left)
        self._draw(
            phase, self._share(left, goal), f"iteration {iteration}, {left:.1e} nats to {goal:.0e}"
        )

    def show_count(self, phase: str, done: int, count: int, what: str) -> None:
        """Show how many of the rows a pass has read; see `Journal.passed`."""
        if self._first != (phase, float(count)) or done < self._done:
            self._began, self._first = time.perf_counter(), (phase, float(count))
        self._done = done
        self._draw(
            phase,
            done / count if count else 0.0,
            f"{done:,} of {count:,} {what}" if count else f"{done:,} {what}",
        )

    def show_share(self, phase: str, share: float, state: str) -> None:
        """Show the share of a phase that is done; see `Journal.worked`."""
        if self._first != (phase, 1.0):
            self._began, self._first = time.perf_counter(), (phase, 1.0)
        self._draw(phase, share, state)

    def _draw(self, phase: str, share: float, state: str) -> None:
        """Print the bar with the share that is done, unless it was printed a moment ago."""
        now = time.perf_counter()
        if now - self._shown < self._every:
            return
        self._shown = now
        bar = "#" * round(share * self.WIDTH)
        to_go = "time left unknown"
        if share > 0.02:
            left = (now - self._began) * (1 - share) / share
            to_go = f"{left:.0f} s left" if left < 100 else f"{format_seconds(left)} left"
        text = f"[gpx_scale] {phase} |{bar:<{self.WIDTH}}| {state}, {to_go}"
        if self._terminal:
            print(f"{self._clear()}{text}", end="", file=sys.stderr, flush=True)
            self._drawn = True
        else:
            print(text, file=sys.stderr, flush=True)

    def _share(self, left: float, goal: float) -> float:
        """Return the share that is done, if every iteration divides the error by one factor."""
        whole, done = self._first[1] / max(goal, 1e-300), self._first[1] / max(left, 1e-300)
        return (
            min(1.0, max(0.0, math.log(max(done, 1.0)) / math.log(whole))) if whole > 1.0 else 1.0
        )

    def _clear(self) -> str:
        """Return the characters that remove the bar from a terminal, if one is there."""
        was, self._drawn = self._drawn, False
        return "\r\x1b[K" if was else ""
