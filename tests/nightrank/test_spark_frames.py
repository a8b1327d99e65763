"""Columns of Spark frames become Arrow tables, however Spark divides their rows."""

from __future__ import annotations

from pyspark.sql import SparkSession

from nightrank.spark_frames import collect_columns
from tests.spark_settings import set_meanwhile


def test_a_partition_of_several_batches_is_collected_whole(spark: SparkSession) -> None:
    rows = spark.range(7).selectExpr("id", "concat('u', id) AS user").coalesce(1)
    with set_meanwhile(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "2"}):
        table = collect_columns(rows, ["user", "id"])
    assert table.to_pydict() == {"user": [f"u{number}" for number in range(7)], "id": [*range(7)]}
