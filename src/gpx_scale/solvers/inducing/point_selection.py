"""Where the inducing points are: chosen from a sample of the rows, or given."""

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

WAYS = ("rpcholesky", "kmeans")


@dataclass(frozen=True)
class PointSelection:
    """How to choose `count` points out of a subset of `candidates` rows.

    By randomly pivoted Cholesky of S ("rpcholesky"), as centres of clusters ("kmeans"), or `given` ones ("given"). `move`:
    whether they are to be moved from there ("auto": if they can be).
    """

    count: int
    way: str
    candidates: int
    given: InputRows | None = field(default=None, repr=False)
    move: bool | str = False

    def fingerprint(self, kernel: Kernel) -> bytes:
        """Return bytes by which the given points are told from others; none where points are selected."""
        return (
            b""
            if self.given is None
            else digest([*self.given.Z.arrays, *kernel.input_arrays(self.given.x)])
        )

    @classmethod
    def asked(cls, setup: SolverSetup, count: int, candidates: int) -> PointSelection:
        """Return what the user asked for; given points come through the preprocessor."""
        way, move, kernel = (
            setup.options.inducing_points,
            setup.options.optimize_inducing,
            setup.kernel,
        )
        if move is True and not setup.options.searched:
            raise InputError("optimize_inducing=True needs optimizer='lbfgs'")
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
        if self.given is not None:
            return _distinct(self.given)
        sample = rows.subset(self.candidates)
        if self.way == "kmeans":
            return _distinct(self._centres(sample, hyperparameters))
        random = np.random.RandomState(0)  # the sample is drawn already
        pivots = choose_pivots(
            TiledCovariance(sample, hyperparameters, session), min(self.count, len(sample)), random
        )
        if not pivots.size:  # no z anywhere: one point that says nothing
            pivots = np.zeros(1, int)
        return InputRows(sample.x[pivots], sample.Z[pivots])

    def _centres(self, sample: TrainingRows, hyperparameters: Hyperparameters) -> InputRows:
        """Means of clusters in (x, z); of a sparse Z or X, the row next to the mean of each cluster in x."""
        kernel = hyperparameters.kernel
        if kernel.input_kind != "vectors":
            raise InputError(
                "k-means needs vectors: give inducing_points='rpcholesky' with this kernel"
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
            warnings.simplefilter(
                "ignore"
            )  # of fewer distinct rows than clusters, which are dropped below
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
    """Return whether the bound has derivatives by these points: vectors, dense."""
    vectors = kernel.input_kind == "vectors" and isinstance(kernel.vectors(points.x), np.ndarray)
    return vectors and not points.Z.is_sparse


def alike(places: InputRows, rows: InputRows) -> bool:
    """Whether points and rows have the same columns, in the same form."""
    same = (
        type(places.Z) is type(rows.Z)
        and places.Z.shape[1] == rows.Z.shape[1]
        and type(places.x) is type(rows.x)
    )
    return same and getattr(places.x, "shape", (0, 0))[1:] == getattr(rows.x, "shape", (0, 0))[1:]


def count_of(way: Any, n_inducing: Any) -> Any:
    """How many points are asked for: as many as are given, or `n_inducing`."""
    if (
        not hasattr(way, "__len__")
        or getattr(way, "shape", None) == ()
        or (isinstance(way, str) and way not in WAYS)
    ):
        raise InputError(f"inducing_points={way!r}: give {' or '.join(map(repr, WAYS))}, or points")
    return n_inducing if isinstance(way, str) else len(way)


def _distinct(places: InputRows) -> InputRows:
    """Without points that are there twice, which would make S_uu singular."""
    if not isinstance(places.x, np.ndarray | Features):
        return places
    first: dict[bytes, int] = {}
    for k in range(len(places)):
        one = places[k : k + 1]
        x = (
            one.x.arrays[-2:] if isinstance(one.x, Features) else [one.x]
        )  # of sparse rows, indices and values
        first.setdefault(b"|".join(a.tobytes() for a in (*x, *one.Z.arrays[-2:])), k)
    if len(first) < len(places):
        warnings.warn(
            f"{len(places) - len(first)} of {len(places)} inducing points are there twice: one of each is kept",
            GPXWarning,
            stacklevel=2,
        )
        return places[np.array(list(first.values()))]
    return places
