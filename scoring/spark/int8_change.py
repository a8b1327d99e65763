"""Measures how much int8 embeddings change probabilities, by scoring a sample with and without them.

Both forms of the model run on the CPU of one task, one after the other. So only the rounding to int8 causes
differences. The model without int8 need not fit into the device's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scoring.requests import PROBABILITY, ListRequest, ModelRequest
from scoring.rows.file_splits import FileRowGroup, RowGroupRange
from scoring.spark.score_frames import SCORING_IMPORTS, task_slot
from spark.rows import Rows
from spark.tasks import map_batches, run_tasks
from storage.feature_spec import USER_KEY, FeatureSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_ROWS = 10_000
SAMPLE_USERS = SAMPLE_ITEMS = 100

_SCHEMA = "compared long, largest double, mean double, stored_bytes long, int8_bytes long"


def sample_of(groups: Sequence[FileRowGroup]) -> tuple[RowGroupRange, ...]:
    """Returns pieces (ranges of rows of one row group) that contain the first SAMPLE_ROWS rows."""
    pieces, left = [], SAMPLE_ROWS
    for group in groups:
        if left:
            pieces.append(RowGroupRange(group, 0, min(group.rows, left)))
            left -= pieces[-1].rows
    return tuple(pieces)


def change_of_rows(
    spark: SparkSession | None, pieces: Sequence[RowGroupRange], model: ModelRequest
) -> dict[str, Any]:
    """Measures how much int8 embeddings change the probabilities of the rows in `pieces`.

    Args:
        spark: the Spark session; None if this process scores.
        pieces: the rows to score. A piece is a range of rows of one row group.
        model: the model, which is scored with and without int8 embeddings.

    Returns:
        The dictionary that `_facts` describes.
    """

    def compare(_: int) -> Iterator[pa.RecordBatch]:
        from scoring.rows.score_batch import score_pieces  # only workers import torch

        def score(predictor: Any) -> Iterable[Any]:
            return (batch.column(PROBABILITY) for batch in score_pieces(predictor, pieces, _threads()))

        yield compare_forms(model, score)

    if spark is None:
        return _facts([row for batch in compare(0) for row in batch.to_pylist()])
    return _facts(_collected(run_tasks(spark, 1, compare, _SCHEMA, SCORING_IMPORTS)))


def change_of_lists(users: Rows, spec: FeatureSpec, request: ListRequest) -> dict[str, Any]:
    """Measures how much int8 embeddings change the probabilities of a sample of (user, item) pairs.

    The sample has all pairs of SAMPLE_USERS users and SAMPLE_ITEMS items. The sample contains the users that
    come first in the order of user_key. The indices of the items are equally spaced.

    Args:
        users: rows with user_key and the features of scope `user`, one row per user.
        spec: the model's features.
        request: names the model and the files of the items, and contains the values of the context features.

    Returns:
        The dictionary that `_facts` describes.
    """
    names = [USER_KEY, *(feature.name for feature in spec.scoped("user"))]

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from scoring.ranking.pair_scorer import score_sample  # only workers import torch

        filled = [batch for batch in batches if batch.num_rows]
        if filled:
            rows = pa.Table.from_batches(filled)
            yield compare_forms(
                request.model, lambda predictor: [score_sample(predictor, rows, request, SAMPLE_ITEMS)]
            )

    if isinstance(users, pa.Table):
        chosen = users.select(names).sort_by(USER_KEY).slice(0, SAMPLE_USERS)
        compared = compare(chosen.combine_chunks().to_batches())
        return _facts([row for batch in compared for row in batch.to_pylist()])
    first = users.select(*names).orderBy(USER_KEY).limit(SAMPLE_USERS).coalesce(1)
    return _facts(_collected(map_batches(first, compare, _SCHEMA, SCORING_IMPORTS)))


def compare_forms(model: ModelRequest, score: Callable[[Any], Iterable[Any]]) -> pa.RecordBatch:
    """Scores the sample with and without int8 embeddings, and returns the comparison as one row.

    The row has the number of probabilities, the largest and the mean absolute change of a probability, and
    the size in bytes of each form of the model.

    Args:
        model: the model, which is scored in both forms.
        score: function that is called with a predictor, and returns arrays with the probabilities of the
            sample.
    """
    import numpy as np

    from scoring.model.predictor import load_predictor

    probabilities, model_bytes = {}, {}
    for form in ("stored", "int8"):
        request = replace(model, device="cpu", embeddings=form, kernels="auto")
        # Load the models outside of the process's WorkerModels, so that they do not replace models of other
        # tasks there.
        predictor = load_predictor(request, None, _threads())
        parts = [np.asarray(part, dtype=np.float64) for part in score(predictor)]
        probabilities[form] = np.concatenate(parts) if parts else np.zeros(0)
        tensors = predictor.model.state_dict().values()
        model_bytes[form] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        del predictor, tensors
    change = np.abs(probabilities["int8"] - probabilities["stored"])
    row = {
        "compared": len(change),
        "largest": float(change.max(initial=0.0)),
        "mean": float(change.mean()) if len(change) else 0.0,
        "stored_bytes": model_bytes["stored"],
        "int8_bytes": model_bytes["int8"],
    }
    return pa.RecordBatch.from_pylist([row])


def _collected(comparison: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in comparison.collect()]


def _facts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a comparison as a dictionary of JSON values. `rows` has one row, or none if there is no sample.

    The keys are `compared` (number of probabilities), `largest_change`, `mean_change`, `stored_bytes` and
    `int8_bytes` (the size in bytes of each form of the model). If the sample is empty, the only key is
    `compared`, with the value 0.
    """
    if not rows:
        return {"compared": 0}
    row = rows[0]
    return {
        "compared": row["compared"],
        "largest_change": row["largest"],
        "mean_change": row["mean"],
        "stored_bytes": row["stored_bytes"],
        "int8_bytes": row["int8_bytes"],
    }


def _threads() -> int:
    """Returns the number of CPU threads of the running task."""
    return task_slot()[1]
