"""Clip: values are moved into a closed range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from conf.errors import ConfigError
from etl.ops.base import Moments, Operator, RowWise
from etl.vocabulary import Vocabulary


@dataclass(frozen=True)
class FittedClip(RowWise):
    name: ClassVar[str] = "clip"
    min: float | None = None
    max: float | None = None

    def expression(self, value: Column) -> Column:
        clipped = value.cast("double")
        # when(), because greatest() and least() skip nulls and would turn a null into the bound.
        if self.min is not None:
            clipped = F.when(clipped < self.min, F.lit(self.min)).otherwise(clipped)
        if self.max is not None:
            clipped = F.when(clipped > self.max, F.lit(self.max)).otherwise(clipped)
        return clipped

    def state(self) -> dict[str, Any]:
        return {"min": self.min, "max": self.max}


@dataclass(frozen=True)
class Clip(Operator):
    """Moves values below `min` to `min` and above `max` to `max`; null stays null.

    | in   | out (min=0) |
    |------|-------------|
    | -3   | 0.0         |
    | 5    | 5.0         |
    | null | null        |
    """

    name: ClassVar[str] = "clip"
    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        if self.min is None and self.max is None:
            raise ConfigError("clip has neither min nor max", "write clip: {min: 0}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ConfigError(f"clip min={self.min} is above max={self.max}", "swap them")

    def fit(self, column: str, moments: Moments | None, vocabulary: Vocabulary | None) -> FittedClip:
        bounds = [None if bound is None else float(bound) for bound in (self.min, self.max)]
        return FittedClip(column, *bounds)
