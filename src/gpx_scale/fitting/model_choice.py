"""The choice of a model: what a user leaves open, and what is decided.

Kernel, length scales, intercept and the priors of the weights may be open. `OpenModel` is the
question, `ModelChoice` the answer. `fitting.model_comparison` finds it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, get_type_hints

from ..data.inputs import Preprocessor
from ..errors import InputError
from ..kernels import NAMES, as_kernel
from ..kernels.kernel import Kernel
from ..runtime.arguments import flag
from ..runtime.model_table import ComparedModel
from ..runtime.state import is_of_type, must, stored
from .weight_options import ADDITIVE, KINDS, RELEVANCE, SEMI, SHARED

# kernel="auto" compares these. RBF is the smoothest, and "rq" mixes length scales.
AUTO_KERNELS = ("rbf", "matern52", "matern32", "rq")
# weights="auto" compares these. "multiscale" has a kernel for each feature, which is expensive.
AUTO_WEIGHTS = (SHARED, RELEVANCE, SEMI, ADDITIVE)
# With more columns, a length scale for each of them is not tried: an evaluation on 1,500 rows takes
# 1.5 times as long with 128 columns as with 10, and the search takes more of them.
MAX_ARD_COLUMNS = 128


@dataclass(frozen=True)
class OpenModel:
    """The models that a user leaves open: all combinations of these kernels, flags and flags.

    `weights` are the priors of the weights that are possible for the best of them.
    """

    kernels: tuple[Kernel, ...]
    ard: tuple[bool, ...]
    fit_intercept: tuple[bool, ...]
    weights: tuple[str, ...] = (SHARED,)

    @property
    def is_decided(self) -> bool:
        """Return whether only one model is possible."""
        kernel_is = len(self.kernels) == len(self.ard) == len(self.fit_intercept) == 1
        return kernel_is and not self.has_open_weights

    @property
    def has_open_weights(self) -> bool:
        """Return whether several priors of the weights are possible."""
        return len(self.weights) > 1

    @property
    def usual(self) -> ModelChoice:
        """Return the model of a fit that compares nothing: the first kernel, and no more."""
        return ModelChoice(self.kernels[0], self.ard[0], self.fit_intercept[0])

    def has(self, choice: ModelChoice) -> bool:
        """Return whether an earlier choice is one of these models."""
        return (
            name_of_kernel(choice.kernel) in map(name_of_kernel, self.kernels)
            and choice.ard in self.ard
            and choice.fit_intercept in self.fit_intercept
            and (not self.has_open_weights or choice.weights in self.weights)
        )

    @classmethod
    def of(cls, estimator: Any) -> OpenModel:
        """Return what the arguments of an estimator leave open.

        Without a search for hyperparameters, "auto" stands for the first choice each: an RBF
        without ARD and without an intercept, whose weights share their prior.
        """
        kernel, candidates = estimator.kernel, estimator.candidates
        is_auto = isinstance(kernel, str) and kernel == "auto"
        if candidates is not None and not is_auto:
            raise InputError(
                'candidates= has the kernels that kernel="auto" compares, and '
                f'kernel={kernel!r} is given. Give kernel="auto", or leave candidates out.'
            )
        start = estimator.theta1, estimator.theta2
        kernels = _candidates(candidates, *start) if is_auto else (as_kernel(kernel, *start),)
        ard: tuple[bool, ...]
        if estimator.ard is None or _is_text_auto(estimator.ard):
            is_named = isinstance(kernel, str) and kernel in NAMES
            decided = is_auto or (is_named and estimator.ard is not None)
            ard = (False, True) if decided else (False,)
        else:
            ard = (_flag_or(estimator.ard, "ard", "None, 'auto', True or False"),)
        given = estimator.fit_intercept
        intercept = (
            (False, True)
            if _is_text_auto(given)
            else (_flag_or(given, "fit_intercept", "'auto', True or False"),)
        )
        weights = AUTO_WEIGHTS if _is_text_auto(estimator.weights) else (estimator.weights,)
        if estimator.optimizer is None:
            return cls(kernels[:1], ard[:1], intercept[:1], weights[:1])
        return cls(kernels, ard, intercept, weights)


@stored
@dataclass(frozen=True)
class ModelChoice:
    """The model that was chosen, and the tables of those that were compared.

    `kernel` has its start values as they were given. `unused_columns` are the columns of X that it
    does not read, because their length scales are so long. `weights` is the prior of the weights
    if the user left it open, and `prior_table` has the comparison.
    """

    kernel: Kernel
    ard: bool
    fit_intercept: bool
    table: tuple[ComparedModel, ...] = ()
    reasons: tuple[str, ...] = ()
    unused_columns: tuple[int, ...] = ()
    weights: str | None = None
    prior_table: tuple[ComparedModel, ...] = ()

    def suits(self, preprocessor: Preprocessor) -> bool:
        """Return whether rows with these columns can have this model, as far as they decide."""
        ard_is_possible = not (self.ard and preprocessor.sparse_x)
        return ard_is_possible and max(self.unused_columns, default=-1) < preprocessor.n_x

    def must_fit(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless this choice, read from a file, fits the rest of a model."""
        alike = self.kernel.input_kind == preprocessor.transforms.input_kind
        must(alike and self.suits(preprocessor), "its choice of a model is of other inputs")
        must(all(k >= 0 for k in self.unused_columns), "a column that is not used has no number")
        must(self.weights in (None, *KINDS), "its weights have a prior that is not known")

    def to_text(self) -> str:
        """Return the choice as JSON for a checkpoint, which knows the kernel by its name."""
        return json.dumps(
            {
                "kernel": name_of_kernel(self.kernel),
                "ard": self.ard,
                "fit_intercept": self.fit_intercept,
                "table": _records(self.table),
                "reasons": self.reasons,
                "unused_columns": self.unused_columns,
                "weights": self.weights,
                "prior_table": _records(self.prior_table),
            }
        )

    @classmethod
    def from_text(cls, text: str, among: OpenModel) -> ModelChoice:
        """Return the choice that a checkpoint has; a ValueError says what is wrong with it."""
        found = json.loads(text)
        known = {name_of_kernel(kernel): kernel for kernel in among.kernels}
        must(isinstance(found, dict) and found.get("kernel") in known, "it is of another kernel")
        types = get_type_hints(ComparedModel)
        prior_table = found.get("prior_table", [])  # Earlier versions have written none.
        for model in (*found["table"], *prior_table):
            typed = all(is_of_type(value, types[key]) for key, value in model.items())
            must(typed, "its table of models is damaged")
        columns = found["unused_columns"]
        must(all(type(k) is int and k >= 0 for k in columns), "its unused columns are no numbers")
        must(all(isinstance(reason, str) for reason in found["reasons"]), "its reasons are no text")
        made = cls(
            known[found["kernel"]],
            found["ard"] is True,
            found["fit_intercept"] is True,
            tuple(ComparedModel(**model) for model in found["table"]),
            tuple(found["reasons"]),
            tuple(columns),
            found.get("weights"),
            tuple(ComparedModel(**model) for model in prior_table),
        )
        must(among.has(made), "it is of another model")
        return made


def _records(table: tuple[ComparedModel, ...]) -> list[dict[str, Any]]:
    """Return a table for JSON, which has no NaN."""
    return [{key: value for key, value in vars(model).items() if value == value} for model in table]


def name_of_kernel(kernel: Kernel) -> str:
    """Return the name by which users ask for a kernel, or its class with those it combines."""
    parts = kernel.components
    if parts:
        inside = ", ".join(map(name_of_kernel, parts))
        return f"{type(kernel).__name__}({inside})"
    return next((name for name, kind in NAMES.items() if type(kernel) is kind), None) or (
        type(kernel).__name__
    )


def _candidates(candidates: Any, theta1: Any, theta2: Any) -> tuple[Kernel, ...]:
    """Return the kernels to compare, those of AUTO_KERNELS if none are given."""
    if candidates is None:
        candidates = AUTO_KERNELS
    names = (*NAMES, "precomputed")  # There is another error for a kernel of no vectors.
    is_list = isinstance(candidates, list | tuple) and candidates
    if not is_list or any(isinstance(one, str) and one not in names for one in candidates):
        raise InputError(
            f"candidates={candidates!r} is not valid. Give a list with at least one of "
            f"{', '.join(map(repr, NAMES))}, or objects of gpx_scale.kernels."
        )
    kernels = tuple(as_kernel(one, theta1, theta2) for one in candidates)
    if any(kernel.input_kind != "vectors" for kernel in kernels):
        raise InputError(
            f"candidates={candidates!r} has a kernel that does not take vectors. Give it as "
            "kernel= instead."
        )
    return kernels


def _is_text_auto(value: Any) -> bool:
    """Return whether an argument is the text "auto"."""
    return isinstance(value, str) and value == "auto"


def _flag_or(value: Any, name: str, known: str) -> bool:
    """Return a flag, or raise an InputError that lists what else is known."""
    try:
        return flag(value, name)
    except InputError:
        raise InputError(f"{name}={value!r} is not valid. Give {known}.") from None
