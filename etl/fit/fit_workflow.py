"""Makes workflow versions: fits a new one on training days, or extends one by days it has not counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError
from conf.load import config_digest
from conf.types import Config, Scope
from etl.fit.fit_chains import Fitting
from etl.ops import Operator, operator_from_config
from etl.ops.join_external import JoinExternal
from etl.raw.files import RawFiles, require_raw
from etl.spark.quarantine import layout_digest
from etl.spark.split_rows import preparation
from etl.split.time_split import SPLIT
from etl.value_counts.requests import Counts, added
from etl.workflow.chains import FittedChain
from etl.workflow.feature_plan import Chain, Plan, plan
from etl.workflow.fitted_workflow import FittedWorkflow, load_workflow, save_workflow, workflow_exists
from storage.feature_spec import EVENT_TIME, ROW_ID, Feature, FeatureSpec, raw_keys
from storage.manifest import digest_of
from storage.paths import Lake

log = logging.getLogger("nightrank.etl")

# Part of every version: raise it when the meaning of an operator changes.
FORMAT = 2
# Parameters an extension may change: they decide for values without an id alone, or how old a value may be.
_OF_NEW_VALUES = ("min_count", "max_size", "max_age_days")


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
        rows_of: the prepared rows of a day (etl.spark.split_rows).
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
    asked = [_asked(chain) for chain in planned.chains]
    if parent:
        _require_same_chains(asked, parent)
    counts = None
    if counts_of:
        counts = added(_day_number(max(counted)), [counts_of(day) for day in new_days])
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
        asked=asked,
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
    """The same configuration with each operator written in one way: without parameters that are the defaults."""
    groups = [
        group.model_copy(update={"ops": [operator_from_config(entry).config() for entry in group.ops]})
        for group in config.features
    ]
    return config.model_copy(update={"features": groups})


def _require_same_chains(asked: Sequence[str], parent: FittedWorkflow) -> None:
    changed = [each for each in asked if each not in parent.asked]
    changed += [each for each in parent.asked if each not in asked]
    if changed:
        raise ConfigError(
            f"features differ from those of workflow {parent.version}, which cannot be extended: {changed[:3]}",
            "set workflow.mode=fit to start anew (the next model then starts cold), or restore the features",
        )


def _asked(chain: Chain) -> str:
    """A chain with all that an extension must find unchanged: its fitted numbers are the parent's, its ids stay."""
    steps = [f"{_parameters(step.operator)} {'/'.join(step.outputs)}" for step in chain.steps]
    return f"{','.join(chain.inputs)} → {', '.join(steps)}"


def _parameters(operator: Operator) -> str:
    """The operator's name and parameters, but for those that say which new values of a vocabulary get an id."""
    entry = operator.config()
    given = dict((entry.get(operator.name) or {}) if isinstance(entry, dict) else {})
    told = {name: value for name, value in sorted(given.items()) if name not in _OF_NEW_VALUES}
    return f"{operator.name}({', '.join(f'{name}={value}' for name, value in told.items())})"


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
