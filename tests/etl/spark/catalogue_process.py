"""Runs build_features three times on a table of a catalogue, and prints what it read as a line of JSON.

Usage: python -m tests.etl.spark.catalogue_process KIND FOLDER. The folder has the rows of each day as Parquet.
Before the third run, the rows of one user are deleted from one day.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from conf.load import load_config
from etl.raw.files import copy_of, require_raw
from jobs import build_features
from setup import jars
from spark.profile import read_properties
from spark.session import build_session
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl.text.test_without_a_jvm import DAYS, tables

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = "label BIGINT, at TIMESTAMP, I1 DOUBLE, visits BIGINT, `user` STRING, item STRING, C1 STRING"
NAMES = {
    "hive": "shop.clicks",
    "hive_text": "shop.clicks",
    "delta": "shop.clicks",
    "iceberg": "ice.shop.clicks",
}
_TABLES = {
    "hive": "PARTITIONED BY (dt STRING) STORED AS PARQUET",
    "hive_text": "PARTITIONED BY (dt STRING) STORED AS TEXTFILE",
    "delta": "USING delta PARTITIONED BY (dt) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "iceberg": "USING iceberg PARTITIONED BY (dt) TBLPROPERTIES "
    "('format-version' = '2', 'write.delete.mode' = 'merge-on-read')",
}
USER = "u05"


def settings(kind: str, folder: Path) -> dict[str, str]:
    """The settings of a Spark session that has the catalogue, as a profile would have them."""
    values = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.jars": ",".join(str(jar.path) for jar in jars.table_formats()),
    }
    if kind == "iceberg":
        return values | {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.ice.type": "hadoop",
            "spark.sql.catalog.ice.warehouse": str(folder / "warehouse"),
        }
    values |= {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict",
    }
    if kind == "delta":
        values |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    return values


def fill(spark: SparkSession, kind: str, folder: Path) -> None:
    name = NAMES[kind]
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {name.rpartition('.')[0]}")
    partitions = "" if "STORED" in _TABLES[kind] else ", dt STRING"
    spark.sql(f"CREATE TABLE {name} ({COLUMNS}{partitions}) {_TABLES[kind]}")
    for day in DAYS:
        spark.read.parquet(str(folder / f"rows/{day}.parquet")).createOrReplaceTempView("new_rows")
        spark.sql(f"INSERT INTO {name} SELECT *, '{day}' FROM new_rows")


def delete(spark: SparkSession, kind: str) -> None:
    name = NAMES[kind]
    if not kind.startswith("hive"):
        spark.sql(f"DELETE FROM {name} WHERE dt = '{DAYS[0]}' AND user = '{USER}'")
        return
    rows = spark.table(name).where(f"dt = '{DAYS[0]}' AND user != '{USER}'").drop("dt")
    spark.createDataFrame(rows.toPandas(), rows.schema).createOrReplaceTempView("kept")
    spark.sql(f"INSERT OVERWRITE TABLE {name} PARTITION (dt = '{DAYS[0]}') SELECT * FROM kept")


def run(spark: SparkSession, folder: Path) -> dict[str, Any]:
    config = load_config(str(folder / "config.yaml"))
    build_features.run(RunContext("build_features", config, DAYS[-1], open_session=lambda _: spark))
    raw = {day: require_raw(config, config.log, day) for day in DAYS}
    return {
        "digests": {day: files.digest for day, files in raw.items()},
        "files": {day: files.paths for day, files in raw.items()},
        "has_state": read_manifest(copy_of(config, config.log, DAYS[0])).facts["state"] is not None,
        "users": sorted(
            {user for path in raw[DAYS[0]].paths for user in pq.read_table(path)["user"].to_pylist()}
        ),
        "tables": tables(LakePaths(config.lake)),
    }


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    profile = read_properties(ROOT / "conf/spark/local.conf")
    spark = build_session("catalogue", {**profile, **settings(kind, folder)})
    fill(spark, kind, folder)
    results = [run(spark, folder), run(spark, folder)]
    delete(spark, kind)
    results.append(run(spark, folder))
    print(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    main()
