"""The table `last_clicks` of a lake, from which the histories of later days are computed.

The partition of a day has one row per user with a click on that day, sorted by user_key. The columns are
user_key, items (item keys, oldest first) and, if the log has an event_time, times (event_time of each item).
So the histories of a day need only one small table for each earlier day, and no raw log is parsed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.types import History
from etl.raw.click_days import click_days
from etl.raw.files import RawFiles
from etl.spark.histories import ARRAY, CLICKS, last_clicks, merge_days
from etl.spark.log_frames import ordered_rows
from etl.workflow.feature_plan import Plan
from spark.workers import Workers
from storage.feature_spec import USER_KEY
from storage.manifest import Manifest, combined_digest
from storage.paths import Lake, Partition
from storage.publish import Rules, publish, rows_of


@dataclass(frozen=True)
class LastClicks:
    """Reads the clicks before a day of a log that is stored by day, and publishes missing partitions.

    A day counts if it has a raw log, or if its partition was published before its raw log was deleted.
    """

    workers: Workers
    plan: Plan
    history: History
    lake: Lake

    def before(self, day: str) -> DataFrame | None:
        """Returns the last clicks on the `history.days` days before `day`, with one row per user.

        The columns are user_key and clicks (etl/spark/histories.py). Returns None if no day counts.
        """
        table = self.lake.last_clicks
        days = [
            _as_clicks(rows_of(self.workers.spark, table.partition(manifest.partition), manifest))
            for manifest in self._days(day)
        ]
        return merge_days(days, self.history.length) if days else None

    def digest_before(self, day: str) -> str:
        """Returns a digest of everything that `before` reads."""
        return combined_digest((manifest.digest for manifest in self._days(day)), self.lake.recorder)

    def _days(self, day: str) -> list[Manifest]:
        return click_days(self.plan.config, self.history, self.lake, day, self._publish)

    def _publish(self, raw: RawFiles, partition: Partition, inputs: dict[str, str]) -> Manifest:
        clicks = last_clicks(ordered_rows(self.workers, self.plan, raw), self.history.length)
        times = [F.col(f"{CLICKS}.time").alias("times")] if self.plan.config.log.event_time else []
        return publish(
            clicks.select(USER_KEY, F.col(f"{CLICKS}.item").alias("items"), *times),
            partition,
            inputs=inputs,
            row_group_rows=self.plan.config.output.row_group_rows,
            rules=Rules([USER_KEY]),
            sort_by=[USER_KEY],
            grace_hours=self.plan.config.output.grace_hours,
        )


def clicks_before(workers: Workers, plan: Plan, lake: Lake) -> LastClicks | None:
    """Returns what reads the clicks of earlier days; None without histories, or if the log is one table."""
    if plan.config.history is None or plan.is_divided:
        return None
    return LastClicks(workers, plan, plan.config.history, lake)


def _as_clicks(rows: DataFrame) -> DataFrame:
    """Converts rows of the table to user_key and clicks (etl/spark/histories.py)."""
    times = F.col("times") if "times" in rows.columns else F.transform("items", lambda _: F.lit(None))
    click = F.arrays_zip(times.cast("array<bigint>").alias("time"), F.col("items").alias("item"))
    return rows.select(USER_KEY, click.cast(ARRAY).alias(CLICKS))
