"""Stores parsed blocks of file splits on a worker's local disk, so that they are not parsed a second time.

A block has no file on a worker if another machine parsed the split, if the disk was nearly full, or if the
file was lost. Then the split is parsed again. The files are in Spark's local directories, which Spark deletes
when the application ends. `load` deletes a file after reading it, unless it is read once more.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from etl.text.parse_block import ParsedBlock

_ROW_LINES, _LINES, _BYTES = "nightrank.places", b"nightrank.lines", b"nightrank.bytes"
# A disk is nearly full if both a smaller share and fewer bytes are free. Spark needs this space for shuffles.
_MIN_FREE_SHARE = 0.2
_MIN_FREE_BYTES = 20 * 2**30


@dataclass(frozen=True)
class SavedBlock:
    """A block that `save` wrote.

    Attributes:
        name: the name of the block.
        shared: whether several tasks read it, so that its file is not deleted when it is read.
    """

    name: str
    shared: bool = False


def save(name: str, block: ParsedBlock) -> bool:
    """Writes a parsed block under a name, and returns whether it did.

    It does not if the disk is nearly full or the write fails.
    """
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
    # Another attempt at the task may run on the same machine, so the name contains the process id.
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
    """Reads several blocks (see `load`); None if one of them cannot be loaded, or if there is none."""
    blocks = [load(one, columns) for one in saved]
    loaded = [block for block in blocks if block is not None]
    return loaded if loaded and len(loaded) == len(blocks) else None


def load(saved: SavedBlock, columns: set[str]) -> ParsedBlock | None:
    """Reads a block that `save` wrote. Deletes its file unless the block is shared.

    The returned block contains no rejected lines. The result is None if the file does not exist, is
    incomplete, or lacks one of these columns.
    """
    path = _path(saved.name)
    if path is None or not path.exists():
        return None
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            batch = reader.get_batch(0)
            facts = reader.schema.metadata
            lines, size = int(facts[_LINES]), int(facts[_BYTES])
    except (OSError, pa.ArrowInvalid):  # incomplete: the worker was killed
        return None
    finally:
        if not saved.shared:
            with suppress(OSError):
                path.unlink()  # the mapping stays readable
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    row_lines = np.asarray(arrays.pop(_ROW_LINES))
    return ParsedBlock(size, lines, row_lines, arrays, {}, ()) if columns <= set(arrays) else None


def _path(name: str) -> Path | None:
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    return Path(folders.split(",")[0]) / f"nightrank-{name}.arrow" if folders else None
