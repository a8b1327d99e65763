"""Base classes of operators over rows, for the section `prepare`. They run before features are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame

from etl.ops.base import Type
from etl.ops.parameters import Parameters


class FrameOperator(Parameters, ABC):
    """An operator over rows. It needs no fit, and always runs in the sql engine, one day at a time."""

    @abstractmethod
    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """Returns the columns after the operator, with their types.

        Raises:
            ConfigError: a column that the operator names does not exist or has a wrong type.
        """


class RowFilter(FrameOperator):
    """An operator that drops rows. They are counted under the name `reason` in the day's dropped rows."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """The name under which dropped rows are counted."""

    @abstractmethod
    def keeps(self, columns: Mapping[str, Type]) -> Column:
        """Whether a row is kept: true or false, never null."""


class RowChanger(FrameOperator):
    """An operator that adds columns or combines rows."""

    @abstractmethod
    def apply(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns of the operator."""
