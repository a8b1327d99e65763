"""Stages row groups of an object store: copies them to local disk, and deletes the copies after reading.

Petastorm reads only local files. The copy of a row group is a sparse file. This sparse file contains only the
bytes of the row group and of the Parquet footer, at the same positions as in the complete file. So the data
of each row group is fetched only once, in whatever order row groups are read.

Each use of a loader creates a new folder for its copies and locks this folder. A later use deletes the
folders of processes that have ended. This works even after SIGKILL, because the lock of a process ends when
the process ends.
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
from storage.file_digests import require_intact_copy
from storage.private_folder import lock, locked, open_file, private_folder
from training.data.sharding import RowGroup

_LOCK, _MUTEX = ".lock", ".mutex"
# Timeout for the lock that protects all folders. A process holds it only for some seconds, while it deletes
# the folders of killed ranks.
_LOCK_TIMEOUT_S = 300.0
_CHUNK_BYTES = 8 * 2**20
_MAGIC_BYTES = 4  # a Parquet file begins and ends with the 4 bytes PAR1
_REBUILD = "run build_features again for the day of this file"


@dataclass(frozen=True)
class Staged:
    """A row group on local disk.

    Attributes:
        group: the row group.
        size_bytes: the disk space of the copy; 0 if the file itself is local, so that no copy is needed.
    """

    group: RowGroup
    size_bytes: int

    def discard(self) -> None:
        """Deletes the local copy of the row group, if there is one."""
        if self.group.file.staged is not None:
            Path(self.group.file.staged).unlink()


def stage(groups: Iterator[RowGroup], folder: Path) -> Iterator[Staged]:
    """Copies row groups to a folder, one after the other. Row groups of local files are not copied.

    Args:
        groups: the row groups, in the order in which they will be read.
        folder: the target folder. This folder must exist as long as the results are used.

    Raises:
        DataError: a file is missing or does not match its manifest. For a file with several row groups, only
            the size is compared here, because its copies are not complete (see training.data.loader).
        InfrastructureError: the object store cannot be reached, or the local disk is full.
    """
    for group in groups:
        if file_io.is_local(group.file.path):
            yield Staged(group, 0)
        else:
            yield _stage(group, folder / f"{uuid.uuid4().hex}.parquet")


@contextmanager
def staging_folder(below: str | None) -> Iterator[Path]:
    """Creates a new folder in this user's private folder, and deletes it at the end.

    Before that, the folders of processes that have ended are deleted.

    Args:
        below: the folder that contains the private folder; None for the system's temporary folder.

    Raises:
        ConfigError: the private folder is not safe, because another user may have created it.
        InfrastructureError: another process holds the lock of the private folder for too long.
    """
    parent = private_folder(below, "train.reading.staging_folder")
    folder = parent / uuid.uuid4().hex
    # Without this lock, another process could delete the new folder before it is locked.
    with locked(parent / _MUTEX, _LOCK_TIMEOUT_S):
        _delete_unlocked_folders(parent)
        folder.mkdir(mode=0o700)
        file = open_file(folder / _LOCK)
        lock(file, folder / _LOCK, _LOCK_TIMEOUT_S)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(file)


def _delete_unlocked_folders(parent: Path) -> None:
    for folder in parent.iterdir():
        with suppress(OSError):  # no staging folder, or a folder that a process uses
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
                    f"{file.path} has {size} bytes, but its manifest says {file.size_bytes}", _REBUILD
                )
            copied = _copy(source, path, _parts(group, source))
        if group.count == 1:
            require_intact_copy(file.path, str(path))
    except FileNotFoundError as error:
        raise DataError(f"{file.path} does not exist although a manifest names it", _REBUILD) from error
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file.path} is not a Parquet file with {group.count} row groups: {error}", _REBUILD
        ) from error
    except OSError as error:
        raise InfrastructureError(
            f"{file.path} cannot be copied to {path.parent}: {error}",
            "check the object store and the free space on this disk, then rerun",
        ) from error
    return Staged(replace(group, file=replace(file, staged=str(path))), copied)


def _parts(group: RowGroup, source: pa.NativeFile) -> list[tuple[int, int]]:
    """Returns the byte ranges of a file that are needed to read a row group.

    A byte range is a pair (position of its first byte, number of bytes).

    Raises:
        DataError: the file's number of row groups differs from its manifest.
    """
    size = source.size()
    if group.count == 1:
        return [(0, size)]
    metadata = pq.ParquetFile(source).metadata
    if metadata.num_row_groups != group.count:
        raise DataError(
            f"{group.file.path} is not a Parquet file with {group.count} row groups: "
            f"it has {metadata.num_row_groups}",
            _REBUILD,
        )
    row_group = metadata.row_group(group.index)
    chunks = [row_group.column(index) for index in range(row_group.num_columns)]
    starts = [
        min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        for chunk in chunks
    ]
    ends = [start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)]
    footer = metadata.serialized_size + 4 + _MAGIC_BYTES  # the footer, 4 bytes with its length, and PAR1
    return [(0, _MAGIC_BYTES), (min(starts), max(ends) - min(starts)), (size - footer, footer)]


def _copy(source: pa.NativeFile, path: Path, parts: list[tuple[int, int]]) -> int:
    """Copies byte ranges of a file to a sparse file, at the same positions. Returns the used disk space."""
    with open(path, "wb") as into:
        into.truncate(source.size())
        for first, count in parts:
            source.seek(first)
            into.seek(first)
            while count:
                chunk = source.read(min(count, _CHUNK_BYTES))
                if not chunk:
                    raise OSError(f"the file ended {count} bytes early")
                into.write(chunk)
                count -= len(chunk)
    # The file system uses complete disk blocks, so the file may take more space than its data. But some file
    # systems report the blocks only some time after the write, so the result is at least the size of the
    # data.
    return max(sum(count for _, count in parts), path.stat().st_blocks * 512)
