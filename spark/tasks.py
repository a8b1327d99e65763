"""Runs Python functions over Arrow batches in Spark tasks.

Spark runs a Python function in a worker process, which it forks from a daemon (spark/worker_daemon.py). The
argument `imports` names modules that the daemon imports before it forks workers. Always pass the same modules
for the same kind of work: Spark starts one daemon for each different value of `imports`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from conf.lazy_imports import T
from spark.worker_daemon import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches = Iterable[pa.RecordBatch]
Schema: TypeAlias = "T.StructType | str"

_RESULTS = "task int, result string"


def map_batches(
    rows: DataFrame, function: Callable[[Batches], Batches], schema: Schema, imports: Sequence[str] = ()
) -> DataFrame:
    """Applies a function to the batches of each partition of a frame.

    Returns a frame of the batches that the function returns.

    Args:
        rows: the frame.
        function: called once per task. Spark pickles it, so it must not refer to the session or to a frame.
        schema: the schema of the returned batches.
        imports: modules to import before workers are forked. This has an effect only if the Spark profile
            uses spark.worker_daemon.
    """
    if not imports:
        return rows.mapInArrow(function, schema)
    # mapInArrow has no argument for environment variables, but it copies the variables of the Spark context
    # when it wraps the function. So the variable is set only during this call.
    environment = rows.sparkSession.sparkContext.environment
    previous = environment.get(VARIABLE)
    environment[VARIABLE] = ",".join(imports)
    try:
        return rows.mapInArrow(function, schema)
    finally:
        if previous is None:
            del environment[VARIABLE]
        else:
            environment[VARIABLE] = previous


def run_tasks(
    spark: SparkSession,
    tasks: int,
    run: Callable[[int], Batches],
    schema: Schema,
    imports: Sequence[str] = (),
) -> DataFrame:
    """Runs `run(index)` in one Spark task for each index below `tasks`.

    Returns a frame of the batches that all tasks return. The frame is lazy, and each evaluation runs all
    tasks again. Spark may also run several attempts of one task, and uses the batches of only one attempt. If
    `run` writes files, it must therefore use new file names in each attempt, and return these names.

    Args:
        tasks: number of tasks. With 0 tasks the frame is empty.
        run: called with the index of its task. Spark pickles it (see `map_batches`).
        schema: the schema of the returned batches.
        imports: see `map_batches`.
    """

    def run_task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from run(index)

    return map_batches(spark.range(0, tasks, 1, max(1, tasks)), run_task, schema, imports)


def collect_results(
    spark: SparkSession, tasks: int, run: Callable[[int], str], imports: Sequence[str] = ()
) -> list[str]:
    """Runs `run(index)` in one Spark task for each index below `tasks`, and returns the results in order.

    The arguments are those of `run_tasks`, except that `run` returns a string.
    """

    def run_task(index: int) -> Iterator[pa.RecordBatch]:
        columns = [pa.array([index], pa.int32()), pa.array([run(index)], pa.string())]
        yield pa.RecordBatch.from_arrays(columns, ["task", "result"])

    rows = run_tasks(spark, tasks, run_task, _RESULTS, imports).collect()
    results = {row["task"]: row["result"] for row in rows}
    return [results[index] for index in range(tasks)]
