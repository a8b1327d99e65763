"""The users and items tables: each key's features as of the run date."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config, JoinedTable
from etl.raw.files import require_raw
from etl.spark.quarantine import layout_digest
from etl.spark.read_log import read_attributes
from etl.workflow.fitted_workflow import FittedWorkflow
from storage.feature_spec import ITEM_KEY, ROW_ID, USER_KEY
from storage.manifest import Manifest, combined_digest, current_manifest
from storage.paths import Lake
from storage.publish import Rules, publish, rows_of
from storage.verify import FINITE


def publish_latest(
    spark: SparkSession,
    config: Config,
    lake: Lake,
    workflow: FittedWorkflow,
    run_date: str,
    features: Sequence[Manifest],
) -> dict[str, Manifest]:
    """Publishes `users/<version>/dt=…` and `items/<version>/dt=…`: one row a key, sorted by key.

    Where the config names a table of attributes, its rows are the keys; otherwise each key's latest row in the
    window's feature partitions counts (later day, then later row). What was made of the same is left alone.

    Args:
        features: the manifests of the window's feature partitions.
    """
    if config.keys is None:
        return {}
    digest = combined_digest((manifest.digest for manifest in features), lake.recorder)
    inputs = {"workflow": workflow.version, "features": digest}
    published = {}
    for side, key, name, attributes, table in (
        ("user", USER_KEY, config.keys.user, config.users, lake.users(workflow.version)),
        ("item", ITEM_KEY, config.keys.item, config.items, lake.items(workflow.version)),
    ):
        partition = table.partition(run_date)
        columns = [each.name for each in workflow.spec.features if each.scope == side]
        lists = {each.name for each in workflow.spec.multi_hot}  # an entity without a value may have none
        made_of = dict(inputs)
        if attributes:
            raw = require_raw(config, attributes, run_date, f"{side}s.path", lake.recorder)
            made_of |= {"attributes": raw.digest, "layout": layout_digest(config)}
        known = current_manifest(partition, made_of)
        if known is not None:
            published[side] = known
            continue
        if attributes:
            rows = _from_attributes(
                spark, config, workflow, attributes, key, name, f"{side}s", columns, run_date
            )
        else:
            rows = _from_window(spark, lake, workflow, features, key, columns)
        rows = rows.persist()
        published[side] = publish(
            rows,
            partition,
            inputs=made_of,
            row_group_rows=config.output.row_group_rows,
            expected_rows=rows.count(),
            rules=Rules(
                [key, *(name for name in columns if name not in lists)],
                {each.name: FINITE for each in workflow.spec.dense if each.name in columns},
            ),
            sort_by=[key],
            grace_hours=config.output.grace_hours,
        )
        rows.unpersist()
    return published


def _from_attributes(
    spark: SparkSession,
    config: Config,
    workflow: FittedWorkflow,
    table: JoinedTable,
    key: str,
    name: str,
    section: str,
    columns: Sequence[str],
    run_date: str,
) -> DataFrame:
    rows = read_attributes(spark, config, table, name, section, run_date, name)
    return workflow.encode(rows.withColumn(key, F.col(name).cast("string")), columns, [key])


def _from_window(
    spark: SparkSession,
    lake: Lake,
    workflow: FittedWorkflow,
    features: Sequence[Manifest],
    key: str,
    columns: Sequence[str],
) -> DataFrame:
    table = lake.features(workflow.version)
    days = [
        rows_of(spark, table.partition(each.partition), each, columns=[key, ROW_ID, *columns]).withColumn(
            "_dt", F.lit(each.partition)
        )
        for each in features
    ]
    latest = F.max_by(F.struct(*(F.col(name) for name in columns), F.col(ROW_ID)), F.struct("_dt", ROW_ID))
    grouped = reduce(DataFrame.unionByName, days).groupBy(key).agg(latest.alias("latest"))
    return grouped.select(key, *(F.col(f"latest.{name}").alias(name) for name in columns))
