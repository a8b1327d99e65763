"""The task of benchmarks/lists.py, read from the tables that the product published."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.list_measures import Lists, Matrix
from conf.types import Config, Split
from storage.dataset import read_dataset, split_files
from storage.manifest import data_files, read_manifest
from storage.paths import Lake, Partition


@dataclass(frozen=True)
class Task:
    """Choices, held-out items and excluded items of U users and I items, each in the order of the keys.

    Attributes:
        users, items: the keys.
        train: (U, I), 1 where the user chose the item in the train split.
        history: (U, I), 1 where the user chose the item in the train or validation split.
        rated: (U, I), whether the user has a row of the item in the train split, chosen or not.
        excluded: (U, I), whether the product excludes the item from the user's list.
        validation, test: (U,), the held-out item that the user chose, or -1. Only users with a row in the
            train split have one.
    """

    users: pd.Index
    items: pd.Index
    train: Matrix
    history: Matrix
    rated: NDArray[np.bool_]
    excluded: NDArray[np.bool_]
    validation: Lists
    test: Lists

    @property
    def chosen(self) -> NDArray[np.int64]:
        """Returns the number of users who chose each item in the train split, (I,)."""
        return self.train.sum(0).astype(np.int64)


def read_rows(partition: Partition) -> pd.DataFrame:
    """Returns the rows of a published partition."""
    files = data_files(partition, read_manifest(partition))
    return pa.concat_tables(pq.read_table(file, partitioning=None) for file in files).to_pandas()


def read_task(lake: Lake, config: Config, run_date: str) -> Task:
    """Returns the task of a run date."""
    dataset = read_dataset(lake, run_date)
    version = dataset.workflow_version
    numbered = read_rows(lake.candidate_items(version).partition(run_date)).sort_values("item_index")
    candidates = read_rows(lake.candidates(version).partition(run_date)).sort_values("user_key")
    items, users = pd.Index(numbered["item_key"]), pd.Index(candidates["user_key"])
    assert config.negatives is not None
    stride = config.negatives.per_positive + 1

    def rows_of(split: Split) -> pd.DataFrame:
        columns = ["row_id", "user_key", "item_key", "label"]
        files = split_files(lake, dataset, split)
        rows = pa.concat_tables(pq.read_table(file, columns=columns, partitioning=None) for file in files)
        frame = rows.to_pandas()
        frame = frame[frame["row_id"] % stride == 0]  # the other rows are drawn negatives
        return frame.assign(
            user=users.get_indexer(frame["user_key"]), item=items.get_indexer(frame["item_key"])
        )

    def matrix(frame: pd.DataFrame) -> NDArray[np.bool_]:
        cells = np.zeros((len(users), len(items)), np.bool_)
        cells[frame["user"], frame["item"]] = True
        return cells

    splits = {split: rows_of(split) for split in ("train", "validation", "test")}
    positive = {split: rows[rows["label"] == 1] for split, rows in splits.items()}
    rated = matrix(splits["train"])
    train = matrix(positive["train"])
    excluded = np.zeros_like(rated)
    for user, indices in enumerate(candidates["excluded"]):
        if indices is not None:
            excluded[user, indices] = True

    def held_out(split: Split) -> Lists:
        rows = positive[split]
        assert rows["user"].is_unique
        item_of = np.full(len(users), -1, np.int64)
        item_of[rows["user"]] = rows["item"]
        return np.where(rated.any(1), item_of, -1)

    history = (train | matrix(positive["validation"])).astype(np.float64)
    return Task(
        users,
        items,
        train.astype(np.float64),
        history,
        rated,
        excluded,
        held_out("validation"),
        held_out("test"),
    )


def published_lists(lake: Lake, task: Task, run_date: str, k: int) -> Lists:
    """Returns the published lists (U, k) of items, with -1 where a list is shorter."""
    rows = read_rows(lake.recommendations.partition(run_date))
    lists = np.full((len(task.users), k), -1, np.int64)
    user = task.users.get_indexer(pd.Index(rows["user_id"]))
    lists[user, rows["position"] - 1] = task.items.get_indexer(pd.Index(rows["item_id"]))
    return lists
