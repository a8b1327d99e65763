"""The Spark session that jobs of one application share."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from conf.load import load_config
from jobs.runner import SharedSession
from storage.run_context import RunContext


def test_jobs_share_a_session_and_cached_tables_do_not_outlive_their_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    shared = SharedSession(spark)
    config = load_config("conf/datasets/generated.yaml", [f"lake={tmp_path}"])
    opened = []
    for job in ("build_features", "score_daily"):
        sessions = shared.of_job()
        context = RunContext(job, config, "2026-01-08", open_session=sessions.open)
        context.spark.range(3).createOrReplaceTempView("cached_by_a_job")
        assert not spark.catalog.isCached("cached_by_a_job")
        context.spark.catalog.cacheTable("cached_by_a_job")
        assert spark.catalog.isCached("cached_by_a_job")
        sessions.keep_stacks(context)
        sessions.close(context)
        assert not spark.catalog.isCached("cached_by_a_job")
        opened.append(context.spark)
    assert opened == [spark, spark]
    spark.catalog.dropTempView("cached_by_a_job")
    assert spark.range(5).count() == 5  # the session was not stopped
