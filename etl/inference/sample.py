"""Reads the first rows of raw files whose layout is not known: format, separator, header and columns.

All columns of text files are read as strings. In other formats, the files define the types of their columns.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv
from pyarrow import orc

from conf.errors import DataError
from conf.raw_types import SEPARATORS, UTF8, Encoding
from etl.inference.table_files import RawPath, is_delta_table
from etl.raw.file_columns import first_bytes
from etl.raw.file_splits import FileSplit, as_utf8, compression, read_blocks
from etl.raw.files import files_at
from etl.readers.text import rows_of_displays
from storage import file_io

# How much is read from the start of the first file and from the end of the last file: bytes of text files, or
# rows of other formats. If the first file has less, the rest is read from the starts of later files.
_FIRST_BYTES, _LAST_BYTES = 32 << 20, 4 << 20
_FIRST_ROWS, _LAST_ROWS = 400_000, 50_000
# Maximum number of files that are read.
_MOST_FILES = 32
# The separator and the header are inferred from the first _LINES lines. Whether commas are decimal commas is
# inferred from the first _FEW_LINES of them.
_LINES, _FEW_LINES = 500, 50
# A character is the separator only if it divides at least this share of the lines into the same number of
# fields.
_REGULAR_SHARE = 0.9

_DATE = re.compile(r"(?<!\d)(\d{4}-\d{2}-\d{2})(?!\d)")
_NAME = re.compile(r"[A-Za-z_#][\w .:/()-]*")
_LONGEST_NAME = 64
_NUMBER = re.compile(r"[+-]?(\d[\d.]*,\d+|\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SHOWN_ITEMS = re.compile(r"\S+[-:_][01]([ ,;|]\S+[-:_][01])*")
# At most this number of bytes of displays (items that were shown together) are converted to rows, because a
# display becomes many rows.
_DISPLAY_BYTES = 2 << 20
_COMMA_OF_NUMBER = re.compile(r"(?<=\d),(?=\d)")
_ENDINGS = {
    ".parquet": "parquet",
    ".orc": "orc",
    ".avro": "avro",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
# First bytes of the files of a format. They show the format of a file whose name does not show it.
_FIRST_BYTES_OF = {b"PAR1": "parquet", b"ORC": "orc", b"Obj\x01": "avro"}
_COMPRESSED = (".gz", ".bz2", ".zst")


@dataclass(frozen=True)
class TableSample:
    """The first rows of a table.

    Attributes:
        path: the location of the table's files.
        format: name of the reader.
        separator: character between two fields; None if lines have no fields.
        has_names: whether the files name their columns. If not, the columns are named c1, c2 and so on.
        is_text: whether all values are strings, because the files have lines of separated fields.
        rows: the first rows of the first file, the first rows of some later files, and the last rows of the
            last file. If there is one file, it is both the first and the last. If the last of several files
            can be read only from its start, for example because it is compressed, its first rows are used.
        parts: the files that were read, each with its number of rows, in the order of `rows`.
        is_whole: whether `rows` are all rows of the table.
        all_rows: estimated number of rows of all files; None if the first file has more rows than were read.
            The estimate assumes that the rows of all files have the same mean size in bytes.
        encoding: the character encoding of the table's files, inferred from the sampled bytes; UTF-8 for
            formats that are not text.
        with_points: the columns of JSON lines that readers cannot find, because the name of a field contains
            a point.
    """

    path: RawPath
    format: str
    separator: str | None
    has_names: bool
    is_text: bool
    rows: pa.Table
    parts: tuple[tuple[str, int], ...]
    is_whole: bool
    all_rows: int | None
    encoding: Encoding = UTF8
    with_points: tuple[str, ...] = ()

    @property
    def has_displays(self) -> bool:
        """Returns whether each line is a display of several items."""
        return self.format == "displays"

    @property
    def lacks_end(self) -> bool:
        """Returns whether the last rows were not read, because the file can be read only from its start."""
        return not self.is_whole and (self.format == "avro" or compression(self.path.files[-1]) is not None)


def read_sample(path: RawPath) -> TableSample:
    """Reads the first rows of the first file and of some later files, and the last rows of the last file.

    Raises:
        DataError: the files are empty or damaged, or the format cannot be recognised.
    """
    if path.files == (path.pattern,) and is_delta_table(path.pattern):
        files = [file.path for file in files_at(path.pattern) or ()]
        return _columnar(path, "delta", files)
    path = replace(path, files=_without_empty_ends(path.files))
    form = _format_by_name(path.files[0])
    if form == "avro":
        return _avro(path)
    if form in ("parquet", "orc"):
        return _columnar(path, form, path.files)
    texts = _texts(path.files)
    encoding = _encoding([text.text for text in texts])
    texts = [replace(text, text=as_utf8(text.text, encoding)) for text in texts]
    is_json = form == "jsonl" or texts[0].text.lstrip()[:1] == b"{"
    sample = _json_lines(path, texts) if is_json else _separated(path, texts)
    return replace(sample, encoding=encoding)


@dataclass(frozen=True)
class _Text:
    """Lines of a text file.

    Attributes:
        file: the path.
        text: the lines.
        is_whole: whether the file has no other lines.
    """

    file: str
    text: bytes
    is_whole: bool


@dataclass(frozen=True)
class _Part:
    """The number of rows that were read from a file, and whether they are all its rows."""

    file: str
    rows: int
    is_whole: bool


def _texts(files: Sequence[str]) -> list[_Text]:
    """Returns the starts of the first file and of some later files, and the end of the last file."""
    head, is_whole = _head(files[0], _FIRST_BYTES)
    texts, left, between = [_Text(files[0], head, is_whole)], _FIRST_BYTES - len(head), _between(files)
    for number, file in enumerate(between):
        share = left // (len(between) - number)
        if share > 0:
            texts.append(_Text(file, *_head(file, share)))
            left -= len(texts[-1].text)
    if len(files) > 1 or not is_whole:
        texts.append(_end(files))
    return [texts[0], *(text for text in texts[1:] if text.text)]


def _between(files: Sequence[str]) -> list[str]:
    """Returns files between the first and the last one, at equal distances, without empty files."""
    inner = files[1:-1]
    count = min(len(inner), _MOST_FILES - 2)
    chosen = [inner[(2 * number + 1) * len(inner) // (2 * count)] for number in range(count)]
    return [file for file, size in zip(chosen, file_io.sizes(chosen), strict=True) if size]


def _without_empty_ends(files: tuple[str, ...]) -> tuple[str, ...]:
    """Leaves out empty files at the start and at the end of the list. If all files are empty, returns all."""
    first = next((index for index, file in enumerate(files) if first_bytes(file, 1)), None)
    if first is None:
        return files
    last = next(index for index in reversed(range(len(files))) if first_bytes(files[index], 1))
    return files[first : last + 1]


def _encoding(texts: Sequence[bytes]) -> Encoding:
    """Returns Windows-1252 if most lines with bytes beyond ASCII are not valid UTF-8; otherwise UTF-8."""
    valid = broken = 0
    for line in (line for text in texts if not text.isascii() for line in text.split(b"\n")):
        if line.isascii():
            continue
        try:
            line.decode()
            valid += 1
        except UnicodeDecodeError:
            broken += 1
    return "windows-1252" if broken > valid else UTF8


def _sample(
    path: RawPath,
    form: str,
    rows: pa.Table,
    parts: Sequence[_Part],
    files: Sequence[str],
    *,
    separator: str | None = None,
    has_names: bool = True,
    is_text: bool = False,
) -> TableSample:
    """Returns the sample of a table. `rows` were read from `parts`, which are some of all `files`."""
    whole, all_rows = [part for part in parts if part.is_whole], None
    if parts[0].is_whole:
        total, read = (
            sum(size or 0 for size in file_io.sizes(some)) for some in (files, [part.file for part in whole])
        )
        all_rows = round(sum(part.rows for part in whole) * total / max(read, 1))
    is_whole = len(whole) == len(files)
    counts = tuple((part.file, part.rows) for part in parts)
    return TableSample(path, form, separator, has_names, is_text, rows, counts, is_whole, all_rows)


def _format_by_name(name: str) -> str | None:
    bare = name
    for ending in _COMPRESSED:
        bare = bare.removesuffix(ending)
    by_ending = next((form for ending, form in _ENDINGS.items() if bare.lower().endswith(ending)), None)
    if by_ending is not None:
        return by_ending
    files, inner = file_io.filesystem(name)
    with files.open_input_stream(inner) as stream:
        start = stream.read(max(map(len, _FIRST_BYTES_OF)))
    return next((form for magic, form in _FIRST_BYTES_OF.items() if start.startswith(magic)), None)


def _head(path: str, most_bytes: int) -> tuple[bytes, bool]:
    """Returns the first complete lines of a text file, and whether the file has no other lines."""
    end = None if compression(path) else most_bytes
    parts, size, is_whole = [], 0, True
    for block in read_blocks(FileSplit(path, 0, end), min(most_bytes, 1 << 22)):
        parts.append(bytes(block))
        size += len(parts[-1])
        if size >= most_bytes:
            is_whole = False
            break
    files, inner = file_io.filesystem(path)
    if end is not None and files.get_file_info(inner).size > most_bytes:
        is_whole = False
    return b"".join(parts), is_whole


def _end(files: Sequence[str]) -> _Text:
    """Returns the last lines of the last text file, without lines that `_head` returns.

    The result is empty if there are no other lines. If the result does not begin with the first line of the
    file, it begins with an empty line in place of the header. A compressed file can be read only from its
    start. If it is the last one of several files, its first lines are returned.
    """
    last = files[-1]
    if compression(last):
        return _Text(last, *((b"", False) if len(files) == 1 else _head(last, _LAST_BYTES)))
    filesystem, inner = file_io.filesystem(last)
    size = filesystem.get_file_info(inner).size
    start = max(size - _LAST_BYTES, _FIRST_BYTES if len(files) == 1 else 0)
    text = b"".join(map(bytes, read_blocks(FileSplit(last, start, size)))) if start < size else b""
    return _Text(last, b"\n" + text if start and text else text, is_whole=not start)


def _separated(path: RawPath, texts: Sequence[_Text]) -> TableSample:
    first = texts[0].text.decode("utf-8", errors="replace")
    lines = [line for line in first.split("\n")[:_LINES] if line.strip()]
    if not lines:
        raise DataError(f"{path.files[0]} has only empty lines", "pass the path of another file")
    separator, quoted = _separator(lines)
    if (separator is None or quoted) and _is_plain_tsv(lines):
        separator, quoted = "\t", False
    if separator is None:
        raise DataError(
            f"{path.files[0]}: none of the separators {list(SEPARATORS)} divides all lines into the same "
            f"number of fields; the first line is {lines[0][:80]!r}",
            "pass a table whose lines have a fixed number of fields, JSON lines, or Parquet",
        )
    head = _fields(lines, separator, quoted)
    width = Counter(map(len, head)).most_common(1)[0][0]
    rows = [fields for fields in head if len(fields) == width]
    has_names = len(head[0]) == width and _is_header(rows[0], rows[1:])
    has_row_names = len(head[0]) == width - 1 > 1 and len({fields[0] for fields in rows}) == len(rows)
    if has_row_names and _is_header(head[0], [fields[1:] for fields in rows]):
        raise DataError(
            f"{path.files[0]}: the first line has {width - 1} names, but the other lines have {width} "
            "fields, as write.table of R writes row names",
            "write the table with row.names = FALSE, or add a name for the first column to the first line",
        )
    names = rows[0] if has_names else [f"c{number}" for number in range(1, width + 1)]
    repeated = [name for name in names if name.strip() and names.count(name) > 1]
    if repeated:
        raise DataError(
            f"{path.files[0]} has more than one column named {repeated[0]!r}; its first line is {names}",
            "give each column a different name; if the first line has values, add a line with names above it",
        )
    if quoted and not has_names:
        raise DataError(
            f"{path.files[0]} has no column names, but has fields in double quotes that contain the "
            "separator; a file with such fields must name its columns",
            "add a first line with the names of the columns",
        )
    if not has_names and _is_of_displays([fields[-1] for fields in rows]):
        return _displays(path, texts, separator, width)
    tables, parts = [], []
    for text in texts:
        of_file = _names_of(text.text, separator, quoted) if has_names else []
        if of_file and not set(names) <= set(of_file):
            continue  # A run would reject this file, because it lacks some of the columns.
        tables.append(_parsed(text.text, separator, of_file or names, has_names, quoted))
        tables[-1] = tables[-1].select([name for name in names if name.strip()])
        parts.append(_Part(text.file, tables[-1].num_rows, text.is_whole))
    return _sample(
        path,
        "csv" if has_names else "tsv",
        pa.concat_tables(tables),
        parts,
        path.files,
        separator=separator,
        has_names=has_names,
        is_text=True,
    )


def _names_of(text: bytes, separator: str, quoted: bool) -> list[str]:
    """Returns the fields of the first line; empty if the first line is empty."""
    line = text.split(b"\n", 1)[0].decode("utf-8", errors="replace")
    return _fields([line], separator, quoted)[0] if line.strip() else []


def _is_plain_tsv(lines: Sequence[str]) -> bool:
    """Returns whether the lines are tab-separated without a header. Quotes count as ordinary characters."""
    rows = [line.split("\t") for line in lines]
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width == 1 or count < _REGULAR_SHARE * len(rows):
        return False
    return not _is_header(rows[0], [row for row in rows[1:] if len(row) == width])


def _is_of_displays(fields: Sequence[str]) -> bool:
    """Returns whether most fields list shown items, with 1 after a clicked item: `N1-0 N2-1`."""
    fitting = sum(bool(_SHOWN_ITEMS.fullmatch(field)) for field in fields)
    several = sum(len(field.split()) > 1 for field in fields)
    return fitting >= _REGULAR_SHARE * len(fields) and several > len(fields) / 2


def _displays(path: RawPath, texts: Sequence[_Text], separator: str, width: int) -> TableSample:
    """Returns the rows of displays: one row for each shown item, with the columns `item` and `clicked`.

    Only the first displays of a large file are read, because each display has many rows.
    """
    names = [*(f"c{number}" for number in range(1, width)), "item", "clicked"]
    tables, parts, read = [], [], 0
    for number, text in enumerate(texts):
        lines, is_end = text.text, 0 < number == len(texts) - 1
        most = _DISPLAY_BYTES // (1 if is_end or not number else len(texts) - 2)
        if len(lines) > most:
            of_end = lines[lines.find(b"\n", len(lines) - most) + 1 :]
            lines = of_end if is_end else lines[: lines.rfind(b"\n", 0, most) + 1]
        read += len(lines)
        tables.append(_parsed(rows_of_displays(lines, separator), separator, names, False, False))
        parts.append(_Part(text.file, tables[-1].num_rows, text.is_whole))
    sample = _sample(
        path,
        "displays",
        pa.concat_tables(tables),
        parts,
        path.files,
        separator=separator,
        has_names=False,
        is_text=True,
    )
    whole = sum(len(text.text) for text in texts)
    if read == whole or sample.all_rows is None:
        return sample
    return replace(sample, is_whole=False, all_rows=round(sample.all_rows * whole / max(read, 1)))


def _separator(lines: Sequence[str]) -> tuple[str | None, bool]:
    """Returns the separator that gives each line the same number of fields, and whether fields are quoted."""
    best: tuple[tuple[float, int], str, bool] | None = None
    # If another separator also divides the lines, a comma between two digits may be a decimal comma.
    without_commas = [_COMMA_OF_NUMBER.sub("", line) for line in lines]
    others = [one for one in ("\t", ";", "|") if all(one in line for line in lines[:_FEW_LINES])]
    for separator in SEPARATORS:
        if separator == " " and best is not None:
            continue  # Times and other values contain blanks, so another separator is more likely.
        if separator == "," and others and not any("," in line for line in without_commas[:_FEW_LINES]):
            continue
        if separator == ":" and not any("::" in line for line in lines[:5]):
            continue  # A single colon more likely belongs to a time, such as 12:30.
        quoted = _has_quoted_fields(lines, separator)
        widths = Counter(len(fields) for fields in _fields(lines, separator, quoted))
        width, count = widths.most_common(1)[0]
        share = count / len(lines)
        if width > 1 and share >= _REGULAR_SHARE and (best is None or (share, width) > best[0]):
            best = ((share, width), separator, quoted)
    return (None, False) if best is None else (best[1], best[2])


def _has_quoted_fields(lines: Sequence[str], separator: str) -> bool:
    """Returns whether any field begins and ends with a double quote."""
    bound = re.escape(separator)
    field = re.compile(f'(^|{bound})"([^"]|"")*"({bound}|$)')
    return any('"' in line and field.search(line) for line in lines)


def _fields(lines: Iterable[str], separator: str, quoted: bool) -> list[list[str]]:
    if not quoted:
        return [line.split(separator) for line in lines]
    return list(csv.reader(io.StringIO("\n".join(lines)), delimiter=separator))


def _is_header(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Returns whether the first line has the names of the columns.

    A name must not be a number or a date. It may be empty only if `_is_nameless` accepts its column. If any
    named column has numbers or dates in nearly all other lines, the first line is a header. Otherwise, each
    name must look like a name, and must not be a value of its column in the other lines.
    """
    columns = [list(values) for values in zip(*others, strict=True)] or [[] for _ in first]
    named = [(name, values) for name, values in zip(first, columns, strict=True) if name.strip()]
    if any(_NUMBER.fullmatch(name) or _DATE.search(name) or len(name) > _LONGEST_NAME for name, _ in named):
        return False
    without = [place for place, name in enumerate(first) if not name.strip()]
    if not named or not all(_is_nameless(place, columns) for place in without):
        return False
    if any(_has_numbers(values) for _, values in named):
        return True
    return all(_NAME.fullmatch(name) and name not in values for name, values in named)


def _is_nameless(place: int, columns: Sequence[Sequence[str]]) -> bool:
    """Returns whether a header may have no name for a column.

    pandas and R write an index without a name as the first column. If each line ends with a separator, the
    last column is empty.
    """
    is_index = place == 0 and all(columns[0])
    return is_index or (place == len(columns) - 1 and not any(columns[place]))


def _has_numbers(values: Sequence[str]) -> bool:
    """Returns whether nearly all values that are not empty are numbers or begin with a date."""
    filled = [value for value in values if value]
    fitting = sum(bool(_NUMBER.fullmatch(value) or _DATE.match(value)) for value in filled)
    return bool(filled) and fitting >= _REGULAR_SHARE * len(filled)


def _parsed(text: bytes, separator: str, names: Sequence[str], has_names: bool, quoted: bool) -> pa.Table:
    """Parses lines of a text file into columns of strings.

    Lines with a wrong number of fields and columns without a name are left out.
    """
    clean = text.decode("utf-8", errors="replace").encode()
    table: pa.Table = arrow_csv.read_csv(
        io.BytesIO(clean),
        arrow_csv.ReadOptions(
            column_names=list(names), skip_rows=int(has_names), block_size=max(len(clean), 1)
        ),
        arrow_csv.ParseOptions(
            delimiter=separator,
            quote_char='"' if quoted else False,
            invalid_row_handler=lambda _: "skip",
            ignore_empty_lines=True,
        ),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False, null_values=[]
        ),
    )
    return table.select([place for place, name in enumerate(names) if name.strip()])


def _json_lines(path: RawPath, texts: Sequence[_Text]) -> TableSample:
    try:
        return _shallow_json_lines(path, texts)
    except RecursionError:
        raise DataError(
            f"{path.files[0]} has a line whose JSON values are nested too deeply",
            "write one JSON object in each line (JSON lines), and nest its values only a few levels deep",
        ) from None


def _shallow_json_lines(path: RawPath, texts: Sequence[_Text]) -> TableSample:
    rows, parts = [], []
    for number, text in enumerate(texts):
        lines = [line for line in text.text.split(b"\n") if line.strip()]
        rest = [] if number else lines[_FIRST_ROWS:]
        of_file = _json_rows(path, lines[: len(lines) - len(rest)], is_first=not number)
        of_file += _json_rows(path, rest[-_LAST_ROWS:], is_first=False)
        parts.append(_Part(text.file, len(of_file), text.is_whole and len(rest) <= _LAST_ROWS))
        rows += of_file
    flat: dict[tuple[str, ...], list[object]] = {}
    for number, row in enumerate(rows):
        for fields, value in _leaves((), row if isinstance(row, dict) else {}):
            column = flat.setdefault(fields, [])
            column.extend([None] * (number - len(column)))
            column.append(value)
    has_point = {fields: any("." in field for field in fields) for fields in flat}
    columns, with_points = {}, []
    for fields in sorted(flat, key=lambda fields: has_point[fields]):
        name, values = ".".join(fields), flat[fields]
        if name not in columns:
            columns[name] = _json_column([*values, *[None] * (len(rows) - len(values))])
            with_points += [name] if has_point[fields] else []
    sample = _sample(path, "jsonl", pa.table(columns), parts, path.files)
    return replace(sample, with_points=tuple(with_points))


def _json_rows(path: RawPath, lines: Sequence[bytes], *, is_first: bool = True) -> list[Any]:
    """Returns the values of lines. Lines that are not JSON are left out.

    Raises DataError if the first line is not JSON. With `is_first=False`, such a line is left out, too.
    """
    rows: list[Any] = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            if is_first and not rows:
                raise DataError(
                    f"{path.files[0]} does not have a JSON object in each line; the first line is "
                    f"{line[:60]!r}",
                    "write one JSON object in each line (JSON lines)" + _from_array(path.files[0], line),
                ) from None
    return rows


def _from_array(path: str, line: bytes) -> str:
    """Returns the remedy for a file with one JSON array; an empty string if the file has no array."""
    if not line.lstrip().startswith(b"["):
        return ""
    name = path.rsplit("/", 1)[-1]
    return f"; for an array: `jq -c '.[]' {name} > {name.rsplit('.', 1)[0]}.jsonl`"


def _leaves(prefix: tuple[str, ...], row: dict[str, object]) -> Iterable[tuple[tuple[str, ...], object]]:
    """Yields (path, value) for the values of a JSON object and of its nested objects.

    A path has the names of fields, such as ("a", "b") for the field `b` of the object `a`.
    """
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _leaves((*prefix, name), value)
        else:
            yield (*prefix, name), value


def _json_column(values: list[object]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # The values have several types, or are numbers beyond 64 bits.
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _columnar(path: RawPath, form: str, files: Sequence[str]) -> TableSample:
    if not files:
        raise DataError(f"{path.pattern} has no files", "pass the path of another table")
    kind = "orc" if form == "orc" else "parquet"
    first, rows = _first_rows(files[0], kind, _FIRST_ROWS)
    tables, parts = [first], [_Part(files[0], first.num_rows, first.num_rows == rows)]
    between = _between(files) if first.num_rows < _FIRST_ROWS else []
    for number, file in enumerate(between):
        share = (_FIRST_ROWS - sum(table.num_rows for table in tables)) // (len(between) - number)
        if share > 0:
            table, rows = _first_rows(file, kind, share)
            tables.append(table)
            parts.append(_Part(file, table.num_rows, table.num_rows == rows))
    if len(files) > 1 or not parts[0].is_whole:
        left = rows - first.num_rows if len(files) == 1 else _LAST_ROWS
        last, rows = _last_rows(files[-1], kind, min(_LAST_ROWS, left))
        tables.append(last)
        parts.append(_Part(files[-1], last.num_rows, last.num_rows == rows))
    # Files whose schema differs from that of the first one are left out.
    same = [number for number, table in enumerate(tables) if table.schema.equals(first.schema)]
    table = pa.concat_tables([tables[number].cast(first.schema) for number in same])
    return _sample(path, form, _with_signed(table), [parts[number] for number in same], files)


def _with_signed(table: pa.Table) -> pa.Table:
    """Converts columns with unsigned integers that do not fit into int64 to strings."""
    for index, field in enumerate(table.schema):
        if pa.types.is_uint64(field.type):
            most = pc.max(table.column(index)).as_py()
            if most is not None and most >= 1 << 63:
                table = table.set_column(index, field.name, pc.cast(table.column(index), pa.string()))
    return table


def _first_rows(path: str, form: str, most: int) -> tuple[pa.Table, int]:
    """Returns the first rows of a file, and the number of all its rows."""
    files, inner = file_io.filesystem(path)
    try:
        with files.open_input_file(inner) as source:
            if form == "orc":
                stripes = orc.ORCFile(source)
                batches, rows = [], 0
                for index in range(stripes.nstripes):
                    batches.append(stripes.read_stripe(index))
                    rows += batches[-1].num_rows
                    if rows >= most:
                        break
                return pa.Table.from_batches(batches, stripes.schema), stripes.nrows
            parquet = pq.ParquetFile(source)
            batches, rows = [], 0
            for batch in parquet.iter_batches(min(most, 65_536)):
                batches.append(batch)
                rows += batch.num_rows
                if rows >= most:
                    break
            return pa.Table.from_batches(batches, parquet.schema_arrow), parquet.metadata.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(path, form, error) from error


def _last_rows(path: str, form: str, most: int) -> tuple[pa.Table, int]:
    """Returns the last rows of a file, and the number of all its rows.

    At most `most` rows of the last row group or stripe are returned. Row groups without rows are skipped.
    """
    files, inner = file_io.filesystem(path)
    try:
        with files.open_input_file(inner) as source:
            if form == "orc":
                stripes = orc.ORCFile(source)
                batches = [stripes.read_stripe(stripes.nstripes - 1)] if stripes.nstripes else []
                table, rows = pa.Table.from_batches(batches, stripes.schema), stripes.nrows
            else:
                parquet = pq.ParquetFile(source)
                last = deque[pa.RecordBatch](maxlen=2)
                footer = parquet.metadata
                groups = [group for group in range(footer.num_row_groups) if footer.row_group(group).num_rows]
                for batch in parquet.iter_batches(65_536, row_groups=groups[-1:]):
                    last.append(batch)
                table, rows = pa.Table.from_batches(last, parquet.schema_arrow), footer.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(path, form, error) from error
    return table.slice(max(table.num_rows - most, 0)), rows


def _unreadable(path: str, form: str, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as {form}: {error}", "correct or replace the file")


def _avro(path: RawPath) -> TableSample:
    rows: list[dict[str, Any]] = []
    parts: list[_Part] = []
    ends = path.files[:: max(len(path.files) - 1, 1)]
    chosen = [ends[0], *_between(path.files), *ends[1:]]
    for number, file in enumerate(chosen):
        most = (_FIRST_ROWS - len(rows)) // (1 if not number else len(chosen) - number)
        of_file = _avro_rows(file, most)
        rows += of_file
        parts.append(_Part(file, len(of_file), len(of_file) < most))
    names = list(rows[0]) if rows else []
    columns = {name: _json_column([row.get(name) for row in rows]) for name in names}
    return _sample(path, "avro", pa.table(columns), parts, path.files)


def _avro_rows(path: str, most: int) -> list[dict[str, Any]]:
    """Returns the first rows of a file."""
    import fastavro

    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        records: Iterable[Any] = fastavro.reader(source)
        return [dict(record) for record in islice(records, most)]
