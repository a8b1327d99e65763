"""Sends batches of users to workers, which make the lists of the sources `ease` and `als`.

For these and other sources, the module publishes tables with one row per item (such as item vectors), so that
workers can read them. The workers are those of Spark, or threads of this process. The driver imports this
module, which therefore does not import torch. With Spark, only the workers import torch.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from conf.lazy_imports import F
from conf.load import config_digest
from scoring.model.model_info import ModelInfo
from scoring.requests import (
    CANDIDATES,
    EXCLUDED,
    HISTORY,
    ITEM_INDEX,
    LISTED,
    SCORES,
    DeviceKind,
    ItemVectorsRequest,
)
from scoring.spark.score_frames import score_in_batches, task_slot
from spark.rows import Rows, query, select
from storage import file_io
from storage.dataset import Dataset
from storage.feature_spec import USER_KEY
from storage.manifest import Manifest, data_files
from storage.publish import Rules, publish_rows
from storage.run_context import RunContext

# The code below publishes tables with one row per item that sources compute, so that workers can read them.

log = logging.getLogger("nightrank.candidates")

# Size of a file. A row can be large: the vectors of `ease` have one element for each item with clicks.
_FILE_BYTES = 1 << 26
_ELEMENT_BYTES = 4


def vector_store(
    context: RunContext,
    dataset: Dataset,
    numbered: Manifest,
    retriever: ModelInfo | None,
    *,
    purpose: str | None = None,
) -> VectorStore:
    """Returns the store that publishes the table item_vectors of a run date.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
        numbered: the manifest of the table candidate_items.
        retriever: the model of the source `retrieval`; None if this source is not configured.
        purpose: a part of the names of the tables. With it, these tables do not replace the tables of the
            published lists. None means that the tables are those of the published lists.
    """
    table_inputs = {
        "candidate_items": numbered.digest,
        "dataset": dataset.digest,
        "config": config_digest(context.config, "candidates"),
    }

    def publish_vectors(source: str, vectors: Rows, rows: int, length: int) -> tuple[str, ...]:
        inputs = dict(table_inputs)
        if retriever is not None and source == "retrieval":
            inputs["retriever"] = retriever.version
        name = source if purpose is None else f"{source}_{purpose}"
        partition = context.lake.item_vectors(dataset.workflow_version, name).partition(context.run_date)
        published = publish_rows(
            vectors,
            partition,
            inputs=inputs,
            row_group_rows=max(1, _FILE_BYTES // (_ELEMENT_BYTES * length)),
            expected_rows=rows,
            rules=Rules(not_null=[ITEM_INDEX], ranges={ITEM_INDEX: (0, numbered.rows)}),
            grace_hours=context.config.output.grace_hours,
        )
        return tuple(data_files(partition, published))

    checkpoints = context.lake.checkpoints(f"als-{uuid.uuid4().hex}")
    return VectorStore(publish_vectors, context.config.score.device, checkpoints)


def release(store: VectorStore) -> None:
    """Frees resources that sources keep until the lists are published.

    The resources are tables in this process, and checkpoints.
    """
    for module, free in (("similar_items", "free_neighbours"), ("item_vectors", "free_item_vectors")):
        loaded = sys.modules.get(f"scoring.candidates.{module}")
        if loaded is not None:
            getattr(loaded, free)()
    _delete_checkpoints(store)


def _delete_checkpoints(store: VectorStore) -> None:
    """Deletes the folder `store.checkpoints`. An error is only logged."""
    files, inner = file_io.filesystem(store.checkpoints)
    try:
        files.delete_dir(inner)
    except FileNotFoundError:
        return  # the folder exists only if the source `als` ran in Spark
    except OSError as error:
        log.warning("the folder %s could not be deleted: %s", store.checkpoints, error)


Batches = Iterable[pa.RecordBatch]

# Number of users whose lists a thread of this process makes together. Workers divide them further.
USERS_PER_BATCH = 1024
_KINDS = {CANDIDATES: "int", SCORES: "float"}


@dataclass(frozen=True)
class VectorStore:
    """Publishes a source's table with one row per item, so that workers can read it.

    Attributes:
        publish: publishes the table, and returns the paths of its Parquet files. Arguments: the name of the
            source, the rows, their number, and the largest number of array elements of a row. The rows have
            item_index and either vector (array<float>), vector and cluster (int), or neighbours and
            similarities (array<int>).
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
    return score_in_batches(rows, _lister(request, column), LISTED, USERS_PER_BATCH, store.device)


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
    """Returns an empty table or frame with the columns that `lists_from_vectors` returns."""
    return LISTED.empty_table() if isinstance(users, pa.Table) else empty_lists(users.where(F.lit(False)))


def empty_lists(users: Rows) -> Rows:
    """Returns an empty list for each user, with the columns that `lists_from_vectors` returns."""
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
