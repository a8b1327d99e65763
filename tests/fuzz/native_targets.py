"""Targets for the compiled library of `etl`: scanners, pages of Parquet, look-ups and counts."""

from __future__ import annotations

import io
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etl.native import library
from etl.native.distinct_values import HashTable, Lookup, Sums, buckets_of
from etl.native.scan import DamagedPageError, PagedColumn, merge_dictionaries, scan, scan_json
from etl.raw.text_values import split_fields
from etl.readers.parquet import WrongPageError, read_paged
from tests.fuzz.inputs import divided, exact
from tests.fuzz.sanitized import load

_LARGEST_COMPARED = 1 << 16  # bytes of an input that Python scans too


class NativeTarget:
    """A target that needs the compiled library of `etl`."""

    def __init__(self, prefixes: Sequence[Path]) -> None:
        load(prefixes[0], library.library)


class Scanner(NativeTarget):
    """The scanner of TSV and CSV."""

    def corpus(self) -> list[bytes]:
        return [
            b"",
            b"1\tu1\ti1\t5\t0.5\n0\tu2\t\t-7\t1e5\r\n" * 20,
            b'label,user\n1,"a,""b"""\n0,"",\n1,\xc3\xa4\n' * 20,
            b"\n" * 300,
            b"\t" * 200 + b"\n" + b"a\tb" * 100,
            b"x" * 100_000 + b"|" + b"y" * 100 + b"\n",
            "".join(f"{number}|v{number % 40}|{number * 7919}\n" for number in range(700)).encode(),
        ]

    def run(self, data: bytes) -> None:
        draw, text = divided(data)
        separator, quoted, width = (
            draw.choice("\t,|; "),
            draw.random() < 0.5,
            draw.choice((1, 2, 3, 5, 9, 70)),
        )
        fields = draw.sample(range(width), draw.randint(0, min(width, 6)))
        scanned = scan(
            memoryview(exact(text)),
            separator,
            width,
            fields,
            quoted,
            lambda lines: split_fields(lines, separator, width, quoted=True),
        )
        for column in scanned.columns.values():
            column.validate(full=True)
        if len(text) <= _LARGEST_COMPARED:
            self._compare(scanned, text, separator, width, quoted)

    @staticmethod
    def _compare(scanned: Any, text: bytes, separator: str, width: int, quoted: bool) -> None:
        """Compares rows and rejected lines with those that Python finds."""
        lines = text.split(b"\n")
        lines = lines if lines[-1] else lines[:-1]
        rows: list[tuple[int, list[bytes] | None]] = []
        broken = {}
        for number, line in enumerate(lines):
            if not _is_utf8(line):
                broken[number] = "not_utf8"
            elif quoted and b'"' in line:
                rows.append((number, None))
            elif len(fields := line.split(separator.encode())) != width:
                broken[number] = "field_count"
            else:
                rows.append((number, fields))
        assert scanned.lines == len(lines)
        assert dict(scanned.broken) == broken
        assert scanned.row_lines.tolist() == [number for number, _ in rows]
        for field, column in scanned.columns.items():
            for (_, of_row), value in zip(rows, _values(column), strict=True):
                assert of_row is None or (of_row[field].decode() or None) == value
            counted = Counter(value for value in _values(column) if value is not None)
            assert (
                dict(zip(column.dictionary.to_pylist(), scanned.counts[field].tolist(), strict=True))
                == counted
            )


class JsonLines(NativeTarget):
    """The scanner of JSON lines. Python reads the lines that it leaves to DuckDB."""

    def corpus(self) -> list[bytes]:
        return [
            b"",
            b'{"a": 1, "b": "x", "o": {"x": 0.5, "y": {"z": true}}}\n{"a":null}\r\n' * 5,
            b'{"a":"true","b":"","a":2,"o":{"x":"\xc3\xa4"},"o":{"x":1}}\n' * 5,
            b'{"b":[1,2,[3]],"o":7}\n{"a":-0.0,"b":1.50,"o":{}}\n{"a":0.1000000000000000055511151231257827}\n',
            b'{"a":"' + b"v" * 5_000 + b'"}\n',
            b"".join(b'{"a":%d,"o":{"x":"%x"}}\n' % (number % 90, number) for number in range(600)),
        ]

    def run(self, data: bytes) -> None:
        draw, text = divided(data)
        known = ["a", "b", "o", "o.x", "o.y.z", "o.y", "", "a.b", "é"]
        names = draw.sample(known, draw.randint(1, 5))
        scanned = scan_json(memoryview(exact(text)), names, lambda left: self._read(left, names, draw))
        lines = text.count(b"\n") + (not text.endswith(b"\n") and len(text) > 0)
        assert len(scanned.is_object) == lines
        assert all(0 <= number < lines for number in scanned.broken)
        for column, counts in zip(scanned.columns, scanned.counts, strict=True):
            column.validate(full=True)
            assert len(column) == lines
            assert counts.sum() == lines - column.null_count
        assert not scanned.is_object[[*scanned.broken]].any()

    @staticmethod
    def _read(
        text: bytes, names: Sequence[str], draw: random.Random
    ) -> tuple[np.ndarray, list[pa.Array], dict[int, str]]:
        """Gives lines that are left over any values, and rejects those that are no UTF-8."""
        lines = text.split(b"\n")[:-1]
        broken = {number: "not_utf8" for number, line in enumerate(lines) if not _is_utf8(line)}
        is_object = np.array([number not in broken for number in range(len(lines))], bool)
        texts = [None, "", "1", "x" * 20]
        values = [
            pa.array(
                [None if number in broken else draw.choice(texts) for number in range(len(lines))],
                pa.string(),
            )
            for _ in names
        ]
        return is_object, values, broken


class Pages(NativeTarget):
    """Pages of Parquet, taken from damaged files, and of bytes that nobody has checked before."""

    def __init__(self, prefixes: Sequence[Path]) -> None:
        super().__init__(prefixes)
        self._files = [
            _parquet(compression, version)
            for compression in ("none", "snappy", "zstd")
            for version in ("1.0", "2.0")
        ]

    def corpus(self) -> list[bytes]:
        pages = [file[: -_footer_bytes(file)] for file in self._files]
        return [*pages, bytes([2, 3 << 1, 2]), bytes([9, 8, 7, 6]) * 40, bytes([4, 0, 0, 0]) * 30]

    def run(self, data: bytes) -> None:
        draw, pages = divided(data)
        if draw.random() < 0.5:
            self._read_file(draw, pages)
        else:
            self._add_pages(draw, pages)

    def _read_file(self, draw: random.Random, pages: bytes) -> None:
        whole = draw.choice(self._files)
        damaged = exact(pages + whole[-_footer_bytes(whole) :])
        footer = pq.read_metadata(pa.BufferReader(whole))
        try:
            read = read_paged(pa.BufferReader(damaged), footer, [0, 1], ["text", "int", "long"])
        except (WrongPageError, pa.ArrowException, OSError):
            return
        for values, counts in read.values():
            _check_column(values, counts)

    @staticmethod
    def _add_pages(draw: random.Random, pages: bytes) -> None:
        kind = draw.choice((pa.string(), pa.int32(), pa.int64()))
        column = PagedColumn(kind, draw.choice((0, 1, 100)), draw.choice((0, 1000)), draw.choice((0, 5000)))
        try:
            for _ in range(draw.randint(1, 3)):
                values, pages = _cut(draw, pages)
                column.begin_chunk(draw.choice((0, 1, 3, 10, 2**31 - 1)), values)
                for _ in range(draw.randint(0, 3)):
                    levels, pages = _cut(draw, pages)
                    indices, pages = _cut(draw, pages)
                    rows = draw.choice((0, 1, 4, 9, 64, 3000))
                    column.add_page(rows, levels if draw.random() < 0.5 else None, indices)
        except DamagedPageError:
            return
        _check_column(*column.result())


class Lookups(NativeTarget):
    """Hash tables in memory, and mapped from files that were changed after they were written."""

    def __init__(self, prefixes: Sequence[Path]) -> None:
        super().__init__(prefixes)
        self._folder = Path(tempfile.mkdtemp())

    def corpus(self) -> list[bytes]:
        return _texts_corpus()

    def run(self, data: bytes) -> None:
        draw, text = divided(data)
        distinct = list(dict.fromkeys(text.split(b"\n")))
        known = distinct[: draw.randint(0, len(distinct))]
        wanted = [*distinct, b"", b"unknown", *(value + b"\0" for value in distinct[:50])]
        expected = {value: index for index, value in enumerate(known)}
        asked, indices = _strings(draw, wanted), [expected.get(value, -1) for value in wanted]
        values = _strings(draw, known)
        assert HashTable.of(values).find(asked).tolist() == indices
        if not known:
            return
        path = self._folder / "table"
        Lookup(values).save(path, np.arange(len(known), dtype=np.int32))
        whole = path.read_bytes()
        if (changed := self._damage(draw, whole)) != whole:
            path.write_bytes(changed)
            try:
                Lookup.load(path)
            except (ValueError, OSError):
                return
            raise AssertionError("a damaged table was loaded")
        loaded, ids = Lookup.load(path)
        assert loaded.find(asked).tolist() == indices
        assert ids.tolist() == [*range(len(known))]

    @staticmethod
    def _damage(draw: random.Random, whole: bytes) -> bytes:
        kind, place = draw.randrange(4), draw.randrange(len(whole))
        if kind == 0:
            return whole[:place]
        if kind == 1:
            return whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :]
        return whole + b"x" if kind == 2 else whole


class Counts(NativeTarget):
    """Sums of value counts, buckets, and dictionaries that are merged."""

    def corpus(self) -> list[bytes]:
        return _texts_corpus()

    def run(self, data: bytes) -> None:
        draw, text = divided(data)
        values = text.split(b"\n")
        self._sum(draw, values)
        self._merge(draw, values)

    @staticmethod
    def _sum(draw: random.Random, values: Sequence[bytes]) -> None:
        sides = draw.randint(1, 3)
        sums = Sums(sides)
        expected: dict[bytes, list[int]] = {}
        last: dict[bytes, int] = {}
        for _ in range(draw.randint(1, 3)):
            part = list(dict.fromkeys(draw.sample(values, draw.randint(0, len(values)))))
            side, counts = draw.randrange(sides), [draw.randrange(2**40) for _ in part]
            days = [draw.randrange(-9, 30_000) for _ in part]
            one_day = draw.random() < 0.3
            days = [days[0]] * len(part) if one_day and part else days
            day = days[0] if one_day and part else np.array(days, np.int32)
            strings = _strings(draw, part)
            sums.add(strings, np.array(counts, np.int64), side, day)
            for value, count, of_value in zip(part, counts, days, strict=True):
                expected.setdefault(value, [0] * sides)[side] += count
                last[value] = max(last.get(value, of_value), of_value)
            buckets = draw.choice((1, 2, 64, 2**31))
            assert all(bucket < buckets for bucket in buckets_of(strings, buckets).tolist())
        distinct, totals, days_of = sums.result()
        values_of_sums = distinct.cast(pa.binary()).to_pylist()
        assert values_of_sums == [*expected]
        assert totals.tolist() == [*expected.values()]
        assert days_of.tolist() == [*last.values()]

    @staticmethod
    def _merge(draw: random.Random, values: Sequence[bytes]) -> None:
        chunks, rows, is_wrong = [], [], False
        for _ in range(draw.randint(0, 3)):
            part = draw.sample(values, draw.randint(0, len(values)))
            count = draw.choice((0, 1, 9, 700)) if part else 0
            codes = [draw.randrange(len(part)) if draw.random() < 0.9 else None for _ in range(count)]
            skipped = draw.randint(0, count)
            if count > skipped and draw.random() < 0.1:
                place = draw.randrange(skipped, count)
                codes[place], is_wrong = draw.choice((len(part), -1, 2**31 - 1, -(2**31))), True
            indices = pa.array(codes, pa.int32()).slice(skipped)
            chunks.append(pa.DictionaryArray.from_arrays(indices, _strings(draw, part), safe=False))
            rows += [
                part[code] or None if code is not None and code in range(len(part)) else None
                for code in codes[skipped:]
            ]
        try:
            merged, counts = merge_dictionaries(chunks)
        except ValueError:
            assert is_wrong
            return
        assert not is_wrong
        decoded = merged.dictionary.cast(pa.binary()).take(merged.indices).to_pylist()
        assert decoded == rows
        known = merged.dictionary.cast(pa.binary()).to_pylist()
        counted = {value: count for value, count in zip(known, counts.tolist(), strict=True) if count}
        assert counted == Counter(row for row in rows if row is not None)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _values(column: pa.DictionaryArray) -> list[str | None]:
    return list(column.dictionary.take(column.indices).to_pylist())


def _check_column(values: pa.DictionaryArray, counts: np.ndarray) -> None:
    """Checks that codes and counts of a column agree. Texts of damaged pages may be no UTF-8."""
    codes = values.indices.drop_null().to_numpy()
    assert np.array_equal(counts, np.bincount(codes, minlength=len(values.dictionary)))


def _cut(draw: random.Random, data: bytes) -> tuple[pa.Buffer, bytes]:
    place = draw.choice((draw.randint(0, len(data)), min(12, len(data))))
    return pa.py_buffer(exact(data[:place])), data[place:]


def _strings(draw: random.Random, values: Sequence[bytes]) -> pa.StringArray:
    """Returns an array of strings of any bytes, sometimes as a part of a longer array."""
    before = draw.choice((0, 0, 3)) if values else 0
    whole = [b"before"] * before + [*values]
    offsets = np.cumsum([0, *map(len, whole)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(exact(b"".join(whole)))]
    return pa.Array.from_buffers(pa.string(), len(whole), buffers, null_count=0).slice(before)


def _texts_corpus() -> list[bytes]:
    return [
        b"",
        b"a\nb\n\nab\nabc\nabcdefgh\nabcdefghi\n\xff\xfe\n\0\n\0\0",
        b"\n".join(b"user %d" % number for number in range(300)),
        b"\n".join(b"v" * number for number in range(60)),
        b"x" * 20_000 + b"\n" + b"x" * 19_999 + b"y",
    ]


def _parquet(compression: str, version: str) -> bytes:
    rows = 400
    random_ = np.random.default_rng(7)
    places = pa.array(random_.integers(0, 40, rows), mask=random_.random(rows) < 0.2)
    texts = pa.array([f"value {number:x}" * (number % 3) for number in range(40)])
    numbers = pa.array(random_.integers(-(2**40), 2**40, 40))
    table = pa.table(
        {
            "text": texts.take(places),
            "int": numbers.cast(pa.int32(), safe=False).take(places),
            "long": numbers.take(places),
        }
    )
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        row_group_size=250,
        data_page_size=100,
        write_batch_size=50,
        compression=compression,
        data_page_version=version,
    )
    return sink.getvalue()


def _footer_bytes(file: bytes) -> int:
    return int.from_bytes(file[-8:-4], "little") + 8
