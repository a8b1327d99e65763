"""Fits a workflow version on training days, or adds the values of new training days to its vocabularies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.dates import days_since_epoch
from conf.errors import ConfigError
from conf.load import config_digest
from conf.types import Config, Scope
from etl.fit.fit_chains import fit_chains
from etl.fit.fit_inputs import TrainingDays
from etl.fit.version_tables import VersionTables
from etl.ops import Operator, operator_from_config
from etl.ops.join_external import JoinExternal
from etl.ops.tables import LocalTables
from etl.raw.files import RawFiles, require_raw
from etl.spark.quarantine import layout_digest
from etl.spark.split_rows import preparation
from etl.split.time_split import SPLIT
from etl.value_counts.requests import Counts, join_days
from etl.workflow.chains import FittedChain
from etl.workflow.feature_plan import Plan, plan
from etl.workflow.fitted_workflow import (
    FittedWorkflow,
    LocalWorkflow,
    load_workflow,
    save_workflow,
    workflow_exists,
)
from etl.workflow.unfitted_chains import Chain
from storage.feature_spec import EVENT_TIME, ROW_ID, Feature, FeatureSpec, raw_keys
from storage.manifest import digest_of
from storage.paths import Lake

log = logging.getLogger("nightrank.etl")

# Part of every version's digest. Raise it when the meaning of an operator changes.
FORMAT = 2
# Parameters that may change in an extension: they affect only values without an id, or the age of a value.
_MAY_CHANGE = ("min_count", "max_size", "max_age_days")


def fit_workflow(
    spark: SparkSession,
    config: Config,
    lake: Lake,
    days: Sequence[RawFiles],
    rows_of: Callable[[RawFiles], DataFrame],
    parent: FittedWorkflow | None,
    counts_of: Callable[[RawFiles], Counts] | None = None,
) -> FittedWorkflow:
    """Returns the workflow version of these training days. Fits this version if it does not exist yet.

    Args:
        days: the training days.
        rows_of: returns the prepared rows of a day (etl.spark.split_rows).
        parent: an earlier workflow version to extend. Numbers that were fitted for the parent, such as means,
            stay unchanged. Only its vocabularies grow: they get the values of training days that they do not
            include yet. So a model that was trained on the parent's features remains valid. With None, all
            steps are fitted.
        counts_of: returns the value counts of a day. None if there are no value counts, or if only some of
            the day's rows are training rows.

    Raises:
        ConfigError: the configuration's features differ from the features of the parent.
        DataError: the statistics of a column cannot be computed.
    """
    counted = dict(parent.counted) if parent else {}
    new_days = [day for day in days if day.dt not in counted]
    if parent and not new_days:
        log.info("workflow %s already includes every training day", parent.version)
        return parent
    counted |= {day.dt: day.digest for day in new_days}
    planned = plan(config)
    version = _version(config, planned, parent, new_days)
    if workflow_exists(lake, version):
        log.info("workflow %s already exists", version)
        return load_workflow(lake, version, config.output.broadcast_max_rows, config.workflow.engine)
    descriptions = [_description(chain) for chain in planned.chains]
    if parent:
        _require_same_chains(descriptions, parent)
    latest = days_since_epoch(max(counted))
    training = TrainingDays(
        rows=lambda: training_rows([rows_of(day) for day in new_days]),
        value_counts=join_days(latest, [counts_of(day) for day in new_days]) if counts_of else None,
        days=sorted(day.dt for day in new_days),
        latest=latest,
    )
    tables = VersionTables(lake, version, parent.version if parent else None, config.output.row_group_rows)
    chains = fit_chains(spark, config, planned.chains, training, parent, tables)
    workflow = LocalWorkflow(
        version=version,
        parent=parent.version if parent else None,
        spec=_spec(config, version, planned, chains),
        chains=chains,
        descriptions=tuple(descriptions),
        counted=counted,
        vocabularies=tables.vocabularies,
        local=LocalTables({}, latest),
    )
    save_workflow(lake, workflow, tables.rows)
    return load_workflow(lake, version, config.output.broadcast_max_rows, config.workflow.engine)


def training_rows(days: Sequence[DataFrame]) -> DataFrame:
    """Returns all rows of the days, or only the train split if the log is split inside one partition."""
    rows = reduce(DataFrame.unionByName, days)
    return rows.where(F.col(SPLIT) == "train") if SPLIT in rows.columns else rows


def _version(config: Config, planned: Plan, parent: FittedWorkflow | None, days: Sequence[RawFiles]) -> str:
    """Returns the digest of everything that the fitted workflow depends on."""
    # The settings of the split select training rows only if the log is split inside one partition.
    sections = ["features", "prepare", "scopes", "keys", "negatives"]
    sections += [] if config.split.by == "day" else ["split"]
    external = {
        table.path: require_raw(config, table, days[-1].dt, "join_external.path", days[-1].recorder).digest
        for chain in planned.chains
        for step in chain.steps
        if isinstance(step.operator, JoinExternal) and not parent
        for table in [step.operator.source(step)[0]]
    }
    return digest_of(
        {
            "format": FORMAT,
            "config": config_digest(_canonical(config), *sections),
            "layout": layout_digest(config),
            "parent": parent.version if parent else "",
            "days": {day.dt: day.digest for day in days},
            "external": external,
            **preparation(config),
        }
    )


def _canonical(config: Config) -> Config:
    """Returns the configuration, with operators in a uniform notation and without default parameters."""
    groups = [
        group.model_copy(update={"ops": [operator_from_config(entry).config() for entry in group.ops]})
        for group in config.features
    ]
    return config.model_copy(update={"features": groups})


def _require_same_chains(descriptions: Sequence[str], parent: FittedWorkflow) -> None:
    """Raises ConfigError if the chains differ from the parent's chains."""
    changed = [chain for chain in descriptions if chain not in parent.descriptions]
    changed += [chain for chain in parent.descriptions if chain not in descriptions]
    if changed:
        raise ConfigError(
            f"workflow {parent.version} has other features than the configuration, so it cannot be extended: "
            f"{changed[:3]}",
            "restore the features of this workflow in the configuration, or set workflow.mode=fit to fit a "
            "new workflow (the next model then trains from scratch)",
        )


def _description(chain: Chain) -> str:
    """Returns a text with everything about a chain that must not change when its workflow is extended."""
    steps = [f"{_parameters(step.operator)} {'/'.join(step.outputs)}" for step in chain.steps]
    return f"{','.join(chain.inputs)} → {', '.join(steps)}"


def _parameters(operator: Operator) -> str:
    """Returns the operator's name and the parameters that must not change when a workflow is extended."""
    entry = operator.config()
    parameters = dict((entry.get(operator.name) or {}) if isinstance(entry, dict) else {})
    fixed = {name: value for name, value in sorted(parameters.items()) if name not in _MAY_CHANGE}
    return f"{operator.name}({', '.join(f'{name}={value}' for name, value in fixed.items())})"


def _spec(config: Config, version: str, planned: Plan, chains: Sequence[FittedChain]) -> FeatureSpec:
    """Returns the features of the fitted chains, in the order of the configuration."""
    scopes: dict[str, Scope] = dict.fromkeys(config.scopes.user, "user")
    scopes |= dict.fromkeys(config.scopes.item, "item")
    scopes |= dict.fromkeys(config.scopes.context, "context")
    kinds = {name: chain.kind for chain in planned.chains for name in chain.outputs}
    cardinalities: Mapping[str, int] = {
        name: size for chain in chains for name, size in chain.cardinalities.items()
    }
    outputs = {name for chain in chains for name in chain.outputs}
    features = tuple(
        _feature(name, kinds[name], scopes.get(name, "pair"), cardinalities.get(name))
        for name in planned.features
        if name in outputs
    )
    if not features:
        raise ConfigError(
            "drop_low_cardinality removed every feature",
            "lower the parameter min_cardinality of drop_low_cardinality",
        )
    keys = [
        ROW_ID,
        *raw_keys(config.keys),
        *([EVENT_TIME] if config.log.event_time else []),
    ]
    return FeatureSpec(features, tuple(keys), version)


def _feature(name: str, kind: str, scope: Scope, cardinality: int | None) -> Feature:
    if kind == "dense":
        return Feature(name, "dense", "float32", scope)
    if kind == "multi_hot":
        return Feature(name, "multi_hot", "list<int32>", scope, cardinality)
    return Feature(name, "categorical", "int32", scope, cardinality)
