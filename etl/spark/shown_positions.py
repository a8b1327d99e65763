"""Adds the position at which the item of a row was shown to its user (`serving.impressions.row_column`).

The log of impressions of a day is joined with the rows of the same day by user and item. If the click log
has an event time, a row gets the position of the last impression at or before its own time; of several
impressions at this time, the smallest position counts. So no row uses an impression after it. Without an
event time, the day is the smallest unit, and a row gets the smallest position of the day. A row whose item
was not shown to its user gets null. Every row occurs once in the result.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from conf.serving_types import Impressions
from etl.raw.files import RawFiles
from etl.raw.impression_log import impressions_of
from etl.readers.impressions import ERROR, log_counts, read_impressions, unreadable
from etl.workflow.feature_plan import Plan
from spark.arrow_frames import frame_of
from spark.workers import Workers
from storage.feature_spec import EVENT_TIME, ITEM_KEY, USER_KEY

_POSITION, _IS_ROW = "position", "_is_row"


def add_positions(workers: Workers, plan: Plan, rows: DataFrame, raw: RawFiles) -> DataFrame:
    """Adds the column `serving.impressions.row_column` (bigint), unless it is not configured.

    Logs a warning if too many impressions are invalid. They give no position.

    Args:
        workers, plan: the workers and the plan of the run.
        rows: rows of one day, with user_key, item_key and, if the log has it, event_time.
        raw: the files of the day's click log.

    Raises:
        DataError: a file of the day's impressions cannot be read.
    """
    settings = plan.config.serving.row_positions
    if settings is None or settings.row_column is None:
        return rows
    files = impressions_of(plan.config, raw)
    if files is None:
        return rows.withColumn(settings.row_column, F.lit(None).cast("bigint"))
    logged = frame_of(workers.spark, read_impressions(workers, plan.config, files))
    _check(logged, settings, raw.dt)
    # Spark reads the files again for the join. If one cannot be read any more, the job must stop.
    readable = F.when(F.col(ERROR).isNotNull(), F.raise_error(F.col(ERROR)).cast("boolean"))
    valid = logged.where(readable.otherwise(_is_valid(settings)))
    return join_positions(rows, valid, settings.row_column)


def join_positions(rows: DataFrame, impressions: DataFrame, column: str) -> DataFrame:
    """Adds a column with the position of the impression of each row; null without one.

    Args:
        rows: rows with user_key, item_key and, if the log has it, event_time.
        impressions: user_key, item_key, position and event_time, not null where they are used.
        column: the name of the new column.
    """
    if EVENT_TIME not in rows.columns:
        first = impressions.groupBy(USER_KEY, ITEM_KEY).agg(F.min(_POSITION).alias(column))
        return rows.join(first, [USER_KEY, ITEM_KEY], "left").select(*rows.columns, column)
    shown = impressions.select(
        USER_KEY, ITEM_KEY, EVENT_TIME, F.col(_POSITION).alias(column), F.lit(0).alias(_IS_ROW)
    )
    marked = rows.withColumns({column: F.lit(None).cast("bigint"), _IS_ROW: F.lit(1)})
    both = marked.unionByName(shown, allowMissingColumns=True)
    # At equal times, impressions come before rows, and the smallest position comes last.
    in_order = Window.partitionBy(USER_KEY, ITEM_KEY).orderBy(EVENT_TIME, _IS_ROW, F.desc(column))
    until_now = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    last = both.withColumn(column, F.last(column, ignorenulls=True).over(until_now))
    return last.where(F.col(_IS_ROW) == 1).select(*rows.columns, column)


def _is_valid(settings: Impressions) -> Column:
    """Returns the condition that an impression has all fields that the join needs.

    A row that says why a file could not be read is invalid, too.
    """
    names = [USER_KEY, ITEM_KEY, _POSITION, *([EVENT_TIME] if settings.time else [])]
    return reduce(and_, (F.col(name).isNotNull() for name in names))


def _check(logged: DataFrame, settings: Impressions, dt: str) -> None:
    """Counts invalid impressions of a day.

    Raises:
        DataError: a file cannot be read.
    """
    counted = logged.agg(
        F.min(ERROR).alias(ERROR),
        F.count(F.lit(1)).alias("rows"),
        F.count(F.when(~_is_valid(settings), 1)).alias("invalid"),
    ).first()
    if counted is None or not counted["rows"]:
        return
    if counted[ERROR] is not None:
        raise unreadable(counted[ERROR])
    log_counts(settings, dt, counted["rows"], counted["invalid"])
