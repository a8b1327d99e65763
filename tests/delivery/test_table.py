"""The sink `table` with Delta tables in folders: rows, commits, erasure, killed and concurrent deliveries."""

from __future__ import annotations

import json
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.types import Deliver
from jobs.checks import check_sinks
from scoring.delivery import dated_tables
from scoring.delivery.published_lists import Delivered, EraseRequest, PublishedLists
from scoring.delivery.sinks import read_settings, table, works_in_process
from spark.profile import DEFAULT_PROFILE, find_profile
from spark.rows import frame_of
from tests.delivery.table_lists import (
    DAY,
    NEXT_DAY,
    deliver_and_die,
    expected,
    features_of,
    lists_of,
    rows_of,
    sink_to,
    version_of,
)
from tests.processes import fork_server
from tests.scoring.scoring_lake import make_config

ITEMS = {"u1": ["a", "b", "c"], "u'2": ["b", 'c"'], "ü3": ["ä☂"]}
OTHER = {"u1": ["c"], "u4": ["a", "b"]}


def request_for(*users: str) -> EraseRequest:
    return EraseRequest(frozenset(users), {}, lambda: pytest.fail("no Spark is needed"))


def test_a_day_is_replaced_by_one_commit_and_equal_lists_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lists"
    sink, first, other, next_day = sink_to(path), lists_of(ITEMS), lists_of(OTHER), lists_of(ITEMS, NEXT_DAY)
    assert table.deliver(sink, first) == Delivered(str(path), 6, 6, 0)
    assert (rows_of(path), version_of(path)) == (expected(first), 1)
    assert table.deliver(sink, next_day) == Delivered(str(path), 6, 6, 0)
    again = lists_of(ITEMS)  # with another digest
    assert table.deliver(sink, again) == Delivered(str(path), 6, 0, 0)
    assert version_of(path) == 2
    assert table.deliver(sink, other) == Delivered(str(path), 3, 3, 6)
    assert version_of(path) == 3
    assert rows_of(path, DAY) == expected(other)
    assert rows_of(path, NEXT_DAY) == expected(next_day)
    changed = replace(other, rows=other.rows.set_column(3, "score", pa.array([0.5] * 3, pa.float32())))
    assert table.deliver(sink, changed).written == 3
    assert rows_of(path, DAY) == expected(changed)


def test_erased_users_have_no_rows_and_the_next_delivery_changes_nothing(tmp_path: Path) -> None:
    path, features = tmp_path / "lists", tmp_path / "lists_users"
    users = pa.table({"user_key": ["u1", "u'2"], "age": pa.array([1, 2], pa.int32())})
    sink = sink_to(path, features=["users"])
    for dt in (DAY, NEXT_DAY):
        lists = lists_of(ITEMS, dt)
        table.deliver(sink, replace(lists, open_features={"users": lambda: features_of("user_key", users)}))
    erased = table.erase(sink, request_for("u'2", "stranger"))
    assert (erased.target, erased.rows) == (str(path), 2 * 2 + 2)
    assert "until a VACUUM" in erased.remark
    without = {user: items for user, items in ITEMS.items() if user != "u'2"}
    assert rows_of(path) == [*expected(lists_of(without)), *expected(lists_of(without, NEXT_DAY))]
    assert [row[1:] for row in rows_of(features)] == [("u1", 1), ("u1", 1)]
    version = version_of(path)
    assert table.erase(sink, request_for("u'2", "stranger")).rows == 0
    assert table.deliver(sink_to(path), lists_of(without)).written == 0
    assert version_of(path) == version


@pytest.mark.parametrize("of_others", [False, True])
def test_the_log_of_a_table_has_no_id_of_an_erased_user(tmp_path: Path, of_others: bool) -> None:
    """u1 is the first user of each file, and u'2 is in the middle. Other programs may write bounds to their table."""
    path, lists = tmp_path / "lists", lists_of(ITEMS)
    if of_others:
        rows = lists.rows.append_column("variant", pa.nulls(6, pa.string()))
        rows = rows.append_column("dt", pa.array([None] * 6, pa.date32())).slice(0, 0)
        write_deltalake(str(path), rows, partition_by=["dt"])
    table.deliver(sink_to(path), lists)
    table.deliver(sink_to(path), lists_of(ITEMS, NEXT_DAY))

    def logged() -> str:
        return "".join(entry.read_text() for entry in sorted((path / "_delta_log").glob("*.json")))

    assert "u1" not in logged()
    erased = table.erase(sink_to(path), request_for("u'2"))
    assert erased.rows == 2 * 2
    assert not re.search("u'+2", logged())
    assert ("u1" in logged()) == of_others == ("dataSkippingNumIndexedCols" in erased.remark)
    table.erase(sink_to(path), request_for("u1"))
    assert {row[1] for row in rows_of(path)} == {"ü3"}
    assert ("u1" in logged()) == of_others


def test_without_tables_there_is_nothing_to_erase(tmp_path: Path) -> None:
    erased = table.erase(sink_to(tmp_path / "lists"), request_for("u1"))
    assert (erased.rows, erased.remark) == (0, "")


def test_only_the_newest_dates_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "lists"
    for dt in ("2026-01-07", DAY, NEXT_DAY):
        done = table.deliver(sink_to(path, keep_dates=2), lists_of(ITEMS, dt))
    assert done == Delivered(str(path), 6, 6, 6)
    assert {row[0] for row in rows_of(path)} == {DAY, NEXT_DAY}
    version = version_of(path)
    assert table.deliver(sink_to(path, keep_dates=2), lists_of(ITEMS, "2026-01-01")).rows == 0
    assert "keeps only the newest dates" in caplog.text
    assert version_of(path) == version


def test_features_and_variants_are_columns(tmp_path: Path) -> None:
    users = pa.table(
        {
            "age": pa.array([1, 2], pa.int32()),
            "user_key": ["u2", "u1"],
            "tags": pa.array([[1], []], pa.list_(pa.field("element", pa.int32()))),
            "weight": pa.array([0.5, float("nan")], pa.float32()),
        }
    )
    lists = lists_of({"u1": ["a"]}, variant=pa.array(["control"], pa.string()))
    lists = replace(lists, open_features={"users": lambda: features_of("user_key", users)})
    sink = sink_to(tmp_path / "lists", features=["users"])
    table.deliver(sink, lists)
    assert rows_of(tmp_path / "lists") == expected(lists)
    [first, second] = rows_of(tmp_path / "lists_users")
    assert (first[:4], str(first[4])) == ((DAY, "u1", 2, []), "nan")
    assert second == (DAY, "u2", 1, [1], 0.5)
    table.deliver(sink, lists)  # NaN equals NaN
    assert version_of(tmp_path / "lists_users") == 1


def test_other_columns_are_refused_with_their_names_and_types(tmp_path: Path) -> None:
    path, lists = tmp_path / "lists", lists_of(ITEMS)
    double = lists.rows.set_column(3, "score", lists.rows["score"].cast(pa.float64()))
    write_deltalake(
        str(path),
        double.drop_columns(["reason"]).append_column("dt", pa.array(["x"] * 6)),
        partition_by=["dt"],
    )
    with pytest.raises(DataError) as refused:
        table.deliver(sink_to(path), lists)
    assert "score has the type double in the table, but float in the rows" in str(refused.value)
    assert "reason (string) is missing in the table" in str(refused.value)
    assert "dt has the type string in the table, but date in the rows" in str(refused.value)
    assert version_of(path) == 0
    users = pa.table({"user_key": ["u1"], "a b": [1]})
    wrong = replace(lists, open_features={"users": lambda: features_of("user_key", users)})
    with pytest.raises(DataError, match=r"cannot have columns of the names \['a b'\]"):
        table.deliver(sink_to(tmp_path / "new", features=["users"]), wrong)
    assert not (tmp_path / "new").exists()


def test_other_tables_are_refused(tmp_path: Path) -> None:
    lists = lists_of(ITEMS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/other.csv").write_text("a")
    with pytest.raises(ConfigError, match="is not a Delta table"):
        table.deliver(sink_to(tmp_path / "folder"), lists)
    dated = pa.array([None] * 6, pa.date32())
    rows = lists.rows.append_column("variant", pa.nulls(6, pa.string())).append_column("dt", dated)
    write_deltalake(str(tmp_path / "plain"), rows)
    with pytest.raises(ConfigError, match=r"is partitioned by \[\], but a delivery replaces partitions"):
        table.deliver(sink_to(tmp_path / "plain"), lists)
    write_deltalake(str(tmp_path / "ruled"), rows, partition_by=["dt"])
    DeltaTable(str(tmp_path / "ruled")).alter.add_constraint({"short": "position < 100"})
    with pytest.raises(ConfigError, match=r"has rules .*delta\.constraints\.short"):
        table.deliver(sink_to(tmp_path / "ruled"), lists)
    write_deltalake(
        str(tmp_path / "grows"), rows, partition_by=["dt"], configuration={"delta.appendOnly": "true"}
    )
    with pytest.raises(ConfigError, match=r"has rules .*delta\.appendOnly"):
        table.deliver(sink_to(tmp_path / "grows"), lists)


def test_rows_that_others_have_deleted_are_delivered_again(tmp_path: Path) -> None:
    path, lists = tmp_path / "lists", lists_of(ITEMS)
    table.deliver(sink_to(path), lists)
    DeltaTable(str(path)).delete("position = 1")
    assert table.deliver(sink_to(path), lists) == Delivered(str(path), 6, 6, 3)
    assert rows_of(path) == expected(lists)
    DeltaTable(str(path)).optimize.compact()
    assert table.deliver(sink_to(path), lists).written == 0


def test_lost_rows_are_noticed_before_the_commit(tmp_path: Path) -> None:
    path, lists = tmp_path / "lists", lists_of(ITEMS)
    with pytest.raises(InfrastructureError, match="has 5 rows of dt=2026-01-08, but the lake has 6"):
        table.deliver(sink_to(path), replace(lists, rows=lists.rows.slice(1)))
    assert rows_of(path) == []


@pytest.mark.parametrize("earlier", [True, False])
def test_deliveries_at_the_same_time_leave_the_lists_of_one(tmp_path: Path, earlier: bool) -> None:
    path, number = tmp_path / "lists", 4
    if earlier:
        table.deliver(sink_to(path), lists_of(OTHER))
    all_lists = [lists_of({f"u{index}": ["a"] * (index + 1)}) for index in range(number)]
    barrier = threading.Barrier(number)

    def deliver(lists: PublishedLists) -> Delivered:
        barrier.wait()
        return table.deliver(sink_to(path), lists)

    with ThreadPoolExecutor(number) as pool:
        done = list(pool.map(deliver, all_lists))
    assert [one.written for one in done] == [len(lists.rows) for lists in all_lists]
    assert rows_of(path) in [expected(lists) for lists in all_lists]


def test_a_conflict_that_never_ends_is_worth_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dated_tables, "_TRIES", 2)
    monkeypatch.setattr(dated_tables, "_WAIT_S", 0)
    path, real = tmp_path / "lists", dated_tables.DeltaFolder._commit

    def commit_after_another(self: Any, version: Any, dt: str, files: Any) -> None:
        real(self, self_version(self), dt, [])
        real(self, version, dt, files)

    def self_version(folder: Any) -> Any:
        return dated_tables.current_version(folder.root)

    monkeypatch.setattr(dated_tables.DeltaFolder, "_commit", commit_after_another)
    with pytest.raises(InfrastructureError, match="other programs replaced dt=2026-01-08 during each of 2"):
        table.deliver(sink_to(path), lists_of(ITEMS))


@pytest.mark.processes
def test_a_killed_delivery_leaves_the_old_day(tmp_path: Path) -> None:
    path, first, other = tmp_path / "lists", lists_of(ITEMS), lists_of(OTHER)
    table.deliver(sink_to(path), first)
    steps = [("_open_or_create", "before"), ("_write", "before"), ("_write", "after"), ("_commit", "before")]
    with fork_server("tests.delivery.table_lists") as context:
        for death in steps:
            process = context.Process(target=deliver_and_die, args=(sink_to(path), other, *death))
            process.start()
            process.join(60)
            assert process.exitcode == -signal.SIGKILL
            assert rows_of(path) == expected(first), death
            assert table.deliver(sink_to(path), first).written == 0
        process = context.Process(target=deliver_and_die, args=(sink_to(path), other, "_commit", "after"))
        process.start()
        process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert rows_of(path) == expected(other)
    assert table.deliver(sink_to(path), other).written == 0


def test_frames_of_spark_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "lists"
    for items, version in ((ITEMS, 1), (ITEMS, 1), (OTHER, 2)):
        lists = lists_of(items)
        frame = frame_of(spark, lists.rows).repartition(3)
        table.deliver(sink_to(path), replace(lists, rows=frame))
        assert (rows_of(path), version_of(path)) == (expected(lists), version)
        assert table.deliver(sink_to(path), lists).written == 0


SINK = {"kind": "table", "name": "warehouse"}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({}, "set either `path`, the folder of a Delta table, or `table`"),
        ({"path": "/srv/lists", "table": "shop.lists"}, "set either `path`"),
        ({"path": "/srv/lists", "format": "iceberg"}, "a folder cannot be an Iceberg table"),
        ({"path": "s3a://bucket"}, "must end with the name of a folder"),
        ({"path": "/srv/.."}, "must end with the name of a folder"),
        ({"path": "hdfs://name/lists"}, "hdfs"),
        ({"table": "lists"}, r"must be schema\.table or catalogue\.schema\.table"),
        ({"table": "shop.lists/dt={date}"}, r"must be schema\.table"),
        ({"table": "/srv/lists"}, "is not a table of Spark's catalogue"),
        ({"table": "shop.lists", "format": "hudi"}, "'delta' or 'iceberg'"),
        ({"path": "/srv/lists", "features": ["titles"]}, "'users' or 'items'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(Deliver.model_validate({"sinks": [{**SINK, **settings}]}), {})


@pytest.mark.parametrize(
    "name, setting",
    [("shop.lists", "spark.sql.catalog.spark_catalog"), ("ice.shop.lists", "spark.sql.catalog.ice")],
)
def test_check_names_the_missing_settings_of_a_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, setting: str
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    sink = {**SINK, "table": name, "format": "iceberg"}
    config = make_config(tmp_path, deliver={"sinks": [sink]})
    with pytest.raises(ConfigError, match=f"the Spark profile lacks {setting}"):
        check_sinks(config, find_profile(DEFAULT_PROFILE))
    profile = tmp_path / "ice.conf"
    profile.write_text(f"{setting} some.Class\n")
    check_sinks(config, str(profile))
    check_sinks(
        make_config(tmp_path, deliver={"sinks": [{**SINK, "path": "x"}]}), find_profile(DEFAULT_PROFILE)
    )


def test_only_folders_need_no_spark() -> None:
    sinks = [{**SINK, "path": "x"}, {**SINK, "name": "ice", "table": "ice.shop.lists", "format": "iceberg"}]
    read = read_settings(Deliver.model_validate({"sinks": sinks}), {})
    assert [works_in_process(module, settings) for module, settings in read] == [True, False]
    assert json.dumps([settings.path for _, settings in read]) == '["x", null]'
