"""Makes workflow versions: fits a new one on training days, or extends one by days it has not counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError
from conf.feature_spec import EVENT_TIME, ITEM_KEY, ROW_ID, USER_KEY, Feature, FeatureSpec
from conf.lake import Lake
from conf.load import config_digest
from conf.manifest import digest_of
from conf.types import Config, Scope
from etl.chains import FittedChain
from etl.files.merge import Counts
from etl.fit_chains import Fitting
from etl.ops import Fitted, Operator, Step, operator_from_config
from etl.ops.categorify import Categorify, FittedCategorify
from etl.ops.join_external import JoinExternal
from etl.plan import Chain, Plan, plan
from etl.quarantine import layout_digest
from etl.raw_files import RawFiles, require_raw
from etl.split import SPLIT
from etl.workflow import FittedWorkflow, load_workflow, save_workflow, workflow_exists

log = logging.getLogger("nightrank.etl")

# Part of every version: raise it when the meaning of an operator changes.
FORMAT = 2


def fit_workflow(
    spark: SparkSession,
    config: Config,
    lake: Lake,
    days: Sequence[RawFiles],
    rows_of: Callable[[RawFiles], DataFrame],
    parent: FittedWorkflow | None,
    counts_of: Callable[[RawFiles], Counts] | None = None,
) -> FittedWorkflow:
    """The workflow version of these training days; made unless it exists.

    With a parent, its fitted numbers stay and its vocabularies are extended by the days it has not counted; so a model
    trained on the parent's features keeps its meaning. Without, everything is fitted anew.

    Args:
        days: the training days.
        rows_of: the prepared rows of a day (etl.rows).
        counts_of: the value counts of a day, where all its rows are training rows and there are any.

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
    planned = plan(config)
    version = _version(config, planned, parent, new_days)
    if workflow_exists(lake, version):
        log.info("workflow %s exists already", version)
        return load_workflow(lake, version, config.output.broadcast_max_rows, config.workflow.engine)
    if parent:
        _require_same_chains(planned, parent)
    counts = None
    if counts_of:
        files = tuple(file for day in new_days for file in counts_of(day).files)
        counts = Counts(files, _day_number(max(counted)))
    latest = _day_number(max(counted))
    fitting = Fitting(
        spark,
        config,
        lake,
        version,
        lambda: training_rows([rows_of(day) for day in new_days]),
        sorted(day.dt for day in new_days),
        latest,
        parent,
        counts,
    )
    fitted, measured = fitting.fit(planned.chains)
    save_workflow(
        lake,
        version=version,
        parent=parent.version if parent else None,
        spec=_spec(config, version, planned, fitted),
        chains=fitted,
        counted=counted,
        tables=fitting.table_rows,
        vocabularies=measured,
        latest=latest,
    )
    return load_workflow(lake, version, config.output.broadcast_max_rows, config.workflow.engine)


def _day_number(day: str) -> int:
    """Days since 1970-01-01."""
    return date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()


def training_rows(days: Sequence[DataFrame]) -> DataFrame:
    """The training rows of days: all of a day, or its train split for logs cut inside one partition."""
    rows = reduce(DataFrame.unionByName, days)
    return rows.where(F.col(SPLIT) == "train") if SPLIT in rows.columns else rows


def _version(config: Config, planned: Plan, parent: FittedWorkflow | None, days: Sequence[RawFiles]) -> str:
    # The split decides which rows are training rows only for logs that are cut inside a partition.
    sections = ["features", "prepare", "scopes", "keys", "negatives"]
    sections += [] if config.split.by == "day" else ["split"]
    external = {
        table.path: require_raw(config, table, days[-1].dt, "join_external.path").digest
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
        }
    )


def _canonical(config: Config) -> Config:
    """The same configuration with each operator written in one way: without parameters that are the defaults."""
    groups = [
        group.model_copy(update={"ops": [operator_from_config(entry).config() for entry in group.ops]})
        for group in config.features
    ]
    return config.model_copy(update={"features": groups})


def _require_same_chains(planned: Plan, parent: FittedWorkflow) -> None:
    mine = [_names(chain) for chain in planned.chains]
    theirs = [_names(chain) for chain in parent.chains]
    if mine != theirs:
        changed = [each for each in mine if each not in theirs] + [
            each for each in theirs if each not in mine
        ]
        raise ConfigError(
            f"features differ from those of workflow {parent.version}, which cannot be extended: {changed[:3]}",
            "set workflow.mode=fit to start anew (the next model then starts cold), or restore the features",
        )


def _names(chain: Chain | FittedChain) -> str:
    steps = [(step.operator if isinstance(step, Step) else step, step.outputs) for step in chain.steps]
    return f"{','.join(chain.inputs)} → " + ", ".join(
        f"{operator.name}{_first_ids(operator)} {'/'.join(outputs)}" for operator, outputs in steps
    )


def _first_ids(operator: Operator | Fitted) -> str:
    """What says where ids begin: with other OOV buckets, an id would mean two things."""
    return (
        f"(oov_buckets={operator.oov_buckets})" if isinstance(operator, Categorify | FittedCategorify) else ""
    )


def _spec(config: Config, version: str, planned: Plan, chains: Sequence[FittedChain]) -> FeatureSpec:
    scopes: dict[str, Scope] = dict.fromkeys(config.scopes.user, "user")
    scopes |= dict.fromkeys(config.scopes.item, "item")
    scopes |= dict.fromkeys(config.scopes.context, "context")
    kinds = {name: chain.kind for chain in planned.chains for name in chain.outputs}
    cardinalities: Mapping[str, int] = {
        name: size for chain in chains for name, size in chain.cardinalities.items()
    }
    made = {name for chain in chains for name in chain.outputs}
    features = tuple(
        _feature(name, kinds[name], scopes.get(name, "pair"), cardinalities.get(name))
        for name in planned.features
        if name in made
    )
    if not features:
        raise ConfigError("every feature was left out", "lower min_cardinality of drop_low_cardinality")
    keys = [
        ROW_ID,
        *([USER_KEY, ITEM_KEY] if config.keys else []),
        *([EVENT_TIME] if config.log.event_time else []),
    ]
    return FeatureSpec(features, tuple(keys), version)


def _feature(name: str, kind: str, scope: Scope, cardinality: int | None) -> Feature:
    if kind == "dense":
        return Feature(name, "dense", "float32", scope)
    if kind == "multi_hot":
        return Feature(name, "multi_hot", "list<int32>", scope, cardinality)
    return Feature(name, "categorical", "int32", scope, cardinality)
