"""Lists of an experiment in every sink, and on the page of a user."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from conf.types import Secret
from jobs.score_daily import run as score_daily
from nightrank.online import open_online
from reporting.inspect.user_list import find, page
from scoring.delivery.online_format import OnlineTable, Pointer, list_values, lists_of
from scoring.delivery.postgresql import connect
from scoring.delivery.published_lists import PublishedLists
from scoring.delivery.secrets import Credentials
from scoring.delivery.sinks import jdbc, json_lines, redis
from storage.manifest import read_manifest
from storage.paths import LakePaths, Partition
from storage.publish import read_published
from storage.read_parquet import read_table
from storage.run_context import RunContext
from tests.delivery.conftest import PublishedRuns
from tests.delivery.postgres import Server as Database
from tests.delivery.valkey import PASSWORD, valkey
from tests.etl.lakes import servers
from tests.scoring.scoring_lake import RUN_DATE, make_config

EXPERIMENT = {"name": "second", "share": 0.5, "model": "m2", "start": RUN_DATE}


@pytest.fixture
def lake(runs: PublishedRuns, tmp_path: Path) -> LakePaths:
    """A copy of the lake with lists of both variants."""
    copied = shutil.copytree(runs.lake.root, tmp_path / "lake")
    score_daily(RunContext("test", make_config(copied, serving={"experiment": EXPERIMENT}), RUN_DATE))
    return LakePaths(str(copied))


def lists_in(lake: LakePaths) -> PublishedLists:
    return PublishedLists(table_in(lake), read_manifest(lake.recommendations.partition(RUN_DATE)))


def table_in(lake: LakePaths) -> pa.Table:
    partition = lake.recommendations.partition(RUN_DATE)
    return read_table(partition, read_manifest(partition))


def as_frame(runs: PublishedRuns, lake: LakePaths) -> PublishedLists:
    partition = lake.recommendations.partition(RUN_DATE)
    return replace(lists_in(lake), rows=read_published(runs.spark, partition))


def test_values_for_a_store_are_those_of_the_table(lake: LakePaths) -> None:
    rows = table_in(lake)
    variants = {
        "control": {"model_version": "m1", "workflow_version": "w1"},
        "treatment": {"model_version": "m2", "workflow_version": "w1"},
    }
    pointer = Pointer(RUN_DATE, "m1", "w1", "now", {"lists": OnlineTable("a", "b", 1, 1)}, variants)
    again = Pointer.from_text(pointer.to_text(), "here")
    assert again == pointer
    without = replace(pointer, variants={})
    assert "variants" not in json.loads(without.to_text())
    assert Pointer.from_text(without.to_text(), "here") == without
    values = {}
    for user in sorted(set(rows["user_id"].to_pylist())):
        batch = rows.filter(pa.compute.equal(rows["user_id"], user)).combine_chunks().to_batches()[0]
        entries = list_values(batch)
        assert [len(json.loads(entry)) for entry in entries] == [4] + [2] * (len(entries) - 1)
        values[user] = f"[{','.join(entries)}]".encode()
    pd.testing.assert_frame_equal(lists_of(values, again).to_pandas(), rows.to_pandas(), check_exact=True)


def test_the_redis_sink_delivers_both_variants(
    runs: PublishedRuns, lake: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LISTS_PASSWORD", PASSWORD)
    try:
        with valkey() as server:
            sink = redis.Settings(
                kind="redis", name="app", url=server.url, password=Secret(env="LISTS_PASSWORD"), prefix="x"
            )
            redis.deliver(sink, lists_in(lake))
            expected = table_in(lake).to_pandas()
            with open_online(sink.url, prefix="x", password=PASSWORD) as reader:
                served = reader.recommendations(sorted(set(expected.user_id))).to_pandas()
                pd.testing.assert_frame_equal(served, expected, check_exact=True)
    except servers.Unavailable as error:
        servers.missing(str(error))


def test_json_lines_name_the_variant(runs: PublishedRuns, lake: LakePaths, tmp_path: Path) -> None:
    sink = json_lines.Settings(kind="json_lines", name="files", path=str(tmp_path / "out"))
    json_lines.deliver(sink, as_frame(runs, lake))
    partition = Partition("files", RUN_DATE, f"{sink.path}/dt={RUN_DATE}")
    (entry,) = read_manifest(partition).files
    text = gzip.decompress(Path(partition.file(entry.path)).read_bytes()).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    rows = table_in(lake).to_pandas()
    assert {line["user_id"]: line["variant"] for line in lines} == dict(
        zip(rows.user_id, rows.variant, strict=True)
    )
    assert list(lines[0]) == ["user_id", "date", "variant", "items"]


def test_a_table_of_postgresql_gets_the_column_with_the_first_experiment(
    runs: PublishedRuns,
    lake: LakePaths,
    database: Database,
    driver_jar: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LISTS_USER", database.user)
    monkeypatch.setenv("LISTS_PASSWORD", database.password)
    sink = jdbc.Settings(
        kind="jdbc",
        name="app",
        url=database.url,
        table="public.of_experiments",
        user=Secret(env="LISTS_USER"),
        password=Secret(env="LISTS_PASSWORD"),
        driver_jar=str(driver_jar),
        connections=2,
    )
    plain, tested = as_frame(runs, runs.lake), as_frame(runs, lake)
    text = f"SELECT user_id, position, variant FROM {sink.table} ORDER BY user_id, position"
    with connect(str(driver_jar), sink, Credentials(database.user, database.password)) as client:
        jdbc.deliver(sink, plain)
        assert not client.rows(
            "SELECT 1 FROM pg_attribute WHERE attrelid = 'public.of_experiments'::regclass "
            "AND attname = 'variant'"
        )
        jdbc.deliver(sink, tested)
        rows = table_in(lake).to_pandas()
        expected = zip(rows.user_id, rows.position.astype(str), rows.variant, strict=True)
        assert [tuple(row) for row in client.rows(text)] == list(expected)
        assert jdbc.deliver(sink, tested).written == 0
        jdbc.deliver(sink, plain)
        assert {row[2] for row in client.rows(text)} == {None}


def test_the_page_of_a_user_names_variant_and_model(lake: LakePaths) -> None:
    rows = table_in(lake).to_pandas().drop_duplicates("user_id").set_index("user_id")
    for variant, model in (("control", "m1"), ("treatment", "m2")):
        user = rows.index[rows.variant == variant][0]
        user_list = find(lake, RUN_DATE, user)
        assert list(user_list.entries[0]) == ["position", "item_id", "score", "reason"]
        assert f"variant {variant} of second, model {model}, workflow w1" in page(user_list, {})
