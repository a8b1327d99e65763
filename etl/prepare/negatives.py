"""Draws negatives without Spark. The rules and the results are the same as in etl/raw/splits.py.

The rows of a day are prepared in tasks. First, each task returns the items of its rows (`items_of`), and the
driver merges them (`merge_items`). Then each task draws negatives for its rows (`add_negatives`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.types import SPLITS, Negatives
from etl.native.distinct_values import Lookup
from etl.native.library import is_built
from etl.ops.arrays import codes_of, dense_codes, encoded, integers_of, plain, whole
from etl.ops.xxhash64 import xxhash64_of_draws
from etl.raw.splits import SPLIT
from storage.feature_spec import ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT

# Name of a column with the weight of each row. The weight of a drawn row is 1.
RAW_ITEM, SINCE = "raw_item", "since"
_VISIBLE = b"visible"
_ITEMS_FILE, _LOOKUP_FILE = "items.arrow", "items.lookup"
# Number of draws that are converted to rows together. With this limit, an array of texts stays far below
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
        """Maps the files that `save` wrote into memory."""
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
    """Returns the items of the rows of a task: item_key, raw_item, and the index of their first split.

    Args:
        rows: rows with item_key, the raw column and, if one partition contains all splits, `split`.
        item_column: the raw column of the item key. Rows with equal item keys have equal values in it.
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
    """Adds up to `per_positive` negatives for each positive row: items that its user has no row for.

    Args:
        rows: all rows of some users of the day, with keys, label and row_id.
        config: the section `negatives`: maximum number of negatives per positive row, the seed, and whether
            train rows get negatives. With `train: false`, the rows must have the column `split`.
        item_column: the raw column of the item key.
        items: the items of all rows of the day.

    Returns:
        The rows in their order, and then the negatives, ordered by their positive rows and draws. The new
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
    """Returns the draws that add a negative, without draws of observed pairs.

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
    """Returns whether a pair was observed in its split or in an earlier split.

    Args:
        pairs: (k,) int64, numbers of pairs of a user and an item, below 2**61.
        since: (k,) int8, the index of the split of each pair.
        observed: (n,) int64, the pairs of the rows.
        first: (n,) int8, the index of the split of each row.

    Returns:
        (k,) bool
    """
    # Most drawn pairs are not observed. A small hash table recognizes nearly all of these pairs without a
    # search.
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
    """Returns a hash of `bits` bits of each pair. The factor is 2**64 divided by the golden ratio (Knuth)."""
    return (pairs.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)


def _chosen(values: pa.Array, indices: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the values at `indices`, with a dictionary if `kind` is a dictionary type."""
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(indices.cast(kind.index_type), values.cast(kind.value_type))
    return values.take(indices).cast(kind)
