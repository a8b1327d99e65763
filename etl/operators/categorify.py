"""Categorify: replaces values by the ids of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from conf.errors import ConfigError, InfrastructureError
from conf.lazy_imports import F
from etl.operators.hash_bucket import bucket_array, bucket_column
from etl.ops.base import LISTS, Count, Fitted, Operator, Step, Type, Values
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import Need, Statistics
from etl.raw.text_values import SEPARATOR, over_elements, text_array, text_column
from storage.feature_spec import NULL_ID, NUM_RESERVED_IDS, OOV_ID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class FittedCategorify(Fitted):
    """The fitted step of the operator `categorify`."""

    name: ClassVar[str] = "categorify"
    takes_codes: ClassVar[bool] = True
    vocabulary: str = ""
    size: int = NUM_RESERVED_IDS
    min_count: int = 1
    oov_buckets: int = 1
    max_age_days: int | None = None
    lists: bool = False

    @property
    def cardinality(self) -> int:
        """Returns the number of embedding rows for the output ids, including the rows of reserved ids."""
        return self.size

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns `rows`, joined with the vocabulary, and one expression per output."""
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
        """Computes each distinct list's ids once, and joins them to rows by a string made of the list."""
        key, ids = f"{tag}list", f"{tag}ids"
        # The string begins with the size of the list. Otherwise, an empty list and a list of one empty string
        # would have the same string.
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
        """Returns one Arrow array per output."""
        ids = self._ids_of(pc.list_flatten(values[0]) if self.lists else values[0], tables)
        return [over_elements(values[0], ids) if self.lists else ids]

    def _ids_of(self, values: pa.Array, tables: LocalTables) -> pa.Array:
        """Returns the ids of n values, int64. Each value of a dictionary is looked up once."""
        if not isinstance(values, pa.DictionaryArray):
            return pa.array(self._ids(text_array(values), tables), pa.int64())
        of_distinct = np.append(self._ids(text_array(values.dictionary), tables), NULL_ID)
        codes = values.indices.fill_null(len(of_distinct) - 1).to_numpy(zero_copy_only=False)
        return pa.array(of_distinct[codes], pa.int64())

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
    """Replaces values by the ids of a vocabulary, which contains the frequent values of the training rows.

    Values in the vocabulary get ids from 3 on, null gets NULL_ID (1), and all other values get OOV_ID (2).
    The vocabulary contains the values that occur at least `min_count` times in the training rows. If there
    are more than `max_size` such values, the vocabulary contains only the `max_size` most frequent values.
    Ids are assigned by descending count. Values with equal counts are sorted by their UTF-8 bytes.

    When a workflow is extended, the values of the new training days are counted too. Values that reach
    `min_count` in this way are appended to the vocabulary. The id of a value never changes. Integers are
    first converted to decimal strings. Lists are encoded element by element.

    | in   | out (min_count=2; training rows a a b b b c) | out, oov_buckets=4 |
    |------|----------------------------------------------|--------------------|
    | b    | 3                                            | 6                  |
    | a    | 4                                            | 7                  |
    | c    | 2 (OOV_ID: seen once)                        | 2 to 5, by hash    |
    | zzz  | 2 (OOV_ID: never seen)                       | 2 to 5, by hash    |
    | null | 1 (NULL_ID)                                  | 1 (NULL_ID)        |
    """

    name: ClassVar[str] = "categorify"
    page: ClassVar[str] = "ids"
    needs: ClassVar[Need] = "counts"
    takes: ClassVar[tuple[Type, ...]] = ("int", "string", "ints", "strings")
    makes_ids: ClassVar[bool] = True
    min_count: Count | Mapping[str, Count] = Field(
        default=1,
        description="Minimum number of occurrences in the training rows for a value to get its own id. To "
        "set a number for each vocabulary, write a mapping. The keys are names of columns or, "
        "with `share`, the name of the shared vocabulary.",
    )
    max_size: Count | None = Field(
        default=None,
        description="Maximum number of values that get an id; the most frequent are chosen. Null: no limit.",
    )
    oov_buckets: Count = Field(
        default=1,
        description="Number of ids, from OOV_ID on, for values that are not in the vocabulary. A hash of the "
        "value selects one of these ids. The ids of the vocabulary follow.",
    )
    share: str | None = Field(
        default=None,
        description="Name of a vocabulary that all columns of the group share. The values of all these "
        "columns are counted together. Null: each column has its own vocabulary, with the column's name.",
    )
    counts: bool = Field(
        default=True,
        description="Whether values of these columns are counted. If false, these columns use the vocabulary "
        "named in `share`, which other columns build, and do not change it. Set false for the column of a "
        "history, because its clicks are already counted in the column of the item.",
    )
    values: Values | None = Field(
        default=None,
        description="All values of the vocabulary, in the order of their ids. It then does not depend on the "
        "training rows and is never extended. Null: the vocabulary is built from the training rows.",
    )
    max_age_days: Count | None = Field(
        default=None,
        description="A value that was last seen more than this number of days before the workflow's last "
        "training day is treated as unknown. Its id stays reserved. Null: values never expire.",
    )

    @model_validator(mode="after")
    def _uses_other_counts(self) -> Categorify:
        if not self.counts and self.share is None:
            raise ConfigError(
                "categorify with counts=false needs the vocabulary of other columns, but `share` is not set",
                "set `share` to the name of a vocabulary that other columns build, or remove counts=false",
            )
        return self

    @model_validator(mode="after")
    def _values_stand_alone(self) -> Categorify:
        if self.values is None:
            return self
        if len(set(self.values)) != len(self.values) or not self.values:
            raise ConfigError(
                "the list `values` of categorify is empty or contains a value twice",
                "correct the list `values`",
            )
        if self.max_size is not None or self.max_age_days is not None or self.min_count != 1:
            raise ConfigError(
                "categorify with `values` counts nothing, so min_count, max_size and max_age_days would have "
                "no effect",
                "remove min_count, max_size and max_age_days, or remove `values`",
            )
        return self

    @property
    def rule(self) -> Categorify:
        """Returns a copy of the operator with counts=true.

        Operators that share a vocabulary must be equal except for `counts`. To check this, the copies are
        compared.
        """
        return self.model_copy(update={"counts": True})

    @property
    def first_id(self) -> int:
        """Returns the smallest id of the vocabulary."""
        return OOV_ID + self.oov_buckets

    def least(self, column: str) -> int:
        """Returns how often a value of the vocabulary named `column` must occur to get an id."""
        if not isinstance(self.min_count, Mapping):
            return self.min_count
        if column not in self.min_count:
            raise ConfigError(
                f"the mapping `min_count` of categorify has no entry for {column}",
                f"add an entry for {column} to min_count, or set min_count to one number for all columns",
            )
        return self.min_count[column]

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        steps = super().bind(columns)
        for step in steps:
            self.least(self.vocabulary(step))
        return steps

    def vocabulary(self, step: Step) -> str:
        """Returns the name of the step's vocabulary."""
        return self.share or step.inputs[0]

    def gives(self, taken: Type) -> Type:
        """Returns the type of the output column for an input column of the type `taken`."""
        return "ints" if taken in LISTS else "int"

    def fit(self, step: Step, statistics: Statistics) -> FittedCategorify:
        """Returns the fitted step."""
        if statistics.cardinality is None:
            raise InfrastructureError(
                f"the values of {step.inputs[0]} were not counted", "internal error, please report"
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
        """Returns the operator as an entry of `features.ops`. Parameters with default values are omitted."""
        entry = super().config()
        parameters = entry.get(self.name) if isinstance(entry, dict) else None
        if not parameters or not self.values:
            return entry
        return {self.name: {**parameters, "values": list(self.values)}}
