"""Publishing a partition: verification, what readers see, deletion of old files, layout of the files."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from storage.file_digests import new_file
from storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    current_manifest,
    data_files,
    read_manifest,
    replace_manifest,
)
from storage.other_tools import LOCK_NAME
from storage.paths import LakePaths, Partition
from storage.publish import (
    FINITE,
    Rules,
    new_attempt,
    own_path,
    publish,
    publish_facts,
    publish_files,
    read_published,
    with_footer,
)
from storage.remove import delete_leftovers


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return LakePaths(str(tmp_path)).features("w1").partition("2026-01-01")


def _rows(spark: SparkSession, count: int) -> DataFrame:
    rows = spark.range(count, numPartitions=3).withColumnRenamed("id", "row_id")
    return rows.select(
        "row_id", (F.col("row_id") % 7).cast("int").alias("c"), F.lit(0.5).cast("float").alias("d")
    )


def _values(spark: SparkSession, partition: Partition, split: str | None = None) -> list[int]:
    return sorted(row["row_id"] for row in read_published(spark, partition, split, ["row_id"]).collect())


def test_files_hold_one_row_group_of_about_equal_rows(spark: SparkSession, partition: Partition) -> None:
    rows = _rows(spark, 1000)
    manifest = publish(rows, partition, inputs={"raw": "r"}, row_group_rows=150, expected_rows=1000)
    assert manifest == read_manifest(partition)
    assert (manifest.rows, manifest.rows_in, len(manifest.files)) == (1000, 1000, 7)
    for entry, path in zip(manifest.files, data_files(partition, manifest), strict=True):
        footer = pq.ParquetFile(path).metadata
        assert entry.row_groups == (footer.num_rows,) == (entry.rows,)
        assert footer.num_row_groups == 1
        assert entry.bytes == os.path.getsize(path)
        assert abs(entry.rows - 1000 / 7) < 8
    assert manifest.schema == (("row_id", "int64"), ("c", "int32"), ("d", "float"))
    assert _values(spark, partition) == list(range(1000))


def test_sorted_rows_stay_sorted_over_all_files(spark: SparkSession, partition: Partition) -> None:
    rows = _rows(spark, 500)
    manifest = publish(
        rows.orderBy(F.rand(1)),
        partition,
        inputs={},
        row_group_rows=100,
        expected_rows=500,
        sort_by=["c", "row_id"],
    )
    read = [pair for path in data_files(partition, manifest) for pair in _pairs(path)]
    assert len(manifest.files) > 1
    assert read == sorted((n % 7, n) for n in range(500))


def _pairs(path: str) -> list[tuple[int, int]]:
    table = pq.read_table(path, columns=["c", "row_id"], partitioning=None)
    return list(zip(table["c"].to_pylist(), table["row_id"].to_pylist(), strict=True))


def test_splits_become_labels_of_files(spark: SparkSession, partition: Partition) -> None:
    rows = _rows(spark, 100).withColumn("split", F.when(F.col("row_id") < 80, "train").otherwise("test"))
    manifest = publish(rows, partition, inputs={}, row_group_rows=50, split_column="split")
    assert {entry.split for entry in manifest.files} == {"train", "test"}
    assert "split" not in dict(manifest.schema)
    assert _values(spark, partition, "train") == list(range(80))
    assert _values(spark, partition, "test") == list(range(80, 100))
    assert _values(spark, partition) == list(range(100))


def test_characters_of_patterns_in_the_path_of_a_lake_stand_for_themselves(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = LakePaths(str(tmp_path / r"[x] {a,b} q?c* \d 5%20"))
    partition = lake.features("w1").partition("2026-01-01")
    publish(_rows(spark, 10), partition, inputs={}, row_group_rows=10)
    assert _values(spark, partition) == list(range(10))


def test_no_rows_are_a_partition_too(spark: SparkSession, partition: Partition) -> None:
    manifest = publish(
        _rows(spark, 0), partition, inputs={}, row_group_rows=10, expected_rows=0, dropped={"x": 3}
    )
    assert (manifest.files, manifest.rows) == ((), 0)
    assert [name for name, _ in manifest.schema] == ["row_id", "c", "d"]
    read = read_published(spark, partition)
    assert (read.columns, read.count()) == (["row_id", "c", "d"], 0)


@pytest.mark.parametrize(
    "change, rules, expected, problem",
    [
        (
            {"c": "if(row_id = 5, null, c)"},
            Rules(not_null=["c"]),
            60,
            "c is null in 1 of 60 rows",
        ),
        (
            {},
            Rules(ranges={"c": (0, 6)}),
            60,
            r"c has values from 0 to 6, but they must be at least 0 and below 6",
        ),
        (
            {"c": "c - 1"},
            Rules(ranges={"c": (0, 6)}),
            60,
            r"c has values from -1 to 5, but they must be at least 0 and below 6",
        ),
        ({}, Rules(not_null=["user_key"]), 60, "the column user_key was not written"),
        ({}, Rules(), 61, "60 rows were written, but 61 were expected"),
    ],
)
def test_what_breaks_a_rule_is_not_published(
    spark: SparkSession,
    partition: Partition,
    change: dict[str, str],
    rules: Rules,
    expected: int,
    problem: str,
) -> None:
    before = publish_old(spark, partition)
    with pytest.raises(DataError, match=problem) as caught:
        publish(
            _rows(spark, 60).withColumns(
                {"d": F.col("d"), **{name: F.expr(sql) for name, sql in change.items()}}
            ),
            partition,
            inputs={},
            row_group_rows=100,
            expected_rows=expected,
            rules=rules,
        )
    assert partition.path in caught.value.problem
    assert read_manifest(partition) == before
    assert _values(spark, partition) == list(range(20))


def publish_old(spark: SparkSession, partition: Partition) -> Manifest:
    return publish(_rows(spark, 20), partition, inputs={"old": "1"}, row_group_rows=100, expected_rows=20)


@pytest.mark.parametrize("place", [0, 5, 11])
def test_rules_hold_for_every_row_group_of_a_file(partition: Partition, place: int) -> None:
    """12 rows in 4 row groups, one of them with a value above the limit, or null."""
    for wrong, problem in ((7.0, r"d has values from 0.5 to 7.0"), (None, "d is null in 1 of 12 rows")):
        values = [0.5 if row != place else wrong for row in range(12)]
        name = own_path(f"{new_attempt(partition)}/part-0.parquet")
        path = Path(partition.file(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({"row_id": range(12), "d": pa.array(values, pa.float32())})
        pq.write_table(table, path, row_group_size=3)
        rules = Rules(not_null=["d"], ranges={"d": (0.0, 1.0)})
        with pytest.raises(DataError, match=problem):
            publish_files(partition, {name: None}, inputs={}, expected_rows=12, rules=rules)


def written(partition: Partition, rows: pa.Table, name: str) -> str:
    """The full path of a written file with its digest."""
    with new_file(partition.file(f"{partition.data}/{name}")) as file:
        pq.write_table(rows, file.sink, row_group_size=2)
    return file.name


def test_a_file_that_its_task_has_described_is_not_opened_again(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, words, lists = [3, 1, 2], ["/", "#", None], [[1], [], [2, 3]]
    rows = pa.table(
        {"id": pa.array(ids), "word": pa.array(words), "list": pa.array(lists, pa.list_(pa.int32()))}
    )
    names = [written(partition, rows, "a.parquet"), written(partition, rows.slice(0, 0), "b.parquet")]
    opened = publish_files(partition, dict.fromkeys(_below(partition, names)), inputs={})
    described = _below(partition, [with_footer(name) for name in names])
    assert described[0].rsplit("/", 1)[1].startswith("a.parquet#")  # tasks return the last part of the path

    def refuse(path: str) -> None:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr("storage.publish.describe", refuse)
    manifest = publish_files(partition, dict.fromkeys(described), inputs={})
    assert replace(manifest, created_at="") == replace(opened, created_at="")
    assert manifest.files[0].row_groups == (2, 1)
    for rules, words_of_error in (
        (Rules(ranges={"id": (0, 3)}), r"id has values from 1 to 3, but they must be at least 0 and below 3"),
        (Rules(not_null=["word"]), "word is null in 1 of 3 rows"),
    ):
        with pytest.raises(DataError, match=words_of_error):
            publish_files(partition, dict.fromkeys(described), inputs={}, rules=rules)


def _below(partition: Partition, names: list[str]) -> list[str]:
    """The names relative to the folder of the partition."""
    return [f"{partition.data}/{name.rpartition('/')[2]}" for name in names]


def test_infinity_is_found_in_a_described_file(partition: Partition) -> None:
    rows = pa.table({"x": pa.array([1.0, float("inf")], pa.float32())})
    (name,) = _below(partition, [with_footer(written(partition, rows, "a.parquet"))])
    with pytest.raises(DataError, match="x is infinite in some rows"):
        publish_files(partition, {name: None}, inputs={}, rules=Rules(ranges={"x": FINITE}))


def test_a_local_lake_stays_local_where_hdfs_is_the_default(
    spark: SparkSession, partition: Partition
) -> None:
    """On YARN, Hadoop's default file system is HDFS: Spark would write there, and Python would find no row."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        publish(spark.range(10), partition, inputs={}, row_group_rows=10)
        assert read_published(spark, partition).count() == 10
    finally:
        settings.set("fs.defaultFS", before)


def test_readers_follow_the_manifest_and_not_the_folder(spark: SparkSession, partition: Partition) -> None:
    manifest = publish_old(spark, partition)
    stray = Path(partition.path) / "part-stray.parquet"
    stray.write_bytes(Path(data_files(partition, manifest)[0]).read_bytes())
    (Path(data_files(partition, manifest)[0]).parent / "part-of-another-attempt.parquet").write_bytes(
        b"broken"
    )
    assert _values(spark, partition) == list(range(20))


def test_the_folder_holds_a_link_to_each_published_file_and_nothing_else(
    spark: SparkSession, partition: Partition
) -> None:
    publish_old(spark, partition)
    again = publish(_rows(spark, 30), partition, inputs={}, row_group_rows=10, expected_rows=30)
    shown = sorted(path for path in Path(partition.path).iterdir() if path.name != MANIFEST_NAME)
    files = [Path(path) for path in data_files(partition, again)]
    assert len(files) > 1
    assert sorted(path.stat().st_ino for path in shown) == sorted(path.stat().st_ino for path in files)
    assert not any(path.is_relative_to(partition.path) for path in files)
    publish_facts(partition, inputs={}, facts={})
    assert [path.name for path in Path(partition.path).iterdir()] == [MANIFEST_NAME]


def test_links_that_are_gone_come_back_and_what_else_is_there_goes(
    spark: SparkSession, partition: Partition
) -> None:
    publish_old(spark, partition)
    shown = next(Path(partition.path).glob("*.parquet"))
    shown.unlink()
    (Path(partition.path) / "0-being-replaced.parquet").touch()
    (Path(partition.path) / "of-another-table.parquet").touch()
    assert current_manifest(partition, {"another": "input"}) is None
    assert not shown.exists(), "a partition that must be made anew is left as it is"
    assert current_manifest(partition, {"old": "1"}) is not None
    assert list(Path(partition.path).glob("*.parquet")) == [shown]


def test_where_the_file_system_has_no_links_the_folder_shows_no_file(
    spark: SparkSession, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if os.stat(elsewhere).st_dev == os.stat(partition.root).st_dev:
            pytest.skip("there is no second file system here")
        (Path(partition.root) / "_data").symlink_to(elsewhere)
        publish_old(spark, partition)
        assert [path.name for path in Path(partition.path).iterdir()] == [MANIFEST_NAME]
        assert "tools that list this folder find no files" in caplog.text
        assert _values(spark, partition) == list(range(20))


def test_an_unpublished_partition_cannot_be_read(spark: SparkSession, partition: Partition) -> None:
    with pytest.raises(DataError, match="no published partition"):
        read_published(spark, partition)


def test_a_partition_may_hold_facts_alone(partition: Partition) -> None:
    manifest = publish_facts(partition, inputs={"model": "m"}, facts={"auc": 0.75})
    assert read_manifest(partition) == manifest
    assert (manifest.rows, manifest.facts["auc"]) == (0, 0.75)


def _age(path: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(path, (then, then))


def test_the_sweep_deletes_old_files_no_manifest_names(spark: SparkSession, partition: Partition) -> None:
    first = publish_old(spark, partition)
    second = publish(
        _rows(spark, 30), partition, inputs={"new": "1"}, row_group_rows=100, expected_rows=30, grace_hours=24
    )
    folder = Path(partition.file(partition.data))
    old_debris, new_debris = folder / "adead/part-0.parquet", folder / "alive/part-0.parquet"
    for path in (old_debris, new_debris):
        path.parent.mkdir()
        path.touch()
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        _age(path, 25)
    _age(new_debris, 23)

    deleted = delete_leftovers(partition, [second, first, None], grace_hours=24)
    left = {str(path) for path in folder.rglob("*") if path.is_file()}
    named = {*data_files(partition, first), *data_files(partition, second), str(folder / LOCK_NAME)}
    assert left == {*named, str(new_debris)}
    assert deleted == len(files) - len(left)

    # Readers of the first manifest had a day to finish; now only the second counts.
    delete_leftovers(partition, [second], grace_hours=24)
    assert not any(Path(path).exists() for path in data_files(partition, first))
    assert _values(spark, partition) == list(range(30))


def test_publishing_sweeps_but_keeps_the_files_it_replaces(spark: SparkSession, partition: Partition) -> None:
    """Files that no manifest has listed for a day are deleted, however long ago they were written."""
    oldest = publish_old(spark, partition)
    for rows, hours, is_kept in ((21, 0, True), (22, 23, True), (23, 25, False)):
        manifest = read_manifest(partition)
        then = (datetime.now(UTC) - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
        replace_manifest(partition, replace(manifest, created_at=then))  # published so many hours ago
        for path in Path(partition.file(partition.data)).rglob("*.parquet"):
            _age(path, 100)
        newest = publish(_rows(spark, rows), partition, inputs={}, row_group_rows=100, expected_rows=rows)
        # The first publication replaces the oldest manifest. Then its files are no longer listed.
        assert [Path(path).exists() for path in data_files(partition, oldest)] == [is_kept] * len(
            oldest.files
        )
        assert all(Path(path).exists() for path in data_files(partition, manifest))
    assert all(Path(path).exists() for path in data_files(partition, newest))
