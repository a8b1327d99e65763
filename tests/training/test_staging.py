"""Training data on an object store: a server of the S3 protocol, and processes that die."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.types import Reading
from storage import file_io
from storage.paths import LakePaths
from tests.etl.lakes import lakes, servers
from tests.training.feature_rows import make_spec, random_rows
from tests.training.feature_tables import make_config, publish_all, write_file
from training.data import staging
from training.data.loader import Loader
from training.data.sharding import DataFile, plan_shards, row_groups
from training.data.staging import stage, staging_folder
from training.loop.training_plan import make_plan

pytestmark = pytest.mark.processes

SPEC = make_spec(1, [50], lists=[9])
SIZES = {"part-0.parquet": (3000, 3000, 2000), "part-1.parquet": (150,), "part-2.parquet": (70, 80)}
BUCKET = "tables"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket of our own, without Spark."""
    try:
        with servers.s3(tmp_path_factory.mktemp("s3")) as endpoint, pytest.MonkeyPatch.context() as patch:
            servers.make_bucket(endpoint, BUCKET)
            patch.setenv("AWS_ENDPOINT_URL", endpoint)
            patch.setenv("AWS_REGION", "us-east-1")
            patch.setenv("AWS_ACCESS_KEY_ID", "someone")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "something")
            yield f"s3a://{BUCKET}"
    except servers.Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    """Files of one and of several row groups, whose dense column numbers all rows."""
    folder, first = tmp_path_factory.mktemp("table"), 0
    files = []
    for name, sizes in SIZES.items():
        rows = random_rows(SPEC, sum(sizes), seed=first)
        rows.dense[:, 0] = np.arange(first, first + sum(sizes))
        write_file(folder / name, SPEC, rows)
        table = pq.read_table(folder / name)
        with pq.ParquetWriter(folder / name, table.schema, compression="zstd") as writer:
            for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
                writer.write_table(table.slice(start, size))
        files.append(DataFile(str(folder / name), sum(sizes), sizes, (folder / name).stat().st_size))
        first += sum(sizes)
    return files


@pytest.fixture(scope="module")
def remote(store: str, local: list[DataFile]) -> list[DataFile]:
    lakes.upload(Path(local[0].path).parent, f"{store}/lake")
    return [replace(file, path=f"{store}/lake/{Path(file.path).name}") for file in local]


def loader_of(files: list[DataFile], folder: Path) -> Loader:
    plan = plan_shards([group.rows for group in row_groups(files)], 4, 64)
    reading = Reading(pool_rows=1, staging_folder=str(folder), staging_mib=1)
    return Loader(files, plan, range(4), SPEC, 7, reading=reading)


def left(folder: Path) -> list[str]:
    private = folder / f"nightrank-{os.getuid()}"
    return [path.name for path in private.iterdir() if path.is_dir()] if folder.exists() else []


def test_batches_are_those_of_local_files_and_nothing_stays(
    local: list[DataFile], remote: list[DataFile], tmp_path: Path
) -> None:
    staged, plain = tmp_path / "staged", tmp_path / "plain"
    pairs = list(zip(loader_of(remote, staged).batches(2), loader_of(local, plain).batches(2), strict=True))
    assert len(pairs) == 2 * loader_of(local, plain).plan.steps
    for actual, expected in pairs:
        assert torch.equal(actual.dense, expected.dense)
        assert torch.equal(actual.categorical, expected.categorical)
    assert left(staged) == []
    assert not plain.exists()


def test_only_the_bytes_of_the_row_group_are_fetched(remote: list[DataFile], tmp_path: Path) -> None:
    groups = row_groups(remote[:1])
    for staged in stage(iter(groups), tmp_path):
        path = Path(str(staged.group.file.staged))
        assert path.stat().st_size == remote[0].size_bytes
        assert 0 < staged.size_bytes < int(remote[0].size_bytes or 0)
        assert pq.ParquetFile(path).read_row_group(staged.group.index).num_rows == staged.group.rows
        staged.discard()
        assert not path.exists()


def test_disk_is_bounded(remote: list[DataFile], tmp_path: Path) -> None:
    """The consumer stops after one batch: waiting copies fit the budget, and at most two more exist."""
    folder = tmp_path / "staged"
    stream = loader_of(remote, folder).batches(epochs=1000)
    next(stream)
    (folder_name,) = left(folder)
    time.sleep(0.5)
    used = sum(path.stat().st_blocks * 512 for path in folder.glob(f"nightrank-*/{folder_name}/*"))
    assert used < 2**20 + 2 * max(int(file.size_bytes or 0) + 16384 for file in remote)
    stream.close()  # type: ignore[attr-defined]
    assert left(folder) == []


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda body: body[:-100], r"part-1.parquet has \d+ bytes, but its manifest says \d+"),
        (lambda body: b"x" * len(body), r"part-1.parquet is not a Parquet file"),
        (None, r"part-1.parquet does not exist although a manifest names it"),
    ],
)
def test_an_object_that_is_not_the_manifests_is_named_and_nothing_stays(
    store: str, local: list[DataFile], tmp_path: Path, change: object, message: str
) -> None:
    root = f"{store}/{tmp_path.name}"
    lakes.upload(Path(local[0].path).parent, root)
    path = f"{root}/part-1.parquet"
    files, inner = file_io.filesystem(path)
    if callable(change):
        body = Path(local[1].path).read_bytes()
        with files.open_output_stream(inner) as stream:
            stream.write(change(body))
    else:
        files.delete_file(inner)
    damaged = [replace(file, path=f"{root}/{Path(file.path).name}") for file in local]
    with pytest.raises(DataError, match=message):
        list(loader_of(damaged, tmp_path / "staged").batches())
    assert left(tmp_path / "staged") == []


def test_row_groups_that_the_manifest_does_not_know_are_named(remote: list[DataFile], tmp_path: Path) -> None:
    other = [replace(remote[0], row_groups=(4000, 4000))]
    with pytest.raises(DataError, match=r"part-0.parquet is not a Parquet file with 2 row groups: it has 3"):
        list(stage(iter(row_groups(other)), tmp_path))


def test_a_disk_that_is_full_is_infrastructure(
    remote: list[DataFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staging, "_copy", full)
    with pytest.raises(InfrastructureError, match=r"part-0.parquet cannot be copied .*No space left"):
        list(loader_of(remote[:1], tmp_path / "staged").batches())


_HOLD = """
import sys, time
from training.data.staging import staging_folder
with staging_folder(sys.argv[1]) as folder:
    (folder / "data").write_text("x")
    print("holding", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that stage below `tmp_path`."""
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    root = Path(__file__).parents[2]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_what_a_killed_process_left_is_swept_and_what_is_in_use_is_not(
    tmp_path: Path, holders: list[subprocess.Popen[str]]
) -> None:
    for process in holders:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
    assert len(left(tmp_path)) == 2
    holders[0].kill()  # SIGKILL
    holders[0].wait()
    with staging_folder(str(tmp_path)) as folder:
        assert len(left(tmp_path)) == 2
        assert folder.name in left(tmp_path)
    assert len(left(tmp_path)) == 1  # that of the process which lives


@pytest.mark.parametrize("prepared", ["a folder that is a link", "a link in it"])
def test_nothing_is_written_through_a_link_that_another_user_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    private, precious = tmp_path / f"nightrank-{os.getuid()}", tmp_path / "precious"
    precious.mkdir()
    (precious / ".mutex").write_text("keep me")
    if prepared == "a folder that is a link":
        private.symlink_to(precious)
    else:
        private.mkdir(mode=0o700)
        (private / ".mutex").symlink_to(precious / ".mutex")
    with (
        pytest.raises(ConfigError, match="is a symbolic link: another user may have prepared it"),
        staging_folder(None),
    ):
        pass
    assert [path.name for path in precious.iterdir()] == [".mutex"]
    assert (precious / ".mutex").read_text() == "keep me"


_LOCK_IT = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX)
print("holding", flush=True)
sys.stdin.read()
"""


def test_a_lock_that_is_never_released_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_LOCK_TIMEOUT_S", 0.2)
    with staging_folder(str(tmp_path)):
        pass
    mutex = tmp_path / f"nightrank-{os.getuid()}/.mutex"
    command = [sys.executable, "-c", _LOCK_IT, str(mutex)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        message = rf"another process has held the lock on {mutex} for 0 s"
        with pytest.raises(InfrastructureError, match=message), staging_folder(str(tmp_path)):
            pass
    with staging_folder(str(tmp_path)):
        pass


def test_a_plan_of_a_lake_on_the_store_reads_its_files_from_there(store: str, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path / "lake"))
    rows = random_rows(SPEC, 90, seed=0)
    dataset = publish_all(lake, "2026-01-02", SPEC, {"train": {"2026-01-01": rows}}, file_rows=40)
    lakes.upload(tmp_path / "lake", f"{store}/planned")
    remote = LakePaths(f"{store}/planned")
    config = make_config(remote, model={"architecture": "logistic_regression"})
    plan = make_plan(config, remote, dataset)
    assert plan.model_path.startswith(f"{store}/planned/models/")
    assert [file.rows for file in plan.train_files] == [40, 40, 10]
    batches = list(loader_of(list(plan.train_files), tmp_path / "staged").batches())
    labels = torch.cat([batch.labels[batch.weights > 0] for batch in batches])
    assert sorted(labels.tolist()) == sorted(rows.labels.tolist())
