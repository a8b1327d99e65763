"""Raw logs and tables on HDFS, Google Cloud Storage and Azure give what the same files on a disk give."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from conf.errors import EXIT_OK, ConfigError, DataError
from conf.types import Config
from etl.raw.file_columns import first_bytes
from etl.raw.file_splits import FileSplit, read_blocks, split_files
from etl.raw.files import find_raw, require_raw
from etl.readers.base import open_table
from jobs.reference.roads import starts_jvm
from spark.workers import LocalWorkers
from storage import file_io
from storage.dataset import read_dataset
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from storage.remote.azure import _connected
from tests.etl import cases
from tests.etl.lakes import lakes
from tests.etl.lakes.stores import AzureStore, RawStore
from tests.etl.prepare import small_shop
from tests.processes import ROOT, environment

pytestmark = pytest.mark.processes

DAY = "2026-01-01"
LINES = [f"{number}\t" + "x" * (number * 37 % 900) for number in range(9_000)]  # 4 MB
TEXT = "".join(f"{line}\n" for line in LINES).encode()


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def _as_other(path: Path, kind: str) -> None:
    """Replaces a CSV file by a file of the same rows in another format."""
    text = path.read_bytes()
    path.unlink()
    if kind == "gz":
        Path(f"{path}.gz").write_bytes(gzip.compress(text))
    else:
        rows = pa_csv.read_csv(pa.BufferReader(b"\n".join(text.splitlines()[:-1])))  # the last line is broken
        pq.write_table(rows, path.with_suffix(".parquet"), row_group_size=40)


def test_wildcards_match_as_they_do_on_a_disk(raw_store: RawStore, tmp_path: Path) -> None:
    root = f"{raw_store.root}/wild"
    lakes.check_wildcards(tmp_path, root, lambda: raw_store.upload(tmp_path, "wild"))


@pytest.mark.parametrize("split_bytes", [len(TEXT) + 1, 1_000_000, 70_000])
def test_file_splits_have_all_lines_once(raw_store: RawStore, split_bytes: int) -> None:
    raw_store.write("splits/a.tsv", TEXT)
    path = f"{raw_store.root}/splits/a.tsv"
    splits = split_files([path], split_bytes)
    assert len(splits) == max(1, round(len(TEXT) / split_bytes))
    parts = [b"".join(map(bytes, read_blocks(split))) for split in splits]
    assert b"".join(parts) == TEXT
    assert {part.split(b"\t")[0].decode() for part in parts if part} <= {
        line.split("\t")[0] for line in LINES
    }


@pytest.mark.parametrize("suffix, pack", [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", _zstd)])
def test_compressed_files_are_read_as_streams(raw_store: RawStore, suffix: str, pack: Any) -> None:
    raw_store.write(f"packed/a b%20#?{suffix}", pack(TEXT))
    path = f"{raw_store.root}/packed/a b%20#?{suffix}"
    assert b"".join(map(bytes, read_blocks(FileSplit(path, 0, None), 300_000))) == TEXT
    assert first_bytes(path, 1_000) == TEXT[:1_000]


def test_a_damaged_file_is_named(raw_store: RawStore) -> None:
    raw_store.write("packed/broken.gz", gzip.compress(TEXT)[:-30])
    with pytest.raises(DataError, match=r"broken\.gz cannot be decompressed"):
        list(read_blocks(FileSplit(f"{raw_store.root}/packed/broken.gz", 0, None)))


def test_the_digest_follows_a_replaced_file(raw_store: RawStore, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, {"data": f"{raw_store.root}/replaced"})
    raw_store.write(f"replaced/dt={DAY}/a.tsv", b"one\n")
    first = require_raw(config, config.log, DAY)
    assert require_raw(config, config.log, DAY).digest == first.digest
    assert first.bytes == 4
    raw_store.write(f"replaced/dt={DAY}/a.tsv", b"three\n")
    assert require_raw(config, config.log, DAY).digest != first.digest
    assert find_raw(config, config.log, "2026-01-04") is None


def test_a_file_has_the_time_at_which_it_was_written(raw_store: RawStore) -> None:
    raw_store.write("times/a.tsv", b"one\n")
    raw_store.write("times/b.tsv", b"two\n")
    older, newer = file_io.list_files(f"{raw_store.root}/times")
    assert 0 <= newer.mtime_ns - older.mtime_ns < 60e9
    assert older.mtime_ns > 1.7e18  # later than 2023


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_tables_of_columns_are_read(raw_store: RawStore, tmp_path: Path, kind: str) -> None:
    rows = pa.table({"user": [f"u{n}" for n in range(5_000)], "item": list(range(5_000))})
    path = tmp_path / f"a.{kind}"
    if kind == "orc":
        orc.write_table(rows, path)
    else:
        pq.write_table(rows, path, row_group_size=1_000)
    uri = f"{raw_store.upload(tmp_path, kind)}/a.{kind}"
    config = small_shop.write_shop(tmp_path)
    columns = [column for column in config.log.columns if column.name in ("user", "item")]
    table = config.items.model_copy(update={"format": kind, "path": uri, "columns": columns})
    for place in (uri, str(path)):
        reader = open_table(table, (place,))
        blocks = [block for split in reader.splits(4_000) for block in reader.blocks(split, ["user", "item"])]
        items = [value for block in blocks for value in block.columns["item"].to_pylist()]
        assert items == list(range(5_000))


def _write_shop(folder: Path, format_: str) -> tuple[dict[str, Any], Config]:
    """Writes a shop's log and tables. Some days of a log of text are compressed."""
    log = {**small_shop.SETTINGS["log"], "format": format_}
    if format_ == "parquet":
        del log["separator"]
    changes = {"log": log, "measure": {"against": "next_day"}}
    config = small_shop.write_shop(folder, changes)
    for index, day in enumerate(small_shop.DAYS):
        if format_ == "parquet" or index % 2:
            _as_other(folder / f"raw/dt={day}/part.csv", "parquet" if format_ == "parquet" else "gz")
    return changes, config


@pytest.fixture(scope="module", params=["csv", "parquet"])
def on_disk(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[str, dict[str, Any]]:
    """The format of a log, and the rows of a build that reads it from a disk."""
    folder = tmp_path_factory.mktemp("disk")
    _, config = _write_shop(folder, request.param)
    cases.run_build(LocalWorkers(2, small_shop.no_session), config, small_shop.RUN_DATE)
    return request.param, _rows(LakePaths(config.lake), config.data)


def test_a_build_without_a_jvm_equals_that_of_local_files(
    raw_store: RawStore, on_disk: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Log and tables of users and items are on the store, and the rows need a preparation."""
    format_, expected = on_disk
    changes, _ = _write_shop(tmp_path, format_)
    root = raw_store.upload(tmp_path / "raw", f"shop-{format_}")
    (tmp_path / "raw").rename(tmp_path / "moved")
    config = cases.write_config(tmp_path, small_shop.SETTINGS, changes, {"data": root})
    assert not starts_jvm(config)
    _build(tmp_path)
    assert _rows(LakePaths(config.lake), root) == expected
    assert len(expected) == 2 * len(small_shop.DAYS)
    copied = raw_store.upload(tmp_path / "lake", f"lake-{format_}")
    assert _rows(LakePaths(copied), root) == expected  # a copy of a lake can be read


def _build(folder: Path) -> None:
    """Runs a job in an environment where no JVM can start."""
    (folder / "java").mkdir()
    command = [sys.executable, "jobs/build_features.py", "--config", str(folder / "config.yaml")]
    command += ["--run-date", small_shop.RUN_DATE]
    variables = {**environment(), "JAVA_HOME": str(folder / "java")}
    run = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == EXIT_OK, run.stderr[-3000:]
    assert json.loads(run.stdout)["rows_in"] > 0
    assert "HTTP" not in run.stderr  # the clients of stores log each request


def _rows(lake: LakePaths, data: str) -> dict[str, Any]:
    """The rows that the job published. Paths of raw files begin at the root of the log."""
    version = read_dataset(lake, small_shop.RUN_DATE).workflow_version
    rows: dict[str, Any] = {}
    for day in small_shop.DAYS:
        for table in (lake.features(version), lake.quarantine):
            partition = table.partition(day)
            found = []
            for path in data_files(partition, read_manifest(partition)):
                files, inner = file_io.filesystem(path)
                found += pq.read_table(inner, filesystem=files, partitioning=None).to_pylist()
            for row in found:
                row.update({key: row[key].removeprefix(data) for key in ("source_file",) if key in row})
            rows[f"{table.path.removeprefix(lake.root)} {day}"] = sorted(found, key=lambda row: row["row_id"])
    return {name.replace(version, ""): found for name, found in rows.items()}


def test_what_is_not_there(raw_store: RawStore) -> None:
    raw_store.write("there/folder/a", b"1")
    files, base = file_io.filesystem(f"{raw_store.root}/there")
    kinds = [info.type for info in files.get_file_info([base, f"{base}/folder", f"{base}/folder/a"])]
    assert kinds == [fs.FileType.Directory, fs.FileType.Directory, fs.FileType.File]
    missing = files.get_file_info([f"{base}/fold", f"{base}/folder/a/b", f"{base}/folder/b"])
    assert {info.type for info in missing} == {fs.FileType.NotFound}
    assert file_io.sizes([f"{raw_store.root}/there/folder/{name}" for name in "ab"]) == [1, None]
    assert file_io.list_files(f"{raw_store.root}/nowhere") == []
    with pytest.raises(FileNotFoundError, match="nowhere"):
        files.get_file_info(fs.FileSelector(f"{base}/nowhere"))
    for open_file in (files.open_input_file, files.open_input_stream):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            open_file(f"{base}/nowhere")


def test_a_file_is_read_at_any_position(raw_store: RawStore) -> None:
    raw_store.write("ranges/a", TEXT)
    raw_store.write("ranges/empty", b"")
    files, inner = file_io.filesystem(f"{raw_store.root}/ranges/a")
    with files.open_input_file(inner) as source:
        assert source.size() == len(TEXT)
        assert source.read_at(100, 1_048_500) == TEXT[1_048_500:1_048_600]  # two blocks of HDFS
        source.seek(len(TEXT) - 10)
        assert source.read(100) == TEXT[-10:]
        assert source.read(100) == b""
        source.seek(0)
        assert source.read() == TEXT
    with files.open_input_stream(f"{inner.removesuffix('/a')}/empty") as source:
        assert source.read() == b""


@pytest.mark.parametrize(
    "path, package",
    [
        ("hdfs://node:1/a", "hdfs_native"),
        ("az://raw/a", "azure.storage.blob"),
        ("az://raw/a", "azure.identity"),
    ],
)
def test_a_missing_package_is_named(path: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match="is not installed") as caught:
        file_io.exists(path)
    name = package.replace("_", "-").replace(".", "-")
    assert name in caught.value.problem
    assert f"pip install {'hdfs-native' if 'hdfs' in path else 'azure-storage-blob azure-identity'}" in (
        caught.value.remedy
    )


def test_an_azure_path_without_an_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="az://raw/ names no storage account") as caught:
        file_io.exists("az://raw/a")
    assert "abfss://raw@ACCOUNT" in caught.value.remedy


def test_other_schemes_are_refused() -> None:
    with pytest.raises(ConfigError, match="ftp://host/a cannot be opened here: ftp:// is not supported"):
        file_io.exists("ftp://host/a")


def test_a_blob_that_stands_for_a_folder_is_no_file(azure: AzureStore) -> None:
    """Data Lake Storage lists such blobs for its folders."""
    azure.write("marked/day=1", b"", {"hdi_isfolder": "true"})
    azure.write("marked/day=1/a.tsv", b"one\n")
    for recursive, names in ((False, ["day=1"]), (True, ["day=1", "a.tsv"])):
        infos = file_io.list_files(f"{azure.root}/marked", recursive)
        assert [info.base_name for info in infos] == names
        assert infos[0].type == fs.FileType.Directory
    files, inner = file_io.filesystem(f"{azure.root}/marked/day=1")
    assert files.get_file_info(inner).type == fs.FileType.Directory


def test_wrong_credentials_of_azure_are_named(azure: AzureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    azure.write("secret/a.tsv", b"one\n")
    name = "AZURE_STORAGE_CONNECTION_STRING"
    monkeypatch.setenv(name, os.environ[name].replace("AccountKey=Eby8", "AccountKey=AAAA"))
    with pytest.raises(ConfigError, match="cannot be read with these credentials") as caught:
        file_io.exists(f"{azure.root}/secret/a.tsv")
    assert "AZURE_STORAGE_ACCOUNT_KEY" in caught.value.remedy


CONNECTION = "DefaultEndpointsProtocol=https;AccountName=ours;AccountKey=a2V5;EndpointSuffix=core.windows.net"


@pytest.mark.parametrize(
    "authority, settings, url, credential",
    [
        ("raw", (CONNECTION, "", "", ""), "https://ours.blob.core.windows.net/raw", "SharedKey"),
        ("raw@ours.dfs.core.windows.net", (CONNECTION, "", "", ""), "https://ours.blob.core.", "SharedKey"),
        ("raw@other.dfs.core.windows.net", (CONNECTION, "", "", ""), "https://other.blob.core.", "Default"),
        ("raw", ("", "ours", "a2V5", ""), "https://ours.blob.core.windows.net/raw", "SharedKey"),
        ("raw", ("", "ours", "", "sig=abc"), "https://ours.blob.core.windows.net/raw?sig=abc", "None"),
        ("raw@other.dfs.core.windows.net", ("", "ours", "a2V5", ""), "https://other.blob.core.", "Default"),
        (
            "raw@ours.dfs.core.chinacloudapi.cn",
            ("", "ours", "a2V5", ""),
            "https://ours.blob.core.china",
            "Shared",
        ),
    ],
)
def test_keys_are_only_used_for_their_account(
    authority: str, settings: tuple[str, ...], url: str, credential: str
) -> None:
    client = _connected(authority, settings, 0)
    assert client.url.startswith(url)
    assert type(client.credential).__name__.startswith(credential)
