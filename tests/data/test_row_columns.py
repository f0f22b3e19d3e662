"""The columns of rows: selected, stacked, stored, and what they change of D."""

from __future__ import annotations

import numpy as np
import pytest

from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_columns import RowColumns
from gpx_scale.data.row_source import joined
from gpx_scale.errors import InputError
from gpx_scale.kernels import RBF
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.state import stored_by_type

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6.0)
COLUMNS = RowColumns(sample_weight=np.arange(1.0, 7.0), noise=np.linspace(0.0, 1.0, 6))
ROWS = TrainingRows(X, DenseFeatures(X), Y, columns=COLUMNS)


def test_columns_go_with_their_rows():
    assert not RowColumns()
    parts = [ROWS[:2], ROWS[[2, 3]], ROWS[4:]]
    for whole in (joined(parts), parts[0].with_rows(joined(parts[1:])), ROWS.with_intercept()):
        assert sorted(whole.columns.known) == ["noise", "sample_weight"]
        np.testing.assert_array_equal(whole.columns.sample_weight, COLUMNS.sample_weight)
        np.testing.assert_array_equal(whole.columns.noise, COLUMNS.noise)
    with pytest.raises(InputError, match="Some rows have 'noise'"):
        joined([ROWS[:2], TrainingRows(X, DenseFeatures(X), Y)])


def test_d_has_the_noise_of_each_row_and_is_divided_by_its_weight():
    hyperparameters = Hyperparameters.of(RBF(1.0, 1.0), 0.5, 0.3)
    D = hyperparameters.noise(ROWS)
    sizes = (X**2).sum(axis=1)
    by_hand = (0.3**2 + COLUMNS.noise**2 + 0.5**2 * sizes) / COLUMNS.sample_weight
    np.testing.assert_allclose(D, by_hand, rtol=1e-14)
    step = 1e-6
    for k, moved in enumerate(hyperparameters.noise_gradient(ROWS).T):
        theta = np.tile(hyperparameters.theta, (2, 1))
        theta[:, 2 + k] += step, -step
        high, low = (hyperparameters.with_theta(one).noise(ROWS) for one in theta)
        np.testing.assert_allclose(moved, (high - low) / (2 * step), rtol=1e-8)


def test_files_have_columns_only_if_there_are_any():
    known = stored_by_type(TrainingRows)
    assert "columns" not in known.take(TrainingRows(X, DenseFeatures(X), Y))
    again = known.make(**known.take(ROWS))
    np.testing.assert_array_equal(again.columns.noise, COLUMNS.noise)
    for wrong in (RowColumns(sample_weight=np.zeros(6)), RowColumns(noise=np.full(5, 1.0))):
        with pytest.raises(ValueError, match=r"weight|shape"):
            wrong.must_fit(6)
