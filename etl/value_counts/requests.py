"""Requests of a fit for statistics from value counts, and the values that fitted steps make of a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.ops.base import Type
from etl.ops.tables import LocalTables
from etl.raw.value_text import text_array
from etl.statistics.vocabulary import IdRule
from etl.value_counts.count_files import ALL, Bucket, read_counts
from etl.workflow.chains import FittedChain

_TYPES: Mapping[Type, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


@dataclass(frozen=True)
class DerivedColumn:
    """Values that fitted steps compute from one raw column.

    Attributes:
        column: the raw column.
        chain: the steps.
        value: name of the chain's value whose statistics are needed.
    """

    column: str
    chain: FittedChain
    value: str


@dataclass(frozen=True)
class CountRequest:
    """A request of a fit: moments or median of one column, or the vocabulary of one or several columns.

    Attributes:
        rule: which values of a vocabulary get an id.
        fixed_values: all values of a vocabulary that the configuration lists; None where values are counted.
        parent: files of (vocabulary, rare values) that are extended.
    """

    key: str
    statistic: Literal["moments", "median", "vocabulary"]
    columns: tuple[DerivedColumn, ...]
    rule: IdRule | None = None
    fixed_values: tuple[str, ...] | None = None
    parent: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Counts:
    """The value counts of some days.

    Attributes:
        files: (file, day in days since 1970-01-01).
        latest: the last of the days.
        values: column → rows of its counts in all files, which are at least as many as its different values.
    """

    files: tuple[tuple[str, int], ...]
    latest: int
    values: Mapping[str, int]


def join_days(latest: int, days: Sequence[Counts]) -> Counts:
    """The counts of several days together."""
    values: Counter[str] = Counter()
    for day in days:
        values.update(day.values)
    return Counts(tuple(file for day in days for file in day.files), latest, dict(values))


def derived_values(column: DerivedColumn, path: str) -> tuple[pa.Array, np.ndarray]:
    """(n values without null, their (n,) counts) of one file. A value may occur more than once."""
    raw, counts, nulls = read_counts(path, column.column)
    if nulls:  # a step may replace them
        raw, counts = pa.concat_arrays([raw, pa.nulls(1, pa.string())]), np.append(counts, nulls)
    values = {column.chain.inputs[0]: raw.cast(_TYPES[column.chain.types[0]])}
    for step in column.chain.steps:
        outputs = step.compute([values[name] for name in step.inputs], LocalTables({}))
        values |= dict(zip(step.outputs, outputs, strict=True))
    value = values[column.value]
    if pa.types.is_list(value.type):
        counts = counts[np.asarray(pc.list_parent_indices(value))]
        value = pc.list_flatten(value)
    if value.null_count:
        valid = value.is_valid()
        value, counts = value.filter(valid), counts[np.asarray(valid)]
    return value, counts


def derived_texts(
    column: DerivedColumn, path: str, bucket: Bucket = ALL
) -> tuple[pa.StringArray, np.ndarray]:
    """The values of `derived_values` as texts, of one hash bucket."""
    if not column.chain.steps:
        values, counts, _ = read_counts(path, column.column, bucket)
        return values, counts
    value, counts = derived_values(column, path)
    texts = text_array(value)
    if bucket.of == 1:
        return texts, counts
    in_bucket = bucket.holds(texts)
    return texts.filter(pa.array(in_bucket)), counts[in_bucket]
