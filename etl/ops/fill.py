"""Fill: a constant in place of null."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from etl.ops.base import Moments, Operator, RowWise
from etl.vocabulary import Vocabulary


@dataclass(frozen=True)
class FittedFill(RowWise):
    name: ClassVar[str] = "fill"
    value: float = 0.0

    def expression(self, value: Column) -> Column:
        return F.coalesce(value.cast("double"), F.lit(self.value))

    def state(self) -> dict[str, Any]:
        return {"value": self.value}


@dataclass(frozen=True)
class Fill(Operator):
    """Replaces null by `value`.

    | in   | out (value=0) |
    |------|---------------|
    | null | 0.0           |
    | 7    | 7.0           |
    """

    name: ClassVar[str] = "fill"
    value: float = 0.0

    def fit(self, column: str, moments: Moments | None, vocabulary: Vocabulary | None) -> FittedFill:
        return FittedFill(column, float(self.value))
