"""The command line as it is typed: all commands on small files, and the files that it refuses."""

import datetime
import gzip
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import gpx_scale
from gpx_scale import datasets
from gpx_scale.cli import column_roles as recipes
from gpx_scale.cli import main, tables

DIABETES = load_diabetes(as_frame=True, scaled=False).frame.assign(
    sex=lambda frame: np.where(frame["sex"] > 1.5, "woman", "man"),
    target=lambda frame: frame["target"],
)
FEW = DIABETES[:120]
NEW = DIABETES[120:150]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, new rows without the target, and a model of it."""
    folder = tmp_path_factory.mktemp("cli")
    FEW.to_csv(folder / "few.csv", index=False)
    NEW.drop(columns="target").to_csv(folder / "new.csv", index=False)
    NEW.to_csv(folder / "known.csv", index=False)
    assert (
        main(
            ["fit", str(folder / "few.csv"), "--target", "target", "--out", str(folder / "few.gpx")]
        )
        == 0
    )
    return folder


def said(capsys):
    """What was printed, in one line each: results, messages."""
    out, err = capsys.readouterr()
    return out, " ".join(err.split())


def refused(capsys, *arguments, code=1):
    assert main([str(argument) for argument in arguments]) == code
    out, err = said(capsys)
    assert not out
    assert "Traceback" not in err
    return err


def written(tmp_path, text, name="table.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


# commands


def test_help_teaches(capsys):
    assert main(["--help"]) == 0
    out, _ = said(capsys)
    for command in ("fit", "predict", "explain", "report", "evaluate", "plan", "demo"):
        assert command in out
        assert main([command, "--help"]) == 0
        assert "Example" in said(capsys)[0]
    assert main([]) == 2
    assert main(["--version"]) == 0
    assert gpx_scale.__version__ in said(capsys)[0]


def test_wrong_usage_has_its_own_code(capsys, folder):
    assert "No such command" in refused(capsys, "fly", code=2)
    assert "--target" in refused(
        capsys, "fit", folder / "few.csv", "--out", folder / "x.gpx", code=2
    )
    both = ("--text", "sex", "--z", "bmi")
    usage = refused(
        capsys, "fit", folder / "few.csv", "-t", "target", "-o", folder / "x.gpx", *both, code=2
    )
    assert "--text replaces --x and --z" in usage


def test_as_a_program_and_as_a_module():
    beside = Path(sys.executable).with_name("gpx-scale")
    for command in ([str(beside)], [sys.executable, "-m", "gpx_scale.cli"]):
        shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert gpx_scale.__version__ in shown.stdout


def test_the_model_of_a_table_is_the_one_of_python(folder):
    """The same numbers, from a frame as it comes, and the names that the table has."""
    model = gpx_scale.load(folder / "few.gpx")
    assert model.target_name_ == "target"
    columns = [name for name in FEW if name != "target"]
    assert list(model.feature_names_in_) == columns
    assert {"sex_man", "sex_woman"} < set(model.explain(NEW[columns]).feature_names)
    own = gpx_scale.GPXRegressor(random_state=0).fit(FEW[columns], FEW["target"])
    np.testing.assert_allclose(model.predict(NEW[columns]), own.predict(NEW[columns]), rtol=1e-12)


@pytest.mark.parametrize("out", ["p.csv", "p.tsv", "p.parquet", "p.json", "p.csv.gz", None])
def test_predict(folder, tmp_path, capsys, out):
    where = [] if out is None else ["--out", str(tmp_path / out)]
    assert (
        main(
            ["predict", str(folder / "few.gpx"), str(folder / "new.csv"), "--level", "0.9", *where]
        )
        == 0
    )
    text, _ = said(capsys)
    if out is None:
        (tmp_path / "p.csv").write_text(text)
    read = {
        "tsv": lambda path: pd.read_csv(path, sep="\t"),
        "parquet": pd.read_parquet,
        "json": pd.read_json,
    }
    frame = read.get((out or "p.csv").split(".")[1], pd.read_csv)(tmp_path / (out or "p.csv"))
    mean, std = gpx_scale.load(folder / "few.gpx").predict(
        NEW.drop(columns="target"), return_std=True
    )
    assert list(frame) == ["row", "prediction", "prediction_std", "lower", "upper"]
    np.testing.assert_allclose(frame["prediction"], mean, rtol=1e-12)
    np.testing.assert_allclose(
        frame["upper"] - frame["lower"], 2 * 1.6448536269514722 * std, rtol=1e-9
    )


def test_explain(folder, tmp_path, capsys):
    model, new = str(folder / "few.gpx"), str(folder / "new.csv")
    expected = gpx_scale.load(model).explain(NEW.drop(columns="target"))
    every = str(tmp_path / "f.parquet")
    assert main(["explain", model, new, "--features", "--out", every]) == 0
    np.testing.assert_allclose(pd.read_parquet(every)["weight"], expected.weights.ravel())
    expected = expected.grouped()
    assert main(["explain", model, new, "--out", str(tmp_path / "e.parquet")]) == 0
    frame = pd.read_parquet(tmp_path / "e.parquet")
    assert len(frame) == expected.weights.size
    assert frame["row"].iloc[0] == 1
    np.testing.assert_allclose(frame["contribution"], expected.contributions.ravel())
    assert main(["explain", model, new, "--out", str(tmp_path / "e.csv"), "--top", "3"]) == 0
    top = pd.read_csv(tmp_path / "e.csv")
    assert len(top) == 3 * len(NEW)
    assert top["feature"][:3].tolist() == [reason.feature for reason in expected.top(0, 3)]
    assert main(["explain", model, new, "--out", str(tmp_path / "w.csv"), "--wide"]) == 0
    wide = pd.read_csv(tmp_path / "w.csv")
    np.testing.assert_allclose(
        wide[expected.feature_names].sum(axis=1) + wide["base_value"], wide["prediction"]
    )
    assert (
        main(["explain", model, new, "--out", str(tmp_path / "e.json"), "--baseline", "zero"]) == 0
    )
    sample = json.loads((tmp_path / "e.json").read_text())["samples"][0]
    total = sample["base_value"] + sum(reason["contribution"] for reason in sample["reasons"])
    assert total == pytest.approx(sample["prediction"], rel=1e-12)
    said(capsys)
    assert "give a .csv" in refused(
        capsys, "explain", model, new, "--top", "2", "--out", tmp_path / "x.JSON"
    )
    assert "leave out --top" in refused(
        capsys, "explain", model, new, "--top", "2", "--wide", code=2
    )


def test_columns_are_one_reason_and_words(folder, tmp_path, capsys):
    """A category is one reason with its level, and --group puts columns together."""
    model, new = str(folder / "few.gpx"), str(folder / "new.csv")
    explanation = gpx_scale.load(model).explain(NEW.drop(columns="target"))
    path = tmp_path / "e.csv"
    assert main(["explain", model, new, "--out", str(path)]) == 0
    rows = pd.read_csv(path)
    assert rows.loc[rows["feature"] == "sex", "value"].tolist() == NEW["sex"].tolist()
    group = ["--group", "body:sex,bmi", "--group", "blood: s1 ,s2"]
    assert main(["explain", model, new, *group, "--out", str(path)]) == 0
    rows = pd.read_csv(path)
    assert rows["feature"][:3].tolist() == ["body", "blood", "others"]
    at = [explanation.feature_names.index(name) for name in ("sex_man", "sex_woman", "bmi")]
    body = rows.loc[rows["feature"] == "body", "contribution"]
    np.testing.assert_allclose(body, explanation.contributions[:, at].sum(axis=1))
    assert main(["explain", model, new, "--words", "--top", "2", "--out", str(path)]) == 0
    assert pd.read_csv(path)["words"].tolist() == [
        explanation.in_words(i, k=2) for i in range(len(NEW))
    ]
    page = tmp_path / "r.html"
    assert main(["report", model, new, *group, "--out", str(page)]) == 0
    assert '"body"' in page.read_text(encoding="utf-8")
    said(capsys)
    for given in ("body", "body:", ":sex"):
        assert "size:length,width" in refused(
            capsys, "explain", model, new, "--group", given, code=2
        )
    assert "no column" in refused(capsys, "explain", model, new, "--group", "a:colour")
    assert "not both" in refused(capsys, "explain", model, new, "--words", "--wide", code=2)


def test_report_compares_where_the_target_is_known(folder, tmp_path, capsys):
    assert (
        main(
            [
                "report",
                str(folder / "few.gpx"),
                str(folder / "known.csv"),
                "--out",
                str(tmp_path / "r.html"),
            ]
        )
        == 0
    )
    assert str(tmp_path / "r.html") in said(capsys)[0]
    page = (tmp_path / "r.html").read_text()
    assert "95% intervals contain" in page
    assert "30 of 30 rows of known.csv" in page
    assert "samples that the model was not fitted on" in page
    assert (
        main(
            [
                "report",
                str(folder / "few.gpx"),
                str(folder / "few.csv"),
                "--out",
                str(tmp_path / "seen.html"),
            ]
        )
        == 0
    )
    page = (tmp_path / "seen.html").read_text()
    assert "The model was fitted on 120 of 120 samples. Their errors are those of models" in page
    assert (
        main(
            [
                "report",
                str(folder / "few.gpx"),
                str(folder / "new.csv"),
                "--out",
                str(tmp_path / "r.html"),
            ]
        )
        == 0
    )
    assert "intervals contain" not in (tmp_path / "r.html").read_text()


def test_evaluate(folder, capsys):
    assert main(["evaluate", str(folder / "few.csv"), "--target", "target", "--folds", "3"]) == 0
    out, _ = said(capsys)
    for words in ("fold", "RMSE", "within 95%", "mean", "40"):
        assert words in out


@pytest.mark.parametrize(
    ("load", "rows"),
    [
        (datasets.load_boston, 506),
        pytest.param(datasets.load_abalone, 4177, marks=pytest.mark.slow),
    ],
)
def test_intervals_hold_what_they_say(load, rows, shared_data, tmp_path, capsys):
    """Between 90 and 99% of values that a model has not seen are within its 95% intervals.

    The report says so.
    """
    data = load()
    kept = np.random.RandomState(0).permutation(len(data.y))[:rows]
    pd.DataFrame(data.X[kept], columns=data.feature_names).assign(y=data.y[kept]).to_csv(
        tmp_path / "t.csv", index=False
    )
    assert (
        main(["evaluate", str(tmp_path / "t.csv"), "-t", "y", "--report", str(tmp_path / "r.html")])
        == 0
    )
    page = (tmp_path / "r.html").read_text()
    (share,) = re.findall(rf"95% intervals contain ([\d.]+)% of {rows:,} true values", page)
    assert 90 <= float(share) <= 99


def test_plan(folder, capsys):
    assert main(["plan", str(folder / "few.csv"), "--target", "target"]) == 0
    out, _ = said(capsys)
    for words in (
        "solver 'exact'",
        "column sex: category of 2 values",
        "target target: number",
        "less than a second",
    ):
        assert words in out
    assert (
        main(["plan", str(folder / "few.csv"), "--solver", "inducing", "--n-inducing", "20"]) == 0
    )
    assert "20 inducing points" in said(capsys)[0]


def test_columns_as_asked(folder, tmp_path, capsys):
    few = str(folder / "few.csv")
    fit = ["fit", few, "-t", "target", "-o", str(tmp_path / "m.gpx")]
    for options, n_x, z in (
        (["--x", "age,bp", "--z", "bmi,s5"], 2, ["bmi", "s5"]),
        (["--z", "bmi"], 11, ["bmi"]),
        (["--x", "age,bp", "--drop", "s1,s2,s3,s4,s6"], 2, ["sex_man", "sex_woman", "bmi", "s5"]),
    ):
        assert main([*fit, *options, "--intercept", "--kernel", "matern52"]) == 0
        model = gpx_scale.load(tmp_path / "m.gpx")
        assert model.explain(NEW[list(model.feature_names_in_)]).feature_names == z
        assert len(model._preprocessor.scaling.x_shift) == n_x
    said(capsys)
    assert "no column 'weight'" in refused(capsys, *fit, "--x", "weight")
    assert "cannot explain itself" in refused(capsys, *fit, "--z", "target,bmi")
    assert "no columns to explain by" in refused(
        capsys, *fit, "--drop", ",".join(c for c in FEW if c != "target")
    )


def test_priors_of_the_weights_as_asked(folder, tmp_path, capsys):
    fit = ["fit", str(folder / "few.csv"), "-t", "target", "-o", str(tmp_path / "m.gpx")]
    assert (
        main([*fit, "--kernel", "rbf", "--x", "age,bp", "--z", "bmi,s5,sex", "--weights", "semi"])
        == 0
    )
    said(capsys)
    model = gpx_scale.load(tmp_path / "m.gpx")
    assert {row.feature for row in model.fit_report_.weight_table} >= {"bmi", "s5"}
    assert "weights='all' is not valid" in refused(capsys, *fit, "--weights", "all")
    assert main([*fit, "--kernel", "rbf", "--weights", "additive"]) == 0
    table = gpx_scale.load(tmp_path / "m.gpx").fit_report_.weight_table
    # The levels of a category are one group.
    assert {row.feature for row in table} == {*FEW.columns, "intercept"} - {"target"}


def test_texts(tmp_path, capsys):
    words = np.random.RandomState(0).choice(["good", "bad", "fine", "dull"], (60, 2))
    worth = {"good": 2.0, "bad": -2.0, "fine": 1.0, "dull": -1.0}
    frame = pd.DataFrame(
        {
            "review": [f"A {a} and {b} film, shown in town" for a, b in words],
            "stars": [worth[a] + worth[b] for a, b in words],
        }
    )
    frame.to_csv(tmp_path / "reviews.csv", index=False)
    table, model = str(tmp_path / "reviews.csv"), str(tmp_path / "m.gpx")
    assert main(["fit", table, "-t", "stars", "--text", "review", "-o", model]) == 0
    said(capsys)
    assert main(["explain", model, table, "--top", "2"]) == 0
    assert {"good", "bad"} < {line.split(",")[1] for line in said(capsys)[0].splitlines()[1:]}
    assert main(["report", model, table, "--out", str(tmp_path / "r.html")]) == 0
    assert "good" in (tmp_path / "r.html").read_text()
    page = tmp_path / "e.html"
    assert (
        main(
            [
                "evaluate",
                table,
                "-t",
                "stars",
                "--text",
                "review",
                "--folds",
                "2",
                "--report",
                str(page),
            ]
        )
        == 0
    )
    assert '"and"' not in page.read_text()  # a stop word is no feature
    assert page.read_text().count('"town"') > 30  # every document, word by word
    assert main(["explain", model, table, "--wide", "--out", str(tmp_path / "w.parquet")]) == 0
    wide = pd.read_parquet(tmp_path / "w.parquet")
    np.testing.assert_allclose(
        wide["base_value"]
        + wide[["bad", "good", "fine", "dull", "film", "shown", "town"]].sum(axis=1),
        wide["prediction"],
    )
    assert main(["plan", table, "-t", "stars", "--text", "review"]) == 0
    said(capsys)
    written(tmp_path, "a,y\n" + "\n".join(f"{k} .,{k}" for k in range(9)), "numbers.csv")
    assert "no words" in refused(
        capsys, "fit", tmp_path / "numbers.csv", "-t", "y", "--text", "a", "-o", model
    )


@pytest.mark.parametrize("name", ["all", "diabetes", "text", "spatial"])
def test_demos_leave_a_report_and_pictures(name, tmp_path, capsys):
    assert main(["demo", name, "--out", str(tmp_path / "demo")]) == 0
    out, _ = said(capsys)
    assert out.rstrip().endswith("report.html")
    assert "integrated evidence" in out
    shown = ["digits", "diabetes"] if name == "all" else [name]
    for which in shown:
        assert (tmp_path / "demo" / f"{which}.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.count("intervals contain") >= len(shown)
    assert "https://" not in page


# kinds of files


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet", "t.csv.gz", "t.tsv.gz"])
def test_every_kind_of_file_gives_the_same_model(folder, tmp_path, name, capsys):
    path = tmp_path / name
    if name.endswith("parquet"):
        FEW.assign(sex=FEW["sex"].astype("category"), age=FEW["age"].astype("int32")).to_parquet(
            path
        )
    else:
        FEW.to_csv(path, index=False, sep="\t" if "tsv" in name else ",")
    assert main(["fit", str(path), "-t", "target", "-o", str(tmp_path / "m.gpx")]) == 0
    asked = NEW.drop(columns="target")
    np.testing.assert_allclose(
        gpx_scale.load(tmp_path / "m.gpx").predict(asked),
        gpx_scale.load(folder / "few.gpx").predict(asked),
        rtol=1e-10,
    )


ROWS = "\n".join(f"{k % 7},{'ab'[k % 2]},{k * k % 11}" for k in range(30))


@pytest.mark.parametrize(
    ("text", "encoding", "options"),
    [
        (f"size,kind,y\n{ROWS}\n", "utf-8-sig", []),
        (f"size,kind,y\r\n{ROWS}\r\n".replace("\n", "\r\n").replace("\r\r", "\r"), "utf-8", []),
        (f'size,kind,y\n1,"a\nb",3\n2,"a, ""b""",4\n{ROWS}', "utf-8", []),
        (f"size;kind;y\n{ROWS.replace(',', ';')}", "utf-8", ["--sep", ";"]),
        (f"size\tkind\ty\n{ROWS}".replace(",", "\t"), "utf-8", ["--sep", "\\t"]),
        (f"größe,kind,y\n{ROWS}", "latin-1", ["--encoding", "latin-1"]),
        (f"size,kind,y\n{ROWS}\n\n", "utf-8", []),
        (f"size,kind,y\n{ROWS}".replace("a", "<script>").replace("b", "=1+1"), "utf-8", []),
        (f"prediction,sample,y\n{ROWS}", "utf-8", []),
    ],
    ids=[
        "bom",
        "windows",
        "quoted newlines",
        "semicolons",
        "tabs",
        "latin",
        "blank line",
        "markup",
        "our names",
    ],
)
def test_tables_that_work(text, encoding, options, tmp_path, capsys):
    path, model = written(tmp_path, text, encoding=encoding), str(tmp_path / "m.gpx")
    assert main(["fit", str(path), "-t", "y", "-o", model, *options]) == 0
    assert "﻿" not in "".join(gpx_scale.load(model).feature_names_in_)
    for command in (["predict"], ["explain"], ["explain", "--wide"]):
        ours = "--wide" in command and text.startswith("prediction")
        assert main([*command, model, str(path), *options]) == int(ours)
        assert ("A feature is named 'prediction'" in said(capsys)[1]) == ours
    assert main(["report", model, str(path), "--out", str(tmp_path / "r.html"), *options]) == 0
    assert "<script>_" not in (tmp_path / "r.html").read_text()
    separator = {"\\t": "\t"}.get(options[1], options[1]) if "--sep" in options else ","
    rows = len(pd.read_csv(path, encoding=encoding, sep=separator))
    assert f"{rows} of {rows} rows" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,a,y\n1,2,3,4\n2,3,4,5\n", "more than one column named 'a'"),
        ("a,,y\n1,2,3\n", "column 2 of 3 has no name"),
        ("a,b\n1,2\n3,4\n", "no column 'y', only 'a', 'b'"),
        ("a,Y\n1,2\n3,4\n", "Did you mean 'Y'?"),
        ("a;b;y\n1;2;3\n", "--sep ';'"),
        (
            "a,b,y\n1,2,3\n4,5,NA\n",
            "column 'y' has 1 missing value in rows 1 to 2, the first in row 2",
        ),
        ("a,b,y\n1,2,3\n4,inf,6\n", "row 2, column 'b' is inf"),
        (
            "a,y\n1,1\n2,2\nthree,3\n4,4\n",
            "column 'a' has numbers, but row 3 has 'three'",
        ),
        (
            "a,y\n1,1\n2,two\n3,3\n",
            "column 'y' must have numbers, but row 2 has 'two'",
        ),
        ("a,y\n1,5\n2,5\n3,5\n", "The target 'y' is 5 in all 3 rows"),
        ("a,y\n1,5\n", "One row is not enough"),
        ("a,y\n", "no rows"),
        ("", "cannot be read as a table"),
        ("a,y\n1,2\n1,2,3\n", "cannot be read as a table"),
        ("a,b,y\n1,2\n3,4\n", "column 'y' has 2 missing values in rows 1 to 2, the first in row 1"),
        ("a,b,y\n1,2,3,4\n3,4,5,6\n", "cannot be read as a table"),
        ('a,y\n"1,2\n3,4\n', "cannot be read as a table"),
        (
            "a,y\n" + "".join(f"name{k},{k}\n" for k in range(80)),
            "80 different texts in 80 rows, which is no category",
        ),
        ("a,y\n1,2\n3,4\xff\n", "not UTF-8"),
        (
            "c,c_u,y\nu,1,2\nv,2,3\n",
            "'c_u' would be the name of a column and of a value of a category",
        ),
        (
            'a,y\n"1,200",2\n"3,400",3\n',
            "looks like numbers: it has '1,200', '3,400'. Write them plainly",
        ),
        ("a,y\n31/01/2024,2\n01/02/2024,3\n", "looks like dates: it has '01/02/2024'"),
        (
            "a,y\n2024-01-31,2\nsoon,3\n2024-02-01,4\n",
            "column 'a' has dates, but row 2 has 'soon'. Make all of its values dates",
        ),
        ("a,y\n2024-01-31,2\n2024-02-31,3\n", "dates that cannot be read"),
        ('a,y\n1,"1,701"\n2,"2,702"\n', "row 1 has '1,701'. Write numbers plainly"),
        ("a,y\n1,NA\n2,3\n", "a word such as NA"),
    ],
)
def test_tables_that_are_refused(text, message, tmp_path, capsys):
    path = written(tmp_path, text, encoding="latin-1")
    assert message in refused(capsys, "fit", path, "--target", "y", "--out", tmp_path / "m.gpx")
    assert not (tmp_path / "m.gpx").exists()


def test_files_that_are_no_tables(tmp_path, capsys, folder):
    out = tmp_path / "m.gpx"
    assert "There is no file" in refused(capsys, "fit", tmp_path / "none.csv", "-t", "y", "-o", out)
    assert "ends in .csv, .tsv" in refused(
        capsys, "fit", written(tmp_path, "", "t.xlsx"), "-t", "y", "-o", out
    )
    assert "cannot be read" in refused(
        capsys, "fit", written(tmp_path, "a", "t.parquet"), "-t", "y", "-o", out
    )
    assert "cannot be read" in refused(
        capsys, "fit", written(tmp_path, "a", "t.csv.gz"), "-t", "y", "-o", out
    )
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(FEW.to_csv(index=False).encode())[:-200])
    assert "cannot be read" in refused(capsys, "fit", cut, "-t", "target", "-o", out)
    assert "There is no model" in refused(
        capsys, "predict", tmp_path / "none.gpx", folder / "new.csv"
    )
    assert "not a saved model" in refused(capsys, "predict", folder / "new.csv", folder / "new.csv")
    flipped = bytearray(gzip.compress(FEW.to_csv(index=False).encode()))
    flipped[200] ^= 0xFF
    cut.write_bytes(flipped)
    assert "cannot be read" in refused(capsys, "fit", cut, "-t", "target", "-o", out)
    FEW.assign(k=[[1, 2]] * len(FEW)).to_parquet(tmp_path / "nested.parquet")
    assert "has a ndarray in each row" in refused(
        capsys, "fit", tmp_path / "nested.parquet", "-t", "target", "-o", out
    )
    assert not out.exists()


def test_dates_of_a_parquet_file(tmp_path, capsys):
    days = pd.date_range("2020-01-01", periods=40)
    frame = pd.DataFrame({"day": days, "date": days.date, "y": np.arange(40.0) % 7})
    frame["time"] = [datetime.time(k % 24, 30) for k in range(40)]
    frame.to_parquet(tmp_path / "t.parquet")
    assert main(["plan", str(tmp_path / "t.parquet"), "-t", "y"]) == 0
    out, _ = said(capsys)
    assert "column day: date" in out
    assert "p = 7, d = 7" in out


def test_what_a_parquet_file_says_of_its_columns_counts(tmp_path, capsys):
    """Texts stay texts, and an index is no column."""
    frame = pd.DataFrame(
        {"code": ["01", "1"] * 15, "size": np.arange(30.0), "y": np.arange(30.0) % 7}
    )
    frame.sample(frac=1, random_state=0).to_parquet(tmp_path / "t.parquet")
    assert main(["plan", str(tmp_path / "t.parquet"), "-t", "y"]) == 0
    out, _ = said(capsys)
    assert "column code: category of 2 values" in out
    assert "__index_level_0__" not in out


def test_an_empty_line_of_one_column_is_a_value_that_is_missing(tmp_path, capsys):
    y = "\n".join(f"{k},{k % 3}" for k in range(9))
    assert (
        main(
            ["fit", str(written(tmp_path, f"a,y\n{y}\n")), "-t", "y", "-o", str(tmp_path / "m.gpx")]
        )
        == 0
    )
    said(capsys)
    path = written(tmp_path, "a\n1.0\n\n2.0\n", "one.csv")
    assert main(["predict", str(tmp_path / "m.gpx"), str(path)]) == 0
    assert said(capsys)[0].count("\n") == 4
    fit = ["fit", tmp_path / "table.csv", "-t", "y", "-o", tmp_path / "m.gpx"]
    assert main([*map(str, fit), "--missing", "error", "--kernel", "rbf"]) == 0
    said(capsys)
    assert "'a' has 1 missing value in rows 1 to 3, the first in row 2" in refused(
        capsys, "predict", tmp_path / "m.gpx", path
    )


def test_names_with_spaces_and_commas(tmp_path, capsys):
    path = written(tmp_path, ' a,"b,c",y \n' + "\n".join(f"{k},{k % 5},{k % 3}" for k in range(20)))
    assert (
        main(
            [
                "fit",
                str(path),
                "-t",
                "y",
                "--x",
                "a",
                "--z",
                'a, "b,c"',
                "-o",
                str(tmp_path / "m.gpx"),
            ]
        )
        == 0
    )
    model = gpx_scale.load(tmp_path / "m.gpx")
    assert model.target_name_ == "y"
    assert model.explain(pd.DataFrame({"a": [1.0], "b,c": [2.0]})).feature_names == ["a", "b,c"]
    versions = written(
        tmp_path, "v,y\n" + "\n".join(f"1.2.{k % 3},{k % 5}" for k in range(20)), "versions.csv"
    )
    assert main(["plan", str(versions), "-t", "y"]) == 0  # no dates


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--seed", "-1"], 2, "--seed"),
        (["--x", ","], 2, "names no column"),
        (["--sep", "ab"], 2, "Give one character"),
        (["--x", "bmi", "--drop", "bmi"], 1, "both asked for and left out"),
        (["--drop", "target"], 1, "both asked for and left out"),
        (["--solver", "quantum"], 1, "solver='quantum'"),
        (["--kernel", "quantum"], 1, "kernel"),
        (
            ["--memory-limit", "100KB"],
            1,
            "100.0 KiB",
        ),  # C alone has 112 KiB; what workers need depends on the cores.
        (["--n-jobs", "0"], 1, "n_jobs"),
    ],
)
def test_options_that_are_refused(options, code, message, folder, tmp_path, capsys):
    given = ["fit", folder / "few.csv", "-t", "target", "-o", tmp_path / "m.gpx"]
    assert message in refused(capsys, *given, *options, code=code)


def test_columns_named_twice_count_once(folder, tmp_path):
    given = ["fit", str(folder / "few.csv"), "-t", "target", "-o", str(tmp_path / "m.gpx")]
    assert main([*given, "--x", "bmi,bmi", "--z", "s5,bmi,s5"]) == 0


def test_a_checkpoint_and_what_it_is_for(folder, tmp_path, capsys):
    given = ["fit", str(folder / "few.csv"), "-t", "target", "-o", str(tmp_path / "m.gpx")]
    assert main([*given, "--checkpoint", str(tmp_path / "fit.npz")]) == 0
    assert (tmp_path / "fit.npz").exists()
    assert gpx_scale.load(tmp_path / "m.gpx").checkpoint is None


def test_numbers_keep_their_digits_in_json(tmp_path, capsys):
    rows = "\n".join(f"{k},{(k % 7) * 1e-13}" for k in range(30))
    path, model = written(tmp_path, f"a,y\n{rows}\n"), str(tmp_path / "m.gpx")
    assert main(["fit", str(path), "-t", "y", "-o", model]) == 0
    for out in ("p.json", "p.csv"):
        assert main(["predict", model, str(path), "--out", str(tmp_path / out)]) == 0
    found = [record["prediction_std"] for record in json.loads((tmp_path / "p.json").read_text())]
    assert found == [
        float(line.split(",")[2]) for line in (tmp_path / "p.csv").read_text().splitlines()[1:]
    ]


FORMULAS = ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\tx", "\rx", "\nx"]
HARMLESS = ["-5", "+.5e-3", "a=1", "'=1", "", "-1.5"]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.CSV"])
def test_formulas_are_written_as_text(name, tmp_path):
    """This holds for names of columns and for cells, also of categories; numbers stay numbers.

    Missing cells, and columns of one name, do not change that.
    """
    texts = FORMULAS + HARMLESS
    frame = pd.DataFrame(
        {
            "=n": -np.arange(1.0, len(texts) + 1),
            "text": texts,
            "-3": pd.Categorical(texts),
            "@": texts,
        }
    )
    frame["mixed"] = pd.Series([-1, None, *texts[:-2]], dtype=object)
    frame.columns = ["=n", "text", "-3", "@", "text"]
    before = frame.copy()
    tables.write_table(frame, tmp_path / name)
    pd.testing.assert_frame_equal(frame, before)
    how = {"sep": "\t" if "tsv" in name else ",", "keep_default_na": False, "lineterminator": "\n"}
    lines = pd.read_csv(tmp_path / name, header=None, dtype=str, **how)
    assert lines.iloc[0].tolist() == ["'=n", "text", "-3", "'@", "text"]
    safe = [f"'{text}" for text in FORMULAS] + HARMLESS
    for k in (1, 2, 3):
        assert lines[k].tolist()[1:] == safe
    assert lines[0].astype(str)[1] == "-1.0"
    assert lines[4].tolist()[1:] == ["-1", "", *safe[:-2]]
    for other in ("t.parquet", "t.json"):
        tables.write_table(before[["=n", "@"]], tmp_path / other)
    assert pd.read_parquet(tmp_path / "t.parquet")["@"].tolist() == texts
    assert [record["@"] for record in json.loads((tmp_path / "t.json").read_text())] == texts


def test_a_feature_named_as_a_formula(tmp_path, capsys):
    path, model = (
        written(tmp_path, "=1+1,@x,y\n" + "\n".join(f"{k},{k % 7},{k % 5}" for k in range(30))),
        tmp_path / "m.gpx",
    )
    assert main(["fit", str(path), "-t", "y", "-o", str(model)]) == 0
    said(capsys)
    for options in ([], ["--wide"]):
        assert main(["explain", str(model), str(path), *options]) == 0
        shown = said(capsys)[0]
        assert (
            main(["explain", str(model), str(path), *options, "--out", str(tmp_path / "e.csv")])
            == 0
        )
        said(capsys)
        assert (tmp_path / "e.csv").read_text() == shown
        assert ",'=1+1," in shown
        assert ",=1+1" not in shown
        assert ",'@x" in shown


def test_huge_scales(tmp_path, capsys):
    rows = "\n".join(f"{k},{(k % 7) * 1e200}" for k in range(30))
    path, model = written(tmp_path, f"a,y\n{rows}\n"), str(tmp_path / "m.gpx")
    assert main(["fit", str(path), "-t", "y", "-o", model]) == 0
    assert main(["report", model, str(path), "--out", str(tmp_path / "r.html")]) == 0
    assert main(["evaluate", str(path), "-t", "y"]) == 0


def test_a_fold_whose_target_does_not_vary(tmp_path, capsys):
    path = written(tmp_path, "a,y\n" + "\n".join(f"{k},{int(k == 3)}" for k in range(12)))
    assert main(["evaluate", str(path), "-t", "y", "--folds", "4"]) == 0
    assert " - " in said(capsys)[0]


def test_models_made_in_python(folder, tmp_path, capsys):
    """With transformers of other kinds than the command's own."""
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["sex"]), (StandardScaler(), ["bmi", "s5"])
    )
    A = FEW[["sex", "bmi", "s5"]]
    model = gpx_scale.GPXRegressor(
        x_transformer=["bmi"],
        z_transformer=columns,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(A, FEW["target"])
    model.save(tmp_path / "m.gpx")
    assert main(["predict", str(tmp_path / "m.gpx"), str(folder / "new.csv")]) == 0
    lines = said(capsys)[0].splitlines()
    assert float(lines[1].split(",")[1]) == pytest.approx(
        model.predict(NEW[["sex", "bmi", "s5"]])[0], rel=1e-9
    )


def test_an_unforeseen_error_is_one_line(folder, capsys, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("of a kind\nnot thought of")

    monkeypatch.setattr(gpx_scale.GPXRegressor, "predict", broken)
    assert "RuntimeError: of a kind not thought of" in refused(
        capsys, "predict", folder / "few.gpx", folder / "new.csv"
    )
    monkeypatch.setenv("GPX_SCALE_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["predict", str(folder / "few.gpx"), str(folder / "new.csv")])


def test_rows_that_the_model_does_not_know(folder, tmp_path, capsys):
    model, new = folder / "few.gpx", NEW.drop(columns="target")
    new.rename(columns={"bmi": "BMI"}).drop(columns="s6").to_csv(tmp_path / "t.csv", index=False)
    difference = refused(capsys, "predict", model, tmp_path / "t.csv")
    assert "lacks columns of this model: 'bmi', 's6'. The model does not use 'BMI'" in difference
    new.assign(sex="child").to_csv(tmp_path / "t.csv", index=False)
    assert main(["predict", str(model), str(tmp_path / "t.csv")]) == 0
    assert "column 'sex' has 'child', which the model has not seen, and takes" in said(capsys)[1]
    new.assign(bmi="high").to_csv(tmp_path / "t.csv", index=False)
    assert "'bmi'" in refused(capsys, "predict", model, tmp_path / "t.csv")
    new.assign(bp=np.nan).to_csv(tmp_path / "t.csv", index=False)
    assert main(["predict", str(model), str(tmp_path / "t.csv")]) == 0
    said(capsys)
    new[::-1][list(new)[::-1]].assign(other=1).to_csv(
        tmp_path / "t.csv", index=False
    )  # more columns, in another order
    assert main(["predict", str(model), str(tmp_path / "t.csv")]) == 0
    lines = said(capsys)[0].splitlines()
    assert float(lines[-1].split(",")[1]) == pytest.approx(
        gpx_scale.load(model).predict(new)[0], rel=1e-9
    )
    new[:1].to_csv(tmp_path / "t.csv", index=False)
    assert main(["predict", str(model), str(tmp_path / "t.csv")]) == 0


def test_models_that_a_file_cannot_feed(folder, tmp_path, capsys):
    A = FEW.drop(columns=["target", "sex"])
    gpx_scale.GPXRegressor(optimizer=None).fit(A.to_numpy(), FEW["target"]).save(tmp_path / "m.gpx")
    assert "without names of columns" in refused(
        capsys, "predict", tmp_path / "m.gpx", folder / "new.csv"
    )
    gpx_scale.GPXRegressor(optimizer=None).fit(A, FEW["target"], A[["bmi"]]).save(
        tmp_path / "m.gpx"
    )
    assert "separate Z" in refused(capsys, "predict", tmp_path / "m.gpx", folder / "new.csv")
    gpx_scale.GPXRegressor(optimizer=None).fit(A, FEW["target"]).save(tmp_path / "m.gpx")
    assert main(["predict", str(tmp_path / "m.gpx"), str(folder / "new.csv")]) == 0


@pytest.mark.parametrize("command", ["fit", "predict", "explain", "report"])
def test_outputs_that_cannot_be_written_are_named_before_anything_is_done(
    command, folder, tmp_path, capsys, monkeypatch
):
    given = (
        [folder / "few.csv", "-t", "target"]
        if command == "fit"
        else [folder / "few.gpx", folder / "new.csv"]
    )
    assert "no folder" in refused(capsys, command, *given, "--out", tmp_path / "none" / "out.csv")
    assert "is a folder" in refused(capsys, command, *given, "--out", tmp_path)
    if command in ("predict", "explain"):
        assert "ends in .csv" in refused(capsys, command, *given, "--out", tmp_path / "out.doc")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    assert "no permission to write" in refused(
        capsys, command, *given, "--out", tmp_path / "out.csv"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["fit", "predict", "explain", "report", "evaluate"])
def test_what_is_read_is_not_written_over(command, folder, tmp_path, capsys):
    table, model = tmp_path / "t.csv", tmp_path / "m.csv"
    table.write_bytes((folder / "few.csv").read_bytes())
    model.write_bytes((folder / "few.gpx").read_bytes())
    learns = command in ("fit", "evaluate")
    given = [table, "-t", "target"] if learns else [model, table]
    for out in [table] if learns else [table, model]:
        option = "--report" if command == "evaluate" else "--out"
        assert "is also a file that is read" in refused(capsys, command, *given, option, out)
    assert table.read_bytes() == (folder / "few.csv").read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes.")
def test_special_files_and_links(folder, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.csv")
    given = ["predict", folder / "few.gpx", folder / "new.csv", "--out"]
    assert "not an ordinary file" in refused(capsys, *given, tmp_path / "pipe.csv")
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    assert main([*map(str, given), str(tmp_path / "link.csv")]) == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("row,prediction")
    long = tmp_path / f"{'n' * 240}.csv"
    assert main([*map(str, given), str(long)]) == 0


def test_a_demo_that_cannot_be_written(tmp_path, capsys):
    written(tmp_path, "", "file")
    assert "--out" in refused(capsys, "demo", "--out", tmp_path / "file" / "below")


def test_a_failed_write_leaves_the_old_file(folder, tmp_path, capsys, monkeypatch):
    old = written(tmp_path, "old", "out.csv")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    assert "No space left" in refused(
        capsys, "predict", folder / "few.gpx", folder / "new.csv", "--out", old
    )
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


@pytest.mark.parametrize(("given", "used"), [("auto", len(FEW)), ("all", len(FEW)), ("30", 30)])
def test_the_rows_of_a_search_are_an_option(given, used, folder, tmp_path):
    model = str(tmp_path / "m.gpx")
    fit = ["fit", str(folder / "few.csv"), "-t", "target", "-o", model, "--search-rows", given]
    assert main(fit) == 0
    assert gpx_scale.load(model).fit_report_.search_rows_used == used


def test_an_unknown_number_of_rows_is_refused(folder, tmp_path, capsys):
    model = str(tmp_path / "m.gpx")
    fit = ["fit", str(folder / "few.csv"), "-t", "target", "-o", model]
    for given in ("9", "most", "1e3"):
        assert main([*fit, "--search-rows", given]) != 0
        assert "search_rows" in said(capsys)[1]


# tables as they come


def mixed_table(n=60):
    """Return a table with a name for each row, a category, dates in two forms and missing values.

    One category has a level that only the last row has.
    """
    random = np.random.RandomState(0)
    days = pd.date_range("2022-03-01", periods=n, freq="9D")
    frame = pd.DataFrame(
        {
            "house": [f"=house {k}" for k in range(n)],
            "size": random.randint(30, 200, n).astype(float),
            "heating": [*random.choice(["gas", "oil"], n - 1), "wood"],
            "sold": days.strftime("%Y-%m-%d"),
            "built": days.strftime("%d/%m/%Y"),
            "price": random.uniform(1, 9, n).round(3),
        }
    )
    frame.loc[2, "size"] = np.nan
    frame.loc[3, "heating"] = None
    return frame


AS_THEY_COME = ["--id", "house", "--dates", "built:%d/%m/%Y"]
QUICK = ["--kernel", "rbf", "--no-intercept", "--weights", "shared"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A mixed table and a model of it."""
    folder = tmp_path_factory.mktemp("mixed")
    mixed_table().to_csv(folder / "t.csv", index=False)
    fit = ["fit", str(folder / "t.csv"), "-t", "price", "-o", str(folder / "m.gpx")]
    assert main([*fit, *AS_THEY_COME, *QUICK]) == 0
    return folder


def test_a_mixed_table_gives_the_model_of_python(mixed):
    model = gpx_scale.load(mixed / "m.gpx")
    frame = mixed_table().drop(columns=["house", "price"])
    frame["built"] = pd.to_datetime(frame["built"], format="%d/%m/%Y")
    own = gpx_scale.GPXRegressor(
        "rbf", fit_intercept=False, weights="shared", random_state=0, n_jobs=1
    ).fit(frame, mixed_table()["price"])
    assert model.z_groups_ == own.z_groups_
    assert list(own.z_groups_) == ["size", "heating", "sold", "built"]
    np.testing.assert_allclose(model.predict(frame), own.predict(frame), rtol=1e-9)


def test_results_have_the_names_of_rows(mixed, tmp_path, capsys):
    given = [str(mixed / "m.gpx"), str(mixed / "t.csv"), *AS_THEY_COME]
    names = mixed_table()["house"].tolist()
    counts = {"predict": 1, "explain --wide": 1, "explain": 4, "explain --features": 16}
    for command, count in counts.items():
        out = tmp_path / "out.parquet"
        assert main([*command.split(), *given, "--out", str(out)]) == 0
        frame = pd.read_parquet(out)
        assert frame.columns[:2].tolist() == ["row", "house"]
        assert frame["house"].tolist() == np.repeat(names, count).tolist()
    assert main(["explain", *given, "--top", "1", "--out", str(tmp_path / "out.json")]) == 1
    assert main(["explain", *given, "--out", str(tmp_path / "out.json")]) == 0
    samples = json.loads((tmp_path / "out.json").read_text())["samples"]
    assert [sample["index"] for sample in samples] == names
    assert main(["report", *given, "--out", str(tmp_path / "r.html")]) == 0
    assert "=house 7" in (tmp_path / "r.html").read_text()
    said(capsys)
    evaluate = ["evaluate", str(mixed / "t.csv"), "-t", "price", *AS_THEY_COME, *QUICK]
    assert main([*evaluate, "--folds", "2", "--report", str(tmp_path / "cv.html")]) == 0
    assert "=house 7" in (tmp_path / "cv.html").read_text()
    said(capsys)
    renamed = mixed_table().rename(columns={"house": "row"})
    renamed.to_csv(tmp_path / "t.csv", index=False)
    given = [mixed / "m.gpx", tmp_path / "t.csv", "--id", "row", *AS_THEY_COME[2:]]
    assert "'row' of --id has the name" in refused(capsys, "predict", *given)


def test_all_problems_of_a_table_are_one_error(tmp_path, capsys):
    frame = mixed_table().assign(name=[f"n{k}" for k in range(60)])
    frame["size"] = frame["size"].astype(object)
    frame.loc[7, "size"], frame.loc[9, "price"] = "large", np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = ["fit", tmp_path / "t.csv", "-t", "price", "--id", "house", "-o", tmp_path / "m.gpx"]
    message = refused(capsys, *given)
    for words in (
        "There are 4 problems:",
        "t.csv: column 'size' has numbers, but row 8 has 'large'",
        "t.csv: column 'price' has 1 missing value in rows 1 to 60, the first in row 10",
        "Column 'built' looks like dates",
        "Column 'name' has 60 different texts in 60 rows, which is no category",
    ):
        assert words in message
    message = refused(capsys, *given, "--missing", "error")
    assert "There are 5 problems:" in message
    assert "column 'heating' has 1 missing value in rows 1 to 60, the first in row 4" in message
    message = refused(capsys, *given, "--dates", "built:%Y-%m-%d")
    assert "t.csv: column 'built' has dates that cannot be read" in message
    assert "no column 'when'" in refused(capsys, *given, "--dates", "when")
    assert "neither" in refused(capsys, *given, "--missing", "drop", code=2)


# long tables


def test_chunks_of_a_mixed_table_have_all_levels_and_missing_values(mixed, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_HELD_ROWS", 30)
    monkeypatch.setattr(tables, "FILE_CHUNK_ROWS", 25)
    monkeypatch.setattr(recipes, "MAX_SUBSET_ROWS", 5)
    fit = ["fit", str(mixed / "t.csv"), "-t", "price", "-o", str(tmp_path / "m.gpx"), *AS_THEY_COME]
    assert main([*fit, *QUICK, "--n-inducing", "10"]) == 0
    model = gpx_scale.load(tmp_path / "m.gpx")
    assert model.solver_ == "inducing"
    assert model.z_groups_ == gpx_scale.load(mixed / "m.gpx").z_groups_
    given = [str(tmp_path / "m.gpx"), str(mixed / "t.csv"), *AS_THEY_COME]
    assert main(["predict", *given, "--out", str(tmp_path / "p.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "p.csv")) == 60


def test_long_tables_are_read_in_chunks(folder, tmp_path, capsys, monkeypatch):
    model, held = str(tmp_path / "m.gpx"), str(tmp_path / "held.gpx")
    fit = ["fit", str(folder / "few.csv"), "-t", "target", "-o", model, "--weights", "shared"]
    assert main([*fit, "-o", held]) == 0
    monkeypatch.setattr(tables, "MAX_HELD_ROWS", 60)
    monkeypatch.setattr(tables, "FILE_CHUNK_ROWS", 50)
    fit = [*fit, "--n-inducing", "15"]
    assert main(fit) == 0
    fitted = gpx_scale.load(model)
    assert fitted.solver_ == "inducing"
    assert fitted.target_name_ == "target"
    assert fitted.fit_report_.n_samples == len(FEW)
    known = NEW.drop(columns="target")
    assert np.corrcoef(fitted.predict(known), gpx_scale.load(held).predict(known))[0, 1] > 0.95
    for command in ("predict", "explain"):
        said(capsys)
        assert (
            main([command, model, str(folder / "few.csv"), "--out", str(tmp_path / "out.csv")]) == 0
        )
        rows = pd.read_csv(tmp_path / "out.csv")["row"]
        assert rows.min() == 1
        assert rows.max() == len(FEW)
    assert (
        main(
            [
                "report",
                model,
                str(folder / "few.csv"),
                "--out",
                str(tmp_path / "r.html"),
                "--samples",
                "40",
            ]
        )
        == 0
    )
    assert "40 of 120 rows" in (tmp_path / "r.html").read_text()
    assert main(["plan", str(folder / "few.csv"), "-t", "target"]) == 0
    assert "rows come in chunks" in said(capsys)[0]
    late = pd.concat([FEW, FEW[:1].assign(bmi="wide")])
    late.to_csv(tmp_path / "late.csv", index=False)
    assert "row 121 has 'wide'" in refused(capsys, "fit", tmp_path / "late.csv", *fit[2:])


@pytest.mark.filterwarnings("ignore:Inducing points are too few")
def test_more_rows_than_are_held(tmp_path, capsys):
    A = np.random.RandomState(0).normal(size=(100_500, 4)).round(3)
    pd.DataFrame(A, columns=list("abcd")).assign(y=(A[:, 0] + A[:, 1] * A[:, 2]).round(3)).to_csv(
        tmp_path / "t.csv", index=False
    )
    model = str(tmp_path / "m.gpx")
    assert (
        main(
            [
                "fit",
                str(tmp_path / "t.csv"),
                "-t",
                "y",
                "-o",
                model,
                "--kernel",
                "rbf",
                "--no-intercept",
                "--n-inducing",
                "20",
            ]
        )
        == 0
    )
    fitted = gpx_scale.load(model)
    assert fitted.solver_ == "inducing"
    assert fitted.fit_report_.n_samples == 100_500
    assert any("chunks" in reason for reason in fitted.fit_report_.reasons)


@pytest.mark.slow
def test_a_million_rows(tmp_path, capsys):
    """Streams to the inducing solver, in little memory."""
    random = np.random.RandomState(0)
    A = random.normal(size=(1_000_000, 5)).round(4)
    frame = pd.DataFrame(A, columns=list("abcde")).assign(
        kind=random.choice(["u", "v"], len(A)),
        y=A[:, 0] * np.sin(A[:, 1]) + A[:, 2] + 0.1 * random.normal(size=len(A)),
    )
    frame.to_csv(tmp_path / "million.csv", index=False)
    model = str(tmp_path / "m.gpx")
    assert (
        main(["fit", str(tmp_path / "million.csv"), "-t", "y", "-o", model, "--n-inducing", "200"])
        == 0
    )
    fitted = gpx_scale.load(model)
    assert fitted.solver_ == "inducing"
    assert fitted.score(frame[:2000][[*"abcde", "kind"]], frame["y"][:2000]) > 0.9


# people and pipes


def run_on_a_terminal(arguments):
    """What is shown where stderr is a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=follower, text=True)
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        shown += piece
        if not piece:
            break
    process.communicate()
    os.close(leader)
    return process.returncode, shown.decode()


def test_progress_on_a_terminal_and_quiet_in_a_pipe(folder, tmp_path):
    command = [
        sys.executable,
        "-m",
        "gpx_scale.cli",
        "fit",
        str(folder / "few.csv"),
        "-t",
        "target",
    ]
    code, shown = run_on_a_terminal([*command, "-o", str(tmp_path / "m.gpx")])
    assert code == 0
    assert "[gpx_scale]" in shown
    assert "log marginal likelihood" in shown
    quiet = subprocess.run(
        [*command, "-o", str(tmp_path / "m.gpx")], capture_output=True, text=True, check=True
    )
    assert quiet.stderr == ""
    assert quiet.stdout == f"model: {tmp_path / 'm.gpx'}\n"


def test_without_the_extra_the_command_says_so(tmp_path):
    code = "import sys; sys.modules['typer'] = None; import gpx_scale.cli"
    failed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1
    assert "gpx-scale[cli]" in failed.stderr


def test_words_of_a_long_table_come_from_all_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tables, "MAX_HELD_ROWS", 100)
    monkeypatch.setattr(tables, "FILE_CHUNK_ROWS", 50)
    early, late = (
        ["a dull start"] * 60 + ["a bright start"] * 60,
        ["the grand finale"] * 60 + ["the weak finale"] * 60,
    )
    frame = pd.DataFrame(
        {"t": early + late, "y": [0.0] * 60 + [1.0] * 60 + [5.0] * 60 + [3.0] * 60}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    model = str(tmp_path / "m.gpx")
    assert (
        main(
            [
                "fit",
                str(tmp_path / "t.csv"),
                "-t",
                "y",
                "--text",
                "t",
                "-o",
                model,
                "--n-inducing",
                "20",
            ]
        )
        == 0
    )
    assert {"dull", "bright", "grand", "weak", "finale"} <= set(
        gpx_scale.load(model).explain(frame[["t"]][:1]).feature_names
    )


def test_many_columns_are_read_in_a_moment(tmp_path):
    frame = pd.DataFrame(np.arange(8000.0).reshape(2, 4000), columns=[f"c{k}" for k in range(4000)])
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert len(tables.read_table(tmp_path / "t.csv", list(frame)).columns) == 4000


def test_too_many_columns_are_refused_before_a_row_is_read(tmp_path, capsys, monkeypatch):
    """Without a limit a fit on 200,000 columns took more than ten minutes, and said nothing."""
    names = [f"c{k}" for k in range(200_000)]
    line = ",".join(["1"] * len(names))
    path = written(tmp_path, ",".join(names) + f",y\n{line},1\n{line},2\n")
    read = recipes.read_table
    monkeypatch.setattr(recipes, "read_table", lambda *_: pytest.fail("rows were read"))
    for command in ("fit", "plan", "evaluate"):
        out = ["--out", tmp_path / "m.gpx"] if command == "fit" else []
        message = refused(capsys, command, path, "-t", "y", *out)
        assert (
            "has 200,000 columns to learn from, and the command line takes at most 20,000"
            in message
        )
        assert "--drop" in message
    some = ",".join(names[:20_001])
    assert "has 20,001 columns to learn from" in refused(
        capsys, "plan", path, "-t", "y", "--x", some, "--z", some
    )
    monkeypatch.setattr(recipes, "MAX_COLUMNS", 3)
    monkeypatch.setattr(recipes, "read_table", read)
    few = written(
        tmp_path,
        "a,b,c,d,y\n" + "\n".join(f"{k},{k % 3},{k % 5},{k % 7},{k % 4}" for k in range(30)),
        "few.csv",
    )
    assert "has 4 columns" in refused(capsys, "plan", few, "-t", "y")
    for options in (["--drop", "b"], ["--x", "a,b", "--z", "b,c"], ["--x", "a", "--z", "a"]):
        assert main(["plan", str(few), "-t", "y", *options]) == 0


def test_what_is_learned_from_many_columns_is_known_in_a_moment(tmp_path, monkeypatch):
    """The columns asked for are gathered once, and not once for every column."""
    frame = pd.DataFrame(
        np.arange(8000.0).reshape(2, 4000), columns=[f"c{k}" for k in range(4000)]
    ).assign(y=[0.0, 1.0])
    frame.to_csv(tmp_path / "t.csv", index=False)
    gather, calls = recipes.ColumnRoles.wanted.fget, []
    monkeypatch.setattr(
        recipes.ColumnRoles, "wanted", property(lambda roles: calls.append(1) or gather(roles))
    )
    assert (
        len(recipes.TabularData.of(tmp_path / "t.csv", recipes.ColumnRoles("y")).features) == 4000
    )
    assert len(calls) < 10


@pytest.mark.parametrize("start", ["", "\n\n", "\r\n", "   \n", "\ufeff", "\ufeff\n"])
def test_what_stands_before_the_names_of_columns(start, tmp_path):
    path = written(tmp_path, start + '"a\nb", c ,"d, ""e"""\n1,2,3\n4,5,6\n')
    table = tables.read_table(path)
    assert list(table.columns) == ["a\nb", "c", 'd, "e"']
    assert table.held.to_numpy().tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
