"""Rows that are added to a fitted model: they are neighbours at once, and nothing is refitted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...data.indexed_rows import IndexedRows, bytes_per_row_of
from ...data.inputs import TrainingRows
from ...data.row_source import joined
from ...linalg.neighbor_search import search_among
from ...runtime.parallel import evenly_spaced
from ...runtime.session import Session
from ..neighborhood import FLOAT32_LEAST_NOISE_SHARE, SharedRows
from .planning import FACTOR_MEMORY_SHARE
from .vecchia import LEAST_SAMPLED_ROWS, OrderedRows

if TYPE_CHECKING:
    from .posterior import NeighborsPosterior


@dataclass
class NewRows:
    """New rows, which are collected as they are; the rows of blocks add up to those of all."""

    parts: list[TrainingRows]

    def __iadd__(self, other: NewRows) -> NewRows:
        self.parts = self.parts + other.parts
        return self

    @classmethod
    def of(cls, block: TrainingRows) -> NewRows:
        """Return the rows of one block."""
        return cls([block])


def with_rows(posterior: NeighborsPosterior, more: NewRows, session: Session) -> NeighborsPosterior:
    """Return the posterior with new rows after its own.

    Shared rows, numbers of neighbours and hyperparameters stay as they are. The log marginal
    likelihood gains the log density of the new rows, each given its neighbours among the rows
    before it, estimated from LEAST_SAMPLED_ROWS of them.
    """
    new = joined(more.parts)
    rows, kernel, before = posterior.rows, posterior.hyperparameters.kernel, len(posterior)
    both: TrainingRows | IndexedRows
    if rows.in_memory:
        old = posterior.memory
        each = 8 * (old.Z.entries_per_row + posterior.d + 4)
        session.require(2 * each * (before + len(new)), "a copy of the rows with the new ones")
        both = replace(old, x=kernel.vectors_of(old.x)).with_rows(new)
        both = replace(both, x=kernel.training_input(both.x))
    else:
        assert isinstance(rows, IndexedRows)
        added = rows.added + len(new)
        session.require(2 * added * bytes_per_row_of(new), "a copy of the rows that were added")
        both = rows.with_rows(new)
    positions = np.zeros(before + len(new), np.int64)
    positions[before:] = np.arange(1, len(new) + 1)
    positions[posterior.shared] = len(positions)
    some = before + evenly_spaced(LEAST_SAMPLED_ROWS, len(new))
    search = search_among(both, posterior.hyperparameters)
    given = posterior.shared, posterior.neighbors, positions, some, session
    logs = OrderedRows.in_order(search, both, *given).log_densities(
        posterior.hyperparameters, session
    )
    times = len(new) / logs.size
    spread = float(logs.std(ddof=1)) if logs.size > 1 else 0.0
    error = times * spread * np.sqrt(logs.size * max(0.0, 1.0 - logs.size / len(new)))
    # Factors of all rows are kept as long as they take no more memory than a fit gives them.
    factor_bytes = 8 * len(both) * posterior.shared.size
    keeps = posterior.keeps_factor and factor_bytes <= FACTOR_MEMORY_SHARE * session.memory_limit
    made = replace(
        posterior,
        rows=both,
        keeps_factor=keeps,
        log_evidence=posterior.log_evidence + times * float(logs.sum()),
        standard_error=float(np.hypot(posterior.standard_error, error)),
    )
    return made.with_known(known) if (known := _factors(posterior, made, session)) else made


def _factors(
    before: NeighborsPosterior, after: NeighborsPosterior, session: Session
) -> SharedRows | None:
    """Return the factors of the shared rows with those of new rows, None if they must be new."""
    if not after.rows.in_memory:
        return None
    known = before.shared_rows(session)
    if not after.keeps_factor:
        known = replace(known, F=None)
    known = known.with_rows(after.memory, session)
    is_rounded = known.rounding > 0.0
    is_safe = (known.noise / known.diagonal).min() > FLOAT32_LEAST_NOISE_SHARE
    return known if is_safe or not is_rounded else None
