"""The decision about kernel, ARD and intercept: what is compared, on which rows, and the result.

It is made once for a fit, on a subset of its rows, before a solver is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..data.inputs import Preprocessor, TrainingRows
from ..data.row_source import MemoryRows, RowSource
from ..data.scaling import Scaling
from ..errors import GPXError, NotPositiveDefinite
from ..kernels.kernel import Kernel
from ..runtime.memory import counted
from ..runtime.session import Session
from ..solvers.low_dimensional import MAX_X_COLUMNS
from .model_choice import MAX_ARD_COLUMNS, ModelChoice, OpenModel
from .model_comparison import CLOSE_NATS, Contender, compared
from .options import SearchLimits
from .starting_point import SubsetOptimum

# Models are compared on this many rows. An evaluation takes 0.1 s there on two cores.
COMPARISON_ROWS = 1_500
# Models are first searched on a third of these rows, where an evaluation takes a tenth of the time.
FIRST_ROWS = 500
# If there are no more rows than this, there is no first part: it would save no time.
ONE_PART_ROWS = 700
# If memory allows fewer rows than this, nothing is compared.
LEAST_ROWS = 50
# A length scale of more than so many times the range of its column leaves the kernel: it changes
# the exponent by at most (1 / 10)^2 / 2 between any two rows.
LONGEST_LENGTH_IN_RANGES = 10.0

# The reason for leaving columns out names so many of them.
MAX_PRINTED_COLUMNS = 8

# A function that tells whether the solver that the user asked for takes a kernel, with ARD or not.
IsPossible = Callable[[Kernel, bool], bool]


@dataclass(frozen=True)
class Comparison:
    """The best model of a comparison, and the rows on which it was found.

    `first` are fewer rows, where searches begin, if there are any. `intercept_is_open` says that
    both choices of the intercept are possible.
    """

    best: Contender
    some: TrainingRows
    first: TrainingRows | None
    intercept_is_open: bool


@dataclass(frozen=True)
class Decision:
    """The model of a fit, and where its search begins, if a comparison has found that.

    If there was a comparison, it is known for the next question.
    """

    choice: ModelChoice
    start: SubsetOptimum | None = None
    comparison: Comparison | None = None


def decided(
    open_model: OpenModel,
    rows: RowSource,
    preprocessor: Preprocessor,
    limits: SearchLimits,
    session: Session,
    bytes_for: Callable[[int], int],
    is_possible: IsPossible,
) -> Decision:
    """Return the model that the integrated evidence of a subset of the rows prefers.

    `bytes_for(m)` is the memory that a comparison on m rows takes. If nothing can be compared, the
    model is the usual one, and the reasons say why.
    """
    count = min(len(rows), COMPARISON_ROWS)
    while count >= LEAST_ROWS and bytes_for(count) > session.memory_limit:
        count //= 2
    usual = open_model.usual
    if count < min(LEAST_ROWS, len(rows)) or bytes_for(count) > session.memory_limit:
        return _undecided(usual, "memory_limit is too small for a comparison of models")
    source = _sliceable(rows, usual.kernel)
    some = source.subset(count)
    if not np.ptp(some.y):
        return _undecided(usual, "y is constant on the rows of the comparison")
    columns = rows.load() if rows.in_memory else some
    open_model, reasons = affordable(open_model, columns, preprocessor)
    pairs = [
        (kernel, ard)
        for ard in open_model.ard
        for kernel in open_model.kernels
        if is_possible(kernel, ard)
    ]
    models = list(_contenders(pairs or [(usual.kernel, usual.ard)], open_model, some, limits))
    flips = len(open_model.fit_intercept) > 1
    is_alone = len(models) == 1 and not flips
    if is_alone and not open_model.has_open_weights:
        choice = replace(usual, ard=models[0].ard, fit_intercept=open_model.fit_intercept[0])
        return Decision(replace(choice, reasons=tuple(reasons)))
    first = None
    if count > ONE_PART_ROWS:
        fewer = source.subset(FIRST_ROWS)
        first = fewer if np.ptp(fewer.y) else None
    with session.journal.phase("choice of the model"):
        ranked = compared(models, flips, some, first, limits.max_iter, session)
    best = ranked[0]
    if best.point is None or best.point.evidence is None:
        raise _all_failed(ranked)
    n_rows = best.point.evidence.n_rows
    unused = unused_columns(best, columns)
    if unused:
        reasons.append(_unused_reason(unused, preprocessor.n_x))
    y_scale = preprocessor.scaling.y_scale
    # A kernel and an intercept that the user gave have nothing to be compared with.
    several = [] if is_alone else ranked
    choice = ModelChoice(
        best.kernel,
        best.ard,
        best.fit_intercept,
        tuple(model.record(y_scale, model is best) for model in several),
        (*(reasons_for(several, n_rows) if several else ()), *reasons),
        unused,
    )
    found = best.found
    kernel = found.kernel.without_columns(unused)
    start = found.with_kernel(kernel)
    information = best.point.evidence.information
    if information is not None:
        kept = np.isin(found.names, start.names)
        information = information[np.ix_(kept, kept)]
    comparison = Comparison(best, some, first, flips)
    return Decision(choice, SubsetOptimum(start, n_rows, information), comparison)


def _undecided(usual: ModelChoice, why: str) -> Decision:
    """Return the usual model, with the reason why nothing was compared."""
    return Decision(replace(usual, reasons=(f"The model is the usual one: {why}.",)))


def _sliceable(rows: RowSource, kernel: Kernel) -> RowSource:
    """Return the rows in a form of which subsets can be taken, such as blocks of a Gram matrix."""
    if not rows.in_memory:
        return rows
    data = rows.load()
    return MemoryRows(replace(data, x=kernel.sliceable(data.x)))


def affordable(
    open_model: OpenModel, some: TrainingRows, preprocessor: Preprocessor
) -> tuple[OpenModel, list[str]]:
    """Return the models that are worth a comparison, and why others are not.

    `some` are all rows if they are in memory, else a subset.
    """
    reasons = []
    ard, intercept = open_model.ard, open_model.fit_intercept
    if len(ard) > 1:
        against = _reason_against_ard(some, preprocessor)
        if against is not None:
            ard = (False,)
            reasons += [against] if against else []
    if len(intercept) > 1:
        if some.Z.is_sparse:
            intercept = (False,)
            reasons.append(
                "Z is sparse, so there is no intercept: all pairs of rows would share a feature."
            )
        elif has_constant(some, preprocessor.scaling):
            intercept = (False,)
            reasons.append("Z has a constant column, so there is no further intercept.")
    return replace(open_model, ard=ard, fit_intercept=intercept), reasons


def _reason_against_ard(some: TrainingRows, preprocessor: Preprocessor) -> str | None:
    """Return why there is only one length scale for all columns, or None if there may be more.

    It is empty where both are the same.
    """
    p = preprocessor.n_x
    if preprocessor.sparse_x:
        return "X is sparse, so all of its columns have the same length scale."
    if p <= 1:
        return ""
    if p > MAX_ARD_COLUMNS:
        return (
            f"X has {p:,} columns, so all of them have the same length scale. Up to "
            f"{MAX_ARD_COLUMNS}, one for each is compared with that."
        )
    if some.Z.is_sparse:
        return (
            "Z is sparse, so all columns of X have the same length scale: pairs of rows without a "
            "shared feature are then left out."
        )
    return None


def has_constant(some: TrainingRows, scaling: Scaling) -> bool:
    """Return whether a column of a dense Z is the same number other than 0 in all rows.

    A column that is centred is not, though it may be on a subset of the rows.
    """
    Z = some.Z.to_dense()
    is_constant = (np.ptp(Z, axis=0) == 0) & (Z[0] != 0) & (scaling.z_shift == 0)
    return bool(is_constant.any())


def _contenders(
    pairs: list[tuple[Kernel, bool]],
    open_model: OpenModel,
    some: TrainingRows,
    limits: SearchLimits,
) -> list[Contender]:
    """Return the models to compare, without an intercept unless it is given.

    A kernel is left out with ARD if it is the same without, as where its length scales are given.
    """
    found: list[Contender] = []
    seen = set()
    for kernel, ard in pairs:
        resolved = kernel.resolved(some.x, ard)
        key = id(kernel), resolved.parameter_kinds
        if key in seen:
            continue
        seen.add(key)
        given = limits.hyperparameters(resolved)
        found.append(Contender(kernel, ard, open_model.fit_intercept[0], given, given))
    return found


def unused_columns(best: Contender, rows: TrainingRows) -> tuple[int, ...]:
    """Return the columns of X whose length scale is so long that the kernel does not need them.

    With few columns nothing is gained, and functions on a box or a grid need all of them.
    """
    p = rows.x.shape[1] if isinstance(rows.x, np.ndarray) else 0
    if not best.ard or p <= MAX_X_COLUMNS or best.found.kernel.parameter_kinds.count("theta1") > 1:
        return ()
    shortest, _ = best.found.kernel.length_scale_range(p)
    ranges = np.ptp(rows.x, axis=0)
    # A constant column is 0, because x is centred. One that is constant on a subset alone is not.
    is_known = (ranges > 0) | (rows.x[0] == 0)
    long = is_known & (shortest > LONGEST_LENGTH_IN_RANGES * ranges)
    if long.all():
        long[np.argmin(shortest)] = False
    return tuple(np.flatnonzero(long).tolist())


def _unused_reason(unused: tuple[int, ...], p: int) -> str:
    """Return the sentence about columns that the kernel does not read."""
    names = ", ".join(map(str, unused[:MAX_PRINTED_COLUMNS]))
    more = " and others" if len(unused) > MAX_PRINTED_COLUMNS else ""
    return (
        f"The kernel does not read {len(unused):,} of {counted(p, 'column')} of X (numbers "
        f"{names}{more}): their length scales are more than {LONGEST_LENGTH_IN_RANGES:.0f} times "
        "their ranges."
    )


def _all_failed(models: list[Contender]) -> GPXError:
    """Return the error of a comparison in which every model failed, with all of their errors."""
    errors = "; ".join(f"{model.name}: {model.note}" for model in models)
    return NotPositiveDefinite(
        f"None of the models could be fitted on the rows of the comparison. {errors}. Check X and "
        "y, raise sigma_y, or name a kernel."
    )


def reasons_for(ranked: list[Contender], n_rows: int) -> list[str]:
    """Return why the best model was taken, as sentences."""
    best, *others = [model for model in ranked if model.point is not None]
    models = counted(len(ranked), "model")
    found = f"{best.name} has the largest integrated evidence of {models}"
    if others:
        ahead = best.integrated - others[0].integrated
        found += f", {ahead:.1f} nats more than {others[0].name}"
    reasons = [f"{found}, on {counted(n_rows, 'row')}."]
    preferred = max(
        (best, *(model for model in others if not model.note)),
        key=lambda model: model.leave_one_out,
    )
    gap = preferred.leave_one_out - best.leave_one_out
    if gap > CLOSE_NATS:
        reasons.append(
            f"Predictions of rows that are left out prefer {preferred.name}: their log density is "
            f"{gap:.1f} nats larger."
        )
    return reasons
