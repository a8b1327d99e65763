"""Computes the keyed tables of all steps of one operator in one pass over the training rows.

A step is an operator with its input columns. A keyed table has one row per key, with statistics of the
training rows that have this key. If each keyed table were computed separately, the training rows would be
read three times for each of them: for its statistics, for the key ranges of its files, and for the statistics
over all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from etl.ops.base import Operator
from etl.ops.keyed import GROUP, KEY
from etl.raw.value_text import joined_column

# Index of the table with the statistics over all rows. This table has a single key, which is null.
_ALL_ROWS = -1
_TABLE, _KEY = GROUP


@dataclass(frozen=True)
class KeyedTables:
    """The keyed tables of all steps of one operator.

    Attributes:
        grouped: the rows of all keyed tables. The two columns in `GROUP` say which step and which key a row
            belongs to.
        facts: values that the operator computes from the statistics of all training rows (see
            Operator.facts).
    """

    grouped: DataFrame = field(repr=False)
    facts: dict[str, Any]

    def table(self, number: int) -> DataFrame:
        """Returns the table (key string, …) of the step at position `number`, one row per key."""
        statistics = [name for name in self.grouped.columns if name not in GROUP]
        return self.grouped.where(F.col(_TABLE) == number).select(F.col(_KEY).alias(KEY), *statistics)


@contextmanager
def keyed_tables(
    rows: DataFrame, operator: Operator, keys: Sequence[Sequence[Column]]
) -> Iterator[KeyedTables]:
    """Computes the keyed tables of an operator's steps, and keeps them in memory until the `with` block ends.

    Args:
        rows: the training rows.
        operator: the operator of all these steps.
        keys: the input columns of each step. A row in which all inputs of a step are null is not used for
            this step.

    Raises:
        DataError: a value is too large to compute exact sums.
    """
    grouped = operator.groups(
        _by_group(rows, [joined_column(inputs) for inputs in keys], operator.of_all_rows)
    )
    grouped = grouped.persist()
    try:
        totals = grouped.where(F.col(_TABLE) == _ALL_ROWS).collect() if operator.of_all_rows else []
        yield KeyedTables(grouped, operator.facts(totals[0].asDict() if totals else {}))
    finally:
        grouped.unpersist()


def _by_group(rows: DataFrame, keys: Sequence[Column], with_all_rows: bool) -> DataFrame:
    """Repeats each row for every step whose key is not null in this row.

    With `with_all_rows`, each row is repeated once more, for the statistics over all rows.
    """
    groups = [
        F.struct(F.lit(number).alias(_TABLE), key.cast("string").alias(_KEY))
        for number, key in enumerate(keys)
    ]
    if with_all_rows:
        groups.append(F.struct(F.lit(_ALL_ROWS).alias(_TABLE), F.lit(None).cast("string").alias(_KEY)))
    repeated = rows.select(*rows.columns, F.explode(F.array(*groups)).alias("_group"))
    table, key = F.col(f"_group.{_TABLE}"), F.col(f"_group.{_KEY}")
    has_group = key.isNotNull() | (table == _ALL_ROWS)
    return repeated.where(has_group).select(*rows.columns, table.alias(_TABLE), key.alias(_KEY))
