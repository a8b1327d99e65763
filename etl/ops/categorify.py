"""Categorify: values to the ids of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.errors import ConfigError, InfrastructureError
from etl.ops.base import LISTS, Fitted, Need, Operator, Statistics, Step, Type
from etl.ops.hash_bucket import bucket_array, bucket_column
from etl.ops.parameters import Count, Values
from etl.ops.tables import LocalTables, Tables
from etl.raw.value_text import SEPARATOR, over_elements, text_array, text_column
from storage.feature_spec import NULL_ID, NUM_RESERVED_IDS, OOV_ID


@dataclass(frozen=True)
class FittedCategorify(Fitted):
    """A fitted `categorify`."""

    name: ClassVar[str] = "categorify"
    vocabulary: str = ""
    size: int = NUM_RESERVED_IDS
    min_count: int = 1
    oov_buckets: int = 1
    max_age_days: int | None = None
    lists: bool = False

    @property
    def cardinality(self) -> int:
        """Embedding rows of the ids, reserved ids included; None without ids."""
        return self.size

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """The frame, joined with tables if necessary, and an expression for each output."""
        if self.lists:
            return self._apply_lists(rows, values[0], tables, tag)
        value, known_id = f"{tag}value", f"{tag}id"
        lookup = tables.vocabulary(self.vocabulary, self.max_age_days)
        lookup = lookup.select(F.col("value").alias(value), F.col("id").alias(known_id))
        text = text_column(values[0])
        joined = rows.join(lookup, text == F.col(value), "left").drop(value)
        return joined, [self._id(text, F.col(known_id))]

    def _id(self, text: Column, known_id: Column) -> Column:
        unknown = F.lit(OOV_ID) if self.oov_buckets == 1 else bucket_column(text, self.oov_buckets, OOV_ID)
        identified = F.when(text.isNull(), F.lit(NULL_ID)).otherwise(F.coalesce(known_id, unknown))
        return identified.cast("bigint")

    def _apply_lists(
        self, rows: DataFrame, value: Column, tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Encodes each distinct list once, and joins the rows with the result by the list's text."""
        key, ids = f"{tag}list", f"{tag}ids"
        # The size distinguishes an empty list from a list with one empty text.
        texts = F.concat_ws(SEPARATOR, F.size(value).cast("string"), F.transform(value, text_column))
        keyed = rows.withColumn(key, texts)
        elements = (
            keyed.where(value.isNotNull())
            .select(F.col(key), F.transform(value, text_column).alias("texts"))
            .dropDuplicates([key])
            .select(key, F.posexplode_outer("texts").alias("place", "text"))
        )
        lookup = tables.vocabulary(self.vocabulary, self.max_age_days).withColumnRenamed("value", "known")
        encoded = elements.join(lookup, F.col("text") == F.col("known"), "left").select(
            key, "place", self._id(F.col("text"), F.col("id")).alias("id")
        )
        placed = F.collect_list(F.when(F.col("place").isNotNull(), F.struct("place", "id")))
        lists = encoded.groupBy(key).agg(F.sort_array(placed).getField("id").alias(ids))
        joined = keyed.join(lists, key, "left")
        return joined.drop(key), [F.when(value.isNotNull(), F.col(ids))]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """The outputs as Arrow arrays, one for each."""
        texts = text_array(pc.list_flatten(values[0]) if self.lists else values[0])
        ids = pa.array(self._ids(texts, tables), pa.int64())
        return [over_elements(values[0], ids) if self.lists else ids]

    def _ids(self, texts: pa.Array, tables: LocalTables) -> np.ndarray:
        lookup, ids = tables.vocabulary(self.vocabulary, self.max_age_days)
        positions = lookup.find(texts)
        known = positions >= 0
        looked_up = np.full(len(texts), OOV_ID, np.int64)
        looked_up[known] = ids[positions[known]]
        nulls = texts.is_null().to_numpy(zero_copy_only=False)
        looked_up[nulls] = NULL_ID
        if self.oov_buckets > 1:
            others = ~known & ~nulls
            looked_up[others] = bucket_array(texts.filter(pa.array(others)), self.oov_buckets, OOV_ID)
        return looked_up


class Categorify(Operator):
    """Values to ids: null to NULL_ID, values of the vocabulary to ids from 3 on, all others to OOV_ID.

    The vocabulary contains the values that occur at least `min_count` times in training, and at most
    `max_size` of them. Ids follow by descending count; ties are ordered by the UTF-8 bytes of the value. An
    extension continues the counts and appends values, and a value never changes its id. Numbers are encoded
    as their decimal texts, and lists element by element.

    | in   | out (min_count=2; training rows a a b b b c) | out, oov_buckets=4 |
    |------|----------------------------------------------|--------------------|
    | b    | 3                                            | 6                  |
    | a    | 4                                            | 7                  |
    | c    | 2 (OOV_ID: seen once)                        | 2 to 5, by hash    |
    | zzz  | 2 (OOV_ID: never seen)                       | 2 to 5, by hash    |
    | null | 1 (NULL_ID)                                  | 1 (NULL_ID)        |
    """

    name: ClassVar[str] = "categorify"
    needs: ClassVar[Need] = "counts"
    takes: ClassVar[tuple[Type, ...]] = ("int", "string", "ints", "strings")
    makes_ids: ClassVar[bool] = True
    min_count: Count | Mapping[str, Count] = Field(
        default=1,
        description="How often a value must occur in the training rows to get an id of its own. A mapping "
        "gives each vocabulary a frequency, by the name of its column or by `share`.",
    )
    max_size: Count | None = Field(
        default=None,
        description="Largest number of values that get an id, the most frequent ones. Null: no limit.",
    )
    oov_buckets: Count = Field(
        default=1,
        description="Number of ids, from OOV_ID on, over which all other values are spread by a hash. The "
        "ids of the vocabulary follow them.",
    )
    share: str | None = Field(
        default=None,
        description="Name of one vocabulary that all columns of the group share and that is counted over "
        "all of them. Null: each column has a vocabulary of its own name.",
    )
    values: Values | None = Field(
        default=None,
        description="The complete vocabulary, in the order of its ids. Nothing is counted or extended then. "
        "Null: the vocabulary is counted in the training rows.",
    )
    max_age_days: Count | None = Field(
        default=None,
        description="Days after which a value that no longer occurs is treated as unknown, counted back "
        "from the last counted day. Its id stays reserved for it. Null: values never expire.",
    )

    @model_validator(mode="after")
    def _values_stand_alone(self) -> Categorify:
        if self.values is None:
            return self
        if len(set(self.values)) != len(self.values) or not self.values:
            raise ConfigError("categorify values must be different, and at least one", "correct the list")
        if self.max_size is not None or self.max_age_days is not None or self.min_count != 1:
            raise ConfigError(
                "categorify values is the whole vocabulary: nothing is counted",
                "leave out min_count, max_size and max_age_days",
            )
        return self

    @property
    def first_id(self) -> int:
        """The id of the most frequent value."""
        return OOV_ID + self.oov_buckets

    def least(self, column: str) -> int:
        """The frequency from which a value of this column gets an id."""
        if not isinstance(self.min_count, Mapping):
            return self.min_count
        if column not in self.min_count:
            raise ConfigError(
                f"categorify min_count={dict(self.min_count)} has no entry for {column}",
                "add one, or give one number",
            )
        return self.min_count[column]

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """The steps over these columns; raises ConfigError if they do not fit."""
        steps = super().bind(columns)
        for step in steps:
            self.least(self.vocabulary(step))
        return steps

    def vocabulary(self, step: Step) -> str:
        """Name of the vocabulary of one step."""
        return self.share or step.inputs[0]

    def gives(self, taken: Type) -> Type:
        """Type of the output, from the type of the input."""
        return "ints" if taken in LISTS else "int"

    def fit(self, step: Step, statistics: Statistics) -> FittedCategorify:
        """The fitted step."""
        if statistics.cardinality is None:
            raise InfrastructureError(
                f"the vocabulary of {step.inputs[0]} was not counted", "report this: it is our defect"
            )
        return FittedCategorify(
            inputs=step.inputs,
            outputs=step.outputs,
            vocabulary=self.vocabulary(step),
            size=max(statistics.cardinality, self.first_id),
            min_count=self.least(self.vocabulary(step)),
            oov_buckets=self.oov_buckets,
            max_age_days=self.max_age_days,
            lists=step.types[step.outputs[0]] == "ints",
        )

    def config(self) -> str | dict[str, dict[str, Any] | None]:
        """The entry of `features.ops` with these parameters."""
        entry = super().config()
        parameters = entry.get(self.name) if isinstance(entry, dict) else None
        if not parameters or not self.values:
            return entry
        return {self.name: {**parameters, "values": list(self.values)}}
