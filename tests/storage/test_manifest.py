"""The manifest: reading and writing, the digest of its content, and atomic replacement."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.errors import DataError, InfrastructureError
from storage import file_io, format_versions, other_tools
from storage import manifest as manifest_module
from storage.dataset import Dataset, Member, publish_dataset, read_dataset, split_files
from storage.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    combined_digest,
    data_files,
    is_published,
    read_manifest,
    replace_manifest,
    withdraw,
)
from storage.paths import LakePaths, Partition

MANIFEST = Manifest(
    table="features/w1",
    partition="2026-01-01",
    files=(
        FileEntry("a1/train/0.parquet", 5, 100, (5,), "train"),
        FileEntry("a1/train/1.parquet", 3, 80, (3,), "train"),
        FileEntry("a1/test/0.parquet", 2, 70, (2,), "test"),
    ),
    schema=(("row_id", "int64"), ("label", "float")),
    inputs={"raw": "r", "workflow": "w"},
    rows_in=12,
    dropped={"field_count": 2},
    facts={"positives": 4, "text": "é"},
    created_at="2026-01-02T00:00:00Z",
)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return LakePaths(str(tmp_path)).features("w1").partition("2026-01-01")


def test_a_manifest_comes_back_as_it_was_written(partition: Partition) -> None:
    assert not is_published(partition)
    replace_manifest(partition, MANIFEST)
    assert is_published(partition)
    assert read_manifest(partition) == MANIFEST
    stored = json.loads(Path(partition.file(MANIFEST_NAME)).read_text())
    assert (stored["rows"], stored["digest"]) == (10, MANIFEST.digest)


def test_a_changed_digit_is_found_and_a_manifest_without_a_checksum_is_read(partition: Partition) -> None:
    replace_manifest(partition, MANIFEST)
    path = Path(partition.file(MANIFEST_NAME))
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text)))  # formatted by another program
    assert read_manifest(partition) == MANIFEST
    path.write_text(re.sub(r'"rows_in": \d+', '"rows_in": 3', text))
    with pytest.raises(DataError, match="its values do not match the checksum in it"):
        read_manifest(partition)
    values = json.loads(text)
    del values[file_io.CHECKSUM]
    path.write_text(
        json.dumps({**values, format_versions.KEY: 3})
    )  # as the release before version 4 wrote it
    assert read_manifest(partition) == MANIFEST


def test_files_are_named_by_the_manifest_in_order(partition: Partition) -> None:
    assert data_files(partition, MANIFEST) == [partition.file(entry.path) for entry in MANIFEST.files]
    assert data_files(partition, MANIFEST, "test") == [partition.file("a1/test/0.parquet")]
    assert data_files(partition, MANIFEST, "validation") == []


def test_the_digest_ignores_names_sizes_and_time() -> None:
    renamed = replace(
        MANIFEST,
        files=(
            FileEntry("b2/other.parquet", 8, 7, (4, 4), "train"),
            FileEntry("b2/another.parquet", 2, 9, (2,), "test"),
        ),
        facts={},
        created_at="later",
        inputs={"workflow": "w", "raw": "r"},
    )
    assert renamed.digest == MANIFEST.digest


@pytest.mark.parametrize(
    "changed",
    [
        replace(MANIFEST, table="features/w2"),
        replace(MANIFEST, partition="2026-01-02"),
        replace(MANIFEST, files=MANIFEST.files[1:]),
        replace(MANIFEST, files=(*MANIFEST.files[:2], replace(MANIFEST.files[2], split="validation"))),
        replace(MANIFEST, schema=MANIFEST.schema[:1]),
        replace(MANIFEST, inputs={"raw": "other", "workflow": "w"}),
        replace(MANIFEST, dropped={"field_count": 3}),
    ],
)
def test_the_digest_follows_the_content(changed: Manifest) -> None:
    assert changed.digest != MANIFEST.digest


def test_a_combined_digest_ignores_order() -> None:
    assert combined_digest(["a", "b"]) == combined_digest(["b", "a"]) != combined_digest(["a"])


def test_an_unpublished_partition_says_what_to_run(partition: Partition) -> None:
    with pytest.raises(DataError, match="features/w1 has no published partition dt=2026-01-01") as caught:
        read_manifest(partition)
    assert "2026-01-01" in caught.value.remedy


@pytest.mark.parametrize(
    "text, problem", [("{", "is not JSON"), ('{"files": []}', "is not a valid manifest: it lacks the key")]
)
def test_a_damaged_manifest_is_named(partition: Partition, text: str, problem: str) -> None:
    file_io.replace_text(partition.file(MANIFEST_NAME), text)
    with pytest.raises(DataError, match=problem) as caught:
        read_manifest(partition)
    assert partition.file(MANIFEST_NAME) in caught.value.problem


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_manifest_that_is_no_file_is_damaged(partition: Partition, make: Callable[[str], None]) -> None:
    """To open a pipe would wait for ever."""
    path = partition.file(MANIFEST_NAME)
    os.makedirs(partition.path, exist_ok=True)
    make(path)
    with pytest.raises(DataError, match=f"{path} is damaged: it is not a regular file"):
        read_manifest(partition)


def test_readers_see_the_old_manifest_or_the_new(partition: Partition) -> None:
    """One thread replaces a manifest of many files by one of few and back, another reads all the while."""
    many = replace(MANIFEST, files=tuple(FileEntry(f"{i}.parquet", 1, 1, (1,)) for i in range(300)))
    replace_manifest(partition, many)
    done = threading.Event()

    def replace_often() -> None:
        for attempt in range(40):
            replace_manifest(partition, MANIFEST if attempt % 2 else many)
        done.set()

    writer = threading.Thread(target=replace_often)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(read_manifest(partition).digest)
    writer.join()
    assert seen <= {MANIFEST.digest, many.digest}
    assert [path.name for path in Path(partition.path).iterdir()] == [MANIFEST_NAME]


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_other_tools_see_the_files_of_the_newest_manifest(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, is_withdrawn: bool
) -> None:
    """After this job has written its manifest, but before it links the files, another job changes the manifest."""
    older, newer = (
        replace(MANIFEST, files=tuple(replace(file, path=f"{partition.data}/{file.path}") for file in files))
        for files in (MANIFEST.files[:2], MANIFEST.files[2:])
    )
    for path in data_files(partition, older) + data_files(partition, newer):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    show_links = other_tools.show_links

    def show_later(*arguments: Any) -> None:
        monkeypatch.setattr(other_tools, "show_links", show_links)
        if is_withdrawn:
            withdraw(partition)
        else:
            replace_manifest(partition, newer)
        show_links(*arguments)

    monkeypatch.setattr(other_tools, "show_links", show_later)
    replace_manifest(partition, older)
    expected = [] if is_withdrawn else ["a1-test-0.parquet", MANIFEST_NAME]
    assert sorted(path.name for path in Path(partition.path).iterdir()) == sorted(expected)


def test_values_json_cannot_hold_are_refused(partition: Partition) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        replace_manifest(partition, replace(MANIFEST, facts={"auc": float("nan")}))
    assert not is_published(partition)


def test_what_cannot_be_written_is_an_infrastructure_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="cannot write"):
        file_io.replace_text(str(tmp_path / "file/below.json"), "{}")


def test_a_dataset_comes_back_and_notices_replaced_features(tmp_path: Path, partition: Partition) -> None:
    lake = LakePaths(str(tmp_path))
    replace_manifest(partition, MANIFEST)
    splits: dict[str, tuple[Member, ...]] = {
        split: (Member("2026-01-01", MANIFEST.digest, split),) for split in ("train", "test")
    }
    dataset = Dataset("2026-01-03", "w1", splits, "fit")
    publish_dataset(lake, dataset, "now")
    assert read_dataset(lake, "2026-01-03") == dataset
    assert len(split_files(lake, dataset, "train")) == 2
    assert split_files(lake, dataset, "validation") == []
    replace_manifest(partition, replace(MANIFEST, inputs={"raw": "redelivered"}))
    with pytest.raises(DataError, match="differ from those of dataset") as caught:
        split_files(lake, dataset, "train")
    assert caught.value.remedy == "run build_features for 2026-01-03 again"
    with pytest.raises(DataError, match="no published partition"):
        read_dataset(lake, "2026-01-04")


def test_other_tools_see_the_rows_and_bytes_of_each_file(partition: Partition) -> None:
    """The content of the partition in the Delta log: paths relative to the table, rows, bytes."""
    folder = partition.data.rpartition("/")[0]
    files = tuple(
        replace(entry, path=f"{folder}/dt=2026-01-01/{entry.path}" if number else entry.path)
        for number, entry in enumerate(MANIFEST.files)
    )
    content = manifest_module._content(partition, replace(MANIFEST, files=files))
    assert content.files == [
        ("a1/train/0.parquet", 5, 100),
        ("dt=2026-01-01/a1/train/1.parquet", 3, 80),
        ("dt=2026-01-01/a1/test/0.parquet", 2, 70),
    ]
    assert content.schema == MANIFEST.schema
