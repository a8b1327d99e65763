"""Parsed slices on a worker's local disk between the two passes, so that the second need not parse what the first has parsed.

A slice that is not found, because another machine parsed it, its file was lost or the disk was filling up, is parsed again.
Files lie in Spark's local directories, which Spark deletes with the application, and go as soon as they are read.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from etl.text.parse_block import Block

_PLACES, _LINES = "nightrank.places", b"nightrank.lines"
# A disk with less than this share free is left to Spark's shuffles.
_LEAST_FREE = 0.2


def save(name: str, block: Block) -> None:
    """Keeps a parsed block under a name; without a word where that is not possible."""
    path = _path(name)
    if path is None:
        return
    usage = shutil.disk_usage(path.parent)
    if usage.free < _LEAST_FREE * usage.total:
        return
    arrays = {_PLACES: pa.array(block.places), **block.columns}
    batch = pa.RecordBatch.from_arrays([*arrays.values()], [*arrays])
    schema = batch.schema.with_metadata({_LINES: str(block.lines).encode()})
    # A second attempt at the task, on the same machine, writes a file of its own.
    written = path.with_suffix(f".{os.getpid()}")
    try:
        with pa.OSFile(str(written), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        written.replace(path)
    except OSError:
        written.unlink(missing_ok=True)


def load(name: str, columns: set[str]) -> Block | None:
    """The block that was kept under a name, its bad lines left out, if it is here and has these columns. It can be loaded once."""
    path = _path(name)
    if path is None or not path.exists():
        return None
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            batch = reader.get_batch(0)
            lines = int(reader.schema.metadata[_LINES])
    except (OSError, pa.ArrowInvalid):  # written in part: the worker was killed
        return None
    finally:
        with suppress(OSError):
            path.unlink()  # what is mapped stays readable
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    places = np.asarray(arrays.pop(_PLACES))
    return Block(0, lines, places, arrays, {}, ()) if columns <= set(arrays) else None


def _path(name: str) -> Path | None:
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    return Path(folders.split(",")[0]) / f"nightrank-{name}.arrow" if folders else None
