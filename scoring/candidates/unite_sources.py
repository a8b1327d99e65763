"""Unites the candidates of several sources, in the order of the configuration, up to `candidates.max`.

The sources have already limited each list to `n` items (in popular.py, item_vectors.py, similar_items.py and
source_tables.py). A list that is shorter than `candidates.max` stays shorter. A user without proposed items
gets an empty list; scoring/ranking/list_summary.py counts these users.

For a blend, each candidate also gets the scores of all sources that proposed it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.lazy_imports import F
from scoring.candidates.pairs_of_lists import pairs_of
from scoring.requests import CANDIDATES, EXCLUDED, SCORES, SOURCE_SCORES, SOURCES
from spark.rows import Rows, map_rows, select, with_nulls
from storage.feature_spec import USER_KEY

log = logging.getLogger("nightrank.scoring")

Batches = Iterable[pa.RecordBatch]
_WITH_SCORES = pa.schema(
    [
        (USER_KEY, pa.string()),
        (CANDIDATES, pa.list_(pa.int32())),
        (SOURCES, pa.list_(pa.int8())),
        (SOURCE_SCORES, pa.list_(pa.float32())),
    ]
)
_ITEM_BITS = 32


def unite(users: Rows, lists: Sequence[Rows], most: int | None, *, with_scores: bool = False) -> Rows:
    """Unites the candidates that several sources propose for each user, without repeated items.

    The candidates of the first source come first. If several sources propose an item, it counts only for the
    first of these sources. The other sources do not get another item in its place. If no source has a row for
    a user, the user gets an empty list.

    Args:
        users: rows with the column user_key. The result has one row for each of these users.
        lists: the rows of each source, with the columns user_key and candidates (array<int> without repeats),
            and scores (array<float>) if `with_scores`. A list has at most as many items as the setting `n` of
            its source.
        most: maximum length of a user's list; None for no limit.
        with_scores: whether the result has the column source_scores (`add_source_scores`).

    Returns:
        Rows with the columns user_key, candidates, excluded and sources. `excluded` is null. `sources` is
        an array<tinyint> as long as `candidates`: for each candidate, the index of its source in `lists`.
    """
    if isinstance(users, pa.Table):
        return _unite_tables(users, lists, most, with_scores)
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


def _unite_tables(
    users: pa.Table, lists: Sequence[pa.Table], most: int | None, with_scores: bool
) -> pa.Table:
    """Implements `unite` for Arrow tables instead of Spark frames."""
    keys = users.column(USER_KEY).combine_chunks()
    proposed: dict[str, pa.Array] = {}
    rows, items, sources = [], [], []
    for number, source in enumerate(lists):
        place = pc.index_in(keys, value_set=source.column(USER_KEY).combine_chunks())
        for name, column in zip((CANDIDATES, SCORES), proposed_columns(number), strict=True):
            proposed[column] = source.column(name).combine_chunks().take(place)
        row, item = pairs_of(proposed[proposed_columns(number)[0]])
        rows.append(row)
        items.append(item)
        sources.append(np.full(len(row), number, np.int8))
    row, item, source_of = np.concatenate(rows), np.concatenate(items), np.concatenate(sources)
    # Keep the first of equal pairs: it comes from the first source that proposed the pair.
    first = np.sort(np.unique(row << 32 | item, return_index=True)[1])
    row, item, source_of = row[first], item[first], source_of[first]
    order = np.argsort(row, kind="stable")  # sorts by user; a stable sort keeps the order of the sources
    row, item, source_of = row[order], item[order], source_of[order]
    if most is not None:
        kept = np.arange(len(row)) - np.searchsorted(row, row) < most
        row, item, source_of = row[kept], item[kept], source_of[kept]
    offsets = pa.array(np.searchsorted(row, np.arange(len(keys) + 1)).astype(np.int32))
    columns = {
        USER_KEY: keys,
        CANDIDATES: pa.ListArray.from_arrays(offsets, pa.array(item.astype(np.int32))),
        SOURCES: pa.ListArray.from_arrays(offsets, pa.array(source_of)),
    }
    united: Rows = pa.table(columns)
    if with_scores:
        united = add_source_scores(pa.table({**columns, **proposed}), len(lists))
    more = [SOURCE_SCORES] if with_scores else []
    with_excluded = with_nulls(united, EXCLUDED, pa.list_(pa.int32()))
    return select(with_excluded, [USER_KEY, CANDIDATES, EXCLUDED, SOURCES, *more])


def proposed_columns(source: int) -> tuple[str, str]:
    """Returns the names of a source's two columns: the items that it proposes, and their scores."""
    return f"_{CANDIDATES}_{source}", f"_{SCORES}_{source}"


def add_source_scores(united: Rows, num_sources: int) -> Rows:
    """Adds the column source_scores, an array<float>, to the candidates.

    With S sources, the elements S·p to S·p + S - 1 are the scores that the sources gave to the candidate at
    position p (from 0), in the order of the sources. NaN means that the source did not propose this item.

    Args:
        united: rows with the columns user_key, candidates, sources, and `proposed_columns` of each source.
        num_sources: S.

    Returns:
        Rows with the columns user_key, candidates, sources and source_scores.
    """
    proposed = [name for source in range(num_sources) for name in proposed_columns(source)]
    rows = select(united, [USER_KEY, CANDIDATES, SOURCES, *proposed])
    return map_rows(rows, _aligner(num_sources), _WITH_SCORES)


def _aligner(num_sources: int) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that adds source_scores to batches of candidates."""

    def align(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            candidates = batch.column(CANDIDATES)
            names = [proposed_columns(source) for source in range(num_sources)]
            proposed = [(batch.column(items), batch.column(scores)) for items, scores in names]
            scores = aligned_scores(candidates, proposed)
            lengths = candidates.value_lengths().to_numpy() * num_sources
            offsets = pa.array(np.cumsum([0, *lengths]).astype(np.int32))
            lists = pa.ListArray.from_arrays(offsets, pa.array(scores.ravel()))
            columns = [batch.column(USER_KEY), candidates, batch.column(SOURCES), lists]
            yield pa.RecordBatch.from_arrays(columns, _WITH_SCORES.names)

    return align


def aligned_scores(
    candidates: pa.ListArray, proposed: Sequence[tuple[pa.ListArray, pa.ListArray]]
) -> NDArray[np.float32]:
    """Returns the scores (P, S) of the P candidates of all users together, by the S sources.

    NaN means that the source did not propose the item.

    Args:
        candidates: the item indices of each user, without repeats.
        proposed: for each source, the items that it proposed to each user, and their scores. Null means no
            items. Items that are not candidates are left out.
    """
    keys = _keys(candidates)
    order = np.argsort(keys)
    in_order = keys[order]
    scores = np.full((len(keys), len(proposed)), np.nan, np.float32)
    for number, (items, of_items) in enumerate(proposed):
        wanted = _keys(items)
        place = np.searchsorted(in_order, wanted)
        known = place < len(in_order)
        known[known] = in_order[place[known]] == wanted[known]
        scores[order[place[known]], number] = of_items.flatten().to_numpy(zero_copy_only=False)[known]
    return scores


def _keys(lists: pa.ListArray) -> NDArray[np.int64]:
    """Returns a key for each element of lists of item indices.

    The key combines the list's row and the element.
    """
    row, item = pairs_of(lists)
    return row.astype(np.int64) << _ITEM_BITS | item


def places_by_source(candidates: Rows, sources: Sequence[str]) -> dict[str, int]:
    """Returns the number of (user, item) pairs of each source, by its name. Warns if a source has no pair.

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
