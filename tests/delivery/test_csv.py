"""The CSV sink: places and users, quoting, files of both roads, erasure, reruns and writes that were killed."""

from __future__ import annotations

import csv
import gzip
import io
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError, InfrastructureError
from etl.raw.erased_users import add_erased, list_or_new
from jobs.checks import check_sinks
from jobs.deliver_recommendations import _raw_users
from jobs.deliver_recommendations import run as deliver_recommendations
from scoring.delivery.published_lists import (
    Erased,
    EraseRequest,
    LakeTable,
    PublishedLists,
    RawUsers,
)
from scoring.delivery.sinks import csv as sink_csv
from spark.profile import DEFAULT_PROFILE, find_profile
from spark.rows import records
from storage import file_io
from storage.manifest import FileEntry, Manifest, read_manifest
from storage.paths import Partition
from storage.publish import publish_rows
from storage.run_context import RunContext
from tests.delivery.conftest import PublishedRuns
from tests.delivery.test_json_lines import published, published_table
from tests.etl.cases import LOG, write_config
from tests.scoring.scoring_lake import RUN_DATE

# Ids that need quotes, or that look like several fields or lines.
HARD = ["plain", 'a, "b"', "two\nlines", "\r", "Größe ☂", " space ", "=1+1", "'", '"', ";", "\u2028"]


def sink_to(folder: Path, **settings: Any) -> sink_csv.Settings:
    """A sink below a folder."""
    return sink_csv.Settings.model_validate({"kind": "csv", "name": "files", "path": str(folder), **settings})


def partition_of(sink: sink_csv.Settings) -> Partition:
    return Partition(sink.name, RUN_DATE, f"{sink.path}/dt={RUN_DATE}")


def texts_of(sink: sink_csv.Settings) -> list[str]:
    """The texts of the files that the manifest names, in its order."""
    partition = partition_of(sink)
    contents = [
        (entry, Path(partition.file(entry.path)).read_bytes()) for entry in read_manifest(partition).files
    ]
    return [
        (gzip.decompress(data) if entry.path.endswith(".gz") else data).decode() for entry, data in contents
    ]


def rows_of(sink: sink_csv.Settings) -> list[list[str]]:
    """The header of the first file, and then the other lines of all files. All files have the same header."""
    rows: list[list[str]] = []
    for text, entry in zip(texts_of(sink), read_manifest(partition_of(sink)).files, strict=True):
        header, *lines = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
        assert len(lines) == entry.rows
        assert rows[:1] in ([], [header])
        rows += lines if rows else [header, *lines]
    return rows


def lists_of(lists: dict[str, list[str]], k: int, **more: pa.Array) -> PublishedLists:
    """Published lists with these items, as a table in another order."""
    entries = [(user, place, item) for user, items in lists.items() for place, item in enumerate(items, 1)][
        ::-1
    ]
    rows = pa.table(
        {
            "user_id": pa.array([user for user, _, _ in entries], pa.string()),
            "position": pa.array([place for _, place, _ in entries], pa.int32()),
            "item_id": pa.array([item for _, _, item in entries], pa.string()),
            "score": pa.array([0.1] * len(entries), pa.float32()),
            "reason": pa.array(["ranked"] * len(entries), pa.string()),
            **more,
        }
    )
    entry = FileEntry("a", len(rows), 1, (len(rows),))
    facts = {"users": len(lists) + 2, "users_without": 2, "k": k}
    schema = tuple((field.name, str(field.type)) for field in rows.schema)
    return PublishedLists(
        rows, Manifest("recommendations", RUN_DATE, (entry,), schema, {"m": "1"}, facts=facts)
    )


def in_spark(spark: SparkSession, lists: PublishedLists) -> PublishedLists:
    schema = "user_id string, position int, item_id string, score float, reason string"
    assert isinstance(lists.rows, pa.Table)
    rows = [tuple(row.values()) for row in lists.rows.to_pylist()]
    return replace(lists, rows=spark.createDataFrame(rows, schema))


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
    done = sink_csv.deliver(sink, form(runs))
    header, *lines = rows_of(sink)
    assert header == ["user_id", "position", "item_id", "score", "reason"]
    expected = runs.lists.sort_values(["user_id", "position"])[header]
    assert lines == [
        [user, str(place), item, str(np.float32(score)), reason]
        for user, place, item, score, reason in expected.itertuples(index=False)
    ]
    manifest = read_manifest(partition_of(sink))
    assert 1 <= len(manifest.files) <= files
    assert done.rows == manifest.rows == manifest.rows_in == len(runs.lists)


@pytest.mark.parametrize("form", [published, published_table])
def test_a_line_of_a_user_has_all_items_and_empty_fields_behind_them(
    runs: PublishedRuns, tmp_path: Path, form: Callable[[PublishedRuns], PublishedLists]
) -> None:
    sink = sink_to(tmp_path, layout="users")
    sink_csv.deliver(sink, form(runs))
    header, *lines = rows_of(sink)
    assert header == ["user_id", *(f"item_{position}" for position in range(1, 6))]
    wide = runs.lists.pivot(index="user_id", columns="position", values="item_id").fillna("")
    assert lines == [[user, *items] for user, items in zip(wide.index, wide.to_numpy().tolist(), strict=True)]
    assert read_manifest(partition_of(sink)).rows == 37


@pytest.mark.parametrize("layout", ["places", "users"])
@pytest.mark.parametrize("mark", [False, True])
def test_both_roads_write_the_same_bytes(
    spark: SparkSession, tmp_path: Path, layout: str, mark: bool
) -> None:
    lists = lists_of({user: HARD[: 1 + number] for number, user in enumerate(HARD)}, k=12)
    sinks = [sink_to(tmp_path / name, layout=layout, byte_order_mark=mark) for name in ("table", "frame")]
    for sink, form in zip(sinks, [lists, in_spark(spark, lists)], strict=True):
        sink_csv.deliver(sink, form)
    assert texts_of(sinks[0]) == texts_of(sinks[1])
    assert texts_of(sinks[0])[0].startswith("\ufeff") is mark
    read = pd.read_csv(
        partition_of(sinks[0]).file(read_manifest(partition_of(sinks[0])).files[0].path),
        keep_default_na=False,
        encoding="utf-8-sig",
    )
    assert set(read.user_id) == set(HARD)
    items = read.item_id if layout == "places" else read.filter(like="item_").to_numpy().ravel()
    assert set(items) - {""} == set(HARD)
    assert len(read) == (sum(range(1, len(HARD) + 1)) if layout == "places" else len(HARD))


TITLES = {"plain": 'Red, "big" shoe\n☂', "two\nlines": None}


def with_titles(
    lists: PublishedLists, spark: SparkSession | None, **columns: dict[str, Any]
) -> PublishedLists:
    """The lists with a table of titles, which has other items too, and not all items of the lists."""
    keys = ["other", *TITLES]
    table = pa.table(
        {
            "item_key": keys,
            **{name: pa.array([of.get(key) for key in keys], pa.string()) for name, of in columns.items()},
        }
    )
    schema = tuple((field.name, str(field.type)) for field in table.schema)
    manifest = Manifest("item_titles", RUN_DATE, (), schema, {"titles": str(columns)})
    rows = spark.createDataFrame(table.to_pandas()) if spark else table
    return replace(lists, open_titles=lambda: LakeTable("item_key", manifest, lambda: rows))


@pytest.mark.parametrize("layout", ["places", "users"])
def test_titles_and_pictures_follow_the_items_on_both_roads(
    spark: SparkSession, tmp_path: Path, layout: str
) -> None:
    lists = lists_of({"a": ["plain", "two\nlines", "unknown"], "b": ["unknown"]}, k=3)
    images = {"plain": "https://a.example/1.jpg"}
    sinks = [sink_to(tmp_path / name, layout=layout) for name in ("table", "frame")]
    sink_csv.deliver(sinks[0], with_titles(lists, None, title=TITLES, image=images))
    sink_csv.deliver(sinks[1], with_titles(in_spark(spark, lists), spark, title=TITLES, image=images))
    assert texts_of(sinks[0]) == texts_of(sinks[1])
    header, *rows = rows_of(sinks[0])
    first = ["plain", 'Red, "big" shoe\n☂', "https://a.example/1.jpg"]
    if layout == "places":
        assert header == ["user_id", "position", "item_id", "title", "image", "score", "reason"]
        assert [row[2:5] for row in rows[:3]] == [first, ["two\nlines"] * 2 + [""], ["unknown"] * 2 + [""]]
        return
    assert header == [
        "user_id",
        *(f"{name}_{place}" for place in (1, 2, 3) for name in ("item", "title", "image")),
    ]
    assert rows[0] == ["a", *first, "two\nlines", "two\nlines", "", "unknown", "unknown", ""]
    assert rows[1] == ["b", "unknown", "unknown", "", *[""] * 6]


def test_other_titles_replace_the_files(tmp_path: Path) -> None:
    sink, lists = sink_to(tmp_path), lists_of({"a": ["plain"]}, k=1)
    for title in ("one", "two", "two"):
        sink_csv.deliver(sink, with_titles(lists, None, title={"plain": title}))
        assert rows_of(sink)[1][3] == title


def test_a_run_without_the_configured_titles_is_an_error(runs: PublishedRuns, tmp_path: Path) -> None:
    config = runs.config_of()
    columns = [{"name": "item", "type": "string"}, {"name": "name", "type": "string"}]
    items = {"path": "{data}/items.csv", "format": "csv", "columns": columns, "title": "name"}
    sink = {"kind": "csv", "name": "mail", "path": str(tmp_path / "out")}
    assert config.keys is not None
    job = runs.job(RUN_DATE, deliver={"sinks": [sink]}, items=items)
    with pytest.raises(DataError, match="item_titles has no published partition"):
        deliver_recommendations(job)


MAILS = {"a": "a@shop.example", "b": 'b, "c"@x', "z": "z@shop.example"}


@pytest.mark.parametrize("road", ["table", "frame"])
@pytest.mark.parametrize("layout", ["places", "users"])
def test_columns_of_users_follow_the_id_and_are_erased_with_the_line(
    spark: SparkSession, tmp_path: Path, layout: str, road: str
) -> None:
    sink = sink_to(tmp_path, layout=layout, user_columns=["e mail"])
    users = pa.table({"user_key": [*MAILS], "e mail": [*MAILS.values()]})

    def read(names: Sequence[str]) -> pa.Table | DataFrame:
        assert names == ["e mail"]
        return users if road == "table" else spark.createDataFrame(users.to_pandas())

    lists = lists_of({"a": ["x", "y"], "b": ["y"], "c": ["x"]}, k=2)
    lists = replace(
        lists if road == "table" else in_spark(spark, lists), open_users=lambda: RawUsers("d", read)
    )
    sink_csv.deliver(sink, lists)
    header, *lines = rows_of(sink)
    assert header[:2] == ["user_id", "e mail"]
    assert {row[0]: row[1] for row in lines} == {"a": MAILS["a"], "b": MAILS["b"], "c": ""}
    assert len(lines) == (4 if layout == "places" else 3)
    request = EraseRequest(frozenset({"a"}), {}, lambda: spark)
    sink_csv.erase(sink, request)
    assert not any(b"a@shop" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert read_manifest(partition_of(sink)).facts["entries"] == 2


def test_the_job_reads_the_texts_of_users_when_it_delivers(runs: PublishedRuns, tmp_path: Path) -> None:
    names = sorted(runs.lists.user_id.unique())
    mails = tmp_path / "users.csv"
    columns = [{"name": "user", "type": "string"}, {"name": "email", "type": "string"}]
    users = {"path": str(mails), "format": "csv", "columns": columns}
    sink = sink_to(tmp_path / "out", layout="users", user_columns=["email"])
    settings = sink.model_dump()
    for domain in ("one.example", "two.example"):
        mails.write_text("user,email\n" + "".join(f"{name},{name}@{domain}\n" for name in names[1:]))
        deliver_recommendations(runs.job(RUN_DATE, deliver={"sinks": [settings]}, users=users))
        mail_of = {row[0]: row[1] for row in rows_of(sink)[1:]}
        assert mail_of == {name: f"{name}@{domain}" if name != names[0] else "" for name in names}
    without = runs.job(RUN_DATE, deliver={"sinks": [settings]})
    with pytest.raises(ConfigError, match="but the configuration has no table of users"):
        deliver_recommendations(without)
    with pytest.raises(ConfigError, match=r"user_columns=\['email'\], which the section `users` does not"):
        check_sinks(without.config, find_profile(DEFAULT_PROFILE))


@pytest.mark.parametrize("road", ["table", "frame"])
@pytest.mark.parametrize("of_log, of_table", [("int", "string"), ("string", "int")])
def test_columns_of_users_are_found_by_ids_of_another_type(
    spark: SparkSession, tmp_path: Path, road: str, of_log: str, of_table: str
) -> None:
    """If the log has integers, its users are 7 and 8; if it has texts, they are 007 and 8."""
    columns = [{**one, "type": of_log} if one["name"] == "user" else one for one in LOG["log"]["columns"]]
    mails = tmp_path / "users.csv"
    mails.write_text(f"user,email\n{'007' if of_table == 'string' else '7'},seven\n8,eight\n")
    of_users = [{"name": "user", "type": of_table}, {"name": "email", "type": "string"}]
    changes = {"log": {**LOG["log"], "columns": columns}, "scopes": {}}
    users = {"path": str(mails), "format": "csv", "columns": of_users}
    config = write_config(tmp_path, changes, {"users": users})
    context = RunContext("test", config, RUN_DATE, open_session=lambda _: spark, in_process=road == "table")
    wanted = "7" if of_log == "int" else "007"
    of_lists = pa.table({"user_key": [wanted, "8"]})
    partition = context.lake.users("v").partition(RUN_DATE)
    lists = publish_rows(of_lists, partition, inputs={}, row_group_rows=9, facts={"workflow_version": "v"})
    read = records(_raw_users(context, lists).read(["email"]))
    assert {row["user_key"]: row["email"] for row in read} == {wanted: "seven", "8": "eight"}
    # If 7 was erased and has lists again, the row of the table may still be that of the erased user.
    add_erased(context.lake, list_or_new(context.lake), [wanted], "2026-01-01")
    assert [row["email"] for row in records(_raw_users(context, lists).read(["email"]))] == ["eight"]


def test_columns_of_users_have_names_of_their_own(tmp_path: Path) -> None:
    for names in (["item_1"], ["score"], ["a", "a"]):
        with pytest.raises(ValidationError, match="the columns of a line must have different names"):
            sink_to(tmp_path, user_columns=names)


@pytest.mark.parametrize("road", ["table", "frame"])
def test_without_lists_there_is_a_file_with_the_names_of_columns(
    spark: SparkSession, tmp_path: Path, road: str
) -> None:
    lists = lists_of({}, k=3)
    sink = sink_to(tmp_path, layout="users")
    sink_csv.deliver(sink, lists if road == "table" else in_spark(spark, lists))
    assert texts_of(sink) == ["user_id,item_1,item_2,item_3\r\n"]


def test_the_variant_of_an_experiment_is_a_column(tmp_path: Path) -> None:
    variants = pa.array(["treatment", "control", "control"])
    lists = lists_of({"a": ["x", "y"], "b": ["z"]}, k=2, variant=variants)
    for layout, header, first in (
        (
            "places",
            ["user_id", "variant", "position", "item_id", "score", "reason"],
            ["a", "control", "1", "x"],
        ),
        ("users", ["user_id", "variant", "item_1", "item_2"], ["a", "control", "x", "y"]),
    ):
        sink = sink_to(tmp_path / layout, layout=layout)
        sink_csv.deliver(sink, lists)
        assert rows_of(sink)[0] == header
        assert rows_of(sink)[1][:4] == first


def test_a_rerun_changes_nothing_and_another_layout_replaces_the_files(
    runs: PublishedRuns, tmp_path: Path
) -> None:
    sink = sink_to(tmp_path)
    sink_csv.deliver(sink, published_table(runs))
    first = read_manifest(partition_of(sink))
    sink_csv.deliver(sink, published(runs))
    assert read_manifest(partition_of(sink)) == first
    sink_csv.deliver(sink_to(tmp_path, byte_order_mark=True), published_table(runs))
    assert read_manifest(partition_of(sink)).digest != first.digest


@pytest.mark.parametrize(
    "layout, message", [("places", "180 records.* have 185"), ("users", "36 records.* have 37")]
)
def test_lost_users_are_noticed_before_the_manifest_is_replaced(
    runs: PublishedRuns, tmp_path: Path, layout: str, message: str
) -> None:
    sink, lists = sink_to(tmp_path, layout=layout), published(runs)
    fewer = replace(lists, rows=lists.frame.where(F.col("user_id") != "u001"))
    with pytest.raises(InfrastructureError, match=message):
        sink_csv.deliver(sink, fewer)
    assert not file_io.exists(f"{partition_of(sink).path}/_MANIFEST.json")


@pytest.mark.processes
def test_a_killed_write_leaves_the_old_files(tmp_path: Path) -> None:
    sink, old, new = sink_to(tmp_path), lists_of({"a": ["x"]}, k=1), lists_of({"a": ["y"], "b": ["z"]}, k=1)
    new = replace(new, manifest=replace(new.manifest, inputs={"m": "2"}))
    sink_csv.deliver(sink, old)
    first = read_manifest(partition_of(sink))
    for death in ("write", "make_durable"):
        process = multiprocessing.get_context("fork").Process(target=_die, args=(death, sink, new))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert read_manifest(partition_of(sink)) == first
        assert rows_of(sink)[1:] == [["a", "1", "x", "0.1", "ranked"]]
    sink_csv.deliver(sink, replace(new, grace_hours=0))
    assert [row[2] for row in rows_of(sink)[1:]] == ["y", "z"]


def _die(where: str, sink: sink_csv.Settings, lists: PublishedLists) -> None:
    """Delivers, and ends with SIGKILL in the middle of the file or before the manifest is replaced."""

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "write":
        sink_csv.CsvWriter.lines = die  # type: ignore[method-assign,assignment]
    else:
        file_io.make_durable = die  # type: ignore[assignment]
    sink_csv.deliver(sink, lists)


@pytest.mark.parametrize("compression", ["gzip", "none"])
@pytest.mark.parametrize("layout", ["places", "users"])
def test_erased_users_leave_no_line_and_the_next_delivery_changes_nothing(
    runs: PublishedRuns, tmp_path: Path, layout: str, compression: str
) -> None:
    sink = sink_to(tmp_path, layout=layout, compression=compression, byte_order_mark=True)
    lists = published_table(runs)
    sink_csv.deliver(sink, lists)
    before, old = rows_of(sink), lists.manifest.digest
    request = EraseRequest(frozenset({"u007", "stranger"}), {old: "new digest"}, lambda: runs.spark)
    lost = [row for row in before if row[0] == "u007"]
    assert lost
    assert sink_csv.erase(sink, request) == Erased(sink.path, len(lost))
    assert rows_of(sink) == [row for row in before if row[0] != "u007"]
    assert all(text.startswith("\ufeff") for text in texts_of(sink))
    manifest = read_manifest(partition_of(sink))
    entries = len(runs.lists[runs.lists.user_id != "u007"])
    assert manifest.inputs["recommendations"] == "new digest"
    assert (manifest.facts["users"], manifest.facts["entries"], manifest.rows_in) == (36, entries, entries)
    contents = [path.read_bytes() for path in tmp_path.rglob("*.csv*")]
    assert contents
    assert not any(
        b"u007" in (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data) for data in contents
    )
    assert sink_csv.erase(sink, request) == Erased(sink.path, 0)
    assert read_manifest(partition_of(sink)) == manifest


def test_erasing_keeps_the_bytes_of_other_lines() -> None:
    rows = [["user_id", "item_1", "item_2"], *([user, item, ""] for user in HARD for item in HARD)]
    content = sink_csv._text(rows).encode()
    head, lines = sink_csv.parse_csv(content)
    assert head + b"".join(line.content for line in lines) == content
    assert [(line.user, line.entries) for line in lines] == [(row[0], 1) for row in rows[1:]]


def test_the_job_delivers_to_the_sink(runs: PublishedRuns, tmp_path: Path) -> None:
    sink = {"kind": "csv", "name": "mail", "path": str(tmp_path / "out"), "layout": "users"}
    result = deliver_recommendations(runs.job(RUN_DATE, deliver={"sinks": [sink]}))
    assert result.rows_out == len(runs.lists)
    assert len(rows_of(sink_csv.Settings.model_validate(sink))) == 38
