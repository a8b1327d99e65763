"""The fitted steps of a chain during a fit, and the statistics that its next steps request.

A chain is a sequence of steps (operators) that computes features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from conf.errors import ConfigError
from etl.operators.categorify import Categorify
from etl.ops.base import Fitted, Step, Type
from etl.ops.training_statistics import Statistics
from etl.workflow.fitted_chains import FittedChain
from etl.workflow.unfitted_chains import Chain


@dataclass(frozen=True)
class ChainRequest:
    """Steps of one chain that need statistics of the training days.

    None of these steps reads an output of another one.

    Attributes:
        index: position of the chain in the list of chains.
        before: the part of the chain before these steps, already fitted.
        types: maps the name of each value that `before` reads or computes to the type of the value.
        cardinalities: maps the name of each value that contains ids to the number of embedding rows.
    """

    index: int
    before: FittedChain
    types: Mapping[str, Type]
    cardinalities: Mapping[str, int]
    steps: tuple[Step, ...]

    def key(self, step: Step) -> str:
        """Returns a name for the request of a step. Error messages contain this name.

        Steps whose statistics are computed together have different names.
        """
        return f"{','.join(step.inputs)} (chain {self.index} of features)"

    def cardinality(self, step: Step) -> int | None:
        """Returns the number of embedding rows for the ids that the step reads; None if it reads no ids."""
        return self.cardinalities.get(step.inputs[0])


class StatisticsSource(Protocol):
    """A source of statistics of the training days.

    The sources are row_statistics.py, block_statistics.py and count_statistics.py of etl/fit.
    """

    def measure(self, requests: Sequence[ChainRequest]) -> Mapping[str, Statistics]:
        """Computes the statistics of all requested steps, and publishes the tables that the steps need.

        Returns:
            a mapping of the key of each step (`ChainRequest.key`) to its statistics.

        Raises:
            DataError: the statistics of a column cannot be computed, because a value is NaN or too large.
        """


@dataclass
class ChainProgress:
    """A chain, and those of its steps that have been fitted so far, in order.

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
            ConfigError: `step` is no fitted step.
        """
        if not isinstance(step, Fitted):
            operator = self.chain.steps[len(self.fitted)].operator
            raise ConfigError(
                f"the operator {operator.name} was fitted to a {type(step).__name__}, not to a Fitted",
                "let the method fit of the operator return its fitted step",
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
