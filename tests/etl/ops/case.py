"""One workflow with every example in it, and what its features must be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from conf.types import Config
from etl.raw.splits import DAY
from etl.workflow.fitted_workflow import FittedWorkflow
from tests.etl.ops import oracle
from tests.etl.ops.examples import EXAMPLES
from tests.etl.ops.learned import Table
from tests.etl.ops.rows import DAYS, Row

GROUPS = [example.group() for examples in EXAMPLES.values() for example in examples]


@dataclass(frozen=True)
class Case:
    """A workflow with examples in it, fitted on blocks of the training days, and all rows it is applied to."""

    groups: Sequence[Mapping[str, Any]]
    config: Config
    workflow: FittedWorkflow
    rows: list[Row]

    @property
    def by_row_id(self) -> list[Row]:
        return sorted(self.rows, key=lambda row: row["row_id"])

    @property
    def train(self) -> list[Row]:
        return [row for row in self.by_row_id if row[DAY] in DAYS]

    @cached_property
    def expected(self) -> dict[str, list[Any]]:
        days = frozenset(DAYS)
        every = table(self.by_row_id, days)
        train = table(self.train, days)
        return {
            name: values for group in self.groups for name, values in oracle.run(group, train, every).items()
        }


def table(rows: Sequence[Row], days: frozenset[str]) -> Table:
    return Table({name: [row[name] for row in rows] for name in rows[0]}, days)


def assert_same(actual: Mapping[str, Sequence[Any]], expected: Mapping[str, Sequence[Any]]) -> None:
    """The same features; ids and lists exactly, floats within 1e-6, nulls where nulls are expected."""
    assert sorted(actual) == sorted(expected)
    for name, values in expected.items():
        assert len(actual[name]) == len(values), name
        for place, (value, expected_value) in enumerate(zip(actual[name], values, strict=True)):
            assert _same(value, expected_value), f"{name}, row {place}: {value!r} is not {expected_value!r}"


def _same(value: Any, expected_value: Any) -> bool:
    if value is None or expected_value is None or isinstance(value, int | list):
        return value == expected_value
    return math.isfinite(value) and math.isclose(value, expected_value, rel_tol=1e-6, abs_tol=1e-6)
