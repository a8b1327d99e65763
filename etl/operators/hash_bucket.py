"""HashBucket: replaces values by ids that are computed by a hash, without a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from conf.lazy_imports import F
from etl.ops.base import LISTS, Buckets, Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics
from etl.ops.xxhash64 import xxhash64
from etl.raw.text_values import over_elements, text_array, text_column
from storage.feature_spec import NULL_ID, NUM_RESERVED_IDS

if TYPE_CHECKING:
    from pyspark.sql import Column


def bucket_column(text: Column, buckets: int, first: int) -> Column:
    """Returns the id `first` + (XXH64(text, seed 42) modulo `buckets`). The text must not be null."""
    return F.pmod(F.xxhash64(text), F.lit(buckets).cast("bigint")) + F.lit(first)


def bucket_array(texts: pa.Array, buckets: int, first: int) -> np.ndarray:
    """Returns the ids of n texts, shape (n,), int64, as `bucket_column` computes them in Spark."""
    return np.mod(xxhash64(texts), buckets) + first


@dataclass(frozen=True)
class FittedHashBucket(RowWise):
    """The fitted step of the operator `hash_bucket`."""

    name: ClassVar[str] = "hash_bucket"
    buckets: int = 1
    lists: bool = False

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        return F.transform(values[0], self._id) if self.lists else self._id(values[0])

    def _id(self, value: Column) -> Column:
        text = text_column(value)
        bucket = bucket_column(text, self.buckets, NUM_RESERVED_IDS)
        return F.when(text.isNull(), F.lit(NULL_ID).cast("bigint")).otherwise(bucket)

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        flat = pc.list_flatten(values[0]) if self.lists else values[0]
        texts = text_array(flat)
        nulls = texts.is_null().to_numpy(zero_copy_only=False)
        ids = pa.array(
            np.where(nulls, NULL_ID, bucket_array(texts, self.buckets, NUM_RESERVED_IDS)), pa.int64()
        )
        return [over_elements(values[0], ids) if self.lists else ids]

    @property
    def cardinality(self) -> int:
        """Returns the number of embedding rows for the output ids, including the rows of reserved ids."""
        return NUM_RESERVED_IDS + self.buckets


class HashBucket(Operator):
    """Replaces a value by an id that is computed from a hash of its text. Null gets NULL_ID (1).

    The text of an integer is its decimal notation. The id is 3 + floorMod(XXH64(UTF-8 text, seed 42),
    `buckets`). Lists are hashed element by element. The
    hash is a signed 64-bit integer, like Spark's `xxhash64`, and the modulo is never negative (as for Spark's
    `pmod` and Python's `%`). Software that treats the hash as unsigned computes other ids for values whose
    hash is negative.

    The operator needs no fit and no vocabulary. But different values may get the same id. With n distinct
    values and b buckets, a value shares its id with about n / b other values.

    | in   | out (buckets=1000)         |
    |------|----------------------------|
    | a    | 3 to 1002, always the same |
    | null | 1 (NULL_ID)                |
    """

    name: ClassVar[str] = "hash_bucket"
    page: ClassVar[str] = "ids"
    takes: ClassVar[tuple[Type, ...]] = ("int", "string", "ints", "strings")
    makes_ids: ClassVar[bool] = True
    buckets: Buckets = Field(description="Number of ids to which the values are hashed.")

    def gives(self, taken: Type) -> Type:
        """Returns the type of the output column for an input column of the type `taken`."""
        return "ints" if taken in LISTS else "int"

    def fit(self, step: Step, statistics: Statistics) -> FittedHashBucket:
        """Returns the fitted step."""
        return FittedHashBucket(
            step.inputs, step.outputs, self.buckets, step.types[step.outputs[0]] == "ints"
        )
