"""Converts measures of published lists, of popular items and of the best possible lists to JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.truth import DayTruth, GeneratedDays
from etl.workflow.feature_plan import id_feature_of, plan_of
from scoring.candidates.exclusions import Exclusions
from scoring.evaluation.measured_lists import (
    CLICKS,
    ITEMS,
    KIND,
    NO_ITEMS,
    NO_LISTS,
    ListedItems,
    MeasuredLists,
    Relevance,
)
from scoring.requests import EXCLUDED
from spark.rows import Rows, map_rows, query, quoted, read_rows, records, select, spread
from spark.workers import Workers
from storage.dataset import read_spec
from storage.feature_spec import ITEM_KEY, OOV_ID, USER_KEY
from storage.manifest import Manifest, read_manifest
from storage.run_context import RunContext

# Kinds of lists: the published lists, and lists of the most popular items. `true_lists` makes other kinds.
PUBLISHED, POPULAR = "lists", "popular"


def relevance_facts(
    published: Manifest, measured: Mapping[str, MeasuredLists], counts: Mapping[str, ListedItems]
) -> dict[str, Any]:
    """Returns hit rate, NDCG and coverage of the published lists and of lists of the most popular items.

    Only users with rows in the train split are included. The key `cold_users` has the hit rate and NDCG of
    the published lists for users without train rows.

    Args:
        published: the manifest of the lists.
        measured: maps each kind of lists to its relevance.
        counts: maps each kind of lists to the counts of its items.
    """
    lists, popular = measured.get(PUBLISHED, NO_LISTS), measured.get(POPULAR, NO_LISTS).warm
    warm, cold = lists.warm, lists.cold
    return {
        "k": published.facts["k"],
        "users": warm.users,
        "hit_rate": warm.hit_rate,
        "ndcg": warm.ndcg,
        "coverage": published.facts["coverage"],
        "popular": {
            "hit_rate": popular.hit_rate,
            "ndcg": popular.ndcg,
            "coverage": coverage(counts, POPULAR, published),
        },
        "lift": warm.hit_rate / popular.hit_rate if warm.hit_rate is not None and popular.hit_rate else None,
        "cold_users": {"users": cold.users, "hit_rate": cold.hit_rate, "ndcg": cold.ndcg}
        if cold.users
        else None,
    }


def coverage(counts: Mapping[str, ListedItems], kind: str, published: Manifest) -> float:
    """Returns the share of all items that are in at least one list of a kind; 0 if there are no items."""
    items = published.facts["items"]
    return counts.get(kind, NO_ITEMS).distinct / items if items else 0.0


def truth_facts(
    published: Manifest, measured: Mapping[str, MeasuredLists], counts: Mapping[str, ListedItems]
) -> dict[str, Any] | None:
    """Returns the figures of the lists that `true_lists` ranked by the true probabilities.

    These lists were made only for users with clicks, so their coverage is computed from fewer lists than the
    coverage of the published lists. `share_of_best` is the hit rate of the published lists divided by the hit
    rate of the lists of the kind BEST.

    The arguments are those of `relevance_facts`. Returns None if the true probabilities are unknown.
    """
    if BEST not in counts:
        return None
    true = {}
    for ranking in RANKINGS:
        warm = measured.get(ranking, NO_LISTS).warm
        true[ranking] = {
            "hit_rate": warm.hit_rate,
            "ndcg": warm.ndcg,
            "coverage": coverage(counts, ranking, published),
        }
    ours, best = measured.get(PUBLISHED, NO_LISTS).warm.hit_rate, true[BEST]["hit_rate"]
    return {**true, "share_of_best": ours / best if ours is not None and best else None}


def shown_kinds(
    measured: Mapping[str, MeasuredLists], counts: Mapping[str, ListedItems]
) -> dict[str, MeasuredLists]:
    """Returns the measures of the kinds of lists that the report compares for new users and items.

    The kind BEST is included only if its lists were made.
    """
    kinds = [PUBLISHED, POPULAR, *([BEST] if BEST in counts else [])]
    return {kind: measured.get(kind, NO_LISTS) for kind in kinds}


# The code below makes lists from the true probabilities of a generated log. These lists are measured like the
# published lists.
#
# The true probabilities are those of the measured days, so a model can make better lists only by chance. The
# expected hit rate of these lists is therefore the highest that any lists can have.

# The probabilities by which items are ranked. CLICK_PROBABILITY is the probability of a click if the item is
# shown. BEST is the probability that the user sees the item and clicks it; it gives the best lists.
CLICK_PROBABILITY, BEST = "click_probability", "best"
RANKINGS = (CLICK_PROBABILITY, BEST)
_LISTS = pa.schema(
    [(USER_KEY, pa.string()), (KIND, pa.string()), ("position", pa.int32()), (ITEM_KEY, pa.string())]
)

# Number of users for whom one task makes lists, on one machine without Spark.
_USERS_PER_TASK = 500

# Maximum number of (user, item) pairs that are scored at once. A pair needs a few dozen bytes.
_SCORES_AT_ONCE = 500_000
_EXCLUDED_SCORE = -np.inf
Batches = Iterable[pa.RecordBatch]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def true_lists(
    workers: Workers, exclusions: Exclusions, items: Rows, generated: GeneratedDays, k: int
) -> Rows:
    """Returns two lists of at most k items for each user: ranked by CLICK_PROBABILITY and by BEST.

    The columns are user_key, kind (the ranking), position (from 1) and item_key. Users who are not in the
    generated days cannot click, and have no list. The probability of a (user, item) pair is a weighted sum
    over the days. The weight of a day is its share of the user's impressions. Items are sorted by descending
    probability. If probabilities are equal, the item with the smaller index comes first.

    Args:
        workers: run the tasks if the users are an Arrow table.
        exclusions: the excluded items of each user.
        items: rows with the columns item_index and item_key, one row per item. The indices are 0, 1, ….
        generated: the generated days whose clicks the lists are compared with.
        k: maximum length of a list.
    """
    in_order = records(query("SELECT item_key FROM {items} ORDER BY item_index", items=items))
    maker = _ListMaker(tuple(row[ITEM_KEY] for row in in_order), generated, k)
    users = select(exclusions.users, [USER_KEY, EXCLUDED])
    if isinstance(users, pa.Table):
        tasks = -(-len(users) // _USERS_PER_TASK)
        return workers.run(tasks, partial(_lists_of_part, maker, users.combine_chunks()), _LISTS)
    # The table `users` may be a single file, which would be a single task, so `spread` divides its rows. The
    # lists of a user take 0.2 ms on one core.
    return map_rows(spread(users, USER_KEY), maker, _LISTS)


def _lists_of_part(maker: _ListMaker, users: pa.Table, index: int) -> Iterator[pa.RecordBatch]:
    """Runs one task of `workers`: makes the lists of one part of the users."""
    # The slice is made here, because pyarrow would pickle the whole table with each slice.
    return maker(users.slice(index * _USERS_PER_TASK, _USERS_PER_TASK).to_batches())


@dataclass(frozen=True)
class _ListMaker:
    """A function object that makes the lists of batches of users. `item_keys[i]` is the key of item i."""

    item_keys: tuple[str, ...]
    generated: GeneratedDays
    k: int

    @cached_property
    def _days(self) -> list[_Day]:
        """The probabilities of each generated day. A process computes them once for all of its tasks."""
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
    """The true click probabilities on one day of a generated log, for candidates ordered by index."""

    def __init__(self, settings: Generate, day: str, item_keys: tuple[str, ...]) -> None:
        self.truth = DayTruth(settings, day)
        # The index of each candidate among the items of the generated log. A candidate that is not in the log
        # has the index -1, which selects the last column in `add_scores`.
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
        score = np.zeros((len(true.clicked), len(self.truth.items) + 1))  # the last column stays 0
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
    """Returns, for each row, the indices of the k largest scores that are not excluded, in descending order.

    `scores` has the shape (lists, candidates). If scores are equal, the smaller index comes first.
    """
    candidates = scores.shape[1]
    if not len(scores) or not candidates:
        return [np.empty(0, np.int64)] * len(scores)
    place = max(candidates - k, 0)
    least = np.partition(scores, place, axis=1)[:, place, None]
    lists, best = np.nonzero((scores >= least) & (scores != _EXCLUDED_SCORE))  # both are ascending
    # Several scores may be equal to the k-th, so a list may have more than k entries before it is truncated.
    ordered = best[np.lexsort((-scores[lists, best], lists))]  # stable: the smaller index comes first
    ends = np.cumsum(np.bincount(lists, minlength=len(scores)))
    return [part[:k] for part in np.split(ordered, ends[:-1])]


# The code below measures lists for new users and items. The model was trained without the ids of these users
# and items.
#
# A user or item is new if its id feature has OOV_ID on the date of the lists. That is so if its first row
# came after the training, or if it had fewer train rows than `min_count`. If no id feature is computed from
# the user's or item's key alone, users or items without a row in the train split are new.


def users_and_items(context: RunContext, version: str, train: Rows) -> tuple[Rows, Rows]:
    """Returns the users and the items of the run date, with their key and the column `new` (boolean).

    Args:
        context: the run's configuration, lake, run date and Spark session. The section `keys` must be set.
        version: workflow version of the model that made the lists.
        train: rows with the user_key and item_key of the train split.
    """
    keys, lake = context.config.keys, context.lake
    if keys is None:
        raise ValueError("internal error, please report: the section keys is not set")
    feature_plan, spec = plan_of(context.config), read_spec(lake, version)
    known = {feature.name for feature in spec.categorical}
    sides = []
    for column, key, table in (
        (keys.user, USER_KEY, lake.users(version)),
        (keys.item, ITEM_KEY, lake.items(version)),
    ):
        partition = table.partition(context.run_date)
        feature = id_feature_of(feature_plan, column)
        columns = [key, feature] if feature in known else [key]
        rows = read_rows(context, partition, read_manifest(partition), columns=columns)
        if feature in known:
            sides.append(query(f"SELECT {key}, {quoted(feature)} = {OOV_ID} AS new FROM {{rows}}", rows=rows))
            continue
        marked = f"""
            SELECT rows.{key}, trained.{key} IS NULL AS new
            FROM {{rows}} AS rows
            LEFT JOIN (SELECT DISTINCT {key} FROM {{train}}) AS trained ON trained.{key} = rows.{key}
        """
        sides.append(query(marked, rows=rows, train=train))
    users, items = sides
    return users, items


def cold_start_facts(
    measured: Mapping[str, MeasuredLists], items: Mapping[str, ListedItems], published: str
) -> dict[str, Any]:
    """Returns the figures of new users, known users and new items, for each kind of lists.

    Args:
        measured: maps the name of each kind of lists to its figures.
        items: the result of `count_items` for the same lists.
        published: the name of the published lists.

    Returns:
        A dictionary with the keys `new_users`, `known_users` and `new_items`. Each value has the number of
        users (`users`), and the `hit_rate` and `ndcg` of each kind of lists. `new_items` also has `items`,
        the number of new items, and two shares. `position_share` is the share of list entries whose item is
        new. `click_share` is the share of clicks on new items among the clicks on all items.
    """
    facts: dict[str, Any] = {}
    for group in ("new_users", "known_users", "new_items"):
        of_kind: dict[str, Relevance] = {kind: getattr(lists, group) for kind, lists in measured.items()}
        figures = {kind: {"hit_rate": found.hit_rate, "ndcg": found.ndcg} for kind, found in of_kind.items()}
        facts[group] = {"users": of_kind[published].users, **figures}
    facts["new_items"] |= {
        "items": items.get(ITEMS, NO_ITEMS).new,
        "position_share": items.get(published, NO_ITEMS).new_share,
        "click_share": items.get(CLICKS, NO_ITEMS).new_share,
    }
    return facts
