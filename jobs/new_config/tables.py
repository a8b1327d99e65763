"""Describes the tables of a new configuration: their columns, and the features that models can read."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError
from conf.raw_types import UTF8, ColumnType
from conf.time_notation import ISO
from conf.types import LIST_COLUMNS, RESERVED, WEIGHT_COLUMN
from etl.inference.column_types import (
    SampledColumn,
    days_of,
    micros_of,
    numbers_of,
    sampled_columns,
    unique_names,
    whole_numbers,
)
from etl.inference.roles import is_id_name, is_key_name, with_lists_of_items
from etl.inference.sample import TableSample, read_sample
from etl.inference.table_files import find_table
from etl.raw.text_values import integers, numbers, text_lists
from etl.readers.jsonl import refuse_names_with_points

# A column of strings with a larger share of distinct values has titles or addresses instead of categories.
_MOST_DISTINCT_SHARE, _MOST_CATEGORIES = 0.5, 100_000
# Integers with at most this number of values are categories.
_FEW_VALUES = 20
# A column of integers with a larger share of distinct values contains row numbers.
_UNIQUE_SHARE = 0.95
# In a sample with fewer rows, rare values also get an id of their own.
_SMALL_ROWS, _RARE_COUNT = 200_000, 5
# Numbers are skewed if the mean is this many times the median.
_SKEWED = 2.0
# Number of values of a column that are checked for JSON.
_FIRST_TEXTS = 1_000
# Rows count as sorted by user if each user has about one group of consecutive rows.
_SORTED_RUNS = 1.2
# Repeated choices are counted if the sample has at least this number of rows after the first days of users.
_FEWEST_LATER_ROWS = 20
# Numbers in the log, such as prices, describe the item if this share of their variance is between items.
_BETWEEN_SHARE = 0.8
# A table is joined by a column only if the column contains at least this share of the log's ids.
_JOINED_SHARE = 0.2
# A column of the log becomes a key of the log if a table of attributes has at least this share of its ids.
_CERTAIN_SHARE = 0.5
# Names that columns of the new configuration must not have, except `label` in the log.
RESERVED_NAMES = (*RESERVED, WEIGHT_COLUMN, "history", *LIST_COLUMNS["user"], *LIST_COLUMNS["item"])


@dataclass(frozen=True)
class NamedColumn:
    """A column with its name in the configuration.

    Attributes:
        name: the name.
        type: the type that the configuration declares, which for keys is `string` in text files.
        sampled: the properties of the column in the sample.
    """

    name: str
    type: ColumnType
    sampled: SampledColumn

    @property
    def declaration(self) -> dict[str, object]:
        """Returns the entry of the key `columns` that declares this column in the configuration."""
        entry: dict[str, object] = {"name": self.name}
        if self.name != self.sampled.source:
            entry["source"] = self.sampled.source
        entry["type"] = self.type
        if self.type in ("timestamp", "date", "time") and self.sampled.format != ISO:
            entry["format"] = self.sampled.format
        if self.type in ("list<int>", "list<string>") and self.sampled.separator not in (None, "|"):
            entry["separator"] = self.sampled.separator
        return entry


@dataclass(frozen=True)
class NewTable:
    """A table of the new configuration.

    Attributes:
        sample: its first rows.
        columns: all its columns, in the order of the files.
        titles: maps `title` and `image` to the columns with titles and pictures of items. A missing column
            has no entry.
        addresses: the columns with e-mail addresses of users.
    """

    sample: TableSample
    columns: tuple[NamedColumn, ...]
    titles: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()

    @property
    def first_list(self) -> NamedColumn | None:
        """Returns the first column with lists; None if there is none."""
        return next((column for column in self.columns if column.sampled.is_list), None)

    @property
    def null_texts(self) -> list[str]:
        """Returns the strings that represent null in at least one column."""
        return sorted({text for column in self.columns for text in column.sampled.null_texts})

    def column(self, source: str) -> NamedColumn:
        """Returns a column by its name in the files, or in the configuration.

        Raises:
            ConfigError: the column does not exist.
        """
        for column in self.columns:
            if source in (column.sampled.source, column.name):
                return column
        raise ConfigError(
            f"{self.sample.path.files[0]} has no column {source!r}",
            f"name one of its columns: {', '.join(column.sampled.source for column in self.columns)}",
        )

    def section(self, used: Iterable[NamedColumn], time_zone: str | None = None) -> dict[str, object]:
        """Returns the keys of the section: path, format and columns.

        Files without names of columns need all columns. For other files, only the used columns are listed.

        Raises:
            DataError: a used column of JSON lines has a name that no reader finds.
        """
        sample, names = self.sample, {column.name for column in used}
        listed = [one for one in self.columns if one.name in names or not sample.has_names]
        sources = [one.sampled.source for one in listed]
        refuse_names_with_points(sample.path.files[0], [one for one in sources if one in sample.with_points])
        section: dict[str, object] = {"path": sample.path.pattern, "format": sample.format}
        if sample.separator not in (None, "," if sample.format == "csv" else "\t"):
            section["separator"] = sample.separator
        if sample.encoding != UTF8:
            section["encoding"] = sample.encoding
        if self.null_texts:
            section["null_values"] = ["", *self.null_texts]
        if any(one.sampled.has_comma for one in listed):
            section["decimal_separator"] = ","
        if time_zone:
            section["time_zone"] = time_zone
        section["columns"] = [
            one.declaration if sample.has_names else {"name": one.name, **_without_source(one.declaration)}
            for one in listed
        ]
        return section


def _without_source(declaration: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in declaration.items() if key not in ("source", "name")}


def open_new_table(location: str, taken: Sequence[str] = (), keys: Sequence[str | None] = ()) -> NewTable:
    """Reads the first rows of a table, and names its columns.

    Args:
        location: path of a file or folder, or a glob.
        taken: names that the columns must not have.
        keys: the columns with the user and the item, if they are known.

    Raises:
        ConfigError, DataError: no file exists, or a file cannot be read.
    """
    sample = read_sample(find_table(location))
    sampled = [_with_ids(one, is_key=one.source in keys) for one in sampled_columns(sample)]
    names = unique_names([column.source for column in sampled], taken)
    return NewTable(
        sample,
        tuple(NamedColumn(name, column.type, column) for name, column in zip(names, sampled, strict=True)),
    )


def _with_ids(column: SampledColumn, *, is_key: bool = False) -> SampledColumn:
    """Returns a column of ids. Ids such as 709763.1700000077 are strings, although they look like numbers.

    Columns without ids are returned unchanged.

    Args:
        column: any column.
        is_key: whether the column certainly has the ids of users or items, whatever its name is.
    """
    has_fractions = column.type in ("float", "decimal") and not column.has_comma
    if not has_fractions or not (is_key or is_key_name(column.source)):
        return column
    if pa.types.is_string(column.values.type):
        return replace(column, type="string")
    whole = whole_numbers(column.values)
    return column if whole is None else replace(column, type="int", values=whole)


def key_of(table: NewTable, key: NamedColumn) -> NamedColumn:
    """Returns the column of an attribute table that contains the ids in the log's key column.

    Raises:
        ConfigError: no column has these ids.
    """
    best, most = _best_match(table, key.sampled)
    if best is None or most < _JOINED_SHARE:
        _refuse_ids_with_point(table, key.sampled)
        raise ConfigError(
            f"no column of {table.sample.path.files[0]} has the values of the log's column "
            f"{key.sampled.source!r}, such as {key.sampled.examples[0] if key.sampled.examples else ''!r}",
            "pass a table with one row for each value, or another column of the log as --user or --item",
        )
    return best


def _refuse_ids_with_point(table: NewTable, key: SampledColumn) -> None:
    """Raises ConfigError if a table has the ids of the log, but the table or the log writes them as 12.0.

    pandas writes integers in this way if the column also has missing values.
    """
    ids = pc.replace_substring_regex(_texts(key.values).unique(), r"^(\d+)\.0+$", r"\1")
    for column in (one.sampled for one in table.columns):
        if column.is_list or not len(ids):
            continue
        known = pc.replace_substring_regex(_texts(column.values).unique(), r"^(\d+)\.0+$", r"\1")
        if (pc.mean(pc.cast(pc.is_in(ids, known), pa.float64())).as_py() or 0) >= _JOINED_SHARE:
            raise ConfigError(
                f"the column {column.source!r} of {table.sample.path.files[0]} has ids such as "
                f"{column.examples[0]!r}, but the log's column {key.source!r} has ids such as "
                f"{key.examples[0]!r}",
                "write the ids of both tables in the same way; if pandas writes integers beside missing "
                "values, call frame[column].astype('Int64') before to_csv",
            )


def key_by_table(table: NewTable, columns: Iterable[SampledColumn]) -> SampledColumn | None:
    """Returns the column of the log whose values are the ids of a table of attributes; None if there is none.

    Args:
        table: the table of users or of items.
        columns: columns of the log that may be the key.
    """
    ids = [
        one for one in table.columns if one.sampled.distinct >= _UNIQUE_SHARE * one.sampled.values.length()
    ]
    of_ids = replace(table, columns=tuple(ids))
    shares = [(_best_match(of_ids, column)[1], column) for column in columns]
    most, best = max(shares, key=lambda match: match[0], default=(0.0, None))
    return best if most >= _CERTAIN_SHARE else None


def _best_match(table: NewTable, key: SampledColumn) -> tuple[NamedColumn | None, float]:
    """Returns the column of a table that contains the largest share of a key's values, and this share."""
    ids = _texts(key.values).unique()
    best, most = None, 0.0
    for column in table.columns:
        if column.sampled.is_list or column.sampled.type in ("float", "bool"):
            continue
        share = (
            pc.mean(pc.cast(pc.is_in(ids, _texts(column.sampled.values).unique()), pa.float64())).as_py() or 0
        )
        if share > most:
            best, most = column, share
    return best, most


def _texts(values: pa.ChunkedArray) -> pa.Array:
    whole = values.combine_chunks()
    if pa.types.is_floating(whole.type):
        whole = pc.cast(whole, pa.int64(), safe=False)
    return pc.cast(whole, pa.string())


def with_arrays(error: ConfigError, sample: TableSample) -> ConfigError:
    """Returns the error. If a column has arrays of objects, such as the items of an order, adds its name."""
    arrays = [one.name for one in sample.rows.schema if _has_objects(one.type)]
    if not arrays:
        return error
    array, command = arrays[0], ""
    if sample.format == "jsonl":
        others = [one.name.split(".")[0] for one in sample.rows.schema if not _has_objects(one.type)]
        kept = ", ".join(f"{json.dumps(name)}: .{json.dumps(name)}" for name in dict.fromkeys(others))
        objects = "".join(f".{json.dumps(name)}" for name in array.split("."))
        file = sample.path.files[0].rsplit("/", 1)[-1]
        command = f", such as by `jq -c '{{{kept}}} + {objects}[]?' {file} > rows_{file}`"
    return ConfigError(
        f"{error.problem}; {array} has arrays of objects, which cannot be columns",
        f"write one row for each object of {array}{command}; or {error.remedy}",
    )


def _has_objects(kind: pa.DataType) -> bool:
    """Returns whether a column has arrays of objects."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return is_list and pa.types.is_struct(kind.value_type)


def shown_items_in(columns: Sequence[SampledColumn]) -> SampledColumn | None:
    """Returns a column whose values list shown items, with 1 after a clicked item: `N1-0 N2-1`."""
    for column in columns:
        texts = column.values.drop_null()
        if not pa.types.is_string(texts.type) or not len(texts):
            continue
        has_several = pc.match_substring_regex(texts.slice(0, 1_000), r"^\S+[-:_][01]([ ,;|]\S+[-:_][01])+$")
        if pc.sum(has_several).as_py() > len(texts.slice(0, 1_000)) / 2:
            return column
    return None


@dataclass(frozen=True)
class NewFeature:
    """A feature of the new configuration.

    Attributes:
        column: the column.
        kind: dense, categorical or multi_hot.
        ops: the operators.
    """

    column: NamedColumn
    kind: str
    ops: tuple[object, ...]


def feature_of(column: NamedColumn, rows: int) -> NewFeature | str:
    """Returns the feature of a column, or a clause with the reason why it has none.

    Args:
        column: the column.
        rows: number of rows of the sample.
    """
    sampled = column.sampled
    categorify = {"categorify": {"min_count": 1 if rows < _SMALL_ROWS else _RARE_COUNT}}
    if sampled.distinct < 2:
        return "it has only one value"
    if _has_json(sampled):
        return "its texts are JSON"
    if sampled.is_list:
        return NewFeature(column, "multi_hot", (categorify,))
    if sampled.is_time_of_day or sampled.unit is not None:
        return "it is a time"
    if sampled.is_time:
        return NewFeature(column, "dense", ("fill_median", "normalize"))
    if sampled.type == "bool" or (sampled.type == "int" and sampled.distinct <= _FEW_VALUES):
        return NewFeature(column, "categorical", (categorify,))
    if sampled.distinct > _UNIQUE_SHARE * max(rows - sampled.nulls, 1) and not _is_amount(sampled):
        return "nearly every row has a different value"
    if sampled.is_number:
        return NewFeature(column, "dense", _of_numbers(sampled))
    if sampled.distinct > min(_MOST_CATEGORIES, _MOST_DISTINCT_SHARE * max(rows - sampled.nulls, 1)):
        return "nearly every row has a different value"
    return NewFeature(column, "categorical", (categorify,))


def _is_amount(column: SampledColumn) -> bool:
    """Returns whether the values are amounts, such as durations, and neither row numbers nor ids."""
    if column.type != "int":
        return column.type == "float"
    if is_id_name(column.source) or re.fullmatch(r"c\d+", column.source):
        return False
    return not bool((np.diff(numbers_of(column.values)) > 0).all())


def _has_json(column: SampledColumn) -> bool:
    """Returns whether the values of a column of a text file are JSON objects or lists of them."""
    texts = column.values.drop_null().slice(0, _FIRST_TEXTS)
    if not pa.types.is_string(texts.type) or not len(texts):
        return False
    is_json = pc.match_substring_regex(texts, r"^\s*(\[\s*(\{.*\})?\s*\]|\{\s*(\".*)?\})\s*$")
    return bool(pc.all(is_json).as_py())


def _of_numbers(column: SampledColumn) -> tuple[object, ...]:
    numbers = numbers_of(column.values)
    positive = numbers.min() >= 0 and numbers.mean() > _SKEWED * max(
        float(sorted(numbers)[len(numbers) // 2]), 1e-9
    )
    skewed: tuple[object, ...] = ({"clip": {"min": 0}}, "log1p") if positive else ()
    return ("fill_median", *skewed, "normalize")


def most_frequent(column: SampledColumn) -> object:
    """Returns the most frequent value, in the form of `score.context`; None for a column of times.

    Operators read times as whole numbers, which people cannot check. For a column without a value in
    `score.context`, lists use the most frequent value of the train rows.
    """
    if column.is_time or column.is_time_of_day:
        return None
    values = column.values.combine_chunks()
    is_text = pa.types.is_string(values.type)
    if column.is_list:
        lists = text_lists(values, column.separator or "|") if is_text else values
        counts = Counter(tuple(one) for one in lists.drop_null().to_pylist())
        return list(counts.most_common(1)[0][0])
    if is_text and column.is_number:
        values = integers(values) if column.type == "int" else numbers(values)
    values = values.filter(pc.is_finite(values)) if pa.types.is_floating(values.type) else values
    of_values = values.drop_null().value_counts()
    best = of_values.field("values")[int(np.argmax(of_values.field("counts")))].as_py()
    if column.type == "bool":
        return str(best).lower() in ("true", "t", "yes", "y")
    return float(best) if column.type in ("float", "decimal") else best


def share_of_repeats(
    user: SampledColumn, item: SampledColumn, time: SampledColumn, is_choice: np.ndarray | None = None
) -> float:
    """Returns how often users choose an item again on a later day.

    This is the share of rows with an item that the user chose on an earlier day, among the rows after each
    user's first day. It is 0 if the sample has only a few such rows.

    Args:
        user, item, time: the columns of n rows.
        is_choice: (n,) bool, whether the user chose the item; None if every row is a choice.
    """
    rows = pa.table({"user": user.values, "item": item.values, "day": days_of(time)})
    rows = (rows if is_choice is None else rows.filter(pa.array(is_choice))).drop_null()
    users, items = (
        rows.column(name).combine_chunks().dictionary_encode().indices.to_numpy() for name in ("user", "item")
    )
    days = rows.column("day").to_numpy()
    _, pairs = np.unique(users.astype(np.int64) * (len(items) + 1) + items, return_inverse=True)
    is_later = days > _first_days(users, days)
    if is_later.sum() < _FEWEST_LATER_ROWS:
        return 0.0
    return float((days > _first_days(pairs, days))[is_later].mean())


def _first_days(codes: np.ndarray, days: np.ndarray) -> np.ndarray:
    """Returns, for each of n rows, the first day of the rows with the same code."""
    first = np.full(int(codes.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, codes, days)
    return first[codes]


def differs_by(column: SampledColumn, key: SampledColumn) -> bool:
    """Returns whether numbers vary mostly between keys and little within a key, like the prices of items.

    This is so if the share of the variance between keys is at least `_BETWEEN_SHARE`. The share is adjusted
    for the number of keys, so that it is about 0 for random numbers.
    """
    if key.distinct > 0.5 * max(len(key.values), 1):
        return False
    texts = pa.types.is_string(column.values.type)
    array = column.values.combine_chunks()
    values = (numbers(array) if texts else pc.cast(array, pa.float64(), safe=False)).fill_null(np.nan)
    rows = np.flatnonzero(np.isfinite(np.asarray(values)) & np.asarray(key.values.is_valid()))
    known = np.asarray(values)[rows]
    codes = np.asarray(key.values.take(pa.array(rows)).combine_chunks().dictionary_encode().indices)
    items = int(codes.max()) + 1 if len(codes) else 0
    if len(known) <= items or known.var() == 0:
        return False
    means = np.bincount(codes, known) / np.bincount(codes)
    within = np.square(known - means[codes]).sum() / (len(known) - items)
    return bool(1 - within / known.var(ddof=1) >= _BETWEEN_SHARE)


def grouped(features: Sequence[NewFeature]) -> list[dict[str, object]]:
    """Returns the entries of `features`. Columns with the same kind and operators share an entry."""

    def same(feature: NewFeature) -> str:
        return f"{feature.kind} {feature.ops}"

    return [
        {"columns": [one.column.name for one in group], "kind": group[0].kind, "ops": list(group[0].ops)}
        for group in (list(members) for _, members in groupby(sorted(features, key=same), key=same))
    ]


def last_day(time: SampledColumn) -> str:
    """Returns the last day of the times in a column that is not later than today, as YYYY-MM-DD.

    Later times, such as a single wrong one in the year 2037, are ignored. Returns today if there is no other.
    """
    now = datetime.now(UTC)
    tomorrow = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    micros = np.asarray(micros_of(time))
    micros = micros[micros < tomorrow.timestamp() * 1e6]
    last = datetime.fromtimestamp(int(micros.max()) / 1e6, UTC) if len(micros) else now
    return last.date().isoformat()


def share_of_most_frequent(column: SampledColumn) -> float:
    """Returns the share of the most frequent value among the values of a column that are not null."""
    texts = column.values.drop_null()
    if not len(texts):
        return 0.0
    return float(pc.max(texts.value_counts().field("counts")).as_py()) / len(texts)


def is_sorted_by(column: SampledColumn) -> bool:
    """Returns whether nearly all rows with the same value are adjacent."""
    codes = column.values.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    runs = 1 + int(np.count_nonzero(codes[1:] != codes[:-1]))
    return runs <= _SORTED_RUNS * max(column.distinct, 1)


def renamed(table: NewTable, roles: dict[str, NamedColumn | None]) -> NewTable:
    """Names the columns of a file without names by their roles. Keys of text files get the type string."""
    role_of = {column.sampled.source: role for role, column in roles.items() if column is not None}
    columns = []
    for column in table.columns:
        role = role_of.get(column.sampled.source)
        name = role if role and not table.sample.has_names else column.name
        if role == "label" and column.type == "string":
            name = "event" if name == "label" else name
        elif name == "label" and role != "label":
            name = "label_2"
        is_text_key = role in ("user", "item") and table.sample.is_text
        columns.append(replace(column, name=name, type="string" if is_text_key else column.type))
    reserved = set(RESERVED_NAMES) - {"label"}
    columns = [replace(one, name=f"{one.name}_2") if one.name in reserved else one for one in columns]
    return replace(table, columns=tuple(columns))


def with_lists(table: NewTable) -> NewTable:
    """Returns a table in which strings that list shown items are replaced by lists."""
    sampled = with_lists_of_items([one.sampled for one in table.columns])
    columns = zip(table.columns, sampled, strict=True)
    return replace(table, columns=tuple(replace(one, type=new.type, sampled=new) for one, new in columns))
