"""Plans and runs a fit in rounds, and defines its inputs. The steps of a round are fitted together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from conf.errors import ConfigError
from conf.types import Config, JoinedTable
from etl.operators.categorify import Categorify
from etl.ops import Step, column_operator
from etl.ops.base import Fitted, Type
from etl.ops.training_statistics import Need, Statistics
from etl.statistics.value_counts import Counts
from etl.workflow.chains import Chain, FittedChain

if TYPE_CHECKING:  # Python workers import this module, but they do not need pyspark.
    from pyspark.sql import DataFrame

# The source of a round's statistics: the training rows, or the value counts of the training days.
SourceName = Literal["rows", "value_counts"]

# Statistics that can be computed from the value counts of one raw column.
_COUNTABLE: tuple[Need, ...] = ("moments", "quantiles", "mergeable", "counts")

# Statistics that are stored in a table. The fitted step looks up values in this table, so its outputs cannot
# be computed from value counts.
_WITH_TABLE: tuple[Need, ...] = ("counts", "groups", "external")


@dataclass(frozen=True)
class ChainSteps:
    """Consecutive steps of one chain that are fitted in the same round.

    Attributes:
        chain: index of the chain.
        first: position of the first of these steps in the chain.
        steps: the steps. There is at least one.
    """

    chain: int
    first: int
    steps: tuple[Step, ...]

    @property
    def need(self) -> Need:
        """Returns the kind of statistics that the first step needs."""
        return self.steps[0].operator.needs


@dataclass(frozen=True)
class Round:
    """One round of a fit.

    Attributes:
        ready: steps that are fitted first. They need no statistics, or the parent workflow already contains
            them as fitted steps.
        measured: steps that are fitted next, from statistics of the training days. None of these steps reads
            an output of another of these steps.
        source: the source of the statistics of `measured`.
    """

    ready: tuple[ChainSteps, ...]
    measured: tuple[ChainSteps, ...]
    source: SourceName

    @property
    def needs(self) -> frozenset[Need]:
        """Returns the kinds of statistics that the round needs."""
        return frozenset(step.operator.needs for group in self.measured for step in group.steps)


def plan_rounds(chains: Sequence[Chain], *, extends: bool, has_value_counts: bool) -> list[Round]:
    """Returns the rounds of a fit. Each step is fitted once, after all earlier steps of its chain.

    Args:
        chains: the chains to fit.
        extends: whether an existing workflow is extended. An extension reuses the parent's fitted steps, and
            only adds values to vocabularies.
        has_value_counts: whether there are value counts of the training days.
    """
    fitted = [0] * len(chains)  # (number of chains,): the number of fitted steps of each chain.
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
    """Returns, for each chain, the next steps that can be fitted or reused without statistics."""

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
    """Returns, for each unfinished chain, its next step and the following steps of the same operator."""
    groups = []
    for index, (first, chain) in enumerate(zip(fitted, chains, strict=True)):
        if first < len(chain.steps):
            _, group = next(groupby(chain.steps[first:], key=lambda step: id(step.operator)))
            groups.append(ChainSteps(index, first, tuple(group)))
    return groups


def _choose(
    chains: Sequence[Chain], fitted: Sequence[int], waiting: Sequence[ChainSteps], has_value_counts: bool
) -> tuple[Sequence[ChainSteps], SourceName]:
    """Chooses the steps whose statistics this round computes, and the source of these statistics.

    The steps are chosen from `waiting`, the next steps of the unfinished chains. All vocabularies are
    published together, so one round counts the values of all of them. Other steps in `waiting` normally get
    their statistics in an earlier round. All of `waiting` shares one round only if value counts suffice for
    all these steps, and no later step builds a vocabulary.
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
    """Returns whether a fitted step needs more than its input values: a table, or the ids of the rows."""
    _, fitted_type = column_operator(step.operator.name)
    return step.operator.needs in _WITH_TABLE or fitted_type.out_of_fold


# The classes below are the inputs of a fit: the training rows, as Spark frames or as blocks, and their value
# counts.

# Function that reads an external table. Its arguments are the configuration, the table, its key column, the
# section of the configuration that error messages name, and the date for the table's path.
ReadTable: TypeAlias = "Callable[[Config, JoinedTable, str, str, str], pa.Table | DataFrame]"


@dataclass(frozen=True)
class RowBatch:
    """Some training rows of one day.

    Attributes:
        row_ids: (n,) int64, the ids of the rows.
        dt: the day of the rows, as an ISO date.
        columns: maps the name of each raw column to its n values: int64, double, string, or lists of int64 or
            string. These arrays and the elements of their lists may be dictionary-encoded. The column LABEL
            is float32.
    """

    row_ids: np.ndarray
    dt: str
    columns: Mapping[str, pa.Array]


@dataclass(frozen=True)
class TrainingBlocks:
    """The training rows, which tasks read block by block. Objects of this class are pickled.

    Attributes:
        tasks: number of tasks. Each training row belongs to one task.
        read: takes the index of a task and the names of the wanted raw columns (LABEL for the label). Yields
            the training rows of this task. Calls for the same task yield the same rows.
    """

    tasks: int
    read: Callable[[int, frozenset[str]], Iterator[RowBatch]]


@dataclass(frozen=True)
class TrainingDays:
    """The training days that a fit reads.

    If a new workflow is fitted, these are all training days. If a workflow is extended, these are only the
    days whose values are not in the workflow's vocabularies yet.

    Attributes:
        rows: returns the training rows of these days as a Spark frame; None if there are blocks.
        value_counts: the value counts of these days; None if there are no value counts.
        days: ISO dates, in ascending order.
        latest: the last day that the fitted workflow includes, in days since 1970-01-01. If a workflow is
            extended, this day may be later than the days in `days`.
        read_table: reads a table of the operator `join_external`. If the rows are blocks, it returns an Arrow
            table; otherwise, an Arrow table or a Spark frame.
        blocks: the training rows of these days as blocks; None if there is a Spark frame.
    """

    rows: Callable[[], DataFrame] | None
    value_counts: Counts | None
    days: Sequence[str]
    latest: int
    read_table: ReadTable
    blocks: TrainingBlocks | None = None


# The functions below run the rounds of a fit. Statistics of the training rows come from sources
# (StatisticsSource).


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
        sources: maps the name of each source of statistics to the source.
        fit_ready: fits the next step of a chain if this step needs no statistics.

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
    """Fits a step that needs no statistics, in a new workflow, which extends no earlier version."""
    progress.add(step.operator.fit(step, Statistics(cardinality=progress.cardinality(step))))


# The classes below hold the fitted steps of a chain during a fit, and the statistics that its next steps
# request.
#
# A chain is a sequence of steps (operators) that computes features.


@dataclass(frozen=True)
class ChainRequest:
    """Steps of one chain that need statistics of the training days.

    None of these steps reads an output of another of them.

    Attributes:
        index: index of the chain in the list of all chains.
        before: the part of the chain before these steps, already fitted.
        types: for each value that `before` reads or computes, maps its name to its type.
        cardinalities: for each value that contains ids, maps its name to the number of embedding rows.
    """

    index: int
    before: FittedChain
    types: Mapping[str, Type]
    cardinalities: Mapping[str, int]
    steps: tuple[Step, ...]

    def key(self, step: Step) -> str:
        """Returns a name for the statistics that a step requests. Error messages contain this name.

        Steps whose statistics are computed together have different names.
        """
        return f"{','.join(step.inputs)} (chain {self.index} of features)"

    def cardinality(self, step: Step) -> int | None:
        """Returns the number of embedding rows for the ids that the step reads; None if it reads no ids."""
        return self.cardinalities.get(step.inputs[0])


class StatisticsSource(Protocol):
    """A source of statistics of the training rows.

    The classes that implement it are in fit_frame.py, row_statistics.py and block_statistics.py.
    """

    def measure(self, requests: Sequence[ChainRequest]) -> Mapping[str, Statistics]:
        """Computes the statistics of all requested steps, and publishes the tables that the steps need.

        Returns:
            A mapping from the key of each step (`ChainRequest.key`) to its statistics.

        Raises:
            DataError: the statistics of a column cannot be computed, because a value is NaN or too large.
        """


@dataclass
class ChainProgress:
    """A chain, and the steps of the chain that have been fitted so far.

    A chain is a sequence of steps (operators) that computes features.
    """

    index: int
    chain: Chain
    fitted: list[Fitted] = field(default_factory=list)
    _cardinalities: dict[str, int] = field(default_factory=dict)
    _dropped: set[str] = field(default_factory=set)

    def add(self, step: Fitted) -> None:
        """Appends the next fitted step.

        Raises:
            ConfigError: `step` is not a fitted step.
        """
        if not isinstance(step, Fitted):
            operator = self.chain.steps[len(self.fitted)].operator
            raise ConfigError(
                f"the method `fit` of the operator {operator.name} returned a {type(step).__name__}, not a "
                "Fitted",
                "change this method so that it returns the fitted step, an object of a subclass of Fitted",
            )
        self.fitted.append(step)
        if step.cardinality is not None:
            self._cardinalities |= dict.fromkeys(step.outputs, step.cardinality)
        kept = set() if set(step.inputs) <= self._dropped else set(step.kept)
        self._dropped = (self._dropped - kept) | (set(step.outputs) - kept)

    def cardinality(self, step: Step) -> int | None:
        """Returns the number of embedding rows for the ids that a step reads; None if it reads no ids."""
        return self._cardinalities.get(step.inputs[0])

    def request(self, steps: tuple[Step, ...]) -> ChainRequest:
        """Returns the request for the statistics that the next steps of the chain need."""
        types = dict(zip(self.chain.inputs, self.chain.types, strict=True))
        for step in self.chain.steps[: len(self.fitted)]:
            types |= step.types
        before = FittedChain(self.chain.inputs, self.chain.types, tuple(self.fitted), ())
        return ChainRequest(self.index, before, types, dict(self._cardinalities), steps)

    def finish(self) -> FittedChain:
        """Returns the fitted chain. Its outputs are the features that no step has dropped."""
        outputs = tuple(name for name in self.chain.outputs if name not in self._dropped)
        return FittedChain(self.chain.inputs, self.chain.types, tuple(self.fitted), outputs)


def vocabulary_of(step: Step) -> str:
    """Returns the name of the vocabulary of a Categorify step; empty for all other steps."""
    operator = step.operator
    return operator.vocabulary(step) if isinstance(operator, Categorify) else ""
