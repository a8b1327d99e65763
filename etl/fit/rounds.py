"""Plans the rounds of a fit: which steps are fitted together, and where their statistics come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Literal

from etl.ops import Step, column_operator
from etl.ops.training_statistics import Need
from etl.workflow.unfitted_chains import Chain

# The source of a round's statistics: frames of the training rows, or the value counts of the training days.
SourceName = Literal["rows", "value_counts"]

# Statistics that can be computed from how often each value of one raw column occurs.
_COUNTABLE: tuple[Need, ...] = ("moments", "quantiles", "mergeable", "counts")
# Needs of steps that look up a table. Their outputs cannot be computed from value counts.
_WITH_TABLE: tuple[Need, ...] = ("counts", "groups", "external")


@dataclass(frozen=True)
class ChainSteps:
    """Consecutive steps of one chain that are fitted in the same round.

    Attributes:
        chain: index of the chain.
        first: position of the first of these steps in the chain.
        steps: the steps; at least one.
    """

    chain: int
    first: int
    steps: tuple[Step, ...]

    @property
    def need(self) -> Need:
        """Returns the statistics that the first step needs."""
        return self.steps[0].operator.needs


@dataclass(frozen=True)
class Round:
    """One round of a fit.

    Attributes:
        ready: steps that are fitted first. They need no statistics, or the workflow that is extended already
            contains them fitted.
        measured: steps that are fitted next, from statistics of the training days. None of these steps reads
            an output of another one.
        source: where the statistics of `measured` come from.
    """

    ready: tuple[ChainSteps, ...]
    measured: tuple[ChainSteps, ...]
    source: SourceName

    @property
    def needs(self) -> frozenset[Need]:
        """Returns the kinds of statistics that the round needs."""
        return frozenset(step.operator.needs for group in self.measured for step in group.steps)


def plan_rounds(chains: Sequence[Chain], *, extends: bool, has_value_counts: bool) -> list[Round]:
    """Returns the rounds of a fit. They fit each step once, and never before an earlier step of its chain.

    Args:
        chains: the chains to fit.
        extends: whether an existing workflow is extended. Then only its vocabularies are fitted again.
        has_value_counts: whether there are value counts of the training days.
    """
    fitted = [0] * len(chains)  # (chains,) number of steps that are fitted
    rounds = []
    while any(count < len(chain.steps) for count, chain in zip(fitted, chains, strict=True)):
        ready = _ready(chains, fitted, extends)
        _advance(fitted, ready)
        waiting = _waiting(chains, fitted)
        measured, source = _choose(chains, fitted, waiting, has_value_counts)
        _advance(fitted, measured)
        rounds.append(Round(tuple(ready), tuple(measured), source))
    return rounds


def _advance(fitted: list[int], groups: Sequence[ChainSteps]) -> None:
    for group in groups:
        fitted[group.chain] += len(group.steps)


def _ready(chains: Sequence[Chain], fitted: Sequence[int], extends: bool) -> list[ChainSteps]:
    """Returns the next steps of each chain that need no statistics of the training days."""

    def is_ready(step: Step) -> bool:
        need = step.operator.needs
        return need != "counts" if extends else need == "nothing"

    groups = []
    for index, (first, chain) in enumerate(zip(fitted, chains, strict=True)):
        steps = tuple(takewhile(is_ready, chain.steps[first:]))
        if steps:
            groups.append(ChainSteps(index, first, steps))
    return groups


def _waiting(chains: Sequence[Chain], fitted: Sequence[int]) -> list[ChainSteps]:
    """Returns the next steps of each unfinished chain. None of these steps reads an output of another one."""
    groups = []
    for index, (first, chain) in enumerate(zip(fitted, chains, strict=True)):
        if first < len(chain.steps):
            _, group = next(groupby(chain.steps[first:], key=lambda step: id(step.operator)))
            groups.append(ChainSteps(index, first, tuple(group)))
    return groups


def _choose(
    chains: Sequence[Chain], fitted: Sequence[int], waiting: Sequence[ChainSteps], has_value_counts: bool
) -> tuple[Sequence[ChainSteps], SourceName]:
    """Chooses the steps that the round measures, and the source of their statistics.

    The steps are chosen from `waiting`, the next steps of the unfinished chains. All vocabularies are
    published together, so their values are counted last, in one round.
    """
    countable = [
        group for group in waiting if has_value_counts and is_countable(chains[group.chain], group.first)
    ]
    others = [group for group in waiting if group.need != "counts"]
    from_rows = [group for group in others if group not in countable]
    if from_rows:
        return from_rows, "rows"
    all_countable = bool(waiting) and len(countable) == len(waiting)
    if others and not (all_countable and _has_all_vocabularies(chains, fitted, waiting)):
        return others, "value_counts"
    return waiting, "value_counts" if all_countable else "rows"


def _has_all_vocabularies(
    chains: Sequence[Chain], fitted: Sequence[int], waiting: Sequence[ChainSteps]
) -> bool:
    """Returns whether the steps in `waiting` include every step that still has to build a vocabulary."""
    left = [step for first, chain in zip(fitted, chains, strict=True) for step in chain.steps[first:]]
    return _count_vocabularies(left) == _count_vocabularies([s for group in waiting for s in group.steps])


def _count_vocabularies(steps: Sequence[Step]) -> int:
    return sum(step.operator.needs == "counts" for step in steps)


def is_countable(chain: Chain, position: int) -> bool:
    """Returns whether the value counts of one raw column suffice for the statistics of a step.

    `position` is the position of the step in the chain.
    """
    return (
        chain.steps[position].operator.needs in _COUNTABLE
        and len(chain.inputs) == 1
        and chain.types[0] in ("int", "float", "string")
        and not any(_needs_rows(step) for step in chain.steps[:position])
    )


def _needs_rows(step: Step) -> bool:
    """Returns whether the values of a step's input are not enough to compute its outputs.

    The outputs of such a step depend on rows or tables.
    """
    _, fitted_type = column_operator(step.operator.name)
    return step.operator.needs in _WITH_TABLE or fitted_type.out_of_fold
