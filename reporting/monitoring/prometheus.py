"""Exports the metrics of the last run of each job to Prometheus.

The metrics are written to files for node_exporter, or are sent to a push gateway.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from prometheus_client import generate_latest, push_to_gateway
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from conf.types import Watch
from reporting.monitoring.run_record import RunRecord
from storage import file_io

log = logging.getLogger("nightrank.watch")

_PUSH_TIMEOUT_S = 5.0
_SUCCESS_GROUP = {"group": "last_success"}  # a label of the push gateway
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")

# Maps the name of each metric to its help text. All metrics are gauges of a job's last run. A metric has the
# labels `config` and `nightrank_job`, and the label that its help text names, if it names one. No label is
# called `job` or `instance`, because Prometheus sets these two labels for each program that it scrapes.
METRICS: Mapping[str, str] = {
    "nightrank_run_success": "1 if the last run ended with exit code 0, otherwise 0",
    "nightrank_run_exit_code": "Exit code of the last run: 0 done, 2 configuration, 3 data, 4 infrastructure",
    "nightrank_run_end_timestamp_seconds": "When the last run ended, in seconds since 1970",
    "nightrank_run_date_timestamp_seconds": "Midnight UTC of the run date of the last run",
    "nightrank_run_seconds": "Duration of the last run in seconds",
    "nightrank_phase_seconds": "Seconds by phase of the last run (label phase)",
    "nightrank_warnings": "Warnings of the last run",
    "nightrank_core_seconds": "Core seconds that the last run reserved",
    "nightrank_cost": "Cost of the last run, if a price is configured (label currency)",
    "nightrank_fact": "A number from the last run's job summary (label fact)",
    "nightrank_spark_tasks": "Tasks of the last run",
    "nightrank_spark_failed_tasks": "Tasks of the last run that failed",
    "nightrank_spark_task_seconds": "Sum of the durations of the tasks of the last run, in seconds",
    "nightrank_spark_gc_seconds": "Seconds of garbage collection, summed over the tasks of the last run",
    "nightrank_spark_input_bytes": "Bytes that Spark read from storage in the last run",
    "nightrank_spark_output_bytes": "Bytes that Spark wrote to storage in the last run",
    "nightrank_spark_shuffle_write_bytes": "Bytes that the last run wrote to shuffles",
    "nightrank_spark_spilled_bytes": "Bytes that the last run wrote to disk because memory was short",
    # Only a successful run replaces these metrics. A failed run would set the rows to 0.
    "nightrank_rows_in": "Rows that the last successful run read",
    "nightrank_rows_out": "Rows that the last successful run published",
    "nightrank_rows_dropped": "Rows that the last successful run left out (label reason)",
    "nightrank_last_success_timestamp_seconds": "When the last successful run ended, in seconds since 1970",
    "nightrank_last_success_date_timestamp_seconds": "Midnight UTC of the run date of the last "
    "successful run",
}
_OF_SPARK = {
    "nightrank_spark_tasks": "tasks",
    "nightrank_spark_failed_tasks": "failed_tasks",
    "nightrank_spark_task_seconds": "task_s",
    "nightrank_spark_gc_seconds": "gc_s",
    "nightrank_spark_input_bytes": "input_bytes",
    "nightrank_spark_output_bytes": "output_bytes",
    "nightrank_spark_shuffle_write_bytes": "shuffle_write_bytes",
    "nightrank_spark_spilled_bytes": "spilled_bytes",
}

Sample = tuple[str, Mapping[str, str], float]


def expose(record: RunRecord, watch: Watch) -> None:
    """Writes the metrics of a run to files and pushes them, as the section `watch` configures.

    The run's metrics replace all metrics of the job's earlier run. Only a successful run replaces the metrics
    of the last successful run, which have their own file and their own group of the push gateway.

    Raises:
        InfrastructureError: a metric file could not be written.
        OSError: the push gateway could not be reached, or rejected the metrics.
    """
    if watch.textfile_folder is not None:
        stem = _UNSAFE.sub("_", f"nightrank_{record.config}_{record.job}")
        file_io.replace_text(str(Path(watch.textfile_folder) / f"{stem}.prom"), run_text(record))
        if not record.failed:  # in a separate file, which a failed run does not replace
            file_io.replace_text(
                str(Path(watch.textfile_folder) / f"{stem}.success.prom"), success_text(record)
            )
    if watch.push_gateway is not None:
        group = {"config": record.config}
        _push(watch.push_gateway, record.job, group, _run_samples(record))
        if not record.failed:  # in a separate group, which a failed run does not replace
            _push(watch.push_gateway, record.job, {**group, **_SUCCESS_GROUP}, _success_samples(record))
        log.debug("pushed the metrics of %s to %s", record.job, watch.push_gateway)


def _push(address: str, job: str, group: Mapping[str, str], samples: Iterable[Sample]) -> None:
    """Replaces all metrics of a group in the push gateway, so that no metric of an earlier run remains."""
    push_to_gateway(address, job, _Gauges(samples), dict(group), timeout=_PUSH_TIMEOUT_S)


def run_text(record: RunRecord) -> str:
    """Returns the metrics of the run in `record`, in Prometheus's text format."""
    return generate_latest(_Gauges(_run_samples(record))).decode("utf-8")


def success_text(record: RunRecord) -> str:
    """Returns the metrics that only a successful run sets, in Prometheus's text format.

    Returns an empty string if this run failed.
    """
    return generate_latest(_Gauges(_success_samples(record))).decode("utf-8")


class _Gauges(Collector):
    """Collects samples as gauges, one for each metric. Values that are not finite are left out."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = tuple(samples)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        gauges: dict[str, GaugeMetricFamily] = {}
        for name, labels, value in self._samples:
            if math.isfinite(value):
                gauge = gauges.setdefault(name, GaugeMetricFamily(name, METRICS[name], labels=list(labels)))
                gauge.add_metric(list(labels.values()), value)
        return gauges.values()


def _success_samples(record: RunRecord) -> Iterator[Sample]:
    """Yields the samples that only a successful run replaces."""
    if not record.failed:
        labels = {"config": record.config, "nightrank_job": record.job}
        yield "nightrank_rows_in", labels, record.rows_in
        yield "nightrank_rows_out", labels, record.rows_out
        for reason, rows in record.dropped.items():
            yield "nightrank_rows_dropped", {**labels, "reason": reason}, rows
        yield "nightrank_last_success_timestamp_seconds", labels, _at(record.ended_at)
        yield "nightrank_last_success_date_timestamp_seconds", labels, _midnight(record.run_date)


def _run_samples(record: RunRecord) -> Iterator[Sample]:
    """Yields one sample (metric, labels, value) for each number in the run record."""
    labels = {"config": record.config, "nightrank_job": record.job}
    yield "nightrank_run_success", labels, float(not record.failed)
    yield "nightrank_run_exit_code", labels, record.exit_code
    yield "nightrank_run_end_timestamp_seconds", labels, _at(record.ended_at)
    yield "nightrank_run_date_timestamp_seconds", labels, _midnight(record.run_date)
    yield "nightrank_run_seconds", labels, record.seconds
    for phase, seconds in record.phases.items():
        yield "nightrank_phase_seconds", {**labels, "phase": phase}, seconds
    yield "nightrank_warnings", labels, record.warning_count
    yield "nightrank_core_seconds", labels, record.core_s
    if record.cost is not None:
        yield "nightrank_cost", {**labels, "currency": str(record.currency)}, record.cost
    for fact, value in record.facts.items():
        if isinstance(value, bool | int | float):
            yield "nightrank_fact", {**labels, "fact": fact}, float(value)
    if record.spark is not None:
        for name, key in _OF_SPARK.items():
            yield name, labels, record.spark[key]


def _at(time: str) -> float:
    """Converts an ISO 8601 time to seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()


def _midnight(run_date: str) -> float:
    """Returns midnight UTC of a date, in seconds since 1970."""
    day = date.fromisoformat(run_date)
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
