"""Predictions whose errors say how good a model is, because it has not seen their true values.

A report shows the errors of such predictions alone in large type. Samples that the model was fitted
on are recognised by hashes, and predicted by models without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from ..errors import InputError
from ..explanation import Explanation
from ..numbers_as_text import percent, significant
from ..runtime.memory import counted

# The calibration is drawn at these probabilities.
CALIBRATION_LEVELS = tuple(np.arange(1, 20) / 20)
# A table of coverage has at most this many groups. The smaller ones are one group together.
MAX_GROUPS = 10
# A period of time, or a part of the predictions by size, has at least this many samples, so that
# its coverage is known to about 10%.
MIN_PART_SAMPLES = 20
MAX_PERIODS = 10
# Without labels, samples are grouped by the sizes of their predictions, in these parts.
SIZES = ("lowest third", "middle third", "highest third")


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions that can be compared with true values.

    Attributes
    ----------
    samples : ndarray of shape (r,), or None
        The numbers of the samples that are predicted. None if these are other rows.
    y, mean : ndarray of shape (r,)
        The true values and the predictions.
    std : ndarray of shape (r,), or None
        The standard deviations of the predictions, noise included.
    replaced : ndarray of shape (r,)
        Which of them are predictions by models without the sample, instead of those that are
        explained.
    is_fair : bool
        Whether no model has seen the value that it predicts here.
    how : str
        A sentence about it.
    """

    samples: np.ndarray | None
    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray | None
    replaced: np.ndarray
    is_fair: bool
    how: str


def held_out_predictions(explanation: Explanation, y: np.ndarray, claimed: int | None) -> HeldOut:
    """Return the predictions of samples with true values y (m,) that can be compared with these.

    `claimed` is how many samples the model was fitted on, as the user says. It counts only if that
    cannot be found out.
    """
    record, every = explanation.training_record, np.arange(len(y))
    own = y, explanation.prediction, explanation.prediction_std
    none = np.zeros(len(y), bool)
    found = None if record is None else record.targets(explanation.row_keys, y)
    seen = None if found is None else record.seen(found)
    if (seen is None and claimed == 0) or (seen is not None and not seen.any()):
        how = "The errors are those of samples that the model was not fitted on."
        return HeldOut(every, *own, none, True, how)
    left_out = None if found is None else record.left_out()
    if seen is None:
        if left_out is None:
            how = (
                "It is not known whether the model was fitted on these samples. If it was, their "
                "errors are too small."
            )
            return HeldOut(every, *own, none, False, how)
        how = (
            "It is not known whether the model was fitted on these samples, so the errors are "
            f"those of training rows: {left_out.how}."
        )
        other = left_out.y, left_out.y - left_out.residuals, left_out.std
        return HeldOut(None, *other, np.ones(len(left_out.y), bool), True, how)
    count = f"{int(seen.sum()):,} of {counted(len(y), 'sample')}"
    at = np.full(len(y), -1) if left_out is None else left_out.find(found)
    kept = every[~seen | (at >= 0)]
    if left_out is None and not kept.size:
        how = (
            f"The model was fitted on {count}, so their errors are too small. Its rows cannot be "
            "left out, so give samples that it has not seen."
        )
        return HeldOut(every, *own, none, False, how)
    mean, std = explanation.prediction.copy(), explanation.prediction_std
    std = None if std is None else std.copy()
    how = f"The model was fitted on {count}, which are left out of these figures."
    replaced = seen & (at >= 0)
    if left_out is not None:
        mean[replaced] = y[replaced] - left_out.residuals[at[replaced]]
        if std is not None:
            std[replaced] = left_out.std[at[replaced]]
        how = (
            f"The model was fitted on {count}. Their errors are those of models without them: "
            f"{left_out.how}."
        )
    kept_std = None if std is None else std[kept]
    return HeldOut(kept, y[kept], mean[kept], kept_std, replaced[kept], True, how)


def calibration(found: HeldOut) -> list[tuple[float, float]]:
    """Return (p, share of true values inside of the central intervals of probability p) pairs.

    They are empty without standard deviations.
    """
    if found.std is None:
        return []
    distance = np.abs(found.y - found.mean)
    known = np.divide(
        distance, found.std, out=np.where(distance > 0, np.inf, 0.0), where=found.std > 0
    )
    inside = 2.0 * ndtr(known) - 1.0
    return [(float(p), float(np.mean(inside <= p))) for p in CALIBRATION_LEVELS]


@dataclass(frozen=True)
class Coverage:
    """How well the samples of a group are predicted.

    `share` is the share of true values inside of the intervals, and `low` to `high` the 95%
    interval of this share (Wilson's), which is wide for a few samples.
    """

    name: str
    samples: int
    rmse: float
    share: float
    low: float
    high: float

    @property
    def rmse_text(self) -> str:
        """The root mean squared error, to three digits."""
        return significant(self.rmse, 3)

    @staticmethod
    def place(share: float, start: float) -> str:
        """Return where a share is between `start` and 1, in percent of this range."""
        return f"{100.0 * (share - start) / (1.0 - start):.2f}%"

    def verdict(self, level: float) -> str:
        """Return "" if the share agrees with the level, otherwise "too few" or "too many"."""
        return "too few" if self.high < level else "too many" if self.low > level else ""


def coverage_tables(
    found: HeldOut, by: Any, times: Any, level: float
) -> list[tuple[str, list[Coverage], float]]:
    """Return tables (title, rows, first share of their axis) of coverage by group and over time.

    `by` (labels) and `times` have a value for each sample, or are None. Without labels, samples
    are grouped by the sizes of their predictions. There are no tables without standard deviations.
    """
    if found.std is None:
        return []
    tables = []
    known = found.samples is not None
    if by is not None and known:
        labels = np.array([str(label) for label in np.asarray(by, dtype=object)])
        tables.append(("by group", _by_label(found, labels[found.samples], level)))
    else:
        tables.append(("by size of the prediction", _by_size(found, level)))
    if times is not None and known:
        tables.append(("over time", _over_time(found, seconds_of(times)[found.samples], level)))
    return [(title, rows, _start_of(rows, level)) for title, rows in tables if rows]


def _start_of(rows: list[Coverage], level: float) -> float:
    """Return the share at which an axis of shares begins: a multiple of 10% below all of them."""
    least = min(level, *(row.low for row in rows))
    return max(0.0, float(np.floor(10.0 * least - 0.1)) / 10.0)


def _by_size(found: HeldOut, level: float) -> list[Coverage]:
    """Return the coverage of low, middle and high predictions; nothing for a few samples."""
    if len(found.y) < len(SIZES) * MIN_PART_SAMPLES:
        return []
    parts = np.array_split(np.argsort(found.mean, kind="stable"), len(SIZES))
    return [_coverage(found, part, name, level) for name, part in zip(SIZES, parts, strict=True)]


def _by_label(found: HeldOut, labels: np.ndarray, level: float) -> list[Coverage]:
    """Return the coverage of each group, the largest first, and of the others together."""
    names, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = order if order.size <= MAX_GROUPS else order[: MAX_GROUPS - 1]
    rows = [
        _coverage(found, np.flatnonzero(index == group), str(names[group]), level)
        for group in shown.tolist()
    ]
    if rest := order[shown.size :].tolist():
        name = f"{counted(len(rest), 'other group')}"
        rows.append(_coverage(found, np.flatnonzero(np.isin(index, rest)), name, level))
    return rows


def _over_time(found: HeldOut, seconds: np.ndarray, level: float) -> list[Coverage]:
    """Return the coverage of periods with equal numbers of samples, in their order."""
    order = np.argsort(seconds, kind="stable")
    count = min(MAX_PERIODS, max(1, order.size // MIN_PART_SAMPLES))
    rows = []
    for part in np.array_split(order, count):
        ends = [_date(seconds[at]) for at in (part[0], part[-1])]
        name = ends[0] if ends[0] == ends[1] else " to ".join(ends)
        rows.append(_coverage(found, part, name, level))
    return rows


def _coverage(found: HeldOut, rows: np.ndarray, name: str, level: float) -> Coverage:
    """Return the coverage of some of the samples."""
    assert found.std is not None
    errors = found.y[rows] - found.mean[rows]
    reach = float(ndtri(0.5 + 0.5 * level))
    share, n = float(np.mean(np.abs(errors) <= reach * found.std[rows])), rows.size
    low, high = share_interval(share, n)
    return Coverage(name, n, float(np.sqrt(np.mean(errors**2))), share, low, high)


def share_interval(share: float, n: int) -> tuple[float, float]:
    """Return the 95% interval of a share that was observed in n samples, by Wilson's formula."""
    reach = float(ndtri(0.975))
    centre = (share + reach**2 / (2 * n)) / (1 + reach**2 / n)
    half = reach * np.sqrt(share * (1 - share) / n + reach**2 / (4 * n**2)) / (1 + reach**2 / n)
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))


def seconds_of(times: Any) -> np.ndarray:
    """Return times as datetime64 or, if they are numbers, as they are;  (m,).

    Times with a time zone become those of UTC.
    """
    values = np.asarray(times)
    try:
        if values.dtype.kind in "iuf":
            numbers: np.ndarray = values.astype(float)
            if not np.isfinite(numbers).all():
                raise ValueError("a time is not finite")
            return numbers
        if values.dtype.kind != "M":
            values = np.array([_without_zone(value) for value in values], dtype="datetime64[s]")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"times cannot be read as dates or numbers: {error}. Give one date or number per "
            "sample."
        ) from error
    if np.isnat(values).any():
        raise InputError("times has missing dates. Give one date or number per sample.")
    return values.astype("datetime64[s]")


def _without_zone(value: Any) -> Any:
    """Return a date without its time zone, in UTC."""
    if getattr(value, "tzinfo", None) is None:
        return value
    return np.datetime64(0, "s") + np.timedelta64(round(value.timestamp()), "s")


def _date(value: Any) -> str:
    """Return a date, or a number, as text."""
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[D]"))
    return f"{value:.6g}"


def coverage_in_words(share: float, n: int, level: float) -> str:
    """Return whether a share of n true values inside of intervals agrees with their probability."""
    low, high = share_interval(share, n)
    if high < level:
        return f"fewer than {percent(level)}"
    return f"more than {percent(level)}" if low > level else "as they should"
