"""Applies the rules of a log to the typed blocks that a reader returns.

Rejected lines get a reason. A log is parsed in this way with both engines, `sql` and `arrow`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.raw_types import RawTable
from conf.types import Column, EventTime, Keys, Label
from device.columns import DeviceColumn, DeviceColumns, Values, arrow, mixed_columns, parts_of
from etl.native.scan import NOTHING_REJECTED, RejectedRows, Rejections, rejections_of
from etl.ops.base import RowFilter, Type
from etl.raw.erased_users import ERASED, ErasedUsers, LineFields, erased_of_day, has_erased_field
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.raw.row_rules import TIME_OF_DAY, row_rules, with_times_of_day
from etl.readers.base import RawBlock, TableReader, open_table
from etl.readers.text import rows_with
from etl.workflow.feature_plan import FeaturePlan
from storage.feature_spec import EVENT_TIME, USER_KEY


@dataclass(frozen=True)
class ParsedBlock:
    """The n valid rows and the rejected lines of one block.

    Attributes:
        bytes: number of bytes of the block's text.
        lines: number of lines in the block.
        row_lines: (n,) int64: for each row, the index of its line in the block, from 0.
        columns: maps each raw column to a dictionary array of n values (int64, double or string), or to an
            array of n lists. It also has `label` (float) and, if the log has them, `weight` (float),
            `user_key`, `item_key`, `group_key` (dictionaries of strings) and `event_time` (int64 µs). These
            replace raw columns with the same names, but filters read the raw columns. If a
            device has scanned the block, the codes of dictionary arrays are on the device until they are
            used.
        counts: maps each raw column to an array. Entry i of the array is the number of rows with the value i
            of the column's dictionary. If rows or a header line were removed after the scan, the mapping is
            empty, because the scanner's counts include them.
        rejected: for every line that is not a valid row, maps the index of the line in the block to the
            reason. Indices are ascending. Lines that the operators `filter` and `dropna` drop are also
            rejected lines.
        texts: function that returns the texts of the lines whose indices it receives.
    """

    bytes: int
    lines: int
    row_lines: np.ndarray
    columns: Mapping[str, pa.Array]
    counts: Mapping[str, np.ndarray]
    rejected: Rejections
    texts: Callable[[Sequence[int]], list[str]] = field(default=lambda lines: [""] * len(lines))


def read_split(file_split: FileSplit, layout: FileLayout, wanted: Collection[str]) -> Iterator[ParsedBlock]:
    """Yields the parsed blocks of a file split of the log (see `parse_block`)."""
    erased = layout.erased.get(file_split.path)
    for block in layout.reader.blocks(file_split, wanted):
        yield parse_block(block, layout, erased)


def parse_block(block: RawBlock, layout: FileLayout, erased: ErasedUsers | None = None) -> ParsedBlock:
    """Applies the rules of the log to a block: label, keys, time, filters and erased users.

    Args:
        block: the typed rows of a block, which have the columns of `columns_to_parse`.
        layout: the layout of the log.
        erased: users whose rows are rejected with the reason ERASED; None if there are none.
    """
    reasons = RejectedRows(len(block.row_lines))
    reasons.add_all(block.malformed)
    raw, counts = parts_of(block.columns), block.counts
    # Derived columns may replace raw columns with the names `label` and `event_time`.
    columns = {**raw, **_derived_columns(raw, layout, reasons)}
    if block.exact_time is not None:
        columns[EVENT_TIME] = pc.coalesce(block.exact_time, columns[EVENT_TIME])
    _apply_filters(raw, layout, reasons)
    if erased is not None:
        _leave_out_erased(columns[USER_KEY], erased, reasons)
    row_lines = block.row_lines
    if reasons:
        good = reasons.good
        row_lines, counts = row_lines[good], {}
        columns = _rows(columns, good)
    rejected = _by_line(block, reasons.result())
    if erased is not None:
        rejected = _hide_erased(block, LineFields.of(layout.table, layout.keys), erased, rejected)
    return ParsedBlock(
        block.bytes, block.lines, row_lines, mixed_columns(columns), counts, rejected, block.texts
    )


def _by_line(block: RawBlock, of_rows: Rejections) -> Rejections:
    """Returns the rejected lines of a block: lines that are not rows, and the lines of rejected rows."""
    broken = block.broken if isinstance(block.broken, Rejections) else rejections_of(block.broken.items())
    lines = np.concatenate([broken.indices, block.row_lines[of_rows.indices]])
    codes = np.concatenate([broken.codes, of_rows.codes + np.int32(len(broken.reasons))])
    order = np.argsort(lines, kind="stable")
    return Rejections(lines[order], codes[order], (*broken.reasons, *of_rows.reasons))


def _rows(columns: Mapping[str, Values], rows: np.ndarray) -> dict[str, Values]:
    """Returns the values of the rows with the indices `rows`, by column."""
    mixed = mixed_columns(columns)
    if isinstance(mixed, DeviceColumns):
        return mixed.take(rows).parts
    return {name: array.take(pa.array(rows)) for name, array in mixed.items()}


def _leave_out_erased(users: Values, erased: ErasedUsers, reasons: RejectedRows) -> None:
    """Sets the reason ERASED for the rows of erased users, even if they have another reason."""
    rows = rows_with(users, np.flatnonzero(erased.are_in(users.dictionary)))
    reasons.add(rows, ERASED, replace=True)


def _hide_erased(
    block: RawBlock, fields: LineFields, erased: ErasedUsers, rejected: Rejections
) -> Rejections:
    """Returns the rejected lines. Lines with the id of an erased user in a field get the reason ERASED."""
    reasons = (*rejected.reasons, ERASED)
    codes = rejected.codes.copy()
    others = np.flatnonzero([reasons[code] != ERASED for code in codes.tolist()])
    for place, text in zip(others.tolist(), block.texts(rejected.indices[others].tolist()), strict=True):
        if has_erased_field(text, fields, erased):
            codes[place] = len(rejected.reasons)
    return Rejections(rejected.indices, codes, reasons)


def unify(parts: Sequence[pa.Array]) -> pa.Array:
    """Concatenates arrays. The result of dictionary arrays is an array with one dictionary."""
    if len(parts) == 1:
        return parts[0]
    if not isinstance(parts[0], pa.DictionaryArray):
        return pa.concat_arrays(parts)
    chunks = pa.chunked_array(parts).unify_dictionaries().chunks
    indices = pa.concat_arrays([chunk.indices for chunk in chunks])
    # The indices come from the chunks, so they need no check.
    return pa.DictionaryArray.from_arrays(indices, chunks[-1].dictionary, safe=False)


def _derived_columns(
    columns: Mapping[str, Values], layout: FileLayout, reasons: RejectedRows
) -> dict[str, Values]:
    """Computes label, weight, keys and event_time (etl/raw/row_rules.py).

    A row that a check rejects gets a reason. Rules are applied to distinct values. Keys remain dictionary
    arrays; all other columns are plain arrays.
    """
    derived: dict[str, Values] = {}
    for rule in row_rules(layout.types, layout.label, layout.keys, layout.event_time, layout.table):
        encoded = columns[rule.column]
        distinct = encoded.dictionary
        values = rule.compute(distinct)
        if not pa.types.is_string(values.type):
            of_rows = values.take(arrow(encoded).indices)
            derived[rule.output] = of_rows if rule.of_null is None else of_rows.fill_null(rule.of_null)
        elif isinstance(encoded, DeviceColumn):
            derived[rule.output] = DeviceColumn(values, encoded.codes)
        else:
            derived[rule.output] = pa.DictionaryArray.from_arrays(encoded.indices, values)
        with_null = pa.concat_arrays([distinct, pa.nulls(1, distinct.type)])
        for check in rule.checks:
            rejected = pc.fill_null(check.rejects(with_null), False).to_numpy(zero_copy_only=False)
            if rejected[:-1].any() or (rejected[-1] and _may_have_null(encoded)):
                reasons.add(rows_with(encoded, np.flatnonzero(rejected)), check.reason)
    if TIME_OF_DAY in derived:
        midnights, times_of_day = plain(derived[EVENT_TIME]), plain(derived.pop(TIME_OF_DAY))
        derived[EVENT_TIME] = with_times_of_day(midnights, times_of_day, layout.table.time_zone)
    return derived


def _may_have_null(encoded: Values) -> bool:
    """Returns whether a row may be null.

    If the codes are on a device, they are not searched, and the result may be True although no row is null.
    """
    return isinstance(encoded, DeviceColumn) or encoded.indices.null_count > 0


def _apply_filters(columns: Mapping[str, Values], layout: FileLayout, reasons: RejectedRows) -> None:
    decoded: dict[str, pa.Array] = {}
    for row_filter in layout.filters:
        names = row_filter.inputs(layout.types)
        decoded |= {name: plain(columns[name]) for name in names if name not in decoded}
        inputs = {name: decoded[name] for name in names}
        kept = pc.fill_null(row_filter.keeps_rows(inputs, reasons.rows, layout.types), False)
        reasons.add(np.flatnonzero(~kept.to_numpy(zero_copy_only=False)), row_filter.reason)


def plain(column: Values) -> pa.Array:
    """Converts a dictionary array to a plain array. An array without a dictionary is returned unchanged."""
    array = arrow(column)
    return array.dictionary.take(array.indices) if isinstance(array, pa.DictionaryArray) else array


# The class below is the part of the configuration that workers need to read the rows of a log.


@dataclass(frozen=True)
class FileLayout:
    """The reader and the rules of a log.

    Attributes:
        reader: the reader of the log's files.
        label: column and threshold of the label.
        keys: columns of user, item and group.
        event_time: column and unit of the time.
        filters: the operators that drop rows.
        erased: maps the path of a file to the erased users whose rows in this file are left out. Files
            without rows of such users are not in the mapping.
        device: `workflow.device` of the configuration.
    """

    reader: TableReader
    label: Label
    keys: Keys | None
    event_time: EventTime | None
    filters: tuple[RowFilter, ...]
    erased: Mapping[str, ErasedUsers] = field(default_factory=dict)
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def table(self) -> RawTable:
        """Returns the columns and the format of the files."""
        return self.reader.table

    @property
    def columns(self) -> tuple[Column, ...]:
        """Returns the raw columns of the configuration."""
        return tuple(self.table.columns)

    @property
    def types(self) -> Mapping[str, Type]:
        """Maps the name of each raw column to the type that operators receive."""
        return self.table.types


def layout_of_days(plan: FeaturePlan, days: Sequence[RawFiles]) -> FileLayout:
    """Returns the layout of the files of some days. Readers with this layout leave out erased users' rows.

    Raises:
        DataError: see `file_layout`.
    """
    layout = file_layout(plan, tuple(path for raw in days for path in raw.paths))
    erased = {raw: users for raw in days if (users := erased_of_day(plan.config, raw.dt)) is not None}
    return replace(layout, erased={path: users for raw, users in erased.items() for path in raw.paths})


def file_layout(plan: FeaturePlan, paths: tuple[str, ...]) -> FileLayout:
    """Returns the layout of a log's files.

    Raises:
        DataError, ConfigError: see etl.readers.base.TableReader.open.
        ConfigError: an operator that drops rows cannot process blocks of rows.
    """
    log = plan.config.log
    filters = plan.filters
    for row_filter in filters:
        row_filter.inputs(log.types)  # `inputs` raises an error if the operator cannot process blocks of rows
    reader = open_table(log, paths, log.event_time)
    device = plan.config.workflow.device
    return FileLayout(reader, log.label, plan.config.keys, log.event_time, filters, device=device)


# The passes read blocks of rows from the files of a raw log, or from prepared files.


class RowSource(Protocol):
    """Reads the blocks of file splits. Objects of this class are pickled for tasks."""

    def blocks(self, file_split: FileSplit, features: Sequence[str]) -> Iterator[ParsedBlock]:
        """Yields the rows of a file split, block by block, in the order of the rows.

        Args:
            file_split: the part of a file to read.
            features: raw columns that features read. Columns of label, keys and time are always read.
        """


@dataclass(frozen=True)
class LogRows:
    """Reads the rows of a raw log, and applies the rules of the log to them."""

    layout: FileLayout

    def blocks(self, file_split: FileSplit, features: Sequence[str]) -> Iterator[ParsedBlock]:
        """Yields the rows of a file split."""
        return read_split(file_split, self.layout, columns_to_parse(self.layout, features))


def columns_to_parse(layout: FileLayout, features: Sequence[str]) -> tuple[str, ...]:
    """Returns the raw columns to parse: `features`, and the columns of label, keys, time and filters."""
    names = {*features, *([layout.label.column] if layout.label.column else [])}
    if layout.keys:
        names |= set(layout.keys.columns)
    if layout.event_time:
        names |= {*layout.event_time.columns}
    for row_filter in layout.filters:
        names |= {*row_filter.inputs(layout.types)}
    return tuple(column.name for column in layout.columns if column.name in names)


# The functions below store parsed blocks of file splits on a worker's local disk, so that the blocks are not
# parsed a second time.
#
# A block has no file on a worker if another machine parsed the split, if the disk was nearly full, or if the
# file was lost. In these cases, the split is parsed again. The files are in Spark's local directories, which
# Spark deletes when the application ends. `load` deletes a file after reading it, unless other tasks also
# read it.

_ROW_LINES, _LINES, _BYTES = "nightrank.places", b"nightrank.lines", b"nightrank.bytes"

# A disk is nearly full if the free share and the free bytes are both below these limits. Spark needs this
# space for shuffles.
_MIN_FREE_SHARE = 0.2
_MIN_FREE_BYTES = 20 * 2**30


@dataclass(frozen=True)
class SavedBlock:
    """A block that `save` wrote.

    Attributes:
        name: the name under which `save` wrote the block.
        shared: whether several tasks read the block. If so, its file is not deleted after reading.
    """

    name: str
    shared: bool = False


def save(name: str, block: ParsedBlock) -> bool:
    """Writes a parsed block under a name. Returns False if the disk is nearly full or the write fails."""
    path = _path(name)
    if path is None:
        return False
    usage = shutil.disk_usage(path.parent)
    if usage.free < min(_MIN_FREE_SHARE * usage.total, _MIN_FREE_BYTES):
        return False
    arrays = {_ROW_LINES: pa.array(block.row_lines), **block.columns}
    batch = pa.RecordBatch.from_arrays([*arrays.values()], [*arrays])
    facts = {_LINES: str(block.lines).encode(), _BYTES: str(block.bytes).encode()}
    schema = batch.schema.with_metadata(facts)
    # The name contains the process id, because another attempt at the task may run on the same machine.
    written = path.with_suffix(f".{os.getpid()}")
    try:
        with pa.OSFile(str(written), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        written.replace(path)
    except OSError:
        written.unlink(missing_ok=True)
        return False
    return True


def load_all(saved: Sequence[SavedBlock], columns: set[str]) -> list[ParsedBlock] | None:
    """Reads several blocks (see `load`). Returns None if `saved` is empty or a block cannot be loaded."""
    blocks = [load(one, columns) for one in saved]
    loaded = [block for block in blocks if block is not None]
    return loaded if loaded and len(loaded) == len(blocks) else None


def load(saved: SavedBlock, columns: set[str]) -> ParsedBlock | None:
    """Reads a block that `save` wrote. Deletes its file unless the block is shared.

    The returned block contains no rejected lines. The result is None if the file does not exist, is
    incomplete, or lacks one of `columns`.
    """
    path = _path(saved.name)
    if path is None or not path.exists():
        return None
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            batch = reader.get_batch(0)
            facts = reader.schema.metadata
            lines, size = int(facts[_LINES]), int(facts[_BYTES])
    except (OSError, pa.ArrowInvalid):  # the file is incomplete, because the worker was killed
        return None
    finally:
        if not saved.shared:
            with suppress(OSError):
                path.unlink()  # the memory mapping stays readable after the file is deleted
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    row_lines = np.asarray(arrays.pop(_ROW_LINES))
    block = ParsedBlock(size, lines, row_lines, arrays, {}, NOTHING_REJECTED)
    return block if columns <= set(arrays) else None


def _path(name: str) -> Path | None:
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    return Path(folders.split(",")[0]) / f"nightrank-{name}.arrow" if folders else None
