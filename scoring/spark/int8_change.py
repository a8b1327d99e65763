"""How far int8 embeddings move probabilities: the same sample scored with a model as it is stored and with bytes for its rows.

Both are computed on the CPU of one task, one model after the other, so that nothing but the rounding differs and the
device need not hold the model as it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from scoring.inputs.requests import PROBABILITY, ListRequest, ModelRequest
from scoring.rows.file_splits import Piece, RowGroup
from scoring.spark.scoring_workers import scoring_workers
from storage.feature_spec import USER_KEY, FeatureSpec

SAMPLE_ROWS = 10_000
SAMPLE_USERS = SAMPLE_ITEMS = 100

_SCHEMA = "compared long, largest double, mean double, stored_bytes long, int8_bytes long"


def sample_of(groups: Sequence[RowGroup]) -> tuple[Piece, ...]:
    """The first SAMPLE_ROWS rows of some row groups."""
    pieces, left = [], SAMPLE_ROWS
    for group in groups:
        if left:
            pieces.append(Piece(group, 0, min(group.rows, left)))
            left -= pieces[-1].rows
    return tuple(pieces)


def change_of_rows(spark: SparkSession, pieces: Sequence[Piece], model: ModelRequest) -> dict[str, Any]:
    """Of feature rows; the facts of `change`."""

    def compare(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from scoring.rows.task import score_pieces  # torch: in the workers alone

        def score(predictor: Any) -> Iterable[Any]:
            return (each.column(PROBABILITY) for each in score_pieces(predictor, pieces, _threads()))

        yield change(model, score)

    with scoring_workers(spark):
        compared = spark.range(0, 1, 1, 1).mapInArrow(compare, _SCHEMA)
    return _facts(compared)


def change_of_lists(users: DataFrame, spec: FeatureSpec, request: ListRequest) -> dict[str, Any]:
    """Of pairs: SAMPLE_USERS of the users, each with SAMPLE_ITEMS items at equal distances; the facts of `change`.

    Args:
        users: user_key and the features of scope `user`.
    """
    names = [USER_KEY, *(each.name for each in spec.scoped("user"))]
    chosen = users.select(*names).orderBy(USER_KEY).limit(SAMPLE_USERS)

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from scoring.ranking.sample import score_sample  # torch: in the workers alone

        held = [batch for batch in batches if batch.num_rows]
        if held:
            rows = pa.Table.from_batches(held)
            yield change(
                request.model, lambda predictor: [score_sample(predictor, rows, request, SAMPLE_ITEMS)]
            )

    with scoring_workers(users.sparkSession):
        compared = chosen.coalesce(1).mapInArrow(compare, _SCHEMA)
    return _facts(compared)


def change(model: ModelRequest, score: Callable[[Any], Iterable[Any]]) -> pa.RecordBatch:
    """One row: how many probabilities were compared, their largest and mean absolute change, and bytes of both models.

    Args:
        score: gives the probabilities of the sample, arrays of them, by a predictor.
    """
    import numpy as np

    from scoring.model.predictor import load_predictor

    found, size = {}, {}
    for form in ("stored", "int8"):
        request = replace(model, device="cpu", embeddings=form, kernels="auto")
        # Loaded outside of the process's WorkerModels, so that no model of another task is dropped from them.
        predictor = load_predictor(request, None, _threads())
        parts = [np.asarray(each, dtype=np.float64) for each in score(predictor)]
        found[form] = np.concatenate(parts) if parts else np.zeros(0)
        size[form] = sum(each.numel() * each.element_size() for each in predictor.model.state_dict().values())
        del predictor
    moved = np.abs(found["int8"] - found["stored"])
    row = {
        "compared": len(moved),
        "largest": float(moved.max(initial=0.0)),
        "mean": float(moved.mean()) if len(moved) else 0.0,
        "stored_bytes": size["stored"],
        "int8_bytes": size["int8"],
    }
    return pa.RecordBatch.from_pylist([row])


def _facts(made: DataFrame) -> dict[str, Any]:
    """`compared`, `largest_change`, `mean_change`, `stored_bytes` and `int8_bytes`; none where there was nothing to score."""
    rows = made.collect()
    if not rows:
        return {"compared": 0}
    found = rows[0].asDict()
    return {
        "compared": found["compared"],
        "largest_change": found["largest"],
        "mean_change": found["mean"],
        "stored_bytes": found["stored_bytes"],
        "int8_bytes": found["int8_bytes"],
    }


def _threads() -> int:
    task = TaskContext.get()
    return task.cpus() if task else 1
