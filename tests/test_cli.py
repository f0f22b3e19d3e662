"""The command line, as it is typed."""

import subprocess
import sys

import numpy as np
import pytest

from gpx_scale import InputError, datasets, plots
from gpx_scale.cli import main


def test_demo_prints_a_summary_and_leaves_a_picture(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    printed = capsys.readouterr().out
    for words in ("Digits", "Diabetes", "why", "parameters", "held out", "seconds", "explanations.png"):
        assert words in printed
    assert (tmp_path / "demo" / "explanations.png").read_bytes()[:4] == b"\x89PNG"
    assert "Digits" in (tmp_path / "demo" / "report.txt").read_text()


def test_usage_and_failures_have_exit_codes(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file" / "below")]) == 1
    assert "gpx-scale:" in capsys.readouterr().err
    shown = subprocess.run([sys.executable, "-m", "gpx_scale.cli", "--help"], capture_output=True, text=True, check=True)
    assert "demo" in shown.stdout


def test_without_matplotlib_plots_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"gpx-scale\[plot\]"):
        plots.pyplot()


def test_plot_of_one_explanation(problem):
    explanation = problem.fitted().explain(problem.X_query, problem.Z_query)
    ax = explanation.plot(1, k=3)
    assert len(ax.patches) == 3
    widths = [patch.get_width() for patch in ax.patches][::-1]
    np.testing.assert_allclose(widths, [reason.contribution for reason in explanation.top(1, 3)])
    labels = [label.get_text() for label in ax.get_yticklabels()][::-1]
    assert labels == [f"{reason.feature} = {reason.value:.4g}" for reason in explanation.top(1, 3)]
    plots.pyplot().close("all")


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
