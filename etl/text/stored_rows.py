"""Stores the good rows of a log as Parquet files in the lake, until Spark prepares them.

The scan pass writes one file per file split. Any worker of a cluster can read it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from etl.text.parse_block import ParsedBlock
from storage import file_io
from storage.publish import own_path

TASK, LINE = "_task", "_line"


@dataclass(frozen=True)
class RowsFile:
    """What the scan pass stores of a file split.

    Attributes:
        path: path of the file to write. Each attempt at the task adds different digits to the file name.
        columns: the columns to store, besides the index of the task (TASK, int32) and the line (LINE, int64).
    """

    path: str
    columns: tuple[str, ...]


class RowsFileWriter:
    """Writes the rows of the blocks of one file split. Use it as a context manager.

    Attributes:
        path: the path of the file; empty as long as no row was written.
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
        """Writes the good rows of a block; `lines_before` is the number of lines of the split before it."""
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
            store_schema=False,  # the columns are texts for Spark
        )
        return self._open.enter_context(writer)
