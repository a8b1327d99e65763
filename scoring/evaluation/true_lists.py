"""Makes lists from the true probabilities of a generated log, to be measured like the published lists.

No model can make better lists, except by chance, because the true probabilities are those of the days whose
clicks the lists are compared with. So the hit rate of these lists is the ceiling of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.truth import DayTruth, GeneratedDays
from scoring.candidates.filters import Exclusions
from scoring.evaluation.measured_lists import KIND
from scoring.inputs.requests import EXCLUDED
from spark.rows import Rows, map_rows, query, records, select, spread
from spark.workers import Workers
from storage.feature_spec import ITEM_KEY, USER_KEY

# The rankings by which lists are made: by the probability of a click if the item is shown, and by the
# probability that the user sees the item and clicks it. Lists of the second ranking are the best.
CLICK_PROBABILITY, BEST = "click_probability", "best"
RANKINGS = (CLICK_PROBABILITY, BEST)

_LISTS = pa.schema(
    [(USER_KEY, pa.string()), (KIND, pa.string()), ("position", pa.int32()), (ITEM_KEY, pa.string())]
)
# Number of users whose lists one task of this machine makes.
_USERS_PER_TASK = 500
# The most pairs of a user and an item whose scores are computed at once. A pair needs a few dozen bytes.
_SCORES_AT_ONCE = 500_000
_EXCLUDED_SCORE = -np.inf

Batches = Iterable[pa.RecordBatch]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def true_lists(
    workers: Workers, exclusions: Exclusions, items: Rows, generated: GeneratedDays, k: int
) -> Rows:
    """Returns two lists of at most k items for each user: by CLICK_PROBABILITY and BEST.

    The columns are user_key, kind (the ranking), position (from 1) and item_key. Users who are not in the
    generated days cannot click, and have no list. Probabilities of several days are added, weighted by the
    share of the user's impressions in each day. Items are sorted by descending probability. If probabilities
    are equal, the item with the smaller index comes first.

    Args:
        workers: make the lists if the users are a table.
        exclusions: the excluded items of each user.
        items: rows with the columns item_index and item_key, one row per item. The indices are 0, 1, ….
        generated: the days whose clicks the lists are compared with.
        k: maximum length of a list.
    """
    in_order = records(query("SELECT item_key FROM {items} ORDER BY item_index", items=items))
    maker = _ListMaker(tuple(row[ITEM_KEY] for row in in_order), generated, k)
    users = select(exclusions.users, [USER_KEY, EXCLUDED])
    if isinstance(users, pa.Table):
        tasks = -(-len(users) // _USERS_PER_TASK)
        return workers.run(tasks, partial(_lists_of_part, maker, users.combine_chunks()), _LISTS)
    # The table `users` may have only one file, but the lists of a user take 0.2 ms of one core.
    return map_rows(spread(users, USER_KEY), maker, _LISTS)


def _lists_of_part(maker: _ListMaker, users: pa.Table, index: int) -> Iterator[pa.RecordBatch]:
    """Runs one task of `workers`: makes the lists of one part of the users."""
    # Slices are made here: pyarrow pickles the whole table with each of them.
    return maker(users.slice(index * _USERS_PER_TASK, _USERS_PER_TASK).to_batches())


@dataclass(frozen=True)
class _ListMaker:
    """A function that makes the lists of batches of users. `item_keys` has the key of each item index."""

    item_keys: tuple[str, ...]
    generated: GeneratedDays
    k: int

    @cached_property
    def _days(self) -> list[_Day]:
        """The generated days, which a process of this machine computes once for all of its tasks."""
        return [_Day(self.generated.settings, day, self.item_keys) for day in self.generated.days]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        item_keys = pa.array(self.item_keys, pa.string())
        users_at_once = max(1, min(_USERS_PER_TASK, _SCORES_AT_ONCE // max(1, len(self.item_keys))))
        for batch in batches:
            for start in range(0, len(batch), users_at_once):
                yield self._lists(batch.slice(start, users_at_once), item_keys)

    def _lists(self, batch: pa.RecordBatch, item_keys: pa.Array) -> pa.RecordBatch:
        """Returns the lists of the users of one batch, which has the columns user_key and excluded."""
        scores, known = _scores(batch.column(0).to_pylist(), self._days, len(item_keys))
        excluded = batch.column(1)
        lengths = pc.fill_null(pc.list_value_length(excluded), 0).to_numpy(zero_copy_only=False)
        pairs = np.repeat(np.arange(len(batch)), lengths), excluded.flatten().to_numpy(zero_copy_only=False)
        scores[pairs[0], :, pairs[1]] = _EXCLUDED_SCORE
        users = np.flatnonzero(known)
        lists = _best_of(scores[users].reshape(-1, scores.shape[2]), self.k)
        lengths_of_lists = np.array([len(items) for items in lists], dtype=np.int64)
        list_of_entry = np.repeat(np.arange(len(lists)), lengths_of_lists)
        first_entry = np.cumsum(lengths_of_lists) - lengths_of_lists
        indices = np.concatenate([np.empty(0, dtype=np.int64), *lists])
        positions = np.arange(len(indices)) - first_entry[list_of_entry] + 1
        return pa.RecordBatch.from_arrays(
            [
                batch.column(0).take(pa.array(users[list_of_entry // len(RANKINGS)])).cast(pa.string()),
                pa.array(RANKINGS, pa.string()).take(pa.array(list_of_entry % len(RANKINGS))),
                pa.array(positions.astype(np.int32)),
                item_keys.take(pa.array(indices)),
            ],
            schema=_LISTS,
        )


class _Day:
    """The truth of one day, for the candidates in the order of their indices."""

    def __init__(self, settings: Generate, day: str, item_keys: tuple[str, ...]) -> None:
        self.truth = DayTruth(settings, day)
        # The position of each candidate in the log; -1, the last column of `add_scores`, if it has none.
        self._positions = np.array([self.truth.items.get(key, -1) for key in item_keys], dtype=np.int64)

    def add_scores(self, keys: Sequence[str], scores: Floats) -> Bools:
        """Adds the scores of the day to an array (users, 2, candidates), which has one row per ranking.

        An item or user that is not in the log of the day has the score 0.

        Returns:
            (users,) whether each user is in the log of the day.
        """
        of_keys = np.array([self.truth.users.get(key, -1) for key in keys], dtype=np.int64)
        known = of_keys >= 0
        true = self.truth.of_users(of_keys[known])
        score = np.zeros((len(true.clicked), len(self.truth.items) + 1))  # 0 in the last column
        score[:, :-1] = true.user_shares[:, None] * true.clicked
        scores[known, 0] += score.take(self._positions, axis=1)
        score[:, :-1] *= true.shown
        scores[known, 1] += score.take(self._positions, axis=1)
        return known


def _scores(keys: Sequence[str], days: list[_Day], candidates: int) -> tuple[Floats, Bools]:
    """Returns the scores of the candidates for each user, and whether a user is in the log of any day.

    The shapes are (users, 2, candidates) and (users,).
    """
    scores = np.zeros((len(keys), len(RANKINGS), candidates))
    known = np.zeros(len(keys), dtype=bool)
    for day in days:
        known |= day.add_scores(keys, scores)
    return scores, known


def _best_of(scores: Floats, k: int) -> list[NDArray[np.int64]]:
    """Returns, for each row, the indices of the k largest scores in descending order, or of all not excluded.

    `scores` has the shape (lists, candidates). Of equal scores, that with the smaller index comes first.
    """
    candidates = scores.shape[1]
    if not len(scores) or not candidates:
        return [np.empty(0, np.int64)] * len(scores)
    place = max(candidates - k, 0)
    least = np.partition(scores, place, axis=1)[:, place, None]
    lists, best = np.nonzero((scores >= least) & (scores != _EXCLUDED_SCORE))  # ascending in both
    # Several scores may be equal to the k-th, so a list may have more than k entries until it is cut.
    ordered = best[np.lexsort((-scores[lists, best], lists))]  # stable: the smaller index comes first
    ends = np.cumsum(np.bincount(lists, minlength=len(scores)))
    return [part[:k] for part in np.split(ordered, ends[:-1])]
