"""The second pass: every slice parsed again, its values turned into features, and written as Parquet by its worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from etl.ops.tables import LocalTables
from etl.raw.file_splits import SLICE_BYTES, Slice, blocks
from etl.text import parsed_splits
from etl.text.layout import FileLayout
from etl.text.parse_block import Block, parse_block, unify
from etl.text.scan_pass import starts_file, wanted
from etl.workflow.chains import FEATURE_ARROW_TYPES, FittedChain, compute_features
from spark.tasks import collect_results
from storage import file_io
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY, FeatureSpec
from storage.publish import own_path
from storage.verify import null_column

_RAW_KEYS = (USER_KEY, ITEM_KEY, GROUP_KEY)
_KEY_TYPES = {ROW_ID: pa.int64(), **dict.fromkeys(_RAW_KEYS, pa.string()), EVENT_TIME: pa.int64()}


@dataclass(frozen=True)
class Task:
    """A slice, the row_id of its first line, and the name of its scratch, if it may have one.

    `features_file`: where its features go. Each attempt at the task adds a part of its own to that name (storage.publish.own_path).
    """

    part: Slice
    first_row: int
    features_file: str
    scratch: str | None = None


@dataclass(frozen=True)
class Encoding:
    """What all tasks share: the log's layout, the fitted chains and their tables, the table to write."""

    layout: FileLayout
    chains: tuple[FittedChain, ...]
    spec: FeatureSpec
    tables: LocalTables
    row_group_rows: int

    @property
    def schema(self) -> pa.Schema:
        """Columns of the feature table, in order.

        What a model reads is declared as never null, which makes it cheaper to decode.
        """
        dtypes = {each.name: FEATURE_ARROW_TYPES[each.dtype] for each in self.spec.features}
        keys = [pa.field(name, _KEY_TYPES[name]) for name in self.spec.key_columns]
        read = {self.spec.label: pa.float32(), **dtypes}
        return pa.schema(
            [*keys, *(pa.field(name, kind, pa.types.is_list(kind)) for name, kind in read.items())]
        )


def encode(spark: SparkSession, tasks: Sequence[Task], encoding: Encoding) -> list[str]:
    """Writes one Parquet file a task and returns the path of each. Nothing is published.

    Rows are dealt round-robin over the row groups of a slice, so that each group is a fair sample of it.
    """
    sent = tuple(tasks)
    return collect_results(spark, len(sent), lambda index: encode_slice(sent[index], encoding))


def encode_slice(task: Task, encoding: Encoding) -> str:
    """Writes the features of a slice to a file of this attempt's own, and returns its path."""
    path = own_path(task.features_file)
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    names = [name for chain in encoding.chains for name in chain.inputs]
    needed = wanted(encoding.layout, names)
    held = 0
    waiting: list[tuple[int, Block]] = []
    with (
        files.open_output_stream(inner) as sink,
        pq.ParquetWriter(sink, encoding.schema, compression="zstd") as writer,
    ):
        for first_row, parsed in _blocks(task, encoding.layout, needed):
            waiting.append((first_row, parsed))
            held += parsed.bytes
            if held >= SLICE_BYTES:
                _write(writer, waiting, encoding, task.part.path)
                waiting, held = [], 0
        _write(writer, waiting, encoding, task.part.path)
    return path


def _blocks(task: Task, layout: FileLayout, needed: Sequence[str]) -> Iterator[tuple[int, Block]]:
    """(row_id of its first line, block) of a slice: what the first pass kept of it, or parsed again."""
    kept = parsed_splits.load(task.scratch, {*needed}) if task.scratch else None
    if kept is not None:
        yield task.first_row, kept
        return
    lines = 0
    for block in blocks(task.part):
        parsed = parse_block(block, layout, needed, layout.header and starts_file(task.part, lines))
        yield task.first_row + lines, parsed
        lines += parsed.lines


def _write(
    writer: pq.ParquetWriter, waiting: Sequence[tuple[int, Block]], encoding: Encoding, path: str
) -> None:
    """Writes the rows of some blocks of the raw file `path`, as row groups of equal size.

    Raises:
        DataError: a feature is null.
    """
    rows = sum(len(block.places) for _, block in waiting)
    if not rows:
        return
    columns = _columns(waiting, encoding)
    schema = encoding.schema
    for field in schema:
        if not field.nullable and columns[field.name].null_count:
            raise null_column(path, field.name, columns[field.name].null_count, rows)
    groups = -(-rows // encoding.row_group_rows)
    table = pa.Table.from_arrays([columns[name] for name in schema.names], schema.names)
    for group in range(groups):
        part = table.take(pa.array(np.arange(group, rows, groups))) if groups > 1 else table
        writer.write_table(part.cast(schema), row_group_size=len(part))


def _columns(waiting: Sequence[tuple[int, Block]], encoding: Encoding) -> Mapping[str, pa.Array]:
    """Column of the feature table → (n,) its values."""
    names = {name for chain in encoding.chains for name in chain.inputs}
    raw = {name: unify([block.columns[name] for _, block in waiting]) for name in sorted(names)}
    dtypes = {each.name: each.dtype for each in encoding.spec.features}
    made = compute_features(encoding.chains, raw, dtypes, encoding.tables)
    ids = np.concatenate([first + block.places for first, block in waiting])
    made[ROW_ID] = pa.array(ids, pa.int64())
    for key in _RAW_KEYS:
        if key in encoding.spec.key_columns:
            made[key] = unify([block.columns[key] for _, block in waiting])
    for key in (EVENT_TIME, LABEL):
        if key in (*encoding.spec.key_columns, encoding.spec.label):
            made[key] = pa.concat_arrays([block.columns[key] for _, block in waiting])
    return made
