"""Reading a saved estimator: `load`."""

from __future__ import annotations

from typing import Any

from ..persistence.model_file import check_model, read_state
from .classifier import GPXClassifier
from .regressor import GPXRegressor


def load(path: Any) -> Any:
    """Read a model that `GPXRegressor.save` or `GPXClassifier.save` wrote.

    Nothing in the file is executed. A file only names classes of gpx_scale and transformers of
    scikit-learn, and brings numbers, texts and arrays for them. All of these are checked.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    model : GPXRegressor or GPXClassifier
        The fitted estimator. Its predictions are those of the estimator that was saved.

    Raises
    ------
    InputError
        If the file is damaged, is no model, or has a later format than this version can read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor, load
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "model.gpx")
    ...     loaded = load(Path(folder) / "model.gpx")
    >>> bool((loaded.predict(X) == model.predict(X)).all())
    True
    """
    state = read_state(path)
    # Only a classifier has classes. Weights share their prior in versions without the argument.
    model = GPXClassifier() if "classes_" in state else GPXRegressor()
    model.weights = "shared"
    check_model(state, set(model.get_params(deep=False)), path)
    model.__dict__.update(state)
    return model
