"""MAP@k and NDCG@k of ranked groups of rows, such as the ads that were displayed together.

All rows of a group are in one Spark task. Each task reduces its groups to one row of sums. The driver adds
these integer sums. So the result does not depend on the order of the tasks, and the driver's memory does not
grow with the number of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from conf.errors import DataError
from metrics.ranking import map_at_k, ndcg_at_k
from scoring.inputs.requests import PROBABILITY
from storage.feature_spec import GROUP_KEY, LABEL

_UNITS = 2**32
_SUMS = pa.schema([("groups", pa.int64()), ("map_units", pa.int64()), ("ndcg_units", pa.int64())])
_SUMS_DDL = "groups long, map_units long, ndcg_units long"


def measure_groups(predictions: DataFrame, k: int) -> dict[str, Any]:
    """Measures how well descending probability ranks the rows of each group.

    Args:
        predictions: (group_key, label, probability); the label is 0 or 1.
        k: number of top positions that are measured.

    Returns:
        `k`; `groups`, the number of groups with a click (other groups do not count); `map` and `ndcg`, the
        means of AP@k and NDCG@k over these groups, defined in metrics.ranking.

    Raises:
        DataError: no group has a click.
    """
    rows = predictions.select(GROUP_KEY, LABEL, PROBABILITY).repartition(GROUP_KEY)
    partials = rows.mapInArrow(_reducer(k), _SUMS_DDL).collect()
    groups = sum(sums["groups"] for sums in partials)
    if not groups:
        raise DataError(
            "no group of the test split has a click, so there is no ranking to measure",
            "choose a run date whose test days have clicks, or remove keys.group",
        )
    means = {
        name: sum(sums[f"{name}_units"] for sums in partials) / _UNITS / groups for name in ("map", "ndcg")
    }
    return {"k": k, "groups": groups, **means}


def _reducer(k: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that reduces the groups of one task to sums."""

    def reduce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if tables:
            sums = reduce_groups(pa.concat_tables(tables), k)
            yield pa.RecordBatch.from_pylist([sums], schema=_SUMS)

    return reduce


def reduce_groups(rows: pa.Table, k: int) -> dict[str, int]:
    """The sums over the groups in `rows`, a table (group_key, label, probability) with at least one row.

    All rows of a group must be in this table.
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
