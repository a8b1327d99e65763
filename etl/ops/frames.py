"""Base classes of operators over rows, for the section `prepare`. They run before features are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame

from etl.ops.base import Type
from etl.ops.parameters import Parameters


class FrameOperator(Parameters, ABC):
    """An operator over rows. It needs no fit, and always runs in the engine `sql`, on one day at a time."""

    @abstractmethod
    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """Returns the columns after the operator, with their types.

        Raises:
            ConfigError: a parameter names a column that does not exist or has a wrong type.
        """


class RowFilter(FrameOperator):
    """An operator that drops rows. The day's row counts contain their number under the name `reason`."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """The name under which the number of dropped rows is recorded."""

    @abstractmethod
    def keeps(self, columns: Mapping[str, Type]) -> Column:
        """Returns the condition for keeping a row. It is true or false, never null."""


class RowChanger(FrameOperator):
    """An operator that adds columns or combines rows."""

    @abstractmethod
    def apply(self, rows: DataFrame) -> DataFrame:
        """Returns the rows after the operator."""
