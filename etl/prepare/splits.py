"""Divides rows into train, validation and test without Spark.

The results equal those of the Spark code in etl/raw/splits.py. With `split.by=leave_last_out`, each
task divides the rows of its users. With `split.by=fraction`, the driver computes where the train split and
the validation split end, from counts of the whole log (`time_cuts` or `position_cuts`). Tasks compare rows
with these two times or positions, the cuts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from conf.types import SPLITS, SplitConfig
from etl.ops.arrays import codes_of, integers_of, plain, with_column
from etl.raw.splits import SPLIT, last_ranks, no_good_row
from storage.feature_spec import EVENT_TIME, LABEL, ROW_ID, USER_KEY

# The cuts: the last event times (µs), or the last row_ids, of the train split and of the validation split.
Cuts = tuple[float, float]
_TRAIN, _VALIDATION, _TEST = range(len(SPLITS))


def assign_split(rows: pa.Table, config: SplitConfig, cuts: Cuts | None) -> pa.Table:
    """Adds the column `split`, a dictionary array of strings with int32 indices.

    Args:
        rows: rows of one partition. With `leave_last_out`, all rows of some users.
        config: the section `split`, whose `by` is not `day`.
        cuts: with `fraction`, the result of `time_cuts` if the log has event times, else the result of
            `position_cuts`. Not used with `leave_last_out`.

    Raises:
        DataError: `cuts` is None with `fraction`, because the log has no rows.
        ValueError: `config.by` is `day`, so whole partitions are splits.
    """
    if config.by == "fraction":
        numbers = _by_cuts(rows, cuts)
    elif config.by == "leave_last_out":
        numbers = _leave_last_out(rows)
    else:
        raise ValueError("internal error, please report: rows of one day are all in the same split")
    values = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(SPLITS, pa.string()))
    return with_column(rows, SPLIT, values)


def count_times(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct event times (µs), ascending, and the number of rows with each time: both int64."""
    times, counts = np.unique(integers_of(rows.column(EVENT_TIME)), return_counts=True)
    return times, counts.astype(np.int64)


def time_cuts(times: np.ndarray, counts: np.ndarray, config: SplitConfig) -> Cuts | None:
    """Returns the percentiles of event_time (µs) at which the train split and the validation split end.

    The results equal those of Spark's `percentile`: the position of a percentile among n sorted rows is (n -
    1) * share. Between two rows, the time is interpolated linearly.

    Args:
        times: (m,) int64 µs, in any order. A time may occur several times.
        counts: (m,) int64, the number of rows with each time.
        config: the section `split`.

    Returns:
        The cuts, or None if there are no rows.
    """
    order = np.argsort(times, kind="stable")
    in_order, ends = times[order], np.cumsum(counts[order])
    if not len(ends) or not ends[-1]:
        return None
    # Add the shares as floats, because Spark does. Only cuts at positions of rows use exact decimals
    # (`last_ranks`).
    shares = (config.train, config.train + config.validation)
    first, second = (_percentile(in_order, ends, float(int(ends[-1]) - 1) * share) for share in shares)
    return first, second


def _percentile(times: np.ndarray, ends: np.ndarray, position: float) -> float:
    """Returns the time at a position among sorted rows. `ends` are the cumulative counts of the times."""
    lower, higher = math.floor(position), math.ceil(position)
    below, above = (float(times[np.searchsorted(ends, rank + 1)]) for rank in (lower, higher))
    if below == above:
        return below
    return (higher - position) * below + (position - lower) * above


def position_cuts(
    counts: Sequence[int], row_ids: Callable[[int], np.ndarray], config: SplitConfig
) -> tuple[int, int] | None:
    """Returns the row_ids of the last train row and of the last validation row; None if there are no rows.

    Args:
        counts: the number of good rows of each file split, in the order of the rows.
        row_ids: returns the row_ids of the good rows of a file split, by its index in `counts`: int64, in any
            order. The function is called for at most two file splits.
        config: the section `split`.
    """
    total = sum(counts)
    if not total:
        return None
    ends = list(accumulate(counts))
    known: dict[int, np.ndarray] = {}
    cuts = []
    for rank in last_ranks(total, config):
        index = bisect_right(ends, rank)
        if index not in known:
            known[index] = np.sort(row_ids(index))
        cuts.append(int(known[index][rank - (ends[index] - counts[index])]))
    first, second = cuts
    return first, second


def _by_cuts(rows: pa.Table, cuts: Cuts | None) -> np.ndarray:
    if cuts is None:
        raise no_good_row()
    timed = EVENT_TIME in rows.column_names
    order = integers_of(rows.column(EVENT_TIME if timed else ROW_ID))
    # As in Spark, times are compared as doubles. Positions are compared as integers.
    compared = order.astype(np.float64) if timed else order
    return np.where(compared <= cuts[0], _TRAIN, np.where(compared <= cuts[1], _VALIDATION, _TEST))


def _leave_last_out(rows: pa.Table) -> np.ndarray:
    """Returns the number of each row's split, shape (n,)."""
    users, _ = codes_of(rows.column(USER_KEY))
    times = [integers_of(rows.column(EVENT_TIME))] if EVENT_TIME in rows.column_names else []
    order = np.lexsort((integers_of(rows.column(ROW_ID)), *times, users))
    positive = (plain(rows.column(LABEL)).to_numpy(zero_copy_only=False) == 1)[order]
    until_now = np.cumsum(positive)
    in_order = users[order]
    last_rows = np.searchsorted(in_order, in_order, side="right") - 1
    first_rows = np.searchsorted(in_order, in_order, side="left")
    later = until_now[last_rows] - until_now  # number of positive rows of the user after this row
    total = until_now[last_rows] - until_now[first_rows] + positive[first_rows]
    of_ordered = np.where(later == 0, _TEST, np.where((later == 1) & (total > 1), _VALIDATION, _TRAIN))
    numbers = np.empty(len(rows), np.int64)
    numbers[order] = np.where(total == 0, _TRAIN, of_ordered)
    return numbers
