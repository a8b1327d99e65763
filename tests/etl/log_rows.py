"""All rows of a raw log in a test, with the reason of each rejected row: what the readers and rules make of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config
from etl.prepare.last_values import value_tables
from etl.raw.files import RawFiles
from etl.spark.frame_passes import clicks_before, prepare_frame
from etl.spark.raw_frames import column_types
from etl.text.parse_block import columns_to_parse, layout_of_days, read_split
from etl.workflow.chains import decoded
from etl.workflow.feature_plan import plan_of
from spark.choose_workers import SparkWorkers
from spark.rows import spark_types
from storage.feature_spec import ROW_ID
from storage.paths import LakePaths

FILE, LINE_NUMBER, LINE, REASON = "_file", "_line_number", "_line", "_reason"
_SOURCE = {FILE: pa.string(), LINE_NUMBER: pa.int64(), LINE: pa.string(), REASON: pa.string()}


def rows_of_log(config: Config, raw: RawFiles, split_bytes: int | None = None) -> pa.Table:
    """Returns the rows of a day's log in order: row_id, `_file`, `_line_number`, `_line`, `_reason`, columns.

    The other columns are the raw columns and what the rules compute; they are null in rejected rows, which alone
    have a `_line`. `split_bytes` is the size of the parts in which files are read.
    """
    layout = layout_of_days(plan_of(config), [raw])
    types = column_types(plan_of(config), config.log.names)
    schema = pa.schema([(ROW_ID, pa.int64()), *_SOURCE.items(), *types.items()])
    parts = [schema.empty_table()]
    row_id, line, path = 0, 0, ""
    for split in layout.reader.splits(split_bytes):
        line, path = (0 if split.path != path else line), split.path
        for block in read_split(split, layout, columns_to_parse(layout, config.log.names)):
            good: dict[str, Any] = {
                name: decoded(block.columns[name]).cast(kind) for name, kind in types.items()
            }
            count = len(block.row_lines)
            good |= {ROW_ID: block.row_lines + row_id, LINE_NUMBER: block.row_lines + line + 1}
            good |= {FILE: [path] * count, LINE: [None] * count, REASON: [None] * count}
            parts.append(pa.table([pa.array(good[f.name], f.type) for f in schema], schema=schema))
            lines = list(block.rejected)
            bad: dict[str, Any] = dict.fromkeys(types, [None] * len(lines))
            bad |= {ROW_ID: [row_id + number for number in lines], FILE: [path] * len(lines)}
            bad |= {LINE_NUMBER: [line + number + 1 for number in lines], LINE: block.texts(lines)}
            bad[REASON] = [reason for _, reason in block.rejected.pairs()]
            parts.append(pa.table([pa.array(bad[f.name], f.type) for f in schema], schema=schema))
            row_id, line = row_id + block.lines, line + block.lines
    return pa.concat_tables(parts).sort_by(ROW_ID)


def read_log(spark: SparkSession, config: Config, raw: RawFiles) -> DataFrame:
    """Returns `rows_of_log` as a frame."""
    rows = rows_of_log(config, raw)
    return spark.createDataFrame([tuple(row.values()) for row in rows.to_pylist()], spark_types(rows.schema))


def good_rows(rows: DataFrame) -> DataFrame:
    """Returns the good rows of `read_log`, without the columns of their source."""
    return rows.where(F.col(REASON).isNull()).drop(*_SOURCE)


def bad_rows(rows: DataFrame) -> DataFrame:
    """Returns the rejected rows of `read_log`, with the columns of the quarantine."""
    return rows.where(F.col(REASON).isNotNull()).select(
        ROW_ID,
        F.col(FILE).alias("source_file"),
        F.col(LINE_NUMBER).alias("line_number"),
        F.col(REASON).alias("reason"),
        F.col(LINE).alias("line"),
    )


def prepared_rows(spark: SparkSession, config: Config, raw: RawFiles) -> DataFrame:
    """Returns the rows of a day that Spark prepares from the good rows of its log."""
    workers = SparkWorkers(spark)
    rows = good_rows(read_log(spark, config, raw))
    plan, lake = plan_of(config), LakePaths(config.lake)
    clicks, values = clicks_before(workers, plan, lake), value_tables(workers, plan, lake)
    return prepare_frame(workers, plan, rows, raw, clicks, values)
