"""The statistics of the training rows that operators can request, and the base class for new statistics.

An operator sets in `needs` which statistics its method `fit` gets. The fit computes them in rounds
(etl/fit/rounds.py). It uses the value counts of the training days if these suffice, otherwise the training
rows, with one pass per kind of statistic. An operator never reads rows itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

# moments: exact mean and standard deviation. aggregates: the result of `Operator.aggregates`. quantiles: the
# exact quantiles of `Operator.probabilities`. mergeable: the result of `Operator.statistic`. counts: a
# vocabulary. groups: a keyed table, computed by `Operator.groups`. external: the rows of an external table.
Need = Literal["nothing", "moments", "aggregates", "quantiles", "mergeable", "counts", "groups", "external"]


@dataclass(frozen=True)
class Moments:
    """The exact mean and standard deviation of a numeric column over the training rows, without nulls.

    Attributes:
        rows: number of values that are not null.
        mean: the mean of these values.
        std: the population standard deviation of these values. The divisor of the variance is `rows`, not
            `rows` - 1.
    """

    rows: int
    mean: float
    std: float


@dataclass(frozen=True)
class Statistics:
    """The statistics of the training rows that one step needs for its fit.

    `Operator.needs` says which statistics these are. The attributes of all other statistics have their
    default values.

    Attributes:
        quantiles: maps each probability to its quantile: the smallest value v such that at least this share
            of the values is <= v. Empty if all values are null.
        merged: the result of the operator's MergeableStatistic.
        table: name of the published table with the step's vocabulary or statistics by key.
        cardinality: number of embedding rows for the ids of the step, including reserved ids.
        facts: additional JSON values, such as the values that `Operator.facts` computes.
    """

    moments: Moments | None = None
    aggregates: Mapping[str, Any] = field(default_factory=dict)
    quantiles: Mapping[float, float] = field(default_factory=dict)
    merged: Any = None
    table: str | None = None
    cardinality: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class MergeableStatistic(ABC):
    """A statistic of one column that an operator defines. It is computed in parts, which are then merged.

    The operator sets `needs = "mergeable"` and returns an object of this class from `Operator.statistic`.
    The operator's method `fit` reads the result from `Statistics.merged`. The statistic need not be
    registered.

    There are two ways to compute the statistic:

    * From value counts, one task measures each file of counts and merges the states. No row is read, and no
      JVM is needed. If there are only blocks of rows, their values are counted first.
    * From frames of rows, Python tasks of Spark measure Arrow batches (`mapInArrow`). All mergeable
      statistics of a round share this pass. Each task merges the states of its batches. Then one task per
      statistic merges the states of all tasks, so the driver receives one state for each statistic. On a GPU
      cluster, Spark copies the columns from the GPU to Python workers.

    Rules for a subclass:

    * Objects are pickled. Use a frozen dataclass whose fields can be pickled.
    * A state is `bytes`, which has at most `max_bytes` bytes, however many values it covers. A larger state
      stops the job with a DataError.
    * `merge` must be associative and commutative, and `measure` must agree with it: measuring two batches as
      one must give the same bytes as merging the states of both. A value with the count n must have the same
      effect as n equal values. Then the result does not depend on the order of values, on batches, partitions
      or machines, or on the source of the statistics. Add integers, compute minima and maxima, or unite
      sorted sets. Do not add floating-point numbers, because the sum depends on their order.
    * The state must not depend on a clock, on random numbers or on Python's `hash`.

    Attributes:
        max_bytes: maximum number of bytes of a state.
    """

    max_bytes: ClassVar[int] = 2**16

    @abstractmethod
    def measure(self, values: pa.Array, counts: np.ndarray) -> bytes:
        """Returns the state of n values, which may be 0.

        Args:
            values: (n,) values without null, as int64, double or string. For a column of lists, these are the
                elements of the lists. A value may occur more than once.
            counts: (n,) int64, the number of occurrences of each value, at least 1.
        """

    @abstractmethod
    def merge(self, first: bytes, second: bytes) -> bytes:
        """Returns the state of all values of two states."""

    @abstractmethod
    def result(self, state: bytes) -> Any:
        """Returns the statistic as a JSON value: numbers, texts, lists, dictionaries with texts as keys."""
