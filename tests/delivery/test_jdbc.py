"""Lists in a real PostgreSQL: the served rows before, during and after deliveries, also killed ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError, InfrastructureError
from scoring.delivery.postgresql import Connection, connect
from scoring.delivery.published_lists import EraseRequest, PublishedLists
from scoring.delivery.secrets import Credentials
from scoring.delivery.sinks import jdbc
from storage.manifest import read_manifest
from storage.publish import read_published
from tests.certificates import certificate_in
from tests.conftest import ROOT
from tests.delivery.conftest import PublishedRuns
from tests.delivery.postgres import Server, postgres
from tests.scoring.scoring_lake import RUN_DATE

VALUES = ["user_id", "position", "item_id", "score", "reason", "model_version"]


@pytest.fixture
def sink(
    request: pytest.FixtureRequest, database: Server, driver_jar: Path, monkeypatch: pytest.MonkeyPatch
) -> jdbc.Settings:
    """A sink with a table of its own."""
    monkeypatch.setenv("LISTS_USER", database.user)
    monkeypatch.setenv("LISTS_PASSWORD", database.password)
    table = "t_" + str(abs(hash(request.node.name)) % 10**9)
    return jdbc.Settings.model_validate(
        {
            "kind": "jdbc",
            "name": "app",
            "url": database.url,
            "table": f"public.{table}",
            "user": {"env": "LISTS_USER"},
            "password": {"env": "LISTS_PASSWORD"},
            "driver_jar": str(driver_jar),
            "connections": 2,
        }
    )


@pytest.fixture
def client(spark: SparkSession, sink: jdbc.Settings, database: Server) -> Iterator[Connection]:
    """A connection of the test itself."""
    with connect(spark, sink, Credentials(database.user, database.password)) as connection:
        yield connection


@pytest.fixture
def other_client(spark: SparkSession, sink: jdbc.Settings, database: Server) -> Iterator[Connection]:
    """What a transaction sees of other sessions does not change within it."""
    with connect(spark, sink, Credentials(database.user, database.password)) as connection:
        yield connection


@pytest.fixture(scope="module")
def published(runs: PublishedRuns) -> PublishedLists:
    """The published lists of RUN_DATE."""
    partition = runs.lake.recommendations.partition(RUN_DATE)
    return PublishedLists(read_published(runs.spark, partition), read_manifest(partition))


def changed(published: PublishedLists, rows: Any, dt: str = RUN_DATE) -> PublishedLists:
    """The same lists with other rows or of another date."""
    cached = rows.persist()
    entry = replace(published.manifest.files[0], rows=cached.count())
    return PublishedLists(cached, replace(published.manifest, partition=dt, files=(entry,)))


def served(client: Connection, sink: jdbc.Settings, dt: str = RUN_DATE) -> list[tuple[str | None, ...]]:
    """The rows of a date in the served table."""
    return client.rows(
        f"SELECT {', '.join(VALUES)} FROM {sink.table} WHERE dt = CAST(? AS date) ORDER BY user_id, position",
        [dt],
    )


def expected(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    """The rows of the lists as PostgreSQL returns them."""
    ordered = rows.sort_values(["user_id", "position"])[VALUES]
    return exact([tuple(row) for row in ordered.itertuples(index=False)])


def exact(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Positions as int, scores as the float32 they are: PostgreSQL writes the shortest text that names it."""
    return [
        (user, int(position), item, np.float32(score), *rest) for user, position, item, score, *rest in rows
    ]


def staging_tables(client: Connection, sink: jdbc.Settings) -> list[str]:
    """Names of the staging tables of a sink."""
    actual = client.rows(
        "SELECT tablename FROM pg_tables WHERE tablename LIKE ?", [f"{sink.table.split('.')[1]}_st_%"]
    )
    return [str(name) for (name,) in actual]


def test_what_is_served_equals_what_was_published(
    runs: PublishedRuns, published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    first = jdbc.deliver(sink, published)
    assert exact(served(client, sink)) == expected(runs.lists)
    assert (first.rows, first.written, first.deleted) == (len(runs.lists), len(runs.lists), 0)
    assert {"explore", "boost:s1"} < {row[4] for row in served(client, sink)}
    again = jdbc.deliver(sink, published)  # equal rows are not written a second time
    assert (again.rows, again.written, again.deleted) == (len(runs.lists), 0, 0)
    assert staging_tables(client, sink) == []


def test_erased_users_have_no_row_of_any_date_or_killed_delivery(
    runs: PublishedRuns, published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    request = EraseRequest(frozenset({"u007", "u01", "o'hara"}), {}, lambda: runs.spark)
    assert jdbc.erase(sink, request).rows == 0  # the table does not exist yet
    jdbc.deliver(sink, published)
    jdbc.deliver(sink, changed(published, published.frame, "2026-01-09"))
    killed = f"{sink.table}_st_20260101000000_0123abcd"
    client.execute(f"CREATE TABLE {killed} AS SELECT * FROM {sink.table} WHERE user_id < 'u010'")
    of_user = int((runs.lists["user_id"] == "u007").sum())
    erased = jdbc.erase(sink, request)
    assert (erased.rows, "VACUUM" in erased.remark) == (of_user * 4, True)
    for dt in (RUN_DATE, "2026-01-09"):
        assert exact(served(client, sink, dt)) == expected(runs.lists[runs.lists["user_id"] != "u007"])
    assert client.rows(f"SELECT count(*) FROM {killed} WHERE user_id = 'u007'") == [("0",)]
    assert client.rows(f"SELECT count(DISTINCT user_id) FROM {killed}") != [("0",)]
    again = jdbc.erase(sink, request)
    assert (again.rows, again.remark) == (0, "")
    client.execute(f"DROP TABLE {killed}")


def test_changed_rows_are_updated_and_stale_ones_deleted(
    runs: PublishedRuns, published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    jdbc.deliver(sink, published)
    gone, fewer = runs.lists.user_id.iloc[0], runs.lists.user_id.iloc[-1]
    rows = published.frame.where(
        (F.col("user_id") != gone) & ~((F.col("user_id") == fewer) & (F.col("position") > 2))
    )
    other = F.when(F.col("position") == 1, F.lit("i999")).otherwise(F.col("item_id"))
    lists = changed(published, rows.withColumn("item_id", other))
    done = jdbc.deliver(sink, lists)
    frame = lists.frame.toPandas()
    assert exact(served(client, sink)) == expected(frame)
    assert done.written == (frame.position == 1).sum() == 36
    assert done.deleted == len(runs.lists) - len(frame) == 5 + 3


def test_only_the_newest_dates_are_kept(
    published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    few = published.frame.where(F.col("position") == 1)
    for dt in ("2026-01-03", "2026-01-05", "2026-01-04"):
        jdbc.deliver(sink, changed(published, few, dt))
    dates = f"SELECT DISTINCT dt FROM {sink.table} ORDER BY dt"
    assert client.rows(dates) == [("2026-01-04",), ("2026-01-05",)]
    old = jdbc.deliver(sink, changed(published, few, "2026-01-02"))
    assert (old.rows, old.written, old.deleted) == (0, 0, 0)
    assert client.rows(dates) == [("2026-01-04",), ("2026-01-05",)]


@pytest.mark.parametrize("step", ["_stage", "_require_all", "_replace"])
def test_a_failure_at_any_step_leaves_the_served_rows(
    published: PublishedLists,
    sink: jdbc.Settings,
    client: Connection,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    jdbc.deliver(sink, published)
    before = served(client, sink)
    real: Callable[..., Any] = getattr(jdbc, step)

    def fail(*arguments: Any) -> None:
        if step == "_replace":  # the last statement of the transaction cannot be run
            monkeypatch.setattr(jdbc, "dates_of", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(jdbc, step, fail)
    if step == "_replace":
        monkeypatch.setattr(jdbc, "_make_target", lambda *_: None)
    rows = published.frame.withColumn("item_id", F.lit("other")).where(F.col("position") < 4)
    with pytest.raises(KeyboardInterrupt):
        jdbc.deliver(sink, changed(published, rows))
    assert served(client, sink) == before
    assert staging_tables(client, sink) == []


def test_rows_that_were_staged_twice_are_not_served(
    published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    jdbc.deliver(sink, published)
    before = served(client, sink)
    twice = changed(published, published.frame.unionByName(published.rows))
    with pytest.raises(
        InfrastructureError, match=rf"{2 * len(before)} rows with {len(before)} distinct keys"
    ):
        jdbc.deliver(sink, twice)
    assert served(client, sink) == before


@pytest.mark.timeout(600)
def test_a_killed_delivery_changes_nothing_and_the_next_one_is_whole(
    runs: PublishedRuns,
    published: PublishedLists,
    sink: jdbc.Settings,
    client: Connection,
    other_client: Connection,
    tmp_path: Path,
) -> None:
    """The process dies with all rows staged, while it waits for its turn at the table."""
    one = changed(published, published.frame.where(F.col("position") == 1))
    jdbc.deliver(sink, one)
    before = served(client, sink)
    config = write_config(runs, sink, tmp_path)
    with other_client.transaction():
        other_client.execute(f"LOCK TABLE {sink.table} IN SHARE ROW EXCLUSIVE MODE")
        job = start(config, tmp_path / "job.log")
        try:
            wait_for(lambda: waiting(client), job, tmp_path / "job.log")
            assert len(staging_tables(client, sink)) == 1
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert served(client, sink) == before
    message = (tmp_path / "job.log").read_text()
    again = start(config, tmp_path / "again.log")
    assert again.wait(240) == 0, (tmp_path / "again.log").read_text()[-3000:]
    assert exact(served(client, sink)) == expected(runs.lists)
    message += (tmp_path / "again.log").read_text()
    closing = json.loads(message.splitlines()[-1])
    assert closing["sinks"][0]["written"] == len(runs.lists) - len(before)
    assert os.environ["LISTS_PASSWORD"] not in message
    # A young staging table may be in use, so a later delivery drops it only after a day.
    (left,) = staging_tables(client, sink)
    aged = left.replace(left.split("_st_")[1][:8], "20200101")
    client.execute(f"ALTER TABLE {left} RENAME TO {aged}")
    jdbc.deliver(sink, published)
    assert staging_tables(client, sink) == []


def write_config(runs: PublishedRuns, sink: jdbc.Settings, folder: Path) -> Path:
    """Writes a configuration file with the sink."""
    values = runs.config_of(deliver={"sinks": [sink.model_dump(mode="json")]}).model_dump(mode="json")
    path = folder / "config.yaml"
    path.write_text(json.dumps(values))
    return path


def start(config: Path, log: Path) -> subprocess.Popen[bytes]:
    """Starts a delivery in a process."""
    submit = Path(sys.executable).parent / "spark-submit"
    command = [str(submit), "--properties-file", "conf/spark/local.conf", "jobs/deliver_recommendations.py"]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, "--config", str(config), "--run-date", RUN_DATE],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def waiting(client: Connection) -> bool:
    """Whether a session waits for a lock."""
    actual = client.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'LOCK TABLE%'"
    )
    return actual != [("0",)]


def wait_for(condition: Callable[[], bool], job: subprocess.Popen[bytes], log: Path) -> None:
    """Waits for a condition while the job runs."""
    end = time.monotonic() + 240
    while not condition():
        assert job.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.2)


def test_a_wrong_password_names_its_place_and_not_itself(
    published: PublishedLists, sink: jdbc.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LISTS_PASSWORD", "never-shown")
    with pytest.raises(ConfigError, match="SQLSTATE 28P01") as refused:
        jdbc.deliver(sink, published)
    assert "never-shown" not in str(refused.value)
    monkeypatch.delenv("LISTS_PASSWORD")
    with pytest.raises(ConfigError, match="environment variable LISTS_PASSWORD, which is not set"):
        jdbc.deliver(sink, published)


def test_what_postgresql_refuses_says_what_to_correct(
    published: PublishedLists, sink: jdbc.Settings, database: Server, tmp_path: Path
) -> None:
    missing_schema = sink.model_copy(update={"table": "nowhere.lists"})
    with pytest.raises(ConfigError, match=r'schema "nowhere" does not exist'):
        jdbc.deliver(missing_schema, published)
    silent = sink.model_copy(update={"url": "jdbc:postgresql://127.0.0.1:1/postgres"})
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:1.*SQLSTATE 08001"):
        jdbc.deliver(silent, published)
    no_jar = sink.model_copy(update={"driver_jar": str(tmp_path / "gone.jar")})
    with pytest.raises(ConfigError, match=r"gone\.jar of app does not exist"):
        jdbc.deliver(no_jar, published)


def test_without_sslmode_the_connection_is_encrypted_and_the_server_is_checked(
    published: PublishedLists,
    spark: SparkSession,
    sink: jdbc.Settings,
    database: Server,
    tmp_path: Path,
) -> None:
    """A server without TLS is refused, and so is one whose certificate nobody trusts, or for another name."""
    plain = sink.model_copy(update={"url": database.url.partition("?")[0]})
    with pytest.raises(ConfigError, match="does not support SSL") as refused:
        jdbc.deliver(plain, published)
    assert "?sslmode=disable" in refused.value.remedy
    certificate = certificate_in(tmp_path)
    with postgres(certificate) as server:
        url = server.url.partition("?")[0]
        unknown = sink.model_copy(update={"url": url})
        with pytest.raises(ConfigError, match="SSL"):
            jdbc.deliver(unknown, published)
        trusted = f"{url}?sslrootcert={certificate[0]}"
        encrypted = sink.model_copy(update={"url": trusted})
        assert jdbc.deliver(encrypted, published).rows == published.manifest.rows
        with connect(spark, encrypted, Credentials(server.user, server.password)) as client:
            [(used,)] = client.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert used == "t"
        elsewhere = sink.model_copy(update={"url": trusted.replace("127.0.0.1", "localhost")})
        with pytest.raises(ConfigError, match="localhost"):
            jdbc.deliver(elsewhere, published)


def test_a_server_that_never_answers_is_left(
    published: PublishedLists, sink: jdbc.Settings, spark: SparkSession
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"jdbc:postgresql://127.0.0.1:{silent.getsockname()[1]}/x?sslmode=disable"
        for limit in ("loginTimeout=1", "socketTimeout=1"):
            start = time.monotonic()
            with pytest.raises(InfrastructureError):
                jdbc.deliver(sink.model_copy(update={"url": f"{url}&{limit}"}), published)
            assert time.monotonic() - start < 30


@pytest.mark.parametrize("user, message", [("a\0b", r"U\+0000|22021"), ("incompressible", "SQLSTATE 54000")])
def test_a_value_that_postgresql_cannot_hold_is_bad_data(
    published: PublishedLists, sink: jdbc.Settings, client: Connection, user: str, message: str
) -> None:
    """A NUL fails in staging, a key too long for the index in the transaction. A retry does not help."""
    if user == "incompressible":  # PostgreSQL compresses repetitions before it measures a key
        user = "".join(sha256(str(place).encode()).hexdigest() for place in range(200))
    jdbc.deliver(sink, published)
    before = served(client, sink)
    first = published.frame.agg(F.min("user_id")).first()
    assert first is not None
    other = F.when(F.col("user_id") == first[0], F.lit(user)).otherwise(F.col("user_id"))
    with pytest.raises(DataError, match=message) as refused:
        jdbc.deliver(sink, changed(published, published.frame.withColumn("user_id", other)))
    assert "a retry will not help" in refused.value.remedy
    assert served(client, sink) == before
    assert staging_tables(client, sink) == []


def test_the_password_may_stand_in_a_file(
    published: PublishedLists, sink: jdbc.Settings, database: Server, tmp_path: Path, client: Connection
) -> None:
    (tmp_path / "password").write_text(f"{database.password}\n")
    secret = {"user": {"env": "LISTS_USER"}, "password": {"file": str(tmp_path / "password")}}
    jdbc.deliver(jdbc.Settings.model_validate({**sink.model_dump(), **secret}), published)
    assert len(served(client, sink)) == published.manifest.rows
