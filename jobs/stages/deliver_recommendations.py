"""Copies the published lists of a date to the sinks (PostgreSQL, JSON lines) of the section `deliver`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from conf.errors import ConfigError
from conf.load import config_digest
from conf.types import JdbcSink, JsonLinesSink
from scoring.delivery import jdbc, json_lines
from scoring.delivery.published_lists import Delivered, PublishedLists
from storage.job_summary import JobSummary
from storage.manifest import read_manifest
from storage.publish import publish_facts, rows_of
from storage.run_context import RunContext


def run(context: RunContext) -> JobSummary:
    """Delivers the lists to each sink in order, then publishes `deliveries/dt=…`.

    Raises:
        DataError: there are no published lists; perhaps the lists exceeded a limit of `score.stop`.
        ConfigError: there are no sinks, or an earlier release wrote the lists.
    """
    sinks = context.config.deliver.sinks
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
    lists = PublishedLists(rows_of(context.spark, partition, manifest), manifest, context.recorder)
    deliveries = []
    for sink in sinks:
        start = time.monotonic()
        with context.phase(sink.name):
            delivered = _deliver(context, sink, lists)
        seconds = round(time.monotonic() - start, 2)
        deliveries.append({"name": sink.name, "kind": sink.kind, **asdict(delivered), "seconds": seconds})
    facts: dict[str, Any] = {
        "sinks": deliveries,
        "users": lists.users,
        "model_version": manifest.facts["model_version"],
    }
    record = context.lake.deliveries.partition(context.run_date)
    inputs = {"recommendations": manifest.digest, "config": config_digest(context.config, "deliver")}
    publish_facts(record, inputs=inputs, facts=facts)
    return JobSummary(record.path, rows_in=manifest.rows, rows_out=manifest.rows, facts=facts)


def _deliver(context: RunContext, sink: JdbcSink | JsonLinesSink, lists: PublishedLists) -> Delivered:
    """Delivers the lists to one sink."""
    if isinstance(sink, JdbcSink):
        return jdbc.deliver(sink, lists)
    return json_lines.deliver(sink, lists, context.config.output.grace_hours)
