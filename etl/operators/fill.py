"""Fill: replaces null by a constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from conf.errors import ConfigError
from conf.lazy_imports import F
from etl.ops.base import Fitted, Number, Operator, Step, Type
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class FittedFill(Fitted):
    """The fitted step of the operator `fill`."""

    name: ClassVar[str] = "fill"
    value: float | str = 0.0

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns `rows` unchanged, and one expression per output."""
        raw = values[0]
        typed = raw if isinstance(self.value, str) else raw.cast("double")
        filled = [F.coalesce(typed, F.lit(self.value))]
        return rows, filled + [raw.isNull().cast("double") for _ in self.outputs[1:]]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        raw = values[0]
        typed = raw if isinstance(self.value, str) else raw.cast(pa.float64(), safe=False)
        filled = [pc.fill_null(typed, self.value)]
        return filled + [
            pa.array(raw.is_null().to_numpy(zero_copy_only=False).astype(np.float64))
            for _ in self.outputs[1:]
        ]


class Fill(Operator):
    """Replaces null by `value`, which is a number for numeric columns and a string for string columns.

    Numbers become doubles. With `indicator: true`, a second column `<column>_filled` is added for each
    column. This column is 1.0 where the value was null, and otherwise 0.0.

    | in   | out (value=0) | `<column>_filled` |
    |------|---------------|-------------------|
    | null | 0.0           | 1.0               |
    | 7    | 7.0           | 0.0               |
    """

    name: ClassVar[str] = "fill"
    page: ClassVar[str] = "numbers"
    takes: ClassVar[tuple[Type, ...]] = ("int", "float", "string")
    value: Number | str = Field(
        default=0.0,
        description="Value that replaces null: a number for numeric columns, a string for string columns.",
    )
    indicator: bool = Field(
        default=False,
        description="Whether to add, for each column, a second column that marks the values that were null.",
    )

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        self.require_types(columns)
        steps = []
        for column, kind in columns.items():
            if (kind == "string") != isinstance(self.value, str):
                raise ConfigError(
                    f"`fill` would replace null in {column} by {self.value!r}, but {column} is of type "
                    f"{kind}",
                    "set `value` of `fill` to a string for string columns, and to a number for numeric "
                    "columns",
                )
            types: dict[str, Type] = {column: "string" if kind == "string" else "float"}
            if self.indicator:
                types[f"{column}_filled"] = "float"
            steps.append(Step(self, (column,), tuple(types), types))
        return steps

    def fit(self, step: Step, statistics: Statistics) -> FittedFill:
        """Returns the fitted step."""
        value = self.value if isinstance(self.value, str) else float(self.value)
        return FittedFill(step.inputs, step.outputs, value)
