"""The encode pass: tasks compute the features of every file split, and write them as Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from device.columns import DeviceColumn, DeviceColumns, look_up
from etl.fit.rounds import RowBatch, TrainingBlocks
from etl.ops.tables import LocalTables
from etl.raw.file_splits import FILE_SPLIT_BYTES, FileSplit
from etl.text.gpu_tasks import GpuTasks, gpu_tasks
from etl.text.parse_block import FileLayout, LogRows, ParsedBlock, RowSource, SavedBlock, load_all, unify
from etl.workflow.chains import FEATURE_ARROW_TYPES, FittedChain, RowPlace, compute_features
from spark.workers import TaskArguments, Workers
from storage.feature_spec import (
    EVENT_TIME,
    GROUP_KEY,
    ITEM_KEY,
    LABEL,
    ROW_ID,
    USER_KEY,
    WEIGHT,
    FeatureSpec,
)
from storage.file_digests import new_file
from storage.publish import null_column, own_path, with_footer

# Maximum size of a row group's model inputs in the memory of a training rank. A number takes 4 bytes, and
# lists are padded to the length of the longest list. A rank (a training process) has at least one row group
# of each of its shards in memory. So this size determines how much memory training on many rows needs.
ROW_GROUP_BYTES = 32 * 2**20
# A GPU decodes the pages of a column in parallel, and readers can skip pages. With pyarrow's default of 1
# MiB, most columns of a row group would be one page. Smaller pages make files a little smaller, but a CPU
# decodes them a little more slowly.
_PAGE_BYTES = 64 * 2**10
_RAW_KEYS = (USER_KEY, ITEM_KEY, GROUP_KEY)
_KEY_TYPES = {ROW_ID: pa.int64(), **dict.fromkeys(_RAW_KEYS, pa.string()), EVENT_TIME: pa.int64()}


@dataclass(frozen=True)
class EncodeTask:
    """One file split to encode.

    Attributes:
        file_split: the file split to read; None for a day without rows, for which the task writes a file
            without rows.
        first_row: row_id of the first line of the file split.
        features_file: path of the file to write. Each attempt at the task adds different digits to the file
            name (storage.publish.own_path).
        dt: the day of the rows, as an ISO date.
        split: train, validation or test, if one partition of the log has several of them; otherwise None.
        saved: the blocks with these rows that the scan pass saved, in the order of the rows; empty if it did
            not save them.
        saved_line: the first line of the first saved block, as an index into the lines of the file split.
        lines: first line, and the line after the last one, of the rows to encode; None for all rows.
    """

    file_split: FileSplit | None
    first_row: int
    features_file: str
    dt: str
    split: str | None = None
    saved: tuple[SavedBlock, ...] = ()
    saved_line: int = 0
    lines: tuple[int, int] | None = None


@dataclass(frozen=True)
class Encoding:
    """The data that each task needs: the source of the rows, and what it computes from the rows.

    Attributes:
        source: reads the rows of a file split.
        chains: the fitted chains of operators.
        spec: the columns of the feature table.
        tables: the tables in which steps of the chains look up values.
        row_group_rows: maximum number of rows of a row group.
    """

    source: RowSource
    chains: tuple[FittedChain, ...]
    spec: FeatureSpec
    tables: LocalTables
    row_group_rows: int

    @property
    def schema(self) -> pa.Schema:
        """Returns the columns of the feature table, in the order in which they are written.

        Model inputs other than lists are declared as not nullable, because Parquet decodes such columns
        faster.
        """
        dtypes = {feature.name: FEATURE_ARROW_TYPES[feature.dtype] for feature in self.spec.features}
        keys = [pa.field(name, _KEY_TYPES[name]) for name in self.spec.key_columns]
        of_rows = [self.spec.label, *([self.spec.weight] if self.spec.weight else [])]
        inputs = {**dict.fromkeys(of_rows, pa.float32()), **dtypes}
        return pa.schema(
            [*keys, *(pa.field(name, dtype, pa.types.is_list(dtype)) for name, dtype in inputs.items())]
        )


def encode_splits(workers: Workers, tasks: Sequence[EncodeTask], encoding: Encoding) -> list[str]:
    """Writes one Parquet file per task, and returns the names of the files in the order of the tasks.

    The files are not published. Rows are distributed round-robin over the row groups of a file, so each group
    is a sample of the file.
    """
    source = encoding.source
    on_gpus = gpu_tasks(workers, source.layout, len(tasks)) if isinstance(source, LogRows) else None
    if on_gpus is None:
        return workers.collect(len(tasks), partial(_encode_task, TaskArguments(tasks), encoding))
    group = partial(_encode_group, on_gpus, TaskArguments(tasks), encoding)
    groups = workers.collect(len(on_gpus.groups), group)
    return [path for group in groups for path in json.loads(group)]


def _encode_task(tasks: TaskArguments[EncodeTask], encoding: Encoding, index: int) -> str:
    return encode_file_split(tasks[index], encoding)


def _encode_group(on_gpus: GpuTasks, tasks: TaskArguments[EncodeTask], encoding: Encoding, index: int) -> str:
    """Encodes the file splits of one GPU's group of tasks, and returns the paths of the new files as JSON."""

    def encode(task: int, on_device: FileLayout) -> str:
        return encode_file_split(tasks[task], replace(encoding, source=LogRows(on_device)))

    source = encoding.source
    if not isinstance(source, LogRows):
        raise TypeError("internal error, please report: only the rows of a log are encoded on a GPU")
    return json.dumps([*on_gpus.run(index, source.layout, encode)])


def encode_file_split(task: EncodeTask, encoding: Encoding) -> str:
    """Runs in a worker: writes the features of one file split to a new file.

    Returns the path of the file with a description of its footer (storage.publish.with_footer).

    Raises:
        DataError: a feature is null.
    """
    names = [name for chain in encoding.chains for name in chain.inputs]
    pending: list[tuple[int, ParsedBlock]] = []
    pending_bytes = 0
    with (
        new_file(own_path(task.features_file)) as file,
        pq.ParquetWriter(
            file.sink,
            encoding.schema,
            compression="zstd",
            # Row_ids are distinct, so a dictionary would only cost time. Instead, their differences are
            # stored, which are small. Lists take less time and space without a dictionary, because the
            # compression removes the repetitions of whole lists.
            use_dictionary=[
                field.name
                for field in encoding.schema
                if field.name != ROW_ID and not pa.types.is_list(field.type)
            ],
            column_encoding={ROW_ID: "DELTA_BINARY_PACKED"},
            data_page_size=_PAGE_BYTES,
        ) as writer,
    ):
        for first_row, parsed in _parsed_blocks(task, encoding.source, names):
            pending.append((first_row, parsed))
            pending_bytes += parsed.bytes
            # `saved_runs` has the same condition, so change both together
            if pending_bytes + parsed.bytes // 2 >= FILE_SPLIT_BYTES:
                _write(writer, pending, encoding, task)
                pending, pending_bytes = [], 0
        _write(writer, pending, encoding, task)
    return with_footer(file.name)


def _parsed_blocks(
    task: EncodeTask, source: RowSource, names: Sequence[str]
) -> Iterator[tuple[int, ParsedBlock]]:
    """Yields (row_id of the block's first line, parsed block) for each block of a file split.

    If the scan pass saved the blocks of the rows, they are loaded. Otherwise the split is parsed again.
    """
    if task.file_split is None:
        return
    saved = load_all(task.saved, {*names})
    blocks = saved if saved is not None else source.blocks(task.file_split, names)
    lines = task.saved_line if saved is not None else 0
    for parsed in blocks:
        yield task.first_row + lines, rows_in(parsed, task.lines, lines)
        lines += parsed.lines


def rows_in(block: ParsedBlock, lines: tuple[int, int] | None, lines_before: int) -> ParsedBlock:
    """Returns those rows of a block whose lines are in a range of lines of the file split.

    Args:
        block: a block of the file split.
        lines: first line, and the line after the last one; None for all lines.
        lines_before: number of lines of the file split before the block.
    """
    if lines is None:
        return block
    first, end = np.searchsorted(block.row_lines, np.subtract(lines, lines_before)).tolist()
    if (first, end) == (0, len(block.row_lines)):
        return block
    columns: Mapping[str, pa.Array]
    if isinstance(block.columns, DeviceColumns):
        columns = block.columns.slice(first, end)
    else:
        columns = {name: values.slice(first, end - first) for name, values in block.columns.items()}
    return replace(block, row_lines=block.row_lines[first:end], columns=columns, counts={})


def _write(
    writer: pq.ParquetWriter, blocks: Sequence[tuple[int, ParsedBlock]], encoding: Encoding, task: EncodeTask
) -> None:
    """Writes the rows of some blocks of the task's file split as row groups of equal size.

    Raises:
        DataError: a feature is null.
    """
    rows = sum(len(block.row_lines) for _, block in blocks)
    if not rows:
        return
    schema = encoding.schema
    row_ids = np.concatenate([first_row + block.row_lines for first_row, block in blocks])
    place = RowPlace(row_ids, task.dt, task.split)
    dtypes = {feature.name: feature.dtype for feature in encoding.spec.features}
    of_device = device_features(
        encoding.chains, [block for _, block in blocks], dtypes, encoding.tables, place
    )
    dtypes = {name: dtype for name, dtype in dtypes.items() if name not in of_device.tables}
    columns = _columns(blocks, encoding, dtypes, place)
    for field in schema:
        if not field.nullable and field.name in columns and columns[field.name].null_count:
            path = task.file_split.path if task.file_split else task.features_file
            raise null_column(path, field.name, columns[field.name].null_count, rows)
    groups = -(-rows // min(encoding.row_group_rows, _rows_of_group(schema, columns)))
    table = pa.Table.from_arrays([*columns.values()], [*columns])
    table = _dealt(table, groups) if groups > 1 else table
    dealt = {**dict(zip(table.schema.names, table.columns, strict=True)), **of_device.dealt(groups)}
    table = pa.Table.from_arrays([dealt[name] for name in schema.names], schema.names).cast(schema)
    starts = np.cumsum([0, *(len(range(group, rows, groups)) for group in range(groups))]).tolist()
    for start, end in pairwise(starts):
        writer.write_table(table.slice(start, end - start), row_group_size=end - start)


def _rows_of_group(schema: pa.Schema, columns: Mapping[str, pa.Array]) -> int:
    """Returns the number of rows whose model inputs have ROW_GROUP_BYTES bytes.

    Args:
        schema: the columns of the feature table.
        columns: the values of all list columns. Other columns may be included.
    """
    numbers = 0
    for field in schema:
        if pa.types.is_list(field.type):
            numbers += pc.max(pc.list_value_length(columns[field.name])).as_py() or 0
        elif field.name not in _KEY_TYPES:
            numbers += 1
    return max(1, ROW_GROUP_BYTES // (4 * max(numbers, 1)))


def _dealt(table: pa.Table, groups: int) -> pa.Table:
    """Distributes n rows round-robin over the row groups of a file.

    Returns the rows 0, groups, 2 * groups, …, 1, 1 + groups, … . The columns of `table` have one chunk.
    Columns are processed one after the other. So a column stays in the cache of a processor core while its
    values are copied to all groups.
    """
    order = pa.array(_dealt_values(np.arange(len(table)), groups))
    columns = [_dealt_column(column.chunk(0), groups, order) for column in table.columns]
    return pa.Table.from_arrays(columns, table.schema.names)


def _dealt_column(values: pa.Array, groups: int, order: pa.Array) -> pa.Array:
    """Returns the values in the order in which `_dealt` returns rows.

    `order` (n,) has the indices of the values in this order. For numbers without nulls, NumPy is faster than
    Arrow.
    """
    if not values.null_count:
        if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            return pa.array(_dealt_values(values.to_numpy(), groups), values.type)
        if pa.types.is_dictionary(values.type):
            codes = _dealt_column(values.indices, groups, order)
            return pa.DictionaryArray.from_arrays(codes, values.dictionary)
    return values.take(order)


def _dealt_values(values: np.ndarray, groups: int) -> np.ndarray:
    """Returns `values` (n,) grouped by row group: the values 0, groups, 2 * groups, …, 1, 1 + groups, … ."""
    return np.concatenate([values[group::groups] for group in range(groups)])


def _columns(
    blocks: Sequence[tuple[int, ParsedBlock]],
    encoding: Encoding,
    dtypes: Mapping[str, str],
    place: RowPlace,
) -> Mapping[str, pa.Array]:
    """Returns the (n,) values of columns of the feature table, by column name: keys, label and features.

    Args:
        blocks: the rows, and the row_id of the first line of each block.
        encoding: the fitted chains, and the columns of the feature table.
        dtypes: maps each feature to compute to its dtype.
        place: day, split and row ids of the rows.
    """
    chains = [chain for chain in encoding.chains if any(name in dtypes for name in chain.outputs)]
    names = {name for chain in chains for name in chain.inputs}
    raw = {name: _joined([block.columns[name] for _, block in blocks]) for name in sorted(names)}
    columns = compute_features(chains, raw, dtypes, encoding.tables, place)
    columns[ROW_ID] = pa.array(place.row_ids, pa.int64())
    for key in _RAW_KEYS:
        if key in encoding.spec.key_columns:
            columns[key] = unify([block.columns[key] for _, block in blocks])
    for key in (EVENT_TIME, LABEL, WEIGHT):
        if key in encoding.spec.row_columns:
            columns[key] = pa.concat_arrays([block.columns[key] for _, block in blocks])
    return columns


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    """Concatenates arrays of a raw column.

    The dictionaries of several arrays, or of their list elements, become one dictionary.
    """
    return unify(parts) if isinstance(parts[0], pa.DictionaryArray) else pa.concat_arrays(parts)


# The code below provides the training rows for a fit as blocks. Tasks read them from the raw log or from
# prepared files.


@dataclass(frozen=True)
class TrainingSplit:
    """A file split with training rows.

    Attributes:
        file_split: the part of a file that contains the rows.
        dt: the day of the rows, as an ISO date.
        first_row: the row_id of the first line of the file split.
        lines: first line, and the line after the last one, of the training rows; None for all rows.
    """

    file_split: FileSplit
    dt: str
    first_row: int = 0
    lines: tuple[int, int] | None = None


def training_blocks(splits: Sequence[TrainingSplit], source: RowSource) -> TrainingBlocks:
    """Returns the training rows of file splits. Each file split is one task."""
    return TrainingBlocks(len(splits), partial(_read, TaskArguments(splits), source))


def _read(
    splits: TaskArguments[TrainingSplit], source: RowSource, index: int, wanted: frozenset[str]
) -> Iterator[RowBatch]:
    split = splits[index]
    names, lines = sorted(wanted - {LABEL}), 0
    for block in source.blocks(split.file_split, names):
        rows = rows_in(block, split.lines, lines)
        columns = {name: rows.columns[name] for name in names}
        columns[LABEL] = rows.columns[LABEL].cast(pa.float32())
        yield RowBatch(split.first_row + lines + rows.row_lines, split.dt, columns)
        lines += block.lines


# The code below computes features of rows on a device, with look-up tables.
#
# If a chain reads only one raw column, the host computes the feature of each distinct value once. The results
# form a look-up table, with one value for each code. The device looks up the values of all rows, and
# distributes the rows over row groups. After that, all columns are copied to the host at once. The host
# computes all other features (etl/workflow/chains.py): features of several columns, lists, and features that
# depend on the position of a training row.


@dataclass(frozen=True)
class _Table:
    """The look-up tables of a feature: one for each block.

    Attributes:
        kind: float32 or int32.
        columns: for each block, the column with the codes.
        values: for each block, one value for each code, (k + 1,). The last value is the value of null.
    """

    kind: pa.DataType
    columns: tuple[DeviceColumn, ...]
    values: tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class DeviceFeatures:
    """The features that a device looks up for the rows of some blocks.

    Attributes:
        tables: the look-up tables of each feature, by name.
    """

    tables: Mapping[str, _Table]

    def dealt(self, groups: int) -> dict[str, pa.Array]:
        """Looks up the features of all rows.

        The rows are distributed round-robin over row groups (device.columns.look_up).
        """
        if not self.tables:
            return {}
        of_features = list(self.tables.values())
        blocks = [
            [(table.columns[block], table.values[block]) for table in of_features]
            for block in range(len(of_features[0].columns))
        ]
        bits = look_up(blocks, groups)  # (C, n)
        return {
            name: pa.array(values.view(table.kind.to_pandas_dtype()), table.kind)
            for (name, table), values in zip(self.tables.items(), bits, strict=True)
        }


def device_features(
    chains: Sequence[FittedChain],
    blocks: Sequence[ParsedBlock],
    dtypes: Mapping[str, str],
    tables: LocalTables,
    place: RowPlace,
) -> DeviceFeatures:
    """Returns the features that a device can look up.

    Features that are null in at least one row are left out.

    Args:
        chains: the fitted chains.
        blocks: the rows, at least one block.
        dtypes: maps each feature to its dtype.
        tables: the tables that steps look up.
        place: day, split and row ids of the rows.
    """
    looked_up: dict[str, _Table] = {}
    for chain in chains:
        columns = _columns_of(chain, blocks)
        if columns is None or any(place.is_training_row_of(step) for step in chain.steps):
            continue
        names = {name: dtypes[name] for name in chain.outputs if dtypes.get(name) in ("float32", "int32")}
        of_blocks = [chain.compute([_each_code(column)], tables, names) for column in columns]
        for name, dtype in names.items():
            values = [of_block[name] for of_block in of_blocks]
            if not any(_has_null(column, array) for column, array in zip(columns, values, strict=True)):
                filled = tuple(np.asarray(array.fill_null(0)) for array in values)
                looked_up[name] = _Table(FEATURE_ARROW_TYPES[dtype], columns, filled)
    return DeviceFeatures(looked_up)


def _columns_of(chain: FittedChain, blocks: Sequence[ParsedBlock]) -> tuple[DeviceColumn, ...] | None:
    """Returns, for each block, the only column that a chain reads.

    Returns None if the chain reads several columns, or a column in host memory.
    """
    if len(chain.inputs) != 1:
        return None
    columns = [
        block.columns.on_device(chain.inputs[0])
        for block in blocks
        if isinstance(block.columns, DeviceColumns)
    ]
    known_columns = tuple(column for column in columns if column is not None)
    return known_columns if len(known_columns) == len(blocks) else None


def _each_code(column: DeviceColumn) -> pa.DictionaryArray:
    """Returns k + 1 rows: one row for each of the k values of the dictionary, and one row for null."""
    codes = np.arange(len(column.dictionary) + 1, dtype=np.int32)
    is_null = codes == len(column.dictionary)
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=is_null), column.dictionary)


def _has_null(column: DeviceColumn, values: pa.Array) -> bool:
    """Returns whether the value of any row is null. `values` (k + 1,) has the value of each code."""
    if not values.null_count:
        return False
    return len(column.rows_with(np.asarray(values.is_null()))) > 0
