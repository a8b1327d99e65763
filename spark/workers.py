"""Runs Python functions in parallel: in Spark's Python workers, or in processes of this machine.

Both kinds of workers give the same results (`Workers`). Clusters need Spark's workers
(spark/choose_workers.py). On one machine, `LocalWorkers` runs the same functions in local
processes, without a JVM.

These processes are forked from a server process (forkserver of multiprocessing), which has imported their
modules and has no threads. They end when the object that started them is freed. Until then, later calls use
the same processes, and reuse memory that earlier calls have freed. Between two calls, a large process
returns its freed memory to the system. `gpus_of_machine` and `slot_of_task` find GPUs without torch.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from conf.errors import InfrastructureError
from conf.lazy_imports import refuse_pandas
from conf.process import keep_freed_memory, return_freed_memory
from spark.fork_server import start_server, without_main_module
from storage.private_folder import ScratchFolder

if TYPE_CHECKING:  # so a process that starts no JVM does not import pyspark here
    from pyspark.sql import DataFrame, SparkSession


Argument = TypeVar("Argument")
_PACKED_TOGETHER = 16


class TaskArguments(Generic[Argument]):
    """A sequence of the arguments of a job's tasks. Element i is the argument of task i.

    Arguments are pickled in small groups, and a task unpickles only the group that contains its own argument.
    Every task also unpickles the function that it runs. If this function referred to a tuple of all
    arguments, every task would unpickle all of them, so the time of a job would grow with the square of the
    number of its tasks.
    """

    def __init__(self, arguments: Iterable[Argument]) -> None:
        remaining = iter(arguments)
        self._packed: list[bytes] = []
        self._count = 0
        while group := tuple(islice(remaining, _PACKED_TOGETHER)):
            self._packed.append(zlib.compress(pickle.dumps(group), 1))
            self._count += len(group)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Argument:
        if not 0 <= index < self._count:
            raise IndexError(index)
        place, within = divmod(index, _PACKED_TOGETHER)
        group: tuple[Argument, ...] = pickle.loads(zlib.decompress(self._packed[place]))
        return group[within]


class Workers(ABC):
    """Base class of workers, which run functions in parallel. `spark` is the session for work with frames."""

    @property
    @abstractmethod
    def spark(self) -> SparkSession:
        """Returns the Spark session. The first call may start a JVM, so use the session only for frames."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """Returns the number of tasks that can run at the same time."""

    def gpu_groups(self, tasks: int) -> list[range]:
        """Divides tasks into groups. One process runs each group, and no other process uses its GPU.

        The groups are in the order of the tasks. If no process has a GPU, there are no groups.
        """
        return []

    @abstractmethod
    def run(
        self, tasks: int, run: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> pa.Table | DataFrame:
        """Runs `run(index)` for each index below `tasks`, and returns the batches of all tasks.

        Args:
            tasks: number of tasks. With 0 tasks the result is empty.
            run: called once per task, in another process. The function is pickled. If it writes files, it
                must use new file names in each attempt, and return these names.
            schema: the schema of the batches.

        Returns:
            In Spark, a lazy frame (spark.tasks.run_tasks). In processes of this machine, a table with the
            rows in the order of the tasks, mapped from files.
        """

    @abstractmethod
    def collect(self, tasks: int, run: Callable[[int], str]) -> list[str]:
        """Runs `run(index)` for each index below `tasks`, and returns the results in that order."""


# The functions below count the GPUs of this machine, and find the GPU of the running Spark task. They do not
# need torch.


def gpus_of_machine() -> int:
    """Returns the number of NVIDIA's GPUs that processes of this machine may use."""
    devices = len([*Path("/dev").glob("nvidia[0-9]*")])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return devices
    # CUDA ignores the first index that is not valid, and all indices after it.
    return min(devices, len([*takewhile(lambda name: name.strip() not in ("", "-1"), visible.split(","))]))


def slot_of_task() -> tuple[int | None, int] | None:
    """Returns the index of the GPU and the number of CPU cores that Spark assigned to the running task.

    The index is None if the task has no GPU. The result is None if no task of Spark runs in this thread.
    """
    if "pyspark.taskcontext" not in sys.modules:  # Spark's workers have already imported pyspark
        return None
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return None
    gpu = task.resources().get("gpu")
    return (int(gpu.addresses[0]) if gpu else None), task.cpus()


# The code below runs Python functions in processes of this machine, without a JVM.

# The environment variable with the folders for a worker's temporary files. Spark sets it for its workers too.
LOCAL_FOLDERS = "SPARK_LOCAL_DIRS"

# The path of the file with the function that this worker's tasks run. The process that started the workers
# deletes this file when the tasks end or are cancelled.
_TASKS: ContextVar[str | None] = ContextVar("tasks", default=None)

# If a worker occupies more memory than this, it returns memory that the last function freed to the system.
_KEPT_BYTES = 512 * 2**20


class LocalWorkers(Workers):
    """Processes of this machine."""

    def __init__(
        self, processes: int, open_session: Callable[[], SparkSession], folder: str | None = None
    ) -> None:
        """Creates workers. Their processes start with the first task, and end when this object is freed.

        Args:
            processes: number of processes, and so of tasks that run at the same time.
            open_session: returns the Spark session, which is started at its first call.
            folder: where to write temporary files; None for the system's folder of temporary files.

        Raises:
            ConfigError, InfrastructureError: the folder for temporary files cannot be used.
        """
        self._processes, self._open_session = processes, open_session
        self._pool: ProcessPoolExecutor | None = None
        self._scratch = ScratchFolder(folder)
        start_server()

    @property
    def spark(self) -> SparkSession:
        """Returns the session. The first call starts the JVM."""
        return self._open_session()

    @property
    def folder(self) -> Path:
        """Returns the path of the folder for temporary files. Tasks and this process can read its files."""
        return self._scratch.path

    @property
    def parallelism(self) -> int:
        """Returns the number of processes."""
        return self._processes

    def gpu_groups(self, tasks: int) -> list[range]:
        """Divides tasks into one group for each GPU of this machine. Group i is for GPU i."""
        groups = min(gpus_of_machine(), tasks)
        bounds = [tasks * index // groups for index in range(groups + 1)] if groups else []
        return [range(first, end) for first, end in pairwise(bounds)]

    def run(self, tasks: int, run: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema) -> pa.Table:
        """Returns a table with the batches of all tasks, in the order of the tasks.

        Each task writes its batches to a temporary file that is mapped into memory, so that a large result
        need not fit into memory. The files are deleted immediately after they are mapped; the table keeps the
        mappings.

        Raises:
            InfrastructureError: a worker was killed.
        """
        paths = self._map(tasks, _WriteBatches(run, schema, self._scratch.new_name()))
        tables = [schema.empty_table()]
        for path in map(Path, paths):
            with pa.memory_map(str(path)) as source:
                tables.append(pa.ipc.open_file(source).read_all())
            path.unlink()
        return pa.concat_tables(tables)

    def collect(self, tasks: int, run: Callable[[int], str]) -> list[str]:
        """Returns what the tasks returned, in the order of the tasks.

        Raises:
            InfrastructureError: a worker was killed.
        """
        return self._map(tasks, run)

    def _map(self, tasks: int, function: Callable[[int], str]) -> list[str]:
        if not tasks:
            return []
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._processes,
                multiprocessing.get_context("forkserver"),
                initializer=_begin,
                initargs=(str(self._scratch.path),),
            )
        file = f"{self._scratch.new_name()}.pickle"  # each worker reads this file once
        Path(file).write_bytes(pickle.dumps(function))
        try:
            with without_main_module():
                results = [self._pool.submit(_run_task, file, index) for index in range(tasks)]
            pa.array([0])  # pyarrow may import pandas here; this takes no extra time while the workers run
            return _results(results)
        except BaseException as error:
            pool, self._pool = self._pool, None
            Path(file).unlink(missing_ok=True)  # so that long tasks end early (are_cancelled)
            pool.shutdown(cancel_futures=True)  # waits for the running tasks
            if not isinstance(error, BrokenProcessPool):
                raise
            raise InfrastructureError(
                "a worker process of this machine was killed while it ran a task",
                "look for a message of the kernel about memory (`dmesg`), and run the job again; "
                "fewer processes at a time need less memory (spark.master=local[1] in the Spark profile)",
            ) from error
        finally:
            Path(file).unlink(missing_ok=True)


def _results(futures: Sequence[Future[str]]) -> list[str]:
    """Returns the results in order, or raises the error of a task as soon as a task fails."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        if error := future.exception():
            raise error
    return [future.result() for future in futures]


class _WriteBatches:
    """A function that a worker calls. It writes the batches of one task to a file, and returns the path."""

    def __init__(self, run: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema, path: str) -> None:
        self._run, self._schema, self._path = run, schema, path

    def __call__(self, index: int) -> str:
        path = f"{self._path}-{index}.arrow"
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, self._schema) as writer:
            for batch in self._run(index):
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
        return path


def _begin(folder: str) -> None:
    """Prepares a worker: it ignores Ctrl-C, which its parent handles, and ends if its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[LOCAL_FOLDERS] = folder
    threading.Thread(target=_end_with_parent, daemon=True).start()
    refuse_pandas()  # the tasks of build_features do not need pandas
    # There is one worker for each core, so each worker uses one thread.
    pa.set_cpu_count(1)
    # The next task of this worker reuses the memory of the last task.
    keep_freed_memory()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@lru_cache(maxsize=1)
def _function(file: str) -> Callable[[int], str]:
    """Returns the function that is pickled in a file. All tasks of one call of `run` or `collect` run it."""
    if return_freed_memory(_KEPT_BYTES):
        pa.default_memory_pool().release_unused()
    function: Callable[[int], str] = pickle.loads(Path(file).read_bytes())
    return function


def are_cancelled() -> bool:
    """Returns whether a task or the job has failed, so that this worker's results are no longer needed."""
    file = _TASKS.get()
    return file is not None and not Path(file).exists()


def _run_task(file: str, index: int) -> str:
    _TASKS.set(file)
    return _function(file)(index)
