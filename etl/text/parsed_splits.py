"""Stores parsed file splits on a worker's local disk, so that they are not parsed again in the encode pass.

A split has no file on a worker if another machine parsed the split, if the disk was nearly full, or if the
file was lost. Then the encode pass parses the split again. The files are in Spark's local directories, which
Spark deletes when the application ends. `load` deletes a file after reading it.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from etl.text.parse_block import ParsedBlock

_ROW_LINES, _LINES = "nightrank.places", b"nightrank.lines"
# A disk is nearly full if both a smaller share and fewer bytes are free. Spark needs this space for shuffles.
_MIN_FREE_SHARE = 0.2
_MIN_FREE_BYTES = 20 * 2**30


def save(name: str, block: ParsedBlock) -> None:
    """Writes a parsed block under a name. Does nothing if the disk is nearly full or the write fails."""
    path = _path(name)
    if path is None:
        return
    usage = shutil.disk_usage(path.parent)
    if usage.free < min(_MIN_FREE_SHARE * usage.total, _MIN_FREE_BYTES):
        return
    arrays = {_ROW_LINES: pa.array(block.row_lines), **block.columns}
    batch = pa.RecordBatch.from_arrays([*arrays.values()], [*arrays])
    schema = batch.schema.with_metadata({_LINES: str(block.lines).encode()})
    # Another attempt at the task may run on the same machine, so the name contains the process id.
    written = path.with_suffix(f".{os.getpid()}")
    try:
        with pa.OSFile(str(written), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        written.replace(path)
    except OSError:
        written.unlink(missing_ok=True)


def load(name: str, columns: set[str]) -> ParsedBlock | None:
    """Reads the block that `save` wrote under a name, and deletes the file of the block.

    The returned block contains no rejected lines. The result is None if the file does not exist, is
    incomplete, or lacks one of these columns.
    """
    path = _path(name)
    if path is None or not path.exists():
        return None
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            batch = reader.get_batch(0)
            lines = int(reader.schema.metadata[_LINES])
    except (OSError, pa.ArrowInvalid):  # incomplete: the worker was killed
        return None
    finally:
        with suppress(OSError):
            path.unlink()  # the mapping stays readable
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    row_lines = np.asarray(arrays.pop(_ROW_LINES))
    return ParsedBlock(0, lines, row_lines, arrays, {}, ()) if columns <= set(arrays) else None


def _path(name: str) -> Path | None:
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    return Path(folders.split(",")[0]) / f"nightrank-{name}.arrow" if folders else None
