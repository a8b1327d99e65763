"""Sends batches of users to workers, which make the lists of the sources `ease` and `als`.

The workers are those of Spark, or threads of this process. The driver imports this module, which therefore
does not import torch. With Spark, only the workers import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from conf.lazy_imports import F
from scoring.requests import CANDIDATES, EXCLUDED, HISTORY, LISTED, SCORES, DeviceKind, ItemVectorsRequest
from scoring.spark.score_frames import score_in_batches
from scoring.spark.scoring_workers import task_slot
from spark.rows import Rows, query, select
from storage.feature_spec import USER_KEY

Batches = Iterable[pa.RecordBatch]

# Number of users whose lists a thread of this process makes together. Workers divide them further.
USERS_PER_BATCH = 1024
_KINDS = {CANDIDATES: "int", SCORES: "float"}


@dataclass(frozen=True)
class VectorStore:
    """Publishes the table that a source computes for its items, so that workers can read it.

    Attributes:
        publish: publishes a table with one row per item, and returns the paths of its Parquet files.
            Arguments: the name of the source; rows with the column item_index, and vector (array<float>),
            vector and cluster (int), or neighbours and similarities (array<int>); the number of rows; the
            largest number of array elements of a row.
        device: the device on which workers compute.
        checkpoints: folder in which `als` stores the vectors of single iterations. All nodes can write to it.
    """

    publish: Callable[[str, Rows, int, int], tuple[str, ...]]
    device: DeviceKind
    checkpoints: str


def lists_from_vectors(
    users: Rows,
    column: Literal["history", "vector"],
    files: tuple[str, ...],
    n: int,
    store: VectorStore,
) -> Rows:
    """Returns the lists of users: rows with the columns user_key, candidates and scores.

    Args:
        users: rows with the columns user_key, excluded and `column`, one row per user.
        column: `history` (indices of the clicked items) for lists of the source `ease`, or `vector` (the user
            vector) for lists of the source `als`.
        files: paths of the Parquet files of the item vectors.
        n: maximum number of items in a list.
        store: names the device that computes the scores.

    Raises (in the workers, when a frame is evaluated):
        ConfigError: the requested device does not exist.
        DataError: a vector has NaN or infinite elements. The message names the user or the item.
    """
    request = ItemVectorsRequest(files, n, store.device)
    rows = select(users, [USER_KEY, column, EXCLUDED])
    return score_in_batches(rows, _lister(request, column), LISTED, USERS_PER_BATCH)


def with_exclusions(users: Rows, of_users: Rows, column: Literal["history", "vector"]) -> Rows:
    """Returns the users that have a value in `column`: user_key, this column, and excluded.

    Args:
        users: rows with the columns user_key and excluded, one row per user.
        of_users: rows with the columns user_key and `column`, one row per user.
    """
    text = f"SELECT user_key, {column}, excluded FROM {{users}} JOIN {{of_users}} USING (user_key)"
    return query(text, users=users, of_users=of_users)


def histories(clicked: Rows) -> Rows:
    """Returns the items of each user: user_key and history, the ascending indices of the items.

    Args:
        clicked: rows with distinct pairs of user_key and item_index.
    """
    text = "SELECT user_key, sort_array(collect_list(item_index)) AS history FROM {clicked} GROUP BY user_key"
    return query(text, clicked=clicked)


def no_lists(users: Rows) -> Rows:
    """Returns an empty table or frame with the columns of `lists_from_vectors`."""
    return LISTED.empty_table() if isinstance(users, pa.Table) else empty_lists(users.where(F.lit(False)))


def empty_lists(users: Rows) -> Rows:
    """Returns rows with the columns of `lists_from_vectors`, with an empty list for each user."""
    if isinstance(users, pa.Table):
        offsets = pa.array(np.zeros(len(users) + 1, np.int32))
        lists = [
            pa.ListArray.from_arrays(offsets, pa.array([], LISTED.field(name).type.value_type))
            for name in (CANDIDATES, SCORES)
        ]
        return pa.Table.from_arrays([users.column(USER_KEY).combine_chunks(), *lists], schema=LISTED)
    nothing = (F.array().cast(f"array<{kind}>").alias(name) for name, kind in _KINDS.items())
    return users.select(USER_KEY, *nothing)


def _lister(
    request: ItemVectorsRequest, column: Literal["history", "vector"]
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that makes the lists of the users of one task."""

    def make_lists(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.candidates.item_vectors import load_item_vectors  # only workers import torch

        table = load_item_vectors(request, *task_slot())
        for batch in batches:
            yield table.ease_lists(batch) if column == HISTORY else table.als_lists(batch)

    return make_lists
