"""The keyed tables of all steps of one operator, made in one pass over the training rows.

A table by itself would cost a pass for its statistics, one for where to cut them into files, and one for those of all rows.
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

# The table of all rows, whose one key is null.
_WHOLE = -1
_TABLE, _KEY = GROUP


@dataclass(frozen=True)
class Made:
    """`facts` of the operator, and the tables of its steps."""

    grouped: DataFrame = field(repr=False)
    facts: dict[str, Any]

    def table(self, number: int) -> DataFrame:
        """(key string, …) of the step of that number: one row a key."""
        statistics = [name for name in self.grouped.columns if name not in GROUP]
        return self.grouped.where(F.col(_TABLE) == number).select(F.col(_KEY).alias(KEY), *statistics)


@contextmanager
def keyed_tables(rows: DataFrame, operator: Operator, keys: Sequence[Sequence[Column]]) -> Iterator[Made]:
    """What the operator makes of training rows for steps with these inputs, in memory for as long as the context lasts.

    Args:
        keys: of each step, its inputs over the rows; a row in which all are null is in no group of the step.

    Raises:
        DataError: a value too large for exact sums.
    """
    grouped = operator.groups(_by_group(rows, [joined_column(each) for each in keys], operator.of_all_rows))
    grouped = grouped.persist()
    try:
        whole = grouped.where(F.col(_TABLE) == _WHOLE).collect() if operator.of_all_rows else []
        yield Made(grouped, operator.facts(whole[0].asDict() if whole else {}))
    finally:
        grouped.unpersist()


def _by_group(rows: DataFrame, keys: Sequence[Column], with_whole: bool) -> DataFrame:
    """Each row once for each of its keys that is not null and, with `with_whole`, once for all rows."""
    groups = [
        F.struct(F.lit(number).alias(_TABLE), key.cast("string").alias(_KEY))
        for number, key in enumerate(keys)
    ]
    if with_whole:
        groups.append(F.struct(F.lit(_WHOLE).alias(_TABLE), F.lit(None).cast("string").alias(_KEY)))
    apart = rows.select(*rows.columns, F.explode(F.array(*groups)).alias("_group"))
    table, key = F.col(f"_group.{_TABLE}"), F.col(f"_group.{_KEY}")
    wanted = key.isNotNull() | (table == _WHOLE)
    return apart.where(wanted).select(*rows.columns, table.alias(_TABLE), key.alias(_KEY))
