"""Prepares the good rows of a day as a Spark frame: splits, histories, negatives, positions, attributes.

etl/prepare/prepare_tasks.py does the same in tasks of one machine, with equal results. On a cluster, Spark
and its accelerator compute the joins and windows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from etl.raw.erased_rows import erased_of_table, is_erased
from etl.raw.files import RawFiles
from etl.spark.attribute_frames import read_attributes
from etl.spark.histories import add_history
from etl.spark.last_clicks import LastClicks
from etl.spark.shown_positions import add_positions
from etl.split.negatives import add_negatives
from etl.split.time_split import DAY, assign_split
from etl.workflow.feature_plan import Plan
from spark.workers import Workers


def prepare_frame(
    workers: Workers, plan: Plan, rows: DataFrame, raw: RawFiles, earlier: LastClicks | None
) -> DataFrame:
    """Returns the prepared rows of one day, with keys, label, raw columns, attributes and the day (`_day`).

    If one partition contains all splits (`split.by` is not `day`), the rows also have a column `split`.

    Args:
        workers, plan: the workers and the plan of the run.
        rows: the good rows of the day, with row_id, label, keys, event_time, weight and raw columns.
        raw: the files of the day.
        earlier: reads the clicks of earlier days; None if histories need none.

    Raises:
        DataError: see the called functions.
    """
    spark = workers.spark
    if plan.is_divided:
        rows = assign_split(rows, plan.config.split)
    if plan.config.history:
        rows = add_history(rows, plan.config.history, earlier.before(raw.dt) if earlier else None)
    if plan.config.negatives and plan.config.keys:
        weighted = plan.config.log.label.weights is not None
        rows = add_negatives(rows, plan.config.negatives, plan.config.keys.item, weighted)
    rows = add_positions(workers, plan, rows, raw)
    if plan.config.keys:
        for section, table, key in (
            ("users", plan.config.users, plan.config.keys.user),
            ("items", plan.config.items, plan.config.keys.item),
        ):
            if table:
                attributes = read_attributes(
                    spark, plan.config, table, key, section, raw.dt, key, raw.recorder
                )
                erased = erased_of_table(plan.config, table, raw.dt) if section == "users" else None
                if erased is not None:
                    attributes = attributes.where(~is_erased(F.col(key).cast("string"), erased))
                rows = rows.join(attributes, key, "left")
    rows = rows.withColumn(DAY, F.lit(raw.dt))
    for changer in plan.changers:
        rows = changer.apply(rows)
    return rows
