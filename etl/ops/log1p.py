"""Log1p: log(1 + x)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from etl.ops.base import Moments, Operator, RowWise
from etl.vocabulary import Vocabulary


@dataclass(frozen=True)
class FittedLog1p(RowWise):
    name: ClassVar[str] = "log1p"

    def expression(self, value: Column) -> Column:
        return F.log1p(value.cast("double"))


@dataclass(frozen=True)
class Log1p(Operator):
    """The natural logarithm of 1 + x. A value of -1 or less has none and becomes null: clip before.

    | in   | out    |
    |------|--------|
    | 0    | 0.0    |
    | 9    | 2.3026 |
    | -1   | null   |
    | null | null   |
    """

    name: ClassVar[str] = "log1p"

    def fit(self, column: str, moments: Moments | None, vocabulary: Vocabulary | None) -> FittedLog1p:
        return FittedLog1p(column)
