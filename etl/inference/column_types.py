"""Infers the type of each column of a sample: integers, numbers, times and their notation, lists, strings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.raw_types import ColumnType
from conf.time_notation import ISO, UTC
from etl.inference.sample import TableSample
from etl.inference.table_files import day_of_file
from etl.raw.text_values import integers, numbers, with_decimal_points
from etl.raw.time_text import dates, times_of_day, timestamps

# Strings that other programs write in place of null. The empty string always means null.
NULL_TEXTS = ("\\N", "NULL", "null", "NaN", "nan", "NA", "N/A", "None", "none", "-")
# In a column of strings, only these stand for null. The other strings of NULL_TEXTS may be real values there.
_ALWAYS_NULL = ("\\N", "NULL", "null", "NaN", "nan", "None")
# A column has a type if at least this share of its values has the type. The other values may be errors in
# single rows.
_FITTING_SHARE = 0.99
# If nearly all rows of a column have times, its type is a time only if at least this share of its distinct
# strings are times.
_DISTINCT_SHARE = 0.9
# A column has numbers with a decimal comma if at least this share of its values contains a comma.
_COMMA_SHARE = 0.5
_DIGITS_ONLY = r"^[0-9]+$"
_LEADING_ZERO = r"^[+-]?0[0-9]+$"
_FLOAT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
# Numbers with a decimal comma, in which points may separate groups of three digits. The second pattern also
# matches whole numbers.
_COMMA_FLOAT = r"^[+-]?([0-9]{1,3}(\.[0-9]{3})+|[0-9]+),[0-9]+$"
_WHOLE_OR_COMMA_FLOAT = r"^[+-]?([0-9]{1,3}(\.[0-9]{3})+|[0-9]+)(,[0-9]+)?$"
_BOOLS = ("true", "false", "t", "f", "yes", "no", "y", "n")
# Notations of times, as (format, type), in the order in which they are tried.
_NOTATIONS: tuple[tuple[str, ColumnType], ...] = (
    (ISO, "date"),
    (ISO, "timestamp"),
    ("%Y-%m-%d %H:%M:%S UTC", "timestamp"),
    ("%Y-%m-%d %H:%M:%S %z", "timestamp"),
    ("%m/%d/%Y %I:%M:%S %p", "timestamp"),
    ("%d/%m/%Y %I:%M:%S %p", "timestamp"),
    ("%m/%d/%Y %I:%M %p", "timestamp"),
    ("%d/%m/%Y %I:%M %p", "timestamp"),
    ("%m/%d/%y %I:%M:%S %p", "timestamp"),
    ("%d/%m/%y %I:%M:%S %p", "timestamp"),
    ("%m/%d/%y %I:%M %p", "timestamp"),
    ("%d/%m/%y %I:%M %p", "timestamp"),
    ("%d/%m/%Y %H:%M:%S", "timestamp"),
    ("%m/%d/%Y %H:%M:%S", "timestamp"),
    ("%d/%m/%Y %H:%M", "timestamp"),
    ("%m/%d/%Y %H:%M", "timestamp"),
    ("%d.%m.%Y %H:%M:%S", "timestamp"),
    ("%d.%m.%Y %H:%M", "timestamp"),
    ("%d/%m/%y %H:%M:%S", "timestamp"),
    ("%m/%d/%y %H:%M:%S", "timestamp"),
    ("%d/%m/%y %H:%M", "timestamp"),
    ("%m/%d/%y %H:%M", "timestamp"),
    ("%d.%m.%y %H:%M:%S", "timestamp"),
    ("%d.%m.%y %H:%M", "timestamp"),
    ("%Y/%m/%d %H:%M:%S", "timestamp"),
    ("%a %b %d %H:%M:%S %z %Y", "timestamp"),
    ("%a, %d %b %Y %H:%M:%S %z", "timestamp"),
    ("%d/%b/%Y:%H:%M:%S %z", "timestamp"),
    ("%Y%m%d%H%M%S", "timestamp"),
    ("%d/%m/%Y", "date"),
    ("%m/%d/%Y", "date"),
    ("%d.%m.%Y", "date"),
    ("%d/%m/%y", "date"),
    ("%m/%d/%y", "date"),
    ("%Y/%m/%d", "date"),
    ("%d %b %Y", "date"),
    ("%b %d, %Y", "date"),
    ("%B %d, %Y", "date"),
)
# Notations that differ only in the order of day and month, so many dates fit both.
_ORDERS = (("%d/%m/", "%m/%d/"), ("%m/%d/", "%d/%m/"))
# This notation is tried only for columns whose name means a time, because versions of software, such as
# 7.12.20, look like it.
_SHORT_WITH_POINTS: tuple[str, ColumnType] = ("%d.%m.%y", "date")
# Notations of times of day without a date. A string such as 3:1 counts as a time only if the column's name
# means a time.
_OF_DAY: tuple[str, ...] = (ISO, "%H:%M:%S", "%I:%M:%S %p", "%I:%M %p")
_OF_NAMED_CLOCKS = "%H:%M"
_CLOCK_NAME = re.compile(r"time|zeit|clock|hora|heure|ora($|_)|tijd", re.IGNORECASE)
_CLOCK_OF_DIGITS = "%H%M%S"
# Notations that consist of digits. They are tried only for columns whose name means a time, such as `day`.
_DIGITS: tuple[tuple[str, ColumnType], ...] = (("%Y%m%d", "date"), ("%y%m%d%H", "timestamp"))
_TIME_NAME = re.compile(r"time|date|day|hour|(^|_)(ts|at|dt|dat)($|_)|datum|zeit|fecha|heure", re.IGNORECASE)
# Types are inferred from at most this number of distinct values of a column.
_PROBED = 2_000
# If dates fit two notations, the one with the shorter time span is chosen if its span is less than this share
# of the other span.
_SHORTER = 0.5
# Each file of a log may have the rows of one day in one of these time zones, the more usual zones first. At
# most _ROWS_OF_ZONES rows are compared. Up to the share _FEW_OUTSIDE of the rows may be late, and so in the
# file of a later day.
_ZONES = (
    *("Europe/Berlin", "Europe/London", "America/New_York", "America/Chicago", "America/Los_Angeles"),
    *("America/Denver", "America/Sao_Paulo", "Europe/Athens", "Europe/Moscow", "Asia/Dubai", "Asia/Kolkata"),
    *("Asia/Shanghai", "Asia/Tokyo", "Australia/Sydney", "Pacific/Auckland"),
    *(f"Etc/GMT{hours:+d}" for hours in range(12, -15, -1) if hours),
)
_ROWS_OF_ZONES, _FEW_OUTSIDE = 20_000, 0.01
# 1990 and 2040 in seconds since 1970-01-01. Integers that lie between these times in one of the _UNITS may be
# times.
_FIRST_SECOND, _LAST_SECOND = 631_152_000, 2_208_988_800
_DAY_MICROS = 86_400_000_000
_UNITS: tuple[tuple[str, int], ...] = (("s", 1), ("ms", 1_000), ("us", 1_000_000), ("ns", 1_000_000_000))
# Floats of 64 and of 32 bits below these numbers represent integers exactly.
_EXACT, _EXACT_OF_32_BITS = 2.0**53, 2.0**24
# A column depends on a key if nearly all rows with the same key have the same value. The number of exceptions
# must not exceed the first share of all rows. It must also not exceed the second share of the rows that have
# a value other than the column's most frequent one.
_EXCEPTIONS, _UNEXPLAINED = 0.02, 0.2
_LIST_SEPARATORS = ("|", ";", ",", " ")
_CERTAIN_SEPARATORS = ("|", ";")
# The strings of a column are lists only if there are at least _FEWEST_LISTS of them, and at least the share
# _LIST_SHARE of them have several words.
_LIST_SHARE, _FEWEST_LISTS = 0.3, 10
# Words of lists occur many times and are short. Maximum ratio of the distinct words to all words, and maximum
# length of a word.
_MOST_WORDS_SHARE, _LONGEST_WORD = 0.2, 40


@dataclass(frozen=True)
class SampledColumn:
    """One column of a sample.

    Attributes:
        source: name of the column in the files; c1, c2, … if the files do not name their columns.
        type: type of the values.
        format: the notation of times that are strings, in the form that `log.columns` uses.
        unit: unit of integers that are times since 1970; None for other columns.
        separator: the string between the elements of a list that is written as one string; None for other
            columns.
        nulls: number of nulls in the sample.
        distinct: number of distinct values in the sample, without null.
        examples: up to three of the most frequent values, as strings.
        null_texts: the strings in the sample that stand for null.
        values: the values of the sample, including nulls. In samples of text files, all values are strings,
            and numbers in them have decimal points.
        has_comma: whether the files write the column's numbers with a decimal comma.
        other_format: a notation that fits the times equally well, with the month before the day or the other
            way round; None for other columns.
    """

    source: str
    type: ColumnType
    format: str
    unit: str | None
    separator: str | None
    nulls: int
    distinct: int
    examples: tuple[str, ...]
    null_texts: tuple[str, ...]
    values: pa.ChunkedArray
    has_comma: bool = False
    other_format: str | None = None

    @property
    def is_time(self) -> bool:
        """Returns whether the values are times: timestamps, dates, or integers with a unit."""
        return self.type in ("timestamp", "date") or self.unit is not None

    @property
    def is_time_of_day(self) -> bool:
        """Returns whether the values are times of day without a date."""
        return self.type == "time"

    @property
    def is_number(self) -> bool:
        """Returns whether the values are numbers, but not times."""
        return self.type in ("int", "float", "decimal") and not self.is_time

    @property
    def is_list(self) -> bool:
        """Returns whether the values are lists."""
        return self.type in ("list<int>", "list<string>")


def sampled_columns(sample: TableSample) -> list[SampledColumn]:
    """Returns the columns whose types a configuration can name, in the order of the files.

    Columns of other types, such as structures in Parquet files, are left out.
    """
    rows = sample.rows
    sampled = (_column(name, rows.column(name), sample) for name in rows.column_names)
    columns = [column for column in sampled if column is not None]
    with_comma = [column for column in columns if column.has_comma]
    with_point = [column for column in columns if column.type == "float" and not column.has_comma]
    if not with_comma or not with_point or not (sample.is_text or sample.format == "jsonl"):
        return columns
    # A table has only one decimal separator. Columns that use the rarer separator become strings.
    rarer = {one.source for one in (with_comma if len(with_comma) <= len(with_point) else with_point)}
    return [
        replace(one, type="string", values=rows.column(one.source), has_comma=False)
        if one.source in rarer
        else one
        for one in columns
    ]


def micros_of(column: SampledColumn) -> np.ndarray:
    """Returns the times of a column, ascending and without nulls, in µs since 1970-01-01.

    Local times are read as UTC.
    """
    values = column.values.drop_null()
    if column.unit is not None:
        factor = 1_000_000 // dict(_UNITS)[column.unit] if column.unit != "ns" else None
        counted = numbers_of(values).astype(np.int64)
        micros = counted * factor if factor else counted // 1_000
    elif pa.types.is_temporal(values.type):
        micros = pc.cast(pc.cast(values, pa.timestamp("us"), safe=False), pa.int64()).to_numpy()
    else:
        micros = _times(values.combine_chunks().unique(), column.format, column.type).drop_null().to_numpy()
    return np.sort(np.asarray(micros, dtype=np.int64))


def days_of(column: SampledColumn) -> pa.Array:
    """Returns the day of each row in a column of times, in days since 1970-01-01; null without a time.

    Local times are read as UTC.
    """
    return _quotients(_micros_by_row(column), _DAY_MICROS)


def _micros_by_row(column: SampledColumn) -> pa.Array:
    """Returns the time of each row in µs since 1970-01-01; null without a time.

    Local times are read as UTC.
    """
    encoded = column.values.combine_chunks().dictionary_encode()
    distinct = encoded.dictionary
    if column.unit is not None:
        counted = numbers(distinct) if pa.types.is_string(distinct.type) else distinct
        micros = pc.multiply(pc.cast(counted, pa.float64(), safe=False), 1e6 / dict(_UNITS)[column.unit])
    elif pa.types.is_temporal(distinct.type):
        micros = pc.cast(pc.cast(distinct, pa.timestamp("us"), safe=False), pa.int64())
    else:
        micros = _times(distinct, column.format, column.type)
    return pc.cast(micros.take(encoded.indices), pa.int64(), safe=False)


def _quotients(values: pa.Array, divisor: int) -> pa.Array:
    return pc.floor(pc.divide(pc.cast(values, pa.float64(), safe=False), float(divisor))).cast(pa.int64())


@dataclass(frozen=True)
class ZoneOfDays:
    """The time zones in which the days of a log's files may begin and end.

    Attributes:
        outside: share of the rows whose UTC day is not the day of their file.
        stored: the time zone that Parquet files store for the column, if the days of the files are days in
            this zone; otherwise None.
        zones: the zones in which the largest share of the rows is on the day of its file, the most likely
            zone first.
    """

    outside: float
    stored: str | None
    zones: tuple[str, ...]


def zone_of_days(column: SampledColumn, sample: TableSample) -> ZoneOfDays | None:
    """Returns the time zones in which the days of the log's files may begin and end.

    Returns None if these days are UTC days, or if the time zones cannot be inferred.

    For at most `_ROWS_OF_ZONES` rows, the function compares the day of the row's time in each zone with the
    day in the name of the row's file. If times are strings with offsets from UTC, zones with these offsets
    come first.
    """
    of_files = _days_of_files(sample)
    if of_files is None or column.type == "date" or has_local_times(column):
        return None
    rows = np.linspace(0, len(of_files) - 1, min(len(of_files), _ROWS_OF_ZONES)).astype(np.int64)
    chosen = replace(column, values=pa.chunked_array([column.values.combine_chunks().take(pa.array(rows))]))
    micros = _micros_by_row(chosen)
    is_valid = micros.is_valid().to_numpy(zero_copy_only=False)
    micros, days = micros.drop_null(), of_files[rows][is_valid]
    if not len(micros):
        return None
    written = _offsets_of_texts(chosen, is_valid)

    def local(zone: str) -> np.ndarray:
        times = pc.local_timestamp(micros.cast(pa.timestamp("us", zone)))
        return np.asarray(times.cast(pa.int64()).to_numpy(zero_copy_only=False))

    def share(zone: str) -> float:
        return float((local(zone) // _DAY_MICROS == days).mean())

    def has_offsets(zone: str) -> float:
        return 0.0 if written is None else float((local(zone) - micros.to_numpy() == written).mean())

    inside, of_zones = share(UTC), {zone: share(zone) for zone in _ZONES}
    most = max(of_zones.values())
    if 1 - inside <= _FEW_OUTSIDE or most <= inside + _FEW_OUTSIDE:
        return None
    best = [zone for zone, of_zone in of_zones.items() if of_zone >= most - _FEW_OUTSIDE]
    best.sort(key=lambda zone: -round(has_offsets(zone), 2))
    kind = column.values.type
    stored = kind.tz if pa.types.is_timestamp(kind) else None
    is_stored = stored is not None and share(stored) >= most - _FEW_OUTSIDE
    return ZoneOfDays(1 - inside, stored if is_stored else None, tuple(best))


def _days_of_files(sample: TableSample) -> np.ndarray | None:
    """Returns the day in the name of each row's file, in days since 1970-01-01; None if a name has no day."""
    days = [day_of_file(file) for file, _ in sample.parts]
    if not sample.path.days or None in days:
        return None
    whole = np.array(days, "datetime64[D]").astype(np.int64)
    return np.repeat(whole, [rows for _, rows in sample.parts])


def _offsets_of_texts(column: SampledColumn, is_valid: np.ndarray) -> np.ndarray | None:
    """Returns the offsets from UTC of valid strings in µs, with 0 for Z; None if values are not strings."""
    if not pa.types.is_string(column.values.type) or column.type != "timestamp":
        return None
    texts = column.values.combine_chunks().filter(pa.array(is_valid))
    has_offset = pc.match_substring_regex(texts, r"[+-][0-9]{2}:?[0-9]{2}$")
    padded = pc.replace_substring(pc.if_else(has_offset, texts, "+0000"), ":", "")
    hours, minutes = (
        pc.cast(pc.utf8_slice_codeunits(padded, start, end), pa.int64()).to_numpy()
        for start, end in ((-4, -2), (-2, None))
    )
    signs = np.where(pc.equal(pc.utf8_slice_codeunits(padded, -5, -4), "-"), -1, 1)
    return np.asarray(signs * (hours * 60 + minutes) * 60_000_000)


def has_local_times(column: SampledColumn) -> bool:
    """Returns whether the times of a column have no offset from UTC.

    The configuration must then name their time zone.
    """
    kind = column.values.type
    if column.type not in ("timestamp", "date"):
        return False
    if pa.types.is_temporal(kind):
        return not pa.types.is_timestamp(kind) or kind.tz is None
    if column.format != ISO:
        return "%z" not in column.format and "UTC" not in column.format
    has_offset = pc.match_substring_regex(column.values, r":[0-9.,]+ ?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$")
    return not pc.any(has_offset).as_py()


def numbers_of(values: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Returns the numbers of a column as float64. Nulls and strings that are not numbers are left out."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_string(array.type):
        array = numbers(array)
    return np.asarray(pc.cast(array, pa.float64(), safe=False).drop_null().to_numpy())


def whole_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Returns floats as integers; None if a float is not an integer, or is so large that it may be rounded.

    pandas stores integers as floats if other rows have no value.
    """
    most = _EXACT_OF_32_BITS if pa.types.is_float32(values.type) else _EXACT
    floats = numbers_of(values)
    if (floats != np.floor(floats)).any() or (np.abs(floats) >= most).any():
        return None
    return pc.cast(values, pa.int64())


def is_grouped(column: SampledColumn) -> bool:
    """Returns whether all rows with the same value are adjacent."""
    codes = column.values.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return 1 + int(np.count_nonzero(codes[1:] != codes[:-1])) == column.distinct


def has_midnights(column: SampledColumn) -> bool:
    """Returns whether a column stores dates as timestamps: as local times that are all at midnight."""
    kind = column.values.type
    if not pa.types.is_timestamp(kind) or kind.tz is not None:
        return False
    return bool((micros_of(column) % _DAY_MICROS == 0).all())


def plain_name(source: str) -> str:
    """Returns the name of a column in lower case, without accents, and with one underscore between words."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", source)
    letters = "".join(
        char
        for char in unicodedata.normalize("NFKD", spaced.lower())
        if not "\u0300" <= char <= "\u036f"  # leaves out accents, which NFKD separates from letters
    )
    return re.sub(r"[\W_]+", "_", unicodedata.normalize("NFC", letters)).strip("_")


def depends_on(column: SampledColumn, key: SampledColumn) -> bool:
    """Returns whether nearly all rows with the same key have the same value in a column.

    Only keys with several rows are considered. Rows whose value differs from the usual value of their key are
    exceptions. They must be few compared with all rows, and compared with the rows that do not have the
    column's most frequent value.
    """
    if pa.types.is_nested(column.values.type) or key.distinct > 0.5 * max(len(key.values), 1):
        return False
    table = pa.table({"key": key.values, "value": column.values}).filter(pc.is_valid(key.values))
    pairs = table.group_by(["key", "value"]).aggregate([("value", "count")])
    of_keys = pairs.group_by("key").aggregate([("value_count", "max"), ("value_count", "sum")])
    of_keys = of_keys.filter(pc.greater(of_keys.column("value_count_sum"), 1))
    rows = pc.sum(of_keys.column("value_count_sum")).as_py() or 0
    if not rows:
        return False
    exceptions = rows - pc.sum(of_keys.column("value_count_max")).as_py()
    values = column.values.drop_null()
    unusual = 1 - pc.max(values.value_counts().field("counts")).as_py() / len(values)
    return bool(exceptions <= min(_EXCEPTIONS, _UNEXPLAINED * unusual) * rows)


def _column(name: str, values: pa.ChunkedArray, sample: TableSample) -> SampledColumn | None:
    values = _plain_values(values)
    if pa.types.is_string(values.type):
        is_json = sample.format == "jsonl"
        column = _text_column(name, values, in_text_file=sample.is_text, has_number_texts=is_json)
        return _with_order_of_dates(column, sample)
    kind = _native_type(values.type)
    if kind is None:
        return None
    blank = SampledColumn(name, kind, ISO, None, None, values.null_count, 0, (), (), values)
    if kind in ("list<int>", "list<string>"):
        flat = pc.list_flatten(values)
        return _counted(blank, flat)
    column = _counted(blank, values)
    if kind == "float" and _TIME_NAME.search(name) and (whole := whole_numbers(values)) is not None:
        timed = replace(column, type="int", values=whole, unit=_unit(name, column, whole.drop_null()))
        return column if timed.unit is None else timed
    return replace(column, unit=_unit(name, column, values.drop_null())) if kind == "int" else column


def _plain_values(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts dictionaries, bytes, large strings and whole decimals to the types that jobs read.

    NaN becomes null.
    """
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    kind = values.type
    if pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return pc.cast(values, pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _texts_of_bytes(values)
    if pa.types.is_decimal128(kind) and kind.scale == 0:
        return _whole_decimals(values)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return pc.if_else(pc.is_nan(values), pa.scalar(None, kind), values)
    return values


def _texts_of_bytes(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decodes bytes as UTF-8, as the reader of Parquet logs does; unchanged if some of them are not UTF-8."""
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return values


def _whole_decimals(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts decimals without digits after the point to integers, or to strings if one exceeds 64 bits.

    Databases write integers as such decimals.
    """
    try:
        return pc.cast(values, pa.int64())
    except pa.ArrowInvalid:
        return pc.cast(pc.cast(values, pa.decimal128(38, 0)), pa.string())


def _native_type(kind: pa.DataType) -> ColumnType | None:
    tests: tuple[tuple[ColumnType, bool], ...] = (
        ("bool", pa.types.is_boolean(kind)),
        ("int", pa.types.is_integer(kind)),
        ("float", pa.types.is_floating(kind)),
        ("decimal", pa.types.is_decimal128(kind)),
        ("timestamp", pa.types.is_timestamp(kind)),
        ("date", pa.types.is_date(kind)),
        ("time", pa.types.is_time(kind)),
    )
    scalar: ColumnType | None = next((name for name, fits in tests if fits), None)
    if scalar is None and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        if pa.types.is_integer(kind.value_type):
            return "list<int>"
        if pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type):
            return "list<string>"
    return scalar


def _text_column(
    name: str, values: pa.ChunkedArray, *, in_text_file: bool, has_number_texts: bool
) -> SampledColumn:
    """Infers the type of a column of strings.

    In formats with typed columns, a string can only be a flag, a time, a list or a plain string. In JSON
    lines, it can also be a number with decimals.
    """
    values, null_texts = _without_nulls(values, in_text_file=in_text_file)
    filled = values.drop_null()
    blank = SampledColumn(name, "string", ISO, None, None, values.null_count, 0, (), null_texts, values)
    column = _counted(blank, filled)
    if not len(filled):
        return column
    probe = filled.combine_chunks().unique()[:_PROBED]
    if in_text_file and (typed := _number_or_bool(name, column, probe)) is not None:
        return typed
    if not in_text_file and (_are_bools(column, probe) or probe.to_pylist() in (["0", "1"], ["1", "0"])):
        return replace(column, type="bool")
    if has_number_texts and _is_float(probe):
        return replace(column, type="float")
    if (in_text_file or has_number_texts) and _has_decimal_commas(probe):
        return replace(column, type="float", values=with_decimal_points(values), has_comma=True)
    # Numbers with leading zeros or more than 18 digits stay strings. They may be ids such as article numbers.
    if _matching(probe, _DIGITS_ONLY):
        is_clock = _is_clock_of_digits(name, probe)
        return replace(column, type="time", format=_CLOCK_OF_DIGITS) if is_clock else column
    timed = _notation(name, filled)
    if timed is not None:
        return replace(column, type=timed[1], format=timed[0])
    for notation in (*_OF_DAY, *([_OF_NAMED_CLOCKS] if _CLOCK_NAME.search(name) else [])):
        if _reads(probe, notation, "time"):
            return replace(column, type="time", format=notation)
    separator = _list_separator(filled.slice(0, _PROBED), probe)
    return replace(column, type="list<string>", separator=separator) if separator else column


def _number_or_bool(name: str, column: SampledColumn, probe: pa.Array) -> SampledColumn | None:
    """Returns the column with the type int, float, bool, date or timestamp; None if no type fits."""
    if _are_bools(column, probe):
        return replace(column, type="bool")
    if pc.any(pc.match_substring_regex(probe, _LEADING_ZERO)).as_py():
        return None
    if len(probe) - integers(probe).null_count >= _FITTING_SHARE * len(probe):
        digits = _digit_time(name, probe)
        if digits is not None:
            return replace(column, type=digits[1], format=digits[0])
        if _is_clock_of_digits(name, probe):
            return replace(column, type="time", format=_CLOCK_OF_DIGITS)
        return replace(column, type="int", unit=_unit(name, column, probe))
    return replace(column, type="float") if _is_float(probe) else None


def _are_bools(column: SampledColumn, probe: pa.Array) -> bool:
    """Returns whether a column has only strings such as `true`, `N` or `yes`."""
    return column.distinct <= 2 and set(pc.utf8_lower(probe).to_pylist()) <= set(_BOOLS)


def _is_float(probe: pa.Array) -> bool:
    return _matching(probe, _FLOAT) and not _matching(probe, _DIGITS_ONLY)


def _has_decimal_commas(probe: pa.Array) -> bool:
    """Returns whether the strings are numbers, and most of them have a decimal comma."""
    share = pc.mean(pc.cast(pc.match_substring_regex(probe, _COMMA_FLOAT), pa.float64())).as_py()
    return bool(share >= _COMMA_SHARE) and _matching(probe, _WHOLE_OR_COMMA_FLOAT)


def _without_nulls(values: pa.ChunkedArray, *, in_text_file: bool) -> tuple[pa.ChunkedArray, tuple[str, ...]]:
    """Returns the values, with null in place of strings that stand for null, and the list of these strings.

    In files with typed columns, only the empty string means null.
    """
    if not in_text_file:
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values), ()
    present = [text for text in NULL_TEXTS if pc.any(pc.equal(values, text)).as_py()]
    tokens = ["", *present]
    probe = values.filter(pc.invert(pc.is_in(values, pa.array(tokens)))).combine_chunks().unique()[:_PROBED]
    is_typed = len(probe) and (_matching(probe, _FLOAT) or any(_reads(probe, *one) for one in _NOTATIONS[:3]))
    nulls = present if is_typed else [text for text in present if text in _ALWAYS_NULL]
    means_null = pc.is_in(values, pa.array(["", *nulls]))
    return pc.if_else(means_null, pa.scalar(None, pa.string()), values), tuple(nulls)


def _counted(column: SampledColumn, values: pa.ChunkedArray | pa.Array) -> SampledColumn:
    """Returns the column with its number of distinct values and its most frequent values."""
    counts = (
        values.drop_null().value_counts()
        if len(values)
        else pa.array([], pa.struct({"values": pa.string(), "counts": pa.int64()}))
    )
    if isinstance(counts, pa.ChunkedArray):
        counts = counts.combine_chunks()
    order = np.argsort(-counts.field("counts").to_numpy(), kind="stable")[:3]
    examples = tuple(str(counts.field("values")[int(index)].as_py()) for index in order)
    return replace(column, distinct=len(counts), examples=examples)


def _matching(probe: pa.Array, pattern: str) -> bool:
    return bool(
        pc.mean(pc.cast(pc.match_substring_regex(probe, pattern), pa.float64())).as_py() >= _FITTING_SHARE
    )


def _reads(probe: pa.Array, notation: str, kind: ColumnType) -> bool:
    """Returns whether nearly all strings are times in the given notation."""
    return _read(probe, notation, kind).sum() >= _FITTING_SHARE * len(probe)


def _read(probe: pa.Array, notation: str, kind: ColumnType) -> np.ndarray:
    """Returns, for each of n strings, whether it is a time in the given notation.

    Most calls end after the check of the first ten strings. If fewer than half of them are such times, the
    result is false for all strings.
    """
    few = probe[:10]
    if _times(few, notation, kind).null_count > len(few) / 2:
        return np.zeros(len(probe), dtype=bool)
    return np.asarray(_times(probe, notation, kind).is_valid())


def _notation(name: str, texts: pa.ChunkedArray) -> tuple[str, ColumnType] | None:
    """Returns the notation of times in which most strings of a column are written; None if none fits.

    A notation fits if nearly all distinct strings are such times, or if nearly all rows have such times. In
    the second case, most distinct strings must be such times too, so that one frequent string does not decide
    alone. If several notations fit equally many distinct strings, the first one is returned.
    """
    counts = texts.combine_chunks().value_counts()[:_PROBED]
    probe, rows = counts.field("values"), counts.field("counts").to_numpy()
    best, most = None, 0
    for notation in (*_NOTATIONS, *([_SHORT_WITH_POINTS] if _TIME_NAME.search(name) else [])):
        is_time = _read(probe, *notation)
        of_rows = rows[is_time].sum() / rows.sum()
        fits = of_rows >= _FITTING_SHARE and is_time.mean() >= _DISTINCT_SHARE
        if (fits or is_time.mean() >= _FITTING_SHARE) and is_time.sum() > most:
            best, most = notation, is_time.sum()
        if most == len(probe):
            break
    return best


def _with_order_of_dates(column: SampledColumn, sample: TableSample) -> SampledColumn:
    """Returns the column with the notation that fits best: day before month, or month before day.

    Columns without such dates are returned unchanged. The notation that fits more rows is chosen. If both fit
    equally many, the notation is chosen whose days agree better with the days in the names of files. If both
    agree equally well, the notation with a much shorter time span is chosen. If this does not decide either,
    `other_format` of the result is the other notation.
    """
    order = next((one for one in _ORDERS if one[0] in column.format), None)
    if column.type not in ("date", "timestamp") or order is None:
        return column
    other = replace(column, format=column.format.replace(*order))
    days, others = days_of(column), days_of(other)
    if days.equals(others):
        return column
    fits = [len(one) - one.null_count for one in (days, others)]
    of_files = _days_of_files(sample)
    if fits[0] == fits[1] and of_files is not None:
        fits = [_near(one, of_files) for one in (days, others)]
    if fits[0] != fits[1]:
        return column if fits[0] > fits[1] else other
    spans = [pc.max(one).as_py() - pc.min(one).as_py() for one in (days, others)]
    if min(spans) < _SHORTER * max(spans):
        return column if spans[0] < spans[1] else other
    return replace(column, other_format=other.format)


def _near(days: pa.Array, of_files: np.ndarray) -> int:
    """Returns the number of rows whose day is at most one day from the day of their file."""
    numbers_of_days = days.fill_null(-(1 << 40)).to_numpy(zero_copy_only=False)
    return int((np.abs(numbers_of_days - of_files) <= 1).sum())


def _times(texts: pa.Array, notation: str, kind: ColumnType) -> pa.Array:
    """Converts strings to times, read as UTC, in µs since 1970-01-01; null for another notation.

    Times of day are in µs since midnight.
    """
    if kind == "timestamp":
        return timestamps(texts, notation, UTC)
    if kind == "time":
        return times_of_day(texts, notation)
    return pc.multiply(pc.cast(dates(texts, notation), pa.int64()), _DAY_MICROS)


def _digit_time(name: str, probe: pa.Array) -> tuple[str, ColumnType] | None:
    if not _TIME_NAME.search(name):
        return None
    return next((one for one in _DIGITS if _reads(probe, *one)), None)


def _is_clock_of_digits(name: str, probe: pa.Array) -> bool:
    """Returns whether the column's name means a time, and its strings are times of day such as 134500."""
    if not _CLOCK_NAME.search(name) or not pc.all(pc.equal(pc.binary_length(probe), 6)).as_py():
        return False
    return _reads(probe, _CLOCK_OF_DIGITS, "time")


def _unit(name: str, column: SampledColumn, probe: pa.ChunkedArray | pa.Array) -> str | None:
    """Returns the unit of integers that are times since 1970; None if the integers are not times.

    Nearly all values must be between 1990 and 2040. Ids can be in this range too. So the name of the column
    must mean a time. If the files do not name the column, it must have at least 100 distinct values.
    """
    if not len(probe):
        return None
    named = bool(_TIME_NAME.search(name))
    if not named and (not re.fullmatch(r"c\d+", name) or column.distinct < 100):
        return None
    values = numbers_of(probe)
    for unit, factor in _UNITS:
        inside = (values >= _FIRST_SECOND * factor) & (values < _LAST_SECOND * factor)
        if inside.mean() >= _FITTING_SHARE:
            return unit
    return None


def _list_separator(rows: pa.Array, distinct: pa.Array) -> str | None:
    """Returns the separator of strings that are lists of words; None if the strings are not lists.

    The words of lists occur many times. Commas and blanks also occur in other strings, so for these two
    separators the function counts the words of each distinct string only once.
    """
    for separator in _LIST_SEPARATORS:
        is_certain = separator in _CERTAIN_SEPARATORS
        texts = (rows if is_certain else distinct).to_pylist()
        divided = [text.split(separator) for text in texts]
        lists = sum(len(words) > 1 for words in divided)
        if lists < _LIST_SHARE * len(texts) or len(texts) < _FEWEST_LISTS:
            continue
        words = [word for one in divided for word in one]
        if len(set(words)) <= _MOST_WORDS_SHARE * len(words) and max(map(len, words)) <= _LONGEST_WORD:
            return separator
    return None


def unique_names(sources: Sequence[str], taken: Mapping[str, object] | Sequence[str] = ()) -> Iterator[str]:
    """Yields, for each column, a name that a configuration accepts and that no other column has."""
    known = {name.lower() for name in taken}
    for source in sources:
        plain = re.sub(r"\W+", "_", source.split(":")[0], flags=re.ASCII).strip("_") or "column"
        name, number = plain, 2
        while name.lower() in known:
            name, number = f"{plain}_{number}", number + 1
        known.add(name.lower())
        yield name
