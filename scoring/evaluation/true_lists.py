"""Makes lists from the true probabilities of a generated log, to be measured like the published lists.

No model can make better lists, except by chance, because the true probabilities are those of the days whose
clicks the lists are compared with. So the hit rate of these lists is the ceiling of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
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

Batches = Iterable[pa.RecordBatch]
Floats = NDArray[np.float64]


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
        batches = tuple(users.combine_chunks().to_batches(max_chunksize=_USERS_PER_TASK))
        return workers.run(len(batches), partial(_lists_of_batch, maker, batches), _LISTS)
    # The table `users` may have only one file, but a list takes a millisecond of one core.
    return map_rows(spread(users, USER_KEY), maker, _LISTS)


def _lists_of_batch(
    maker: _ListMaker, batches: tuple[pa.RecordBatch, ...], index: int
) -> Iterator[pa.RecordBatch]:
    """Runs one task of `workers`: makes the lists of one batch of users."""
    return maker([batches[index]])


@dataclass(frozen=True)
class _ListMaker:
    """A function that makes the lists of batches of users. `item_keys` has the key of each item index."""

    item_keys: tuple[str, ...]
    generated: GeneratedDays
    k: int

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        days = [_Day(self.generated.settings, day, self.item_keys) for day in self.generated.days]
        for batch in batches:
            users = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            rows = [row for user, excluded in users for row in _lists_of_user(user, excluded, days, self.k)]
            columns = zip(*rows, strict=True) if rows else [[]] * 4
            keys, rankings, positions, indices = columns
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(keys, pa.string()),
                    pa.array(rankings, pa.string()),
                    pa.array(positions, pa.int32()),
                    pa.array([self.item_keys[index] for index in indices], pa.string()),
                ],
                schema=_LISTS,
            )


class _Day:
    """The truth of one day, for the candidates in the order of their indices."""

    def __init__(self, settings: Generate, day: str, item_keys: tuple[str, ...]) -> None:
        self.truth = DayTruth(settings, day)
        positions = [self.truth.items.get(key, -1) for key in item_keys]
        self._known = np.array([position >= 0 for position in positions], dtype=bool)
        self._positions = np.array(positions, dtype=np.int64)[self._known]

    def scores(self, user: int) -> Floats:
        """Returns the scores of the candidates for one user, one row per ranking, shape (2, candidates).

        An item that is not in the log of the day has the score 0.
        """
        of_user = self.truth.of_user(user)
        clicked = of_user.user_share * of_user.clicked
        scores = np.zeros((len(RANKINGS), len(self._known)))
        scores[:, self._known] = np.stack([clicked, clicked * of_user.shown])[:, self._positions]
        return scores


def _lists_of_user(
    key: str, excluded: list[int] | None, days: list[_Day], k: int
) -> list[tuple[str, str, int, int]]:
    """Returns the entries of a user's lists: user key, ranking, position and item index."""
    known = [(day, day.truth.users[key]) for day in days if key in day.truth.users]
    if not known:
        return []
    scores_of_rankings = np.sum([day.scores(user) for day, user in known], axis=0)  # (2, candidates)
    entries = []
    for ranking, scores in zip(RANKINGS, scores_of_rankings, strict=True):
        order = np.argsort(-scores, kind="stable")  # stable: the smaller index comes first
        allowed = order[~np.isin(order, excluded or [])][:k]
        entries += [(key, ranking, place, int(index)) for place, index in enumerate(allowed, 1)]
    return entries
