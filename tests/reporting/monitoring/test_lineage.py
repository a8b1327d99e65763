"""Lineage: which datasets a run read and published, as events that OpenLineage's schema takes."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.load import load_config
from conf.types import Config
from etl.raw.files import raw_path, require_raw
from storage.lineage import FACETS, NOT_RECORDED, SCHEMA_URL, DatasetVersion, RunLineage, dataset_name
from storage.manifest import (
    FileEntry,
    Manifest,
    combined_digest,
    is_published,
    read_manifest,
    replace_manifest,
)
from storage.paths import LakePaths, Partition
from storage.run_context import RunContext
from tests.reporting.monitoring.openlineage import SCHEMA, assert_valid

RUN_DATE = "2026-01-08"


@pytest.fixture
def lineage() -> RunLineage:
    """The lineage of a run that has read and published nothing yet."""
    return RunLineage("build_candidates", "nightrank.shop", RUN_DATE)


@pytest.fixture
def lake(tmp_path: Path, lineage: RunLineage) -> LakePaths:
    """An empty lake whose reads and publications are recorded in `lineage`."""
    return LakePaths(str(tmp_path / "lake"), lineage)


def config_of(folder: Path) -> Config:
    """The configuration of generated logs, with its lake in `folder`."""
    return load_config("conf/datasets/generated.yaml", [f"lake={folder}/lake"])


def publish(partition: Partition, inputs: dict[str, str], rows: int = 7) -> Manifest:
    """Publishes a manifest of one file without data, and returns it as it is read."""
    files = (FileEntry("a/0.parquet", rows, 100 * rows, (rows,)),)
    schema = (("user_id", "string"), ("score", "float"))
    replace_manifest(partition, Manifest(partition.table, partition.dt, files, schema, inputs))
    return read_manifest(partition)


def names(event: Any, side: str) -> list[str]:
    """The names of an event's `inputs` or `outputs`, below the lake."""
    return [dataset["name"].split("/lake/")[1] for dataset in event[side]]


def test_published_manifest_names_exactly_its_inputs(
    tmp_path: Path, lake: LakePaths, lineage: RunLineage
) -> None:
    without_recorder = LakePaths(lake.root)
    users, items = (
        table.partition(RUN_DATE) for table in (without_recorder.users("w"), without_recorder.items("w"))
    )
    digests = {"users": publish(users, {}, 3).digest, "items": publish(items, {}, 5).digest}
    read_manifest(lake.users("w").partition(RUN_DATE))
    read_manifest(lake.items("w").partition(RUN_DATE))
    manifest = publish(lake.candidates("w").partition(RUN_DATE), {"users": digests["users"], "config": "c"})
    event = manifest.lineage
    assert_valid(event)
    assert event["eventType"] == "OTHER"
    assert event["run"]["runId"] == lineage.run_id
    assert event["job"] == {"namespace": "nightrank.shop", "name": "build_candidates", "facets": {}}
    assert names(event, "inputs") == [f"users/w/dt={RUN_DATE}"]  # its digest is an input of the manifest
    (dataset,), (output,) = event["inputs"], event["outputs"]
    assert dataset["facets"]["version"]["datasetVersion"] == digests["users"]
    assert dataset["inputFacets"]["dataQualityMetrics"]["rowCount"] == 3
    assert dataset["inputFacets"]["dataQualityMetrics"]["bytes"] == 300
    assert (output["namespace"], output["name"]) == ("file", f"{tmp_path}/lake/candidates/w/dt={RUN_DATE}")
    assert output["facets"]["version"]["datasetVersion"] == manifest.digest
    assert [column["name"] for column in output["facets"]["schema"]["fields"]] == ["user_id", "score"]
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (7, 700)


def test_combined_digests_are_resolved_and_unknown_digests_mean_all_inputs(
    lake: LakePaths, lineage: RunLineage
) -> None:
    days = [publish(lake.raw.partition(f"2026-01-0{day}"), {}) for day in (1, 2, 3)]
    two_days = combined_digest((f"train {day.digest}" for day in days[:2]), lineage)
    manifest = publish(lake.features("w").partition(RUN_DATE), {"profiles": two_days})
    assert names(manifest.lineage, "inputs") == ["raw/dt=2026-01-01", "raw/dt=2026-01-02"]
    later = RunLineage("score_daily", "nightrank.shop", RUN_DATE)
    lake_of_later_run = LakePaths(lake.root, later)
    for day in days:
        read_manifest(lake_of_later_run.raw.partition(day.partition))
    manifest = publish(lake_of_later_run.scores.partition(RUN_DATE), {"all of it": "0123456789abcdef"})
    assert len(manifest.lineage["inputs"]) == 3
    assert later.run_id != lineage.run_id


def test_replaced_partition_is_not_an_input(lake: LakePaths, lineage: RunLineage) -> None:
    partition = lake.scores.partition(RUN_DATE)
    old = publish(partition, {"model": "m1"})
    new = publish(partition, {"model": "m2", "before": old.digest})
    assert new.lineage["inputs"] == []
    assert new.digest != old.digest
    event = lineage.end_event("2026-01-09T03:00:00Z", None)
    assert names(event, "inputs") == []
    assert names(event, "outputs") == [f"scores/dt={RUN_DATE}"]


def test_end_event_has_all_datasets_and_the_error(lake: LakePaths, lineage: RunLineage) -> None:
    lineage.record_read(f"{lake.models('m')}/v1", "v1")
    publish(lake.scores.partition(RUN_DATE), {"model": "v1"})
    lineage.record_write(f"{lake.models('m')}/v2", "v2")
    for error, kind in ((None, "COMPLETE"), ("disk is full", "FAIL")):
        event = lineage.end_event("2026-01-09T03:00:00Z", error)
        assert_valid(event)
        assert event["eventType"] == kind
        assert names(event, "inputs") == ["models/m/v1"]
        assert names(event, "outputs") == [f"scores/dt={RUN_DATE}", "models/m/v2"]
    assert event["run"]["facets"]["errorMessage"]["message"] == "disk is full"


def test_lake_without_recorder_keeps_nothing(tmp_path: Path, lineage: RunLineage) -> None:
    partition = LakePaths(str(tmp_path / "lake")).scores.partition(RUN_DATE)
    assert publish(partition, {}).lineage == {}
    assert is_published(partition)
    assert not lineage.inputs
    assert not lineage.outputs
    assert RunContext("notebook", config_of(tmp_path), RUN_DATE).lake.recorder is NOT_RECORDED


def test_two_runs_in_one_process_are_recorded_apart(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    runs = [RunLineage(job, "nightrank.shop", RUN_DATE) for job in ("score_daily", "build_candidates")]
    scoring, listing = (RunContext(run.job, config, RUN_DATE, recorder=run) for run in runs)
    scores = publish(scoring.lake.scores.partition(RUN_DATE), {"model": "m"})
    read_manifest(listing.lake.scores.partition(RUN_DATE))
    assert [[dataset.version for dataset in run.outputs.values()] for run in runs] == [[scores.digest], []]
    assert names(runs[1].end_event("2026-01-09T03:00:00Z", None), "inputs") == [f"scores/dt={RUN_DATE}"]


def test_recorder_does_not_count_for_equality_and_stays_in_its_process(
    lake: LakePaths, lineage: RunLineage
) -> None:
    plain = LakePaths(lake.root)
    for recorded, other in (
        (lake, plain),
        (lake.scores, plain.scores),
        (lake.scores.partition(RUN_DATE), plain.scores.partition(RUN_DATE)),
    ):
        assert (recorded, hash(recorded), repr(recorded)) == (other, hash(other), repr(other))
        assert recorded.recorder is lineage
        arrived = pickle.loads(pickle.dumps(recorded))
        assert arrived == recorded
        assert not isinstance(arrived.recorder, RunLineage)
    assert publish(pickle.loads(pickle.dumps(lake)).scores.partition(RUN_DATE), {}).lineage == {}
    assert not lineage.inputs


def test_raw_day_without_manifest_is_an_input_and_passes_the_recorder_on(
    tmp_path: Path, lineage: RunLineage
) -> None:
    config = config_of(tmp_path)
    path = Path(raw_path(config, config.log, RUN_DATE))
    path.parent.mkdir(parents=True)
    path.with_name(path.name.replace("*", "0")).write_text("1\n", encoding="utf-8")
    raw = require_raw(config, config.log, RUN_DATE, recorder=lineage)
    assert list(lineage.inputs.values()) == [DatasetVersion(str(path), raw.digest, None, 2)]
    assert raw.recorder is lineage
    assert raw == require_raw(config, config.log, RUN_DATE)


def test_lineage_enters_no_digest(lake: LakePaths) -> None:
    recorded = publish(lake.scores.partition(RUN_DATE), {"model": "m"})
    assert recorded.lineage
    assert publish(LakePaths(lake.root).scores.partition(RUN_DATE), {"model": "m"}).digest == recorded.digest


@pytest.mark.parametrize(
    "path, name",
    [
        ("/lake/raw/dt=1", ("file", "/lake/raw/dt=1")),
        ("file:///lake/raw", ("file", "/lake/raw")),
        ("s3a://bucket/lake/raw", ("s3://bucket", "lake/raw")),
        ("hdfs://name:8020/logs/x", ("hdfs://name:8020", "/logs/x")),
        ("gs://bucket/logs/x", ("gs://bucket", "logs/x")),
        ("abfss://c@a.dfs.core.windows.net/logs/x", ("abfss://c@a.dfs.core.windows.net", "/logs/x")),
    ],
)
def test_datasets_are_named_as_openlineage_names_paths(path: str, name: tuple[str, str]) -> None:
    assert dataset_name(path) == name


def test_datasets_of_many_threads_are_all_kept(lineage: RunLineage) -> None:
    def record(thread: int) -> None:
        for index in range(200):
            lineage.record_read(f"/lake/{thread}/{index}", "v")

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lineage.external_inputs()) == 800


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
def test_schema_refuses_what_openlineage_refuses(lake: LakePaths, spoil: Callable[[Any], None]) -> None:
    event = publish(lake.scores.partition(RUN_DATE), {}).lineage
    assert_valid(event)
    spoiled = copy.deepcopy(dict(event))
    spoil(spoiled)
    with pytest.raises(AssertionError):
        assert_valid(spoiled)


def test_written_version_is_the_version_of_the_schema() -> None:
    assert SCHEMA["$defs"]["event"]["properties"]["schemaURL"]["const"] == SCHEMA_URL
    facets = {
        name
        for side in ("dataset", "input", "output")
        for holder in SCHEMA["$defs"][side]["properties"].values()
        for name in holder.get("properties", {})
    } | set(SCHEMA["$defs"]["event"]["properties"]["run"]["properties"]["facets"]["properties"])
    assert facets == set(FACETS)
