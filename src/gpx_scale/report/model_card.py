"""The technical details of a fit: solver, models that were compared, hyperparameters, evidence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..numbers_as_text import as_text, significant
from ..runtime.journal import FitReport
from ..runtime.memory import counted, format_bytes
from ..runtime.model_table import ComparedModel

# The report explains the hyperparameters by these words.
MEANINGS = {
    "theta1": "variance of a weight",
    "theta2": "squared length scale: how far apart in x weights begin to differ",
    "shape": "how fast similarity falls with distance: the smaller, the slower",
    "constant_variances": "variances of the parts of weights that are the same everywhere",
    "own_variances": "variances of the parts of weights that vary with their own feature",
    "varying_variances": "variances of the parts of weights that vary with x",
    "sigma_w": "standard deviation of a sample's own weights around those of similar samples",
    "sigma_y": "noise: standard deviation of the part of y that no feature explains",
}


def model_card(fit: FitReport) -> dict[str, Any]:
    """Return the fit in words: `hyperparameters` (name, value, meaning) and `lines` (by term)."""
    state = {True: "converged", False: "NOT converged", None: "no search"}[fit.converged]
    counts = ", ".join(f"{count} on {phase}" for phase, count in fit.evaluations.items())
    error = (
        f" (standard error {significant(fit.evidence_deviation, 2)})"
        if fit.evidence_deviation
        else ""
    )
    lines = {
        "Solver": [f"{fit.solver} ({fit.dtype}, {counted(fit.n_jobs, 'thread')})", *fit.reasons],
        "Model": fit.notes,
        "Weights": [str(row) for row in fit.weight_table],
        "Log marginal likelihood": [
            f"{significant(fit.evidence, 6)} nats{error}",
            "The natural logarithm of the probability density of y under the model.",
        ],
        "Leave-one-out": [f"RMSE {significant(fit.leave_one_out_rmse)}"]
        if math.isfinite(fit.leave_one_out_rmse)
        else [],
        "Convergence": [
            f"{state}: {fit.message}" if fit.message else state,
            f"evaluations: {counts}" if counts else "",
            f"search: {fit.search}" if fit.search else "",
        ],
        "At a bound": [", ".join(fit.at_bound)],
        "Solution": [fit.solution or f"Cholesky, condition number at least {fit.condition:.1e}"],
        "Variances": [fit.variances],
        "Seconds": [", ".join(f"{phase} {value:.2f}" for phase, value in fit.seconds.items())],
        "Memory": [
            f"{format_bytes(fit.memory_planned)} planned, "
            f"{format_bytes(fit.memory_peak)} peak of the process"
        ],
    }
    hyperparameters = []
    for name, value in fit.hyperparameters.items():
        least, most = significant(float(np.min(value))), significant(float(np.max(value)))
        said = f"{np.size(value)} values, {least} to {most}" if np.ndim(value) else least
        hyperparameters.append((name, said, MEANINGS.get(name.split(".")[-1], "")))
    units = (
        "In standardised units: y and dense features have mean 0 and standard deviation 1."
        if fit.standardized
        else "In the units of the data."
    )
    shown = {term: said for term, said in lines.items() if any(said)}
    return {
        "hyperparameters": hyperparameters,
        "units": units,
        "lines": shown,
        "compared": _compared(fit.kernel_table) + _compared(fit.prior_table),
    }


def _compared(table: tuple[ComparedModel, ...]) -> list[dict[str, Any]]:
    """Return a row for each model that was compared: its evidence, how far behind, and a note."""
    best = max((model.integrated for model in table if model.chosen), default=math.nan)
    return [
        {
            "name": model.name,
            "evidence": _nats(model.integrated),
            "behind": "chosen" if model.chosen else _nats(best - model.integrated),
            "left_out": _nats(model.leave_one_out),
            "note": model.note,
        }
        for model in table
    ]


def _nats(value: float) -> str:
    """Return a number of nats with one decimal, or nothing if it is not known."""
    return "" if math.isnan(value) else as_text(value, ",.1f")
