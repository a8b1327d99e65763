"""The table `last_clicks` without Spark: equal partitions, each published once, and latest histories."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from conf.errors import DataError
from conf.types import Config, Split
from etl.latest.latest_features import histories_of, latest_histories, latest_histories_table
from etl.passes import raw_days
from etl.prepare import click_tables as module
from etl.prepare.click_tables import ClickTables, click_tables, good_rows_of
from etl.raw.erased_users import add_erased, list_or_new
from etl.raw.files import RawFiles, require_raw
from etl.spark.frame_passes import LastClicks
from etl.workflow.feature_plan import plan_of
from spark.choose_workers import SparkWorkers
from spark.workers import LocalWorkers
from storage.manifest import Manifest, data_files, read_manifest
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.log_rows import good_rows, read_log
from tests.etl.tasks_here import TasksHere
from tests.etl.test_history_tables import DAYS, LENGTH, RUN_DATE, SETTINGS, make_log

pytestmark = pytest.mark.processes

_LOG: Any = SETTINGS["log"]
UNTIMED: dict[str, Any] = {
    "log": {key: value for key, value in _LOG.items() if key != "event_time"},
    "quality": {},
}
ONE_TABLE: dict[str, Any] = {"history": {"length": LENGTH}}


def refuse_spark() -> SparkSession:
    raise AssertionError("a JVM is started")


@pytest.fixture(scope="module")
def workers() -> LocalWorkers:
    return TasksHere(2, refuse_spark)


def write_log(folder: Path, log: pd.DataFrame) -> None:
    """Two plain files and a compressed one a day, with lines that are no rows, and a day without a click."""
    for day, rows in log.groupby("day"):
        path = folder / f"raw/dt={day}"
        path.mkdir(parents=True)
        fields = rows[["label", "user", "item", "time"]].astype(str)
        lines = ["\t".join(row) for row in fields.itertuples(index=False)]
        lines[3:3] = ["no row", "7\tu1\ti1\t5", "1\t\ti1\t5"]
        (path / "a.tsv").write_text("\n".join(lines[:11]) + "\n")
        (path / "b.tsv.gz").write_bytes(gzip.compress(("\n".join(lines[11:30]) + "\n").encode()))
        (path / "c.tsv").write_text("\n".join(lines[30:]) + "\n")


def config_of(folder: Path, *changes: Mapping[str, Any], log: pd.DataFrame | None = None) -> Config:
    write_log(folder, make_log() if log is None else log)
    return cases.write_config(folder, SETTINGS, *changes)


def without_spark(config: Config, lake: LakePaths, workers: LocalWorkers) -> ClickTables:
    tables = click_tables(workers, plan_of(config), lake)
    assert tables is not None
    return tables


def with_spark(config: Config, lake: LakePaths, spark: SparkSession) -> LastClicks:
    assert config.history is not None
    return LastClicks(SparkWorkers(spark), plan_of(config), config.history, lake)


def published(lake: LakePaths, day: str) -> tuple[Manifest, pd.DataFrame]:
    partition = lake.last_clicks.partition(day)
    return read_manifest(partition), cases.read_rows(partition)


def in_parts(parts: Sequence[pa.Table], _: RawFiles) -> Iterator[pa.Table]:
    return iter(parts)


def clicks_of(table: pa.Table | None) -> dict[str, list[tuple[str, int | None]]]:
    assert table is not None
    return {
        row["user_key"]: list(zip(row["items"], row.get("times") or [None] * len(row["items"]), strict=True))
        for row in table.to_pylist()
    }


def clicks_of_frame(frame: Any) -> dict[str, list[tuple[str, int | None]]]:
    return {
        row["user_key"]: [(click["item"], click["time"]) for click in row["clicks"]]
        for row in frame.collect()
    }


@pytest.mark.parametrize("changes", [{}, UNTIMED, {"output": {"row_group_rows": 2}}])
def test_partitions_equal_those_of_spark_and_are_current_for_it(
    spark: SparkSession, workers: LocalWorkers, tmp_path: Path, changes: Mapping[str, Any]
) -> None:
    log = make_log()
    log.loc[log.day == DAYS[1], "label"] = "0"  # a day without a click has a partition without rows
    config = config_of(tmp_path, changes, log=log)
    here, there = LakePaths(config.lake), LakePaths(str(tmp_path / "other"))
    first, second = without_spark(config, here, workers), with_spark(config, there, spark)
    for day in DAYS[1:4]:
        assert first.digest_before(day) == second.digest_before(day)
        assert clicks_of(first.before(day)) == clicks_of_frame(second.before(day))
    for day in DAYS[:3]:
        (manifest, rows), (expected, expected_rows) = published(here, day), published(there, day)
        assert manifest.digest == expected.digest
        assert (manifest.schema, manifest.inputs) == (expected.schema, expected.inputs)
        assert (manifest.rows, manifest.rows_in, manifest.dropped) == (
            expected.rows,
            expected.rows_in,
            expected.dropped,
        )
        assert (len(rows) == 0) == (day == DAYS[1])
        pd.testing.assert_frame_equal(rows, expected_rows)
    # Each finds the partitions of the other up to date, and publishes nothing.
    created = [published(lake, day)[0].created_at for lake in (here, there) for day in DAYS[:3]]
    assert with_spark(config, here, spark).digest_before(DAYS[3]) == second.digest_before(DAYS[3])
    assert without_spark(config, there, workers).digest_before(DAYS[3]) == first.digest_before(DAYS[3])
    assert clicks_of(without_spark(config, there, workers).before(DAYS[3])) == clicks_of(
        first.before(DAYS[3])
    )
    assert created == [published(lake, day)[0].created_at for lake in (here, there) for day in DAYS[:3]]


def test_a_day_is_read_once_and_again_only_if_it_changes(tmp_path: Path, workers: LocalWorkers) -> None:
    config = config_of(tmp_path)
    lake, read = LakePaths(config.lake), []
    original = without_spark(config, lake, workers).rows_of

    def rows_of(raw: RawFiles) -> Iterator[pa.Table]:
        read.append(raw.dt)
        return original(raw)

    assert config.history is not None
    tables = ClickTables(plan_of(config), config.history, lake, rows_of)
    tables.digest_before(DAYS[2])
    tables.before(DAYS[3])
    assert read == DAYS[:3]
    tables.before(DAYS[2])
    assert read == DAYS[:3]
    (tmp_path / f"raw/dt={DAYS[1]}/c.tsv").write_text("1\tnew\ti0\t1001\n")
    after = tables.before(DAYS[2])
    assert read == [*DAYS[:3], DAYS[1]]
    assert clicks_of(after)["new"] == [("i0", 1_001_000_000)]


def test_days_without_a_raw_log_keep_their_clicks(
    tmp_path: Path, workers: LocalWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path)
    lake = LakePaths(config.lake)
    tables = without_spark(config, lake, workers)
    before = clicks_of(tables.before(DAYS[1]))
    shutil.rmtree(tmp_path / f"raw/dt={DAYS[0]}")
    assert clicks_of(tables.before(DAYS[1])) == before
    assert config.history is not None
    longer = config.history.model_copy(update={"length": LENGTH + 1})
    assert ClickTables(plan_of(config), longer, lake, tables.rows_of).before(DAYS[1]) is None
    assert f"the clicks of {DAYS[0]}" in caplog.text
    assert tables.before(DAYS[0]) is None


def test_only_the_clicks_of_some_users_are_read(tmp_path: Path, workers: LocalWorkers) -> None:
    config = config_of(tmp_path)
    tables = without_spark(config, LakePaths(config.lake), workers)
    all_users = clicks_of(tables.before(DAYS[3]))
    coded = pa.array(["u3", "u5", "u3", "nobody"]).dictionary_encode()
    for users in (coded, coded.cast(pa.string())):
        assert clicks_of(tables.before(DAYS[3], users)) == {user: all_users[user] for user in ("u3", "u5")}
    assert clicks_of(tables.before(DAYS[3], pa.array(["nobody"]))) == {}


@pytest.mark.parametrize("timed", [True, False])
def test_clicks_may_come_in_parts_of_any_order(
    tmp_path: Path, workers: LocalWorkers, monkeypatch: pytest.MonkeyPatch, timed: bool
) -> None:
    """By hash bucket of the user, or with the rows of a user in many parts."""
    config = config_of(tmp_path, {} if timed else UNTIMED)
    raw = require_raw(config, config.log, DAYS[0])
    names = ["user_key", "item_key", "label", "row_id", *(["event_time"] if timed else [])]
    rows = pa.concat_tables(good_rows_of(workers, plan_of(config), raw, names))
    users = np.array(rows["user_key"].to_pylist())
    orders = [rows.take(pa.array(np.random.default_rng(seed).permutation(len(rows)))) for seed in (1, 2)]
    by_user = [rows.filter(pa.array(users == user)) for user in sorted(set(users))]
    anywhere = [table.slice(first, 7) for table in orders[:1] for first in range(0, len(rows), 7)]
    monkeypatch.setattr(module, "_MERGE_CLICKS", 5)
    assert config.history is not None
    found = []
    for number, parts in enumerate((by_user, anywhere, [orders[1]])):
        lake = LakePaths(str(tmp_path / f"lake {number}"))
        tables = ClickTables(plan_of(config), config.history, lake, partial(in_parts, parts))
        tables.digest_before(DAYS[1])
        found.append(published(lake, DAYS[0])[1])
    expected = LakePaths(str(tmp_path / "expected"))
    without_spark(config, expected, workers).digest_before(DAYS[1])
    for rows_of_parts in found:
        pd.testing.assert_frame_equal(rows_of_parts, published(expected, DAYS[0])[1])


def test_good_rows_have_the_row_ids_of_the_day(
    spark: SparkSession, workers: LocalWorkers, tmp_path: Path
) -> None:
    """Also lines of earlier files count, and those that are no rows. Rows of erased users are left out."""
    config = config_of(tmp_path, {"keys": {"user": "user", "item": "item", "group": "item"}})
    lake = LakePaths(config.lake)
    add_erased(lake, list_or_new(lake), ["u2"], DAYS[0])
    raw = require_raw(config, config.log, DAYS[0])
    names = ["row_id", "user_key", "item_key", "group_key", "label", "event_time"]
    rows = pa.concat_tables(good_rows_of(workers, plan_of(config), raw, names)).to_pandas()
    expected = good_rows(read_log(spark, config, raw)).select(names).orderBy("row_id").toPandas()
    assert 0 < len(rows) < 40
    assert "u2" not in set(rows.user_key)
    pd.testing.assert_frame_equal(rows, expected)
    clicks = pa.concat_tables(
        good_rows_of(workers, plan_of(config), raw, ["item_key", "row_id"], only_clicks=True)
    )
    positives = expected[expected.label == 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(clicks.to_pandas(), positives[["item_key", "row_id"]])
    items = pa.concat_tables(good_rows_of(workers, plan_of(config), raw, ["item_key"]))
    assert items["item_key"].to_pylist() == expected.item_key.tolist()


def test_good_rows_of_spark_workers_are_an_internal_error(spark: SparkSession, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    raw = require_raw(config, config.log, DAYS[0])
    with pytest.raises(ValueError, match="Arrow tables"):
        next(good_rows_of(SparkWorkers(spark), plan_of(config), raw, ["user_key"]))


BY_FRACTION: dict[str, Any] = {"split": {"by": "fraction", "train": 0.7, "validation": 0.2}, **ONE_TABLE}
LEAVE_LAST_OUT: dict[str, Any] = {"split": {"by": "leave_last_out"}, **ONE_TABLE}


@pytest.mark.parametrize(
    "before, against", [(None, "next_day"), (None, "test_split"), ("validation", "next_day")]
)
@pytest.mark.parametrize(
    "changes",
    [{}, BY_FRACTION, {**UNTIMED, **BY_FRACTION}, LEAVE_LAST_OUT, {**UNTIMED, **LEAVE_LAST_OUT}],
    ids=["day", "fraction", "fraction untimed", "leave_last_out", "leave_last_out untimed"],
)
def test_latest_histories_equal_those_of_spark(
    spark: SparkSession,
    workers: LocalWorkers,
    one_table: Callable[..., Config],
    changes: Mapping[str, Any],
    before: Split | None,
    against: str,
) -> None:
    config = one_table({**changes, "measure": {"against": against}})
    lake = LakePaths(config.lake)
    splits = raw_days(plan_of(config), RUN_DATE)
    found = histories_of(workers, plan_of(config), lake, splits, before=before)
    expected = latest_histories(SparkWorkers(spark), plan_of(config), lake, splits, before=before)
    assert found is not None
    assert expected is not None
    assert found.digest == expected.digest
    assert isinstance(found.rows, pa.Table)
    assert found.rows.schema.field("history").type == pa.list_(pa.dictionary(pa.int32(), pa.string()))
    rows = {row["user_key"]: row["history"] for row in found.rows.to_pylist()}
    assert len(rows) == len(found.rows) > 3
    assert isinstance(expected.rows, DataFrame)
    assert rows == {row["user_key"]: list(row["history"]) for row in expected.rows.collect()}


@pytest.fixture(scope="module")
def one_table(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Any]], Config]:
    """Returns a function that writes a configuration: of a log by day, or of the run date as one table."""
    folder = tmp_path_factory.mktemp("latest")
    write_log(folder, make_log(3))

    def write(changes: Mapping[str, Any]) -> Config:
        return cases.write_config(folder, SETTINGS, changes)

    return write


def test_there_are_no_histories_without_the_section(workers: LocalWorkers, tmp_path: Path) -> None:
    with_section = plan_of(config_of(tmp_path))
    plan = replace(with_section, config=with_section.config.model_copy(update={"history": None}))
    lake = LakePaths(plan.config.lake)
    assert click_tables(workers, plan, lake) is None
    assert latest_histories_table(workers, plan, lake, raw_days(plan, RUN_DATE)) is None


def test_a_log_without_good_rows_has_no_fractions(tmp_path: Path, workers: LocalWorkers) -> None:
    config = config_of(tmp_path, BY_FRACTION)
    for path in (tmp_path / f"raw/dt={RUN_DATE}").iterdir():
        path.unlink()
    (tmp_path / f"raw/dt={RUN_DATE}/a.tsv").write_text("no row\n")
    with pytest.raises(DataError, match="no good row"):
        latest_histories_table(
            workers, plan_of(config), LakePaths(config.lake), raw_days(plan_of(config), RUN_DATE)
        )


def test_spark_workers_get_a_frame(spark: SparkSession, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    found = histories_of(
        SparkWorkers(spark), plan_of(config), LakePaths(config.lake), raw_days(plan_of(config), RUN_DATE)
    )
    assert found is not None
    assert isinstance(found.rows, DataFrame)
    partition = LakePaths(config.lake).last_clicks.partition(DAYS[-1])
    assert data_files(partition, read_manifest(partition))
