"""L-BFGS-B of an objective within its bounds."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from .objective import Objective

# The largest slope that counts as 0, in nats per row and unit of a logarithm.
GRADIENT_TOLERANCE = 1e-6
# SciPy's own limit: the number of iterations is what limits a search of hyperparameters.
MAX_EVALUATIONS = 15_000
# Corrections that approximate the Hessian, SciPy's own number: there are few hyperparameters.
MEMORY = 10
# What L-BFGS-B says in the end, and what we say.
ENDS = {
    "reduction of f": "the evidence changes by less than tol",
    "norm of projected gradient": "the gradient is 0",
}


def lbfgs(
    objective: Objective,
    max_iter: int,
    tol: float,
    *,
    gradient_tol: float = GRADIENT_TOLERANCE,
    max_evaluations: int = MAX_EVALUATIONS,
    memory: int = MEMORY,
) -> tuple[bool, str]:
    """Minimise an objective from its start, and return whether that converged, and how it ended.

    The best point is `objective.best`. `tol` is a relative change of the loss, `gradient_tol` the
    largest slope.
    """

    def loss_and_slope(where: np.ndarray) -> tuple[float, np.ndarray]:
        point = objective.visit(where)
        return point.loss, point.slope

    options = {"maxiter": max_iter, "ftol": tol, "gtol": gradient_tol}
    result = minimize(
        loss_and_slope,
        objective.first(),
        jac=True,
        method="L-BFGS-B",
        bounds=np.column_stack(objective.bounds()),
        options=options | {"maxfun": max_evaluations, "maxcor": memory},
    )
    said = str(result.message).strip().lower().replace("_", " ")
    message = next((words for known, words in ENDS.items() if known in said), said)
    return bool(result.success), message
