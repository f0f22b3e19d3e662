"""Data frames become numbers: every kind of column, and every kind that is refused."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from frames import Place, mixed_frame
from gpx_scale import InputError
from gpx_scale.data.column_encodings import FEW_CATEGORY_LEVELS
from gpx_scale.data.frame_encoder import FrameEncoder

N = 60
DAYS = pd.date_range("2020-01-01", periods=N)


def encoded(column, **options):
    """Return the names and the numbers of a frame of one column, beside one of numbers."""
    encoder = FrameEncoder(**options)
    frame = pd.DataFrame({"a": column, "number": np.arange(float(len(column)))})
    numbers = encoder.fit_transform(frame)
    return encoder.get_feature_names_out().tolist()[:-1], numbers[:, :-1]


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.5, -3.0],
        pd.array([1, 2, 3], dtype="Int64"),
        np.array([1.0, 2.0, 4.0], dtype=np.float32),
        pd.Series([1.0, 2.0, 4.0]).astype("double[pyarrow]"),
        pd.Series([1, 2.5, np.int64(3)], dtype=object),
        pd.Series([decimal.Decimal("1.5"), decimal.Decimal(2), decimal.Decimal(3)], dtype=object),
        [True, False, True],
        pd.array([True, False, True], dtype="boolean"),
        pd.Series([True, False, True], dtype=object),
    ],
)
def test_numbers_stay_as_they_are(values):
    names, numbers = encoded(values)
    assert names == ["a"]
    assert_array_equal(numbers[:, 0], [float(value) for value in values])


@pytest.mark.parametrize(
    "values",
    [
        [1.0, np.nan, 4.0, 7.0],
        pd.array([1, None, 4, 7], dtype="Int64"),
        pd.Series([1, None, 4, 7], dtype=object),
        pd.Series([1.0, None, 4.0, 7.0]).astype("double[pyarrow]"),
    ],
)
def test_a_missing_number_is_the_median_and_has_an_indicator(values):
    names, numbers = encoded(values)
    assert names == ["a", "a_missing"]
    assert_array_equal(numbers, [[1, 0], [4, 1], [4, 0], [7, 0]])


@pytest.mark.parametrize(
    "values",
    [
        ["x", "y", None, "x"],
        pd.array(["x", "y", None, "x"], dtype="string"),
        pd.Categorical(["x", "y", None, "x"], categories=["never", "x", "y"]),
        pd.Series(["x", "y", None, "x"]).astype("string[pyarrow]"),
    ],
)
def test_a_category_has_a_column_for_each_level_that_occurs(values):
    names, numbers = encoded(values)
    assert names == ["a_x", "a_y", "a_missing"]
    assert_array_equal(numbers, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])


def test_levels_are_in_the_order_of_the_categories():
    sizes = pd.Categorical(["S", "L", "M", "S"], categories=["S", "M", "L"], ordered=True)
    assert encoded(sizes)[0] == ["a_S", "a_M", "a_L"]


def test_unknown_levels_and_new_missing_values_are_taken():
    frame = pd.DataFrame({"size": [1.0, 2.0, 6.0], "city": ["Rome", "Oslo", "Rome"]})
    encoder = FrameEncoder().fit(frame)
    new = pd.DataFrame({"size": [None, 3.0], "city": ["Paris", None]})
    assert_array_equal(encoder.transform(new), [[2, 0, 0], [3, 0, 0]])


def test_a_category_of_numbers_is_recognised_in_numbers():
    encoder = FrameEncoder().fit(pd.DataFrame({"year": pd.Categorical([2019, 2020, 2019])}))
    assert encoder.get_feature_names_out().tolist() == ["year_2019", "year_2020"]
    for new in ([2020, 2021], [2020.0, np.nan], ["2020", "x"], pd.Categorical([2020, 7])):
        numbers = encoder.transform(pd.DataFrame({"year": new}))
        assert_array_equal(numbers, [[0, 1], [0, 0]])


@pytest.mark.parametrize(
    "values",
    [
        DAYS,
        DAYS.tz_localize("Europe/Oslo"),
        DAYS.to_period("D"),
        pd.Categorical(DAYS),
        pd.Series(DAYS).astype("timestamp[ns][pyarrow]"),
        pd.Series([day.date() for day in DAYS], dtype=object),
        pd.Series([day.date() for day in DAYS]).astype("date32[pyarrow]"),
        pd.Series(list(DAYS.to_pydatetime()), dtype=object),
        pd.Series(list(DAYS.to_numpy()), dtype=object),
        pd.Series(list(DAYS.tz_localize("UTC")), dtype=object),
        DAYS.strftime("%Y-%m-%d"),
        DAYS.strftime("%Y-%m-%dT%H:%M:%SZ"),
    ],
)
def test_dates_are_days_since_the_first_and_waves_of_the_week(values):
    names, numbers = encoded(pd.Series(values))
    assert names == ["a_days", "a_week_sin", "a_week_cos"]
    assert_allclose(numbers[:, 0], np.arange(N), atol=1e-9)
    # 2020-01-01 was a Wednesday.
    angles = 2 * np.pi * ((np.arange(N) + 2) % 7) / 7
    assert_allclose(numbers[:, 1:], np.column_stack([np.sin(angles), np.cos(angles)]), atol=1e-9)


@pytest.mark.parametrize(
    ("dates", "cycles"),
    [
        (pd.date_range("2020-01-01", periods=9, freq="YS"), ["week"]),
        (pd.date_range("2020-01-06", periods=30, freq="7D"), []),
        (pd.date_range("2020-01-06", periods=120, freq="7D"), ["year"]),
        (pd.date_range("2020-01-01", periods=24, freq="2h"), ["day"]),
        (pd.date_range("2020-01-01", periods=3), []),
    ],
)
def test_cycles_are_those_that_the_dates_go_through(dates, cycles):
    names, _ = encoded(dates)
    expected = [f"a_{cycle}_{wave}" for cycle in cycles for wave in ("sin", "cos")]
    assert names == ["a_days", *expected]


def test_later_dates_of_another_time_zone_are_converted():
    frame = pd.DataFrame({"a": DAYS.tz_localize("Asia/Tokyo")})
    encoder = FrameEncoder().fit(frame)
    later = pd.DataFrame({"a": [pd.Timestamp("2031-05-03 15:00", tz="UTC"), pd.NaT]})
    days = encoder.transform(later)[:, 0]
    # In Tokyo it is midnight of the next day.
    assert_allclose(days, [(pd.Timestamp("2031-05-04") - DAYS[0]).days, np.median(np.arange(N))])
    with pytest.raises(InputError, match="no time zone here, and had one"):
        encoder.transform(pd.DataFrame({"a": DAYS}))


def test_durations_and_times_of_day():
    names, numbers = encoded(pd.Series([pd.Timedelta("1min"), pd.NaT, pd.Timedelta("2min")]))
    assert names == ["a_seconds", "a_missing"]
    assert_array_equal(numbers, [[60, 0], [90, 1], [120, 0]])
    spans = [datetime.timedelta(seconds=k) for k in (1, 2, 4)]
    assert_array_equal(encoded(pd.Series(spans, dtype=object))[1][:, 0], [1, 2, 4])
    names, numbers = encoded([datetime.time(6, 30), datetime.time(18)])
    assert names == ["a_hours"]
    assert_array_equal(numbers[:, 0], [6.5, 18.0])


def test_shapes_are_their_centres():
    names, numbers = encoded([Place(1.0, 2.0), None, Place(3.0, 8.0), Place(0.0, 0.0, True)])
    assert names == ["a_x", "a_y", "a_missing"]
    assert_array_equal(numbers, [[1, 2, 0], [2, 5, 1], [3, 8, 0], [2, 5, 1]])


def test_columns_that_say_nothing_are_left_out():
    frame = pd.DataFrame(
        {
            "same": 3.0,
            "word": "x",
            "empty": np.nan,
            "nothing": None,
            "day": DAYS[0],
            "half": np.where(np.arange(N) < 20, np.nan, 7.0),
            "number": np.arange(N),
        }
    )
    encoder = FrameEncoder().fit(frame)
    assert encoder.left_out_ == ["same", "word", "empty", "nothing", "day"]
    assert encoder.get_feature_names_out().tolist() == ["half_missing", "number"]
    assert_array_equal(encoder.transform(frame)[:, 0], np.arange(N) < 20)
    kept = FrameEncoder(keep_constants=True).fit(frame[["same", "number"]])
    assert kept.get_feature_names_out().tolist() == ["same", "number"]
    with pytest.raises(InputError, match="No column varies: 'same', 'word'"):
        FrameEncoder().fit(frame[["same", "word"]])


def test_missing_values_may_be_an_error_that_names_row_and_column():
    frame = mixed_frame(N)
    with pytest.raises(InputError) as error:
        FrameEncoder(missing="error").fit(frame)
    assert "There are 2 problems" in str(error.value)
    assert "Column 'size' has 1 missing value, the first in row 4 (index house 3)" in str(
        error.value
    )
    assert "Column 'city' has 1 missing value, the first in row 5 (index house 4)" in str(
        error.value
    )
    encoder = FrameEncoder(missing="error").fit(frame[10:])
    with pytest.raises(InputError, match=r"row 4 \(index house 3\)"):
        encoder.transform(frame[:4])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, "x", 2.0], r"numbers, such as 1.0 in row 1 \(index 0\), and texts, such as 'x'"),
        (["x", True, "y"], "texts, such as 'x' in row 1 .*, and values True and False"),
        ([datetime.date(2020, 1, 1), 7, 8], "dates.*and numbers"),
        ([[1], [2], [3]], "a list in row 1"),
        ([1j, 2j, 3j], "complex"),
        ([1.0, np.inf, 3.0], r"inf in row 2 \(index 1\)"),
        ([1, float("inf"), "x"], "numbers, .*and texts"),
        (
            [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)],
            "with a time zone, and dates without one, such as that of row 1",
        ),
        (["2020-01-01", "2020-02-31"], "dates that cannot be read"),
        ([f"level {k}" for k in range(10_000)], "10,000 different texts.*Leave it out, put rare"),
        ([f"{k}" for k in range(FEW_CATEGORY_LEVELS + 1)] * 2, "pandas.to_numeric"),
        (pd.arrays.IntervalArray.from_breaks([0, 1, 2]), "a Interval in row 1"),
    ],
)
def test_columns_that_are_refused(values, words):
    values = pd.Series(values, dtype=object) if isinstance(values, list) else pd.Series(values)
    with pytest.raises(InputError, match="^Column 'a' has .*" + words):
        encoded(values.infer_objects() if values.dtype == object else values)


def test_as_many_levels_as_rows_explain():
    levels = [f"level {k}" for k in range(FEW_CATEGORY_LEVELS + 1)]
    assert len(encoded(levels * 10)[0]) == len(levels)
    assert len(encoded(levels[:-1])[0]) == FEW_CATEGORY_LEVELS


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame(np.eye(2), columns=["a", "a"]), "more than one column named 'a'"),
        (pd.DataFrame(np.eye(2), columns=[1, "1"]), "more than one column named '1'"),
        (pd.DataFrame(np.eye(2), columns=pd.MultiIndex.from_tuples(["ab", "ac"])), "MultiIndex"),
        (
            pd.DataFrame({"a": ["b", "c"], "a_b": [1.0, 2.0]}),
            "^'a_b' would be the name of two columns",
        ),
        (pd.DataFrame({"a": [1.0, 2.0]})[[]], "No column varies"),
    ],
)
def test_frames_that_are_refused(frame, words):
    with pytest.raises(InputError, match=words):
        FrameEncoder().fit(frame)


def test_columns_by_name_and_by_position():
    frame = mixed_frame(N)
    for columns in (["floor", "city"], [2, 1], [-4, 1]):
        encoder = FrameEncoder(columns).fit(frame)
        assert [one.name for one in encoder.encodings_] == ["floor", "city"]
        assert_array_equal(encoder.transform(frame)[:, 0], frame["floor"])
    for columns in (["floor", "flor"], [9]):
        with pytest.raises(InputError, match=f"lacks {columns[-1]!r}"):
            FrameEncoder(columns).fit(frame)
    with pytest.raises(InputError, match="lacks 'floor', 'city'"):
        FrameEncoder(["floor", "city"]).fit(frame).transform(frame[["size"]])


def test_other_kinds_of_values_than_at_fit_are_refused():
    encoder = FrameEncoder().fit(mixed_frame(N))
    new = mixed_frame(3).assign(size=["big", "small", "big"], sold=[1.0, 2.0, 3.0])
    with pytest.raises(InputError) as error:
        encoder.transform(new)
    for words in (
        "There are 2 problems",
        "Column 'size' has texts here, such as that of row 1 (index house 0), and had numbers",
        "Column 'sold' has numbers here",
    ):
        assert words in str(error.value)


def test_arrays_stand_for_the_columns_of_the_frame():
    frame = mixed_frame(N)[["size", "floor", "new"]].dropna()
    encoder = FrameEncoder().fit(frame)
    expected = encoder.transform(frame)
    for A in (frame.to_numpy(dtype=float), frame.to_numpy(dtype=float).tolist()):
        assert_array_equal(encoder.transform(A), expected)
    mixed = mixed_frame(N).drop(columns="place")
    encoder = FrameEncoder().fit(mixed)
    assert_array_equal(encoder.transform(mixed.to_numpy(dtype=object)), encoder.transform(mixed))
    with pytest.raises(InputError, match="frame of 5 columns"):
        encoder.transform(np.ones((3, 2)))


def test_a_column_without_values_is_missing_whatever_it_was():
    encoder = FrameEncoder().fit(mixed_frame(N))
    numbers = encoder.transform(mixed_frame(N).assign(**dict.fromkeys(mixed_frame(1).columns)))
    assert np.isfinite(numbers).all()
    assert (numbers == numbers[0]).all()


def test_groups_are_the_columns_of_one_column():
    encoder = FrameEncoder().fit(mixed_frame(N))
    names = encoder.get_feature_names_out()
    groups = {name: names[columns].tolist() for name, columns in encoder.z_groups.items()}
    assert groups["size"] == ["size", "size_missing"]
    assert groups["city"] == ["city_Nara", "city_Oslo", "city_Rome", "city_missing"]
    assert groups["place"] == ["place_x", "place_y"]
    assert set(groups) == {"size", "city", "sold", "place"}
