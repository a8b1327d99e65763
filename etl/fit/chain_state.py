"""How far the fit of a chain is, and what its waiting steps may be answered from."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

from etl.ops.base import Fitted, Step, Type
from etl.ops.categorify import Categorify
from etl.ops.keyed import KeyedFitted
from etl.workflow.chains import FittedChain
from etl.workflow.feature_plan import Chain


@dataclass
class Progress:
    """How far a chain is: the steps fitted so far, and the cardinality of values that are ids."""

    chain: Chain
    fitted: list[Fitted] = field(default_factory=list)
    cardinalities: dict[str, int] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    @property
    def counts_ahead(self) -> int:
        """Steps not fitted yet that need a vocabulary."""
        return sum(step.operator.needs == "counts" for step in self.chain.steps[len(self.fitted) :])

    @property
    def waiting(self) -> Step | None:
        return self.chain.steps[len(self.fitted)] if len(self.fitted) < len(self.chain.steps) else None

    @property
    def together(self) -> list[Step]:
        """The waiting step and those behind it that are of the same operator, and so depend on none of its outputs."""
        rest = self.chain.steps[len(self.fitted) :]
        return list(takewhile(lambda step: step.operator is rest[0].operator, rest))

    def add(self, step: Fitted) -> None:
        self.fitted.append(step)
        if step.cardinality is not None:
            self.cardinalities |= dict.fromkeys(step.outputs, step.cardinality)
        kept = set() if set(step.inputs) <= self.dropped else set(step.kept)
        self.dropped = (self.dropped - kept) | (set(step.outputs) - kept)

    def so_far(self) -> FittedChain:
        return FittedChain(self.chain.inputs, self.chain.types, tuple(self.fitted), ())

    def done(self) -> FittedChain:
        kept = tuple(name for name in self.chain.outputs if name not in self.dropped)
        return FittedChain(self.chain.inputs, self.chain.types, tuple(self.fitted), kept)

    def kinds(self) -> dict[str, Type]:
        """Types of the chain's values so far."""
        kinds = dict(zip(self.chain.inputs, self.chain.types, strict=True))
        for step in self.chain.steps[: len(self.fitted)]:
            kinds |= step.types
        return kinds

    @property
    def needs(self) -> str:
        return self.waiting.operator.needs if self.waiting else "nothing"


def countable(progress: Progress) -> bool:
    """Whether the waiting step's statistics follow from how often each value of one raw column occurs."""
    step = progress.waiting
    return (
        step is not None
        and step.operator.needs in ("moments", "median", "counts")
        and len(progress.chain.inputs) == 1
        and progress.chain.types[0] in ("int", "string")
        and not any(isinstance(each, KeyedFitted) or each.sql_only for each in progress.fitted)
        and not any(each.name == "categorify" for each in progress.fitted)
    )


def key_of(index: int, step: Step) -> str:
    """Names a question; errors show it."""
    return f"{','.join(step.inputs)} (chain {index} of features)"


def vocabulary_of(step: Step) -> str:
    """The vocabulary of a step that has one."""
    operator = step.operator
    return operator.vocabulary(step) if isinstance(operator, Categorify) else ""
