"""Features of raw rows in frames of pandas, Polars and Arrow, without Spark."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nightrank
from etl.ops.base import Type
from etl.workflow.raw_values import raw_values
from tests.nightrank.conftest import RUN_DATE, World

pytestmark = pytest.mark.processes


def as_nullable(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.convert_dtypes()


def as_categories(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(**{name: rows[name].astype("category") for name in rows if name.startswith("C")})


def as_objects(rows: pd.DataFrame) -> pd.DataFrame:
    integers = {
        name: pd.Series([None if pd.isna(value) else int(value) for value in rows[name]], rows.index, object)
        for name in rows
        if name.startswith("I")
    }
    return rows.assign(**integers)


def as_empty_texts(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(**{name: rows[name].fillna("") for name in rows if name.startswith("C")})


def as_small_integers(rows: pd.DataFrame) -> pa.Table:
    table = pa.Table.from_pandas(rows, preserve_index=False)
    return pa.table(
        {
            name: column.cast(pa.float32() if name == "I12" else pa.int32())
            if name.startswith("I")
            else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
    )


def as_chunks(rows: pd.DataFrame) -> pa.Table:
    table = pa.Table.from_pandas(rows, preserve_index=False)
    return pa.concat_tables([table.slice(0, 7), table.slice(7)])


def as_polars(rows: pd.DataFrame) -> pl.DataFrame:
    return pl.from_pandas(rows.convert_dtypes())


def as_batch(rows: pd.DataFrame) -> pa.RecordBatch:
    return pa.RecordBatch.from_pandas(rows.convert_dtypes(), preserve_index=False)


FORMS = [
    lambda rows: rows,
    as_nullable,
    as_categories,
    as_objects,
    as_empty_texts,
    as_small_integers,
    as_chunks,
    as_polars,
    as_batch,
]


@pytest.mark.parametrize("form", FORMS)
def test_features_equal_those_that_build_features_published(world: World, form: Any) -> None:
    """Row by row, for the test day, which is no training day."""
    lake, raw = world.lake, world.raw_rows()
    published = lake.table("features", RUN_DATE).pandas().set_index("row_id").sort_index()
    workflow = lake.workflow()
    names = [feature.name for feature in workflow.spec.features]
    assert published.index.equals(raw.index)
    assert 3950 < len(raw) < 4000  # some lines of the log are damaged
    rows = form(raw)
    encoded = workflow.encode(rows)
    if isinstance(rows, pd.DataFrame):
        assert isinstance(encoded, pd.DataFrame)
        assert encoded.index.equals(rows.index)
    elif isinstance(rows, pl.DataFrame):
        assert isinstance(encoded, pl.DataFrame)
    else:
        assert isinstance(encoded, pa.Table)
    frame = encoded if isinstance(encoded, pd.DataFrame) else encoded.to_pandas()
    assert list(frame) == names
    for name in names:
        assert frame[name].dtype == published[name].dtype
        np.testing.assert_array_equal(frame[name], published[name])


def test_some_features_need_only_their_columns(world: World) -> None:
    workflow = world.lake.workflow()
    encoded = workflow.encode(pd.DataFrame({"C2": ["never seen", None]}, index=[5, 9]), ["C2"])
    assert encoded["C2"].to_dict() == {5: workflow.spec.oov_id, 9: workflow.spec.null_id}
    assert workflow.raw_columns["C2"] == "string"
    assert workflow.raw_columns["I1"] == "int"
    assert "label" not in workflow.raw_columns


@pytest.mark.parametrize(
    "column, values, message",
    [
        (
            "I1",
            [1.0, 2.5],
            "column I1, row 1: 2.5 is not a whole number; a column of type int accepts only whole",
        ),
        ("I1", [1.0, 2.0**60], "column I1, row 1: 1.152921504606847e\\+18 is a float of 2⁵³ or more"),
        ("I1", [1.0, np.inf], "column I1, row 1: inf is"),
        ("I1", ["1", "2"], "column I1 has the type string, but the workflow reads integers"),
        ("I1", [1, "2"], "column I1 has values of different types"),
        ("I1", np.array([1, 2**63], np.uint64), "column I1, row 1: 9223372036854775808 is 2⁶³ or more"),
        ("I1", np.array([1, 2**24], np.float32), "column I1, row 1: 16777216.0 is a float of 2²⁴ or more"),
        (
            "C1",
            [1.0, 2.5],
            "column C1, row 1: 2.5 is not a whole number; a column of type string accepts only strings and",
        ),
        ("C1", [1.0, -(2.0**53)], "column C1, row 1: -9007199254740992.0 is a float of 2⁵³ or more"),
        ("C1", [True, False], "column C1 has the type bool"),
        ("C1", [["a"], ["b"]], "column C1 has the type list<item: string>"),
    ],
)
def test_a_value_that_does_not_fit_is_named(world: World, column: str, values: Any, message: str) -> None:
    rows = world.raw_rows().head(2).assign(**{column: values})
    with pytest.raises(nightrank.DataError, match=message):
        world.lake.workflow().encode(rows)


def test_missing_columns_and_other_objects_are_named(world: World) -> None:
    workflow, rows = world.lake.workflow(), world.raw_rows().head(2)
    with pytest.raises(nightrank.DataError, match=r"the rows lack the columns \['C3'\]"):
        workflow.encode(rows.drop(columns="C3"))
    with pytest.raises(nightrank.ConfigError, match=r"builtins\.list is not a frame"):
        workflow.encode([1, 2])  # type: ignore[arg-type]
    with pytest.raises(nightrank.ConfigError, match=r"several columns named \['C3'\]"):
        workflow.encode(pd.concat([rows, rows[["C3"]]], axis=1))
    with pytest.raises(nightrank.ConfigError, match=r"no features named \['C99'\]"):
        workflow.encode(rows, ["C99"])
    with pytest.raises(nightrank.DataError, match="workflow nothing does not exist"):
        world.lake.workflow("nothing")


INTEGERS = st.lists(st.none() | st.integers(-(2**53) + 1, 2**53 - 1), max_size=20)


@settings(max_examples=200)
@given(values=INTEGERS, kind=st.sampled_from(["int64", "Int64", "float64", "object"]))
def test_integers_of_pandas_keep_their_values(values: list[int | None], kind: str) -> None:
    if kind == "int64":
        values = [value for value in values if value is not None]
    series = pd.Series(values, dtype=kind)
    table = pa.table({"x": pa.Array.from_pandas(series)})
    assert raw_values(table, {"x": "int"})["x"].to_pylist() == values
    as_text = [None if value is None else str(value) for value in values]
    assert raw_values(table, {"x": "string"})["x"].to_pylist() == as_text
    as_float = raw_values(table, {"x": "float"})["x"].to_pylist()
    assert as_float == [None if value is None else float(value) for value in values]


def test_numbers_and_lists_have_one_form() -> None:
    table = pa.table(
        {
            "half": pa.array([1.5, None, np.nan], pa.float32()),
            "ints": pa.array([[1, 2], None, []], pa.large_list(pa.int8())),
            "texts": pa.array([["a"], None, []], pa.list_(pa.large_string())),
            "nulls": pa.nulls(3),
        }
    )
    converted = raw_values(table, {"half": "float", "ints": "ints", "texts": "strings", "nulls": "ints"})
    assert {name: array.to_pylist() for name, array in converted.items()} == {
        "half": [1.5, None, None],
        "ints": [[1, 2], None, []],
        "texts": [["a"], None, []],
        "nulls": [None, None, None],
    }
    assert str(converted["nulls"].type) == "list<item: int64>"
    with pytest.raises(nightrank.DataError, match="column x, row 0: 1e\\+39 is outside the range of float32"):
        raw_values(pa.table({"x": [1e39]}), {"x": "float"})
    with pytest.raises(nightrank.DataError, match="column x has the type list<item: string>"):
        raw_values(pa.table({"x": [["a"]]}), {"x": "ints"})


@pytest.mark.parametrize("kind", ["int", "float", "string"])
def test_a_column_without_any_value_is_null(kind: Type) -> None:
    """pandas gives such a column the type float64."""
    frame = pd.read_csv(io.StringIO("x,y\n,1\n,2\n"))
    table = pa.table({"x": pa.Array.from_pandas(frame["x"]), "nan": pa.array([np.nan] * 2)})
    assert raw_values(table, {"x": kind, "nan": kind}) == {
        name: pa.nulls(2, {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}[kind])
        for name in ("x", "nan")
    }


def test_decimals_and_booleans_are_numbers() -> None:
    table = pa.table({"d": [Decimal("17.00"), None], "wide": [Decimal(10) ** 20, None], "b": [True, False]})
    converted = raw_values(table, {"d": "int", "wide": "string", "b": "int"})
    assert {name: array.to_pylist() for name, array in converted.items()} == {
        "d": [17, None],
        "wide": ["1" + "0" * 20, None],
        "b": [1, 0],
    }
    assert raw_values(table, {"d": "string", "b": "float"})["d"].to_pylist() == ["17", None]
    with pytest.raises(nightrank.DataError, match=r"column wide, row 0: .* is beyond 64 bits"):
        raw_values(table, {"wide": "int"})
