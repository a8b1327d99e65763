"""Converts frames of interactions, users and items to Arrow tables with a few fixed column types.

Also converts ids that callers pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError, DataError
from conf.names import LONGEST_COLUMN, column_name, expand_range, fits_column
from etl.raw.row_rules import RULE, are_bad_keys
from nightrank.frame_training import read_labels
from nightrank.spark_frames import AnyFrame, local_table
from storage.feature_spec import FLOAT32_MAX

# Names of the columns in the tables of interactions, users and items.
USER, ITEM, TIME, LABEL = "user", "item", "time", "label"
# The names of attributes in the tables of users and items begin with these prefixes. Because of the two
# underscores, such a name is never that of an internal column, such as item_key or item_index.
_PREFIXES = {USER: "user__", ITEM: "item__"}

# Recommendation lists have these columns besides the ids, so a column of ids cannot have these names.
_OF_LISTS = ("position", "score", "reason")
# The largest number that is accepted as a time in seconds (the year 5138). Larger numbers are probably
# milliseconds: read as milliseconds, this number is a time in 1973.
_LAST_SECOND = 1e11
_DAY_S = 86_400
_LONGEST_SHOWN = 60  # characters of an id in a message
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class Interactions:
    """The interactions of users with items.

    Attributes:
        rows: a table with the columns USER and ITEM (int64 or string), TIME (timestamp in µs, UTC; if there
            are times) and LABEL (int64, 0 or 1; if there are labels).
        user_type, item_type: the names of the Arrow types of the ids in the frame. For a categorical column,
            the type is that of its values.
    """

    rows: pa.Table
    user_type: str
    item_type: str

    @property
    def first_time(self) -> int | None:
        """Returns the earliest time in µs since 1970-01-01 UTC; None without times."""
        return pc.min(self.rows.column(TIME)).value if TIME in self.rows.column_names else None

    @property
    def last_time(self) -> int | None:
        """Returns the latest time in µs since 1970-01-01 UTC; None without times."""
        return pc.max(self.rows.column(TIME)).value if TIME in self.rows.column_names else None


def read_interactions(
    frame: AnyFrame | pa.RecordBatch, user: str, item: str, time: str | None, label: str | None
) -> Interactions:
    """Returns the interactions of a frame. The other arguments are the names of its columns.

    Raises:
        ConfigError: the rows are not a frame, two of the columns have the same name, or a column of ids
            has the name of another column of recommendation lists: position, score or reason.
        DataError: a column is missing; an id or a time is missing, or has an unsupported type or value; a
            label is not 0 or 1; or there are no rows.
    """
    names = [name for name in (user, item, time, label) if name is not None]
    if len(set(names)) < len(names) or {user, item} & set(_OF_LISTS):
        raise ConfigError(
            f"the columns {names} must have different names, and a column of ids must not have one of the "
            f"names {list(_OF_LISTS)}",
            "rename the columns",
        )
    table = local_table(frame, names)
    _require_columns(table, names, "interactions")
    if not table.num_rows:
        raise DataError("the interactions have no rows", "pass at least some hundred interactions")
    columns = {USER: _keys(user, table.column(user)), ITEM: _keys(item, table.column(item))}
    if time is not None:
        columns[TIME] = _times(time, table.column(time))
    if label is not None:
        columns[LABEL] = read_labels(label, table.column(label)).cast(pa.int64())
    types = [_value_type(table.schema.field(name).type) for name in (user, item)]
    return Interactions(pa.table(columns), *map(str, types))


def _require_columns(table: pa.Table, names: Sequence[str], frame: str) -> None:
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DataError(
            f"the {frame} have no columns {missing}",
            "pass the names of the columns as `user`, `item`, `time` (or None) and `label`",
        )


def _value_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values of a column, which may be dictionary-encoded (category in pandas)."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _ids(name: str, column: pa.ChunkedArray) -> pa.Array:
    """Returns ids as 64-bit integers or as strings.

    Raises:
        DataError: ids are not integers or strings, or an id is missing.
    """
    values = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    values = values.cast(_value_type(values.type))
    if pa.types.is_integer(values.type):
        values = _cast(name, values, pa.int64())
        missing = values.null_count
    elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.string())
        missing = values.null_count + (pc.sum(pc.equal(values, "")).as_py() or 0)
    else:
        raise DataError(
            f"column {name} has the type {values.type}, but ids must be integers or strings",
            "convert the column to integers or strings; leave out rows with missing ids first",
        )
    if missing:
        raise DataError(f"column {name}: {missing} of {len(values)} ids are missing", "leave these rows out")
    return values


def _keys(name: str, column: pa.ChunkedArray) -> pa.Array:
    """Returns the ids of the rows on which a model is trained, converted by `_ids`.

    Raises:
        DataError: `_ids` raises this error, or an id breaks the rule that the jobs have for ids.
    """
    ids = _ids(name, column)
    if pa.types.is_string(ids.type):
        wrong = are_bad_keys(ids)
        count = pc.sum(wrong).as_py()
        if count:
            row = pc.index(wrong, True).as_py()
            value = ids[row].as_py()
            shown = repr(value) if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]!r}…"
            raise DataError(
                f"column {name}, row {row}: {shown} is not an id ({count} of {len(ids)} rows): {RULE}",
                "correct these ids, or leave these rows out",
            )
    return ids


def _times(name: str, column: pa.ChunkedArray) -> pa.Array:
    """Returns times in µs, in UTC.

    Raises:
        DataError: a time is missing or outside the years 1 to 9999, or the type of the column is not a type
            of times.
    """
    values = pa.concat_arrays(column.chunks)
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        seconds = values.cast(pa.float64())
        seconds = pc.if_else(pc.is_nan(seconds), None, seconds)  # in Polars and Arrow, NaN is not null
        most = pc.max(pc.abs(seconds)).as_py() or 0.0
        if most > _LAST_SECOND:
            raise DataError(
                f"column {name} has the number {most:.17g}, but numbers must be seconds since 1970-01-01",
                "convert the column to timestamps, such as by pandas.to_datetime(…, unit='ms')",
            )
        _require_years(name, seconds, 1)
        micros = pc.round(pc.multiply(seconds, 1e6)).cast(pa.int64())
        values = micros.cast(pa.timestamp("us", "UTC"))
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if pa.types.is_date(kind):
            values = values.cast(pa.timestamp("s"))
        _require_years(name, values.cast(pa.int64()), _PER_SECOND[values.type.unit])
        values = values.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
        values = values.cast(pa.timestamp("us", "UTC"))
    else:
        raise DataError(
            f"column {name} has the type {kind}, but times must be timestamps, dates or seconds since 1970",
            "convert the column, such as by pandas.to_datetime, or pass time=None",
        )
    if values.null_count:
        raise DataError(
            f"column {name}: {values.null_count} of {len(values)} times are missing", "leave these rows out"
        )
    return values


def _require_years(name: str, numbers: pa.Array, per_second: int) -> None:
    """Raises DataError if a time is outside the years 1 to 9999, to which dates are limited.

    Args:
        name: the name of the column.
        numbers: times since 1970-01-01 UTC, some of them null.
        per_second: the number of units of `numbers` in a second.
    """
    first, end = (
        (day - date(1970, 1, 1).toordinal()) * _DAY_S * per_second
        for day in (date.min.toordinal(), date.max.toordinal() + 1)
    )
    if first < -(2**63):  # 64-bit nanoseconds cover only the years 1677 to 2262
        return
    wrong = pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end)), False)
    if pc.any(wrong).as_py():
        raise DataError(
            f"column {name}, row {pc.index(wrong, True).as_py()}: the time is outside the years 1 to 9999",
            "check the unit of the times, and correct them or leave these rows out",
        )


def read_attributes(section: str, frame: AnyFrame | pa.RecordBatch, key: str, like: pa.DataType) -> pa.Table:
    """Returns a table of attributes: the key, and columns of numbers, strings or lists of strings.

    Raises:
        ConfigError: a column has a name that features cannot have, or two names differ only in case.
        DataError: the key is missing, occurs twice, has another type than in the interactions, or has a wrong
            value; or a column has a type or a value that attributes cannot have; or a numeric column has no
            numbers.
    """
    columns_of_frame = (
        frame.schema.names if isinstance(frame, pa.Table | pa.RecordBatch) else list(frame.columns)
    )
    names = [str(name) for name in columns_of_frame]
    table = local_table(frame, names)
    _require_columns(table, [key], section)
    ids = _keys(key, table.column(key))
    if ids.type != like:
        raise DataError(
            f"column {key} of the {section} has the type {ids.type}, but {like} in the interactions",
            f"convert this column to {like}, or the ids in the interactions to {ids.type}",
        )
    if len(ids.unique()) < len(ids):
        counts = ids.value_counts()
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        raise DataError(
            f"the {section} contain {key}={twice[0].as_py()!r} more than once", "keep one row per key"
        )
    side = USER if section == "users" else ITEM
    columns = {side: ids}
    attributes = [name for name in table.column_names if name != key]
    _require_names(section, _PREFIXES[side], attributes)
    for name in attributes:
        values = _attribute(name, table.column(name))
        if pa.types.is_floating(values.type):
            _require_numbers(f"column {name} of the {section}", values)
        columns[f"{_PREFIXES[side]}{name}"] = values
    return pa.table(columns)


def _require_names(section: str, prefix: str, attributes: Sequence[str]) -> None:
    """Raises ConfigError if the name of an attribute, with its prefix, cannot be the name of a feature."""
    by_case: dict[str, str] = {}
    for name in attributes:
        if not _fits_feature(f"{prefix}{name}"):
            raise ConfigError(
                f"column {name!r} of the {section}: the name of an attribute must have at most "
                f"{LONGEST_COLUMN - len(prefix)} characters, and must not contain a dot, a backtick, /, \\, "
                "a control character or a range such as {1..3}",
                "rename it",
            )
        other = by_case.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(
                f"the {section} have the columns {[other, name]}, whose names differ only in upper and lower "
                "case",
                "rename one of them",
            )


def _fits_feature(name: str) -> bool:
    try:
        return fits_column(column_name(name)) and expand_range(name) == [name]
    except ValueError:
        return False


def _require_numbers(column: str, values: pa.Array) -> None:
    """Raises DataError if a number is outside the range of float32, or there are no numbers."""
    wrong = pc.fill_null(pc.greater(pc.abs(values), FLOAT32_MAX), False)
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        raise DataError(
            f"{column}, row {row}: {values[row]} is outside the range of float32",
            "correct the value, or leave it out (None)",
        )
    if not pc.any(pc.is_finite(values)).as_py():
        raise DataError(f"{column} has no numbers", "leave the column out")


def _attribute(name: str, column: pa.ChunkedArray) -> pa.Array:
    values = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    values = values.cast(_value_type(values.type))
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_date(kind):
        return values.cast(pa.string())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _cast(name, values, pa.float64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.cast(pa.string())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _cast(name, values, pa.list_(pa.string()))
    raise DataError(
        f"column {name} has the type {kind}, but attributes must be numbers, strings, booleans, dates "
        f"or lists of strings",
        "convert the column, or leave it out",
    )


def _cast(name: str, values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return values.cast(kind)
    except pa.ArrowException as error:
        raise DataError(
            f"column {name} cannot be converted to {kind}: {error}", "convert the column"
        ) from error


def texts_of(argument: str, ids: Iterable[Any], kind: str) -> pa.Array:
    """Returns ids as strings, in the order of `ids`.

    Args:
        argument: the name of the argument, for messages.
        ids: integers or strings.
        kind: the type of ids in the interactions.

    Raises:
        ConfigError: `ids` is a single value, not a list.
        DataError: an id is missing, or the ids have another type than in the interactions.
    """
    values = ids
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        if not isinstance(ids, Iterable):
            raise ConfigError(f"{argument} is {ids!r}, not a list of ids", f"pass {argument}=[{ids!r}]")
        try:
            values = pa.array(list(ids), from_pandas=True)
        except (pa.ArrowException, OverflowError) as error:
            raise DataError(f"{argument} have no common type: {error}", "pass ids of one type") from error
    if not len(values):
        return pa.array([], pa.string())
    array = _ids(argument, pa.chunked_array([values]) if isinstance(values, pa.Array) else values)
    if pa.types.is_integer(array.type) != _of_integers(kind):
        raise DataError(
            f"{argument}: the ids have the type {array.type}, but {kind} in the interactions",
            "pass ids of this type",
        )
    return array.cast(pa.string())


def typed(texts: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Converts ids to the type that they have in the interactions. Strings of any type become `string`.

    If an integer does not fit into this type, all integers become int64. Such an integer is the id of an
    unknown user, or of an item that only the frame `items` has.
    """
    if not _of_integers(kind):
        return texts
    integers = texts.cast(pa.int64())
    try:
        return integers.cast(getattr(pa, kind)())
    except pa.ArrowInvalid:
        return integers


def _of_integers(kind: str) -> bool:
    return kind.startswith(("int", "uint"))


def iso_time(micros: int) -> str:
    """Returns a time in µs since 1970-01-01 UTC in ISO 8601."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)).isoformat()
