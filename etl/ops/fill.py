"""Fill: a constant in place of null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.errors import ConfigError
from etl.ops.base import Fitted, Operator, Statistics, Step, Type
from etl.ops.parameters import Number
from etl.ops.tables import LocalTables, Tables


@dataclass(frozen=True)
class FittedFill(Fitted):
    """A fitted `fill`."""

    name: ClassVar[str] = "fill"
    value: float | str = 0.0

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """The frame, joined with tables if necessary, and an expression for each output."""
        raw = values[0]
        typed = raw if isinstance(self.value, str) else raw.cast("double")
        filled = [F.coalesce(typed, F.lit(self.value))]
        return rows, filled + [raw.isNull().cast("double") for _ in self.outputs[1:]]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """The outputs as Arrow arrays, one for each."""
        raw = values[0]
        typed = raw if isinstance(self.value, str) else raw.cast(pa.float64(), safe=False)
        filled = [pc.fill_null(typed, self.value)]
        return filled + [
            pa.array(raw.is_null().to_numpy(zero_copy_only=False).astype(np.float64))
            for _ in self.outputs[1:]
        ]


class Fill(Operator):
    """Replaces null by `value`: a number in columns of numbers, a text in columns of strings.

    Columns of numbers become doubles. With `indicator`, each column gets a second column, `<column>_filled`:
    1.0 where it was null, otherwise 0.0.

    | in   | out (value=0) | out, indicator |
    |------|---------------|----------------|
    | null | 0.0           | 1.0            |
    | 7    | 7.0           | 0.0            |
    """

    name: ClassVar[str] = "fill"
    takes: ClassVar[tuple[Type, ...]] = ("int", "float", "string")
    value: Number | str = Field(
        default=0.0,
        description="What replaces null: a number for columns of numbers, a text for columns of strings.",
    )
    indicator: bool = Field(
        default=False,
        description="Whether each column gets a second column that says where it was null.",
    )

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """The steps over these columns; raises ConfigError if they do not fit."""
        self.require_types(columns)
        steps = []
        for column, kind in columns.items():
            if (kind == "string") != isinstance(self.value, str):
                raise ConfigError(
                    f"fill value={self.value!r} is no {kind}, as {column} is",
                    "write a text for columns of strings and a number for columns of numbers",
                )
            types: dict[str, Type] = {column: "string" if kind == "string" else "float"}
            if self.indicator:
                types[f"{column}_filled"] = "float"
            steps.append(Step(self, (column,), tuple(types), types))
        return steps

    def fit(self, step: Step, statistics: Statistics) -> FittedFill:
        """The fitted step."""
        value = self.value if isinstance(self.value, str) else float(self.value)
        return FittedFill(step.inputs, step.outputs, value)
