"""Scoring: computes top-k lists of users, and probabilities of rows, in Spark's workers or in this process.

The workers read the rows of published partitions from files, and write the results to files (`score_split`).
The rows of a frame go through Spark as Arrow batches (`score_rows`). A Python worker process loads the model
and the items only once. Spark never has a table of all (user, item) pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from scoring.requests import (
    CANDIDATES,
    EXCLUDED,
    MEASURED,
    POSITIVES,
    PROBABILITY,
    SOURCE_SCORES,
    DeviceKind,
    ListRequest,
    ModelRequest,
)
from scoring.rows.file_splits import FileRowGroup, RowGroupRange, divide_rows
from spark.choose_workers import cores_without_jvm
from spark.rows import ReadableRows, Rows, StoredRows, arrow_schema, map_rows_in_threads, select
from spark.tasks import collect_results
from spark.workers import slot_of_task
from storage.feature_spec import USER_KEY, FeatureSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The code below names the modules that the worker daemon imports before it forks scoring workers.
#
# Importing torch takes seconds, so the daemon imports it once for all workers.

# All scoring tasks use this one list, so that Spark forks all scoring workers from one process.
SCORING_IMPORTS = (
    "scoring.candidates.item_vectors",
    "scoring.candidates.retrieval",
    "scoring.ranking.recommender",
    "scoring.rows.task",
)


# The code below determines the GPU and the number of CPU threads that Spark assigned to a scoring task.


def task_slot() -> tuple[int | None, int]:
    """Returns the index of the GPU and the number of CPU threads that Spark assigned to the running task.

    The index is None if the task has no GPU. Outside of Spark, several threads of the job's process score at
    the same time, and each of them uses one CPU thread.
    """
    return slot_of_task() or (None, 1)


Batches = Iterable[pa.RecordBatch]

# Numbers of users and of rows that a thread of this process scores together. A GPU gets more users, because
# with small batches it would wait for the host.
_USERS_PER_BATCH, _ROWS_PER_BATCH = 500, 10_000
_USERS_PER_GPU_BATCH = 10_000

LISTS = pa.schema(
    [
        ("user_id", pa.string()),
        ("position", pa.int32()),
        ("item_id", pa.string()),
        ("score", pa.float32()),
        ("reason", pa.string()),
    ]
)


def score_lists(users: Rows, spec: FeatureSpec, request: ListRequest) -> Rows:
    """Returns the k best candidates of each user.

    The result has one row per list entry, with the columns user_id, position (from 1), item_id, score and
    reason. The score is the click probability or, with a blend, the sigmoid of the blend's score. A user's
    items are sorted in descending order of the logit or, with a blend, of the blend's score. If these are
    equal, the smaller item id comes first. The reason is "ranked". If the request contains business rules,
    the rules may change the order, and the reason may also be "boost:<value>" or "explore". The users keep
    their order. A user without candidates has no row.

    Args:
        users: rows with user_key, the features of scope `user`, candidates and excluded. The last two are
            array<int> of item indices. If `candidates` is null, all items except those in `excluded` are
            candidates. With a blend, the rows also need the column source_scores, and `candidates` must not
            be null.
        spec: the model's features. None of the features may have scope `pair` (requests.require_listable).
        request: the model, the items, k, the business rules and the blend.

    Raises (when a frame is evaluated, in the workers):
        DataError: a score is NaN, or candidates are out of range or repeated. The message names the user.
        ConfigError: the requested device does not exist, or a context value is missing.
    """
    columns = [USER_KEY, *(feature.name for feature in spec.scoped("user")), CANDIDATES, EXCLUDED]
    columns += [SOURCE_SCORES] if request.blend else []
    device = request.model.device
    on_gpu = isinstance(users, pa.Table) and _process_uses_gpu(device)
    batch_users = _USERS_PER_GPU_BATCH if on_gpu else _USERS_PER_BATCH
    return score_in_batches(select(users, columns), _list_maker(request), LISTS, batch_users, device)


def measure_candidates(users: Rows, spec: FeatureSpec, request: ListRequest, sources: int) -> Rows:
    """Returns the logit of every candidate of each user, packed into one row per user.

    The docstring of CandidateLogits.measure describes the columns of the result and of `users`.

    Args:
        users: one row per user.
        spec: the model's features. None of the features may have scope `pair`.
        request: the model and the items.
        sources: number of sources that gave scores to the candidates.
    """
    names = [USER_KEY, *(feature.name for feature in spec.scoped("user"))]
    rows = select(users, [*names, CANDIDATES, EXCLUDED, SOURCE_SCORES, POSITIVES])

    def measure(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.model.predictor import models_of_process  # only workers import torch
        from scoring.ranking.recommender import CandidateLogits

        scorer = models_of_process().latest(CandidateLogits, request, *task_slot())
        for batch in batches:
            yield scorer.measure(batch, sources)

    return score_in_batches(rows, measure, MEASURED, _USERS_PER_BATCH, request.model.device)


def score_rows(
    rows: ReadableRows, spec: FeatureSpec, model: ModelRequest, keep: Sequence[str], *, double: bool = False
) -> Rows:
    """Returns the columns `keep` of every row, and the row's click probability as the last column.

    The probability is float32. If `double` is true, it is float64, which distinguishes probabilities near 1.

    Raises (when a frame is evaluated, in the workers):
        DataError: a probability is NaN. The message shows the row's values in the columns `keep`.
        ConfigError: the requested device does not exist.
    """
    names = [feature.name for feature in spec.features]
    inputs = select(rows, [*keep, *(name for name in names if name not in keep)])
    known = inputs.schema if isinstance(inputs, pa.Table | StoredRows) else arrow_schema(inputs)
    kind = pa.float64() if double else pa.float32()
    schema = pa.schema([*(known.field(name) for name in keep), pa.field(PROBABILITY, kind)])
    scorer = _row_scorer(model, tuple(keep), double)
    return score_in_batches(inputs, scorer, schema, _ROWS_PER_BATCH, model.device)


def score_in_batches(
    rows: ReadableRows,
    function: Callable[[Batches], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    batch_rows: int,
    device: DeviceKind,
) -> Rows:
    """Applies a function that computes with torch to batches of rows, in Spark's workers or in this process.

    Args:
        rows, function, schema: see `spark.rows.map_rows`.
        batch_rows: number of rows in each batch, if `rows` is a table or files.
        device: the device on which the function computes. For a table or for files, this process uses one
            thread if the device is a GPU, otherwise one for each core.
    """
    if not isinstance(rows, pa.Table | StoredRows):
        return map_rows_in_threads(rows, function, schema, SCORING_IMPORTS, 1, batch_rows)
    with one_torch_thread():
        threads = threads_of_process(device)
        return map_rows_in_threads(rows, function, schema, SCORING_IMPORTS, threads, batch_rows)


def threads_of_process(device: DeviceKind) -> int:
    """Returns the number of threads of this process that score on a device.

    There is one thread for a GPU, or one for each core. If `device` is `auto`, a GPU is used if there is one.
    """
    return 1 if _process_uses_gpu(device) else cores_without_jvm() or 1


def _process_uses_gpu(device: DeviceKind) -> bool:
    import torch

    return device != "cpu" and torch.cuda.is_available()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Sets torch's number of CPU threads to one during the block, and then restores the previous number."""
    import torch

    of_caller = torch.get_num_threads()
    torch.set_num_threads(task_slot()[1])
    try:
        yield
    finally:
        torch.set_num_threads(of_caller)


# Maximum number of rows of a task on a GPU. With much smaller tasks, Spark would need more time to start a
# task than the GPU needs to score it.
_ROWS_OF_GPU_TASK = 2**26


def divide_split(
    spark: SparkSession | None, groups: Sequence[FileRowGroup], model: ModelRequest, file_rows: int
) -> list[tuple[RowGroupRange, ...]]:
    """Divides row groups among tasks for `score_split`.

    On CPUs, a task has at most about `file_rows` rows, because it writes one file. A task on a GPU has
    complete row groups, and up to 2²⁶ rows. In Spark, tasks run on GPUs if Spark assigns a share of a GPU to
    each task, or if the device is `cuda`.
    """
    if spark is None:
        slots, gpu = threads_of_process(model.device), _process_uses_gpu(model.device)
    else:
        cores = int(spark.conf.get("spark.task.cpus", "1") or 1)
        slots = max(spark.sparkContext.defaultParallelism // cores, 1)
        gpu = spark.conf.get("spark.task.resource.gpu.amount", None) is not None
    if model.device == "cuda" or (model.device == "auto" and gpu):
        return divide_rows(groups, slots, max(_ROWS_OF_GPU_TASK, file_rows), whole=True)
    return divide_rows(groups, slots, file_rows)


def score_split(
    spark: SparkSession | None,
    tasks: Sequence[tuple[RowGroupRange, ...]],
    model: ModelRequest,
    folder: str,
    file_rows: int,
) -> list[str]:
    """Scores the rows of each task, writes Parquet files, and returns the names of the files in row order.

    Workers receive only paths and row ranges. The function does not publish the files. Failed attempts may
    leave files behind, but no manifest names these files.

    Args:
        spark: the Spark session; None runs the tasks in threads of this process.
        tasks: the rows of each task, as pieces. A piece is a range of rows of one row group.
        model: the model to run.
        folder: the folder of a partition of the table `scores`.
        file_rows: maximum number of rows of a file of a task on a GPU. On a CPU, a task writes one file.

    Raises (in the workers):
        DataError: a file differs from its manifest, or a probability is NaN.
        ConfigError: the requested device does not exist.
        InfrastructureError: a file could not be read or written.
    """
    scored = tuple(tasks)
    cores_of_gpu = (
        1 if spark is not None else cores_without_jvm() or 1
    )  # without Spark, one task uses all cores

    def score(index: int) -> str:
        from scoring.model.predictor import models_of_process  # only workers import torch
        from scoring.rows.task import write_scores

        gpu, threads = task_slot()
        predictor = models_of_process().predictor(model, gpu, threads)
        cores = max(threads, cores_of_gpu) if predictor.device.type != "cpu" else threads
        return json.dumps(write_scores(predictor, scored[index], folder, cores, file_rows))

    if spark is not None:
        written = collect_results(spark, len(tasks), score, SCORING_IMPORTS)
    else:
        with one_torch_thread(), ThreadPoolExecutor(threads_of_process(model.device)) as pool:
            written = list(pool.map(score, range(len(tasks))))
    return [name for names in written for name in json.loads(names)]


def _list_maker(request: ListRequest) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that computes the lists for batches of users."""

    def make_lists(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.model.predictor import models_of_process  # only workers import torch
        from scoring.ranking.recommender import load_recommender

        recommender = models_of_process().latest(load_recommender, request, *task_slot())
        yield from recommender.recommend_all(iter(batches))

    return make_lists


def _row_scorer(
    model: ModelRequest, keep: tuple[str, ...], double: bool
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that scores batches of rows."""

    def score(batches: Batches) -> Iterator[pa.RecordBatch]:
        import torch  # only workers import it

        from scoring.model.predictor import models_of_process
        from scoring.rows.score_batch import score_batch

        dtype = torch.float64 if double else torch.float32
        predictor = models_of_process().predictor(model, *task_slot())
        for batch in batches:
            yield score_batch(predictor, batch, keep, dtype)

    return score
