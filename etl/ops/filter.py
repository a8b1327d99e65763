"""Filter: keeps the rows for which a formula is true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from conf.errors import ConfigError
from conf.lazy_pyspark import F
from etl.ops.base import Type
from etl.ops.expression import kinds_of
from etl.ops.formula import parse
from etl.ops.frames import RowFilter

if TYPE_CHECKING:
    from pyspark.sql import Column


class Filter(RowFilter):
    """Keeps the rows for which the formula `keep` is true.

    Rows for which the formula is false or null are dropped. The number of dropped rows is part of the day's
    row counts, under the name `filter:<keep>`.

    | I1   | keep="I1 >= 0" |
    |------|----------------|
    | 3    | stays          |
    | -1   | dropped        |
    | null | dropped        |
    """

    name: ClassVar[str] = "filter"
    keep: str = Field(description='Condition for keeping a row, such as "I1 >= 0".')

    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """Returns the types of the columns. Raises ConfigError if the formula `keep` is not a condition."""
        kind = parse(self.keep, kinds_of(columns)).kind
        if kind != "truth":
            raise ConfigError(
                f"the result of `filter` with keep={self.keep!r} is a {kind}, not true or false",
                'write a comparison, such as keep: "I1 >= 0"',
            )
        return columns

    @property
    def reason(self) -> str:
        """Returns the name under which the day's row counts contain the number of dropped rows."""
        return f"filter:{self.keep}"

    def keeps(self, columns: Mapping[str, Type]) -> Column:
        """Returns the condition under which a row is kept. The condition is true or false, never null."""
        formula = parse(self.keep, kinds_of(columns))
        return F.coalesce(formula.to_column({name: F.col(name) for name in formula.columns}), F.lit(False))
