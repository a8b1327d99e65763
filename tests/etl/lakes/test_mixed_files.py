"""A day of several files in several compressions and folders with wildcards equals one plain file."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.raw_types import RawTable
from conf.types import Config
from etl.raw.file_columns import common_header
from etl.raw.files import find_raw
from etl.readers.base import open_table
from etl.readers.table_heads import check_heads
from storage.paths import LakePaths
from tests.etl import cases, oracle, raw_oracle
from tests.etl.lakes import lakes
from tests.etl.log_rows import rows_of_log
from tests.etl.readers.blocks import plain

RUN_DATE = "2026-01-03"
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
NESTED = {"log": {**cases.LOG["log"], "path": "{data}/site=*/{date}/*.tsv*"}}


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def _members(data: bytes) -> bytes:
    """gzip of several members that begin anywhere in the text, as log shippers append them."""
    return gzip.compress(data[: len(data) // 3]) + gzip.compress(data[len(data) // 3 :])


PACKED = {".gz": _members, ".bz2": bz2.compress, ".zst": _zstd, "": bytes}


def _write_day(folder: Path, day: str, lines: list[str], kinds: list[str]) -> list[Path]:
    """Writes the lines to files of these kinds at two sites, in the order of the files' paths."""
    paths = []
    for index, kind in enumerate(kinds):
        share = lines[index * len(lines) // len(kinds) : (index + 1) * len(lines) // len(kinds)]
        path = folder / f"site={'ab'[index * 2 // len(kinds)]}/{day}/part-{index}.tsv{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PACKED[kind]("".join(f"{line}\n" for line in share).encode()))
        paths.append(path)
    return paths


@pytest.mark.parametrize(
    "engine, kinds", [("arrow", [".zst", ".gz", "", ".bz2"]), ("sql", [".zst", "", ".bz2", ".gz"])]
)
def test_a_run_of_mixed_files_equals_the_oracle_of_plain_ones(
    spark: SparkSession, tmp_path: Path, engine: str, kinds: list[str]
) -> None:
    config = cases.write_config(tmp_path, NESTED, lakes.SMALL, {"workflow": {"engine": engine}})
    good, bad = {}, {}
    for seed, day in enumerate(DAYS):
        lines = cases.make_lines(day, 100, seed)
        _write_day(tmp_path / "raw", day, lines, kinds)
        plain = tmp_path / f"{day}.tsv"
        plain.write_bytes("".join(f"{line}\n" for line in lines).encode())
        good[day], bad[day] = raw_oracle.parse_log(config, [plain])
    built = cases.run_build(spark, config, RUN_DATE)
    fitted = oracle.fit(config, good[DAYS[0]])
    lake = LakePaths(config.lake)
    for day in DAYS:
        rows = lakes.read_rows(lake.features(built.workflow.version).partition(day))
        cases.assert_features_equal(rows, oracle.encode(config, fitted, good[day]), built.workflow.spec)
        quarantined = lakes.read_rows(lake.quarantine.partition(day)).sort_values("row_id")
        assert quarantined["row_id"].tolist() == sorted(bad[day]["row_id"])
        assert {path.rsplit(".tsv", 1)[1] for path in quarantined["source_file"]} == set(kinds)


def test_lines_are_numbered_alike_whatever_the_compression(tmp_path: Path) -> None:
    """Unusual names, CR LF, no end of the last line, invalid UTF-8, empty lines and files."""
    text = b"one\r\n\n\xff\xfe broken \xe9\nlast \xc3\xa9"
    rows_of_kind = {}
    for kind, pack in PACKED.items():
        folder = tmp_path / f"kind{kind}"
        log = {**cases.LOG["log"], "path": "{data}/*"}
        split = {"by": "fraction"}
        config = cases.write_config(tmp_path, {"log": log, "data": str(folder), "split": split})
        paths = [folder / f"50%20 a.tsv{kind}", folder / f"b.tsv{kind}", folder / f"c.tsv{kind}"]
        folder.mkdir()
        for path, data in zip(paths, (text, b"", text * 3), strict=True):
            path.write_bytes(pack(data))
        raw = find_raw(config, config.log, RUN_DATE)
        assert raw is not None
        rows = rows_of_log(config, raw).select(["row_id", "_file", "_line_number", "_line", "_reason"])
        rows_of_kind[kind] = [
            {**row, "_file": Path(row["_file"]).name.removesuffix(kind)} for row in rows.to_pylist()
        ]
    assert all(rows == rows_of_kind[""] for rows in rows_of_kind.values())
    places = [(row["_line_number"], row["row_id"]) for row in rows_of_kind[""]]
    assert places[:5] == [(1, 0), (2, 1), (3, 2), (4, 3), (1, 4)]
    assert [row["_reason"] for row in rows_of_kind[""][:3]] == ["field_count", "field_count", "not_utf8"]


@pytest.mark.parametrize(
    "engine, damage",
    [
        ("arrow", "cut off"),
        ("arrow", "not gzip"),
        ("arrow", "a broken byte"),
        ("sql", "cut off"),
        ("sql", "a broken byte"),
    ],
)
def test_a_damaged_file_is_bad_data_by_name(
    spark: SparkSession, tmp_path: Path, engine: str, damage: str
) -> None:
    config = cases.write_config(tmp_path, NESTED, {"workflow": {"engine": engine}})
    for seed, day in enumerate(DAYS):
        paths = _write_day(tmp_path / "raw", day, cases.make_lines(day, 100, seed), [".gz", ".bz2", ".gz"])
    packed = bytearray(paths[2].read_bytes())
    if damage == "cut off":
        packed = packed[: len(packed) // 2]
    elif damage == "not gzip":
        packed = bytearray(b"plain text under a wrong name\n" * 20)
    else:
        packed[-8] ^= 0xFF  # of the checksum
    paths[2].write_bytes(packed)
    with pytest.raises(Exception, match="cannot be decompressed") as caught:
        cases.run_build(spark, config, RUN_DATE)
    error = lakes.our_error(caught.value)
    assert isinstance(error, DataError)
    assert str(paths[2]) in error.problem
    assert not (tmp_path / f"lake/datasets/dt={RUN_DATE}").exists()


@pytest.mark.parametrize("kind", [".gz", ".bz2", ".zst", ""])
def test_headers_are_read_whatever_the_compression(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.csv{kind}"
    path.write_bytes(PACKED[kind]("\ufeffone,two\r\n1,2\r\n".encode()))
    table = cases.write_config(tmp_path).log.model_copy(update={"separator": ",", "format": "csv"})
    assert common_header([str(path)], table) == ["one", "two"]
    if kind:
        path.write_bytes(b"no such format")
        with pytest.raises(DataError, match=f"{path} cannot be decompressed"):
            common_header([str(path)], table)


@pytest.mark.parametrize("kind, empty", [("", b""), ("", "\ufeff".encode()), (".gz", b"")])
def test_empty_csv_files_are_skipped(tmp_path: Path, kind: str, empty: bytes) -> None:
    """A program that writes a file each hour may write empty files, also as the first and the last of a day."""
    contents = [empty, b"user,n\na,1\n", empty, b"n,user\n2,b\n", empty]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.csv{kind}").write_bytes(PACKED[kind](content))
    columns = [{"name": "user", "type": "string"}, {"name": "n", "type": "int"}]
    table = RawTable.model_validate({"path": "x", "format": "csv", "columns": columns})
    paths = tuple(str(path) for path in sorted(tmp_path.iterdir()))
    reader = open_table(table, paths)
    blocks = [block for part in reader.splits() for block in reader.blocks(part, ["user", "n"])]
    users = [user for block in blocks for user in plain(block.columns["user"])]
    numbers = [number for block in blocks for number in plain(block.columns["n"])]
    assert (users, numbers) == (["a", "b"], [1, 2])
    check_heads(table, [paths[0], paths[1], paths[2]], "users", "user")
    for refuse in (
        lambda: open_table(table, paths[::4]),
        lambda: check_heads(table, paths[::4], "users", "user"),
    ):
        with pytest.raises(DataError, match=rf"0\.csv{kind} is empty \(0 bytes\)"):
            refuse()


def test_wildcards_in_folders(tmp_path: Path) -> None:
    lakes.check_wildcards(tmp_path, str(tmp_path), lambda: None)
    lakes.check_wildcards(tmp_path, f"file://{tmp_path}", lambda: None)


def test_two_folders_with_equal_names_are_two_deliveries(tmp_path: Path) -> None:
    config: Config = cases.write_config(tmp_path, NESTED)
    lines = cases.make_lines(RUN_DATE, 5, 1)
    first = _write_day(tmp_path / "raw", RUN_DATE, lines, ["", ""])[0]
    before = find_raw(config, config.log, RUN_DATE)
    moved = tmp_path / f"raw/site=c/{RUN_DATE}/{first.name}"
    moved.parent.mkdir(parents=True)
    first.rename(moved)
    after = find_raw(config, config.log, RUN_DATE)
    assert before is not None
    assert after is not None
    assert before.digest != after.digest


def test_a_compression_that_nothing_reads_is_refused_by_name(tmp_path: Path) -> None:
    config = cases.write_config(tmp_path)
    (tmp_path / f"raw/dt={RUN_DATE}").mkdir(parents=True)
    (tmp_path / f"raw/dt={RUN_DATE}/a.tsv.xz").write_bytes(b"\xfd7zXZ")
    with pytest.raises(DataError, match=r"a\.tsv\.xz is compressed in a format that is not supported"):
        find_raw(config, config.log, RUN_DATE)
