"""Data of varying coefficients: their places, their columns, and the constant that comes first."""

import csv
import gzip

import numpy as np
import pytest

from gpx_scale import datasets
from gpx_scale.errors import InputError

SHAPES = {
    "georgia": (159, 2, 4),
    "berlin": (2203, 2, 4),
    "king_county": (21613, 2, 8),
    "bike": (17379, 1, 18),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_names_and_the_constant(name, shared_data):
    data = getattr(datasets, f"load_{name}")()
    n, p, d = SHAPES[name]
    assert (data.X.shape, data.y.shape, data.Z.shape) == ((n, p), (n,), (n, d))
    assert data.feature_names[0] == "1"
    assert len(set(data.feature_names)) == d
    assert np.all(data.Z[:, 0] == 1)
    assert np.all(data.Z[:, 1:].std(axis=0) > 0)
    assert np.linalg.matrix_rank(data.Z) == d
    assert all(np.isfinite(part).all() for part in data[:3])
    assert data.weights is None


def test_georgia_is_in_metres(shared_data):
    data = datasets.load_georgia()
    assert np.all(np.ptp(data.X, axis=0) > 300_000)
    assert data.feature_names == ["1", "PctFB", "PctBlack", "PctRural"]
    assert np.all((data.Z[:, 1:] >= 0) & (data.Z[:, 1:] <= 100))


def test_king_county_is_in_kilometres(shared_data):
    data = datasets.load_king_county()
    assert np.allclose(data.X.mean(axis=0), 0.0, atol=1e-9)
    lat, long = _places(shared_data / "kc_house_data.csv.gz")
    i, j = long.argmin(), long.argmax()
    half = np.sin(np.radians(np.array([lat[j] - lat[i], long[j] - long[i]])) / 2) ** 2
    around = (
        2 * 6371 * np.arcsin(np.sqrt(half[0] + half[1] * np.prod(np.cos(np.radians(lat[[i, j]])))))
    )
    assert np.linalg.norm(data.X[j] - data.X[i]) == pytest.approx(
        around, rel=0.01
    )  # of the farthest pair, on the sphere


def _places(path):
    with gzip.open(path, "rt") as lines:
        return np.array(
            [[float(row["lat"]), float(row["long"])] for row in csv.DictReader(lines)]
        ).T


def test_bike_is_in_days_and_its_hours_are_waves(shared_data):
    data = datasets.load_bike()
    days = data.X[:, 0]
    assert np.all(np.diff(days) > 0)
    assert days[0] == 0.0
    assert days[-1] == pytest.approx(730 + 23 / 24)
    waves = data.Z[:, [data.feature_names.index("sin 24 h"), data.feature_names.index("cos 24 h")]]
    assert np.allclose(np.hypot(*waves.T), 1.0)
    assert np.allclose(waves[:, 0], np.sin(2 * np.pi * days), atol=1e-9)
    on_work = data.Z[:, data.feature_names.index("working day")]
    assert np.allclose(
        data.Z[:, data.feature_names.index("cos 12 h, working day")][on_work == 0], 0.0
    )
    temperature = data.Z[:, data.feature_names.index("temperature")]
    assert -8 < temperature.min() < 0
    assert 35 < temperature.max() <= 39


def test_without_the_folder_the_file_is_named(monkeypatch):
    monkeypatch.delenv("GPX_SCALE_DATA", raising=False)
    with pytest.raises(InputError, match=r"georgia\.csv"):
        datasets.load_georgia()


def test_simulated_weights_are_of_the_kinds_that_their_names_say():
    data = datasets.synth_semi(60, irrelevant=3)
    varies = np.ptp(data.weights, axis=0) > 0
    assert varies.tolist() == [name.startswith("varying") for name in data.feature_names]
    assert not data.weights[:, 5:].any()
    residual = data.y - (data.weights * data.Z).sum(axis=1)
    assert 0.3 < residual.std() < 0.7

    plane = datasets.synth_multiscale(200)
    assert np.ptp(plane.weights[:, 0]) == 0.0
    near = np.square(plane.X[:, None] - plane.X).sum(axis=2) < 0.1**2
    apart = [np.abs(w[:, None] - w)[near].max() / np.ptp(w) for w in plane.weights[:, 1:].T]
    assert apart[1] > 2.0 * apart[0]


def test_simulated_main_effects_are_zero_at_zero():
    data = datasets.synth_additive(80)
    np.testing.assert_allclose(data.X.mean(axis=0), 0.0, atol=1e-12)
    a, b, c, d, e, _ = data.X.T
    np.testing.assert_allclose(data.effects[:, 0], np.sin(2.0 * a))
    assert not data.effects[:, 4:].any()
    together = 0.5 * c * d + 0.5 * e * np.sin(a)
    residual = data.y - data.effects.sum(axis=1) - together
    assert 0.1 < residual.std() < 0.3
    np.testing.assert_allclose(data.effects[:, 1], b**2)
