"""Makes the candidates of the source `retrieval`: chooses exact or approximate search, and starts the search.

For approximate search, this module also publishes the clusters of the items. Workers receive items and
batches of users, and run retrieval.py. The workers are those of Spark, or threads of this process. The driver
imports this module, which therefore does not import torch. With Spark, only the workers import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, assert_never, cast

import pyarrow as pa

from scoring.candidates.candidate_tables import CandidateTables, users_of
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.lists_in_spark import USERS_PER_BATCH, VectorStore
from scoring.candidates.source_settings import SearchParameters
from scoring.model.context_features import encoded_context
from scoring.requests import CLUSTER, EXCLUDED, ITEM_INDEX, LISTED, VECTOR, DeviceKind, RetrievalRequest
from scoring.spark.score_frames import SCORING_IMPORTS, one_torch_thread, score_in_batches, task_slot
from spark.rows import Rows, query, select, spark_types
from spark.tasks import collect_results, run_tasks
from storage.feature_spec import USER_KEY
from storage.manifest import Manifest, data_files
from storage.paths import Partition
from storage.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches = Iterable[pa.RecordBatch]

_CLUSTERED = pa.schema([(ITEM_INDEX, pa.int32()), (CLUSTER, pa.int32()), (VECTOR, pa.list_(pa.float32()))])

# With search=auto, more items than this number are searched approximately on a CPU
# (docs/decisions/candidates.md#0057).
EXACT_ITEMS = 100_000
# The driver does not read the length of the vectors, and assumes this length when it chooses the number of
# rows of a file.
_VECTOR_ELEMENTS = 256


@dataclass(frozen=True)
class Retrieved:
    """The candidates of the source `retrieval`.

    Attributes:
        lists: rows with the columns user_key, candidates and scores, one row per user.
        search: the kind of search: exact or approximate.
    """

    lists: Rows
    search: Literal["exact", "approximate"]


def retrieve(
    context: RunContext,
    version: str,
    tables: CandidateTables,
    numbered: Manifest,
    excluded: Exclusions,
    store: VectorStore,
    *,
    users: Rows | None = None,
    items: Partition | None = None,
) -> Retrieved | None:
    """Returns the candidates of the source `retrieval`; None if this source is not configured.

    For approximate search, the function computes and publishes the clusters of the items before it returns.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        version: workflow version of the table `users`.
        tables: the users and the retriever.
        numbered: the manifest of the table candidate_items.
        excluded: the items that must not be retrieved for a user.
        store: publishes the clusters.
        users: rows with user_key and the features of scope `user`; None for those of the table `users`.
        items: the partition of `numbered`. If None, it is the run date's partition of the table
            candidate_items.

    Raises:
        DataError: the search is approximate, and the vector of an item is not finite.
    """
    configured, retriever = context.config.candidates.retrieval, tables.retriever
    if configured is None or retriever is None:
        return None
    source: SearchParameters = cast("Any", configured)
    names = [feature.name for feature in retriever.spec.scoped("user")]
    if users is None:
        users = users_of(context, version, tables.users, [USER_KEY, *names])
    if items is None:
        items = context.lake.candidate_items(version).partition(context.run_date)
    allowed = query(
        "SELECT users.*, excluded FROM {users} AS users JOIN {excluding} AS excluding USING (user_key)",
        users=users,
        excluding=excluded.users,
    )
    request = RetrievalRequest(
        retriever.request(context.config.score),
        tuple(data_files(items, numbered)),
        tuple(sorted(encoded_context(context, retriever).items())),
        source.n,
    )
    spark = None if context.in_process else context.spark
    if not is_approximate(spark, source, numbered.rows, context.config.score.device):
        return Retrieved(retrieved_items(allowed, names, request), "exact")
    clustered = clustered_items(spark, request)
    files = store.publish(source.name, clustered, numbered.rows, _VECTOR_ELEMENTS)
    searching = replace(request, cluster_files=files, probes=source.probes)
    return Retrieved(retrieved_items(allowed, names, searching), "approximate")


def is_approximate(
    spark: SparkSession | None,
    source: SearchParameters,
    items: int,
    device: DeviceKind,
    exact_items: int = EXACT_ITEMS,
) -> bool:
    """Returns whether the source searches approximately.

    With search=auto and device=auto, a task determines whether the workers have GPUs.

    Args:
        spark: the session; None if this process searches.
        source: the settings of the source.
        items: number of candidate items.
        device: the device that `score.device` requests.
        exact_items: with search=auto, up to this number of items are searched exactly.
    """
    if not items or source.search == "exact":
        return False
    if source.search == "approximate":
        return True
    if source.search == "auto":
        return items > exact_items and _computes_on_cpu(spark, device)
    assert_never(source.search)


def _computes_on_cpu(spark: SparkSession | None, device: DeviceKind) -> bool:
    """Returns whether the workers search on a CPU. With device=auto, a task determines the device."""
    if device == "cpu":
        return True
    if device == "cuda":
        return False
    if device == "auto":
        if spark is None:
            return _device_type(0) == "cpu"
        return collect_results(spark, 1, _device_type, SCORING_IMPORTS) == ["cpu"]
    assert_never(device)


def _device_type(_: int) -> str:
    """Returns the type of the device that device=auto selects in a task: cpu or cuda."""
    from training.device import choose_device  # only workers import torch

    return choose_device("auto", task_slot()[0], "score.device").type


def clustered_items(spark: SparkSession | None, request: RetrievalRequest) -> Rows:
    """Returns the vector and the cluster of each item, which one task computes.

    The result has the columns item_index, cluster (int) and vector (array<float>).

    Args:
        spark: the session; None if this process computes.
        request: names the model and the files of the items.

    Raises (in the worker, when a frame is evaluated):
        ConfigError: as `retrieved_items`.
        DataError: the vector of an item is not finite.
    """

    def cluster(_: int) -> Iterator[pa.RecordBatch]:
        from scoring.candidates.retrieval import cluster_items  # only workers import torch
        from scoring.model.predictor import models_of_process

        yield from cluster_items(request, models_of_process().predictor(request.model, *task_slot()))

    if spark is not None:
        return run_tasks(spark, 1, cluster, spark_types(_CLUSTERED), SCORING_IMPORTS)
    with one_torch_thread():
        return pa.Table.from_batches(cluster(0), _CLUSTERED)


def retrieved_items(users: Rows, features: Sequence[str], request: RetrievalRequest) -> Rows:
    """Returns, for each user, the n items with the largest dot products that are not excluded.

    The result has the columns user_key, candidates and scores (the dot products). If dot products are equal,
    the smaller item index comes first. If the request names the files of clustered items, the search is
    approximate: it may miss items with larger dot products.

    Args:
        users: rows with user_key, the columns `features`, and excluded. `excluded` is an array<int>; null
            excludes no items.
        features: names of the features of the model that have scope `user`.
        request: names the model and the files of the items, and contains the number n.

    Raises (in the workers, when a frame is evaluated):
        DataError: a dot product is NaN, a vector is not finite (approximate search), or an index in
            `excluded` is out of range. The message names the user.
        ConfigError: the requested device does not exist, a context value is missing, or the model is not a
            model with vectors (training/models/factorization.py).
    """
    rows = select(users, [USER_KEY, *features, EXCLUDED])
    return score_in_batches(rows, _retriever(request), LISTED, USERS_PER_BATCH, request.model.device)


def _retriever(request: RetrievalRequest) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that retrieves candidates for the users of one task."""

    def retrieve(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.candidates.retrieval import load_retriever  # only workers import torch
        from scoring.model.predictor import models_of_process

        retriever = models_of_process().latest(load_retriever, request, *task_slot())
        for batch in batches:
            yield retriever.retrieve(batch)

    return retrieve
