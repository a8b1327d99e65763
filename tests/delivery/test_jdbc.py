"""Lists in a real PostgreSQL: the served rows before, during and after deliveries, also killed ones.

Most tests deliver to both kinds of served tables: with a partition for each date, and a table of release 0.1.0.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError, DataError, InfrastructureError
from scoring.delivery import day_tables
from scoring.delivery.postgresql import Connection, connect
from scoring.delivery.published_lists import EraseRequest, PublishedLists
from scoring.delivery.secrets import Credentials
from scoring.delivery.sinks import jdbc
from spark.rows import frame_of
from storage.manifest import read_manifest
from storage.read_parquet import read_table
from tests.certificates import certificate_in
from tests.conftest import ROOT
from tests.delivery.conftest import PublishedRuns
from tests.delivery.dying_delivery import deliver_and_die
from tests.delivery.postgres import PASSWORD, Server, postgres
from tests.processes import fork_server
from tests.scoring.scoring_lake import RUN_DATE

NUMBERS = itertools.count()
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


# What release 0.1.0 created.
PLAIN = (
    "CREATE TABLE {} (dt date NOT NULL, user_id text NOT NULL, position integer NOT NULL, item_id text NOT NULL, "
    "score real NOT NULL, reason text NOT NULL, model_version text NOT NULL, PRIMARY KEY (dt, user_id, position))"
)


@pytest.fixture
def client(sink: jdbc.Settings, database: Server) -> Iterator[Connection]:
    """A connection of the test itself."""
    with session(sink, database) as connection:
        yield connection


@pytest.fixture
def other_client(sink: jdbc.Settings, database: Server) -> Iterator[Connection]:
    """What a transaction sees of other sessions does not change within it."""
    with session(sink, database) as connection:
        yield connection


@pytest.fixture(params=["partitions", "plain"])
def kind(request: pytest.FixtureRequest, sink: jdbc.Settings, client: Connection) -> str:
    """The kind of the served table: made by the sink, or found there."""
    if request.param == "plain":
        client.execute(PLAIN.format(sink.table))
    return str(request.param)


def session(sink: jdbc.Settings, database: Server) -> Any:
    """A connection to the server of the tests."""
    return connect(str(sink.driver_jar), sink, Credentials(database.user, database.password))


@pytest.fixture(scope="module")
def published(runs: PublishedRuns) -> PublishedLists:
    """The published lists of RUN_DATE, as a table of this process."""
    partition = runs.lake.recommendations.partition(RUN_DATE)
    manifest = read_manifest(partition)
    return PublishedLists(read_table(partition, manifest), manifest)


def in_spark(runs: PublishedRuns, lists: PublishedLists) -> PublishedLists:
    """The same lists as a frame of Spark, with the rows of a table in three Spark partitions."""
    return replace(lists, rows=frame_of(runs.spark, lists.rows).repartition(3))


def first_places(published: PublishedLists) -> pa.Table:
    """The first entry of each list."""
    return published.rows.filter(pc.equal(published.rows["position"], 1))


def changed(published: PublishedLists, rows: pa.Table, dt: str = RUN_DATE) -> PublishedLists:
    """The same lists with other rows or of another date."""
    entry = replace(published.manifest.files[0], rows=len(rows))
    # Rows of other lists come from other inputs, so that their manifest has another digest.
    inputs = {**published.manifest.inputs, "changed": str(next(NUMBERS))}
    return PublishedLists(rows, replace(published.manifest, partition=dt, files=(entry,), inputs=inputs))


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


def new_tables(client: Connection, sink: jdbc.Settings) -> list[str]:
    """Names of the tables that deliveries to a sink have not served."""
    actual = client.rows(
        "SELECT tablename FROM pg_tables WHERE tablename LIKE ?", [f"{sink.table.split('.')[1]}_ld_%"]
    )
    return [str(name) for (name,) in actual]


def tables(client: Connection, sink: jdbc.Settings) -> list[str]:
    """Names of all tables of a sink, with those of its dates."""
    actual = client.rows(
        "SELECT tablename FROM pg_tables WHERE tablename LIKE ? ORDER BY 1", [f"{sink.table.split('.')[1]}%"]
    )
    return [str(name) for (name,) in actual]


def test_what_is_served_equals_what_was_published(
    runs: PublishedRuns, published: PublishedLists, sink: jdbc.Settings, client: Connection, kind: str
) -> None:
    first = jdbc.deliver(sink, published)
    assert exact(served(client, sink)) == expected(runs.lists)
    assert (first.rows, first.written, first.deleted) == (len(runs.lists), len(runs.lists), 0)
    assert {"explore", "boost:s1"} < {row[4] for row in served(client, sink)}
    before = tables(client, sink)
    again = jdbc.deliver(sink, published)  # equal rows are not written a second time
    assert (again.rows, again.written, again.deleted) == (len(runs.lists), 0, 0)
    assert tables(client, sink) == before
    assert len(before) == (2 if kind == "partitions" else 1)
    client.execute(f"DELETE FROM {sink.table} WHERE position = 2")
    jdbc.deliver(sink, in_spark(runs, published))  # tasks of Spark copy the same rows
    assert exact(served(client, sink)) == expected(runs.lists)


TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)
SCORES = st.floats(width=32, allow_nan=False) | st.sampled_from([float("inf"), -0.0, 1e-45])


@settings(max_examples=10, deadline=None)
@given(rows=st.lists(st.tuples(TEXTS, st.integers(1, 2**31 - 1), TEXTS, SCORES, TEXTS), max_size=60))
def test_every_row_is_served_once_whatever_its_texts(
    published: PublishedLists, endless_sink: jdbc.Settings, endless_client: Connection, rows: list[Any]
) -> None:
    r"""Tabs, line ends, backslashes, quotes, \N and \. are data; several connections copy the rows."""
    unique = list({row[:2]: (*row, "m\\N") for row in rows}.values())
    columns = list(zip(*unique, strict=True)) or [()] * 6
    kinds = [pa.string(), pa.int32(), pa.string(), pa.float32(), pa.string(), pa.string()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    arrays[4] = arrays[4].dictionary_encode()
    table = pa.Table.from_arrays(arrays, VALUES)
    jdbc.deliver(endless_sink, changed(published, table))
    actual = endless_client.rows(f"SELECT {', '.join(VALUES)} FROM {endless_sink.table}")
    wanted = [(user, place, item, np.float32(score), *rest) for user, place, item, score, *rest in unique]
    assert sorted(map(repr, exact(actual))) == sorted(map(repr, wanted))


@pytest.fixture(scope="module")
def endless_sink(
    database: Server, driver_jar: Path, tmp_path_factory: pytest.TempPathFactory
) -> jdbc.Settings:
    """A sink with one table for all examples of a property."""
    folder = tmp_path_factory.mktemp("secrets")
    for name, value in (("user", database.user), ("password", database.password)):
        (folder / name).write_text(value)
    values = {"kind": "jdbc", "name": "app", "url": database.url, "table": "endless", "connections": 3}
    secrets = {name: {"file": str(folder / name)} for name in ("user", "password")}
    return jdbc.Settings.model_validate({**values, **secrets, "driver_jar": str(driver_jar)})


@pytest.fixture(scope="module")
def endless_client(endless_sink: jdbc.Settings, database: Server) -> Iterator[Connection]:
    with pytest.MonkeyPatch.context() as patch, session(endless_sink, database) as connection:
        patch.setattr(jdbc, "_ROWS_PER_CONNECTION", 7)
        patch.setattr(jdbc, "_BATCH_ROWS", 3)
        yield connection


def test_erased_users_have_no_row_of_any_date_or_killed_delivery(
    runs: PublishedRuns, published: PublishedLists, sink: jdbc.Settings, client: Connection, kind: str
) -> None:
    digests = {published.manifest.digest: "digest without them"}
    request = EraseRequest(frozenset({"u007", "u01", "o'hara"}), digests, lambda: runs.spark)
    missing = sink.model_copy(update={"table": "public.nobody_made_it"})
    assert jdbc.erase(missing, request).rows == 0
    jdbc.deliver(sink, published)
    jdbc.deliver(sink, changed(published, published.rows, "2026-01-09"))
    killed = [f"{sink.table}_{name}_20260101000000_0123abcd" for name in ("st", "ld")]
    for table in killed:
        client.execute(f"CREATE TABLE {table} AS SELECT * FROM {sink.table} WHERE user_id < 'u010'")
    of_user = int((runs.lists["user_id"] == "u007").sum())
    erased = jdbc.erase(sink, request)
    assert (erased.rows, "VACUUM" in erased.remark) == (of_user * 6, True)
    kept = runs.lists[runs.lists["user_id"] != "u007"]
    for dt in (RUN_DATE, "2026-01-09"):
        assert exact(served(client, sink, dt)) == expected(kept)
    for table in killed:
        assert client.rows(f"SELECT count(*) FROM {table} WHERE user_id = 'u007'") == [("0",)]
        assert client.rows(f"SELECT count(DISTINCT user_id) FROM {table}") != [("0",)]
    again = jdbc.erase(sink, request)
    assert (again.rows, again.remark) == (0, "")
    if kind == "partitions":  # the lists without the users are known to be there
        opened = day_tables.open_table(client, sink.table)
        assert opened.is_served(RUN_DATE, "digest without them", len(kept))
    for table in killed:
        client.execute(f"DROP TABLE {table}")


def test_changed_rows_are_served_and_stale_ones_are_not(
    runs: PublishedRuns, published: PublishedLists, sink: jdbc.Settings, client: Connection, kind: str
) -> None:
    jdbc.deliver(sink, published)
    gone, fewer = runs.lists.user_id.iloc[0], runs.lists.user_id.iloc[-1]
    frame = runs.lists[
        (runs.lists.user_id != gone) & ~((runs.lists.user_id == fewer) & (runs.lists.position > 2))
    ].copy()
    frame.loc[frame.position == 1, "item_id"] = "i999"
    done = jdbc.deliver(sink, changed(published, pa.Table.from_pandas(frame, preserve_index=False)))
    assert exact(served(client, sink)) == expected(frame)
    if kind == "plain":  # only changed rows are written
        assert done.written == (frame.position == 1).sum() == 36
        assert done.deleted == len(runs.lists) - len(frame) == 5 + 3
    else:
        assert (done.written, done.deleted) == (len(frame), len(runs.lists))
        assert len(tables(client, sink)) == 2


def test_only_the_newest_dates_are_kept(
    published: PublishedLists, sink: jdbc.Settings, client: Connection, kind: str
) -> None:
    few = first_places(published)
    for dt in ("2026-01-03", "2026-01-05", "2026-01-04"):
        jdbc.deliver(sink, changed(published, few, dt))
    dates = f"SELECT DISTINCT dt FROM {sink.table} ORDER BY dt"
    assert client.rows(dates) == [("2026-01-04",), ("2026-01-05",)]
    old = jdbc.deliver(sink, changed(published, few, "2026-01-02"))
    assert (old.rows, old.written, old.deleted) == (0, 0, 0)
    assert client.rows(dates) == [("2026-01-04",), ("2026-01-05",)]
    assert len(tables(client, sink)) == (3 if kind == "partitions" else 1)


@pytest.mark.parametrize("added_by", ["experiment", "user"])
def test_lists_without_an_experiment_have_no_variant_in_a_table_with_this_column(
    published: PublishedLists, sink: jdbc.Settings, client: Connection, kind: str, added_by: str
) -> None:
    """The column stays when the experiment ends. Someone may also have added it before the first experiment."""
    few = first_places(published)
    jdbc.deliver(sink, changed(published, few, "2026-01-03"))
    if added_by == "experiment":
        tested = few.append_column("variant", pa.array(["control"] * len(few)))
        jdbc.deliver(sink, changed(published, tested, "2026-01-04"))
    else:
        client.execute(f"ALTER TABLE {sink.table} ADD COLUMN variant text")
        jdbc.deliver(sink, changed(published, few, "2026-01-04"))
    variants = f"SELECT dt, variant, count(*) FROM {sink.table} GROUP BY dt, variant ORDER BY dt"
    of_experiment = "control" if added_by == "experiment" else None
    jdbc.deliver(sink, changed(published, few, "2026-01-05"))
    rows = str(len(few))
    assert client.rows(variants) == [("2026-01-04", of_experiment, rows), ("2026-01-05", None, rows)]
    # The lists of a date of the experiment are made again without it.
    jdbc.deliver(sink, changed(published, few, "2026-01-04"))
    assert client.rows(variants) == [("2026-01-04", None, rows), ("2026-01-05", None, rows)]


@pytest.mark.parametrize("step", ["_load", "require_keys", "replace"])
def test_a_failure_at_any_step_leaves_the_served_rows(
    published: PublishedLists,
    sink: jdbc.Settings,
    client: Connection,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    step: str,
) -> None:
    jdbc.deliver(sink, published)
    before, known = served(client, sink), tables(client, sink)
    real_rows, real_step = Connection.execute, getattr(jdbc, step, None)

    def fail(*arguments: Any) -> None:
        if real_step is not None:
            real_step(*arguments)
        raise KeyboardInterrupt

    def fail_at_last(self: Connection, statement: str, *values: Any) -> int:
        done = real_rows(self, statement, *values)
        if statement.startswith(
            "COMMENT" if kind == "partitions" else f"DELETE FROM {sink.table} WHERE dt <"
        ):
            raise KeyboardInterrupt
        return done

    if step == "_load":
        monkeypatch.setattr(jdbc, "_load", fail)
    elif step == "require_keys":
        monkeypatch.setattr(day_tables.ServedTable, "require_keys", fail)
    else:  # after the last statement of the transaction
        monkeypatch.setattr(Connection, "execute", fail_at_last)
    rows = first_places(published)
    with pytest.raises(KeyboardInterrupt):
        jdbc.deliver(sink, changed(published, rows))
    assert served(client, sink) == before
    assert tables(client, sink) == known


def test_rows_that_were_loaded_twice_are_not_served(
    runs: PublishedRuns, published: PublishedLists, sink: jdbc.Settings, client: Connection, kind: str
) -> None:
    """As if Spark had run each task twice."""
    jdbc.deliver(sink, published)
    before, known = served(client, sink), tables(client, sink)
    twice = pa.concat_tables([published.rows, published.rows])
    with pytest.raises(InfrastructureError, match=r"a row was loaded twice: .*\(dt, user_id, "):
        jdbc.deliver(sink, changed(published, twice))
    lists = in_spark(runs, changed(published, published.rows))
    with pytest.raises(InfrastructureError, match=rf"stored {2 * len(before)} rows, .* have {len(before)}"):
        jdbc.deliver(sink, replace(lists, rows=lists.frame.unionByName(lists.frame)))
    assert served(client, sink) == before
    assert tables(client, sink) == known


def test_an_attached_day_is_not_read_again_and_has_the_indexes_of_the_table(
    published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    """Attaching reads no row, and builds no index, while readers wait."""
    jdbc.deliver(sink, published)
    client.execute(f"CREATE INDEX ON {sink.table} (item_id) WHERE score > 0")
    client.execute(f"ALTER TABLE {sink.table} ADD COLUMN seen boolean NOT NULL DEFAULT true")
    statements, scans = [], []
    real = Connection.execute

    def counted(self: Connection) -> list[Any]:
        query = (
            "SELECT relname, seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relname LIKE ? ORDER BY 1"
        )
        return self.rows(query, [f"{sink.table.split('.')[1]}_d%"])

    def note(self: Connection, statement: str, *values: Any) -> int:
        statements.append(statement)
        attaches = "ATTACH PARTITION" in statement
        scans.extend([counted(self)] if attaches else [])
        done = real(self, statement, *values)
        scans.extend([counted(self)] if attaches else [])
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "execute", note)
        jdbc.deliver(sink, changed(published, published.rows))
    before, after = scans
    assert before == after
    assert before
    created_indexes = [text for text in statements if text.startswith("CREATE INDEX")]
    assert len(created_indexes) == 1
    assert "USING btree (item_id) WHERE" in created_indexes[0]
    (day,) = (name for name in tables(client, sink) if re.search(r"_d\d{8}_[0-9a-f]{8}$", name))
    indexes = client.rows(
        "SELECT count(*), count(i.inhparent) FROM pg_index x LEFT JOIN pg_inherits i ON i.inhrelid = x.indexrelid "
        "WHERE x.indrelid = CAST(? AS regclass)",
        [f"public.{day}"],
    )
    assert indexes == [("2", "2")]  # each belongs to an index of the served table
    assert client.rows(f"SELECT DISTINCT seen FROM {sink.table}") == [("t",)]


def test_a_reader_sees_one_whole_day_at_any_time(
    published: PublishedLists, sink: jdbc.Settings, client: Connection, other_client: Connection, kind: str
) -> None:
    rows = published.rows.select(VALUES)
    lists = [
        changed(published, rows.set_column(5, "model_version", pa.array([version] * len(rows))))
        for version in ("a", "b")
    ]
    jdbc.deliver(sink, lists[0])
    ended, states = threading.Event(), set()

    def read() -> None:
        query = f"SELECT count(*), min(model_version), max(model_version) FROM {sink.table} WHERE dt = CAST(? AS date)"
        while not ended.is_set():
            states.update(other_client.rows(query, [RUN_DATE]))

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            for turn in range(1, 8):
                jdbc.deliver(sink, lists[turn % 2])
        finally:
            ended.set()
        reader.result()
    assert states == {(str(len(rows)), version, version) for version in ("a", "b")}


def test_two_deliveries_at_once_are_one_after_the_other(
    published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    """Also the first two, which both find no table; and no table of either is left."""
    rows = published.rows.select(VALUES)
    lists = [
        changed(published, rows.set_column(2, "item_id", pa.array([item] * len(rows)))) for item in "abcd"
    ]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda one: jdbc.deliver(sink, one), lists))
    assert [one.written for one in done] == [len(rows)] * 4
    assert len({row[2] for row in served(client, sink)}) == 1
    assert len(served(client, sink)) == len(rows)
    assert len(tables(client, sink)) == 2


def test_a_partition_that_is_dropped_during_the_query_is_left_out(
    published: PublishedLists, sink: jdbc.Settings, client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL then returns null for the dates of the partition, as here."""
    rows_of = Connection.rows

    def with_dropped_partition(
        database: Connection, statement: str, values: Sequence[str | int] = ()
    ) -> list[tuple[str | None, ...]]:
        rows = rows_of(database, statement, values)
        return [*rows, ("16999", None, "")] if "pg_inherits" in statement else rows

    monkeypatch.setattr(Connection, "rows", with_dropped_partition)
    assert jdbc.deliver(sink, published).written == len(published.rows)
    assert isinstance(day_tables.open_table(client, sink.table), day_tables.PartitionedTable)
    assert len(served(client, sink)) == len(published.rows)


def test_a_long_reader_stops_only_the_replacement_of_its_day(
    published: PublishedLists,
    sink: jdbc.Settings,
    client: Connection,
    other_client: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A new date is served beside it. The old date stays. A replacement waits, and says for whom."""
    for name, value in (("_LOCK_TIMEOUT", "100ms"), ("_PAUSE_S", 0.05), ("_PATIENCE_S", 0.3)):
        monkeypatch.setattr(day_tables, name, value)
    one_date = sink.model_copy(update={"keep_dates": 1})
    jdbc.deliver(one_date, published)
    with other_client.transaction():
        before = served(other_client, sink)
        jdbc.deliver(one_date, changed(published, published.rows, "2026-01-20"))
        assert len(served(client, sink, "2026-01-20")) == len(before)
        assert f"the rows of ['{RUN_DATE}'] stay" in caplog.text
        with pytest.raises(InfrastructureError, match=r"were not replaced .* process \d+ of lists"):
            jdbc.deliver(one_date, changed(published, published.rows, "2026-01-20"))
        assert served(client, sink) == before
    assert new_tables(client, sink) == []
    jdbc.deliver(one_date, changed(published, published.rows, "2026-01-20"))
    assert served(client, sink) == []
    assert len(tables(client, sink)) == 2


def test_a_partitioned_table_of_others_is_served_by_rows(
    runs: PublishedRuns, published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    """Partitions of months: the sink replaces rows there, as earlier releases do."""
    client.execute(PLAIN.format(sink.table) + " PARTITION BY RANGE (dt)")
    client.execute(
        f"CREATE TABLE {sink.table}_m PARTITION OF {sink.table} FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')"
    )
    jdbc.deliver(sink, published)
    assert exact(served(client, sink)) == expected(runs.lists)
    assert jdbc.deliver(sink, published).written == 0
    with pytest.raises(ConfigError, match="no partition of relation") as refused:
        jdbc.deliver(sink, changed(published, published.rows, "2026-02-02"))
    assert "create the partition" in refused.value.remedy


def test_partitions_without_rows_are_no_dates(
    published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    """An administrator has made the partitions of the next days. No old date is deleted for them."""
    client.execute(PLAIN.format(sink.table) + " PARTITION BY LIST (dt)")
    for day in ("2026-01-08", "2026-02-01", "2026-02-02"):
        name = f"{sink.table}_{day.replace('-', '')}"
        client.execute(f"CREATE TABLE {name} PARTITION OF {sink.table} FOR VALUES IN ('{day}')")
    for dt in ("2026-01-07", "2026-01-08"):
        jdbc.deliver(sink, changed(published, published.rows, dt))
        assert len(served(client, sink, dt)) == len(published.rows)
    assert len(served(client, sink, "2026-01-07")) == len(published.rows)
    jdbc.deliver(sink, changed(published, published.rows, "2026-01-09"))
    assert served(client, sink, "2026-01-07") == []
    assert len(tables(client, sink)) == 5


def test_the_documented_step_gives_a_plain_table_partitions(
    runs: PublishedRuns, published: PublishedLists, sink: jdbc.Settings, client: Connection
) -> None:
    """The statements of docs/delivery.md, unchanged but for the name of the table."""
    client.execute(PLAIN.format(sink.table))
    jdbc.deliver(sink, published)
    jdbc.deliver(sink, changed(published, published.rows, "2026-01-20"))
    text = (ROOT / "docs/delivery.md").read_text()
    (block,) = re.findall(r"```sql\n(BEGIN;.*?)```", text, re.DOTALL)
    schema, name = sink.table.split(".")
    block = block.replace("serving.", f"{schema}.").replace("recommendations", name)
    with client.transaction():
        client.execute(block.replace("BEGIN;", "").replace("COMMIT;", ""))
    assert exact(served(client, sink)) == expected(runs.lists)
    assert isinstance(day_tables.open_table(client, sink.table), day_tables.PartitionedTable)
    before = served(client, sink, "2026-01-20")
    jdbc.deliver(sink, changed(published, published.rows, "2026-01-21"))
    assert client.rows(f"SELECT DISTINCT dt FROM {sink.table} ORDER BY dt") == [
        ("2026-01-20",),
        ("2026-01-21",),
    ]
    assert served(client, sink, "2026-01-20") == before


@pytest.mark.timeout(600)
def test_a_killed_delivery_changes_nothing_and_the_next_one_is_whole(
    runs: PublishedRuns,
    published: PublishedLists,
    sink: jdbc.Settings,
    client: Connection,
    other_client: Connection,
    tmp_path: Path,
    kind: str,
) -> None:
    """The process dies with all rows loaded, while it waits for its turn at the table."""
    one = changed(published, first_places(published))
    jdbc.deliver(sink, one)
    before = served(client, sink)
    config = write_config(runs, sink, tmp_path)
    with other_client.transaction():
        other_client.execute(f"LOCK TABLE ONLY {sink.table} IN SHARE ROW EXCLUSIVE MODE")
        job = start(config, tmp_path / "job.log")
        try:
            wait_for(lambda: waiting(client), job, tmp_path / "job.log")
            assert len(new_tables(client, sink)) == 1
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
    changes = len(before) if kind == "plain" else 0
    assert closing["sinks"][0]["written"] == len(runs.lists) - changes
    assert os.environ["LISTS_PASSWORD"] not in message
    # The connection of the killed process is lost, and so is its lock: the rerun has dropped its table.
    assert len(tables(client, sink)) == (2 if kind == "partitions" else 1)


# Number of the statement before which, or after which, the process dies.
DEATHS = [*((number, "before") for number in range(1, 12)), (3, "after"), (6, "after"), (10, "after")]


@pytest.mark.processes
@pytest.mark.parametrize("deaths", [DEATHS[::4], DEATHS], ids=["some", "all"])
def test_a_delivery_that_dies_at_any_statement_leaves_a_whole_day(
    published: PublishedLists,
    sink: jdbc.Settings,
    client: Connection,
    deaths: list[tuple[int, str]],
) -> None:
    """Deliveries die one after the other. The last one lives: it serves its rows, and drops all other tables."""
    versions = ["first", *map(str, range(len(deaths))), "last"]
    lists = {
        name: changed(
            published, published.rows.set_column(2, "item_id", pa.array([name] * len(published.rows)))
        )
        for name in versions
    }
    jdbc.deliver(sink, lists["first"])
    now, served_later = "first", 0
    with fork_server("tests.delivery.dying_delivery") as context:
        for index, death in enumerate(deaths):
            process = context.Process(target=deliver_and_die, args=(sink, lists[str(index)], *death))
            process.start()
            process.join(60)
            assert process.exitcode == -signal.SIGKILL, f"no death {death}"
            rows = served(client, sink)
            assert len(rows) == len(published.rows)
            (version,) = {row[2] for row in rows}
            assert version in (now, str(index))
            served_later += version != now
            now = version
    assert served_later <= 1
    wait_for_locks(client)
    jdbc.deliver(sink, lists["last"])
    assert {row[2] for row in served(client, sink)} == {"last"}
    assert len(tables(client, sink)) == 2


def wait_for_locks(client: Connection) -> None:
    """Waits until PostgreSQL has noticed that the sessions of the dead processes are lost."""
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    end = time.monotonic() + 30
    while client.rows(query) != [("0",)]:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_tables_of_others_are_not_dropped(
    published: PublishedLists, sink: jdbc.Settings, client: Connection, other_client: Connection
) -> None:
    """A delivery that runs has the lock of its table. Tables of release 0.1.0 have none: they are kept a day."""
    young = time.strftime("%Y%m%d%H%M%S", time.gmtime())
    names = [
        f"ld_{young}_0000000a",
        f"ld_{young}_ffffffff",
        f"st_{young}_00000001",
        "st_20200101000000_00000002",
    ]
    for name in names:
        client.execute(f"CREATE TABLE {sink.table}_{name} (x int)")
    other_client.rows(f"SELECT pg_advisory_lock({0x6E72}, -1)")
    jdbc.deliver(sink, published)
    bare = sink.table.split(".")[1]
    kept = {name for name in tables(client, sink) if re.search("_(ld|st)_", name)}
    assert kept == {f"{bare}_{names[1]}", f"{bare}_{names[2]}"}
    other_client.rows(f"SELECT pg_advisory_unlock({0x6E72}, -1)")
    jdbc.deliver(sink, changed(published, published.rows))
    assert new_tables(client, sink) == []
    client.execute(f"DROP TABLE {sink.table}_{names[2]}")


def write_config(runs: PublishedRuns, sink: jdbc.Settings, folder: Path) -> Path:
    """Writes a configuration file with the sink."""
    values = runs.config_of(deliver={"sinks": [sink.model_dump(mode="json")]}).model_dump(mode="json")
    path = folder / "config.yaml"
    path.write_text(json.dumps(values))
    return path


def start(config: Path, log: Path) -> subprocess.Popen[bytes]:
    """Starts a delivery in a process, which needs no Spark."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [
                sys.executable,
                "jobs/deliver_recommendations.py",
                "--config",
                str(config),
                "--run-date",
                RUN_DATE,
            ],
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


def test_a_user_without_privileges_is_told_what_to_allow(
    published: PublishedLists, sink: jdbc.Settings, client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.execute(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
    monkeypatch.setenv("LISTS_USER", "guest")
    for match in ("permission denied for schema public", "permission denied for table"):
        with pytest.raises(ConfigError, match=match) as refused:
            jdbc.deliver(sink, published)
        assert "allow the user to create and change tables" in refused.value.remedy
        # Now the table exists, and belongs to another user.
        client.execute("GRANT CREATE ON SCHEMA public TO guest")
        monkeypatch.setenv("LISTS_USER", "lists")
        jdbc.deliver(sink, published)
        monkeypatch.setenv("LISTS_USER", "guest")
    client.execute("REVOKE CREATE ON SCHEMA public FROM guest")
    client.execute("DROP ROLE guest")
    assert new_tables(client, sink) == []


def test_without_sslmode_the_connection_is_encrypted_and_the_server_is_checked(
    published: PublishedLists, sink: jdbc.Settings, database: Server, tmp_path: Path
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
        with session(encrypted, server) as client:
            [(used,)] = client.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert used == "t"
        elsewhere = sink.model_copy(update={"url": trusted.replace("127.0.0.1", "localhost")})
        with pytest.raises(ConfigError, match="localhost"):
            jdbc.deliver(elsewhere, published)


def test_a_server_that_never_answers_is_left(published: PublishedLists, sink: jdbc.Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"jdbc:postgresql://127.0.0.1:{silent.getsockname()[1]}/x?sslmode=disable"
        for limit in ("loginTimeout=1", "socketTimeout=1"):
            start = time.monotonic()
            with pytest.raises(InfrastructureError):
                jdbc.deliver(sink.model_copy(update={"url": f"{url}&{limit}"}), published)
            assert time.monotonic() - start < 30


@pytest.mark.parametrize("user, message", [("a\0b", r"U\+0000|22021"), ("incompressible", "SQLSTATE 54000")])
def test_a_value_that_postgresql_cannot_hold_is_bad_data(
    runs: PublishedRuns,
    published: PublishedLists,
    sink: jdbc.Settings,
    client: Connection,
    user: str,
    message: str,
) -> None:
    """A NUL fails in a task of Spark, a key too long for the index after the load. A retry does not help."""
    if user == "incompressible":  # PostgreSQL compresses repetitions before it measures a key
        user = "".join(sha256(str(place).encode()).hexdigest() for place in range(200))
    jdbc.deliver(sink, published)
    before = served(client, sink)
    frame = runs.lists.copy()
    frame.loc[frame.user_id == frame.user_id.min(), "user_id"] = user
    lists = changed(published, pa.Table.from_pandas(frame, preserve_index=False))
    with pytest.raises(DataError, match=message) as refused:
        jdbc.deliver(sink, in_spark(runs, lists) if "\0" in user else lists)
    assert "a retry will not help" in refused.value.remedy
    assert served(client, sink) == before
    assert new_tables(client, sink) == []


def test_the_password_may_stand_in_a_file(
    published: PublishedLists, sink: jdbc.Settings, database: Server, tmp_path: Path, client: Connection
) -> None:
    (tmp_path / "password").write_text(f"{database.password}\n")
    secret = {"user": {"env": "LISTS_USER"}, "password": {"file": str(tmp_path / "password")}}
    jdbc.deliver(jdbc.Settings.model_validate({**sink.model_dump(), **secret}), published)
    assert len(served(client, sink)) == published.manifest.rows
