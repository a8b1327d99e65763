"""Digests of data files: taken while files are written, and compared before files are used."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conf.errors import DataError, InfrastructureError
from jobs import fsck
from storage import file_digests, file_io, format_versions
from storage.dataset import Dataset, Member, publish_dataset
from storage.file_digests import (
    digest_of_file,
    job_of,
    named,
    new_file,
    open_file,
    path_of_damaged,
    require_intact_copy,
    split_name,
)
from storage.fsck import check_lake, mark_file, repair
from storage.manifest import MANIFEST_NAME, Manifest, current_manifest, data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.publish import publish, publish_files, publish_rows, rows_of, with_footer, write_table
from storage.read_parquet import read_rows_of_keys, read_table, read_where, require_all_intact
from tests.etl.lakes import servers

DAY = "2026-01-01"
ROWS = pa.table({"user_id": [f"u{i:04d}" for i in range(900)], "score": [i / 900 for i in range(900)]})
INPUTS = {"model": "m"}


@pytest.fixture
def lake(tmp_path: Path) -> LakePaths:
    return LakePaths(str(tmp_path / "lake"))


@pytest.fixture
def partition(lake: LakePaths) -> Partition:
    made = lake.recommendations.partition(DAY)
    publish_rows(ROWS, made, inputs=INPUTS, row_group_rows=300, sort_by="user_id")
    return made


def flip(path: str, bit: int) -> None:
    """Changes one bit. The time of the last change becomes another one."""
    content = bytearray(Path(path).read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    Path(path).write_bytes(content)
    os.utime(path, ns=(bit, bit))


def file_of(partition: Partition, index: int = 1) -> str:
    return data_files(partition, read_manifest(partition))[index]


@given(st.lists(st.binary(max_size=4000), max_size=20))
@settings(max_examples=50, deadline=None)
def test_the_digest_of_what_was_written_is_that_of_the_file(parts: list[bytes]) -> None:
    path = f"/tmp/nightrank-digest-{os.getpid()}/file"
    with new_file(path) as file:
        for part in parts:
            file.sink.write(part)
    assert file.digest == digest_of_file(path) == xxhash.xxh3_128_hexdigest(b"".join(parts))
    assert split_name(file.name) == (path, file.digest)
    os.unlink(path)


def test_names_of_files_with_and_without_digest() -> None:
    digest = "0123456789abcdef" * 2
    assert split_name(named("a#b/part.parquet", digest)) == ("a#b/part.parquet", digest)
    assert split_name(named("a#b/part.parquet", None)) == ("a#b/part.parquet", None)
    assert split_name(f"x#{digest}/y") == (f"x#{digest}/y", None)


def test_the_manifest_has_the_digest_of_each_file(partition: Partition) -> None:
    manifest = read_manifest(partition)
    assert len(manifest.files) == 3
    for entry, path in zip(manifest.files, data_files(partition, manifest), strict=True):
        assert entry.digest == xxhash.xxh3_128_hexdigest(Path(path).read_bytes())


def test_files_that_spark_writes_have_digests(spark: SparkSession, lake: LakePaths) -> None:
    partition = lake.recommendations.partition(DAY)
    frame = spark.createDataFrame(ROWS.to_pandas())
    manifest = publish(frame, partition, inputs=INPUTS, row_group_rows=300, expected_rows=900)
    for entry, path in zip(manifest.files, data_files(partition, manifest), strict=True):
        assert entry.digest == xxhash.xxh3_128_hexdigest(Path(path).read_bytes())
    assert rows_of(spark, partition, manifest).count() == 900
    flip(file_of(partition), 4000)
    with pytest.raises(DataError, match="is damaged"):
        rows_of(spark, partition, manifest)


def test_each_of_many_flipped_bits_is_found(partition: Partition) -> None:
    """Without digests, every fifth of these bits gives other rows and no error."""
    manifest, path = read_manifest(partition), file_of(partition)
    good = Path(path).read_bytes()
    choose = random.Random(0)
    for bit in choose.sample(range(8 * len(good)), 200):
        flip(path, bit)
        with pytest.raises(DataError) as raised:
            read_table(partition, manifest)
        assert path in raised.value.problem
        assert f"run score_daily for {DAY} again" in raised.value.remedy
        assert path_of_damaged(raised.value) == path
        Path(path).write_bytes(good)
    os.utime(path, ns=(1, 1))
    assert read_table(partition, manifest).equals(ROWS)


def test_a_file_replaced_by_one_of_equal_size_is_found(partition: Partition) -> None:
    path = file_of(partition)
    Path(path).write_bytes(
        Path(file_of(partition, 0)).read_bytes().ljust(os.path.getsize(path))[: os.path.getsize(path)]
    )
    os.utime(path, ns=(5, 5))
    with pytest.raises(DataError, match="is damaged: its bytes"):
        read_table(partition, read_manifest(partition))


def readers(partition: Partition, manifest: Manifest) -> Iterator[object]:
    files = data_files(partition, manifest)
    yield lambda: read_table(partition, manifest)
    yield lambda: read_rows_of_keys(partition, manifest, "user_id", ["u0001", "u0400"], ["user_id", "score"])
    yield lambda: read_where(files, ["score"], pc.field("user_id") == "u0400")
    yield lambda: require_all_intact(files)
    yield lambda: [open_file(path).__enter__().close() for path in files]


@pytest.mark.parametrize("reader", range(5))
def test_every_way_to_read_finds_it(partition: Partition, reader: int) -> None:
    manifest = read_manifest(partition)
    read = list(readers(partition, manifest))[reader]
    read()  # type: ignore[operator]
    flip(file_of(partition), 3000)
    with pytest.raises(DataError, match="is damaged"):
        read()  # type: ignore[operator]


def test_a_file_is_compared_once_in_a_process(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def note(path: str) -> str:
        compared.append(path)
        return digest_of_file(path)

    monkeypatch.setattr(file_digests, "digest_of_file", note)
    manifest = read_manifest(partition)
    read_table(partition, manifest)
    read_table(partition, manifest)
    assert sorted(compared) == sorted(data_files(partition, manifest))


def without_digests(partition: Partition) -> None:
    """Rewrites a manifest as a release before format version 3 wrote it."""
    path = Path(partition.file(MANIFEST_NAME))
    values = file_io.read_json(str(path))
    for entry in values["files"]:
        del entry["digest"]
    del values["damaged"]
    file_io.replace_json(str(path), {**values, format_versions.KEY: 2})


def test_a_manifest_without_digests_is_read_and_counted_as_unverified(
    lake: LakePaths, partition: Partition
) -> None:
    without_digests(partition)
    assert current_manifest(partition, INPUTS) is not None
    assert read_table(partition, read_manifest(partition)).equals(ROWS)
    findings = check_lake(lake)
    assert (findings.files, findings.unverified, findings.damages) == (0, 3, ())


def test_fsck_names_what_is_damaged_and_the_next_run_heals_it(
    lake: LakePaths, partition: Partition, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(partition)
    assert fsck.main(["--lake", lake.root]) == 0
    assert current_manifest(partition, INPUTS) is not None
    flip(path, 3001)
    capsys.readouterr()
    assert fsck.main(["--lake", lake.root]) == 3
    output = capsys.readouterr().out
    assert f"{path} is damaged: its bytes have the digest" in output
    assert f"what to do: run score_daily for {DAY} again" in output
    assert current_manifest(partition, INPUTS) is not None  # fsck without --repair changes nothing
    digest = read_manifest(partition).digest
    assert fsck.main(["--lake", lake.root, "--repair"]) == 3
    assert current_manifest(partition, INPUTS) is None
    assert read_manifest(partition).digest == digest
    assert Path(path).exists()
    publish_rows(ROWS, partition, inputs=INPUTS, row_group_rows=300, sort_by="user_id")
    assert current_manifest(partition, INPUTS) is not None
    assert fsck.main(["--lake", lake.root]) == 0


# The runs of build_features in the lake: run date, workflow version, mode, days of the features.
BUILDS = [
    ("2026-01-04", "w1", "fit", ["2026-01-02", "2026-01-03", "2026-01-04"]),
    ("2026-01-05", "w1", "apply", ["2026-01-03", "2026-01-04", "2026-01-05"]),
    ("2026-01-06", "w2", "extend", ["2026-01-04", "2026-01-05", "2026-01-06"]),
    ("2026-01-07", "w2", "apply", ["2026-01-07"]),
]


@pytest.mark.parametrize(
    "table, date, run_date, mode",
    [
        ("features/w1", "2026-01-02", "2026-01-04", "fit"),
        ("features/w1", "2026-01-04", "2026-01-05", "apply"),
        ("features/w2", "2026-01-04", "2026-01-06", "extend"),
        ("features/w0", "2026-01-05", "2026-01-06", "extend"),  # a version of an experiment
        ("value_counts", "2026-01-03", "2026-01-05", "apply"),
        ("last_clicks", "2026-01-01", "2026-01-04", "fit"),  # before the days of all datasets
        ("users/w1", "2026-01-05", "2026-01-05", "apply"),
        ("item_titles", "2026-01-06", "2026-01-06", "extend"),
        ("workflow/w2", "vocabulary/user", "2026-01-06", "extend"),
        ("workflow/w1", "vocabulary/user", "2026-01-04", "fit"),
    ],
)
def test_fsck_names_the_run_that_writes_a_damaged_file(
    lake: LakePaths, table: str, date: str, run_date: str, mode: str
) -> None:
    """Another run of build_features would have another workflow version, or other days."""
    for built_on, version, how, days in BUILDS:
        members = tuple(Member(day, "digest", None) for day in days)
        publish_dataset(lake, Dataset(built_on, version, {"train": members}, how), "2026-01-08T00:00:00Z")
    name = date if "/" in date else f"dt={date}"
    damaged = Partition(
        table, date.removeprefix("dt="), f"{lake.root}/{table}/{name}", f"{table}/{name}".count("/") + 1
    )
    publish_rows(ROWS, damaged, inputs=INPUTS, row_group_rows=900)
    flip(file_of(damaged, 0), 3001)
    [damage] = check_lake(lake).damages
    command = f"build_features --run-date {run_date} --set workflow.mode={mode}"
    assert damage.remedy == f"run `{command}` again, with the configuration of the lake"


def test_fsck_names_missing_and_short_files(lake: LakePaths, partition: Partition) -> None:
    os.unlink(file_of(partition, 0))
    os.truncate(file_of(partition, 1), 100)
    differences = [damage.difference for damage in check_lake(lake).damages]
    assert differences[0] == "it is missing"
    assert differences[1].startswith("it has 100 bytes, but its manifest says ")


def test_a_manifest_that_cannot_be_parsed_is_set_aside(lake: LakePaths, partition: Partition) -> None:
    other = lake.recommendations.partition("2026-01-02")
    publish_rows(ROWS, other, inputs=INPUTS, row_group_rows=900)
    path = Path(partition.file(MANIFEST_NAME))
    path.write_bytes(b"\xff" * 10)
    findings = check_lake(lake)
    assert [(damage.path, damage.partition) for damage in findings.damages] == [(str(path), None)]
    [change] = repair(lake, findings)
    assert "a later run deletes the data files" in change
    assert not path.exists()
    assert path.with_name("_MANIFEST.damaged").read_bytes() == b"\xff" * 10
    assert check_lake(lake).damages == ()


def test_a_job_marks_the_file_that_it_found(partition: Partition) -> None:
    path = file_of(partition)
    assert mark_file(path)
    assert not mark_file(path)
    assert read_manifest(partition).damaged == (read_manifest(partition).files[1].path,)
    assert current_manifest(partition, INPUTS) is None
    assert not mark_file(f"{partition.root}/_data/elsewhere/dt={DAY}/a/part.parquet")


def test_a_lake_without_files_is_an_error(tmp_path: Path) -> None:
    assert fsck.main(["--lake", str(tmp_path)]) == 3


def test_jobs_of_tables(lake: LakePaths) -> None:
    assert job_of(lake.features("w").name) == "build_features"
    assert job_of(lake.candidate_items("w").name) == "build_candidates"
    assert job_of(lake.scores.name) == "score_rows"


@pytest.mark.processes
def test_files_of_an_object_store_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.bucket(tmp_path, "digests"):
        partition = LakePaths("s3a://digests/lake").recommendations.partition(DAY)
        manifest = publish_rows(ROWS, partition, inputs=INPUTS, row_group_rows=300, sort_by="user_id")
        assert read_table(partition, manifest).equals(ROWS)
        path = file_of(partition)
        files, inner = file_io.filesystem(path)
        with files.open_input_stream(inner) as stream:
            content = bytearray(stream.read())
        content[500] ^= 4
        with files.open_output_stream(inner) as stream:
            stream.write(bytes(content))
        require_all_intact([path])  # this process has compared the file before
        (tmp_path / "copy").write_bytes(content)
        with pytest.raises(DataError, match="is damaged"):
            require_intact_copy(path, str(tmp_path / "copy"))
        for most in (file_digests._MOST_IN_MEMORY, 10):
            file_digests._compared.clear()
            monkeypatch.setattr(file_digests, "_MOST_IN_MEMORY", most)
            with pytest.raises(DataError, match="is damaged"):
                read_table(partition, manifest)
        assert len(check_lake(LakePaths("s3a://digests/lake")).damages) == 1


def test_a_file_that_no_manifest_names_is_not_compared(partition: Partition) -> None:
    path = file_of(partition)
    manifest = read_manifest(partition)
    file_io.replace_json(
        partition.file(MANIFEST_NAME),
        format_versions.MANIFEST.stamp(replace(manifest, files=manifest.files[:1]).to_json()),
    )
    flip(path, 3)
    file_digests._entries.clear()
    require_all_intact([path])


@pytest.mark.processes
def test_files_of_a_store_that_another_run_has_deleted_are_not_published(tmp_path: Path) -> None:
    """With a short output.grace_hours, a run deletes files that another one is about to publish."""
    with servers.bucket(tmp_path, "overlap"):
        partition = LakePaths("s3a://overlap/lake").recommendations.partition(DAY)
        written = write_table(ROWS, partition, 300)
        footers = [with_footer(partition.file(name)).rpartition("#")[2] for name in written]
        time.sleep(1.1)  # times of files have whole seconds
        other = publish_rows(ROWS, partition, inputs={"run": "b"}, row_group_rows=900, grace_hours=0)
        files = {f"{name}#{footer}": None for name, footer in zip(written, footers, strict=True)}
        with pytest.raises(InfrastructureError, match=r"is missing, although .*\n.*run the job again"):
            publish_files(partition, files, inputs={"run": "a"}, expected_rows=900)
        assert read_manifest(partition) == other
        assert read_table(partition, other).equals(ROWS)
