"""Posteriors in memory around queries, where the training rows themselves are not in memory.

One pass over all rows finds those near a batch of queries. They are gathered with the shared rows,
and the posterior of these rows alone gives the same answers to the batch as that of all rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...data.indexed_rows import IndexedRows
from ...data.inputs import InputRows, TrainingRows
from ...linalg.neighbor_search import Eligible, search_among
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import fields_of
from .planning import FACTOR_MEMORY_SHARE, gathered_bytes

if TYPE_CHECKING:
    from .posterior import NeighborsPosterior

# The rows of a batch of queries take at most this share of the memory. A larger batch needs fewer
# passes over all rows.
PASS_MEMORY_SHARE = 0.25
# Rows of files are written into a model file up to this size.
SAVED_ROWS_BYTES = 2**30


def around(
    posterior: NeighborsPosterior,
    queries: InputRows,
    session: Session,
    own: np.ndarray | None = None,
) -> tuple[NeighborsPosterior, np.ndarray]:
    """Return a posterior in memory that gives the same answers to these queries.

    Its rows are the shared ones, those of weighted sums, those near the queries, and the `own` rows
    (b,) of queries that are training rows. With it come their numbers among all rows, ascending, so
    that rows that are equally near stay in their order. One pass over all rows.
    """
    shared = posterior.shared
    among = Eligible.without(len(posterior), shared, len(queries), own)
    search = search_among(posterior.rows, posterior.hyperparameters)
    near = search.nearest(queries, posterior.nearby, among, session)
    mine = [] if own is None else [own]
    index = np.unique(np.concatenate([shared, posterior.summed, near.rows[near.in_use], *mine]))
    places, summed = np.searchsorted(index, shared), np.searchsorted(index, posterior.summed)
    gathered = posterior.rows[index]
    assert isinstance(gathered, TrainingRows)
    # Held-out rows are predicted several times, and new queries once.
    share = FACTOR_MEMORY_SHARE * session.memory_limit
    keeps = own is not None and 8.0 * index.size * shared.size <= share
    local = replace(posterior, rows=gathered, shared=places, summed=summed, keeps_factor=keeps)
    return local, index


def with_sums(
    posterior: NeighborsPosterior, summed: np.ndarray, session: Session
) -> NeighborsPosterior:
    """Return a posterior with weighted sums over some rows, whose coefficients are computed."""
    local = replace(posterior, summed=summed, coefficients=None)
    if not posterior.rows.in_memory:
        index = np.union1d(posterior.shared, summed)
        places = [np.searchsorted(index, some) for some in (posterior.shared, summed)]
        gathered = posterior.rows[index]
        assert isinstance(gathered, TrainingRows)
        local = replace(local, rows=gathered, shared=places[0], summed=places[1])
        local = replace(local, keeps_factor=False)
    known = local.shared_rows(session)
    assert known.sums is not None
    made = replace(posterior, summed=summed, coefficients=known.sums.coefficients)
    return made.with_known(known) if posterior.rows.in_memory else made


def batches(posterior: NeighborsPosterior, count: int, session: Session) -> list[slice]:
    """Return slices of queries whose rows are found in one pass, and are in memory together."""
    assert isinstance(posterior.rows, IndexedRows)
    # Every term has its own points and features.
    row_bytes = posterior.rows.bytes_per_row * len(posterior.hyperparameters.weight_prior.active)
    # If all rows are shared, a query has no further ones.
    each = max(1, gathered_bytes(posterior.nearby, row_bytes))
    shared = gathered_bytes(posterior.shared.size + posterior.summed.size, row_bytes)
    session.require(each + shared, "one query with its neighbours", "a smaller n_shared")
    share = PASS_MEMORY_SHARE * session.memory_limit
    return slices(count, max(1, int((share - shared) // each)))


def fields_for_a_file(posterior: NeighborsPosterior) -> dict[str, Any]:
    """Return the fields of a posterior for a model file, with its rows if these are not too many.

    Otherwise, the file has the places and checksums of the rows.
    """
    known, rows = fields_of(posterior), posterior.row_source
    if not rows.in_memory:
        assert isinstance(rows, IndexedRows)
        if len(rows) * rows.bytes_per_row <= SAVED_ROWS_BYTES:
            known["rows"] = rows.load()
    return known
