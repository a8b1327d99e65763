"""Filter: rows for which a formula holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from pyspark.sql import Column
from pyspark.sql import functions as F

from conf.errors import ConfigError
from etl.ops.base import Type
from etl.ops.expression import kinds_of
from etl.ops.formula import parse
from etl.ops.frames import RowFilter


class Filter(RowFilter):
    """Keeps the rows for which the formula `keep` is true.

    Rows with false or null are dropped and counted as `filter:<keep>`.

    | I1   | keep="I1 >= 0" |
    |------|----------------|
    | 3    | stays          |
    | -1   | dropped        |
    | null | dropped        |
    """

    name: ClassVar[str] = "filter"
    keep: str = Field(description='The test that a row must pass, such as "I1 >= 0".')

    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """The columns after the operator; raises ConfigError if these do not fit."""
        kind = parse(self.keep, kinds_of(columns)).kind
        if kind != "truth":
            raise ConfigError(f"filter keep={self.keep!r} is a {kind}, not a test", 'write keep: "I1 >= 0"')
        return columns

    @property
    def reason(self) -> str:
        """What the day's counts call dropped rows."""
        return f"filter:{self.keep}"

    def keeps(self, columns: Mapping[str, Type]) -> Column:
        """Whether a row stays: true or false, never null."""
        formula = parse(self.keep, kinds_of(columns))
        return F.coalesce(formula.to_column({name: F.col(name) for name in formula.columns}), F.lit(False))
