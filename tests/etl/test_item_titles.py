"""Titles of items: the same table on both roads, fallbacks, and settings that change no feature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from etl.latest.item_titles import MOST_ADDRESS, MOST_TITLE, ItemTitle, publish_titles, titles_of
from etl.latest.latest_features import keyed_attributes, keyed_table
from etl.raw.layout_digest import layout_digest
from etl.workflow.feature_plan import plan_of
from spark.rows import Rows
from storage.manifest import Manifest, read_manifest
from storage.paths import LakePaths
from storage.read_parquet import read_table
from tests.etl import cases
from tests.etl.test_attributes import RATINGS

DAY = "2026-01-01"
LINES = [
    "what,kind,name,photo",
    'i1,a,"Red, ""big"" shoe",http://a.example/1.jpg',
    "i2,b,,https://a.example/2.jpg",
    "i3,a,,",
    f"i4,b,{'Ä' * (MOST_TITLE + 7)},{'x' * (MOST_ADDRESS + 1)}",
    "i5,a,Größe ☂,",
]


def config_of(folder: Path, lines: list[str] = LINES, **titles: Any) -> Config:
    """A log whose table of items has titles and pictures."""
    columns = [{"name": name, "type": "string"} for name in ("what", "kind", "name", "photo")]
    table = {"path": "{data}/items.csv", "format": "csv", "columns": columns, **titles}
    (folder / "raw").mkdir(exist_ok=True)
    (folder / "raw/items.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return cases.write_config(folder, RATINGS, {"items": table})


def published(config: Config, read: Callable[[Config], Rows]) -> Manifest | None:
    return publish_titles(plan_of(config), LakePaths(config.lake), DAY, lambda: read(config))


def as_table(config: Config, of_log: pa.Table | None = None) -> Rows:
    return keyed_table(plan_of(config), DAY, "items", of_log).rows


def rows_of(config: Config) -> list[dict[str, Any]]:
    partition = LakePaths(config.lake).item_titles.partition(DAY)
    return list(read_table(partition, read_manifest(partition)).to_pylist())


def test_both_roads_publish_titles_that_are_not_too_long(spark: SparkSession, tmp_path: Path) -> None:
    of_road = {}
    for road in ("table", "frame"):
        folder = tmp_path / road
        folder.mkdir()
        config = config_of(folder, title="name", image="photo")
        of_log = pa.table(
            {"item_key": ["i1", "unknown"]}
        )  # `serve` adds a row for an item without attributes
        config = config.model_copy(update={"items": config.items.model_copy(update={"missing": "serve"})})  # type: ignore[union-attr]

        def read(config: Config, road: str = road, of_log: pa.Table = of_log) -> Rows:
            if road == "table":
                return as_table(config, of_log)
            return keyed_attributes(spark, plan_of(config), DAY, "items", of_log).rows

        published(config, read)
        of_road[road] = rows_of(config)
    assert of_road["table"] == of_road["frame"]
    assert of_road["table"] == [
        {"item_key": "i1", "title": 'Red, "big" shoe', "image": "http://a.example/1.jpg"},
        {"item_key": "i2", "title": None, "image": "https://a.example/2.jpg"},
        {"item_key": "i4", "title": "Ä" * MOST_TITLE, "image": None},
        {"item_key": "i5", "title": "Größe ☂", "image": None},
    ]


def test_an_item_without_a_title_has_its_id(tmp_path: Path) -> None:
    config = config_of(tmp_path, title="name", image="photo")
    lake = LakePaths(config.lake)
    assert titles_of(lake, DAY, ["i1"]) == {}
    published(config, as_table)
    assert titles_of(lake, DAY, ["i2", "i1", "i3", "new", "i1"]) == {
        "i1": ItemTitle('Red, "big" shoe', "http://a.example/1.jpg"),
        "i2": ItemTitle("i2", "https://a.example/2.jpg"),
        "i3": ItemTitle("i3"),
        "new": ItemTitle("new"),
    }


@pytest.mark.parametrize(
    "titles, columns", [({"title": "name"}, {"title"}), ({"image": "photo"}, {"image"}), ({}, None)]
)
def test_only_configured_columns_are_published(
    tmp_path: Path, titles: dict[str, Any], columns: set[str] | None
) -> None:
    config = config_of(tmp_path, **titles)
    manifest = published(config, as_table)
    if columns is None:
        assert manifest is None
        return
    assert set(rows_of(config)[0]) == {"item_key", *columns}
    assert titles_of(LakePaths(config.lake), DAY, ["i1"])["i1"].title == (
        'Red, "big" shoe' if columns == {"title"} else "i1"
    )


def test_titles_are_published_again_only_if_the_table_or_the_columns_change(tmp_path: Path) -> None:
    config = config_of(tmp_path, title="name")
    first = published(config, as_table)

    def never(_: Config) -> Rows:
        raise AssertionError("the table of items was read again")

    assert published(config, never) == first
    other_column = published(config_of(tmp_path, title="kind"), as_table)
    other_rows = published(config_of(tmp_path, [*LINES, "i6,a,New,"], title="kind"), as_table)
    assert first is not None
    assert other_column is not None
    assert other_rows is not None
    assert len({first.digest, other_column.digest, other_rows.digest}) == 3


def test_titles_change_neither_the_layout_nor_the_features(tmp_path: Path) -> None:
    plain, titled = config_of(tmp_path), config_of(tmp_path, title="name", image="photo")
    assert layout_digest(plain) == layout_digest(titled)
    assert plan_of(plain).features == plan_of(titled).features == ("what",)
    assert plan_of(plain).counted_columns == plan_of(titled).counted_columns


@pytest.mark.parametrize("titles", [{"title": "nothing"}, {"image": "price"}])
def test_a_column_that_is_no_text_is_refused(tmp_path: Path, titles: dict[str, str]) -> None:
    columns = [{"name": "what", "type": "string"}, {"name": "price", "type": "float"}]
    table = {"path": "{data}/items.csv", "format": "csv", "columns": columns, **titles}
    (name,) = titles.values()
    with pytest.raises(Exception, match=f"'{name}' is not a column of type string"):
        cases.write_config(tmp_path, RATINGS, {"items": table})
