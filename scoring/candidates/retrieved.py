"""Makes the candidates of the source `retrieval`: chooses the search, publishes the clusters of the items."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from scoring.candidates.candidate_tables import CandidateTables, users_of
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.parameters import SearchParameters
from scoring.candidates.retrieval_in_spark import clustered_items, is_approximate, retrieved_items
from scoring.model.context_features import encoded_context
from scoring.requests import RetrievalRequest
from spark.rows import Rows, query
from storage.feature_spec import USER_KEY
from storage.manifest import Manifest, data_files
from storage.paths import Partition
from storage.run_context import RunContext

# The driver does not read the length of the vectors. Files of vectors up to this length have the usual size.
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
        context: the context of the run.
        version: workflow version of the table `users`.
        tables: the users and the retriever.
        numbered: the manifest of the table candidate_items.
        excluded: the items that must not be retrieved for a user.
        store: publishes the clusters.
        users: rows with user_key and the features of scope `user`. None reads the table `users`.
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
