"""Parsed file splits that the scan pass saves on local disk for the encode pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from etl.native.scan import rejections_of
from etl.text import parse_block
from etl.text.parse_block import ParsedBlock, SavedBlock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    report_free(monkeypatch, 100, 100)
    return tmp_path


def report_free(monkeypatch: pytest.MonkeyPatch, free_gib: int, total_gib: int) -> None:
    usage = SimpleNamespace(total=total_gib * 2**30, free=free_gib * 2**30)
    monkeypatch.setattr("etl.text.parse_block.shutil.disk_usage", lambda _: usage)


ONE = SavedBlock("one")


def _block() -> ParsedBlock:
    columns = {
        "C1": pa.array(["a", None, "é", "a"]).dictionary_encode(),
        "I1": pa.array([3, 3, None, 2**62]).dictionary_encode(),
        "label": pa.array([1.0, 0.0, 0.0, 1.0], pa.float32()),
    }
    return ParsedBlock(77, 5, np.array([0, 1, 3, 4]), columns, {}, rejections_of([(2, "field_count")]))


def test_a_saved_block_is_loaded_once(folder: Path) -> None:
    block = _block()
    parse_block.save("one", block)
    loaded = parse_block.load(ONE, {"C1", "label"})
    assert loaded is not None
    assert (loaded.bytes, loaded.lines, loaded.row_lines.tolist()) == (77, 5, [0, 1, 3, 4])
    assert {name: column.to_pylist() for name, column in loaded.columns.items()} == {
        name: column.to_pylist() for name, column in block.columns.items()
    }
    assert parse_block.load(ONE, {"C1"}) is None
    assert not list(folder.iterdir())


def test_a_shared_block_is_loaded_by_each_task(folder: Path) -> None:
    assert parse_block.save("one", _block())
    shared = SavedBlock("one", shared=True)
    for _ in range(2):
        loaded = parse_block.load(shared, {"C1"})
        assert loaded is not None
        assert loaded.columns["C1"].to_pylist() == ["a", None, "é", "a"]


def test_blocks_are_loaded_together_or_not_at_all(folder: Path) -> None:
    for name in ("one", "two"):
        assert parse_block.save(name, _block())
    together = [SavedBlock("one", shared=True), SavedBlock("two", shared=True)]
    loaded = parse_block.load_all(together, {"C1"})
    assert loaded is not None
    assert [block.lines for block in loaded] == [5, 5]
    assert parse_block.load_all([*together, SavedBlock("three")], {"C1"}) is None
    assert parse_block.load_all([], {"C1"}) is None


def test_a_block_that_lacks_a_column_is_not_loaded(folder: Path) -> None:
    parse_block.save("one", _block())
    assert parse_block.load(ONE, {"C1", "C2"}) is None


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_an_incomplete_file_is_not_loaded(folder: Path, share: float) -> None:
    parse_block.save("one", _block())
    [path] = folder.iterdir()
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert parse_block.load(ONE, {"C1"}) is None


@pytest.mark.parametrize(
    "free_gib, total_gib, saves", [(19, 100, False), (20, 100, True), (19, 1000, False), (20, 1000, True)]
)
def test_nothing_is_saved_on_a_nearly_full_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free_gib: int, total_gib: int, saves: bool
) -> None:
    report_free(monkeypatch, free_gib, total_gib)
    assert parse_block.save("one", _block()) == saves
    assert (parse_block.load(ONE, {"C1"}) is not None) == saves


def test_a_fifth_of_a_small_disk_suffices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report_free(monkeypatch, 2, 8)
    parse_block.save("one", _block())
    assert parse_block.load(ONE, {"C1"}) is not None


def test_nothing_is_saved_without_a_local_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    parse_block.save("one", _block())
    assert parse_block.load(ONE, {"C1"}) is None
