"""Copies rows of tables of Spark's catalogue into the lake, as Parquet files that tasks read like any others.

A copy is written again only if the rows of its day have changed. Spark can compute a state of the table
without reading its rows. If this state is the same, the rows are the same. If the state differs, a digest of
the rows decides. So the copies of old days stay if a table gets new days, or if its files are compacted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from conf.types import Config
from etl.raw.erased_rows import erased_of_day, erased_of_table, is_erased
from etl.raw.table_copies import CONTENT, USER_COLUMN, copy_of, is_by_day
from etl.spark.catalogue import (
    as_id,
    content_of,
    identity,
    open_rows,
    order_of,
    state_of,
    with_plain_integers,
)
from etl.workflow.copied_tables import LOG, CopiedTable, copied_days, copied_tables
from etl.workflow.feature_plan import FeaturePlan
from storage.file_digests import split_name
from storage.lineage import LineageRecorder
from storage.manifest import Manifest, data_files, is_published, is_whole, read_manifest, replace_manifest
from storage.paths import Partition
from storage.publish import (
    new_attempt,
    publish_facts,
    publish_files,
    require_intact_for_spark,
    write_files,
)

log = logging.getLogger("nightrank.etl")

_STATE = "state"  # the fact with the result of `state_of`
_TABLE = "table"  # the input: the digest of the table's rows when they were copied
# Otherwise Spark would write timestamps of 96 bits, which do not record whether they have a time zone. Spark
# would also refuse dates before 1900.
_EXACT = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


def copy_tables(
    spark: SparkSession,
    plan: FeaturePlan,
    run_date: str,
    recorder: LineageRecorder,
    days: Sequence[str] | None = None,
) -> None:
    """Brings the copies of all tables of the configuration up to date.

    Args:
        spark: the session, whose catalogue has the tables.
        plan: the plan of the configuration.
        run_date: the run date.
        recorder: records the tables as inputs of the run, and the copies that are published.
        days: the days of tables that are read by day; None for all days that a run of `build_features` reads.

    Raises:
        ConfigError, DataError: see `etl.spark.catalogue.open_rows`.
    """
    for table in copied_tables(plan):
        wanted = copied_days(plan.config, table, run_date)
        for dt in wanted if days is None or not is_by_day(table.table) else days:
            _copy(spark, plan.config, table, dt, recorder)


def _copy(
    spark: SparkSession, config: Config, table: CopiedTable, dt: str, recorder: LineageRecorder
) -> None:
    """Copies the rows of a day, unless the lake has a copy of the same rows."""
    partition = copy_of(config, table.table, dt, recorder)
    published = read_manifest(partition) if is_published(partition) else None
    if published is not None and not is_whole(partition, published):
        published = None
    rows = open_rows(spark, table.table, dt, table.key)
    if rows is None:  # each day has a table, but there is no table for this day
        if published is None or published.files:
            publish_facts(partition, inputs={}, facts={})
        return
    uri, state = identity(spark, table.table, dt), state_of(spark, rows)
    if published is None or state is None or published.facts.get(_STATE) != state:
        rows = _with_plain_ids(rows, table)
        rows = _without_erased(rows, config, table, dt)
        if published is not None and content_of(rows) == _content(spark, partition, published):
            published = replace(published, facts={**published.facts, _STATE: state}, lineage={})
            replace_manifest(partition, published)
        else:
            published = _publish(spark, config, table, rows, partition, state)
            log.info("%s: %d rows are copied to %s", uri, published.rows, partition.path)
    recorder.record_read(uri, published.inputs.get(_TABLE, ""), published.rows)


def _publish(
    spark: SparkSession,
    config: Config,
    table: CopiedTable,
    rows: DataFrame,
    partition: Partition,
    state: str | None,
) -> Manifest:
    """Writes and publishes the rows.

    Computes the digest from the written rows, because the table may change meanwhile.
    """
    order = order_of(rows, table.table)
    attempt = new_attempt(partition)
    with _exact_times(spark):
        files = write_files(rows, partition, attempt, config.output.row_group_rows, None, order, None)
    paths = [partition.file(split_name(name)[0]) for name in files]
    content = content_of(spark.read.schema(rows.schema).parquet(*paths))
    facts = {_STATE: state, CONTENT: content}
    if table.user is not None and table.user in rows.columns:
        facts[USER_COLUMN] = table.user
    return publish_files(
        partition, files, inputs={_TABLE: content}, facts=facts, grace_hours=config.output.grace_hours
    )


def _content(spark: SparkSession, partition: Partition, published: Manifest) -> str | None:
    """Returns the digest of the rows of a copy. Reads the copy if an erasure has changed it."""
    if CONTENT in published.facts or not published.files:
        return published.facts.get(CONTENT)
    files = data_files(partition, published)
    require_intact_for_spark(spark, files)
    return content_of(spark.read.parquet(*files))


def _with_plain_ids(rows: DataFrame, table: CopiedTable) -> DataFrame:
    """Converts ids of users to texts as readers do, so that an erasure finds a user's id in the copy."""
    declared = {column.source_name: column.type for column in table.table.columns}
    if table.user is None or table.user not in rows.columns or declared.get(table.user) != "int":
        return rows
    return with_plain_integers(rows, table.user)


def _without_erased(rows: DataFrame, config: Config, table: CopiedTable, dt: str) -> DataFrame:
    """Leaves out the rows of erased users, as readers do, so that the lake does not contain them."""
    if table.user is None or table.user not in rows.columns:
        return rows
    erased = erased_of_day(config, dt) if table.key == LOG else erased_of_table(config, table.table, dt)
    return rows if erased is None else rows.where(~is_erased(as_id(rows, table.user), erased))


@contextmanager
def _exact_times(spark: SparkSession) -> Iterator[None]:
    """Makes Spark write times unchanged while the block runs."""
    before = {key: spark.conf.get(key, None) for key in _EXACT}
    for key, value in _EXACT.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, known in before.items():
            spark.conf.unset(key) if known is None else spark.conf.set(key, known)
