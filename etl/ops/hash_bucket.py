"""HashBucket: values to ids by a hash, without a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyspark.sql import Column
from pyspark.sql import functions as F

from etl.ops.base import LISTS, Operator, RowWise, Statistics, Step, Type
from etl.ops.parameters import Buckets
from etl.ops.tables import LocalTables
from etl.ops.xxhash64 import xxhash64
from etl.raw.value_text import over_elements, text_array, text_column
from storage.feature_spec import NULL_ID, NUM_RESERVED_IDS


def bucket_column(text: Column, buckets: int, first: int) -> Column:
    """`first` + XXH64(text, seed 42) modulo `buckets`, for a text that is not null."""
    return F.pmod(F.xxhash64(text), F.lit(buckets).cast("bigint")) + F.lit(first)


def bucket_array(texts: pa.Array, buckets: int, first: int) -> np.ndarray:
    """As `bucket_column`, for n texts: (n,) int64."""
    return np.mod(xxhash64(texts), buckets) + first


@dataclass(frozen=True)
class FittedHashBucket(RowWise):
    """A fitted `hash_bucket`."""

    name: ClassVar[str] = "hash_bucket"
    buckets: int = 1
    lists: bool = False

    def expression(self, *values: Column) -> Column:
        """The Spark expression of the output."""
        return F.transform(values[0], self._id) if self.lists else self._id(values[0])

    def _id(self, value: Column) -> Column:
        text = text_column(value)
        bucket = bucket_column(text, self.buckets, NUM_RESERVED_IDS)
        return F.when(text.isNull(), F.lit(NULL_ID).cast("bigint")).otherwise(bucket)

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """The outputs as Arrow arrays, one for each."""
        flat = pc.list_flatten(values[0]) if self.lists else values[0]
        texts = text_array(flat)
        nulls = texts.is_null().to_numpy(zero_copy_only=False)
        ids = pa.array(
            np.where(nulls, NULL_ID, bucket_array(texts, self.buckets, NUM_RESERVED_IDS)), pa.int64()
        )
        return [over_elements(values[0], ids) if self.lists else ids]

    @property
    def cardinality(self) -> int:
        """Embedding rows of the ids, reserved ids included; None without ids."""
        return NUM_RESERVED_IDS + self.buckets


class HashBucket(Operator):
    """3 + floorMod(XXH64(value's UTF-8 text, seed 42), `buckets`); null gets NULL_ID.

    Lists are hashed element by element. The hash is a signed 64-bit integer, as of Spark's `xxhash64`, and
    the modulo has the sign of `buckets` (Spark's `pmod`, Python's `%`). A reader that takes the hash as
    unsigned gets other ids for the negative half of them.

    There is no fit and no vocabulary that grows, but values collide: with n values in b buckets, a value
    shares its bucket with about n / b others.

    | in   | out (buckets=1000)  |
    |------|---------------------|
    | a    | 3 to 1002, always the same |
    | null | 1 (NULL_ID)         |
    """

    name: ClassVar[str] = "hash_bucket"
    takes: ClassVar[tuple[Type, ...]] = ("int", "string", "ints", "strings")
    makes_ids: ClassVar[bool] = True
    buckets: Buckets = Field(description="Number of ids over which the values are spread.")

    def gives(self, taken: Type) -> Type:
        """Type of the output, from the type of the input."""
        return "ints" if taken in LISTS else "int"

    def fit(self, step: Step, statistics: Statistics) -> FittedHashBucket:
        """The fitted step."""
        return FittedHashBucket(
            step.inputs, step.outputs, self.buckets, step.types[step.outputs[0]] == "ints"
        )
