"""Observes one run of one job, and records it when it ends. An error in this code never fails the job."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from conf.errors import ConfigError, NightrankError
from conf.types import Config, Watch
from reporting.monitoring.lineage_events import LineageSender
from reporting.monitoring.run_record import NO_REMEDY, RunRecord, read_records, write_record
from reporting.monitoring.spark_stages import SparkWork, read_spark_work
from storage import file_io
from storage.job_summary import JobSummary
from storage.lineage import RunLineage
from storage.paths import Lake

log = logging.getLogger("nightrank.watch")

_MOST_WARNINGS, _MOST_CHARACTERS = 20, 500


class _Warnings(logging.Handler):
    """A log handler that stores the first warnings and counts all warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: list[str] = []
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Counts a record if its level is WARNING. Records of other levels, such as errors, are ignored."""
        if record.levelno == logging.WARNING:
            self.count += 1
            if len(self.kept) < _MOST_WARNINGS:
                self.kept.append(record.getMessage()[:_MOST_CHARACTERS])


@dataclass
class Observer:
    """Observes one run of a job: what it reads and publishes, its warnings, and its use of Spark.

    Attributes:
        config: the configuration of the run.
        run: records what the run reads and publishes. Pass it to the context of the run.
        waits: whether the run only waits for other jobs. Such a run counts no core seconds, because the other
            jobs have their own run records.
        started_s: start of the run, in seconds since 1970.
    """

    config: Config
    run: RunLineage
    waits: bool = False
    started_s: float = field(default_factory=time.time)
    _began: float = field(default_factory=time.monotonic)
    _warnings: _Warnings = field(default_factory=_Warnings)
    _spark: SparkWork | None = None
    _lineage: LineageSender | None = None

    @classmethod
    def begin(cls, job: str, config: Config, run_date: str, waits: bool = False) -> Observer:
        """Creates an observer of the job that this process runs. It begins to collect warnings at once.

        With `watch.openlineage`, the event that starts the run is sent.
        """
        observer = cls(config, RunLineage(job, f"nightrank.{config.name}", run_date), waits)
        logging.getLogger("nightrank").addHandler(observer._warnings)
        if config.watch.openlineage is not None:
            with suppress(ConfigError):  # check_config raises the same error
                observer._lineage = LineageSender(config.watch.openlineage)
        if observer._lineage is not None:
            with _harmless("the lineage event that starts this run is not sent"):
                observer._lineage.send(observer.run.start_event(observer._started_at))
        return observer

    @property
    def _started_at(self) -> str:
        return _utc(self.started_s)

    def record_silent(self, job: str, run_date: str, seconds: float, error: NightrankError) -> None:
        """Records the attempt of another job, if that job ended without a record.

        A killed job has no record of its own. Without this one, the report could not show the failure.

        Args:
            job, run_date: the job and its run date.
            seconds: duration of the attempt.
            error: how it ended.
        """
        with _harmless(f"the end of {job} is not recorded"):
            lake, name = Lake(self.config.lake), self.config.name
            began = _utc(time.time() - seconds)
            records = read_records(lake, [run_date], name)
            if any(record.job == job and record.started_at >= began for record in records):
                return
            record = RunRecord(
                run_id=RunLineage(job, f"nightrank.{name}", run_date).run_id,
                job=job,
                config=name,
                run_date=run_date,
                started_at=began,
                ended_at=file_io.utc_now(),
                seconds=round(seconds, 2),
                exit_code=error.exit_code,
                error=_describe(error),
            )
            write_record(lake, record)

    def look_at(self, spark: SparkSession | None) -> None:
        """Reads the Spark stages of this run. Call this method before the session is stopped."""
        if spark is None:
            return
        with _harmless("Spark's stages of this run are not recorded"):
            self._spark = read_spark_work(spark, self.started_s, time.time())

    def end(
        self,
        exit_code: int,
        phases: Mapping[str, float],
        summary: JobSummary | None,
        error: BaseException | None,
    ) -> RunRecord | None:
        """Records the run. If the section `watch` is configured, also exports metrics and sends lineage.

        Returns the run record, or None if recording fails.

        Args:
            exit_code: the exit code of the job.
            phases: maps the name of each phase to its seconds.
            summary: the job summary; None if the job failed before it had a summary.
            error: the error that ended a failed job.
        """
        logging.getLogger("nightrank").removeHandler(self._warnings)
        record = None
        with _harmless("this run is not recorded"):
            record = self._record(exit_code, phases, summary, error)
            write_record(Lake(self.config.lake), record)
        if record is not None:
            with _harmless("the metrics of this run are not shown to Prometheus"):
                _expose(record, self.config.watch)
            if self._lineage is not None:
                with _harmless("the lineage event that ends this run is not sent"):
                    self._lineage.send(record.lineage)
                    self._lineage.close()
        return record

    def _record(
        self,
        exit_code: int,
        phases: Mapping[str, float],
        summary: JobSummary | None,
        error: BaseException | None,
    ) -> RunRecord:
        """Returns the run record. The arguments are those of `end`."""
        seconds = round(time.monotonic() - self._began, 2)
        ended_at, failure = file_io.utc_now(), None if error is None else _describe(error)
        reported = summary or JobSummary(None)
        spark, price = self._spark, self.config.watch.core_hour_price
        core_s = 0.0 if self.waits else spark.core_s if spark else seconds
        return RunRecord(
            run_id=self.run.run_id,
            job=self.run.job,
            config=self.config.name,
            run_date=self.run.run_date,
            started_at=self._started_at,
            ended_at=ended_at,
            seconds=seconds,
            exit_code=exit_code,
            error=failure,
            rows_in=reported.rows_in or 0,
            rows_out=reported.rows_out or 0,
            dropped=dict(reported.dropped or {}),
            output=reported.output,
            phases=dict(phases),
            facts=dict(reported.facts),
            warnings=self._warnings.kept,
            warning_count=self._warnings.count,
            core_s=core_s,
            cost=None if price is None else round(core_s / 3600 * price, 6),
            currency=None if price is None else self.config.watch.currency,
            spark=spark.summary() if spark else None,
            stages=spark.stages if spark else (),
            lineage=self.run.end_event(ended_at, None if failure is None else failure["problem"]),
        )


def _expose(record: RunRecord, watch: Watch) -> None:
    """Shows the metrics of a run to Prometheus. The client is imported only if `watch` needs it (11 ms)."""
    if watch.textfile_folder is not None or watch.push_gateway is not None:
        from reporting.monitoring.prometheus import expose

        expose(record, watch)


def _utc(seconds: float) -> str:
    """Returns a time, in seconds since 1970, in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _describe(error: BaseException) -> dict[str, str]:
    """Returns kind, problem and remedy of an error, for the run record."""
    if isinstance(error, NightrankError):
        return {"kind": type(error).__name__, "problem": error.problem, "remedy": error.remedy}
    lines = str(error).strip().splitlines() or [repr(error)]
    problem = lines[0][: 4 * _MOST_CHARACTERS]
    return {"kind": type(error).__name__, "problem": problem, "remedy": NO_REMEDY}


@contextmanager
def _harmless(consequence: str) -> Any:
    """Turns any error in the block into a warning, because the work of the job is already done.

    Args:
        consequence: text of the warning that says what is missing because of the error.
    """
    try:
        yield
    except Exception as error:
        log.warning("%s: %s: %s", consequence, type(error).__name__, error)
