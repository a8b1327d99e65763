"""Functions in processes of this machine: the same contract as in Spark's workers, and what a kill leaves."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError, InfrastructureError
from spark import fork_server
from spark.choose_workers import SparkWorkers, choose_workers
from spark.profile import launch_settings, local_cores
from spark.rows import frame_of
from spark.workers import LOCAL_FOLDERS, LocalWorkers, TaskArguments, are_cancelled
from storage.private_folder import ScratchFolder
from tests.processes import ROOT, environment, wait_for, wait_until_gone

pytestmark = pytest.mark.processes

TASK_COUNTS = [0, 1, 2, 3, 7, 40]
SCHEMA = pa.schema([("task", pa.int64()), ("part", pa.int64()), ("text", pa.string())])


def no_session() -> SparkSession:
    raise AssertionError("no task may need a session")


@pytest.fixture
def workers(tmp_path: Path) -> LocalWorkers:
    return LocalWorkers(2, no_session, str(tmp_path))


def parts(index: int) -> Iterator[pa.RecordBatch]:
    """`index` batches of two rows: some tasks return no batch, some return several."""
    for part in range(index):
        texts = [None, f"{index}"]
        yield pa.RecordBatch.from_arrays(
            [pa.array([index, index]), pa.array([2 * part, 2 * part + 1]), pa.array(texts)], schema=SCHEMA
        )


def text_of(index: int) -> str:
    return f"result {index}"


def damaged(index: int) -> str:
    if index == 2:
        raise DataError(f"the file of task {index} is damaged", "deliver it again")
    return ""


def killed(index: int) -> str:
    if index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ""


def process_facts(index: int) -> str:
    main = sys.modules.get("__mp_main__")
    return f"{os.getpid()} {os.environ[LOCAL_FOLDERS]} {getattr(main, '__file__', None)} {pa.cpu_count()}"


def sleeping(path: str, index: int) -> str:
    Path(f"{path}/{index}-{os.getpid()}").touch()
    time.sleep(600)
    return ""


@pytest.mark.parametrize("tasks", TASK_COUNTS)
def test_both_kinds_of_workers_return_every_row_once(
    workers: LocalWorkers, spark: SparkSession, tasks: int
) -> None:
    table = workers.run(tasks, parts, SCHEMA)
    assert table.schema == SCHEMA
    rows = [(row["task"], row["part"], row["text"]) for row in table.to_pylist()]
    assert rows == [
        (task, row, [None, f"{task}"][row % 2]) for task in range(tasks) for row in range(2 * task)
    ]
    in_spark = frame_of(spark, SparkWorkers(spark).run(tasks, parts, SCHEMA)).collect()
    assert sorted(map(tuple, in_spark), key=str) == sorted(rows, key=str)


@pytest.mark.parametrize("tasks", TASK_COUNTS)
def test_both_kinds_of_workers_return_texts_in_order(
    workers: LocalWorkers, spark: SparkSession, tasks: int
) -> None:
    expected = [f"result {index}" for index in range(tasks)]
    assert workers.collect(tasks, text_of) == expected
    assert SparkWorkers(spark).collect(tasks, text_of) == expected


def test_a_result_is_readable_although_its_files_are_gone(workers: LocalWorkers, tmp_path: Path) -> None:
    table = workers.run(7, parts, SCHEMA)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert len(table) == 42


def test_the_error_of_a_task_is_raised_as_it_is(workers: LocalWorkers) -> None:
    with pytest.raises(DataError) as error:
        workers.collect(4, damaged)
    assert (error.value.problem, error.value.remedy) == (
        "the file of task 2 is damaged",
        "deliver it again",
    )


def damaged_beside_a_long_task(index: int) -> str:
    if index == 1:
        raise DataError("the file is damaged", "deliver it again")
    ends = time.monotonic() + 200
    while not are_cancelled() and time.monotonic() < ends:
        time.sleep(0.05)
    return ""


def test_a_long_task_can_end_when_another_one_has_failed(workers: LocalWorkers) -> None:
    assert not are_cancelled()
    began = time.monotonic()
    with pytest.raises(DataError):
        workers.collect(2, damaged_beside_a_long_task)
    assert time.monotonic() - began < 100


def test_a_killed_worker_is_a_failure_of_the_machine(workers: LocalWorkers) -> None:
    with pytest.raises(InfrastructureError, match="was killed"):
        workers.collect(4, killed)
    assert workers.collect(2, text_of) == ["result 0", "result 1"]


def process_id(index: int) -> str:
    time.sleep(0.1)  # so that no worker runs two of two tasks
    return str(os.getpid())


def test_calls_share_the_processes_which_end_when_nobody_uses_them(tmp_path: Path) -> None:
    workers = LocalWorkers(2, no_session, str(tmp_path))
    first, second = ({*map(int, workers.collect(2, process_id))} for _ in range(2))
    assert first == second
    assert len(first) == 2
    del workers
    wait_until_gone([*first])


def test_processes_are_replaced_after_an_error(workers: LocalWorkers) -> None:
    before = {*workers.collect(2, process_id)}
    with pytest.raises(DataError):
        workers.collect(4, damaged)
    wait_until_gone([*map(int, before)])
    after = {*workers.collect(2, process_id)}
    assert len(after) == 2
    assert not before & after


def with_freed_memory(index: int) -> str:
    """Frees 600 MB below memory that stays in use, so that the heap cannot shrink at its end."""
    blocks = [bytearray(2**20) for _ in range(600)]
    _kept.append(blocks.pop())
    del blocks
    return resident_mib(index)


def resident_mib(index: int) -> str:
    return str(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 2**20)


_kept: list[bytearray] = []


def test_freed_memory_serves_the_next_task_and_not_other_functions(tmp_path: Path) -> None:
    workers = LocalWorkers(1, no_session, str(tmp_path))
    assert min(map(int, workers.collect(2, with_freed_memory))) > 600
    assert int(workers.collect(1, resident_mib)[0]) < 300


def test_workers_are_other_processes_with_one_thread_and_without_our_main_module(
    workers: LocalWorkers, tmp_path: Path
) -> None:
    main = sys.modules["__main__"]
    [facts] = workers.collect(1, process_facts)
    process, folder, main_file, threads = facts.split()
    assert int(process) != os.getpid()
    assert Path(folder).parent.parent == tmp_path
    assert (main_file, threads) == ("None", "1")
    assert sys.modules["__main__"] is main


DRIVER = """
import sys
from functools import partial

from spark.workers import LocalWorkers
from tests.spark.test_local_workers import no_session, sleeping

LocalWorkers(2, no_session, sys.argv[1]).collect(2, partial(sleeping, sys.argv[1]))
"""


def test_workers_end_with_a_killed_driver_and_the_next_one_deletes_its_folder(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], env=environment(), cwd=ROOT)
    started = partial(_started, tmp_path)
    wait_for("two tasks", lambda: len(started()) == 2)
    driver.kill()
    driver.wait()
    wait_until_gone(started())
    [private] = tmp_path.glob("nightrank-*")
    abandoned = {path.name for path in private.iterdir()}
    assert len(abandoned) == 2  # the folder and its lock
    alive = ScratchFolder(str(tmp_path))
    ScratchFolder(str(tmp_path)).delete()
    assert {path.name for path in private.iterdir()} == {alive.path.name, f"{alive.path.name}.lock"}


def _started(folder: Path) -> list[int]:
    return [int(path.name.split("-")[1]) for path in folder.glob("[01]-*")]


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"nightrank-{os.getuid()}").mkdir()
    (tmp_path / f"nightrank-{os.getuid()}").chmod(0o777)
    with pytest.raises(ConfigError, match="another user may have prepared it"):
        LocalWorkers(1, no_session, str(tmp_path))


@pytest.mark.parametrize(
    "master, cores",
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,2]", 3),
        ("local[*]", len(os.sched_getaffinity(0))),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_only_a_local_master_has_cores_of_this_machine(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores


def test_launch_settings_are_those_that_spark_would_start_with(tmp_path: Path, spark: SparkSession) -> None:
    """Held against a real session: the later option wins, as in Spark."""
    (tmp_path / "spark-defaults.conf").write_text("spark.master local[4]\nspark.local.dir /defaults\n")
    named = tmp_path / "named.conf"
    named.write_text("spark.master   local[3]\nspark.app.name from file\n")
    defaults = {"SPARK_CONF_DIR": str(tmp_path)}
    assert launch_settings(defaults) == {"spark.master": "local[4]", "spark.local.dir": "/defaults"}
    submitted = f"--properties-file {named} --conf spark.app.name=given --conf spark.a=b=c pyspark-shell"
    expected = {"spark.master": "local[3]", "spark.app.name": "given", "spark.a": "b=c"}
    assert launch_settings({**defaults, "PYSPARK_SUBMIT_ARGS": submitted}) == expected
    code = (
        "from pyspark import SparkConf, SparkContext; SparkContext._ensure_initialized();"
        "print(*[SparkConf(_jvm=SparkContext._jvm).get(k) for k in ('spark.master', 'spark.app.name', 'spark.a')])"
    )
    env = {**environment(), **defaults, "PYSPARK_SUBMIT_ARGS": submitted}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert printed.stdout.split()[-3:] == [*expected.values()]


@pytest.mark.parametrize(
    "engine, variables",
    [
        ("sql", {}),
        ("arrow", {}),
        ("auto", {"PYSPARK_GATEWAY_PORT": "1"}),
        ("auto", {"PYSPARK_SUBMIT_ARGS": "--master spark://host:7077 pyspark-shell"}),
        ("auto", {"PYSPARK_SUBMIT_ARGS": "--conf spark.plugins=com.nvidia.spark.SQLPlugin pyspark-shell"}),
    ],
)
def test_sparks_workers_are_used_where_spark_is_needed(
    spark: SparkSession, engine: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    chosen = choose_workers(engine, lambda: spark)  # type: ignore[arg-type]
    assert isinstance(chosen, SparkWorkers)
    assert chosen.spark is spark


def test_processes_are_used_on_one_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[5] pyspark-shell")
    monkeypatch.setenv(LOCAL_FOLDERS, f"{tmp_path},/other")
    chosen = choose_workers("auto", no_session)
    assert isinstance(chosen, LocalWorkers)
    assert chosen.parallelism == 5
    assert [path.name for path in tmp_path.iterdir()] == [f"nightrank-{os.getuid()}"]


@pytest.mark.parametrize("fails", [False, True])
def test_starting_processes_changes_nothing_in_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: bool
) -> None:
    """The main module and the folder of temporary files are replaced only meanwhile, also if a start fails."""
    folder = str(tmp_path / ("long" * 30))
    monkeypatch.setattr(tempfile, "tempdir", folder)
    main = sys.modules["__main__"]
    monkeypatch.setitem(sys.modules, "__main__", main)  # restored after the test, also if it fails
    with (
        pytest.raises(OSError, match="no process") if fails else nullcontext(),
        fork_server.without_main_module(),
        fork_server._short_folder(),
    ):
        assert getattr(sys.modules["__main__"], "__file__", None) is None
        assert tempfile.gettempdir() == "/tmp"
        if fails:
            raise OSError("no process")
    assert sys.modules["__main__"] is main
    assert tempfile.gettempdir() == folder


def has_pandas(index: int) -> str:
    try:
        import pandas
    except ModuleNotFoundError:
        return "none"
    return pandas.__name__


def test_only_our_workers_have_no_pandas(workers: LocalWorkers) -> None:
    """Other users of multiprocessing share the server process, and see nothing of that."""
    assert workers.collect(1, has_pandas) == ["none"]
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.map(has_pandas, [0]) == ["pandas"]


def test_arguments_of_tasks_are_unpickled_in_groups() -> None:
    """A task that gets many arguments must not unpickle those of all tasks."""
    arguments = TaskArguments(Counted(number) for number in range(1_000))
    received = pickle.loads(pickle.dumps(arguments))
    Counted.unpickled = 0
    assert len(received) == 1_000
    assert received[777].number == 777
    assert 1 <= Counted.unpickled <= 100
    assert [received[index].number for index in range(1_000)] == list(range(1_000))
    for index in (-1, 1_000):
        with pytest.raises(IndexError):
            received[index]


class Counted:
    """An argument that counts how many of its kind have been unpickled."""

    unpickled = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __setstate__(self, state: dict[str, int]) -> None:
        Counted.unpickled += 1
        self.__dict__.update(state)
