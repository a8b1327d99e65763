"""Run records on s3a://, and the folder of event logs, which must exist before Spark starts."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from reporting.monitoring.run_record import read_records, write_record
from spark.session import event_log_settings
from storage.paths import LakePaths
from tests.etl.lakes.conftest import ObjectStore
from tests.reporting.monitoring.test_run_record import RUN_DATE, record


def test_rows_come_back_from_an_object_store(spark: SparkSession, object_store: ObjectStore) -> None:
    lake = LakePaths(f"{object_store.root}/watched")
    assert read_records(lake, [RUN_DATE]) == []
    written = [write_record(lake, record(job)) for job in ("build_features", "score_daily")]
    assert len(set(written)) == 2
    assert [record.job for record in read_records(lake, [RUN_DATE])] == ["build_features", "score_daily"]
    rows = spark.read.json(f"{lake.runs.path}/dt={RUN_DATE}").select("job").collect()
    assert sorted(row["job"] for row in rows) == ["build_features", "score_daily"]


def test_spark_finds_the_folder_of_its_events(spark: SparkSession, object_store: ObjectStore) -> None:
    folder = LakePaths(f"{object_store.root}/watched").event_logs
    assert event_log_settings({}.get, folder)["spark.eventLog.dir"] == folder
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(folder)
    status = path.getFileSystem(context.sc().hadoopConfiguration()).getFileStatus(path)
    assert status.isDirectory()
