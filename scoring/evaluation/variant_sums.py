"""Sums of the relevance of each variant's lists, over all users and over each resample of the users.

The weight of a user in a resample depends only on the seed and on the user. So sums of several days can be
added, and each resample of the sum is a resample of users, with all days of a user. The sums are integers;
they depend neither on tasks nor on the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrics.bootstrap import Resample, reduce_means
from scoring.evaluation.list_relevance import UNITS, user_relevance
from scoring.evaluation.prediction_quality import UNIT
from scoring.inputs.requests import VARIANT
from spark.rows import Rows, map_rows, query, records, with_hash

# What is added for each user: whether the user clicked, whether a clicked item is in the list, NDCG, and the
# reciprocal rank of the first hit. The last two are in units of 2⁻³²; they are 0 for users without a click.
VALUES = ("clicked", "hit", "ndcg", "reciprocal_rank")
WEIGHT = "users"
SUMS = (WEIGHT, *VALUES)
_PARTIAL = pa.schema([(VARIANT, pa.string()), *((name, pa.list_(pa.int64())) for name in SUMS)])

# Maps each name of SUMS to (1 + replicates,) int64: the sum over all users, then that of each resample.
Sums = Mapping[str, NDArray[np.int64]]


def sum_variants(lists: Rows, positives: Rows, k: int, resample: Resample) -> dict[str, Sums]:
    """Returns the sums of each variant that has a list.

    Args:
        lists: rows with the columns user_key, position, item_key and variant, one row per list entry.
        positives: rows with the columns user_key and item_key: the distinct items that each user clicked
            later.
        k: maximum length of a list.
        resample: how often to resample the users, and the seed.
    """
    first_hits = query(
        """
        SELECT lists.user_key, min(position) AS first_hit
        FROM {lists} AS lists JOIN {positives} AS positives
            ON positives.user_key = lists.user_key AND positives.item_key = lists.item_key
        GROUP BY lists.user_key
        """,
        lists=lists,
        positives=positives,
    )
    users = query(
        f"SELECT user_key, min({VARIANT}) AS {VARIANT} FROM {{lists}} GROUP BY user_key", lists=lists
    )
    rows = query(
        f"""
        SELECT {UNIT}, {VARIANT},
            CAST(CASE WHEN hits IS NULL THEN 0 ELSE 1 END AS BIGINT) AS clicked,
            CAST(CASE WHEN hits > 0 THEN 1 ELSE 0 END AS BIGINT) AS hit,
            coalesce(ndcg_units, CAST(0 AS BIGINT)) AS ndcg,
            CASE WHEN first_hit IS NULL THEN CAST(0 AS BIGINT)
                ELSE CAST(round({UNITS} / CAST(first_hit AS DOUBLE)) AS BIGINT) END AS reciprocal_rank
        FROM {{users}} AS users
        LEFT JOIN {{relevance}} AS relevance ON relevance.user_key = users.user_key
        LEFT JOIN {{first_hits}} AS first_hits ON first_hits.user_key = users.user_key
        """,
        users=with_hash(users, "user_key", UNIT),
        relevance=user_relevance(lists, positives, k),
        first_hits=first_hits,
    )
    totals: dict[str, dict[str, NDArray[np.int64]]] = {}
    for partial in records(map_rows(rows, _reducer(resample), _PARTIAL)):
        sums = {name: np.array(partial[name], np.int64) for name in SUMS}
        known = totals.get(partial[VARIANT])
        totals[partial[VARIANT]] = {name: sums[name] + known[name] for name in SUMS} if known else sums
    return {variant: totals[variant] for variant in sorted(totals)}


def _reducer(
    resample: Resample,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the users of one task to one row for each variant."""

    def reduce_users(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if not tables:
            return
        rows = pa.concat_tables(tables)
        variant = np.array(rows.column(VARIANT).to_pylist())
        units = rows.column(UNIT).to_numpy()
        values = {name: rows.column(name).to_numpy() for name in VALUES}
        for name in np.unique(variant):
            chosen = variant == name
            of_variant = {value: column[chosen] for value, column in values.items()}
            sums = reduce_means(units[chosen], of_variant, resample)
            row = {VARIANT: str(name), WEIGHT: [int(chosen.sum()), *sums["weights"]]}
            row |= {value: [int(column.sum()), *sums[value]] for value, column in of_variant.items()}
            yield pa.RecordBatch.from_pylist([row], schema=_PARTIAL)

    return reduce_users


def add_days(days: Sequence[Mapping[str, Sums]]) -> dict[str, Sums]:
    """Returns the sums of several days together, for each variant that all of them have."""
    variants = set.intersection(*(set(day) for day in days)) if days else set()
    return {
        variant: {name: np.sum([day[variant][name] for day in days], axis=0) for name in SUMS}
        for variant in sorted(variants)
    }


def to_table(sums: Mapping[str, Sums]) -> pa.Table:
    """Returns sums as a table with one row for each variant and replicate; the replicate 0 is all users."""
    parts = []
    for variant, of_variant in sums.items():
        length = len(of_variant[WEIGHT])
        columns = [pa.repeat(pa.scalar(variant, pa.string()), length), pa.array(range(length), pa.int32())]
        columns += [pa.array(of_variant[name], pa.int64()) for name in SUMS]
        parts.append(pa.Table.from_arrays(columns, [VARIANT, "replicate", *SUMS]))
    return pa.concat_tables(parts)


def from_table(table: pa.Table) -> dict[str, Sums]:
    """Returns the sums in a table of `to_table`."""
    ordered = table.sort_by([(VARIANT, "ascending"), ("replicate", "ascending")])
    variant = np.array(ordered.column(VARIANT).to_pylist())
    columns = {name: ordered.column(name).to_numpy() for name in SUMS}
    return {
        str(name): {value: column[variant == name] for value, column in columns.items()}
        for name in np.unique(variant)
    }
