"""NVIDIA's published Spark recipe for Criteo, reimplemented: melt, group, number, then 26 dictionary joins.

Source: NVIDIA DeepLearningExamples, PyTorch/Recommendation/DLRM/preproc/spark_data_utils.py (Apache-2.0;
read, not copied). All categorical columns are melted into (column, value) and counted. Values below the
frequency limit are dropped. A window numbers the rest by descending count. The model is written as one table,
then as 26, one a column. The log is read again and left-joined with each of them by broadcast. Unmatched ids
are filled, integers go through a logarithm, and the result is written as Parquet.

We use its fastest published form: broadcast joins rather than the two joins a column of `--low_mem` (which
its CPU script sets), and `--output_ordering any`, so the output is not shuffled. It has Spark's default JVM
flags (C2 compiler, parallel collector) and no memory limit. As in the original, shuffle partitions are twice
the number of days.

Some details differ from the original, so that its results can be compared with ours cell by cell. None adds a
pass. Equal counts are ordered by value. Null and unknown values get the ids 1 and 2 rather than 0 for both.
Dictionaries are fitted on the train days. Integers are filled, clipped and transformed by log(1 + x) rather
than log(x + 3).
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
    """Starts a session of the recipe's own and runs a first job in it."""
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
    """Writes one table (column, value, id) of all columns, then one folder a column."""
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
