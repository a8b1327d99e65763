"""Published files that lost bytes in a power cut: the next run writes their partitions again.

And what prevents it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from storage import file_io, format_versions
from storage.manifest import MANIFEST_NAME, Manifest, data_files, is_whole
from storage.paths import LakePaths, Partition
from tests.etl import cases, oracle, raw_oracle
from tests.etl.lakes import lakes
from tests.storage.dying_publisher import partition_of, publish_generation

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
RUN_DATE = DAYS[-1]


def partitions(root: Path) -> dict[str, tuple[Partition, Manifest]]:
    """Path below the lake → partition and manifest, for all partitions with data files."""
    manifests = {}
    for path in sorted(root.rglob(MANIFEST_NAME)):
        values = format_versions.MANIFEST.check(file_io.read_json(str(path)), str(path))
        manifest = Manifest.from_json(values)
        name = str(path.parent.relative_to(root))
        if manifest.files:
            depth = name.count("/") + 1
            manifests[name] = Partition(manifest.table, manifest.partition, str(path.parent), depth), manifest
    return manifests


@pytest.mark.parametrize("engine", ["arrow", "sql"])
def test_partitions_that_lost_bytes_are_written_again(
    spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    config = cases.write_config(tmp_path, lakes.SMALL, {"workflow": {"engine": engine}})
    good = {}
    for seed, day in enumerate(DAYS):
        paths = cases.write_day(tmp_path / f"raw/dt={day}", cases.make_lines(day, 100, seed))
        good[day], _ = raw_oracle.parse_log(config, paths)
    built = cases.run_build(spark, config, RUN_DATE)
    root = Path(config.lake)
    before = partitions(root)
    version = built.workflow.version
    tables = {"quarantine", "features", "users", "items", "workflow"}
    assert {name.split("/")[0] for name in before} >= tables
    for partition, manifest in before.values():
        path = data_files(partition, manifest)[-1]
        os.truncate(path, os.path.getsize(path) - 1)
        assert not is_whole(partition, manifest)
    again = cases.run_build(spark, config, RUN_DATE)
    assert again.dataset == built.dataset
    after = partitions(root)
    assert after.keys() == before.keys()
    for name, (partition, manifest) in after.items():
        assert is_whole(partition, manifest), name
        assert manifest.digest == before[name][1].digest
    fitted = oracle.fit(config, good[DAYS[0]])
    rows = lakes.read_rows(LakePaths(config.lake).features(version).partition(RUN_DATE))
    cases.assert_features_equal(rows, oracle.encode(config, fitted, good[RUN_DATE]), built.workflow.spec)


def test_files_and_their_folders_are_on_disk_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    before: list[set[str]] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(opened: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{opened}"))
        fsync(opened)

    def note_replace(source: Any, target: Any) -> None:
        if str(target).endswith(MANIFEST_NAME):
            before.append(set(flushed))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    root = tmp_path / "lake"
    publish_generation(str(root), 0, None)
    partition = partition_of(str(root))
    manifest = partitions(root)["features/w1/dt=2026-01-01"][1]
    files = data_files(partition, manifest)
    folders = {str(folder) for file in files for folder in Path(file).parents if folder.is_relative_to(root)}
    [on_disk] = before
    assert on_disk >= {*files, *folders}
    assert all(flushed.count(file) == 1 for file in files)
