"""What the steps of chains ask of the training rows, answered for all of them in as few passes as there are kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.dates import EPOCH
from etl.ops.base import Moments, Statistics, Step, Type
from etl.statistics.medians import measure_medians
from etl.statistics.moments import measure_moments


@dataclass(frozen=True)
class Question:
    """A step that waits for statistics.

    Attributes:
        key: unique among the questions of one round.
        values: one expression over the round's rows an input.
        kinds: their types.
        cardinality: of the ids its first input holds, where it holds ids.
    """

    key: str
    step: Step
    values: tuple[Column, ...]
    kinds: tuple[Type, ...]
    cardinality: int | None


def answer(rows: DataFrame, questions: Sequence[Question]) -> dict[str, Statistics]:
    """Key → statistics, for questions that need moments, aggregates or a median.

    Raises:
        DataError: a value too large for exact moments.
    """
    of_need: dict[str, list[Question]] = {}
    for question in questions:
        of_need.setdefault(question.step.operator.needs, []).append(question)
    moments = measure_moments(rows, _firsts(of_need.get("moments", [])))
    medians = measure_medians(rows, _firsts(of_need.get("median", [])))
    aggregates = _aggregates(rows, of_need.get("aggregates", []))
    return {
        question.key: Statistics(
            moments=_found(moments, question.key),
            median=medians.get(question.key),
            aggregates=aggregates.get(question.key, {}),
            cardinality=question.cardinality,
        )
        for question in questions
    }


def _found(moments: Mapping[str, Moments], key: str) -> Moments | None:
    return moments.get(key)


def _firsts(questions: Sequence[Question]) -> dict[str, Column]:
    return {question.key: question.values[0] for question in questions}


def _aggregates(rows: DataFrame, questions: Sequence[Question]) -> dict[str, dict[str, Any]]:
    named: list[Column] = []
    places: list[tuple[str, str]] = []
    for question in questions:
        operator = question.step.operator
        for name, measure in operator.aggregates(question.values[0], question.kinds[0]).items():
            named.append(measure.alias(f"m{len(named)}"))
            places.append((question.key, name))
    if not named:
        return {}
    row = rows.agg(*named).first()
    found: dict[str, dict[str, Any]] = {}
    for (key, name), value in zip(places, row or [None] * len(places), strict=True):
        found.setdefault(key, {})[name] = value
    return found


def day_number(day: Column) -> Column:
    """Days since 1970-01-01 of an ISO date."""
    return F.datediff(F.to_date(day), F.lit(EPOCH.isoformat()).cast("date"))
