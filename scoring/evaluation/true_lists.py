"""Makes lists from the true probabilities of a generated log, to be measured like the published lists.

No model can make better lists, except by chance, because the true probabilities are those of the days whose
clicks the lists are compared with. So the hit rate of these lists is the ceiling of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from conf.types import Generate
from etl.synthetic.truth import DayTruth, GeneratedDays
from scoring.candidates.filters import Exclusions
from scoring.evaluation.measured_lists import KIND
from scoring.inputs.requests import EXCLUDED, ITEM_INDEX
from spark.tasks import map_batches
from storage.feature_spec import ITEM_KEY, USER_KEY

# The rankings by which lists are made: by the probability of a click if the item is shown, and by the
# probability that the user sees the item and clicks it. Lists of the second ranking are the best.
CLICK_PROBABILITY, BEST = "click_probability", "best"
RANKINGS = (CLICK_PROBABILITY, BEST)

_LISTS = f"{USER_KEY} string, {KIND} string, position int, {ITEM_KEY} string"

Batches = Iterable[pa.RecordBatch]
Floats = NDArray[np.float64]


def true_lists(exclusions: Exclusions, items: DataFrame, generated: GeneratedDays, k: int) -> DataFrame:
    """Returns two lists of at most k items for each user: by CLICK_PROBABILITY and BEST.

    The columns are user_key, kind (the ranking), position (from 1) and item_key. Users who are not in the
    generated days cannot click, and have no list. Probabilities of several days are added, weighted by the
    share of the user's impressions in each day. Items are sorted by descending probability. If probabilities
    are equal, the item with the smaller index comes first.

    Args:
        exclusions: the excluded items of each user.
        items: a frame with the columns item_index and item_key, one row per item. The indices are 0, 1, ….
        generated: the days whose clicks the lists are compared with.
        k: maximum length of a list.
    """
    item_keys = [row[ITEM_KEY] for row in items.select(ITEM_INDEX, ITEM_KEY).orderBy(ITEM_INDEX).collect()]
    users = exclusions.users.select(USER_KEY, EXCLUDED)
    # The table `users` may have only one file, but a list takes a millisecond of one core.
    spread = users.repartition(users.sparkSession.sparkContext.defaultParallelism, USER_KEY)
    return map_batches(spread, _list_maker(tuple(item_keys), generated, k), _LISTS)


def _list_maker(
    item_keys: tuple[str, ...], generated: GeneratedDays, k: int
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that makes the lists of batches of users."""

    def make_lists(batches: Batches) -> Iterator[pa.RecordBatch]:
        days = [_Day(generated.settings, day, item_keys) for day in generated.days]
        for batch in batches:
            users = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            rows = [row for user, excluded in users for row in _lists_of_user(user, excluded, days, k)]
            columns = zip(*rows, strict=True) if rows else [[]] * 4
            keys, rankings, positions, indices = columns
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(keys, pa.string()),
                    pa.array(rankings, pa.string()),
                    pa.array(positions, pa.int32()),
                    pa.array([item_keys[index] for index in indices], pa.string()),
                ],
                [USER_KEY, KIND, "position", ITEM_KEY],
            )

    return make_lists


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
