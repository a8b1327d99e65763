"""Publishes the tables that sources of candidates compute for their items, so that workers can read them."""

from __future__ import annotations

import logging
import sys
import uuid

from conf.load import config_digest
from scoring.candidates.lists_in_spark import VectorStore
from scoring.model.model_info import ModelInfo
from scoring.requests import ITEM_INDEX
from spark.rows import Rows
from storage import file_io
from storage.dataset import Dataset
from storage.manifest import Manifest, data_files
from storage.publish import Rules, publish_rows
from storage.run_context import RunContext

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
        context: the context of the run.
        dataset: the dataset of the run date.
        numbered: the manifest of the table candidate_items.
        retriever: the model of the source `retrieval`; None if this source is not configured.
        purpose: part of the tables' names, so that these tables do not replace the tables of the published
            lists; None for the published lists.
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
    for module, free in (("neighbour_lists", "free_neighbours"), ("item_vectors", "free_item_vectors")):
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
        return  # only the source `als` in Spark creates the folder
    except OSError as error:
        log.warning("the folder %s could not be deleted: %s", store.checkpoints, error)
