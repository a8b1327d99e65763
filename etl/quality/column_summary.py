"""Computes summaries of columns, the figures of a profile, from value counts. Summaries can be added."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from operator import mul

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from etl.quality.counts import Kind
from etl.quality.reduce_by_key import reduce_by_key
from etl.quality.report_types import Number
from metrics.histogram import bin_keys

TOP = 20
# Every finite double is a multiple of 2**-1074, so sums in this unit are exact in any order.
_UNIT = 2**1074


@dataclass(frozen=True)
class Summary:
    """The figures of some values of a column.

    A summary includes all cells of each of its values. So summaries of different values can be added.

    Attributes:
        nulls, cells: number of cells without and with a value.
        distinct: number of different values.
        top: (value, count) of the most frequent values, by descending count. Values with equal counts are
            sorted; texts by their UTF-8 bytes.
        low, high: minimum and maximum of numbers.
        total: sum of numbers, in units of 2**-1074.
        bins: bin key (metrics.histogram) → number of cells, for numbers.
    """

    nulls: int = 0
    cells: int = 0
    distinct: int = 0
    top: tuple[tuple[str | Number, int], ...] = ()
    low: Number | None = None
    high: Number | None = None
    total: int = 0
    bins: Mapping[int, int] | None = None

    @property
    def mean(self) -> float | None:
        """The mean of the numbers; None for text, or if there is no cell."""
        return None if self.low is None else float(Fraction(self.total, self.cells * _UNIT))

    def __add__(self, other: Summary) -> Summary:
        lows = [part.low for part in (self, other) if part.low is not None]
        highs = [part.high for part in (self, other) if part.high is not None]
        bins = Counter(self.bins or {}) + Counter(other.bins or {})
        return Summary(
            nulls=self.nulls + other.nulls,
            cells=self.cells + other.cells,
            distinct=self.distinct + other.distinct,
            top=tuple(sorted((*self.top, *other.top), key=lambda entry: (-entry[1], entry[0]))[:TOP]),
            low=min(lows, default=None),
            high=max(highs, default=None),
            total=self.total + other.total,
            bins=None if self.bins is None and other.bins is None else dict(bins),
        )

    def to_json(self) -> str:
        """The summary as JSON."""
        return json.dumps({**asdict(self), "bins": self.bins and list(self.bins.items())})

    @classmethod
    def from_json(cls, text: str) -> Summary:
        """The inverse of `to_json`."""
        values = json.loads(text)
        top = tuple((value, count) for value, count in values.pop("top"))
        bins = values.pop("bins")
        return cls(**values, top=top, bins=None if bins is None else dict(bins))


def summarise(values: pa.Array, counts: pa.Array, kind: Kind) -> Summary:
    """Summarises (n,) different values, given as strings, with (n,) counts. At most one value is null."""
    valid = values.is_valid()
    nulls = int(pc.sum(counts.filter(values.is_null()), min_count=0).as_py())
    texts, text_counts = values.filter(valid), counts.filter(valid)
    if not len(texts):
        return Summary(nulls=nulls)
    table = pa.table({"value": texts if kind == "string" else _numbers(texts, kind), "count": text_counts})
    order = [("count", "descending"), ("value", "ascending")]
    most = table.take(pc.select_k_unstable(table, k=min(TOP, len(table)), sort_keys=order))
    top = tuple(zip(most["value"].to_pylist(), most["count"].to_pylist(), strict=True))
    cells = int(pc.sum(text_counts).as_py())
    if kind == "string":
        return Summary(nulls, cells, len(table), top)
    numbers, times = table["value"].to_pylist(), text_counts.to_pylist()
    keys, position = np.unique(bin_keys(np.array(numbers, np.float64)), return_inverse=True)
    in_bin = np.zeros(len(keys), np.int64)
    np.add.at(in_bin, position, np.asarray(times, np.int64))
    bins = dict(zip(keys.tolist(), in_bin.tolist(), strict=True))
    if kind == "int":
        total = sum(map(mul, numbers, times)) * _UNIT
    else:
        total = sum(_in_units(number) * count for number, count in zip(numbers, times, strict=True))
    return Summary(nulls, cells, len(table), top, min(numbers), max(numbers), total, bins)


def _numbers(texts: pa.Array, kind: Kind) -> pa.Array:
    return texts.cast(pa.int64() if kind == "int" else pa.float64())


def _in_units(number: float) -> int:
    numerator, denominator = number.as_integer_ratio()
    return numerator * (_UNIT // denominator)


def summarise_counts(counts: DataFrame, pieces: int, kinds: Mapping[str, Kind]) -> list[dict[str, Summary]]:
    """Returns, for each piece, column → summary of its rows (piece, column, value, count). One Spark job.

    A column without rows has an empty summary.
    """
    keyed = counts.select(F.concat("piece", F.lit(":"), "column").alias("key"), "value", "count")
    summaries = reduce_by_key(keyed, partial(_summary_of, dict(kinds)), Summary)
    return [{name: summaries.get(f"{piece}:{name}", Summary()) for name in kinds} for piece in range(pieces)]


def _summary_of(kinds: Mapping[str, Kind], key: str, rows: pa.RecordBatch) -> Summary:
    return summarise(rows.column(1), rows.column(2), kinds[key.split(":", 1)[1]])
