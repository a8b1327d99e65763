"""Reads JSON lines (`jsonl`): each line is a JSON object.

The compiled scanner (etl/native/json.cpp) finds the values of plain lines. DuckDB reads all other lines, such
as lines with escapes. If the compiled library is missing, DuckDB reads all lines. Each distinct value is
converted once, by these rules:

* `source` of a column is a path: `a.b` is the field `b` of the object in the field `a`.
* A field that a line lacks is null, and so is a JSON null. This also holds for a column that is not
  `optional`.
* A string is converted like a field of a text file; the setting `null_values` applies. A number is converted
  like its text, so the string "5" and the number 5 are equal. The text of a number is its shortest notation,
  so 1.50 becomes 1.5.
* true and false become 1 and 0 in numeric columns, and the strings `true` and `false` in string columns.
* An array fits only the types list<int> and list<string>. Null elements of an array are dropped. A row is
  rejected with the reason `json:<column>` if the column has an object, or an array that does not fit.
* A line that is not a JSON object, such as an empty line, is rejected with the reason `json`. DuckDB's parser
  accepts a comma after the last field. If several fields have the same name, the first is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from conf.raw_types import LIST_TYPES, NUMBER_TYPES, POINT, Column, Encoding, EventTime, RawTable
from etl.native.library import is_built
from etl.native.scan import RejectedRows, ScannedJson, scan_json
from etl.raw.file_splits import FILE_SPLIT_BYTES, FileSplit, read_blocks, split_files
from etl.raw.text_values import typed_column, with_decimal_points
from etl.readers.base import RawBlock, TableReader, map_in_threads
from etl.readers.text import rows_with, texts_of_lines, without_null_values

if TYPE_CHECKING:
    import duckdb

BROKEN, NOT_UTF8 = "json", "not_utf8"
_HEAD_BYTES = 2**20  # number of bytes at the start of each file in which the reader looks for the columns
_QUOTE, _OBJECT, _ARRAY = ord('"'), ord("{"), ord("[")
# A program for jq that replaces each field such as `a.b` by the field b of the object a.
_JQ_NESTED = (
    'walk(if type == "object" then reduce to_entries[] as $one '
    '({}; setpath($one.key | split("."); $one.value)) else . end)'
)
_MOST_SHOWN = 20  # a message about a line names at most this number of its fields


@dataclass(frozen=True)
class JsonLinesReader(TableReader):
    """Reads `jsonl`."""

    @classmethod
    def open(
        cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None
    ) -> JsonLinesReader:
        """Looks for the columns in the first lines of the files (1 MiB of each), until every column is found.

        Raises:
            DataError: the first lines of a file contain no JSON object, or a column that is not optional is
                in none of the lines read.
        """
        missing = {column.source_name for column in table.columns if not column.optional}
        first: str | None = None
        for path in paths:
            head = _head(path, table.encoding)
            if head is None:
                continue
            names = sorted(missing)
            is_object, tokens = _tokens(head, names)
            objects = np.flatnonzero(is_object)
            if not len(objects):
                raise DataError(
                    f"{path}: none of the first {len(head)} lines is a JSON object; the first is "
                    f"{head[0].as_py()[:100]!r}",
                    "deliver one JSON object in each line, without an array around them; or correct `format` "
                    "of this table in the configuration",
                )
            first = first or head[int(objects[0])].as_py()
            missing -= {
                name for name, values in zip(names, tokens, strict=True) if values.null_count < len(values)
            }
            if not missing:
                break
        present = [] if first is None else _fields_of(first)
        with_points = [one.source_name for one in table.columns if "." in one.source_name]
        if first is not None and (names := [name for name in with_points if name in present]):
            _, tokens = _tokens(pa.array([first]), names)
            unread = [name for name, token in zip(names, tokens, strict=True) if token.null_count]
            refuse_names_with_points(paths[0], unread)
        if missing and present:
            raise DataError(
                f"{paths[0]}: no line has the fields {sorted(missing)}; the first line has "
                f"{present[:_MOST_SHOWN]} (only the first {_HEAD_BYTES:,} bytes of each file were searched)",
                "correct the names in the configuration (`source`, or `name` if `source` is not set; "
                "`a.b` is the field b of the object a); or set `optional: true` for a field that all lines "
                "may lack, or that first occurs later in the files",
            )
        return cls(table, paths)

    def splits(self, split_bytes: int | None = None) -> list[FileSplit]:
        """Returns ranges of bytes of the files. A compressed file is one split."""
        return split_files(self.paths, split_bytes or FILE_SPLIT_BYTES, self.table.max_expansion)

    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of the lines that begin in the range of bytes."""
        yield from map_in_threads(
            read_blocks(file_split, encoding=self.table.encoding),
            partial(self.parse, wanted=wanted),
            file_split.threads,
        )

    def parse(self, block: bytes | memoryview, wanted: Collection[str]) -> RawBlock:
        """Parses a block of whole lines, which end with LF. The last line may lack the LF."""
        names = [*dict.fromkeys(column.source_name for column in self.table.columns)]
        scanned = _scan(block, names)
        is_object, lines = scanned.is_object, len(scanned.is_object)
        rejected = RejectedRows(lines)
        rejected.add_all(scanned.broken)
        rejected.add(np.flatnonzero(~is_object), BROKEN)
        broken, rows = rejected.result(), rejected.good
        malformed = RejectedRows(len(rows))
        columns: dict[str, pa.Array] = {}
        counts: dict[str, np.ndarray] = {}
        for column in self.table.columns:
            place = names.index(column.source_name)
            encoded = scanned.columns[place]
            if broken:  # leave out the values of broken lines
                encoded = pa.DictionaryArray.from_arrays(
                    encoded.indices.take(pa.array(rows)), encoded.dictionary
                )
            # The caller does not need the values of this column. Only reject its objects and arrays.
            if column.type == "string" and column.name not in wanted:
                _reject(malformed, encoded, column)
                continue
            values, reasons = typed_tokens(encoded.dictionary, column, self.table)
            bad = np.flatnonzero(reasons.is_valid().to_numpy(zero_copy_only=False))
            if len(bad):
                at = rows_with(encoded, bad)
                of_rows = reasons.take(encoded.indices.take(pa.array(at)))
                for reason in of_rows.unique().to_pylist():
                    has_reason = pc.equal(of_rows, reason).to_numpy(zero_copy_only=False)
                    malformed.add(at[has_reason], reason)
            if column.type in LIST_TYPES:
                columns[column.name] = values.take(encoded.indices)
                continue
            if column.type == "string" and not (_first_bytes(encoded.dictionary) == _QUOTE).any():
                # No text has quotes to remove, so different texts remain different values.
                columns[column.name] = without_null_values(encoded.indices, values)
            else:
                columns[column.name] = _distinct(encoded.indices, values)
            if len(columns[column.name].dictionary) == len(values):
                counts[column.name] = scanned.counts[place]
        return RawBlock(
            len(block),
            lines,
            rows,
            columns,
            counts,
            broken,
            malformed.result(),
            partial(texts_of_lines, block),
        )


def refuse_names_with_points(path: str, names: Sequence[str]) -> None:
    """Raises DataError if a field's name contains a dot, because a dot in `source` separates parts of a path.

    Args:
        path: the path of the file.
        names: the names of fields in its JSON objects, such as `user.id`, as `pandas.json_normalize` writes
            them.
    """
    name = next((name for name in names if "." in name), None)
    if name is None:
        return
    file = path.rsplit("/", 1)[-1]
    raise DataError(
        f"{path}: the name of the field {name!r} contains a dot; readers of JSON lines look for the field "
        f"{name.split('.', 1)[1]!r} in the object {name.split('.', 1)[0]!r}",
        f"convert such fields to objects: `jq -c '{_JQ_NESTED}' {file} > nested_{file}`",
    )


def _scan(block: bytes | memoryview, names: Sequence[str]) -> ScannedJson:
    """Finds the fields `names` in the lines of a block, and returns their values as JSON texts."""

    def read_lines(text: bytes | memoryview) -> tuple[np.ndarray, list[pa.Array], dict[int, str]]:
        lines, broken = _lines_of(text)
        is_object, tokens = _tokens(lines, names)
        if broken:
            is_object[list(broken)] = False
        if not is_object.all():  # DuckDB extracts values even from some texts that are not objects
            kept, null = pa.array(is_object), pa.scalar(None, pa.string())
            tokens = [pc.if_else(kept, of_column, null) for of_column in tokens]
        return is_object, tokens, broken

    if is_built():
        return scan_json(block, names, read_lines)
    is_object, tokens, broken = read_lines(block)
    columns = [of_column.dictionary_encode() for of_column in tokens]
    counts = [
        np.bincount(
            encoded.indices.drop_null().to_numpy(zero_copy_only=False), minlength=len(encoded.dictionary)
        )
        for encoded in columns
    ]
    return ScannedJson(columns, counts, is_object, broken)


def _distinct(indices: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    """Returns a dictionary array whose dictionary has each value once, and no null.

    Args:
        indices: (n,) int32: for each row, the index of its value in `values`, or null.
        values: the typed values. Different texts may have the same value.
    """
    encoded = values.dictionary_encode()
    if len(encoded.dictionary) == len(values):
        return pa.DictionaryArray.from_arrays(indices, values)
    return pa.DictionaryArray.from_arrays(encoded.indices.take(indices), encoded.dictionary)


def typed_tokens(tokens: pa.Array, column: Column, table: RawTable) -> tuple[pa.Array, pa.Array]:
    """Converts n texts of JSON values to the type of a column.

    Args:
        tokens: (n,) strings: texts of JSON values, or null. A JSON string may be passed without its quotes,
            unless the text would then be another JSON value, such as 5 or true.
        column: name, type, time format and separator of elements.
        table: the settings of the table, such as null values, decimal separator and time zone.

    Returns:
        n values, and n reasons. A value that does not fit the type of the column is null and has a reason.
        All other reasons are null.
    """
    first = _first_bytes(tokens)
    is_list = (first == _ARRAY) if column.type in LIST_TYPES else np.zeros(len(tokens), bool)
    nested = ((first == _OBJECT) | (first == _ARRAY)) & ~is_list
    null = pa.scalar(None, pa.string())
    texts = pc.if_else(pa.array(nested | is_list), null, tokens)
    texts = pc.if_else(pc.equal(texts, "null"), null, texts)
    if (first == _QUOTE).any():
        texts = _unquoted(texts, first == _QUOTE)
    if column.type in NUMBER_TYPES:
        if table.decimal_separator != POINT:
            # JSON numbers never have a decimal comma, so leave texts without a comma unchanged.
            has_comma = pc.fill_null(pc.match_substring(texts, ","), False)
            texts = pc.if_else(has_comma, with_decimal_points(texts), texts)
        is_plain = pa.array(first != _QUOTE)
        for name, number in (("true", "1"), ("false", "0")):
            texts = pc.if_else(pc.fill_null(pc.and_(is_plain, pc.equal(texts, name)), False), number, texts)
    values, reasons = typed_column(texts, column, table.null_values, table.time_zone)
    reasons = pa.nulls(len(tokens), pa.string()) if reasons is None else reasons
    reasons = pc.if_else(pa.array(nested), f"{BROKEN}:{column.name}", reasons)
    if not is_list.any():
        return values, reasons
    places = np.flatnonzero(is_list)
    lists, of_lists = _typed_lists(tokens.take(pa.array(places)), column, table)
    index = np.arange(len(tokens))
    index[places] = len(tokens) + np.arange(len(places))
    chosen = pa.array(index)
    return (
        pa.concat_arrays([values, lists.cast(values.type)]).take(chosen),
        pa.concat_arrays([reasons, of_lists]).take(chosen),
    )


def _unquoted(tokens: pa.Array, is_string: np.ndarray) -> pa.Array:
    """Returns n texts in which each JSON string is replaced by its value."""
    texts = pc.if_else(pa.array(is_string), pc.utf8_slice_codeunits(tokens, 1, -1), tokens)
    escaped = pc.fill_null(pc.match_substring(tokens, "\\"), False).to_numpy(zero_copy_only=False) & is_string
    if not escaped.any():
        return texts
    query = "SELECT json_extract_string(text, '$') AS value FROM block"
    values = _one_array(_run(query, tokens.filter(pa.array(escaped))).column(0))
    return pc.replace_with_mask(texts, pa.array(escaped), values)


def _typed_lists(tokens: pa.Array, column: Column, table: RawTable) -> tuple[pa.Array, pa.Array]:
    """Converts n texts of JSON arrays to lists. Returns n lists and n reasons, as `typed_tokens` does."""
    query = "SELECT json_transform(text, '[\"JSON\"]')::VARCHAR[] AS value FROM block"
    lists = _one_array(_run(query, tokens).column(0))
    owner = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    element = Column(name=column.name, type="int" if column.type == "list<int>" else "string")
    values, reasons = typed_tokens(lists.flatten(), element, table)
    bad = np.unique(owner[reasons.is_valid().to_numpy(zero_copy_only=False)])
    kept = values.is_valid().to_numpy(zero_copy_only=False) & ~np.isin(owner, bad)
    sizes = np.bincount(owner[kept], minlength=len(lists))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    wrong = np.zeros(len(lists), bool)
    wrong[bad] = True
    starts = pa.array(offsets, mask=np.append(wrong, False)) if len(bad) else pa.array(offsets)
    typed = pa.ListArray.from_arrays(starts, values.filter(pa.array(kept)))
    kind = "list" if column.type == "list<int>" else BROKEN
    return typed, pc.if_else(pa.array(wrong), f"{kind}:{column.name}", pa.scalar(None, pa.string()))


def _reject(malformed: RejectedRows, encoded: pa.DictionaryArray, column: Column) -> None:
    first = _first_bytes(encoded.dictionary)
    nested = np.flatnonzero((first == _OBJECT) | (first == _ARRAY))
    if len(nested):
        malformed.add(rows_with(encoded, nested), f"{BROKEN}:{column.name}")


def _lines_of(block: bytes | memoryview) -> tuple[pa.Array, dict[int, str]]:
    """Returns the lines of a block with their line ends, and the reason of each line that is not UTF-8.

    In a line that is not UTF-8, replacement characters replace the invalid bytes.
    """
    lines = _split(block)
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid:
        replaced = _split(bytes(block).decode("utf-8", errors="replace").encode())
        wrong = pc.not_equal(lines.cast(pa.large_binary()), replaced.cast(pa.large_binary()))
        places = np.flatnonzero(wrong.to_numpy(zero_copy_only=False))
        return replaced, dict.fromkeys(places.tolist(), NOT_UTF8)
    return lines, {}


def _split(block: bytes | memoryview) -> pa.Array:
    """Returns the lines of a block without copying them. The lines may contain invalid UTF-8."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
    if len(block) and block[-1] != ord("\n"):
        ends = np.append(ends, len(block))
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    return pa.LargeStringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(block))


def _tokens(lines: pa.Array, names: Sequence[str]) -> tuple[np.ndarray, list[pa.Array]]:
    """Finds the fields `names` in n lines.

    Returns whether each line is a JSON object, (n,) bool, and an array of n strings for each field: the
    values as JSON texts. A text is null if the line lacks the field.
    """
    pointers = ", ".join(_literal(_pointer(name)) for name in names)
    values = "".join(f", found[{index}]::VARCHAR AS c{index}" for index in range(1, len(names) + 1))
    found = f"SELECT TRY(json_extract(text, [{pointers}]::VARCHAR[])) AS found FROM block"
    is_valid, *tokens = _run(f"SELECT found IS NOT NULL AS is_valid{values} FROM ({found})", lines).columns
    is_object = _one_array(is_valid).to_numpy(zero_copy_only=False) & (_first_bytes(lines) == _OBJECT)
    if not is_object.all():  # blanks may precede an object
        others = np.flatnonzero(~is_object)
        trimmed = pc.utf8_ltrim_whitespace(lines.take(pa.array(others)))
        valid = _one_array(is_valid).to_numpy(zero_copy_only=False)[others]
        is_object[others] = valid & (_first_bytes(trimmed) == _OBJECT)
    return is_object, [_one_array(of_column) for of_column in tokens]


def _pointer(name: str) -> str:
    """Returns the JSON pointer of a path such as `a.b`."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in name.split("."))


def _literal(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _fields_of(line: str) -> list[str]:
    fields = _run("SELECT unnest(json_keys(text)) AS value FROM block", pa.array([line])).column(0)
    return [str(name) for name in fields.to_pylist()]


def _head(path: str, encoding: Encoding) -> pa.Array | None:
    """Returns the first lines of a file; None if the file is empty."""
    for file_split in split_files([path]):
        for block in read_blocks(file_split, _HEAD_BYTES, encoding):
            return _lines_of(block)[0]
    return None


def _first_bytes(texts: pa.Array) -> np.ndarray:
    """Returns the first byte of each text, (n,) uint8; 0 for an empty text and for null."""
    large = pa.types.is_large_string(texts.type)
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int64 if large else np.int32)[
        texts.offset : texts.offset + len(texts) + 1
    ]
    if data is None or not data.size or not len(texts):
        return np.zeros(len(texts), np.uint8)
    content = np.frombuffer(data, np.uint8)
    firsts = content[np.minimum(starts[:-1], len(content) - 1)].copy()
    firsts[np.diff(starts) == 0] = 0
    if texts.null_count:
        firsts[texts.is_null().to_numpy(zero_copy_only=False)] = 0
    return firsts


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array if not isinstance(array, pa.ChunkedArray) else pa.concat_arrays(array.chunks)


def _run(query: str, texts: pa.Array) -> pa.Table:
    """Runs a query over the texts: the column `text` of the table `block`. Keeps the order of the texts."""
    cursor = _database().cursor()
    try:
        cursor.register("block", pa.table({"text": texts}))
        return cursor.sql(query).to_arrow_table()
    finally:
        cursor.close()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Returns this process's DuckDB database, with one thread, because several workers share the cores."""
    import duckdb  # imported here because the import takes 0.06 s, and not every process needs DuckDB

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    return duckdb.connect(config=settings)
