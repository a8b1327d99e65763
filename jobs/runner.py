"""What every job shares: arguments, phases with their seconds, the job summary on standard output, exit codes."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conf import storage
from conf.errors import (
    EXIT_CONFIG,
    EXIT_CRASHED,
    EXIT_DATA,
    EXIT_INFRASTRUCTURE,
    EXIT_OK,
    ConfigError,
    NightrankError,
    raised_in,
)
from conf.lake import Lake
from conf.load import load_config, parse_date
from conf.printable import PrintableFormatter, json_line
from conf.types import Config
from etl.hadoop_files import hdfs
from jobs.checks import check_config
from jobs.session import build_session
from jobs.spark_log import SparkLog, root_cause, without_frames
from jobs.standard_output import separate_output
from jobs.watch.observer import Observer

log = logging.getLogger("nightrank")
_LOG_FORMAT = "%(asctime)s %(name)s: %(message)s"


@dataclass
class Job:
    """One run of one job: its configuration, its day, and the seconds of its phases."""

    name: str
    config: Config
    run_date: str
    phases: dict[str, float] = field(default_factory=dict)
    _spark: SparkSession | None = None
    spark_log: SparkLog = field(default_factory=SparkLog)

    @property
    def lake(self) -> Lake:
        return Lake(self.config.lake)

    @property
    def spark(self) -> SparkSession:
        """The session, built when it is first asked for: bad input fails before a JVM of executors starts."""
        if self._spark is None:
            with self.phase("session"):
                name = f"nightrank {self.name} {self.run_date}"
                self.spark_log.attach()  # where spark-submit has started the JVM, before the session can fail
                self._spark = build_session(name, event_logs=self.lake.event_logs)
                self.spark_log.attach()
        return self._spark

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times a phase and says on standard error that it began and ended."""
        log.info("%s …", name)
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = round(self.phases.get(name, 0.0) + time.monotonic() - start, 2)
        log.info("%s: %.1f s", name, self.phases[name])

    @property
    def started_spark(self) -> SparkSession | None:
        """The session if it was ever asked for."""
        return self._spark

    def keep_stacks(self, error: BaseException | None = None) -> str | None:
        """The path of the file with the stacks that Spark has logged, and that of this error; None if there are none."""
        return self.spark_log.end(self.lake.logs, self.run_date, self.name, error)

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


@dataclass(frozen=True)
class Result:
    """What a job's closing line reports. `facts` holds what is particular to the job."""

    output: str
    rows_in: int = 0
    rows_out: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def parser(name: str, description: str, date_option: str = "--run-date") -> argparse.ArgumentParser:
    """The command line every job has; `date_option` is how the run date may be named beside --run-date."""
    made = argparse.ArgumentParser(
        prog=f"{name}.py",
        description=description,
        epilog="Exit codes: 0 done, 2 bad configuration or arguments, 3 bad data, 4 infrastructure (worth a retry). "
        "The last line on standard output is one JSON object.",
    )
    made.add_argument(
        "--config",
        required=True,
        metavar="YAML",
        help="configuration of the log, e.g. conf/datasets/generated.yaml",
    )
    made.add_argument(
        *dict.fromkeys([date_option, "--run-date"]),
        required=True,
        dest="run_date",
        metavar="YYYY-MM-DD",
        help="the logical day to work on",
    )
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        dest="overrides",
        help="override one key of the configuration; may be given several times",
    )
    return made


def run(name: str, description: str, body: Callable[[Job], Result], argv: list[str] | None = None) -> None:
    """Runs a job and ends the process with the exit code its outcome asks for."""
    given = sys.argv[1:] if argv is None else argv
    write_summary = print if {"-h", "--help"} & {*given} else separate_output()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(PrintableFormatter(_LOG_FORMAT, "%H:%M:%S"))
    for noisy in ("py4j", "petastorm", "alembic", "mlflow"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    sys.exit(_run(name, body, parser(name, description).parse_args(given), write_summary))


def _run(
    name: str,
    body: Callable[[Job], Result],
    arguments: argparse.Namespace,
    write_summary: Callable[[str], None],
) -> int:
    start = time.monotonic()
    try:
        config = load_config(arguments.config, arguments.overrides)
        job = Job(name, config, parse_date(arguments.run_date))
    except NightrankError as error:  # no lake is known yet that could keep a record
        log.error("%s failed: %s", name, error)
        return error.exit_code
    observer = Observer.begin(name, config, job.run_date)
    exit_code, closing = EXIT_CRASHED, dict[str, Any]()
    failure: BaseException | None = None
    try:
        check_config(config)  # refused by every job, before any of them has worked on it
        storage.read_hdfs_through(lambda: hdfs(job.spark))
        result = body(job)
        told = closing_object(job, result, time.monotonic() - start)
        json.dumps(told, allow_nan=False)  # what is no JSON fails before the run counts as done
        exit_code, closing = EXIT_OK, told
        if stacks := job.keep_stacks():
            log.info("Spark logged errors that did not end the job; their stacks are in %s", stacks)
    except (NightrankError, PySparkException, Py4JError, OSError, MemoryError) as error:
        failure, exit_code = _told(job, error)
    except BaseException as error:  # a defect of ours, or an interruption: it ends the process as ever
        failure = error
        if stacks := job.keep_stacks():
            log.error("%s failed; what Spark logged is in %s", name, stacks)
        raise
    finally:
        observer.look_at(job.started_spark)
        observer.end(exit_code, job.phases, closing, failure)
        job.stop()
    if exit_code == EXIT_OK:
        closing["seconds"]["total"] = round(time.monotonic() - start, 2)
        write_summary(json_line(closing))
    return exit_code


def _told(job: Job, error: Exception) -> tuple[Exception, int]:
    """Says in the log what ended the job; the error that is at the bottom of it, and the exit code it asks for."""
    raised = raised_in(str(error)) if isinstance(error, PySparkException | Py4JError) else None
    # Where the configuration or the data are wrong, the message has it all; Spark may have logged stacks all the same.
    told_in_full = isinstance(error, NightrankError) and (
        error.exit_code in (EXIT_CONFIG, EXIT_DATA) or not error.__cause__
    )
    stacks = job.keep_stacks(None if told_in_full else error)
    where = f"\n  stacks: {stacks}" if stacks else ""
    if isinstance(error, NightrankError):
        log.error("%s failed: %s%s", job.name, without_frames(str(error)), where)
        return error, error.exit_code
    if raised is not None:
        log.error("%s failed in a Spark worker: %s%s", job.name, without_frames(str(raised)), where)
        return raised, raised.exit_code
    advice = "correct the cause if it is one of yours, such as a full disk; otherwise run the job again"
    log.error(
        "%s failed in Spark or the system around it: %s\n  what to do: %s%s",
        job.name,
        root_cause(error),
        advice,
        where,
    )
    return error, EXIT_INFRASTRUCTURE


def closing_object(job: Job, result: Result, seconds: float) -> dict[str, Any]:
    """What the closing line says."""
    return {
        "job": job.name,
        "run_date": job.run_date,
        "rows_in": result.rows_in,
        "rows_out": result.rows_out,
        "dropped": dict(result.dropped),
        "seconds": {**job.phases, "total": round(seconds, 2)},
        "output": result.output,
        **result.facts,
    }


def closing_line(job: Job, result: Result, seconds: float) -> str:
    """The JSON object that ends standard output."""
    return json_line(closing_object(job, result, seconds))


def require(config: Config, *sections: str) -> None:
    """ConfigError unless the optional sections a job needs are there."""
    missing = [name for name in sections if getattr(config, name) is None]
    if missing:
        raise ConfigError(
            f"this job needs the sections {missing} in the configuration", "add them to the file"
        )
