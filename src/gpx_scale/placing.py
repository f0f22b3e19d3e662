"""Where the inducing points are: chosen from a sample of the rows, or given."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import MiniBatchKMeans

from .covariance import Covariance
from .errors import GPXWarning, InputError
from .features import DenseFeatures, SparseFeatures
from .inputs import Inputs, Places
from .params import Params
from .preconditioner import choose_pivots
from .rows import Rows
from .runtime import Executor

WAYS = ("rpcholesky", "kmeans")


@dataclass(frozen=True)
class Choice:
    """How to choose: `count` points by RPCholesky of S ("rpcholesky"), as centres ("kmeans"), or `given` ones, out of a sample
    of `candidates` rows. `move`: they are to be moved from there."""

    count: int
    way: str
    candidates: int
    given: Places | None = None
    move: bool = False

    def of(self, rows: Rows, params: Params, executor: Executor) -> Places:
        if self.given is not None:
            return _distinct(self.given)
        sample = rows.sample(self.candidates)
        if self.way == "kmeans":
            return _distinct(self._centres(sample, params))
        random = np.random.RandomState(0)  # the sample is drawn already
        pivots = choose_pivots(Covariance(sample, params, executor), min(self.count, len(sample)), random)
        if not pivots.size:  # no z anywhere: one point that says nothing
            pivots = np.zeros(1, int)
        return Places(sample.x[pivots], sample.Z[pivots])

    def _centres(self, sample: Inputs, params: Params) -> Places:
        """Means of clusters in (x, z); of a sparse Z or X, the row next to the mean of each cluster in x."""
        if params.kernel.takes != "vectors":
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
            return Places(
                params.kernel.rows(found.cluster_centers_[:, :p].copy()), DenseFeatures(found.cluster_centers_[:, p:].copy())
            )
        distance = found.transform(flat)
        nearest = np.unique(distance.argmin(axis=0))
        return Places(sample.x[nearest], sample.Z[nearest])


def _distinct(places: Places) -> Places:
    """Without points that are there twice, which would make S_uu singular."""
    if not isinstance(places.Z, DenseFeatures) or not isinstance(places.x, np.ndarray):
        return places
    _, first = np.unique(np.hstack([places.x, places.Z.array]), axis=0, return_index=True)
    if first.size < len(places):
        warnings.warn(
            f"{len(places) - first.size} of {len(places)} inducing points are there twice: one of each is kept",
            GPXWarning,
            stacklevel=2,
        )
        return places[np.sort(first)]
    return places
