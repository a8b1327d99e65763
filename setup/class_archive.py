"""Archives the JVM classes that Spark's drivers load, so that jobs start sooner (see JEP 350).

The archive is valid only for the Java and the paths of the jars with which it was made, so it is part of the
environment. setup/env.sh sets the path of the archive in SPARK_SUBMIT_OPTS. If a JVM cannot find or use the
archive, it loads the classes from the jars without a warning.

To make the archive, spark-submit runs this file as a job. The classes that this job loads are archived.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

NAME = "spark.jsa"
_PATIENCE_S = 300


def make(root: Path, venv: Path, java_home: Path) -> str | None:
    """Writes the class archive venv/spark.jsa. Returns None, or a description of the error.

    An error is not raised, because some Java runtimes cannot write such archives.
    """
    archive = venv / NAME
    archive.unlink(missing_ok=True)
    profile = root / "conf/spark/local.conf"
    options = [
        line.split(None, 1)[1] for line in profile.read_text().splitlines() if "extraJavaOptions" in line
    ]
    python = venv / "bin/python"
    with tempfile.TemporaryDirectory() as scratch:
        archiving = f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
        command: list[str | Path] = [
            *(venv / "bin/spark-submit", "--properties-file", profile),
            *("--driver-java-options", " ".join([*options, archiving]), __file__, scratch),
        ]
        environment = {
            **os.environ,
            "JAVA_HOME": str(java_home),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": "",
        }
        environment.pop("SPARK_HOME", None)
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            archive.unlink(missing_ok=True)
            return f"it did not finish within {_PATIENCE_S} s"
    if done.returncode or not archive.is_file():
        archive.unlink(missing_ok=True)
        return (done.stderr or done.stdout).strip()[-1000:] or f"exit code {done.returncode}"
    return None


def typical_work(folder: Path) -> None:
    """Uses Spark as the jobs do: text, Parquet, joins, windows, sums, and Python workers on Arrow batches."""
    import pyarrow as pa
    from pyspark.sql import SparkSession, Window
    from pyspark.sql import functions as F

    def same(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return batches

    (folder / "events").mkdir()
    builder = SparkSession.builder.config("spark.eventLog.enabled", "true").config(
        "spark.eventLog.dir", f"file://{folder}/events"
    )
    spark = builder.getOrCreate()
    (folder / "log.tsv").write_text("".join(f"{row % 7}\t{row / 3}\tid{row % 11}\n" for row in range(1000)))
    text = spark.read.text(str(folder / "log.tsv")).select(F.split("value", "\t").alias("cells"))
    columns = (F.col("cells")[0].cast("int"), F.col("cells")[1].cast("double"), F.col("cells")[2])
    rows = text.select(*(cell.alias(name) for cell, name in zip(columns, "abc", strict=True)))
    read = spark.read.csv(str(folder / "log.tsv"), sep="\t", schema="a int, b double, c string")
    counts = read.groupBy("c").agg(
        F.count("*").alias("n"), F.sum("b").alias("s"), F.collect_list("a").alias("all")
    )
    joined = rows.join(counts, "c").join(F.broadcast(counts.select("c", F.col("n").alias("m"))), "c")
    ranked = joined.withColumn("position", F.row_number().over(Window.partitionBy("c").orderBy(F.desc("b"))))
    ranked.drop("all").repartition(3, "c").sortWithinPartitions("c").write.parquet(str(folder / "ranked"))
    stored = spark.read.parquet(str(folder / "ranked")).where("position < 5")
    stored.mapInArrow(same, stored.schema).write.partitionBy("position").json(str(folder / "json"))
    spark.read.json(str(folder / "json")).distinct().toPandas()
    spark.sparkContext.parallelize(range(4), 2).barrier().mapPartitions(
        lambda numbers: [sum(numbers)]
    ).collect()
    spark.stop()


if __name__ == "__main__":
    typical_work(Path(sys.argv[1]))
