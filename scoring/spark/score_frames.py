"""Scoring in Spark: users stream through as Arrow batches and leave as top-k lists, rows get a probability.

Rows of published partitions are read and written by the workers themselves (`score_split`), those of a frame pass through
(`score_rows`). Model and items are loaded once a Python worker process; the user × item table never exists in Spark.
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
    """The k best candidates of each user: (user_id, position from 1, item_id, score, reason), order of users kept.

    Score is the click probability; within a user it descends, ties by item id, and the reason is "ranked". With rules
    in the request the order is theirs, and the reason also "boost:<value>" or "explore". A user without candidates gets no row.

    Args:
        users: user_key, the features of scope `user`, candidates and excluded (array<int>: item indices; null
            candidates stand for every item but `excluded`).
        spec: the model's; features of scope `pair` must not be in it (contract.require_listable).

    Raises (in the workers, when the frame is evaluated):
        DataError: a score is NaN, or candidates are out of range or repeated; names the user.
        ConfigError: the device asked for is not there, or a context value is missing.
    """
    columns = [USER_KEY, *(each.name for each in spec.scoped("user")), CANDIDATES, EXCLUDED]
    with scoring_workers(users.sparkSession):
        return users.select(*columns).mapInArrow(_list_maker(request), LISTS)


def score_rows(rows: DataFrame, spec: FeatureSpec, model: ModelRequest, keep: Sequence[str]) -> DataFrame:
    """Every feature row with its click probability: the columns `keep`, then `probability` (float32), row for row.

    Raises (in the workers, when the frame is evaluated):
        DataError: a probability is NaN; names the row by its kept columns.
        ConfigError: the device asked for is not there.
    """
    names = [each.name for each in spec.features]
    wanted = rows.select(*keep, *(name for name in names if name not in keep))
    schema = T.StructType([*(rows.schema[name] for name in keep), T.StructField(PROBABILITY, T.FloatType())])
    with scoring_workers(rows.sparkSession):
        return wanted.mapInArrow(_row_scorer(model, tuple(keep)), schema)


def score_split(
    spark: SparkSession, tasks: Sequence[tuple[Piece, ...]], model: ModelRequest, folder: str
) -> list[str]:
    """Writes a probability for every row of the tasks' pieces: a Parquet file of `scores` each, whose names it returns.

    Paths travel to the workers, rows do not. Nothing is published; files of attempts that failed stay, unnamed.

    Raises (in the workers):
        DataError: a file is not what its manifest says, or a probability is NaN.
        ConfigError: the device asked for is not there.
        InfrastructureError: a file could not be read or written.
    """
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    with scoring_workers(spark):
        done = numbers.mapInArrow(_split_scorer(tuple(tasks), model, folder), "task int, file string")
    found = done.collect()
    names = {row["task"]: row["file"] for row in found}  # one row a task
    return [names[index] for index in range(len(tasks))]


def _split_scorer(
    tasks: tuple[tuple[Piece, ...], ...], model: ModelRequest, folder: str
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
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
    def make_lists(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.model.worker_models import models_of_process  # torch: only in the workers
        from scoring.ranking.recommender import load_recommender

        recommender = models_of_process().latest(load_recommender, request, *task_slot())
        for batch in batches:
            yield from recommender.recommend(batch)

    return make_lists


def _row_scorer(model: ModelRequest, keep: tuple[str, ...]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
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
