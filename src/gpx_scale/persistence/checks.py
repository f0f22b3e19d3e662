"""Checks of a model that was read from a file: types, sizes that agree, and ranges of numbers.

Compiled loops rely on the sizes of arrays, so a model from a file must be as consistent as one
that was just fitted. Every check raises a ValueError that says what is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..data.frame_encoder import FrameEncoder
from ..data.inputs import Preprocessor
from ..data.scaling import Scaling
from ..fitting.starting_point import KnownOptimum
from ..model.hyperparameters import Hyperparameters
from ..runtime.journal import FitReport
from ..runtime.state import are_finite, is_of_type, must, must_be_numbers
from ..solvers import registry
from ..solvers.contract import Plan
from ..solvers.posterior import Posterior

# A file has some numbers twice, as they are and as logarithms. These may differ by this share,
# because another processor rounds logarithms differently.
ROUNDING_SHARE = 1e-9


def must_be_model(state: dict[str, Any], parameters: set[str]) -> None:
    """Raise a ValueError unless these are the attributes of a fitted `GPXRegressor`.

    `parameters` are the names of its constructor's arguments.
    """
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
    must(not strange, f"a model has no attribute {', '.join(sorted(strange))}")
    preprocessor, plan, posterior = (
        state[name] for name in ("_preprocessor", "_plan", "posterior_")
    )
    _check_preprocessor(preprocessor)
    posterior.hyperparameters.must_fit(preprocessor)
    said = {plan.solver, state.get("solver_")}
    found = [solver for solver in registry.SOLVERS if said == {solver.name}]
    known = [kind for one in found for kind in (one.posterior_class, one.term_posterior_class)]
    alike = type(posterior) in known
    must(
        alike,
        f"its plan is of the solver {plan.solver!r}, solver_ is {state.get('solver_')!r}, and its "
        f"posterior is of the type {type(posterior).__name__}, which do not belong together",
    )
    found[0].must_have_planned(plan, preprocessor)
    must(plan.n == posterior.n_rows, "its plan and its posterior have different numbers of rows")
    must(
        posterior.d == preprocessor.n_weights,
        "its posterior and its preprocessor have different numbers of weights",
    )
    posterior.must_fit(plan, preprocessor)
    _check_classes(state, posterior, plan, preprocessor)
    _check_attributes(state, posterior.hyperparameters, preprocessor)


def _check_classes(
    state: dict[str, Any], posterior: Posterior[Any], plan: Plan, preprocessor: Preprocessor
) -> None:
    """Raise a ValueError unless classes, likelihood and latent functions agree."""
    likelihood, others = posterior.hyperparameters.likelihood, state.get("_others", ())
    must(isinstance(others, tuple), "the posteriors of other classes are no tuple")
    same = plan.latent_functions == likelihood.latent_functions
    must(same and len(others) == max(0, likelihood.latent_functions - 1), "classes are missing")
    for other in others:
        alike = type(other) is type(posterior) and other.n_rows == plan.n
        must(alike and other.d == preprocessor.n_weights, "its classes have different models")
        other.hyperparameters.must_fit(preprocessor)
        other.must_fit(plan, preprocessor)
    classes = state.get("classes_")
    count = getattr(likelihood, "n_classes", None)
    if count is None:
        must(classes is None, "a model without classes has labels")
        return
    labels = classes.tolist() if isinstance(classes, np.ndarray) and classes.ndim == 1 else []
    must(len(labels) == count, f"it does not have {count} labels")
    must(len(set(labels)) == count, "two of its classes have the same label")


def _check_attributes(
    state: dict[str, Any], hyperparameters: Hyperparameters, preprocessor: Preprocessor
) -> None:
    """Raise a ValueError unless the attributes agree with hyperparameters and preprocessor."""
    must(
        _same(state.get("theta_"), hyperparameters.theta),
        "theta_ and the posterior have different hyperparameters",
    )
    known: Any
    wanted = hyperparameters.as_dict()
    for known in (state.get("hyperparameters_"), state["fit_report_"].hyperparameters):
        same = isinstance(known, dict) and known.keys() == wanted.keys()
        must(
            same and all(map(_same, known.values(), map(wanted.get, known))),
            "its hyperparameters are not the same everywhere in the file",
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
        must(
            columns in (None, preprocessor.n_x),
            "n_features_in_ is not the number of columns that X is scaled with",
        )
    if names is not None:
        must(
            isinstance(names, np.ndarray) and names.shape == (columns,),
            "the names of columns are not as many as the columns",
        )
        must(
            all(isinstance(name, str) for name in names),
            "one of the names of columns is not a text",
        )
    if (found := state.get("_known")) is not None:
        must(isinstance(found, KnownOptimum), "_known is not a KnownOptimum")
        found.hyperparameters.must_fit(preprocessor)
        if found.points is not None:
            found.points.must_fit(found.hyperparameters.kernel, preprocessor)
        if found.choice is not None:
            found.choice.must_fit(preprocessor)


def _same(value: Any, other: Any) -> bool:
    """Return whether numbers are equal up to the rounding of a logarithm and back."""
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return False
    return numbers.shape == np.shape(other) and np.allclose(
        numbers, other, rtol=ROUNDING_SHARE, atol=ROUNDING_SHARE
    )


def _check_preprocessor(preprocessor: Preprocessor) -> None:
    """Raise a ValueError unless kind, columns, names and scaling of the inputs agree."""
    scaling, transforms = preprocessor.scaling, preprocessor.transforms
    must(
        transforms.input_kind in ("vectors", "gram", "objects"),
        "its kernel takes an unknown kind of input",
    )
    _check_scaling(scaling)
    must(
        preprocessor.n_z == scaling.z_scale.size >= 1,
        "Z and its scaling have different numbers of columns",
    )
    must(
        len(preprocessor.z_names) == preprocessor.n_z,
        "the names of the features are not as many as the columns of Z",
    )
    for transformer, count in (
        (transforms.x_transformer, preprocessor.n_x),
        (transforms.z_transformer, preprocessor.n_z),
    ):
        if isinstance(transformer, FrameEncoder):
            transformer.must_make(count)
    must(
        transforms.input_kind == "vectors" or not (preprocessor.sparse_x or scaling.x_shift.size),
        "X has a scaling, and its kernel is not one of vectors",
    )


def _check_scaling(scaling: Scaling) -> None:
    """Raise a ValueError unless every column and y have a shift and a scale."""
    for axis, names in (("x", ("shift", "scale")), ("z", ("shift", "scale", "baseline"))):
        size = np.size(getattr(scaling, f"{axis}_scale"))
        for name in names:
            array, what = getattr(scaling, f"{axis}_{name}"), f"the {name} of {axis.upper()}"
            must_be_numbers(array, (size,), what)
    must((scaling.x_scale > 0).all() and (scaling.z_scale != 0).all(), "a column has no scale")
    must(are_finite(scaling.y_shift, scaling.y_scale) and scaling.y_scale > 0, "y has no scale")


# The arrays of scikit-learn's transformers that have one number for each column of their input.
COLUMN_ARRAYS = (
    *("mean_", "var_", "scale_", "center_", "min_", "max_abs_", "lambdas_"),
    *("data_min_", "data_max_", "data_range_"),
    *("statistics_", "variances_", "n_bins_", "idf_"),
)


def must_be_transformer(transformer: Any) -> None:
    """Raise a ValueError unless the arrays of a fitted transformer have its number of columns."""
    known, name = vars(transformer), type(transformer).__name__
    columns = known.get("n_features_in_")
    if columns is None:
        return
    must(
        isinstance(columns, int) and columns >= 0,
        f"n_features_in_ of {name} is not a number of columns",
    )
    for key in COLUMN_ARRAYS:
        if isinstance(known.get(key), np.ndarray):
            must(
                known[key].shape == (columns,) and known[key].dtype.kind in "fiu",
                f"{key} of {name} does not have {columns} numbers",
            )
    if (splines := known.get("bsplines_")) is not None:
        must(
            isinstance(splines, list) and len(splines) == columns,
            f"bsplines_ of {name} is not a list for {columns} columns",
        )
    if (components := known.get("components_")) is not None:
        must(
            isinstance(components, np.ndarray) and components.shape[1:] == (columns,),
            f"components_ of {name} does not have {columns} columns",
        )
    names = known.get("feature_names_in_")
    must(
        names is None or np.shape(names) == (columns,),
        f"feature_names_in_ of {name} does not have {columns} names",
    )
    if (categories := known.get("categories_")) is not None:
        must(
            isinstance(categories, list) and len(categories) == columns,
            f"categories_ of {name} is not a list for {columns} columns",
        )
