"""Delivers lists to a table of Spark's catalogue, as the sink `table` does.

Usage: python -m tests.delivery.catalogue_deliveries KIND FOLDER STEP. The step `all` prints a line of JSON with
what each delivery did and how many versions the table then had. The step `large` delivers many rows of a day,
and prints `ready` before it begins, so that a test can kill it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from conf.errors import NightrankError
from scoring.delivery.published_lists import EraseRequest, PublishedLists
from scoring.delivery.sinks import table
from setup import jars
from spark.profile import read_properties
from spark.rows import frame_of
from spark.session import build_session
from tests.delivery.table_lists import NEXT_DAY, expected, features_of, lists_of

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"delta": "shop.lists", "iceberg": "ice.shop.lists"}
ITEMS = {f"u{number}": [f"i{number + place}" for place in range(1 + number % 4)] for number in range(40)}
OTHER = {user: items[::-1] for user, items in ITEMS.items()} | {"u'2": ["ä☂"]}
ERASED = {"u'2", "u7"}
USERS = pa.table({"user_key": ["u1", "u7"], "age": pa.array([1, 2], pa.int32())})
LARGE = {f"u{number:06d}": [f"i{place}" for place in range(10)] for number in range(30_000)}


def settings(kind: str, folder: Path) -> dict[str, str]:
    """The settings of a Spark session that has the catalogue, as a profile would have them."""
    values = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.jars": ",".join(str(jar.path) for jar in jars.table_formats()),
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
    if kind == "iceberg":
        return values | {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.ice.type": "hadoop",
            "spark.sql.catalog.ice.warehouse": str(folder / "warehouse"),
        }
    return values | {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def session(kind: str, folder: Path) -> SparkSession:
    profile = read_properties(ROOT / "conf/spark/local.conf")
    return build_session("deliveries", {**profile, **settings(kind, folder)})


def sink_of(kind: str, **more: Any) -> table.Settings:
    values = {"kind": "table", "name": "warehouse", "table": NAMES[kind], "format": kind, **more}
    return table.Settings.model_validate(values)


def in_spark(spark: SparkSession, lists: PublishedLists) -> PublishedLists:
    users = features_of("user_key", USERS, lists.run_date)
    opened = {"users": lambda: replace(users, read=lambda: frame_of(spark, USERS))}
    return replace(lists, rows=frame_of(spark, lists.rows), open_features=opened)


def versions(spark: SparkSession, kind: str) -> int:
    text = f"SELECT * FROM {NAMES[kind]}.history" if kind == "iceberg" else f"DESCRIBE HISTORY {NAMES[kind]}"
    return int(spark.sql(text).count())


def bounds(spark: SparkSession, kind: str) -> str:
    """The lowest and highest values of columns in the metadata of all versions of the table."""
    if kind == "iceberg":
        rows = spark.sql(f"SELECT lower_bounds, upper_bounds FROM {NAMES[kind]}.all_data_files").collect()
        return repr(rows)
    location = spark.sql(f"DESCRIBE DETAIL {NAMES[kind]}").collect()[0].location
    folder = Path(location.removeprefix("file:"))
    return "".join(entry.read_text() for entry in (folder / "_delta_log").glob("*.json"))


def served(spark: SparkSession, kind: str) -> list[tuple[Any, ...]]:
    """The rows of the table, in the form of `expected`."""
    names = ["dt", *lists_of(ITEMS).rows.column_names, "variant"]
    rows = spark.table(NAMES[kind]).select(*names).collect()
    return sorted(((str(row[0]), *row[1:]) for row in rows), key=repr)


def error_of(run: Callable[[], object]) -> str:
    try:
        run()
    except NightrankError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def deliver_all(spark: SparkSession, kind: str) -> dict[str, Any]:
    steps: list[Any] = []

    def deliver(lists: PublishedLists, **more: Any) -> None:
        done = table.deliver(sink_of(kind, **more), in_spark(spark, lists))
        steps.append([done.rows, done.written, done.deleted, versions(spark, kind)])

    first, other, next_day = lists_of(ITEMS), lists_of(OTHER), lists_of(ITEMS, NEXT_DAY)
    results: dict[str, Any] = {"no schema": "", "steps": steps}
    if kind == "delta":  # the Hadoop catalogue of Iceberg needs no schema
        results["no schema"] = error_of(lambda: deliver(first))
        spark.sql("CREATE DATABASE shop")
    for lists in (first, first, next_day, other, other):
        deliver(lists, features=["users"])
    results["same"] = served(spark, kind) == sorted([*expected(other), *expected(next_day)], key=repr)
    erased = table.erase(sink_of(kind), EraseRequest(frozenset(ERASED), {}, lambda: spark))
    again = table.erase(sink_of(kind), EraseRequest(frozenset(ERASED), {}, lambda: spark))
    results["erased"] = [erased.rows, erased.remark, again.rows, versions(spark, kind)]
    known = bounds(spark, kind)
    results["bounds"] = [user for user in OTHER if f'"{user}' in known or f"b'{user}" in known]
    results["users"] = [row.user_key for row in spark.table(f"{NAMES[kind]}_users").collect()]
    without = {user: items for user, items in ITEMS.items() if user not in ERASED}
    deliver(lists_of(without, NEXT_DAY), keep_dates=1)
    results["kept"] = served(spark, kind) == expected(lists_of(without, NEXT_DAY))
    rivals = [lists_of({"a": ["x"] * number}, "2026-02-01") for number in (2, 3)]
    with ThreadPoolExecutor(len(rivals)) as pool:
        list(pool.map(lambda lists: table.deliver(sink_of(kind), in_spark(spark, lists)), rivals))
    of_rivals = [row for row in served(spark, kind) if row[0] == "2026-02-01"]
    results["of one"] = of_rivals in [expected(lists) for lists in rivals]
    table.deliver(sink_of(kind), in_spark(spark, first))  # what other readers then see
    wrong = sink_of("iceberg" if kind == "delta" else "delta", table=NAMES[kind])
    results["format"] = error_of(lambda: table.deliver(wrong, in_spark(spark, first)))
    spark.sql(f"ALTER TABLE {NAMES[kind]} ADD COLUMN extra INT")
    results["columns"] = error_of(lambda: table.deliver(sink_of(kind), in_spark(spark, first)))
    return results


def main() -> None:
    kind, folder, step = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    spark = session(kind, folder)
    if step == "all":
        print(json.dumps(deliver_all(spark, kind)))
    elif step == "first":
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {NAMES[kind].rpartition('.')[0]}")
        table.deliver(sink_of(kind), in_spark(spark, lists_of(ITEMS)))
    elif step == "large":
        lists = in_spark(spark, lists_of(LARGE))
        print("ready", flush=True)
        table.deliver(sink_of(kind), lists)
    spark.stop()


if __name__ == "__main__":
    main()
