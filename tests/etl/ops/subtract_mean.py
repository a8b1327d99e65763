"""An operator as somebody would add it: one file, with a statistic of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column

from etl.ops.base import Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import MergeableStatistic, Need, Statistics


@dataclass(frozen=True)
class SumOfIntegers(MergeableStatistic):
    """The number of values and their exact sum: Python's integers have no limit."""

    max_bytes: ClassVar[int] = 100

    def measure(self, values: pa.Array, counts: np.ndarray) -> bytes:
        pairs = zip(values.to_pylist(), counts.tolist(), strict=True)
        return f"{int(counts.sum())} {sum(value * count for value, count in pairs)}".encode()

    def merge(self, first: bytes, second: bytes) -> bytes:
        return b" ".join(
            b"%d" % (int(a) + int(b)) for a, b in zip(first.split(), second.split(), strict=True)
        )

    def result(self, state: bytes) -> Any:
        return tuple(int(part) for part in state.split())


@dataclass(frozen=True)
class FittedSubtractMean(RowWise):
    name: ClassVar[str] = "subtract_mean"
    mean: float = 0.0

    def expression(self, *values: Column) -> Column:
        return values[0].cast("double") - self.mean

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        return [pc.subtract(values[0].cast(pa.float64(), safe=False), self.mean)]


class SubtractMean(Operator):
    """Subtracts the mean of the training rows, which is rounded down."""

    name: ClassVar[str] = "subtract_mean"
    page: ClassVar[str] = "numbers"
    takes: ClassVar[tuple[Type, ...]] = ("int",)
    needs: ClassVar[Need] = "mergeable"

    def statistic(self, kind: Type) -> MergeableStatistic:
        return SumOfIntegers()

    def fit(self, step: Step, statistics: Statistics) -> FittedSubtractMean:
        count, total = statistics.merged
        return FittedSubtractMean(step.inputs, step.outputs, float(total // max(count, 1)))
