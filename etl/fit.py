"""Makes workflow versions: fits a new one on training days, or extends one by days it has not counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError
from conf.feature_spec import EVENT_TIME, ITEM_KEY, ROW_ID, USER_KEY, Feature, FeatureSpec
from conf.lake import Lake
from conf.load import config_digest
from conf.manifest import digest_of
from conf.types import Config, Scope
from etl.ops import Fitted
from etl.ops.categorify import Categorify
from etl.publish import publish, read_published
from etl.quarantine import layout_digest
from etl.raw_files import RawFiles
from etl.split import SPLIT
from etl.vocabulary import add_counts, assign_ids, count_values, sizes
from etl.workflow import (
    Chain,
    FittedWorkflow,
    chains,
    choose_lookups,
    fit_dense,
    load_workflow,
    rare_table,
    save_workflow,
    vocabularies,
    vocabulary_table,
    workflow_exists,
)

log = logging.getLogger("nightrank.etl")

# Part of every version: raise it when the meaning of an operator changes.
FORMAT = 1


def fit_workflow(
    spark: SparkSession,
    config: Config,
    lake: Lake,
    days: Sequence[RawFiles],
    rows_of: Callable[[RawFiles], DataFrame],
    parent: FittedWorkflow | None,
) -> FittedWorkflow:
    """The workflow version of these training days; made unless it exists.

    With a parent, its fitted numbers stay and its vocabularies are extended by the days it has not counted; so a model
    trained on the parent's features keeps its meaning. Without, everything is fitted anew.

    Args:
        days: the training days.
        rows_of: the prepared rows of a day (etl.rows).

    Raises:
        ConfigError: the features of the config are not those of the parent.
        DataError: a column cannot be fitted.
    """
    counted = dict(parent.counted) if parent else {}
    new_days = [day for day in days if day.dt not in counted]
    if parent and not new_days:
        log.info("workflow %s has counted every training day already", parent.version)
        return parent
    counted |= {day.dt: day.digest for day in new_days}
    version = _version(config, parent, new_days)
    if workflow_exists(lake, version):
        log.info("workflow %s exists already", version)
        return load_workflow(lake, version, config.output.broadcast_max_rows, config.workflow.engine)
    every = chains(config.features)
    if parent:
        _require_same_features(every, parent)
    rows = training_rows([rows_of(day) for day in new_days])
    dense = [chain for chain in every if chain.kind == "dense"]
    fitted = [op for op in parent.operators if not _is_categorical(op)] if parent else fit_dense(rows, dense)
    measured = _publish_vocabulary(spark, config, lake, version, rows, every, parent)
    categorical = [chain for chain in every if chain.kind == "categorical"]
    found = vocabularies(spark, lake, version, measured, config.output.broadcast_max_rows) if measured else {}
    workflow = FittedWorkflow(
        version=version,
        parent=parent.version if parent else None,
        spec=_spec(config, version, measured),
        operators=(*fitted, *(c.operators[-1].fit(c.column, None, found[c.column]) for c in categorical)),
        counted=counted,
        lookups=choose_lookups(
            spark, lake, version, measured, config.workflow.engine, config.output.broadcast_max_rows
        ),
    )
    save_workflow(lake, workflow, measured)
    return workflow


def training_rows(days: Sequence[DataFrame]) -> DataFrame:
    """The training rows of days: all of a day, or its train split for logs cut inside one partition."""
    rows = reduce(DataFrame.unionByName, days)
    return rows.where(F.col(SPLIT) == "train") if SPLIT in rows.columns else rows


def _version(config: Config, parent: FittedWorkflow | None, days: Sequence[RawFiles]) -> str:
    # The split decides which rows are training rows only for logs that are cut inside a partition.
    sections = ["features", "scopes", "keys", "negatives"] + ([] if config.split.by == "day" else ["split"])
    return digest_of(
        {
            "format": FORMAT,
            "config": config_digest(config, *sections),
            "layout": layout_digest(config),
            "parent": parent.version if parent else "",
            "days": {day.dt: day.digest for day in days},
        }
    )


def _is_categorical(operator: Fitted) -> bool:
    return operator.name == "categorify"


def _require_same_features(every: list[Chain], parent: FittedWorkflow) -> None:
    mine = [(chain.column, operator.name) for chain in every for operator in chain.operators]
    theirs = [(operator.column, operator.name) for operator in parent.operators]
    if sorted(mine) != sorted(theirs):
        changed = sorted(set(mine) ^ set(theirs))
        raise ConfigError(
            f"features differ from those of workflow {parent.version}, which cannot be extended: {changed[:6]}",
            "set workflow.mode=fit to start anew (the next model then starts cold), or restore the features",
        )


def _publish_vocabulary(
    spark: SparkSession,
    config: Config,
    lake: Lake,
    version: str,
    rows: DataFrame,
    every: list[Chain],
    parent: FittedWorkflow | None,
) -> Mapping[str, tuple[int, int]]:
    """Counts all categorical columns in one pass, assigns ids and publishes both tables; column → (entries, highest id)."""
    makers = {c.column: c.operators[-1] for c in every if c.kind == "categorical"}
    if not makers:
        return {}
    min_counts = {column: op.min_count for column, op in makers.items() if isinstance(op, Categorify)}
    # Operators before categorify do not exist for categorical chains, so the raw column is what is counted.
    new = count_values(rows, list(makers))
    if parent:
        known = read_published(spark, vocabulary_table(lake, parent.version)).unionByName(
            read_published(spark, rare_table(lake, parent.version)).withColumn("id", F.lit(None).cast("int"))
        )
        counts = add_counts(known, new)
    else:
        counts = new.withColumn("id", F.lit(None).cast("int"))
    assigned = assign_ids(counts.persist(), min_counts).persist()
    inputs = {"version": version}
    try:
        publish(
            assigned.where(F.col("id").isNotNull()).select("column", "value", "id", "count"),
            vocabulary_table(lake, version),
            inputs=inputs,
            row_group_rows=config.output.row_group_rows,
            sort_by=["column", "id"],
        )
        publish(
            assigned.where(F.col("id").isNull()).select("column", "value", "count"),
            rare_table(lake, version),
            inputs=inputs,
            row_group_rows=config.output.row_group_rows,
            sort_by=["column", "value"],
        )
    finally:
        assigned.unpersist()
        counts.unpersist()
    measured = sizes(read_published(spark, vocabulary_table(lake, version)))
    return {column: measured.get(column, (0, 2)) for column in makers}


def _spec(config: Config, version: str, measured: Mapping[str, tuple[int, int]]) -> FeatureSpec:
    scopes: dict[str, Scope] = dict.fromkeys(config.scopes.user, "user")
    scopes |= dict.fromkeys(config.scopes.item, "item")
    scopes |= dict.fromkeys(config.scopes.context, "context")
    kinds = {column: group.kind for group in config.features for column in group.columns}
    features = tuple(
        Feature(name, "categorical", "int32", scopes.get(name, "pair"), measured[name][1] + 1)
        if kinds[name] == "categorical"
        else Feature(name, "dense", "float32", scopes.get(name, "pair"))
        for name in config.feature_names
    )
    keys = [
        ROW_ID,
        *([USER_KEY, ITEM_KEY] if config.keys else []),
        *([EVENT_TIME] if config.log.event_time else []),
    ]
    return FeatureSpec(features, tuple(keys), version)
