"""The table `last_clicks` of a lake, from which the histories of later days are computed.

The partition of a day has one row per user with a click on that day, sorted by user_key. The columns are
user_key, items (item keys, oldest first) and, if the log has an event_time, times (event_time of each item).
So the histories of a day need only one small table for each earlier day, and no raw log is parsed again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config, History
from etl.raw.files import find_raw
from etl.raw.layout_digest import layout_digest
from etl.spark.histories import ARRAY, CLICKS, METHOD, last_clicks, merge_days
from etl.spark.read_log import good_rows
from etl.spark.typed_rows import day_rows
from spark.workers import Workers
from storage.feature_spec import USER_KEY
from storage.manifest import Manifest, combined_digest, current_manifest, is_published, read_manifest
from storage.paths import Lake, Partition
from storage.publish import Rules, publish, rows_of

log = logging.getLogger("nightrank.etl")


@dataclass(frozen=True)
class LastClicks:
    """Reads the clicks before a day of a log that is stored by day, and publishes missing partitions.

    `spark` is a session, or workers whose session is opened when rows are read or a partition is missing.

    A day counts if it has a raw log, or if its partition was published before its raw log was deleted.
    """

    spark: SparkSession | Workers
    config: Config
    history: History
    lake: Lake

    def before(self, day: str) -> DataFrame | None:
        """Returns the last clicks on the `history.days` days before `day`, with one row per user.

        The columns are user_key and clicks (etl/spark/histories.py). Returns None if no day counts.
        """
        table = self.lake.last_clicks
        days = [
            _as_clicks(rows_of(self._session, table.partition(manifest.partition), manifest))
            for manifest in self._days(day)
        ]
        return merge_days(days, self.history.length) if days else None

    @property
    def _session(self) -> SparkSession:
        return self.spark.spark if isinstance(self.spark, Workers) else self.spark

    def digest_before(self, day: str) -> str:
        """Returns a digest of everything that `before` reads."""
        return combined_digest((manifest.digest for manifest in self._days(day)), self.lake.recorder)

    def _days(self, day: str) -> list[Manifest]:
        last, count = date.fromisoformat(day), self.history.days or 0
        dates = [(last - timedelta(days=back)).isoformat() for back in range(count, 0, -1)]
        return [manifest for dt in dates if (manifest := self._published(dt)) is not None]

    def _published(self, dt: str) -> Manifest | None:
        """Returns the manifest of a day's partition. Publishes the partition if it is missing or obsolete.

        Returns None if the day has neither a raw log nor a partition. A partition without a raw log is used
        only if it was computed with the present settings, because it cannot be computed again.
        """
        partition = self.lake.last_clicks.partition(dt)
        raw = find_raw(self.config, self.config.log, dt, self.lake.recorder)
        rules = {
            "layout": layout_digest(self.config),
            "history": f"{METHOD}, {self.history.length}",
        }
        if raw is None or raw.bytes == 0:
            return _without_raw_log(partition, rules)
        inputs = {"raw": raw.digest, **rules}
        current = current_manifest(partition, inputs)
        if current is not None:
            return current
        clicks = last_clicks(
            good_rows(day_rows(self._session, self.config, self.lake, raw)), self.history.length
        )
        times = [F.col(f"{CLICKS}.time").alias("times")] if self.config.log.event_time else []
        return publish(
            clicks.select(USER_KEY, F.col(f"{CLICKS}.item").alias("items"), *times),
            partition,
            inputs=inputs,
            row_group_rows=self.config.output.row_group_rows,
            rules=Rules([USER_KEY]),
            sort_by=[USER_KEY],
            grace_hours=self.config.output.grace_hours,
        )


def _without_raw_log(partition: Partition, rules: Mapping[str, str]) -> Manifest | None:
    """Returns the manifest of a day whose raw log does not exist; None if its clicks cannot be used."""
    if not is_published(partition):
        return None
    manifest = read_manifest(partition)
    if rules.items() <= dict(manifest.inputs).items():
        return manifest
    log.warning(
        "the clicks of %s in %s were computed with other settings, and the day has no raw log to compute "
        "them again: histories leave them out",
        partition.dt,
        partition.path,
    )
    return None


def _as_clicks(rows: DataFrame) -> DataFrame:
    """Converts rows of the table to user_key and clicks (etl/spark/histories.py)."""
    times = F.col("times") if "times" in rows.columns else F.transform("items", lambda _: F.lit(None))
    click = F.arrays_zip(times.cast("array<bigint>").alias("time"), F.col("items").alias("item"))
    return rows.select(USER_KEY, click.cast(ARRAY).alias(CLICKS))
