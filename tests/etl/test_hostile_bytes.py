"""Files of hostile bytes: every line is a good row or is quarantined, as an oracle says."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from conf.errors import DataError
from conf.raw_types import SEPARATORS
from conf.types import Config, Quality
from etl.native.scan import rejections_of
from etl.quality.day_counts import DayCounts
from etl.raw.file_splits import refuse_utf16, split_files
from etl.text import scan_pass
from etl.text.parse_block import columns_to_parse, file_layout, plain, read_split
from etl.workflow.feature_plan import plan_of
from storage.manifest import read_manifest
from storage.paths import LakePaths
from tests.etl import cases, raw_oracle
from tests.etl.cases import run_build
from tests.etl.text.test_compressed_log import workers_in_this_process
from tests.processes import ROOT, environment

pytestmark = pytest.mark.slow

DAY = "2026-01-01"
NAMES = ["label", "user", "item", "n", "x"]
KINDS = ["int", "string", "string", "int", "float"]


def _config(folder: Path, form: str) -> Config:
    log = {
        "path": "{data}/*",
        "format": form,
        **({} if form == "jsonl" else {"separator": "," if form == "csv" else "\t"}),
        "null_values": ["\\N", "NULL", "-7", "u,1"],
        "columns": [{"name": name, "type": kind} for name, kind in zip(NAMES, KINDS, strict=True)],
        "label": {"column": "label"},
    }
    features = [{"columns": ["n"], "kind": "dense", "ops": ["fill"]}]
    changes = {"log": log, "features": features, "scopes": {}, "split": {"by": "fraction"}}
    return cases.write_config(folder, changes)


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


# The fields of one line each, and how the line is counted.
_OF_EACH_KIND = {
    "good": GOOD,
    "not_utf8": [b"1", b"\xff", b"i1", b"5", b"0.5"],
    "field_count": GOOD[:4],
    "label:label": [b"", *GOOD[1:]],
    "integer:label": [b"x", *GOOD[1:]],
    "missing_key:user": [b"1", b"", *GOOD[2:]],
    "key:user": [b"1", b"a\0", *GOOD[2:]],
    "key:item": [*GOOD[:2], b"k" * 257, *GOOD[3:]],
    "integer:n": [*GOOD[:3], b"x", b"0.5"],
    "number:x": [*GOOD[:4], b"x"],
    "quote": [*GOOD[:4], b'0"5'],
}


def file_of_each_kind(form: str) -> bytes:
    """A file with a line of each of _OF_EACH_KIND."""
    separator = b"," if form == "csv" else b"\t"
    header = [name.encode() for name in NAMES]
    lines = [*([header] if form == "csv" else []), *_OF_EACH_KIND.values()]
    return b"".join(separator.join(line) + b"\n" for line in lines)


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


def _is_utf16(path: Path, data: bytes) -> bool:
    """Whether the whole file is refused (tests/etl/readers/test_encodings.py), so that no line of it is read."""
    try:
        refuse_utf16(str(path), data)
    except DataError:
        return True
    return False


Rows = dict[tuple[str, int], tuple[Any, ...]]
Reasons = dict[tuple[str, int], str]


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
    layout = file_layout(plan_of(config), tuple(str(path) for path in paths))
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
                for line, reason in parsed.rejected.pairs():
                    reasons[path.name, before + line + 1] = reason
                before += parsed.lines
    return rows, reasons


@pytest.mark.parametrize("examples", [60, pytest.param(300, marks=pytest.mark.extended)])
@pytest.mark.parametrize("form", ["tsv", "csv"])
def test_files_are_read_as_the_oracle_reads_them(tmp_path: Path, form: str, examples: int) -> None:
    config = _config(tmp_path, form)

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(files=hostile_files(form, 25), split_bytes=st.sampled_from([40, 300, 1 << 20]), suffix=SUFFIX)
    @example(files=[file_of_each_kind(form)], split_bytes=40, suffix=".txt")
    def check(files: list[bytes], split_bytes: int, suffix: str) -> None:
        with TemporaryDirectory() as name:
            paths = _write(Path(name), files, suffix)
            assume(not any(_is_utf16(path, data) for path, data in zip(paths, files, strict=True)))
            rows, reasons = _of_files(config, paths, split_bytes)
            assert (rows, reasons) == _of_oracle(config, paths)
            seen.update(["good"] * len(rows))
            seen.update(reasons.values())

    seen: Counter[str] = Counter()
    check()
    assert seen.keys() >= _OF_EACH_KIND.keys() - (set() if form == "csv" else {"quote"})


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
        (b"\xff\xfe\0l\0a\n", "is in the encoding UTF-16"),
        (b"\xff\xfel\n", "is in the encoding UTF-16"),
        (b"\xffl\n", "not UTF-8"),
        (b"x" * (1 << 20) + b"y\n", "longer than 1048576 bytes"),
        (b"label,user,item\r1,u,i\r", r"no columns \['n', 'x'\]"),
        (b"", r"is empty \(0 bytes\)"),
    ],
)
def test_a_hostile_header_is_bad_data_by_name(tmp_path: Path, data: bytes, message: str) -> None:
    paths = _write(tmp_path, [data])
    with pytest.raises(DataError, match=rf"0\.txt.*{message}"):
        file_layout(plan_of(_config(tmp_path, "csv")), (str(paths[0]),))


@pytest.mark.parametrize("separator", [other for other in SEPARATORS if other != ","])
@pytest.mark.parametrize("header", [NAMES, ["LABEL", "USER"], ['"label"', '"user"', "item", "n", "x"]])
def test_a_header_with_another_separator_names_it(tmp_path: Path, header: list[str], separator: str) -> None:
    """Also if no name is one of the configuration, and with quotes around names."""
    paths = _write(tmp_path, [f"{separator.join(header)}\n".encode()])
    with pytest.raises(DataError) as caught:
        file_layout(plan_of(_config(tmp_path, "csv")), (str(paths[0]),))
    assert f"set `separator: {json.dumps(separator)}`" in caught.value.remedy
    assert yaml.safe_load(f"separator: {json.dumps(separator)}") == {"separator": separator}


def test_long_fields_and_many_fields(tmp_path: Path) -> None:
    """Regular expressions may need much time or memory if a repetition backtracks."""
    long = b'1,"u",i,5,0.5\n' + b'1,"' + b'a""' * 100_000 + b'",i,5,0.5\n' + b'"",' * 30_000 + b"\n"
    paths = _write(tmp_path, [b"label,user,item,n,x\n" + long])
    rows, reasons = _of_files(_config(tmp_path, "csv"), paths, 1 << 20)
    assert [row[1] for row in rows.values()] == ["u"]
    assert list(reasons.values()) == ["key:user", "field_count"]


def test_rejected_lines_beyond_the_limit_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The quarantine has the first lines, at least some of each reason; its manifest counts all of them."""
    monkeypatch.setattr(scan_pass, "_KEPT_LINES", 1000)
    monkeypatch.setattr(scan_pass, "_KEPT_OF_REASON", 100)
    good = [b"%d\tu%d\ti\t5\t0.5" % (number % 2, number) for number in range(50)]
    bad = [b"", b"x"] * 750 + [b"1\tu\ti\tx\t1"] * 150 + [b"\xff"] * 2
    config = _config(tmp_path, "tsv").model_copy(update={"quality": Quality(max_bad_share=1.0)})
    _write(tmp_path, [b"\n".join([*good, *bad])])
    run_build(workers_in_this_process(monkeypatch, 1), config, DAY)
    partition = LakePaths(config.lake).quarantine.partition(DAY)
    manifest = read_manifest(partition)
    assert manifest.dropped == {"field_count": 1500, "integer:n": 150, "not_utf8": 2}
    assert manifest.facts["not_kept"] == {"field_count": 500, "integer:n": 50}
    assert (manifest.rows_in, manifest.rows) == (1702, 1102)
    counts = DayCounts.from_manifest(manifest)
    assert (counts.good, counts.bad) == (50, 1652)
    rows = cases.read_rows(partition)
    first, last = 51, 1702
    expected = [*range(first, first + 1000), *range(1551, 1651), last - 1, last]
    assert rows["line_number"].tolist() == expected
    assert (
        "550 of the 1,652 rejected lines of 2026-01-01 are counted, but not stored in the quarantine"
        in caplog.text
    )


def test_texts_of_rejected_lines_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_pass, "_KEPT_BYTES", 1000)
    sample = scan_pass._Sample()
    rejected = rejections_of((line, "json") for line in range(100))
    kept, texts = sample.choose(rejected, lambda lines: ["x" * 30 for _ in lines])
    assert (len(kept), len(texts), sample.not_kept) == (33, 33, {"json": 67})
    kept, _ = sample.choose(rejected, lambda lines: ["x" * 30 for _ in lines])
    assert (len(kept), sample.not_kept) == (0, {"json": 167})


@pytest.mark.parametrize(
    "short, most, example, remedy",
    [
        (
            100,
            1000,
            "the first with the reason integer:n: .*line 102: n has the value 'x'",
            "integer:n: .*null",
        ),
        (1, 1000, "the first with the reason field_count: .*line 2 has 6 fields", "field_count: "),
        (1, 1, r"integer:n 300$", "^correct the raw log"),
    ],
)
def test_the_error_shows_a_stored_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int, most: int, example: str, remedy: str
) -> None:
    """The texts of the first rejected lines reach the limit. Most rejected lines follow them."""
    monkeypatch.setattr(scan_pass, "_KEPT_BYTES", most)
    monkeypatch.setattr(scan_pass, "_SHORT_LINE", short)
    bad = [b"1\tu\ti\t1\t1\t" + b"x" * 100] * 100 + [b"1\tu\ti\tx\t1"] * 300
    config = _config(tmp_path, "tsv")
    _write(tmp_path, [b"\n".join([b"1\tu\ti\t1\t1", *bad])])
    with pytest.raises(DataError, match="400 of 401 rows") as caught:
        run_build(workers_in_this_process(monkeypatch, 1), config, DAY)
    assert re.search(example, caught.value.problem)
    assert re.search(remedy, caught.value.remedy)


PROGRAM = """
import json, resource, sys
from pathlib import Path
from etl.raw.file_splits import split_files
from etl.text.parse_block import file_layout
from etl.text.scan_pass import ScanTask, scan_file_split
from etl.workflow.feature_plan import plan_of
from conf.load import load_config
config, path, most_bytes = load_config(sys.argv[1]), sys.argv[2], int(sys.argv[3])
layout = file_layout(plan_of(config), (path,))
resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
for file_split in split_files([path]):
    for batch in scan_file_split(0, ScanTask(file_split, f"{path}.counts.parquet"), layout, ["n"]):
        pass
    print(json.loads(batch["summary"][0].as_py())["dropped"])
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    "form, lines, most_mib",
    [
        ("tsv", 5_000_000, 512),
        ("jsonl", 150_000, 400),
        pytest.param("jsonl", 2_000_000, 1024, marks=pytest.mark.large),  # DuckDB needs a minute
    ],
)
def test_line_ends_need_little_memory(tmp_path: Path, form: str, lines: int, most_mib: int) -> None:
    """Each rejected line was an entry of a dict, which needs 100 bytes."""
    config = _config(tmp_path, form)
    good = {
        "tsv": b"1\tu\ti\t5\t0.5\n",
        "jsonl": b'{"label": 1, "user": "u", "item": "i", "n": 5, "x": 0.5}\n',
    }
    (path,) = _write(tmp_path, [good[form] + b"\n" * lines], ".gz")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "config.yaml"), str(path), str(most_mib << 20)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    reason = "field_count" if config.log.format == "tsv" else "json"
    assert run.stdout.strip() == str({reason: lines})
