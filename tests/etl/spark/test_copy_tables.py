"""Tables of Spark's catalogue as raw tables: copies of days, and the features that are computed from them."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.raw_types import RawTable
from conf.types import Config
from etl.prepare.prepared_passes import delete_unneeded_days
from etl.raw.files import copy_of, find_raw, require_raw
from etl.raw.text_values import integers, integers_of_texts
from etl.readers.base import open_table
from etl.spark import copy_tables
from etl.workflow.feature_plan import plan_of
from jobs import build_features, erase_user, plan_night, prune
from storage.dataset import read_dataset
from storage.lineage import RunLineage
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.text.test_without_a_jvm import DAYS, GROUPS, tables

COLUMNS: list[dict[str, Any]] = [
    {"name": "label", "type": "int"},
    {"name": "at", "type": "timestamp"},
    {"name": "I1", "type": "int"},
    {"name": "I2", "source": "visits", "type": "int"},
    {"name": "user", "type": "string"},
    {"name": "item", "type": "string"},
    {"name": "C1", "type": "string"},
]
LOG: dict[str, Any] = {
    **cases.LOG["log"],
    "separator": None,
    "columns": COLUMNS,
    "event_time": {"column": "at"},
}


def rows_of(day: str, seed: int, rows: int = 80) -> pa.Table:
    """A day with nulls and fractions in a column of integers. The times are distinct and ascending."""
    draw = random.Random(seed)
    start = datetime.datetime.fromisoformat(f"{day}T00:00:00+00:00")
    times = [start + datetime.timedelta(seconds=60 * row, microseconds=row) for row in range(rows)]
    numbers = [None if draw.random() < 0.2 else float(draw.randrange(-5, 100)) for _ in range(rows)]
    numbers[7] = 0.5
    return pa.table(
        {
            "label": [draw.choice([0, 0, 1]) for _ in range(rows)],
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "I1": numbers,
            "visits": [draw.randrange(9) for _ in range(rows)],
            "user": [f"u{draw.randrange(20):02}" for _ in range(rows)],
            "item": [f"i{draw.randrange(30)}" for _ in range(rows)],
            "C1": [draw.choice([None, "a", "ö", "b"]) for _ in range(rows)],
        }
    )


@dataclass
class Shop:
    """A database of the session's catalogue, with the folder of a test."""

    spark: SparkSession
    folder: Path
    name: str
    lineage: RunLineage = field(default_factory=lambda: RunLineage("build_features", "test", DAYS[-1]))

    def view(self, name: str, rows: pa.Table) -> None:
        path = self.folder / f"files/{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(rows, path)
        self.spark.read.parquet(str(path)).createOrReplaceTempView(name)

    def fill(self, day: str, seed: int, rows: int = 80) -> None:
        """Replaces the rows of a day of the partitioned table `clicks`."""
        self.sql(f"ALTER TABLE {{}}.clicks DROP IF EXISTS PARTITION (dt = '{day}')")
        path = self.folder / f"warehouse/clicks/dt={day}/part-{seed}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows_of(day, seed, rows), path)
        self.sql(f"ALTER TABLE {{}}.clicks ADD PARTITION (dt = '{day}')")

    def sql(self, text: str) -> Any:
        return self.spark.sql(text.format(self.name))

    def config(self, path: str, *changes: dict[str, Any]) -> Config:
        log = {**LOG, "format": "spark_table", "path": path.format(self.name, date="{date}")}
        return cases.write_config(self.folder, GROUPS, {"log": log}, *changes)

    def context(self, config: Config) -> RunContext:
        self.lineage = RunLineage("build_features", "test", DAYS[-1])
        return RunContext(
            "build_features", config, DAYS[-1], open_session=lambda _: self.spark, recorder=self.lineage
        )

    def build(self, config: Config) -> dict[str, Any]:
        build_features.run(self.context(config))
        return tables(LakePaths(config.lake))

    def copy(self, config: Config) -> None:
        copy_tables.copy_tables(self.spark, plan_of(config), DAYS[-1], RunLineage("copy", "test", DAYS[-1]))

    def copies(self, config: Config, *days: str) -> list[dict[str, Any]]:
        """The rows of the copies of some days, in the order of the files."""
        paths = [path for day in days for path in require_raw(config, config.log, day).paths]
        return [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[Shop]:
    name = "shop_of_copies"
    spark.sql(f"DROP DATABASE IF EXISTS {name} CASCADE")
    spark.sql(f"CREATE DATABASE {name} LOCATION '{tmp_path / 'warehouse'}'")
    shop = Shop(spark, tmp_path, name)
    shop.sql(
        "CREATE TABLE {}.clicks (label LONG, at TIMESTAMP, I1 DOUBLE, visits LONG, user STRING, item STRING, "
        "C1 STRING, dt STRING) USING parquet PARTITIONED BY (dt)"
    )
    for seed, day in enumerate(DAYS):
        shop.fill(day, seed)
    yield shop
    spark.sql(f"DROP DATABASE {name} CASCADE")
    for view in spark.sql("SHOW VIEWS").collect():  # other tests share the session
        spark.catalog.dropTempView(view.viewName)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The tables that are built from Parquet files with the rows of `clicks`."""
    folder = tmp_path_factory.mktemp("plain")
    config = cases.write_config(folder, GROUPS, {"log": {**LOG, "format": "parquet"}})
    for seed, day in enumerate(DAYS):
        path = folder / f"raw/dt={day}/clicks.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(rows_of(day, seed), path)
    build_features.run(RunContext("build_features", config, DAYS[-1]))
    return tables(LakePaths(config.lake))


@pytest.mark.processes
def test_features_are_those_of_a_parquet_log(shop: Shop, expected: dict[str, Any]) -> None:
    config = shop.config("{}.clicks/dt={date}")
    mine = shop.build(config)
    for day in DAYS:
        assert mine[f"features {day}"] == expected[f"features {day}"]
        assert [row["reason"] for row in mine[f"quarantine {day}"]] == ["integer:I1"]
    read = [path for path in shop.lineage.inputs if path.startswith("spark-table://")]
    assert read == [
        f"spark-table://spark_catalog/shop_of_copies.clicks/dt={day}" for day in ["2025-12-31", *DAYS]
    ]
    files = {day: require_raw(config, config.log, day).paths for day in DAYS}
    assert shop.build(config) == mine
    assert {day: require_raw(config, config.log, day).paths for day in DAYS} == files


@pytest.mark.processes
def test_views_and_tables_for_each_day(shop: Shop, expected: dict[str, Any]) -> None:
    columns = "CAST(label = 1 AS INT) AS label, at, I1, visits + 0 AS visits, user, lower(item) AS item, C1"
    shop.sql(f"CREATE VIEW {{}}.clicks_of_shop AS SELECT {columns} FROM {shop.name}.clicks")
    day_of_view = shop.build(shop.config("{}.clicks_of_shop/at={date}"))
    for day in DAYS:
        shop.sql(
            f"CREATE TABLE {{}}.`clicks_{day.replace('-', '')}` USING orc AS SELECT * FROM {shop.name}.clicks WHERE dt='{day}'"
        )
    named = shop.build(shop.config("{}.clicks_{date}"))
    for day in DAYS:
        assert day_of_view[f"features {day}"] == named[f"features {day}"] == expected[f"features {day}"]


@pytest.mark.parametrize(
    "zone", ["Asia/Tokyo", "ROC"]
)  # only Python has the zone ROC, whose clocks are 8 h ahead
def test_a_day_of_times_is_that_of_the_time_zone(shop: Shop, zone: str) -> None:
    evening = 23 * 3_600_000_000
    for kind, days in ((pa.timestamp("us", "UTC"), [0, 1]), (pa.timestamp("us"), [1, 0])):
        shop.view("late", pa.table({"at": pa.array([evening], kind)}))
        column = {"name": "at", "type": "timestamp"}
        values = {"path": "late/at={date}", "format": "spark_table", "columns": [column]}
        table = RawTable.model_validate({**values, "time_zone": zone})
        opened = [copy_tables.open_rows(shop.spark, table, f"1970-01-0{day}", "key") for day in (1, 2)]
        assert [rows.count() for rows in opened if rows is not None] == days


def test_only_changed_days_are_copied_again(shop: Shop) -> None:
    config = shop.config("{}.clicks/dt={date}")
    shop.copy(config)
    first = {day: require_raw(config, config.log, day) for day in DAYS}
    assert shop.copies(config, DAYS[0]) == rows_of(DAYS[0], 0).to_pylist()
    shop.copy(config)
    assert {day: require_raw(config, config.log, day) for day in DAYS} == first
    shop.fill(DAYS[1], seed=99)
    shop.copy(config)
    second = {day: require_raw(config, config.log, day) for day in DAYS}
    assert [day for day in DAYS if second[day] != first[day]] == [DAYS[1]]
    assert find_raw(config, config.log, "2025-12-31") is None  # of the window, but without rows


def test_files_that_are_only_compacted_keep_the_copy(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    config = shop.config("{}.clicks/dt={date}")
    shop.copy(config)
    before = require_raw(config, config.log, DAYS[0])
    shop.sql(f"CREATE TABLE {{}}.sorted USING parquet AS SELECT * FROM {shop.name}.clicks ORDER BY user")
    rows = shop.sql("SELECT * FROM {}.sorted").where(f"dt = '{DAYS[0]}'").drop("dt").repartition(3)
    rows.createOrReplaceTempView("new_rows")
    state = read_manifest(copy_of(config, config.log, DAYS[0])).facts["state"]
    shop.sql(f"INSERT OVERWRITE {{}}.clicks PARTITION (dt = '{DAYS[0]}') SELECT * FROM new_rows")
    caplog.clear()  # of the first copy, if an earlier test has changed the level
    with caplog.at_level("INFO", logger="nightrank.etl"):
        shop.copy(config)
    assert "rows are copied" not in caplog.text
    assert require_raw(config, config.log, DAYS[0]) == before
    assert read_manifest(copy_of(config, config.log, DAYS[0])).facts["state"] != state


def test_rows_tell_where_files_cannot(shop: Shop) -> None:
    """A view over rows in memory, as one over JDBC, has no files and no version."""

    def fill(seed: int) -> None:
        rows = pa.concat_tables(rows_of(day, seed + at) for at, day in enumerate(DAYS)).to_pandas()
        shop.spark.createDataFrame(rows).createOrReplaceTempView("in_memory")

    fill(0)
    config = shop.config("in_memory/at={date}")
    shop.copy(config)
    assert read_manifest(copy_of(config, config.log, DAYS[0])).facts["state"] is None
    first = [require_raw(config, config.log, day) for day in DAYS]
    fill(0)
    shop.copy(config)
    assert [require_raw(config, config.log, day) for day in DAYS] == first
    fill(1)
    shop.copy(config)
    second = [require_raw(config, config.log, day) for day in DAYS]
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_digests_tell_nulls_and_lists_apart(spark: SparkSession) -> None:
    rows: list[tuple[list[Any], str]] = [
        ([(None, 1)], "a INT, b INT"),
        ([(1, None)], "a INT, b INT"),
        ([(1, 1), (1, 1)], "a INT, b INT"),
        ([(2, 2), (2, 2)], "a INT, b INT"),
        ([(1, 1)], "a INT, b INT"),
        ([(1, 1)], "a INT, b LONG"),
        ([([1], [2, 3])], "a ARRAY<INT>, b ARRAY<INT>"),
        ([([1, 2], [3])], "a ARRAY<INT>, b ARRAY<INT>"),
        ([], "a INT, b INT"),
    ]
    digests = [copy_tables.content_of(spark.createDataFrame(values, kind)) for values, kind in rows]
    assert len(set(digests)) == len(rows)
    mixed = spark.createDataFrame([(2, "b"), (1, "a"), (1, None)], "a INT, b STRING")
    assert copy_tables.content_of(mixed) == copy_tables.content_of(
        mixed.select("b", "a").orderBy("a").repartition(3)
    )


@pytest.mark.processes
def test_erased_users_are_in_no_copy(shop: Shop) -> None:
    config = shop.config("{}.clicks/dt={date}")
    shop.build(config)
    user = "u05"
    assert user in {row["user"] for row in shop.copies(config, *DAYS)}
    context = RunContext("erase_user", config, DAYS[-1], open_session=lambda _: shop.spark)
    erase_user.run(context, [user], dry_run=False)
    left = shop.copies(config, *DAYS)
    assert left
    assert user not in {row["user"] for row in left}
    files = list(Path(f"{config.lake}/_data/copies").rglob("*.parquet"))
    assert not any(user in pq.read_table(path, partitioning=None)["user"].to_pylist() for path in files)

    digests = {day: require_raw(config, config.log, day).digest for day in DAYS}
    features = LakePaths(config.lake).features(
        read_dataset(LakePaths(config.lake), DAYS[-1]).workflow_version
    )
    assert {day: read_manifest(features.partition(day)).inputs["raw"] for day in DAYS} == digests
    shop.build(config)
    assert {day: require_raw(config, config.log, day).digest for day in DAYS} == digests

    # The table still has the user: its files are rewritten, and then a day gets new rows.
    rows = shop.sql("SELECT * FROM {}.clicks").where(f"dt = '{DAYS[0]}'").drop("dt").repartition(2).toPandas()
    shop.spark.createDataFrame(rows).createOrReplaceTempView("new_rows")
    shop.sql(f"INSERT OVERWRITE {{}}.clicks PARTITION (dt = '{DAYS[0]}') SELECT * FROM new_rows")
    shop.fill(DAYS[1], seed=50)
    shop.build(config)
    assert require_raw(config, config.log, DAYS[0]).digest == digests[DAYS[0]]
    assert require_raw(config, config.log, DAYS[1]).digest != digests[DAYS[1]]
    assert user not in {row["user"] for row in shop.copies(config, *DAYS)}


def test_an_erased_user_is_found_by_an_integer_that_is_stored_as_text(shop: Shop) -> None:
    shop.sql(
        "CREATE VIEW {0}.numbered AS SELECT label, at, I1, visits, concat('0', substr(user, 2), '.0') AS user, "
        "item, C1, dt FROM {0}.clicks"
    )
    columns = [{**column, "type": "int"} if column["name"] == "user" else column for column in COLUMNS]
    log = {"format": "spark_table", "path": f"{shop.name}.numbered/dt={{date}}", "columns": columns}
    config = shop.config("", {"log": {**LOG, **log}})
    shop.build(config)
    assert {"5", "12"} <= {row["user"] for row in shop.copies(config, *DAYS)}
    context = RunContext("erase_user", config, DAYS[-1], open_session=lambda _: shop.spark)
    erase_user.run(context, ["5"], dry_run=False)
    shop.fill(DAYS[1], seed=50)
    shop.build(config)
    left = {row["user"] for row in shop.copies(config, *DAYS)}
    assert "12" in left
    assert "5" not in left


def test_an_erased_user_is_in_no_copy_of_a_table_with_integers(shop: Shop) -> None:
    shop.sql("CREATE VIEW {}.people AS SELECT id AS user, id + 20 AS age FROM range(3)")
    columns = [{"name": "user", "type": "int"}, {"name": "age", "type": "int"}]
    users = {"format": "spark_table", "path": f"{shop.name}.people", "columns": columns}
    config = cases.write_config(shop.folder, GROUPS, {"users": users})
    assert config.users is not None

    def copied() -> list[int]:
        paths = require_raw(config, config.users, DAYS[0]).paths
        return sorted(user for path in paths for user in pq.read_table(path)["user"].to_pylist())

    shop.copy(config)
    assert copied() == [0, 1, 2]
    erase_user.run(RunContext("erase_user", config, DAYS[-1]), ["0001"], dry_run=False)
    assert copied() == [0, 2]
    shop.sql("CREATE OR REPLACE VIEW {}.people AS SELECT id AS user, id + 20 AS age FROM range(4)")
    shop.copy(config)
    assert copied() == [0, 2, 3]


def test_a_killed_copy_leaves_the_old_rows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    config = shop.config("{}.clicks/dt={date}")
    shop.copy(config)
    before = shop.copies(config, *DAYS)
    shop.fill(DAYS[0], seed=7)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(copy_tables, "publish_files", killed)
        with pytest.raises(KeyboardInterrupt):
            shop.copy(config)
    assert shop.copies(config, *DAYS) == before
    shop.copy(config)
    after = shop.copies(config, *DAYS)
    assert after[80:] == before[80:]
    assert after != before
    for path in require_raw(config, config.log, DAYS[1]).paths:  # lost files are written again
        Path(path).unlink()
    shop.copy(config)
    assert shop.copies(config, *DAYS) == after


def test_errors_name_the_table_the_column_and_what_to_do(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE {}.odd (label LONG, at TIMESTAMP, I1 MAP<STRING, INT>, visits LONG, user STRING, "
        "item STRING, C1 INTERVAL DAY, n INT) USING parquet"
    )
    for path, error, words in (
        (
            "{}.nothing/dt={date}",
            ConfigError,
            ["log.path", "no table or view shop_of_copies.nothing", "hive"],
        ),
        ("nothing_{date}.x", DataError, None),
        ("iceberg.db.clicks/dt={date}", ConfigError, ["log.path", "iceberg.db.clicks", "runtime jar"]),
        ("{}.clicks/day={date}", ConfigError, ["'day'", "shop_of_copies.clicks", "'dt'"]),
        ("{}.clicks/visits={date}", ConfigError, ["'visits'", "bigint", "string, date or timestamp"]),
        ("{}.odd/at={date}", DataError, ["shop_of_copies.odd", "'I1'", "map<string,int>"]),
    ):
        config = shop.config(path)
        if words is None:
            shop.copy(config)
            with pytest.raises(DataError, match="no copy of the rows"):
                require_raw(config, config.log, DAYS[0])
            continue
        with pytest.raises(error) as raised:
            shop.copy(config)
        assert all(word in str(raised.value) for word in words), str(raised.value)
    for column, error, words in (
        ({"name": "price", "type": "float"}, DataError, ["shop_of_copies.clicks", "no columns ['price']"]),
        (
            {"name": "D", "type": "list<int>", "source": "visits"},
            ConfigError,
            ["'visits'", "int64", "list<int>"],
        ),
        ({"name": "D", "type": "string", "source": "at"}, ConfigError, ["'at'", "timestamp"]),
    ):
        path = f"{shop.name}.clicks/dt={{date}}"
        log = {**LOG, "format": "spark_table", "path": path, "columns": [*COLUMNS, column]}
        config = shop.config("{}.clicks", {"log": log})
        with pytest.raises(error) as raised:
            shop.copy(config)
        assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize(
    "path",
    [
        "{lake}/clicks",
        "s3a://bucket/clicks",
        "db.clicks/dt",
        "db.*",
        "db..clicks",
        "db.clicks/",
        "/srv/clicks",
    ],
)
def test_paths_that_are_no_table_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="is not a table of Spark's catalogue"):
        cases.write_config(tmp_path, GROUPS, {"log": {**LOG, "format": "spark_table", "path": path}})


def test_rows_without_an_order_cannot_be_split_by_it(tmp_path: Path) -> None:
    log = {**LOG, "format": "spark_table", "path": "db.clicks", "event_time": None}
    with pytest.raises(ConfigError, match=r"have no order: set log\.event_time"):
        cases.write_config(tmp_path, GROUPS, {"log": log, "split": {"by": "fraction"}})


COUNT = 120
LARGE = 2**53


def values_of(kind: str, draw: random.Random) -> Any:
    """A value of a type of Spark; null now and then."""
    if draw.random() < 0.15:
        return None
    day = datetime.date(1850, 1, 1) + datetime.timedelta(days=draw.randrange(100_000))
    time = datetime.datetime(1850, 1, 1) + datetime.timedelta(microseconds=draw.randrange(8 * 10**15))
    return {
        "TINYINT": lambda: draw.randrange(-128, 128),
        "SMALLINT": lambda: draw.randrange(-(2**15), 2**15),
        "INT": lambda: draw.randrange(-(2**31), 2**31),
        "BIGINT": lambda: draw.choice([draw.randrange(-(2**63), 2**63), 2**63 - 1, -(2**63), 0]),
        "FLOAT": lambda: float(draw.randrange(-1000, 1000)) / 8,
        "DOUBLE": lambda: draw.choice([draw.uniform(-1e30, 1e30), 0.0, 1e-30, math.nan]),
        "STRING": lambda: draw.choice(["a", "Z", " b ", "\U0001f600", "\uffee", "1.0", "tab\t", "x" * 300]),
        "BOOLEAN": lambda: draw.random() < 0.5,
        "DATE": lambda: day,
        "TIMESTAMP": lambda: time.replace(tzinfo=datetime.UTC),
        "TIMESTAMP_NTZ": lambda: time,
        "DECIMAL(12,3)": lambda: decimal.Decimal(draw.randrange(-(10**11), 10**11)).scaleb(-3),
        "DECIMAL(38,0)": lambda: decimal.Decimal(draw.randrange(-LARGE, LARGE)),
        "ARRAY<INT>": lambda: [draw.randrange(9) for _ in range(draw.randrange(4))],
        "ARRAY<BIGINT>": lambda: [draw.choice([draw.randrange(-(2**63), 2**63), None]) for _ in range(3)],
        "ARRAY<STRING>": lambda: [draw.choice(["a", "\u00f6", "", None]) for _ in range(draw.randrange(4))],
    }[kind]()


def in_pandas(kind: str, values: pd.Series) -> list[Any]:
    """The values as operators see them, computed by pandas."""
    if kind in ("float", "decimal"):
        numbers = pd.Series([None if value is None else float(value) for value in values], dtype="float64")
        return [None if math.isnan(value) else value for value in numbers]
    if kind == "date":
        return [None if value is None else (value - datetime.date(1970, 1, 1)).days for value in values]
    if kind == "timestamp":
        zoned = (
            value if value is None or value.tzinfo else value.replace(tzinfo=datetime.UTC) for value in values
        )
        first = pd.Timestamp(0, tz="UTC", unit="us").as_unit("us")
        micro = pd.Timedelta(1, "us").as_unit("us")
        return [
            None if value is None else (pd.Timestamp(value).as_unit("us") - first) // micro for value in zoned
        ]
    if kind.startswith("list"):
        return [
            None if value is None else [one for one in value if one not in (None, "")] for value in values
        ]
    if kind == "string":
        return [None if value is None or value == "" else str(value) for value in values]
    return [None if value is None else int(value) for value in values]


@pytest.mark.parametrize("seed", range(3))
def test_types_are_those_that_pandas_reads(shop: Shop, seed: int) -> None:
    kinds = {
        "TINYINT": "int",
        "SMALLINT": "int",
        "INT": "string",
        "BIGINT": "int",
        "FLOAT": "float",
        "DOUBLE": "float",
        "STRING": "string",
        "BOOLEAN": "bool",
        "DATE": "date",
        "TIMESTAMP": "timestamp",
        "TIMESTAMP_NTZ": "timestamp",
        "DECIMAL(12,3)": "decimal",
        "DECIMAL(38,0)": "int",
        "ARRAY<INT>": "list<int>",
        "ARRAY<BIGINT>": "list<int>",
        "ARRAY<STRING>": "list<string>",
    }
    draw = random.Random(seed)
    names = {kind: f"v{place}" for place, kind in enumerate(kinds)}
    rows = [(row, *(values_of(kind, draw) for kind in kinds)) for row in range(COUNT)]
    schema = ", ".join(["row INT", *(f"{name} {kind}" for kind, name in names.items())])
    shop.spark.createDataFrame(rows, schema).createOrReplaceTempView("values_of_types")
    columns = [{"name": "row", "type": "int"}]
    columns += [{"name": name, "type": kinds[kind]} for kind, name in names.items()]
    users = {"path": "values_of_types", "format": "spark_table", "columns": columns}
    config = shop.config(
        "{}.clicks/dt={date}",
        {"items": {**users, "columns": [*columns, {"name": "item", "type": "string", "source": "row"}]}},
    )
    shop.copy(config)
    assert config.items is not None
    reader = open_table(config.items, require_raw(config, config.items, DAYS[0]).paths)
    blocks = [block for split in reader.splits() for block in reader.blocks(split, config.items.names)]
    read = {
        name: [value for block in blocks for value in block.columns[name].to_pylist()]
        for name in config.items.names
    }
    order = sorted(range(COUNT), key=lambda place: read["row"][place])
    assert [block.malformed for block in blocks] == [{}] * len(blocks)
    for place, (kind, name) in enumerate(names.items(), start=1):
        expected = in_pandas(kinds[kind], pd.Series([row[place] for row in rows], dtype=object))
        mine = [read[name][at] for at in order]
        assert mine == expected, kind


@pytest.mark.processes
def test_tables_of_users_and_items_and_of_features(shop: Shop) -> None:
    users = pa.table({"user": [f"u{n:02}" for n in range(20)], "age": [n * 1.0 for n in range(20)]})
    items = pa.table({"item": [f"i{n}" for n in range(30)], "price": [n / 2 for n in range(30)]})
    tables_of: dict[str, dict[str, Any]] = {}
    for kind in ("parquet", "spark_table"):
        joined, paths = {}, {}
        for name, rows, value in (("users", users, "age"), ("items", items, "price")):
            pq.write_table(rows, shop.folder / f"{name}.parquet")
            paths[name] = str(shop.folder / f"{name}.parquet")
            if kind == "spark_table":
                shop.view("rows_of_table", rows)
                shop.sql(f"CREATE TABLE {{}}.{name} USING parquet AS SELECT * FROM rows_of_table")
                paths[name] = f"{shop.name}.{name}"
            columns = [{"name": name[:-1], "type": "string"}, {"name": value, "type": "float"}]
            joined[name] = {"path": paths[name], "format": kind, "columns": columns}
        external = {
            "path": paths["items"],
            "format": kind,
            "key": "item",
            "columns": {"cost": {"type": "float", "source": "price"}},
        }
        features = [
            *GROUPS["features"],
            {"columns": ["age", "price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
            {"columns": ["item"], "kind": "dense"} | {"ops": [{"join_external": external}, "fill_median"]},
        ]
        scopes = {"user": ["age"], "item": ["item", "price"]}
        changes = {"name": kind, "features": features, "scopes": scopes}
        config = shop.config("{}.clicks/dt={date}", {**changes, **joined})
        tables_of[kind] = shop.build(config)
        if kind == "spark_table":
            before = find_raw(config, config.items, DAYS[-1])  # type: ignore[arg-type]
            shop.sql("INSERT INTO {}.items VALUES ('i77', 7.0)")
            shop.copy(config)
            after = find_raw(config, config.items, DAYS[-1])  # type: ignore[arg-type]
            assert before is not None
            assert after is not None
            assert before.digest != after.digest
    for day in DAYS:
        assert tables_of["parquet"][f"features {day}"] == tables_of["spark_table"][f"features {day}"]


@pytest.mark.processes
def test_a_log_of_impressions(shop: Shop) -> None:
    for seed, day in enumerate(DAYS):
        clicks = rows_of(day, seed)
        positions = pa.array([row % 9 + 1 for row in range(len(clicks))])
        shown = clicks.select(["user", "item", "at"]).append_column("place", positions)
        folder = shop.folder / f"raw/shown/dt={day}"
        folder.mkdir(parents=True)
        pq.write_table(shown, folder / "rows.parquet")
    names = str(shop.folder / "raw/shown")
    shop.sql(
        f"CREATE TABLE {{}}.shown USING parquet AS SELECT *, CAST(dt AS DATE) AS day FROM parquet.`{names}`"
    )
    features = [
        *GROUPS["features"],
        {"columns": ["shown_at"], "kind": "dense", "ops": [{"fill": {"value": 0}}]},
    ]
    built = {}
    for kind, path in (
        ("parquet", "{data}/shown/dt={date}/*"),
        ("spark_table", f"{shop.name}.shown/day={{date}}"),
    ):
        impressions = {"path": path, "format": kind, "user": "user", "item": "item", "position": "place"}
        impressions |= {"time": "at", "row_column": "shown_at"}
        changes = {"name": kind, "features": features, "serving": {"impressions": impressions}}
        built[kind] = shop.build(shop.config("{}.clicks/dt={date}", changes))
    for day in DAYS:
        mine = built["spark_table"][f"features {day}"]
        assert mine == built["parquet"][f"features {day}"]
        assert {row["shown_at"] for row in mine} >= {1.0, 9.0}


def test_copies_that_no_run_needs_are_deleted(shop: Shop) -> None:
    output = {"output": {"row_group_rows": 64, "grace_hours": 0}}
    config = shop.config("{}.clicks/dt={date}", output)
    shop.copy(config)
    named = {path.name for path in Path(f"{config.lake}/copies/hard").glob("*/dt=*")}
    assert named == {"dt=2025-12-31", *(f"dt={day}" for day in DAYS)}
    delete_unneeded_days(plan_of(config), LakePaths(config.lake), DAYS[1])
    assert find_raw(config, config.log, DAYS[0]) is None
    assert all(find_raw(config, config.log, day) for day in DAYS[1:])
    other = shop.config("{}.clicks/at={date}", output)
    delete_unneeded_days(plan_of(other), LakePaths(config.lake), DAYS[0])
    assert not list(Path(f"{config.lake}/_data/copies").rglob("*.parquet"))


def test_prune_deletes_the_copies_of_old_dates(shop: Shop) -> None:
    config = shop.config("{}.clicks/dt={date}", {"output": {"row_group_rows": 64, "grace_hours": 0}})
    for old in ("2025-12-01", "2025-12-02"):
        shop.fill(old, seed=1)
    recorder = RunLineage("copy", "test", DAYS[-1])
    for days in (["2025-12-01", "2025-12-02"], None):
        copy_tables.copy_tables(shop.spark, plan_of(config), DAYS[-1], recorder, days)
    prune.run(RunContext("prune", config, DAYS[-1]), 4, dry_run=False)
    left = {path.parent.parent.name for path in Path(f"{config.lake}/_data/copies").rglob("*.parquet")}
    assert left == {f"dt={day}" for day in DAYS}
    assert find_raw(config, config.log, "2025-12-02") is None


class Broken:
    """A session whose catalogue fails with an error."""

    def __init__(self, error: Exception) -> None:
        self.catalog, self.error = self, error

    def tableExists(self, _: str) -> bool:
        raise self.error


def test_only_what_a_retry_cannot_repair_is_a_wrong_configuration(shop: Shop) -> None:
    config = shop.config("{}.clicks/dt={date}")
    down = AnalysisException("java.net.ConnectException: Connection refused")
    with pytest.raises(AnalysisException):
        copy_tables.open_rows(Broken(down), config.log, DAYS[0], "log.path")  # type: ignore[arg-type]
    jar = Py4JError("java.lang.ClassNotFoundException: org.apache.iceberg.spark.SparkCatalog")
    with pytest.raises(ConfigError, match=r"org\.apache\.iceberg(.|\n)*runtime jar"):
        copy_tables.open_rows(Broken(jar), config.log, DAYS[0], "log.path")  # type: ignore[arg-type]
    shop.sql("CREATE TABLE {}.base USING parquet AS SELECT 1 AS one")
    shop.sql("CREATE VIEW {}.broken AS SELECT * FROM {}.base".replace("{}", shop.name))
    shop.sql("DROP TABLE {}.base")
    with pytest.raises(ConfigError, match=r"cannot open the table shop_of_copies\.broken"):
        shop.copy(shop.config("{}.broken/dt={date}"))


def test_functions_of_users_have_no_state(shop: Shop) -> None:
    shop.spark.udf.register("shorter", lambda text: text[:1], "string")
    shop.sql("SELECT shorter(user) AS user FROM {}.clicks").createOrReplaceTempView("shortened")
    for query, has_state in (
        ("SELECT user FROM {}.clicks", True),
        ("SELECT * FROM shortened", False),
        ("SELECT rand() AS user FROM {}.clicks", False),
        ("SELECT user FROM {0}.clicks WHERE visits > (SELECT avg(visits) FROM {0}.clicks)", False),
        ("SELECT 'u' AS user", True),
    ):
        assert (copy_tables.state_of(shop.spark, shop.sql(query)) is not None) == has_state, query


def test_the_state_has_the_literals_of_views_and_the_options_of_tables(shop: Shop) -> None:
    def state(name: str) -> str | None:
        rows = copy_tables.open_table(shop.spark, [shop.name, name], name, "key")
        return None if rows is None else copy_tables.state_of(shop.spark, rows)

    states = []
    for query in (
        "SELECT user FROM {0}.clicks WHERE C1 = '#1'",
        "SELECT user FROM {0}.clicks WHERE C1 = '#2'",
        "SELECT user FROM {0}.clicks WHERE C1 = 'C1#2'",
        "SELECT item AS user FROM {0}.clicks WHERE C1 = '#2'",
        "SELECT a.user FROM {0}.clicks AS a JOIN {0}.clicks AS b ON a.item = b.user",
        "SELECT b.user FROM {0}.clicks AS a JOIN {0}.clicks AS b ON a.item = b.user",
    ):
        shop.sql("CREATE OR REPLACE VIEW {0}.changed AS " + query)
        states.append(state("changed"))
        assert state("changed") == states[-1], query  # Spark gives other numbers to the same columns
    path = shop.folder / "text/rows.csv"
    path.parent.mkdir()
    path.write_text("u1;5,i1\n")
    shop.sql(
        "CREATE TABLE {}.text (user STRING, item STRING) USING csv OPTIONS (sep ',', token 'old') "
        f"LOCATION '{path.parent}'"
    )
    states.append(state("text"))
    shop.sql("ALTER TABLE {}.text SET SERDEPROPERTIES ('token' = 'new')")
    assert state("text") == states[-1]
    shop.sql("ALTER TABLE {}.text SET SERDEPROPERTIES ('sep' = ';')")
    states.append(state("text"))
    assert None not in states
    assert len(set(states)) == len(states)


def test_plan_night_waits_for_the_rows_of_the_day(shop: Shop) -> None:
    config = shop.config("{}.clicks/dt={date}")
    for dt, files in ((DAYS[-1], 1), ("2026-01-04", 0)):
        context = RunContext("plan_night", config, dt, open_session=lambda _: shop.spark)
        raw_log = plan_night.run(context).facts["raw_log"]
        assert (raw_log["path"], raw_log["files"]) == (f"shop_of_copies.clicks/dt={dt}", files)


@pytest.mark.parametrize("kind", ["double", "float", "decimal(10, 2)", "decimal(20, 0)", "bigint", "string"])
def test_whole_numbers_are_ids_without_a_fraction_whatever_their_type(spark: SparkSession, kind: str) -> None:
    rows = spark.sql(f"SELECT cast(17 AS {kind}) AS user UNION ALL SELECT cast(NULL AS {kind})")
    actual = rows.select(copy_tables.as_id(rows, "user").alias("id")).collect()
    assert sorted((row.id for row in actual), key=str) == ["17", None]


def test_integers_of_texts_are_equal_in_spark_and_arrow(spark: SparkSession) -> None:
    texts = ["7", "007", "+7", "7.0", "7.", "-0", "7\n", "7.0\n", "7\r\n", " 7", "7.5", "9223372036854775808"]
    rows = spark.createDataFrame([(text,) for text in texts], "user string")
    plain = copy_tables.with_plain_integers(rows, "user").select("user", integers_of_texts(F.col("user")))
    of_spark = [tuple(row) for row in plain.collect()]
    of_arrow = integers(pa.array(texts)).to_pylist()
    assert [number for _, number in of_spark] == of_arrow
    assert [text for text, _ in of_spark][:9] == [*["7"] * 5, "0", *texts[6:9]]
