"""HashedCross: replaces the combination of several columns by one id, computed by a hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from conf.errors import ConfigError
from conf.lazy_imports import F
from etl.operators.hash_bucket import bucket_array, bucket_column
from etl.ops.base import KEYS, Buckets, Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics
from etl.raw.text_values import joined_array, joined_column
from storage.feature_spec import NULL_ID, NUM_RESERVED_IDS

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedHashedCross(RowWise):
    """The fitted step of the operator `hashed_cross`."""

    name: ClassVar[str] = "hashed_cross"
    buckets: int = 1

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        text = joined_column(values)
        bucket = bucket_column(text, self.buckets, NUM_RESERVED_IDS)
        return F.when(text.isNull(), F.lit(NULL_ID).cast("bigint")).otherwise(bucket)

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        texts = joined_array(values)
        nulls = texts.is_null().to_numpy(zero_copy_only=False)
        ids = np.where(nulls, NULL_ID, bucket_array(texts, self.buckets, NUM_RESERVED_IDS))
        return [pa.array(ids, pa.int64())]

    @property
    def cardinality(self) -> int:
        """Returns the number of embedding rows for the output ids, including the rows of reserved ids."""
        return NUM_RESERVED_IDS + self.buckets


class HashedCross(Operator):
    """Computes one id for the combination of two or more columns.

    The id is 3 + floorMod(XXH64(joined text, seed 42), `buckets`). The operator `hash_bucket` uses the same
    hash and modulo. The joined text contains the values of the columns as texts, in the order of the group's
    `columns`, separated by the byte 0x1F (unit separator). A null value is written as the byte 0x00. If all
    values are null, the id is NULL_ID (1).

    | C1   | C2   | out (buckets=1000)            |
    |------|------|-------------------------------|
    | a    | b    | 3 to 1002                     |
    | b    | a    | 3 to 1002, usually another id |
    | a    | null | 3 to 1002, usually another id |
    | null | null | 1 (NULL_ID)                   |
    """

    name: ClassVar[str] = "hashed_cross"
    page: ClassVar[str] = "ids"
    takes: ClassVar[tuple[Type, ...]] = KEYS
    makes_ids: ClassVar[bool] = True
    buckets: Buckets = Field(description="Number of ids to which the combinations are hashed.")
    output: str | None = Field(
        default=None, description="Name of the new column. Null: the columns' names, joined by `_x_`."
    )

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        self.require_types(columns)
        if len(columns) < 2:
            raise ConfigError(
                f"hashed_cross needs two columns or more, not {list(columns)}",
                "list two or more columns in features.columns",
            )
        output = self.output or "_x_".join(columns)
        return [Step(self, tuple(columns), (output,), {output: "int"})]

    def fit(self, step: Step, statistics: Statistics) -> FittedHashedCross:
        """Returns the fitted step."""
        return FittedHashedCross(step.inputs, step.outputs, self.buckets)
