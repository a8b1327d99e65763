"""Observes one run of one job, and writes the run record when the run ends.

The module also sends the OpenLineage events of the run.

An error in this code never fails the job.
"""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from conf.errors import ConfigError, NightrankError
from conf.types import Config, Watch
from reporting.monitoring.run_record import NO_REMEDY, RunRecord, read_records, write_record
from spark.choose_workers import cores_without_jvm
from storage import file_io
from storage.job_summary import JobSummary
from storage.lineage import RunLineage
from storage.paths import LakePaths

# Functions that read what Spark did for a job (its stages and executors) from the session's status store.

_MOST_STAGES = 200
_DRAIN_MS = 2_000


@dataclass(frozen=True)
class Work:
    """The work of one stage or of all stages: sums over the tasks.

    Attributes:
        tasks, failed_tasks: number of tasks, and number of failed tasks.
        task_s: seconds that the tasks ran.
        cpu_s: seconds of CPU time in the JVM.
        gc_s: seconds of garbage collection.
        input_bytes, input_rows: bytes and rows that Spark itself read from storage. Data that Python workers
            read is not included.
        output_bytes, output_rows: bytes and rows that Spark itself wrote to storage. Data that Python workers
            wrote is not included.
        shuffle_read_bytes, shuffle_write_bytes: bytes that were read from shuffles and written to shuffles.
        spilled_bytes: bytes that were written to disk because memory was short.
    """

    tasks: int = 0
    failed_tasks: int = 0
    task_s: float = 0.0
    cpu_s: float = 0.0
    gc_s: float = 0.0
    input_bytes: int = 0
    input_rows: int = 0
    output_bytes: int = 0
    output_rows: int = 0
    shuffle_read_bytes: int = 0
    shuffle_write_bytes: int = 0
    spilled_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        theirs = asdict(other)
        return Work(**{name: round(value + theirs[name], 3) for name, value in asdict(self).items()})


@dataclass(frozen=True)
class SparkWork:
    """The work of one job in a Spark session. Several jobs may share a session, one after the other.

    Attributes:
        application_id: Spark's id of the session.
        executors: number of executors that the status store lists. The driver counts as an executor if it
            runs tasks itself.
        cores: number of cores of these executors.
        core_s: core seconds, summed over the executors and the driver. Each of them counts its number of
            cores, multiplied by the seconds of the job in which it existed.
        total: the sums over the tasks of all stages.
        stages: the stages with the largest task_s, as flat dictionaries, in the order of the stage ids.
        stages_left_out: number of stages that are not in `stages`.
    """

    application_id: str
    executors: int
    cores: int
    core_s: float
    total: Work
    stages: tuple[Mapping[str, Any], ...]
    stages_left_out: int

    def summary(self) -> dict[str, Any]:
        """Returns all attributes except `stages`, in one flat dictionary."""
        return {
            "application_id": self.application_id,
            "executors": self.executors,
            "cores": self.cores,
            "core_s": self.core_s,
            **asdict(self.total),
            "stages_left_out": self.stages_left_out,
        }


def read_spark_work(spark: SparkSession, since_s: float, now_s: float) -> SparkWork:
    """Reads the work of a running Spark session from `since_s` to `now_s` (seconds since 1970).

    Stages that were submitted before `since_s` belong to earlier jobs, and are left out.

    Raises:
        Exception: any error of Spark or its gateway; for example, the session may have been stopped.
    """
    context = spark.sparkContext
    gateway: Any = context._gateway
    scala: Any = context._jsc.sc()
    scala.listenerBus().waitUntilEmpty(_DRAIN_MS)
    store = scala.statusStore()
    nothing = gateway.new_array(gateway.jvm.double, 0)
    stage_list = store.stageList(None, False, False, nothing, gateway.jvm.java.util.ArrayList())
    executors = store.executorList(False)
    # The JVM serializes stages and executors as JSON, as its REST interface does. So this process reads any
    # number of stages in one call.
    mapper = gateway.jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
    stages = json.loads(mapper.writeValueAsString(stage_list))
    began_s, conf = context._jsc.startTime() / 1000, context.getConf()
    local = scala.isLocal()
    driver_cores = 0 if local else int(conf.get("spark.driver.cores", "1"))
    held = driver_cores * max(0.0, now_s - max(began_s, since_s))
    known = json.loads(mapper.writeValueAsString(executors))
    return spark_work(context.applicationId, stages, known, held, since_s, now_s)


def spark_work(
    application_id: str,
    stages: list[Mapping[str, Any]],
    executors: list[Mapping[str, Any]],
    driver_core_s: float,
    since_s: float,
    now_s: float,
) -> SparkWork:
    """Adds up the work of the stages that ran, and the core seconds of the executors.

    Args:
        application_id: Spark's id of the session.
        stages, executors: dictionaries in the form of Spark's REST interface.
        driver_core_s: core seconds of the driver.
        since_s: start of the job, in seconds since 1970. Stages that were submitted earlier are left out.
        now_s: the current time, in seconds since 1970.
    """
    ran = [stage for stage in stages if _ran_since(stage, since_s)]
    works = [_work(stage) for stage in ran]
    rows = [_stage_row(stage, work) for stage, work in zip(ran, works, strict=True)]
    longest = sorted(rows, key=lambda row: (-row["task_s"], row["stage_id"], row["attempt"]))[:_MOST_STAGES]
    workers = [executor for executor in executors if executor["totalCores"] > 0]
    core_s = driver_core_s + sum(
        worker["totalCores"] * _lifetime_s(worker, since_s, now_s) for worker in workers
    )
    return SparkWork(
        application_id,
        len(workers),
        sum(int(worker["totalCores"]) for worker in workers),
        round(core_s, 2),
        sum(works, Work()),
        tuple(sorted(longest, key=lambda row: (row["stage_id"], row["attempt"]))),
        len(rows) - len(longest),
    )


def _ran_since(stage: Mapping[str, Any], since_s: float) -> bool:
    """Returns whether a stage ran, and was submitted at `since_s` or later.

    Spark rounds times to milliseconds.
    """
    if stage["status"] in ("SKIPPED", "PENDING"):
        return False
    submitted = _seconds(stage.get("submissionTime"))
    return submitted is None or submitted >= since_s - 1e-3


def _work(stage: Mapping[str, Any]) -> Work:
    """Returns the totals of one Spark stage, such as its tasks, CPU seconds and bytes read."""
    return Work(
        tasks=stage["numCompleteTasks"] + stage["numFailedTasks"] + stage["numKilledTasks"],
        failed_tasks=stage["numFailedTasks"],
        task_s=stage["executorRunTime"] / 1e3,
        cpu_s=round(stage["executorCpuTime"] / 1e9, 3),
        gc_s=stage["jvmGcTime"] / 1e3,
        input_bytes=stage["inputBytes"],
        input_rows=stage["inputRecords"],
        output_bytes=stage["outputBytes"],
        output_rows=stage["outputRecords"],
        shuffle_read_bytes=stage["shuffleReadBytes"],
        shuffle_write_bytes=stage["shuffleWriteBytes"],
        spilled_bytes=stage["diskBytesSpilled"],
    )


def _stage_row(stage: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Returns the name, status, times and totals of one Spark stage as a flat dictionary."""
    began, ended = (_seconds(stage.get(name)) for name in ("submissionTime", "completionTime"))
    return {
        "stage_id": stage["stageId"],
        "attempt": stage["attemptId"],
        "name": stage["name"],
        "status": stage["status"],
        "seconds": round(ended - began, 3) if began is not None and ended is not None else None,
        **asdict(work),
    }


def _lifetime_s(executor: Mapping[str, Any], since_s: float, now_s: float) -> float:
    """Returns the seconds between `since_s` and `now_s` in which an executor existed."""
    began, ended = _seconds(executor.get("addTime")), _seconds(executor.get("removeTime"))
    if began is None:
        return 0.0
    return max(0.0, (now_s if ended is None else ended) - max(began, since_s))


def _seconds(time: Any) -> float | None:
    """Converts a time of Spark's REST interface to seconds since 1970.

    An example of such a time is 2026-01-08T03:00:00.000GMT.
    """
    if time is None:
        return None
    if isinstance(time, int | float):
        return time / 1000
    return datetime.fromisoformat(str(time).replace("GMT", "+00:00")).timestamp()


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
    """Observes one run of a job: its inputs, its published tables, its warnings, and its use of Spark.

    Attributes:
        config: the configuration of the run.
        run: records the inputs and the published tables of the run. Pass it to the context of the run.
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
        """Creates an observer of the job that this process runs.

        The observer then collects warnings. With `watch.openlineage`, this method sends the event that starts
        the run.
        """
        observer = cls(config, RunLineage(job, f"nightrank.{config.name}", run_date), waits)
        logging.getLogger("nightrank").addHandler(observer._warnings)
        if config.watch.openlineage is not None:
            with suppress(ConfigError):  # only the job check_config stops because of this error
                observer._lineage = LineageSender(config.watch.openlineage)
        if observer._lineage is not None:
            with _harmless("the lineage event that starts this run is not sent"):
                observer._lineage.send(observer.run.start_event(observer._started_at))
        return observer

    @property
    def _started_at(self) -> str:
        return _utc(self.started_s)

    def record_silent(
        self, job: str, run_date: str, started_s: float, seconds: float, error: NightrankError
    ) -> None:
        """Records the attempt of another job, and exports its metrics, if that job ended without a record.

        A killed job cannot write a record. Without this record, the report could not show the failure, and
        the metrics would be those of an earlier run.

        Args:
            job, run_date: the job and its run date.
            started_s: start of the attempt, in seconds since 1970. A record of the job with an
                earlier start belongs to another attempt.
            seconds: duration of the attempt.
            error: an error that describes how the attempt ended. Its exit code is recorded too.
        """
        silent = None
        with _harmless(f"the end of {job} is not recorded"):
            lake, name = LakePaths(self.config.lake), self.config.name
            began = _utc(started_s)
            records = read_records(lake, [run_date], name)
            if any(record.job == job and record.started_at >= began for record in records):
                return
            silent = RunRecord(
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
            write_record(lake, silent)
        if silent is not None:
            with _harmless(f"the metrics of {job} are not exported to Prometheus"):
                _expose(silent, self.config.watch)

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
            summary: the job summary; None if the job failed before it created one.
            error: the error that ended a failed job.
        """
        logging.getLogger("nightrank").removeHandler(self._warnings)
        record = None
        with _harmless("this run is not recorded"):
            record = self._record(exit_code, phases, summary, error)
            write_record(LakePaths(self.config.lake), record)
        if record is not None:
            with _harmless("the metrics of this run are not exported to Prometheus"):
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
        if self.waits:
            core_s = 0.0
        elif spark is not None:
            core_s = spark.core_s
        else:  # without a JVM, the job may use all cores of the local master
            core_s = round(seconds * (cores_without_jvm() or 1), 2)
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
    """Exports the metrics of a run to Prometheus. Imports Prometheus's client only if it is needed."""
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
    """Logs any error in a `with` block as a warning, because the work of the job is already done.

    Args:
        consequence: text of the warning, which names what is missing because of the error.
    """
    try:
        yield
    except Exception as error:
        log.warning("%s: %s: %s", consequence, type(error).__name__, error)


# The code below sends the OpenLineage events of a run through OpenLineage's Python client.


class LineageSender:
    """Sends events through one transport of OpenLineage's client.

    The client also reads its own settings: the environment variables that begin with `OPENLINEAGE__`, such as
    `OPENLINEAGE__TRANSPORT__AUTH`, and the file `openlineage.yml`.

    Args:
        transport: the value of `watch.openlineage`, with the type of the transport and its settings.

    Raises:
        ConfigError: the transport does not exist, or it lacks a setting or a package.
    """

    def __init__(self, transport: Mapping[str, Any]) -> None:
        from openlineage.client import OpenLineageClient

        settings = {"transport": copy.deepcopy(dict(transport))}  # a copy, because the client changes it
        try:
            self._client = OpenLineageClient(config=settings)
        except Exception as error:  # each transport raises its own types of errors
            raise ConfigError(
                f"watch.openlineage: the transport {transport['type']!r} cannot be used: "
                f"{type(error).__name__}: {error}",
                "correct the settings; OpenLineage's documentation of its Python client lists all transports",
            ) from error

    def send(self, event: Mapping[str, Any]) -> None:
        """Sends an event, and waits until the transport has accepted it.

        Args:
            event: a RunEvent as JSON values (storage/lineage.py).

        Raises:
            Exception: the transport could not send the event.
        """
        from openlineage.client import event_v2

        run, job = event["run"], event["job"]
        self._client.emit(
            event_v2.RunEvent(
                eventType=event_v2.RunState[event["eventType"]],
                eventTime=event["eventTime"],
                producer=event["producer"],
                run=event_v2.Run(runId=run["runId"], facets=dict(run["facets"])),
                job=event_v2.Job(namespace=job["namespace"], name=job["name"], facets=dict(job["facets"])),
                inputs=[event_v2.InputDataset(**dataset) for dataset in event["inputs"]],
                outputs=[event_v2.OutputDataset(**dataset) for dataset in event["outputs"]],
            )
        )

    def close(self) -> None:
        """Waits until transports that buffer events, such as Kafka's, have sent all events."""
        self._client.close(timeout=_PATIENCE_S)


_PATIENCE_S = 10.0


def check_openlineage(transport: Mapping[str, Any] | None) -> None:
    """Raises ConfigError if the transport of `watch.openlineage` cannot be used."""
    if transport is not None:
        LineageSender(transport).close()
