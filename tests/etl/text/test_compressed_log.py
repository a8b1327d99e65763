"""A compressed log of several blocks: its blocks are parsed once, by several threads, and encoded by several tasks."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.types import SPLITS
from etl.raw import file_splits
from etl.text import encode_pass, two_passes
from etl.text.scan_pass import CountedBlock
from spark.workers import LOCAL_FOLDERS, LocalWorkers
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.text.test_cut import CUT, LOG, RUN_DATE, _tables
from tests.etl.text.test_two_passes import GROUPS

BLOCK_BYTES = 4_000

SPLIT = {"split": CUT["split"]}


def _no_session() -> SparkSession:
    raise AssertionError("the build needs no Spark session")


class _Inline(LocalWorkers):
    """Runs tasks in this process, so that a test can change the size of blocks."""

    def _map(self, tasks: int, function: Callable[[int], str]) -> list[str]:
        return [function(index) for index in range(tasks)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_splits, "FILE_SPLIT_BYTES", BLOCK_BYTES)
    for module in (encode_pass, two_passes):
        monkeypatch.setattr(module, "FILE_SPLIT_BYTES", 2 * BLOCK_BYTES)


def workers_in_this_process(monkeypatch: pytest.MonkeyPatch, parallelism: int) -> LocalWorkers:
    """Workers whose tasks see what a test has replaced."""
    workers = _Inline(parallelism, _no_session)
    monkeypatch.setenv(LOCAL_FOLDERS, str(workers.folder))
    return workers


def _lines() -> bytes:
    lines = cases.make_lines(RUN_DATE, 800, 7)
    for index in (*range(470, 490), 680, 681):
        lines[index] = "malformed"
    return "".join(f"{line}\n" for line in lines).encode()


def _build(
    folder: Path, workers: LocalWorkers, overrides: dict[str, Any]
) -> tuple[dict[str, Any], LakePaths, str]:
    config = cases.write_config(folder, GROUPS, overrides, LOG)
    (folder / "raw").mkdir()
    (folder / "raw/a.tsv.gz").write_bytes(gzip.compress(_lines()))
    built = cases.run_build(workers, config, RUN_DATE)
    return _tables(folder, built), LakePaths(str(folder / "lake")), built.workflow.version


def _row_groups(lake: LakePaths, version: str) -> list[tuple[str, list[int]]]:
    """The split and the row_ids of each row group, in order."""
    partition = lake.features(version).partition(RUN_DATE)
    manifest = read_manifest(partition)
    return [
        (split, table.read_row_group(group, ["row_id"]).column(0).to_pylist())
        for split in SPLITS
        for path in data_files(partition, manifest, split)
        for table in [pq.ParquetFile(path)]
        for group in range(table.num_row_groups)
    ]


def _one_run(blocks: Sequence[CountedBlock], lines: int, divided: bool) -> list[two_passes.SavedRun]:
    return [two_passes.SavedRun(0, lines)]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_are_parsed_once_and_row_groups_are_those_of_one_task(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    decompressed = file_splits._decompressed

    def note(*arguments: Any) -> Any:
        opened.append(arguments)
        return decompressed(*arguments)

    monkeypatch.setattr(file_splits, "_decompressed", note)
    small_groups = {**SPLIT, "output": {"row_group_rows": 50}}
    (tmp_path / "saved").mkdir()
    tables, lake, version = _build(
        tmp_path / "saved", workers_in_this_process(monkeypatch, threads), small_groups
    )
    assert len(opened) == 1, "the file is decompressed once"
    assert len(list((tmp_path / "saved").rglob("features/**/part-*.parquet"))) >= 6, "tasks encode the blocks"

    monkeypatch.setattr("etl.text.two_passes.saved_runs", _one_run)
    (tmp_path / "read").mkdir()
    again, other_lake, other_version = _build(
        tmp_path / "read", workers_in_this_process(monkeypatch, 1), small_groups
    )
    assert len(opened) > 2
    for name, table in tables.items():
        if name not in ("members", "quality", "quarantine"):
            assert table == again[name], name
    assert _row_groups(lake, version) == _row_groups(other_lake, other_version)


@pytest.mark.usefixtures("small_blocks")
def test_a_cut_block_that_was_not_saved_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saved").mkdir()
    tables, _, _ = _build(tmp_path / "saved", workers_in_this_process(monkeypatch, 2), SPLIT)
    monkeypatch.setattr("etl.text.parse_block.save", lambda *_: False)
    (tmp_path / "lost").mkdir()
    again, _, _ = _build(tmp_path / "lost", workers_in_this_process(monkeypatch, 2), SPLIT)
    for row in [*tables["quarantine"], *again["quarantine"]]:
        row.pop("source_file")
    assert tables == again
