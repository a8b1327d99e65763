"""Published tables as frames of pandas, Polars, Arrow and Spark."""

from __future__ import annotations

import datetime
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal
from pyspark.sql import SparkSession

import nightrank
from nightrank.lake import PLAIN_TABLES, TABLES_OF_WORKFLOW
from tests.nightrank.conftest import RUN_DATE, World

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", ["recommendations", "users", "items", "features", "candidate_items"])
def test_all_frames_have_the_published_rows(world: World, spark: SparkSession, name: str) -> None:
    table = world.lake.table(name, RUN_DATE)
    rows = table.arrow()
    in_files = pa.concat_tables(pq.ParquetFile(path).read() for path in table.files)
    assert rows.equals(in_files.cast(rows.schema))
    assert (table.rows, table.columns) == (rows.num_rows, rows.column_names)
    assert table.rows > 50
    assert_frame_equal(table.pandas(), rows.to_pandas())
    assert table.polars().equals(pl.from_arrow(rows))
    from_spark = table.spark(spark).toPandas()
    key = [
        column
        for column in ("row_id", "user_id", "user_key", "item_key", "position")
        if column in rows.column_names
    ]
    sort = [frame.sort_values(key, ignore_index=True) for frame in (from_spark, table.pandas())]
    assert_frame_equal(*sort, check_dtype=False)
    one = table.columns[:1]
    assert table.arrow(one).column_names == table.spark(spark, one).columns == one


def test_dates_are_texts_dates_or_the_latest(world: World) -> None:
    lake = world.lake
    assert lake.dates() == lake.dates("recommendations") == [RUN_DATE]
    assert lake.dates("features") == ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
    for date in (None, datetime.date(2026, 1, 4), datetime.datetime(2026, 1, 4, 12), RUN_DATE):
        assert lake.recommendations(date).date == RUN_DATE
    assert lake.table("features", "2026-01-01").date == "2026-01-01"
    assert lake.users().facts == lake.table("users", RUN_DATE).facts


def test_every_table_has_a_method_of_its_paths(world: World) -> None:
    """A table whose job did not run is an error that names the job."""
    for name in (*PLAIN_TABLES, *TABLES_OF_WORKFLOW):
        if name in ("scores", "measures", "deliveries"):  # of jobs that did not run
            with pytest.raises(nightrank.DataError, match=f"no published partition dt={RUN_DATE}") as caught:
                world.lake.table(name, RUN_DATE)
            assert f"run the job that writes {name} for {RUN_DATE}" in caught.value.remedy
        else:
            assert world.lake.table(name, RUN_DATE).table.split("/")[0] == name


def test_wrong_names_are_named(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = world.lake
    with pytest.raises(nightrank.ConfigError, match="there is no table 'recommendation'"):
        lake.table("recommendation")
    with pytest.raises(nightrank.ConfigError, match="has no columns \\['nothing'\\]"):
        lake.users().arrow(["nothing"])
    with pytest.raises(nightrank.ConfigError, match="the argument `columns` has \\['user_key'\\] twice"):
        lake.users().arrow(["user_key", "user_key"])
    with pytest.raises(nightrank.ConfigError, match="columns is the text 'user_key', not a list"):
        lake.users().pandas("user_key")
    monkeypatch.setattr("nightrank.frames.find_spec", lambda name: None)
    for name in ("pandas", "polars"):
        with pytest.raises(nightrank.ConfigError, match=rf"needs the packages \['{name}'\]") as caught:
            getattr(lake.users(), name)()
        assert caught.value.remedy == f"pip install 'nightrank[{name}]'"
    with pytest.raises(nightrank.DataError, match="no published partition dt=2025-01-04"):
        lake.recommendations("2025-01-04")
    with pytest.raises(nightrank.ConfigError, match="'2026-1-4' is not a date"):
        lake.recommendations("2026-1-4")
    with pytest.raises(nightrank.DataError, match="has no published date"):
        lake.table("scores")
    with pytest.raises(nightrank.DataError, match="has no table `datasets`"):
        nightrank.open(tmp_path)


def test_a_table_keeps_its_rows_when_the_date_is_replaced(world: World, tmp_path: Path) -> None:
    """Its manifest was read when it was opened."""
    table = world.lake.recommendations(RUN_DATE)
    before = table.pandas()
    manifest = Path(world.root) / "recommendations" / f"dt={RUN_DATE}" / "_MANIFEST.json"
    text = manifest.read_text()
    try:
        manifest.unlink()
        assert_frame_equal(table.pandas(), before)
        assert world.lake.dates("recommendations") == []
    finally:
        manifest.write_text(text)
    assert isinstance(before, pd.DataFrame)
