"""Dropna: drops rows with nulls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from conf.errors import ConfigError
from etl.ops.base import RowFilter, Texts, Type


class Dropna(RowFilter):
    """Drops rows in which any of `columns` is null.

    The number of dropped rows is part of the day's row counts, under the name `dropna:<columns>`.

    | I1   | C1   | columns=[I1]   |
    |------|------|----------------|
    | 3    | null | stays          |
    | null | a    | dropped        |
    """

    name: ClassVar[str] = "dropna"
    columns: Texts = Field(min_length=1, description="Columns that must have a value.")

    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """Returns `columns`. Raises ConfigError if one of `self.columns` does not exist."""
        unknown = sorted(set(self.columns) - set(columns))
        if unknown:
            raise ConfigError(
                f"dropna lists {unknown}, but the log has no such columns",
                f"choose from the columns {sorted(columns)}",
            )
        return columns

    @property
    def reason(self) -> str:
        """Returns the name under which the day's row counts contain the number of dropped rows."""
        return f"dropna:{','.join(self.columns)}"

    def inputs(self, columns: Mapping[str, Type]) -> tuple[str, ...]:
        """Returns the columns that must have a value."""
        return tuple(self.columns)

    def keeps_rows(
        self, rows: Mapping[str, pa.Array], count: int, columns: Mapping[str, Type]
    ) -> pa.BooleanArray:
        """Returns, for each row, whether all of `self.columns` have a value."""
        return reduce(pc.and_, (rows[name].is_valid() for name in self.columns))
