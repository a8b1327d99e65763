"""Files of lists on s3a://: every user once, and a rerun changes nothing."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from scoring.delivery.published_lists import PublishedLists
from scoring.delivery.sinks import csv as sink_csv
from scoring.delivery.sinks import json_lines
from spark.rows import Rows
from storage import file_io
from storage.manifest import FileEntry, Manifest, data_files, read_manifest
from storage.paths import Partition
from tests.etl.lakes.conftest import ObjectStore

RUN_DATE = "2026-01-03"


@pytest.fixture(params=["table", pytest.param("frame", marks=pytest.mark.spark)])
def lists(request: pytest.FixtureRequest) -> Iterator[PublishedLists]:
    """Lists as an Arrow table, or as a frame of Spark.

    For a frame, the fixture sets Hadoop's committer. That of S3A does not recognise the file system of another
    class loader. The JVM of the tests has the jars of s3a in two class loaders. On a class path there is one.
    """
    if request.param == "table":
        types = [("user_id", pa.string()), ("position", pa.int32()), ("item_id", pa.string())]
        schema = pa.schema([*types, ("score", pa.float32()), ("reason", pa.string())])
        yield lists_of(pa.table([*map(list, zip(*ROWS, strict=True))], schema=schema))
        return
    spark: SparkSession = request.getfixturevalue("spark")
    context: Any = spark.sparkContext._jsc
    conf, key = context.sc().hadoopConfiguration(), "mapreduce.outputcommitter.factory.class"
    conf.set(key, "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitterFactory")
    yield lists_of(
        spark.createDataFrame(
            ROWS, "user_id string, position int, item_id string, score float, reason string"
        )
    )
    conf.unset(key)


ROWS = [
    (f"user {user:02d}", position, f"item/{user * position}", 1 / (user + position), "ranked")
    for user in range(1, 21)
    for position in range(1, 1 + user % 4)
]


def lists_of(rows: Rows) -> PublishedLists:
    """Published lists with the entries ROWS; three more users have none."""
    users = {row[0] for row in ROWS}
    entry = FileEntry("a", len(ROWS), 1, (len(ROWS),))
    facts = {"users": len(users) + 3, "users_without": 3, "k": 3}
    return PublishedLists(
        rows, Manifest("recommendations", RUN_DATE, (entry,), (), {"model": "m"}, facts=facts)
    )


def test_lines_on_an_object_store_equal_the_lists(lists: PublishedLists, object_store: ObjectStore) -> None:
    sink = json_lines.Settings.model_validate(
        {
            "kind": "json_lines",
            "name": "out",
            "path": f"{object_store.root}/{type(lists.rows).__name__}/lists",
            "users_per_file": 6,
        }
    )
    done = json_lines.deliver(sink, lists)
    partition = Partition(
        "out", RUN_DATE, f"{object_store.root}/{type(lists.rows).__name__}/lists/dt={RUN_DATE}"
    )
    assert done.target == partition.path
    published = read_manifest(partition)
    assert len(published.files) > 1
    lines = []
    for path in data_files(partition, published):
        source, inner = file_io.filesystem(path)
        with source.open_input_file(inner) as file:
            lines += [json.loads(line) for line in gzip.decompress(file.read()).decode().splitlines()]
    assert [line["user_id"] for line in lines] == sorted({row[0] for row in ROWS})
    entries = [
        (line["user_id"], entry["position"], entry["item_id"], entry["reason"])
        for line in lines
        for entry in line["items"]
    ]
    assert entries == sorted((user, position, item, reason) for user, position, item, _, reason in ROWS)
    assert {line["date"] for line in lines} == {RUN_DATE}
    json_lines.deliver(sink, lists)
    assert read_manifest(partition) == published


def test_csv_on_an_object_store_equals_the_lists(lists: PublishedLists, object_store: ObjectStore) -> None:
    sink = sink_csv.Settings.model_validate(
        {
            "kind": "csv",
            "name": "table",
            "path": f"{object_store.root}/{type(lists.rows).__name__}/table",
            "users_per_file": 6,
            "compression": "gzip",
        }
    )
    sink_csv.deliver(sink, lists)
    partition = Partition(
        "table", RUN_DATE, f"{object_store.root}/{type(lists.rows).__name__}/table/dt={RUN_DATE}"
    )
    published = read_manifest(partition)
    assert len(published.files) > 1
    entries = []
    for path in data_files(partition, published):
        source, inner = file_io.filesystem(path)
        with source.open_input_file(inner) as file:
            text = gzip.decompress(file.read()).decode()
        entries += list(csv.reader(text.splitlines()))[1:]
    expected = sorted((user, str(position), item, reason) for user, position, item, _, reason in ROWS)
    assert [(*row[:3], row[4]) for row in entries] == expected
    sink_csv.deliver(sink, lists)
    assert read_manifest(partition) == published
