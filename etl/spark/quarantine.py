"""Rows that do not parse: kept with reason, file, line number and raw text, counted, and held against a limit."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.types import Config, RawTable
from etl.raw.files import RawFiles
from etl.raw.parse import REASON
from etl.spark.read_log import bad_rows, read_log
from etl.workflow.feature_plan import plan
from storage.feature_spec import ROW_ID
from storage.manifest import Manifest, current_manifest, digest_of
from storage.paths import Lake
from storage.publish import publish

log = logging.getLogger("nightrank.etl")


@dataclass(frozen=True)
class DayCounts:
    """What a day's raw log holds: rows in all, rows that go on, rows quarantined, and reason → rows that do not go on.

    What the operators of `prepare` filter out is dropped and counted, but not quarantined.
    """

    rows_in: int
    good: int
    bad: int
    dropped: dict[str, int]


# Raised when other lines become rows than before: what is stored of a day is then made again.
_RULES = 2


def layout_digest(config: Config) -> str:
    """Identifies how raw lines become rows: the rules of the parse, and everything about the log but where it lies."""
    tables: list[RawTable | None] = [config.log, config.users, config.items]
    keys = config.keys.model_dump() if config.keys else None
    prepare = [config.prepare] if config.prepare else []
    return digest_of(
        [_RULES, *(table and table.model_dump(exclude={"path"}) for table in tables), keys, *prepare]
    )


def quarantine_day(spark: SparkSession, config: Config, lake: Lake, raw: RawFiles) -> DayCounts:
    """Publishes `quarantine/dt=…` for one day and returns its counts; a day already counted is not read again.

    The quarantine is published even when the limit is broken: it is what the reader of the error needs.

    Raises:
        DataError: the day has no row, or more than `quality.max_bad_share` of its rows do not parse.
    """
    partition = lake.quarantine.partition(raw.dt)
    inputs = {"raw": raw.digest, "layout": layout_digest(config)}
    known = current_manifest(partition, inputs) or _count_and_publish(spark, config, lake, raw, inputs)
    counts = DayCounts(
        known.rows_in, known.rows_in - sum(known.dropped.values()), known.rows, dict(known.dropped)
    )
    check_day(config, raw, counts, partition.path)
    return counts


def _count_and_publish(
    spark: SparkSession, config: Config, lake: Lake, raw: RawFiles, inputs: dict[str, str]
) -> Manifest:
    rows = read_log(spark, config, raw)
    counted = {
        row[REASON]: row["rows"]
        for row in rows.groupBy(REASON).agg(F.count(F.lit(1)).alias("rows")).collect()
    }
    dropped = {reason: count for reason, count in sorted(counted.items(), key=str) if reason is not None}
    filtered = [each.reason for each in plan(config).filters]
    return publish(
        bad_rows(rows).where(~F.col("reason").isin(*filtered)) if filtered else bad_rows(rows),
        lake.quarantine.partition(raw.dt),
        inputs=inputs,
        row_group_rows=config.output.row_group_rows,
        expected_rows=sum(count for reason, count in dropped.items() if reason not in filtered),
        rows_in=sum(counted.values()),
        dropped=dropped,
        sort_by=[ROW_ID],
        grace_hours=config.output.grace_hours,
    )


def check_day(config: Config, raw: RawFiles, counts: DayCounts, quarantine: str) -> None:
    """Holds a day's counts against the limits.

    Raises:
        DataError: the day has no row, or more than `quality.max_bad_share` of its rows do not parse.
    """
    if counts.rows_in == 0:
        raise DataError(
            f"the raw log of {raw.dt} holds no row: {raw.paths[0]}", "deliver the log of that day again"
        )
    bad = counts.bad
    share = bad / counts.rows_in
    if share > config.quality.max_bad_share:
        raise DataError(
            f"{bad} of {counts.rows_in} rows of {raw.dt} do not parse ({share:.1%}; quality.max_bad_share="
            f"{config.quality.max_bad_share:.1%}), by reason {counts.dropped}, first file {raw.paths[0]}",
            f"look at the lines in {quarantine}; deliver the day again, or raise quality.max_bad_share if they may go",
        )
    if bad:
        log.info("%s: %d of %d rows quarantined (%.2f%%)", raw.dt, bad, counts.rows_in, 100 * share)
