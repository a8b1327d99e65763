"""Chooses how the days of a log are read: by the two passes, or as Spark frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from conf.errors import ConfigError
from conf.types import Config, Split
from etl.fit.fit_inputs import TrainingBlocks
from etl.prepare.click_tables import ClickTables, click_tables
from etl.prepare.prepared_passes import PreparedPasses
from etl.prepare.row_operators import require_table_forms
from etl.quality.profile import CountedDays
from etl.raw.files import RawFiles
from etl.spark.last_clicks import LastClicks
from etl.spark.prepared_rows import clicks_before
from etl.spark.quarantine import DayCounts
from etl.text.two_passes import TextPasses, needs_preparation, reads_blocks
from etl.value_counts.requests import Counts
from etl.workflow.feature_plan import plan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.local_workers import LocalWorkers
from spark.workers import Workers
from storage.manifest import Manifest
from storage.paths import Lake
from storage.publish import Rules


class DayPasses(CountedDays, Protocol):
    """The two passes over the days of one run of build_features."""

    def scan_days(self, days: Sequence[RawFiles]) -> dict[str, DayCounts]:
        """Publishes quarantine and value counts of the days without them; returns the counts of each day."""

    def is_scanned(self, raw: RawFiles) -> bool:
        """Returns whether the quarantine and the value counts of this log of a day are published."""

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


def passes_of(workers: Workers, config: Config, lake: Lake) -> DayPasses | None:
    """Returns the passes over the days of a log; None if the log must be read as Spark frames.

    On a cluster, a log whose rows need a preparation is read as frames.
    """
    if not reads_blocks(config):
        return None
    if not needs_preparation(config):
        return TextPasses(workers, config, lake)
    if isinstance(workers, LocalWorkers) and _has_table_forms(config):
        return PreparedPasses(workers, config, lake)
    return None


def _has_table_forms(config: Config) -> bool:
    """Returns whether all operators that change rows have a form for tables, not only for Spark frames."""
    try:
        require_table_forms(plan(config).changers)
    except ConfigError:
        return False
    return True


def earlier_clicks(workers: Workers, config: Config, lake: Lake) -> ClickTables | LastClicks | None:
    """Returns what reads the clicks of earlier days; None without histories, or if the log is one table."""
    if config.history is None or config.split.by != "day":
        return None
    if isinstance(workers, LocalWorkers) and reads_blocks(config):
        return click_tables(workers, config, lake)
    return clicks_before(workers, config, lake)
