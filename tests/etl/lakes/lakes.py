"""Helpers for lakes: upload, read by manifest, compare manifests, and publish in a process that is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import raised_in
from conf.names import scheme_of
from conf.types import Config
from etl.raw.files import find_raw
from storage import file_io
from storage.manifest import MANIFEST_NAME, data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.publish import new_attempt, publish_files
from tests.etl import cases

# Changes to the configuration of cases: a few features of each kind, because these tests are about files and
# not about features. X is of type float, so that the scan pass does not count its values.
SMALL: dict[str, Any] = {
    "features": [
        {
            "columns": ["I{1..2}"],
            "kind": "dense",
            "ops": [{"fill": {"value": 0}}, {"clip": {"min": 0}}, "normalize"],
        },
        {"columns": ["X"], "kind": "dense", "ops": ["normalize", {"fill": {"value": 0.5}}]},
        {"columns": ["user", "item", "C1"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
    ],
    "scopes": {"user": ["user"], "item": ["item"]},
    "output": {"row_group_rows": 8192},
}

FILES, ROWS_A_FILE = 2, 10


def upload(folder: Path, to: str) -> None:
    """Copies the files of a folder one by one. pyarrow's copy_files can deadlock with few threads."""
    target, inner = file_io.filesystem(to)
    for path in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
        with target.open_output_stream(f"{inner}/{path.relative_to(folder)}", compression=None) as stream:
            stream.write(path.read_bytes())


def _read(path: str) -> pa.Table:
    files, inner = file_io.filesystem(path)
    return pq.read_table(inner, filesystem=files, partitioning=None)


def read_rows(partition: Partition) -> pd.DataFrame:
    """The rows of a published partition on any file system, by its manifest."""
    tables = [_read(path) for path in data_files(partition, read_manifest(partition))]
    return pa.concat_tables(tables).to_pandas()


def objects(root: str) -> dict[str, tuple[int, int]]:
    """Path of each file below `root` → its size and modification time."""
    return {
        info.path: (info.size, info.mtime_ns)
        for info in file_io.list_files(root, recursive=True)
        if info.is_file
    }


def manifests(root: str) -> dict[str, str]:
    """Partition (path below the lake) → the text of its manifest."""
    inner = file_io.filesystem(root)[1]
    remote = "" if file_io.is_local(root) else f"{scheme_of(root)}://"
    names = [path for path in objects(root) if path.endswith(f"/{MANIFEST_NAME}")]
    return {
        path.removeprefix(f"{inner}/").rsplit("/", 1)[0]: file_io.read_text(remote + path) for path in names
    }


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Partitions whose manifest differs in any byte, is new, or is gone."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def our_error(error: BaseException) -> BaseException:
    """The error as a job sees it. A typed error of a Spark worker arrives as text."""
    return raised_in(str(error)) or error


def partition_of(root: str) -> Partition:
    """The partition that the functions below publish."""
    return LakePaths(root).features("w1").partition("2026-01-01")


def publish_in_a_process(root: str, generation: int, dies: str) -> int:
    """Publishes files in a new process, which dies at that moment, and returns its exit code."""
    process = multiprocessing.get_context("spawn").Process(target=publish, args=(root, generation, dies))
    process.start()
    process.join(240)
    assert process.exitcode is not None
    return process.exitcode


def publish(root: str, generation: int, dies: str | None = None) -> None:
    """Publishes files; all rows have the value `generation`. With `dies`, this process dies at that moment."""
    partition = partition_of(root)
    attempt = new_attempt(partition)
    names = [f"{attempt}/part-{index}.parquet" for index in range(FILES)]
    for name in names:
        files, inner = file_io.filesystem(partition.file(name))
        pq.write_table(pa.table({"generation": [generation] * ROWS_A_FILE}), inner, filesystem=files)
    replace = file_io.replace_text

    def replace_and_die(path: str, text: str) -> None:
        if dies == "before the manifest":
            os.kill(os.getpid(), signal.SIGKILL)
        if dies == "within its upload":
            files, inner = file_io.filesystem(path)
            stream = files.open_output_stream(inner)
            stream.write(text[: len(text) // 2].encode())
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        replace(path, text)
        os.kill(os.getpid(), signal.SIGKILL)

    if dies is not None:
        setattr(file_io, "replace_text", replace_and_die)  # noqa: B010  mypy refuses the plain assignment
    publish_files(partition, dict.fromkeys(names), inputs={"generation": str(generation)})


def publish_day(root: str, day: str, generation: int, more: object = None) -> None:
    """Publishes files of a day.

    All rows have the value `generation`, and `more` in a column `more` unless it is None.
    """
    partition = LakePaths(root).features("w1").partition(day)
    attempt = new_attempt(partition)
    names = [f"{attempt}/part-{index}.parquet" for index in range(FILES)]
    columns = {"generation": generation, **({} if more is None else {"more": more})}
    for name in names:
        files, inner = file_io.filesystem(partition.file(name))
        table = pa.table({column: [value] * ROWS_A_FILE for column, value in columns.items()})
        pq.write_table(table, inner, filesystem=files)
    publish_files(partition, dict.fromkeys(names), inputs={"generation": str(generation)})


def publish_together(root: str, day: str, generation: int, barrier: Barrier) -> None:
    """Publishes a day when all processes are ready."""
    barrier.wait(60)
    publish_day(root, day, generation)


def read_generation(root: str) -> int:
    """The generation of the published partition.

    Raises:
        ValueError: its files are not all files of one generation.
    """
    partition = partition_of(root)
    manifest = read_manifest(partition)
    generations = [
        value for path in data_files(partition, manifest) for value in _read(path)["generation"].to_pylist()
    ]
    if len(generations) != FILES * ROWS_A_FILE or set(generations) != {int(manifest.inputs["generation"])}:
        raise ValueError(
            f"the manifest of {dict(manifest.inputs)} names {len(generations)} rows of {set(generations)}"
        )
    return int(generations[0])


WILD = {
    "2026-01-01/hour=00/part-1.tsv": "a",
    "2026-01-01/hour=00/part-0.tsv": "bb",
    "2026-01-01/hour=00/_SUCCESS": "no",
    "2026-01-01/hour=01/part-0.tsv": "ccc",
    "2026-01-01/_temporary/part-0.tsv": "no",
    "2026-01-01/other/part-0.tsv": "no",
    "2026-01-01/part-0.tsv": "no",
    "2026-01-02/hour=00/part-0.tsv": "no",
    "2026-01-01.tsv": "whole",
}


def check_wildcards(folder: Path, root: str, copy: Callable[[], Any]) -> None:
    """Checks which files of a day match patterns of several kinds. `copy` copies the folder to `root`."""
    for name, text in WILD.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    config = cases.write_config(folder)
    copy()

    def matching_files(pattern: str) -> list[str]:
        log = config.log.model_copy(update={"path": f"{root}/{pattern}"})
        raw = find_raw(_with_log(config, log), log, "2026-01-01")
        base = file_io.filesystem(root)[1] if file_io.is_local(root) else root  # local paths have no scheme
        return [] if raw is None else [path.removeprefix(f"{base}/") for path in raw.paths]

    hours = [f"2026-01-01/hour={name}" for name in ("00/part-0.tsv", "00/part-1.tsv", "01/part-0.tsv")]
    assert matching_files("{date}/hour=*/*.tsv") == hours
    assert matching_files("{date}/hour=0[1-9]/part-?.tsv") == hours[2:]
    assert matching_files("{date}/hour=*/part-0.tsv") == [hours[0], hours[2]]
    assert matching_files("{date}/*/part-0.tsv") == [hours[0], hours[2], "2026-01-01/other/part-0.tsv"]
    assert matching_files("{date}.tsv") == ["2026-01-01.tsv"]
    assert matching_files("{date}/day=*/*") == []


def _with_log(config: Config, log: Any) -> Config:
    return config.model_copy(update={"log": log})
