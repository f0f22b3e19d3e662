"""`DaskGPXRegressor`: a `GPXRegressor` whose training rows are on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import delayed
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from ..data.input_pair import unpack
from ..data.stream import SurveyedRows
from ..errors import InputError
from ..estimator.regressor import GPXRegressor
from ..fitting.options import FitOptions
from ..runtime.session import Session
from .cluster import ALLOW_LARGE_GRAPHS, client_of, raise_with_row, result_of, sum_by_tree
from .dask_rows import DaskRows
from .partition_tasks import head_of, rows_of_inputs, scale_partition, sum_over
from .partitions import is_remote, name_of_partition, partitions_of

__all__ = ["DaskGPXRegressor"]


class DaskGPXRegressor(GPXRegressor):
    """A GPXRegressor that is fitted on a Dask cluster.

    `fit` and `partial_fit` take Dask arrays or dataframes (with y as a series, or as the name of a
    column of X), or a list of futures of (X, y) or (X, y, Z) partitions. The solver is "inducing",
    "neighbors" or, for X of one to three columns, "basis". Arrays in memory are fitted as
    `GPXRegressor` does it, without the cluster.

    Parameters
    ----------
    client : distributed.Client, optional
        The client of the cluster; by default the one in use.
    **parameters
        The parameters of `GPXRegressor`, of which `solver` is "inducing" by default.

    Notes
    -----
    The rows stay on the workers. A fit reads every partition once, or twice if its worker has not
    enough memory to hold it. `predict` of a Dask array or dataframe returns a Dask array; all other
    methods take rows in memory and need no cluster, unless the solver is "neighbors": each worker
    then finds the rows of its partitions that are nearest to the queries.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale.distributed import DaskGPXRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = DaskGPXRegressor(n_inducing=20, optimizer=None, random_state=0)
    >>> model.fit(X, y).predict(X[:3]).shape
    (3,)

    The rows of Dask arrays are fitted on the workers that have them:

    >>> import dask.array as da
    >>> from distributed import Client
    >>> client = Client("scheduler:8786")  # doctest: +SKIP
    >>> model = DaskGPXRegressor(client, n_inducing=20)  # doctest: +SKIP
    >>> model.fit(da.from_array(X, chunks=(100, -1)), da.from_array(y))  # doctest: +SKIP
    """

    def __init__(self, client: Any = None, **parameters: Any) -> None:
        super().__init__(**{"solver": "inducing", **parameters})
        self.client = client

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the parameters, which scikit-learn cannot read off `**parameters`."""
        return sorted(["client", *GPXRegressor._get_param_names()])

    def to_local(self) -> GPXRegressor:
        """Return this fitted model as a `GPXRegressor`, which needs no cluster.

        Returns
        -------
        GPXRegressor
            A model with the parameters and the fitted attributes of this one.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale.distributed import DaskGPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = DaskGPXRegressor(n_inducing=20, optimizer=None, random_state=0).fit(X, y)
        >>> local = model.to_local()
        >>> type(local).__name__
        'GPXRegressor'
        >>> bool((local.predict(X) == model.predict(X)).all())
        True
        """
        parameters = self.get_params(deep=False)
        del parameters["client"]
        local = GPXRegressor(**parameters)
        state = self.__getstate__()
        local.__dict__.update(
            {name: value for name, value in state.items() if name not in ("client", "_rows")}
        )
        if hasattr(self, "posterior_"):
            local.posterior_ = self.posterior_.local()
        return local

    def predict(
        self,
        X: Any,
        Z: Any = None,
        return_std: bool | str = False,
        return_cov: bool = False,
        *,
        quantiles: Any = None,
        offset: Any = None,
        trials: Any = None,
    ) -> Any:
        """Return the predicted means, and their uncertainty if asked for.

        Parameters
        ----------
        X : array-like, or Dask array or dataframe
            The rows to predict. Those of a Dask collection are predicted on the workers.
        Z : array-like of shape (m, d), optional
            The readable features of the rows in memory, if the model was fitted with a separate Z.
        return_std : bool or str, default=False
            As of `GPXRegressor.predict`; for rows in memory only.
        return_cov : bool, default=False
            As of `GPXRegressor.predict`; for rows in memory only.
        quantiles : list of float, default=None
            As of `GPXRegressor.predict`; for rows in memory only.
        offset : array-like of shape (m,), default=None
            As of `GPXRegressor.predict`; for rows in memory only.
        trials : array-like of shape (m,), default=None
            As of `GPXRegressor.predict`; for rows in memory only.

        Returns
        -------
        ndarray, tuple or Dask array
            The result of `GPXRegressor.predict` for rows in memory; for a Dask collection a Dask
            array of the means, not yet computed.

        Raises
        ------
        InputError
            If X is a Dask collection, and more than X is given.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale.distributed import DaskGPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = DaskGPXRegressor(n_inducing=20, optimizer=None, random_state=0).fit(X, y)
        >>> mean, std = model.predict(X[:5], return_std=True)
        >>> mean.shape, std.shape
        ((5,), (5,))
        """
        check_is_fitted(self)
        if not is_dask_collection(X):
            known = {"quantiles": quantiles, "offset": offset, "trials": trials}
            return super().predict(X, Z, return_std, return_cov, **known)
        more = any(one is not None for one in (Z, quantiles, offset, trials))
        if more or return_std or return_cov:
            raise InputError(
                "predict of a Dask collection returns means only, without Z. For more, use "
                "to_local() on its partitions."
            )
        local = self.to_local()
        if hasattr(X, "map_partitions"):
            return X.map_partitions(local.predict, meta=np.empty(0))
        return X.rechunk({1: -1}).map_blocks(local.predict, drop_axis=1, dtype=float)

    def _survey(
        self, X: Any, y: Any, Z: Any, options: FitOptions
    ) -> tuple[Callable[..., SurveyedRows], bool] | None:
        """Return a function that surveys rows on the cluster; as `GPXRegressor` for other rows."""
        X, Z = unpack(X, Z)
        if not is_remote(X):
            return super()._survey(X, y, Z, options)
        return partial(DaskRows.open, client_of(self.client), partitions_of(X, y, Z)), True

    def _sum_over(self, X: Any, y: Any, Z: Any, task: Any, session: Session) -> Any:
        """Return the sum of a task over further rows, or None if there are no rows."""
        X, Z = unpack(X, Z)
        if not is_remote(X):
            return super()._sum_over(X, y, Z, task, session)
        client, preprocessor = client_of(self.client), self._preprocessor
        parts = partitions_of(X, y, Z)

        def scaled(k: int, start: int | None = None) -> Any:
            return delayed(scale_partition)(
                parts[k], preprocessor, name_of_partition(k), start, True
            )

        with dask.config.set(ALLOW_LARGE_GRAPHS):
            count, data = len(parts), [scaled(k) for k in range(len(parts))]
            heads, counts = map(delayed(head_of), parts), map(delayed(rows_of_inputs), data)
            sums = [delayed(sum_over)(task, one) for one in data]
            # In one graph, all tasks share the partitions that are read.
            futures = client.compute([*heads, *counts, *sums])
            total = sum_by_tree(client, futures[2 * count :])
            # The sum of one partition is not kept after it is added to the others.
            del futures[2 * count :]
            for head in futures[:count]:
                rows, first = result_of(client, head)
                if rows:
                    self._compare_columns(first)
            try:
                return result_of(client, total)
            except InputError:
                raise_with_row(client, futures[count:], scaled)
                raise

    def _query(self, X: Any, Z: Any, offset: Any = None, trials: Any = None) -> Any:
        """Return the rows of a query, which must be in memory."""
        if is_remote(X):
            raise InputError(
                "A Dask collection can be given to predict() alone. Use to_local() on its "
                "partitions, or compute() it first."
            )
        return super()._query(X, Z, offset, trials)

    def __sklearn_clone__(self) -> DaskGPXRegressor:
        """Return an unfitted copy, which shares the client."""
        return type(self)(
            **{
                name: value if name == "client" else clone(value, safe=False)
                for name, value in self.get_params(False).items()
            }
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a file, without the client."""
        return {**super().__getstate__(), "client": None}
