"""What an operator over whole rows is: the entries of the section `prepare`, applied in order before any feature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame

from etl.ops.base import Type
from etl.ops.parameters import Parameters


class FrameOperator(Parameters, ABC):
    """An operator over rows. It needs no fit: a day's rows → a day's rows, by the sql engine."""

    @abstractmethod
    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """The raw columns there are afterwards.

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
        """The rows with its columns."""
