"""Measures recall: how many of the items that a user clicked after the run were among the candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from scoring.candidates.pairs_of_lists import pairs_of
from scoring.requests import CANDIDATES, EXCLUDED, ITEM_INDEX, SOURCES
from spark.rows import Rows, count, query, records, select
from storage.feature_spec import USER_KEY

# Shares are added as integer multiples of 2⁻³², so that sums do not depend on the order of the rows.
_UNITS = 2**32


@dataclass(frozen=True)
class Recall:
    """Recall@n of one group of users. n is the length of each user's list of candidates.

    A positive of a user is an item that the user clicked after the candidates were computed.

    Attributes:
        users: number of users with a row in the candidates table and at least one positive. The other
            attributes refer to these users.
        positives: number of positives of all these users together.
        recall: the share of a user's positives that are candidates, averaged over the users; None if there
            are no users.
        by_source: maps the name of each source to the recall of its candidates alone. The values of all
            sources add up to `recall`. Empty if all items are candidates.
        mean_candidates: mean number of candidates per user.
    """

    users: int
    positives: int
    recall: float | None
    by_source: dict[str, float] = field(default_factory=dict)
    mean_candidates: float | None = None


def measure_recall(
    candidates: Rows, items: Rows, positives: Rows, warm: Rows, sources: Sequence[str]
) -> dict[bool, Recall]:
    """Returns the recall of the candidates for warm users (key True) and for cold users (key False).

    A positive with an item that is not in `items` counts as missed.

    Args:
        candidates: rows with the columns user_key, candidates, excluded and sources, one row per user.
        items: rows with the columns item_index and item_key, one row per item.
        positives: rows with the columns user_key and item_key, one row per positive of each user (see
            `Recall`).
        warm: rows with the distinct user_key of the users with train rows. All other users are cold.
        sources: the names of the sources. The column `sources` has indices into this sequence; it is null for
            the source `all_items`.
    """
    pairs = query(
        """
        SELECT positives.user_key, items.item_index, candidates, excluded, sources
        FROM {positives} AS positives
        JOIN {candidates} AS listed ON listed.user_key = positives.user_key
        LEFT JOIN {items} AS items ON items.item_key = positives.item_key
        """,
        positives=positives,
        candidates=select(candidates, [USER_KEY, CANDIDATES, EXCLUDED, SOURCES]),
        items=items,
    )
    hits = _hits_of_table if isinstance(pairs, pa.Table) else _hits
    shares = {"recall": "hit"} | {f"source_{n}": f"source = {n}" for n in range(len(sources))}
    of_user = ", ".join(
        f"CAST(round(count(CASE WHEN {hit} THEN 1 END) * CAST({_UNITS} AS DOUBLE) / count(1)) AS BIGINT) "
        f"AS {name}"
        for name, hit in shares.items()
    )
    sums = query(
        f"""
        SELECT warm, count(1) AS users, sum(positives) AS positives, sum(length) AS length,
            {", ".join(f"sum({name}) AS {name}" for name in shares)}
        FROM (
            SELECT trained.user_key IS NOT NULL AS warm, of_user.*
            FROM (
                SELECT user_key, count(1) AS positives, max(length) AS length, {of_user}
                FROM {{hits}} GROUP BY user_key
            ) AS of_user
            LEFT JOIN {{warm}} AS trained ON trained.user_key = of_user.user_key
        ) AS users
        GROUP BY warm
        """,
        hits=hits(pairs, count(items)),
        warm=warm,
    )
    return _recall_by_group(records(sums), sources)


def _hits_of_table(pairs: pa.Table, num_items: int) -> pa.Table:
    """Implements `_hits` for an Arrow table instead of a Spark frame."""
    lists = {name: pairs.column(name).combine_chunks() for name in (CANDIDATES, EXCLUDED, SOURCES)}
    known = pairs.column(ITEM_INDEX).is_valid().to_numpy()
    item = pairs.column(ITEM_INDEX).fill_null(-1).to_numpy()
    all_items = lists[CANDIDATES].is_null().to_numpy(zero_copy_only=False)
    lengths = {
        name: pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        for name, values in lists.items()
    }

    def matches(name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        row, value = pairs_of(lists[name])
        return row, value == item[row]

    excluded = np.zeros(len(pairs), bool)
    row, same = matches(EXCLUDED)
    excluded[row[same]] = True
    row, same = matches(CANDIDATES)
    hit = np.where(all_items, known & ~excluded, False)
    hit[row[same]] = True
    source = np.full(len(pairs), -1, np.int8)
    if lists[SOURCES].null_count < len(pairs):
        source[row[same]] = lists[SOURCES].flatten().to_numpy(zero_copy_only=False)[same]
    length = np.where(all_items, num_items - lengths[EXCLUDED], lengths[CANDIDATES])
    columns = [pa.array(length.astype(np.int32)), pa.array(hit), pa.array(source, mask=source < 0)]
    return pa.Table.from_arrays([pairs.column(USER_KEY), *columns], ["user_key", "length", "hit", "source"])


def _hits(pairs: DataFrame, num_items: int) -> DataFrame:
    """Returns a frame with one row for each positive of each user who has candidates.

    Args:
        pairs: a frame with the columns user_key, item_index, candidates, excluded and sources: one row per
            positive. item_index is null for an unknown item.
        num_items: the total number of items.

    Returns:
        A frame with these columns:
        - `user_key`
        - `length`: the number of candidates of the user
        - `hit`: whether the positive is a candidate
        - `source`: the index of the source that proposed the positive; null if no source did
    """
    position = F.call_function("array_position", F.col(CANDIDATES), F.col(ITEM_INDEX))
    all_items = F.col(CANDIDATES).isNull()
    is_excluded = F.coalesce(
        F.call_function("array_contains", F.col(EXCLUDED), F.col(ITEM_INDEX)), F.lit(False)
    )
    source = F.when(
        position > 0,
        F.call_function("element_at", F.col(SOURCES), F.when(position > 0, position).cast("int")),
    )
    num_excluded = F.coalesce(F.when(F.col(EXCLUDED).isNotNull(), F.size(EXCLUDED)), F.lit(0))
    length = F.when(all_items, num_items - num_excluded).otherwise(F.size(CANDIDATES))
    hit = F.when(all_items, F.col(ITEM_INDEX).isNotNull() & ~is_excluded).otherwise(
        F.coalesce(position > 0, F.lit(False))
    )
    return pairs.select(USER_KEY, length.alias("length"), hit.alias("hit"), source.alias("source"))


def _recall_by_group(sums: Iterable[Mapping[str, Any]], sources: Sequence[str]) -> dict[bool, Recall]:
    """Returns the recall of warm users (key True) and of cold users (key False).

    Args:
        sums: one row for each group that has users, with the sums over the users of the group.
        sources: the names of the sources.
    """
    recalls = {}
    for row in sums:
        users, by_source = row["users"], {}
        if list(sources) != ["all_items"]:
            by_source = {
                name: row[f"source_{number}"] / _UNITS / users for number, name in enumerate(sources)
            }
        recall = row["recall"] / _UNITS / users
        recalls[row["warm"]] = Recall(users, row["positives"], recall, by_source, row["length"] / users)
    return {group: recalls.get(group, Recall(0, 0, None)) for group in (True, False)}
