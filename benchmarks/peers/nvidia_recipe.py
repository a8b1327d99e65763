"""NVIDIA's published Spark program for Criteo's log, reimplemented.

Source: NVIDIA DeepLearningExamples, PyTorch/Recommendation/DLRM/preproc/spark_data_utils.py (Apache-2.0;
read, not copied). The program first computes dictionaries. It melts all categorical columns into rows
(column, value) and counts them. It drops values below the frequency limit. A window function assigns
ids to the remaining values by descending count. The values with their ids are written as one table, and then
as 26 tables, one per column. The program then reads the log again and joins it with each of the 26 tables by a broadcast left join.
Values that are in no dictionary get a default id, integers are replaced by logarithms, and the result is
written as Parquet.

We use the fastest published form of this program. We leave out the option `--low_mem`, which NVIDIA's script
for CPUs sets: without the option, the joins are broadcast joins; with the option, each column needs two joins.
We set `--output_ordering any`, so that the output is not shuffled. The program runs with Spark's default JVM
flags (C2 compiler, parallel collector) and may use more memory than our job. As in the original, the number of shuffle partitions is twice the number of days.

Some details differ from the original, so that each cell of the result can be compared with ours. These
differences add no pass over the data. Equal counts are ordered by value. Null gets the id 1 and unknown values get the id 2,
instead of 0 for both. Dictionaries contain the values of the train days. Nulls in integer columns become 0,
negative integers become 0, and the logarithm is log(1 + x) instead of log(x + 3).
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.contender import (
    CATEGORICAL,
    DENSE,
    FIRST_ID,
    LABEL,
    NULL_ID,
    OOV_ID,
    START_UP,
    WORK,
    Outcome,
    Task,
    Timing,
    parquet_files,
    run,
)

_SCHEMA = ", ".join(
    [f"{LABEL} float", *(f"{name} int" for name in DENSE), *(f"{name} string" for name in CATEGORICAL)]
)


def start(task: Task) -> SparkSession:
    """Opens a Spark session with the settings of NVIDIA's program, and runs a first job in it."""
    spark = (
        SparkSession.builder.appName("nvidia recipe")
        .master(f"local[{task.threads}]")
        .config("spark.driver.memory", task.settings["memory"])
        .config("spark.sql.shuffle.partitions", 2 * len(task.days))
        .config("spark.sql.parquet.compression.codec", "zstd")
        .config("spark.local.dir", task.scratch)
        .config("spark.sql.warehouse.dir", f"{task.scratch}/warehouse")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.range(1000).count()
    return spark


def read(spark: SparkSession, files: list[str]) -> DataFrame:
    return spark.read.schema(_SCHEMA).option("sep", "\t").csv(files)


def write_dictionaries(spark: SparkSession, train: DataFrame, min_count: int, folder: str) -> None:
    """Writes one table (column, value, id) for all columns, and then one table (value, id) for each column."""
    melted = train.select(F.posexplode(F.array(*CATEGORICAL)).alias("column", "value"))
    counts = melted.where("value is not null").groupBy("column", "value").count()
    by_count = Window.partitionBy("column").orderBy(F.desc("count"), F.asc("value"))
    numbered = counts.where(F.col("count") >= min_count).withColumn("id", F.row_number().over(by_count))
    numbered.write.parquet(f"{folder}/combined")
    combined = spark.read.parquet(f"{folder}/combined")
    for place, name in enumerate(CATEGORICAL):
        combined.where(F.col("column") == place).select("value", "id").write.parquet(f"{folder}/{name}")


def encode(spark: SparkSession, rows: DataFrame, folder: str) -> DataFrame:
    for name in CATEGORICAL:
        dictionary = spark.read.parquet(f"{folder}/{name}").withColumnRenamed("value", name)
        encoded = F.coalesce(
            F.col("id") + (FIRST_ID - 1), F.when(F.col(name).isNull(), NULL_ID).otherwise(OOV_ID)
        )
        rows = (
            rows.join(F.broadcast(dictionary), name, "left").withColumn(name, encoded.cast("int")).drop("id")
        )
    for name in DENSE:
        filled = F.greatest(F.coalesce(F.col(name), F.lit(0)), F.lit(0))
        rows = rows.withColumn(name, F.log1p(filled).cast("float"))
    return rows


def recipe(task: Task, timing: Timing) -> Outcome:
    with timing.part(START_UP):
        spark = start(task)
    with timing.part(WORK):
        models = f"{task.scratch}/models"
        with timing.part("dictionaries"):
            write_dictionaries(spark, read(spark, task.train_files), task.min_count, models)
        with timing.part("transform"):
            day = F.regexp_extract(F.input_file_name(), r"dt=(\d{4}-\d\d-\d\d)", 1)
            rows = read(spark, task.files).withColumn("dt", day)
            encode(spark, rows, models).write.partitionBy("dt").parquet(f"{task.out}/rows")
    spark.stop()
    return Outcome({day.dt: parquet_files(Path(task.out) / "rows" / f"dt={day.dt}") for day in task.days})


if __name__ == "__main__":
    run(recipe)
