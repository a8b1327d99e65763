"""Lineage: which datasets a run read and published, as events that OpenLineage's schema takes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import lineage
from storage.manifest import (
    FileEntry,
    Manifest,
    combined_digest,
    is_published,
    read_manifest,
    replace_manifest,
)
from storage.paths import Lake, Partition
from tests.reporting.monitoring.openlineage import SCHEMA, assert_valid

RUN_DATE = "2026-01-08"


@pytest.fixture
def run() -> Iterator[lineage.Run]:
    current_run = lineage.Run("build_candidates", "nightrank.shop", RUN_DATE)
    lineage.begin(current_run)
    yield current_run
    lineage.begin(None)


def publish(partition: Partition, inputs: dict[str, str], rows: int = 7) -> Manifest:
    files = (FileEntry("a/0.parquet", rows, 100 * rows, (rows,)),)
    schema = (("user_id", "string"), ("score", "float"))
    replace_manifest(partition, Manifest(partition.table, partition.dt, files, schema, inputs))
    return read_manifest(partition)


def names(event: Any, side: str) -> list[str]:
    return [item["name"].split("/lake/")[1] for item in event[side]]


def test_a_published_partition_says_exactly_what_it_was_made_of(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    users, items = (table.partition(RUN_DATE) for table in (lake.users("w"), lake.items("w")))
    before = {"users": publish(users, {}, 3).digest, "items": publish(items, {}, 5).digest}
    run = lineage.Run("build_candidates", "nightrank.shop", RUN_DATE)
    lineage.begin(run)
    try:
        read_manifest(users)
        read_manifest(items)
        published = publish(
            lake.candidates("w").partition(RUN_DATE), {"users": before["users"], "config": "c"}
        )
    finally:
        lineage.begin(None)
    assert_valid(published.lineage)
    assert published.lineage["eventType"] == "OTHER"
    assert published.lineage["run"]["runId"] == run.run_id
    assert published.lineage["job"] == {
        "namespace": "nightrank.shop",
        "name": "build_candidates",
        "facets": {},
    }
    assert names(published.lineage, "inputs") == [f"users/w/dt={RUN_DATE}"]  # its digest stands in `inputs`
    (input_dataset,), (output,) = published.lineage["inputs"], published.lineage["outputs"]
    assert input_dataset["facets"]["version"]["datasetVersion"] == before["users"]
    assert input_dataset["inputFacets"]["dataQualityMetrics"]["rowCount"] == 3
    assert input_dataset["inputFacets"]["dataQualityMetrics"]["bytes"] == 300
    assert (output["namespace"], output["name"]) == ("file", f"{tmp_path}/lake/candidates/w/dt={RUN_DATE}")
    assert output["facets"]["version"]["datasetVersion"] == published.digest
    assert [item["name"] for item in output["facets"]["schema"]["fields"]] == ["user_id", "score"]
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (7, 700)


def test_combined_digests_are_taken_apart_and_unknown_ones_mean_all(tmp_path: Path, run: lineage.Run) -> None:
    lake = Lake(str(tmp_path / "lake"))
    days = [publish(lake.raw.partition(f"2026-01-0{day}"), {}) for day in (1, 2, 3)]
    two = combined_digest(f"train {day.digest}" for day in days[:2])
    published = publish(lake.features("w").partition(RUN_DATE), {"profiles": two})
    assert names(published.lineage, "inputs") == ["raw/dt=2026-01-01", "raw/dt=2026-01-02"]
    lineage.begin(later := lineage.Run("score_daily", "nightrank.shop", RUN_DATE))
    for day in days:
        read_manifest(lake.raw.partition(day.partition))
    published = publish(lake.scores.partition(RUN_DATE), {"all of it": "0123456789abcdef"})
    assert len(published.lineage["inputs"]) == 3
    assert later.run_id != run.run_id


def test_the_partition_that_is_replaced_is_no_input(tmp_path: Path, run: lineage.Run) -> None:
    partition = Lake(str(tmp_path / "lake")).scores.partition(RUN_DATE)
    old = publish(partition, {"model": "m1"})
    published = publish(partition, {"model": "m2", "before": old.digest})
    assert published.lineage["inputs"] == []
    assert published.digest != old.digest
    ended = run.ended("2026-01-09T03:00:00Z", None)
    assert names(ended, "inputs") == []
    assert names(ended, "outputs") == [f"scores/dt={RUN_DATE}"]


def test_the_end_of_a_run_tells_all_of_it_and_why_it_failed(tmp_path: Path, run: lineage.Run) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lineage.reads(f"{lake.models('m')}/v1", "v1")
    publish(lake.scores.partition(RUN_DATE), {"model": "v1"})
    lineage.writes(f"{lake.models('m')}/v2", "v2")
    for error, kind in ((None, "COMPLETE"), ("disk is full", "FAIL")):
        event = run.ended("2026-01-09T03:00:00Z", error)
        assert_valid(event)
        assert event["eventType"] == kind
        assert names(event, "inputs") == ["models/m/v1"]
        assert names(event, "outputs") == [f"scores/dt={RUN_DATE}", "models/m/v2"]
    assert event["run"]["facets"]["errorMessage"]["message"] == "disk is full"


def test_nothing_is_kept_where_no_run_was_begun_or_while_it_is_paused(
    tmp_path: Path, run: lineage.Run
) -> None:
    partition = Lake(str(tmp_path / "lake")).scores.partition(RUN_DATE)
    with lineage.paused():
        assert publish(partition, {}).lineage == {}
        assert is_published(partition)
    assert not run.read
    assert lineage.current() is run
    lineage.begin(None)
    assert publish(partition, {}).lineage == {}


def test_lineage_enters_no_digest(tmp_path: Path, run: lineage.Run) -> None:
    lake = Lake(str(tmp_path / "lake"))
    first = publish(lake.scores.partition(RUN_DATE), {"model": "m"})
    with lineage.paused():
        assert publish(lake.scores.partition(RUN_DATE), {"model": "m"}).digest == first.digest


@pytest.mark.parametrize(
    "path, named",
    [
        ("/lake/raw/dt=1", ("file", "/lake/raw/dt=1")),
        ("file:///lake/raw", ("file", "/lake/raw")),
        ("s3a://bucket/lake/raw", ("s3://bucket", "lake/raw")),
        ("hdfs://name:8020/logs/x", ("hdfs://name:8020", "/logs/x")),
    ],
)
def test_datasets_are_named_as_openlineage_names_paths(path: str, named: tuple[str, str]) -> None:
    assert lineage.dataset_name(path) == named


def test_datasets_of_many_threads_are_all_kept(run: lineage.Run) -> None:
    def read(thread: int) -> None:
        for index in range(200):
            lineage.reads(f"/lake/{thread}/{index}", "v")

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(run.inputs()) == 800


def _drop(*path: str) -> Callable[[Any], None]:
    def change(event: Any) -> None:
        for key in path[:-1]:
            event = event[int(key)] if isinstance(event, list) else event[key]
        del event[path[-1]]

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        _drop("schemaURL"),
        _drop("run", "runId"),
        _drop("outputs", "0", "namespace"),
        _drop("outputs", "0", "facets", "version", "_producer"),
        _drop("outputs", "0", "outputFacets", "outputStatistics", "rowCount"),
        lambda event: event.update(eventType="DONE"),
        lambda event: event["run"]["facets"].update(spark={}),
    ],
)
def test_the_schema_refuses_what_openlineage_does(
    tmp_path: Path, run: lineage.Run, spoil: Callable[[Any], None]
) -> None:
    event = publish(Lake(str(tmp_path / "lake")).scores.partition(RUN_DATE), {}).lineage
    assert_valid(event)
    spoiled = copy.deepcopy(dict(event))
    spoil(spoiled)
    with pytest.raises(AssertionError):
        assert_valid(spoiled)


def test_the_version_that_is_written_is_the_one_of_the_schema() -> None:
    assert SCHEMA["$defs"]["event"]["properties"]["schemaURL"]["const"] == lineage.SCHEMA_URL
    facets = {
        name
        for side in ("dataset", "input", "output")
        for holder in SCHEMA["$defs"][side]["properties"].values()
        for name in holder.get("properties", {})
    } | set(SCHEMA["$defs"]["event"]["properties"]["run"]["properties"]["facets"]["properties"])
    assert facets == set(lineage.FACETS)
