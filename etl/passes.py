"""Chooses how the days of a log are read: by the two passes, or as Spark frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from conf.errors import ConfigError
from conf.types import Config, Split
from etl.fit.fit_inputs import TrainingBlocks
from etl.prepare.attributes import reads_in_process
from etl.prepare.click_tables import ClickTables, click_tables
from etl.prepare.prepared_passes import PreparedPasses
from etl.prepare.row_operators import require_table_forms
from etl.quality.profile import CountedDays
from etl.raw.files import RawFiles
from etl.spark.last_clicks import LastClicks
from etl.spark.prepared_rows import clicks_before
from etl.spark.quarantine import DayCounts
from etl.text.two_passes import TextPasses, preparations, reads_blocks, reason_for_frames
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


@dataclass(frozen=True)
class Road:
    """How build_features reads the log of a configuration.

    Attributes:
        kind: `log`: tasks read the raw log in both passes. `prepared`: tasks prepare rows first, and then
            read the table `prepared`. `frames`: Spark frames.
        prepared: what rows get, or how they change, before features are computed (`preparations`).
        reason: why the log is read as frames; None if it is not.
    """

    kind: Literal["log", "prepared", "frames"]
    prepared: tuple[str, ...]
    reason: str | None = None


def road_of(config: Config, *, on_one_machine: bool) -> Road:
    """Returns how build_features reads the log of a configuration.

    Args:
        config: the configuration. Its lake is not opened.
        on_one_machine: whether processes of one machine run the tasks, not Spark's workers.

    Raises:
        ConfigError: the sections `features` or `prepare` are wrong.
    """
    prepared = tuple(preparations(config))
    reason = reason_for_frames(config)
    if reason is None and prepared:
        reason = _reason_not_to_prepare(config, on_one_machine)
    if reason is not None:
        return Road("frames", prepared, reason)
    return Road("prepared" if prepared else "log", prepared)


def passes_of(workers: Workers, config: Config, lake: Lake) -> DayPasses | None:
    """Returns the passes over the days of a log; None if the log must be read as Spark frames.

    On a cluster, a log whose rows need a preparation is read as frames.
    """
    if not reads_blocks(config):
        return None
    on_one_machine = isinstance(workers, LocalWorkers)
    kind = road_of(config, on_one_machine=on_one_machine).kind
    if kind == "log":
        return TextPasses(workers, config, lake)
    if kind == "prepared" and isinstance(workers, LocalWorkers):
        return PreparedPasses(workers, config, lake)
    return None


def _reason_not_to_prepare(config: Config, on_one_machine: bool) -> str | None:
    """Returns why tasks cannot prepare the rows of a log; None if they can."""
    if not on_one_machine:
        return "Spark's workers run the tasks, which prepare no rows"
    try:
        require_table_forms(plan(config).changers)
    except ConfigError as error:
        return error.problem
    if not reads_in_process(config, config.users, config.items):
        return "only Spark can read the table of users or items: the compiled scanner is missing"
    return None


def earlier_clicks(workers: Workers, config: Config, lake: Lake) -> ClickTables | LastClicks | None:
    """Returns what reads the clicks of earlier days; None without histories, or if the log is one table."""
    if config.history is None or config.split.by != "day":
        return None
    if isinstance(workers, LocalWorkers) and reads_blocks(config):
        return click_tables(workers, config, lake)
    return clicks_before(workers, config, lake)
