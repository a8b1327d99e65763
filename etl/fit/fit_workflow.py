"""Fits a workflow version on training days, or adds the values of new training days to its vocabularies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from conf.dates import days_since_epoch
from conf.types import Scope
from etl.fit.fit_chains import fit_chains
from etl.fit.fit_inputs import ReadTable, TrainingBlocks, TrainingDays
from etl.fit.version_tables import VersionTables
from etl.fit.workflow_version import require_parent_weights, require_same_chains, workflow_version
from etl.ops.tables import LocalTables
from etl.raw.files import RawFiles
from etl.raw.impression_log import rows_digest
from etl.value_counts.requests import Counts, join_days
from etl.workflow.chain_descriptions import chain_description
from etl.workflow.feature_plan import Plan
from etl.workflow.fitted_chains import FittedChain
from etl.workflow.fitted_features import fitted_features
from etl.workflow.fitted_workflow import FittedWorkflow, load_workflow
from etl.workflow.local_workflow import LocalWorkflow, save_workflow, workflow_exists
from spark.workers import Workers
from storage.feature_spec import EVENT_TIME, ROW_ID, WEIGHT, FeatureSpec, raw_keys
from storage.paths import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("nightrank.etl")


def fit_workflow(
    workers: Workers,
    plan: Plan,
    lake: Lake,
    days: Sequence[RawFiles],
    parent: FittedWorkflow | None,
    counts_of: Callable[[RawFiles], Counts] | None,
    read_table: ReadTable,
    blocks_of: Callable[[Sequence[RawFiles]], TrainingBlocks] | None = None,
    rows_of: Callable[[Sequence[RawFiles]], DataFrame] | None = None,
) -> FittedWorkflow:
    """Returns the workflow version of these training days. Fits this version if it does not exist yet.

    Args:
        days: the training days.
        parent: an earlier workflow version to extend. Numbers that were fitted for the parent, such as means,
            stay unchanged. Only its vocabularies grow: they get the values of training days that they do not
            include yet. So a model that was trained on the parent's features remains valid. With None, all
            steps are fitted.
        counts_of: returns the value counts of the training rows of a day; None if a frame's rows are counted.
        read_table: reads the tables of `join_external`.
        blocks_of: returns the training rows of some days as blocks, from which processes of this machine
            compute statistics.
        rows_of: returns the same rows as a frame of Spark, which computes the statistics. One of the two must
            be given.

    Raises:
        ConfigError: the configuration's features differ from the features of the parent, or only one of the
            two has weights of rows.
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
    version = workflow_version(plan, parent, new_days)
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


def _spec(plan: Plan, version: str, chains: Sequence[FittedChain]) -> FeatureSpec:
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
