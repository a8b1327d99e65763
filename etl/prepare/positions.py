"""Adds the position at which the item of a row was shown to its user, without Spark.

The rules and the results are the same as in etl/spark/frame_passes.py. All rows and all impressions of a user
are in the same task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.ops.arrays import groups_of, integers_of, with_column
from etl.workflow.feature_plan import FeaturePlan
from storage.feature_spec import EVENT_TIME, ITEM_KEY, USER_KEY

if TYPE_CHECKING:
    from etl.raw.files import RawFiles
    from spark.workers import Workers

POSITION = "position"
_KEYS = (USER_KEY, ITEM_KEY)


def impressions_table(workers: Workers, plan: FeaturePlan, raw: RawFiles) -> pa.Table | None:
    """Returns the valid impressions of the day of a click log: user_key, item_key, position and event_time.

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
        raise ValueError("internal error, please report: workers of Spark have no tables")
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
    """Adds an int64 column with the position of the impression of each row; null without an impression.

    Args:
        rows: all rows of some users of a day, with user_key, item_key and, if `has_time`, event_time.
        impressions: all impressions of these users, and possibly impressions of other users: user_key,
            item_key, position and, if `has_time`, event_time, without nulls. None if the day has no log of
            impressions.
        column: the name of the new column.
        has_time: whether the click log has event times (µs). If not, a row gets the smallest position.

    Returns:
        The rows in their order, with the new column.
    """
    if impressions is None or not len(impressions) or not len(rows):
        return with_column(rows, column, pa.nulls(len(rows), pa.int64()))
    keys = [pa.chunked_array([*_texts(rows, name), *_texts(impressions, name)]) for name in _KEYS]
    pairs, size = groups_of(pa.table(keys, names=list(_KEYS)), _KEYS)
    of_rows, of_impressions = pairs[: len(rows)], pairs[len(rows) :]
    # Most rows have no impression, and most impressions have no row. Such rows and impressions need not be
    # sorted.
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
    # At equal times, impressions come before rows, and the smallest position comes last.
    descending = np.concatenate([-positions, np.zeros(len(times), np.int64)])
    order = np.lexsort((descending, is_row, np.concatenate([shown, times]), pair))
    # For each place in this order, the place of the last impression at or before it; -1 before the first
    # impression.
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
    """Returns the indices of rows and of impressions whose pair is in both arrays.

    All pairs are numbers below `size`.
    """
    in_rows, in_impressions = np.zeros(size, bool), np.zeros(size, bool)
    in_rows[rows], in_impressions[impressions] = True, True
    both = in_rows & in_impressions
    return np.flatnonzero(both[rows]), np.flatnonzero(both[impressions])
