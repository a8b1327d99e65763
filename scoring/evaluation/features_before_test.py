"""Computes features of users and items from data before the rows of a split.

The tables `users` and `items` of a run date are not suitable for an evaluation: the latest row of a user may
be a test row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import DataFrame

from conf.types import SPLITS, Split
from etl.build import encoded_days
from etl.latest.latest_features import (
    LatestValues,
    attributes_of,
    encode_rows,
    features_of_history,
    features_of_values,
    histories_of,
    latest_values,
    missing_mode,
    needs_log,
    with_histories,
    with_values,
)
from etl.latest.latest_rows import PublishedRows, latest_published_rows
from etl.passes import raw_days
from etl.quality.checks import Section
from etl.raw.files import require_raw
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import FittedWorkflow, load_workflow
from spark.choose_workers import workers_of
from spark.rows import Rows, frame_of, select
from storage.dataset import Dataset, split_partitions
from storage.feature_spec import ITEM_KEY, USER_KEY, FeatureSpec
from storage.run_context import RunContext

BEFORE_TEST: tuple[Split, ...] = ("train", "validation")


def features_before_test(
    context: RunContext,
    dataset: Dataset,
    spec: FeatureSpec,
    side: Literal["user", "item"],
    *,
    before: Split = "test",
) -> DataFrame:
    """Returns the features that `rows_before_test` returns, as a Spark frame."""
    return frame_of(context.spark, rows_before_test(context, dataset, spec, side, before=before))


def rows_before_test(
    context: RunContext,
    dataset: Dataset,
    spec: FeatureSpec,
    side: Literal["user", "item"],
    *,
    before: Split = "test",
) -> Rows:
    """Returns the features of all users, or of all items, from before the test rows.

    If the configuration has a table of attributes for this side (section `users` or `items`), the features
    are computed from the rows of this table, as for published lists. Users with a train or validation row,
    but without a row in this table, have null attributes. Items without a row in this table have null
    attributes if `items.missing` is `serve`; otherwise they are left out. Without a table of attributes, a
    user or an item has the features of its latest row in the train and validation splits. The features that
    the section `last_values` adds are computed from the last values before the test days. With
    `before=validation`, only rows of the train split are used.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
        spec: the features of a model. The workflow with the version `spec.workflow_version` computes them.
        side: `user` or `item`.
        before: rows of this split and of later splits are not used.

    Returns:
        A table or a frame with the column user_key or item_key, and the features with the scope `side`. There
        is one row per key.
    """
    names = [feature.name for feature in spec.scoped(side)]
    known = SPLITS[: SPLITS.index(before)]
    key, attributes = (USER_KEY, context.config.users) if side == "user" else (ITEM_KEY, context.config.items)
    section: Section = "users" if side == "user" else "items"
    with_history = side == "user" and context.config.history is not None
    with_last = side == "item" and context.config.last_values is not None
    if (
        attributes is None
        and not (with_history or with_last)
        and spec.workflow_version == dataset.workflow_version
    ):
        return _latest_published(context, _published_rows(context, dataset, known), key, names, spec)
    workers, plan = workers_of(context), plan_of(context.config)
    workflow = load_workflow(
        context.lake,
        spec.workflow_version,
        context.config.output.broadcast_max_rows,
        workers=workers,
    )
    of_history = features_of_history(plan, workflow, names) if with_history else []
    of_values = features_of_values(plan, workflow, names) if with_last and attributes is None else []
    columns = [name for name in names if name not in (*of_history, *of_values)]
    values = values_before(context, before) if with_last else None
    rows: Rows
    if attributes is not None:
        of_log = None
        if missing_mode(context.config, section) == "serve" or needs_log(plan, section):
            of_log = _latest_published(context, _published_rows(context, dataset, known), key, [], spec)
        keyed = attributes_of(workers, plan, context.run_date, section, of_log)
        rows = encode_rows(workflow, values.join(keyed.rows) if values else keyed.rows, columns, key)
    elif spec.workflow_version == dataset.workflow_version:
        published = _published_rows(context, dataset, known)
        rows = _latest_published(context, published, key, columns, spec)
    else:
        rows = _latest_of_workflow(context, dataset, known, workflow, key, columns)
    if values and of_values:
        return select(with_values(rows, workflow, values, of_values), [key, *names])
    if not of_history:
        return rows
    raw_files = raw_days(plan, context.run_date, context.recorder)
    histories = histories_of(workers, plan, context.lake, raw_files, before=before)
    if histories is None:
        raise ValueError("internal error, please report: there are features of a history, but no history")
    return select(with_histories(rows, workflow, histories, plan, of_history), [key, *names])


def values_before(context: RunContext, before: Split = "test") -> LatestValues | None:
    """Returns the last values of items before the days of a split; None without `last_values`."""
    if context.config.last_values is None:
        return None
    plan = plan_of(context.config)
    raw_files = raw_days(plan, context.run_date, context.recorder)
    return latest_values(workers_of(context), plan, context.lake, raw_files, before=before)


def _published_rows(context: RunContext, dataset: Dataset, splits: Sequence[Split]) -> list[PublishedRows]:
    """Returns the published rows of the given splits of a dataset."""
    return [
        PublishedRows(partition, manifest, label)
        for split in splits
        for partition, manifest, label in split_partitions(context.lake, dataset, split)
    ]


def _latest_published(
    context: RunContext,
    published: Sequence[PublishedRows],
    key: str,
    columns: Sequence[str],
    spec: FeatureSpec,
) -> Rows:
    """Returns the latest row of each key in published rows (etl.latest.latest_rows)."""
    return latest_published_rows(
        workers_of(context), published, key, columns, spec, context.config.workflow.engine
    )


def _latest_of_workflow(
    context: RunContext,
    dataset: Dataset,
    splits: Sequence[Split],
    workflow: FittedWorkflow,
    key: str,
    columns: Sequence[str],
) -> Rows:
    """Returns the latest row of each key in the given splits, with the features of `workflow`.

    The features of a day are read if they were published with this workflow, and the raw log has not changed
    since. Otherwise they are computed and published again.
    """
    config, version = context.config, workflow.version
    plan = plan_of(config)
    members = [(split, member.dt) for split in splits for member in dataset.splits.get(split, ())]
    days_of_log = [
        require_raw(config, config.log, dt, recorder=context.recorder)
        for dt in dict.fromkeys(dt for _, dt in members)
    ]
    encoded = encoded_days(workers_of(context), plan, context.lake, workflow, days_of_log)
    table, divided = context.lake.features(version), plan.is_divided
    of_days = [
        PublishedRows(table.partition(dt), encoded[dt], split if divided else None) for split, dt in members
    ]
    return _latest_published(context, of_days, key, columns, workflow.spec)
