"""`jobs/migrate.py` gives an old lake the present layout, in which folders show only published rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow.fs import copy_files

from jobs.migrate import main
from storage import file_io, format_versions
from storage.manifest import Manifest, read_manifest
from storage.paths import LakePaths
from tests.etl.lakes import servers
from tests.upgrade.old_lake import (
    CHAMPION_WORKFLOW,
    KINDS,
    SECOND,
    rows_of,
    unpack,
)

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
# Runs the job and kills itself before, or after, the n-th call of a function that changes the lake.
KILLED_AT = """
import os, signal, sys
import storage.migration, storage.file_io
from jobs.migrate import main
when, module, name, count, lake = *sys.argv[1:4], int(sys.argv[4]), sys.argv[5]
module = getattr(storage, module)
real = getattr(module, name)
def dying(*values):
    global count
    count -= 1
    if count == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(*values)
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
setattr(module, name, dying)
sys.exit(main(["--lake", lake, "--apply"]))
"""


@pytest.fixture
def lake(tmp_path: Path) -> LakePaths:
    return unpack(tmp_path)


def contents(lake: LakePaths) -> dict[str, str]:
    """Path → digest of every file below the lake."""
    root = Path(lake.root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): sha256(path.read_bytes()).hexdigest() for path in files}


def manifests(lake: LakePaths) -> dict[str, Manifest]:
    """Path below the lake → manifest."""
    root = Path(lake.root)
    manifests = {}
    for path in sorted(root.rglob("_MANIFEST.json")):
        values = file_io.read_json(str(path))
        values.pop(format_versions.KEY, None)
        manifests[str(path.parent.relative_to(root))] = Manifest.from_json(values)
    return manifests


def summary(output: str) -> dict[str, object]:
    values: dict[str, object] = json.loads(output.strip().splitlines()[-1])
    return values


def assert_migrated(lake: LakePaths, before: dict[str, Manifest]) -> None:
    """Same digests and rows; each partition's folder holds the manifest, and the published files alone."""
    after = manifests(lake)
    assert {path: one.digest for path, one in after.items()} == {
        path: one.digest for path, one in before.items()
    }
    for path, manifest in after.items():
        if path.startswith("raw/"):
            assert manifest == before[path]
            continue
        folder = Path(lake.root, path)
        assert not [child for child in folder.iterdir() if child.is_dir()], path
        listed = [child for child in folder.rglob("*.parquet") if not child.name.startswith(("_", "."))]
        assert sum(pq.ParquetFile(child).metadata.num_rows for child in listed) == (
            manifest.rows if any(file.path.endswith(".parquet") for file in manifest.files) else 0
        ), path


def test_a_dry_run_changes_nothing(lake: LakePaths, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(lake)
    assert main(["--lake", lake.root]) == 0
    output = capsys.readouterr().out
    result = summary(output)
    assert contents(lake) == before
    assert result["applied"] is False
    assert result["migrated"] == 0
    attempts = {path.parents[1] for path in Path(lake.root).rglob("*.parquet")}
    assert result["to_migrate"] == len(attempts) > 20
    assert "nothing was changed: start again with --apply" in output
    for name in set(KINDS) - {"data manifest"}:
        assert f"  {name} " in output


def test_after_it_listings_show_the_published_rows(
    lake: LakePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    before = manifests(lake)
    # What a replaced attempt of the old release looks like to a reader that lists folders.
    attempt = Path(
        lake.root, f"recommendations/dt={SECOND}", before[f"recommendations/dt={SECOND}"].files[0].path
    )
    stale = attempt.parent.parent / "a000000000000" / attempt.name
    stale.parent.mkdir()
    stale.write_bytes(attempt.read_bytes())
    assert main(["--lake", lake.root, "--apply"]) == 0
    result = summary(capsys.readouterr().out)
    assert result["migrated"] == result["to_migrate"]
    assert_migrated(lake, before)
    assert rows_of(lake.features(CHAMPION_WORKFLOW).partition(SECOND)) > 0
    folder = Path(lake.root, f"recommendations/dt={SECOND}")
    listed = pd.concat(pq.ParquetFile(path).read().to_pandas() for path in folder.glob("**/*.parquet"))
    assert len(listed) == 215
    assert main(["--lake", lake.root, "--apply"]) == 0
    assert summary(capsys.readouterr().out)["to_migrate"] == 0


@pytest.mark.parametrize(
    "when, function, call",
    [
        ("before", "migration._copy", 1),
        ("after", "migration._copy", 9),
        ("before", "file_io.replace_json", 1),
        ("after", "file_io.replace_json", 5),
        ("before", "migration._remove", 1),
        ("after", "migration._remove", 7),
    ],
)
def test_killed_and_started_again(lake: LakePaths, when: str, function: str, call: int) -> None:
    before = manifests(lake)
    command = [sys.executable, "-c", KILLED_AT, when, *function.split("."), str(call), lake.root]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    for kind in KINDS.values():
        assert kind.read(lake)  # whatever the instant, every reader finds what it found before
    assert {path: one.digest for path, one in manifests(lake).items()} == {
        path: one.digest for path, one in before.items()
    }
    assert rows_of(lake.recommendations.partition(SECOND)) == 215
    assert main(["--lake", lake.root, "--apply"]) == 0
    assert_migrated(lake, before)


def test_a_lake_on_an_object_store(
    lake: LakePaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing can be linked there: files are copied, a listing finds none, and a Delta log names them."""
    for folder in set(os.listdir(lake.root)) - {"recommendations", "quarantine", "raw", "models"}:
        shutil.rmtree(Path(lake.root, folder))  # each partition costs a transaction
    before = manifests(lake)
    with servers.bucket(tmp_path, "lakes"):
        remote = LakePaths("s3a://lakes/old")
        files, inner = file_io.filesystem(remote.root)
        copy_files(lake.root, inner, destination_filesystem=files, use_threads=False)
        assert main(["--lake", remote.root, "--apply"]) == 0
        capsys.readouterr()
        for path in ("recommendations/dt=2026-01-04", f"recommendations/dt={SECOND}"):
            listed = file_io.list_files(f"{remote.root}/{path}", recursive=True)
            assert [info.base_name for info in listed if info.is_file] == ["_MANIFEST.json"]
            table, dt = path.split("/dt=")
            partition = LakePaths(remote.root).recommendations.partition(dt)
            assert read_manifest(partition).digest == before[path].digest
            assert sum(file.rows for file in read_manifest(partition).files) == before[path].rows
            table_files = delta_files(f"{remote.root}/_data/{table}", dt)
            assert table_files == {
                file.path.removeprefix(f"../../_data/{table}/") for file in read_manifest(partition).files
            }
        assert main(["--lake", remote.root]) == 0
        assert summary(capsys.readouterr().out)["to_migrate"] == 0


def delta_files(table: str, dt: str) -> set[str]:
    """What a Delta log names for one date, by delta-rs."""
    options = {"allow_http": "true", "aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    opened = DeltaTable(table.replace("s3a://", "s3://"), storage_options=options)
    return {
        path.split("s3://")[-1].split(f"{table.rsplit('/', 1)[1]}/", 1)[1]
        for path in opened.file_uris([("dt", "=", dt)])
    }


def test_damage_and_newer_files_are_named(lake: LakePaths, capsys: pytest.CaptureFixture[str]) -> None:
    kind = KINDS["promotion"]
    whole, _ = kind.values(lake)
    kind.file(lake).write_text(json.dumps({**whole, format_versions.KEY: 99}))
    model = KINDS["model description"].file(lake)
    model.write_text("{")
    assert main(["--lake", lake.root]) == 3
    captured = capsys.readouterr()
    assert summary(captured.out)["problems"] == 2
    assert f"{kind.file(lake)} is a promotion of format version 99" in captured.err
    assert f"{model} is not JSON" in captured.err


def test_a_truncated_data_file_stops_it(lake: LakePaths, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = manifests(lake)[f"recommendations/dt={SECOND}"]
    damaged = Path(lake.root, f"recommendations/dt={SECOND}", manifest.files[0].path)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert main(["--lake", lake.root, "--apply"]) == 3
    captured = capsys.readouterr()
    assert (
        f"recommendations/dt={SECOND}/_MANIFEST.json names files that are missing or truncated"
        in captured.err
    )
    assert "rerun the job that writes this partition" in captured.err


def test_what_is_no_lake_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lake", str(tmp_path)]) == 3
    assert "is not a data lake: it contains no file that the jobs write" in capsys.readouterr().err
