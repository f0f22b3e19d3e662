"""A few queries given the union of their rows, which gives them a joint distribution.

Each query of the neighbours solver is conditioned on rows of its own. For a comparison of queries,
all of them are conditioned exactly on the shared rows and on the rows near any of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...data.inputs import InputRows
from ...data.row_source import MemoryRows
from ...runtime.session import Session
from ..exact.posterior import ExactPosterior
from ..exact.solver import ExactSolver
from .gathering import around

if TYPE_CHECKING:
    from .posterior import NeighborsPosterior


def given_union(
    posterior: NeighborsPosterior, queries: InputRows, session: Session
) -> tuple[ExactPosterior, np.ndarray]:
    """Return the exact posterior given the rows of all queries, and the numbers of these rows.

    Weighted sums over many other rows are left out, so that constant weights are known from these
    rows alone. (r + m)^3/3 flops for r rows near the queries and m shared ones.
    """
    without_sums = replace(posterior, summed=posterior.summed[:0])
    local, index = around(without_sums, queries, session)
    solver = ExactSolver(len(index), np.float64, session)
    return solver.condition(MemoryRows(local.memory), posterior.hyperparameters), index
