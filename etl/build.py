"""build_features as a library: days → quarantine → data report → workflow → feature partitions → users and items → dataset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError
from conf.types import SPLITS, Config, Split
from etl.fit.fit_workflow import fit_workflow
from etl.quality.counts import feature_columns
from etl.quality.report import DataReport, report_quality
from etl.quality.report_types import Comparison
from etl.raw.files import RawFiles, find_raw, require_raw
from etl.spark.latest_features import publish_latest
from etl.spark.quarantine import DayCounts, check_day, layout_digest, quarantine_day
from etl.spark.split_rows import preparation, prepared_rows
from etl.split.time_split import SPLIT, plan_days
from etl.text.two_passes import FileFlow, flow_applies
from etl.workflow.feature_plan import plan
from etl.workflow.fitted_workflow import FittedWorkflow, load_workflow
from storage import file_io
from storage.dataset import Dataset, Member, publish_dataset, require_both_labels
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import Manifest, current_manifest
from storage.paths import Lake, Partition
from storage.publish import Rules, publish
from storage.verify import FINITE

log = logging.getLogger("nightrank.etl")

Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Built:
    """What a run of build_features made: the dataset, its workflow, the counts of the run's days, and the data report."""

    dataset: Dataset
    workflow: FittedWorkflow
    counts: Mapping[str, DayCounts]
    features: Mapping[str, Manifest]
    quality: DataReport


def window(
    config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED
) -> dict[Split, list[RawFiles]]:
    """The raw days of each split; for a log that is one undated table, all splits share its one partition.

    `recorder` notes these days, and later what is read together with them, as inputs of the run.

    Raises:
        DataError: a day that is needed has no raw log.
    """
    if config.split.by != "day":
        raw = require_raw(config, config.log, run_date, recorder=recorder)
        return {split: [raw] for split in SPLITS}
    require_raw(config, config.log, run_date, recorder=recorder)
    planned = plan_days(
        config.split, run_date, lambda day: find_raw(config, config.log, day, recorder) is not None
    )
    return {
        split: [require_raw(config, config.log, day, recorder=recorder) for day in days]
        for split, days in planned.items()
    }


@dataclass(frozen=True)
class Inspected:
    """The raw days of a run, found fit for use: who is in which split, what was counted, and how their rows are read."""

    splits: Mapping[Split, list[RawFiles]]
    in_order: Sequence[RawFiles]
    flow: FileFlow | None
    rows_of: _PreparedRows
    counts: Mapping[str, DayCounts]
    quality: DataReport


def inspect(spark: SparkSession, config: Config, lake: Lake, run_date: str, phase: Phase) -> Inspected:
    """Publishes quarantine and data report of a run date, and stops at their limits. What build_features begins with.

    The rows that it reads may be kept in memory: `rows_of.release()` lets go of them.

    Raises:
        ConfigError, DataError: see the parts; quarantine and data report are published also where they stop the run.
    """
    splits = window(config, run_date, lake.recorder)
    days = {day.dt: day for found in splits.values() for day in found}
    in_order = [raw for _, raw in sorted(days.items())]
    flow = FileFlow(spark, config, lake) if flow_applies(spark, config) else None
    with phase("quarantine"):
        counts = quarantine_days(spark, config, lake, in_order, flow)
    rows_of = _PreparedRows(spark, config)
    with phase("quality"):
        counted = flow if flow and flow.has_counts_of(feature_columns(config)) else None
        quality = report_quality(spark, config, lake, run_date, splits, rows_of, counted)
    return Inspected(splits, in_order, flow, rows_of, counts, quality)


def build(
    spark: SparkSession, config: Config, lake: Lake, run_date: str, parent_version: str | None, phase: Phase
) -> Built:
    """Everything build_features does for a run date, ending in the published dataset.

    Args:
        parent_version: the workflow version of the champion before this run date, if there is one.
        phase: times the named part of the work.

    Raises:
        ConfigError, DataError: see the parts; nothing of the dataset is published then.
    """
    found = inspect(spark, config, lake, run_date, phase)
    splits, in_order, rows_of, flow = found.splits, found.in_order, found.rows_of, found.flow
    with phase("workflow"):
        workflow, mode = _workflow(
            spark, config, lake, splits["train"], rows_of, parent_version, flow, found.quality.compared
        )
    with phase("features"):
        features = _publish_features(config, lake, workflow, in_order, rows_of, found.counts, flow)
    rows_of.release()
    with phase("users and items"):
        publish_latest(spark, config, lake, workflow, run_date, list(features.values()))
    label = config.split.by != "day"
    clicks = {(piece.dt, piece.split): piece.clicks for piece in found.quality.compared.pieces}
    members: dict[str, tuple[Member, ...]] = {
        split: tuple(
            Member(day.dt, features[day.dt].digest, split if label else None, clicks[day.dt, split])
            for day in raws
        )
        for split, raws in splits.items()
    }
    changed = _changed_since_counted(workflow, in_order)
    dataset = Dataset(run_date, workflow.version, members, mode, workflow.parent, changed)
    publish_dataset(lake, dataset, file_io.utc_now())
    return Built(dataset, workflow, found.counts, features, found.quality)


def encode_split(
    spark: SparkSession,
    config: Config,
    workflow: FittedWorkflow,
    run_date: str,
    split: Split,
    recorder: LineageRecorder = NOT_RECORDED,
) -> DataFrame:
    """The raw rows of one split of a run date through a workflow: rows of its `spec.table_columns`. Writes nothing."""
    frames = []
    for raw in window(config, run_date, recorder)[split]:
        rows = prepared_rows(spark, config, raw)
        frames.append(workflow.apply(rows.where(F.col(SPLIT) == split) if SPLIT in rows.columns else rows))
    return reduce(DataFrame.unionByName, frames)


def quarantine_days(
    spark: SparkSession, config: Config, lake: Lake, days: Sequence[RawFiles], flow: FileFlow | None
) -> dict[str, DayCounts]:
    """Day → counts, with the quarantine of each published.

    Raises:
        DataError: a day has no row, or too many of its rows do not parse.
    """
    if flow is None:
        return {raw.dt: quarantine_day(spark, config, lake, raw) for raw in days}
    counts = flow.survey(days)
    for raw in days:
        check_day(config, raw, counts[raw.dt], lake.quarantine.partition(raw.dt).path)
    return counts


class _PreparedRows:
    """Prepared rows by day, made once: making them counts the lines of each file.

    A log cut inside its one partition is also kept in memory: its split and its joins cost several passes.
    """

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._spark, self._config = spark, config
        self._of_day: dict[str, DataFrame] = {}

    def __call__(self, raw: RawFiles) -> DataFrame:
        if raw.dt not in self._of_day:
            rows = prepared_rows(self._spark, self._config, raw)
            self._of_day[raw.dt] = rows if self._config.split.by == "day" else rows.persist()
        return self._of_day[raw.dt]

    def release(self) -> None:
        for rows in self._of_day.values():
            rows.unpersist()
        self._of_day.clear()


def _workflow(
    spark: SparkSession,
    config: Config,
    lake: Lake,
    train: list[RawFiles],
    rows_of: _PreparedRows,
    parent_version: str | None,
    flow: FileFlow | None,
    compared: Comparison,
) -> tuple[FittedWorkflow, str]:
    mode = config.workflow.mode
    if mode in ("extend", "apply") and parent_version is None:
        raise ConfigError(
            f"workflow.mode={mode} needs a champion, and there is none", "set workflow.mode=fit"
        )
    if mode == "auto":
        mode = "apply" if parent_version else "fit"
    if mode == "retrain":
        mode = "extend" if parent_version else "fit"
    parent = None
    if parent_version and mode != "fit":
        parent = load_workflow(lake, parent_version, config.output.broadcast_max_rows, config.workflow.engine)
    if parent and mode == "apply":
        return parent, mode
    # Whoever fits is about to train. Lists of a champion can be made without a click in the window.
    require_both_labels([(piece.dt, piece.rows, piece.clicks) for piece in compared.train])
    counts_of = flow.counts_of if flow else None
    workflow = fit_workflow(spark, config, lake, train, rows_of, parent, counts_of)
    log.info("workflow %s (%s), parent %s", workflow.version, mode, workflow.parent)
    return workflow, mode


def _changed_since_counted(workflow: FittedWorkflow, days: Sequence[RawFiles]) -> tuple[str, ...]:
    """Days whose raw log is another one than the workflow, or a parent of it, counted.

    Their features are made of the new log. Their counts stay: a day counts once, or values would be counted twice.
    """
    changed = tuple(raw.dt for raw in days if workflow.counted.get(raw.dt, raw.digest) != raw.digest)
    if changed:
        log.warning(
            "the raw logs of %s changed after workflow %s counted them: their features are made anew, its statistics and "
            "vocabularies stay (workflow.mode=fit counts everything again)",
            list(changed),
            workflow.version,
        )
    return changed


def _publish_features(
    config: Config,
    lake: Lake,
    workflow: FittedWorkflow,
    days: Sequence[RawFiles],
    rows_of: _PreparedRows,
    counts: Mapping[str, DayCounts],
    flow: FileFlow | None,
) -> dict[str, Manifest]:
    """The days' feature partitions; those made of the same log by the same workflow, and whole, are left alone."""
    table = lake.features(workflow.version)
    found: dict[str, Manifest] = {}
    missing: dict[str, tuple[RawFiles, DayCounts, dict[str, str]]] = {}
    for raw in days:
        inputs = {
            "raw": raw.digest,
            "layout": layout_digest(config),
            "workflow": workflow.version,
            **preparation(config),
        }
        known = current_manifest(table.partition(raw.dt), inputs)
        if known:
            log.info("features of %s are up to date", raw.dt)
            found[raw.dt] = known
        else:
            missing[raw.dt] = (raw, counts[raw.dt], inputs)
    if missing and flow and flow.encodes(workflow):
        return found | flow.encode(workflow, missing, feature_rules(workflow))
    return found | {
        dt: _publish_frame(config, table.partition(dt), workflow, rows_of(raw), of_day, inputs)
        for dt, (raw, of_day, inputs) in missing.items()
    }


def feature_rules(workflow: FittedWorkflow) -> Rules:
    """What must hold for every row of a feature table."""
    ranges: dict[str, tuple[float, float]] = {
        each.name: (0, each.cardinality or 0) for each in workflow.spec.categorical
    }
    ranges |= {each.name: FINITE for each in workflow.spec.dense}
    lists = {each.name for each in workflow.spec.multi_hot}
    return Rules([name for name in workflow.spec.table_columns if name not in lists], ranges)


def _publish_frame(
    config: Config,
    partition: Partition,
    workflow: FittedWorkflow,
    prepared: DataFrame,
    counts: DayCounts,
    inputs: Mapping[str, str],
) -> Manifest:
    cut = SPLIT in prepared.columns
    one_for_one = config.negatives is None and not cut and plan(config).keeps_rows
    added: dict[str, Any] = {"expected_rows": counts.good} if one_for_one else {}
    return publish(
        workflow.apply(prepared, keep=[SPLIT] if cut else []),
        partition,
        inputs=inputs,
        row_group_rows=config.output.row_group_rows,
        rows_in=counts.rows_in,
        dropped=counts.dropped,
        rules=feature_rules(workflow),
        split_column=SPLIT if cut else None,
        grace_hours=config.output.grace_hours,
        **added,
    )
