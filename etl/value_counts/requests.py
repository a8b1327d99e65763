"""What a fit asks of value counts, and the values of a column as its first steps leave them."""

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
class Source:
    """A raw column and the steps its values go through before they are measured.

    Attributes:
        value: name of the step's value that is measured.
    """

    column: str
    chain: FittedChain
    value: str


@dataclass(frozen=True)
class Question:
    """One thing a fit asks: moments or the median of a column, or the vocabulary of one column or several.

    Attributes:
        rule, given, parent: of a vocabulary: who gets an id, a given list of values, files of (vocabulary, rare values) to
            extend.
    """

    key: str
    wants: Literal["moments", "median", "counts"]
    sources: tuple[Source, ...]
    rule: IdRule | None = None
    given: tuple[str, ...] | None = None
    parent: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Counts:
    """The value counts of some days.

    Attributes:
        files: (file, day in days since 1970-01-01) each.
        latest: the last of the days.
        values: column → rows of its counts in all files: at least as many as it has different values.
    """

    files: tuple[tuple[str, int], ...]
    latest: int
    values: Mapping[str, int]


def added(latest: int, days: Sequence[Counts]) -> Counts:
    """The counts of several days together."""
    values: Counter[str] = Counter()
    for day in days:
        values.update(day.values)
    return Counts(tuple(file for day in days for file in day.files), latest, dict(values))


def measured(source: Source, path: str) -> tuple[pa.Array, np.ndarray]:
    """(n values without null, their (n,) counts) of one file, after the source's steps; a value may come twice."""
    values, counts, nulls = read_counts(path, source.column)
    if nulls:  # a step may make something of them
        values, counts = pa.concat_arrays([values, pa.nulls(1, pa.string())]), np.append(counts, nulls)
    made = {source.chain.inputs[0]: values.cast(_TYPES[source.chain.types[0]])}
    for step in source.chain.steps:
        outputs = step.compute([made[name] for name in step.inputs], LocalTables({}))
        made |= dict(zip(step.outputs, outputs, strict=True))
    value = made[source.value]
    if pa.types.is_list(value.type):
        counts = counts[np.asarray(pc.list_parent_indices(value))]
        value = pc.list_flatten(value)
    if value.null_count:
        there = value.is_valid()
        value, counts = value.filter(there), counts[np.asarray(there)]
    return value, counts


def measured_texts(source: Source, path: str, bucket: Bucket = ALL) -> tuple[pa.StringArray, np.ndarray]:
    """The same of one hash bucket, as texts."""
    if not source.chain.steps:
        values, counts, _ = read_counts(path, source.column, bucket)
        return values, counts
    value, counts = measured(source, path)
    texts = text_array(value)
    if bucket.of == 1:
        return texts, counts
    kept = bucket.holds(texts)
    return texts.filter(pa.array(kept)), counts[kept]
