"""Unites the candidates of several sources, in the order of the configuration. Each source has a quota."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from scoring.candidates.source_scores import add_source_scores, proposed_columns
from scoring.inputs.requests import CANDIDATES, EXCLUDED, SCORES, SOURCE_SCORES, SOURCES
from storage.feature_spec import USER_KEY


def unite(
    users: DataFrame, lists: Sequence[DataFrame], most: int | None, *, with_scores: bool = False
) -> DataFrame:
    """Unites the candidates that several sources propose for each user, without repeated items.

    The candidates of the first source come first. If several sources propose an item, it counts only for the
    first of these sources. The other sources do not get another item in its place. If no source has a row for
    a user, the user gets an empty list.

    Args:
        users: a frame with the column user_key. The result has one row for each of these users.
        lists: one frame per source, with the columns user_key and candidates (array<int> without repeats),
            and scores (array<float>) if `with_scores`. Each list is already cut to the quota of its source.
        most: maximum length of a user's list; None for no limit.
        with_scores: whether the result has the column source_scores (`source_scores.add_source_scores`).

    Returns:
        A frame with the columns user_key, candidates, excluded and sources. `excluded` is null. `sources` is
        an array<tinyint> as long as `candidates`: for each candidate, the index of its source in `lists`.
    """
    no_items = F.array().cast("array<int>")
    joined = users.select(USER_KEY)
    for number, source in enumerate(lists):
        items, scores = proposed_columns(number)
        columns = [F.col(CANDIDATES).alias(items), *([F.col(SCORES).alias(scores)] if with_scores else [])]
        joined = joined.join(source.select(USER_KEY, *columns), USER_KEY, "left")
    first = F.coalesce(proposed_columns(0)[0], no_items)
    joined = joined.select(USER_KEY, first.alias(CANDIDATES), *joined.columns[1:])
    joined = joined.withColumn(SOURCES, F.array_repeat(F.lit(0).cast("tinyint"), F.size(CANDIDATES)))
    for number in range(1, len(lists)):
        new = F.array_except(F.coalesce(proposed_columns(number)[0], no_items), CANDIDATES)
        joined = joined.withColumn("_new", new)
        marks = F.array_repeat(F.lit(number).cast("tinyint"), F.size("_new"))
        joined = joined.withColumns(
            {CANDIDATES: F.concat(CANDIDATES, "_new"), SOURCES: F.concat(SOURCES, marks)}
        )
    if most is not None:
        joined = joined.withColumns({name: F.slice(name, 1, most) for name in (CANDIDATES, SOURCES)})
    if with_scores:
        joined = add_source_scores(joined, len(lists))
    excluded = F.lit(None).cast("array<int>").alias(EXCLUDED)
    more = [SOURCE_SCORES] if with_scores else []
    return joined.select(USER_KEY, CANDIDATES, excluded, SOURCES, *more)
