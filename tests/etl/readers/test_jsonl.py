"""The reader of JSON lines, compared with Python's json module, and with files that others wrote."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import DataError
from conf.raw_types import RawTable
from etl.raw.rejected_lines import RejectedLine, description, remedy, values_of
from etl.readers.base import RawBlock, open_table
from etl.readers.jsonl import JsonLinesReader

COLUMNS = [
    {"name": "n", "type": "int"},
    {"name": "x", "type": "float"},
    {"name": "s", "type": "string"},
    {"name": "b", "type": "bool"},
    {"name": "d", "type": "date"},
    {"name": "t", "type": "timestamp"},
    {"name": "ns", "type": "list<int>"},
    {"name": "ss", "type": "list<string>"},
    {"name": "inner", "source": "a.b", "type": "int"},
]


def a_table(columns: Any = COLUMNS, **more: Any) -> RawTable:
    return RawTable.model_validate({"path": "x", "format": "jsonl", "columns": columns, **more})


def parse(text: bytes, table: RawTable | None = None, wanted: tuple[str, ...] | None = None) -> RawBlock:
    table = table or a_table()
    return JsonLinesReader(table, ()).parse(text, table.names if wanted is None else wanted)


def rows_of(block: RawBlock) -> list[dict[str, Any]]:
    return pa.table(dict(block.columns)).to_pylist()


def a_line(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


def test_values_of_every_type() -> None:
    line = a_line(
        n=5,
        x=1.5,
        s="a",
        b=True,
        d="1970-01-03",
        t="1970-01-01T00:00:01Z",
        ns=[1, None, 2],
        ss=["x", "y"],
        a={"b": 7},
    )
    block = parse(line)
    assert rows_of(block) == [
        {"n": 5, "x": 1.5, "s": "a", "b": 1, "d": 2, "t": 10**6, "ns": [1, 2], "ss": ["x", "y"], "inner": 7}
    ]
    assert (block.lines, block.row_lines.tolist(), block.malformed, block.broken) == (1, [0], {}, {})


@pytest.mark.parametrize(
    "values, expected",
    [
        ({}, {}),
        (dict.fromkeys(["n", "x", "s", "b", "d", "t", "ns", "ss", "a"]), {}),
        ({"n": "5", "x": "1e3", "s": 7}, {"n": 5, "x": 1000.0, "s": "7"}),
        ({"n": True, "x": False, "s": True, "b": 0}, {"n": 1, "x": 0.0, "s": "true", "b": 0}),
        ({"n": 17.0, "s": ""}, {"n": 17}),
        ({"n": 2**63 - 1, "s": "true"}, {"n": 2**63 - 1, "s": "true"}),
        ({"s": 'é "\\\n\t\u2028 \U0001f600'}, {"s": 'é "\\\n\t\u2028 \U0001f600'}),
        ({"s": "null", "ss": ["null", None, "a,b"]}, {"s": "null", "ss": ["null", "a,b"]}),
        ({"ns": [], "ss": []}, {"ns": [], "ss": []}),
        ({"ns": "1|2", "ss": "a|b"}, {"ns": [1, 2], "ss": ["a", "b"]}),
    ],
)
def test_conversions(values: dict[str, Any], expected: dict[str, Any]) -> None:
    block = parse(a_line(**values))
    assert block.malformed == {}
    empty = dict.fromkeys(a_table().names)
    assert rows_of(block) == [{**empty, **expected}]


@pytest.mark.parametrize(
    "values, reason",
    [
        ({"n": 1.5}, "integer:n"),
        ({"n": 2**63}, "integer:n"),
        ({"n": "a"}, "integer:n"),
        ({"x": 1e300}, "number:x"),
        ({"b": "maybe"}, "boolean:b"),
        ({"d": 5}, "date:d"),
        ({"t": "yesterday"}, "timestamp:t"),
        ({"s": {"a": 1}}, "json:s"),
        ({"s": ["a"]}, "json:s"),
        ({"n": [1]}, "json:n"),
        ({"ns": [1, "a"]}, "list:ns"),
        ({"ns": [[1]]}, "list:ns"),
        ({"ss": ["a", {"b": 1}]}, "json:ss"),
        ({"ss": {"a": 1}}, "json:ss"),
        ({"a": {"b": "x"}}, "integer:inner"),
    ],
)
def test_values_that_do_not_fit(values: dict[str, Any], reason: str) -> None:
    block = parse(a_line(n=1) + a_line(**values) + a_line(n=2))
    assert block.malformed == {1: reason}
    column = {"inner": "inner"}.get(reason.split(":")[1], reason.split(":")[1])
    assert rows_of(block)[1][column] is None
    assert [row["n"] for row in rows_of(block)][::2] == [1, 2]


@pytest.mark.parametrize(
    "line", [b"", b" ", b"5", b"[1]", b'"a"', b"null", b'{"n":', b'{"n":1}{"n":2}', b"n=1", b'{"n": \x01}']
)
def test_lines_that_are_no_objects(line: bytes) -> None:
    block = parse(a_line(n=1) + line + b"\n" + a_line(n=2))
    assert block.broken == {1: "json"}
    assert block.row_lines.tolist() == [0, 2]
    assert [row["n"] for row in rows_of(block)] == [1, 2]
    assert block.texts([1]) == [line.decode()]


def test_bytes_that_are_not_utf8() -> None:
    block = parse(a_line(s="é") + b'{"s": "\xff"}\n' + b'{"s": "b"}')
    assert block.broken == {1: "not_utf8"}
    assert [row["s"] for row in rows_of(block)] == ["é", "b"]
    assert block.lines == 3


def test_texts_that_stand_for_null() -> None:
    table = a_table(
        [{"name": "n", "type": "int"}, {"name": "s", "type": "string"}], null_values=["", "-1", "NULL"]
    )
    assert (
        rows_of(parse(a_line(n=-1, s="NULL") + a_line(n="-1", s="-1"), table)) == [{"n": None, "s": None}] * 2
    )


def test_strings_that_are_not_wanted_are_checked_but_not_returned() -> None:
    block = parse(a_line(s="a") + a_line(s={}), wanted=("n",))
    assert "s" not in block.columns
    assert block.malformed == {1: "json:s"}


def test_unusual_names() -> None:
    names = ["it's", "a/b", "c~d", '"q"', "x y", "{z}", "`"]
    columns = [{"name": f"c{place}", "source": name, "type": "int"} for place, name in enumerate(names)]
    block = parse(a_line(**{name: place for place, name in enumerate(names)}), a_table(columns))
    assert rows_of(block) == [{f"c{place}": place for place in range(len(names))}]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=6)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["n", "x", "s", "ns", "ss", "other"]), VALUES), min_size=1, max_size=8
    )
)
def test_random_objects_agree_with_python(objects: list[dict[str, Any]]) -> None:
    """Python's json module and plain rules give the same values and the same rejected rows."""
    table = a_table([column for column in COLUMNS if column["name"] in ("n", "x", "s", "ns", "ss")])
    text = b"".join(json.dumps(one).encode() + b"\n" for one in objects)
    block = parse(text, table)
    assert len(block.broken) + len(block.row_lines) == len(objects)
    for place, (line, row) in enumerate(zip(block.row_lines.tolist(), rows_of(block), strict=True)):
        one = objects[line]
        for name, kind in (("s", str), ("n", int)):
            value = one.get(name)
            if type(value) is kind and (kind is str or -(2**63) <= value < 2**63):
                assert row[name] == (None if value == "" else value)
            if isinstance(value, list | dict):
                assert row[name] is None
                assert place in block.malformed
        if isinstance(one.get("ss"), list) and all(isinstance(v, str) or v is None for v in one["ss"]):
            assert row["ss"] == [v for v in one["ss"] if v]
        if isinstance(one.get("ns"), list) and all(type(v) is int and abs(v) < 2**63 for v in one["ns"]):
            assert row["ns"] == one["ns"]
        if isinstance(one.get("x"), float) and abs(one["x"]) < 3e38:
            assert row["x"] == pytest.approx(one["x"], rel=1e-15)


# Lines that differ from plain ones in one thing, which the compiled scanner must leave to DuckDB or read as DuckDB does.
UNUSUAL = [
    b"{}",
    b"{ }",
    b' {"n": 1}',
    b'{"n": 1} ',
    b'{"n": 1} x',
    b'{"n": 1,}',
    b'{"n": 1, "n": 2}',
    b'{"n": null, "n": 2}',
    b'{"n": [1], "n": 2}',
    b'{"n": 1 "s": "a"}',
    b'{"n": 01}',
    b'{"n": -0}',
    b'{"n": -0.0, "x": -0.0}',
    b'{"n": 1.0, "x": 1.0, "s": 1.0}',
    b'{"n": 1e3, "x": 1E3, "s": 1e3}',
    b'{"n": 1., "x": 1}',
    b'{"n": +1}',
    b'{"x": 0.001, "s": 0.001}',
    b'{"x": 1.50, "s": 1.50}',
    b'{"x": 0.0000001, "s": 0.0000001}',
    b'{"x": 123456789012345.6, "s": 123456789012345.6}',
    b'{"x": 0.30000000000000004, "s": 0.30000000000000004}',
    b'{"x": 0.3000000000000000444, "s": 0.3000000000000000444}',
    b'{"x": 12.345678901234567, "s": 12.345678901234567}',
    b'{"x": 12.3456789012345678, "s": 12.3456789012345678}',
    b'{"x": 100000.00000000001, "s": -100000.00000000001}',
    b'{"n": 999999999999999999, "s": 999999999999999999}',
    b'{"n": 9223372036854775808, "s": 99999999999999999999}',
    b'{"n": NaN}',
    b'{"x": Infinity}',
    b'{"n": tru}',
    b'{"n": truex}',
    b'{"n": true, "s": true}',
    b'{"n": "true", "s": "true"}',
    b'{"s": "null", "n": "null"}',
    b'{"s": "false", "x": false}',
    b'{"s": "[1]", "ns": "[1]", "ss": "[a]"}',
    b'{"s": "{", "ns": "{}"}',
    b'{"s": "", "ns": ""}',
    b'{"s": "5", "n": "5"}',
    b'{"s": "nan", "n": "n", "x": "nan"}',
    b'{"s": "a\\u0062"}',
    b'{"\\u0073": "a"}',
    b'{"s": "\x01"}',
    b'{"s": "\x7f/"}',
    b'{"s": "a}',
    b'{"s": "a long text of more than sixteen bytes", "n": 1}',
    b'{"s": "a long text of m\x01re than sixteen bytes", "n": 1}',
    '{"s": "ein längerer Text über 16 Bytes, nicht 😀"}'.encode(),
    '{"ñ": 1, "s": "ü"}'.encode(),
    b'{"ns": [1,2], "ss": ["a","b"]}',
    b'{"ns": [1, 2], "ss": [ "a" ,"b"]}',
    b'{"ns": [1.50,"2",null,true], "ss": [1.50,"2",null,true]}',
    b'{"ns": [], "ss": [""]}',
    b'{"ns": [1,], "ss": [[1]]}',
    b'{"a": {"b": 5}, "s": {"b": 1}}',
    b'{"a": 5, "b": 6}',
    b'{"a": [5]}',
    b'{"a": {"b": {"b": 1}}}',
    b'{"a": {"b": 5}, "a": {"b": 6}}',
    b'{"a": 5, "a": {"b": 6}}',
    b'{"a": {"c": 5}, "a": {"b": 6}}',
    b'{"a": {"b": 5, "b": 6}}',
    b'{"a": {"c": [{"b": 1}], "b": 7}, "n": 1}',
    b'{"a": { "b" : 5 } , "n": 1}',
    b'{"a": {"b": 1.50, "d": 2}}',
    b'{"a": {"b": 5,}}',
    b'{"a": {"b": 5}',
    b'{"b": 5, "a": {}}',
    b'{"a.b": 5}',
    b'{"other": {"x": [1, {"y": "z"}], "n": 7}, "n": 1}',
    b'{"other": {"x": [1, {"y": "z"]}, "n": 7}, "n": 1}',
    b'{"other": ' + b"[" * 40 + b"]" * 40 + b', "n": 1}',
    b'{"n": 1}\t',
    b"",
    b"[1]",
    b'{"s": "\xff"}',
]


def _by_duckdb(text: bytes, table: RawTable, monkeypatch: pytest.MonkeyPatch) -> RawBlock:
    with monkeypatch.context() as patch:
        patch.setattr("etl.readers.jsonl.is_built", lambda: False)
        return parse(text, table)


def _assert_equal(block: RawBlock, expected: RawBlock) -> None:
    assert (block.lines, block.row_lines.tolist()) == (expected.lines, expected.row_lines.tolist())
    assert (dict(block.broken), dict(block.malformed)) == (dict(expected.broken), dict(expected.malformed))
    assert [repr(row) for row in rows_of(block)] == [repr(row) for row in rows_of(expected)]
    for name, counts in block.counts.items():
        values = block.columns[name].dictionary
        codes = block.columns[name].indices.drop_null().to_numpy(zero_copy_only=False)
        assert counts.tolist() == np.bincount(codes, minlength=len(values)).tolist(), name
        assert len(values.unique()) == len(values), name


@pytest.mark.parametrize("line", UNUSUAL)
def test_the_scanner_reads_unusual_lines_as_duckdb(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table()
    text = a_line(n=1, s="a", x=0.5) + line + b"\n" + a_line(n=2, s="5", ns=[3])
    _assert_equal(parse(text, table), _by_duckdb(text, table, monkeypatch))


def test_the_scanner_reads_all_unusual_lines_together(monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table()
    text = b"\n".join(UNUSUAL * 20)
    _assert_equal(parse(text, table), _by_duckdb(text, table, monkeypatch))


def test_deep_paths_and_columns_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [
        {"name": "c", "source": "a.b.c", "type": "int"},
        {"name": "d", "source": "a.b.d.e", "type": "string"},
        {"name": "a", "type": "string"},
        {"name": "again", "source": "a.b.c", "type": "string"},
        {"name": "x", "source": "a.x", "type": "int", "optional": True},
    ]
    table = a_table(columns)
    lines = [
        b'{"a":{"b":{"c":1,"d":{"e":"f"}}}}',
        b'{"a":{"x":3,"b":{"c":2}}}',
        b'{"a":"text"}',
        b'{"a":{"b":[1]}}',
        b'{"a":[{"b":1}]}',
        b'{"a":{"b":{"d":{"e":[]}}}}',
        b'{"c":1}',
    ]
    for of_table in (table, a_table([column for column in columns if column["name"] != "a"])):
        text = b"\n".join(lines * 3)
        _assert_equal(parse(text, of_table), _by_duckdb(text, of_table, monkeypatch))


def _mutated(line: bytes, place: int, byte: int) -> bytes:
    place %= len(line)
    return line[:place] + bytes([byte]) + line[place + 1 :]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(["n", "x", "s", "ns", "ss", "a", "other"]), VALUES, max_size=5),
            st.booleans(),
            st.none() | st.tuples(st.integers(0, 200), st.sampled_from(b'0e.-+,:"\\[]{} atn\x00\xc3')),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_the_scanner_reads_damaged_lines_as_duckdb(
    lines: list[tuple[dict[str, Any], bool, tuple[int, int] | None]],
) -> None:
    """Random objects, written with blanks or without, of which a byte may be replaced."""
    texts = []
    for values, compact, change in lines:
        separators = (",", ":") if compact else (", ", ": ")
        line = json.dumps(values, separators=separators, ensure_ascii=not compact).encode(errors="replace")
        texts.append(_mutated(line, *change) if change else line)
    text = b"\n".join(texts)
    with pytest.MonkeyPatch.context() as patch:
        _assert_equal(parse(text), _by_duckdb(text, a_table(), patch))


def test_a_plain_line_needs_no_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("DuckDB reads a plain line")

    monkeypatch.setattr("etl.readers.jsonl._tokens", refuse)
    table = a_table([COLUMNS[0], COLUMNS[1], COLUMNS[2], COLUMNS[-1]])
    plain = '{"n": 1, "x":0.25,"s":"ü", "a": {"c": [1], "b": 7}}\n'.encode()
    block = parse(plain * 3 + a_line(s="a", other={"b": [1]}), table)
    assert rows_of(block) == [{"n": 1, "x": 0.25, "s": "ü", "inner": 7}] * 3 + [
        {"n": None, "x": None, "s": "a", "inner": None}
    ]
    assert block.counts["s"].tolist() == [3, 1]


def write(path: Path, writer: str, frame: pd.DataFrame) -> None:
    if writer == "pandas":
        frame.to_json(path, orient="records", lines=True)
    elif writer == "polars":
        pl.from_pandas(frame).write_ndjson(path)
    else:
        duckdb.sql(f"COPY (SELECT * FROM frame) TO '{path}' (FORMAT json)")


@pytest.mark.parametrize("writer", ["pandas", "polars", "duckdb"])
def test_files_of_other_writers(tmp_path: Path, writer: str) -> None:
    """The blocks of several splits are the table, and equal what DuckDB reads."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"n": rng.integers(-(2**53), 2**53, 3000), "s": rng.choice(["a", 'q"\\', "ö", "\n"], 3000)}
    )
    path = tmp_path / "log.jsonl"
    write(path, writer, frame)
    reader = open_table(a_table(COLUMNS[:1] + COLUMNS[2:3]), (str(path),))
    splits = reader.splits(20_000)
    assert len(splits) > 3
    blocks = [block for split in splits for block in reader.blocks(split, ["n", "s"])]
    assert sum(block.lines for block in blocks) == 3000
    values = pa.concat_tables(
        pa.table({name: block.columns[name].dictionary_decode() for name in ("n", "s")}) for block in blocks
    )
    expected = duckdb.sql(f"SELECT n, s FROM read_json('{path}', format='newline_delimited')").fetchall()
    assert list(zip(values["n"].to_pylist(), values["s"].to_pylist(), strict=True)) == expected
    assert values["n"].to_pylist() == frame["n"].tolist()


def test_a_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(a_line(n=1) + a_line(n=2)))
    reader = open_table(a_table(COLUMNS[:1]), (str(path),))
    (split,) = reader.splits()
    assert [row["n"] for block in reader.blocks(split, ["n"]) for row in rows_of(block)] == [1, 2]


def test_the_message_about_missing_fields_says_where_they_were_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(a_line(m=1) * 10 + a_line(n=2))
    open_table(a_table(COLUMNS[:1]), (str(path),))
    monkeypatch.setattr("etl.readers.jsonl._HEAD_BYTES", 20)
    with pytest.raises(DataError, match=r"\(only the first 20 bytes of each file were searched\)") as caught:
        open_table(a_table(COLUMNS[:1]), (str(path),))
    assert "first occurs later in the files" in caught.value.remedy


def test_missing_fields_are_found_when_the_files_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(a_line(m=1) + a_line(m=2, s=None))
    with pytest.raises(DataError, match=r"no line has the fields \['n'\]; the first line has \['m'\]"):
        open_table(a_table([COLUMNS[0], COLUMNS[2]]), (str(path),))
    optional = {**COLUMNS[0], "optional": True}
    reader = open_table(a_table([optional, COLUMNS[2]]), (str(path),))
    assert [row["n"] for block in reader.blocks(reader.splits()[0], ["n"]) for row in rows_of(block)] == [
        None,
        None,
    ]


@pytest.mark.processes
@pytest.mark.parametrize("optional", [False, True])
def test_names_with_points_are_refused_when_the_files_are_opened(tmp_path: Path, optional: bool) -> None:
    """A path such as `a.b` does not find them, so an optional column would be null in all rows."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(a_line(n=1, **{"a.b": 2}))
    inner = {**COLUMNS[-1], "optional": optional}
    with pytest.raises(DataError, match=r"the name of the field 'a\.b' contains a dot") as caught:
        open_table(a_table([COLUMNS[0], inner]), (str(path),))
    _, program, _ = caught.value.remedy.split("'")
    if (jq := shutil.which("jq")) is not None:
        path.write_bytes(subprocess.run([jq, "-c", program, path], capture_output=True, check=True).stdout)
        reader = open_table(a_table([COLUMNS[0], inner]), (str(path),))
        (block,) = reader.blocks(reader.splits()[0], ["n", "inner"])
        assert rows_of(block) == [{"n": 1, "inner": 2}]
    path.write_bytes(a_line(n=1, a={"b": 3}, **{"a.b": 2}))
    open_table(a_table([COLUMNS[0], inner]), (str(path),))


def test_a_file_that_is_one_array(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('[{"n": 1},\n {"n": 2}]\n')
    with pytest.raises(DataError, match="none of the first 2 lines is a JSON object"):
        open_table(a_table(COLUMNS[:1]), (str(path),))


def test_errors_explain_rejected_rows() -> None:
    table = a_table()
    broken = RejectedLine("f", 3, "json", "{")
    assert description(table, broken) == "line 3 is not a JSON object: '{'"
    assert "one JSON object in each line" in remedy(table, "log", broken)
    inner = RejectedLine("f", 4, "integer:inner", '{"a": {"b": "x"}}')
    assert "which is not an integer" in description(table, inner)
    assert values_of(table, [inner]) == ["'x'"]
    nested = RejectedLine("f", 5, "json:s", '{"s": [1]}')
    assert (
        description(table, nested) == "line 5: s has the value '[1]', which is an object, or an array in a "
        "column without a list type"
    )
