"""Reads tables other than the log, in this process, and joins their columns to rows of the log.

`etl/spark/raw_frames.py` reads the same tables as Spark frames, with the same rows and the same errors.
`read_whole_table` reads all rows of a table, such as attributes of users or items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from conf.types import Config, RawTable
from etl.raw.files import require_raw
from etl.raw.rejected_lines import RejectedLine
from etl.raw.text_values import integers
from etl.readers.arrow_values import null_values, one_array
from etl.readers.base import RawBlock, open_table
from etl.readers.table_heads import first_reasons, unusable
from storage.lineage import NOT_RECORDED, LineageRecorder


@dataclass(frozen=True)
class ReadBlock:
    """The rows of a block in which no row was rejected, and their line numbers in the file.

    Attributes:
        path: path of the file.
        line_numbers: (n,) int64: for each row, the number of its line in the file, from 1.
        columns: for each column of the table, an array of n values.
    """

    path: str
    line_numbers: np.ndarray
    columns: Mapping[str, pa.Array]


def read_whole_table(
    table: RawTable, paths: tuple[str, ...], section: str, text_id: str | None = None
) -> tuple[pa.Table, list[ReadBlock]]:
    """Reads all rows of a table. Each row must be valid.

    Args:
        table: names and types of the columns.
        paths: paths of the files.
        section: the section of the configuration, for error messages.
        text_id: the column of strings with ids of users or items, which must obey the rule for ids in
            etl/raw/row_rules.py; None if there is none.

    Returns:
        A table with the columns of `table`, in the order of the files and lines, and the blocks of the table.
        Each column is one chunk: a dictionary array of int64, double or string, or an array of lists.
        Dictionaries contain no null, but may contain a value twice, for example because the fields `7` and
        `07` are the same integer.

    Raises:
        DataError: a file is damaged or lacks a column, or rows cannot be parsed.
        ConfigError: a column is stored with a type that its declared type cannot hold.
    """
    read: list[ReadBlock] = []
    rejected: list[RejectedLine] = []
    bad = 0
    for path, first_line, block in _blocks(table, paths):
        reasons = first_reasons(block, text_id)
        if reasons:  # keep only the first rejected row of each file, because the message shows no other rows
            bad += len(reasons)
            line = min(reasons)
            if not any(known.file == path for known in rejected):
                text = block.texts([line])[0]
                rejected.append(RejectedLine(path, first_line + line + 1, reasons[line], text))
        elif not bad:
            read.append(ReadBlock(path, first_line + block.row_lines + 1, block.columns))
    if bad:
        raise unusable(table, section, min(rejected, key=lambda line: (line.file, line.line_number)), bad)
    return _joined(table, read), read


def _blocks(table: RawTable, paths: tuple[str, ...]) -> Iterator[tuple[str, int, RawBlock]]:
    """Yields the blocks of all files in order: (path, number of lines before the block, block)."""
    reader = open_table(table, paths)
    path, lines = "", 0
    for file_split in reader.splits():
        if file_split.path != path:
            path, lines = file_split.path, 0
        for block in reader.blocks(file_split, table.names):
            yield path, lines, block
            lines += block.lines


def _joined(table: RawTable, read: Sequence[ReadBlock]) -> pa.Table:
    """Returns the rows of all blocks.

    If there are no blocks, the columns have the types that the table declares.
    """
    columns = {}
    for column in table.columns:
        chunks = [block.columns[column.name] for block in read] or [null_values(column, 0)]
        columns[column.name] = one_array(pa.chunked_array(chunks))
    return pa.table(columns)


# The functions below read tables, and join them with rows of the log.


def read_attribute_table(
    config: Config,
    table: RawTable,
    key: str | Sequence[str],
    section: str,
    dt: str,
    id_column: str | None = None,
    recorder: LineageRecorder = NOT_RECORDED,
) -> pa.Table:
    """Reads a table other than the log, such as attributes of users or items, with one row per key.

    `etl.spark.raw_frames.read_attributes` returns the same rows as a frame.

    Args:
        config: the configuration of the run.
        table: the table to read.
        key: the column or columns whose values must be unique.
        section: the section of the configuration, for error messages.
        dt: the date that replaces `{date}` in the table's path.
        id_column: the column with ids of users or items; None if there is none.
        recorder: records the table's files as an input of the run.

    Returns:
        A table with the columns of `table`, in the order of the files and lines. Each column is one chunk: a
        dictionary array of int64, double or string, or an array of lists. Dictionaries contain no null, but
        may contain a value twice, for example because the fields `7` and `07` are the same integer.

    Raises:
        DataError: there is no file, rows cannot be parsed, ids violate the rule of etl/raw/row_rules.py, or a
            key is null or occurs more than once. If a key occurred twice, a join would return a row of the
            log twice.
        ConfigError: a column has a Parquet type that its declared type cannot hold.
    """
    raw = require_raw(config, table, dt, f"{section}.path", recorder)
    types = {column.name: column.type for column in table.columns}
    text_id = id_column if id_column is not None and types[id_column] == "string" else None
    rows, read = read_whole_table(table, raw.paths, section, text_id)
    _require_unique_keys(rows, [key] if isinstance(key, str) else list(key), read)
    return rows


def join_attributes(rows: pa.Table, attributes: pa.Table, key: str) -> pa.Table:
    """Joins rows with a table of attributes. This is a left join with the same result as in Spark.

    A row has null attributes if its key is null or not in the table. Rows keep their order and their chunks.
    All chunks of an added column share one dictionary.

    Args:
        rows: n rows with the column `key`: int64 or string, plain or dictionary arrays.
        attributes: the result of `read_attribute_table`, with the same column `key`. If the key is a string
            in one of the two tables and an integer in the other, strings are compared as integers.
        key: the column of the key.

    Returns:
        The columns of `rows`, and then the other columns of `attributes`; n rows.

    Raises:
        DataError: two different strings among the keys of `attributes` are the same integer.
    """
    positions = attribute_rows(rows[key], attributes[key], key)
    parts, start = [], 0
    for chunk in rows[key].chunks:
        parts.append(positions.slice(start, len(chunk)))
        start += len(chunk)
    joined = rows
    for name in attributes.column_names:
        if name != key:
            values = one_array(attributes[name])
            taken = pa.chunked_array([values.take(part) for part in parts], values.type)
            joined = joined.append_column(name, taken)
    return joined


def attribute_rows(keys: pa.ChunkedArray, known: pa.ChunkedArray, name: str) -> pa.Int32Array:
    """Returns, for each of n keys, the index of its row in a table of attributes; null if there is none.

    Args:
        keys: n keys: int64 or string, plain or dictionary arrays.
        known: the keys of the table of attributes, without nulls.
        name: the name of the column, for error messages.

    Raises:
        DataError: see `join_attributes`.
    """
    known_values = plain_array(known)
    dictionaries: list[pa.Array] = []
    dictionary_of: list[int] = []  # for each chunk, the index of its dictionary in `dictionaries`
    for chunk in keys.chunks:
        is_encoded = isinstance(chunk, pa.DictionaryArray)
        distinct = chunk.dictionary if is_encoded else chunk
        if not (is_encoded and dictionaries and distinct.equals(dictionaries[-1])):
            dictionaries.append(distinct)
        dictionary_of.append(len(dictionaries) - 1)
    if not dictionaries:
        return pa.nulls(0, pa.int32())
    values = pa.concat_arrays(dictionaries)
    if values.type != known_values.type:
        values, known_values = _as_integers(values), _as_integers(known_values)
        _require_one_text(known_values, name)
    known_index = pc.index_in(values, value_set=known_values, skip_nulls=True)
    starts = np.cumsum([0, *map(len, dictionaries)])
    parts = []
    for chunk, number in zip(keys.chunks, dictionary_of, strict=True):
        of_values = known_index.slice(starts[number], len(dictionaries[number]))
        parts.append(of_values.take(chunk.indices) if isinstance(chunk, pa.DictionaryArray) else of_values)
    return pa.concat_arrays(parts)


def plain_array(column: pa.ChunkedArray) -> pa.Array:
    """Returns the values of a column as one array without a dictionary."""
    values = one_array(column)
    return values.dictionary.take(values.indices) if isinstance(values, pa.DictionaryArray) else values


def compares_integers(config: Config, table: RawTable, key: str) -> bool:
    """Returns whether the key of a table of attributes is compared with the log as an integer.

    This is the case if the key is a string in one of the two and an integer in the other. For example,
    `00007` and 7 are then the same key.
    """
    return {config.log.types[key], table.types[key]} == {"int", "string"}


def needs_keys_of_log(config: Config, table: RawTable, key: str) -> bool:
    """Returns whether the keys of the log must be known to find the key of each row in a table of attributes.

    This is the case if the key is a string in the log and an integer in the table: the integer 7 of the table
    may be the key `7` or `00007` of the log.
    """
    return compares_integers(config, table, key) and table.types[key] == "int"


def key_texts(config: Config, table: RawTable, rows: pa.Table, name: str) -> pa.Array:
    """Returns the key of each row of a table of attributes, as a string.

    If integers are compared (`compares_integers`), a string that is an integer, such as `007`, becomes `7`.
    """
    own = plain_array(rows[name])
    texts = own.cast(pa.string())
    if not compares_integers(config, table, name):
        return texts
    return pc.coalesce(_as_integers(own).cast(pa.string()), texts)


def keyed_rows(
    config: Config, table: RawTable, rows: pa.Table, name: str, key: str, of_log: pa.Table | None = None
) -> pa.Table:
    """Returns the rows of a table of attributes. Their keys are written as in the log.

    `etl.spark.raw_frames.keyed_frame` returns the same rows as a frame. If integers are compared
    (`compares_integers`), the result has one row for each key. If several keys of the log are the same
    integer, such as `7` and `07`, each of them has a row. If no key of the log is this integer, the key is
    the integer as a string. A key of the table that is not an integer stays unchanged.

    Args:
        config: the configuration of the run.
        table: the table of attributes.
        rows: the result of `read_attribute_table`.
        name: the column of the key. In the result, it has the type and the values of the log.
        key: user_key or item_key, the column that the function adds: the key as a string.
        of_log: rows with the distinct values of the column `key` in the log. They are needed only if
            `needs_keys_of_log` returns True.

    Raises:
        DataError: integers are compared, and two different strings in the table are the same integer.
    """
    texts = key_texts(config, table, rows, name)
    if not compares_integers(config, table, name):
        return rows.append_column(key, texts)
    numbers = _as_integers(plain_array(rows[name]))
    _require_one_text(numbers, name)
    keyed, has_texts = rows, needs_keys_of_log(config, table, name)
    if has_texts and of_log is not None:
        log_keys = plain_array(of_log[key])
        found = pc.index_in(integers(log_keys), value_set=numbers, skip_nulls=True)
        others = pc.invert(pc.is_in(pa.array(np.arange(len(rows)), pa.int32()), value_set=found))
        keyed = pa.concat_tables([rows.take(found.drop_null()), rows.filter(others)]).combine_chunks()
        texts = pa.concat_arrays([log_keys.filter(found.is_valid()), texts.filter(others)])
    values = (texts if has_texts else numbers).dictionary_encode()
    return keyed.set_column(keyed.column_names.index(name), name, values).append_column(key, texts)


def _as_integers(values: pa.Array) -> pa.Array:
    return integers(values) if pa.types.is_string(values.type) else values


def _require_one_text(keys: pa.Array, name: str) -> None:
    """Raises DataError if an integer occurs more than once among the keys of a table."""
    counted = pc.value_counts(keys.drop_null())
    twice = counted.filter(pc.greater(counted.field("counts"), 1))
    if len(twice):
        raise several_texts(name, twice[0]["values"].as_py())


def several_texts(name: str, number: int) -> DataError:
    """Returns the error for a table in which several strings of the key `name` are the same integer."""
    return DataError(
        f"the table with the column {name} writes the integer {number} in several ways, but keys of the "
        "log are integers",
        f"give {name} the same type in the log and in the table",
    )


def _require_unique_keys(rows: pa.Table, keys: Sequence[str], read: Sequence[ReadBlock]) -> None:
    """Raises DataError if a key is null or occurs more than once."""
    codes, is_null = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    for name in keys:
        ranks = _ranks(one_array(rows[name]))
        is_null |= ranks == 0
        # `codes` and `ranks` are at most n, so the numbers here fit into 64 bits.
        codes = np.unique(codes * (len(rows) + 1) + ranks, return_inverse=True)[1]
    counts = np.bincount(codes)
    different = len(np.unique(codes[~is_null]))
    if different == len(rows):
        return
    has_null = np.zeros(len(counts), bool)
    has_null[codes[is_null]] = True
    first = int(np.flatnonzero(has_null | (counts > 1))[0])
    invalid = np.flatnonzero(codes == first)
    numbers = np.concatenate([block.line_numbers for block in read])
    files = np.repeat(np.arange(len(read)), [len(block.line_numbers) for block in read])
    places = sorted((read[files[row]].path, int(numbers[row])) for row in invalid.tolist())
    lines = " and ".join(f"line {line} of {path}" for path, line in places[:2])
    values = ", ".join(f"{name}={rows[name][int(invalid[0])].as_py()!r}" for name in keys)
    key_names = ", ".join(keys)
    raise DataError(
        f"{places[0][0]}: {len(rows)} rows have {different} different values of {key_names}; "
        f"the first value that is null or occurs twice is {values}, in {lines}",
        f"keep exactly one row for each value of {key_names}, without nulls",
    )


def _ranks(column: pa.Array) -> np.ndarray:
    """Returns the ranks of n values among the distinct values, from 1; 0 for null: (n,) int64.

    Strings are ordered by their UTF-8 bytes, as in Spark.
    """
    if not isinstance(column, pa.DictionaryArray):
        column = column.dictionary_encode()
    values = column.dictionary
    if pa.types.is_floating(values.type):
        values = pc.add(values, 0.0)  # -0.0 is the same key as 0.0.
    distinct = values.dictionary_encode()  # A dictionary of parsed numbers may have a value twice.
    order = pc.sort_indices(distinct.dictionary).to_numpy()
    rank_of = np.zeros(len(order) + 1, np.int64)
    rank_of[order] = np.arange(1, len(order) + 1)
    of_value = np.append(rank_of[distinct.indices.to_numpy(zero_copy_only=False)], 0)
    return of_value[column.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
