"""The data: what ships with scikit-learn, what is generated, what is in a folder."""

import numpy as np
import pytest

from gpx_scale import InputError, datasets


def test_bundled_and_generated_sets():
    digits, diabetes, synth = datasets.load_digits(), datasets.load_diabetes(), datasets.synth10(500)
    assert digits.X.shape == (1797, 64)
    assert set(digits.y) == {-1.0, 1.0}
    assert diabetes.X.shape == (442, 10)
    assert synth.y.std() == pytest.approx(1.0)
    assert np.allclose(synth.X.std(axis=0), 1.0)


def test_sets_of_the_data_folder(shared_data):
    for load, shape in (
        (datasets.load_abalone, (4177, 10)),
        (datasets.load_boston, (506, 13)),
        (datasets.load_fish, (908, 6)),
        (datasets.load_wine, (6497, 11)),
    ):
        data = load()
        assert data.X.shape == shape
        assert len(data.feature_names) == shape[1]
        assert np.isfinite(data.X).all()


def test_a_missing_data_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path))
    with pytest.raises(InputError, match="GPX_SCALE_DATA"):
        datasets.load_boston()
