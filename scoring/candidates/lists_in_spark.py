"""Sends batches of users to workers, which make the lists of the sources `ease` and `als`.

Only the workers import torch. The driver imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from scoring.inputs.requests import (
    CANDIDATES,
    EXCLUDED,
    HISTORY,
    SCORES,
    DeviceKind,
    ItemVectorsRequest,
)
from scoring.spark.scoring_workers import SCORING_IMPORTS
from scoring.spark.task_slot import task_slot
from spark.tasks import map_batches
from storage.feature_spec import USER_KEY

Batches = Iterable[pa.RecordBatch]

LISTED = T.StructType(
    [
        T.StructField(USER_KEY, T.StringType()),
        T.StructField(CANDIDATES, T.ArrayType(T.IntegerType())),
        T.StructField(SCORES, T.ArrayType(T.FloatType())),
    ]
)

_KINDS = {CANDIDATES: "int", SCORES: "float"}


@dataclass(frozen=True)
class VectorStore:
    """Where sources publish what they have computed for each item, so that workers can read it.

    Attributes:
        publish: publishes a table with one row per item, and returns the paths of its Parquet files.
            Arguments: the name of the source; a frame with the column item_index, and vector (array<float>),
            vector and cluster (int), or neighbours and similarities (array<int>); the number of its rows; the
            largest number of array elements of a row.
        device: the device on which workers compute.
        checkpoints: folder that all nodes can write to, in which `als` stores vectors of single iterations.
    """

    publish: Callable[[str, DataFrame, int, int], tuple[str, ...]]
    device: DeviceKind
    checkpoints: str


def lists_from_vectors(
    users: DataFrame,
    column: Literal["history", "vector"],
    files: tuple[str, ...],
    n: int,
    store: VectorStore,
) -> DataFrame:
    """Returns the lists of users: a frame with the columns user_key, candidates and scores.

    Args:
        users: a frame with the columns user_key, excluded and `column`, one row per user.
        column: `history` makes lists of the source `ease` from the indices of the clicked items, `vector`
            lists of the source `als` from the user vectors.
        files: paths of the Parquet files of the item vectors.
        n: maximum number of items in a list.
        store: has the device.

    Raises (in the workers, when the frame is evaluated):
        ConfigError: the requested device does not exist.
        DataError: a vector has NaN or infinite elements. The message names the user or the item.
    """
    request = ItemVectorsRequest(files, n, store.device)
    rows = users.select(USER_KEY, column, EXCLUDED)
    return map_batches(rows, _lister(request, column), LISTED, SCORING_IMPORTS)


def no_lists(users: DataFrame) -> DataFrame:
    """Returns a frame with the columns of `lists_from_vectors`, and without rows."""
    return empty_lists(users.where(F.lit(False)))


def empty_lists(users: DataFrame) -> DataFrame:
    """Returns a frame with the columns of `lists_from_vectors`, with an empty list for each user."""
    nothing = (F.array().cast(f"array<{kind}>").alias(name) for name, kind in _KINDS.items())
    return users.select(USER_KEY, *nothing)


def _lister(
    request: ItemVectorsRequest, column: Literal["history", "vector"]
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that makes the lists of the users of one task."""

    def make_lists(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.candidates.item_vectors import load_item_vectors  # torch: only in the workers

        table = load_item_vectors(request, *task_slot())
        for batch in batches:
            yield table.ease_lists(batch) if column == HISTORY else table.als_lists(batch)

    return make_lists
