"""Lists and features in a real Valkey: what readers see before, during and after deliveries, also killed ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.types import Deliver, Secret
from jobs.deliver_recommendations import run as deliver_recommendations
from nightrank.online import OnlineReader, open_online
from scoring.delivery import online_store
from scoring.delivery.online_format import MARKER, bucket_of
from scoring.delivery.published_lists import EraseRequest, LakeTable, PublishedLists
from scoring.delivery.sinks import read_settings, redis
from storage.manifest import FileEntry, Manifest, read_manifest
from storage.publish import read_published
from storage.read_parquet import read_table
from tests.conftest import ROOT
from tests.delivery.conftest import PublishedRuns
from tests.delivery.valkey import PASSWORD, Server, valkey
from tests.etl.lakes import servers
from tests.scoring.scoring_lake import RUN_DATE


@pytest.fixture(scope="module", name="valkey")
def valkey_server() -> Iterator[Server]:
    """A server for all tests of this file; each test has a prefix of its own."""
    try:
        with valkey() as server:
            yield server
    except servers.Unavailable as error:
        servers.missing(str(error))


@pytest.fixture
def sink(request: pytest.FixtureRequest, valkey: Server, monkeypatch: pytest.MonkeyPatch) -> redis.Settings:
    """A sink with a prefix of its own."""
    monkeypatch.setenv("LISTS_PASSWORD", PASSWORD)
    return redis.Settings(
        kind="redis",
        name="app",
        url=valkey.url,
        password=Secret(env="LISTS_PASSWORD"),
        prefix=f"t{abs(hash(request.node.name)) % 10**9}",
        ttl_hours=1,
        connections=2,
    )


@pytest.fixture
def reader(sink: redis.Settings) -> Iterator[OnlineReader]:
    """What a program sees."""
    with open_online(sink.url, prefix=sink.prefix, password=PASSWORD) as opened:
        yield opened


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several buckets and pipelines, although there are only 37 users."""
    monkeypatch.setattr("scoring.delivery.online_format.KEYS_PER_BUCKET", 5)
    monkeypatch.setattr(online_store, "_PIPELINE_CHARACTERS", 700)
    monkeypatch.setattr(online_store, "_NAMES_PER_PIPELINE", 3)


def published(runs: PublishedRuns, users: int | None = None, dt: str = RUN_DATE) -> PublishedLists:
    """The published lists as an Arrow table; those of some users if wanted."""
    partition = runs.lake.recommendations.partition(RUN_DATE)
    manifest = read_manifest(partition)
    rows = read_table(partition, manifest)
    if users is not None:
        rows = rows.filter(pc.less_equal(rows["user_id"], f"u{users:03}"))
    facts = {**manifest.facts, "users": len(set(rows["user_id"].to_pylist())), "users_without": 0}
    entry = replace(manifest.files[0], rows=len(rows))
    return PublishedLists(rows, replace(manifest, partition=dt, facts=facts, files=(entry,)))


def lists_in(reader: OnlineReader, users: list[str]) -> pd.DataFrame:
    return reader.recommendations(users).to_pandas()


def expected(lists: PublishedLists) -> pd.DataFrame:
    """Ordered as a look-up of sorted users orders them."""
    rows: pd.DataFrame = lists.rows.to_pandas()
    return rows.sort_values(["user_id", "position"], ignore_index=True)


def users_of(lists: PublishedLists) -> list[str]:
    return sorted(set(lists.rows["user_id"].to_pylist()))


def times_to_live(valkey: Server, sink: redis.Settings) -> dict[str, int]:
    """Seconds that each key remains; -1 for ever."""
    with valkey.client() as client:
        return {key.decode(): client.ttl(key) for key in client.scan_iter(f"{sink.prefix}:*", count=1000)}


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("by_spark", [False, True])
def test_a_look_up_equals_the_table_of_the_lake(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader, valkey: Server, by_spark: bool
) -> None:
    lists = published(runs)
    partition = runs.lake.recommendations.partition(RUN_DATE)
    delivered = replace(lists, rows=read_published(runs.spark, partition)) if by_spark else lists
    done = redis.deliver(sink, delivered)
    assert (done.rows, done.written) == (len(runs.lists), len(runs.lists))
    pd.testing.assert_frame_equal(lists_in(reader, users_of(lists)), expected(lists), check_exact=True)
    assert set(lists_in(reader, ["u007", "nobody", "u003"])["user_id"]) == {"u007", "u003"}
    assert len(lists_in(reader, ["nobody"])) == 0
    current = reader.current()
    assert (current.date, current.tables["lists"].keys, current.tables["lists"].buckets) == (RUN_DATE, 37, 8)
    assert set(times_to_live(valkey, sink).values()) == {-1}
    assert PASSWORD not in repr(done)


def test_another_language_reads_a_list_by_the_documented_format(
    runs: PublishedRuns, sink: redis.Settings, valkey: Server
) -> None:
    """The pointer, the bucket by CRC-32, and a short value; without our classes."""
    import zlib

    redis.deliver(sink, published(runs))
    with valkey.client() as client:
        pointer = json.loads(client.get(f"{sink.prefix}:current"))
        table = pointer["tables"]["lists"]
        bucket = zlib.crc32(b"u007") % table["buckets"]
        value = client.hget(f"{sink.prefix}:lists:{table['attempt']}:{bucket}", "u007")
    entries = json.loads(value)
    wanted = runs.lists[runs.lists["user_id"] == "u007"].sort_values("position")
    assert [entry[0] for entry in entries] == wanted["item_id"].tolist()
    reasons = wanted["reason"].tolist()
    assert [entry[2:] for entry in entries] == [[] if why == "ranked" else [why] for why in reasons]
    assert (pointer["format_version"], pointer["date"]) == (1, RUN_DATE)


def test_memory_does_not_grow_with_the_number_of_users(
    runs: PublishedRuns, sink: redis.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are sent as soon as they have the length of a pipeline; a list has some 150 characters."""
    monkeypatch.setattr(online_store, "_PIPELINE_CHARACTERS", 700)
    sent, send = [], online_store.BucketWriter._send

    def counted(writer: online_store.BucketWriter, client: Any, pending: dict[str, dict[str, str]]) -> None:
        sent.append(sum(len(text) for values in pending.values() for text in values.values()))
        send(writer, client, pending)

    monkeypatch.setattr(online_store.BucketWriter, "_send", counted)
    redis.deliver(sink, published(runs))
    assert len(sent) > 5
    assert max(sent) < 1000


def test_a_store_that_this_release_cannot_read_says_so(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader, valkey: Server
) -> None:
    with pytest.raises(DataError, match="current does not exist"):
        reader.recommendations(["u001"])
    redis.deliver(sink, published(runs))
    with valkey.client() as client:
        name = f"{sink.prefix}:current"
        pointer = json.loads(client.get(name))
        client.set(name, json.dumps({**pointer, "added_later": 1}))
        assert reader.current().date == RUN_DATE
        client.set(name, json.dumps({**pointer, "format_version": 2}))
        with pytest.raises(DataError, match="format version 2"):
            reader.current()
        for damaged in ("{", "[]", json.dumps({**pointer, "tables": {"lists": {}}})):
            client.set(name, damaged)
            with pytest.raises(DataError, match=f"{name} is not a"):
                redis.deliver(sink, published(runs))
    with pytest.raises(ConfigError, match="write redis://host:port/database"):
        open_online("http://127.0.0.1")


def test_a_repeated_delivery_writes_nothing_and_lost_keys_are_written_again(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader, valkey: Server
) -> None:
    lists = published(runs)
    redis.deliver(sink, lists)
    first = reader.current()
    again = redis.deliver(sink, lists)
    assert (again.rows, again.written) == (len(runs.lists), 0)
    assert reader.current() == first
    with valkey.client() as client:
        client.delete(*first.tables["lists"].bucket_names(sink.prefix, "lists"))
    with pytest.raises(InfrastructureError, match="buckets of the table lists are missing"):
        reader.recommendations(["u001"])
    assert redis.deliver(sink, lists).written == len(runs.lists)
    pd.testing.assert_frame_equal(lists_in(reader, users_of(lists)), expected(lists))


def test_users_who_dropped_out_have_no_list_and_replaced_lists_expire(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader, valkey: Server
) -> None:
    redis.deliver(sink, published(runs))
    old = reader.current().tables["lists"].bucket_names(sink.prefix, "lists")
    few = published(runs, users=10, dt="2026-02-01")
    redis.deliver(sink, replace(few, manifest=replace(few.manifest, inputs={"other": "rows"})))
    assert sorted(set(lists_in(reader, [f"u{i:03}" for i in range(40)])["user_id"])) == users_of(few)
    left = times_to_live(valkey, sink)
    new = reader.current().tables["lists"].bucket_names(sink.prefix, "lists")
    assert all(3500 < left[bucket] <= 3600 for bucket in old)
    assert all(left[bucket] == -1 for bucket in [*new, f"{sink.prefix}:current"])
    done = redis.deliver(sink, published(runs))  # of an earlier date than the store has
    assert (done.rows, done.written) == (0, 0)
    assert reader.current().date == "2026-02-01"


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("old_release", [False, True])
def test_erased_users_have_no_key_in_any_bucket(
    runs: PublishedRuns,
    sink: redis.Settings,
    reader: OnlineReader,
    valkey: Server,
    monkeypatch: pytest.MonkeyPatch,
    old_release: bool,
) -> None:
    """Also not in the buckets of a delivery that was replaced."""
    redis.deliver(sink, published(runs, 30))
    lists = published(runs)
    redis.deliver(sink, lists)
    old = lists.manifest.digest
    request = EraseRequest(frozenset({"u007", "u01"}), {old: "new digest"}, lambda: runs.spark)
    sent: list[int] = []
    delete = online_store._delete

    def counted(client: Any, keys: Any) -> int:
        sent.append(sum(len(of_bucket) for _, of_bucket in keys))
        return delete(client, keys)

    monkeypatch.setattr(online_store, "_delete", counted)
    monkeypatch.setattr(online_store, "_FIELDS_PER_PIPELINE", 2)
    with valkey.client() as client:  # an earlier release did not write the number of buckets
        first = [name for name in client.scan_iter(f"{sink.prefix}:lists:*") if client.ttl(name) > 0]
        for bucket in first if old_release else []:
            client.hset(bucket, MARKER, "")
    assert redis.erase(sink, request).rows == 2
    # Each user has one bucket in each of the two deliveries.
    assert sum(sent) == 2 + 2 * (len(first) if old_release else 1)
    assert max(sent) <= 2
    others = [user for user in users_of(lists) if user != "u007"]
    wanted = expected(lists)
    wanted = wanted[wanted["user_id"] != "u007"].reset_index(drop=True)
    pd.testing.assert_frame_equal(lists_in(reader, users_of(lists)), wanted, check_exact=True)
    with valkey.client() as client:
        buckets = [*client.scan_iter(f"{sink.prefix}:lists:*")]
        assert len(buckets) > 8
        assert not any(client.hexists(bucket, "u007") for bucket in buckets)
    table = reader.current().tables["lists"]
    assert (table.digest, table.keys) == ("new digest", len(others))
    with valkey.client() as client:
        store = online_store.OnlineStore(redis._address(sink), sink.prefix, 3600, 2)
        assert store.is_complete(client, "lists", table)  # so the next delivery does not write it again
    assert redis.erase(sink, request).rows == 0


def test_keys_that_the_server_loses_are_noticed_before_readers_use_them(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = published(runs, users=10)
    redis.deliver(sink, few)
    lists = published(runs)
    wrong = replace(lists, manifest=replace(lists.manifest, facts={**lists.manifest.facts, "users": 38}))
    with pytest.raises(InfrastructureError, match="have 37 keys, but the table has 38"):
        redis.deliver(sink, wrong)
    pd.testing.assert_frame_equal(lists_in(reader, users_of(lists)), expected(few))


def features(name: str) -> LakeTable:
    """Features of all kinds of columns, with values that are easily lost."""
    key = {"users": "user_key", "items": "item_key"}[name]
    count = 37
    columns = {
        "dense": pa.array(
            [0.1, -0.0, 1e-30, float("nan"), float("inf"), 16777217.0, None] * 5 + [1, 2], pa.float32()
        ),
        "id": pa.array([*range(count - 1), 2**31 - 1], pa.int32()),
        key: pa.array([f"ü{index}" for index in range(count)]),
        "exact": pa.array([0.1 + index for index in range(count)], pa.float64()),
        "ids": pa.array([[1, 2], [], None, [2**40]] * 9 + [[5]], pa.list_(pa.int64())),
        "values": pa.array([[0.5, None], []] * 18 + [[float("-inf")]], pa.list_(pa.float32())),
        "word": pa.array(['a"b', None, "\u2028", "é"] * 9 + [""]),
        "flag": pa.array([True] * 18 + [False] * 19),
    }
    rows = pa.table(columns)
    kinds = [
        "float",
        "int32",
        "string",
        "double",
        "list<element: int64>",
        "list<element: float>",
        "string",
        "bool",
    ]
    schema = tuple(zip(rows.column_names, kinds, strict=True))
    manifest = Manifest(name, RUN_DATE, (FileEntry("f", count, 1, (count,)),), schema, {})
    return LakeTable(key, manifest, lambda: rows)


@pytest.mark.usefixtures("small_buckets")
def test_features_are_delivered_with_the_lists(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader, valkey: Server
) -> None:
    """Every value and type, bit for bit."""
    lists = replace(published(runs), open_features={"users": partial(features, "users")})
    redis.deliver(sink, lists)
    with pytest.raises(DataError, match=r"has no table 'users', only \['lists'\]"):
        reader.users(["ü1"])
    with_users = sink.model_copy(update={"features": ["users"]})
    done = redis.deliver(with_users, lists)
    assert done.written == 0  # the lists have not changed
    rows = features("users").read()
    keys = rows["user_key"].to_pylist()
    wanted = rows.select(["user_key", *[name for name in rows.column_names if name != "user_key"]])
    actual = reader.users(keys)
    assert actual.schema.equals(wanted.schema)
    assert repr(actual.to_pylist()) == repr(wanted.to_pylist())  # also -0.0 and NaN
    assert reader.users(["ü1", "?"]).equals(wanted.slice(1, 1))
    redis.deliver(sink, lists)
    assert list(reader.current().tables) == ["lists"]
    assert {left == -1 for key, left in times_to_live(valkey, sink).items() if ":users:" in key} == {False}


def test_the_job_delivers_lists_and_features_of_the_lake(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader
) -> None:
    """The tables `users` and `items` of the same run."""
    section = {"sinks": [{**sink.model_dump(mode="json"), "features": ["users", "items"]}]}
    result = deliver_recommendations(runs.job(RUN_DATE, deliver=section))
    assert result.facts["sinks"][0]["written"] == len(runs.lists)
    version = reader.current().workflow_version
    for name, look_up in (("users", reader.users), ("items", reader.items)):
        partition = getattr(runs.lake, name)(version).partition(RUN_DATE)
        table = read_table(partition, read_manifest(partition))
        key = table.column_names.index(f"{name[:-1]}_key")
        actual = look_up(table.column(key).to_pylist())
        assert actual.select(table.column_names).equals(table)


def test_two_deliveries_at_once_leave_one_whole_delivery(
    runs: PublishedRuns,
    sink: redis.Settings,
    reader: OnlineReader,
    valkey: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have written all keys before either switches; a reader sees whole lists all the time."""
    first, second = published(runs, users=20), published(runs)
    second = replace(second, manifest=replace(second.manifest, inputs={"other": "rows"}))
    redis.deliver(sink, published(runs, users=10, dt="2026-01-01"))
    both, switch = threading.Barrier(2), online_store.OnlineStore.switch

    def switch_together(*arguments: Any) -> bool:
        both.wait(30)
        return switch(*arguments)

    monkeypatch.setattr(online_store.OnlineStore, "switch", switch_together)
    threads = [threading.Thread(target=redis.deliver, args=(sink, lists)) for lists in (first, second)]
    for thread in threads:
        thread.start()
    seen, everyone = set(), [f"u{index:03}" for index in range(40)]
    while any(thread.is_alive() for thread in threads):
        seen.add(len(set(lists_in(reader, everyone)["user_id"])))
    for thread in threads:
        thread.join()
    winner = len(set(lists_in(reader, everyone)["user_id"]))
    counts = {len(users_of(lists)) for lists in (first, second)}
    assert winner in counts
    assert seen <= {len(users_of(published(runs, users=10))), *counts}
    used = reader.current().tables["lists"].bucket_names(sink.prefix, "lists")
    forever = {key for key, left in times_to_live(valkey, sink).items() if left == -1}
    assert forever == {*used, f"{sink.prefix}:current"}


def die_in(where: str) -> None:
    """Lets this process end by SIGKILL after the first pipeline, or before the switch."""
    patch = pytest.MonkeyPatch()

    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "switch":
        patch.setattr(online_store.OnlineStore, "switch", kill)
        return
    send = online_store.BucketWriter._send
    patch.setattr(online_store, "_PIPELINE_CHARACTERS", 700)
    patch.setattr(online_store.BucketWriter, "_send", lambda *arguments: kill(send(*arguments)))


@pytest.mark.processes
@pytest.mark.parametrize("where", ["write", "switch"])
def test_a_killed_delivery_changes_nothing_and_leaves_nothing(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader, valkey: Server, where: str
) -> None:
    """SIGKILL after half of the keys, and after all keys before the switch."""
    few = published(runs, users=10)
    redis.deliver(sink, few)
    before = reader.current()
    child = os.fork()
    if child == 0:
        die_in(where)
        redis.deliver(sink, published(runs))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert reader.current() == before
    pd.testing.assert_frame_equal(lists_in(reader, users_of(published(runs))), expected(few))
    used = {*before.tables["lists"].bucket_names(sink.prefix, "lists"), f"{sink.prefix}:current"}
    left = times_to_live(valkey, sink)
    assert len(left) > len(used)
    assert all(0 < left[key] <= 3600 for key in left if key not in used)
    redis.deliver(sink, published(runs))
    pd.testing.assert_frame_equal(lists_in(reader, users_of(published(runs))), expected(published(runs)))


@pytest.mark.processes
def test_a_job_that_is_killed_while_it_writes_changes_nothing(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader, valkey: Server, tmp_path: Path
) -> None:
    """The whole job, which needs no JVM: killed while the server answers no writes, repeated, without a server."""
    few = published(runs, users=10)
    redis.deliver(sink, few)
    with valkey.client() as client:
        client.client_pause(120_000, all=False)
        job = start(runs, sink, tmp_path)
        try:
            end = time.monotonic() + 120
            while not client.info("clients")["blocked_clients"]:
                assert job.poll() is None, (tmp_path / "job.log").read_text()
                assert time.monotonic() < end
                time.sleep(0.1)
        finally:
            job.kill()
            job.wait()
            client.client_unpause()
    pd.testing.assert_frame_equal(lists_in(reader, users_of(published(runs))), expected(few))
    # One after another: only one process at a time has the lease of a job.
    assert start(runs, sink, tmp_path, "again").wait(120) == 0
    elsewhere = sink.model_copy(update={"url": "redis://127.0.0.1:1/0"})
    assert start(runs, elsewhere, tmp_path, "gone").wait(120) == 4
    pd.testing.assert_frame_equal(lists_in(reader, users_of(published(runs))), expected(published(runs)))
    log = (tmp_path / "again.log").read_text()
    assert json.loads(log.splitlines()[-1])["sinks"][0]["written"] == len(runs.lists)
    assert "nightrank: app: " in log
    assert "session" not in log
    assert "what to do: check that the server can be reached" in (tmp_path / "gone.log").read_text()
    assert PASSWORD not in "".join(path.read_text() for path in tmp_path.glob("*.log"))


def start(
    runs: PublishedRuns, sink: redis.Settings, folder: Path, name: str = "job"
) -> subprocess.Popen[bytes]:
    """Starts a delivery in a process."""
    section = {"sinks": [sink.model_dump(mode="json")]}
    config = folder / f"{name}.yaml"
    config.write_text(json.dumps(runs.config_of(deliver=section).model_dump(mode="json")))
    command = [sys.executable, "jobs/deliver_recommendations.py", "--config", str(config)]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--run-date", RUN_DATE], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )


def test_tls_needs_the_certificate_of_the_server(
    runs: PublishedRuns, sink: redis.Settings, valkey: Server
) -> None:
    tls = sink.model_copy(update={"url": valkey.tls_url})
    with pytest.raises(InfrastructureError, match="certificate verify failed"):
        redis.deliver(tls, published(runs))
    trusting = tls.model_copy(update={"ca_file": str(valkey.ca_file)})
    redis.deliver(trusting, published(runs))
    with open_online(
        trusting.url, prefix=sink.prefix, password=PASSWORD, ca_file=str(valkey.ca_file)
    ) as reader:
        assert reader.current().date == RUN_DATE


def test_what_the_server_refuses_says_what_to_correct(
    runs: PublishedRuns, sink: redis.Settings, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = sink.model_copy(update={"url": "redis://127.0.0.1:1/0"})
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:1.*refused") as silent:
        redis.deliver(gone, published(runs))
    assert silent.value.exit_code == 4
    monkeypatch.setenv("LISTS_PASSWORD", "never-shown")
    with pytest.raises(ConfigError, match="correct the user and the password") as refused:
        redis.deliver(sink, published(runs))
    assert "never-shown" not in str(refused.value)
    monkeypatch.delenv("LISTS_PASSWORD")
    with pytest.raises(ConfigError, match="environment variable LISTS_PASSWORD, which is not set"):
        redis.check(sink)
    with pytest.raises(ConfigError, match=r"ca_file=gone\.pem of app does not exist"):
        redis.check(sink.model_copy(update={"password": None, "ca_file": "gone.pem"}))


def test_a_server_without_memory_keeps_the_served_lists(
    runs: PublishedRuns, sink: redis.Settings, reader: OnlineReader, valkey: Server
) -> None:
    few = published(runs, users=10)
    redis.deliver(sink, few)
    with valkey.client() as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(InfrastructureError, match="give the server more memory"):
                redis.deliver(sink, published(runs))
        finally:
            client.config_set("maxmemory", "0")
    pd.testing.assert_frame_equal(lists_in(reader, users_of(published(runs))), expected(few))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"url": "http://h/0"}, "write redis://host:port/database"),
        ({"url": "redis://h:99999/0"}, "port must be a number"),
        ({"url": "redis://h/lists"}, "database must be a number"),
        ({"url": "redis://:hidden-word@h/0"}, "must not contain a user or a password"),
        ({"prefix": "a b"}, "letters"),
        ({"ttl_hours": 0}, "greater than 0"),
        ({"features": ["candidates"]}, "'users' or 'items'"),
        ({"speed": 1}, "unknown key"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(changed: dict[str, Any], message: str) -> None:
    values = {"kind": "redis", "name": "app", "url": "redis://h:6379/0", **changed}
    with pytest.raises((ValueError, ConfigError), match=message) as refused:
        read_settings(Deliver.model_validate({"sinks": [values]}), {})
    if "hidden" in str(changed):
        assert isinstance(refused.value, ValueError)


def test_buckets_are_those_of_the_documented_hash() -> None:
    """The check value of CRC-32 for 123456789 is cbf43926."""
    assert bucket_of("123456789", 2**32) == 0xCBF43926
