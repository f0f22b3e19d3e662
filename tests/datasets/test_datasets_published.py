"""What publishers send, written here as they write it, becomes the tables that we keep."""

import csv
import io
import json
import os

import numpy as np
import pytest
from test_datasets_download import fish_zip, lines_of, rows_of, serving, zipped

from gpx_scale import datasets
from gpx_scale.datasets import formats, sources
from gpx_scale.datasets.csv_table import content_digest, read_table
from gpx_scale.datasets.sources import DataUnavailable


def abalone_zip(table):
    return zipped(
        **{"Index": "of abalone", "abalone.data": lines_of(table, ","), "abalone.names": "..."}
    )


def wine_zip(table):
    color = table.pop("color")
    members = {}
    for one in ("white", "red"):
        some = {
            name: [c for c, k in zip(cells, color, strict=True) if k == one]
            for name, cells in table.items()
        }
        header = [name.replace("_", " ") for name in table]
        members[f"winequality-{one}.csv"] = lines_of(some, ";", header, csv.QUOTE_ALL)
    return zipped(**members)


def boston_text(table):
    rows = [
        [f"{float(cell):9.5f}" if k in (0, 7) else cell for k, cell in enumerate(row)]
        for row in rows_of(table)
    ]
    text = "".join(f" {'  '.join(row[:11])}\n  {' '.join(row[11:])}\n" for row in rows)
    return ("about the data\n" * 22 + text).encode()


def paper_zip(table):
    papers = {}
    for row in rows_of(table):
        of = dict(zip(table, row, strict=True))
        at, number, decision = (
            of.pop("paper_idx"),
            of.pop("paper_id"),
            of.pop("preliminary_decision"),
        )
        one = papers.setdefault(
            int(at), {"id": int(number), "preliminary_decision": decision, "review": []}
        )
        one["review"].append(
            {"id": int(of.pop("review_id")), **of, "confidence": of["confidence"] or None}
        )
    every = [
        papers.get(k, {"id": -k, "preliminary_decision": "accept", "review": []})
        for k in range(max(papers) + 1)
    ]
    return zipped(**{"data/reviews.json": json.dumps({"paper": every}, ensure_ascii=False)})


def king_county_arff(table):
    kinds = {"date": "STRING", "waterfront": "{0, 1}"}
    header = "".join(f"@ATTRIBUTE {name} {kinds.get(name, 'NUMERIC')}\n" for name in table)
    return f"% of houses\n@RELATION house_sales\n\n{header}\n@DATA\n{lines_of(table, ',')}".encode()


PUBLISHED = {
    "abalone": ("abalone.csv", abalone_zip, "/static/public/1/abalone.zip"),
    "boston": ("boston_housing.csv", boston_text, "/datasets/boston"),
    "fish": ("qsar_fish_toxicity.csv", fish_zip, "/static/public/504/qsar+fish+toxicity.zip"),
    "king_county": (
        "kc_house_data.csv.gz",
        king_county_arff,
        "/data/v1/download/21578898/house_sales.arff",
    ),
    "paper": ("paper_reviews.csv", paper_zip, "/static/public/410/paper+reviews.zip"),
    "wine": ("wine_quality.csv", wine_zip, "/static/public/186/wine+quality.zip"),
}


def test_every_source_is_tried():
    assert {file for file, _, _ in PUBLISHED.values()} == set(sources.SOURCES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_a_publisher_sends_is_what_the_folder_holds(name, shared_data, monkeypatch, tmp_path):
    load, (file, publish, path) = getattr(datasets, f"load_{name}"), PUBLISHED[name]
    if not (shared_data / file).is_file():
        pytest.skip(f"no {file} in {shared_data}")
    known, table = load(), read_table(shared_data / file)
    body = publish(dict(table))
    with serving(monkeypatch, tmp_path) as server:
        server.answers[path] = [(200, {}, body)]
        assert_same(load(), known)
        assert os.listdir(tmp_path / "cache") == [file]
        assert content_digest(read_table(tmp_path / "cache" / file), [*table]) == content_digest(
            table, [*table]
        )
        assert_same(load(), known)  # from the cache
        (tmp_path / "cache" / file).unlink()
        (tmp_path / sources.SOURCES[file].archive).write_bytes(body)
        monkeypatch.setenv("GPX_SCALE_DATA", str(tmp_path))
        assert_same(load(), known)  # from the publisher's file in a folder of one's own
        assert server.requests == [path]


def assert_same(found, known):
    for one, other in zip(found, known, strict=True):
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize(
    ("publish", "read", "names"),
    [
        (abalone_zip, formats.abalone, formats.ABALONE),
        (boston_text, formats.boston, formats.BOSTON),
        (fish_zip, formats.fish, formats.FISH),
        (king_county_arff, formats.arff, sources.KING_COUNTY),
        (wine_zip, formats.wine, sources.WINE),
    ],
)
def test_two_rows_of_each_format(publish, read, names):
    table = {name: (f"{k}.25", f"{k}.5") for k, name in enumerate(names)}
    if publish is wine_zip:
        table["color"] = ("red", "white")
    found = read(io.BytesIO(publish(dict(table))))
    assert list(found) == list(table)
    assert content_digest(found, [*table]) == content_digest(table, [*table])


def test_three_papers_and_two_reviews():
    review = {
        "confidence": None,
        "evaluation": "-1",
        "id": 1,
        "lan": "es",
        "orientation": "0",
        "remarks": "",
        "text": "No.",
    }
    papers = [
        {
            "id": 7,
            "preliminary_decision": "accept",
            "review": [{**review, "timespan": "2010-07-05"}],
        },
        {"id": 8, "preliminary_decision": "reject", "review": []},
        {
            "id": 9,
            "preliminary_decision": "reject",
            "review": [{**review, "evaluation": 2, "text": "Sí."}],
        },
    ]
    table = formats.paper(io.BytesIO(zipped(**{"reviews.json": json.dumps({"paper": papers})})))
    assert table["paper_idx"] == ("0", "2")
    assert table["paper_id"] == ("7", "9")
    assert table["evaluation"] == ("-1", "2")
    assert table["confidence"] == ("", "")
    assert table["timespan"] == ("2010-07-05", "")
    assert table["text"] == ("No.", "Sí.")


def test_the_names_of_an_arff_file():
    text = (
        "@relation r\n@attribute 'living area' NUMERIC\n@Attribute\tdate string\n"
        "@attribute \"c\" {a,b}\n@data\n1, 'x, y', a\n"
    )
    assert formats.arff(io.BytesIO(text.encode())) == {
        "living area": ("1",),
        "date": ("x, y",),
        "c": ("a",),
    }


@pytest.mark.parametrize(
    "text", ["[]", '{"paper": 3}', '{"paper": [{"id": 1}]}', "{", '{"paper": []}']
)
def test_reviews_of_another_layout(text, monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path) as server:
        server.answers[PUBLISHED["paper"][2]] = [(200, {}, zipped(**{"reviews.json": text}))]
        with pytest.raises(DataUnavailable, match="is not the expected file of Paper"):
            datasets.load_paper()


def test_wines_of_other_columns():
    body = zipped(
        **{"winequality-red.csv": "pH;quality\n3;5\n", "winequality-white.csv": "pH;alcohol\n3;9\n"}
    )
    with pytest.raises(ValueError, match=r"red wines have .*white ones"):
        formats.wine(io.BytesIO(body))
