"""Tables of attributes: one row per key, and ids that obey the rule of ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from etl.latest.latest_features import keyed_attributes, keyed_table
from etl.operators.join_external import JoinExternal
from etl.raw.erased_users import add_erased, list_or_new
from etl.spark.raw_frames import read_attributes
from etl.workflow.feature_plan import plan_of
from storage.paths import LakePaths
from tests.etl import cases

DAY = "2026-01-01"

RATINGS: dict[str, Any] = {
    "log": {
        "path": "{data}/*",
        "format": "csv",
        "separator": ",",
        "columns": [
            {"name": "clicked", "type": "float"},
            {"name": "who", "type": "int"},
            {"name": "what", "type": "string"},
        ],
        "label": {"column": "clicked", "positive_at_least": 3},
    },
    "keys": {"user": "who", "item": "what"},
    "features": [{"columns": ["what"], "kind": "categorical", "ops": ["categorify"]}],
    "scopes": {},
    "split": {"by": "fraction"},
}


BY_DAY: dict[str, Any] = {"log": {**RATINGS["log"], "path": "{data}/dt={date}/*"}}


@pytest.mark.parametrize(
    "lines, problem",
    [
        (
            ["who,age", "1,20", "2,young"],
            "1 row does not parse; the first is line 3: age has the value 'young', which is not an integer",
        ),
        (
            ["who,age", "1,20", "1,30"],
            "2 rows have 1 different .*line 2 of .*users.csv and line 3 of .*users.csv",
        ),
        (["who,age", "1,20", ",30"], "2 rows have 1 different values of who"),
        (
            ["who,age", "1,20", '2,"30'],
            "1 row does not parse; the first is line 3 breaks the rule for double quotes: '2,\"30'",
        ),
    ],
)
def test_attributes_must_be_one_row_a_key(
    spark: SparkSession, tmp_path: Path, lines: list[str], problem: str
) -> None:
    table = {
        "path": "{data}/users.csv",
        "format": "csv",
        "separator": ",",
        "columns": [{"name": "who", "type": "int"}, {"name": "age", "type": "int"}],
    }
    config = cases.write_config(tmp_path, RATINGS, {"users": table})
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/users.csv").write_text("\n".join(lines) + "\n")
    assert config.users is not None
    with pytest.raises(DataError, match=r"users\.csv: " + problem):
        read_attributes(spark, config, config.users, "who", "users", DAY)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_bad_value_is_shown_with_the_file_in_which_it_is(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    columns = [{"name": "who", "type": "int"}, {"name": "age", "type": "int"}]
    config = cases.write_config(
        tmp_path, RATINGS, {"users": {"path": "{data}/*", "format": form, "columns": columns}}
    )
    (tmp_path / "raw").mkdir()
    for name, ages in (("a", ["20", "30"]), ("b", ["40", "n/a"])):
        table = pd.DataFrame({"who": [1, 2] if name == "a" else [3, 4], "age": ages})
        path = tmp_path / f"raw/{name}.{form}"
        table.to_csv(path, index=False) if form == "csv" else table.to_parquet(path)
    assert config.users is not None
    with pytest.raises(DataError) as caught:
        read_attributes(spark, config, config.users, "who", "users", DAY)
    place = "line 3" if form == "csv" else "row 2"
    assert f"raw/b.{form}: 1 row does not parse; the first is {place}: age has the value 'n/a'" in str(
        caught.value
    )
    assert ('add "n/a" to users.null_values' in caught.value.remedy) == (form == "csv")


def test_an_external_table_has_texts_that_stand_for_null(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, RATINGS)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/prices.csv").write_text("what|price\ni1|7.0\ni2|\\N\ni3|\n")
    operator = JoinExternal(
        path="{data}/prices.csv", columns={"price": "int"}, format="csv", separator="|", null_values=["\\N"]
    )
    [step] = operator.bind({"what": "string"})
    source, key = operator.source(step)
    rows = read_attributes(spark, config, source, key, "join_external", DAY).orderBy("what").collect()
    assert [tuple(row) for row in rows] == [("i1", 7), ("i2", None), ("i3", None)]


@pytest.mark.parametrize("key", ["a\x1b[31m", "b\u0085", "c" * 257])
def test_ids_of_attributes_obey_the_rule_of_ids(spark: SparkSession, tmp_path: Path, key: str) -> None:
    table = {
        "path": "{data}/items.csv",
        "format": "csv",
        "separator": ",",
        "columns": [{"name": "what", "type": "string"}, {"name": "kind", "type": "string"}],
    }
    config = cases.write_config(tmp_path, RATINGS, {"items": table})
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/items.csv").write_text(f"what,kind\ngood,x\n{key},y\n", encoding="utf-8")
    assert config.items is not None
    with pytest.raises(DataError, match=r"items\.csv: 1 row .* line 3: what has the value .*256 bytes"):
        read_attributes(spark, config, config.items, "what", "items", DAY, "what")
    table_of_texts = read_attributes(spark, config, config.items, "what", "join_external", DAY)
    assert table_of_texts.count() == 2, "what is no id may be any text"


@pytest.mark.parametrize("path, next_day", [("{data}/users.csv", []), ("{data}/{date}.csv", ["2"])])
def test_attributes_of_erased_users_are_left_out(
    spark: SparkSession, tmp_path: Path, path: str, next_day: list[str]
) -> None:
    """A table that is not stored by day may have them for ever; a later table by day says who is a user."""
    columns = [{"name": "who", "type": "int"}, {"name": "age", "type": "int"}]
    table = {"path": path, "format": "csv", "separator": ",", "columns": columns}
    config = cases.write_config(tmp_path, RATINGS, {"users": table})
    (tmp_path / "raw").mkdir()
    for name in ("users", DAY, "2026-01-02"):
        (tmp_path / f"raw/{name}.csv").write_text("who,age\n1,20\n2,30\n22,40\n")
    lake = LakePaths(config.lake)
    add_erased(lake, list_or_new(lake), ["2"], DAY)
    for day, others in ((DAY, []), ("2026-01-02", next_day)):
        rows = keyed_attributes(spark, plan_of(config), day, "users").rows.collect()
        assert sorted(row["user_key"] for row in rows) == sorted(["1", "22", *others])


@pytest.mark.parametrize("path, age", [("{data}/users.csv", None), ("{data}/{date}.csv", 30)])
def test_an_erased_user_is_served_again_only_if_the_log_has_later_rows(
    spark: SparkSession, tmp_path: Path, path: str, age: int | None
) -> None:
    """A table that is not stored by day may still have the attributes of the erased user: they are not used."""
    columns = [{"name": "who", "type": "int"}, {"name": "age", "type": "int"}]
    table = {"path": path, "format": "csv", "separator": ",", "columns": columns}
    config = cases.write_config(tmp_path, RATINGS, {"users": table, "split": cases.LOG["split"]}, BY_DAY)
    (tmp_path / "raw").mkdir()
    for name in ("users", DAY, "2026-01-02"):
        (tmp_path / f"raw/{name}.csv").write_text("who,age\n1,20\n2,30\n")
    lake = LakePaths(config.lake)
    add_erased(lake, list_or_new(lake), ["2"], DAY)
    of_log = pa.table({"user_key": ["1", "2", "007", "9"]})
    for day, expected in (
        (DAY, {"1": (1, 20), "007": (7, None), "9": (9, None)}),
        ("2026-01-02", {"1": (1, 20), "2": (2, age), "007": (7, None), "9": (9, None)}),
    ):
        keyed = keyed_attributes(spark, plan_of(config), day, "users", of_log)
        rows = keyed.rows.collect()
        assert len(rows) == len(expected)
        assert {row["user_key"]: (row["who"], row["age"]) for row in rows} == expected
        served_with_nulls = [key for key, (_, age_of) in expected.items() if age_of is None]
        missing = keyed.count_missing()
        keyed.release()
        assert (missing.in_log, missing.without_row) == (len(expected), len(served_with_nulls))


TEXTS = [
    {**column, "type": "string"} if column["name"] == "who" else column
    for column in RATINGS["log"]["columns"]
]


@pytest.mark.parametrize(
    "of_log, expected",
    [
        (["00001"], {"00001": 20, "22": 40}),
        (["00001", "00002"], {"00001": 20, "22": 40}),
        (["00001", "2"], {"00001": 20, "2": None, "22": 40}),
    ],
)
def test_a_row_of_an_integer_is_left_out_if_its_text_was_erased(
    spark: SparkSession, tmp_path: Path, of_log: list[str], expected: dict[str, int | None]
) -> None:
    """Another user with the same integer stays, without attributes: perhaps they are those of the erased user."""
    columns = [{"name": "who", "type": "int"}, {"name": "age", "type": "int"}]
    table = {"path": "{data}/users.csv", "format": "csv", "separator": ",", "columns": columns}
    log = {"log": {**RATINGS["log"], "columns": TEXTS}}
    config = cases.write_config(tmp_path, RATINGS, log, {"users": table})
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/users.csv").write_text("who,age\n1,20\n2,30\n22,40\n")
    lake = LakePaths(config.lake)
    add_erased(lake, list_or_new(lake), ["00002", "00003"], DAY)
    keys = pa.table({"user_key": of_log})
    here = keyed_table(plan_of(config), DAY, "users", keys)
    there = keyed_attributes(spark, plan_of(config), DAY, "users", keys)
    assert isinstance(here.rows, pa.Table)
    assert {row["user_key"]: row["age"] for row in here.rows.to_pylist()} == expected
    assert {row["user_key"]: row["age"] for row in there.rows.collect()} == expected
