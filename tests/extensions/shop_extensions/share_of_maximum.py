"""Share of maximum: divides by the largest number of the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from nightrank.extending import LocalTables, Need, Operator, RowWise, Statistics, Step

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedShareOfMaximum(RowWise):
    """The fitted step of the operator `share_of_maximum`."""

    name: ClassVar[str] = "share_of_maximum"
    largest: float = 1.0

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        return values[0].cast("double") / self.largest

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        return [pc.divide(values[0].cast(pa.float64(), safe=False), self.largest)]


class ShareOfMaximum(Operator):
    """Divides by the largest number of the training rows. If this number is 0 or null, it divides by 1."""

    name: ClassVar[str] = "share_of_maximum"
    page: ClassVar[str] = "numbers"
    needs: ClassVar[Need] = "quantiles"

    def probabilities(self) -> tuple[float, ...]:
        """Returns the probabilities of the quantiles that `fit` needs: only that of the maximum."""
        return (1.0,)

    def fit(self, step: Step, statistics: Statistics) -> FittedShareOfMaximum:
        """Returns the fitted step."""
        return FittedShareOfMaximum(step.inputs, step.outputs, float(statistics.quantiles.get(1.0, 0) or 1))
