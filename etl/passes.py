"""Finds, checks and reads the days of a run, and chooses the passes over these days.

The module also chooses whether tasks or Spark frames prepare the rows. Before features are computed, it
quarantines the rows of each day that cannot be parsed, and compares the newest log with the train days.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from conf.errors import ConfigError, DataError
from conf.names import has_date
from conf.raw_types import format_settings
from conf.types import SPLITS, RawTable, Split
from etl.fit.rounds import TrainingBlocks
from etl.native.library import is_built
from etl.prepare.click_tables import ClickTables, click_tables
from etl.prepare.last_values import value_tables
from etl.prepare.prepared_passes import PreparedPasses, earlier_digests
from etl.prepare.task_passes import TaskPasses
from etl.quality.day_counts import DayCounts, check_day
from etl.quality.report import CountedDays, DataReport, report_quality
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles, find_raw, has_no_text, impressions_of, require_raw, rows_digest
from etl.raw.splits import no_row, plan_days
from etl.readers.table_heads import check_heads
from etl.spark.frame_passes import FramePasses, LastClicks, clicks_before
from etl.statistics.value_counts import Counts
from etl.text.parse_block import FileLayout, columns_to_parse, layout_of_days, plain, read_split
from etl.text.two_passes import TextPasses
from etl.workflow.feature_plan import FeaturePlan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.rows import Rows
from spark.workers import LocalWorkers, Workers
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, USER_KEY
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import Manifest
from storage.paths import LakePaths
from storage.publish import Rules


class DayPasses(CountedDays, Protocol):
    """The two passes of build_features over the days of a run.

    The first pass scans the logs, and the second pass writes features.
    """

    def scan_days(self, days: Sequence[RawFiles]) -> dict[str, DayCounts]:
        """Publishes quarantine and value counts of days that lack them. Returns each day's row counts."""

    def is_scanned(self, raw: RawFiles) -> bool:
        """Returns whether quarantine and value counts are published for the current log of a day."""

    def counts_of(self, raw: RawFiles, split: Split | None = None) -> Counts:
        """Returns the value counts of a scanned day, or of its rows in one split."""

    def training_blocks(self, days: Sequence[RawFiles]) -> TrainingBlocks:
        """Returns the training rows of scanned days."""

    def encode_days(
        self,
        workflow: FittedWorkflow,
        days: Mapping[str, tuple[RawFiles, DayCounts, dict[str, str]]],
        rules: Rules,
    ) -> dict[str, Manifest]:
        """Writes and publishes the feature partitions of scanned days.

        Each manifest records the inputs that are passed for its day, and those that `table_inputs` returns.
        """

    def training_rows(self, days: Sequence[RawFiles]) -> DataFrame:
        """Returns the training rows of scanned days as a Spark frame. Its column `_day` has the row's day."""


@dataclass(frozen=True)
class Road:
    """How build_features reads the log of a configuration.

    Attributes:
        kind: `log`: tasks read the raw log in both passes. `prepared`: tasks scan the raw log, the rows are
            prepared, and the second pass reads them from the table `prepared`.
        prepared: the steps that add rows or columns, or change rows, before features are computed
            (`FeaturePlan.preparations`).
        by: whether `tasks` of this machine or `frames` of Spark prepare the rows; None for the kind `log`.
    """

    kind: Literal["log", "prepared"]
    prepared: tuple[str, ...]
    by: Literal["tasks", "frames"] | None = None


def road_of(plan: FeaturePlan, *, on_one_machine: bool) -> Road:
    """Returns how build_features reads the log of a configuration.

    With `workflow.engine: sql`, rows are always prepared, because frames compute features from Parquet files.

    Args:
        plan: the plan of a run. The function does not read the data lake.
        on_one_machine: whether processes of one machine run the tasks, instead of Spark's workers.

    Raises:
        ConfigError: the sections `features` or `prepare` are wrong.
    """
    prepared = tuple(plan.preparations)
    if not prepared and plan.engine == "arrow":
        return Road("log", ())
    return Road("prepared", prepared, "tasks" if on_one_machine else "frames")


def passes_of(workers: Workers, plan: FeaturePlan, lake: LakePaths) -> DayPasses:
    """Returns the passes over the days of a log.

    Raises:
        ConfigError: tasks prepare the rows, but an operator of `prepare` can process only Spark frames. Or
            the log is text, and the compiled text scanner is missing.
    """
    if format_settings(plan.config.log.format).is_text and not is_built():
        raise ConfigError("the compiled scanner, which reads text files, is missing", "run `make setup`")
    road = road_of(plan, on_one_machine=isinstance(workers, LocalWorkers))
    if road.kind == "log":
        return TextPasses(workers, plan, lake)
    return (
        TaskPasses(workers, plan, lake)
        if isinstance(workers, LocalWorkers)
        else FramePasses(workers, plan, lake)
    )


def digests_of_earlier_days(
    workers: Workers, plan: FeaturePlan, lake: LakePaths
) -> dict[str, Callable[[str], str]]:
    """Returns functions that take a day, and return a digest of earlier days on which the day's rows depend.

    There is a function for each table of earlier days (`etl.prepare.prepared_passes.earlier_digests`). In
    local runs, tasks read the clicks of earlier days. Otherwise, Spark reads them.
    """
    clicks: ClickTables | LastClicks | None
    if isinstance(workers, LocalWorkers):
        clicks = click_tables(workers, plan, lake)
    else:
        clicks = clicks_before(workers, plan, lake)
    return earlier_digests(clicks, value_tables(workers, plan, lake))


# The functions below read columns of one day's raw log.

_KEYS = pa.schema([(USER_KEY, pa.string()), (ITEM_KEY, pa.string()), (LABEL, pa.float32())])


def read_clicks(workers: Workers, plan: FeaturePlan, raw: RawFiles, *, times: bool = False) -> Rows:
    """Returns user_key, item_key and label of each valid row of a day's log. The section `keys` must be set.

    With `times`, the rows also have event_time, and `log.event_time` must be set. Tasks of `workers` parse
    the log. The rows have no histories, attributes or other columns that the configuration may add to rows.
    """
    layout = layout_of_days(plan, [raw])
    splits = tuple(layout.reader.splits())
    schema = _KEYS.append(pa.field(EVENT_TIME, pa.int64())) if times else _KEYS
    task = partial(_clicks_of, splits, layout, columns_to_parse(layout, ()), schema)
    return workers.run(len(splits), task, schema)


def _clicks_of(
    splits: tuple[FileSplit, ...], layout: FileLayout, columns: Sequence[str], schema: pa.Schema, index: int
) -> Iterator[pa.RecordBatch]:
    """Runs one task: parses one file split."""
    for parsed in read_split(splits[index], layout, columns):
        values = [plain(parsed.columns[field.name]).cast(field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(values, schema=schema)


# The code below finds the days of a run, quarantines their bad rows, and compares the newest log with the
# train days.

log = logging.getLogger("nightrank.etl")

Phase = Callable[[str], AbstractContextManager[None]]


def raw_days(
    plan: FeaturePlan, run_date: str, recorder: LineageRecorder = NOT_RECORDED
) -> dict[Split, list[RawFiles]]:
    """Returns, for each split, the raw files of its days.

    If `split.by` is not `day`, all splits have the same single day. Train days whose files are empty are left
    out. `recorder` records the raw files as inputs of the run. Each returned object keeps the recorder, so
    that the run can also record what it reads with these files, such as tables of users and items.

    Raises:
        DataError: a required day has no raw log.
    """
    return _raw_days(plan, run_date, recorder)[0]


def _raw_days(
    plan: FeaturePlan, run_date: str, recorder: LineageRecorder
) -> tuple[dict[Split, list[RawFiles]], list[str]]:
    """Returns the result of `raw_days`, and the days whose files are empty."""
    if plan.is_divided:
        raw = require_raw(plan.config, plan.config.log, run_date, recorder=recorder)
        return {split: [raw] for split in SPLITS}, []
    require_raw(plan.config, plan.config.log, run_date, recorder=recorder)
    empty: list[str] = []

    def has_log(day: str) -> bool:
        raw = find_raw(plan.config, plan.config.log, day, recorder)
        if raw is not None and has_no_text(plan.config.log, raw):
            empty.append(day)
        return raw is not None and day not in empty

    days = plan_days(plan.config.split, run_date, has_log)
    return {
        split: [require_raw(plan.config, plan.config.log, day, recorder=recorder) for day in dates]
        for split, dates in days.items()
    }, empty


@dataclass(frozen=True)
class CheckedDays:
    """The days of a run, after their quarantine and the data report have been published.

    Attributes:
        splits: maps each split to the raw files of its days.
        in_order: the raw files of all days, oldest first.
        passes: the passes over the days (etl.passes).
        counts: maps each day to its row counts.
        quality: the data report.
        empty_days: train days that were left out because their raw log has no row.
    """

    splits: Mapping[Split, list[RawFiles]]
    in_order: Sequence[RawFiles]
    passes: DayPasses
    counts: Mapping[str, DayCounts]
    quality: DataReport
    empty_days: Sequence[str] = ()


def check_days(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    run_date: str,
    phase: Phase,
    has_features: Callable[[RawFiles], bool] | None = None,
) -> CheckedDays:
    """Publishes each day's quarantine and the data report, and checks both against configured limits.

    `build` calls this function first.

    Args:
        workers: the processes that run the tasks of the job.
        plan: the plan of the run.
        lake: data lake that the run reads and writes.
        run_date: the last day of the run's logs.
        phase: measures the time of a phase, see `etl.build.build`.
        has_features: returns whether the features of a day are published (etl.build.applied_features). The
            rows of such a day are not joined again if a table of users or items was replaced after their
            features were published. None if the rows of all days must be joined with the current tables.

    Raises:
        ConfigError, DataError: see the called functions. The quarantine and the data report are published
            even if a figure exceeds its limit.
    """
    splits, empty_days = _raw_days(plan, run_date, lake.recorder)
    in_order = _in_order(splits)
    check_tables_of_days(plan, in_order)
    passes = passes_of(workers, plan, lake)
    with phase("quarantine"):
        if has_features and isinstance(passes, PreparedPasses):
            passes.keep_tables([raw.dt for raw in in_order if has_features(raw)])
        counts = quarantine_days(plan, lake, in_order, passes)
    without_rows = [raw.dt for raw in in_order if not counts[raw.dt].rows_in]
    splits = days_with_rows(plan, splits, without_rows)
    in_order = _in_order(splits)
    counts = {raw.dt: counts[raw.dt] for raw in in_order}
    empty_days = sorted({*empty_days, *without_rows})
    if empty_days:
        log.warning("the raw logs of the train days %s have no rows, so these days are left out", empty_days)
    _warn_of_missing_days(plan, in_order)
    with phase("quality"):
        quality = report_quality(plan, lake, run_date, splits, passes)
    return CheckedDays(splits, in_order, passes, counts, quality, empty_days)


def _in_order(splits: Mapping[Split, list[RawFiles]]) -> list[RawFiles]:
    """Returns the raw files of all days, oldest first."""
    by_date = {day.dt: day for days in splits.values() for day in days}
    return [raw for _, raw in sorted(by_date.items())]


def days_with_rows(
    plan: FeaturePlan, splits: Mapping[Split, list[RawFiles]], without_rows: Sequence[str]
) -> dict[Split, list[RawFiles]]:
    """Returns the days of each split. Train days without rows, which `without_rows` lists, are left out.

    Raises:
        DataError: a validation or test day has no row, or fewer than `min_train_days` train days are left.
    """
    later = [*splits["validation"], *splits["test"]]
    required = [raw for raw in later if raw.dt in without_rows]
    train = [raw for raw in splits["train"] if raw.dt not in without_rows]
    if required:
        raise no_row(required[0].dt, required[0].paths[0])
    if not plan.is_divided and len(train) < plan.config.split.min_train_days:
        raise DataError(
            f"the raw logs of the train days {list(without_rows)} have no rows, and only {len(train)} train "
            f"days are left, but split.min_train_days={plan.config.split.min_train_days}",
            "deliver the raw logs of these days again, choose a later --run-date, or lower "
            "split.min_train_days",
        )
    return {**splits, "train": train}


def check_tables_of_days(plan: FeaturePlan, days: Sequence[RawFiles]) -> None:
    """Checks the first rows of the tables that are joined with the rows of some days.

    Without this check, the job would find an error in a table only after it has parsed the log.

    Raises:
        DataError: a table is missing, lacks a column, or has a value that cannot be parsed.
    """
    checked: set[tuple[str, tuple[str, ...]]] = set()
    joined: list[tuple[str, RawTable, str]] = []
    if plan.config.keys and plan.config.users:
        joined.append(("users", plan.config.users, plan.config.keys.user))
    if plan.config.keys and plan.config.items:
        joined.append(("items", plan.config.items, plan.config.keys.item))
    for section, table, key in joined:
        for day in days:
            raw = require_raw(plan.config, table, day.dt, f"{section}.path")
            if (section, raw.paths) not in checked:
                check_heads(table, raw.paths, section, key)
                checked.add((section, raw.paths))
    for name, external in plan.external_tables.items():
        latest = None if has_date(external.path) else find_raw(plan.config, external, days[-1].dt)
        if latest is not None:  # A missing table is not an error here, because only a fit needs it.
            check_heads(external, latest.paths, name, None)


def _warn_of_missing_days(plan: FeaturePlan, days: Sequence[RawFiles]) -> None:
    """Logs a warning that names the days without a log of impressions.

    The rows of these days have no position.
    """
    settings = plan.config.serving.row_positions
    missing = [raw.dt for raw in days if impressions_of(plan.config, raw) is None] if settings else []
    if settings and missing:
        log.warning(
            "impressions: there is no log of %s (serving.impressions.path=%s), so the column %s is null in "
            "all rows of these days",
            missing,
            settings.path,
            settings.row_column,
        )


def quarantine_days(
    plan: FeaturePlan, lake: LakePaths, days: Sequence[RawFiles], passes: DayPasses
) -> dict[str, DayCounts]:
    """Publishes the quarantine of each day, and returns the row counts of each day.

    Raises:
        DataError: too many rows of a day cannot be parsed, or have times outside the day.
    """
    counts = passes.scan_days(days)
    for raw in days:
        check_day(plan, raw, counts[raw.dt], lake.quarantine.partition(raw.dt))
    return counts


def changed_since_counted(
    plan: FeaturePlan, workflow: FittedWorkflow, days: Sequence[RawFiles]
) -> tuple[str, ...]:
    """Returns the days whose raw log has changed since the workflow was fitted on it.

    If the rows have positions of impressions, the function also returns the days whose log of impressions has
    changed.

    The values of a training day are counted once, when this workflow version, or a version that it extends,
    is fitted. If the raw log of the day changes later, features are computed from the new log. The counts
    stay unchanged: adding the counts of the new log would count the day twice.
    """
    changed = tuple(
        raw.dt for raw in days if workflow.counted.get(raw.dt) not in (None, rows_digest(plan.config, raw))
    )
    if changed:
        log.warning(
            "the raw logs of %s have changed since workflow %s was fitted on them: the features of these "
            "days are computed again, but the workflow's statistics and vocabularies stay unchanged "
            "(workflow.mode=fit computes them again)",
            list(changed),
            workflow.version,
        )
    return changed
