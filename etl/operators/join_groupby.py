"""JoinGroupby: adds columns with statistics of the training rows that have the same key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from conf.errors import ConfigError
from conf.lazy_imports import F
from etl.ops.arrays import as_doubles, from_doubles
from etl.ops.base import KEYS, Operator, Step, Texts, Type
from etl.ops.keyed import GROUP, KeyedFitted, bind_keys, exact_sum, table_name
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import GroupedRows, GroupParts, Need, Statistics, doubles_of_sums

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Statistic = Literal["count", "sum", "mean", "var", "std", "min", "max"]


@dataclass(frozen=True)
class FittedJoinGroupby(KeyedFitted):
    """The fitted step of the operator `join_groupby`."""

    name: ClassVar[str] = "join_groupby"
    measures: tuple[str, ...] = ()

    @classmethod
    def from_state(
        cls, inputs: Sequence[str], outputs: Sequence[str], state: Mapping[str, Any]
    ) -> FittedJoinGroupby:
        """Creates the fitted step from stored JSON values."""
        return cls(tuple(inputs), tuple(outputs), state["table"], tuple(state["measures"]))

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns `rows`, joined with the table of statistics by key, and one expression per output."""
        joined, of = self.join_table(rows, values, tables, tag)
        return joined, [
            F.coalesce(of(measure), F.lit(0.0)) if measure == "count" else of(measure)
            for measure in self.measures
        ]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        of = self.look_up(values, tables)
        return [
            pc.fill_null(of(measure), 0.0) if measure == "count" else of(measure) for measure in self.measures
        ]


class JoinGroupby(Operator):
    """Adds statistics of the numeric columns `of`, computed over the training rows with the same key.

    `count` is the number of rows. `var` and `std` are the population variance and standard deviation. Nulls
    in the columns `of` are ignored. Outputs are named `<key>_count` and `<key>_<column>_<statistic>`. Each
    column of the group is a separate key. With `joint: true`, all columns together form one key.

    If a key is null or does not occur in the training rows, the count is 0 and all other statistics are null.
    The statistics of a column are also null if it is null in all rows with the key. `sum`, `mean`, `var` and
    `std` are null if the sum is 5e30 or more. `var` and `std` are also null if the sum of squared differences
    from the mean is 5e30 or more. Put `fill` after this operator to replace such nulls.

    The table shows results for `of: [I1]` and the training rows (key=a, I1=1) and (key=a, I1=3):

    | key  | I1   | key_count | key_I1_mean |
    |------|------|-----------|-------------|
    | a    | 9    | 2.0       | 2.0         |
    | zzz  | 9    | 0.0       | null        |
    | null | 9    | 0.0       | null        |
    """

    name: ClassVar[str] = "join_groupby"
    page: ClassVar[str] = "keys"
    needs: ClassVar[Need] = "groups"
    takes: ClassVar[tuple[Type, ...]] = KEYS
    statistics: tuple[Statistic, ...] = Field(
        default=("count",),
        min_length=1,
        strict=False,
        description="List of statistics: `count`, `sum`, `mean`, `var`, `std`, `min`, `max`. All except "
        "`count` need columns in `of`.",
    )
    of: Texts = Field(
        default=(),
        description="Numeric columns whose statistics are computed. The label is not allowed; use "
        "`target_encoding` instead. Empty: rows are only counted.",
    )
    joint: bool = Field(
        default=False,
        description="Whether all columns of the group together form one key. If false, each column is a key.",
    )

    @model_validator(mode="after")
    def _has_columns_to_measure(self) -> JoinGroupby:
        if not self.of and set(self.statistics) != {"count"}:
            raise ConfigError(
                f"join_groupby statistics={list(self.statistics)} needs numeric columns, but `of` is empty",
                "list numeric columns in `of`, or compute only the statistic count",
            )
        return self

    def _names(self) -> list[str]:
        counted = ["count"] if "count" in self.statistics else []
        measured = [statistic for statistic in self.statistics if statistic != "count"]
        return counted + [f"{column}_{statistic}" for column in self.of for statistic in measured]

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        return bind_keys(
            self, columns, self.joint, lambda key: {f"{key}_{name}": "float" for name in self._names()}
        )

    def reads(self) -> tuple[str, ...]:
        """Returns the raw columns that the statistics need in addition to the inputs of the step."""
        return self.of

    def groups(self, rows: DataFrame) -> DataFrame:
        """Returns a frame with one row per step and key, and one column of doubles for each statistic."""
        measures: dict[str, Column] = {"count": F.count(F.lit(1)).cast("double")}
        for column in self.of:
            value = F.col(column).cast("double")
            measures |= {
                f"{column}_rows": F.count(value).cast("double"),
                f"{column}_sum": exact_sum(value),
                # Replace -0.0 by 0.0. Otherwise, the order of rows could decide which of these is the result.
                f"{column}_min": F.min(value) + F.lit(0.0),
                f"{column}_max": F.max(value) + F.lit(0.0),
            }
        table = rows.groupBy(*GROUP).agg(*(measure.alias(name) for name, measure in measures.items()))
        for column in self.of:
            rows_of = F.col(f"{column}_rows")
            table = table.withColumn(
                f"{column}_mean", F.when(rows_of > 0, F.col(f"{column}_sum") / rows_of)
            ).withColumn(f"{column}_sum", F.when(rows_of > 0, F.col(f"{column}_sum")))
        if {"var", "std"} & set(self.statistics):
            table = self._with_variances(rows, table)
        return table.select(*GROUP, *(F.col(name).cast("double") for name in self._names()))

    def _with_variances(self, rows: DataFrame, table: DataFrame) -> DataFrame:
        """Adds the variances to `table`, the frame of statistics by key.

        To sum the squared differences from the mean, the function reads `rows` a second time.
        """
        means = table.select(*GROUP, *(f"{column}_mean" for column in self.of))
        squares = rows.join(means, list(GROUP)).groupBy(*GROUP)
        summed = squares.agg(
            *(
                exact_sum(F.pow(F.col(column).cast("double") - F.col(f"{column}_mean"), 2.0)).alias(
                    f"{column}_squares"
                )
                for column in self.of
            )
        )
        table = table.join(summed, list(GROUP))
        for column in self.of:
            rows_of = F.col(f"{column}_rows")
            # The mean is null if the sum is too large. Then the variance is null too.
            measured = (rows_of > 0) & F.col(f"{column}_mean").isNotNull()
            variance = F.when(measured, F.col(f"{column}_squares") / rows_of)
            table = table.withColumn(f"{column}_var", variance).withColumn(f"{column}_std", F.sqrt(variance))
        return table

    @property
    def reads_rows_twice(self) -> bool:
        """Returns whether the rows are read again, to sum the squared differences from the mean."""
        return bool({"var", "std"} & set(self.statistics)) and bool(self.of)

    def group_parts(self, rows: GroupedRows) -> GroupParts:
        """Returns the counts, sums, minima and maxima of some rows by key."""
        sums, least, most = {"count": rows.counts()[:, None]}, {}, {}
        for column in dict.fromkeys(self.of):
            numbers = rows.column(column)
            sums |= {f"{column}_rows": numbers.counts()[:, None], f"{column}_sum": numbers.sums()}
            least[column], most[column] = numbers.least(), numbers.most()
        return GroupParts(rows.size, sums, least, most)

    def group_means(self, parts: GroupParts) -> dict[str, np.ndarray]:
        """Returns the mean of each column by key, float64; NaN if the sum is too large."""
        return {column: _means(parts, column) for column in dict.fromkeys(self.of)}

    def group_squares(self, rows: GroupedRows, means: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the sums of squared differences from the mean for some rows by key."""
        squares = {}
        for column in dict.fromkeys(self.of):
            numbers = rows.column(column)
            with np.errstate(over="ignore", invalid="ignore"):
                distances = numbers.values - means[column][numbers.groups]
                squares[f"{column}_squares"] = replace(numbers, values=distances * distances).sums()
        return squares

    def group_statistics(self, parts: GroupParts) -> dict[str, pa.Array]:
        """Returns the same statistics by key as `groups`.

        `parts` are merged partial statistics (GroupParts).
        """
        table = {"count": pa.array(parts.count("count"), pa.float64())}
        for column in self.of:
            counts = parts.count(f"{column}_rows")
            nothing = counts == 0
            sums, no_sum = as_doubles(doubles_of_sums(parts.sums[f"{column}_sum"]))
            without = nothing | no_sum
            table |= {
                f"{column}_sum": from_doubles(sums, without),
                f"{column}_mean": from_doubles(_means(parts, column), without),
                f"{column}_min": from_doubles(parts.least[column] + 0.0, nothing),
                f"{column}_max": from_doubles(parts.most[column] + 0.0, nothing),
            }
            if self.reads_rows_twice:
                squared, too_large = as_doubles(doubles_of_sums(parts.sums[f"{column}_squares"]))
                variances = squared / np.where(nothing, 1, counts)
                table[f"{column}_var"] = from_doubles(variances, without | too_large)
                table[f"{column}_std"] = from_doubles(np.sqrt(variances), without | too_large)
        return {name: table[name] for name in self._names()}

    def fit(self, step: Step, statistics: Statistics) -> FittedJoinGroupby:
        """Returns the fitted step."""
        return FittedJoinGroupby(step.inputs, step.outputs, table_name(step), tuple(self._names()))


def _means(parts: GroupParts, column: str) -> np.ndarray:
    """Returns the mean of a column by key, (size,) float64; NaN if the sum is too large, 0 without rows."""
    counts = parts.count(f"{column}_rows")
    sums, _ = as_doubles(doubles_of_sums(parts.sums[f"{column}_sum"]))
    return np.asarray(sums / np.where(counts == 0, 1, counts))
