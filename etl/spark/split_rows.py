"""Prepared rows: good raw rows with splits, negatives and attributes.

Workflows are fitted on them and applied to them.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config
from etl.raw.files import RawFiles
from etl.spark.read_log import good_rows, read_attributes, read_log
from etl.split.negatives import DRAW, add_negatives
from etl.split.time_split import CUT, DAY, assign_split
from etl.workflow.feature_plan import plan


def prepared_rows(spark: SparkSession, config: Config, raw: RawFiles) -> DataFrame:
    """Returns one day's good rows: keys, label, raw columns, attributes and `_day`.

    If the log is split inside one partition, the rows also have a column `split`.
    """
    rows = good_rows(read_log(spark, config, raw))
    if config.split.by != "day":
        rows = assign_split(rows, config.split)
    if config.negatives and config.keys:
        rows = add_negatives(rows, config.negatives, config.keys.item)
    if config.keys:
        for section, table, key in (
            ("users", config.users, config.keys.user),
            ("items", config.items, config.keys.item),
        ):
            if table:
                attributes = read_attributes(spark, config, table, key, section, raw.dt, key, raw.recorder)
                rows = rows.join(attributes, key, "left")
    rows = rows.withColumn(DAY, F.lit(raw.dt))
    for changer in plan(config).changers:
        rows = changer.apply(rows)
    return rows


def preparation(config: Config) -> dict[str, str]:
    """Returns name → version of the method that draws or divides rows.

    It is only set for logs for which an earlier release used another method. It is part of the inputs of
    workflows, profiles and feature partitions, so that those of the earlier release are written again. For
    all other logs it is empty, so their partitions remain valid.
    """
    by_position = config.split.by == "fraction" and config.log.event_time is None
    return {
        **({"negatives": DRAW} if config.negatives else {}),
        **({"split": CUT} if by_position else {}),
    }


class PreparedRows:
    """Returns the prepared rows of days. Each day is prepared only once, because this counts its lines.

    If the log is split inside one partition, its rows are persisted, because splits and joins need several
    passes.
    """

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._spark, self._config = spark, config
        self._of_day: dict[str, DataFrame] = {}

    def __call__(self, raw: RawFiles) -> DataFrame:
        """The prepared rows of a day."""
        if raw.dt not in self._of_day:
            rows = prepared_rows(self._spark, self._config, raw)
            self._of_day[raw.dt] = rows if self._config.split.by == "day" else rows.persist()
        return self._of_day[raw.dt]

    def release(self) -> None:
        """Unpersists all rows."""
        for rows in self._of_day.values():
            rows.unpersist()
        self._of_day.clear()
