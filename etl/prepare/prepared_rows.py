"""Computes the splits, negatives and positions of a day's rows, without Spark.

The rules and the results are the same as in Spark frames (etl/raw/splits.py, etl/spark/frame_passes.py). The
rows of a day are prepared in tasks. All rows and all impressions of a user are in the same task.

With `split.by=leave_last_out`, each task divides the rows of its users into splits. With `split.by=fraction`,
the driver computes where the train split and the validation split end, from counts of the whole log
(`time_cuts` or `position_cuts`). Tasks compare rows with these two times or positions, which are called cuts.

For negatives, each task first returns the items of its rows (`items_of`), and the driver merges them
(`merge_items`). Then each task draws negatives for its rows (`add_negatives`).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.types import SPLITS, Negatives, SplitConfig
from etl.native.distinct_values import Lookup
from etl.native.library import is_built
from etl.ops.arrays import codes_of, dense_codes, encoded, groups_of, integers_of, plain, whole, with_column
from etl.ops.xxhash64 import xxhash64_of_draws
from etl.raw.splits import SPLIT, last_ranks, no_good_row
from etl.workflow.feature_plan import FeaturePlan
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT

if TYPE_CHECKING:
    from etl.raw.files import RawFiles
    from spark.workers import Workers

# The cuts: the event times (µs) or the row_ids at which the train split and the validation split end.
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
        DataError: `config.by` is `fraction`, and `cuts` is None, because the log has no rows.
        ValueError: `config.by` is `day`, so all rows of a partition are in one split.
    """
    if config.by == "fraction":
        numbers = _by_cuts(rows, cuts)
    elif config.by == "leave_last_out":
        numbers = _leave_last_out(rows)
    else:
        raise ValueError(
            "internal error, please report: with split.by=day, rows of one day cannot be divided into splits"
        )
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
    # Add the shares as floats, because Spark does. For cuts at positions of rows, `last_ranks` uses exact
    # decimals instead.
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
        row_ids: function that takes the index of a file split in `counts`, and returns the row_ids of its
            good rows: int64, in any order. It is called for at most two file splits.
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
    """Returns the index of each row's split, (n,): test from the user's last positive row on.

    Rows before it, from the user's second last positive row on, are validation rows. All others are train
    rows.
    """
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


# The code below draws negatives: items for which a user has no row.

# Columns of the result of `items_of`: the raw value of an item, and the index of the item's first split.
RAW_ITEM, SINCE = "raw_item", "since"
_VISIBLE = b"visible"
_ITEMS_FILE, _LOOKUP_FILE = "items.arrow", "items.lookup"
# Number of draws that are converted to rows together. With this limit, an array of strings stays far below
# 2 GiB.
_ROWS_AT_ONCE = 2**20


@dataclass(frozen=True)
class DayItems:
    """The items of a day, ordered by the first split in which they occur, then by the bytes of their keys.

    Attributes:
        keys: (m,) string, the item keys.
        raw: (m,) the values of the raw column of the item.
        visible: for each split, the number of items that occur in it or in an earlier split.
    """

    keys: pa.Array
    raw: pa.Array
    visible: tuple[int, ...]

    def save(self, folder: Path) -> None:
        """Writes the items to files in a folder, which `load` maps into memory."""
        metadata = {_VISIBLE: json.dumps(self.visible).encode()}
        table = pa.table({ITEM_KEY: self.keys, RAW_ITEM: self.raw}).replace_schema_metadata(metadata)
        with (
            pa.OSFile(str(folder / _ITEMS_FILE), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            # Write one batch, so that each column is one array.
            writer.write_table(table, max_chunksize=max(len(table), 1))
        if is_built():
            self.lookup.save(folder / _LOOKUP_FILE, np.arange(len(self.keys), dtype=np.int32))

    @classmethod
    def load(cls, folder: Path) -> DayItems:
        """Maps the files of `save` into memory."""
        table = pa.ipc.open_file(pa.memory_map(str(folder / _ITEMS_FILE))).read_all()
        visible = tuple(json.loads(table.schema.metadata[_VISIBLE]))
        items = cls(whole(table.column(ITEM_KEY)), whole(table.column(RAW_ITEM)), visible)
        if is_built():
            lookup, _ = Lookup.load(folder / _LOOKUP_FILE)
            items.__dict__["lookup"] = lookup
        return items

    @cached_property
    def lookup(self) -> Lookup:
        """Returns the `Lookup` that finds the indices of item keys."""
        return Lookup(self.keys)

    def __getstate__(self) -> dict[str, object]:
        """Returns the state to pickle, without the hash table of `lookup`, because it cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "lookup"}


def items_of(rows: pa.Table, item_column: str) -> pa.Table:
    """Returns the items of a task's rows: item_key, raw_item, and the index of the first split with the item.

    Args:
        rows: rows with item_key, the raw column and, if one partition contains all splits, `split`.
        item_column: the raw column of the item key. Rows with equal item keys have equal values in this
            column.
    """
    codes, distinct = codes_of(rows.column(ITEM_KEY))
    since = np.full(len(distinct), len(SPLITS), np.int8)
    np.minimum.at(since, codes, split_numbers(rows))
    rows_of_items = np.zeros(len(distinct), np.int64)
    rows_of_items[codes] = np.arange(len(rows))
    occurring = np.flatnonzero(since < len(SPLITS))
    raw = whole(rows.column(item_column)).take(pa.array(rows_of_items[occurring]))
    columns = {
        ITEM_KEY: distinct.take(pa.array(occurring)).cast(pa.string()),
        RAW_ITEM: plain(pa.chunked_array([raw])),
        SINCE: pa.array(since[occurring]),
    }
    return pa.table(columns)


def merge_items(parts: Iterable[pa.Table]) -> DayItems:
    """Returns the items of a day from the results of `items_of` of all tasks, in any order.

    Raises:
        ValueError: there are no parts.
    """
    together = pa.concat_tables(parts)
    codes, distinct = codes_of(together.column(ITEM_KEY))
    since = np.full(len(distinct), len(SPLITS), np.int8)
    np.minimum.at(since, codes, together.column(SINCE).to_numpy())
    rows_of_items = np.zeros(len(distinct), np.int64)
    rows_of_items[codes] = np.arange(len(together))
    order = pc.sort_indices(
        pa.table({SINCE: since, ITEM_KEY: distinct}),
        sort_keys=[(SINCE, "ascending"), (ITEM_KEY, "ascending")],
    )
    raw = whole(together.column(RAW_ITEM)).take(pa.array(rows_of_items).take(order))
    visible = np.cumsum(np.bincount(since, minlength=len(SPLITS)))
    return DayItems(distinct.take(order), raw, tuple(visible.tolist()))


def add_negatives(rows: pa.Table, config: Negatives, item_column: str, items: DayItems) -> pa.Table:
    """Adds up to `per_positive` negatives for each positive row.

    A negative has an item for which the user has no row in the split of the positive row or in an earlier
    split.

    Args:
        rows: all rows of some users of the day, with keys, label and row_id.
        config: the section `negatives`: maximum number of negatives per positive row, the seed, and whether
            train rows get negatives. With `train: false`, the rows must have the column `split`.
        item_column: the raw column of the item key.
        items: the items of all rows of the day.

    Returns:
        The rows in the same order, and then the negatives, ordered by their positive rows and draws. The new
        row_id is row_id * (per_positive + 1) + n. Here n is 0 for rows of the log, and the number of the draw
        for negatives. The negatives have the drawn item, the label 0 and, if the rows have a column `weight`,
        the weight 1. All their other columns have the values of the positive row.

    Raises:
        ValueError: `items` lacks an item of the rows.
    """
    stride = config.per_positive + 1
    row_ids = integers_of(rows.column(ROW_ID))
    logged = rows.set_column(rows.column_names.index(ROW_ID), ROW_ID, pa.array(row_ids * stride))
    positives, drawn, draws = _fresh_draws(rows, row_ids, config, items)
    if not len(positives):
        return logged
    used, count = dense_codes(drawn, len(items.keys))
    of_items = np.zeros(count, np.int64)
    of_items[used] = drawn
    kept = pa.array(of_items)
    keys, raw = items.keys.take(kept), items.raw.take(kept)
    sources = {name: whole(logged.column(name)) for name in logged.column_names}
    parts = [logged]
    for start in range(0, len(positives), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        of_rows, of_used = pa.array(positives[part]), pa.array(used[part], pa.int32())
        new_ids = row_ids[positives[part]] * stride + draws[part]
        replaced = {
            ITEM_KEY: _chosen(keys, of_used, rows.schema.field(ITEM_KEY).type),
            item_column: _chosen(raw, of_used, rows.schema.field(item_column).type),
            LABEL: pa.array(np.zeros(len(new_ids), np.float32)),
            ROW_ID: pa.array(new_ids),
            WEIGHT: pa.array(np.ones(len(new_ids), np.float32)),
        }
        columns = [
            replaced[name] if name in replaced else source.take(of_rows) for name, source in sources.items()
        ]
        parts.append(pa.table(columns, schema=logged.schema))
    return pa.concat_tables(parts)


def add_to_log_rows(rows: pa.Table, stride: int, add: Callable[[pa.Table], pa.Table]) -> pa.Table:
    """Adds columns to the rows of the log, and gives negatives the values of their positive rows.

    Args:
        rows: the result of `add_negatives`, perhaps with further columns.
        stride: per_positive + 1.
        add: function that takes rows, and returns them in the same order, with further columns.

    Returns:
        All rows in the same order, with the columns that `add` has added.
    """
    row_ids = integers_of(rows.column(ROW_ID))
    of_log = row_ids - row_ids % stride
    is_logged = row_ids == of_log
    added = add(rows.filter(pa.array(is_logged)))
    order = np.argsort(row_ids[is_logged])
    places = pa.array(order[np.searchsorted(row_ids[is_logged], of_log, sorter=order)])
    for name in added.column_names:
        if name not in rows.column_names:
            rows = rows.append_column(name, whole(added.column(name)).take(places))
    return rows


def split_numbers(rows: pa.Table) -> np.ndarray:
    """Returns the index of each row's split: 0 for train or without splits, 1 for validation, 2 for test."""
    if SPLIT not in rows.column_names:
        return np.zeros(len(rows), np.int8)
    splits = encoded(rows.column(SPLIT))
    numbers = np.array([SPLITS.index(split) for split in splits.dictionary.to_pylist()], np.int8)
    return numbers[splits.indices.to_numpy(zero_copy_only=False)]


def _fresh_draws(
    rows: pa.Table, row_ids: np.ndarray, config: Negatives, items: DayItems
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the draws that add a negative.

    A draw adds no negative if the user has a row with the drawn item in the same split or in an earlier
    split.

    Returns:
        positives: (k,) int64, the index of the positive row of each draw, ascending.
        drawn: (k,) int64, the index of the drawn item.
        draws: (k,) int64, the number of the draw, from 1.
    """
    since = split_numbers(rows)
    wanted = plain(rows.column(LABEL)).to_numpy(zero_copy_only=False) == 1
    if not config.train:
        wanted &= since > 0
    positives = np.flatnonzero(wanted)
    visible = np.array(items.visible, np.int64)[since[positives]]
    drawn = np.mod(xxhash64_of_draws(row_ids[positives], config.per_positive, config.seed), visible[:, None])
    users, _ = codes_of(rows.column(USER_KEY))
    # The product is below 2**61, because a task has fewer users than 2**30, and a day fewer items than 2**31.
    users_items = users * len(items.keys)
    item_codes, distinct = codes_of(rows.column(ITEM_KEY))
    places = items.lookup.find(distinct.cast(pa.string()))[item_codes]
    if np.any(places < 0):
        raise ValueError("internal error, please report: the items of a day lack items of its rows")
    observed = users_items + places
    drawn_pairs = (users_items[positives][:, None] + drawn).ravel()  # (positives * per_positive,)
    seen = _are_seen(drawn_pairs, np.repeat(since[positives], config.per_positive), observed, since)
    fresh = np.flatnonzero(~seen)
    of_positive, draw = np.divmod(fresh, config.per_positive)
    return positives[of_positive], drawn.ravel()[fresh], draw + 1


def _are_seen(pairs: np.ndarray, since: np.ndarray, observed: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Returns, for each pair, whether a row of its split or of an earlier split has the same pair.

    Args:
        pairs: (k,) int64. Each number stands for a pair of a user and an item, and is below 2**61.
        since: (k,) int8, the index of the split of each pair.
        observed: (n,) int64, the pairs of the rows.
        first: (n,) int8, the index of the split of each row.

    Returns:
        (k,) bool
    """
    # Most drawn pairs do not occur in the rows. A small hash table identifies nearly all such pairs, without
    # a search in the sorted pairs.
    bits = max(10, (16 * len(observed)).bit_length())
    table = np.full(2**bits, len(SPLITS), np.int8)
    hashes = _slots(observed, bits)
    for split in reversed(range(len(SPLITS))):
        table[hashes[first == split]] = split
    seen = table[_slots(pairs, bits)] <= since
    possible = np.flatnonzero(seen)
    in_order = np.sort(observed * 4 + first)
    ordered = in_order >> 2
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    distinct, first_of_pair = ordered[is_first], in_order[is_first] & 3
    places = np.searchsorted(distinct, pairs[possible])
    places[places == len(distinct)] = 0
    seen[possible] = (distinct[places] == pairs[possible]) & (first_of_pair[places] <= since[possible])
    return seen


def _slots(pairs: np.ndarray, bits: int) -> np.ndarray:
    """Hashes numbers of pairs (user, item) to `bits` bits. The factor is 2**64 / golden ratio (Knuth)."""
    return (pairs.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)


def _chosen(values: pa.Array, indices: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the values at `indices`, with a dictionary if `kind` is a dictionary type."""
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(indices.cast(kind.index_type), values.cast(kind.value_type))
    return values.take(indices).cast(kind)


# The functions below add the position at which a row's item was shown to the row's user.

POSITION = "position"
_KEYS = (USER_KEY, ITEM_KEY)


def impressions_table(workers: Workers, plan: FeaturePlan, raw: RawFiles) -> pa.Table | None:
    """Returns the valid impressions of a day of the click log: user_key, item_key, position and event_time.

    Logs a warning if too many impressions are invalid.

    Args:
        workers: processes of this machine, which read a file in each task.
        plan: the plan of the run.
        raw: the files of the day's click log.

    Returns:
        A table with columns of strings and int64. `event_time` (µs) is null if the impressions have no times.
        None if this day has no log of impressions, or if the configuration requests no column of positions.

    Raises:
        DataError: a file of the day's impressions cannot be read.
    """
    # These modules import pyspark, which tasks that only add positions do not need.
    from etl.raw.files import impressions_of
    from etl.readers.impressions import ERROR, log_counts, read_impressions, unreadable

    settings = plan.config.serving.row_positions
    files = impressions_of(plan.config, raw)
    if settings is None or settings.row_column is None or files is None:
        return None
    logged = read_impressions(workers, plan.config, files)
    if not isinstance(logged, pa.Table):
        raise ValueError(
            "internal error, please report: impressions were read in Spark instead of as an Arrow table"
        )
    error = pc.min(logged.column(ERROR)).as_py()
    if error is not None:
        raise unreadable(error)
    needed = [*_KEYS, POSITION, *([EVENT_TIME] if settings.time else [])]
    valid = np.ones(len(logged), bool)
    for name in needed:
        valid &= logged.column(name).is_valid().to_numpy()
    log_counts(settings, raw.dt, len(logged), len(logged) - int(np.count_nonzero(valid)))
    return logged.select([*_KEYS, POSITION, EVENT_TIME]).filter(pa.array(valid))


def add_positions(rows: pa.Table, impressions: pa.Table | None, column: str, has_time: bool) -> pa.Table:
    """Adds an int64 column with the position of each row's impression; null without an impression.

    With `has_time`, the row's impression is the last one of its user and item that is not later than the row.

    Args:
        rows: all rows of some users of a day, with user_key, item_key and, if `has_time`, event_time.
        impressions: all impressions of these users, and possibly impressions of other users: user_key,
            item_key, position and, if `has_time`, event_time, without nulls. None if the day has no log of
            impressions.
        column: the name of the new column.
        has_time: whether the click log has event times (µs). If not, a row gets the smallest position among
            the impressions of its user and item.

    Returns:
        The rows in the same order, with the new column.
    """
    if impressions is None or not len(impressions) or not len(rows):
        return with_column(rows, column, pa.nulls(len(rows), pa.int64()))
    keys = [pa.chunked_array([*_texts(rows, name), *_texts(impressions, name)]) for name in _KEYS]
    pairs, size = groups_of(pa.table(keys, names=list(_KEYS)), _KEYS)
    of_rows, of_impressions = pairs[: len(rows)], pairs[len(rows) :]
    # Sort only rows and impressions whose user and item occur together in both tables. These are usually few.
    rows_with, impressions_with = _in_both(of_rows, of_impressions, size)
    positions = integers_of(impressions.column(POSITION))[impressions_with]
    row_positions = np.zeros(len(rows), np.int64)
    has_position = np.zeros(len(rows), bool)
    if not has_time:
        smallest = np.full(size, np.iinfo(np.int64).max)
        np.minimum.at(smallest, of_impressions[impressions_with], positions)
        has_position[rows_with] = True
        row_positions[rows_with] = smallest[of_rows[rows_with]]
        return with_column(rows, column, pa.array(row_positions, mask=~has_position))
    times = integers_of(rows.column(EVENT_TIME))[rows_with]
    shown = integers_of(impressions.column(EVENT_TIME))[impressions_with]
    pair = np.concatenate([of_impressions[impressions_with], of_rows[rows_with]])
    is_row = np.arange(len(pair)) >= len(shown)
    # At equal times, impressions come before rows. The impression with the smallest position comes last,
    # because the last one is used.
    descending = np.concatenate([-positions, np.zeros(len(times), np.int64)])
    order = np.lexsort((descending, is_row, np.concatenate([shown, times]), pair))
    # For each index in this order, the index of the last impression up to it; -1 before the first impression.
    last = np.maximum.accumulate(np.where(is_row[order], -1, np.arange(len(order))))
    row_places = np.flatnonzero(is_row[order])
    last_of_rows = last[row_places]
    same = (last_of_rows >= 0) & (pair[order[last_of_rows]] == pair[order[row_places]])
    targets = rows_with[order[row_places[same]] - len(shown)]
    row_positions[targets] = positions[order[last_of_rows[same]]]
    has_position[targets] = True
    return with_column(rows, column, pa.array(row_positions, mask=~has_position))


def _texts(table: pa.Table, name: str) -> list[pa.DictionaryArray]:
    """Returns a column of strings as dictionary arrays of one type."""
    kind = pa.dictionary(pa.int32(), pa.string())
    coded = table.column(name)
    if not pa.types.is_dictionary(coded.type):
        coded = coded.cast(pa.string()).dictionary_encode()
    return coded.cast(kind).chunks


def _in_both(rows: np.ndarray, impressions: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of the rows and of the impressions whose pairs occur in both arrays.

    All pairs are numbers below `size`.
    """
    in_rows, in_impressions = np.zeros(size, bool), np.zeros(size, bool)
    in_rows[rows], in_impressions[impressions] = True, True
    both = in_rows & in_impressions
    return np.flatnonzero(both[rows]), np.flatnonzero(both[impressions])
