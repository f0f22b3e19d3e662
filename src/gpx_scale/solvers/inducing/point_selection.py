"""Where the inducing points are: chosen from a sample of the rows, or given."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.cluster import MiniBatchKMeans

from ...data.features import DenseFeatures, SparseFeatures
from ...data.inputs import InputRows, TrainingRows
from ...data.row_source import RowSource
from ...errors import GPXWarning, InputError
from ...linalg.covariance import Covariance
from ...linalg.preconditioner import choose_pivots
from ...model.hyperparameters import Hyperparameters
from ...runtime.parallel import Executor

WAYS = ("rpcholesky", "kmeans")


@dataclass(frozen=True)
class PointSelection:
    """How to choose: `count` points by RPCholesky of S ("rpcholesky"), as centres ("kmeans"), or `given` ones, out of a sample
    of `candidates` rows. `move`: they are to be moved from there ("auto": if they can be)."""

    count: int
    way: str
    candidates: int
    given: InputRows | None = field(default=None, repr=False)
    move: bool | str = False

    def arrays(self, kernel: Any) -> list[np.ndarray]:
        """Return numbers by which the given points are told from others."""
        return [] if self.given is None else [*self.given.Z.arrays, *kernel.input_arrays(self.given.x)]

    @classmethod
    def asked(
        cls, way: Any, move: Any, searched: bool, count: int, candidates: int, given: InputRows | None
    ) -> PointSelection:
        """From what the user asked for: `searched`, whether anything is optimised."""
        if move is True and not searched:
            raise InputError("optimize_inducing=True needs optimizer='lbfgs'")
        if given is not None:
            return cls(count, "given", candidates, given, move is True)
        return cls(count, way, candidates, None, move)

    def of(self, rows: RowSource, params: Hyperparameters, executor: Executor) -> InputRows:
        if self.given is not None:
            return _distinct(self.given)
        sample = rows.subset(self.candidates)
        if self.way == "kmeans":
            return _distinct(self._centres(sample, params))
        random = np.random.RandomState(0)  # the sample is drawn already
        pivots = choose_pivots(Covariance(sample, params, executor), min(self.count, len(sample)), random)
        if not pivots.size:  # no z anywhere: one point that says nothing
            pivots = np.zeros(1, int)
        return InputRows(sample.x[pivots], sample.Z[pivots])

    def _centres(self, sample: TrainingRows, params: Hyperparameters) -> InputRows:
        """Means of clusters in (x, z); of a sparse Z or X, the row next to the mean of each cluster in x."""
        if params.kernel.input_kind != "vectors":
            raise InputError("k-means needs vectors: give inducing_points='rpcholesky' with this kernel")
        x = params.kernel.vectors(sample.x)
        flat = x.matrix if isinstance(x, SparseFeatures) else x
        dense = isinstance(sample.Z, DenseFeatures) and not isinstance(x, SparseFeatures)
        if dense:
            assert isinstance(sample.Z, DenseFeatures)
            flat = np.hstack([x, sample.Z.array])
        count = min(self.count, len(sample))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fewer distinct rows than clusters, which are dropped below
            found = MiniBatchKMeans(count, n_init=1, random_state=0, batch_size=4096).fit(flat)
        if dense:
            p = x.shape[1]
            return InputRows(
                params.kernel.sliceable(found.cluster_centers_[:, :p].copy()),
                DenseFeatures(found.cluster_centers_[:, p:].copy()),
            )
        distance = found.transform(flat)
        nearest = np.unique(distance.argmin(axis=0))
        return InputRows(sample.x[nearest], sample.Z[nearest])


def alike(places: InputRows, rows: InputRows) -> bool:
    """Whether points and rows have the same columns, in the same form."""
    same = type(places.Z) is type(rows.Z) and places.Z.shape[1] == rows.Z.shape[1] and type(places.x) is type(rows.x)
    return same and getattr(places.x, "shape", (0, 0))[1:] == getattr(rows.x, "shape", (0, 0))[1:]


def count_of(way: Any, n_inducing: Any) -> Any:
    """How many points are asked for: as many as are given, or `n_inducing`."""
    if not hasattr(way, "__len__") or getattr(way, "shape", None) == () or (isinstance(way, str) and way not in WAYS):
        raise InputError(f"inducing_points={way!r}: give {' or '.join(map(repr, WAYS))}, or points")
    return n_inducing if isinstance(way, str) else len(way)


def _distinct(places: InputRows) -> InputRows:
    """Without points that are there twice, which would make S_uu singular."""
    if not isinstance(places.x, np.ndarray | SparseFeatures):
        return places
    first: dict[bytes, int] = {}
    for k in range(len(places)):
        one = places[k : k + 1]
        x = one.x.arrays[-2:] if isinstance(one.x, SparseFeatures) else [one.x]  # of sparse rows, indices and values
        first.setdefault(b"|".join(a.tobytes() for a in (*x, *one.Z.arrays[-2:])), k)
    if len(first) < len(places):
        warnings.warn(
            f"{len(places) - len(first)} of {len(places)} inducing points are there twice: one of each is kept",
            GPXWarning,
            stacklevel=2,
        )
        return places[np.array(list(first.values()))]
    return places
