"""Expression: computes a column by a formula over several columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from conf.errors import ConfigError
from conf.lazy_imports import F
from etl.ops.base import NUMBERS, Operator, RowWise, Step, Type
from etl.ops.formula import Formula, Kind, parse
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics
from storage.feature_spec import FLOAT32_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column


def kinds_of(columns: Mapping[str, Type]) -> dict[str, Kind]:
    """Maps each column that a formula can read to the kind of its values: `number` or `text`.

    Columns of lists are omitted, because formulas cannot read lists.
    """
    return {
        name: "text" if kind == "string" else "number"
        for name, kind in columns.items()
        if kind in (*NUMBERS, "string")
    }


@dataclass(frozen=True)
class FittedExpression(RowWise):
    """The fitted step of the operator `expression`."""

    name: ClassVar[str] = "expression"
    formula: str = ""
    kinds: tuple[Kind, ...] = ()

    @cached_property
    def _parsed(self) -> Formula:
        return parse(self.formula, dict(zip(self.inputs, self.kinds, strict=True)))

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        result = self._parsed.to_column(dict(zip(self.inputs, values, strict=True)))
        if self._parsed.kind == "number":
            return F.when(F.abs(result) <= FLOAT32_MAX, result)
        return result.cast("double") if self._parsed.kind == "truth" else result

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        result = self._parsed.to_array(dict(zip(self.inputs, values, strict=True)), len(values[0]))
        if self._parsed.kind == "number":
            inside = pc.less_equal(pc.abs(result), FLOAT32_MAX)
            return [pc.if_else(inside, result, pa.scalar(None, pa.float64()))]
        return [result.cast(pa.float64()) if self._parsed.kind == "truth" else result]

    @classmethod
    def from_state(
        cls, inputs: Sequence[str], outputs: Sequence[str], state: Mapping[str, object]
    ) -> FittedExpression:
        """Creates the fitted step from stored JSON values."""
        return cls(tuple(inputs), tuple(outputs), str(state["formula"]), tuple(state["kinds"]))  # type: ignore[arg-type]


class Expression(Operator):
    """Replaces the columns of a group by one new column, which is computed by a formula.

    The formula can read all columns of the group. Numbers are doubles. If the result is true or false, the
    new column contains 1.0 or 0.0. A formula may contain arithmetic (+ - * / **), comparisons, `and or not`,
    `in [..]` and `a if test else b`. The functions are `log`, `log1p`, `exp`, `sqrt`, `abs`, `floor`, `ceil`,
    `min`, `max`, `length`, `contains`, `starts_with`, `ends_with`, `concat`, `coalesce` and `is_null`.

    If an operand is null, the result is null. Exceptions are `and` and `or` (three-valued logic), `coalesce`
    and `is_null`. In `a if test else b`, a null test is treated as false. A numeric result outside the range
    of float32 (±3.4e38) also becomes null. Put `fill` after this operator to replace such nulls.

    | I1   | I2   | out (formula="I1 / (I2 + 1)") |
    |------|------|-------------------------------|
    | 3    | 1    | 1.5                           |
    | 3    | -1   | null                          |
    | null | 1    | null                          |
    """

    name: ClassVar[str] = "expression"
    page: ClassVar[str] = "columns"
    takes: ClassVar[tuple[Type, ...]] = (*NUMBERS, "string")
    output: str = Field(min_length=1, description="Name of the column that the formula computes.")
    formula: str = Field(description='The formula over columns of the group, such as "I1 / (I2 + 1)".')

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        self.require_types(columns)
        formula = parse(self.formula, kinds_of(columns))
        if not formula.columns:
            raise ConfigError(
                f"the formula {self.formula!r} reads no column",
                "use a column of the group in the formula, or remove the operator",
            )
        kind: Type = "string" if formula.kind == "text" else "float"
        taken = tuple(columns[name] for name in formula.columns)
        return [Step(self, formula.columns, (self.output,), {self.output: kind}, taken)]

    def fit(self, step: Step, statistics: Statistics) -> FittedExpression:
        """Returns the fitted step."""
        kinds = kinds_of(dict(zip(step.inputs, step.taken, strict=True)))
        return FittedExpression(step.inputs, step.outputs, self.formula, tuple(kinds.values()))
