"""Unites the candidates of several sources, in the order of the configuration. Each source has a quota."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from scoring.inputs.requests import CANDIDATES, EXCLUDED, SOURCES
from storage.feature_spec import USER_KEY


def unite(users: DataFrame, lists: Sequence[DataFrame], most: int | None) -> DataFrame:
    """Unites the candidates that several sources propose for each user, without repeated items.

    The candidates of the first source come first. If several sources propose an item, it counts only for the
    first of these sources. The other sources do not get another item in its place. If no source has a row for
    a user, the user gets an empty list.

    Args:
        users: a frame with the column user_key. The result has one row for each of these users.
        lists: one frame per source, with the columns user_key and candidates (array<int> without repeats).
            Each list is already cut to the quota of its source.
        most: maximum length of a user's list; None for no limit.

    Returns:
        A frame with the columns user_key, candidates, excluded and sources. `excluded` is null. `sources` is
        an array<tinyint> as long as `candidates`: for each candidate, the index of its source in `lists`.
    """
    no_items = F.array().cast("array<int>")
    joined = users.select(USER_KEY)
    for number, source in enumerate(lists):
        joined = joined.join(source.select(USER_KEY, F.col(CANDIDATES).alias(f"_{number}")), USER_KEY, "left")
    joined = joined.select(USER_KEY, F.coalesce("_0", no_items).alias(CANDIDATES), *joined.columns[1:])
    joined = joined.withColumn(SOURCES, F.array_repeat(F.lit(0).cast("tinyint"), F.size(CANDIDATES)))
    for number in range(1, len(lists)):
        new = F.array_except(F.coalesce(f"_{number}", no_items), CANDIDATES)
        joined = joined.withColumn("_new", new)
        marks = F.array_repeat(F.lit(number).cast("tinyint"), F.size("_new"))
        joined = joined.withColumns(
            {CANDIDATES: F.concat(CANDIDATES, "_new"), SOURCES: F.concat(SOURCES, marks)}
        )
    columns = [
        F.col(name) if most is None else F.slice(name, 1, most).alias(name) for name in (CANDIDATES, SOURCES)
    ]
    return joined.select(USER_KEY, columns[0], F.lit(None).cast("array<int>").alias(EXCLUDED), columns[1])
