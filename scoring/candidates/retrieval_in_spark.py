"""The source `retrieval` in Spark: sends batches of users to workers, which run retrieval.py.

Only the workers import torch. The driver imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from scoring.candidates.lists_in_spark import LISTED
from scoring.inputs.requests import EXCLUDED, RetrievalRequest
from scoring.spark.scoring_workers import SCORING_IMPORTS
from scoring.spark.task_slot import task_slot
from spark.tasks import map_batches
from storage.feature_spec import USER_KEY

Batches = Iterable[pa.RecordBatch]


def retrieved_items(users: DataFrame, features: Sequence[str], request: RetrievalRequest) -> DataFrame:
    """Returns, for each user, the n items with the largest dot products that are not excluded.

    The result has the columns user_key, candidates and scores (the dot products). If dot products are equal,
    the smaller item index comes first.

    Args:
        users: a frame with user_key, the columns `features`, and excluded. `excluded` is an array<int>; null
            excludes nothing.
        features: names of the features of the model that have scope `user`.
        request: names the model and the files of the items, and has the number n.

    Raises (in the workers, when the frame is evaluated):
        DataError: a dot product is NaN, or an index in `excluded` is out of range. The message names the
            user.
        ConfigError: the requested device does not exist, a context value is missing, or the model is not a
            model with vectors (training/models/factorization.py).
    """
    rows = users.select(USER_KEY, *features, EXCLUDED)
    return map_batches(rows, _retriever(request), LISTED, SCORING_IMPORTS)


def _retriever(request: RetrievalRequest) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that retrieves candidates for the users of one task."""

    def retrieve(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.candidates.retrieval import load_retriever  # torch: only in the workers
        from scoring.model.worker_models import models_of_process

        retriever = models_of_process().latest(load_retriever, request, *task_slot())
        for batch in batches:
            yield retriever.retrieve(batch)

    return retrieve
