"""The run record: one row of the table `runs` for each attempt of a job.

Each row is a file in the folder `runs/dt=…`, with one line of JSON. The file is written atomically, has a
unique name, and is never replaced. So simultaneous runs need no lock, and readers see only complete rows. A
retry adds a row. A killed job writes no row; if it was a stage of `nightly`, `nightly` writes the row. Any
reader of JSON lines can read the folder `runs` as a table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from datetime import date, timedelta
from typing import Any

from conf.errors import DataError
from storage import file_io, format_versions
from storage.format_versions import typed
from storage.paths import LakePaths

log = logging.getLogger("nightrank.watch")

NO_REMEDY = "read the job's log"  # the remedy of an error without a specific remedy
_READERS = 16  # number of threads; on an object store, each file takes a round trip


@dataclass(frozen=True)
class RunRecord:
    """The record of one attempt of one job.

    Attributes:
        config: name of the configuration.
        started_at, ended_at: UTC times in ISO 8601.
        seconds: duration of the job's own process, without the start of spark-submit.
        error: kind, problem and remedy of the error; None if the job did not fail.
        rows_in, rows_out: number of rows that the job read, and number of rows that it published.
        dropped: maps each reason to the number of rows that were left out for this reason.
        phases: maps the name of each phase to its seconds.
        facts: the further values of the job summary; empty if the job failed.
        warnings: the first warnings.
        warning_count: number of all warnings.
        core_s: core seconds that the job reserved (number of cores times seconds). A job that works without a
            JVM counts all cores that its local master allows. Any other job without a Spark session counts
            one core. The job `nightly` counts no core.
        cost: the cost of core_s in `currency`; None if no price is configured.
        spark: the result of SparkWork.summary(); None if the job had no Spark session.
        stages: the stages in SparkWork.stages; empty if the job had no Spark session.
        lineage: the OpenLineage event that ends the run. The event names all datasets that were read and
            published.
    """

    run_id: str
    job: str
    config: str
    run_date: str
    started_at: str
    ended_at: str
    seconds: float
    exit_code: int
    error: Mapping[str, str] | None = None
    rows_in: int = 0
    rows_out: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    output: str | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    warning_count: int = 0
    core_s: float = 0.0
    cost: float | None = None
    currency: str | None = None
    spark: Mapping[str, Any] | None = None
    stages: Sequence[Mapping[str, Any]] = ()
    lineage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Returns whether the exit code is not 0."""
        return self.exit_code != 0

    def to_json(self) -> dict[str, Any]:
        """Returns all attributes and the format version, as JSON values."""
        return format_versions.RUN_RECORD.stamp(asdict(self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunRecord:
        """Converts a row of the table `runs` to a run record.

        Columns that a later release added are ignored.

        Raises:
            KeyError, TypeError: a column that every row must have is missing, or has the wrong type.
        """
        typed(values, job=str, run_date=str, run_id=str, started_at=str, config=str)
        known = {column.name for column in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def write_record(lake: LakePaths, record: RunRecord) -> str:
    """Writes a run record to a new file, and returns the path of the file.

    Raises:
        InfrastructureError: the file could not be written.
        ValueError: a value in `facts` is not a JSON value.
    """
    began = record.started_at.replace("-", "").replace(":", "")
    name = f"{record.job}-{began}-{record.run_id[:8]}.json"
    path = lake.runs.partition(record.run_date).file(name)
    values = file_io.with_checksum(record.to_json())
    file_io.replace_text(path, json.dumps(values, sort_keys=True, allow_nan=False) + "\n")
    return path


def read_records(lake: LakePaths, run_dates: Iterable[str], config: str | None = None) -> list[RunRecord]:
    """Reads the run records of some run dates, ordered by start time.

    If a file is not a run record, it is left out with a warning, so that foreign files cannot stop a report.

    Args:
        lake: the lake.
        run_dates: the run dates.
        config: name of the configuration whose records are read; None for all configurations.

    Raises:
        DataError: a newer release wrote a record.
    """
    paths = [
        path
        for dt in run_dates
        for path in (
            lake.runs.partition(dt).file(info.base_name)
            for info in file_io.list_files(lake.runs.partition(dt).path)
            if info.is_file and info.base_name.endswith(".json") and not info.base_name.startswith(".")
        )
    ]
    with ThreadPoolExecutor(_READERS) as pool:
        records = [record for record in pool.map(_read, paths) if record is not None]
    of_config = [record for record in records if config is None or record.config == config]
    return sorted(of_config, key=lambda record: (record.started_at, record.job, record.run_id))


def dates_up_to(run_date: str, days: int) -> list[str]:
    """Returns `days` consecutive dates that end with the run date, oldest first."""
    last = date.fromisoformat(run_date)
    return [(last - timedelta(days=back)).isoformat() for back in reversed(range(days))]


def _read(path: str) -> RunRecord | None:
    """Reads the run record in a file. If the file has no run record, logs a warning and returns None."""
    try:
        values = file_io.read_json(path)
        if not isinstance(values, dict):
            raise TypeError(f"it contains a {type(values).__name__} instead of a JSON object")
        record = RunRecord.from_json(values)
    except (DataError, KeyError, TypeError, OSError) as error:
        log.warning("%s is not the record of a run and is left out: %s", path, error)
        return None
    format_versions.RUN_RECORD.check(values, path)
    return record
