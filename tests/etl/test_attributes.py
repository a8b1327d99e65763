"""Tables of attributes: one row per key, and ids that obey the rule of ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from etl.spark.read_log import read_attributes
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
            r"1 rows do not parse; .* of the first are \(3, 'integer:age'\)",
        ),
        (["who,age", "1,20", "1,30"], "2 rows have 1 different values of who"),
        (["who,age", "1,20", ",30"], "2 rows have 1 different values of who"),
        (["who,age", "1,20", '2,"30'], r"1 rows do not parse; .* of the first are \(3, 'quote'\)"),
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
    with pytest.raises(DataError, match=r"items\.csv: 1 rows .*\(3, 'key:what'\).*256 bytes"):
        read_attributes(spark, config, config.items, "what", "items", DAY, "what")
    table_of_texts = read_attributes(spark, config, config.items, "what", "join_external", DAY)
    assert table_of_texts.count() == 2, "what is no id may be any text"
