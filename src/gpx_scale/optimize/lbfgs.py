"""Minimisation of an objective within its bounds by L-BFGS-B of SciPy."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from .objective import Objective

# A gradient counts as 0 if no entry is larger, in nats per row and unit of a logarithm.
GRADIENT_TOLERANCE_NATS_PER_ROW = 1e-6
# This is SciPy's default. Searches for hyperparameters are limited by their iterations instead.
MAX_EVALUATIONS = 15_000
# The Hessian is approximated from this many corrections, which is SciPy's default. There are few
# hyperparameters, so more of them would not help.
MAX_CORRECTIONS = 10
# Parts of SciPy's messages, and the messages of the fit report that replace them.
MESSAGES = {
    "reduction of f": "the log marginal likelihood changes by less than tol",
    "norm of projected gradient": "the gradient is 0",
}


def lbfgs(
    objective: Objective,
    max_iter: int,
    tol: float,
    *,
    gradient_tol: float = GRADIENT_TOLERANCE_NATS_PER_ROW,
    max_evaluations: int = MAX_EVALUATIONS,
    memory: int = MAX_CORRECTIONS,
) -> tuple[bool, str]:
    """Minimise an objective from its start; return whether the search converged and a message.

    The best point is `objective.best`. The search has converged if the loss changes by less than
    `tol`, relative to its size, or if no entry of the gradient is above `gradient_tol`. `memory` is
    the number of corrections that approximate the Hessian.
    """
    coordinates = objective.coordinates()
    options = {"maxiter": max_iter, "ftol": tol, "gtol": gradient_tol}
    result = minimize(
        objective.visit,
        objective.first(),
        jac=True,
        method="L-BFGS-B",
        bounds=np.column_stack([coordinates.low, coordinates.high]),
        options=options | {"maxfun": max_evaluations, "maxcor": memory},
    )
    original = str(result.message).strip().lower().replace("_", " ")
    message = next((ours for known, ours in MESSAGES.items() if known in original), original)
    return bool(result.success), message
