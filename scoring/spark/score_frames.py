"""Scoring in Spark: top-k lists of users, and probabilities of rows.

Workers read and write the rows of published partitions themselves (`score_split`). The rows of a frame go
through Spark as Arrow batches (`score_rows`). A Python worker process loads model and items once. Spark never
holds a table of user × item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from scoring.inputs.requests import CANDIDATES, EXCLUDED, PROBABILITY, ListRequest, ModelRequest
from scoring.rows.file_splits import Piece
from scoring.spark.scoring_workers import scoring_workers
from storage.feature_spec import USER_KEY, FeatureSpec

Batches = Iterable[pa.RecordBatch]

LISTS = T.StructType(
    [
        T.StructField("user_id", T.StringType()),
        T.StructField("position", T.IntegerType()),
        T.StructField("item_id", T.StringType()),
        T.StructField("score", T.FloatType()),
        T.StructField("reason", T.StringType()),
    ]
)


def score_lists(users: DataFrame, spec: FeatureSpec, request: ListRequest) -> DataFrame:
    """The k best candidates of each user: (user_id, position from 1, item_id, score, reason).

    Users keep their order. Score is the click probability. Within a user it descends, ties by item id, and
    the reason is "ranked". Business rules in the request may change the order, and then the reason may be
    "boost:<value>" or "explore". A user without candidates has no row.

    Args:
        users: user_key, the features of scope `user`, candidates and excluded (array<int> of item indices;
            null candidates mean all items except `excluded`).
        spec: the model's features, none of scope `pair` (requests.require_listable).
        request: the model, the items, k and the rules.

    Raises (in the workers, when the frame is evaluated):
        DataError: a score is NaN, or candidates are out of range or repeated; names the user.
        ConfigError: the requested device does not exist, or a context value is missing.
    """
    columns = [USER_KEY, *(feature.name for feature in spec.scoped("user")), CANDIDATES, EXCLUDED]
    with scoring_workers(users.sparkSession):
        return users.select(*columns).mapInArrow(_list_maker(request), LISTS)


def score_rows(rows: DataFrame, spec: FeatureSpec, model: ModelRequest, keep: Sequence[str]) -> DataFrame:
    """The columns `keep` of every row, then its click probability (float32).

    Raises (in the workers, when the frame is evaluated):
        DataError: a probability is NaN; names the row by its kept columns.
        ConfigError: the requested device does not exist.
    """
    names = [feature.name for feature in spec.features]
    inputs = rows.select(*keep, *(name for name in names if name not in keep))
    schema = T.StructType([*(rows.schema[name] for name in keep), T.StructField(PROBABILITY, T.FloatType())])
    with scoring_workers(rows.sparkSession):
        return inputs.mapInArrow(_row_scorer(model, tuple(keep)), schema)


def score_split(
    spark: SparkSession, tasks: Sequence[tuple[Piece, ...]], model: ModelRequest, folder: str
) -> list[str]:
    """Writes the probabilities of the tasks' rows and returns the names of their Parquet files, one a task.

    The driver sends paths to the workers, not rows. Nothing is published. Files of failed attempts stay, but
    no manifest names them.

    Raises (in the workers):
        DataError: a file differs from its manifest, or a probability is NaN.
        ConfigError: the requested device does not exist.
        InfrastructureError: a file could not be read or written.
    """
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    with scoring_workers(spark):
        files = numbers.mapInArrow(_split_scorer(tuple(tasks), model, folder), "task int, file string")
    names = {row["task"]: row["file"] for row in files.collect()}  # one row a task
    return [names[index] for index in range(len(tasks))]


def _split_scorer(
    tasks: tuple[tuple[Piece, ...], ...], model: ModelRequest, folder: str
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function that scores the rows of tasks by their number, for mapInArrow."""

    def score(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.model.worker_models import models_of_process  # torch: only in the workers
        from scoring.rows.task import write_scores

        models, (gpu, threads) = models_of_process(), task_slot()
        for batch in batches:
            for index in batch.column(0).to_pylist():
                predictor = models.predictor(model, gpu, threads)
                name = write_scores(predictor, tasks[index], folder, threads)
                yield pa.RecordBatch.from_pydict(
                    {"task": pa.array([index], pa.int32()), "file": pa.array([name])}
                )

    return score


def _list_maker(request: ListRequest) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function that computes the lists of batches of users, for mapInArrow."""

    def make_lists(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.model.worker_models import models_of_process  # torch: only in the workers
        from scoring.ranking.recommender import load_recommender

        recommender = models_of_process().latest(load_recommender, request, *task_slot())
        for batch in batches:
            yield from recommender.recommend(batch)

    return make_lists


def _row_scorer(model: ModelRequest, keep: tuple[str, ...]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function that scores batches of rows, for mapInArrow."""

    def score(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.model.worker_models import models_of_process  # torch: only in the workers
        from scoring.rows.batch import score_batch

        predictor = models_of_process().predictor(model, *task_slot())
        for batch in batches:
            yield score_batch(predictor, batch, keep)

    return score


def task_slot() -> tuple[int | None, int]:
    """(index of the GPU, number of CPU threads) that Spark assigned to the running task."""
    task = TaskContext.get()
    if task is None:
        return None, 1
    gpu = task.resources().get("gpu")
    return (int(gpu.addresses[0]) if gpu else None), task.cpus()
