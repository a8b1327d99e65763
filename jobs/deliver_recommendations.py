"""Copies the published lists of a date to the sinks of the section `deliver` (scoring/delivery/sinks)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import pyarrow as pa

from conf.errors import ConfigError
from conf.lazy_imports import F
from conf.load import config_digest
from conf.raw_types import format_settings
from etl.latest.item_titles import title_columns
from etl.prepare.attributes import keyed_rows, needs_keys_of_log, plain_array, read_attribute_table
from etl.raw.erased_users import erased_of_table, is_erased
from etl.raw.files import require_raw
from etl.spark.raw_frames import keyed_frame, read_attributes
from jobs.runner import run_job
from scoring.delivery.published_lists import LakeTable, PublishedLists, RawUsers
from scoring.delivery.sinks import deliver_to, read_settings, works_in_process
from spark.choose_workers import stay_in_process
from spark.rows import Rows, read_rows
from storage.feature_spec import ITEM_KEY, USER_KEY
from storage.job_summary import JobSummary
from storage.manifest import Manifest, read_manifest
from storage.paths import Table
from storage.publish import publish_facts
from storage.run_context import RunContext

DESCRIPTION = (
    "Copies the published lists of a date to the sinks of the section `deliver`: PostgreSQL tables, files of "
    "JSON lines or CSV, Redis, or sinks from other packages."
)


def run(context: RunContext) -> JobSummary:
    """Delivers the lists to the sinks of the configuration, and then publishes `deliveries/dt=…`.

    Raises:
        DataError: there are no published lists; perhaps the lists exceeded a limit of `score.stop`.
        ConfigError: there are no sinks, or an earlier release wrote the lists.
    """
    sinks = read_settings(context.config.deliver, context.config.folders)
    if not sinks:
        raise ConfigError(
            "deliver.sinks is empty, so there is no sink to deliver the lists to",
            "add a sink to deliver.sinks",
        )
    partition = context.lake.recommendations.partition(context.run_date)
    manifest = read_manifest(partition)
    if "reason" not in dict(manifest.schema):
        raise ConfigError(
            f"{partition.path} was written by an earlier release, without the column `reason`",
            f"run score_daily for {context.run_date} again",
        )
    if all(works_in_process(module, settings) for module, settings in sinks):
        stay_in_process(context, manifest.rows)
    lists = PublishedLists(
        read_rows(context, partition, manifest),
        manifest,
        context.recorder,
        context.config.output.grace_hours,
        _features(context, manifest),
        partial(_titles, context) if title_columns(context.config) else None,
        partial(_raw_users, context, manifest) if context.config.users is not None else None,
    )
    deliveries = []
    for module, settings in sinks:
        start = time.monotonic()
        with context.phase(settings.name):
            delivered = deliver_to(module, settings, lists)
        seconds = round(time.monotonic() - start, 2)
        deliveries.append(
            {"name": settings.name, "kind": settings.kind, **asdict(delivered), "seconds": seconds}
        )
    facts: dict[str, Any] = {
        "sinks": deliveries,
        "users": lists.users,
        "model_version": manifest.facts["model_version"],
    }
    record = context.lake.deliveries.partition(context.run_date)
    inputs = {"recommendations": manifest.digest, "config": config_digest(context.config, "deliver")}
    publish_facts(record, inputs=inputs, facts=facts)
    return JobSummary(record.path, rows_in=manifest.rows, rows_out=manifest.rows, facts=facts)


def _features(context: RunContext, lists: Manifest) -> dict[str, Callable[[], LakeTable]]:
    """Maps the names of the feature tables from which lists were made to functions that open the tables."""
    version = str(lists.facts["workflow_version"])
    tables = (
        ("users", context.lake.users(version), USER_KEY),
        ("items", context.lake.items(version), ITEM_KEY),
    )
    return {name: partial(_open, context, table, key) for name, table, key in tables}


def _titles(context: RunContext) -> LakeTable:
    """Opens the run date's table with the titles of items.

    Raises:
        DataError: the run date has no such table.
    """
    return _open(context, context.lake.item_titles, ITEM_KEY)


def _raw_users(context: RunContext, lists: Manifest) -> RawUsers:
    """Opens the raw table of users of the run date, with the keys that users have in the lists.

    Rows of erased users are left out, because they may stem from the time before the erasure.

    Raises:
        DataError: the table has no files.
    """
    config, dt = context.config, context.run_date
    if config.users is None or config.keys is None:
        raise RuntimeError("internal error, please report: the configuration has no table of users")
    table, key = config.users, config.keys.user
    raw = require_raw(config, table, dt, "users.path", context.recorder)
    erased = erased_of_table(config, table, dt)

    def read(names: Sequence[str]) -> Rows:
        # Only these columns are read, so that a bad value of another column does not stop a delivery.
        is_positional = format_settings(table.format).is_positional
        columns = [column for column in table.columns if column.name in (key, *names) or is_positional]
        part = table.model_copy(update={"columns": columns})
        users = None
        if needs_keys_of_log(config, table, key):
            partition = context.lake.users(str(lists.facts["workflow_version"])).partition(dt)
            users = read_rows(context, partition, read_manifest(partition), columns=[USER_KEY])
        if context.in_process:
            rows = read_attribute_table(config, part, key, "users", dt, key, context.recorder)
            rows = keyed_rows(config, part, rows, key, USER_KEY, users)
            if erased is not None:
                rows = rows.filter(pa.array(~erased.are_in(plain_array(rows[USER_KEY]))))
            arrays = {name: plain_array(rows[name]).cast(pa.string()) for name in (USER_KEY, *names)}
            return pa.table(arrays)
        frame = read_attributes(context.spark, config, part, key, "users", dt, key, context.recorder)
        frame = keyed_frame(config, part, frame, key, USER_KEY, users)
        if erased is not None:
            frame = frame.where(~is_erased(F.col(USER_KEY), erased))
        return frame.select(USER_KEY, *(f"`{name}`" for name in names))

    return RawUsers(raw.digest, read)


def _open(context: RunContext, table: Table, key: str) -> LakeTable:
    partition = table.partition(context.run_date)
    manifest = read_manifest(partition)
    return LakeTable(key, manifest, partial(read_rows, context, partition, manifest))


if __name__ == "__main__":
    run_job("deliver_recommendations", DESCRIPTION, run)
