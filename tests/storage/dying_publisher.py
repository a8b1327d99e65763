"""Processes for test_publish_faults: one publishes and kills itself at a named step, another one reads.

Publishing is storage.publish's own; only the Spark write is replaced by pyarrow's, so that a process costs
milliseconds.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pandas  # noqa: F401 - Arrow imports it for the first table: in the server of processes, not in each process
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import publish as publishing
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition

FILES, ROWS_A_FILE = 3, 10


@dataclass(frozen=True)
class Death:
    """Where SIGKILL arrives: before or after the n-th call of a function, which `module` looks up."""

    module: str
    function: str
    after: bool
    call: int = 1

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.function} {self.call}"


def partition_of(root: str) -> Partition:
    return LakePaths(root).features("w1").partition("2026-01-01")


def publish_generation(root: str, generation: int, death: Death | None) -> None:
    """Publishes FILES files of rows that all carry `generation`; dies on the way where told to."""
    rows: Any = generation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "write_files", _write_files)
        if death is not None:
            _arm(death)
        publishing.publish(
            rows,
            partition_of(root),
            inputs={"generation": str(generation)},
            row_group_rows=ROWS_A_FILE,
            expected_rows=FILES * ROWS_A_FILE,
            rules=publishing.Rules(not_null=["generation"]),
        )


def _write_files(rows: int, partition: Partition, attempt: str, *_: Any) -> dict[str, str | None]:
    os.makedirs(partition.file(attempt))
    names = [f"{attempt}/part-{place}.parquet" for place in range(FILES)]
    for name in names:
        pq.write_table(pa.table({"generation": [rows] * ROWS_A_FILE}), partition.file(name))
    return dict.fromkeys(names)


def _arm(death: Death) -> None:
    module = import_module(death.module)
    original: Callable[..., Any] = getattr(module, death.function)
    calls = 0

    def deadly(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == death.call and not death.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if calls == death.call and death.after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(module, death.function, deadly)


def read_generation(root: str) -> int:
    """The generation a reader sees; ValueError when what it sees is not exactly one whole generation."""
    partition = partition_of(root)
    manifest = read_manifest(partition)
    tables = [pq.read_table(path, partitioning=None) for path in data_files(partition, manifest)]
    seen = pa.concat_tables(tables)["generation"].to_pylist()
    if len(seen) != FILES * ROWS_A_FILE or set(seen) != {int(manifest.inputs["generation"])}:
        raise ValueError(
            f"the manifest of {dict(manifest.inputs)} led to {sorted(set(seen))}, {len(seen)} rows"
        )
    return seen[0]


def read_listed(root: str) -> int | None:
    """The generation that a reader of the partition's folder sees; None if it fails or the folder is empty.

    Raises:
        ValueError: what it sees is not exactly one whole generation.
    """
    try:
        tables = [
            pq.read_table(path, partitioning=None) for path in Path(partition_of(root).path).glob("*.parquet")
        ]
    except (pa.ArrowInvalid, FileNotFoundError):
        return None
    if not tables:
        return None
    seen = pa.concat_tables(tables)["generation"].to_pylist()
    if len(seen) != FILES * ROWS_A_FILE or len(set(seen)) != 1:
        raise ValueError(f"the folder shows generations {sorted(set(seen))}, {len(seen)} rows")
    return int(seen[0])


def read_until_told(root: str, channel: Connection) -> None:
    """Reads until a message arrives; then sends the generations that it saw, in order, or the error."""
    seen = [read_generation(root)]
    channel.send("reading")
    try:
        while not channel.poll():
            time.sleep(0.005)  # leaves the publisher some of the processor
            generation = read_generation(root)
            read_listed(root)
            if generation != seen[-1]:
                seen.append(generation)
        channel.send(seen)
    except Exception as error:
        channel.send(f"{type(error).__name__}: {error}")
