"""The tables of the models that a fit has compared: kernels, intercept, priors of the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .files import import_optional
from .state import stored


@stored
@dataclass(frozen=True)
class ComparedModel:
    """A model that a fit has compared with others, on some of the rows.

    Attributes
    ----------
    kernel : str
        The name of the kernel.
    ard : bool
        Whether every column of X has a length scale of its own.
    fit_intercept : bool
        Whether every row has a local intercept.
    log_evidence : float
        The log marginal likelihood of these rows at the best hyperparameters, in nats, for y in the
        user's units. NaN if the model failed.
    integrated : float
        The logarithm of the marginal likelihood times the prior of the hyperparameters, integrated
        over the hyperparameters by Laplace's approximation. The largest one is chosen.
    leave_one_out : float
        The sum of the log predictive densities of these rows, each left out once.
    seconds : float
        The seconds that it took.
    chosen : bool
        Whether this is the model of the fit.
    note : str
        What else there is to say: that it was given up, or the error that it ended with.
    weights : str
        The prior of its weights, as in the argument `weights`.
    """

    kernel: str
    ard: bool
    fit_intercept: bool
    log_evidence: float = math.nan
    integrated: float = math.nan
    leave_one_out: float = math.nan
    seconds: float = 0.0
    chosen: bool = False
    note: str = ""
    weights: str = "shared"

    @property
    def name(self) -> str:
        """The model in words, such as "matern32 with ARD and an intercept, semi weights"."""
        parts = ["ARD"] * self.ard + ["an intercept"] * self.fit_intercept
        kernel = f"{self.kernel} with {' and '.join(parts)}" if parts else self.kernel
        return kernel if self.weights == "shared" else f"{kernel}, {self.weights} weights"


def as_lines(table: tuple[ComparedModel, ...]) -> list[str]:
    """Return a line of text for each model.

    It has the evidence, how far that is behind, the log density of rows that are left out, and
    seconds.
    """
    best = max((model.integrated for model in table if model.chosen), default=math.nan)
    lines = []
    for model in table:
        ahead = model.integrated - best
        behind = f"{ahead:.1f} ahead" if ahead > 0 else f"{-ahead:.1f} behind"
        behind = "chosen" if model.chosen else behind
        numbers = (
            f"integrated evidence {model.integrated:.1f} nats ({behind}), "
            f"leave-one-out {model.leave_one_out:.1f} nats"
        )
        parts = [numbers] if not math.isnan(model.integrated) else []
        parts += [f"{model.seconds:.2f} s", *([model.note] if model.note else [])]
        lines.append(f"{model.name}: {', '.join(parts)}")
    return lines


def as_frame(table: tuple[ComparedModel, ...]) -> Any:
    """Return a pandas data frame with a row for each model, the best one first.

    Its columns are the attributes of `ComparedModel`, and `behind`: how many nats the integrated
    evidence is below that of the chosen model.
    """
    pandas = import_optional("pandas", "files")
    frame = pandas.DataFrame([vars(model) for model in table], columns=list(_COLUMNS))
    best = max((model.integrated for model in table if model.chosen), default=math.nan)
    frame.insert(list(_COLUMNS).index("integrated") + 1, "behind", best - frame["integrated"])
    return frame


_COLUMNS = ComparedModel.__dataclass_fields__
