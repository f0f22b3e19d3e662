"""The comparison of kernels, with and without ARD and an intercept, by their integrated evidence.

Models are compared on a subset of the rows by the logarithm of

    integral p(y | theta) p(theta) d log theta   ~   p(y | theta*) p(theta*) (2 pi)^(q/2) |H|^-1/2

which is Laplace's approximation at the optimum theta* of q hyperparameters. H is the average
information plus the precision of the prior, with the correction of `optimize.objective`. A
parameter about which the rows say nothing has its prior's curvature, and adds nothing. One that
only fits the noise costs more by |H| than it gains.

The first model starts at the given values, and the others start from the optimum of one that was
searched before. All are first searched on fewer rows, and a model is given up where its evidence
and what a further step promises stay behind the best one.

Of weights with priors of their own, the terms that earn too little are removed before models are
compared (`pruning`), because they are not in the model that is fitted either. Each costs 1 to 2
nats: with them, no more flexible prior is found where many features do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..data.inputs import TrainingRows
from ..data.row_source import MemoryRows
from ..errors import NotConverged, NotPositiveDefinite
from ..kernels.kernel import Kernel
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..optimize.newton import BY_VALUE, damped_newton
from ..optimize.objective import Objective, Point
from ..optimize.search import noisier
from ..runtime.journal import Journal, Stopped
from ..runtime.memory import counted
from ..runtime.model_table import ComparedModel
from ..runtime.session import Session
from ..solvers.exact.solver import ExactSolver
from .model_choice import name_of_kernel
from .pruning import LEAST_EARNED_NATS, Tested, same_terms, tested_once
from .weight_fit import WeightFit
from .weight_options import SHARED

# A search for a comparison ends where a further Newton step promises less than this. With 0.1, flat
# directions leave up to a nat where rows are few, for a sixth less evaluations.
ENOUGH_NATS = 0.02
# The optimum of the first, fewer rows is needed roughly.
ENOUGH_NATS_AT_FIRST = 0.5
# A model is given up where it stays this many nats behind the best one. Laplace's approximation is
# off by about one nat where a parameter is hardly determined.
CLEARLY_BEHIND_NATS = 5.0
# Differences on the first, fewer rows say less.
CLEARLY_BEHIND_NATS_AT_FIRST = 12.0
# Half a Newton decrement promises this share at least of what a search still gains: it is wrong by
# a factor of a few where the loss is far from quadratic.
PROMISED_SHARE = 0.25
# The most steps of a search for a comparison. The fit goes on from the best model's optimum.
MAX_STEPS = 30
# If the best model is better with the other intercept, those within this many nats of it are also
# compared with and without.
CLOSE_NATS = 3.0
# If more rows change the noise of the first model by more than this factor, the optimum of the
# fewer rows is no start for the others. 500 of 861 documents are fitted without noise, and 93
# evaluations on all of them lead back from there; with this, 29 do.
LARGEST_CHANGE_OF_NOISE = 10.0


@dataclass(frozen=True)
class Setting:
    """The rows of one part of a comparison, the solver for them, and the journal.

    A search takes at most `max_iter` steps.
    """

    rows: TrainingRows
    solver: ExactSolver
    journal: Journal
    max_iter: int

    @classmethod
    def of(cls, rows: TrainingRows, session: Session, max_iter: int = MAX_STEPS) -> Setting:
        """Return the setting for some rows."""
        solver = ExactSolver(len(rows), np.float64, session)
        return cls(rows, solver, session.journal, min(max_iter, MAX_STEPS))

    @property
    def phase(self) -> str:
        """Return the name of this part of a fit."""
        return f"choice of the model, {len(self.rows)} rows"

    def with_intercept(self, wanted: bool) -> MemoryRows:
        """Return the rows, whose Z has a column of ones if it is wanted."""
        return MemoryRows(self.rows.with_intercept() if wanted else self.rows)


@dataclass(frozen=True)
class Rule:
    """When the search of a model ends: at its optimum, or where it is clearly behind.

    `best` is the integrated evidence of the best model so far, and a model is given up `behind`
    nats below it.
    """

    enough: float
    behind: float
    best: float = -np.inf

    def is_optimum(self, promised: float) -> bool:
        """Return whether a step promises so little that the search is at its optimum."""
        return promised <= self.enough

    def is_hopeless(self, value: float, promised: float) -> bool:
        """Return whether a model stays behind, at an integrated evidence and a promised gain."""
        return value + promised / PROMISED_SHARE < self.best - self.behind


@dataclass
class Contender:
    """A model in a comparison, and where its search is.

    `kernel` is as the user gave it, and `given` are the hyperparameters around which the prior is
    centred. The search has come to `found`, with the `point` and the `integrated` evidence there,
    unless it failed. A `note` says that it failed or was given up. Weights share their prior, or
    have the `priors` of their own.
    """

    kernel: Kernel
    ard: bool
    fit_intercept: bool
    given: Hyperparameters
    found: Hyperparameters
    point: Point | None = None
    integrated: float = -np.inf
    seconds: float = 0.0
    note: str = ""
    priors: WeightFit | None = None

    @property
    def weights(self) -> str:
        """Return the kind of the priors of the weights."""
        return SHARED if self.priors is None else self.priors.options.kind

    @property
    def has_weights(self) -> bool:
        """Return whether a weight is left after those that earn too little are removed."""
        if self.priors is None or self.point is None:
            return True
        terms = self.point.hyperparameters.weight_prior.terms
        return any(term.is_active for term in terms)

    @property
    def name(self) -> str:
        """Return the model in words."""
        return self.record(1.0, chosen=False).name

    @property
    def leave_one_out(self) -> float:
        """Return the log predictive density of the rows, each left out once."""
        assert self.point is not None
        assert self.point.evidence is not None
        return self.point.evidence.leave_one_out_log_density()

    @property
    def prior(self) -> HyperparameterPrior:
        """Return the prior of the hyperparameters."""
        return HyperparameterPrior.around(self.given)

    def search(self, setting: Setting, starts: list[Hyperparameters], rule: Rule) -> None:
        """Search from some starts, and keep the best point; the first error becomes the note.

        There is no note if another start has led to a point.
        """
        began = time.perf_counter()
        self.point, self.integrated = None, -np.inf
        errors = []
        try:
            for start in starts:
                try:
                    self._search_from(setting, start, rule)
                except (Stopped, MemoryError):
                    raise
                except Exception as error:  # A kernel of a user's own may raise any error.
                    errors.append(f"{type(error).__name__}: {error}")
        finally:
            self.seconds += time.perf_counter() - began
        if self.point is None and errors:
            self.note = errors[0]
        if self.priors is not None and self.priors.options.prune and not self.note:
            self._prune(setting, rule)

    def _prune(self, setting: Setting, rule: Rule) -> None:
        """Remove the terms that earn too little, and search again.

        The evidence is that of the smaller model. All terms are in the optimum that was `found`,
        from which searches on other rows begin.
        """
        assert self.priors is not None
        kept = self.simplified(setting, LEAST_EARNED_NATS)
        if kept.theta.size == self.found.theta.size:
            return
        priors = replace(self.priors, options=replace(self.priors.options, prune=False))
        given = same_terms(self.given, kept)
        smaller = replace(self, given=given, found=kept, seconds=0.0, priors=priors)
        smaller.search(setting, [kept], rule)
        self.seconds += smaller.seconds
        if smaller.integrated > self.integrated:
            self.point, self.integrated = smaller.point, smaller.integrated

    def simplified(self, setting: Setting, least: float) -> Hyperparameters:
        """Return what was found without the terms that earn less than `least` nats."""
        rows = setting.with_intercept(self.fit_intercept)

        def evidence(hyperparameters: Hyperparameters) -> float:
            try:
                return setting.solver.evaluate(rows, hyperparameters, gradient=False).value
            except (NotPositiveDefinite, NotConverged):
                return -np.inf

        return tested_once(Tested(self.found), evidence, least).hyperparameters

    def _search_from(self, setting: Setting, start: Hyperparameters, rule: Rule) -> None:
        """Search from one start, and keep the best point, also if the search is stopped."""
        prior = self.prior
        evaluate = partial(setting.solver.evaluate, setting.with_intercept(self.fit_intercept))
        objective = Objective(evaluate, start, prior, setting.journal, setting.phase)

        def ends(promised: float, point: Point) -> bool:
            value = integrated_evidence(point, prior) + charge_of_variances(point, prior)
            return rule.is_optimum(promised) or rule.is_hopeless(value, promised)

        try:
            end = damped_newton(
                objective.look,
                objective.first(),
                objective.coordinates(),
                BY_VALUE,
                max_iter=setting.max_iter,
                enough=ends,
                accepted=objective.move_to,
                rejected=objective.stop_if_asked,
            )
        except (Stopped, KeyboardInterrupt):
            if objective.best is not None:
                self._keep(objective.best, is_behind=False)
            raise
        value = integrated_evidence(end.point, prior) + charge_of_variances(end.point, prior)
        is_behind = not rule.is_optimum(end.promised) and rule.is_hopeless(value, end.promised)
        self._keep(end.point, is_behind)

    def _keep(self, point: Point, is_behind: bool) -> None:
        """Keep the point at which a search has ended, if it is better than that from other starts.

        The note says whether the model was given up there, because it is clearly behind.
        """
        value = integrated_evidence(point, self.prior)
        if value > self.integrated:
            self.note = "given up: clearly behind" if is_behind else ""
            self.point, self.integrated, self.found = point, value, point.hyperparameters

    def flipped(self) -> Contender:
        """Return the same model with an intercept if it has none, and without if it has one."""
        return Contender(self.kernel, self.ard, not self.fit_intercept, self.given, self.found)

    def is_same(self, other: Contender) -> bool:
        """Return whether another contender is the same model, wherever their searches are."""
        mine, its = ((one.kernel, one.ard, one.fit_intercept, one.weights) for one in (self, other))
        return mine == its

    def start_like(self, other: Contender) -> Hyperparameters:
        """Return a start for this model from the optimum of another one, whose weights share."""
        if self.priors is not None:
            return self.priors.applied(other.found)
        return started_like(self.given, other.found)

    def without_point(self, best: float) -> Contender:
        """Return this model as one that was given up on fewer rows than the others.

        Its evidence is left out, because it is that of other rows; `best` is the best one there.
        """
        if self.point is None or self.point.evidence is None:
            return self
        n_rows, behind = self.point.evidence.n_rows, best - self.integrated
        note = f"given up on {counted(n_rows, 'row')}, {behind:.0f} nats behind"
        return replace(self, point=None, integrated=-np.inf, note=note)

    def record(self, y_scale: float, chosen: bool) -> ComparedModel:
        """Return this model for the table, in the user's units of y."""
        about = name_of_kernel(self.kernel), self.ard, self.fit_intercept
        weights = self.weights
        if self.point is None:
            return ComparedModel(*about, seconds=self.seconds, note=self.note, weights=weights)
        evidence = self.point.evidence
        assert evidence is not None
        shift = -evidence.n_rows * float(np.log(y_scale))
        return ComparedModel(
            *about,
            float(evidence.value + shift),
            float(self.integrated + shift),
            float(self.leave_one_out + shift),
            self.seconds,
            chosen,
            self.note,
            weights,
        )


def integrated_evidence(point: Point, prior: HyperparameterPrior) -> float:
    """Return the log evidence, integrated over the hyperparameters by Laplace's approximation.

    log p(y | theta) + log p(theta) + q/2 log(2 pi) - 1/2 log|H|, where p(theta) is the density by
    the q free logarithms, and H the metric of the point;  (q, q).
    """
    assert point.information is not None
    _, log_determinant = np.linalg.slogdet(point.information)
    # The factors (2 pi)^(q/2) of the prior's density and of the integral cancel.
    return float(-point.loss - np.log(prior.sd[prior.free]).sum() - 0.5 * log_determinant)


def charge_of_variances(point: Point, prior: HyperparameterPrior) -> float:
    """Return the most by which the integrated evidence can rise if variances are removed.

    A variance costs what its prior says against its value, and at most 1/2 log(H_ii sd_i^2), by
    Fischer's inequality for the determinant of H. It is 0 if weights share their prior.
    """
    assert point.information is not None
    hyperparameters, free = point.hyperparameters, prior.free
    is_variance = np.array(hyperparameters.parameter_kinds)[free] == "variance"
    sd, metric = prior.sd[free][is_variance], point.information.diagonal()[is_variance]
    away = (point.where - prior.centre[free])[is_variance] / sd
    return float(0.5 * (np.log(metric * sd**2) + away**2).sum())


class Race:
    """The models that were searched on the same rows, in their order."""

    def __init__(self, setting: Setting, rule: Rule) -> None:
        self._setting, self._rule = setting, rule
        self._first_start: Hyperparameters | None = None
        self.done: list[Contender] = []
        # How many models there will be, for the progress bar.
        self.expected = 0

    @property
    def best(self) -> Contender:
        """Return the best model so far."""
        return max(self.done, key=lambda model: model.integrated)

    @property
    def has_points(self) -> bool:
        """Return whether a model was searched without an error."""
        return any(model.point is not None for model in self.done)

    def run(self, model: Contender, starts: list[Hyperparameters]) -> None:
        """Search one model, which is given up if it stays behind the best one so far."""
        best = max((one.integrated for one in self.done), default=-np.inf)
        if not self.done:
            self._first_start = starts[0]
        number = len(self.done)
        self._setting.journal.passed(number, max(self.expected, number + 1), "models")
        self.done.append(model)
        model.search(self._setting, starts, replace(self._rule, best=best))

    def run_all(self, models: list[Contender], flips: bool) -> None:
        """Search all models: the first one from its given values, the others from its optimum.

        If the intercept is open, the first model is compared with and without, and all others have
        the better of the two.
        """
        first, *others = models
        self.expected = len(models) + flips
        self.run(first, [first.given, *noisier(first.given)])
        if flips:
            other = first.flipped()
            self.run(other, [other.found])
        for model in others:
            model = replace(model, fit_intercept=self.best.fit_intercept)
            self.run(model, [self.start_from_others(model)])

    def start_from_others(self, model: Contender) -> Hyperparameters:
        """Return a start for a model from the optimum of the best one so far that is most alike."""
        alike = [
            one
            for one in self.done
            if one.ard == model.ard and one.point is not None and one.priors is None
        ]
        near = max(alike, key=lambda one: one.integrated) if alike else self.best
        return model.start_like(near)

    def start_after_fewer_rows(self, model: Contender) -> Hyperparameters:
        """Return a start for a model that was searched on fewer rows.

        It is the optimum there, unless the first model has moved far from its own, which is not
        known of a model that was searched on these rows before.
        """
        if self._first_start is None or not self.has_points:
            return model.found
        before, now = self._first_start, self.done[0].found
        change = np.log(now.sigma_y / before.sigma_y) if now.likelihood.is_gaussian else 0.0
        is_far = abs(change) > np.log(LARGEST_CHANGE_OF_NOISE)
        return self.start_from_others(model) if is_far else model.found

    def flip_the_best(self) -> None:
        """Search the best model with the other intercept; if that is better, those close to it."""
        ranked = self.ranked()
        for model in ranked:
            flipped = model.flipped()
            if ranked[0].integrated - model.integrated > CLOSE_NATS:
                return
            if not self.has(flipped):
                self.run(flipped, [flipped.found])
            if self.best is ranked[0]:
                return

    def has(self, model: Contender) -> bool:
        """Return whether a model was searched already."""
        return any(one.is_same(model) for one in self.done)

    def ranked(self) -> list[Contender]:
        """Return the models, the best one first."""
        return sorted(self.done, key=lambda model: -model.integrated)


def compared(
    models: list[Contender],
    flips: bool,
    some: TrainingRows,
    first: TrainingRows | None,
    max_iter: int,
    session: Session,
) -> list[Contender]:
    """Return all models that were compared on some rows, the best one first.

    `first` are fewer rows, on which the searches begin. `flips` says that the intercept is open. A
    search takes at most `max_iter` steps. Ctrl-C ends the comparison with the models that were
    searched before.
    """

    def begin(race: Race) -> None:
        race.run_all(models, flips)

    def finish(race: Race) -> None:
        if flips:
            race.flip_the_best()

    return raced(begin, finish, some, first, max_iter, session)


def raced(
    begin: Callable[[Race], None],
    finish: Callable[[Race], None],
    some: TrainingRows,
    first: TrainingRows | None,
    max_iter: int,
    session: Session,
    known: tuple[Contender, ...] = (),
) -> list[Contender]:
    """Return all models that were compared on some rows, the best one first.

    `begin` searches all of them on the `first`, fewer rows, if there are any. Those that were not
    given up go on from there on all of these rows, and `finish` may search more. Models that are
    `known` were searched on all of these rows before.
    """
    races: list[Race] = []
    fallen: list[Contender] = []
    try:
        if first is not None:
            early = Rule(ENOUGH_NATS_AT_FIRST, CLEARLY_BEHIND_NATS_AT_FIRST)
            races.append(Race(Setting.of(first, session, max_iter), early))
            begin(races[0])
        last = Rule(ENOUGH_NATS, CLEARLY_BEHIND_NATS)
        races.append(Race(Setting.of(some, session, max_iter), last))
        races[-1].done += known
        if first is None:
            begin(races[0])
        if first is not None:
            races[-1].expected = sum(not model.note for model in races[0].done)
        for model in races[0].ranked() if first is not None else []:
            if races[-1].has(model):
                continue
            if model.note:
                fallen.append(model.without_point(races[0].best.integrated))
            else:
                races[-1].run(replace(model), [races[-1].start_after_fewer_rows(model)])
        finish(races[-1])
    except (Stopped, KeyboardInterrupt) as ended:
        races = [race for race in races if race.has_points]
        if not races:
            raise
        if isinstance(ended, KeyboardInterrupt):
            session.journal.interrupted()
    return races[-1].ranked() + fallen


def started_like(given: Hyperparameters, found: Hyperparameters) -> Hyperparameters:
    """Return a start for a model from the optimum of another one.

    Noise, variance and length scales are those that were found; a model with a length scale for
    each column starts with equal ones. A shape, and the parameters of a combined kernel, stay as
    given.
    """
    theta, values = given.theta, found.theta
    mine, theirs = np.array(given.parameter_kinds), np.array(found.parameter_kinds)
    theta[mine == "sigma"] = values[theirs == "sigma"]
    if (mine == "theta1").sum() == 1 == (theirs == "theta1").sum():
        theta[mine == "theta1"] = values[theirs == "theta1"]
        scales = values[theirs == "theta2"]
        alike = scales.size == (mine == "theta2").sum()
        if scales.size:
            theta[mine == "theta2"] = scales if alike else scales.mean()
    own = theta.size - given.likelihood.theta.size
    theta[own:] = values[values.size - given.likelihood.theta.size :]
    return given.with_theta(theta)
