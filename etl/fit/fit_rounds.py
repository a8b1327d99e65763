"""Runs the rounds of a fit, whatever the statistics of the training rows come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from etl.fit.chain_progress import ChainProgress, StatisticsSource
from etl.fit.rounds import Round, SourceName
from etl.ops.base import Step
from etl.ops.training_statistics import Statistics
from etl.workflow.fitted_chains import FittedChain
from etl.workflow.unfitted_chains import Chain


def fit_rounds(
    chains: Sequence[Chain],
    rounds: Sequence[Round],
    sources: Mapping[SourceName, StatisticsSource],
    fit_ready: Callable[[ChainProgress, Step], None],
) -> tuple[FittedChain, ...]:
    """Returns the fitted chains, in the order of `chains`.

    Args:
        chains: the chains to fit.
        rounds: the rounds of the fit (etl.fit.rounds.plan_rounds).
        sources: compute the statistics that steps need.
        fit_ready: fits the next step of a chain, which needs no statistics.

    Raises:
        DataError: the statistics of a column cannot be computed.
    """
    progress = [ChainProgress(index, chain) for index, chain in enumerate(chains)]
    for planned in rounds:
        for group in planned.ready:
            for step in group.steps:
                fit_ready(progress[group.chain], step)
        requests = [progress[group.chain].request(group.steps) for group in planned.measured]
        if requests:
            statistics = sources[planned.source].measure(requests)
            for request in requests:
                for step in request.steps:
                    progress[request.index].add(step.operator.fit(step, statistics[request.key(step)]))
    return tuple(chain.finish() for chain in progress)


def fit_without_statistics(progress: ChainProgress, step: Step) -> None:
    """Fits a step of a new workflow that needs no statistics."""
    progress.add(step.operator.fit(step, Statistics(cardinality=progress.cardinality(step))))
