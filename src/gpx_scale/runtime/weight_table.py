"""The table of the decisions about weights, feature by feature, such as zero or constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .files import import_optional
from .state import stored


@stored
@dataclass(frozen=True)
class DecidedWeight:
    """What a fit has decided about the weight of a feature, or of a group of features.

    Attributes
    ----------
    feature : str
        The name of the feature or of the group, or "intercept".
    decision : str
        "zero", "constant", "own curve" or "varying".
    nats : float
        How much the log marginal likelihood falls if the weight is the next simpler one that the
        model knows, in nats. NaN for a weight that is zero, or if it was not computed.
    share : float
        The share of the feature in the variance of the contributions, over training rows.
    length_scale : float
        The length scale of a weight that varies, in the units of X: the geometric mean over the
        columns that the kernel reads. NaN for other weights, and where X has no columns.
    mean, std : float
        The mean and the standard deviation of the weight's posterior means over training rows, in
        units of y per unit of the feature. They are NaN for a group.
    """

    feature: str
    decision: str
    nats: float = math.nan
    share: float = math.nan
    length_scale: float = math.nan
    mean: float = math.nan
    std: float = math.nan

    def __str__(self) -> str:
        earned = "" if math.isnan(self.nats) else f" (earns {self.nats:.1f} nats)"
        return f"{self.feature}: {self.decision}{earned}"


def weight_frame(table: Sequence[DecidedWeight]) -> Any:
    """Return a pandas data frame with a row for each feature or group, in the order of Z.

    Its columns are the attributes of `DecidedWeight`.
    """
    pandas = import_optional("pandas", "files")
    columns = list(DecidedWeight.__dataclass_fields__)
    return pandas.DataFrame([vars(row) for row in table], columns=columns)
