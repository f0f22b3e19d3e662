"""The steps of a fit, which are the same for rows in memory, in a stream, and on a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ..data.inputs import Preprocessor
from ..data.row_source import RowSource
from ..errors import MemoryLimitError, SlowFitWarning, SolverUnavailable
from ..estimator.fitted_model import FittedModel
from ..kernels.kernel import Kernel
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..optimize.objective import Optimum, at_bound
from ..optimize.search import CONSTANT_MESSAGE
from ..plan import plan_for
from ..runtime.journal import FitReport
from ..runtime.memory import format_seconds
from ..runtime.session import Session
from ..solvers import registry
from ..solvers.contract import (
    AUTO_PATIENCE_SECONDS,
    Plan,
    Problem,
    Solver,
    SolverOptions,
    SolverSetup,
)
from ..solvers.low_dimensional import InputExtent, InputResolution
from ..solvers.posterior import Diagnostics
from .checkpoint import choice_in
from .model_decision import Decision, decided
from .options import FitOptions
from .pruning import Tested, same_terms
from .starting_point import KnownOptimum, StartingPoint, find_length_scales, starting_point
from .weight_choice import with_weights
from .weight_decisions import notes_on_weights, weight_table
from .weight_fit import WeightFit

# The columns of rows that are not in memory are known from a subset of this many.
COLUMN_SUBSET_ROWS = 1024
# weights="auto" tries no priors that need a solver which takes so many times as long as that for
# weights that share their prior: nobody has asked for this. Below a minute, that does not matter.
MOST_TIMES_LONGER = 6.0
SHORT_FIT_SECONDS = 60.0


def fit_model(
    preprocessor: Preprocessor,
    rows: RowSource,
    options: FitOptions,
    setup: SolverSetup,
    known: KnownOptimum | None = None,
    remember: Callable[[KnownOptimum], None] = lambda known: None,
) -> tuple[FittedModel, RowSource]:
    """Return a fitted model, and the rows in the form that its solver takes.

    A plan is made, hyperparameters are searched, and the posterior is computed. `known` is the
    optimum of an earlier fit, to start from. `remember` is called with the optimum before the
    posterior is computed.
    """
    session = setup.session
    options.weights.must_suit(preprocessor)
    decision = decision_about(preprocessor, rows, options, session, known)
    if decision is not None:
        session.journal.say(" ".join(decision.choice.reasons))
        if decision.choice.fit_intercept and not preprocessor.scaling.intercept:
            preprocessor, rows = preprocessor.with_intercept(), rows.with_intercept()
        options = options.with_model(decision.choice)
        setup = replace(setup, kernel=options.kernel, preprocessor=preprocessor)
    choice = None if decision is None else decision.choice
    kernel = setup.kernel
    problem = problem_of(rows, preprocessor, options, session)
    plan = plan_for(problem)
    session.journal.say(str(plan))
    rows, given = prepared_rows(rows, plan, options, session)
    weights = WeightFit(options.weights, options.weights.features(preprocessor))
    given = weights.applied(given)
    subset = None if decision is None else weights.started(decision.start)
    if subset is not None and not options.weights.shared:
        given = same_terms(given, subset.hyperparameters)
    start = starting_point(
        *(rows, given, options.search, weights.restarted(known, given)),
        solver=registry.find(plan.solver).fingerprint(plan, setup),
        most_points=min(plan.n, options.solver.n_inducing),
        session=session,
        subset=subset,
        choice=choice,
    )
    if plan.needs_length_scales:
        if options.search.wanted and not start.warm:
            start = find_length_scales(start, rows, plan.subset, options.search, session)
        with session.journal.bar("range of the inputs"):
            extent = rows.sum_over(InputExtent.of, session)
        found = start.hyperparameters
        resolution = InputResolution.of(found.kernel, rows.subset(1), (found, extent))
        plan = plan_for(replace(problem, resolution=resolution))
        rows = rows.prepared(kernel, registry.find(plan.solver).keeps_rows, session)
        session.journal.say(str(plan))
    else:
        start = weights.placed(start, rows, options.search, session)
    warn_of_long_fit(plan)
    solver = registry.create(plan, setup)
    with_terms = options.search.wanted and not options.weights.shared
    deciding, some = solver.for_decisions(rows) if with_terms else (solver, rows)
    first = weights.first_search(options)
    optimum = find_hyperparameters(deciding, some, start, first, session)
    tested = Tested(optimum.hyperparameters)
    if with_terms:
        optimum, tested = weights.pruned(optimum, start, some, deciding, options, session)
    if deciding is not solver:
        optimum, tested = weights.finished(optimum, start, rows, solver, options, session)
    if options.search.wanted:
        remember(KnownOptimum(optimum.hyperparameters, solver.carried, choice))
    with session.journal.phase("posterior"):
        posterior, *others = solver.condition_each(rows, optimum.hyperparameters)
    report = report_of(plan, optimum, posterior.diagnostics, preprocessor, options, session)
    information = information_of(optimum, decision, plan.n)
    report.notes = preprocessor.notes + notes_on(optimum.hyperparameters, start.given, information)
    if choice is not None:
        report.kernel_table, report.notes = choice.table, [*choice.reasons, *report.notes]
        report.prior_table = choice.prior_table
    warn_of_search_without_end(optimum, session)
    report.parameter_names = weights.features.of_parameters(optimum.hyperparameters)
    if not options.weights.shared:
        described = posterior, tested, rows, preprocessor, weights.features, session
        report.weight_table = weight_table(*described)
        noted = optimum.hyperparameters, rows, weights.features, report.weight_table, session
        report.notes += notes_on_weights(*noted)
    return FittedModel(preprocessor, plan, posterior, report, others=tuple(others)), rows


def decision_about(
    preprocessor: Preprocessor,
    rows: RowSource,
    options: FitOptions,
    session: Session,
    known: KnownOptimum | None,
) -> Decision | None:
    """Return the model of a fit that leaves some of it open, None if nothing is open.

    The choice of a checkpoint or of an earlier fit is kept. A fit that cannot be planned is refused
    before models are compared.
    """
    open_model = options.open_model
    if open_model.is_decided:
        return None
    earlier = None if known is None else known.choice
    if options.search.checkpoint is not None:
        earlier = choice_in(options.search.checkpoint, open_model) or earlier
    if earlier is not None and open_model.has(earlier) and earlier.suits(preprocessor):
        return Decision(earlier)

    def problem_with(kernel: Kernel, ard: bool) -> Problem:
        model = replace(options, kernel=kernel, search=replace(options.search, ard=ard))
        return problem_of(rows, preprocessor, model, session)

    def is_possible(kernel: Kernel, ard: bool) -> bool:
        if options.solver.solver == "auto":
            return True
        try:
            registry.find(options.solver.solver).refuse(problem_with(kernel, ard))
        except SolverUnavailable:
            return False
        return True

    first_ard = open_model.ard[0]
    possible = tuple(kernel for kernel in open_model.kernels if is_possible(kernel, first_ard))
    open_model = replace(open_model, kernels=possible or open_model.kernels)
    usual = problem_with(open_model.kernels[0], first_ard)
    plan_for(usual)
    decision = decided(
        open_model,
        rows,
        preprocessor,
        options.search,
        session,
        partial(usual.exact_bytes, gram=usual.gram),
        is_possible,
    )
    if not open_model.has_open_weights:
        return decision
    chosen = options.with_model(decision.choice)
    shared_seconds = plan_for(problem_of(rows, preprocessor, chosen, session)).seconds

    def reason_against(kind: str) -> str | None:
        with_kind = replace(chosen, weights=chosen.weights.of_kind(kind))
        return reason_against_terms(
            problem_of(rows, preprocessor, with_kind, session), shared_seconds
        )

    return with_weights(decision, options, preprocessor, session, reason_against, len(rows))


def reason_against_terms(problem: Problem, shared_seconds: float | None) -> str | None:
    """Return why a fit does not try weights with priors of their own, None if it does.

    `shared_seconds` are those that a fit of weights with the same prior is predicted to take.
    """
    try:
        plan = plan_for(problem)
    except SolverUnavailable:
        return "the solver takes no weights with priors of their own"
    except MemoryLimitError:
        return "memory_limit is too small for weights with priors of their own"
    usual = shared_seconds or 0.0
    longest = max(SHORT_FIT_SECONDS, MOST_TIMES_LONGER * usual)
    if plan.seconds is None or plan.seconds <= longest:
        return None
    return (
        f"with priors of their own, the fit is predicted to take {format_seconds(plan.seconds)}, "
        f"and {format_seconds(usual)} without"
    )


def problem_of(
    rows: RowSource, preprocessor: Preprocessor, options: FitOptions, session: Session
) -> Problem:
    """Return the sizes and kinds of rows and model by which a fit is planned."""
    given = rows, preprocessor, options.kernel, options.solver, session
    kernels, likelihood = options.weights.kernels(preprocessor), options.search.likelihood
    problem = problem_for(*given, options.search.ard, kernels, likelihood.latent_functions)
    return replace(problem, own_curves=options.weights.has_curves)


def problem_for(
    rows: RowSource,
    preprocessor: Preprocessor,
    kernel: Kernel,
    options: SolverOptions,
    session: Session,
    ard: bool,
    weight_kernels: int,
    latent_functions: int = 0,
) -> Problem:
    """Return the sizes and kinds of rows, kernel and weights by which a fit is planned."""
    some = rows.load() if rows.in_memory else rows.subset(COLUMN_SUBSET_ROWS)
    pairs = rows.in_memory and some.Z.is_sparse and kernel.is_radial and not ard
    return Problem(
        n=len(rows),
        p=some.x.entries_per_row if preprocessor.sparse_x else preprocessor.scaling.x_shift.size,
        d=some.Z.shape[1] if weight_kernels else some.Z.entries_per_row,
        memory_limit=session.memory_limit,
        n_jobs=session.executor.n_jobs,
        options=options,
        stream=not rows.in_memory,
        gram=kernel.input_kind != "vectors",
        pair_density=some.Z.pair_density if pairs and registry.uses_pairs(options.solver) else None,
        resolution=InputResolution.of(kernel, some),
        indexed=rows.is_indexed,
        weight_kernels=weight_kernels,
        sparse_terms=bool(weight_kernels) and some.Z.is_sparse,
        latent_functions=latent_functions,
    )


def prepared_rows(
    rows: RowSource, plan: Plan, options: FitOptions, session: Session
) -> tuple[RowSource, Hyperparameters]:
    """Return the rows in the form that the solver takes, and the hyperparameters as given.

    A length scale that is given as "median" is computed from all rows if the solver keeps them,
    and from its subset if not.
    """
    keep = registry.find(plan.solver).keeps_rows and not plan.needs_length_scales
    prepared = rows.prepared(options.kernel, keep, session)
    in_memory = keep and rows.in_memory
    x = rows.load().x if in_memory else prepared.subset(plan.subset).x
    kernel = options.kernel.resolved(x, options.search.ard)
    kernel = kernel.without_columns(options.search.unused_columns)
    return prepared, options.search.hyperparameters(kernel)


def find_hyperparameters(
    solver: Solver, rows: RowSource, start: StartingPoint, options: FitOptions, session: Session
) -> Optimum:
    """Return the hyperparameters that maximise log marginal likelihood times prior.

    The best ones so far are saved in the checkpoint, if there is one, and marked as finished at the
    end of a search that has converged.
    """
    first = start.hyperparameters
    if not options.search.wanted:
        return Optimum(start.given, None, None, "the hyperparameters are as given", [])
    if start.finished and solver.carry(start.points):
        return Optimum(first, None, True, "the checkpoint is of a search that had converged", [])
    if session.journal.stopped:  # The user stopped the search for length scales.
        return Optimum(
            first,
            None,
            False,
            "the search was stopped on a subset of the rows",
            at_bound(first, HyperparameterPrior.around(start.given)),
        )

    def save_best(hyperparameters: Hyperparameters) -> None:
        start.save(hyperparameters, solver.carried)

    optimum = solver.search(start.search(rows, options.search, session, save_best))
    start.save(optimum.hyperparameters, solver.carried, finished=bool(optimum.converged))
    return optimum


def warn_of_long_fit(plan: Plan) -> None:
    """Warn if "auto" has found no solver that is fast enough, and say how long this one takes."""
    if plan.candidates and plan.seconds is not None and plan.seconds > AUTO_PATIENCE_SECONDS:
        warnings.warn(
            f"This fit is predicted to take {format_seconds(plan.seconds)}, and no solver is "
            "faster. Fit fewer rows, give a smaller n_inducing, or use more cores.",
            SlowFitWarning,
            stacklevel=2,
        )


def warn_of_search_without_end(optimum: Optimum, session: Session) -> None:
    """Warn if the search ended before an optimum, unless somebody stopped it.

    Where y is constant there is no optimum, and no search.
    """
    if optimum.converged is not False or optimum.message == CONSTANT_MESSAGE:
        return
    if not session.journal.stopped:
        warnings.warn(
            f"The search for hyperparameters did not converge: {optimum.message}. Raise max_iter "
            "or tol, or give other start values. fit_report_ says how far it came.",
            ConvergenceWarning,
            stacklevel=2,
        )


def information_of(optimum: Optimum, decision: Decision | None, n: int) -> np.ndarray | None:
    """Return the average information at the optimum, or None if it is not known.

    If the search has not computed it, it is that of the rows of the comparison, which is multiplied
    for n rows: it is a sum over the rows, roughly.
    """
    if optimum.evidence is not None and optimum.evidence.information is not None:
        return optimum.evidence.information
    start = None if decision is None else decision.start
    if start is None or start.information is None:
        return None
    if start.hyperparameters.names != optimum.hyperparameters.names:
        # The comparison was one of weights that share their prior.
        return None
    of_all_rows: np.ndarray = start.information * (n / start.rows)
    return of_all_rows


def notes_on(
    found: Hyperparameters, given: Hyperparameters, information: np.ndarray | None
) -> list[str]:
    """Return what a user should know about the hyperparameters, as sentences.

    A parameter is determined by its prior if the rows say less about it than the prior.
    """
    at = found.names.index("sigma_w")
    if information is None or found.sigma_w == 0.0:
        return []
    if information[at, at] >= HyperparameterPrior.around(found).sd[at] ** -2:
        return []
    return [
        f"The data hardly determine sigma_w. It is {found.sigma_w:.2g}, and started at "
        f"{given.sigma_w:.2g}. Standard deviations of weights include it, and those of "
        "explain(std='surface') do not."
    ]


def report_of(
    plan: Plan,
    optimum: Optimum,
    found: Diagnostics,
    preprocessor: Preprocessor,
    options: FitOptions,
    session: Session,
) -> FitReport:
    """Return the record of a fit, in the units of the user's y."""
    report, y_scale = session.journal.close(), preprocessor.scaling.y_scale
    report.solver, report.reasons = plan.solver, list(plan.reasons)
    report.n_samples, report.n_features = plan.n, preprocessor.n_z
    report.dtype, report.n_jobs = np.dtype(found.dtype or plan.dtype).name, plan.n_jobs
    if found.dtype not in (None, plan.dtype):
        report.reasons.append(f"C has no float32 Cholesky factor, so this is {report.dtype}.")
    report.standardized = options.inputs.standardize
    report.hyperparameters = optimum.hyperparameters.as_dict()
    report.evidence = found.log_evidence - plan.n * np.log(y_scale)
    report.converged, report.message, report.at_bound = (
        optimum.converged,
        optimum.message,
        optimum.at_bound,
    )
    report.jitter, report.condition = found.jitter, found.condition_number
    report.memory_planned = plan.bytes_needed
    report.variances, report.solution = found.variances, found.solution
    report.evidence_deviation = found.standard_error
    report.search_rows_used, report.promised_gain = optimum.rows, optimum.promised_gain
    if optimum.evidence is not None and optimum.evidence.inverse_diagonal is not None:
        residuals = optimum.evidence.leave_one_out()
        report.leave_one_out_rmse = y_scale * float(np.sqrt(np.mean(residuals**2)))
    return report
