"""The compiled scanner against lines split by Python."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.native.scan import Scanned, merge_dictionaries, scan
from etl.raw.text_values import split_fields
from tests.etl.raw_oracle import csv_fields

MANY = settings(max_examples=60, deadline=None, derandomize=True, database=None)

# Lengths around 8 bytes, because longer values are hashed; zero bytes; invalid UTF-8 and its limits.
FIELD = st.one_of(
    st.sampled_from(
        [b"", b"a", b"a\0", b"\0", b"12345678", b"123456789", b"x" * 64, b"x" * 65, b"abcdefgh\0"]
    ),
    st.sampled_from([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", "€".encode()]),
    st.sampled_from(["\U0010ffff".encode(), "\ud7ff".encode(), "é".encode(), b"\xf0\x8f\xbf\xbf", b"\x80"]),
    st.binary(max_size=20).map(lambda value: value.replace(b"\n", b"").replace(b"\t", b"")),
)
LINE = st.lists(FIELD, min_size=1, max_size=5).map(b"\t".join)
BLOCK = st.tuples(st.lists(LINE, min_size=1, max_size=40), st.booleans())


def _no_quotes(texts: pa.StringArray) -> tuple[list[pa.Array], pa.Array]:
    raise AssertionError(f"only csv has quotes: {texts}")


def _oracle(block: bytes, width: int) -> tuple[list[int], list[list[str | None]], dict[int, str]]:
    """(line of each row, its fields, line → reason of the others)."""
    row_lines, rows, broken = [], [], {}
    lines = block.removesuffix(b"\n").split(b"\n") if block else []
    for index, line in enumerate(lines):
        try:
            fields = line.decode("utf-8").split("\t")
        except UnicodeDecodeError:
            broken[index] = "not_utf8"
            continue
        if len(fields) != width:
            broken[index] = "field_count"
            continue
        row_lines.append(index)
        rows.append([field or None for field in fields])
    return row_lines, rows, broken


def _columns(scanned: Scanned) -> list[list[str | None]]:
    """The rows of a scan. Also checks the rules of its dictionaries."""
    decoded = []
    for field, column in scanned.columns.items():
        column.validate(full=True)
        values = column.dictionary.to_pylist()
        assert len(set(values)) == len(values)
        assert "" not in values
        texts = column.to_pylist()
        assert dict(zip(values, scanned.counts[field].tolist(), strict=True)) == Counter(
            text for text in texts if text is not None
        )
        firsts = [text for text in dict.fromkeys(texts) if text is not None]
        assert values == firsts, "codes follow first appearance"
        decoded.append(texts)
    return [list(row) for row in zip(*decoded, strict=True)]


@MANY
@given(drawn=BLOCK, width=st.integers(1, 4))
def test_rows_reasons_and_dictionaries_are_those_of_split_lines(
    drawn: tuple[list[bytes], bool], width: int
) -> None:
    lines, closed = drawn
    block = b"\n".join(lines) + (b"\n" if closed or not lines[-1] else b"")
    scanned = scan(block, "\t", width, range(width), False, _no_quotes)
    row_lines, rows, broken = _oracle(block, width)
    assert scanned.lines == block.removesuffix(b"\n").count(b"\n") + 1
    assert scanned.row_lines.tolist() == row_lines
    assert dict(scanned.broken) == broken
    assert _columns(scanned) == rows


@pytest.mark.parametrize("rows", [255, 256, 257, 3000])
def test_many_rows_and_values(rows: int) -> None:
    draw = random.Random(rows)
    table = [
        [
            draw.choice(["", "a", "b"]),
            f"{draw.randrange(2 * rows):x}",
            "v" * draw.randrange(1, 30),
            str(row),
        ]
        for row in range(rows)
    ]
    block = "".join("\t".join(row) + "\n" for row in table).encode()
    scanned = scan(block, "\t", 4, range(4), False, _no_quotes)
    assert _columns(scanned) == [[field or None for field in row] for row in table]


def test_only_wanted_fields_are_returned_and_views_outlive_the_block() -> None:
    lines = b"1,x,z\n2,,w\n3,x,w\n"
    scanned = scan(memoryview(b"--" + lines)[2:], ",", 3, [1], False, _no_quotes)
    assert list(scanned.columns) == [1]
    assert scanned.columns[1].null_count == 1
    column, counts = scanned.columns[1], scanned.counts[1]
    del scanned, lines
    assert column.to_pylist() == ["x", None, "x"]
    assert counts.tolist() == [2]
    assert pc.value_counts(column.cast(pa.string()))[0].as_py() == {"values": "x", "counts": 2}


def test_an_empty_block_has_no_line() -> None:
    scanned = scan(b"", "\t", 2, [0, 1], False, _no_quotes)
    assert (scanned.lines, len(scanned.row_lines), scanned.columns[0].to_pylist()) == (0, 0, [])


QUOTED = st.one_of(
    st.sampled_from(['"a"', '"a,b"', '"a""b"', '""', '"', 'a"b', '"a"b', "plain", "", '"é"', '" x "']),
    st.text(st.sampled_from('ab,"'), max_size=5),
)


@MANY
@given(lines=st.lists(st.lists(QUOTED, min_size=1, max_size=3).map(",".join), min_size=1, max_size=30))
def test_lines_with_quotes_are_split_by_the_rule_of_csv(lines: list[str]) -> None:
    block = "".join(line + "\n" for line in lines).encode()
    scanned = scan(block, ",", 2, [0, 1], True, lambda texts: split_fields(texts, ",", 2, quoted=True))
    rows, bad = [], {}
    for index, line in enumerate(lines):
        fields = csv_fields(line, ",")
        if fields is None:
            bad[index] = "quote"
        elif len(fields) == 2:
            rows.append([field or None for field in fields])
        else:
            bad[index] = "field_count"
    unsplit = sorted(scanned.unsplit)
    good = np.setdiff1d(np.arange(len(scanned.row_lines)), unsplit)
    decoded = list(zip(*(scanned.columns[field].to_pylist() for field in (0, 1)), strict=True))
    assert [list(decoded[row]) for row in good] == rows
    reasons = {int(scanned.row_lines[row]): reason for row, reason in scanned.unsplit.items()}
    assert {**scanned.broken, **reasons} == bad
    assert all(decoded[row] == (None, None) for row in unsplit)


TEXTS = st.lists(
    st.none() | st.sampled_from(["", "a", "b", "ü", "a value of many bytes", "a value of other bytes"])
)


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(0, 3))
def test_dictionaries_are_merged_and_their_values_counted(
    parts: list[list[str | None]], skipped: int
) -> None:
    chunks = [pa.array(part, pa.string()).dictionary_encode()[skipped:] for part in parts]
    merged, counts = merge_dictionaries(chunks)
    expected = [value or None for part in parts for value in part[skipped:]]
    assert merged.to_pylist() == expected
    values = merged.dictionary.to_pylist()
    assert len(set(values)) == len(values)
    assert dict(zip(values, counts.tolist(), strict=True)) == {
        value: expected.count(value) for value in values
    }


def test_codes_beyond_the_dictionary_are_refused() -> None:
    broken = pa.DictionaryArray.from_arrays(pa.array([5], pa.int32()), pa.array(["a"]), safe=False)
    with pytest.raises(ValueError, match="no value"):
        merge_dictionaries([broken])
