"""Logs that tasks prepare: what `build` publishes equals the oracle, for random logs, to the bit.

The oracle (tests/etl/prepare/oracle.py) shares no code with etl. DuckDB is a second oracle of histories and
joins: one SQL text each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from etl.build import BuildResult
from etl.latest.latest_features import histories_of
from etl.passes import raw_days
from etl.prepare.click_tables import good_rows_of
from etl.raw.erased_users import add_erased, list_or_new
from etl.raw.files import require_raw
from etl.workflow.feature_plan import plan_of
from spark.workers import LocalWorkers
from storage.manifest import data_files, is_published, read_manifest
from storage.paths import LakePaths, Partition
from tests.etl import cases
from tests.etl.prepare import feature_oracle, oracle, random_logs
from tests.etl.prepare.oracle import Row
from tests.etl.prepare.random_logs import CASES, DAYS
from tests.etl.tasks_here import TasksHere

pytestmark = pytest.mark.processes
RUN_DATE = DAYS[4]
SEEDS = (1, 2)


def no_session() -> SparkSession:
    raise AssertionError("no Spark session is needed")


@pytest.fixture(scope="module")
def workers() -> LocalWorkers:
    return TasksHere(2, no_session)


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has several splits, and a day several buckets of users."""
    monkeypatch.setattr("etl.prepare.task_passes._TASK_BYTES", 2500)
    monkeypatch.setattr("etl.readers.text.FILE_SPLIT_BYTES", 2000)
    monkeypatch.setattr("etl.readers.jsonl.FILE_SPLIT_BYTES", 5000)


def splits_of(config: Config) -> Sequence[Any]:
    return (None,) if config.split.by == "day" else oracle.SPLITS


def prepared_of(config: Config, day: str) -> Partition:
    return LakePaths(config.lake).prepared(config.name).partition(day)


def rows_of(partition: Partition, split: Any = None, order: str = "row_id") -> list[Row]:
    """The rows of a split of a partition, sorted by a column."""
    paths = data_files(partition, read_manifest(partition), split)
    rows = [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted(rows, key=lambda row: row[order])


def by_row_id(rows: Sequence[Row], split: Any) -> list[Row]:
    return sorted((row for row in rows if row["split"] == split), key=lambda row: row["row_id"])


def exact(rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, str]]:
    """The rows with texts instead of values: 1, 1.0 and "1" differ, and so do 0.0 and -0.0."""
    return [{name: repr(row[name]) for name in names} for row in rows]


def fixed_columns(config: Config) -> list[str]:
    keys = config.keys
    names = ["row_id"] + (["user_key", "item_key"] if keys else [])
    names += ["group_key"] if keys and keys.group else []
    names += ["event_time"] if config.log.event_time else []
    return names + ["label"] + (["weight"] if config.log.label.weights else [])


def assert_prepared(config: Config, day: str, expected: Sequence[Row]) -> None:
    """The prepared rows of a day are those of the oracle in each split: all columns, to the bit."""
    partition = prepared_of(config, day)
    names = [*fixed_columns(config), *sorted({name for group in config.features for name in group.columns})]
    for split in splits_of(config):
        found = rows_of(partition, split)
        assert {frozenset(row) for row in found} == {frozenset(names)}
        assert exact(found, names) == exact(by_row_id(expected, split), names), (day, split)


def assert_log_is_read(
    config: Config, built: BuildResult, day: str, log: oracle.DayLog, published: Partition
) -> None:
    """Quarantine and counts are those of the oracle, and each line is used, dropped or quarantined.

    `published` has the rows of the day: its prepared rows, or its features.
    """
    lake, counts = LakePaths(config.lake), built.counts[day]
    found = [
        {**row, "source_file": Path(row["source_file"]).name}
        for row in rows_of(lake.quarantine.partition(day))
    ]
    if config.log.format in ("parquet", "orc"):  # tests/etl/readers hold the texts of such rows
        log.quarantine = [
            {**row, "line": other["line"]} for row, other in zip(log.quarantine, found, strict=True)
        ]
    assert found == log.quarantine
    assert (counts.rows_in, counts.good, counts.bad) == (log.lines, len(log.good), len(log.quarantine))
    assert counts.dropped == log.dropped
    timed = config.log.by_day and config.log.event_time is not None
    found_times = counts.misdated and (
        counts.misdated.rows,
        counts.misdated.earliest,
        counts.misdated.latest,
    )
    assert found_times == (log.misdated(config, day) if timed else None)
    used = [row for split in splits_of(config) for row in rows_of(published, split)]
    if "who_count" in used[0]:  # rows are combined; each row of the log has a user
        assert sum(row["who_count"] for row in used) + sum(counts.dropped.values()) == counts.rows_in
        return
    stride = config.negatives.per_positive + 1 if config.negatives else 1
    of_log = [row["row_id"] // stride for row in used if row["row_id"] % stride == 0]
    places = Counter(of_log + [row["row_id"] for row in found])
    assert set(places.values()) == {1}
    assert len(places) + log.left_out.total() == counts.rows_in


def assert_features(config: Config, built: BuildResult, rows: Mapping[str, Sequence[Row]]) -> None:
    """The features of all days are those of the oracle, fitted on its train rows, and the clicks are counted."""
    spec, lake, members = built.workflow.spec, LakePaths(config.lake), built.dataset.splits
    numbers = {feature.name for feature in spec.dense}
    train = train_rows(built, rows)
    for day, of_day in rows.items():
        partition = lake.features(built.workflow.version).partition(day)
        for split in splits_of(config):
            found, expected = rows_of(partition, split), by_row_id(of_day, split)
            assert [list(row) for row in found] == [spec.table_columns] * len(expected)
            assert exact(found, fixed_columns(config)) == exact(expected, fixed_columns(config))
            for name, values in feature_oracle.features(config, train, expected).items():
                column = [row[name] for row in found]
                if name in numbers:
                    np.testing.assert_allclose(column, values, rtol=1e-6, atol=1e-6, err_msg=name)
                else:
                    assert column == values, (day, split, name)
    for split, of_split in members.items():
        label = None if config.split.by == "day" else split
        for member in of_split:
            clicks = sum(row["label"] for row in rows[member.dt] if row["split"] == label)
            assert (member.label, member.clicks) == (label, clicks)


def train_rows(built: BuildResult, rows: Mapping[str, Sequence[Row]]) -> list[Row]:
    days = [member.dt for member in built.dataset.splits["train"]]
    return [row for day in days for row in rows[day] if row["split"] in (None, "train")]


def assert_clicks(config: Config, day: str, erased: Mapping[str, str]) -> None:
    """The published last clicks of a day are those of the oracle."""
    assert config.history is not None
    rows, expected = oracle.read_log(config, day, erased).good, []
    for user in sorted({row["user_key"] for row in rows}):
        clicks = oracle.last_clicks(rows, user, config.history.length)
        times = {"times": [click["event_time"] for click in clicks]} if config.log.event_time else {}
        if clicks:
            items = [click["item_key"] for click in clicks]
            expected.append({"user_key": user, "items": items, **times})
    assert rows_of(LakePaths(config.lake).last_clicks.partition(day), order="user_key") == expected


def assert_users_have_latest_histories(
    config: Config, built: BuildResult, rows: Mapping[str, Sequence[Row]]
) -> None:
    """The table of users, with which lists are scored, has the clicks up to the run date."""
    partition = LakePaths(config.lake).users(built.workflow.version).partition(RUN_DATE)
    assert config.history is not None
    columns = config.history.columns
    published = {row["user_key"]: row for row in rows_of(partition, order="user_key")}
    histories = oracle.latest_histories(config, RUN_DATE, oracle.SPLITS)
    names = {name for group in config.features for name in group.columns}
    assert {row["user_key"] for of_day in rows.values() for row in of_day} <= published.keys()
    none: Row = {name: [] for name in columns}
    of_users = [{**dict.fromkeys(names), **histories.get(user, none)} for user in published]
    config = config.model_copy(update={"features": [g for g in config.features if g.kind != "dense"]})
    expected = feature_oracle.features(config, train_rows(built, rows), of_users)
    for name in columns:
        assert [row[name] for row in published.values()] == expected[name]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_published_rows_are_the_oracles(workers: LocalWorkers, tmp_path: Path, name: str, seed: int) -> None:
    random_logs.write_log(tmp_path / "raw", name, seed)
    config = random_logs.write_config(tmp_path, name)
    built = cases.run_build(workers, config, RUN_DATE)
    rows = {day: oracle.prepared_rows(config, day) for day in built.features}
    assert len(rows) == (5 if config.split.by == "day" else 1)
    for day, expected in rows.items():
        assert_log_is_read(config, built, day, oracle.read_log(config, day), prepared_of(config, day))
        assert_prepared(config, day, expected)
    assert_features(config, built, rows)
    if config.history and config.split.by == "day":
        for day in DAYS[:5]:
            assert_clicks(config, day, {})
    if config.history:
        assert_users_have_latest_histories(config, built, rows)


@pytest.mark.parametrize("name", ["history, negatives and tables", "leave last out", "json lines"])
def test_erased_users_are_in_no_row(workers: LocalWorkers, tmp_path: Path, name: str) -> None:
    """The rows of a user after the day of the erasure are those of a new user, if the log is stored by day."""
    random_logs.write_log(tmp_path / "raw", name, 3)
    config = random_logs.write_config(tmp_path, name)
    lake, erased = LakePaths(config.lake), {"3": DAYS[2], "5": DAYS[5]}
    for user, day in erased.items():
        add_erased(lake, list_or_new(lake), [user], day)
    built = cases.run_build(workers, config, RUN_DATE)
    for day in built.features:
        log = oracle.read_log(config, day, erased)
        assert log.left_out["erased_user"] > 3
        assert_log_is_read(config, built, day, log, prepared_of(config, day))
        assert_prepared(config, day, oracle.prepared_rows(config, day, erased))
        if config.split.by == "day":
            assert_clicks(config, day, erased)


def test_a_changed_day_changes_the_days_that_look_back_to_it(workers: LocalWorkers, tmp_path: Path) -> None:
    name = "without times"
    for folder, seed in (("raw", 9), ("later", 10)):
        random_logs.write_log(tmp_path / folder, name, seed)
    config = random_logs.write_config(tmp_path, name)
    cases.run_build(workers, config, RUN_DATE)
    before = {day: read_manifest(prepared_of(config, day)).digest for day in DAYS[:5]}
    for part in (tmp_path / "raw" / DAYS[1]).iterdir():
        part.write_bytes((tmp_path / "later" / DAYS[1] / part.name).read_bytes())
    cases.run_build(workers, config, RUN_DATE)
    for day in DAYS[:5]:
        assert_prepared(config, day, oracle.prepared_rows(config, day))
    after = {day: read_manifest(prepared_of(config, day)).digest for day in DAYS[:5]}
    assert [day for day in DAYS[:5] if before[day] != after[day]] == DAYS[1:3]


@pytest.mark.parametrize("name", ["history, negatives and tables", "without times", "groupby", "positions"])
def test_days_one_by_one_are_all_days_at_once(workers: LocalWorkers, tmp_path: Path, name: str) -> None:
    """The prepared rows, and the features of the last run, do not depend on the runs before."""
    random_logs.write_log(tmp_path / "raw", name, 4)
    daily, at_once = (
        random_logs.write_config(tmp_path, name, {"lake": str(tmp_path / lake)}) for lake in ("daily", "once")
    )
    for run_date in DAYS[2:5]:
        cases.run_build(workers, daily, run_date)
    built = cases.run_build(workers, daily, DAYS[5])
    assert built.dataset == cases.run_build(workers, at_once, DAYS[5]).dataset
    for day in DAYS[1:]:
        assert_prepared(daily, day, oracle.prepared_rows(daily, day))
        tables = [
            [lake.prepared(daily.name), lake.features(built.workflow.version)]
            for lake in (LakePaths(daily.lake), LakePaths(at_once.lake))
        ]
        one_by_one, together = ([rows_of(table.partition(day)) for table in of_lake] for of_lake in tables)
        assert one_by_one == together


HISTORIES: dict[str, dict[str, Any]] = {
    "groups": {},
    "without times": {},
    "leave last out": {},
    "leave last out without times": {},
    "fraction of positions": {},
    "fraction of times": random_logs.IN_ONE_TABLE,
}


@pytest.mark.parametrize("name", HISTORIES)
def test_latest_histories_are_the_oracles(workers: LocalWorkers, tmp_path: Path, name: str) -> None:
    random_logs.write_log(tmp_path / "raw", name, 5)
    for before, against, known in (
        (None, "next_day", oracle.SPLITS),
        (None, "test_split", oracle.SPLITS[:2]),
        ("validation", "next_day", oracle.SPLITS[:1]),
    ):
        change = {**HISTORIES[name], "measure": {"against": against}, "score": {"k": 3}}
        config = random_logs.write_config(tmp_path, name, change)
        days = raw_days(plan_of(config), RUN_DATE)
        found = histories_of(workers, plan_of(config), LakePaths(config.lake), days, before=before)  # type: ignore[arg-type]
        assert found is not None
        assert isinstance(found.rows, pa.Table)
        histories = {row.pop("user_key"): row for row in found.rows.to_pylist()}
        assert histories == oracle.latest_histories(config, RUN_DATE, known)
        assert len(histories) > 5


@pytest.mark.parametrize("name", ["groups", "json lines", "without times"])
def test_good_rows_are_the_oracles(workers: LocalWorkers, tmp_path: Path, name: str) -> None:
    random_logs.write_log(tmp_path / "raw", name, 6)
    config = random_logs.write_config(tmp_path, name)
    erased = {"2": RUN_DATE}
    add_erased(LakePaths(config.lake), list_or_new(LakePaths(config.lake)), list(erased), RUN_DATE)
    raw = require_raw(config, config.log, RUN_DATE)
    expected = oracle.read_log(config, RUN_DATE, erased).good
    for only_clicks in (False, True):
        names = [name for name in fixed_columns(config) if name != "weight"]
        found = pa.concat_tables(good_rows_of(workers, plan_of(config), raw, names, only_clicks=only_clicks))
        kept = [row for row in expected if row["label"] == 1 or not only_clicks]
        assert exact(found.to_pylist(), names) == exact(kept, names)
        assert len(kept) > 10


def test_rows_are_cut_by_position_without_a_preparation(workers: LocalWorkers, tmp_path: Path) -> None:
    """Tasks that encode the log directly divide it as the oracle does."""
    random_logs.write_log(tmp_path / "raw", "fraction of positions", 7)
    changes = {
        "log": {**random_logs.ONE_UNTIMED, "path": "{data}/2026*/*.csv"},
        "users": None,
        "items": None,
        "split": random_logs.BY_FRACTION,
        "prepare": [{"filter": {"keep": "price < 90"}}],
        "features": [{"columns": ["price"], **random_logs.NUMBERS}, random_logs.WHAT],
        "scopes": {},
    }
    config = cases.write_config(tmp_path, random_logs.SHOP, changes)
    built = cases.run_build(workers, config, RUN_DATE)
    assert not is_published(prepared_of(config, RUN_DATE))
    encoded = LakePaths(config.lake).features(built.workflow.version).partition(RUN_DATE)
    assert_log_is_read(config, built, RUN_DATE, oracle.read_log(config, RUN_DATE), encoded)
    assert_features(config, built, {RUN_DATE: oracle.prepared_rows(config, RUN_DATE)})


# A second oracle

_HISTORIES_IN_SQL = """
    SELECT row.row_id, coalesce(
        list(click.item_key ORDER BY click.day DESC, click.event_time DESC, click.row_id DESC)
            FILTER (click.item_key IS NOT NULL), []
    )[:4] AS history
    FROM log AS row LEFT JOIN log AS click
        ON click.user_key = row.user_key AND click.label = 1
        AND click.day BETWEEN row.day - INTERVAL 2 DAY AND row.day
        AND (click.event_time, click.row_id * (click.day = row.day)::INT)
            < (row.event_time, row.row_id * (click.day = row.day)::INT)
    WHERE row.day = DATE '2026-03-05' GROUP BY row.row_id ORDER BY row.row_id
"""
_JOINS_IN_SQL = """
    SELECT log.row_id, ltrim(users.age, '+')::BIGINT AS age, users.city, items.kind, items.weight_kg::DOUBLE
    FROM log
    LEFT JOIN read_csv(
        '{folder}/users-*.csv', delim = ';', all_varchar = true, nullstr = ['', 'none'], union_by_name = true
    ) AS users ON users.who = log.user_key
    LEFT JOIN read_csv('{folder}/items.csv', delim = ';', all_varchar = true) AS items
        ON items.what = log.item_key
    WHERE log.day = DATE '2026-03-05' ORDER BY log.row_id
"""


def test_histories_and_joins_are_those_of_duckdb(workers: LocalWorkers, tmp_path: Path) -> None:
    name, day = "history, negatives and tables", RUN_DATE
    random_logs.write_log(tmp_path / "raw", name, 8, misdated=0)
    config = random_logs.write_config(tmp_path, name, {"negatives": None})
    cases.run_build(workers, config, RUN_DATE)
    found = rows_of(prepared_of(config, day))
    columns = ["row_id", "user_key", "item_key", "label", "event_time"]
    log = pd.DataFrame(
        [
            {**{column: row[column] for column in columns}, "day": pd.Timestamp(dt)}
            for dt in DAYS
            for row in oracle.read_log(config, dt).good
        ]
    )
    database = duckdb.connect()
    database.register("log", log)
    histories = database.sql(_HISTORIES_IN_SQL).fetchall()
    assert [(row["row_id"], row["history"]) for row in found] == histories
    assert max(len(history) for _, history in histories) == 4
    joins = database.sql(_JOINS_IN_SQL.format(folder=tmp_path / "raw")).fetchall()
    names = ["row_id", "age", "city", "kind", "weight_kg"]
    assert [tuple(row[name] for name in names) for row in found] == joins
    assert any(None in row for row in joins)
