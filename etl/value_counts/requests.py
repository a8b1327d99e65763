"""Describes statistics that a fit requests from value counts, and computes the values that they describe.

A chain is a sequence of steps (operators) that computes features. The statistics of a step may be about
values that earlier steps of the chain compute from a raw column.
"""

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
from etl.raw.text_values import text_array
from etl.statistics.id_rule import IdRule
from etl.statistics.mergeable import MeasuredStatistic
from etl.value_counts.count_file_format import ALL, Bucket, read_counts
from etl.workflow.fitted_chains import FittedChain

_TYPES: Mapping[Type, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


@dataclass(frozen=True)
class DerivedColumn:
    """Values that fitted steps compute from one raw column.

    Attributes:
        column: name of the raw column.
        chain: the fitted steps.
        value: name of the value whose statistics are needed: an input of the chain or an output of one of its
            steps.
    """

    column: str
    chain: FittedChain
    value: str


@dataclass(frozen=True)
class CountRequest:
    """A request for a statistic of one column, or for the vocabulary of one or several columns.

    Attributes:
        key: the name of the vocabulary, or another unique name of the request.
        probabilities: the probabilities of the requested quantiles.
        mergeable: the requested statistic if an operator defines it, otherwise None.
        rule: the rule that decides which values of a vocabulary get an id.
        fixed_values: all values of the vocabulary, if the configuration lists them; None if they are counted.
        parent: the files of the earlier workflow version that is extended: (files of vocabularies, files of
            rare values). Both are empty for a new workflow.
    """

    key: str
    statistic: Literal["moments", "quantiles", "mergeable", "vocabulary"]
    columns: tuple[DerivedColumn, ...]
    probabilities: tuple[float, ...] = ()
    mergeable: MeasuredStatistic | None = None
    rule: IdRule | None = None
    fixed_values: tuple[str, ...] | None = None
    parent: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Counts:
    """The value counts of some days.

    Attributes:
        files: (path, day) of each file of value counts. The day is a number of days since 1970-01-01.
        latest: the last of these days, or a later day that the extended workflow already includes, in days
            since 1970-01-01.
        values: maps each column to the sum, over all files, of the number of distinct values in a file. This
            is an upper bound for the number of distinct values on all days.
    """

    files: tuple[tuple[str, int], ...]
    latest: int
    values: Mapping[str, int]


def join_days(latest: int, days: Sequence[Counts]) -> Counts:
    """Combines the value counts of several days.

    The attribute `latest` of the result is the argument `latest`.
    """
    values: Counter[str] = Counter()
    for day in days:
        values.update(day.values)
    return Counts(tuple(file for day in days for file in day.files), latest, dict(values))


def derived_values(column: DerivedColumn, path: str) -> tuple[pa.Array, np.ndarray]:
    """Computes the values of a derived column from one file of value counts.

    Returns:
        (values, counts): n values without null, and the number of rows with each value, shape (n,). A value
            may occur more than once in `values`.
    """
    raw, counts, nulls = read_counts(path, column.column)
    if nulls:  # Nulls are passed to the steps too, because a step may replace nulls by values.
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
    """Computes the values of a derived column as texts, and returns the values in one hash bucket.

    The result is (values, counts), as in `derived_values`.
    """
    if not column.chain.steps:
        values, counts, _ = read_counts(path, column.column, bucket)
        return values, counts
    value, counts = derived_values(column, path)
    texts = text_array(value)
    if bucket.of == 1:
        return texts, counts
    in_bucket = bucket.holds(texts)
    return texts.filter(pa.array(in_bucket)), counts[in_bucket]
