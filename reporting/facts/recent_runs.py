"""Reads the results of the last thirty days for the report: one entry per run date.

The results come from run records and manifests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conf.types import Config
from reporting.monitoring.run_record import NO_REMEDY, RunRecord, dates_up_to, read_records
from storage import file_io
from storage.manifest import is_published, read_manifest
from storage.paths import LakePaths, Partition

DAYS = 30
_READERS = 8
_CLEAN_EXITS = (0, 2, 3, 4)
# Groups of jobs. The report shows the sum of the durations of each group. A job that is in no group counts as
# `other`.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "features": ("build_features",),
    "training and gate": ("train_model", "train_retriever", "evaluate_model", "refit_model"),
    "lists and delivery": (
        "learn_blend",
        "build_candidates",
        "score_daily",
        "score_rows",
        "deliver_recommendations",
    ),
    "other": (),
}
_MEASURES = "measure_recommendations"
# The jobs whose failure stops a run. `report` is not one of them: if a page exists, `report` has succeeded.
_RUN_JOBS = (
    *(job for jobs in GROUPS.values() for job in jobs),
    "check_quality",
    "check_lists",
    _MEASURES,
    "nightly",
)


@dataclass(frozen=True)
class Failure:
    """A failed attempt of a job.

    A killed job has no run record; its exit code comes from the run record of `nightly`.
    """

    dt: str
    job: str
    ended_at: str
    exit_code: int
    problem: str
    remedy: str = ""


@dataclass(frozen=True)
class DayFacts:
    """The results of one run date. A value is None if no run record and no manifest contains it.

    Attributes:
        dt: the run date.
        rows: number of rows that were read from the raw log of this date.
        dropped: maps each reason to the number of rows of the raw log that were left out for this reason.
        auc: the AUC of the challenger on the test day.
        champion_auc: the AUC of the champion on the test day.
        best_auc: the best possible AUC on the test day; known only for generated logs.
        psi, psi_column: the PSI and the name of the raw column with the largest drift from the train days.
        score_psi: the PSI of the scores of the new lists, compared with the last published lists.
        churn: the share of items in a user's new list that are not in the user's last published list,
            averaged over users.
        seconds: maps each group of jobs (GROUPS) to the total seconds of its jobs. Only the last
            successful attempt of each job counts.
        rows_per_s: maps each job to the rows per second of its last successful attempt. For train_model,
            these are the rows that the model was trained on.
        core_s, cost: core seconds and cost of all attempts of all jobs, including failed attempts.
        failures: the failed attempts.
        has_run: whether a stage of a run was started for this date. A date without a run may also have
            figures about its log, because runs of later dates read this log.
    """

    dt: str
    rows: int | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    auc: float | None = None
    champion_auc: float | None = None
    best_auc: float | None = None
    psi: float | None = None
    psi_column: str | None = None
    score_psi: float | None = None
    churn: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    rows_per_s: Mapping[str, float] = field(default_factory=dict)
    core_s: float = 0.0
    cost: float | None = None
    failures: tuple[Failure, ...] = ()
    has_run: bool = False

    @property
    def dropped_share(self) -> float | None:
        """Returns the share of the rows of the raw log that were left out.

        Returns None if the number of rows is unknown or 0.
        """
        return sum(self.dropped.values()) / self.rows if self.rows else None


@dataclass(frozen=True)
class RunHistory:
    """The results of several run dates.

    Attributes:
        days: the results of each date for which a run was started, oldest first.
        currency: the currency of the costs; None if no cost is known.
    """

    days: tuple[DayFacts, ...]
    currency: str | None


def read_history(config: Config, run_date: str, days: int = DAYS) -> RunHistory:
    """Reads the run records and manifests of the last `days` dates up to `run_date`."""
    # Do not record these reads for lineage: earlier run dates are not inputs of the run that draws the page.
    lake, dates = LakePaths(config.lake), dates_up_to(run_date, days)
    of_date: dict[str, list[RunRecord]] = {dt: [] for dt in dates}
    all_records = read_records(lake, dates, config.name)
    for record in all_records:
        of_date[record.run_date].append(record)
    with ThreadPoolExecutor(_READERS) as pool:
        all_days = list(pool.map(lambda dt: _day(config, lake, dt, of_date[dt], all_records), dates))
    currencies = [record.currency for records in of_date.values() for record in records if record.currency]
    return RunHistory(tuple(day for day in all_days if day.has_run), currencies[-1] if currencies else None)


def _day(
    config: Config, lake: LakePaths, dt: str, records: Sequence[RunRecord], all_records: Sequence[RunRecord]
) -> DayFacts:
    """Reads the results of one run date from its run records and manifests.

    `all_records` contains the records of all dates.
    """
    log = _manifest_of(lake.quarantine.partition(dt))
    evaluation = _facts(lake.evaluations.partition(dt))
    changes = _facts(lake.list_changes.partition(dt))
    champion = evaluation.get("champion")
    psi = _worst_psi(config, _facts(lake.quality(config.name).partition(dt)))
    last = last_successes(records)
    costs = [record.cost for record in records if record.cost is not None]
    return DayFacts(
        dt=dt,
        rows=log[0],
        dropped=log[1],
        auc=(evaluation.get("challenger") or {}).get("auc"),
        champion_auc=champion["auc"] if champion else None,
        best_auc=evaluation.get("best_auc"),
        psi=psi[0],
        psi_column=psi[1],
        score_psi=changes.get("score_psi"),
        churn=changes.get("churn"),
        seconds=_seconds(last.values()),
        rows_per_s=_rows_per_s(last),
        core_s=round(sum(record.core_s for record in records), 2),
        cost=sum(costs) if costs else None,
        failures=tuple(failures_of(records, all_records)),
        has_run=bool(evaluation or changes) or any(record.job in _RUN_JOBS for record in records),
    )


def last_successes(records: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Returns the last successful attempt of each job except `nightly`, by job name.

    `records` must be ordered by time.
    """
    return {record.job: record for record in records if not record.failed and record.job != "nightly"}


def failures_of(records: Sequence[RunRecord], others: Sequence[RunRecord] = ()) -> list[Failure]:
    """Returns the failed attempts, oldest first. The exit codes of `nightly` show which jobs were killed.

    Args:
        records: the records whose failures are returned.
        others: records of other dates. A run also starts stages for other dates. If such a stage fails,
            `nightly` reports its exit code, and the stage has a record of its own in `others`. It is not
            counted a second time.
    """
    failed = [record for record in records if record.failed and record.job != "nightly"]
    failures = [_failure(record) for record in failed]
    for run in (record for record in records if record.job == "nightly"):
        recorded = {
            record.job
            for record in (*failed, *others)
            if record.failed and run.started_at <= record.started_at <= run.ended_at
        }
        for stage, code in run.facts.get("exit_codes", {}).items():
            if code not in _CLEAN_EXITS and stage.removesuffix("_again") not in recorded:
                problem = "the job was killed, or it crashed before it could record an error"
                remedy = (run.error or {}).get("remedy", "")
                failures.append(Failure(run.run_date, stage, run.ended_at, code, problem, remedy))
        if (run.error or {}).get("kind") not in (None, "StageError"):  # `nightly` itself failed, not a stage
            failures.append(_failure(run))
    return sorted(failures, key=lambda failure: (failure.ended_at, failure.job))


def _failure(record: RunRecord) -> Failure:
    error = record.error or {}
    return Failure(
        record.run_date,
        record.job,
        record.ended_at,
        record.exit_code,
        error.get("problem", ""),
        error.get("remedy", ""),
    )


def open_failure(config: Config, run_date: str) -> Failure | None:
    """Returns the last failure of a stage of a run; None if no stage failed or a later attempt succeeded.

    A failure no longer counts after a later success of the same stage. A failure of `nightly` itself no
    longer counts after a later success of any stage, because `nightly` writes its record only after the
    report of its run. If lists are compared with the clicks of the next day, the run measures the lists of
    the previous day. Therefore attempts to measure the previous day's lists belong to this run.
    """
    lake, before = LakePaths(config.lake), dates_up_to(run_date, 2)[0]
    of_dates = read_records(lake, [before, run_date], config.name)
    measured = before if config.measure.against == "next_day" else run_date
    records = [
        record
        for record in of_dates
        if record.run_date == (measured if record.job == _MEASURES else run_date)
    ]
    for failure in reversed(failures_of(records, of_dates)):
        repaired_by = _RUN_JOBS if failure.job == "nightly" else (failure.job,)
        is_replaced = any(
            not record.failed and record.job in repaired_by and record.ended_at >= failure.ended_at
            for record in records
        )
        if failure.job in _RUN_JOBS and not is_replaced:
            log = f"{lake.logs}/dt={run_date}/{failure.job}.log"
            if failure.remedy == NO_REMEDY and file_io.exists(log):
                return replace(failure, remedy=f"read the job's log, {log}")
            return failure
    return None


def served_lists(config: Config, run_date: str) -> str | None:
    """Returns, as text, which lists are served after a failure; None if the log has no users and items.

    The served lists are the last delivered lists or, without sinks, the last published lists.
    """
    if config.keys is None:
        return None
    lake = LakePaths(config.lake)
    table = lake.deliveries if config.deliver.sinks else lake.recommendations
    names = [Path(entry.path).name for entry in file_io.list_files(table.path)]
    dates = [name.removeprefix("dt=") for name in names if name.startswith("dt=")]
    served = max((dt for dt in dates if is_published(table.partition(dt))), default=None)
    if served is None:
        return "none, because no run has published lists yet"
    if served == run_date:
        return "those of this run date, which an earlier attempt or stage made"
    if served > run_date:
        return f"those of {served}, a later run date"
    missing = "delivered" if config.deliver.sinks else "published"
    return f"those of {served}, because this run has not {missing} any"


def _seconds(records: Iterable[RunRecord]) -> dict[str, float]:
    """Maps each group of jobs to the sum of the seconds of its jobs."""
    seconds: dict[str, float] = defaultdict(float)
    for record in records:
        group = next((name for name, jobs in GROUPS.items() if record.job in jobs), "other")
        seconds[group] += record.seconds
    return dict(seconds)


def _rows_per_s(last: Mapping[str, RunRecord]) -> dict[str, float]:
    """Returns the throughput of each job in its last run, in rows per second."""
    speeds = {}
    for job in ("build_features", "score_daily", "score_rows"):
        if job in last and last[job].seconds > 0:
            rows = last[job].rows_in if job == "build_features" else last[job].rows_out
            speeds[job] = rows / last[job].seconds
    trained = last["train_model"].facts.get("rows_per_s") if "train_model" in last else None
    return {**speeds, "train_model": float(trained)} if trained else speeds


def _worst_psi(config: Config, quality: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Returns the highest PSI of a raw column, and the column's name. Exempt columns are left out."""
    exempt = {*config.quality.exempt, *config.drawn_columns}
    indexes = [
        (column["psi"], column["name"])
        for column in quality.get("columns", [])
        if column.get("psi") is not None and column["name"] not in exempt
    ]
    return max(indexes) if indexes else (None, None)


def _manifest_of(partition: Partition) -> tuple[int | None, Mapping[str, int]]:
    """Returns the number of rows that were read, and the number of dropped rows for each reason.

    If the partition is not published, returns None and an empty dictionary.
    """
    if not is_published(partition):
        return None, {}
    manifest = read_manifest(partition)
    return manifest.rows_in, manifest.dropped


def _facts(partition: Partition) -> Mapping[str, Any]:
    """Returns the `facts` of a partition's manifest; empty if the partition is not published."""
    return read_manifest(partition).facts if is_published(partition) else {}
