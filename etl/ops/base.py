"""What an operator is.

An operator is parameters, checked at construction. `fit` turns it, with the statistics it asked for, into a frozen
`Fitted` value for one column, which `apply`s to frames and writes itself as JSON. Nothing here knows a session or a
path. To add one: a file in this folder with the two classes, and its line in `etl/ops/__init__.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from etl.vocabulary import Vocabulary

Need = Literal["nothing", "moments", "counts"]


@dataclass(frozen=True)
class Moments:
    """Exact statistics of a numeric column over the training rows, nulls left out (population variance)."""

    rows: int
    mean: float
    std: float


@dataclass(frozen=True)
class Fitted(ABC):
    """A fitted operator on one column: frame → frame."""

    name: ClassVar[str]
    column: str

    @abstractmethod
    def apply(self, rows: DataFrame) -> DataFrame:
        """The frame with `column` replaced; every other column and the number of rows stay as they are."""

    def state(self) -> dict[str, Any]:
        """JSON values from which `from_state` makes an equal operator."""
        return {}

    @classmethod
    def from_state(cls, column: str, state: Mapping[str, Any], vocabulary: Vocabulary | None) -> Fitted:
        return cls(column=column, **state)


@dataclass(frozen=True)
class RowWise(Fitted):
    """A fitted operator that is one column expression. Runs of them become one projection."""

    @abstractmethod
    def expression(self, value: Column) -> Column:
        """The new value from the old, row by row."""

    def apply(self, rows: DataFrame) -> DataFrame:
        return rows.withColumn(self.column, self.expression(F.col(self.column)))


@dataclass(frozen=True)
class Operator(ABC):
    """Parameters of an operator.

    `needs` names the statistics of the training rows that `fit` asks for: `moments`, `counts` (a vocabulary of the
    column's values), or `nothing`.
    """

    name: ClassVar[str]
    needs: ClassVar[Need] = "nothing"
    makes: ClassVar[Literal["dense", "categorical"]] = "dense"

    @abstractmethod
    def fit(self, column: str, moments: Moments | None, vocabulary: Vocabulary | None) -> Fitted:
        """The frozen operator for one column; the argument that `needs` names is there, the others are None."""
