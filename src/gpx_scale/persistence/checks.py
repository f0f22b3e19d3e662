"""What must hold of a model that was read from a file before it may answer: types, sizes that agree, numbers in their range.

A file is data that enter. Behind these checks the sizes of all arrays are facts, as they are for a model that was just fitted;
compiled loops go by them. Every check raises a ValueError that says what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state

from ..data.checks import must_be_moderate
from ..data.features import DenseFeatures, Features, SparseFeatures
from ..data.inputs import InputRows, Preprocessor, TrainingRows
from ..data.scaling import Scaling
from ..kernels.kernel import Kernel, Pair, PairPoints
from ..kernels.precomputed import GramPoints
from ..model.hyperparameters import Hyperparameters
from ..plan import Plan
from ..runtime.arguments import moderate
from ..runtime.journal import FitReport
from ..solvers.basis.laplacian_basis import LaplacianBasis
from ..solvers.basis.marginal_likelihood import Space
from ..solvers.basis.posterior import BasisParts
from ..solvers.cg.posterior import CgParts, PathBank
from ..solvers.exact.posterior import ExactParts
from ..solvers.grid.interpolation import Interpolated
from ..solvers.grid.solver import GridParts
from ..solvers.inducing.collapsed_bound import Statistics
from ..solvers.inducing.posterior import InducingParts
from ..solvers.low_dimensional import InputExtent
from ..solvers.posterior import Parts, Posterior

PARTS: dict[str, type[Parts]] = {
    "exact": ExactParts,
    "cg": CgParts,
    "grid": GridParts,
    "inducing": InducingParts,
    "basis": BasisParts,
}
FORMS = ("stored", "recomputed", "pairs", "grid")
WRITTEN_TO = 1e-9  # relative difference by which a number that is kept twice may differ: logarithms on another processor
MOST_SEEDS = 2**32  # a RandomState takes smaller ones


def must(right: Any, what: str) -> None:
    if not right:
        raise ValueError(what)


# types


def must_be_typed(made: Any) -> None:
    """Compare every field of one of our objects with the type that its class declares."""
    for name, hint in get_type_hints(type(made)).items():
        if name in vars(made) if hasattr(made, "__dict__") else name in getattr(made, "_fields", ()):
            must(
                _fits(getattr(made, name), hint), f"{name} of a {type(made).__name__} is {type(getattr(made, name)).__name__}"
            )


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type; what is declared as a callable cannot come from a file, and is None there."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inside[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, inside[0]) and _fits(v, inside[1]) for k, v in value.items())
    if origin is tuple:
        if inside[-1] is Ellipsis:
            return isinstance(value, tuple) and all(_fits(item, inside[0]) for item in value)
        return isinstance(value, tuple) and len(value) == len(inside) and all(map(_fits, value, inside))
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(_fits(item, inside[0]) for item in value)
    if origin is not None:
        return False
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return value is None if hint is NoneType else isinstance(value, hint)


# arrays


def _numbers(array: Any, shape: tuple[int, ...], what: str, dtypes: tuple[Any, ...] = (np.float64,)) -> None:
    """Finite numbers of one of these types, in an array of this shape."""
    must(isinstance(array, np.ndarray) and array.dtype in dtypes, f"{what} is not an array of {np.dtype(dtypes[0]).name}")
    must(array.shape == shape, f"{what} has the shape {array.shape}, and {shape} is needed")
    must(np.isfinite(array).all(), f"{what} holds what is not a finite number")


def _indices(array: Any, stop: int, what: str, size: int | None = None) -> None:
    """Different whole numbers from 0 to below `stop`, in one dimension."""
    must(isinstance(array, np.ndarray) and array.dtype.kind == "i" and array.ndim == 1, f"{what} are not whole numbers")
    must(size is None or array.size == size, f"{what} are {array.size}, and {size} are needed")
    must(not array.size or (array.min() >= 0 and array.max() < stop), f"{what} point outside of {stop}")
    must(np.unique(array).size == array.size, f"{what} name one row twice")


def _finite(*values: float) -> bool:
    return bool(np.isfinite(values).all())


# the model


def must_be_model(state: dict[str, Any], parameters: set[str]) -> None:
    """Check what `GPXRegressor` is made of; `parameters` are the names of its arguments."""
    kinds = {
        "_door": Preprocessor,
        "_params": Hyperparameters,
        "_plan": Plan,
        "posterior_": Posterior,
        "fit_report_": FitReport,
    }
    for name, kind in kinds.items():
        must(isinstance(state.get(name), kind), f"{name} is not a {kind.__name__}")
    strange = {name for name in state.keys() - parameters if not (name.startswith("_") or name.endswith("_"))}
    must(not strange, f"it holds {', '.join(sorted(strange))}")
    door, params, plan, posterior = (state[name] for name in ("_door", "_params", "_plan", "posterior_"))
    _check_door(door)
    _check_params(params, door)
    parts = posterior.parts
    must(type(parts) is PARTS.get(plan.solver) and state.get("solver_") == plan.solver, "it is of another solver than it says")
    must(posterior.params == parts.params == params, "hyperparameters differ within it")
    _check_plan(plan, parts, door)
    CHECKS[type(parts)](parts, plan, door)
    _check_attributes(state, params, door)


def _check_attributes(state: dict[str, Any], params: Hyperparameters, door: Preprocessor) -> None:
    must(_same(state.get("theta_"), params.theta), "theta_ are other hyperparameters")
    known: Any
    wanted = params.as_dict()
    for known in (state.get("hyperparameters_"), state["fit_report_"].hyperparameters):
        same = isinstance(known, dict) and known.keys() == wanted.keys()
        must(same and all(map(_same, known.values(), map(wanted.get, known))), "hyperparameters differ within it")
    must(_fits(state.get("log_marginal_likelihood_value_"), float), "the log marginal likelihood is not a number")
    must(_fits(state.get("n_iter_"), int), "n_iter_ is not a whole number")
    must(_fits(state.get("target_name_", 0), str | None), "the name of the target is not a text")
    check_random_state(state.get("random_state"))
    columns, names = state.get("n_features_in_"), state.get("feature_names_in_")
    must(_fits(columns, int | None) and (columns is None or columns >= 0), "n_features_in_ is not a whole number")
    if door.gate.input_kind == "vectors" and door.gate.x_transformer is None:
        must(columns in (None, door.scaling.x_shift.size), "X has other columns than its scaling")
    if names is not None:
        must(isinstance(names, np.ndarray) and names.shape == (columns,), "names of columns are no list of as many names")
        must(all(isinstance(name, str) for name in names), "names of columns are no texts")
    if (found := state.get("_found")) is not None:
        must(_fits(found, tuple[Hyperparameters, InputRows | None]), "_found holds no hyperparameters")
        _check_params(found[0], door)
        if found[1] is not None:
            _check_rows(found[1], found[0].kernel, door)


def _same(value: Any, other: Any) -> bool:
    """Whether numbers are equal to the rounding of a logarithm and back."""
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return False
    return numbers.shape == np.shape(other) and np.allclose(numbers, other, rtol=WRITTEN_TO, atol=WRITTEN_TO)


def _check_door(door: Preprocessor) -> None:
    scaling, gate = door.scaling, door.gate
    must(gate.input_kind in ("vectors", "gram", "objects"), "its kernel takes no known input")
    _check_scaling(scaling)
    must(door.n_z == scaling.z_scale.size >= 1, "Z has other columns than its scaling")
    must(len(door.z_names) == door.n_z, "Z has other columns than names")
    must(gate.input_kind == "vectors" or not (door.sparse_x or scaling.x_shift.size), "X has a scaling and no columns")


def _check_scaling(scaling: Scaling) -> None:
    for axis, names in (("x", ("shift", "scale")), ("z", ("shift", "scale", "baseline"))):
        size = np.size(getattr(scaling, f"{axis}_scale"))
        for name in names:
            _numbers(getattr(scaling, f"{axis}_{name}"), (size,), f"the {name} of {axis.upper()}")
    must((scaling.x_scale > 0).all() and (scaling.z_scale != 0).all(), "a column has no scale")
    must(_finite(scaling.y_shift, scaling.y_scale) and scaling.y_scale > 0, "y has no scale")


def _check_params(params: Hyperparameters, door: Preprocessor) -> None:
    kernel = params.kernel
    must(isinstance(kernel, Kernel), "its kernel is not a kernel")
    must(kernel.input_kind == door.gate.input_kind, "its kernel takes another input than the model")
    moderate(params.sigma_w, "sigma_w", zero=True)
    moderate(params.sigma_y, "sigma_y")
    must(np.isfinite(kernel.theta).all(), "its kernel has no hyperparameters")
    if kernel.input_kind == "vectors" and not door.sparse_x:
        kernel.prepare(np.zeros((1, door.scaling.x_shift.size)))  # refuses length scales of other columns


def _check_plan(plan: Plan, parts: Any, door: Preprocessor) -> None:
    counts = (plan.p, plan.rank, plan.subset, plan.shared, plan.points, plan.sample, plan.bytes_needed)
    must(min(counts) >= 0 and min(plan.n, plan.d, plan.n_jobs, plan.memory_limit) >= 1, "a count of its plan is negative")
    must(plan.dtype in (np.float32, np.float64), "its plan has another type of numbers")
    must(0.0 < plan.share <= 1.0 and 0.0 <= plan.density <= 1.0, "a share of its plan is not one")
    must(plan.again is None and _fits(plan.count, int | None) and (plan.count or 1) >= 1, "its plan is not at its end")
    if plan.extent is not None:
        _check_extent(plan.extent, door)
    must(plan.n == (len(parts) if parts.keeps_rows else parts.rows), "its plan is of another number of rows")
    must(parts.d == door.n_z + door.scaling.intercept, "Z has other columns than its scaling")


def _check_extent(extent: InputExtent, door: Preprocessor) -> None:
    width = door.scaling.x_shift.size
    _numbers(extent.low, (width,), "the least x")
    _numbers(extent.high, (width,), "the largest x")
    must((extent.low <= extent.high).all() and _finite(extent.z_squared) and extent.z_squared >= 0, "x has no extent")


# rows


def _check_rows(rows: Any, kernel: Kernel, door: Preprocessor, n_train: int | None = None) -> None:
    """Rows of x and Z (and y) of one length, with the columns that the model takes; `n_train`: of a Gram matrix."""
    must(isinstance(rows, InputRows), "its rows are no rows")
    width = door.n_z + door.scaling.intercept
    _check_features(rows.Z, len(rows.Z), width, "Z")
    must(isinstance(rows.Z, SparseFeatures) == door.sparse_z, "Z is sparse in one place and dense in another")
    _check_x(rows.x, kernel, len(rows.Z), door, n_train)
    if isinstance(rows, TrainingRows):
        _numbers(rows.y, (len(rows.Z),), "y")
        must_be_moderate(rows.y, "y", standardize=True)


def _check_features(Z: Any, n: int, d: int, what: str) -> None:
    must(isinstance(Z, Features), f"{what} is no table")
    must(Z.shape == (n, d), f"{what} has the shape {Z.shape}, and {(n, d)} is needed")
    if isinstance(Z, DenseFeatures):
        _numbers(Z.array, (n, d), what)
        must(Z.array.flags.c_contiguous, f"{what} is not stored by rows")
    else:
        _numbers(Z.values, Z.values.shape, what)
    must_be_moderate(Z, what, standardize=True)


def _check_x(x: Any, kernel: Kernel, n: int, door: Preprocessor, n_train: int | None) -> None:
    if isinstance(kernel, Pair) and isinstance(x, PairPoints):
        _check_x(x.first, kernel.first, n, door, n_train)
        _check_x(x.second, kernel.second, n, door, n_train)
        return
    if kernel.input_kind == "gram":
        must(isinstance(x, GramPoints), "its rows are not of a Gram matrix")
        columns = x.rows.shape[-1] if n_train is None else n_train
        _numbers(x.rows, (n, columns), "the Gram matrix")
        _indices(x.columns, columns, "the columns of the Gram matrix", n)
        _numbers(x.own, (n,), "the diagonal of the Gram matrix")
        return
    must(kernel.input_kind == "vectors", "its kernel takes objects, which a file does not hold")
    must(isinstance(x, SparseFeatures) == door.sparse_x, "X is sparse in one place and dense in another")
    _check_features(x if door.sparse_x else DenseFeatures(x), n, door.scaling.x_shift.size, "X")


# what each solver hands to the posterior


def _check_exact(parts: ExactParts, plan: Plan, door: Preprocessor) -> None:
    n = plan.n
    must(isinstance(parts.data, TrainingRows), "its rows have no y")
    _check_rows(parts.data, parts.params.kernel, door, n)
    _numbers(parts.alpha, (n,), "alpha")
    _numbers(parts.buffer, (n, n), "the factor", (plan.dtype,))
    must((parts.buffer.diagonal() > 0).all() and 0.0 <= parts.jitter < 1.0, "the factor is none")


def _check_cg(parts: CgParts, plan: Plan, door: Preprocessor) -> None:
    n, near = plan.n, parts.near
    must(isinstance(parts.data, TrainingRows), "its rows have no y")
    _check_rows(parts.data, parts.params.kernel, door, n)
    _numbers(parts.alpha, (n,), "alpha")
    _indices(parts.pivots, n, "pivots")
    must(parts.form == plan.form in FORMS and parts.dtype in (np.float32, np.float64), "the covariance has no known form")
    must((parts.form == "pairs") <= door.sparse_z and (parts.form == "grid") == isinstance(parts, GridParts), "another form")
    must(near.params == parts.params and near.data.Z.shape == parts.data.Z.shape, "variances are of another model")
    _check_rows(near.data, near.params.kernel, door, n)
    _indices(near.shared, n, "shared rows")
    most = min(n, max(plan.shared, parts.pivots.size))
    must(min(n, plan.shared) <= near.shared.size <= most, "variances from another number of rows")
    must(near.nearby >= 1 and parts.pair_count >= 0 and 0 <= parts.seed < MOST_SEEDS, "a count is out of range")
    _indices(np.unique(parts.pilots.rows), n, "pilots")
    _check_paths(parts.bank, n, door)


def _check_paths(bank: PathBank, n: int, door: Preprocessor) -> None:
    _numbers(bank.solved, (n, len(bank.paths)), "the solutions of the posterior paths")
    p, d = door.scaling.x_shift.size, door.n_z + door.scaling.intercept
    for path in bank.paths:
        must(path.components, "a path has no frequencies")
        for frequencies, amplitudes in path.components:
            _numbers(frequencies, (len(frequencies), p), "the frequencies of a path")
            _numbers(amplitudes, (2 * len(frequencies), d), "the amplitudes of a path", (np.float32,))


def _check_grid(parts: GridParts, plan: Plan, door: Preprocessor) -> None:
    _check_cg(parts, plan, door)
    p, d = door.scaling.x_shift.size, parts.d
    must(isinstance(parts.data.Z, DenseFeatures) and not door.sparse_x, "a grid of sparse rows")
    _check_interpolation(parts.on, plan.n, p)
    _numbers(parts.weights, (parts.on.grid.size, d), "the weights of the grid")
    must(plan.extent is not None, "its plan has no extent of x")


def _check_interpolation(on: Interpolated, n: int, p: int) -> None:
    grid, W = on.grid, on.W
    _numbers(grid.origin, (p,), "the origin of the grid")
    _numbers(grid.step, (p,), "the step of the grid")
    must((grid.step > 0).all() and len(grid.shape) == p and min(grid.shape) >= 4, "the grid has too few points")
    _indices(on.order, n, "the order of the rows", n)
    must(isinstance(W, sp.csr_array) and W.dtype == np.float64 and np.isfinite(W.data).all(), "interpolation of other numbers")
    must(W.shape == (n, int(np.prod(grid.shape, dtype=object))), "interpolation of other rows or points")
    must((np.diff(W.indptr) == 4**p).all() and W.data.size == n * 4**p, "interpolation between other points")


def _check_inducing(parts: InducingParts, plan: Plan, door: Preprocessor) -> None:
    m = len(parts.data)
    must(m >= 1, "it has no inducing points")
    _check_rows(parts.data, parts.params.kernel, door, plan.n)
    _numbers(parts.alpha, (m,), "the coefficients of the inducing points")
    _numbers(parts.L, (m, m), "the factor of the inducing points")
    _numbers(parts.E, (m, m), "what the inducing points know")
    must((parts.L.diagonal() > 0).all() and 0.0 <= parts.jitter < 1.0, "the factor of the inducing points is none")
    _check_statistics(parts.statistics, m)


def _check_statistics(found: Statistics, m: int) -> None:
    _numbers(found.psi, (m, m), "the sums over rows")
    _numbers(found.c, (m,), "the sums of y over rows")
    sums = found.log_noise, found.y_squared, found.prior
    must(found.rows >= 1 and _finite(*sums) and min(sums[1:]) >= 0.0, "sums over rows that are none")


def _check_basis(parts: BasisParts, plan: Plan, door: Preprocessor) -> None:
    p, d = door.scaling.x_shift.size, door.n_z + door.scaling.intercept
    must(isinstance(parts.data, Space) and not (door.sparse_x or door.sparse_z), "a basis of sparse rows")
    must(parts.params.kernel.has_spectral_density, "its kernel has no spectral density")
    space = parts.data
    q = _check_box(space.box, p, space.sums.cosines)
    r, nodes = space.nodes.count, space.nodes
    _numbers(space.mean_square, (q,), "the mean squares of the functions")
    must(_finite(nodes.low, nodes.high, nodes.largest) and nodes.low <= nodes.high and nodes.largest > 0 < r, "no nodes")
    _numbers(space.sums.cosines, (r, d * (d + 1) // 2, space.box.frequencies), "the sums of cosines")
    _numbers(space.sums.b, (r, d, q), "the sums of y over rows")
    _numbers(space.sums.plain, (r, 4), "the sums over rows")
    must(space.sums.rows >= 1 and space.box.covers(parts.params.kernel), "a basis of other length scales")
    _numbers(parts.alpha, (q * d,), "the coefficients of the basis")
    _numbers(parts.inverse, (q * d, q * d), "the covariance of the basis")
    must(_finite(*parts.left), "the remainder of the basis is not a number")


def _check_box(box: LaplacianBasis, p: int, cosines: np.ndarray) -> int:
    """Return how many functions the box has, which are listed only once their number is known to be that of the sums."""
    for name in ("centre", "half", "shortest", "longest"):
        _numbers(getattr(box, name), (p,), f"the {name} of the box")
    must(isinstance(box.counts, np.ndarray) and box.counts.dtype.kind == "i" and box.counts.shape == (p,), "no functions")
    counts = [int(count) for count in box.counts]
    frequencies = int(np.prod([2 * count + 1 for count in counts], dtype=object))
    must(min(counts) >= 1 and cosines.ndim == 3 and cosines.shape[2] == frequencies, "functions of another number")
    must((box.half > 0).all() and (box.shortest > 0).all() and (box.shortest <= box.longest).all(), "a box without extent")
    return len(box)


CHECKS: dict[type, Callable[[Any, Plan, Preprocessor], None]] = {
    ExactParts: _check_exact,
    CgParts: _check_cg,
    GridParts: _check_grid,
    InducingParts: _check_inducing,
    BasisParts: _check_basis,
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
