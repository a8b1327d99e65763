"""Measures the relevance of a user's top-k list by what the user clicked afterwards: hits and NDCG."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spark.rows import Rows, query

# NDCG is added as integer multiples of 2⁻³², and the gains of one list in units of 2⁻⁴⁰, so that sums do not
# depend on the order of the rows.
UNITS = 2**32
_GAIN_UNITS = 2**40

# An expression of SQL: the discounted gain of a hit at the position of a list entry, 1 / log2(position + 1).
GAIN = f"CAST(round({_GAIN_UNITS} / log2(position + 1)) AS BIGINT)"


@dataclass(frozen=True)
class Relevance:
    """The relevance of the lists of one group of users.

    A positive of a user is an item that the user clicked after the list was made.

    Attributes:
        users: number of users who have a list and at least one positive. The other attributes are about these
            users.
        hit_rate: share of the users who have at least one positive in their list; None if there are no users.
        ndcg: mean NDCG of the users with binary relevance (Järvelin and Kekäläinen 2002). The ideal list has
            min(k, number of positives) hits. None if there are no users.
    """

    users: int
    hit_rate: float | None
    ndcg: float | None


def user_relevance(lists: Rows, positives: Rows, k: int) -> Rows:
    """Returns the relevance of the list of each user who has a list and at least one positive.

    Args:
        lists: rows with the columns user_key, position and item_key, one row per list entry. Positions count
            from 1.
        positives: rows with the columns user_key and item_key: the distinct items that each user clicked
            later.
        k: maximum length of a list.

    Returns:
        Rows with the columns user_key, hits (number of positives in the list) and ndcg_units (NDCG in units
        of 2⁻³²; Relevance describes it). Both are int64.
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
    """Returns an expression of SQL: the NDCG of a list in units of 2⁻³², an int64.

    Args:
        gain: the column with the sum of GAIN over the hits of the list.
        wanted: the column with the number of positives of the user; 0 gives null.
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
