"""The task of benchmarks/lists.py as matrices of U users and I items, computed from the raw log with pandas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from benchmarks.list_logs import split_rows
from benchmarks.list_measures import Lists, gains, top
from benchmarks.list_samples import SAMPLES, best_samples, draw_samples
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths


@dataclass(frozen=True)
class Task:
    """Choices, held-out items and excluded items. Users and items are in the order of their keys.

    Attributes:
        users, items: the keys of all rows of the log.
        train: (U, I), 1 where the user chose the item in the train split.
        history: (U, I), 1 where the user chose the item in the train or validation split.
        rated: (U, I), 1 where the user has a row of the item in the train split, positive or not.
        excluded: (U, I), 1 where the user has such a row in the train or validation split.
        validation, test: (U,), the held-out item of each split, or -1 if there is none.
        warm: (U,), whether the user has a row in the train split, positive or not. The others are cold.
        sequence: the items that users chose in the train split, user after user, each user's in the order of
            (time, row number).
        starts: (U + 1,), where the items of each user start in `sequence`; the last number is its length.
    """

    users: pd.Index
    items: pd.Index
    train: csr_matrix
    history: csr_matrix
    rated: csr_matrix
    excluded: csr_matrix
    validation: Lists
    test: Lists
    warm: NDArray[np.bool_]
    sequence: Lists
    starts: Lists

    @property
    def chosen(self) -> NDArray[np.int64]:
        """Returns the number of users who chose each item in the train split, (I,)."""
        return np.asarray(self.train.sum(0), np.int64)[0]

    @property
    def warm_test(self) -> Lists:
        """Returns the test items of the warm users, otherwise -1, (U,)."""
        return np.where(self.warm, self.test, -1)

    @property
    def cold_test(self) -> Lists:
        """Returns the test items of the cold users, otherwise -1, (U,)."""
        return np.where(self.warm, -1, self.test)

    @cached_property
    def samples(self) -> dict[str, Lists]:
        """Returns the items that each sampled protocol ranks (list_samples.py), by its name."""
        return {name: draw_samples(name, self.test, self.excluded, self.chosen) for name in SAMPLES}


def make_task(rows: pd.DataFrame) -> Task:
    """Returns the task of a log's rows (user, item, time, positive)."""
    users, items = (pd.Index(np.unique(rows[key].to_numpy(str))) for key in ("user", "item"))
    user, item = users.get_indexer(pd.Index(rows["user"])), items.get_indexer(pd.Index(rows["item"]))
    split, positive = split_rows(rows).to_numpy(str), rows["positive"].to_numpy(bool)
    in_train, before_test = split == "train", split != "test"

    def matrix(kept: NDArray[np.bool_]) -> csr_matrix:
        ones = np.ones(int(kept.sum()))
        cells = csr_matrix((ones, (user[kept], item[kept])), shape=(len(users), len(items)))
        cells.data[:] = 1  # a repeated row adds up
        return cells

    def held_out(name: str) -> Lists:
        kept = (split == name) & positive
        item_of = np.full(len(users), -1, np.int64)
        item_of[user[kept]] = item[kept]
        return item_of

    rated = matrix(in_train)
    train_rows = np.flatnonzero(in_train & positive)
    in_order = train_rows[np.lexsort((rows["time"].to_numpy()[train_rows], user[train_rows]))]  # stable
    counts = np.bincount(user[in_order], minlength=len(users))
    return Task(
        users,
        items,
        matrix(in_train & positive),
        matrix(before_test & positive),
        rated,
        matrix(before_test),
        held_out("validation"),
        held_out("test"),
        np.diff(rated.indptr) > 0,
        item[in_order].astype(np.int64),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


def popular_lists(task: Task, k: int) -> Lists:
    """Returns lists (U, k) of the items that the most users chose in the train split."""
    popularity = task.chosen.astype(np.float64)
    return top(lambda users: np.broadcast_to(popularity, task.excluded[users].shape), task.excluded, k)


def popular_samples(task: Task, k: int) -> dict[str, Lists]:
    """Returns, for each sampled protocol, the k samples that the most users chose in the train split, (U, k)."""

    def popularity(users: slice) -> NDArray[np.float64]:
        return np.broadcast_to(task.chosen.astype(np.float64), (users.stop - users.start, len(task.items)))

    return {name: best_samples(popularity, samples, k) for name, samples in task.samples.items()}


def published_lists(lake: LakePaths, task: Task, run_date: str, k: int) -> Lists:
    """Returns the published lists (U, k) of items, with -1 where a list is shorter.

    Raises:
        SystemExit: a list has an item that the user rated before the test, or an item that is not in the log.
    """
    partition = lake.recommendations.partition(run_date)
    files = data_files(partition, read_manifest(partition))
    rows = pa.concat_tables(pq.read_table(file, partitioning=None) for file in files).to_pandas()
    user = task.users.get_indexer(pd.Index(rows["user_id"].astype(str)))
    item = task.items.get_indexer(pd.Index(rows["item_id"].astype(str)))
    excluded = np.asarray(task.excluded[user, item])[0] > 0
    wrong = rows[excluded | (user < 0) | (item < 0)]
    if len(wrong):
        first = wrong.iloc[0]
        raise SystemExit(
            f"lists: our list of user {first['user_id']} has the item {first['item_id']}, which the user rated "
            "before the test, or which is not in the log; check candidates.exclude_clicked"
        )
    lists = np.full((len(task.users), k), -1, np.int64)
    lists[user, rows["position"] - 1] = item
    return lists


def require_published(lake: LakePaths, task: Task, run_date: str, lists: Lists) -> None:
    """Exits with an error if measure_recommendations published other figures than the lists give here.

    These figures are the number of warm users, and hit rate and NDCG of our lists and of the most popular items.
    """
    facts = read_manifest(lake.measures.partition(run_date)).facts
    published = [
        facts["users"],
        *(of[key] for of in (facts, facts["popular"]) for key in ("hit_rate", "ndcg")),
    ]
    counted: list[float] = [int((task.warm_test >= 0).sum())]
    for found in (lists, popular_lists(task, lists.shape[1])):
        counted += gains(found, task.warm_test).mean(0)[:2].tolist()
    if not np.allclose(published, counted, rtol=0, atol=1e-9):
        raise SystemExit(
            "lists: (users, our hit rate and NDCG, those of the most popular items) differ: "
            f"measure_recommendations published {published}, this script computed {counted}"
        )
