"""Clip: limits numbers to a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from conf.errors import ConfigError
from conf.lazy_imports import F
from etl.ops.arrays import as_doubles, from_doubles
from etl.ops.base import Number, Operator, RowWise, Step
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedClip(RowWise):
    """The fitted step of the operator `clip`."""

    name: ClassVar[str] = "clip"
    min: float | None = None
    max: float | None = None

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        clipped = values[0].cast("double")
        # Do not use greatest() and least(): they ignore nulls, and would replace null by the limit.
        if self.min is not None:
            clipped = F.when(clipped < self.min, F.lit(self.min)).otherwise(clipped)
        if self.max is not None:
            clipped = F.when(clipped > self.max, F.lit(self.max)).otherwise(clipped)
        return clipped

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        numbers, nulls = as_doubles(values[0])
        return [from_doubles(np.clip(numbers, self.min, self.max), nulls)]


class Clip(Operator):
    """Replaces values below `min` by `min`, and values above `max` by `max`. Null stays null.

    | in   | out (min=0) |
    |------|-------------|
    | -3   | 0.0         |
    | 5    | 5.0         |
    | null | null        |
    """

    name: ClassVar[str] = "clip"
    page: ClassVar[str] = "numbers"
    min: Number | None = Field(default=None, description="Lower limit of the range. Null: no lower limit.")
    max: Number | None = Field(default=None, description="Upper limit of the range. Null: no upper limit.")

    @model_validator(mode="after")
    def _is_a_range(self) -> Clip:
        if self.min is None and self.max is None:
            raise ConfigError("`clip` has neither `min` nor `max`", "set one of them, such as clip: {min: 0}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ConfigError(f"clip min={self.min} is above max={self.max}", "swap min and max")
        return self

    def fit(self, step: Step, statistics: Statistics) -> FittedClip:
        """Returns the fitted step."""
        bounds = [None if bound is None else float(bound) for bound in (self.min, self.max)]
        return FittedClip(step.inputs, step.outputs, *bounds)
