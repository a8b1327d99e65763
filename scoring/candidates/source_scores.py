"""Adds the scores of all sources to the candidates. The blend ranks candidates by them.

An item that several sources propose has one score from each of these sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scoring.candidates.pairs_of_lists import pairs_of
from scoring.requests import CANDIDATES, SCORES, SOURCE_SCORES, SOURCES
from spark.rows import Rows, map_rows, select
from storage.feature_spec import USER_KEY

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


def proposed_columns(source: int) -> tuple[str, str]:
    """Returns the names of the two columns with the items that a source proposed, and with their scores."""
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
        proposed: for each source, the items that it proposed to each user, and their scores. Null stands for
            no items. Items that are not candidates are left out.
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
    """Returns one number for each element of lists of item indices, from the list's row and the element."""
    row, item = pairs_of(lists)
    return row.astype(np.int64) << _ITEM_BITS | item
