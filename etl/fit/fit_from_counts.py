"""Fits steps by the value counts of the training days, where those tell what a step asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from etl.fit.chain_state import Progress, key_of, vocabulary_of
from etl.ops.base import Statistics
from etl.ops.categorify import Categorify
from etl.statistics.vocabulary import IdRule
from etl.value_counts.merge import moments_from
from etl.value_counts.requests import Question, Source

Files = tuple[str, ...]


def questions_of(waiting: Sequence[tuple[int, Progress]], parent: tuple[Files, Files]) -> dict[str, Question]:
    """Key, or vocabulary → what the waiting steps ask.

    Args:
        parent: files of the (vocabulary, rare values) that are extended.
    """
    questions: dict[str, Question] = {}
    for index, progress in waiting:
        for step in progress.together:
            source = Source(progress.chain.inputs[0], progress.so_far(), step.inputs[0])
            if isinstance(step.operator, Categorify):
                name = vocabulary_of(step)
                known = questions.get(name)
                questions[name] = Question(
                    key=name,
                    wants="counts",
                    sources=(*(known.sources if known else ()), source),
                    rule=IdRule(step.operator.least(name), step.operator.first_id, step.operator.max_size),
                    given=step.operator.values,
                    parent=parent,
                )
            else:
                wants: Literal["moments", "median"] = (
                    "moments" if step.operator.needs == "moments" else "median"
                )
                questions[key_of(index, step)] = Question(key_of(index, step), wants, (source,))
    return questions


def answer_steps(waiting: Sequence[tuple[int, Progress]], found: Mapping[str, Mapping[str, Any]]) -> None:
    """Fits the waiting steps by what was found for their questions."""
    for index, progress in waiting:
        for step in progress.together:
            counted = isinstance(step.operator, Categorify)
            answer = found[vocabulary_of(step)]["facts"] if counted else found[key_of(index, step)]
            cardinality = progress.cardinalities.get(step.inputs[0])
            progress.add(step.operator.fit(step, _statistics(answer, cardinality)))


def _statistics(found: Mapping[str, Any], cardinality: int | None) -> Statistics:
    if "highest" in found:
        return Statistics(cardinality=found["highest"] + 1)
    if "median" in found:
        return Statistics(median=found["median"], cardinality=cardinality)
    return Statistics(moments=moments_from(found), cardinality=cardinality)
