"""The base classes of the operators in the section `prepare`, which run before features are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from etl.ops.base import Type
from etl.ops.parameters import Parameters

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class FrameOperator(Parameters, ABC):
    """An operator over rows. It needs no fit, and always runs in the engine `sql`, on one day at a time.

    Attributes:
        page: the page of docs/operators that describes the operator (`PAGES` in etl/ops/pages.py).
    """

    page: ClassVar[str] = "rows"

    @abstractmethod
    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """Returns the columns that rows have after the operator, and their types.

        Raises:
            ConfigError: a parameter names a column that does not exist or has a wrong type.
        """


class RowFilter(FrameOperator):
    """An operator that drops rows. The day's row counts contain the number of dropped rows as `reason`."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """Returns the name under which the day's row counts contain the number of dropped rows."""

    @abstractmethod
    def keeps(self, columns: Mapping[str, Type]) -> Column:
        """Returns the condition under which a row is kept. The condition is true or false, never null."""


class RowChanger(FrameOperator):
    """An operator that adds columns or combines rows."""

    @abstractmethod
    def apply(self, rows: DataFrame) -> DataFrame:
        """Returns the rows after the operator."""
