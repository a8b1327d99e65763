"""The section `last_values`: columns with the last values of an item's earlier events, against a pandas oracle."""

from __future__ import annotations

import gzip
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from conf.errors import ConfigError
from conf.load import load_config
from conf.names import days_since_epoch
from conf.types import Config
from etl.build import BuildResult, build
from etl.latest.latest_features import latest_values
from etl.ops.tables import VOCABULARY, workflow_table
from etl.passes import raw_days, road_of
from etl.prepare.last_values import ValueTables, join_values, last_of_frame, last_of_table, value_tables
from etl.raw.erased_users import add_erased, list_or_new
from etl.workflow.feature_plan import plan_of
from jobs import prune
from jobs.erase_user import run as erase
from scoring.evaluation.features_before_test import rows_before_test
from scoring.evaluation.gate_lists import publish_items
from scoring.model.model_info import ModelInfo
from spark.choose_workers import SparkWorkers
from spark.rows import collected
from spark.workers import LocalWorkers, Workers
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.tasks_here import TasksHere

pytestmark = pytest.mark.processes

DAYS = [f"2026-01-0{number}" for number in range(1, 8)]
RUN_DATE, WINDOW, LOOKBACK = DAYS[-1], DAYS[3:], 2
_SECONDS = 86_400
COLUMNS = ["label", "user", "item", "time", "price", "stock"]
SETTINGS: dict[str, Any] = {
    "log": {
        "path": "{data}/dt={date}/*",
        "format": "tsv",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
            {"name": "time", "type": "int"},
            {"name": "price", "type": "float"},
            {"name": "stock", "type": "string"},
        ],
        "label": {"column": "label"},
        "event_time": {"column": "time"},
    },
    "last_values": {"columns": ["price", "stock"], "days": LOOKBACK},
    "negatives": {"per_positive": 1},
    "features": [
        {"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]},
        {"columns": ["last_price"], "kind": "dense", "ops": [{"fill": {"value": -1}}]},
        {"columns": ["last_stock"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]},
    ],
    "scopes": {"user": ["user"], "item": ["item", "last_price", "last_stock"]},
    "quality": {"max_bad_share": 0.5},
}
UNTIMED: dict[str, Any] = {
    "log": {key: SETTINGS["log"][key] for key in SETTINGS["log"] if key != "event_time"}
}
WITH_ITEMS: dict[str, Any] = {
    "items": {
        "path": "{data}/items.csv",
        "format": "csv",
        "columns": [{"name": "item", "type": "string"}, {"name": "list_price", "type": "float"}],
    },
    "features": [
        *SETTINGS["features"],
        {
            "columns": ["list_price", "last_price"],
            "kind": "dense",
            "ops": [
                {"expression": {"formula": "list_price - coalesce(last_price, 0)", "output": "discount"}},
                {"fill": {"value": 0}},
            ],
        },
    ],
    "scopes": {"user": ["user"], "item": ["item", "last_price", "last_stock", "discount"]},
}


def refuse_spark() -> SparkSession:
    raise AssertionError("a JVM is started")


@pytest.fixture(scope="module")
def workers() -> LocalWorkers:
    return TasksHere(2, refuse_spark)


def make_log(seed: int = 0, rows: int = 40) -> pd.DataFrame:
    """Rows of all days in the order of the files: nulls, equal times, and times outside the day of the file."""
    draw = random.Random(seed)
    made = []
    for day in DAYS:
        start = days_since_epoch(day) * _SECONDS
        for _ in range(rows):
            time = start + draw.choice([draw.randrange(20), draw.randrange(_SECONDS)])
            time += draw.choice([0] * 12 + [-_SECONDS, _SECONDS, 9 * _SECONDS])
            price = draw.choice(["", f"{draw.randrange(1, 400) / 4}"])
            stock = draw.choice(["", "", "in", "out", "soon"])
            made.append(
                (
                    day,
                    draw.choice("01"),
                    f"u{draw.randrange(5)}",
                    f"i{draw.choice([draw.randrange(6), draw.randrange(30)])}",
                    time,
                    price,
                    stock,
                )
            )
    return pd.DataFrame(made, columns=["day", *COLUMNS])


def write_log(folder: Path, log: pd.DataFrame) -> None:
    """A plain and a compressed file a day, and lines with a price that are no valid rows."""
    for day, rows in log.groupby("day"):
        path = folder / f"raw/dt={day}"
        path.mkdir(parents=True, exist_ok=True)
        lines = ["\t".join(row) for row in rows[COLUMNS].astype(str).itertuples(index=False)]
        lines += [f"7\tu1\ti1\t{days_since_epoch(str(day)) * _SECONDS + 80_000}\t1000000\tnone"]
        (path / "a.tsv").write_text("\n".join(lines[:25]) + "\n")
        (path / "b.tsv.gz").write_bytes(gzip.compress(("\n".join(lines[25:]) + "\n").encode()))


def write_items(folder: Path) -> None:
    rows = [f"i{number},{100 + number}" for number in range(10)] + ["new,7"]
    (folder / "raw/items.csv").write_text("\n".join(["item,list_price", *rows]) + "\n")


def days_before(day: str, lookback: int = LOOKBACK) -> list[str]:
    place = DAYS.index(day)
    return DAYS[max(place - lookback, 0) : place]


def last_value(
    log: pd.DataFrame, days: Sequence[str], item: str, column: str, before: int | None, *, timed: bool = True
) -> str | None:
    """The oracle: a loop over the events of an item, in the order of the log.

    Args:
        log: the rows of `make_log`.
        days: the days whose events count.
        item, column: the item and the column of the value.
        before: the time (s) of the row that gets the value; None for no limit.
        timed: whether the log has event times.
    """
    best: tuple[int, int] | None = None
    value = None
    events = log[(log.item == item) & log.day.isin(days) & (log[column] != "")]
    for position, row in zip(events.index, events.to_dict("records"), strict=True):
        if timed and row["time"] >= (days_since_epoch(row["day"]) + 1) * _SECONDS:
            continue
        order = (row["time"] if timed else 0, int(position))
        if best is None or order > best:
            best, value = order, row[column]
    return None if timed and best and before is not None and best[0] >= before else value


def price_of(text: str | None) -> float:
    """The feature of a price: nulls are replaced by -1."""
    return -1.0 if text is None else float(text)


@dataclass(frozen=True)
class Shop:
    """A built log."""

    folder: Path
    log: pd.DataFrame
    config: Config
    result: BuildResult

    @property
    def lake(self) -> LakePaths:
        return LakePaths(self.config.lake)

    def features(self, day: str) -> pd.DataFrame:
        return cases.read_rows(self.lake.features(self.result.workflow.version).partition(day))

    def items(self) -> pd.DataFrame:
        rows = cases.read_rows(self.lake.items(self.result.workflow.version).partition(RUN_DATE))
        return rows.set_index("item_key")

    def assert_rows(self, day: str, *, timed: bool = True) -> None:
        """Every row of the day, and every drawn negative, has the values of the oracle."""
        prepared = cases.read_rows(self.lake.prepared(self.config.name).partition(day))
        logged = self.log[self.log.day == day].reset_index(drop=True)
        assert sorted(prepared.row_id[prepared.row_id % 2 == 0] // 2) == list(range(len(logged)))
        assert (prepared.row_id % 2 == 1).sum() > 5
        for row in prepared.to_dict("records"):
            time = int(logged["time"][row["row_id"] // 2])
            for column in ("price", "stock"):
                days, item = days_before(day), row["item_key"]
                expected = last_value(self.log, days, item, column, time, timed=timed)
                actual = row[f"last_{column}"]
                if expected is None or column == "stock":
                    assert (None if pd.isna(actual) else actual) == expected, (day, row)
                else:
                    assert actual == float(expected), (day, row)


def built(workers: Workers, folder: Path, log: pd.DataFrame, *changes: Mapping[str, Any]) -> Shop:
    write_log(folder, log)
    write_items(folder)
    config = cases.write_config(folder, SETTINGS, *changes)
    return Shop(folder, log, config, run_build(workers, config))


def run_build(workers: Workers, config: Config, parent: str | None = None) -> BuildResult:
    plan, lake = plan_of(config), LakePaths(config.lake)
    return build(workers, plan, lake, RUN_DATE, parent, lambda _: nullcontext())


@pytest.fixture(scope="module")
def shop(workers: LocalWorkers, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return built(workers, tmp_path_factory.mktemp("shop"), make_log())


@pytest.mark.parametrize("day", WINDOW)
def test_rows_have_the_last_values_of_their_item_on_earlier_days(shop: Shop, day: str) -> None:
    shop.assert_rows(day)
    prepared = cases.read_rows(shop.lake.prepared(shop.config.name).partition(day))
    assert prepared.last_price.isna().any()
    assert prepared.last_price.notna().sum() > 10
    features = shop.features(day).sort_values("row_id")
    expected = prepared.sort_values("row_id").last_price.fillna(-1)
    np.testing.assert_array_equal(features.last_price, expected.astype(np.float32))


def test_rows_of_a_log_without_times_have_the_values_with_the_last_position(
    workers: LocalWorkers, tmp_path: Path
) -> None:
    shop = built(workers, tmp_path, make_log(1), UNTIMED)
    for day in WINDOW:
        shop.assert_rows(day, timed=False)
    columns = cases.read_rows(shop.lake.last_values(shop.config.name).partition(DAYS[1])).columns
    assert list(columns) == ["item_key", "last_price", "last_stock"]


@pytest.mark.parametrize("seed", range(20))
def test_random_events_give_the_values_of_a_loop(seed: int) -> None:
    """Tables in any order and any division, joined with rows at random times."""
    draw = np.random.default_rng(seed)
    events, rows = int(draw.integers(0, 60)), int(draw.integers(1, 30))
    table = pa.table(
        {
            "item_key": pa.array([f"i{n}" for n in draw.integers(0, 8, events)], pa.string()),
            "last_price": pa.array(draw.normal(size=events), mask=draw.random(events) < 0.4),
            "_time_last_price": pa.array(draw.integers(0, 6, events)),
            "_place_last_price": pa.array(draw.permutation(events)),
        }
    )
    cut = int(draw.integers(0, events + 1))
    parts = [last_of_table(part, ["last_price"]) for part in (table[:cut], table[cut:])]
    values = last_of_table(pa.concat_tables(parts).cast(table.schema), ["last_price"])
    keys = [f"i{n}" for n in draw.integers(0, 12, rows)]
    of_rows = pa.table({"item_key": keys, "event_time": draw.integers(0, 8, rows)})
    joined = join_values(of_rows, values, ["last_price"], timed=True)
    assert isinstance(joined, pa.Table)
    assert joined.select(["item_key", "event_time"]) == of_rows
    known = [row for row in table.to_pylist() if row["last_price"] is not None]
    assert set(values["item_key"].to_pylist()) == {row["item_key"] for row in known}
    for key, time, actual in zip(
        keys, of_rows["event_time"].to_pylist(), joined["last_price"].to_pylist(), strict=True
    ):
        mine = [row for row in known if row["item_key"] == key]
        last = max(mine, key=lambda row: (row["_time_last_price"], row["_place_last_price"]), default=None)
        expected = None if last is None or last["_time_last_price"] >= time else last["last_price"]
        assert actual == expected


def test_no_value_of_the_same_day_or_of_a_later_day_is_used(
    workers: LocalWorkers, shop: Shop, tmp_path: Path
) -> None:
    """With other prices from a day on, the rows up to this day do not change. Rows of later days do."""
    log, changed = shop.log.copy(), WINDOW[1]
    log.loc[(log.day >= changed) & (log.price != ""), "price"] = "777"
    other = built(workers, tmp_path, log)
    for day in WINDOW:
        before, after = (one.features(day).sort_values("row_id").last_price for one in (shop, other))
        assert (list(before) == list(after)) == (day <= changed)
        assert (after == 777).any() == (day > changed)


def test_a_late_day_changes_the_values_of_the_days_after_it(
    workers: LocalWorkers, shop: Shop, tmp_path: Path
) -> None:
    shutil.copytree(shop.folder, tmp_path / "copy")
    config = cases.write_config(tmp_path / "copy", SETTINGS)
    log, late = shop.log.copy(), DAYS[2]
    log.loc[log.day == late, "price"] = "555"
    write_log(tmp_path / "copy", log[log.day == late])
    again = Shop(tmp_path / "copy", log, config, run_build(workers, config, shop.result.workflow.version))
    digests = {day: manifest.digest for day, manifest in shop.result.features.items()}
    changed = {day for day, manifest in again.result.features.items() if manifest.digest != digests[day]}
    assert changed == {DAYS[3], DAYS[4]}  # the days that look back to the late day
    for day in WINDOW:
        again.assert_rows(day)
    assert run_build(workers, config, shop.result.workflow.version).features == again.result.features


def test_a_fit_after_a_late_day_equals_that_of_a_new_lake(
    workers: LocalWorkers, shop: Shop, tmp_path: Path
) -> None:
    """The late day is before the train days: their log does not change, but their last values do."""
    shutil.copytree(shop.folder, tmp_path / "copy")
    config = cases.write_config(tmp_path / "copy", SETTINGS)
    log, late = shop.log.copy(), DAYS[2]
    log.loc[log.day == late, ["price", "stock"]] = ["555", "late"]
    write_log(tmp_path / "copy", log[log.day == late])
    again = run_build(workers, config)
    fresh = config.model_copy(update={"lake": str(tmp_path / "fresh")})
    expected = run_build(workers, fresh)
    assert again.workflow.version == expected.workflow.version != shop.result.workflow.version
    vocabularies = [
        cases.read_rows(workflow_table(LakePaths(one.lake), again.workflow.version, VOCABULARY))
        for one in (config, fresh)
    ]
    pd.testing.assert_frame_equal(*vocabularies)
    assert "late" in set(vocabularies[0].value)
    assert {day: manifest.digest for day, manifest in again.features.items()} == {
        day: manifest.digest for day, manifest in expected.features.items()
    }
    reports = [{column.name: column for column in one.quality.compared.columns} for one in (again, expected)]
    assert reports[0] == reports[1]


def test_values_of_days_whose_raw_log_was_deleted_are_used(
    workers: LocalWorkers, shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(shop.folder, tmp_path / "copy")
    config = cases.write_config(tmp_path / "copy", SETTINGS)
    shutil.rmtree(tmp_path / f"copy/raw/dt={DAYS[1]}")
    again = run_build(workers, config, shop.result.workflow.version)
    assert {day: m.digest for day, m in again.features.items()} == {
        day: m.digest for day, m in shop.result.features.items()
    }
    of_stock = cases.write_config(
        tmp_path / "copy", SETTINGS, {"last_values": {"columns": ["stock", "price"]}}
    )
    tables = value_tables(workers, plan_of(of_stock), LakePaths(of_stock.lake))
    assert tables is not None
    tables.before(DAYS[2])
    assert f"the last values of {DAYS[1]}" in caplog.text  # they were computed for other columns


@pytest.fixture(scope="module", params=[{}, WITH_ITEMS], ids=["no table of items", "a table of items"])
def one_of_two(
    request: pytest.FixtureRequest,
    shop: Shop,
    workers: LocalWorkers,
    tmp_path_factory: pytest.TempPathFactory,
) -> Shop:
    """A shop without a table of items, and one with such a table."""
    if not request.param:
        return shop
    return built(workers, tmp_path_factory.mktemp("items"), make_log(2), request.param)


def test_lists_are_scored_with_the_last_values_up_to_the_run_date(one_of_two: Shop) -> None:
    shop, has_table = one_of_two, one_of_two.config.items is not None
    items = shop.items()
    in_window = set(shop.log[shop.log.day.isin(WINDOW)].item)
    assert set(items.index) == ({f"i{n}" for n in range(10)} | {"new"} if has_table else in_window)
    assert (items.last_price == -1).any()
    assert (items.last_price != -1).sum() > 3
    of_run_date = 0
    for item, row in items.iterrows():
        price = last_value(shop.log, DAYS[-LOOKBACK:], str(item), "price", None)
        assert row.last_price == np.float32(price_of(price)), item
        of_run_date += price != last_value(shop.log, days_before(RUN_DATE), str(item), "price", None)
        if has_table:
            listed = 7 if item == "new" else 100 + int(str(item)[1:])
            assert row.discount == np.float32(listed - (0 if price is None else float(price)))
    assert of_run_date > 2  # the events of the run date itself count


def test_lists_that_are_compared_with_the_test_split_use_no_event_of_it(
    shop: Shop, workers: LocalWorkers, tmp_path: Path
) -> None:
    shutil.copytree(shop.folder, tmp_path / "copy")
    config = cases.write_config(tmp_path / "copy", SETTINGS, {"measure": {"against": "test_split"}})
    plan = plan_of(config)
    values = latest_values(workers, plan, LakePaths(config.lake), raw_days(plan, RUN_DATE))
    assert values is not None
    keys = [f"i{n}" for n in range(30)]
    rows = values.join(pa.table({"item_key": keys}))
    assert isinstance(rows, pa.Table)
    for item, actual in zip(keys, rows["last_price"].to_pylist(), strict=True):
        price = last_value(shop.log, days_before(RUN_DATE), item, "price", None)
        assert actual == (None if price is None else float(price)), item


def test_the_gate_ranks_items_with_the_values_before_the_test(one_of_two: Shop) -> None:
    shop = one_of_two
    context = RunContext("test", shop.config, RUN_DATE, in_process=True)
    spec = shop.result.workflow.spec
    rows = rows_before_test(context, shop.result.dataset, spec, "item")
    assert isinstance(rows, pa.Table)
    for row in rows.to_pylist():
        price = last_value(shop.log, days_before(RUN_DATE), row["item_key"], "price", None)
        assert row["last_price"] == np.float32(price_of(price)), row
    model = ModelInfo("", "", spec, {})
    published = publish_items(context, shop.result.dataset, model)
    assert publish_items(context, shop.result.dataset, model) == published
    assert "last_values" in published.inputs


def as_dicts(rows: pa.Table | DataFrame) -> list[dict[str, Any]]:
    table = rows if isinstance(rows, pa.Table) else collected(rows)
    return sorted(table.to_pylist(), key=lambda row: str(row["item_key"]))


def test_frames_give_the_values_of_tables(spark: SparkSession) -> None:
    draw = np.random.default_rng(3)
    columns: dict[str, Any] = {"item_key": [f"i{n}" for n in draw.integers(0, 9, 80)]}
    for name in ("last_price", "last_stock"):
        values = [None if draw.random() < 0.5 else float(draw.integers(1, 9)) for _ in range(80)]
        columns |= {name: values, f"_time_{name}": draw.integers(0, 5, 80), f"_place_{name}": range(80)}
    table = pa.table(columns)
    kinds = "string, last_price double, _time_last_price long, _place_last_price long, "
    kinds += "last_stock double, _time_last_stock long, _place_last_stock long"
    frame = spark.createDataFrame([tuple(row.values()) for row in table.to_pylist()], f"item_key {kinds}")
    names = ["last_price", "last_stock"]
    of_table, of_frame = last_of_table(table, names), last_of_frame(frame, names)
    assert as_dicts(of_frame) == as_dicts(of_table)
    rows = pa.table({"item_key": [f"i{n % 12}" for n in range(24)], "event_time": [n % 6 for n in range(24)]})
    joined = as_dicts(join_values(rows, of_frame, names, timed=True))
    expected = as_dicts(join_values(rows, of_table, names, timed=True))
    assert sorted(map(repr, joined)) == sorted(map(repr, expected))
    assert 0 < sum(row["last_price"] is None for row in joined) < 24


@pytest.mark.parametrize("changes", [{}, UNTIMED], ids=["times", "no times"])
def test_spark_publishes_equal_tables_which_are_current_for_both(
    spark: SparkSession, workers: LocalWorkers, tmp_path: Path, changes: dict[str, Any]
) -> None:
    log = make_log(4)
    log.loc[log.day == DAYS[1], ["price", "stock"]] = ""  # a day without a value has a table without rows
    write_log(tmp_path, log)
    config = cases.write_config(tmp_path, SETTINGS, changes)
    plan, settings = plan_of(config), config.last_values
    assert settings is not None
    here, there = LakePaths(config.lake), LakePaths(str(tmp_path / "other"))
    in_process = ValueTables(workers, plan, settings, here)
    in_spark = ValueTables(SparkWorkers(spark), plan, settings, there)
    for day in DAYS[1:4]:
        assert in_process.digest_before(day) == in_spark.digest_before(day)
        assert as_dicts(in_process.before(day)) == as_dicts(in_spark.before(day))
    for day in DAYS[:3]:
        first, second = (
            read_manifest(lake.last_values(config.name).partition(day)) for lake in (here, there)
        )
        assert (first.schema, first.inputs, first.rows) == (second.schema, second.inputs, second.rows)
        assert (first.rows == 0) == (day == DAYS[1])
    rows = pa.table({"item_key": ["i1", "i2", "i3", "no item"], "event_time": [0, 2**60, 2**60, 2**60]})
    timed = not changes
    of_table = join_values(rows, in_process.before(DAYS[3]), in_process.names, timed=timed)
    of_frame = join_values(rows, in_spark.before(DAYS[3]), in_spark.names, timed=timed)
    assert as_dicts(of_frame) == as_dicts(of_table)
    assert of_table["last_price"].null_count < len(rows)
    read_by_spark = ValueTables(SparkWorkers(spark), plan, settings, here)
    assert read_by_spark.digest_before(DAYS[3]) == in_spark.digest_before(DAYS[3])


@pytest.mark.parametrize(
    "changes", [{}, WITH_ITEMS], ids=["without a table of items", "with a table of items"]
)
def test_the_engine_sql_gives_the_same_rows_and_items(
    spark: SparkSession, workers: LocalWorkers, tmp_path: Path, changes: dict[str, Any]
) -> None:
    log = make_log(5)
    shop = built(workers, tmp_path / "tasks", log, changes)
    by_sql = built(SparkWorkers(spark), tmp_path / "sql", log, changes, {"workflow": {"engine": "sql"}})
    for day in WINDOW:
        by_sql.assert_rows(day)
        first, second = (one.features(day).sort_values("row_id") for one in (shop, by_sql))
        pd.testing.assert_frame_equal(first.reset_index(drop=True), second.reset_index(drop=True))
    pd.testing.assert_frame_equal(shop.items(), by_sql.items())


def test_values_of_an_erased_user_stay_until_the_day_is_computed_again(
    workers: LocalWorkers, shop: Shop, tmp_path: Path
) -> None:
    """A value describes an item, and the table has no ids of users. New computations leave out the events."""
    shutil.copytree(shop.folder, tmp_path / "copy")
    config = cases.write_config(tmp_path / "copy", SETTINGS)
    lake, table = LakePaths(config.lake), shop.lake.last_values(shop.config.name)
    erase(RunContext("erase_user", config, RUN_DATE), ["u3"], dry_run=False)
    for day in DAYS[1:]:
        partition = lake.last_values(config.name).partition(day)
        assert read_manifest(partition).digest == read_manifest(table.partition(day)).digest
    again = run_build(workers, config, shop.result.workflow.version)
    for day in WINDOW:
        rows = cases.read_rows(lake.features(again.workflow.version).partition(day))
        before = shop.features(day)
        kept = before[before.user_key != "u3"]
        assert sorted(rows.last_price) == sorted(kept.last_price)
    for path in (tmp_path / "copy").glob("lake/last_values"):
        shutil.rmtree(path)
    tables = value_tables(workers, plan_of(config), lake)
    assert tables is not None
    others = shop.log[shop.log.user != "u3"]
    values = {row["item_key"]: row["last_price"] for row in as_dicts(tables.before(DAYS[3]))}
    for item in {f"i{n}" for n in range(30)}:
        price = last_value(others, days_before(DAYS[3]), item, "price", None)
        assert values.get(item) == (None if price is None else float(price))


def test_a_new_day_leaves_out_events_of_users_that_were_erased_before(
    workers: LocalWorkers, tmp_path: Path
) -> None:
    log = make_log(6)
    write_log(tmp_path, log)
    config = cases.write_config(tmp_path, SETTINGS)
    lake = LakePaths(config.lake)
    add_erased(lake, list_or_new(lake), ["u0", "u1"], RUN_DATE)
    tables = value_tables(workers, plan_of(config), lake)
    assert tables is not None
    others = log[~log.user.isin(["u0", "u1"])]
    for row in as_dicts(tables.before(DAYS[2])):
        price = last_value(others, DAYS[:2], row["item_key"], "price", None)
        assert row["last_price"] == (None if price is None else float(price))


def test_prune_keeps_the_days_whose_values_a_run_reads(shop: Shop) -> None:
    prune.check_days(shop.config, RUN_DATE, 6)
    with pytest.raises(ConfigError, match=r"last_values\.days=2") as caught:
        prune.check_days(shop.config, RUN_DATE, 5)
    assert "at least 6" in caught.value.remedy


def test_the_rows_are_prepared_and_no_jvm_starts(shop: Shop) -> None:
    road = road_of(plan_of(shop.config), on_one_machine=True)
    assert (road.kind, road.by) == ("prepared", "tasks")
    assert road.prepared == ("negatives", "last values")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a split without days": ({"split": {"by": "fraction"}}, "needs split.by=day, not fraction"),
    "no keys": (
        {"keys": None, "negatives": None, "features": SETTINGS["features"][1:2]},
        "need the section `keys`",
    ),
    "an unknown column": ({"last_values": {"columns": ["colour"]}}, "columns that do not exist"),
    "a column twice": ({"last_values": {"columns": ["price", "price"]}}, "names the columns"),
    "the user": ({"last_values": {"columns": ["user"]}}, "columns of keys or of the label"),
    "the label": ({"last_values": {"columns": ["label"]}}, "columns of keys or of the label"),
    "a list": (
        {
            "log": {
                **SETTINGS["log"],
                "columns": [*SETTINGS["log"]["columns"][:5], {"name": "stock", "type": "list<string>"}],
            }
        },
        "which are lists",
    ),
    "a name twice": (
        {
            "log": {
                **SETTINGS["log"],
                "columns": [*SETTINGS["log"]["columns"], {"name": "last_price", "type": "int"}],
            }
        },
        "which are the names of other columns",
    ),
    "a feature of users": (
        {"scopes": {"user": ["user", "last_price"]}},
        "list these features in scopes.item",
    ),
    "a feature of items with a column of the log": (
        {
            "negatives": None,
            "features": [
                {
                    "columns": ["price", "last_price"],
                    "kind": "dense",
                    "ops": [{"expression": {"formula": "coalesce(price, last_price, 0)", "output": "both"}}],
                }
            ],
            "scopes": {"item": ["both"]},
        },
        "and from columns of the log",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_sections_are_refused(tmp_path: Path, name: str) -> None:
    changes, message = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        plan_of(cases.write_config(tmp_path, SETTINGS, changes))
    assert message in f"{caught.value.problem} {caught.value.remedy}"
    load_config(str(cases_file(tmp_path)))


def cases_file(folder: Path) -> Path:
    """A valid configuration, in place of the wrong one."""
    cases.write_config(folder, SETTINGS)
    return folder / "config.yaml"
