"""Computes features of users and items from what was known before the test rows.

The tables `users` and `items` of a run date are not suitable for an evaluation: the latest row of a user may
be a test row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.types import Split
from etl.build import feature_inputs
from etl.raw.files import require_raw
from etl.spark.latest_features import attribute_features, latest_rows
from etl.spark.prepared_rows import prepared_rows
from etl.split.time_split import SPLIT
from etl.workflow.fitted_workflow import FittedWorkflow, load_workflow
from storage.dataset import Dataset, split_partitions
from storage.feature_spec import ITEM_KEY, ROW_ID, USER_KEY, FeatureSpec
from storage.manifest import current_manifest
from storage.publish import rows_of
from storage.run_context import RunContext

BEFORE_TEST: tuple[Split, ...] = ("train", "validation")


def features_before_test(
    context: RunContext, dataset: Dataset, spec: FeatureSpec, side: Literal["user", "item"]
) -> DataFrame:
    """Returns the features of all users, or of all items, from before the test rows.

    If the configuration has a table of attributes of this side (section `users` or `items`), the features are
    computed from this table, as for published lists. Otherwise, they are those of the latest row of the train
    and validation splits.

    Args:
        context: the context of the run.
        dataset: the dataset of the run date.
        spec: the features of a model. The workflow with the version `spec.workflow_version` computes them.
        side: `user` or `item`.

    Returns:
        A frame with the column user_key or item_key, and the features with the scope `side`. There is one row
        per key.
    """
    columns = [feature.name for feature in spec.scoped(side)]
    key, attributes = (USER_KEY, context.config.users) if side == "user" else (ITEM_KEY, context.config.items)
    if attributes is not None:
        workflow = _workflow(context, spec.workflow_version)
        return attribute_features(context.spark, context.config, workflow, context.run_date, side, columns)
    if spec.workflow_version == dataset.workflow_version:
        days = [
            (partition.dt, rows_of(context.spark, partition, manifest, label))
            for split in BEFORE_TEST
            for partition, manifest, label in split_partitions(context.lake, dataset, split)
        ]
    else:
        days = _days_of_workflow(context, dataset, spec.workflow_version, [key, ROW_ID], columns)
    return latest_rows(days, key, columns)


def _days_of_workflow(
    context: RunContext, dataset: Dataset, version: str, keys: Sequence[str], columns: Sequence[str]
) -> list[tuple[str, DataFrame]]:
    """Returns the rows before the test as pairs (day, frame), with the features of the workflow `version`.

    A day that was published with this workflow and the present raw log is read. The features of any other day
    are computed again. The frames have at least the columns `keys` and `columns`.
    """
    config, workflow = context.config, _workflow(context, version)
    days = []
    for split in BEFORE_TEST:
        for member in dataset.splits.get(split, ()):
            raw = require_raw(config, config.log, member.dt, recorder=context.recorder)
            partition = context.lake.features(version).partition(member.dt)
            published = None
            if config.split.by == "day":
                published = current_manifest(partition, feature_inputs(config, raw, version))
            if published is not None:
                rows = rows_of(context.spark, partition, published)
            else:
                prepared = prepared_rows(context.spark, config, raw)
                if SPLIT in prepared.columns:
                    prepared = prepared.where(F.col(SPLIT) == split)
                rows = workflow.encode(prepared, columns, keys)
            days.append((member.dt, rows))
    return days


def _workflow(context: RunContext, version: str) -> FittedWorkflow:
    """Loads a version of the workflow."""
    return load_workflow(context.lake, version, context.config.output.broadcast_max_rows)
