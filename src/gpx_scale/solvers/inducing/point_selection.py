"""The selection of inducing points from a subset of the rows, or as the user gives them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.cluster import MiniBatchKMeans

from ...data.features import DenseFeatures, Features
from ...data.inputs import InputRows, TrainingRows
from ...data.row_source import RowSource
from ...errors import GPXWarning, InputError
from ...kernels.kernel import Kernel
from ...linalg.covariance import TiledCovariance
from ...linalg.preconditioner import choose_pivots
from ...model.hyperparameters import Hyperparameters
from ...runtime.files import digest
from ...runtime.session import Session
from ..contract import SolverSetup

# The names that the argument inducing_points takes.
SELECTION_METHODS = ("rpcholesky", "kmeans")


@dataclass(frozen=True)
class PointSelection:
    """A rule that selects `count` inducing points from a subset of `candidates` rows.

    `way` is "rpcholesky" for the pivots of a randomly pivoted Cholesky factorisation of S, "kmeans"
    for centres of clusters, or "given" for the points `given`. `move` says whether the points are
    to be moved afterwards; "auto" means that they are moved if they can be.
    """

    count: int
    way: str
    candidates: int
    given: InputRows | None = field(default=None, repr=False)
    move: bool | str = False

    def fingerprint(self, kernel: Kernel) -> bytes:
        """Return bytes that identify the given points; none if points are selected from rows."""
        return (
            b""
            if self.given is None
            else digest([*self.given.Z.arrays, *kernel.input_arrays(self.given.x)])
        )

    @classmethod
    def asked(cls, setup: SolverSetup, count: int, candidates: int) -> PointSelection:
        """Return the selection that the user asked for; given points are preprocessed as X is."""
        way, move, kernel = (
            setup.options.inducing_points,
            setup.options.optimize_inducing,
            setup.kernel,
        )
        if move is True and not setup.options.searched:
            raise InputError(
                "optimize_inducing=True needs optimizer='auto', because inducing points move "
                "only in a search for hyperparameters."
            )
        if isinstance(way, str):
            return cls(count, way, candidates, None, move)
        assert setup.preprocessor is not None
        try:
            if kernel.input_kind == "vectors":
                setup.check_columns(way)
            points = setup.preprocessor.transform(way, None)
        except ValueError as error:
            raise InputError(f"inducing_points: {error}") from None
        given = InputRows(kernel.sliceable(points.x), points.Z)
        return cls(count, "given", candidates, given, move is True)

    def of(self, rows: RowSource, hyperparameters: Hyperparameters, session: Session) -> InputRows:
        """Return the inducing points for these rows at these hyperparameters."""
        if self.given is not None:
            return _distinct(self.given)
        sample = rows.subset(self.candidates)
        if self.way == "kmeans":
            return _distinct(self._centres(sample, hyperparameters))
        # The seed is fixed, because the fit's own random state has already drawn the subset.
        random = np.random.RandomState(0)
        pivots = choose_pivots(
            TiledCovariance(sample, hyperparameters, session), min(self.count, len(sample)), random
        )
        if not pivots.size:
            # Z is 0 in every row. One point, which tells nothing, stands for all of them.
            pivots = np.zeros(1, int)
        return InputRows(sample.x[pivots], sample.Z[pivots])

    def _centres(self, sample: TrainingRows, hyperparameters: Hyperparameters) -> InputRows:
        """Return the centres of clusters in (x, z).

        If X or Z is sparse, return the row next to the centre of each cluster in x instead.
        """
        kernel = hyperparameters.kernel
        if kernel.input_kind != "vectors":
            raise InputError(
                "inducing_points='kmeans' needs a kernel of vectors. Give "
                "inducing_points='rpcholesky' with this kernel."
            )
        x = kernel.vectors(sample.x)
        dense = can_move(sample, kernel)
        flat = (
            np.hstack([x, sample.Z.to_dense()])
            if dense
            else x.matrix
            if isinstance(x, Features)
            else x
        )
        count = min(self.count, len(sample))
        with warnings.catch_warnings():
            # scikit-learn warns of fewer distinct rows than clusters. Copies are dropped later.
            warnings.simplefilter("ignore")
            found = MiniBatchKMeans(count, n_init=1, random_state=0, batch_size=4096).fit(flat)
        if dense:
            p = x.shape[1]
            centres = found.cluster_centers_
            return InputRows(
                kernel.sliceable(centres[:, :p].copy()), DenseFeatures(centres[:, p:].copy())
            )
        distance = found.transform(flat)
        nearest = np.unique(distance.argmin(axis=0))
        return InputRows(sample.x[nearest], sample.Z[nearest])


def can_move(points: InputRows, kernel: Kernel) -> bool:
    """Return whether the bound has derivatives by these points, which must be dense vectors."""
    vectors = kernel.input_kind == "vectors" and isinstance(kernel.vectors(points.x), np.ndarray)
    return vectors and not points.Z.is_sparse


def have_same_columns(points: InputRows, rows: InputRows) -> bool:
    """Return whether points and rows have the same number of columns, in the same form."""
    same = (
        type(points.Z) is type(rows.Z)
        and points.Z.shape[1] == rows.Z.shape[1]
        and type(points.x) is type(rows.x)
    )
    return same and getattr(points.x, "shape", (0, 0))[1:] == getattr(rows.x, "shape", (0, 0))[1:]


def number_of_points(inducing_points: Any, n_inducing: Any) -> Any:
    """Return the number of points that a user asks for.

    It is the number of the given points, or `n_inducing` as it is, which is not checked here.
    """
    if (
        not hasattr(inducing_points, "__len__")
        or getattr(inducing_points, "shape", None) == ()
        or (isinstance(inducing_points, str) and inducing_points not in SELECTION_METHODS)
    ):
        methods = " or ".join(map(repr, SELECTION_METHODS))
        raise InputError(
            f"inducing_points={inducing_points!r} is neither a method nor points. Give {methods}, "
            "or an array of points."
        )
    return n_inducing if isinstance(inducing_points, str) else len(inducing_points)


def _distinct(points: InputRows) -> InputRows:
    """Return the points without repeated ones, which would make S_uu singular."""
    if not isinstance(points.x, np.ndarray | Features):
        return points
    first: dict[bytes, int] = {}
    for k in range(len(points)):
        one = points[k : k + 1]
        # The last two arrays of sparse rows are their indices and values.
        x = one.x.arrays[-2:] if isinstance(one.x, Features) else [one.x]
        first.setdefault(b"|".join(a.tobytes() for a in (*x, *one.Z.arrays[-2:])), k)
    if len(first) < len(points):
        warnings.warn(
            f"{len(points) - len(first)} of {len(points)} inducing points are copies of others. "
            "They are dropped.",
            GPXWarning,
            stacklevel=2,
        )
        kept: InputRows = points[np.array(list(first.values()))]
        return kept
    return points
