"""Computes the prepared rows of a day from the good rows of its raw log.

Prepared rows have splits, drawn negatives, positions at which items were shown, and attributes, and have
passed the operators of `prepare`.
Workflows are fitted on prepared rows, and compute features from prepared rows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config
from etl.ops import operator_digests
from etl.raw.click_days import GROUP_METHOD, METHOD
from etl.raw.files import RawFiles
from etl.spark.histories import add_history
from etl.spark.last_clicks import LastClicks
from etl.spark.read_log import good_rows, read_attributes
from etl.spark.shown_positions import add_positions, positions_method
from etl.spark.typed_rows import day_rows
from etl.split.negatives import DRAW, add_negatives
from etl.split.time_split import CUT, DAY, assign_split
from etl.workflow.feature_plan import plan
from spark.workers import Workers
from storage.manifest import digest_of
from storage.paths import Lake


def logged_rows(spark: SparkSession, config: Config, lake: Lake, raw: RawFiles) -> DataFrame:
    """Returns the good rows of one day.

    If one partition contains all splits (`split.by` is not `day`), the rows also have a column `split`.
    """
    rows = good_rows(day_rows(spark, config, lake, raw))
    return rows if config.split.by == "day" else assign_split(rows, config.split)


def prepared_rows(spark: SparkSession, config: Config, lake: Lake, raw: RawFiles) -> DataFrame:
    """Returns the prepared rows of one day, with keys, label, raw columns, attributes and the day (`_day`).

    If one partition contains all splits (`split.by` is not `day`), the rows also have a column `split`.
    """
    rows = logged_rows(spark, config, lake, raw)
    if config.history:
        earlier = clicks_before(spark, config, lake)
        rows = add_history(rows, config.history, earlier.before(raw.dt) if earlier else None)
    if config.negatives and config.keys:
        weighted = config.log.label.weights is not None
        rows = add_negatives(rows, config.negatives, config.keys.item, weighted)
    rows = add_positions(spark, config, rows, raw)
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


def clicks_before(spark: SparkSession | Workers, config: Config, lake: Lake) -> LastClicks | None:
    """Returns what reads the clicks of earlier days.

    Returns None if there are no histories, or if the log is one table. With workers, a session is opened only
    if it is needed.
    """
    if config.history is None or config.split.by != "day":
        return None
    return LastClicks(spark, config, config.history, lake)


def preparation(config: Config) -> dict[str, str]:
    """Returns the versions of the methods that draw negatives, divide rows into splits and add columns.

    The added columns are histories and positions of impressions. The result also contains the digest of the
    operators of `prepare` that other packages add.

    The result is part of the inputs of workflows, profiles and feature partitions. So jobs compute these
    again if a method has changed since they were written. The result contains only methods that differ from
    those of an earlier release. If there are none, the result is empty, and partitions of the earlier release
    remain valid.
    """
    by_position = config.split.by == "fraction" and config.log.event_time is None
    operators = operator_digests(
        entry if isinstance(entry, str) else next(iter(entry)) for entry in config.prepare
    )
    method = GROUP_METHOD if config.keys and config.keys.group else METHOD
    positions = positions_method(config)
    return {
        **({"negatives": DRAW} if config.negatives else {}),
        **({"split": CUT} if by_position else {}),
        **({"history": f"{method}, {digest_of(config.history.model_dump())}"} if config.history else {}),
        **({"shown_positions": positions} if positions else {}),
        **({"operators": digest_of(operators)} if operators else {}),
    }


class PreparedRows:
    """A callable that returns the prepared rows of a day, and prepares each day only once.

    With the engine `arrow`, each preparation of a day needs a pass that counts all lines of the raw log. The
    engine `sql` reads the table `typed` instead. If one partition contains all splits (`split.by` is not
    `day`), its prepared rows are persisted, because splits and joins need several passes over the rows.
    """

    def __init__(self, workers: Workers, config: Config, lake: Lake) -> None:
        self._workers, self._config, self._lake = workers, config, lake
        self._of_day: dict[str, DataFrame] = {}

    def __call__(self, raw: RawFiles) -> DataFrame:
        """Returns the prepared rows of a day."""
        if raw.dt not in self._of_day:
            rows = prepared_rows(self._workers.spark, self._config, self._lake, raw)
            self._of_day[raw.dt] = rows if self._config.split.by == "day" else rows.persist()
        return self._of_day[raw.dt]

    def release(self) -> None:
        """Unpersists the rows of all days."""
        for rows in self._of_day.values():
            rows.unpersist()
        self._of_day.clear()
