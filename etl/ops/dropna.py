"""Dropna: rows without nulls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from conf.errors import ConfigError
from etl.ops.base import Type
from etl.ops.frames import RowFilter


@dataclass(frozen=True)
class Dropna(RowFilter):
    """Drops the rows in which one of `columns` is null, counted as `dropna:<columns>`.

    | I1   | C1   | columns=[I1]   |
    |------|------|----------------|
    | 3    | null | stays          |
    | null | a    | dropped        |
    """

    name: ClassVar[str] = "dropna"
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise ConfigError("dropna names no columns", "write dropna: {columns: [I1]}")

    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        unknown = sorted(set(self.columns) - set(columns))
        if unknown:
            raise ConfigError(
                f"dropna names {unknown}, which are no columns", f"use some of {sorted(columns)}"
            )
        return columns

    @property
    def reason(self) -> str:
        return f"dropna:{','.join(self.columns)}"

    def keeps(self, columns: Mapping[str, Type]) -> Column:
        return reduce(lambda a, b: a & b, (F.col(name).isNotNull() for name in self.columns))
