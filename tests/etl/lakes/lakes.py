"""What tests of lakes do with objects: upload, read by manifest, compare before and after, publish in a process that dies."""

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
from storage.paths import Lake, Partition
from storage.publish import new_attempt, publish_files
from tests.etl import cases

# Changes to the configuration of cases: a few features of each kind, since what is tried is where files lie and when they
# came. X is a float, whose values no survey counts.
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
    """One file after the other: pyarrow's copy_files waits for itself where there are few threads."""
    target, inner = file_io.filesystem(to)
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        with target.open_output_stream(f"{inner}/{path.relative_to(folder)}", compression=None) as stream:
            stream.write(path.read_bytes())


def _read(path: str) -> pa.Table:
    files, inner = file_io.filesystem(path)
    return pq.read_table(inner, filesystem=files, partitioning=None)


def read_rows(partition: Partition) -> pd.DataFrame:
    """A published partition wherever it lies, by its manifest."""
    tables = [_read(path) for path in data_files(partition, read_manifest(partition))]
    return pa.concat_tables(tables).to_pandas()


def objects(root: str) -> dict[str, tuple[int, int]]:
    """Path of every file below → size and time of its last change."""
    return {
        info.path: (info.size, info.mtime_ns)
        for info in file_io.list_files(root, recursive=True)
        if info.is_file
    }


def manifests(root: str) -> dict[str, str]:
    """Partition (path below the lake) → its manifest, as it is written."""
    inner = file_io.filesystem(root)[1]
    remote = "" if file_io.is_local(root) else f"{scheme_of(root)}://"
    names = [path for path in objects(root) if path.endswith(f"/{MANIFEST_NAME}")]
    return {
        path.removeprefix(f"{inner}/").rsplit("/", 1)[0]: file_io.read_text(remote + path) for path in names
    }


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Partitions whose manifest is not byte for byte what it was, or came or went."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def our_error(error: BaseException) -> BaseException:
    """The error as a job sees it: one of ours that a Spark worker raised comes as text."""
    return raised_in(str(error)) or error


def partition_of(root: str) -> Partition:
    return Lake(root).features("w1").partition("2026-01-01")


def publish_in_a_process(root: str, generation: int, dies: str | None) -> int:
    """Publishes files whose rows all carry `generation`, in a new process; its exit code."""
    process = multiprocessing.get_context("spawn").Process(target=_publish, args=(root, generation, dies))
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def _publish(root: str, generation: int, dies: str | None) -> None:
    partition = partition_of(root)
    attempt = new_attempt(partition)
    names = [f"{attempt}/part-{place}.parquet" for place in range(FILES)]
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
    """Publishes files of a day whose rows all carry `generation` and, where given, `more` in a column of that name."""
    partition = Lake(root).features("w1").partition(day)
    attempt = new_attempt(partition)
    names = [f"{attempt}/part-{place}.parquet" for place in range(FILES)]
    columns = {"generation": generation, **({} if more is None else {"more": more})}
    for name in names:
        files, inner = file_io.filesystem(partition.file(name))
        table = pa.table({column: [value] * ROWS_A_FILE for column, value in columns.items()})
        pq.write_table(table, inner, filesystem=files)
    publish_files(partition, dict.fromkeys(names), inputs={"generation": str(generation)})


def publish_together(root: str, day: str, generation: int, barrier: Barrier) -> None:
    """Publishes a day when all others are ready to."""
    barrier.wait(60)
    publish_day(root, day, generation)


def read_generation(root: str) -> int:
    """The generation of the published partition.

    Raises:
        ValueError: its files are not those of one whole generation.
    """
    partition = partition_of(root)
    manifest = read_manifest(partition)
    seen = [
        value for path in data_files(partition, manifest) for value in _read(path)["generation"].to_pylist()
    ]
    if len(seen) != FILES * ROWS_A_FILE or set(seen) != {int(manifest.inputs["generation"])}:
        raise ValueError(f"the manifest of {dict(manifest.inputs)} led to {set(seen)}, {len(seen)} rows")
    return int(seen[0])


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


def check_wildcards(folder: Path, root: str, bring: Callable[[], Any]) -> None:
    """The files of a day below `root`, where `bring` puts what lies in the folder, by patterns of several kinds."""
    for name, text in WILD.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    config = cases.write_config(folder)
    bring()

    def found(pattern: str) -> list[str]:
        log = config.log.model_copy(update={"path": f"{root}/{pattern}"})
        raw = find_raw(_with_log(config, log), log, "2026-01-01")
        base = file_io.filesystem(root)[1] if file_io.is_local(root) else root  # local paths have no scheme
        return [] if raw is None else [path.removeprefix(f"{base}/") for path in raw.paths]

    hours = [f"2026-01-01/hour={name}" for name in ("00/part-0.tsv", "00/part-1.tsv", "01/part-0.tsv")]
    assert found("{date}/hour=*/*.tsv") == hours
    assert found("{date}/hour=0[1-9]/part-?.tsv") == hours[2:]
    assert found("{date}/hour=*/part-0.tsv") == [hours[0], hours[2]]
    assert found("{date}/*/part-0.tsv") == [hours[0], hours[2], "2026-01-01/other/part-0.tsv"]
    assert found("{date}.tsv") == ["2026-01-01.tsv"]
    assert found("{date}/day=*/*") == []


def _with_log(config: Config, log: Any) -> Config:
    return config.model_copy(update={"log": log})
