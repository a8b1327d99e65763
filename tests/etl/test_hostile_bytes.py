"""Files of hostile bytes: every line is a good row or is quarantined, equally in both engines."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession

from conf.errors import DataError
from conf.raw_types import SEPARATORS
from conf.types import Config
from etl.raw.file_splits import split_files
from etl.raw.files import require_raw
from etl.spark.read_log import read_log
from etl.spark.typed_rows import read_day
from etl.text.file_layout import file_layout
from etl.text.parse_block import plain, read_split
from etl.text.row_source import columns_to_parse
from storage.paths import Lake
from tests.etl import cases, raw_oracle
from tests.spark_settings import set_meanwhile

pytestmark = pytest.mark.slow

DAY = "2026-01-01"
NAMES = ["label", "user", "item", "n", "x"]
KINDS = ["int", "string", "string", "int", "float"]


def _config(folder: Path, form: str, engine: str = "auto") -> Config:
    log = {
        "path": "{data}/*",
        "format": form,
        "separator": "," if form == "csv" else "\t",
        "null_values": ["\\N", "NULL", "-7", "u,1"],
        "columns": [{"name": name, "type": kind} for name, kind in zip(NAMES, KINDS, strict=True)],
        "label": {"column": "label"},
    }
    features = [{"columns": ["n"], "kind": "dense", "ops": ["fill"]}]
    changes = {"log": log, "features": features, "scopes": {}, "split": {"by": "fraction"}}
    return cases.write_config(folder, changes, {"workflow": {"engine": engine}})


# Quotes, control characters, invalid UTF-8, line ends of other standards, and ids and numbers at their
# limits.
_NASTY = [
    *(b'"', b'""', b'"u', b'u"', b'a"b', b'"a"b', b'"a""b"', b'"a,b"', b'"a\tb"', b'" "', b"'"),
    *(
        b"\0",
        b"a\0",
        b"\x1b[31m",
        b"\x7f",
        "\x85".encode(),
        "\x9f".encode(),
        "\xa0".encode(),
        b"\x0b",
        b"\x0c",
    ),
    *("\u2028".encode(), "\ufeff".encode(), "é".encode(), "\U0001f600".encode()),
    *(b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80", b"\xef\xbb"),
    *(b"k" * 256, b"k" * 257, "é".encode() * 128, "é".encode() * 129, b"x" * 200_000),
    *(b"\\N", b"NULL", b"null", b'"NULL"', b'"u,1"', b"NULL ", b"17.0", b"-3.00", b"17.", b"1.0e1", b"17.\0"),
    *("17.\x85".encode(), b"9" * 19 + b".0", b"9" * 18 + b".", b"+0.000", b".0", b"1.0.0"),
    *(b"", b" ", b"1", b"0", b"-7", b"9" * 19, b"1.5", b"NaN", b"inf", b"1d", b"0x1p3"),
    *(b"1e38", b"3.4028234663852886e38", b"3.4028235e38", b"-3.5e38", b"1e308", b"1e400", b"1e-400", b"-0"),
]
NASTY = st.one_of(st.sampled_from(_NASTY), st.binary(max_size=6))
SUFFIX = st.sampled_from([".txt", ".txt", ".gz"])
GOOD = [b"1", b"u1", b"i1", b"5", b"0.5"]
END = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])


@st.composite
def hostile_files(draw: st.DrawFn, form: str, lines: int) -> list[bytes]:
    """A few files of good lines with some hostile bytes. csv files begin with the header."""
    separator = b"," if form == "csv" else b"\t"

    def line() -> bytes:
        if draw(st.integers(0, 9)) == 0:
            return draw(st.lists(NASTY, max_size=8).map(b"".join))
        fields = list(GOOD)
        for index in draw(st.lists(st.integers(0, 4), max_size=2)):
            fields[index] = draw(NASTY)
        return separator.join(fields) + draw(st.sampled_from([b"", b"", b"", separator]))

    files = []
    for _ in range(draw(st.integers(1, 3))):
        ended = [line() + draw(END) for _ in range(draw(st.integers(0, lines)))]
        if form == "csv":
            ended = [separator.join(name.encode() for name in NAMES) + draw(END), *ended]
        mark = b"\xef\xbb\xbf" if draw(st.integers(0, 3)) == 0 else b""
        last = line() if draw(st.booleans()) and ended else b""
        files.append(mark + b"".join(ended) + last)
    return files


def _write(folder: Path, files: Sequence[bytes], suffix: str = ".txt") -> list[Path]:
    (folder / "raw").mkdir()
    paths = [folder / f"raw/{index}{suffix}" for index in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(gzip.compress(data) if suffix == ".gz" else data)
    return paths


Rows = dict[tuple[str, int], tuple[Any, ...]]
Reasons = dict[tuple[str, int], str]
Reader = Callable[[SparkSession, Config], tuple[Rows, Reasons]]


def _of_oracle(config: Config, paths: list[Path]) -> tuple[Rows, Reasons]:
    good, bad = raw_oracle.parse_log(config, paths)
    lines_of_rows = zip(good["file"], good["line_number"], strict=True)
    values = (_plain(row) for row in good[[*NAMES, "user_key", "item_key"]].itertuples(index=False))
    reasons = zip(bad["file"], bad["line_number"], bad["reason"], strict=True)
    lines = sum(len(raw_oracle.lines_of(path)) for path in paths)
    headers = sum(1 for path in paths if config.log.format == "csv")
    assert len(good) + len(bad) == lines - headers, "every line is a row or is quarantined"
    return dict(zip(lines_of_rows, values, strict=True)), {
        (file, line): reason for file, line, reason in reasons
    }


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    label, *values = (None if pd.isna(value) else value for value in row)
    return (float(label), *values)


def _of_files(config: Config, paths: list[Path], split_bytes: int) -> tuple[Rows, Reasons]:
    """Rows and reasons of the two passes, without Spark."""
    layout = file_layout(config, tuple(str(path) for path in paths))
    rows: Rows = {}
    reasons: Reasons = {}
    for path in paths:
        before = 0
        for file_split in split_files([str(path)], split_bytes):
            for parsed in read_split(file_split, layout, columns_to_parse(layout, NAMES)):
                columns = [
                    plain(parsed.columns[name]).to_pylist() for name in (*NAMES, "user_key", "item_key")
                ]
                for line, *values in zip(parsed.row_lines.tolist(), *columns, strict=True):
                    rows[path.name, before + line + 1] = tuple(values)
                for line, reason in parsed.rejected:
                    reasons[path.name, before + line + 1] = reason
                before += parsed.lines
    return rows, reasons


def _of_frames(spark: SparkSession, config: Config) -> tuple[Rows, Reasons]:
    return _by_line(read_log(spark, config, require_raw(config, config.log, DAY)).collect())


def _of_typed_rows(spark: SparkSession, config: Config) -> tuple[Rows, Reasons]:
    """Rows and reasons of the table `typed`. They are counted, numbered and quoted as frames of the text."""
    raw = require_raw(config, config.log, DAY)
    direct = read_log(spark, config, raw).collect()
    day = read_day(spark, config, Lake(config.lake), raw)
    collected = day.rows.collect()
    assert day.count_reasons() == Counter(row["_reason"] for row in direct)
    assert {row["row_id"]: _quarantined(row) for row in collected} == {
        row["row_id"]: _quarantined(row) for row in direct
    }
    return _by_line(collected)


def _quarantined(row: Row) -> tuple[Any, ...]:
    return row["_file"], row["_line_number"], row["_reason"], row["_reason"] and row["_line"]


def _by_line(collected: Sequence[Row]) -> tuple[Rows, Reasons]:
    assert len({row["row_id"] for row in collected}) == len(collected)
    by_line = {(Path(row["_file"]).name, row["_line_number"]): row for row in collected}
    assert len(by_line) == len(collected)
    good = {line: row for line, row in by_line.items() if row["_reason"] is None}
    return (
        {
            line: (row["label"], *(row[name] for name in NAMES[1:]), row["user_key"], row["item_key"])
            for line, row in good.items()
        },
        {line: row["_reason"] for line, row in by_line.items() if row["_reason"] is not None},
    )


@pytest.mark.parametrize("form", ["tsv", "csv"])
def test_files_are_read_as_the_oracle_reads_them(form: str) -> None:
    @settings(max_examples=250, deadline=None, derandomize=True, database=None)
    @given(files=hostile_files(form, 25), split_bytes=st.sampled_from([40, 300, 1 << 20]), suffix=SUFFIX)
    def check(files: list[bytes], split_bytes: int, suffix: str) -> None:
        with TemporaryDirectory() as name:
            paths = _write(Path(name), files, suffix)
            config = _config(Path(name), form)
            rows, reasons = _of_files(config, paths, split_bytes)
            assert (rows, reasons) == _of_oracle(config, paths)
            seen.update(["good"] * len(rows))
            seen.update(reasons.values())

    seen: Counter[str] = Counter()
    check()
    kinds = {"good", "not_utf8", "field_count", "integer:n", "number:x", "label:label", "missing_key:user"}
    kinds |= {"key:user", "key:item"} | ({"quote"} if form == "csv" else set())
    assert {kind for kind, lines in seen.items() if lines >= 5} >= kinds, (
        "the bytes drawn were hostile enough"
    )


@pytest.mark.parametrize("form", ["tsv", "csv"])
@pytest.mark.parametrize(
    "engine, read", [("sql", _of_frames), ("arrow", _of_frames), ("sql", _of_typed_rows)]
)
def test_frames_are_read_as_the_oracle_reads_them(
    spark: SparkSession, form: str, engine: str, read: Reader
) -> None:
    @settings(max_examples=5, deadline=None, derandomize=True, database=None)
    @given(
        files=hostile_files(form, 120).filter(any), block_bytes=st.sampled_from(["2k", "128m"]), suffix=SUFFIX
    )
    def check(files: list[bytes], block_bytes: str, suffix: str) -> None:
        with TemporaryDirectory() as name:
            paths = _write(Path(name), files, suffix)
            config = _config(Path(name), form, engine)
            with set_meanwhile(spark, {"spark.sql.files.maxPartitionBytes": block_bytes}):
                assert read(spark, config) == _of_oracle(config, paths)

    check()


def test_a_line_break_in_quotes_does_not_become_a_row_of_another_user(tmp_path: Path) -> None:
    """An earlier version published the second half of the field, `1"`, as the id of a user."""
    data = b'label,user,item,n,x\n1,"u\n1",i1,5,0.5\n1,u2,i2,5,0.5\n"1",u3,i3,5,"0.5"\n1,u4,i"4,5,0.5\n'
    data += b'1,"u\r\n1",i1,5,0.5\n1,"",i5,5,0.5\n'
    paths = _write(tmp_path, [data])
    rows, reasons = _of_files(_config(tmp_path, "csv"), paths, 1 << 20)
    assert [row[1] for row in rows.values()] == ["u2", "u3"]
    broken = {("0.txt", line): "quote" for line in (2, 3, 6, 7, 8)}
    assert reasons == {**broken, ("0.txt", 9): "missing_key:user"}


def test_quotes_are_ordinary_characters_of_tsv(tmp_path: Path) -> None:
    paths = _write(tmp_path, [b'1\t"u\ti"1\t5\t0.5\n'])
    rows, reasons = _of_files(_config(tmp_path, "tsv"), paths, 1 << 20)
    assert [row[1:3] for row in rows.values()] == [('"u', 'i"1')]
    assert reasons == {}


@pytest.mark.parametrize(
    "data, message",
    [
        (b'label,"user,item,n,x\n', "unmatched quote"),
        (b"label,user,item,n,x,user\n1,a,b,1,1,c\n", "more than one column named 'user'"),
        (b"\xff\xfe\0l\0a\n", "not UTF-8"),
        (b"x" * (1 << 20) + b"y\n", "longer than 1048576 bytes"),
        (b"label,user,item\r1,u,i\r", r"no columns \['n', 'x'\]"),
        (b"", r"no columns \['label'"),
    ],
)
def test_a_hostile_header_is_bad_data_by_name(tmp_path: Path, data: bytes, message: str) -> None:
    paths = _write(tmp_path, [data])
    with pytest.raises(DataError, match=rf"0\.txt.*{message}"):
        file_layout(_config(tmp_path, "csv"), (str(paths[0]),))


@pytest.mark.parametrize("separator", [other for other in SEPARATORS if other != ","])
@pytest.mark.parametrize("header", [NAMES, ["LABEL", "USER"], ['"label"', '"user"', "item", "n", "x"]])
def test_a_header_with_another_separator_names_it(tmp_path: Path, header: list[str], separator: str) -> None:
    """Also if no name is one of the configuration, and with quotes around names."""
    paths = _write(tmp_path, [f"{separator.join(header)}\n".encode()])
    with pytest.raises(DataError) as caught:
        file_layout(_config(tmp_path, "csv"), (str(paths[0]),))
    assert f"set `separator: {json.dumps(separator)}`" in caught.value.remedy
    assert yaml.safe_load(f"separator: {json.dumps(separator)}") == {"separator": separator}


def test_both_engines_parse_long_fields_and_many_fields(spark: SparkSession, tmp_path: Path) -> None:
    """Java's regular expressions may overflow the stack if a repetition backtracks."""
    long = b'1,"u",i,5,0.5\n' + b'1,"' + b'a""' * 100_000 + b'",i,5,0.5\n' + b'"",' * 30_000 + b"\n"
    _write(tmp_path, [b"label,user,item,n,x\n" + long])
    for engine in ("sql", "arrow"):
        config = _config(tmp_path, "csv", engine)
        rows, reasons = _of_frames(spark, config)
        assert [row[1] for row in rows.values()] == ["u"]
        assert list(reasons.values()) == ["key:user", "field_count"]
