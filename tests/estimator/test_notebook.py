"""What notebooks show of estimators, explanations and fits: short tables of escaped texts."""

import re
from dataclasses import replace

import pytest

from gpx_scale import GPXRegressor, datasets
from gpx_scale.explanation.intervals import between

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def fitted():
    data = datasets.load_diabetes()
    model = GPXRegressor("rbf", theta2=100.0, sigma_y=0.7, fit_intercept=False, optimizer=None)
    model.fit(data.X[:60], data.y[:60])
    names = [HOSTILE if name == "s5" else name for name in data.feature_names]
    return model, model.explain(data.X[60:80], feature_names=names)


def cells(html):
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", html)]


def test_an_explanation_shows_its_first_samples(fitted):
    _, explanation = fitted
    html = explanation.with_units(target_units="points")._repr_html_()
    rows = [row for row in cells(html) if row]
    assert len(rows) == 8
    assert "12 more samples are not shown" in html
    for i, (number, predicted, reasons) in enumerate(rows):
        assert number == str(i)
        mean, half = re.fullmatch(r"([\d.]+) ± ([\d.]+) points", predicted).groups()
        assert float(mean) == pytest.approx(explanation.prediction[i], abs=0.51)
        upper = between(0.0, explanation.prediction_std[i], 0.95).upper
        assert float(half) == pytest.approx(upper, abs=0.51)
        assert reasons.count("±") == 3
    assert "&lt;script&gt;alert" in html
    assert HOSTILE not in html


def test_without_deviations_and_with_one_sample_there_is_less(fitted):
    model, explanation = fitted
    bare = model.explain(explanation.data[:1], std=False)._repr_html_()
    assert "±" not in bare
    assert "not shown" not in bare
    far = replace(explanation, prediction_std=explanation.prediction_std * 1e-9)
    assert "± " in far._repr_html_()


def test_a_fit_report_is_the_same_in_text_and_in_html(fitted):
    report = replace(fitted[0].fit_report_, reasons=[HOSTILE])
    lines = [re.split(r"  +", line.strip(), maxsplit=1) for line in str(report).splitlines()[1:]]
    html = report._repr_html_()
    assert HOSTILE not in html
    texts = [
        [text.replace("&lt;", "<").replace("&gt;", ">") for text in row] for row in cells(html)
    ]
    assert [row[0] for row in texts] == [line[0] for line in lines]
    assert texts[0][1] == HOSTILE


def test_the_estimator_keeps_the_diagram_of_scikit_learn(fitted):
    assert "sk-" in fitted[0]._repr_html_()
