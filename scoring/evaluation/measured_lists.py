"""Measures several kinds of lists: their hit rate and NDCG for groups of users, and counts of their items.

Two queries measure all kinds and groups, because a Spark query takes about half a second even for a few rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark.rows import Rows, query, records

# The code below measures the relevance of a user's top-k list, as hits and NDCG, by the items that the user
# clicked after the list was made.

# NDCG is summed in integer units of 2⁻³², and the gains of one list in units of 2⁻⁴⁰. So the sums do not
# depend on the order of the rows.
UNITS = 2**32
_GAIN_UNITS = 2**40

# A SQL expression: the discounted gain of a hit at the position of a list entry, 1 / log2(position + 1).
GAIN = f"CAST(round({_GAIN_UNITS} / log2(position + 1)) AS BIGINT)"


@dataclass(frozen=True)
class Relevance:
    """The relevance of the lists of one group of users.

    A positive of a user is an item that the user clicked after the list was made.

    Attributes:
        users: number of users who have a list and at least one positive. The other attributes refer to these
            users.
        hit_rate: share of the users who have at least one positive in their list; None if there are no users.
        ndcg: mean NDCG over the users, with binary relevance (Järvelin and Kekäläinen 2002). The ideal list
            has min(k, number of positives) hits. None if there are no users.
    """

    users: int
    hit_rate: float | None
    ndcg: float | None


def user_relevance(lists: Rows, positives: Rows, k: int) -> Rows:
    """Returns the relevance of the list of each user who has a list and at least one positive.

    Args:
        lists: rows with the columns user_key, position and item_key, one row per list entry. Positions count
            from 1.
        positives: rows with the columns user_key and item_key, one row per positive of each user (see
            `Relevance`).
        k: maximum length of a list.

    Returns:
        Rows with the columns user_key, hits (number of positives in the list) and ndcg_units (NDCG as in
        `Relevance`, in units of 2⁻³²). Both are int64.
    """
    text = f"""
        SELECT listed.user_key, listed.hits, {ndcg_of("gain", "wanted", k)} AS ndcg_units
        FROM (
            SELECT lists.user_key, count(positives.item_key) AS hits,
                sum(CASE WHEN positives.item_key IS NULL THEN 0 ELSE {GAIN} END) AS gain
            FROM {{lists}} AS lists
            LEFT JOIN {{positives}} AS positives
                ON positives.user_key = lists.user_key AND positives.item_key = lists.item_key
            GROUP BY lists.user_key
        ) AS listed
        JOIN (SELECT user_key, count(1) AS wanted FROM {{positives}} GROUP BY user_key) AS clicked
            ON clicked.user_key = listed.user_key
    """
    return query(text, lists=lists, positives=positives)


def ndcg_of(gain: str, wanted: str, k: int) -> str:
    """Returns a SQL expression: the NDCG of a list in units of 2⁻³², an int64.

    Args:
        gain: the column with the sum of GAIN over the hits of the list.
        wanted: the column with the number of positives of the user. If this number is 0, the NDCG is null.
        k: maximum length of a list.
    """
    ideals = enumerate(ideal_gains(k)[:-1], start=1)
    cases = " ".join(f"WHEN {number} THEN {ideal!r}E0" for number, ideal in ideals)
    best = f"CASE {wanted} {cases} ELSE {ideal_gains(k)[-1]!r}E0 END" if cases else "1.0E0"
    return (
        f"CASE WHEN {wanted} > 0 THEN CAST(round({gain} / ({best}) / {_GAIN_UNITS // UNITS}) AS BIGINT) END"
    )


def ideal_gains(k: int) -> list[float]:
    """Returns k numbers. Element n - 1 is the discounted gain of a list whose first n entries are hits."""
    gains, total = [], 0.0
    for position in range(1, k + 1):
        total += 1 / math.log2(position + 1)
        gains.append(total)
    return gains


KIND = "kind"

# Keys in the result of `count_items`, besides the kinds of lists.
CLICKS, ITEMS = "clicks", "items"
_GROUPS = ("warm", "cold", "new_users", "known_users", "new_items")


@dataclass(frozen=True)
class MeasuredLists:
    """The relevance of one kind of lists, for groups of users.

    Attributes:
        warm, cold: users with and without a row in the train split.
        new_users, known_users: users who are new to the model, and all others of the table `users`.
        new_items: the relevance if only clicks on new items count as positives, for the users of the table
            `users` who clicked a new item.
    """

    warm: Relevance
    cold: Relevance
    new_users: Relevance
    known_users: Relevance
    new_items: Relevance


@dataclass(frozen=True)
class ListedItems:
    """Counts of the items in a set of rows, for example in all lists of one kind.

    Attributes:
        distinct: number of distinct items.
        new: number of rows with an item that is new to the model.
        new_share: `new` divided by the number of rows with an item of the table `items`; None if this number
            is 0.
    """

    distinct: int
    new: int
    new_share: float | None


_NOBODY = Relevance(0, None, None)
NO_LISTS = MeasuredLists(*[_NOBODY] * len(_GROUPS))
NO_ITEMS = ListedItems(0, 0, None)


def measure_kinds(
    lists: Rows, positives: Rows, warm: Rows, users: Rows, items: Rows, k: int
) -> dict[str, MeasuredLists]:
    """Returns the relevance of each kind of lists. A kind without users has no entry.

    Args:
        lists: rows with the columns kind, user_key, position and item_key, one row per list entry.
            Positions count from 1.
        positives: rows with the columns user_key and item_key, one row per positive of each user (see
            `Relevance`).
        warm: rows with the distinct user_key of the users with a row in the train split.
        users: rows with user_key and `new` (boolean), one row per user.
        items: rows with item_key and `new` (boolean), one row per item.
        k: maximum length of a list.
    """
    marked = query(
        """
        SELECT /*+ BROADCAST(fresh) */
            positives.user_key, positives.item_key, fresh.item_key IS NOT NULL AS is_new
        FROM {positives} AS positives
        LEFT JOIN (SELECT item_key FROM {items} WHERE new) AS fresh ON fresh.item_key = positives.item_key
        """,
        positives=positives,
        items=items,
    )
    wanted = query(
        """
        SELECT of_user.user_key, wanted, new_wanted, trained.user_key IS NOT NULL AS warm, users.new
        FROM (
            SELECT user_key, count(1) AS wanted, sum(CASE WHEN is_new THEN 1 ELSE 0 END) AS new_wanted
            FROM {marked} GROUP BY user_key
        ) AS of_user
        LEFT JOIN {warm} AS trained ON trained.user_key = of_user.user_key
        LEFT JOIN {users} AS users ON users.user_key = of_user.user_key
        """,
        marked=marked,
        warm=warm,
        users=users,
    )
    listed = query(
        f"""
        SELECT lists.kind, lists.user_key,
            count(marked.item_key) AS hits,
            sum(CASE WHEN marked.item_key IS NULL THEN 0 ELSE {GAIN} END) AS gain,
            sum(CASE WHEN marked.is_new THEN 1 ELSE 0 END) AS new_hits,
            sum(CASE WHEN marked.is_new THEN {GAIN} ELSE 0 END) AS new_gain
        FROM {{lists}} AS lists
        LEFT JOIN {{marked}} AS marked
            ON marked.user_key = lists.user_key AND marked.item_key = lists.item_key
        GROUP BY lists.kind, lists.user_key
        """,
        lists=lists,
        marked=marked,
    )
    sums = ", ".join(
        [
            *_sums("warm", "warm", "hits", "ndcg"),
            *_sums("cold", "NOT warm", "hits", "ndcg"),
            *_sums("new_users", "new", "hits", "ndcg"),
            *_sums("known_users", "NOT new", "hits", "ndcg"),
            *_sums("new_items", "new IS NOT NULL AND new_wanted > 0", "new_hits", "new_ndcg"),
        ]
    )
    measured = query(
        f"""
        SELECT kind, {sums}
        FROM (
            SELECT listed.kind, hits, new_hits, new_wanted, warm, new,
                {ndcg_of("gain", "wanted", k)} AS ndcg, {ndcg_of("new_gain", "new_wanted", k)} AS new_ndcg
            FROM {{listed}} AS listed JOIN {{wanted}} AS of_user ON of_user.user_key = listed.user_key
        ) AS measured
        GROUP BY kind
        """,
        listed=listed,
        wanted=wanted,
    )
    return {
        row[KIND]: MeasuredLists(*(_relevance(row, name) for name in _GROUPS)) for row in records(measured)
    }


def count_items(lists: Rows, positives: Rows, items: Rows) -> dict[str, ListedItems]:
    """Returns counts of the items in each kind of lists, in the clicks (CLICKS) and in all items (ITEMS).

    The arguments are those of `measure_kinds`. The result has no entry for a kind without rows. The same
    applies to CLICKS and ITEMS.
    """
    counts = query(
        f"""
        SELECT kind, count(1) AS distinct_items,
            sum(CASE WHEN new IS NULL THEN 0 ELSE entries END) AS known,
            sum(CASE WHEN new THEN entries ELSE 0 END) AS new_entries
        FROM (
            SELECT kind, counted.item_key, entries, items.new
            FROM (
                SELECT kind, item_key, count(1) AS entries
                FROM (
                    SELECT kind, item_key FROM {{lists}}
                    UNION ALL SELECT '{CLICKS}' AS kind, item_key FROM {{positives}}
                    UNION ALL SELECT '{ITEMS}' AS kind, item_key FROM {{items}}
                ) AS entries
                GROUP BY kind, item_key
            ) AS counted
            LEFT JOIN {{items}} AS items ON items.item_key = counted.item_key
        ) AS counts
        GROUP BY kind
        """,
        lists=lists,
        positives=positives,
        items=items,
    )
    return {
        row[KIND]: ListedItems(
            row["distinct_items"],
            row["new_entries"],
            row["new_entries"] / row["known"] if row["known"] else None,
        )
        for row in records(counts)
    }


def _sums(name: str, chosen: str, hits: str, ndcg: str) -> list[str]:
    """Returns SQL that counts users and hits, and sums NDCG, over the users for whom `chosen` is true."""
    return [
        f"count(CASE WHEN {chosen} THEN 1 END) AS {name}_users",
        f"count(CASE WHEN ({chosen}) AND {hits} > 0 THEN 1 END) AS {name}_hits",
        f"sum(CASE WHEN {chosen} THEN {ndcg} END) AS {name}_ndcg",
    ]


def _relevance(sums: Mapping[str, Any], name: str) -> Relevance:
    users = sums[f"{name}_users"]
    if not users:
        return _NOBODY
    return Relevance(users, sums[f"{name}_hits"] / users, sums[f"{name}_ndcg"] / UNITS / users)
