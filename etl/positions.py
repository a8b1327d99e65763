"""Which line of the day a row is: file order, then position in the file. Dense, and equal in every run."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

_INDEX_IN_TASK = (
    1 << 33
) - 1  # monotonically_increasing_id puts the row's index within its task below bit 33


def number_lines(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Lines of text files: (file, line_number from 1 in the file, row_id from 0 over all files, line).

    A file may be read in several blocks by several tasks, so the lines of each block are counted first; that costs one
    pass over the text without parsing it, and collects one number a block.
    """
    blocks = _in_blocks(spark, paths)
    ends = (
        blocks.groupBy("file", "block")
        .agg(F.min("index").alias("low"), F.count(F.lit(1)).alias("lines"))
        .collect()
    )
    order = {_plain(path): position for position, path in enumerate(paths)}
    offsets, total = [], 0
    of_file: dict[str, int] = {}
    for end in sorted(ends, key=lambda row: (order[_plain(row["file"])], row["block"])):
        in_file = of_file.get(end["file"], 0)
        offsets.append((end["file"], end["block"], total - end["low"], in_file - end["low"]))
        total += end["lines"]
        of_file[end["file"]] = in_file + end["lines"]
    if not offsets:
        return blocks.select(
            "file", F.lit(0).cast("long").alias("line_number"), F.lit(0).cast("long").alias("row_id"), "line"
        )
    starts = spark.createDataFrame(offsets, "file string, block long, day_offset long, file_offset long")
    return blocks.join(F.broadcast(starts), ["file", "block"]).select(
        "file",
        (F.col("file_offset") + F.col("index") + 1).alias("line_number"),
        (F.col("day_offset") + F.col("index")).alias("row_id"),
        "line",
    )


def _in_blocks(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    return spark.read.text(list(paths)).select(
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().bitwiseAND(F.lit(_INDEX_IN_TASK)).alias("index"),
        F.col("value").alias("line"),
    )


def _plain(path: str) -> str:
    """A path without scheme: Spark writes file:/x or file:///x where we write /x."""
    return "/" + path.split(":", 1)[1].lstrip("/") if ":" in path.split("/", 1)[0] else path
