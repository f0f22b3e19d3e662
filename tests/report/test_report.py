"""A report needs no other file, agrees with the explanation, and runs nothing that a user wrote."""

import json
import re
import shutil
import sys
from base64 import b64decode, b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.stats import norm

from gpx_scale import GPXClassifier, GPXRegressor, InputError, datasets, palette
from gpx_scale.explanation import Explanation, joined
from gpx_scale.runtime.journal import ProgressBar

pytest.importorskip("jinja2", reason="reports need the extra [report]")
from gpx_scale.report import Section, effects, write_report
from gpx_scale.report.held_out import HeldOut, coverage_tables, seconds_of

HOSTILE = "<script>alert(1)</script>"
DOCUMENT = (
    "A great film </script><img src=x onerror=alert(2)> --> & "
    "\"quoted\" 'words'\u2028 of an awful <b>plot</b>"
)


def made(m=7, d=4, *, std=True, sparse=False, density=0.3, names=None, seed=0, offset=10.0):
    """An explanation with any numbers that add up."""
    random = np.random.RandomState(seed)
    Z = random.randn(m, d)
    pattern = sp.csr_array(sp.random(m, d, density, "csr", random_state=random)) if sparse else None

    def like(values):
        return (
            values
            if pattern is None
            else sp.csr_array((values, pattern.indices, pattern.indptr), shape=(m, d))
        )

    size = (m, d) if pattern is None else pattern.nnz
    z, w, s = (
        Z if pattern is None else pattern.data,
        random.randn(*np.atleast_1d(size)),
        0.1 + random.rand(*np.atleast_1d(size)),
    )
    contributions = like(w * z)
    return Explanation(
        weights=like(w),
        weights_std=like(s) if std else None,
        contributions=contributions,
        contributions_std=like(s * np.abs(z)) if std else None,
        base_values=np.full(m, offset),
        base_values_std=np.full(m, 0.5) if std else None,
        prediction=offset + np.asarray(contributions.sum(axis=1)).ravel(),
        prediction_std=1.0 + random.rand(m) if std else None,
        data=like(z),
        feature_names=names or [f"z{l}" for l in range(d)],
    )


@pytest.fixture(scope="module")
def diabetes():
    data = datasets.load_diabetes()
    model = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X[:150], data.y[:150]
    )
    explanation = model.explain(data.X[150:250], feature_names=data.feature_names)
    yield explanation, data.y[150:250]
    # The report asks the model which rows it was fitted on, so it exists up to here.
    assert model.fit_report_ is explanation.fit_report


@pytest.fixture(scope="module")
def half_seen():
    """A model, and explanations of 40 of its rows and of 60 others."""
    data = datasets.load_diabetes()
    model = GPXRegressor("rbf", theta2=100.0, sigma_y=0.7, fit_intercept=False, optimizer=None).fit(
        data.X[:150], data.y[:150]
    )
    explanation = model.explain(data.X[110:210], feature_names=data.feature_names)
    return model, replace(explanation, target_name="progression"), data.y[110:210]


def written(tmp_path, *sections, title="GPX report"):
    return write_report(tmp_path / "report.html", sections, title).read_text(encoding="utf-8")


class Elements(HTMLParser):
    """The elements of a page with their attributes, the JSON of its sections, and other text."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.data, self.text, self._inside = [], [], "", ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside = tag if tag in ("script", "style") else ""
        if ("class", "data") in attributes:
            self._inside = "data"

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, text):
        if self._inside == "data":
            self.data.append(json.loads(text))
        elif not self._inside:
            self.text += text


def adds_up(sample):
    return sample["base"] + sum(reason[4] for reason in sample["reasons"]) + sample["others"][1]


# without a browser


def test_the_page_needs_nothing_from_elsewhere(tmp_path, diabetes):
    explanation, y = diabetes
    page = written(tmp_path, Section("Diabetes", explanation, y=y), Section("Again", explanation))
    assert not re.search(
        r"https?://|//[a-z]|@import|url\(|\bsrc=|<link|<iframe|\bon[a-z]+=", page.replace("// ", "")
    )
    elements = Elements(page).elements
    assert {
        tag for tag, attributes in elements if {"src", "style", "srcset"} & set(attributes)
    } == set()
    assert all(
        value.startswith("#")
        for _, attributes in elements
        for name, value in attributes.items()
        if name == "href"
    )
    policy = next(
        attributes["content"] for tag, attributes in elements if attributes.get("http-equiv")
    )
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 2
    for name in ("style", "script"):
        (source,) = re.findall(f"<{name}>(.*?)</{name}>", page, flags=re.DOTALL)
        digest = b64encode(sha256(source.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_colours_are_those_of_the_palette(tmp_path):
    page = written(tmp_path, Section("A", made(), y=np.zeros(7)))
    for scheme in (palette.LIGHT, palette.DARK, palette.PRINT):
        for name, colour in scheme._asdict().items():
            assert f"--{name.replace('_', '-')}: {colour};" in page
    adds, takes = (list(palette.rgb(colour)) for colour in (palette.VERMILION, palette.BLUE))
    assert f"const ADDS = {adds}, TAKES = {takes}" in page
    assert "Vermilion adds, blue takes away." in page


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("std", [False, True])
def test_the_samples_are_those_of_the_explanation(tmp_path, sparse, std):
    explanation = made(40, 30, sparse=sparse, std=std)
    (data,) = Elements(written(tmp_path, Section("All", explanation, k=5))).data
    assert [sample["i"] for sample in data["samples"]] == list(range(40))
    for sample in data["samples"]:
        top = explanation.top(sample["i"], k=5)
        assert [data["features"][reason[0]] for reason in sample["reasons"]] == [
            reason.feature for reason in top
        ]
        assert [reason[4] for reason in sample["reasons"]] == pytest.approx(
            [reason.contribution for reason in top], rel=1e-5
        )
        assert [reason[1] for reason in sample["reasons"]] == pytest.approx(
            [reason.value for reason in top], rel=1e-6
        )
        deviations = [reason[5] for reason in sample["reasons"]]
        assert deviations == (
            pytest.approx([reason.contribution_std for reason in top], rel=6e-3)
            if std
            else [None] * len(top)
        )
        assert adds_up(sample) == pytest.approx(sample["prediction"], abs=1e-4)
        assert ("sd" in sample) == std


def test_a_large_offset_keeps_its_digits(tmp_path):
    explanation = made(offset=1_234_567.0)
    (data,) = Elements(written(tmp_path, Section("Prices", explanation))).data
    assert [sample["prediction"] for sample in data["samples"]] == pytest.approx(
        explanation.prediction, abs=1e-3
    )


def test_what_users_write_stays_text(tmp_path):
    explanation = made(3, 3, names=[HOSTILE, "quoted \" and ' -->", "a & b"])
    section = Section(
        f'{HOSTILE} "title" -->',
        explanation,
        about=HOSTILE,
        sample_names=[HOSTILE] * 3,
        documents=[DOCUMENT] * 3,
    )
    page = written(tmp_path, section, title=f"{HOSTILE}' \" -->")
    found = Elements(page)
    assert [tag for tag, _ in found.elements].count("script") == 2  # the data and ours
    assert "img" not in {tag for tag, _ in found.elements}
    assert HOSTILE in found.text
    assert "</script><img" not in page
    assert "\u2028" not in page
    (data,) = found.data
    assert set(data["features"]) == set(explanation.feature_names)
    for sample in data["samples"]:
        assert sample["name"] == HOSTILE
        assert (
            "".join(piece if isinstance(piece, str) else piece[0] for piece in sample["text"])
            == DOCUMENT
        )


def test_samples_have_the_names_of_their_data_frame(tmp_path):
    labels = np.array([HOSTILE, "b", 7], dtype=object)
    for index, names in ((labels, [HOSTILE, "b", "7"]), (np.arange(3), [None] * 3)):
        section = Section("Rows", replace(made(3, 3), index=index))
        (data,) = Elements(written(tmp_path, section)).data
        assert [sample.get("name") for sample in data["samples"]] == names


def test_documents_come_with_their_words_shaded(tmp_path):
    explanation = made(2, 2, names=["great", "awful"])
    (data,) = Elements(
        written(tmp_path, Section("Texts", explanation, documents=[DOCUMENT, "Nothing known."]))
    ).data
    marks = {piece[0]: piece for piece in data["samples"][0]["text"] if not isinstance(piece, str)}
    assert set(marks) == {"great", "awful"}
    for l, word in enumerate(["great", "awful"]):
        contribution, sd = explanation.contributions[0, l], explanation.contributions_std[0, l]
        assert np.sign(marks[word][1]) == np.sign(contribution)
        assert marks[word][2] == int(abs(contribution) > 1.959964 * sd)
        assert marks[word][3] == f"{contribution:+.3g} ± {1.959964 * sd:.2g}"
    assert data["samples"][1]["text"] == ["Nothing known."]


def test_images_are_bytes_of_all_pixels(tmp_path):
    explanation = made(5, 12)
    (data,) = Elements(
        written(tmp_path, Section("Images", explanation, image_shape=(3, 4), k=2))
    ).data
    assert data["image"]["shape"] == [3, 4]
    assert [data["features"][at] for at in range(len(data["features"]))] == [
        f"z{l}" for l in data["image"]["pixels"]
    ]
    low, high = data["ranges"]["value"]
    for sample in data["samples"]:
        values, _, parts = (np.frombuffer(b64decode(text), np.uint8) for text in sample["image"])
        np.testing.assert_allclose(
            low + values / 255 * (high - low),
            explanation.data[sample["i"]],
            atol=(high - low) / 500,
        )
        row = explanation.contributions[sample["i"]]
        assert (
            np.sign(parts / 127.5 - 1)[np.abs(row) > 0.01] == np.sign(row)[np.abs(row) > 0.01]
        ).all()


def test_the_model_and_its_errors_are_said(tmp_path, diabetes):
    explanation, y = diabetes
    text = Elements(
        written(tmp_path, Section("Diabetes", explanation, y=y, about="Ten measurements."))
    ).text
    fit = explanation.fit_report
    assert f"95% intervals contain {explanation.coverage(y):.1%} of 100 true values" in text
    assert "samples that the model was not fitted on" in text
    error = np.mean((y - explanation.prediction) ** 2)
    for said in (
        f"{np.sqrt(error):.2f}",
        f"{1 - error / y.var():.3f}",
        "Ten measurements.",
        "150 samples fitted",
    ):
        assert said in text
    for said in (
        fit.solver,
        *fit.reasons,
        fit.message,
        fit.variances,
        *fit.seconds,
        *fit.hyperparameters,
        "variance of a weight",
    ):
        assert said in text
    assert f"RMSE {fit.leave_one_out_rmse:.2f}" in text


def test_the_models_that_were_compared_are_said(tmp_path):
    data = datasets.load_diabetes()
    model = GPXRegressor(ard=False, fit_intercept=False, weights="shared").fit(
        data.X[:60, :3], data.y[:60]
    )
    text = Elements(written(tmp_path, Section("Diabetes", model.explain(data.X[:9, :3])))).text
    assert model.fit_report_.notes[0] in text
    table = text[text.index("models that were compared, in nats") :]
    rows = re.findall(r"^(\w+)([\u2212\d.,]+)([\d.,]+|chosen)", table, flags=re.MULTILINE)
    assert [row[0] for row in rows] == list(model.kernel_table_.kernel)
    assert len(rows) == 4
    assert rows[0][2] == "chosen"


def test_samples_that_the_data_say_nothing_about_are_named(tmp_path):
    explanation = replace(made(3), learned=np.array([0.9, 1e-4, np.nan]))
    said = "Explanation(3 samples, 4 features, with uncertainty, the data say nothing about 1)"
    assert repr(explanation) == said
    text = Elements(written(tmp_path, Section("A", explanation))).text
    assert "nothing about 1 of 3 samples, the first of which is number 2: far from all" in text
    assert "say nothing" not in Elements(written(tmp_path, Section("A", explanation[[0, 2]]))).text


def test_the_level_is_the_section_s(tmp_path, diabetes):
    explanation, y = diabetes
    page = written(tmp_path, Section("Diabetes", explanation, y=y, level=0.8))
    assert (
        f"80% intervals contain {explanation.coverage(y, 0.8):.1%} of 100 true values"
        in Elements(page).text
    )
    assert Elements(page).data[0]["reach"] == pytest.approx(norm.ppf(0.9))


def test_importance_is_in_order_with_the_share_of_sure_signs(tmp_path, diabetes):
    explanation, _ = diabetes
    text = Elements(written(tmp_path, Section("Diabetes", explanation))).text
    names = np.array(explanation.feature_names)[np.argsort(-explanation.importance())]
    part = text[text.index("What matters overall") :]
    rows = re.findall(r"^(\w+)\s+([\d.,]+)\s+± [\d.,]+\s+(\d+)%$", part, flags=re.MULTILINE)
    assert [name for name, _, _ in rows] == names.tolist()
    probability = explanation.probability_positive()
    for name, size, sure in rows:
        l = explanation.feature_names.index(name)
        assert float(size) == pytest.approx(explanation.importance()[l], rel=1e-3)
        assert float(sure) == pytest.approx(
            100 * np.mean(np.abs(probability[:, l] - 0.5) > norm.cdf(norm.ppf(0.975)) - 0.5),
            abs=0.51,
        )


def test_sure_signs_are_shown_only_where_they_differ(tmp_path):
    same = replace(made(), contributions_std=np.full((7, 4), 1e3))
    assert "sign sure" not in Elements(written(tmp_path, Section("A", same))).text
    one = replace(same, contributions_std=np.full((7, 4), 1e3) * [1.0, 1.0, 1.0, 1e-9])
    assert "sign sure" in Elements(written(tmp_path, Section("A", one))).text


def test_without_deviations_nothing_is_said_of_intervals(tmp_path):
    explanation = made(std=False)
    text = Elements(
        written(tmp_path, Section("Bare", explanation, y=explanation.prediction + 1.0))
    ).text
    assert "root mean squared error" in text
    assert "intervals contain" not in text
    assert "sign is sure" not in text
    assert "Hyperparameters" not in text  # there is no fit_report


@pytest.mark.parametrize(
    ("m", "d", "sparse"), [(1, 1, False), (1, 5, False), (5, 1, False), (1, 1, True), (2, 50, True)]
)
def test_small_ones(tmp_path, m, d, sparse):
    for density in (0.0, 1.0) if sparse else (1.0,):
        explanation = made(m, d, sparse=sparse, density=density)
        (data,) = Elements(written(tmp_path, Section("Small", explanation, y=np.arange(m)))).data
        assert len(data["samples"]) == m
        assert all(
            adds_up(sample) == pytest.approx(sample["prediction"], abs=1e-3)
            for sample in data["samples"]
        )


def test_more_samples_than_are_listed(tmp_path):
    explanation = made(3000, 3)
    found = Elements(written(tmp_path, Section("Many", explanation, y=explanation.prediction)))
    listed = [sample["i"] for sample in found.data[0]["samples"]]
    assert (len(listed), listed[0], listed[-1], max(np.diff(listed))) == (2000, 0, 2999, 2)
    assert "2,000 of 3,000 samples are listed" in found.text
    assert "3,000 predictions" in found.text


def test_a_sparse_z_is_never_made_dense(tmp_path, monkeypatch):
    explanation = made(300, 20_000, sparse=True, density=0.002)

    def refuse(*_, **__):
        raise AssertionError("made dense")

    for name in ("toarray", "todense"):
        monkeypatch.setattr(sp.csr_array, name, refuse)
    page = written(tmp_path, Section("Words", explanation, documents=["a z1 b"] * 300))
    (data,) = Elements(page).data
    assert len(page) < 2_000_000
    assert len(data["features"]) < 20_000
    assert all(
        adds_up(sample) == pytest.approx(sample["prediction"], abs=1e-4)
        for sample in data["samples"]
    )


def test_the_same_explanation_gives_the_same_file(tmp_path, diabetes):
    section = Section("Diabetes", diabetes[0], y=diabetes[1])
    assert written(tmp_path, section) == written(tmp_path, section)


def test_titles_alike_have_addresses_apart(tmp_path):
    sections = [Section(title, made()) for title in ("A b", "a B!", "a-b", "&", "Größe")]
    ids = [data["id"] for data in Elements(written(tmp_path, *sections)).data]
    assert ids[0] == "a-b"
    assert ids[-2:] == ["section", "größe"]
    assert len(set(ids)) == 5


def test_letters_that_no_file_can_hold_are_replaced(tmp_path):
    assert "odd ? name" in unescape(
        written(tmp_path, Section("Odd", made(d=1, names=["odd \ud800 name"])))
    )


def test_a_long_report_has_a_bar(tmp_path, capsys, monkeypatch):
    began = ProgressBar.__init__

    def at_once(self):
        began(self)
        self._every = 0.0

    monkeypatch.setattr(ProgressBar, "__init__", at_once)
    write_report(tmp_path / "report.html", Section("A", made(9)), verbose=1)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rsplit("| ", 1)[1].split(",")[0] for line in lines] == [
        f"{done} of 9 samples" for done in range(9)
    ]
    write_report(tmp_path / "report.html", Section("A", made(9)))
    assert capsys.readouterr().err == ""


def test_to_html_writes_it(tmp_path):
    explanation = made()
    path = explanation.to_html(str(tmp_path / "one.html"), y=explanation.prediction, level=0.9)
    assert path.read_text(encoding="utf-8").count("<section") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["one.html"]


def test_nothing_is_left_where_it_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="there is no folder"):
        write_report(tmp_path / "no" / "report.html", [Section("A", made())])
    with pytest.raises(InputError, match="is a folder"):
        write_report(tmp_path, [Section("A", made())])
    (tmp_path / "report.html").write_text("the old one")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(InputError, match="No space left"):
        write_report(tmp_path / "report.html", [Section("A", made())])
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [
        ("report.html", "the old one")
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y": [1.0]}, "y has 1 entries for 7"),
        ({"y": [np.nan] * 7}, "y must have 7 finite"),
        ({"y": np.zeros((7, 1))}, "y must have 7 finite"),
        ({"documents": ["a"] * 6}, "documents has 6 entries for 7"),
        ({"sample_names": ["a"] * 8}, "sample_names has 8 entries for 7"),
        ({"image_shape": (3, 3)}, "image_shape=.*4 pixels"),
        ({"level": 95}, "level=95"),
        ({"k": 0}, "k=0"),
        ({"samples": 0}, "samples=0"),
    ],
)
def test_what_does_not_fit_is_said(options, message):
    with pytest.raises(InputError, match=message):
        Section("A", made(), **options)


def test_classes_are_not_compared_with_the_latent_function(tmp_path):
    data = datasets.load_diabetes()
    model = GPXClassifier("rbf", fit_intercept=False, optimizer=None)
    explanation = model.fit(data.X[:40], data.y[:40] > 150.0).explain(data.X[:9])
    with pytest.raises(InputError, match=r"scale of the latent function.*log_loss"):
        Section("A", explanation, y=data.y[:9])
    assert "true values are not given" in written(tmp_path, Section("A", explanation))


def test_no_samples_and_no_sections_are_errors(tmp_path):
    with pytest.raises(InputError, match="no samples"):
        Section("A", made()[:0])
    with pytest.raises(InputError, match="at least one section"):
        write_report(tmp_path / "report.html", [])


def test_without_jinja2_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'gpx-scale[report]'")):
        write_report(tmp_path / "report.html", [Section("A", made())])
    assert not list(tmp_path.iterdir())


# what the errors are of


def scores(page):
    """The numbers in large type."""
    return re.findall(r"<dt>([\u2212\d.,]+)%?</dt><dd>", page)


def test_samples_that_were_fitted_are_predicted_without_them(tmp_path, half_seen):
    model, explanation, y = half_seen
    page = written(tmp_path, Section("Diabetes", explanation, y=y, seen=0))
    residuals, std = model.leave_one_out()
    errors = np.concatenate([residuals[110:], (y - explanation.prediction)[40:]])
    assert float(scores(page)[0]) == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-3)
    assert float(scores(page)[1]) == pytest.approx(1 - np.mean(errors**2) / y.var(), abs=1e-3)
    assert "fitted on 40 of 100 samples" in Elements(page).text
    (data,) = Elements(page).data
    assert ["left" in sample for sample in data["samples"]] == [True] * 40 + [False] * 60
    for at in (0, 39):
        assert data["samples"][at]["left"] == pytest.approx(
            [y[at] - residuals[110 + at], std[110 + at]]
        )
    dots = np.array(data["plots"]["dots"], dtype=float)
    np.testing.assert_allclose(dots[:, 3] - dots[:, 1], errors, rtol=1e-2, atol=1e-3)


def test_scores_in_sample_are_never_in_large_type(tmp_path, half_seen):
    _, explanation, y = half_seen
    bare = replace(explanation, training_record=None)
    for seen in (None, 40):
        page = written(tmp_path, Section("Diabetes", bare, y=y, seen=seen))
        assert scores(page) == []
        assert "Calibration" not in Elements(page).text
        assert "cannot be said from these samples" in page
    assert len(scores(written(tmp_path, Section("Diabetes", bare, y=y, seen=0)))) == 4


def test_explanations_by_several_models_have_no_record(half_seen):
    _, explanation, _ = half_seen
    other = replace(explanation, fit_report=replace(explanation.fit_report))
    assert joined([explanation[:2], other[2:]]).training_record is None
    assert joined([explanation[:2], explanation[2:]]).training_record is not None


def test_the_verdict_is_one_sentence(tmp_path, half_seen):
    _, explanation, y = half_seen
    (said,) = re.findall(
        '<p class="verdict">(.*)</p>',
        written(tmp_path, Section("Diabetes", explanation, y=y, target_units="points")),
    )
    assert re.fullmatch(
        r"The model explains \d+% of the variance of progression in samples that it has not "
        r"seen, and misses it by [\d.]+\spoints \(root mean squared error\); its 95% intervals "
        r"contain \d+% of the true values, [a-z0-9% ]+; [\w, ]+ matter most\.",
        said,
    )
    noise = np.random.RandomState(0).randn(100)
    (said,) = re.findall(
        '<p class="verdict">(.*)</p>',
        written(tmp_path, Section("A", explanation[40:], y=noise[40:])),
    )
    assert "hardly better than its mean" in said
    (said,) = re.findall(
        '<p class="verdict">(.*)</p>', written(tmp_path, Section("A", explanation))
    )
    assert said.startswith("100 predictions of progression, whose true values are not given: ")


def test_calibration_is_the_coverage_at_every_probability(tmp_path, diabetes):
    explanation, y = diabetes
    (data,) = Elements(written(tmp_path, Section("Diabetes", explanation, y=y))).data
    assert len(data["plots"]["calibration"]) == 19
    for level, share in data["plots"]["calibration"]:
        assert share == pytest.approx(explanation.coverage(y, level), abs=1e-4)


def coverage_rows(page):
    """(name, coverage in %, count) of each row of the tables of coverage."""
    rows = re.findall(
        r'<table class="coverage">.*?</table>', page.replace("\n", ""), flags=re.DOTALL
    )
    return [
        (unescape(name), int(share), int(count.replace(",", "")))
        for table in rows
        for name, share, count in re.findall(
            r'<th scope="row">(.*?)</th>.*?(\d+)%(?:</strong>)?</td>.*?<td class="number">([\d,]+)'
            r"</td></tr>",
            table,
        )
    ]


def test_coverage_is_shown_by_group_and_over_time(tmp_path, diabetes):
    explanation, y = diabetes
    lower, upper = explanation.prediction_interval()
    inside = (lower <= y) & (y <= upper)
    labels = np.where(np.arange(100) < 30, HOSTILE, "others")
    days = np.datetime64("2024-02-28") + np.arange(100)
    page = written(tmp_path, Section("A", explanation, y=y, by=labels, times=days[::-1]))
    rows = coverage_rows(page)
    assert [(name, count) for name, _, count in rows] == [
        ("others", 70),
        (HOSTILE, 30),
        ("2024-02-28 to 2024-03-18", 20),
        ("2024-03-19 to 2024-04-07", 20),
        ("2024-04-08 to 2024-04-27", 20),
        ("2024-04-28 to 2024-05-17", 20),
        ("2024-05-18 to 2024-06-06", 20),
    ]
    assert rows[0][1] == pytest.approx(100 * inside[30:].mean(), abs=0.51)
    assert rows[2][1] == pytest.approx(100 * inside[80:].mean(), abs=0.51)
    sizes = coverage_rows(written(tmp_path, Section("A", explanation, y=y)))
    assert [count for *_, count in sizes] == [34, 33, 33]


def test_a_share_that_cannot_be_chance_is_named(tmp_path, diabetes):
    explanation, y = diabetes
    narrow = replace(explanation, prediction_std=explanation.prediction_std / 10)
    page = written(tmp_path, Section("A", narrow, y=y))
    assert page.count("<strong>too few: ") == 3
    assert "fewer than 95%" in page
    wide = replace(explanation, prediction_std=explanation.prediction_std * 10)
    assert "more than 95%" in written(tmp_path, Section("A", wide, y=y))


def test_many_groups_are_shown_together():
    found = HeldOut(np.arange(50), np.zeros(50), np.zeros(50), np.ones(50), None, True, "")
    ((_, rows, _),) = coverage_tables(found, [f"g{i % 40}" for i in range(50)], None, 0.95)
    assert len(rows) == 10
    assert rows[-1].name == "31 other groups"
    assert sum(row.samples for row in rows) == 50


def test_times_are_dates_or_numbers():
    zone = timezone(timedelta(hours=2))
    given = [datetime(2024, 1, 1, 1, tzinfo=zone), datetime(2024, 1, 1, tzinfo=UTC)]
    assert seconds_of(given).astype(int).tolist() == [1704063600, 1704067200]
    assert seconds_of(["2024-01-01", "2023-01-01"]).argsort().tolist() == [1, 0]
    assert seconds_of([3, 1]).tolist() == [3.0, 1.0]
    for wrong in (["soon"], [np.datetime64("NaT")], [np.nan]):
        with pytest.raises(InputError, match="times"):
            seconds_of(wrong)


def test_units_are_written(tmp_path, diabetes):
    explanation, y = diabetes
    section = Section("A", explanation, y=y, units={"bmi": "kg/m²"}, target_units="points")
    found = Elements(written(tmp_path, section))
    assert "mean size (points)" in found.text
    (data,) = found.data
    assert data["units"][data["features"].index("bmi")] == "kg/m²"
    assert data["target_units"] == "points"
    with pytest.raises(InputError, match="units has 'nothing'"):
        Section("A", explanation, units={"nothing": "km"})


# in a browser

ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update"
)


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip(
        "playwright.sync_api", reason="browser tests need the package playwright"
    )
    binary = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    with api.sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(
                executable_path=binary, args=[*ARGUMENTS.split(), "--disable-sync"]
            )
        except api.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield opened
        opened.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Write a report and open it.

    At the end, nothing was asked of the network, no dialog was shown and no error was logged.
    """
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    asked, troubles = [], []

    def answer(route):
        if route.request.url.startswith("file://"):
            return route.continue_()
        asked.append(route.request.url)
        return route.abort()

    context.route("**/*", answer)

    def open_report(*sections, address="", title="GPX report"):
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "dialog", lambda dialog: (troubles.append(f"dialog {dialog.message}"), dialog.dismiss())
        )
        path = write_report(tmp_path / "report.html", sections, title)
        page.goto(f"{path.as_uri()}{address}")
        return page

    yield open_report
    context.close()
    assert (asked, troubles) == ([], [])


def number(text):
    return float(text.replace("\u2212", "-").replace(",", "").replace("±", "").strip())


def column(page, section, at):
    return [
        number(text)
        for text in page.locator(
            f"#{section} .samples tr[tabindex] > td:nth-child({at})"
        ).all_inner_texts()
    ]


def rows(page, section="diabetes"):
    return page.locator(f"#{section} tr[tabindex]")


def shown(page, section="diabetes"):
    """(label, contribution) of every line of the open sample."""
    lines = page.locator(f"#{section} .detail tbody tr:not(.axis)")
    return [
        (line.locator("th").inner_text(), number(line.locator(".contribution").inner_text()))
        for line in lines.all()
    ]


def test_search_and_sort(opened, diabetes):
    explanation, y = diabetes
    names = [f"patient {i}" for i in range(100)]
    page = opened(Section("Diabetes", explanation, y=y, sample_names=names))
    assert rows(page).count() == 20
    assert page.locator(".pager").inner_text().count("1–20 of 100") == 1
    page.get_by_role("button", name="next").click()
    assert rows(page).first.inner_text().startswith("20")
    page.get_by_role("searchbox").fill("Patient 9")
    assert rows(page).count() == 19  # 9, 19, ... and 90 to 99: every word is looked for
    assert page.get_by_role("status").inner_text() == "19 of 100 samples"
    page.get_by_role("searchbox").fill("no such thing")
    assert rows(page).count() == 0
    page.get_by_role("searchbox").fill("")
    for direction, expected in (
        ("descending", np.sort(explanation.prediction)[::-1]),
        ("ascending", np.sort(explanation.prediction)),
    ):
        page.get_by_role("button", name="prediction", exact=True).click()
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == direction
        assert page.locator("th[aria-sort]").inner_text().strip() == "prediction"
        assert column(page, "diabetes", 2) == pytest.approx(expected[:20], abs=0.06)
    page.get_by_role("button", name="error", exact=True).click()
    errors = np.abs(y - explanation.prediction)
    assert np.abs(column(page, "diabetes", 5)) == pytest.approx(
        np.sort(errors)[::-1][:20], abs=0.06
    )
    page.get_by_role("checkbox").check()
    lower, upper = explanation.prediction_interval()
    assert (
        page.get_by_role("status").inner_text()
        == f"{np.sum((y < lower) | (y > upper))} of 100 samples"
    )


def test_an_open_sample_adds_up(opened, diabetes):
    explanation, y = diabetes
    page = opened(Section("Diabetes", explanation, y=y, k=6))
    rows(page).nth(3).click()
    assert rows(page).nth(3).get_attribute("aria-expanded") == "true"
    assert page.url.endswith("#diabetes/3")
    lines = shown(page)
    assert [label for label, _ in lines] == [
        *("base value", *(reason.feature for reason in explanation.top(3, 6))),
        *("4 other features", "prediction"),
    ]
    assert sum(value for _, value in lines[:-1]) == pytest.approx(
        lines[-1][1], abs=0.05 * len(lines)
    )
    assert lines[-1][1] == pytest.approx(explanation.prediction[3], abs=0.06)
    chances = page.locator(".detail .chance").all_inner_texts()
    for reason, chance in zip(explanation.top(3, 6), chances, strict=True):
        expected = 100 * norm.cdf(reason.contribution / reason.contribution_std)
        assert float(chance.strip("<>% ")) == pytest.approx(expected, abs=0.11)
    widths = [
        float(bar.get_attribute("width").rstrip("%"))
        for bar in page.locator(".detail .reason rect").all()
    ]
    assert widths == pytest.approx(
        np.abs([value for _, value in lines[1:7]]) / abs(lines[1][1]) * widths[0], abs=0.6
    )  # bars are as long as the numbers
    assert f"{y[3]:.1f}" in page.locator(".detail").inner_text()
    rows(page).nth(3).click()
    assert page.locator(".detail").count() == 0


def test_fewer_reasons_at_first_still_add_up(opened):
    explanation = made(3, 64)
    page = opened(Section("Images", explanation, image_shape=(8, 8)), address="#images/1")
    for count in (12, 30):
        lines = shown(page, "images")
        assert lines[-2][0] == f"{64 - count} other features"
        assert len(lines) == count + 3
        assert sum(value for _, value in lines[:-1]) == pytest.approx(
            explanation.prediction[1], abs=0.005 * len(lines)
        )
        if count == 12:
            page.get_by_role("button", name="Show 18 more").click()
    assert page.locator(".pictures canvas").count() == 3
    page.locator(".detail .reason").nth(2).hover()
    assert page.locator(".pixels div").count() == 3


def test_pixels_have_the_colour_of_their_sign(opened):
    explanation = made(3, 12)
    page = opened(Section("Images", explanation, image_shape=(3, 4)), address="#images/2")
    reading = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 4, 3).data]"
    painted = np.reshape(page.locator(".pictures canvas").nth(2).evaluate(reading), (12, 4))
    row = explanation.contributions[2]
    strong = np.abs(row) > 0.2 * np.abs(row).max()
    assert ((painted[:, 0] > painted[:, 2]) == (row > 0))[strong].all()  # more red than blue


def test_the_keyboard_does_all(opened, diabetes):
    page = opened(Section("Diabetes", diabetes[0]))
    rows(page).first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert page.locator(".detail h3").inner_text() == "Sample 1"
    assert page.evaluate("document.activeElement.dataset.sample") == "1"
    page.keyboard.press("Escape")
    assert page.locator(".detail").count() == 0
    page.get_by_role("button", name="prediction", exact=True).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "prediction"


def test_an_address_opens_its_sample(opened, diabetes):
    explanation, y = diabetes
    page = opened(
        Section("Diabetes", explanation, y=y), Section("Größe", made(30, 3)), address="#diabetes/57"
    )
    assert page.locator("#diabetes .detail h3").inner_text() == "Sample 57"
    assert page.locator("#diabetes .detail").is_visible()
    page.evaluate("location.hash = encodeURIComponent('größe') + '/25'")
    page.locator("section:nth-of-type(2) .detail h3").wait_for()
    assert page.locator("section:nth-of-type(2) .detail h3").inner_text() == "Sample 25"
    page.evaluate("location.hash = 'diabetes/1000'")
    page.get_by_text("Sample 1000 is not listed").wait_for()
    page.evaluate("location.hash = '%E0%A4%A'")
    page.locator("#diabetes .scatter a").nth(8).dispatch_event("click")
    page.wait_for_timeout(50)
    assert re.fullmatch(r"Sample \d+", page.locator("#diabetes .detail h3").inner_text())


def test_sections_navigate(opened, diabetes):
    page = opened(Section("Diabetes", diabetes[0]), Section("Made up", made(30, 3)))
    links = page.get_by_role("navigation").get_by_role("link")
    assert links.all_inner_texts() == ["Diabetes", "Made up"]
    links.nth(1).click()
    page.locator("nav a[aria-current]", has_text="Made up").wait_for()
    assert page.locator("#made-up h2").bounding_box()["y"] < 300
    assert page.locator("nav").bounding_box()["y"] == 0  # stays in sight


def test_hostile_text_stays_text_in_the_browser(opened):
    explanation = made(3, 3, names=[HOSTILE, "<img src=x onerror=alert(3)>", "great"])
    section = Section(
        f'{HOSTILE} "quoted" -->',
        explanation,
        y=[0, 1, 2],
        about=DOCUMENT,
        sample_names=[HOSTILE] * 3,
        documents=[DOCUMENT] * 3,
    )
    page = opened(section, title=DOCUMENT)
    page.locator("tr[tabindex]").first.click()
    assert HOSTILE in [label for label, _ in shown(page, "script-alert-1-script-quoted")]
    assert page.locator(".detail .document").evaluate("node => node.textContent") == DOCUMENT
    assert page.locator("mark").inner_text() == "great"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


@pytest.mark.parametrize("policy", [True, False])
def test_no_script_but_ours_would_run(browser, tmp_path, policy):
    """What escaping should already prevent, the page's policy prevents again."""
    path = write_report(tmp_path / "report.html", [Section("A", made())])
    text = path.read_text(encoding="utf-8")
    injected = (
        "<script>document.title = 'ran'</script>"
        "<p onclick=\"document.title = 'ran'\" id=trap>trap</p>"
    )
    text = text.replace("<main>", f"<main>{injected}")
    path.write_text(
        text if policy else re.sub("<meta http-equiv[^>]*>", "", text), encoding="utf-8"
    )
    page = browser.new_page()
    page.goto(path.as_uri())
    page.locator("#trap").click()
    assert page.title() == ("GPX report" if policy else "ran")
    assert rows(page, "a").count() == 7
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_it_fits_windows_of_any_width(opened, diabetes, width, scheme):
    explanation, y = diabetes
    page = opened(Section("Diabetes", explanation, y=y), address="#diabetes/3")
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".detail .reason").first.is_visible()


def test_bare_explanations_open_too(opened):
    texts = made(30, 40, std=False, sparse=True, density=0.05)
    single = made(1, 1)
    page = opened(
        Section("Bare", texts, y=texts.prediction), Section("One", single), address="#one/0"
    )
    assert shown(page, "one")[-1][1] == pytest.approx(single.prediction[0], abs=0.006)
    for i in range(20):
        page.locator(f"#bare tr[data-sample='{i}']").click()
        lines = shown(page, "bare")
        assert sum(value for _, value in lines[:-1]) == pytest.approx(
            texts.prediction[i], abs=0.005 * len(lines)
        )
    assert "P(> 0)" not in page.locator("#bare").inner_text()


def test_a_fitted_sample_says_what_a_model_without_it_predicts(opened, half_seen):
    model, explanation, y = half_seen
    page = opened(Section("A", explanation, y=y, target_units="points"), address="#a/0")
    said = page.locator(".detail p").first.inner_text()
    left_out = y[0] - model.leave_one_out()[0][110]
    assert f"A model without it predicts {left_out:.1f}\u00a0points" in said
    assert column(page, "a", 5)[0] == pytest.approx(y[0] - left_out, abs=0.06)
    assert page.locator("#a .calibration svg circle").count() == 19


def test_technical_details_are_folded_and_are_printed(opened, diabetes):
    page = opened(Section("A", diabetes[0], y=diabetes[1]))
    hyperparameters = page.locator("#a .hyperparameters")
    assert not hyperparameters.is_visible()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert hyperparameters.is_visible()
    row = page.locator("#a tr[tabindex]").first
    shape = "node => getComputedStyle(node.querySelector('.opener'), '::before').content"
    closed = row.evaluate(shape)
    row.click()
    assert page.locator("#a tr[tabindex]").first.evaluate(shape) != closed


def test_dots_are_drawn_over_lines(opened, diabetes):
    page = opened(Section("A", diabetes[0], y=diabetes[1]))
    tags = page.locator("#a .scatter").evaluate(
        "node => [...node.querySelectorAll('.span, .dot')].map(part => part.tagName)"
    )
    assert tags == ["line"] * 100 + ["circle"] * 100


def test_many_samples_stay_quick(opened, tmp_path):
    page = opened(Section("Many", made(2000, 30), y=np.zeros(2000), seen=0))
    size = (tmp_path / "report.html").stat().st_size
    ready = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    print(f"report of 2,000 samples: {size / 1e6:.2f} MB, interactive after {ready:.0f} ms")
    assert size < 3_000_000
    assert ready < 1000
    took = page.evaluate("""() => {
        const box = document.querySelector("input[type=search]"), start = performance.now();
        for (const text of ["z1", "z12", "z", ""]) {
            box.value = text;
            box.dispatchEvent(new Event("input"));
        }
        return performance.now() - start;
    }""")
    assert took < 2000
    assert page.locator("#many tr[tabindex]").count() == 20
    assert page.locator("#many .scatter a").count() == 400


def test_groups_are_one_reason(tmp_path):
    """A category has its level in the place of a value, and no weight."""
    random = np.random.RandomState(0)
    cut, size = random.randint(3, size=40), random.rand(40)
    Z = np.column_stack([size, *(cut == level for level in range(3))]).astype(float)
    model = GPXRegressor(optimizer=None, weights="shared").fit(Z, size * cut)
    names, groups = ["size", "cut=Fair", "cut=Good", "cut=Ideal"], {"cut": [1, 2, 3]}
    explanation = model.explain(Z[:4], feature_names=names, groups=groups)
    (data,) = Elements(written(tmp_path, Section("Diamonds", explanation))).data
    assert sorted(data["features"]) == ["cut", "others"]
    for sample in data["samples"]:
        for place, value, weight, _, contribution, _ in sample["reasons"]:
            if data["features"][place] == "cut":
                assert value == ["Fair", "Good", "Ideal"][cut[sample["i"]]]
                assert weight is None
                expected = explanation.contributions[sample["i"], 1:].sum()
                assert contribution == pytest.approx(expected, rel=1e-5)


def test_effects_are_drawn_on_one_scale(tmp_path, diabetes):
    """A curve has the means of the effect, and a category has its levels."""
    explanation, _ = diabetes
    page = Elements(written(tmp_path, Section("Diabetes", explanation)))
    curves = [kept["points"] for tag, kept in page.elements if tag == "polyline"]
    importance = explanation.importance()
    order = np.argsort(-importance, kind="stable")[: effects.MAX_EFFECTS]
    assert len(curves) == len(order)
    assert f"effect of {importance.names[order[0]]}" in {
        kept.get("aria-label") for tag, kept in page.elements if tag == "svg"
    }
    found = [explanation.effect(int(at)) for at in order]
    heights = [
        np.array([float(point.split(",")[1]) for point in points.split()]) for points in curves
    ]
    slope = np.ptp(heights[0]) / np.ptp(found[0].mean)
    for effect, drawn in zip(found, heights, strict=True):
        expected = slope * (effect.mean - effect.mean[0])
        np.testing.assert_allclose(drawn[0] - drawn, expected, atol=0.2)
    few = Elements(written(tmp_path, Section("Few", explanation[:5])))
    assert not any(tag == "polyline" for tag, _ in few.elements)


def test_levels_of_a_category_have_their_effects(tmp_path):
    random = np.random.RandomState(0)
    frame = pd.DataFrame({"cut": random.choice(["Fair", "<b>Good</b>"], 40), "n": random.rand(40)})
    y = frame["n"] + (frame["cut"] == "Fair")
    model = GPXRegressor("rbf", optimizer=None, weights="shared").fit(frame, y)
    page = written(tmp_path, Section("Cuts", model.explain(frame)))
    assert sum(tag == "circle" for tag, _ in Elements(page).elements) == 2
    assert "<b>Good" not in page
    assert "Fair</text>" in page
