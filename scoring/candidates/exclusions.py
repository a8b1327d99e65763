"""Computes each user's excluded items: items that the user clicked or saw, and items that filters exclude.

`item_vectors.py`, `retrieval.py`, `similar_items.py` and `popular.py` leave the excluded items out of the
proposals of their sources. `source_tables.py` does so for sources from other packages. The source `all_items`
proposes every item. For this source, `recommender.py` and `pairs.py` in `scoring/ranking` leave excluded
items out of the lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.types import Split
from etl.prepare.attributes import plain_array
from etl.raw.splits import drawn_rows
from scoring.candidates.clicks import CLICK_COLUMNS, clicked_items, observed_items
from scoring.candidates.pairs_of_lists import pairs_of
from scoring.feature_rows import read_split
from scoring.requests import EXCLUDED, ITEM_INDEX
from spark.rows import Rows, persist, query, records, select, with_nulls
from storage.dataset import Dataset
from storage.feature_spec import ITEM_KEY, ROW_ID, USER_KEY, WEIGHT
from storage.run_context import RunContext

CLICKED, OBSERVED, WITH_EVENT = "clicked", "observed", "exclude_events"
_VALUE, _NEEDED = "_value", "_needed"
_INDICES = pa.list_(pa.int32())
_USERS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class AttributeFilter:
    """A filter by a user attribute (NotAllowed in conf).

    Attributes:
        name: the name of the filter in the counts of excluded pairs.
        kind: `deny` excludes the items that have a row with the user's value. `allow` excludes the items that
            have rows, but no row with the user's value. `at_least` excludes the items whose value is greater
            than the user's value.
        rows: rows with the columns `item_key` and `value`, without nulls and without repeated rows. For
            `at_least`, there is one row per item, and `value` is a number.
        attribute: the user attribute (a column) that is compared with the column `value`.
    """

    name: str
    kind: Literal["deny", "allow", "at_least"]
    rows: Rows
    attribute: str


@dataclass(frozen=True)
class Exclusions:
    """The items that no source may propose for a user.

    Attributes:
        users: rows with the columns user_key and excluded, one row per user. `excluded` is an array<int>
            of ascending item indices, or null if no item is excluded.
        most: length of the longest array `excluded`.
        counts: maps the name of each filter to the number of (user, item) pairs that the filter excludes.
            Several filters may exclude the same pair.
    """

    users: Rows
    most: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


def known_items(
    context: RunContext,
    dataset: Dataset,
    items: Rows,
    splits: Sequence[Split] | None = None,
    users: Rows | None = None,
) -> tuple[Rows | None, str]:
    """Returns the items that must not be recommended to a user again, and the name of the filter for them.

    The settings `repeats`, `exclude_events` and `exclude_clicked` of `candidates` determine these items.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
        items: rows with the columns item_index and item_key, one row per item.
        splits: the splits to use instead of `candidates.exclude_clicked`.
        users: rows with the distinct user_key of the users whose items are returned; None for all users.

    Returns:
        A pair. The first element is a table or frame with the columns user_key and item_index, without
        repeated rows; None if every item may be recommended again. The second element is the name of the
        filter.
    """
    repeats = context.config.repeats
    splits = context.config.candidates.exclude_clicked if splits is None else splits
    if not splits or repeats == "all":
        return None, CLICKED
    with_event = repeats == "without_event"
    rows = read_split(context, dataset, splits, [*CLICK_COLUMNS, ROW_ID, *([WEIGHT] if with_event else [])])
    if repeats == "unclicked":
        return clicked_items(rows, items, users), CLICKED
    if repeats == "none":
        return observed_items(rows, items, users, _rows_of_log(context)), OBSERVED
    if repeats == "without_event":
        weights = context.config.log.label.event_weights
        events = context.config.candidates.exclude_events or ()
        of_events = " OR ".join(f"{WEIGHT} = CAST({float(weights[event])!r} AS FLOAT)" for event in events)
        condition = f"({of_events}) AND {_rows_of_log(context)}"
        return observed_items(rows, items, users, condition), WITH_EVENT
    assert_never(repeats)


def _rows_of_log(context: RunContext) -> str:
    """Returns an SQL condition that is false for the rows that the section `negatives` added.

    The log does not contain these rows: the users did not see their items.
    """
    negatives = context.config.negatives
    return "true" if negatives is None else f"NOT ({drawn_rows(negatives)})"


def exclude(
    users: Rows,
    items: Rows,
    known: Rows | None,
    filters: list[AttributeFilter],
    attributes: Rows | None = None,
    known_as: str = CLICKED,
) -> Exclusions:
    """Computes which items are excluded for each user.

    Args:
        users: rows with the column user_key, one row per user.
        items: rows with the columns item_index and item_key, one row per item.
        known: rows with the columns user_key and item_index, without repeated rows: the items that must not
            be recommended to the user again. None excludes no items.
        filters: the filters by a user attribute. With filters, either all arguments are frames, or all are
            tables.
        attributes: rows with user_key and the attributes that the filters use, one row per user. If a user
            has no row, the user's attributes are null.
        known_as: the name by which the counts of excluded pairs list the items of `known`.
    """
    if not filters:
        return _exclude_known(users, known, known_as)
    if isinstance(users, pa.Table):
        return _exclude_of_tables(users, items, known, filters, attributes, known_as)
    lists: dict[str, Column] = {}
    frame = users.select(USER_KEY)
    if known is not None:
        known_lists = known.groupBy(USER_KEY).agg(F.sort_array(F.collect_list(ITEM_INDEX)).alias("_known"))
        frame, lists[known_as] = frame.join(known_lists, USER_KEY, "left"), F.col("_known")
    if filters and attributes is not None:
        compared = {rule.attribute: F.col(rule.attribute) for rule in filters}
        frame = frame.join(attributes.select(USER_KEY, *compared.values()), USER_KEY, "left")
    with_attributes = frame
    for number, rule in enumerate(filters):
        column = f"_barred_{number}"
        values = with_attributes.select(_typed(rule, F.col(rule.attribute)).alias(_VALUE)).distinct()
        barred = barred_items(rule, values, items).withColumnsRenamed(
            {EXCLUDED: column, _VALUE: f"{column}_of"}
        )
        same = _typed(rule, F.col(rule.attribute)).eqNullSafe(F.col(f"{column}_of"))
        frame, lists[rule.name] = frame.join(barred, same, "left"), F.col(column)
    union = next(iter(lists.values()))
    if len(lists) > 1:
        filled = [F.coalesce(indices, F.array().cast("array<int>")) for indices in lists.values()]
        joined = F.sort_array(F.array_distinct(F.concat(*filled)))
        union = F.when(F.size(joined) > 0, joined)
    kept = frame.select(
        USER_KEY,
        union.alias(EXCLUDED),
        *(_length(indices).alias(f"_{n}") for n, indices in enumerate(lists.values())),
    ).persist()
    sums = (F.sum(f"_{number}").alias(f"_{number}") for number in range(len(lists)))
    totals = kept.agg(F.max(_length(F.col(EXCLUDED))).alias("most"), *sums).collect()[0]
    counts = {name: int(totals[f"_{number}"] or 0) for number, name in enumerate(lists)}
    return Exclusions(kept.select(USER_KEY, EXCLUDED), int(totals["most"] or 0), counts)


def _exclude_known(users: Rows, known: Rows | None, known_as: str) -> Exclusions:
    """Implements `exclude` without filters: only the items in `known` are excluded for a user."""
    if known is None:
        return Exclusions(with_nulls(select(users, [USER_KEY]), EXCLUDED, pa.list_(pa.int32())))
    of_user = """
        SELECT users.user_key, known.excluded
        FROM {users} AS users
        LEFT JOIN (
            SELECT user_key, sort_array(collect_list(item_index)) AS excluded FROM {known} GROUP BY user_key
        ) AS known ON known.user_key = users.user_key
    """
    kept = persist(query(of_user, users=users, known=known))
    totals = """
        SELECT max(length) AS most, sum(length) AS pairs
        FROM (SELECT CASE WHEN excluded IS NULL THEN 0 ELSE size(excluded) END AS length FROM {kept}) AS lists
    """
    (total,) = records(query(totals, kept=kept))
    return Exclusions(kept, total["most"] or 0, {known_as: total["pairs"] or 0})


def _exclude_of_tables(
    users: pa.Table,
    items: pa.Table,
    known: pa.Table | None,
    filters: Sequence[AttributeFilter],
    attributes: pa.Table | None,
    known_as: str,
) -> Exclusions:
    """Implements `exclude` for tables with filters.

    For each distinct value of the attribute, the function computes once which items a filter excludes. To
    limit the memory, it unites the lists of all filters for a limited number of users at a time.
    """
    if attributes is None:
        raise ValueError("internal error, please report: filters need the table of user attributes")
    keys = users[USER_KEY].combine_chunks()
    lists: dict[str, pa.Array] = {}
    if known is not None:
        of_users: pa.Table = _exclude_known(users, known, known_as).users
        rows = pc.index_in(keys, value_set=of_users[USER_KEY].combine_chunks())
        lists[known_as] = of_users[EXCLUDED].combine_chunks().take(rows).cast(_INDICES)
    row_of_user = pc.index_in(keys, value_set=attributes[USER_KEY].combine_chunks())
    for rule in filters:
        values = _typed_array(rule, attributes[rule.attribute]).take(row_of_user).dictionary_encode()
        barred = _barred_by_value(rule, values.dictionary, items)
        lists[rule.name] = barred.take(values.indices.fill_null(len(values.dictionary)))
    excluded = [
        _united([part.slice(start, _USERS_AT_ONCE) for part in lists.values()])
        for start in range(0, max(len(keys), 1), _USERS_AT_ONCE)
    ]
    column = pa.chunked_array(excluded, _INDICES).combine_chunks()
    counts = {name: pc.sum(pc.list_value_length(part)).as_py() or 0 for name, part in lists.items()}
    most = pc.max(pc.list_value_length(column)).as_py() or 0
    return Exclusions(pa.table({USER_KEY: keys, EXCLUDED: column}), most, counts)


def _barred_by_value(rule: AttributeFilter, values: pa.Array, items: pa.Table) -> pa.ListArray:
    """Returns the ascending indices of the items that a filter excludes for each value of the attribute.

    Args:
        rule: the filter, whose rows are a table.
        values: v distinct values, without null.
        items: a table with item_index and item_key, one row per item.

    Returns:
        v + 1 lists. The last list is for users without a value. A list without items is null.
    """
    rows = pc.index_in(rule.rows[ITEM_KEY], value_set=items[ITEM_KEY].combine_chunks()).combine_chunks()
    is_item = rows.is_valid()
    item = items[ITEM_INDEX].combine_chunks().take(rows.filter(is_item)).to_numpy()
    needed = _typed_array(rule, rule.rows["value"]).filter(is_item)
    if rule.kind == "at_least":
        smallest, present = needed.to_numpy(zero_copy_only=False), values.to_numpy(zero_copy_only=False)
        lists = [item[value < smallest] for value in present] + [item]
    elif rule.kind == "deny" or rule.kind == "allow":
        codes = pc.index_in(needed, value_set=values, skip_nulls=True).fill_null(len(values)).to_numpy()
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(values) + 1))
        of_value = [item[order[start:end]] for start, end in pairwise(bounds)]
        if rule.kind == "deny":
            lists = [*of_value, item[:0]]
        else:
            lists = [*(np.setdiff1d(item, allowed) for allowed in of_value), item]
    else:
        assert_never(rule.kind)
    distinct = [np.unique(indices) for indices in lists]
    return pa.array([indices if len(indices) else None for indices in distinct], _INDICES)


def _united(lists: Sequence[pa.ListArray]) -> pa.ListArray:
    """Returns the union of the lists of each of n users: ascending indices, or null if there are none.

    Args:
        lists: arrays of n lists, some of them null.
    """
    if len(lists) == 1:
        return lists[0]
    pairs = [pairs_of(part) for part in lists]
    user = np.concatenate([rows for rows, _ in pairs]).astype(np.int64)
    index = np.concatenate([indices for _, indices in pairs]).astype(np.int64)
    distinct = np.unique(user << 32 | index)
    lengths = np.bincount(distinct >> 32, minlength=len(lists[0]))
    offsets = pa.array(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
    united = pa.ListArray.from_arrays(offsets, pa.array((distinct & 0xFFFFFFFF).astype(np.int32)))
    return pc.if_else(pa.array(lengths > 0), united, pa.scalar(None, _INDICES))


def _typed_array(rule: AttributeFilter, values: pa.ChunkedArray) -> pa.Array:
    """Converts the values that a filter compares: to numbers for `at_least`, otherwise to strings."""
    array = plain_array(values)
    return array.cast(pa.float64(), safe=False) if rule.kind == "at_least" else array.cast(pa.string())


def barred_items(rule: AttributeFilter, values: DataFrame, items: DataFrame) -> DataFrame:
    """Returns the items that a filter excludes for each value of the user attribute.

    The result has the columns _value and excluded, where excluded is an array of ascending item indices. If
    no item is excluded for a value, the value has no row.

    Args:
        rule: the filter.
        values: a frame with the column _value: the distinct attribute values of the users. Null represents
            users without a value.
        items: a frame with the columns item_index and item_key, one row per item.
    """
    numbered = rule.rows.withColumnRenamed("value", _NEEDED).join(
        items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY
    )
    needed = _typed(rule, F.col(_NEEDED))
    if rule.kind == "deny":
        pairs = values.join(numbered, F.col(_VALUE) == needed)
    elif rule.kind == "at_least":
        pairs = values.join(numbered, F.col(_VALUE).isNull() | (F.col(_VALUE) < needed))
    elif rule.kind == "allow":
        allowed = numbered.select(needed.alias(_VALUE), ITEM_INDEX)
        listed = numbered.select(ITEM_INDEX).distinct()
        pairs = values.crossJoin(listed).join(allowed, [_VALUE, ITEM_INDEX], "left_anti")
    else:
        assert_never(rule.kind)
    return pairs.groupBy(_VALUE).agg(F.sort_array(F.collect_set(ITEM_INDEX)).alias(EXCLUDED))


def _typed(rule: AttributeFilter, value: Column) -> Column:
    """Casts a value that a filter compares: to a number for `at_least`, otherwise to a string."""
    if rule.kind == "at_least":
        return value.cast("double")
    if rule.kind == "deny" or rule.kind == "allow":
        return value.cast("string")
    assert_never(rule.kind)


def _length(items: Column) -> Column:
    """Returns the length of an array, or 0 for a null array."""
    return F.when(items.isNotNull(), F.size(items)).otherwise(0)
