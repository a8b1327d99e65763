"""Row groups of an object store, copied to local disk ahead of the thread that reads them, and deleted behind it.

Petastorm reads local files. A row group is staged as a file that holds its bytes and the footer at the places they have in
the whole file, and holes elsewhere: nothing is fetched twice because a file's row groups are read in another order.

Each use of a loader stages into a folder of its own, which it locks. Whoever comes later deletes the folders whose owners
are gone, even by SIGKILL, because a lock ends with its process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import DataError, InfrastructureError
from storage import file_io
from storage.private_folder import lock, locked, open_file, private_folder
from training.data.sharding import RowGroup

_LOCK, _MUTEX = ".lock", ".mutex"
# For the lock on all folders. Whoever holds it deletes what killed ranks left, which takes seconds.
_PATIENCE_S = 300.0
_CHUNK_BYTES = 8 * 2**20
_MAGIC = 4  # bytes of PAR1, at both ends of a file
_REBUILD = "run build_features again for the day of this file"


@dataclass(frozen=True)
class Staged:
    """A row group whose file is on local disk; `size_bytes` of disk are taken for it, 0 where it lay there before."""

    group: RowGroup
    size_bytes: int

    def discard(self) -> None:
        """Deletes what was put there."""
        if self.group.file.staged is not None:
            Path(self.group.file.staged).unlink()


def stage(groups: Iterator[RowGroup], folder: Path) -> Iterator[Staged]:
    """Brings row groups to a folder, one after the other; those of local files are left where they are.

    Args:
        groups: in the order in which they will be read.
        folder: must outlive what is made of them.

    Raises:
        DataError: a file is missing, or is not the one its manifest describes.
        InfrastructureError: the store cannot be reached, or the disk is full.
    """
    for group in groups:
        if file_io.is_local(group.file.path):
            yield Staged(group, 0)
        else:
            yield _stage(group, folder / f"{uuid.uuid4().hex}.parquet")


@contextmanager
def own_folder(below: str | None) -> Iterator[Path]:
    """A new folder in this user's private one, deleted in the end; those of processes that are gone are deleted first.

    Args:
        below: where the private folder lies; None is the folder of temporary files.

    Raises:
        ConfigError: another user may have prepared the private folder.
        InfrastructureError: another process does not release its lock.
    """
    parent = private_folder(below, "train.reading.staging_folder")
    own = parent / uuid.uuid4().hex
    # Without the lock on all, a new folder could be taken for one without owner before it has its own lock.
    with locked(parent / _MUTEX, _PATIENCE_S):
        _sweep(parent)
        own.mkdir(mode=0o700)
        file = open_file(own / _LOCK)
        lock(file, own / _LOCK, _PATIENCE_S)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(file)


def _sweep(parent: Path) -> None:
    for folder in parent.iterdir():
        with suppress(OSError):  # no folder of ours, or in use
            file = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(file)


def _stage(group: RowGroup, path: Path) -> Staged:
    file = group.file
    files, inner = file_io.filesystem(file.path)
    try:
        with files.open_input_file(inner) as source:
            size = source.size()
            if file.size_bytes not in (None, size):
                raise DataError(
                    f"{file.path} has {size} bytes, its manifest says {file.size_bytes}", _REBUILD
                )
            copied = _copy(source, path, _parts(group, source))
    except FileNotFoundError as error:
        raise DataError(f"{file.path} does not exist although a manifest names it", _REBUILD) from error
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file.path} is no Parquet file of {group.count} row groups: {error}", _REBUILD
        ) from error
    except OSError as error:
        raise InfrastructureError(
            f"{file.path} cannot be copied to {path.parent}: {error}",
            "look at the store and at the space on this disk, then rerun",
        ) from error
    return Staged(replace(group, file=replace(file, staged=str(path))), copied)


def _parts(group: RowGroup, source: pa.NativeFile) -> list[tuple[int, int]]:
    """(first byte, bytes) of what reading a row group needs: all of a file that is read as a whole.

    Raises:
        DataError: the file has not that many row groups.
    """
    size = source.size()
    if group.count == 1:
        return [(0, size)]
    metadata = pq.ParquetFile(source).metadata
    if metadata.num_row_groups != group.count:
        raise DataError(
            f"{group.file.path} is no Parquet file of {group.count} row groups: it has {metadata.num_row_groups}",
            _REBUILD,
        )
    held = metadata.row_group(group.index)
    columns = [held.column(index) for index in range(held.num_columns)]
    starts = [
        min(each.data_page_offset, each.dictionary_page_offset or each.data_page_offset) for each in columns
    ]
    ends = [start + each.total_compressed_size for start, each in zip(starts, columns, strict=True)]
    footer = metadata.serialized_size + 4 + _MAGIC  # and its length, and the magic
    return [(0, _MAGIC), (min(starts), max(ends) - min(starts)), (size - footer, footer)]


def _copy(source: pa.NativeFile, path: Path, parts: list[tuple[int, int]]) -> int:
    with open(path, "wb") as into:
        into.truncate(source.size())
        for first, count in parts:
            source.seek(first)
            into.seek(first)
            while count:
                chunk = source.read(min(count, _CHUNK_BYTES))
                if not chunk:
                    raise OSError(f"it ended {count} bytes early")
                into.write(chunk)
                count -= len(chunk)
    # A block of the disk is taken whole; some file systems say so only when it is written.
    return max(sum(count for _, count in parts), path.stat().st_blocks * 512)
