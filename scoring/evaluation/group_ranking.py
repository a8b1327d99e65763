"""Measures MAP@k and NDCG@k of ranked groups of rows, such as the ads that were displayed together.

All rows of a group are in one Spark task. Each task reduces its groups to one row of integer sums, and the
driver adds the rows of all tasks. So the result does not depend on the order of the tasks, and the driver's
memory does not grow with the number of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from metrics.ranking import map_at_k, ndcg_at_k
from scoring.inputs.requests import PROBABILITY
from spark.rows import Rows, map_rows, records, select
from storage.feature_spec import GROUP_KEY, LABEL

_UNITS = 2**32
_SUMS = pa.schema([("groups", pa.int64()), ("map_units", pa.int64()), ("ndcg_units", pa.int64())])


def measure_groups(predictions: Rows, k: int) -> dict[str, Any]:
    """Measures MAP@k and NDCG@k of the rows of each group, ranked by descending probability.

    Args:
        predictions: rows with the columns group_key, label and probability. The label is 0 or 1.
        k: number of top positions that are measured.

    Returns:
        A dictionary with the keys `k`, `groups`, `map` and `ndcg`. `groups` is the number of groups with a
        click; all other groups are ignored. `map` and `ndcg` are the means of AP@k and NDCG@k over the groups
        with a click (metrics.ranking); None if no group has a click.
    """
    rows = select(predictions, [GROUP_KEY, LABEL, PROBABILITY])
    of_group = rows.repartition(GROUP_KEY) if isinstance(rows, DataFrame) else rows
    partials = records(map_rows(of_group, _reducer(k), _SUMS))
    groups = sum(sums["groups"] for sums in partials)
    means = {
        name: sum(sums[f"{name}_units"] for sums in partials) / _UNITS / groups if groups else None
        for name in ("map", "ndcg")
    }
    return {"k": k, "groups": groups, **means}


def _reducer(k: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the groups of one task to one row of sums."""

    def reduce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if tables:
            sums = reduce_groups(pa.concat_tables(tables), k)
            yield pa.RecordBatch.from_pylist([sums], schema=_SUMS)

    return reduce


def reduce_groups(rows: pa.Table, k: int) -> dict[str, int]:
    """Returns the number of groups with a click, and the sums of AP@k and of NDCG@k over these groups.

    The sums are integers in units of 2⁻³².

    Args:
        rows: a table with the columns group_key, label and probability, and at least one row. If it has one
            row of a group, it must have all rows of this group.
        k: number of top positions that are measured.
    """
    group = rows.column(GROUP_KEY).combine_chunks().dictionary_encode().indices.to_numpy()
    label = rows.column(LABEL).to_numpy()
    score = rows.column(PROBABILITY).to_numpy()
    groups = len(np.unique(group[label > 0]))
    if not groups:
        return {"groups": 0, "map_units": 0, "ndcg_units": 0}
    means = {"map": map_at_k(label, score, group, k), "ndcg": ndcg_at_k(label, score, group, k)}
    return {
        "groups": groups,
        **{f"{name}_units": round(mean * groups * _UNITS) for name, mean in means.items()},
    }
