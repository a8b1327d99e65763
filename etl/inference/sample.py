"""Reads the first rows of raw files whose layout is not known: format, separator, header and columns.

Text files are read as columns of texts. In other formats, the files define the types of their columns.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv
from pyarrow import fs, orc

from conf.errors import ConfigError, DataError
from conf.names import has_date, with_any_date
from conf.raw_types import SEPARATORS, UTF8, Encoding
from etl.raw.file_columns import first_bytes
from etl.raw.file_splits import FileSplit, as_utf8, compression, read_blocks
from etl.raw.files import files_at, find_files
from etl.readers.text import rows_of_displays
from storage import file_io

# What to read from the start of the first file and from the end of the last file: bytes of text files, or
# rows of other formats.
_FIRST_BYTES, _LAST_BYTES = 32 << 20, 4 << 20
_FIRST_ROWS, _LAST_ROWS = 400_000, 50_000
# The separator and the header are inferred from the first _LINES lines. Whether commas are decimal commas is
# inferred from the first _FEW_LINES of them.
_LINES, _FEW_LINES = 500, 50
# A character is the separator only if it divides at least this share of the lines into the same number of
# fields.
_REGULAR_SHARE = 0.9

_DATE = re.compile(r"(?<!\d)(\d{4}-\d{2}-\d{2})(?!\d)")
# The notations of days in names of files and folders: a pattern with groups for year, month and day, and the
# placeholder for this notation in a configured path.
_DAYS = tuple(
    (re.compile(rf"(?<!\d){pattern}(?!\d)"), key)
    for pattern, key in (
        (r"(\d{4})-(\d{2})-(\d{2})", "{date}"),
        (r"((?:19|20)\d{2})_(\d{2})_(\d{2})", "{date:%Y_%m_%d}"),
        (r"((?:19|20)\d{2})\.(\d{2})\.(\d{2})", "{date:%Y.%m.%d}"),
        (r"((?:19|20)\d{2})(\d{2})(\d{2})", "{date:%Y%m%d}"),
        (r"((?:19|20)\d{2})/(\d{2})/(\d{2})", "{date:%Y/%m/%d}"),
        (
            r"year=((?:19|20)\d{2})/month=(\d{2})/day=(\d{2})",
            "year={date:%Y}/month={date:%m}/day={date:%d}",
        ),
    )
)
_NAME = re.compile(r"[A-Za-z_#][\w .:/()-]*")
_LONGEST_NAME = 64
_NUMBER = re.compile(r"[+-]?(\d[\d.]*,\d+|\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NUMBERS = re.compile(r"\d+")
_SHOWN_ITEMS = re.compile(r"\S+[-:_][01]([ ,;|]\S+[-:_][01])*")
# At most this number of bytes of displays are converted to rows, because a display becomes many rows.
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
class RawPath:
    """The location of a table's files.

    Attributes:
        pattern: path or glob, with `{date}` if the files are stored by day.
        files: the files, ordered by name.
        days: the days in the names, ascending; empty without `{date}`.
    """

    pattern: str
    files: tuple[str, ...]
    days: tuple[str, ...]


@dataclass(frozen=True)
class TableSample:
    """The first rows of a table.

    Attributes:
        path: the location of the table's files.
        format: name of the reader.
        separator: character between two fields; None if lines have no fields.
        has_names: whether the files name their columns. If not, the columns are named c1, c2 and so on.
        is_text: whether all values are texts.
        rows: the first rows of the first file and the last rows of the last one, which may be the same file.
            A file that can only be read from its start, such as a compressed one, has no last rows.
        is_whole: whether `rows` are all rows of the table.
        all_rows: estimated number of rows of all files; None if the first file has more rows than were read.
            The estimate assumes that the rows of all files have the same mean size in bytes.
        encoding: the encoding of text files.
        with_points: the columns of JSON lines whose fields have names with points, which no reader finds.
    """

    path: RawPath
    format: str
    separator: str | None
    has_names: bool
    is_text: bool
    rows: pa.Table
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


def find_table(location: str) -> RawPath:
    """Finds the files of a table at a location: a file, a folder, or a glob, which may contain `{date}`.

    If the names of the files differ by a day, such as 2026-01-31, 2026_01_31 or 20260131, the returned
    pattern contains `{date}` in place of the day, with the same notation.

    Raises:
        ConfigError: there is no file, or the names of the files differ by more than a date and numbers behind
            it.
    """
    if is_delta_table(location):
        return RawPath(location, (location,), ())
    files = _files(location)
    if not files:
        raise ConfigError(f"there is no file at {location}", "pass the path of a file, a folder or a glob")
    days = {_day_of(name) for name in files}
    if has_date(location) or (len(days) > 1 and None not in days):
        return _by_day(location, files)
    if len(files) == 1:
        return RawPath(files[0], files, ())
    pattern = location if "*" in location or "?" in location else _pattern_of(location, files)
    return RawPath(pattern, files, ())


def is_delta_table(location: str) -> bool:
    """Returns whether the folder is a Delta table."""
    files, inner = file_io.filesystem(location)
    return files.get_file_info(f"{inner.rstrip('/')}/_delta_log").type == fs.FileType.Directory


def read_sample(path: RawPath) -> TableSample:
    """Reads the first rows of the first file and the last rows of the last file.

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
    head, is_whole = _head(path.files[0], _FIRST_BYTES)
    texts = [head]
    if (len(path.files) > 1 or not is_whole) and (end := _end(path)):
        texts.append(end)
    encoding = _encoding(texts)
    texts = [as_utf8(text, encoding) for text in texts]
    if form == "jsonl" or head.lstrip()[:1] == b"{":
        sample = _json_lines(path, texts, is_whole)
    else:
        sample = _separated(path, texts, is_whole)
    return replace(sample, encoding=encoding)


def _without_empty_ends(files: tuple[str, ...]) -> tuple[str, ...]:
    """Leaves out empty files at the start and at the end. If all files are empty, returns all."""
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
    first_is_whole: bool,
    files: Sequence[str],
    *,
    separator: str | None = None,
    has_names: bool = True,
    is_text: bool = False,
) -> TableSample:
    """Returns the sample of a table.

    The argument `rows` contains rows of the first and the last file of `files`.
    """
    is_whole, all_rows = first_is_whole and len(files) == 1, None
    if first_is_whole:
        sizes = [size or 0 for size in file_io.sizes(files)]
        read = sizes[0] + (sizes[-1] if len(files) > 1 else 0)
        all_rows = round(rows.num_rows * sum(sizes) / max(read, 1))
    return TableSample(path, form, separator, has_names, is_text, rows, is_whole, all_rows)


def _files(location: str) -> tuple[str, ...]:
    """Returns the files of a location, which is a file, a folder or a glob, ordered by name.

    Hidden files are left out.
    """
    pattern = with_any_date(location)
    if "*" in pattern or "?" in pattern:
        return find_files(pattern, "tsv")
    files, inner = file_io.filesystem(location)
    info = files.get_file_info(inner)
    if info.type == fs.FileType.File:
        return (location,)
    if info.type != fs.FileType.Directory:
        return ()
    root = location.rstrip("/")
    below = files.get_file_info(fs.FileSelector(inner, recursive=True))
    names = sorted(
        entry.path[len(inner.rstrip("/")) + 1 :]
        for entry in below
        if entry.type == fs.FileType.File and entry.size
    )
    shown = [name for name in names if not any(part.startswith((".", "_")) for part in name.split("/"))]
    return tuple(f"{root}/{name}" for name in shown)


def _by_day(location: str, files: tuple[str, ...]) -> RawPath:
    """Returns the files with a common pattern, which has `{date}` in place of the day in their names."""
    days = sorted({day for name in files if (day := _day_of(name)) is not None})
    if has_date(location):
        return RawPath(location, files, tuple(days))
    templates = sorted({_with_date_key(name) for name in files})
    pattern = _common_pattern(templates)
    if pattern is None:
        raise ConfigError(
            f"the names of the files below {location} differ by more than a date: {templates[:3]}",
            "pass one of these paths, with {date} for the day and * for other parts, in quotes",
        )
    return RawPath(pattern, files, tuple(days))


def _common_pattern(templates: Sequence[str]) -> str | None:
    """Returns a pattern for names with a placeholder for the day; None if there is none.

    Folders and files may differ by numbers behind the day, such as hours. In a folder whose name has the day,
    or below it, names of files may be completely different, but must have the same ending.
    """
    ends = [template.rindex("}") + 1 for template in templates]
    heads = {template[:end] for template, end in zip(templates, ends, strict=True)}
    tails = [template[end:].split("/") for template, end in zip(templates, ends, strict=True)]
    if len(heads) > 1 or len({len(tail) for tail in tails}) > 1:
        return None
    parts = []
    for place, names in enumerate(zip(*tails, strict=True)):
        is_of_folder = 0 < place == len(tails[0]) - 1
        if len(set(names)) == 1:
            parts.append(names[0])
        elif is_of_folder and len({_ending(f"/{name}") for name in names}) == 1:
            parts.append(f"*{_ending(f'/{names[0]}')}")
        elif len({_NUMBERS.sub("0", name) for name in names}) == 1:
            before = _NUMBERS.split(names[0], maxsplit=1)[0]
            parts.append(f"{before}*{_NUMBERS.split(names[0])[-1]}")
        else:
            return None
    return heads.pop() + "/".join(parts)


def _day_of(name: str) -> str | None:
    """Returns the last day in the name of a file, as YYYY-MM-DD; None if the name has no date."""
    last = _last_day(name)
    return None if last is None else "-".join(last[0].groups())


def _with_date_key(name: str) -> str:
    """Returns the name of a file with its last day replaced by a placeholder, such as `{date:%Y%m%d}`."""
    last = _last_day(name)
    return name if last is None else f"{name[: last[0].start()]}{last[1]}{name[last[0].end() :]}"


def without_days(name: str) -> str:
    """Returns the path of a log without the days in it, and without wildcards."""
    bare = with_any_date(name)
    while (last := _last_day(bare)) is not None:
        bare = bare[: last[0].start()] + bare[last[0].end() :]
    return bare.replace("*", "")


def _last_day(name: str) -> tuple[re.Match[str], str] | None:
    """Returns the last day in a name, and the placeholder for it.

    If several notations match at the same end, the longest match is used.
    """
    days = [
        (match, key) for pattern, key in _DAYS for match in pattern.finditer(name) if _is_day(match.groups())
    ]
    return max(days, key=lambda day: (day[0].end(), -day[0].start()), default=None)


def _is_day(parts: Sequence[str]) -> bool:
    year, month, day = map(int, parts)
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _pattern_of(location: str, files: Sequence[str]) -> str:
    folders = {name.rsplit("/", 1)[0] for name in files}
    endings = {_ending(name) for name in files}
    if len(folders) > 1 or len(endings) > 1:
        raise ConfigError(
            f"{location} has files of several tables: {[name.rsplit('/', 1)[1] for name in files][:5]}",
            "pass the file of the log, or a glob in quotes, such as 'folder/events_*.csv'",
        )
    return f"{folders.pop()}/*{endings.pop()}"


def _ending(name: str) -> str:
    """Returns a file's name from its first dot on, without the parts that are numbers."""
    last = name.rsplit("/", 1)[1]
    return "".join(f".{part}" for part in last.split(".")[1:] if not part.isdigit())


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


def _end(path: RawPath) -> bytes:
    """Returns the last lines of the last text file, without lines of the head; empty if there are no others.

    If the result does not begin with the first line of the file, an empty line stands for the header. A
    compressed file can be read only from its start. If it is the last one of several files, its first lines
    are returned.
    """
    last = path.files[-1]
    if compression(last):
        return b"" if len(path.files) == 1 else _head(last, _LAST_BYTES)[0]
    files, inner = file_io.filesystem(last)
    size = files.get_file_info(inner).size
    start = max(size - _LAST_BYTES, _FIRST_BYTES if len(path.files) == 1 else 0)
    text = b"".join(map(bytes, read_blocks(FileSplit(last, start, size)))) if start < size else b""
    return b"\n" + text if start and text else text


def _separated(path: RawPath, texts: Sequence[bytes], first_is_whole: bool) -> TableSample:
    first = texts[0].decode("utf-8", errors="replace")
    lines = [line for line in first.split("\n")[:_LINES] if line.strip()]
    if not lines:
        raise DataError(f"{path.files[0]} has no line with text", "pass the path of another file")
    separator, quoted = _separator(lines)
    if (separator is None or quoted) and _is_plain_tsv(lines):
        separator, quoted = "\t", False
    if separator is None:
        raise DataError(
            f"{path.files[0]}: no separator of {list(SEPARATORS)} divides its lines into equally many "
            f"fields; the first line is {lines[0][:80]!r}",
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
            "give each column a different name; if the first line is a row, write a line with names above it",
        )
    if quoted and not has_names:
        raise DataError(
            f"{path.files[0]} has no column names, but has fields in double quotes that contain the "
            "separator; a file with such fields must name its columns",
            "add a first line with the names of the columns",
        )
    if not has_names and _is_of_displays([fields[-1] for fields in rows]):
        return _displays(path, texts, first_is_whole, separator, width)
    table = pa.concat_tables([_parsed(text, separator, names, has_names, quoted) for text in texts])
    form = "csv" if has_names else "tsv"
    return _sample(
        path,
        form,
        table,
        first_is_whole,
        path.files,
        separator=separator,
        has_names=has_names,
        is_text=True,
    )


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


def _displays(
    path: RawPath, texts: Sequence[bytes], first_is_whole: bool, separator: str, width: int
) -> TableSample:
    """Returns the rows of displays: one row for each shown item, with the columns `item` and `clicked`.

    Only the first displays of a large file are read, because each display has many rows.
    """
    names = [*(f"c{number}" for number in range(1, width)), "item", "clicked"]
    first = texts[0]
    if len(first) > _DISPLAY_BYTES:
        first = first[: first.rfind(b"\n", 0, _DISPLAY_BYTES) + 1]
    parts = [rows_of_displays(first, separator)]
    for text in texts[1:]:
        start = 0 if len(text) <= _DISPLAY_BYTES else text.find(b"\n", len(text) - _DISPLAY_BYTES) + 1
        parts.append(rows_of_displays(text[start:], separator))
    table = pa.concat_tables([_parsed(part, separator, names, False, False) for part in parts])
    read = sum(min(len(text), _DISPLAY_BYTES) for text in texts)
    sample = _sample(
        path,
        "displays",
        table,
        first_is_whole,
        path.files,
        separator=separator,
        has_names=False,
        is_text=True,
    )
    if read == sum(map(len, texts)) or sample.all_rows is None:
        return sample
    return replace(sample, is_whole=False, all_rows=round(sample.all_rows * sum(map(len, texts)) / read))


def _separator(lines: Sequence[str]) -> tuple[str | None, bool]:
    """Returns the separator that gives each line the same number of fields, and whether fields are quoted."""
    best: tuple[tuple[float, int], str, bool] | None = None
    # If another separator also divides the lines, a comma between two digits may be a decimal comma.
    without_commas = [_COMMA_OF_NUMBER.sub("", line) for line in lines]
    others = [one for one in ("\t", ";", "|") if all(one in line for line in lines[:_FEW_LINES])]
    for separator in SEPARATORS:
        if separator == " " and best is not None:
            continue  # Times and texts contain blanks, so another separator is more likely.
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

    No name may be a number or a date, or empty unless `_is_nameless` accepts its column. If a column with a
    name has numbers or dates in nearly all other lines, the first line has names. Otherwise, each name must
    look like a name, and must not be a value of its column in the other lines.
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
    """Returns the lines of a text as columns of texts.

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


def _json_lines(path: RawPath, texts: Sequence[bytes], first_is_whole: bool) -> TableSample:
    try:
        return _shallow_json_lines(path, texts, first_is_whole)
    except RecursionError:
        raise DataError(
            f"{path.files[0]} has a line whose JSON values are nested too deeply",
            "write one JSON object with a few levels in each line (JSON lines)",
        ) from None


def _shallow_json_lines(path: RawPath, texts: Sequence[bytes], first_is_whole: bool) -> TableSample:
    lines, *others = [[line for line in text.split(b"\n") if line.strip()] for text in texts]
    rest = lines[_FIRST_ROWS:]
    rows = _json_rows(path, lines[:_FIRST_ROWS])
    for end in (rest[-_LAST_ROWS:], *others):
        rows += _json_rows(path, end, is_first=False)
    first_is_whole &= len(rest) <= _LAST_ROWS
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
    sample = _sample(path, "jsonl", pa.table(columns), first_is_whole, path.files)
    return replace(sample, with_points=tuple(with_points))


def _json_rows(path: RawPath, lines: Sequence[bytes], *, is_first: bool = True) -> list[Any]:
    """Returns the values of lines. Lines that are not JSON are left out.

    Raises DataError if the first line is not JSON. With `is_first=False`, it is left out, too.
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
    """Returns the remedy for a file with one JSON array; an empty text if the file has no array."""
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
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # Several types, or numbers beyond 64 bits.
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _columnar(path: RawPath, form: str, files: Sequence[str]) -> TableSample:
    if not files:
        raise DataError(f"{path.pattern} has no files", "pass the path of another table")
    kind = "orc" if form == "orc" else "parquet"
    first, rows = _first_rows(files[0], kind, _FIRST_ROWS)
    if len(files) == 1 and first.num_rows == rows:
        return _sample(path, form, _with_signed(first), True, files)
    left = rows - first.num_rows
    last = _last_rows(files[-1], kind, min(_LAST_ROWS, left) if len(files) == 1 else _LAST_ROWS)
    # If the first file and the last file have different schemas, only the rows of the first file are used.
    same = last.schema.equals(first.schema)
    table = pa.concat_tables([first, last.cast(first.schema)]) if same else first
    return _sample(path, form, _with_signed(table), same and first.num_rows == rows, files)


def _with_signed(table: pa.Table) -> pa.Table:
    """Returns a table with unsigned integers that do not fit into 64 bits with a sign, as texts."""
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


def _last_rows(path: str, form: str, most: int) -> pa.Table:
    """Returns the last rows of a file: at most `most` rows of its last row group or stripe.

    Row groups without rows are skipped.
    """
    files, inner = file_io.filesystem(path)
    try:
        with files.open_input_file(inner) as source:
            if form == "orc":
                stripes = orc.ORCFile(source)
                batches = [stripes.read_stripe(stripes.nstripes - 1)] if stripes.nstripes else []
                table = pa.Table.from_batches(batches, stripes.schema)
            else:
                parquet = pq.ParquetFile(source)
                last = deque[pa.RecordBatch](maxlen=2)
                footer = parquet.metadata
                groups = [group for group in range(footer.num_row_groups) if footer.row_group(group).num_rows]
                for batch in parquet.iter_batches(65_536, row_groups=groups[-1:]):
                    last.append(batch)
                table = pa.Table.from_batches(last, parquet.schema_arrow)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(path, form, error) from error
    return table.slice(max(table.num_rows - most, 0))


def _unreadable(path: str, form: str, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as {form}: {error}", "correct or replace the file")


def _avro(path: RawPath) -> TableSample:
    import fastavro

    files, inner = file_io.filesystem(path.files[0])
    with files.open_input_file(inner) as source:
        records: Iterable[Any] = fastavro.reader(source)
        rows = [dict(record) for record in islice(records, _FIRST_ROWS)]
    names = list(rows[0]) if rows else []
    columns = {name: _json_column([row.get(name) for row in rows]) for name in names}
    # Only the first file is read.
    first_is_whole = len(rows) < _FIRST_ROWS
    sample = _sample(path, "avro", pa.table(columns), first_is_whole, path.files[:1])
    return sample if len(path.files) == 1 else replace(sample, is_whole=False, all_rows=None)
