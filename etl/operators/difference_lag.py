"""DifferenceLag: subtracts the value of an earlier row with the same key from the value of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from conf.errors import ConfigError
from conf.lazy_imports import F, Window
from etl.ops.arrays import (
    bounded_array,
    bounded_column,
    from_doubles,
    groups_of,
    integers_of,
    numbers_of,
    with_column,
)
from etl.ops.base import KEYS, NUMBERS, Integer, RowChanger, Texts, Type
from storage.feature_spec import EVENT_TIME, ROW_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DifferenceLag(RowChanger):
    """Computes the value of a row minus the value of an earlier row with the same key.

    The key of a row consists of its values in the columns `by`. The rows of one day with the same key are
    ordered by time. Rows with the same time are ordered by their position in the log. The earlier row is the
    one that is `lag` rows before the row in this order. The difference is null if there is no earlier row, or
    if one of the two values is null. The new columns are named `<column>_difference_lag_<lag>`. A null in a
    key column is treated like any other value. Differences outside the range of float32 are clipped to this
    range.

    Rows that the section `negatives` adds are never used as the earlier row. Such a row gets the difference
    of the positive row for which it was drawn, because both rows have the same user and time. Therefore, if
    `negatives` is set, `by` and `columns` must not list columns that depend on the item, and `groupby` must
    not come before this operator.

    | user | time | I1 | I1_difference_lag_1 (by user) |
    |------|------|----|-------------------------------|
    | u    | 1    | 5  | null                          |
    | u    | 2    | 7  | 2.0                           |
    | v    | 3    | 1  | null                          |
    """

    name: ClassVar[str] = "difference_lag"
    of_log_rows: ClassVar[bool] = True
    by: Texts = Field(min_length=1, description="Columns whose values together form the key.")
    columns: Texts = Field(min_length=1, description="Numeric columns whose differences are computed.")
    lag: Integer = Field(
        default=1,
        description="Distance between a row and the earlier row, as a number of rows with the same key. A "
        "negative number selects a later row. 0 is not allowed.",
    )

    @field_validator("lag")
    @classmethod
    def _names_another_row(cls, lag: int) -> int:
        if lag == 0:
            raise ValueError("it must be an integer other than 0")
        return lag

    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """Returns the old and new columns with their types.

        Raises:
            ConfigError: a column does not exist or has a wrong type.
        """
        for names, kinds in ((self.by, KEYS), (self.columns, NUMBERS)):
            wrong = [name for name in names if columns.get(name) not in kinds]
            if wrong:
                present = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
                raise ConfigError(
                    f"difference_lag lists {wrong}, which are not columns of type {' or '.join(kinds)}",
                    f"list columns of these types; the columns and their types are: {present}",
                )
        return {**columns, **{self._named(name): "float" for name in self.columns}}

    def _named(self, column: str) -> str:
        return f"{column}_difference_lag_{self.lag}"

    def apply(self, rows: DataFrame) -> DataFrame:
        """Returns the rows with the differences as new columns."""
        order = [EVENT_TIME, ROW_ID] if EVENT_TIME in rows.columns else [ROW_ID]
        by_key = Window.partitionBy(*self.by).orderBy(*order)
        differences = {
            self._named(name): F.col(name).cast("double")
            - F.lag(F.col(name), self.lag).over(by_key).cast("double")
            for name in self.columns
        }
        # Limit the differences in a second withColumns. In a single withColumns, Spark's plan would repeat
        # the window for each use of a difference.
        return rows.withColumns(differences).withColumns(
            {name: bounded_column(F.col(name)) for name in differences}
        )

    def apply_table(self, rows: pa.Table) -> pa.Table:
        """Returns the rows, in the same order, with the differences as new columns."""
        groups, _ = groups_of(rows, self.by)
        times = [integers_of(rows.column(EVENT_TIME))] if EVENT_TIME in rows.column_names else []
        order = np.lexsort((integers_of(rows.column(ROW_ID)), *times, groups))
        # places[i] is the row that is `lag` rows before row i in `order`, or i itself if there is no such
        # row.
        earlier = np.arange(len(rows)) - self.lag
        inside = (earlier >= 0) & (earlier < len(rows))
        inside[inside] = groups[order[earlier[inside]]] == groups[order[inside]]
        places = np.arange(len(rows))
        places[order[inside]] = order[earlier[inside]]
        has_earlier = np.zeros(len(rows), bool)
        has_earlier[order] = inside
        changed = rows
        for name in self.columns:
            values, nulls = numbers_of(rows.column(name))
            no_difference = nulls | nulls[places] | ~has_earlier
            differences = bounded_array(values - values[places])
            changed = with_column(changed, self._named(name), from_doubles(differences, no_difference))
        return changed

    def key_columns(self) -> tuple[str, ...]:
        """Returns the columns `by`."""
        return self.by

    def reads(self, added: str) -> tuple[str, ...]:
        """Returns the columns from which the differences `added` are computed."""
        return (*self.by, *(name for name in self.columns if self._named(name) == added))
