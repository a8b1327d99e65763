"""Tables of attributes: one row per key, and ids that obey the rule of ids."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from etl.latest.latest_features import attribute_features
from etl.spark.read_log import read_attributes
from storage.erased_users import add_erased, list_or_new
from storage.paths import Lake
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


@pytest.mark.parametrize(
    "lines, problem",
    [
        (
            ["who,age", "1,20", "2,young"],
            r"1 row does not parse; .* of the first are \(3, 'integer:age'\)",
        ),
        (["who,age", "1,20", "1,30"], "2 rows have 1 different values of who"),
        (["who,age", "1,20", ",30"], "2 rows have 1 different values of who"),
        (["who,age", "1,20", '2,"30'], r"1 row does not parse; .* of the first are \(3, 'quote'\)"),
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
    with pytest.raises(DataError, match=r"items\.csv: 1 row .*\(3, 'key:what'\).*256 bytes"):
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
    lake = Lake(config.lake)
    add_erased(lake, list_or_new(lake), ["2"], DAY)
    workflow: Any = SimpleNamespace(encode=lambda rows, _, keep: rows.select(*keep))
    for day, others in ((DAY, []), ("2026-01-02", next_day)):
        rows = attribute_features(spark, config, workflow, day, "user", []).collect()
        assert sorted(row["user_key"] for row in rows) == sorted(["1", "22", *others])
