"""Runs the job build_features as a library function.

The function `build` publishes, in this order: quarantine, data report, workflow, feature partitions, the
tables of users and items, and the dataset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, assert_never

import pyarrow as pa
from pyspark.sql import DataFrame

from conf.errors import ConfigError
from conf.load import config_digest
from conf.types import Config, Split
from etl.fit.fit_workflow import fit_workflow, require_weights
from etl.latest.latest_features import missing_rows, publish_latest
from etl.passes import (
    CheckedDays,
    Phase,
    changed_since_counted,
    check_days,
    digests_of_earlier_days,
    passes_of,
    raw_days,
)
from etl.prepare.attributes import read_attribute_table
from etl.prepare.prepared_passes import PreparedPasses, delete_unneeded_days
from etl.quality.checks import MissingRows, log_missing_rows
from etl.quality.day_counts import DayCounts
from etl.quality.report import DataReport
from etl.raw.files import RawFiles, impression_inputs
from etl.raw.splits import no_training_row
from etl.spark.raw_frames import read_attributes
from etl.workflow.feature_plan import FeaturePlan
from etl.workflow.fitted_workflow import FittedWorkflow, load_workflow
from spark.rows import union_all
from spark.workers import LocalWorkers, Workers
from storage import file_io
from storage.dataset import Dataset, Member, publish_dataset, require_labels
from storage.manifest import Manifest, current_manifest, is_published, read_manifest
from storage.paths import LakePaths, Partition
from storage.publish import FINITE, Rules

log = logging.getLogger("nightrank.etl")

# The manifest of a feature partition records the digest of the section `negatives` under this name.
_DRAWN = "drawn"


@dataclass(frozen=True)
class BuildResult:
    """The results of one run of build_features.

    Attributes:
        dataset: the published dataset.
        workflow: the workflow that computed the features.
        counts: maps each day to its row counts.
        features: maps each day to the manifest of its feature partition.
        quality: the data report.
        missing: for each configured table of users or items, the number of users or items in the log that
            have no row in this table.
        warnings: one message for each figure that exceeds its limit (a setting `quality.…_warn`).
        empty_days: train days that were left out because their raw log has no row.
    """

    dataset: Dataset
    workflow: FittedWorkflow
    counts: Mapping[str, DayCounts]
    features: Mapping[str, Manifest]
    quality: DataReport
    missing: Sequence[MissingRows]
    warnings: Sequence[str]
    empty_days: Sequence[str] = ()


def build(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    run_date: str,
    parent_version: str | None,
    phase: Phase,
    other_version: str | None = None,
) -> BuildResult:
    """Performs all work of build_features for a run date. The dataset is published last.

    Args:
        workers: the processes that run the tasks of the job.
        plan: the plan of the run.
        lake: data lake that the run reads and writes.
        run_date: the last day of the run's logs.
        parent_version: workflow version of the champion, which the run applies or extends; None if there is
            no champion.
        phase: function that takes the name of a phase of the work, and returns a context manager that
            measures the time of this phase.
        other_version: version of another workflow whose features, users and items are published too; None if
            there is none.

    Raises:
        ConfigError, DataError: see the called functions. The dataset is then not published.
    """
    has_features = applied_features(workers, plan, lake, run_date, parent_version, other_version)
    checked = check_days(workers, plan, lake, run_date, phase, has_features)
    with phase("workflow"):
        workflow, mode = _workflow(workers, plan, lake, checked, parent_version)
    used = [workflow]
    if other_version not in (None, workflow.version):
        used.append(_load(workers, plan, lake, other_version))
    with phase("features"):
        fits = mode in ("fit", "extend")
        unfinished = _unfinished_days(lake, run_date)
        by_workflow = [
            _publish_features(
                workers,
                plan,
                lake,
                one,
                checked,
                rejoined=[raw.dt for raw in checked.in_order] if fits and one is workflow else unfinished,
            )
            for one in used
        ]
    with phase("users and items"):
        latest = [
            publish_latest(workers, plan, lake, one, run_date, list(days.values()), checked.splits)
            for one, days in zip(used, by_workflow, strict=True)
        ]
    missing = missing_rows(latest[0])
    findings = log_missing_rows(plan.config.quality, missing)
    features = by_workflow[0]
    split_in_rows = plan.is_divided
    clicks = {(piece.dt, piece.split): piece.clicks for piece in checked.quality.compared.pieces}
    members: dict[str, tuple[Member, ...]] = {
        split: tuple(
            Member(day.dt, features[day.dt].digest, split if split_in_rows else None, clicks[day.dt, split])
            for day in days
        )
        for split, days in checked.splits.items()
    }
    changed = changed_since_counted(plan, workflow, checked.in_order)
    dataset = Dataset(run_date, workflow.version, members, mode, workflow.parent, changed)
    publish_dataset(lake, dataset, file_io.utc_now())
    delete_unneeded_days(plan, lake, checked.in_order[0].dt)
    warnings = [*checked.quality.warnings, *(finding.message for finding in findings)]
    return BuildResult(
        dataset,
        workflow,
        checked.counts,
        features,
        checked.quality,
        missing,
        warnings,
        checked.empty_days,
    )


def applied_features(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    run_date: str,
    parent_version: str | None,
    other_version: str | None,
) -> Callable[[RawFiles], bool] | None:
    """Returns a function that checks whether all features that the run needs from a day are published.

    Returns None if the run fits or extends a workflow, because no features of the new workflow are published
    yet. For the run date itself, the function returns False until a run for this date has been completed. The
    arguments have the same meaning as in `build`.
    """
    if parent_version is None or plan.config.workflow.mode not in ("auto", "apply"):
        return None
    versions = [version for version in (parent_version, other_version) if version is not None]
    earlier = digests_of_earlier_days(workers, plan, lake)
    unfinished = _unfinished_days(lake, run_date)

    def has_features(raw: RawFiles) -> bool:
        return raw.dt not in unfinished and all(
            current_features(
                lake.features(version).partition(raw.dt), feature_inputs(plan, raw, version, earlier)
            )
            for version in versions
        )

    return has_features


def _unfinished_days(lake: LakePaths, run_date: str) -> list[str]:
    """Returns the run date if it has no dataset, because no run of this date has been completed.

    An earlier attempt may have published features of this day, and then stopped because users or items had no
    row in their table. The next attempt must join the rows of this day with the corrected table.
    """
    return [] if is_published(lake.datasets.partition(run_date)) else [run_date]


def encode_split(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    workflow: FittedWorkflow,
    run_date: str,
    split: Split,
    read: Callable[[Partition, Manifest, Split | None], pa.Table | DataFrame],
    only: Collection[str] | None = None,
) -> pa.Table | DataFrame:
    """Returns the rows of one split (train, validation or test) for a run date.

    The columns are `workflow.spec.table_columns`. If the features of a day are not published for this
    workflow yet, they are computed and published first.

    The argument `read` is a function that reads all rows of a feature partition, or the rows of one split.
    If `only` is not None, only rows of the days in `only` are returned.

    Raises:
        ConfigError: the workflow was fitted with row weights, but the configuration sets no weights.
    """
    require_weights(plan, workflow.version, workflow.spec)
    days = raw_days(plan, run_date, lake.recorder)[split]
    days = [raw for raw in days if only is None or raw.dt in only]
    published = encoded_days(workers, plan, lake, workflow, days)
    table, label = lake.features(workflow.version), split if plan.is_divided else None
    return union_all([read(table.partition(dt), manifest, label) for dt, manifest in published.items()])


def encoded_days(
    workers: Workers, plan: FeaturePlan, lake: LakePaths, workflow: FittedWorkflow, days: Sequence[RawFiles]
) -> dict[str, Manifest]:
    """Returns the manifests of the published features of some days.

    The features of days without a published partition are computed first.

    Raises:
        DataError: see `etl.passes.DayPasses.scan_days`.
    """
    earlier = digests_of_earlier_days(workers, plan, lake)
    inputs = {raw.dt: feature_inputs(plan, raw, workflow.version, earlier) for raw in days}
    table = lake.features(workflow.version)
    current = {raw.dt: current_features(table.partition(raw.dt), inputs[raw.dt]) for raw in days}
    missing = [raw for raw in days if current[raw.dt] is None]
    if missing:
        passes = passes_of(workers, plan, lake)
        # Use the attributes of users and items that build_features joined with the rows of these days.
        if isinstance(passes, PreparedPasses):
            passes.keep_tables([raw.dt for raw in missing])
        counts = passes.scan_days(missing)
        of_days = {raw.dt: (raw, counts[raw.dt], inputs[raw.dt]) for raw in missing}
        current |= passes.encode_days(workflow, of_days, feature_rules(workflow))
    return {dt: manifest for dt, manifest in current.items() if manifest is not None}


def _workflow(
    workers: Workers, plan: FeaturePlan, lake: LakePaths, checked: CheckedDays, parent_version: str | None
) -> tuple[FittedWorkflow, str]:
    """Returns the workflow of the run, and the mode by which it was obtained.

    The mode `fit` fits a new workflow, `extend` adds new training days to the workflow `parent_version`, and
    `apply` uses the workflow `parent_version` unchanged.
    """
    mode = _mode_of_run(plan.config, parent_version)
    parent = None
    if parent_version and mode != "fit":
        parent = _load(workers, plan, lake, parent_version)
    if parent and mode == "apply":
        return parent, mode
    # Training needs rows with and without a click, and reads the features of a new or extended workflow. A
    # run that only applies the champion's workflow trains no model, so it has returned above without this
    # check.
    labels = [(piece.dt, piece.rows, piece.clicks) for piece in checked.quality.compared.train]
    if not any(rows for _, rows, _ in labels):
        raise no_training_row([dt for dt, _, _ in labels], plan.config.split)
    require_labels(labels, only_clicks=plan.config.train.only_positive_rows)
    passes, train = checked.passes, checked.splits["train"]
    in_frames = not isinstance(workers, LocalWorkers)
    by_sql = plan.engine == "sql"
    workflow = fit_workflow(
        workers,
        plan,
        lake,
        train,
        parent,
        counts_of=None if by_sql else partial(passes.counts_of, split="train"),
        read_table=partial(read_attributes, workers.spark) if in_frames else read_attribute_table,
        blocks_of=None if in_frames else passes.training_blocks,
        rows_of=passes.training_rows if in_frames else None,
        tables_of=passes.table_inputs,
    )
    log.info("workflow %s (%s), parent %s", workflow.version, mode, workflow.parent)
    return workflow, mode


def _load(workers: Workers, plan: FeaturePlan, lake: LakePaths, version: str) -> FittedWorkflow:
    loaded = load_workflow(
        lake, version, plan.config.output.broadcast_max_rows, plan.config.workflow.engine, workers
    )
    require_weights(plan, loaded.version, loaded.spec)
    return loaded


def _mode_of_run(config: Config, parent_version: str | None) -> Literal["fit", "extend", "apply"]:
    """Returns `workflow.mode` of the configuration; for `auto` and `retrain`, the mode that they select.

    A workflow is only extended if the log is stored by day. Otherwise, each run reads the whole log, and an
    extension would count the rows again that the workflow already includes.

    Raises:
        ConfigError: the mode is `extend` or `apply`, but there is no champion; or it is `extend`, but the log
            is not stored by day.
    """
    mode = config.workflow.mode
    if mode == "fit":
        return mode
    if mode == "auto":
        return "apply" if parent_version else "fit"
    if mode == "retrain":
        return "extend" if parent_version and config.log.by_day else "fit"
    if mode == "extend" and not config.log.by_day:
        raise ConfigError(
            f"workflow.mode=extend adds the rows of new days to the champion's workflow, but "
            f"log.path={config.log.path!r} has no {{date}}, so each run reads the whole log",
            "set workflow.mode=retrain to fit a new workflow to the whole log, or write {date} into log.path "
            "if the log has a file or folder for each day",
        )
    if mode == "extend" or mode == "apply":
        if parent_version is None:
            raise ConfigError(
                f"workflow.mode={mode} uses the champion's workflow, but there is no champion",
                "set workflow.mode=fit to fit a new workflow",
            )
        return mode
    assert_never(mode)


def _publish_features(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    workflow: FittedWorkflow,
    checked: CheckedDays,
    *,
    rejoined: Sequence[str],
) -> dict[str, Manifest]:
    """Publishes the feature partition of each day, unless it exists for the same log and workflow.

    For the days `rejoined`, the rows of an existing partition must also have been joined with the present
    tables of users and items. On other days, the rows keep the attributes with which they were joined.
    """
    table = lake.features(workflow.version)
    current: dict[str, Manifest] = {}
    missing: dict[str, tuple[RawFiles, DayCounts, dict[str, str]]] = {}
    earlier = digests_of_earlier_days(workers, plan, lake)
    for raw in checked.in_order:
        inputs = feature_inputs(plan, raw, workflow.version, earlier)
        tables = checked.passes.table_inputs(raw) if raw.dt in rejoined else None
        manifest = current_features(table.partition(raw.dt), inputs, tables)
        if manifest:
            log.info("features of %s are up to date", raw.dt)
            current[raw.dt] = manifest
        else:
            missing[raw.dt] = (raw, checked.counts[raw.dt], inputs)
    if missing:
        current |= checked.passes.encode_days(workflow, missing, feature_rules(workflow))
    return current


def feature_inputs(
    plan: FeaturePlan, raw: RawFiles, workflow_version: str, earlier: Mapping[str, Callable[[str], str]]
) -> dict[str, str]:
    """Returns the digests from which a day's feature partition is computed, as its manifest records them.

    The manifest also has the digests of the tables of users and items with which the rows were joined
    (DayPasses.encode_days). `earlier` has a function for each table of earlier days, such as earlier clicks.
    The function returns the digest of the table (etl.passes.digests_of_earlier_days).
    """
    inputs = {"raw": raw.digest, "layout": plan.layout, "workflow": workflow_version}
    inputs |= {name: digest(raw.dt) for name, digest in earlier.items()}
    inputs |= {"shares": config_digest(plan.config, "split")} if plan.is_divided else {}
    inputs |= {_DRAWN: config_digest(plan.config, "negatives")} if plan.config.negatives else {}
    return {**inputs, **impression_inputs(plan.config, raw), **plan.methods}


def current_features(
    partition: Partition, inputs: Mapping[str, str], tables: Mapping[str, str] | None = None
) -> Manifest | None:
    """Returns the manifest of a feature partition if it was computed from `inputs`, otherwise None.

    A manifest without the digest of the section `negatives` is valid too, because older releases did not
    write this digest.

    Args:
        partition: the feature partition of a day.
        inputs: the result of `feature_inputs`.
        tables: the digests of the tables with which the rows must have been joined
            (CountedDays.table_inputs). If it is None, any tables of users and items are accepted.
    """
    if not is_published(partition):
        return None
    recorded = dict(read_manifest(partition).inputs)
    if tables is None:
        tables = {name: recorded[name] for name in ("users", "items") if name in recorded}
    expected = {**inputs, **tables}
    older = {name: digest for name, digest in expected.items() if name != _DRAWN}
    return current_manifest(partition, recorded) if recorded in (expected, older) else None


def feature_rules(workflow: FittedWorkflow) -> Rules:
    """Returns the rules for rows of a feature table: ids in range, finite numbers, nulls only in lists."""
    ranges: dict[str, tuple[float, float]] = {
        feature.name: (0, feature.cardinality or 0) for feature in workflow.spec.categorical
    }
    ranges |= {feature.name: FINITE for feature in workflow.spec.dense}
    lists = {feature.name for feature in workflow.spec.multi_hot}
    return Rules([name for name in workflow.spec.table_columns if name not in lists], ranges)
