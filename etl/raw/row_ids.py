"""Assigns a row_id to each line: its position among all lines of the day's files, from 0.

The row_id of a line is the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.raw.compressed import find_damaged, lines_by_workers, spark_cannot_read

# Mask for the index of a row within its task, in the values of monotonically_increasing_id.
_INDEX_IN_TASK = (1 << 33) - 1


@dataclass(frozen=True)
class LinesOfBlock:
    """How many lines of a block there are, and where they begin.

    Attributes:
        file: Spark's name of the file.
        block: the byte of the file at which the block begins.
        low: the lowest `index` of the block's lines (`lines_in_blocks`).
        lines: number of lines.
    """

    file: str
    block: int
    low: int
    lines: int


@dataclass(frozen=True)
class BlockStart:
    """What must be added to the `index` of a block's lines.

    Attributes:
        file, block: as in LinesOfBlock.
        path: the path of the file.
        day_offset: row_id minus index.
        file_offset: position of the line in its file, from 0, minus index.
    """

    file: str
    block: int
    path: str
    day_offset: int
    file_offset: int


def number_lines(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Reads the lines of text files, each with its line number and its row_id.

    Spark divides a file into blocks, which different tasks read. So the lines of each block are counted
    first. The count takes one pass over the text, without parsing, and the driver collects one row per block.

    Returns:
        A frame with one row per line, and with the columns `file`, `line_number`, `row_id`, `line` and
        `is_utf8`. `file` is an element of `paths`. `line_number` starts at 1 in each file, and `row_id` at 0
        in the first file. Invalid UTF-8 bytes of a line are replaced by U+FFFD.

    Raises:
        DataError: a compressed file is damaged.
        ConfigError: no reader can decompress a file.
    """
    blocks = lines_in_blocks(spark, paths)
    counted = blocks.groupBy("file", "block").agg(
        F.min("index").alias("low"), F.count(F.lit(1)).alias("lines")
    )
    with damaged_files_named(paths):
        ends = [LinesOfBlock(**row.asDict()) for row in counted.collect()]
    if not ends:
        return blocks.select(
            "file",
            F.lit(0).cast("long").alias("line_number"),
            F.lit(0).cast("long").alias("row_id"),
            "line",
            "is_utf8",
        )
    starts = spark.createDataFrame(
        [
            (start.file, start.block, start.path, start.day_offset, start.file_offset)
            for start in block_starts(ends, paths)
        ],
        "file string, block long, path string, day_offset long, file_offset long",
    )
    return blocks.join(F.broadcast(starts), ["file", "block"]).select(
        F.col("path").alias("file"),
        (F.col("file_offset") + F.col("index") + 1).alias("line_number"),
        (F.col("day_offset") + F.col("index")).alias("row_id"),
        "line",
        "is_utf8",
    )


def block_starts(blocks: Iterable[LinesOfBlock], paths: Sequence[str]) -> list[BlockStart]:
    """Returns where the lines of each block begin, in the order of the lines.

    `blocks` are all blocks of `paths` that have a line, in any order.
    """
    counted = list(blocks)
    names = paths_by_spark_name(paths, {block.file for block in counted})
    order = {path: position for position, path in enumerate(paths)}
    starts, total = [], 0
    lines_of_file: dict[str, int] = {}
    for block in sorted(counted, key=lambda block: (order[names[block.file]], block.block)):
        in_file = lines_of_file.get(block.file, 0)
        starts.append(
            BlockStart(block.file, block.block, names[block.file], total - block.low, in_file - block.low)
        )
        total += block.lines
        lines_of_file[block.file] = in_file + block.lines
    return starts


@contextmanager
def damaged_files_named(paths: Sequence[str]) -> Iterator[None]:
    """Raises a DataError with the name of the damaged file if Spark cannot decompress one of `paths`."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        damaged = find_damaged(paths)
        if damaged is None:
            raise
        raise damaged from error


def lines_in_blocks(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Returns a frame with one row per line: `file`, `block`, `index`, `line` and `is_utf8`.

    `file` is Spark's name of the file, and `block` is the byte at which the block begins. `index` gives the
    order of the lines in a block. Invalid UTF-8 bytes of a line are replaced by U+FFFD. `is_utf8` says
    whether the bytes of the line are valid UTF-8. It is computed directly after the text reader, which always
    runs on the CPU, because a GPU treats all strings as valid.

    Raises:
        ConfigError: no reader can decompress a file.
    """
    for_workers = spark_cannot_read(spark, paths)
    if for_workers:
        others = [path for path in paths if path not in for_workers]
        lines = lines_by_workers(spark, for_workers)
        return lines_in_blocks(spark, others).unionByName(lines) if others else lines
    text = F.decode(F.col("value").cast("binary"), "UTF-8")
    return spark.read.text(list(paths)).select(
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().bitwiseAND(F.lit(_INDEX_IN_TASK)).alias("index"),
        text.alias("line"),
        (text == F.col("value")).alias("is_utf8"),
    )


def paths_by_spark_name(paths: Sequence[str], spark_names: Iterable[str]) -> dict[str, str]:
    """Returns a mapping from Spark's name of each file to the path of the file in `paths`.

    Spark's name has a scheme before the path, and escapes for blanks and percent signs.
    """
    path_of = {_without_scheme(path): path for path in paths}
    return {name: path_of[_without_scheme(unquote(name))] for name in spark_names}


def _without_scheme(path: str) -> str:
    """Returns a path without its scheme, such as /x for file:///x, and /bucket/x for s3a://bucket/x."""
    return "/" + path.split(":", 1)[1].lstrip("/") if ":" in path.split("/", 1)[0] else path
