"""Computes the statistics of the training rows that steps need, in one pass per kind of statistic.

A step is an operator with its inputs. A chain of steps computes features from raw columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.dates import EPOCH
from etl.ops.base import Step, Type
from etl.ops.training_statistics import Statistics
from etl.statistics.mergeable import MeasuredStatistic, measure_mergeable
from etl.statistics.moments import measure_moments
from etl.statistics.quantiles import measure_quantiles


@dataclass(frozen=True)
class StepInputs:
    """A step that needs statistics, with its inputs as columns of the training rows.

    Attributes:
        key: a name for the step. Steps that are measured together have different keys. Error messages
            contain the key.
        values: for each input, an expression over the rows.
        types: the type of each input.
        cardinality: if the first input contains ids, the number of embedding rows for them; otherwise None.
    """

    key: str
    step: Step
    values: tuple[Column, ...]
    types: tuple[Type, ...]
    cardinality: int | None


def measure_steps(rows: DataFrame, steps: Sequence[StepInputs]) -> dict[str, Statistics]:
    """Computes all statistics that are no tables, and returns them by step key.

    Raises:
        DataError: a value is too large to compute exact moments, or the state of a statistic is too large.
    """
    by_need: dict[str, list[StepInputs]] = {}
    for inputs in steps:
        by_need.setdefault(inputs.step.operator.needs, []).append(inputs)
    moments = measure_moments(rows, _first_values(by_need.get("moments", [])))
    probabilities = {
        inputs.key: (inputs.values[0], inputs.step.operator.probabilities())
        for inputs in by_need.get("quantiles", [])
    }
    quantiles = measure_quantiles(rows, probabilities)
    merged = measure_mergeable(
        rows, {inputs.key: _measured(inputs) for inputs in by_need.get("mergeable", [])}
    )
    aggregates = _aggregates(rows, by_need.get("aggregates", []))
    return {
        inputs.key: Statistics(
            moments=moments.get(inputs.key),
            aggregates=aggregates.get(inputs.key, {}),
            quantiles=quantiles.get(inputs.key, {}),
            merged=merged.get(inputs.key),
            cardinality=inputs.cardinality,
        )
        for inputs in steps
    }


def _first_values(steps: Sequence[StepInputs]) -> dict[str, Column]:
    return {inputs.key: inputs.values[0] for inputs in steps}


def _measured(inputs: StepInputs) -> tuple[Column, MeasuredStatistic]:
    """Returns the first input of a step, and the statistic of it that the step's operator defines."""
    kind = inputs.types[0]
    return inputs.values[0], MeasuredStatistic(inputs.key, inputs.step.operator.statistic(kind), kind)


def _aggregates(rows: DataFrame, steps: Sequence[StepInputs]) -> dict[str, dict[str, Any]]:
    """Returns, for each step key, a dictionary that maps the name of each aggregate to its value.

    All aggregates of all steps are computed in one Spark aggregation.
    """
    columns: list[Column] = []
    names: list[tuple[str, str]] = []
    for inputs in steps:
        operator = inputs.step.operator
        for name, aggregate in operator.aggregates(inputs.values[0], inputs.types[0]).items():
            columns.append(aggregate.alias(f"m{len(columns)}"))
            names.append((inputs.key, name))
    if not columns:
        return {}
    row = rows.agg(*columns).first()
    aggregates: dict[str, dict[str, Any]] = {}
    for (key, name), value in zip(names, row or [None] * len(names), strict=True):
        aggregates.setdefault(key, {})[name] = value
    return aggregates


def day_number(day: Column) -> Column:
    """Returns the number of days from 1970-01-01 to an ISO date."""
    return F.datediff(F.to_date(day), F.lit(EPOCH.isoformat()).cast("date"))
