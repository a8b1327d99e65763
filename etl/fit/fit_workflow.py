"""Fits a workflow version on training days, or adds the values of new training days to its vocabularies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from conf.errors import ConfigError
from conf.load import config_digest
from conf.names import days_since_epoch
from conf.types import Scope
from etl.fit.block_statistics import BlockStatistics, CountStatistics
from etl.fit.rounds import (
    ChainProgress,
    ReadTable,
    SourceName,
    StatisticsSource,
    TrainingBlocks,
    TrainingDays,
    fit_rounds,
    fit_without_statistics,
    plan_rounds,
)
from etl.fit.row_statistics import RowStatistics
from etl.fit.version_tables import VersionTables
from etl.operators.join_external import JoinExternal
from etl.ops import operator_digests
from etl.ops.base import Fitted, Step
from etl.ops.keyed import KeyedFitted
from etl.ops.tables import LocalTables
from etl.raw.files import RawFiles, require_raw, rows_digest
from etl.statistics.value_counts import Counts, join_days
from etl.workflow.chains import FittedChain, canonical_groups, chain_description
from etl.workflow.feature_plan import FeaturePlan
from etl.workflow.fitted_workflow import (
    FittedWorkflow,
    LocalWorkflow,
    fitted_features,
    load_workflow,
    save_workflow,
    workflow_exists,
)
from spark.workers import Workers
from storage.feature_spec import EVENT_TIME, ROW_ID, WEIGHT, FeatureSpec, raw_keys
from storage.manifest import digest_of
from storage.paths import LakePaths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("nightrank.etl")


def _no_tables(_: RawFiles) -> dict[str, str]:
    """Returns no digests, because the rows are joined with no table."""
    return {}


def fit_workflow(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    days: Sequence[RawFiles],
    parent: FittedWorkflow | None,
    counts_of: Callable[[RawFiles], Counts] | None,
    read_table: ReadTable,
    blocks_of: Callable[[Sequence[RawFiles]], TrainingBlocks] | None = None,
    rows_of: Callable[[Sequence[RawFiles]], DataFrame] | None = None,
    tables_of: Callable[[RawFiles], Mapping[str, str]] = _no_tables,
) -> FittedWorkflow:
    """Returns the workflow version that is fitted to the training days. Fits it if it does not exist yet.

    If the parent already includes all these days, returns the parent.

    Args:
        days: the raw files of each training day.
        parent: an earlier workflow version to extend. Numbers that were fitted for the parent, such as means,
            stay unchanged. The values of training days that the parent does not include are added to its
            vocabularies. So a model that was trained on the parent's features remains valid. If `parent` is
            None, all steps are fitted.
        counts_of: returns the value counts of the training rows of a day. If it is None, the fit counts the
            values of the rows.
        read_table: reads the external tables of the operator `join_external`.
        blocks_of: returns the training rows of some days as blocks, from which tasks compute statistics.
        rows_of: returns the same rows as a Spark frame, from which Spark computes statistics. Pass either
            `rows_of` or `blocks_of`.
        tables_of: returns the digest of each table with which the rows of a day are joined, by name.

    Raises:
        ConfigError: the configuration's features differ from the features of the parent, or rows have weights
            in only one of the two.
        DataError: the statistics of a column cannot be computed.
    """
    if parent:
        require_parent_weights(plan, parent)
    counted = dict(parent.counted) if parent else {}
    new_days = [day for day in days if day.dt not in counted]
    if parent and not new_days:
        log.info("workflow %s already includes every training day", parent.version)
        return parent
    counted |= {day.dt: rows_digest(plan.config, day) for day in new_days}
    version = workflow_version(plan, parent, new_days, tables_of)
    if workflow_exists(lake, version):
        log.info("workflow %s already exists", version)
        return load_workflow(
            lake, version, plan.config.output.broadcast_max_rows, plan.config.workflow.engine, workers
        )
    descriptions = [chain_description(chain) for chain in plan.chains]
    if parent:
        require_same_chains(descriptions, parent)
    latest = days_since_epoch(max(counted))
    training = TrainingDays(
        rows=partial(rows_of, new_days) if rows_of else None,
        value_counts=join_days(latest, [counts_of(day) for day in new_days]) if counts_of else None,
        days=sorted(day.dt for day in new_days),
        latest=latest,
        blocks=blocks_of(new_days) if blocks_of else None,
        read_table=read_table,
    )
    tables = VersionTables(
        lake, version, parent.version if parent else None, plan.config.output.row_group_rows
    )
    chains = fit_chains(workers, plan, training, parent, tables)
    workflow = LocalWorkflow(
        version=version,
        parent=parent.version if parent else None,
        spec=_spec(plan, version, chains),
        chains=chains,
        descriptions=tuple(descriptions),
        counted=counted,
        vocabularies=tables.vocabularies,
        local=LocalTables({}, latest),
    )
    save_workflow(lake, workflow, tables.rows)
    return load_workflow(
        lake, version, plan.config.output.broadcast_max_rows, plan.config.workflow.engine, workers
    )


def _spec(plan: FeaturePlan, version: str, chains: Sequence[FittedChain]) -> FeatureSpec:
    """Returns the features of the fitted chains, in the order of the configuration."""
    scopes: dict[str, Scope] = dict.fromkeys(plan.config.scopes.user, "user")
    scopes |= dict.fromkeys(plan.config.scopes.item, "item")
    scopes |= dict.fromkeys(plan.config.scopes.context, "context")
    features = fitted_features(plan.chains, plan.features, chains, scopes)
    keys = [
        ROW_ID,
        *raw_keys(plan.config.keys),
        *([EVENT_TIME] if plan.config.log.event_time else []),
    ]
    weight = None if plan.config.log.label.weights is None else WEIGHT
    return FeatureSpec(features, tuple(keys), version, weight=weight)


# The functions below fit chains with the statistics of the training days.
#
# A chain is a sequence of steps (operators) that computes features. The steps are fitted in rounds. Each
# round fits the next steps of the chains.


def fit_chains(
    workers: Workers,
    plan: FeaturePlan,
    training: TrainingDays,
    parent: FittedWorkflow | None,
    tables: VersionTables,
) -> tuple[FittedChain, ...]:
    """Returns the fitted chains, in the order of the plan.

    Args:
        workers: the processes that run the tasks of the fit.
        plan: the plan of the run, with the chains to fit.
        training: the training days whose rows or value counts are read.
        parent: the workflow to extend. Its fitted steps are reused, and its vocabularies are extended. None
            for a new workflow.
        tables: publishes the tables of the fitted steps in the new workflow version. This object must not
            have published any table yet.

    Raises:
        DataError: the statistics of a column cannot be computed.
    """
    counts = training.value_counts
    of_rows: StatisticsSource = (
        RowStatistics(workers, plan, tables, training)
        if training.blocks is None
        else BlockStatistics(workers, plan, tables, training)
    )
    sources: dict[SourceName, StatisticsSource] = {"rows": of_rows}
    if counts is not None:
        sources["value_counts"] = CountStatistics(workers, tables, counts)
    rounds = plan_rounds(plan.chains, extends=parent is not None, has_value_counts=counts is not None)
    if parent is None:
        return fit_rounds(plan.chains, rounds, sources, fit_without_statistics)
    return fit_rounds(plan.chains, rounds, sources, partial(_reuse, parent, tables))


def _reuse(parent: FittedWorkflow, tables: VersionTables, progress: ChainProgress, step: Step) -> None:
    """Adds the parent workflow's fitted step to the chain.

    Copies the keyed table of the step, if it has one.
    """
    cardinality = progress.cardinality(step)
    known: Fitted = parent.chains[progress.index].steps[len(progress.fitted)]
    if isinstance(known, KeyedFitted):
        tables.copy_from_parent(known.table)
    # The step may read ids of a vocabulary that the extension has enlarged. Then it needs the new number of
    # ids.
    progress.add(known.resized(cardinality) if step.operator.keeps_ids else known)


# The functions below compute the version of a workflow, a digest of everything that a fit depends on. They
# also check whether an existing workflow can be extended.

# This number is part of the digest of every workflow version. Increase it if the meaning of an operator
# changes.
FORMAT = 2


def workflow_version(
    plan: FeaturePlan,
    parent: FittedWorkflow | None,
    days: Sequence[RawFiles],
    tables_of: Callable[[RawFiles], Mapping[str, str]] = _no_tables,
) -> str:
    """Returns the digest of everything that the fitted workflow depends on.

    The arguments have the same meaning as in `fit_workflow`.
    """
    # If each day belongs to one split, the section `split` does not change the training rows of a day, so the
    # digest leaves it out.
    sections = ["features", "prepare", "scopes", "keys", "negatives"]
    sections += ["split"] if plan.is_divided else []
    external = {
        table.path: require_raw(
            plan.config, table, days[-1].dt, "join_external.path", days[-1].recorder
        ).digest
        for chain in plan.chains
        for step in chain.steps
        if isinstance(step.operator, JoinExternal) and not parent
        for table in [step.operator.source(step)[0]]
    }
    extensions = operator_digests(step.operator.name for chain in plan.chains for step in chain.steps)
    canonical = plan.config.model_copy(update={"features": canonical_groups(plan.config.features)})
    return digest_of(
        {
            "format": FORMAT,
            "config": config_digest(canonical, *sections),
            "layout": plan.layout,
            "parent": parent.version if parent else "",
            "days": {day.dt: _digest_of_day(plan, day, tables_of(day)) for day in days},
            "external": external,
            **plan.methods,
            **({"extensions": extensions} if extensions else {}),
        }
    )


def _digest_of_day(plan: FeaturePlan, day: RawFiles, tables: Mapping[str, str]) -> str:
    """Returns a digest of the files and tables from which the rows of a day are computed."""
    files = rows_digest(plan.config, day)
    return digest_of([files, dict(tables)]) if tables else files


def require_weights(plan: FeaturePlan, version: str, spec: FeatureSpec) -> None:
    """Raises ConfigError if a workflow was fitted to rows with weights, but the configuration sets none."""
    if spec.weight is not None and plan.config.log.label.weights is None:
        raise ConfigError(
            f"workflow {version} was fitted to rows with weights, but the configuration has no "
            "log.label.weights",
            "restore log.label.weights, or set workflow.mode=fit to fit a new workflow (the next model then "
            "trains from scratch)",
        )


def require_parent_weights(plan: FeaturePlan, parent: FittedWorkflow) -> None:
    """Raises ConfigError if the parent's rows have weights and the configuration sets none, or vice versa."""
    require_weights(plan, parent.version, parent.spec)
    if parent.spec.weight is None and plan.config.log.label.weights is not None:
        raise ConfigError(
            f"workflow {parent.version} was fitted to rows without weights, but log.label.weights is set, "
            "so the workflow cannot be extended",
            "remove log.label.weights, or set workflow.mode=fit to fit a new workflow (the next model then "
            "trains from scratch)",
        )


def require_same_chains(descriptions: Sequence[str], parent: FittedWorkflow) -> None:
    """Raises ConfigError if the descriptions of the chains differ from those of the parent's chains."""
    changed = [chain for chain in descriptions if chain not in parent.descriptions]
    changed += [chain for chain in parent.descriptions if chain not in descriptions]
    if changed:
        raise ConfigError(
            f"workflow {parent.version} cannot be extended, because its features differ from those of the "
            f"configuration: {'; '.join(changed[:3])}",
            "restore the features of this workflow in the configuration, or set workflow.mode=fit to fit a "
            "new workflow (the next model then trains from scratch)",
        )
