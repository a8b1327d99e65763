"""The latest row of each user or item is the same by Arrow in the driver, by Arrow in tasks, and by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from etl.latest import latest_rows
from etl.latest.latest_rows import PublishedRows, latest_published_rows
from spark.choose_workers import SparkWorkers
from spark.rows import frame_of
from storage.feature_spec import Feature, FeatureSpec
from storage.manifest import data_files, read_manifest
from storage.paths import Partition, Table
from storage.publish import own_path, publish_files, publish_rows, rows_of

KEY = "user_key"
COLUMNS = ["age", "city", "tags"]
SPEC = FeatureSpec(
    (
        Feature("age", "dense", "float32", scope="user"),
        Feature("city", "categorical", "int32", scope="user", cardinality=100),
        Feature("tags", "multi_hot", "list<int32>", scope="user", cardinality=100),
    ),
    (KEY, "row_id"),
    "v",
)
ENGINES = ["driver", "tasks", "sql"]


def write_day(table: Table, day: str, rows: pd.DataFrame, files: int, splits: bool) -> Partition:
    """Publishes rows as a partition of some files, in any order of row_id; with splits, one a file."""
    partition = table.partition(day)
    labels: dict[str, str | None] = {}
    schema = pa.schema(
        [
            (KEY, pa.string()),
            ("row_id", pa.int64()),
            ("age", pa.float32()),
            ("city", pa.int32()),
            ("tags", pa.list_(pa.int32())),
        ]
    )
    for index in range(files):
        name = own_path(f"{partition.data}/a/part-{index}.parquet")
        Path(partition.file(name)).parent.mkdir(parents=True, exist_ok=True)
        part = pa.Table.from_pandas(rows.iloc[index::files], schema, preserve_index=False)
        pq.write_table(part, partition.file(name))
        labels[name] = ["train", "validation"][index % 2] if splits else None
    publish_files(partition, labels, inputs={})
    return partition


def latest(
    spark: SparkSession, published: Sequence[PublishedRows], engine: str, monkeypatch: pytest.MonkeyPatch
) -> pd.DataFrame:
    monkeypatch.setattr(latest_rows, "ROWS_IN_DRIVER", 10**9 if engine == "driver" else -1)
    chosen: Any = "sql" if engine == "sql" else "arrow"
    rows = latest_published_rows(SparkWorkers(spark), published, KEY, COLUMNS, SPEC, chosen)
    assert isinstance(rows, pa.Table) == (engine == "driver")
    return plain(rows.to_pandas() if isinstance(rows, pa.Table) else rows.toPandas())


def plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows sorted by key, with lists as tuples."""
    rows = rows.sort_values(KEY).reset_index(drop=True)
    rows["tags"] = [None if value is None else tuple(int(v) for v in value) for value in rows["tags"]]
    return rows


def oracle(days: Sequence[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """Returns the last row of each key by (day, row_id), by pandas."""
    rows = pd.concat(frame.assign(day=day) for day, frame in days)
    last = rows.sort_values(["day", "row_id"]).drop_duplicates(KEY, keep="last")
    return plain(last[[KEY, *COLUMNS]])


def random_day(rng: np.random.Generator, rows: int, users: int) -> pd.DataFrame:
    """Returns rows with repeated users, null lists, and row ids with gaps, not in order."""
    return pd.DataFrame(
        {
            KEY: [f"ü{value}" for value in rng.integers(0, users, rows)],
            "row_id": rng.permutation(3 * rows)[:rows],
            "age": rng.normal(size=rows).astype(np.float32),
            "city": rng.integers(0, 100, rows, dtype=np.int32),
            "tags": [
                None if rng.random() < 0.2 else list(rng.integers(0, 9, rng.integers(0, 4)))
                for _ in range(rows)
            ],
        }
    )


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 3), st.integers(1, 12), st.booleans())
def test_every_engine_returns_the_last_row_of_each_key(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    days: int,
    files: int,
    users: int,
    splits: bool,
) -> None:
    rng = np.random.default_rng(seed)
    table = Table("features/v", str(tmp_path_factory.mktemp("lake")))
    written = [
        (f"2026-01-{day + 1:02d}", random_day(rng, int(rng.integers(1, 30)), users)) for day in range(days)
    ]
    published = []
    for day, rows in written:
        partition = write_day(table, day, rows, files, splits)
        manifest = read_manifest(partition)
        labels = ["train", "validation"][:files] if splits else [None]
        published += [PublishedRows(partition, manifest, label) for label in labels]
    expected = oracle(written)
    with pytest.MonkeyPatch.context() as monkeypatch:
        for engine in ENGINES:
            pd.testing.assert_frame_equal(latest(spark, published, engine, monkeypatch), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_rows_of_the_given_splits_count(
    spark: SparkSession, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_day(np.random.default_rng(5), 40, 6)
    partition = write_day(Table("features/v", str(tmp_path)), "2026-01-01", rows, 2, splits=True)
    train = [PublishedRows(partition, read_manifest(partition), "train")]
    expected = oracle([("2026-01-01", rows.iloc[0::2])])
    pd.testing.assert_frame_equal(latest(spark, train, engine, monkeypatch), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_partition_without_rows_has_no_latest_rows(
    spark: SparkSession, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = random_day(np.random.default_rng(5), 1, 1).iloc[:0]
    partition = write_day(Table("features/v", str(tmp_path)), "2026-01-01", empty, 1, splits=False)
    published = [PublishedRows(partition, read_manifest(partition))]
    assert len(latest(spark, published, engine, monkeypatch)) == 0


@pytest.mark.parametrize("row_group_rows", [7, 1000])
def test_a_table_and_a_frame_are_published_as_the_same_rows(
    spark: SparkSession, tmp_path: Path, row_group_rows: int
) -> None:
    day = random_day(np.random.default_rng(7), 60, 50).drop_duplicates(KEY)
    schema = pa.schema(
        [(KEY, pa.string()), ("age", pa.float32()), ("city", pa.int32()), ("tags", pa.list_(pa.int32()))]
    )
    rows = pa.Table.from_pandas(day[schema.names], schema, preserve_index=False)
    published = {}
    for name, given_rows in (("table", rows), ("frame", frame_of(spark, rows))):
        partition = Table(name, str(tmp_path / name)).partition("2026-01-01")
        manifest = publish_rows(given_rows, partition, inputs={}, row_group_rows=row_group_rows, sort_by=KEY)
        read: DataFrame = rows_of(spark, partition, manifest)
        published[name] = (manifest.schema, manifest.rows, plain(read.toPandas()))
        in_order = [
            key for path in data_files(partition, manifest) for key in pq.read_table(path)[KEY].to_pylist()
        ]
        assert in_order == sorted(in_order, key=lambda key: key.encode())
        assert len(manifest.files) == -(-len(rows) // row_group_rows) or name == "frame"
    assert published["table"][:2] == published["frame"][:2]
    pd.testing.assert_frame_equal(published["table"][2], published["frame"][2])
