"""Base classes of operators over rows, the entries of the section `prepare`. They run before all features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame

from etl.ops.base import Type
from etl.ops.parameters import Parameters


class FrameOperator(Parameters, ABC):
    """An operator over rows. It needs no fit. The sql engine applies it to the rows of a day."""

    @abstractmethod
    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """The raw columns after the operator, with their types.

        Raises:
            ConfigError: a column it names is not there, or has a wrong type.
        """


class RowFilter(FrameOperator):
    """An operator that leaves rows out. They are counted by `reason` among the day's dropped rows."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """What the day's counts call the rows it leaves out."""

    @abstractmethod
    def keeps(self, columns: Mapping[str, Type]) -> Column:
        """Whether a row stays: true or false, never null."""


class RowChanger(FrameOperator):
    """An operator that adds columns or changes the grain of the rows."""

    @abstractmethod
    def apply(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns of the operator."""
