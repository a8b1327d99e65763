"""Fits chains with the statistics of the training days.

A chain is a sequence of steps (operators) that computes features. In each round, the next steps of the chains
are fitted.
"""

from __future__ import annotations

from functools import partial

from etl.fit.block_statistics import BlockStatistics
from etl.fit.chain_progress import ChainProgress, StatisticsSource
from etl.fit.count_statistics import CountStatistics
from etl.fit.fit_inputs import TrainingDays
from etl.fit.fit_rounds import fit_rounds, fit_without_statistics
from etl.fit.rounds import SourceName, plan_rounds
from etl.fit.row_statistics import RowStatistics
from etl.fit.version_tables import VersionTables
from etl.ops.base import Fitted, Step
from etl.ops.keyed import KeyedFitted
from etl.workflow.feature_plan import Plan
from etl.workflow.fitted_chains import FittedChain
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.workers import Workers


def fit_chains(
    workers: Workers,
    plan: Plan,
    training: TrainingDays,
    parent: FittedWorkflow | None,
    tables: VersionTables,
) -> tuple[FittedChain, ...]:
    """Returns the fitted chains, in the order of the plan.

    Args:
        workers: run the tasks of the fit.
        plan: the plan of the run, with the chains to fit.
        training: the training days that are read.
        parent: the workflow to extend. Its fitted steps are reused, and its vocabularies are extended. None
            for a new workflow.
        tables: publishes the tables of the fitted steps in the new workflow version. `tables` must not have
            published a table yet.

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
    """Adds the fitted step of the parent workflow."""
    cardinality = progress.cardinality(step)
    known: Fitted = parent.chains[progress.index].steps[len(progress.fitted)]
    if isinstance(known, KeyedFitted):
        tables.copy_from_parent(known.table)
    # The vocabulary whose ids the step reads may have grown.
    progress.add(known.resized(cardinality) if step.operator.keeps_ids else known)
