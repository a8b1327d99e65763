"""The sink of JSON lines: every user and entry once, files named by a manifest; and the whole job."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.types import Config, Deliver
from jobs.deliver_recommendations import run as deliver_recommendations
from scoring.delivery.published_lists import Erased, EraseRequest, PublishedLists
from scoring.delivery.sinks import json_lines, read_settings
from storage.manifest import read_manifest
from storage.paths import Partition
from storage.publish import read_published
from storage.read_parquet import read_table
from tests.delivery.conftest import PublishedRuns
from tests.scoring.scoring_lake import RUN_DATE


def published(runs: PublishedRuns) -> PublishedLists:
    """The published lists of RUN_DATE."""
    partition = runs.lake.recommendations.partition(RUN_DATE)
    return PublishedLists(read_published(runs.spark, partition), read_manifest(partition))


def published_table(runs: PublishedRuns) -> PublishedLists:
    """The published lists of RUN_DATE as a table, in another order."""
    partition = runs.lake.recommendations.partition(RUN_DATE)
    rows = read_table(partition, read_manifest(partition))
    backwards = rows.take(list(range(len(rows)))[::-1])
    return PublishedLists(backwards, read_manifest(partition))


def sink_to(folder: Path, **settings: Any) -> json_lines.Settings:
    """A sink below a folder."""
    return json_lines.Settings.model_validate(
        {"kind": "json_lines", "name": "files", "path": str(folder), **settings}
    )


def partition_of(sink: json_lines.Settings) -> Partition:
    """The partition of RUN_DATE."""
    return Partition(sink.name, RUN_DATE, f"{sink.path}/dt={RUN_DATE}")


def read_lines(sink: json_lines.Settings) -> list[dict[str, Any]]:
    """Of the files that the manifest names, in its order."""
    partition = partition_of(sink)
    actual = []
    for entry in read_manifest(partition).files:
        data = Path(partition.file(entry.path)).read_bytes()
        text = gzip.decompress(data) if entry.path.endswith(".gz") else data
        lines = text.decode("utf-8").splitlines()
        assert len(lines) == entry.rows
        actual += [json.loads(line) for line in lines]
    return actual


def expected(lists: pd.DataFrame) -> list[dict[str, Any]]:
    """The lines of these lists."""
    expected_lines = []
    for user, user_rows in lists.sort_values(["user_id", "position"]).groupby("user_id"):
        items = [
            {
                "item_id": row.item_id,
                "position": row.position,
                "score": np.float32(row.score),
                "reason": row.reason,
            }
            for row in user_rows.itertuples()
        ]
        expected_lines.append({"user_id": user, "date": RUN_DATE, "items": items})
    return expected_lines


@pytest.mark.parametrize("form", [published, published_table])
@pytest.mark.parametrize("compression, users_per_file, files", [("gzip", 10, 4), ("none", 1000, 1)])
def test_lines_equal_the_published_lists(
    runs: PublishedRuns,
    tmp_path: Path,
    form: Callable[[PublishedRuns], PublishedLists],
    compression: str,
    users_per_file: int,
    files: int,
) -> None:
    sink = sink_to(tmp_path, compression=compression, users_per_file=users_per_file)
    done = json_lines.deliver(sink, form(runs))
    lines = read_lines(sink)
    for line in lines:
        assert list(line) == ["user_id", "date", "items"]
        for item in line["items"]:
            assert list(item) == ["item_id", "position", "score", "reason"]
            item["score"] = np.float32(item["score"])
    assert lines == expected(runs.lists)
    assert done.rows == len(runs.lists)
    manifest = read_manifest(partition_of(sink))
    assert 1 <= len(manifest.files) <= files
    assert (manifest.rows, manifest.rows_in) == (37, len(runs.lists))


def test_what_is_there_and_whole_is_left_alone_and_what_changed_is_replaced(
    runs: PublishedRuns, tmp_path: Path
) -> None:
    sink = sink_to(tmp_path)
    json_lines.deliver(sink, published(runs))
    first = read_manifest(partition_of(sink))
    json_lines.deliver(sink, published(runs))
    assert read_manifest(partition_of(sink)) == first
    Path(partition_of(sink).file(first.files[0].path)).unlink()
    json_lines.deliver(sink, published(runs))
    assert read_manifest(partition_of(sink)).files[0].path != first.files[0].path
    assert len(read_lines(sink)) == 37


def test_texts_are_escaped_and_scores_are_short(runs: PublishedRuns, tmp_path: Path) -> None:
    partition = runs.lake.recommendations.partition(RUN_DATE)
    manifest = read_manifest(partition)
    facts = {**manifest.facts, "users": 2, "users_without": 0}
    texts = ['a "b"\n', "\u2028é\\"]
    rows = pa.table(
        {
            "user_id": texts,
            "position": pa.array([1, 1], pa.int32()),
            "item_id": texts,
            "score": pa.array([0.1, 1e-7], pa.float32()),
            "reason": ["ranked", "explore"],
        }
    )
    sink = sink_to(tmp_path, compression="none")
    json_lines.deliver(sink, PublishedLists(rows, replace(manifest, facts=facts)))
    items = [line["items"] for line in read_lines_of(sink)]
    assert [item["item_id"] for (item,) in items] == texts
    assert [item["score"] for (item,) in items] == [0.1, 1e-7]


def read_lines_of(sink: json_lines.Settings) -> list[dict[str, Any]]:
    """The objects of all files; a line ends with a line feed only."""
    partition = partition_of(sink)
    files = [Path(partition.file(entry.path)) for entry in read_manifest(partition).files]
    return [json.loads(line) for path in files for line in path.read_text().split("\n")[:-1]]


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_erased_users_leave_no_line_and_the_next_delivery_changes_nothing(
    runs: PublishedRuns, tmp_path: Path, compression: str
) -> None:
    sink, lists = sink_to(tmp_path, compression=compression), published(runs)
    json_lines.deliver(sink, lists)
    before = read_lines(sink)
    old = lists.manifest.digest
    request = EraseRequest(frozenset({"u007", "u01", "stranger"}), {old: "new digest"}, lambda: runs.spark)
    assert json_lines.erase(sink, request) == Erased(sink.path, 1)
    assert read_lines(sink) == [line for line in before if line["user_id"] != "u007"]
    manifest = read_manifest(partition_of(sink))
    assert manifest.inputs["recommendations"] == "new digest"
    entries = sum(len(line["items"]) for line in read_lines(sink))
    assert (manifest.facts["users"], manifest.facts["entries"], manifest.rows) == (36, entries, 36)
    files = [path for path in tmp_path.rglob("*.json*") if path.name != "_MANIFEST.json"]
    contents = [path.read_bytes() for path in files]
    texts = [gzip.decompress(data) if compression == "gzip" else data for data in contents]
    assert texts
    assert not any(b"u007" in text for text in texts)
    assert json_lines.erase(sink, request) == Erased(sink.path, 0)
    assert read_manifest(partition_of(sink)) == manifest


def test_lost_users_are_noticed_before_the_manifest_is_replaced(runs: PublishedRuns, tmp_path: Path) -> None:
    sink, lists = sink_to(tmp_path), published(runs)
    json_lines.deliver(sink, lists)
    before = read_manifest(partition_of(sink))
    fewer = PublishedLists(lists.rows.where(F.col("user_id") != "u001"), lists.manifest)
    Path(partition_of(sink).file(before.files[0].path)).rename(tmp_path / "aside")
    with pytest.raises(InfrastructureError, match="have 36 records, but the published lists have 37"):
        json_lines.deliver(sink, fewer)
    assert read_manifest(partition_of(sink)) == before


def test_the_job_delivers_to_every_sink_and_records_it(runs: PublishedRuns, tmp_path: Path) -> None:
    sinks = [{"kind": "json_lines", "name": name, "path": str(tmp_path / name)} for name in ("a", "b")]
    result = deliver_recommendations(runs.job(RUN_DATE, deliver={"sinks": sinks}))
    manifest = read_manifest(runs.lake.deliveries.partition(RUN_DATE))
    assert manifest.inputs["recommendations"] == published(runs).manifest.digest
    assert [sink["name"] for sink in manifest.facts["sinks"]] == ["a", "b"]
    assert {sink["rows"] for sink in manifest.facts["sinks"]} == {len(runs.lists)} == {result.rows_out}
    assert manifest.facts["users"] == 37
    for sink in sinks:
        assert len(read_lines(json_lines.Settings.model_validate(sink))) == 37


def test_without_sinks_or_lists_there_is_nothing_to_deliver(runs: PublishedRuns, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"deliver\.sinks is empty"):
        deliver_recommendations(runs.job(RUN_DATE))
    sinks = [{"kind": "json_lines", "name": "a", "path": str(tmp_path)}]
    with pytest.raises(DataError, match="recommendations has no published partition dt=2026-02-01"):
        deliver_recommendations(runs.job("2026-02-01", deliver={"sinks": sinks}))
    assert list(tmp_path.iterdir()) == []


JDBC = {
    "kind": "jdbc",
    "name": "app",
    "url": "jdbc:postgresql://db/app",
    "table": "lists",
    "user": {"env": "U"},
    "password": {"file": "p"},
}


@pytest.mark.parametrize(
    "changed, message",
    [
        (
            {"url": "jdbc:postgresql://db/app?user=a&password=hidden-word"},
            "must not contain a user or a password",
        ),
        ({"url": "jdbc:postgresql://a:hidden-word@db/app"}, "must not contain a user or a password"),
        ({"url": "jdbc:mysql://db/app"}, "must begin with jdbc:postgresql:"),
        *(
            ({"url": f"jdbc:postgresql://db/app?sslmode=require&{parameter}"}, "it must not have")
            for parameter in (
                "socketFactory=org.springframework.context.support.ClassPathXmlApplicationContext",
                "sslfactory=org.postgresql.ssl.NonValidatingFactory",
                "sslhostnameverifier=a.B",
                "sslpasswordcallback=a.B",
                "authenticationPluginClassName=a.B",
                "xmlFactoryFactory=a.B",
                "loggerFile=/etc/cron.d/x",
                "service=x",
                "socket%46actory=a.B",
            )
        ),
        ({"table": "lists; drop table users"}, "lower-case letters"),
        ({"table": "x" * 31}, "at most 30"),
        ({"password": {}}, "either `env` or `file`"),
        ({"password": {"env": "A", "file": "b"}}, "either `env` or `file`"),
        ({"password": "hidden-word"}, "valid dictionary"),
        ({"kind": "kafka"}, "kafka"),
        ({"port": 5432}, r"unknown key deliver\.sinks\.0\.jdbc\.port=5432"),
    ],
)
def test_a_sink_that_cannot_be_meant_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=message):
        read_settings(Deliver.model_validate({"sinks": [{**JDBC, **changed}]}), {})


@pytest.mark.parametrize(
    "url", ["jdbc:postgresql://db/app?password=hidden-word", "jdbc:postgresql://a:hidden-word@db/app"]
)
def test_a_password_in_a_url_is_not_repeated_by_the_error(tmp_path: Path, url: str) -> None:
    from conf.load import load_config

    (tmp_path / "c.yaml").write_text(
        f"extends: {Path('conf/datasets/generated.yaml').resolve()}\n"
        f"deliver: {json.dumps({'sinks': [{**JDBC, 'url': url}]})}\n"
    )
    with pytest.raises(
        ConfigError, match="deliver: the url of a sink must not contain a user or a password"
    ) as refused:
        load_config(str(tmp_path / "c.yaml"))
    assert "hidden-word" not in str(refused.value)


def test_sinks_have_names_of_their_own(runs: PublishedRuns) -> None:
    assert isinstance(runs.config_of(deliver={"sinks": [JDBC]}), Config)
    with pytest.raises(ValueError, match=r"several sinks have the same name: \['app'\]"):
        runs.config_of(deliver={"sinks": [JDBC, JDBC]})


@pytest.mark.parametrize(
    "path", ["s3a://bucket", "s3a://bucket/", "/", "..", "/srv/lists/..", "/srv/../lists", "."]
)
def test_a_path_without_a_folder_beside_it_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="must end with the name of a folder"):
        json_lines.Settings.model_validate({"kind": "json_lines", "name": "files", "path": path})


@pytest.mark.parametrize("path", ["lists", "./lists/", "file:///lists", "s3a://bucket/lists"])
def test_data_files_lie_beside_the_last_folder(path: str) -> None:
    sink = json_lines.Settings.model_validate({"kind": "json_lines", "name": "files", "path": path})
    partition = Partition(sink.name, RUN_DATE, f"{sink.path.rstrip('/')}/dt={RUN_DATE}")
    folder = path.rstrip("/").removesuffix("lists") or "./"
    assert partition.file(partition.data) == f"{folder}_data/lists/dt={RUN_DATE}"
