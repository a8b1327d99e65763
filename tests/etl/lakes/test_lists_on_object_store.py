"""JSON lines by user on s3a://: what the manifest names holds every user once, and a rerun leaves it alone."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.types import JsonLinesSink
from scoring.delivery import json_lines
from scoring.delivery.published_lists import PublishedLists
from storage import file_io
from storage.manifest import FileEntry, Manifest, data_files, read_manifest
from storage.paths import Partition
from tests.etl.lakes.conftest import ObjectStore

RUN_DATE = "2026-01-03"


@pytest.fixture
def plain_committer(spark: SparkSession) -> Iterator[None]:
    """The jars of s3a lie in two class loaders of the tests' one JVM, and S3A's own committer does not know the other's
    file system; on a class path there is one.
    """
    context: Any = spark.sparkContext._jsc
    conf, key = context.sc().hadoopConfiguration(), "mapreduce.outputcommitter.factory.class"
    conf.set(key, "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitterFactory")
    yield
    conf.unset(key)


def test_lines_on_an_object_store_equal_the_lists(
    spark: SparkSession, object_store: ObjectStore, plain_committer: None
) -> None:
    rows = [
        (f"user {user:02d}", place, f"item/{user * place}", 1 / (user + place), "ranked")
        for user in range(1, 21)
        for place in range(1, 1 + user % 4)
    ]
    users = {row[0] for row in rows}
    frame = spark.createDataFrame(
        rows, "user_id string, position int, item_id string, score float, reason string"
    )
    entry = FileEntry("a", len(rows), 1, (len(rows),))
    facts = {"users": len(users) + 3, "users_without": 3}
    manifest = Manifest("recommendations", RUN_DATE, (entry,), (), {"model": "m"}, facts=facts)
    sink = JsonLinesSink.model_validate(
        {"kind": "json_lines", "name": "out", "path": f"{object_store.root}/lists", "users_per_file": 6}
    )
    lists = PublishedLists(frame, manifest)
    done = json_lines.deliver(sink, lists, 24.0)
    partition = Partition("out", RUN_DATE, f"{object_store.root}/lists/dt={RUN_DATE}")
    assert done.target == partition.path
    published = read_manifest(partition)
    assert len(published.files) > 1
    found = []
    for path in data_files(partition, published):
        source, inner = file_io.filesystem(path)
        with source.open_input_file(inner) as file:
            found += [json.loads(line) for line in gzip.decompress(file.read()).decode().splitlines()]
    assert [line["user_id"] for line in found] == sorted(users)
    entries = [
        (line["user_id"], each["position"], each["item_id"], each["reason"])
        for line in found
        for each in line["items"]
    ]
    assert entries == sorted((user, place, item, reason) for user, place, item, _, reason in rows)
    assert {line["date"] for line in found} == {RUN_DATE}
    json_lines.deliver(sink, lists, 24.0)
    assert read_manifest(partition) == published
