"""Chooses the passes over the days of a log, and whether tasks or frames of Spark prepare the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pyspark.sql import DataFrame

from conf.errors import ConfigError
from conf.raw_types import format_settings
from conf.types import Split
from etl.fit.rounds import TrainingBlocks
from etl.native.library import is_built
from etl.prepare.click_tables import ClickTables, click_tables
from etl.prepare.task_passes import TaskPasses
from etl.quality.day_counts import DayCounts
from etl.quality.report import CountedDays
from etl.raw.files import RawFiles
from etl.spark.frame_passes import FramePasses
from etl.spark.histories import LastClicks, clicks_before
from etl.text.two_passes import TextPasses
from etl.value_counts.requests import Counts
from etl.workflow.feature_plan import FeaturePlan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.workers import LocalWorkers, Workers
from storage.manifest import Manifest
from storage.paths import LakePaths
from storage.publish import Rules


class DayPasses(CountedDays, Protocol):
    """The interface of the two passes over the days of one run of build_features."""

    def scan_days(self, days: Sequence[RawFiles]) -> dict[str, DayCounts]:
        """Publishes missing quarantines and value counts of days. Returns the row counts of each day."""

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
        """Writes and publishes the feature partitions of scanned days."""

    def training_rows(self, days: Sequence[RawFiles]) -> DataFrame:
        """Returns the training rows of scanned days as a frame of Spark, with the column `_day`."""


@dataclass(frozen=True)
class Road:
    """How build_features reads the log of a configuration.

    Attributes:
        kind: `log`: tasks read the raw log in both passes. `prepared`: tasks scan the raw log, the rows are
            prepared, and the second pass reads them from the table `prepared`.
        prepared: which additions and changes to rows precede the features (`preparations`).
        by: whether `tasks` of this machine or `frames` of Spark prepare the rows; None if rows need no
            preparation.
    """

    kind: Literal["log", "prepared"]
    prepared: tuple[str, ...]
    by: Literal["tasks", "frames"] | None = None


def road_of(plan: FeaturePlan, *, on_one_machine: bool) -> Road:
    """Returns how build_features reads the log of a configuration.

    With `workflow.engine: sql`, rows are always prepared, because frames compute features from Parquet files.

    Args:
        plan: the plan of a run. The function does not open the plan's lake.
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
        ConfigError: tasks prepare the rows, but an operator of `prepare` can process only Spark frames; or
            the log is text, and the compiled scanner of text is missing.
    """
    if format_settings(plan.config.log.format).is_text and not is_built():
        raise ConfigError("the compiled scanner of text is missing", "run `make setup`")
    road = road_of(plan, on_one_machine=isinstance(workers, LocalWorkers))
    if road.kind == "log":
        return TextPasses(workers, plan, lake)
    return (
        TaskPasses(workers, plan, lake)
        if isinstance(workers, LocalWorkers)
        else FramePasses(workers, plan, lake)
    )


def earlier_clicks(workers: Workers, plan: FeaturePlan, lake: LakePaths) -> ClickTables | LastClicks | None:
    """Returns the reader of clicks of earlier days.

    Returns None if there are no histories, or if the log is one table.
    """
    if isinstance(workers, LocalWorkers):
        return click_tables(workers, plan, lake)
    return clicks_before(workers, plan, lake)
