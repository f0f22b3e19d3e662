"""What must hold of a model that was read from a file before it may answer: types, sizes that agree, numbers in their range.

A file is data that enter. Behind these checks the sizes of all arrays are facts, as they are for a model that was just fitted;
compiled loops go by them. Every check raises a ValueError that says what does not fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..data.inputs import Preprocessor
from ..data.scaling import Scaling
from ..fitting.starting_point import KnownOptimum
from ..model.hyperparameters import Hyperparameters
from ..runtime.journal import FitReport
from ..runtime.state import are_finite, is_of_type, must, must_be_numbers
from ..solvers import registry
from ..solvers.contract import Plan
from ..solvers.posterior import Posterior

# A number that is kept twice may differ by so much, relatively: logarithms on another processor.
WRITTEN_TO = 1e-9


# the model


def must_be_model(state: dict[str, Any], parameters: set[str]) -> None:
    """Check what `GPXRegressor` is made of; `parameters` are the names of its arguments."""
    kinds = {
        "_preprocessor": Preprocessor,
        "_plan": Plan,
        "posterior_": Posterior,
        "fit_report_": FitReport,
    }
    for name, kind in kinds.items():
        must(isinstance(state.get(name), kind), f"{name} is not a {kind.__name__}")
    strange = {
        name
        for name in state.keys() - parameters
        if not (name.startswith("_") or name.endswith("_"))
    }
    must(not strange, f"it holds {', '.join(sorted(strange))}")
    preprocessor, plan, posterior = (
        state[name] for name in ("_preprocessor", "_plan", "posterior_")
    )
    _check_preprocessor(preprocessor)
    posterior.hyperparameters.must_fit(preprocessor)
    said = {plan.solver, state.get("solver_")}
    found = [solver for solver in registry.SOLVERS if said == {solver.name}]
    alike = found and type(posterior) is found[0].posterior_class
    must(alike, "it is of another solver than it says")
    found[0].must_have_planned(plan, preprocessor)
    must(plan.n == posterior.n_rows, "its plan is of another number of rows")
    must(posterior.d == preprocessor.n_weights, "Z has other columns than its scaling")
    posterior.must_fit(plan, preprocessor)
    _check_attributes(state, posterior.hyperparameters, preprocessor)


def _check_attributes(
    state: dict[str, Any], hyperparameters: Hyperparameters, preprocessor: Preprocessor
) -> None:
    must(_same(state.get("theta_"), hyperparameters.theta), "theta_ are other hyperparameters")
    known: Any
    wanted = hyperparameters.as_dict()
    for known in (state.get("hyperparameters_"), state["fit_report_"].hyperparameters):
        same = isinstance(known, dict) and known.keys() == wanted.keys()
        must(
            same and all(map(_same, known.values(), map(wanted.get, known))),
            "hyperparameters differ within it",
        )
    value = state.get("log_marginal_likelihood_value_")
    must(is_of_type(value, float), "the log marginal likelihood is not a number")
    must(is_of_type(state.get("n_iter_"), int), "n_iter_ is not a whole number")
    target = state.get("target_name_", 0)
    must(is_of_type(target, str | None), "the name of the target is not a text")
    check_random_state(state.get("random_state"))
    columns, names = state.get("n_features_in_"), state.get("feature_names_in_")
    counted = is_of_type(columns, int | None) and (columns is None or columns >= 0)
    must(counted, "n_features_in_ is not a whole number")
    if (
        preprocessor.transforms.input_kind == "vectors"
        and preprocessor.transforms.x_transformer is None
    ):
        must(columns in (None, preprocessor.n_x), "X has other columns than its scaling")
    if names is not None:
        must(
            isinstance(names, np.ndarray) and names.shape == (columns,),
            "names of columns are no list of as many names",
        )
        must(all(isinstance(name, str) for name in names), "names of columns are no texts")
    if (found := state.get("_known")) is not None:
        must(isinstance(found, KnownOptimum), "_known holds no hyperparameters")
        found.hyperparameters.must_fit(preprocessor)
        if found.points is not None:
            found.points.must_fit(found.hyperparameters.kernel, preprocessor)


def _same(value: Any, other: Any) -> bool:
    """Whether numbers are equal to the rounding of a logarithm and back."""
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return False
    return numbers.shape == np.shape(other) and np.allclose(
        numbers, other, rtol=WRITTEN_TO, atol=WRITTEN_TO
    )


def _check_preprocessor(preprocessor: Preprocessor) -> None:
    scaling, transforms = preprocessor.scaling, preprocessor.transforms
    must(transforms.input_kind in ("vectors", "gram", "objects"), "its kernel takes no known input")
    _check_scaling(scaling)
    must(preprocessor.n_z == scaling.z_scale.size >= 1, "Z has other columns than its scaling")
    must(len(preprocessor.z_names) == preprocessor.n_z, "Z has other columns than names")
    must(
        transforms.input_kind == "vectors" or not (preprocessor.sparse_x or scaling.x_shift.size),
        "X has a scaling and no columns",
    )


def _check_scaling(scaling: Scaling) -> None:
    for axis, names in (("x", ("shift", "scale")), ("z", ("shift", "scale", "baseline"))):
        size = np.size(getattr(scaling, f"{axis}_scale"))
        for name in names:
            array, what = getattr(scaling, f"{axis}_{name}"), f"the {name} of {axis.upper()}"
            must_be_numbers(array, (size,), what)
    must((scaling.x_scale > 0).all() and (scaling.z_scale != 0).all(), "a column has no scale")
    must(are_finite(scaling.y_shift, scaling.y_scale) and scaling.y_scale > 0, "y has no scale")


# transformers of scikit-learn

# Arrays with one number for each column that went in.
COLUMN_ARRAYS = (
    *(
        "mean_",
        "var_",
        "scale_",
        "center_",
        "min_",
        "data_min_",
        "data_max_",
        "data_range_",
        "max_abs_",
        "lambdas_",
    ),
    *("statistics_", "variances_", "n_bins_", "idf_"),
)


def must_be_transformer(transformer: Any) -> None:
    """Check that the arrays of a fitted transformer have as many columns as it says that it was fitted to."""
    known, name = vars(transformer), type(transformer).__name__
    columns = known.get("n_features_in_")
    if columns is None:
        return
    must(isinstance(columns, int) and columns >= 0, f"{name} does not know its columns")
    for key in COLUMN_ARRAYS:
        if isinstance(known.get(key), np.ndarray):
            must(
                known[key].shape == (columns,) and known[key].dtype.kind in "fiu",
                f"{key} of {name} is of other columns",
            )
    if (components := known.get("components_")) is not None:
        must(
            isinstance(components, np.ndarray) and components.shape[1:] == (columns,),
            f"components of {name} do not fit",
        )
    names = known.get("feature_names_in_")
    must(names is None or np.shape(names) == (columns,), f"{name} has other columns than names")
    if (categories := known.get("categories_")) is not None:
        must(
            isinstance(categories, list) and len(categories) == columns,
            f"{name} has categories of other columns",
        )
