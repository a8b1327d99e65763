"""Log1p: computes the natural logarithm of 1 + x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from conf.lazy_imports import F
from etl.ops.arrays import as_doubles, from_doubles
from etl.ops.base import Operator, RowWise, Step
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedLog1p(RowWise):
    """The fitted step of the operator `log1p`."""

    name: ClassVar[str] = "log1p"

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        return F.log1p(values[0].cast("double"))

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        numbers, nulls = as_doubles(values[0])
        none = nulls | (numbers <= -1)
        return [from_doubles(np.log1p(np.where(none, 0.0, numbers)), none)]


class Log1p(Operator):
    """Computes the natural logarithm of 1 + x. Values of -1 or less become null.

    To avoid these nulls, put `clip` before `log1p`.

    | in   | out    |
    |------|--------|
    | 0    | 0.0    |
    | 9    | 2.3026 |
    | -1   | null   |
    | null | null   |
    """

    name: ClassVar[str] = "log1p"
    page: ClassVar[str] = "numbers"

    def fit(self, step: Step, statistics: Statistics) -> FittedLog1p:
        """Returns the fitted step."""
        return FittedLog1p(step.inputs, step.outputs)
