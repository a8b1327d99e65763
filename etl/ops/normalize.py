"""Normalize: zero mean and unit variance over the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column

from conf.errors import DataError
from etl.ops.base import Moments, Need, Operator, RowWise
from etl.vocabulary import Vocabulary


@dataclass(frozen=True)
class FittedNormalize(RowWise):
    name: ClassVar[str] = "normalize"
    mean: float = 0.0
    std: float = 1.0

    def expression(self, value: Column) -> Column:
        return (value.cast("double") - self.mean) / self.std

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std}


@dataclass(frozen=True)
class Normalize(Operator):
    """(x - mean) / std, with the population standard deviation of the training rows; null stays null.

    A column with a single value has std 0: it is divided by 1, and so becomes 0.

    | in   | out (mean 2, std 0.5) |
    |------|-----------------------|
    | 3    | 2.0                   |
    | null | null                  |
    """

    name: ClassVar[str] = "normalize"
    needs: ClassVar[Need] = "moments"

    def fit(self, column: str, moments: Moments | None, vocabulary: Vocabulary | None) -> FittedNormalize:
        if moments is None or moments.rows == 0:
            raise DataError(
                f"normalize cannot be fitted on {column}: it has no value in the training rows",
                f"add fill before normalize, or leave {column} out of features",
            )
        return FittedNormalize(column, moments.mean, moments.std or 1.0)
