"""Which line of the day a row is: file order, then position in the file. Dense, and equal in every run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.raw.compressed import find_damaged, lines_by_workers, spark_cannot_read

_INDEX_IN_TASK = (
    1 << 33
) - 1  # monotonically_increasing_id puts the row's index within its task below bit 33


def number_lines(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Lines of text files: (file as in `paths`, line_number from 1 in the file, row_id from 0 over all files, line, is_utf8).

    A line with broken UTF-8 has U+FFFD in place of each broken byte, and is_utf8 false. That is found right behind the
    reader, which is on the CPU in any case: strings on a GPU are taken to be valid.
    A file may be read in several blocks by several tasks, so the lines of each block are counted first; that costs one
    pass over the text without parsing it, and collects one number a block.

    Raises:
        DataError: a compressed file is damaged.
        ConfigError: nothing here can decompress a file.
    """
    blocks = _in_blocks(spark, paths)
    counted = blocks.groupBy("file", "block").agg(
        F.min("index").alias("low"), F.count(F.lit(1)).alias("lines")
    )
    try:
        ends = counted.collect()
    except (Py4JJavaError, PySparkException) as error:
        damaged = find_damaged(paths)
        if damaged is None:
            raise
        raise damaged from error
    names = our_names(paths, {end["file"] for end in ends})
    order = {path: position for position, path in enumerate(paths)}
    offsets, total = [], 0
    of_file: dict[str, int] = {}
    for end in sorted(ends, key=lambda row: (order[names[row["file"]]], row["block"])):
        in_file = of_file.get(end["file"], 0)
        offsets.append(
            (end["file"], end["block"], names[end["file"]], total - end["low"], in_file - end["low"])
        )
        total += end["lines"]
        of_file[end["file"]] = in_file + end["lines"]
    if not offsets:
        return blocks.select(
            "file",
            F.lit(0).cast("long").alias("line_number"),
            F.lit(0).cast("long").alias("row_id"),
            "line",
            "is_utf8",
        )
    starts = spark.createDataFrame(
        offsets, "file string, block long, path string, day_offset long, file_offset long"
    )
    return blocks.join(F.broadcast(starts), ["file", "block"]).select(
        F.col("path").alias("file"),
        (F.col("file_offset") + F.col("index") + 1).alias("line_number"),
        (F.col("day_offset") + F.col("index")).alias("row_id"),
        "line",
        "is_utf8",
    )


def _in_blocks(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    packed = spark_cannot_read(spark, paths)
    if packed:
        others = [path for path in paths if path not in packed]
        unpacked = lines_by_workers(spark, packed)
        return _in_blocks(spark, others).unionByName(unpacked) if others else unpacked
    text = F.decode(F.col("value").cast("binary"), "UTF-8")
    return spark.read.text(list(paths)).select(
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().bitwiseAND(F.lit(_INDEX_IN_TASK)).alias("index"),
        text.alias("line"),
        (text == F.col("value")).alias("is_utf8"),
    )


def our_names(paths: Sequence[str], of_spark: Iterable[str]) -> dict[str, str]:
    """Spark's name of each file → the path it was asked for: Spark adds a scheme, and escapes blanks and percent signs."""
    known = {_without_scheme(path): path for path in paths}
    return {name: known[_without_scheme(unquote(name))] for name in of_spark}


def _without_scheme(path: str) -> str:
    """/x of /x, file:/x and file:///x; /bucket/x of s3://bucket/x and s3a://bucket/x."""
    return "/" + path.split(":", 1)[1].lstrip("/") if ":" in path.split("/", 1)[0] else path
