"""Counts how many candidates each source contributes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from conf.lazy_pyspark import F
from scoring.requests import SOURCES
from spark.rows import Rows

log = logging.getLogger("nightrank.scoring")


def places_by_source(candidates: Rows, sources: Sequence[str]) -> dict[str, int]:
    """Returns the number of (user, item) pairs of each source, by its name. Warns if a source has none.

    An item that several sources propose for a user counts for the first of them.

    Args:
        candidates: rows with the column `sources`: for each candidate, the index of its source.
        sources: the names of the sources, in the order of their indices.
    """
    if isinstance(candidates, pa.Table):
        of_places = candidates.column(SOURCES).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        counts = dict(enumerate(np.bincount(of_places, minlength=len(sources)).tolist()))
    else:
        by_source = candidates.select(F.explode(SOURCES).alias("source")).groupBy("source").count()
        counts = {int(row["source"]): int(row["count"]) for row in by_source.collect()}
    places = {name: counts.get(index, 0) for index, name in enumerate(sources)}
    for name, count in places.items():
        if not count:
            log.warning("the source %s adds no candidate", name)
    return places
