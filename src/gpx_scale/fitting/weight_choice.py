"""The choice between priors of the weights, given the kernel and the intercept.

Models in which weights have priors of their own are compared with the one in which they share it,
by the integrated evidence of the same rows (`model_comparison`). Their searches begin at the
optimum of the shared prior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..data.inputs import Preprocessor
from ..model.hyperparameters import Hyperparameters
from ..runtime.memory import counted
from ..runtime.session import Session
from .model_choice import ModelChoice
from .model_comparison import Contender, Race, Setting, raced
from .model_decision import Decision
from .options import FitOptions
from .pruning import LEAST_EARNED_NATS
from .starting_point import THETA2_DIVISOR, SubsetOptimum
from .weight_fit import WeightFit
from .weight_options import ADDITIVE, SHARED, may_be_additive

# With more features, priors of their own are not tried: an additive model has five parameters for
# each of them, and each takes products with all pairs of rows.
MAX_FEATURES = 100
# A more flexible prior has to be better by more than this, which is what a term of a single weight
# has to earn (`pruning`). It is also the error of Laplace's approximation.
LEAST_AHEAD_NATS = LEAST_EARNED_NATS

# A model without any weight has no reasons for its predictions, so it is not taken unasked.
NO_WEIGHT_IS_LEFT = (
    "With priors of their own, no feature earns its weight, and the evidence is larger. Such a "
    "model would predict the mean of y everywhere."
)

# A function that returns why priors of some kind cannot be fitted to all rows, None if they can.
ReasonAgainst = Callable[[str], str | None]


def with_weights(
    decision: Decision,
    options: FitOptions,
    preprocessor: Preprocessor,
    session: Session,
    reason_against: ReasonAgainst,
    n_rows: int,
) -> Decision:
    """Return a decision in which the integrated evidence has chosen the priors of the weights.

    The fit to all `n_rows` begins without the terms that have no prospect of staying.
    """
    kinds, reasons = possible_kinds(options, preprocessor, reason_against)
    comparison = decision.comparison
    stopped = session.journal.stopped or session.journal.was_interrupted
    if not kinds or comparison is None or stopped:
        return _shared(decision, reasons)
    shared = reduced(comparison.best, decision.choice.unused_columns)
    may_add = comparison.intercept_is_open
    models = [contender_for(kind, shared, may_add, options, preprocessor) for kind in kinds]

    def begin(race: Race) -> None:
        race.expected = len(models) + 1
        if not race.has_points:
            race.run(replace(shared), [shared.found])
        for model in models:
            start = race.start_from_others(model)
            race.run(model, [start, with_shorter_lengths(start)])

    with session.journal.phase("choice of the priors of the weights"):
        ranked = raced(
            begin,
            lambda race: None,
            *(comparison.some, comparison.first, options.search.max_iter, session),
            known=(shared,),
        )
    useful = [model for model in ranked if model.has_weights]
    if not ranked[0].has_weights:
        reasons = [*reasons, NO_WEIGHT_IS_LEFT]
    best = simplest_of_the_best(useful)
    y_scale = preprocessor.scaling.y_scale
    choice = replace(
        decision.choice,
        weights=best.weights,
        prior_table=tuple(model.record(y_scale, model is best) for model in ranked),
        reasons=(*decision.choice.reasons, *reasons_for(best, useful), *reasons),
    )
    if best.priors is None or best.point is None or best.point.evidence is None:
        return replace(decision, choice=choice)
    if best.fit_intercept != choice.fit_intercept:
        reason = "An additive model has a local intercept, with a kernel of its own."
        choice = replace(choice, fit_intercept=True, reasons=(*choice.reasons, reason))
    compared_rows = best.point.evidence.n_rows
    start = SubsetOptimum(best.found, compared_rows)
    # What a term earns grows with the rows. Without those that would earn too little on all rows,
    # an additive model of ten features has a few terms there instead of 23.
    # A checkpoint is read before anything is known of the terms, and has all of them.
    if options.weights.prune and n_rows > compared_rows and options.search.checkpoint is None:
        least = LEAST_EARNED_NATS * compared_rows / n_rows
        with session.journal.phase("tests of the weights"):
            promising = best.simplified(Setting.of(comparison.some, session), least)
        if any(term.is_active for term in promising.weight_prior.terms):
            start = replace(start, hyperparameters=promising)
    return Decision(choice, start, comparison)


def _shared(decision: Decision, reasons: list[str]) -> Decision:
    """Return a decision for weights that share their prior, with the reasons for it."""
    choice: ModelChoice = decision.choice
    choice = replace(choice, weights=SHARED, reasons=(*choice.reasons, *reasons))
    return replace(decision, choice=choice)


def possible_kinds(
    options: FitOptions, preprocessor: Preprocessor, reason_against: ReasonAgainst
) -> tuple[list[str], list[str]]:
    """Return the kinds of priors to compare with the shared one, and why there are none."""
    if preprocessor.sparse_z:
        return [], ["Z is sparse, so all weights share their prior."]
    d = preprocessor.n_z
    if d > MAX_FEATURES:
        return [], [
            f"Z has {d:,} columns, so all weights share their prior. Up to {MAX_FEATURES}, priors "
            "of their own are compared with that."
        ]
    kinds = [kind for kind in options.open_model.weights if kind != SHARED]
    if not may_be_additive(preprocessor):
        kinds.remove(ADDITIVE)
    against = {kind: reason_against(kind) for kind in kinds}
    possible = [kind for kind in kinds if against[kind] is None]
    if possible:
        return possible, []
    return [], [f"All weights share their prior: {against[kinds[0]]}."]


def reduced(model: Contender, unused_columns: tuple[int, ...]) -> Contender:
    """Return a model whose kernel does not read some columns of X."""

    def without(found: Hyperparameters) -> Hyperparameters:
        kernel = found.kernel.without_columns(unused_columns)
        return found.with_kernel(kernel)

    return replace(model, given=without(model.given), found=without(model.found))


def contender_for(
    kind: str,
    shared: Contender,
    may_add_intercept: bool,
    options: FitOptions,
    preprocessor: Preprocessor,
) -> Contender:
    """Return the model with priors of a kind, and the kernel and intercept that were chosen.

    An additive model has an intercept if it may be added, as it has if the user names it.
    """
    intercept = shared.fit_intercept or (kind == ADDITIVE and may_add_intercept)
    if intercept and not preprocessor.scaling.intercept:
        preprocessor = preprocessor.with_intercept()
    weights = options.weights.of_kind(kind)
    priors = WeightFit(weights, weights.features(preprocessor))
    return Contender(
        shared.kernel,
        shared.ard,
        intercept,
        priors.applied(shared.given),
        priors.applied(shared.found),
        priors=priors,
    )


def with_shorter_lengths(start: Hyperparameters) -> Hyperparameters:
    """Return a start with a tenth of the length scales, for weights that vary fast."""
    return start.with_theta(start.theta - np.log(THETA2_DIVISOR) * start.is_length_scale)


def simplest_of_the_best(ranked: list[Contender]) -> Contender:
    """Return the simplest of the models that are about as good as the best one.

    A model is simpler if it has fewer hyperparameters.
    """
    least = ranked[0].integrated - LEAST_AHEAD_NATS
    close = [model for model in ranked if model.integrated >= least]
    return min(close, key=lambda model: model.found.theta.size)


def reasons_for(best: Contender, ranked: list[Contender]) -> list[str]:
    """Return why these priors were taken, as a sentence."""
    assert best.point is not None
    assert best.point.evidence is not None
    others = [model for model in ranked if model is not best and model.point is not None]
    on = f"on {counted(best.point.evidence.n_rows, 'row')}"
    if not others:
        return [f"The weights are {best.weights!r}: no other prior could be fitted {on}."]
    ahead = best.integrated - others[0].integrated
    if ahead >= 0:
        return [
            f"The weights are {best.weights!r}: of {counted(len(ranked), 'prior')}, this one has "
            f"the largest integrated evidence, {ahead:.1f} nats more than {others[0].weights!r}, "
            f"{on}."
        ]
    return [
        f"The weights are {best.weights!r}, the simplest prior whose integrated evidence is within "
        f"{LEAST_AHEAD_NATS} nats of the best one, {others[0].weights!r}, {on}."
    ]
