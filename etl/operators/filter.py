"""Filter: keeps the rows for which a formula is true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pyarrow as pa
from pydantic import Field

from conf.errors import ConfigError
from etl.operators.expression import kinds_of
from etl.ops.base import RowFilter, Type
from etl.ops.formula import parse


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
        """Returns `columns`. Raises ConfigError if the formula `keep` is not a condition."""
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

    def inputs(self, columns: Mapping[str, Type]) -> tuple[str, ...]:
        """Returns the columns of the formula."""
        return tuple(parse(self.keep, kinds_of(columns)).columns)

    def keeps_rows(
        self, rows: Mapping[str, pa.Array], count: int, columns: Mapping[str, Type]
    ) -> pa.BooleanArray:
        """Returns, for each row, whether the formula is true; null if the formula is null."""
        return parse(self.keep, kinds_of(columns)).to_array(dict(rows), count)
