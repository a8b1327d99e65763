"""Stores the good rows of a log (those that pass all checks) until they are prepared.

If Spark prepares the rows, they are stored in the data lake, in one file per file split. Every worker of a
cluster can read this file. If tasks on this machine prepare the rows, they are stored on the local disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etl.native.distinct_values import buckets_of
from etl.text.parse_block import ParsedBlock
from storage import file_io
from storage.publish import own_path

TASK, LINE = "_task", "_line"


@dataclass(frozen=True)
class RowsFile:
    """The settings with which the scan pass stores a file split in the lake.

    Attributes:
        path: path of the file to write. Each attempt at the task adds different digits to the file name.
        columns: the columns to store, besides the index of the task (TASK, int32) and the line (LINE, int64).
    """

    path: str
    columns: tuple[str, ...]


class RowsFileWriter:
    """Writes the rows of the blocks of one file split. Use it as a context manager.

    Attributes:
        path: the path of the file; empty until a row is written.
    """

    def __init__(self, file: RowsFile, task: int) -> None:
        self._file, self._task, self._open = file, task, ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self.path = ""

    def __enter__(self) -> RowsFileWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, block: ParsedBlock, lines_before: int) -> None:
        """Writes the good rows of a block. `lines_before` lines of the split precede the block."""
        if not len(block.row_lines):
            return
        tasks = pa.repeat(pa.scalar(self._task, pa.int32()), len(block.row_lines))
        lines = pa.array(block.row_lines + lines_before, pa.int64())
        columns = {TASK: tasks, LINE: lines, **{name: block.columns[name] for name in self._file.columns}}
        rows = pa.table(columns)
        if self._writer is None:
            self._writer = self._create(rows.schema)
        self._writer.write_table(rows.cast(self._writer.schema), row_group_size=len(rows))

    def _create(self, schema: pa.Schema) -> pq.ParquetWriter:
        self.path = own_path(self._file.path)
        files, inner = file_io.filesystem(self.path)
        if file_io.is_local(self.path):
            files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
        sink = self._open.enter_context(files.open_output_stream(inner))
        writer = pq.ParquetWriter(
            sink,
            schema,
            compression="snappy",
            write_statistics=False,
            store_schema=False,  # Spark must read these columns as strings
        )
        return self._open.enter_context(writer)


# The code below stores the good rows of a log on the local disk, divided by the hash of a column, until they
# are prepared.
#
# The scan pass writes the rows of each file split, in one file per hash bucket. So the task that prepares a
# bucket can read all rows of a user. The files are in the folder of temporary files of the workers, and only
# processes of this machine read them.

SPILLED_LINE = "_line"
_FILES = "nightrank-rows"


@dataclass(frozen=True)
class Spill:
    """The settings with which the scan pass stores a file split on the local disk.

    Attributes:
        name: name of the files, unique for each file split of a run.
        columns: names of the columns to store.
        by: the column of strings whose hash determines the bucket of a row; None if there is one bucket.
        buckets: number of buckets, a power of two.
    """

    name: str
    columns: tuple[str, ...]
    by: str | None = None
    buckets: int = 1


class SpillWriter:
    """Writes the rows of the blocks of one file split. Use it as a context manager."""

    def __init__(self, spill: Spill) -> None:
        self._spill, self._open = spill, ExitStack()
        self._writers: dict[int, pa.RecordBatchStreamWriter] = {}

    def __enter__(self) -> SpillWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, block: ParsedBlock, lines_before: int) -> None:
        """Writes the good rows of a block. `lines_before` lines of the split precede the block."""
        lines = pa.array(block.row_lines + lines_before, pa.int64())
        columns = {SPILLED_LINE: lines, **{name: block.columns[name] for name in self._spill.columns}}
        batch = pa.RecordBatch.from_arrays([*columns.values()], [*columns])
        if self._spill.by is None or self._spill.buckets == 1:
            self._write(0, batch)
            return
        key = block.columns[self._spill.by]
        of_values = buckets_of(key.dictionary, self._spill.buckets)
        of_rows = of_values[key.indices.to_numpy(zero_copy_only=False)]
        order = np.argsort(of_rows, kind="stable")
        bounds = np.searchsorted(of_rows[order], np.arange(self._spill.buckets + 1))
        for bucket in range(self._spill.buckets):
            rows = pa.array(order[bounds[bucket] : bounds[bucket + 1]])
            if len(rows):
                taken = [used_values(column.take(rows)) for column in batch.columns]
                self._write(bucket, pa.RecordBatch.from_arrays(taken, batch.schema.names))

    def _write(self, bucket: int, batch: pa.RecordBatch) -> None:
        if bucket not in self._writers:
            sink = self._open.enter_context(pa.OSFile(str(_path(self._spill.name, bucket)), "wb"))
            # Use a stream, because each batch has different dictionaries.
            self._writers[bucket] = self._open.enter_context(pa.ipc.new_stream(sink, batch.schema))
        self._writers[bucket].write_batch(batch)


def read_spilled(names: Sequence[str], bucket: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields (index in `names`, batch) for the rows of a bucket, in the order of the log."""
    for index, name in enumerate(names):
        path = _path(name, bucket)
        if path.exists():
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    yield index, batch


def delete_spilled(names: Sequence[str], bucket: int) -> None:
    """Deletes the files of a bucket. Batches that were read stay valid."""
    for name in names:
        _path(name, bucket).unlink(missing_ok=True)


def delete_spilled_of(folder: Path, prefix: str) -> None:
    """Deletes the remaining files of stored rows whose names begin with a prefix.

    Args:
        folder: the folder of temporary files of the workers.
        prefix: the prefix of `Spill.name`.
    """
    for path in folder.glob(f"{_FILES}-{prefix}-*"):
        path.unlink(missing_ok=True)


def spilled_lines(folder: Path, name: str, buckets: int) -> np.ndarray:
    """Returns the index of the line of each stored row of a file split, in any order: (n,) int64.

    Args:
        folder: the folder of temporary files of the workers.
        name: the attribute `name` of the Spill with which the rows were stored.
        buckets: number of buckets.
    """
    lines = [np.zeros(0, np.int64)]
    for bucket in range(buckets):
        path = folder / _file(name, bucket)
        if path.exists():
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
                lines += [np.array(batch.column(SPILLED_LINE)) for batch in reader]
    return np.concatenate(lines)


def used_values(values: pa.Array) -> pa.Array:
    """Returns an array whose dictionary has only values that occur. Arrays without one stay unchanged."""
    if not isinstance(values, pa.DictionaryArray):
        return values
    codes = values.indices
    present = np.unique(codes.drop_null().to_numpy(zero_copy_only=False))
    if len(present) == len(values.dictionary):
        return values
    new_codes = np.searchsorted(present, codes.fill_null(0).to_numpy(zero_copy_only=False))
    is_null = codes.is_null().to_numpy(zero_copy_only=False)
    indices = pa.array(np.where(is_null, 0, new_codes).astype(np.int32), mask=is_null)
    return pa.DictionaryArray.from_arrays(indices, values.dictionary.take(pa.array(present)))


def scratch_folder() -> Path:
    """Returns the folder of temporary files of this worker."""
    return Path(os.environ["SPARK_LOCAL_DIRS"].split(",")[0])


def _path(name: str, bucket: int) -> Path:
    return scratch_folder() / _file(name, bucket)


def _file(name: str, bucket: int) -> str:
    return f"{_FILES}-{name}-{bucket}.arrow"
