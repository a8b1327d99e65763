"""Computes histories of rows in Arrow tables: the items that the row's user clicked last before the row.

With `history.ages`, a history also has the ages of its items: the seconds from the click of each item to the
click of the first item of the list. etl/spark/frame_passes.py computes the same histories from Spark frames.
No Python code loops over rows or users. Rows are sorted once, so that the clicks of a user are adjacent. Each
history is a slice of the array of sorted clicks.

Clicks are stored in two forms. The first form has one row per user, as in the table `last_clicks` of a lake:
user_key, items (list of item keys, the oldest first) and, if the log has times, times (list of int64, µs). In
memory, the lists contain dictionary codes, so that each key is stored as a string only once. The second form,
which `recent_clicks` returns, has one row per click, with its row_id, so that the clicks of several parts of
a day can be merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from conf.types import History
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY

ITEMS, TIMES = "items", "times"
_KEYS = pa.dictionary(pa.int32(), pa.string())
# The offsets of a list array have 32 bits, so a column with more values has several arrays.
_LIST_VALUES = 2**31 - 1
# Number of values that one step copies or compares. With this number, temporary arrays fit into the cache of
# a core.
_STEP_VALUES = 2**18
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_MICROS_PER_SECOND = 1_000_000


def add_history(rows: pa.Table, history: History, earlier: pa.Table | None = None) -> pa.Table:
    """Adds the column `history.column`: a list of item keys, the most recent one first.

    The list is empty if the user has no click before the row. Rows stay in their order. If `history.ages` is
    set, a second column has the ages of the items.

    Args:
        rows: n rows with user_key and item_key (string, or a dictionary of strings), label, row_id (int64,
            unique) and, if the log has them, group_key (the same types) and event_time (int64, µs). The
            rows belong to one day. If they contain one row of a user, they contain all rows of this user.
        history: the section `history` of the configuration.
        earlier: the last clicks on earlier days, with one row per user: user_key, items and, if the log has
            them, times. Users who are not in `rows` are ignored. None if there are no earlier days.

    Returns:
        `rows` with an added column of the type list<dictionary<int32, string>>. If ages are requested, a
        second added column has the type list<int64>.

    Raises:
        ValueError: a key is null.
    """
    users, user_keys = codes_of(rows.column(USER_KEY))
    items, item_keys = codes_of(rows.column(ITEM_KEY))
    times = _numbers(rows.column(EVENT_TIME)) if EVENT_TIME in rows.column_names else None
    order = _order(users, times, _numbers(rows.column(ROW_ID)))  # (n,)
    users, clicked = users[order], _numbers(rows.column(LABEL))[order] == 1
    today = np.bincount(users[clicked], minlength=len(user_keys))
    # (n,): how many clicks of the row's user on this day come before the row.
    known = np.cumsum(clicked) - clicked - (np.cumsum(today) - today)[users]
    if GROUP_KEY in rows.column_names:
        groups, group_keys = codes_of(rows.column(GROUP_KEY))
        pairs = users.astype(np.int64) * len(group_keys) + groups[order]
        _, first_row, pair = np.unique(pairs, return_index=True, return_inverse=True)
        known = known[first_row][pair]
    older = _earlier_clicks(earlier, user_keys)
    times_today = times[order[clicked]] if times is not None and history.ages else None
    timelines = _timelines(today, _Keyed(items[order[clicked]], item_keys), older, times_today)
    starts = timelines.ends[users] - known
    lengths = np.minimum(known + older.counts[users], history.length)
    clicks, click_times = timelines.items, timelines.times
    if times is not None:
        mixed = _rows_with_later_clicks(older, users, times[order], known, history.length)
        if len(mixed):
            places, own_lengths = _earlier_than_rows(
                timelines, older, users[mixed], times[order[mixed]], known[mixed], history.length
            )
            starts[mixed] = len(clicks.codes) + np.cumsum(own_lengths) - own_lengths
            lengths[mixed] = own_lengths
            clicks = _Keyed(np.concatenate([clicks.codes, clicks.codes[places]]), clicks.keys)
            if click_times is not None:
                click_times = np.concatenate([click_times, click_times[places]])
    starts_of_rows, lengths_of_rows = np.empty_like(starts), np.empty_like(lengths)
    starts_of_rows[order], lengths_of_rows[order] = starts, lengths
    rows = rows.append_column(history.column, _lists(clicks.compact(), starts_of_rows, lengths_of_rows))
    if history.ages is None:
        return rows
    return rows.append_column(history.ages, _ages(click_times, starts_of_rows, lengths_of_rows))


def last_clicks(rows: pa.Table, length: int) -> pa.Table:
    """Returns the last `length` clicks of each user, with one row per user: user_key, items and times.

    The columns items and times are lists, with the oldest click first. Without event_time in `rows`, the
    column times is missing.

    Args:
        rows: all rows of some users, with the columns that `recent_clicks` needs.
        length: maximum number of clicks to keep for a user.
    """
    return lists_of_clicks(recent_clicks(rows, length))


def recent_clicks(rows: pa.Table, length: int) -> pa.Table:
    """Returns the last `length` clicks of each user, one row per click, ordered by user, oldest first.

    To merge parts of a day, concatenate the results for the parts, and call this function again.

    Args:
        rows: rows with user_key, item_key, row_id and, if the log has them, event_time. A row is a click if
            its label is 1. Without a column label, all rows are clicks.
        length: maximum number of clicks to keep for a user.

    Returns:
        user_key and item_key as dictionary arrays, row_id, and event_time if `rows` has it.
    """
    if LABEL in rows.column_names:
        rows = rows.filter(pc.equal(rows.column(LABEL), 1))
    users, user_keys = codes_of(rows.column(USER_KEY))
    items, item_keys = codes_of(rows.column(ITEM_KEY))
    row_ids = _numbers(rows.column(ROW_ID))
    times = _numbers(rows.column(EVENT_TIME)) if EVENT_TIME in rows.column_names else None
    order = _order(users, times, row_ids)
    order = order[_are_last(users[order], length)]
    columns = {
        USER_KEY: _Keyed(users[order], user_keys).compact().to_array(),
        ITEM_KEY: _Keyed(items[order], item_keys).compact().to_array(),
        ROW_ID: pa.array(row_ids[order]),
    }
    if times is not None:
        columns[EVENT_TIME] = pa.array(times[order])
    return pa.table(columns)


def lists_of_clicks(clicks: pa.Table) -> pa.Table:
    """Converts the result of `recent_clicks` to one row per user: user_key, items and times."""
    users, user_keys = codes_of(clicks.column(USER_KEY))
    items, item_keys = codes_of(clicks.column(ITEM_KEY))
    times = _numbers(clicks.column(EVENT_TIME)) if EVENT_TIME in clicks.column_names else None
    firsts = np.flatnonzero(np.diff(users, prepend=-1))
    counts = np.diff(firsts, append=len(users))
    return _rows_of_users(user_keys.take(pa.array(users[firsts])), counts, _Keyed(items, item_keys), times)


def merge_days(days: Sequence[pa.Table], length: int) -> pa.Table:
    """Merges the last clicks of several days into one table.

    `days` must be in ascending order. Each element of `days` and the result have the columns user_key, items
    and, if the log has them, times. Clicks of a later day are more recent than clicks of an earlier day. The
    result has one row per user with at most `length` clicks, ordered by user_key.

    Raises:
        ValueError: some days have times, and others do not.
    """
    if len({TIMES in day.column_names for day in days}) > 1:
        raise ValueError("internal error, please report: only some tables of clicks have times")
    users, user_keys = codes_of(_encoded(day.column(USER_KEY) for day in days))
    sorted_keys = pc.sort_indices(user_keys).to_numpy()
    code_of = np.empty(len(user_keys), np.int64)  # for each code of a key, the rank of the key
    code_of[sorted_keys] = np.arange(len(user_keys))
    users_of_day = np.split(code_of[users], np.cumsum([len(day) for day in days])[:-1])
    counts_of_day = [_list_lengths(day.column(ITEMS)) for day in days]
    # The days are processed from the last to the first. `missing` is the number of clicks that each user
    # still needs.
    missing, taken_of_day = np.full(len(user_keys), length), list[np.ndarray]()
    for users, counts in zip(reversed(users_of_day), reversed(counts_of_day), strict=True):
        taken_of_day.insert(0, np.minimum(counts, missing[users]))
        missing[users] -= taken_of_day[0]
    total = length - missing
    items, item_keys = codes_of(_encoded(_flat(day.column(ITEMS)) for day in days))
    items_of_day = np.split(items, np.cumsum([counts.sum() for counts in counts_of_day])[:-1])
    merged, next_place = np.empty(total.sum(), np.int32), np.cumsum(total) - total
    times = np.empty(len(merged), np.int64) if TIMES in days[0].column_names else None
    for day, users, counts, taken, codes in zip(
        days, users_of_day, counts_of_day, taken_of_day, items_of_day, strict=True
    ):
        starts = np.cumsum(counts) - taken
        places = np.repeat(next_place[users] - (np.cumsum(taken) - taken), taken)
        places += np.arange(len(places))
        merged[places] = _gather(codes, starts, taken)
        if times is not None:
            times[places] = _gather(_times_of(day), starts, taken)
        next_place[users] += taken
    keys = user_keys.take(pa.array(sorted_keys))
    return _rows_of_users(keys, total, _Keyed(merged, item_keys).compact(), times)


def as_history(clicks: pa.Table, history: History) -> pa.Table:
    """Converts last clicks (user_key, items) to histories (user_key and the columns of `history`).

    The histories have the type list<dictionary<int32, string>>, with the most recent item first. For
    `history.ages`, the last clicks must have times.
    """
    column = clicks.column(ITEMS)
    counts = _list_lengths(column)
    items, item_keys = codes_of(_flat(column))
    ends = len(items) - np.cumsum(counts)  # position of the last click of each list in the reversed array
    lengths = np.minimum(counts, history.length)
    lists = _lists(_Keyed(items[::-1], item_keys).compact(), ends, lengths)
    table = pa.table({USER_KEY: clicks.column(USER_KEY), history.column: lists})
    if history.ages is None:
        return table
    times = _times_of(clicks)[::-1] if TIMES in clicks.column_names else None
    return table.append_column(history.ages, _ages(times, ends, lengths))


def codes_of(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Returns (codes, keys): n int32 codes, and the distinct strings that the codes refer to.

    Args:
        column: n strings, or dictionary arrays of strings. Dictionaries may differ between chunks, may have
            a key twice, and may have keys that do not occur.

    Raises:
        ValueError: a value is null.
    """
    parts, dictionaries, first_code = [], [pa.array([], pa.string())], 0
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    for chunk in encoded.chunks:
        if not chunk.dictionary.equals(dictionaries[-1]):
            first_code += len(dictionaries[-1])
            dictionaries.append(chunk.dictionary.cast(pa.string()))
        if chunk.null_count:
            raise ValueError("internal error, please report: a row without a key is used for histories")
        parts.append(chunk.indices.to_numpy() + np.int32(first_code))
    keys = pa.concat_arrays(dictionaries).dictionary_encode()
    if keys.null_count:
        raise ValueError("internal error, please report: a key is null")
    codes = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    if len(keys.dictionary) < len(keys):
        codes = keys.indices.to_numpy()[codes]
    return codes.astype(np.int32, copy=False), keys.dictionary


@dataclass(frozen=True)
class _Keyed:
    """An array of keys, stored as int32 codes. A code is the index of a string in `keys`."""

    codes: np.ndarray
    keys: pa.Array

    def compact(self) -> _Keyed:
        """Returns an equal array whose `keys` contain only keys that occur in the array."""
        used = np.zeros(len(self.keys), bool)
        used[self.codes] = True
        if used.all():
            return self
        new_codes = np.cumsum(used, dtype=np.int32) - np.int32(1)
        return _Keyed(new_codes[self.codes], self.keys.take(pa.array(np.flatnonzero(used))))

    def to_array(self) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(self.codes), self.keys)


@dataclass(frozen=True)
class _Older:
    """The clicks of users on earlier days. The clicks of a user are adjacent, with the oldest first.

    Attributes:
        counts: (users,) int64: the number of clicks of each user.
        items: m items, ordered by the code of their user.
        times: (m,) int64 µs, or None.
    """

    counts: np.ndarray
    items: _Keyed
    times: np.ndarray | None


@dataclass(frozen=True)
class _Timelines:
    """The clicks of all users, in one array. The clicks of a user are adjacent, with the most recent first.

    Attributes:
        items: m items.
        places_of_older: the position in `items` of each click of an earlier day.
        ends: (users,) the position at which a user's clicks of earlier days begin. The user's clicks of the
            day precede this position.
        times: (m,) int64 µs; None if no times were passed.
    """

    items: _Keyed
    places_of_older: np.ndarray
    ends: np.ndarray
    times: np.ndarray | None


def _timelines(today: np.ndarray, items: _Keyed, older: _Older, times_today: np.ndarray | None) -> _Timelines:
    """Returns the timelines of users.

    Args:
        today: (users,) the number of clicks of each user on the day.
        items: the items of these clicks, ordered by user, with the oldest click of a user first.
        older: the clicks of earlier days. A click without a time gets the largest time, so it does not
            precede any row.
        times_today: the times of `items` (int64 µs); None if the timelines need no times.
    """
    both, keys = codes_of(_encoded([items.to_array(), older.items.to_array()]))
    last = len(both) - 1  # The array is filled from its end, beginning with the last user.
    of_day = last - np.arange(len(items.codes)) - np.repeat(np.cumsum(older.counts), today)
    of_older = last - np.arange(len(older.items.codes)) - np.repeat(np.cumsum(today) - today, older.counts)
    codes = np.empty(len(both), np.int32)
    codes[of_day] = both[: len(of_day)]
    codes[of_older] = both[len(of_day) :]
    ends = len(both) - np.cumsum(older.counts) - (np.cumsum(today) - today)
    times = None
    if times_today is not None:
        times = np.full(len(both), _LAST)
        times[of_day] = times_today
        if older.times is not None:
            times[of_older] = older.times
    return _Timelines(_Keyed(codes, keys), of_older, ends, times)


def _rows_with_later_clicks(
    older: _Older, users: np.ndarray, times: np.ndarray, known: np.ndarray, length: int
) -> np.ndarray:
    """Returns the indices of rows whose time must be compared with the times of clicks of earlier days.

    All other rows are later than the clicks of earlier days. The comparison is needed because a row may have
    a time before the day to whose log it belongs. If a user has `length` clicks before the row on the same
    day, the history needs no click of an earlier day.

    Args:
        older: the clicks of earlier days. A click without a time does not precede any row.
        users, times, known: (n,) for each row: its user, its time (µs), and the number of clicks of this user
            on the same day before the row.
        length: the largest length of a history.
    """
    some = np.flatnonzero(older.counts)
    if not len(some):
        return some
    latest = np.full(len(older.counts), _FIRST)
    latest[some] = _LAST
    if older.times is not None:
        latest[some] = np.maximum.reduceat(older.times, (np.cumsum(older.counts) - older.counts)[some])
    return np.flatnonzero((older.counts[users] > 0) & (latest[users] >= times) & (known < length))


def _earlier_than_rows(
    timelines: _Timelines,
    older: _Older,
    users: np.ndarray,
    times: np.ndarray,
    known: np.ndarray,
    length: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the histories of rows. They contain a click of an earlier day only if it precedes the row.

    Args:
        timelines, older: the clicks of all users on all days, and their clicks on earlier days.
        users, times, known: (n,) for each row: its user, its time (µs), and the number of clicks of this user
            on the same day before the row.
        length: the largest length of a history, which is larger than every number in `known`.

    Returns:
        (places, lengths): the positions of the clicks in `timelines`, one history after the other, and the
        lengths of the histories (n,).
    """
    times_of_clicks = np.full(len(timelines.items.codes), _LAST)
    if older.times is not None:
        times_of_clicks[timelines.places_of_older] = older.times
    chosen, lengths = [], []
    for step in _steps(older.counts[users] + known):
        ends, today = timelines.ends[users[step]], known[step]
        counts = today + older.counts[users[step]]
        places, row = _ranges(ends - today, counts)
        kept = (places < ends[row]) | (times_of_clicks[places] < times[step][row])
        running = np.cumsum(kept)
        before = np.concatenate([[0], running])[np.cumsum(counts) - counts]
        kept &= running - before[row] <= length
        chosen.append(places[kept])
        lengths.append(np.bincount(row[kept], minlength=len(counts)))
    return np.concatenate(chosen), np.concatenate(lengths)


def _earlier_clicks(earlier: pa.Table | None, user_keys: pa.Array) -> _Older:
    """Returns the earlier clicks of the users with the keys `user_keys`."""
    counts = np.zeros(len(user_keys), np.int64)
    if earlier is None or not len(earlier):
        return _Older(counts, _Keyed(np.zeros(0, np.int32), pa.array([], pa.string())), None)
    keys = earlier.column(USER_KEY).cast(pa.string()).combine_chunks()
    codes = pc.index_in(keys, value_set=user_keys)
    rows = np.flatnonzero(codes.is_valid().to_numpy(zero_copy_only=False))
    codes = codes.drop_null().to_numpy()
    in_order = np.argsort(codes)
    lengths = _list_lengths(earlier.column(ITEMS))
    starts, lengths = (np.cumsum(lengths) - lengths)[rows[in_order]], lengths[rows[in_order]]
    counts[codes[in_order]] = lengths
    items, item_keys = codes_of(_flat(earlier.column(ITEMS)))
    chosen = _Keyed(_gather(items, starts, lengths), item_keys).compact()
    times = _gather(_times_of(earlier), starts, lengths) if TIMES in earlier.column_names else None
    return _Older(counts, chosen, times)


def _times_of(clicks: pa.Table) -> np.ndarray:
    """Returns the times of all clicks. A null time becomes the largest time, which precedes no row."""
    return _numbers(pc.fill_null(_flat(clicks.column(TIMES)), _LAST))


def _rows_of_users(
    user_keys: pa.Array, counts: np.ndarray, items: _Keyed, times: np.ndarray | None
) -> pa.Table:
    """Returns one row per user.

    The lists of user i contain the next `counts[i]` values of `items` and `times`.
    """
    firsts = np.cumsum(counts) - counts
    columns = {USER_KEY: pa.chunked_array([user_keys]), ITEMS: _lists(items, firsts, counts)}
    if times is not None:
        parts = [
            pa.ListArray.from_arrays(
                _offsets(counts[part]), pa.array(_gather(times, firsts[part], counts[part]))
            )
            for part in _parts(counts)
        ]
        columns[TIMES] = pa.chunked_array(parts, pa.list_(pa.int64()))
    return pa.table(columns)


def _order(users: np.ndarray, times: np.ndarray | None, row_ids: np.ndarray) -> np.ndarray:
    """Returns the indices that sort n rows by user, time and row_id: (n,) int64."""
    if not len(users):
        return np.zeros(0, np.int64)
    keys = [users]
    if times is not None:
        first, last, count = int(times.min()), int(times.max()), int(users.max()) + 1
        span = last - first + 1
        # Sorting by one number that combines user and time takes less than half the time of sorting by two
        # numbers.
        fits = span * count < 2**63
        keys = [users.astype(np.int64) * span + (times - first)] if fits else [times, users]
    if (np.diff(row_ids) > 0).all():
        return np.argsort(keys[0], kind="stable") if len(keys) == 1 else np.lexsort(keys)
    return np.lexsort([row_ids, *keys])


def _are_last(users: np.ndarray, length: int) -> np.ndarray:
    """Returns which of n clicks are among the last `length` clicks of their user: (n,) bool.

    `users` has the code of the user of each click. The clicks of a user are adjacent, with the oldest first.
    """
    firsts = np.flatnonzero(np.diff(users, prepend=-1))
    counts = np.diff(firsts, append=len(users))
    return np.repeat(firsts + counts, counts) - np.arange(len(users)) <= length


def _lists(values: _Keyed, starts: np.ndarray, lengths: np.ndarray) -> pa.ChunkedArray:
    """Returns n lists, which are slices of `values`: list<dictionary<int32, string>>."""
    arrays = []
    for part in _parts(lengths):
        codes = _gather(values.codes, starts[part], lengths[part])
        arrays.append(
            pa.ListArray.from_arrays(_offsets(lengths[part]), _Keyed(codes, values.keys).to_array())
        )
    return pa.chunked_array(arrays, pa.list_(_KEYS))


def _ages(times: np.ndarray | None, starts: np.ndarray, lengths: np.ndarray) -> pa.ChunkedArray:
    """Returns n lists of seconds from each click to the first click of its list: list<int64>.

    A click of an earlier day may have a later time than the first click of the list. Its age is then 0.

    Args:
        times: the times of clicks (int64 µs).
        starts, lengths: (n,) where the clicks of each list begin in `times`, and their number.

    Raises:
        ValueError: there are no times.
    """
    if times is None:
        raise ValueError("internal error, please report: ages need the times of clicks")
    arrays = []
    for part in _parts(lengths):
        clicked_at = _gather(times, starts[part], lengths[part])
        counts = lengths[part]
        first = clicked_at[(np.cumsum(counts) - counts)[counts > 0]].repeat(counts[counts > 0])
        seconds = np.maximum(first - clicked_at, 0) // _MICROS_PER_SECOND
        arrays.append(pa.ListArray.from_arrays(_offsets(counts), pa.array(seconds, pa.int64())))
    return pa.chunked_array(arrays, pa.list_(pa.int64()))


def _gather(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns n slices of `values`, concatenated."""
    result, done = np.empty(int(lengths.sum()), values.dtype), 0
    for step in _steps(lengths):
        begin, counts = starts[step], lengths[step]
        width, size = int(counts.max()), int(counts.sum())
        to_fill = result[done : done + size]
        if size == width * len(counts) and width:  # copying whole slices is several times faster than `take`
            to_fill.reshape(-1, width)[:] = sliding_window_view(values, width)[begin]
        else:
            np.take(values, _ranges(begin, counts)[0], out=to_fill, mode="clip")
        done += size
    return result


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns all elements of n ranges, and the index of each element's range: two int64 arrays."""
    row = np.repeat(np.arange(len(starts)), lengths)
    return (starts - (np.cumsum(lengths) - lengths))[row] + np.arange(len(row)), row


def _steps(lengths: np.ndarray) -> Iterator[slice]:
    """Divides n rows into slices with about _STEP_VALUES values each."""
    return _divided(lengths, _STEP_VALUES)


def _parts(lengths: np.ndarray) -> Iterator[slice]:
    """Divides n rows into slices whose values fit into one list array. Without rows, yields one slice."""
    return _divided(lengths, _LIST_VALUES) if lengths.sum() > _LIST_VALUES else iter([slice(0, len(lengths))])


def _divided(lengths: np.ndarray, most: int) -> Iterator[slice]:
    """Yields slices of n rows. Each slice has at most `most` values, or is a single row."""
    ends, first = np.cumsum(lengths), 0
    while first < len(ends):
        before = int(ends[first]) - int(lengths[first])
        last = max(int(np.searchsorted(ends, before + most, side="right")), first + 1)
        yield slice(first, last)
        first = last


def _offsets(lengths: np.ndarray) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _list_lengths(column: pa.ChunkedArray) -> np.ndarray:
    """Returns the lengths of n lists: (n,) int64. Null has the length 0."""
    return _numbers(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)


def _encoded(columns: Iterable[pa.Array | pa.ChunkedArray]) -> pa.ChunkedArray:
    """Returns the strings of all columns as dictionary arrays, which may have different dictionaries."""
    chunks: list[pa.Array] = []
    for column in columns:
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        chunks += [coded] if isinstance(coded, pa.Array) else coded.chunks
    return pa.chunked_array(chunks, _KEYS)


def _flat(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the elements of all lists."""
    return pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.combine_chunks().to_numpy(zero_copy_only=False) if len(column) else np.zeros(0, np.int64)
