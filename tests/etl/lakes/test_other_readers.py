"""Other tools that list a table's folders or read its Delta log see the published files, or fail.

The tests read after a first publish, after a rerun with other rows, after SIGKILL at each step of a publish,
and after the next run has repaired it.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from storage import file_io, other_tools
from storage.manifest import FileEntry, Manifest, current_manifest, read_manifest, replace_manifest
from storage.paths import LakePaths, Partition
from tests.etl.lakes import lakes, servers
from tests.etl.lakes.conftest import ObjectStore
from tests.etl.lakes.readers import Readers
from tests.processes import fork_server
from tests.storage.dying_publisher import Death, partition_of, publish_generation

ROWS = 30

DAY = "{table}/dt=2026-01-01"
FOLDERS = ["{table}", DAY]
GLOBS = [f"{DAY}/*.parquet", "{table}/*/*.parquet", "{table}/dt=*/*.parquet", "{table}/**/*.parquet"]
ALL_NAMES = [f"{DAY}/*", "{table}/**"]
# (reader, location): those that find the rows, and those that read the manifest as data and fail.
FINDING = [
    *((name, where) for name in ("pandas", "pyarrow") for where in FOLDERS),
    *((name, where) for name in ("polars, no hidden files", "duckdb") for where in [*FOLDERS, *GLOBS]),
    *(("polars", where) for where in GLOBS),
    *(("spark", where) for where in ["{table}", DAY, f"{DAY}/*", f"{DAY}/*.parquet", "{table}/*/*.parquet"]),
    ("spark, recursive", "{table}"),
]
FAILING = [*(("polars", where) for where in FOLDERS), *(("duckdb", where) for where in ALL_NAMES)]


@pytest.fixture(scope="module")
def readers(spark: SparkSession, object_store: ObjectStore) -> Iterator[Readers]:
    try:
        python = servers.interpreter("readers", servers.READERS_LOCK, "import duckdb, polars, deltalake")
    except servers.Unavailable as error:
        servers.missing(str(error))
    script = Path(__file__).with_name("reader_process.py")
    with subprocess.Popen(
        [str(python), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Readers(process, spark)
        process.kill()


def _at(table: str, requests: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, where.format(table=table)) for name, where in requests]


def test_helpers_notice_wrong_rows(readers: Readers, tmp_path: Path) -> None:
    """With the attempts in the partition's folder, readers see the rows of both."""
    for generation in (0, 1):
        publish_generation(str(tmp_path), generation, None)
    partition = partition_of(str(tmp_path))
    data = Path(partition.file(partition.data))
    data.rename(Path(partition.path) / "attempts")
    [pandas, duckdb] = readers.see([("pandas", partition.path), ("duckdb", f"{partition.path}/**/*.parquet")])
    assert isinstance(pandas, dict)
    assert set(pandas) == {"0", "1"}
    assert isinstance(duckdb, dict)
    assert sum(duckdb.values()) > ROWS


# Steps behind the replacement of the manifest, in order. SIGKILL arrives at each.
DEATHS = [
    Death("os", "replace", True),
    Death("storage.other_tools", "_exchange", False),
    Death("storage.other_tools", "_remove", False),
    Death("storage.other_tools", "_remove", True, 2),
    Death("storage.other_tools", "_link", False),
    Death("os", "link", True),
    Death("storage.other_tools", "_link", True),
]


@pytest.fixture
def context() -> Iterator[BaseContext]:
    with fork_server("tests.storage.dying_publisher") as started:
        yield started


def test_who_lists_a_local_folder_sees_the_published_files_or_fails(
    context: BaseContext, readers: Readers, tmp_path: Path
) -> None:
    root, table = str(tmp_path), str(Path(partition_of(str(tmp_path)).path).parent)

    def run(generation: int, death: Death | None) -> int | None:
        process = context.Process(target=publish_generation, args=(root, generation, death))
        process.start()
        process.join(60)
        return process.exitcode

    def see_whole(generation: int) -> None:
        for requests, seen in zip(FINDING, readers.see(_at(table, FINDING)), strict=True):
            assert seen == {str(generation): ROWS}, requests
        for requests, seen in zip(FAILING, readers.see(_at(table, FAILING)), strict=True):
            assert isinstance(seen, str), requests

    for generation in (0, 1):
        assert run(generation, None) == 0
        see_whole(generation)
    for generation, death in enumerate(DEATHS, start=2):
        assert run(generation, death) == -signal.SIGKILL, death
        requests = [*FINDING, *FAILING]
        for request, seen in zip(requests, readers.see(_at(table, requests)), strict=True):
            whole = ({str(generation - 1): ROWS}, {str(generation): ROWS})
            assert isinstance(seen, str) or seen in whole, (death, request)
        assert current_manifest(partition_of(root), {"generation": str(generation)}) is not None
        see_whole(generation)


@pytest.mark.parametrize("ending", [".json", ".json.gz", ".csv", ".csv.gz"])
def test_lists_in_files_of_text_show_the_same(
    readers: Readers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Files as sinks write them. An exception between two links leaves the same files as a kill."""
    shown = ending.replace(".json", ".jsonl") if ending == ".json" else ending
    kind = ending.split(".")[1]
    partition = Partition("lists", "2026-01-01", f"{tmp_path}/lists/dt=2026-01-01")
    requests = [
        *((name, f"{tmp_path}/lists/*/*{shown}") for name in (f"duckdb, {kind}", f"polars, {kind}")),
        (f"duckdb, {kind}", f"{tmp_path}/lists/**/*{shown}"),
        (f"spark, {kind}", f"{tmp_path}/lists"),
        (f"spark, {kind}", f"{tmp_path}/lists/dt=2026-01-01"),
    ]

    def publish(generation: int) -> None:
        entries = []
        for index in range(2):
            name = f"{partition.data}/a{generation}/part-{index}{ending}"
            as_json = (json.dumps({"generation": generation}) + "\n") * 15
            as_csv = "generation,place\n" + f"{generation},1\n" * 15
            text = (as_json if kind == "json" else as_csv).encode()
            path = Path(partition.file(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text) if ending.endswith(".gz") else text)
            entries.append(FileEntry(name, 15, path.stat().st_size, (15,)))
        schema = (("line", kind),)
        inputs = {"generation": str(generation)}
        replace_manifest(partition, Manifest("lists", "2026-01-01", tuple(entries), schema, inputs))

    for generation in (0, 1):
        publish(generation)
        assert readers.see(requests) == [{str(generation): ROWS}] * len(requests)
    with monkeypatch.context() as patch:
        patch.setattr(other_tools, "_link", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            publish(2)
    assert all(isinstance(seen, str) for seen in readers.see(requests))
    assert current_manifest(partition, {"generation": "2"}) is not None
    assert readers.see(requests) == [{"2": ROWS}] * len(requests)


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_attempts_of_an_early_release_are_shown_to_nobody(readers: Readers, tmp_path: Path) -> None:
    """That release kept attempts in the partition's folder. Readers that list folders must not see them."""
    partition = partition_of(str(tmp_path))
    for generation in (0, 1):
        publish_generation(str(tmp_path), generation, None)
    for attempt in Path(partition.file(partition.data)).glob("a*"):
        attempt.rename(Path(partition.path) / attempt.name)
    publish_generation(str(tmp_path), 2, None)
    requests = _at(str(Path(partition.path).parent), FINDING)
    assert readers.see(requests) == [{"2": ROWS}] * len(requests)


# Without hard links, the log has the files, and a listing finds none.
LOG = [(name, "{log}") for name in ("deltalake", "polars, delta", "duckdb, delta")]
LISTING = [
    *((name, where) for name in ("pandas", "pyarrow", "polars", "spark") for where in FOLDERS),
    *((name, where) for name in ("polars", "duckdb") for where in [*GLOBS, *ALL_NAMES]),
]


def test_on_an_object_store_the_log_has_the_published_files(
    readers: Readers, object_store: ObjectStore
) -> None:
    root = f"{object_store.root}/other-readers/lake"
    partition = lakes.partition_of(root)
    table = partition.path.rsplit("/", 1)[0]
    requests = [(name, f"{root}/_data/features/w1".replace("s3a://", "s3://")) for name, _ in LOG]
    rows = lakes.FILES * lakes.ROWS_A_FILE

    def see(generation: int) -> None:
        assert readers.see(requests) == [{str(generation): rows}] * len(requests)
        listing = [
            (name, where.replace("s3a://", "s3://") if name != "spark" else where)
            for name, where in _at(table, LISTING)
        ]
        for request, seen in zip(listing, readers.see(listing), strict=True):
            assert isinstance(seen, str) or seen == {}, request

    for generation in (0, 1):
        lakes.publish(root, generation)
        see(generation)
    assert lakes.publish_in_a_process(root, 2, "after the manifest") == -signal.SIGKILL
    assert lakes.read_generation(root) == 2
    see(1)
    assert current_manifest(partition, {"generation": "2"}) is not None
    see(2)


def test_dates_published_at_once_are_all_in_the_log(readers: Readers, object_store: ObjectStore) -> None:
    """A back-fill of several dates, and two jobs that replace one date: the log ends like the manifests."""
    root = f"{object_store.root}/back-fill/lake"
    context = multiprocessing.get_context("spawn")
    days = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-03"]
    barrier = context.Barrier(len(days))
    processes = [
        context.Process(target=lakes.publish_together, args=(root, day, number, barrier))
        for number, day in enumerate(days)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    table = LakePaths(root).features("w1")
    expected: Counter[str] = Counter()
    for day in sorted(set(days)):
        expected[read_manifest(table.partition(day)).inputs["generation"]] += lakes.FILES * lakes.ROWS_A_FILE
    assert readers.see([("deltalake", f"{root}/_data/features/w1")]) == [dict(expected)]


def test_a_job_that_is_late_does_not_bring_back_what_another_replaced(
    readers: Readers, object_store: ObjectStore
) -> None:
    """The other job replaces the date after this job has read its manifest and before it commits."""
    root = f"{object_store.root}/late/lake"
    partition = LakePaths(root).features("w1").partition("2026-01-01")
    table, below = f"{root}/_data/features/w1", "../../../_data/features/w1/"

    def content() -> other_tools.LogContent:
        manifest = read_manifest(partition)
        files = [(file.path.removeprefix(below), file.rows, file.bytes) for file in manifest.files]
        return other_tools.LogContent(files, manifest.schema)

    lakes.publish_day(root, "2026-01-02", 1)
    assert lakes.publish_in_a_process(root, 2, "after the manifest") == -signal.SIGKILL
    late = content()
    contents: list[other_tools.LogContent] = []

    def now() -> other_tools.LogContent:
        contents.append(content() if contents else late)
        if len(contents) == 1:
            lakes.publish_day(root, partition.dt, 3)
        return contents[-1]

    other_tools.show_log(table, partition.dt, now)
    assert len(contents) == 2
    assert readers.see([("deltalake", table)]) == [
        {str(generation): lakes.FILES * lakes.ROWS_A_FILE for generation in (1, 3)}
    ]


def test_columns_may_be_added_and_not_change_their_type(object_store: ObjectStore, readers: Readers) -> None:
    root = f"{object_store.root}/columns/lake"
    table = LakePaths(root).features("w1")

    def publish(day: str, *schema: tuple[str, str]) -> None:
        replace_manifest(table.partition(day), Manifest("features/w1", day, (), schema, {}))

    lakes.publish_day(root, "2026-01-01", 1)
    lakes.publish_day(root, "2026-01-02", 2, more=True)
    rows = lakes.FILES * lakes.ROWS_A_FILE
    log = f"{root}/_data/features/w1"
    assert readers.see([("deltalake", log)]) == [{"1": rows, "2": rows}]
    publish("2026-01-02", ("generation", "int64"))  # no rows are rows too
    assert readers.see([("deltalake", log)]) == [{"1": rows}]
    with pytest.raises(DataError, match="the column more has"):
        lakes.publish_day(root, "2026-01-03", 3, more="a text")
    assert file_io.exists(table.partition("2026-01-03").file("_MANIFEST.json"))
