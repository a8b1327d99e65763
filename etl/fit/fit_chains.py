"""Fits chains with the statistics of the training days.

A chain is a sequence of steps (operators) that computes features. In each round, the next steps of the chains
are fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from conf.types import Config
from etl.fit.chain_progress import ChainProgress, StatisticsSource
from etl.fit.count_statistics import CountStatistics
from etl.fit.fit_inputs import TrainingDays
from etl.fit.rounds import SourceName, plan_rounds
from etl.fit.row_statistics import RowStatistics
from etl.fit.version_tables import VersionTables
from etl.ops.base import Fitted, Step
from etl.ops.keyed import KeyedFitted
from etl.ops.training_statistics import Statistics
from etl.workflow.fitted_chains import FittedChain
from etl.workflow.fitted_workflow import FittedWorkflow
from etl.workflow.unfitted_chains import Chain
from spark.workers import Workers


def fit_chains(
    workers: Workers,
    config: Config,
    chains: Sequence[Chain],
    training: TrainingDays,
    parent: FittedWorkflow | None,
    tables: VersionTables,
) -> tuple[FittedChain, ...]:
    """Returns the fitted chains, in the order of `chains`.

    Args:
        workers: run the tasks of the fit.
        config: the configuration of the run.
        chains: the chains to fit.
        training: the training days that are read.
        parent: the workflow to extend. Its fitted steps are reused, and its vocabularies are extended. None
            for a new workflow.
        tables: publishes the tables of the fitted steps in the new workflow version. `tables` must not have
            published a table yet.

    Raises:
        DataError: the statistics of a column cannot be computed.
    """
    counts = training.value_counts
    sources: dict[SourceName, StatisticsSource] = {"rows": RowStatistics(workers, config, tables, training)}
    if counts is not None:
        sources["value_counts"] = CountStatistics(workers, tables, counts)
    progress = [ChainProgress(index, chain) for index, chain in enumerate(chains)]
    for planned in plan_rounds(chains, extends=parent is not None, has_value_counts=counts is not None):
        for group in planned.ready:
            for step in group.steps:
                _fit_ready(workers, progress[group.chain], step, parent, tables)
        requests = [progress[group.chain].request(group.steps) for group in planned.measured]
        if requests:
            statistics = sources[planned.source].measure(requests)
            for request in requests:
                for step in request.steps:
                    progress[request.index].add(step.operator.fit(step, statistics[request.key(step)]))
    return tuple(chain.finish() for chain in progress)


def _fit_ready(
    workers: Workers,
    progress: ChainProgress,
    step: Step,
    parent: FittedWorkflow | None,
    tables: VersionTables,
) -> None:
    """Fits a step that needs no statistics, or reuses the fitted step of the parent workflow."""
    cardinality = progress.cardinality(step)
    if parent is None:
        progress.add(step.operator.fit(step, Statistics(cardinality=cardinality)))
        return
    known: Fitted = parent.chains[progress.index].steps[len(progress.fitted)]
    if isinstance(known, KeyedFitted):
        tables.copy_from_parent(workers, known.table)
    # The vocabulary whose ids the step reads may have grown.
    progress.add(known.resized(cardinality) if step.operator.keeps_ids else known)
