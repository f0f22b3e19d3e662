"""What must hold of a model that was read from a file before it may answer: types, sizes that agree, numbers in their range.

A file is data that enter. Behind these checks the sizes of all arrays are facts, as they are for a model that was just fitted;
compiled loops go by them. Every check raises a ValueError that says what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state

from ..data.checks import must_be_moderate
from ..data.features import DenseFeatures, Features, SparseFeatures
from ..data.inputs import InputRows, Preprocessor, TrainingRows
from ..data.scaling import Scaling
from ..fitting.starting_point import KnownOptimum
from ..kernels.kernel import Kernel, Pair, PairPoints
from ..kernels.precomputed import GramPoints
from ..model.hyperparameters import Hyperparameters
from ..runtime.arguments import moderate
from ..runtime.journal import FitReport
from ..runtime.state import are_finite, is_of_type, must, must_be_indices, must_be_numbers
from ..solvers.basis.laplacian_basis import LaplacianBasis
from ..solvers.basis.marginal_likelihood import Space
from ..solvers.basis.posterior import BasisPosterior
from ..solvers.basis.solver import BasisSettings
from ..solvers.cg.planning import CGSettings
from ..solvers.cg.posterior import CGPosterior, PathBank
from ..solvers.contract import Plan
from ..solvers.exact.posterior import ExactPosterior
from ..solvers.grid.interpolation import Interpolated
from ..solvers.grid.posterior import GridPosterior
from ..solvers.grid.solver import GridSettings
from ..solvers.inducing.collapsed_bound import Statistics
from ..solvers.inducing.posterior import InducingPosterior
from ..solvers.inducing.solver import InducingSettings
from ..solvers.low_dimensional import InputExtent
from ..solvers.posterior import Posterior

POSTERIORS: dict[str, type[Posterior]] = {
    "exact": ExactPosterior,
    "cg": CGPosterior,
    "grid": GridPosterior,
    "inducing": InducingPosterior,
    "basis": BasisPosterior,
}
FORMS = ("stored", "recomputed", "pairs", "grid")
WRITTEN_TO = 1e-9  # relative difference by which a number that is kept twice may differ: logarithms on another processor
MOST_SEEDS = 2**32  # a RandomState takes smaller ones


# the model


def must_be_model(state: dict[str, Any], parameters: set[str]) -> None:
    """Check what `GPXRegressor` is made of; `parameters` are the names of its arguments."""
    kinds = {"_preprocessor": Preprocessor, "_plan": Plan, "posterior_": Posterior, "fit_report_": FitReport}
    for name, kind in kinds.items():
        must(isinstance(state.get(name), kind), f"{name} is not a {kind.__name__}")
    strange = {name for name in state.keys() - parameters if not (name.startswith("_") or name.endswith("_"))}
    must(not strange, f"it holds {', '.join(sorted(strange))}")
    preprocessor, plan, posterior = (state[name] for name in ("_preprocessor", "_plan", "posterior_"))
    params = posterior.hyperparameters
    _check_preprocessor(preprocessor)
    _check_params(params, preprocessor)
    same = type(posterior) is POSTERIORS.get(plan.solver) and state.get("solver_") == plan.solver
    must(same, "it is of another solver than it says")
    _check_plan(plan, posterior, preprocessor)
    CHECKS[type(posterior)](posterior, plan, preprocessor)
    _check_attributes(state, params, preprocessor)


def _check_attributes(state: dict[str, Any], params: Hyperparameters, preprocessor: Preprocessor) -> None:
    must(_same(state.get("theta_"), params.theta), "theta_ are other hyperparameters")
    known: Any
    wanted = params.as_dict()
    for known in (state.get("hyperparameters_"), state["fit_report_"].hyperparameters):
        same = isinstance(known, dict) and known.keys() == wanted.keys()
        must(same and all(map(_same, known.values(), map(wanted.get, known))), "hyperparameters differ within it")
    must(is_of_type(state.get("log_marginal_likelihood_value_"), float), "the log marginal likelihood is not a number")
    must(is_of_type(state.get("n_iter_"), int), "n_iter_ is not a whole number")
    must(is_of_type(state.get("target_name_", 0), str | None), "the name of the target is not a text")
    check_random_state(state.get("random_state"))
    columns, names = state.get("n_features_in_"), state.get("feature_names_in_")
    must(is_of_type(columns, int | None) and (columns is None or columns >= 0), "n_features_in_ is not a whole number")
    if preprocessor.gate.input_kind == "vectors" and preprocessor.gate.x_transformer is None:
        must(columns in (None, preprocessor.scaling.x_shift.size), "X has other columns than its scaling")
    if names is not None:
        must(isinstance(names, np.ndarray) and names.shape == (columns,), "names of columns are no list of as many names")
        must(all(isinstance(name, str) for name in names), "names of columns are no texts")
    if (found := state.get("_known")) is not None:
        must(isinstance(found, KnownOptimum), "_known holds no hyperparameters")
        _check_params(found.hyperparameters, preprocessor)
        if found.points is not None:
            _check_rows(found.points, found.hyperparameters.kernel, preprocessor)


def _same(value: Any, other: Any) -> bool:
    """Whether numbers are equal to the rounding of a logarithm and back."""
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return False
    return numbers.shape == np.shape(other) and np.allclose(numbers, other, rtol=WRITTEN_TO, atol=WRITTEN_TO)


def _check_preprocessor(preprocessor: Preprocessor) -> None:
    scaling, gate = preprocessor.scaling, preprocessor.gate
    must(gate.input_kind in ("vectors", "gram", "objects"), "its kernel takes no known input")
    _check_scaling(scaling)
    must(preprocessor.n_z == scaling.z_scale.size >= 1, "Z has other columns than its scaling")
    must(len(preprocessor.z_names) == preprocessor.n_z, "Z has other columns than names")
    must(gate.input_kind == "vectors" or not (preprocessor.sparse_x or scaling.x_shift.size), "X has a scaling and no columns")


def _check_scaling(scaling: Scaling) -> None:
    for axis, names in (("x", ("shift", "scale")), ("z", ("shift", "scale", "baseline"))):
        size = np.size(getattr(scaling, f"{axis}_scale"))
        for name in names:
            must_be_numbers(getattr(scaling, f"{axis}_{name}"), (size,), f"the {name} of {axis.upper()}")
    must((scaling.x_scale > 0).all() and (scaling.z_scale != 0).all(), "a column has no scale")
    must(are_finite(scaling.y_shift, scaling.y_scale) and scaling.y_scale > 0, "y has no scale")


def _check_params(params: Hyperparameters, preprocessor: Preprocessor) -> None:
    kernel = params.kernel
    must(isinstance(kernel, Kernel), "its kernel is not a kernel")
    must(kernel.input_kind == preprocessor.gate.input_kind, "its kernel takes another input than the model")
    moderate(params.sigma_w, "sigma_w", zero=True)
    moderate(params.sigma_y, "sigma_y")
    must(np.isfinite(kernel.theta).all(), "its kernel has no hyperparameters")
    if kernel.input_kind == "vectors" and not preprocessor.sparse_x:
        kernel.prepare(np.zeros((1, preprocessor.scaling.x_shift.size)))  # refuses length scales of other columns


SETTINGS: dict[str, type] = {
    "exact": NoneType,
    "cg": CGSettings,
    "grid": GridSettings,
    "inducing": InducingSettings,
    "basis": BasisSettings,
}


def _check_plan(plan: Plan, posterior: Posterior, preprocessor: Preprocessor) -> None:
    settings = plan.settings
    must(type(settings) is SETTINGS[plan.solver], "its plan has settings of another solver")
    counts = [plan.p, plan.subset, plan.bytes_needed]
    if isinstance(settings, CGSettings):
        counts += [settings.rank, settings.shared]
        must(0.0 <= settings.pair_density <= 1.0, "a share of its plan is not one")
    if isinstance(settings, InducingSettings):
        counts += [settings.points, settings.sample]
    must(min(counts) >= 0 and min(plan.n, plan.d, plan.n_jobs, plan.memory_limit) >= 1, "a count of its plan is negative")
    must(plan.dtype in (np.float32, np.float64), "its plan has another type of numbers")
    must(not plan.needs_length_scales, "its plan is not at its end")
    if isinstance(settings, GridSettings | BasisSettings):
        must(settings.count is None or settings.count >= 1, "its plan is not at its end")
        if settings.extent is not None:
            _check_extent(settings.extent, preprocessor)
    if isinstance(settings, GridSettings):
        must(0.0 < settings.share <= 1.0, "a share of its plan is not one")
    must(plan.n == posterior.n_rows, "its plan is of another number of rows")
    must(posterior.d == preprocessor.n_z + preprocessor.scaling.intercept, "Z has other columns than its scaling")


def _check_extent(extent: InputExtent, preprocessor: Preprocessor) -> None:
    width = preprocessor.scaling.x_shift.size
    must_be_numbers(extent.low, (width,), "the least x")
    must_be_numbers(extent.high, (width,), "the largest x")
    must((extent.low <= extent.high).all() and are_finite(extent.z_squared) and extent.z_squared >= 0, "x has no extent")


# rows


def _check_rows(rows: Any, kernel: Kernel, preprocessor: Preprocessor, n_train: int | None = None) -> None:
    """Rows of x and Z (and y) of one length, with the columns that the model takes; `n_train`: of a Gram matrix."""
    must(isinstance(rows, InputRows), "its rows are no rows")
    width = preprocessor.n_z + preprocessor.scaling.intercept
    _check_features(rows.Z, len(rows.Z), width, "Z")
    must(isinstance(rows.Z, SparseFeatures) == preprocessor.sparse_z, "Z is sparse in one place and dense in another")
    _check_x(rows.x, kernel, len(rows.Z), preprocessor, n_train)
    if isinstance(rows, TrainingRows):
        must_be_numbers(rows.y, (len(rows.Z),), "y")
        must_be_moderate(rows.y, "y", standardize=True)


def _check_features(Z: Any, n: int, d: int, what: str) -> None:
    must(isinstance(Z, Features), f"{what} is no table")
    must(Z.shape == (n, d), f"{what} has the shape {Z.shape}, and {(n, d)} is needed")
    if isinstance(Z, DenseFeatures):
        must_be_numbers(Z.array, (n, d), what)
        must(Z.array.flags.c_contiguous, f"{what} is not stored by rows")
    else:
        must_be_numbers(Z.values, Z.values.shape, what)
    must_be_moderate(Z, what, standardize=True)


def _check_x(x: Any, kernel: Kernel, n: int, preprocessor: Preprocessor, n_train: int | None) -> None:
    if isinstance(kernel, Pair) and isinstance(x, PairPoints):
        _check_x(x.first, kernel.first, n, preprocessor, n_train)
        _check_x(x.second, kernel.second, n, preprocessor, n_train)
        return
    if kernel.input_kind == "gram":
        must(isinstance(x, GramPoints), "its rows are not of a Gram matrix")
        columns = x.rows.shape[-1] if n_train is None else n_train
        must_be_numbers(x.rows, (n, columns), "the Gram matrix")
        must_be_indices(x.columns, columns, "the columns of the Gram matrix", n)
        must_be_numbers(x.own, (n,), "the diagonal of the Gram matrix")
        return
    must(kernel.input_kind == "vectors", "its kernel takes objects, which a file does not hold")
    must(isinstance(x, SparseFeatures) == preprocessor.sparse_x, "X is sparse in one place and dense in another")
    _check_features(x if preprocessor.sparse_x else DenseFeatures(x), n, preprocessor.scaling.x_shift.size, "X")


# what each solver hands to the posterior


def _check_exact(posterior: ExactPosterior, plan: Plan, preprocessor: Preprocessor) -> None:
    n = plan.n
    must(isinstance(posterior.support, TrainingRows), "its rows have no y")
    _check_rows(posterior.support, posterior.hyperparameters.kernel, preprocessor, n)
    must_be_numbers(posterior.coefficients, (n,), "alpha")
    must_be_numbers(posterior.buffer, (n, n), "the factor", (plan.dtype,))
    must((posterior.buffer.diagonal() > 0).all() and 0.0 <= posterior.jitter < 1.0, "the factor is none")


def _check_cg(posterior: CGPosterior, plan: Plan, preprocessor: Preprocessor) -> None:
    n, near, settings = plan.n, posterior.local_variance, plan.settings
    must(isinstance(posterior.support, TrainingRows), "its rows have no y")
    _check_rows(posterior.support, posterior.hyperparameters.kernel, preprocessor, n)
    must_be_numbers(posterior.coefficients, (n,), "alpha")
    must_be_indices(posterior.pivots, n, "pivots")
    must(
        posterior.form == settings.form in FORMS and posterior.dtype in (np.float32, np.float64),
        "the covariance has no known form",
    )
    must(
        (posterior.form == "pairs") <= preprocessor.sparse_z
        and (posterior.form == "grid") == isinstance(posterior, GridPosterior),
        "another form",
    )
    must(
        near.hyperparameters == posterior.hyperparameters and near.rows.Z.shape == posterior.support.Z.shape,
        "variances are of another model",
    )
    _check_rows(near.rows, near.hyperparameters.kernel, preprocessor, n)
    must_be_indices(near.shared, n, "shared rows")
    most = min(n, max(settings.shared, posterior.pivots.size))
    must(min(n, settings.shared) <= near.shared.size <= most, "variances from another number of rows")
    must(near.nearby >= 1 and posterior.pair_count >= 0 and 0 <= posterior.seed < MOST_SEEDS, "a count is out of range")
    must_be_indices(np.unique(posterior.checked.rows), n, "pilots")
    _check_paths(posterior.bank, n, preprocessor)


def _check_paths(bank: PathBank, n: int, preprocessor: Preprocessor) -> None:
    must_be_numbers(bank.solved, (n, len(bank.paths)), "the solutions of the posterior paths")
    p, d = preprocessor.scaling.x_shift.size, preprocessor.n_z + preprocessor.scaling.intercept
    for path in bank.paths:
        must(path.components, "a path has no frequencies")
        for frequencies, amplitudes in path.components:
            must_be_numbers(frequencies, (len(frequencies), p), "the frequencies of a path")
            must_be_numbers(amplitudes, (2 * len(frequencies), d), "the amplitudes of a path", (np.float32,))


def _check_grid(posterior: GridPosterior, plan: Plan, preprocessor: Preprocessor) -> None:
    _check_cg(posterior, plan, preprocessor)
    p, d = preprocessor.scaling.x_shift.size, posterior.d
    must(isinstance(posterior.support.Z, DenseFeatures) and not preprocessor.sparse_x, "a grid of sparse rows")
    _check_interpolation(posterior.interpolated, plan.n, p)
    must_be_numbers(posterior.grid_weights, (posterior.interpolated.grid.size, d), "the weights of the grid")
    must(plan.settings.extent is not None, "its plan has no extent of x")


def _check_interpolation(on: Interpolated, n: int, p: int) -> None:
    grid, W = on.grid, on.W
    must_be_numbers(grid.origin, (p,), "the origin of the grid")
    must_be_numbers(grid.step, (p,), "the step of the grid")
    must((grid.step > 0).all() and len(grid.shape) == p and min(grid.shape) >= 4, "the grid has too few points")
    must_be_indices(on.order, n, "the order of the rows", n)
    must(isinstance(W, sp.csr_array) and W.dtype == np.float64 and np.isfinite(W.data).all(), "interpolation of other numbers")
    must(W.shape == (n, int(np.prod(grid.shape, dtype=object))), "interpolation of other rows or points")
    must((np.diff(W.indptr) == 4**p).all() and W.data.size == n * 4**p, "interpolation between other points")


def _check_inducing(posterior: InducingPosterior, plan: Plan, preprocessor: Preprocessor) -> None:
    m = len(posterior.support)
    must(m >= 1, "it has no inducing points")
    _check_rows(posterior.support, posterior.hyperparameters.kernel, preprocessor, plan.n)
    must_be_numbers(posterior.coefficients, (m,), "the coefficients of the inducing points")
    must_be_numbers(posterior.L, (m, m), "the factor of the inducing points")
    must_be_numbers(posterior.E, (m, m), "what the inducing points know")
    must((posterior.L.diagonal() > 0).all() and 0.0 <= posterior.jitter < 1.0, "the factor of the inducing points is none")
    _check_statistics(posterior.statistics, m)


def _check_statistics(found: Statistics, m: int) -> None:
    must_be_numbers(found.psi, (m, m), "the sums over rows")
    must_be_numbers(found.c, (m,), "the sums of y over rows")
    sums = found.log_noise, found.y_squared, found.prior
    must(found.rows >= 1 and are_finite(*sums) and min(sums[1:]) >= 0.0, "sums over rows that are none")


def _check_basis(posterior: BasisPosterior, plan: Plan, preprocessor: Preprocessor) -> None:
    p, d = preprocessor.scaling.x_shift.size, preprocessor.n_z + preprocessor.scaling.intercept
    must(
        isinstance(posterior.statistics, Space) and not (preprocessor.sparse_x or preprocessor.sparse_z),
        "a basis of sparse rows",
    )
    must(posterior.hyperparameters.kernel.has_spectral_density, "its kernel has no spectral density")
    space = posterior.statistics
    q = _check_box(space.box, p, space.sums.cosines)
    r, nodes = space.nodes.count, space.nodes
    must_be_numbers(space.mean_square, (q,), "the mean squares of the functions")
    must(are_finite(nodes.low, nodes.high, nodes.largest) and nodes.low <= nodes.high and nodes.largest > 0 < r, "no nodes")
    must_be_numbers(space.sums.cosines, (r, d * (d + 1) // 2, space.box.frequencies), "the sums of cosines")
    must_be_numbers(space.sums.b, (r, d, q), "the sums of y over rows")
    must_be_numbers(space.sums.plain, (r, 4), "the sums over rows")
    must(space.sums.rows >= 1 and space.box.covers(posterior.hyperparameters.kernel), "a basis of other length scales")
    must_be_numbers(posterior.coefficients, (q * d,), "the coefficients of the basis")
    must_be_numbers(posterior.inverse, (q * d, q * d), "the covariance of the basis")
    must(are_finite(*posterior.remainder_shares), "the remainder of the basis is not a number")


def _check_box(box: LaplacianBasis, p: int, cosines: np.ndarray) -> int:
    """Return how many functions the box has, which are listed only once their number is known to be that of the sums."""
    for name in ("centre", "half", "shortest", "longest"):
        must_be_numbers(getattr(box, name), (p,), f"the {name} of the box")
    must(isinstance(box.counts, np.ndarray) and box.counts.dtype.kind == "i" and box.counts.shape == (p,), "no functions")
    counts = [int(count) for count in box.counts]
    frequencies = int(np.prod([2 * count + 1 for count in counts], dtype=object))
    must(min(counts) >= 1 and cosines.ndim == 3 and cosines.shape[2] == frequencies, "functions of another number")
    must((box.half > 0).all() and (box.shortest > 0).all() and (box.shortest <= box.longest).all(), "a box without extent")
    return len(box)


CHECKS: dict[type, Callable[[Any, Plan, Preprocessor], None]] = {
    ExactPosterior: _check_exact,
    CGPosterior: _check_cg,
    GridPosterior: _check_grid,
    InducingPosterior: _check_inducing,
    BasisPosterior: _check_basis,
}


# transformers of scikit-learn

# Arrays with one number for each column that went in.
COLUMN_ARRAYS = (
    *("mean_", "var_", "scale_", "center_", "min_", "data_min_", "data_max_", "data_range_", "max_abs_", "lambdas_"),
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
            must(known[key].shape == (columns,) and known[key].dtype.kind in "fiu", f"{key} of {name} is of other columns")
    if (components := known.get("components_")) is not None:
        must(isinstance(components, np.ndarray) and components.shape[1:] == (columns,), f"components of {name} do not fit")
    names = known.get("feature_names_in_")
    must(names is None or np.shape(names) == (columns,), f"{name} has other columns than names")
    if (categories := known.get("categories_")) is not None:
        must(isinstance(categories, list) and len(categories) == columns, f"{name} has categories of other columns")
