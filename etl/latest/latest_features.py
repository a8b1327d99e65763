"""Publishes tables with the latest features of each user and of each item, up to the run date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config, Split
from etl.latest.latest_histories import LatestHistories, latest_histories
from etl.latest.latest_rows import PublishedRows, latest_published_rows
from etl.raw.erased_rows import erased_of_table, is_erased
from etl.raw.files import RawFiles, require_raw
from etl.raw.layout_digest import layout_digest
from etl.spark.read_log import read_attributes
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.arrow_frames import frame_of
from spark.workers import Workers
from storage.feature_spec import ITEM_KEY, USER_KEY, FeatureSpec
from storage.manifest import Manifest, combined_digest, current_manifest
from storage.paths import Lake
from storage.publish import Rules
from storage.publish_rows import publish_rows
from storage.verify import FINITE


def publish_latest(
    workers: Workers,
    config: Config,
    lake: Lake,
    workflow: FittedWorkflow,
    run_date: str,
    features: Sequence[Manifest],
    splits: Mapping[Split, Sequence[RawFiles]],
) -> dict[str, Manifest]:
    """Publishes the tables `users/<version>/dt=…` and `items/<version>/dt=…`.

    The tables have one row per user or item, sorted by key.

    If the configuration has a table of attributes (section `users` or `items`), features are computed from
    the rows of this table. Otherwise, the features of a user or item are those of its latest row in the
    feature partitions. This is the row with the largest row_id on the latest day. Features that are computed
    from the history (section `history`) are computed from the latest histories instead. A partition that
    already exists for the same inputs is not written again.

    Args:
        workers: run the tasks.
        config, lake: configuration and data lake of the run.
        workflow: computes the features.
        run_date: the date of the published partitions.
        features: manifests of the feature partitions of all days of the run.
        splits: maps each split to the raw files of its days.

    Returns:
        A mapping from `user` and `item` to the manifest of the partition. It is empty if the section `keys`
        is not set.
    """
    if config.keys is None:
        return {}
    digest = combined_digest((manifest.digest for manifest in features), lake.recorder)
    inputs = {"workflow": workflow.version, "features": digest}
    histories = latest_histories(workers.spark, config, lake, splits) if config.history else None
    published = {}
    for side, key, attributes, table in (
        ("user", USER_KEY, config.users, lake.users(workflow.version)),
        ("item", ITEM_KEY, config.items, lake.items(workflow.version)),
    ):
        partition = table.partition(run_date)
        columns = [feature.name for feature in workflow.spec.features if feature.scope == side]
        of_history = features_of_history(config, workflow, columns) if histories and side == "user" else []
        partition_inputs = dict(inputs)
        if attributes:
            raw = require_raw(config, attributes, run_date, f"{side}s.path", lake.recorder)
            partition_inputs |= {"attributes": raw.digest, "layout": layout_digest(config)}
        if histories and of_history:
            partition_inputs["history"] = histories.digest
        current = current_manifest(partition, partition_inputs)
        if current is not None:
            published[side] = current
            continue
        others = [column for column in columns if column not in of_history]
        if attributes:
            rows: pa.Table | DataFrame = attribute_features(
                workers.spark, config, workflow, run_date, side, others
            )
        else:
            days = [
                PublishedRows(lake.features(workflow.version).partition(day.partition), day)
                for day in features
            ]
            rows = latest_published_rows(workers, days, key, others, workflow.spec, config.workflow.engine)
        if histories and of_history:
            known = frame_of(workers.spark, rows)
            rows = with_histories(known, workflow, histories, config, of_history).select(key, *columns)
        published[side] = publish_rows(
            rows,
            partition,
            inputs=partition_inputs,
            row_group_rows=config.output.row_group_rows,
            rules=latest_rules(key, columns, workflow.spec),
            sort_by=key,
            grace_hours=config.output.grace_hours,
        )
    return published


def features_of_history(config: Config, workflow: FittedWorkflow, columns: Sequence[str]) -> list[str]:
    """Returns those of the features `columns` that are computed from the history."""
    name = config.history.column if config.history else None
    computed = {output for chain in workflow.chains if name in chain.inputs for output in chain.outputs}
    return [column for column in columns if column in computed]


def with_histories(
    rows: DataFrame,
    workflow: FittedWorkflow,
    histories: LatestHistories,
    config: Config,
    names: Sequence[str],
) -> DataFrame:
    """Adds the features `names`, computed from the latest histories, to `rows`, which have the user_key.

    A user without a click has an empty history.
    """
    column = config.history.column if config.history else ""
    empty = F.array().cast("array<string>")
    known = rows.select(USER_KEY)
    latest = (
        known.withColumn(column, empty)
        if histories.rows is None
        else known.join(histories.rows, USER_KEY, "left").withColumn(column, F.coalesce(column, empty))
    )
    return rows.join(workflow.encode(latest, names, [USER_KEY]), USER_KEY)


def attribute_features(
    spark: SparkSession,
    config: Config,
    workflow: FittedWorkflow,
    run_date: str,
    side: str,
    columns: Sequence[str],
) -> DataFrame:
    """Returns the features of all rows of the table of attributes (section `users` or `items`).

    Args:
        spark, config: session and configuration of the run. The section of the side and `keys` must be set.
        workflow: computes the features.
        run_date: the date that replaces `{date}` in the table's path.
        side: whose attributes to read: `user` or `item`.
        columns: the features to compute. The result has these columns and the key of the side.
    """
    is_user = side == "user"
    table, key = (config.users, USER_KEY) if is_user else (config.items, ITEM_KEY)
    if table is None or config.keys is None:
        raise ValueError(f"internal error, please report: there is no table of {side} attributes")
    name = config.keys.user if is_user else config.keys.item
    raw_rows = read_attributes(spark, config, table, name, f"{side}s", run_date, name)
    keyed = raw_rows.withColumn(key, F.col(name).cast("string"))
    erased = erased_of_table(config, table, run_date) if is_user else None
    if erased is not None:
        keyed = keyed.where(~is_erased(F.col(key), erased))
    return workflow.encode(keyed, columns, [key])


def latest_rules(key: str, columns: Sequence[str], spec: FeatureSpec) -> Rules:
    """Returns the rules for rows of the two tables: only lists may be null, and numbers must be finite."""
    lists = {feature.name for feature in spec.multi_hot}
    not_null = [key, *(name for name in columns if name not in lists)]
    return Rules(not_null, {feature.name: FINITE for feature in spec.dense if feature.name in columns})
